/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the tier walk share: tiers.c (the order), tiers_blocking.c (how one tier that
 * blocks is asked), tiers_upward.c (what is inserted upward), tiers_others.c (keys that other
 * look-ups fetch). On the thread of the walk's look-up.
 */
#ifndef HPS_CACHE_LOOKUP_TIERS_INTERNAL_H
#define HPS_CACHE_LOOKUP_TIERS_INTERNAL_H

#include "base/assert.h"
#include "cache/lookup/tiers.h"

/* One step of walks of one version; on its caller's stack. */
struct walk_step {
    struct hps_walk *first;
    const struct hps_version *version;
    const struct hps_walk_call *call;
    struct hps_tier tiers[HPS_TIERS_MAX]; /* [n_tiers] of the version, top to bottom */
    uint32_t n_tiers;
    uint64_t since; /* hps_stamps_now before the tiers at hand were asked */
    /* Of hps_walk_rest alone. */
    struct hps_flight_trip trip;
    uint32_t n_share; /* keys that may still be shared with others */
};

/* The walk asks this tier itself, and the caller wants it asked. */
static inline bool walk_asks(const struct walk_step *step, const struct hps_tier *tier)
{
    return (tier->caps & HPS_CAP_ON_DEVICE) == 0 &&
           (step->call->unasked & hps_tier_bit(tier->kind)) == 0;
}

/* ---- ranges of the batch: see struct hps_walk ------------------------------------------------ */

/* Run per key, hence here: exchange keys a and b, indices in the batch. */
static inline void walk_swap(struct hps_batch *batch, uint32_t a, uint32_t b)
{
    hps_key key = batch->keys[a];
    uint32_t slot = batch->slots[a];

    batch->keys[a] = batch->keys[b];
    batch->slots[a] = batch->slots[b];
    batch->keys[b] = key;
    batch->slots[b] = slot;
}

/* Exchange two neighbouring ranges, [at, at + n) and the n_next keys behind it, in any order. */
static inline void walk_swap_ranges(struct hps_batch *batch, uint32_t at, uint32_t n,
                                    uint32_t n_next)
{
    uint32_t n_swaps = n < n_next ? n : n_next;

    for (uint32_t i = 0; i < n_swaps; i++) {
        walk_swap(batch, at + i, at + n + n_next - 1 - i);
    }
}

/* The ranges of a walk are all of its batch. */
static inline bool walk_sane(const struct hps_walk *walk)
{
    uint64_t n = (uint64_t)walk->batch.n + walk->n_absent;

    for (unsigned kind = 0; kind < HPS_TIER_COUNT; kind++) {
        n += walk->reports[kind].n_found;
    }
    return n == (uint64_t)walk->n_keys + walk->n_found_before &&
           walk->kind_next <= HPS_TIER_COUNT &&
           walk->n_remembered + walk->n_shared_absent <= walk->n_absent;
}

/* The last n missing keys were found by the tier of this kind: put them into its range. Returns
 * where they begin. */
static inline uint32_t walk_settle_found(struct hps_walk *walk, enum hps_tier_kind kind, uint32_t n)
{
    uint32_t at = walk->batch.n - n;

    HPS_ASSERT(n <= walk->batch.n);
    walk_swap_ranges(&walk->batch, at, n, walk->n_absent);
    walk->batch.n = at;
    at += walk->n_absent;
    for (uint32_t lower = HPS_TIER_COUNT - 1; lower > kind; lower--) {
        uint32_t n_lower = hps_walk_found_n(walk, (enum hps_tier_kind)lower);
        walk_swap_ranges(&walk->batch, at, n, n_lower);
        at += n_lower;
    }
    walk->reports[kind].n_found += n;
    return at;
}

/* The last n missing keys are in no tier. */
static inline void walk_settle_absent(struct hps_walk *walk, uint32_t n)
{
    HPS_ASSERT(n <= walk->batch.n);
    walk->batch.n -= n;
    walk->n_absent += n;
}

/* ---- tiers_blocking.c ------------------------------------------------------------------------ */

/* Ask one tier for the missing keys of all walks, but those that wait for others.
 *
 * thread  one that may block
 * error   of the first call that failed; out_failed: the walk with the failure; out_refused: the
 *         tier was not asked, as its breaker is open. Keys found so far stay found
 */
hps_status walk_ask_blocking(struct walk_step *step, uint32_t tier,
                             const struct hps_walk **out_failed, bool *out_refused) HPS_MUST_CHECK;

/* ---- tiers_upward.c -------------------------------------------------------------------------- */

/* Tier `from` found keys [begin, begin + n) of the batch, whose rows are in their places: insert
 * them into the memory tiers above it, from the lowest up. One that was skipped, or failed, is left
 * alone. A tier that does not take them only costs later look-ups: it is reported. */
void walk_insert_found(const struct walk_step *step, struct hps_walk *walk, uint32_t from,
                       uint32_t begin, uint32_t n);
/* The same of a tier that blocks; and the tiers that others share, and those who wait for these
 * rows, get them as well. */
void walk_spread_found(struct walk_step *step, struct hps_walk *walk, uint32_t from, uint32_t begin,
                       uint32_t n);
/* The lowest tier has answered: the keys that still miss, and do not wait for others, are in none.
 */
void walk_prove_absent(struct walk_step *step, struct hps_walk *walk);

/* ---- tiers_others.c -------------------------------------------------------------------------- */

/* Find out which missing keys others are fetching, and put those in front: walk->fetch.n_joined of
 * them. Without memory nothing is shared. walk_leave_others must follow. */
void walk_join_others(struct walk_step *step, struct hps_walk *walk);
/* Wait until others have fetched all the keys that wait for them, or one of those has to be fetched
 * here since whoever did it failed.
 *
 * thread  one that may block
 * error   DEADLINE, CANCELLED
 */
hps_status walk_await_others(struct walk_step *step, struct hps_error *err) HPS_MUST_CHECK;
/* The walk ends: whoever waits for a key that was not fetched goes on with it alone. */
void walk_leave_others(struct walk_step *step, struct hps_walk *walk);

#endif
