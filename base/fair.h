/* SPDX-License-Identifier: Apache-2.0
 *
 * A queue that clients share fairly: deficit round robin. Each client has a flow, and a flow has
 * items in their order. Time is counted in rounds. In a round each flow may use `quantum` of time.
 * A flow that has used more is next in a later round. Flows of the same round take turns, item by
 * item. When the queue becomes empty, debts are forgotten.
 *
 * A flow is quick or not, for owners that keep something for quick items: in a round quick flows
 * come first, and the owner may take from quick flows alone. A client that has both kinds has two
 * flows.
 *
 * All operations take constant time: at most HPS_FAIR_ROUNDS steps. The owner of the queue protects
 * the queue, its flows and its queued items (a loop with its thread, a pool with its lock).
 */
#ifndef HPS_BASE_FAIR_H
#define HPS_BASE_FAIR_H

#include <stdbool.h>
#include <stdint.h>

/* A flow waits for at most this many rounds, however much it has used. */
enum { HPS_FAIR_ROUNDS = 64 };

/* Time that work takes, in nanoseconds. Estimates: only their ratios matter. */
enum {
    HPS_COST_KEY = 60,
    HPS_COST_BYTE = 4,
    /* of a message that is inflated and decoded */ HPS_COST_JSON_BYTE = 16,
    HPS_COST_JSON_VALUE = 100
};

struct hps_fair_link {
    struct hps_fair_link *next, *prev;
};
struct hps_fair_list {
    struct hps_fair_link *first, *last;
};

/* Zeroed before its first use. The queue owns it while it is queued. */
struct hps_fair_item {
    struct hps_fair_link link;
    struct hps_fair_flow *flow; /* of its last hps_fair_add */
    bool queued;
};

/* Zeroed before its first use, except is_quick. It must outlive its queued items. */
struct hps_fair_flow {
    struct hps_fair_link link;  /* in the list of its round, while it has items */
    struct hps_fair_list items; /* queued */
    uint32_t n_items;
    bool is_quick;        /* changed only while no item is queued */
    uint64_t round, used; /* its next round, and the time that it has used of that one */
};

struct hps_fair {
    struct hps_fair_list rounds[HPS_FAIR_ROUNDS][2]; /* flows with items; [1]: quick */
    uint64_t now;                                    /* no flow with items is in an earlier round */
    uint64_t quantum;
    uint32_t n_items;
};

void hps_fair_init(struct hps_fair *fair, uint64_t quantum); /* quantum > 0 */
/* Appends an item that is not queued to a flow. */
void hps_fair_add(struct hps_fair *fair, struct hps_fair_flow *flow, struct hps_fair_item *item);
/* The item that is next, which stays queued. quick: of the quick flows. NULL: none. */
struct hps_fair_item *hps_fair_first(struct hps_fair *fair, bool quick);
/* Removes a queued item: the one that is next, or any other. */
void hps_fair_remove(struct hps_fair *fair, struct hps_fair_item *item);
/* Charges `cost` to the flow. The cost of work may be counted in parts, before, while and after
 * the work is done. */
void hps_fair_spend(struct hps_fair *fair, struct hps_fair_flow *flow, uint64_t cost);

#endif
