/* SPDX-License-Identifier: Apache-2.0
 *
 * Fair queues: one list of flows for each of the next rounds. A flow is in the list of its next
 * round. Its owner protects the queue.
 */
#include "base/fair.h"

#include "base/assert.h"
#include "base/container.h"

static void list_add(struct hps_fair_list *list, struct hps_fair_link *link)
{
    *link = (struct hps_fair_link){.prev = list->last};
    *(list->last != NULL ? &list->last->next : &list->first) = link;
    list->last = link;
}

static void list_remove(struct hps_fair_list *list, struct hps_fair_link *link)
{
    *(link->prev != NULL ? &link->prev->next : &list->first) = link->next;
    *(link->next != NULL ? &link->next->prev : &list->last) = link->prev;
}

/* The two lists of a round. */
static struct hps_fair_list *lists_at(struct hps_fair *fair, uint64_t round)
{
    return fair->rounds[round % HPS_FAIR_ROUNDS];
}

static struct hps_fair_list *list_of(struct hps_fair *fair, const struct hps_fair_flow *flow)
{
    HPS_ASSERT(flow->round >= fair->now && flow->round - fair->now < HPS_FAIR_ROUNDS);
    return &lists_at(fair, flow->round)[flow->is_quick];
}

/* Rounds that passed without the flow are not saved up for it. */
static void catch_up(const struct hps_fair *fair, struct hps_fair_flow *flow)
{
    if (flow->round < fair->now) {
        flow->round = fair->now;
        flow->used = 0;
    }
}

void hps_fair_init(struct hps_fair *fair, uint64_t quantum)
{
    HPS_ASSERT(quantum > 0);
    *fair = (struct hps_fair){.quantum = quantum};
}

void hps_fair_add(struct hps_fair *fair, struct hps_fair_flow *flow, struct hps_fair_item *item)
{
    HPS_ASSERT(!item->queued);
    if (flow->n_items++ == 0) {
        catch_up(fair, flow);
        list_add(list_of(fair, flow), &flow->link);
    }
    list_add(&flow->items, &item->link);
    item->flow = flow;
    item->queued = true;
    fair->n_items++;
}

struct hps_fair_item *hps_fair_first(struct hps_fair *fair, bool quick)
{
    struct hps_fair_link *link = NULL;

    if (fair->n_items == 0) {
        return NULL;
    }
    while (lists_at(fair, fair->now)[0].first == NULL &&
           lists_at(fair, fair->now)[1].first == NULL) {
        fair->now++;
    }
    for (uint32_t i = 0; i < HPS_FAIR_ROUNDS && link == NULL; i++) {
        const struct hps_fair_list *lists = lists_at(fair, fair->now + i);
        link = lists[1].first != NULL || quick ? lists[1].first : lists[0].first;
    }
    if (link == NULL) {
        return NULL;
    }
    link = HPS_CONTAINER_OF(link, struct hps_fair_flow, link)->items.first;
    return HPS_CONTAINER_OF(link, struct hps_fair_item, link);
}

void hps_fair_remove(struct hps_fair *fair, struct hps_fair_item *item)
{
    struct hps_fair_flow *flow = item->flow;

    HPS_ASSERT(item->queued && fair->n_items > 0);
    item->queued = false;
    list_remove(&flow->items, &item->link);
    list_remove(list_of(fair, flow), &flow->link);
    if (--flow->n_items > 0) { /* behind the other flows of its round */
        list_add(list_of(fair, flow), &flow->link);
    }
    if (--fair->n_items == 0) {
        fair->now += HPS_FAIR_ROUNDS;
    }
}

void hps_fair_spend(struct hps_fair *fair, struct hps_fair_flow *flow, uint64_t cost)
{
    if (flow->n_items > 0) {
        list_remove(list_of(fair, flow), &flow->link);
    }
    catch_up(fair, flow);
    flow->used += cost;
    flow->round += flow->used / fair->quantum;
    flow->used %= fair->quantum;
    if (flow->round - fair->now >= HPS_FAIR_ROUNDS) {
        flow->round = fair->now + HPS_FAIR_ROUNDS - 1;
    }
    if (flow->n_items > 0) {
        list_add(list_of(fair, flow), &flow->link);
    }
}
