/* SPDX-License-Identifier: Apache-2.0
 *
 * How one tier that blocks is asked: the keys of several parts in one call, past its breaker, with
 * the deadline and the cancel flag looked at between calls. On the thread of the look-up, which may
 * block.
 */
#include "backends/breaker.h"
#include "base/arena.h"
#include "base/assert.h"
#include "base/clock.h"
#include "cache/lookup/tiers_internal.h"

enum { GROUP_PARTS_MAX = 128 }; /* of one call for several parts */

/* ---- one call of a store --------------------------------------------------------------------- */

/* Pieces of several walks, asked of a tier together. */
struct group {
    struct hps_part_batch parts[GROUP_PARTS_MAX];
    struct hps_walk *walks[GROUP_PARTS_MAX];
    uint32_t n_keys[GROUP_PARTS_MAX];
    uint32_t n;
};

/* Add the next piece of a walk, of at most n_max keys:
 *
 *     [ missing | piece | not asked | answered ]
 *               lo                  hi
 *
 * Returns how many keys it has. */
static uint32_t group_add(struct group *group, struct hps_walk *walk, uint32_t n_max)
{
    const struct hps_walk_fetch *fetch = &walk->fetch;
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

/* Move what was answered of a piece behind `hi`. */
static void take_answers(struct hps_walk *walk, uint32_t n, uint32_t n_missing)
{
    struct hps_walk_fetch *fetch = &walk->fetch;

    HPS_ASSERT(n_missing <= n);
    walk_swap_ranges(&walk->batch, fetch->lo + n_missing, n - n_missing,
                     fetch->hi - (fetch->lo + n));
    fetch->lo += n_missing;
    fetch->hi -= n - n_missing;
}

/* A job behind answers wants no later rows either, as long as there is a tier that has others. */
static hps_status call_store(struct group *group, struct hps_space *space, bool last,
                             const struct hps_walk_call *call, bool *out_later)
{
    const struct hps_store_ops *ops = space->store->ops;
    struct hps_call store_call = {.scratch = call->scratch,
                                  .deadline_us = call->deadline_us,
                                  .exact_position = call->exact || (call->behind && !last),
                                  .later = out_later};

    if (call->scratch != NULL) {
        hps_arena_reset(call->scratch);
    }
    if (group->n > 1) {
        return ops->get_many(space, &store_call, group->parts, group->n);
    }
    return ops->get(space, &store_call, group->parts[0].table, &group->parts[0].batch);
}

/* Ask for the group, if the tier may be asked. out_refused: it may not */
static hps_status ask_group(struct group *group, uint32_t tier, const struct hps_walk_call *call,
                            bool *out_refused)
{
    const struct hps_version *version = group->walks[0]->version;
    struct hps_breaker *breaker = version->breakers[tier];
    struct hps_tier_report *first = &group->walks[0]->reports[tier];
    enum hps_breaker_pass pass = HPS_BREAKER_PASSED;
    hps_status status = HPS_UNAVAILABLE;
    bool later = false;

    if (breaker != NULL) {
        pass = hps_breaker_enter(breaker);
    }
    *out_refused = pass == HPS_BREAKER_REFUSED;
    if (!*out_refused) {
        uint64_t start_us = hps_clock_us();
        status =
            call_store(group, version->tiers[tier], tier + 1 == version->n_tiers, call, &later);
        uint64_t duration_us = hps_clock_us() - start_us;
        first->duration_us += duration_us;
        if (breaker != NULL) {
            hps_breaker_leave(breaker, pass, status, duration_us);
        }
    }
    first->n_faults += status == HPS_OK ? 0 : 1;
    for (uint32_t i = 0; i < group->n; i++) {
        struct hps_tier_report *report = &group->walks[i]->reports[tier];
        report->n_asked += *out_refused ? 0 : group->n_keys[i];
        report->n_unanswered += status == HPS_OK || *out_refused ? 0 : group->parts[i].batch.n;
        report->status = status == HPS_OK ? report->status : status;
        group->walks[i]->fetch.later = group->walks[i]->fetch.later || later;
        take_answers(group->walks[i], group->n_keys[i], group->parts[i].batch.n);
    }
    return status;
}

/* ---- all keys of a tier ---------------------------------------------------------------------- */

/* The next pieces to ask for, from `walk` on, of at most so many keys. Returns where to go on: NULL
 * once all are asked. */
static struct hps_walk *fill_group(struct group *group, struct hps_walk *walk, bool many,
                                   uint32_t room)
{
    group->n = 0;
    while (walk != NULL && room > 0 && group->n < (many ? GROUP_PARTS_MAX : 1)) {
        if (walk->fetch.lo < walk->fetch.hi) {
            room -= group_add(group, walk, room);
        }
        if (walk->fetch.hi - walk->fetch.lo > (group->n > 0 ? group->n_keys[group->n - 1] : 0)) {
            return walk; /* more of it is left */
        }
        walk = walk->next;
    }
    return walk;
}

hps_status walk_ask_blocking(struct walk_rest *rest, uint32_t tier,
                             const struct hps_walk **out_failed, bool *out_refused)
{
    bool many = walk_tier_ops(rest->version, tier)->get_many != NULL;
    /* Each question of a server that says nothing costs its time-out: one has all the keys. */
    uint32_t room = walk_tier_is_shared(rest->version, tier) ? UINT32_MAX : HPS_WALK_KEYS_BLOCKING;
    struct hps_walk *at = rest->first;
    struct group group;
    hps_status status = HPS_OK;

    for (struct hps_walk *walk = rest->first; walk != NULL; walk = walk->next) {
        walk->fetch.lo = walk->fetch.n_joined;
        walk->fetch.hi = walk->batch.n;
        walk->fetch.later = false;
    }
    while (at != NULL && status == HPS_OK) {
        at = fill_group(&group, at, many, room);
        if (group.n == 0) {
            break;
        }
        *out_failed = group.walks[0];
        status = walk_check_interrupted(rest->call);
        if (status == HPS_OK) {
            status = ask_group(&group, tier, rest->call, out_refused);
        } else {
            group.walks[0]->reports[tier].status = status;
        }
    }
    for (struct hps_walk *walk = rest->first; walk != NULL; walk = walk->next) {
        uint32_t n = walk->batch.n - walk->fetch.hi;
        uint32_t begin = walk_settle_found(walk, tier, n);
        walk_spread_found(rest, walk, tier, begin, n);
    }
    return status;
}
