/* SPDX-License-Identifier: Apache-2.0
 *
 * The slices of a loop. See run.h.
 */
#include "net/run.h"

#include <stddef.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/container.h"

enum { NS_PER_US = 1000, SLICE_NS_MIN = 500 /* cheaper slices cost this much as well */ };

static struct hps_run_client *client_of(struct hps_run *run, uint64_t client)
{
    uint64_t hash = client * 0x9e3779b97f4a7c15u;

    return &run->clients[(hash >> 32) % HPS_RUN_CLIENTS];
}

static void run_tasks(struct hps_run_item *item, unsigned events)
{
    struct hps_run_client *client = HPS_CONTAINER_OF(item, struct hps_run_client, item);

    while (client->first != NULL && !hps_run_is_spent(item->run)) {
        struct hps_task *task = client->first;
        client->first = task->next;
        task->next = NULL;
        task->run(task);
        hps_run_see(item->run, hps_clock_us());
    }
    if (client->first != NULL) {
        hps_run_add(item, events);
    }
}

void hps_run_init(struct hps_run *run)
{
    *run = (struct hps_run){.limit_us = UINT64_MAX};
    hps_fair_init(&run->fair, (uint64_t)HPS_RUN_SLICE_US * NS_PER_US);
    for (unsigned i = 0; i < HPS_RUN_CLIENTS; i++) {
        struct hps_run_client *client = &run->clients[i];
        client->item = (struct hps_run_item){.run = run, .flow = &client->flow, .work = run_tasks};
    }
}

void hps_run_item_init(struct hps_run_item *item, struct hps_run *run, uint64_t client,
                       void (*work)(struct hps_run_item *item, unsigned events))
{
    HPS_ASSERT(work != NULL);
    *item = (struct hps_run_item){.run = run, .flow = &client_of(run, client)->flow, .work = work};
}

void hps_run_add(struct hps_run_item *item, unsigned events)
{
    HPS_ASSERT(events != 0);
    item->events |= events;
    if (item->run->current != item && !item->item.queued) {
        hps_fair_add(&item->run->fair, item->flow, &item->item);
    }
}

unsigned hps_run_take(struct hps_run_item *item, unsigned events)
{
    unsigned taken = item->events & events;

    HPS_ASSERT(item->run->current == item);
    item->events &= ~events;
    return taken;
}

void hps_run_remove(struct hps_run_item *item)
{
    item->events = 0;
    if (item->item.queued) {
        hps_fair_remove(&item->run->fair, &item->item);
    }
    if (item->run != NULL && item->run->current == item) {
        item->run->current = NULL;
    }
}

bool hps_run_is_added(const struct hps_run_item *item)
{
    return item->events != 0;
}

void hps_run_post(struct hps_run *run, struct hps_task *task)
{
    struct hps_run_client *client = client_of(run, task->client);

    HPS_ASSERT(task->next == NULL);
    *(client->first != NULL ? &client->last->next : &client->first) = task;
    client->last = task;
    hps_run_add(&client->item, 1);
}

struct turn {
    uint64_t end_us;
    uint64_t cpu_us; /* CPU time when the turn began; 0: only one flow had work */
};

/* The time that a client has used in a slice that began at from_us. While the kernel runs other
 * threads, the client uses nothing. The CPU time, which is slow to read, is read only if
 * the slice was long. Since the turn began, it is an upper bound. */
static uint64_t used_us(const struct hps_run *run, const struct turn *turn, uint64_t from_us)
{
    uint64_t us = run->seen_us - from_us;

    if (us > HPS_RUN_TURN_US && turn->cpu_us != 0) {
        uint64_t cpu_us = hps_clock_cpu_us() - turn->cpu_us;
        us = cpu_us < us ? cpu_us : us;
    }
    return us;
}

/* One slice of the next item, which begins at seen_us. */
static void run_slice(struct hps_run *run, struct hps_run_item *item, const struct turn *turn)
{
    struct hps_fair_flow *flow = item->flow;
    uint64_t from_us = run->seen_us;
    uint64_t slice_end_us = from_us + HPS_RUN_SLICE_US;
    unsigned events = item->events;

    hps_fair_remove(&run->fair, &item->item);
    item->events = 0;
    run->current = item;
    run->shared = run->fair.n_items > flow->n_items;
    if (run->shared || flow != run->last) {
        run->changed_us = from_us;
    }
    run->last = flow;
    run->limit_us = run->shared || turn->end_us < slice_end_us ? slice_end_us : turn->end_us;
    item->work(item, events);
    run->shared = false;
    run->limit_us = UINT64_MAX;
    run->seen_us = hps_clock_us();
    hps_fair_spend(&run->fair, flow, used_us(run, turn, from_us) * NS_PER_US + SLICE_NS_MIN);
    if (run->current != NULL && item->events != 0) {
        hps_fair_add(&run->fair, flow, &item->item);
    }
    run->current = NULL;
}

void hps_run_turn(struct hps_run *run)
{
    struct hps_fair_item *first = hps_fair_first(&run->fair, false);

    HPS_ASSERT(run->current == NULL);
    if (first == NULL) {
        return;
    }
    run->seen_us = hps_clock_us();
    const struct turn turn = {
        .end_us = run->seen_us + HPS_RUN_TURN_US,
        .cpu_us = run->fair.n_items > first->flow->n_items ? hps_clock_cpu_us() : 0};
    do {
        run_slice(run, HPS_CONTAINER_OF(first, struct hps_run_item, item), &turn);
        first = hps_fair_first(&run->fair, false);
    } while (first != NULL && run->seen_us < turn.end_us);
}

bool hps_run_is_idle(const struct hps_run *run)
{
    return run->fair.n_items == 0;
}
