/* SPDX-License-Identifier: Apache-2.0
 *
 * Queries one tier that blocks: keys of several parts in one call, through its breaker. The
 * deadline and cancellation are checked between calls. On the thread of the lookup, which may
 * block.
 */
#include "backends/breaker.h"
#include "base/arena.h"
#include "base/assert.h"
#include "base/clock.h"
#include "cache/lookup/tiers_internal.h"

enum { GROUP_PARTS_MAX = 128 }; /* per call for several parts */

/* ---- one call of a store --------------------------------------------------------------------- */

/* Pieces of several walks, looked up in one call of a tier. */
struct group {
    struct hps_part_batch parts[GROUP_PARTS_MAX];
    struct hps_walk *walks[GROUP_PARTS_MAX];
    uint32_t n_keys[GROUP_PARTS_MAX];
    uint32_t n;
};

/* Add the next piece of a walk, of at most n_max keys:
 *
 *     [ missing | piece | not looked up | answered ]
 *               lo                      hi
 *
 * Returns the number of its keys.
 */
static uint32_t group_add(struct group *group, struct hps_walk *walk, uint32_t n_max)
{
    const struct hps_walk_fetch *fetch = &walk->fetch;

    HPS_ASSERT(group->n < GROUP_PARTS_MAX);
    HPS_ASSERT(fetch->lo < fetch->hi);
    uint32_t n = fetch->hi - fetch->lo < n_max ? fetch->hi - fetch->lo : n_max;

    group->parts[group->n] =
        (struct hps_part_batch){.table = walk->table,
                                .batch = {.keys = walk->batch.keys + fetch->lo,
                                          .slots = walk->batch.slots + fetch->lo,
                                          .rows = walk->batch.rows,
                                          .n = n}};
    group->walks[group->n] = walk;
    group->n_keys[group->n] = n;
    group->n++;
    return n;
}

/* Move the answered keys of a piece to the range after `hi`. */
static void take_answers(struct hps_walk *walk, uint32_t n, uint32_t n_missing)
{
    struct hps_walk_fetch *fetch = &walk->fetch;

    HPS_ASSERT(n_missing <= n);
    walk_swap_ranges(&walk->batch, fetch->lo + n_missing, n - n_missing,
                     fetch->hi - (fetch->lo + n));
    fetch->lo += n_missing;
    fetch->hi -= n - n_missing;
}

/* A walk that only inserts rows also wants exact ones, unless this tier is the lowest. */
static bool wants_exact(const struct hps_walk_call *call, const struct hps_tier *tier)
{
    bool inserts = call->purpose == HPS_WALK_BEHIND || call->purpose == HPS_WALK_WARM;

    return call->exact || (inserts && (tier->caps & HPS_CAP_LOWEST) == 0);
}

static hps_status call_store(struct group *group, const struct hps_tier *tier,
                             const struct hps_walk_call *call, bool *out_later)
{
    const struct hps_store_ops *ops = tier->space->store->ops;
    struct hps_call store_call = {.scratch = call->scratch,
                                  .deadline_us = call->deadline_us,
                                  .exact_position = wants_exact(call, tier),
                                  .later = out_later};

    if (call->scratch != NULL) {
        hps_arena_reset(call->scratch);
    }
    if (group->n > 1) {
        return ops->get_many(tier->space, &store_call, group->parts, group->n);
    }
    return ops->get(tier->space, &store_call, group->parts[0].table, &group->parts[0].batch);
}

/* Report one call for the whole group. asked: false if the breaker refused it */
static void note_call(struct group *group, enum hps_tier_kind kind, hps_status status, bool asked,
                      bool later)
{
    group->walks[0]->reports[kind].n_faults += status == HPS_OK ? 0 : 1;
    for (uint32_t i = 0; i < group->n; i++) {
        struct hps_walk *walk = group->walks[i];
        struct hps_tier_report *report = &walk->reports[kind];
        report->n_asked += asked ? group->n_keys[i] : 0;
        report->n_unanswered += status != HPS_OK && asked ? group->parts[i].batch.n : 0;
        report->status = status == HPS_OK ? report->status : status;
        report->later = report->later || later;
        walk->fetch.later = walk->fetch.later || later;
        take_answers(walk, group->n_keys[i], group->parts[i].batch.n);
    }
}

/* Call the store for the group if its breaker allows it. out_refused: it does not */
static hps_status ask_group(struct group *group, const struct hps_tier *tier,
                            const struct hps_walk_call *call, bool *out_refused)
{
    enum hps_breaker_pass pass = HPS_BREAKER_PASSED;
    hps_status status = HPS_UNAVAILABLE;
    bool later = false;

    if (tier->breaker != NULL) {
        pass = hps_breaker_enter(tier->breaker);
    }
    *out_refused = pass == HPS_BREAKER_REFUSED;
    if (!*out_refused) {
        uint64_t start_us = hps_clock_us();
        status = call_store(group, tier, call, &later);
        uint64_t duration_us = hps_clock_us() - start_us;
        group->walks[0]->reports[tier->kind].duration_us += duration_us;
        if (tier->breaker != NULL) {
            hps_breaker_leave(tier->breaker, pass, status, duration_us);
        }
    }
    note_call(group, tier->kind, status, !*out_refused, later);
    return status;
}

/* ---- all keys of a tier ---------------------------------------------------------------------- */

/* Collect the next pieces, from `walk` on, of at most `room` keys. Returns the walk to continue
 * with; NULL: all keys are taken. */
static struct hps_walk *next_group(struct group *group, struct hps_walk *walk, bool many,
                                   uint32_t n_keys_max)
{
    group->n = 0;
    while (walk != NULL && n_keys_max > 0 && group->n < (many ? GROUP_PARTS_MAX : 1)) {
        if (walk->fetch.lo < walk->fetch.hi) {
            n_keys_max -= group_add(group, walk, n_keys_max);
        }
        if (walk->fetch.hi - walk->fetch.lo > (group->n > 0 ? group->n_keys[group->n - 1] : 0)) {
            return walk; /* it has more keys */
        }
        walk = walk->next;
    }
    return walk;
}

hps_status walk_ask_blocking(struct walk_step *step, uint32_t tier,
                             const struct hps_walk **out_failed, bool *out_refused)
{
    const struct hps_tier *asked = &step->tiers[tier];
    bool many = (asked->space->store->ops->caps & HPS_STORE_JOINS) != 0;
    bool shared = (asked->caps & HPS_CAP_SHARED) != 0;
    /* A shared tier gets all keys in one call: if its server does not answer, each call costs a
     * time-out. */
    uint32_t n_keys_max = shared ? UINT32_MAX : HPS_WALK_KEYS_BLOCKING;
    struct hps_walk *at = step->first;
    struct group group;
    hps_status status = HPS_OK;

    HPS_ASSERT(walk_asks(step, asked));
    for (struct hps_walk *walk = step->first; walk != NULL; walk = walk->next) {
        walk->fetch.lo = walk->fetch.n_joined;
        walk->fetch.hi = walk->batch.n;
        walk->fetch.later = false;
    }
    while (at != NULL && status == HPS_OK) {
        at = next_group(&group, at, many, n_keys_max);
        if (group.n == 0) {
            break;
        }
        *out_failed = group.walks[0];
        status = hps_walk_check_interrupted(step->call);
        if (status == HPS_OK) {
            status = ask_group(&group, asked, step->call, out_refused);
        } else {
            group.walks[0]->reports[asked->kind].status = status;
        }
    }
    for (struct hps_walk *walk = step->first; walk != NULL; walk = walk->next) {
        HPS_ASSERT(walk->fetch.hi <= walk->batch.n);
        uint32_t n = walk->batch.n - walk->fetch.hi;
        uint32_t begin = walk_settle_found(walk, asked->kind, n);
        walk_spread_found(step, walk, tier, begin, n);
    }
    return status;
}
