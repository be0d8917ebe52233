/* SPDX-License-Identifier: Apache-2.0
 *
 * The work of an event loop, which its clients share fairly. A connection that has work is queued
 * as an item, in the flow of its client (base/fair.h). In each turn the loop does such work for at
 * most HPS_RUN_TURN_US, then it looks at its descriptors again. The work is done in slices. The
 * time of a slice is charged to the flow, except time for which the thread was preempted. So a
 * client with a thousand connections gets no more time than a client with one.
 *
 * Everything runs on the thread of the loop. net/loop.h has one run for each loop.
 */
#ifndef HPS_NET_RUN_H
#define HPS_NET_RUN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/fair.h"
#include "base/mailbox.h"

enum {
    HPS_RUN_TURN_US = 250,   /* work of a turn */
    HPS_RUN_SLICE_US = 64,   /* a slice, while other clients wait */
    HPS_RUN_BUSY_US = 10000, /* other clients count as active this long after a slice */
    HPS_RUN_CLIENTS = 256,   /* flows: clients are distributed over them by a hash */
};

/* Something that has work, embedded in a struct of its user. */
struct hps_run_item {
    struct hps_fair_item item;
    struct hps_run *run;
    struct hps_fair_flow *flow;
    unsigned events; /* added since its last slice began */
    /* One slice: does the work for `events`. It may free the struct that has the item, after
     * hps_run_remove. If work is left, it adds events again. */
    void (*work)(struct hps_run_item *item, unsigned events);
};

struct hps_run_client {
    struct hps_fair_flow flow;
    struct hps_run_item item; /* its tasks */
    struct hps_task *first, *last;
};

struct hps_run {
    struct hps_fair fair;
    struct hps_run_client clients[HPS_RUN_CLIENTS];
    struct hps_run_item *current; /* has the slice; NULL: removed, or no slice */
    bool shared; /* other flows waited when the slice began; false between slices */
    const struct hps_fair_flow *last; /* had the last slice */
    uint64_t changed_us; /* when a slice last began after another flow's, or while others waited */
    uint64_t seen_us;    /* the time that was read last */
    uint64_t limit_us;   /* when the slice should end; between slices UINT64_MAX */
};

void hps_run_init(struct hps_run *run);
/* client: hps_sock_client of the connection; 0 for connections of this process itself */
void hps_run_item_init(struct hps_run_item *item, struct hps_run *run, uint64_t client,
                       void (*work)(struct hps_run_item *item, unsigned events));
/* Queues the item, unless it is queued. An item may be added within its own slice: then it is
 * queued when the slice ends, behind other items. events: bits that its user defines, not 0. */
void hps_run_add(struct hps_run_item *item, unsigned events);
/* Within a slice of the item: takes the `events` that were added since it began. */
unsigned hps_run_take(struct hps_run_item *item, unsigned events);
void hps_run_remove(struct hps_run_item *item); /* idempotent */
/* Runs the task in a slice of its client, task->client, behind earlier ones. */
void hps_run_post(struct hps_run *run, struct hps_task *task);
bool hps_run_is_added(const struct hps_run_item *item);

/* Whether the time of the slice was over when the clock was last read (hps_run_see). False outside
 * of slices. */
static inline bool hps_run_is_spent(const struct hps_run *run)
{
    return run->seen_us > run->limit_us;
}

/* Sets the time, after the clock was read for another reason. */
static inline void hps_run_see(struct hps_run *run, uint64_t now_us)
{
    run->seen_us = now_us;
}

/* Whether other clients wait for this slice to end. Its steps should be short then. */
static inline bool hps_run_is_shared(const struct hps_run *run)
{
    return run->shared;
}

/* Whether other clients wait, or had slices lately. Long steps such as large writes should be
 * divided then, because another client may come at any time. */
static inline bool hps_run_is_busy(const struct hps_run *run)
{
    return run->seen_us < run->changed_us + HPS_RUN_BUSY_US;
}

/* For the loop: does the work of a turn. */
void hps_run_turn(struct hps_run *run);
bool hps_run_is_idle(const struct hps_run *run);

#endif
