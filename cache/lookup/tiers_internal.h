/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files of the walk: tiers.c (the order of tiers), tiers_blocking.c (querying one
 * tier that may block), tiers_upward.c (insertion of found rows into higher tiers), tiers_others.c
 * (keys that other lookups fetch). Only the thread that runs the walk's step may call these
 * functions.
 */
#ifndef HPS_CACHE_LOOKUP_TIERS_INTERNAL_H
#define HPS_CACHE_LOOKUP_TIERS_INTERNAL_H

#include "base/assert.h"
#include "cache/lookup/tiers.h"

/* One call of hps_walk_memory or hps_walk_rest, for `first` and the walks linked to it. It lives on
 * the caller's stack. */
struct walk_step {
    struct hps_walk *first;
    const struct hps_version *version;
    const struct hps_walk_call *call;
    struct hps_tier tiers[HPS_TIERS_MAX]; /* [n_tiers] the tiers of the version, top to bottom */
    uint32_t n_tiers;
    uint64_t since; /* hps_stamps_now, read before the step reads the rows that it inserts */
    struct hps_flight_caller caller; /* only in hps_walk_rest: through it, the step shares fetches
                                        with other lookups (flight.h) */
    uint32_t n_share; /* only in hps_walk_rest: how many more keys may share fetches */
};

/* Whether the walk queries this tier itself and the caller did not exclude it. */
static inline bool walk_asks(const struct walk_step *step, const struct hps_tier *tier)
{
    return (tier->caps & HPS_CAP_ON_DEVICE) == 0 &&
           (step->call->unasked & hps_tier_bit(tier->kind)) == 0;
}

/* ---- ranges of the batch: see struct hps_walk ------------------------------------------------ */

/* Exchange the keys with the indices a and b, and their slots. Inline because it runs once per
 * key. */
static inline void walk_swap(struct hps_batch *batch, uint32_t a, uint32_t b)
{
    hps_key key = batch->keys[a];
    uint32_t slot = batch->slots[a];

    batch->keys[a] = batch->keys[b];
    batch->slots[a] = batch->slots[b];
    batch->keys[b] = key;
    batch->slots[b] = slot;
}

/* Exchange the keys [at, at + n) with the n_next keys after them. The order within the two ranges
 * is not kept. */
static inline void walk_swap_ranges(struct hps_batch *batch, uint32_t at, uint32_t n,
                                    uint32_t n_next)
{
    uint32_t n_swaps = n < n_next ? n : n_next;

    for (uint32_t i = 0; i < n_swaps; i++) {
        walk_swap(batch, at + i, at + n + n_next - 1 - i);
    }
}

/* Whether the ranges of a walk add up to its number of keys. For assertions. */
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

/* Move the last n missing keys into the range of the tier of this kind, which has found them.
 * Returns the index of the first one. */
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

/* Move the last n missing keys into the range of keys that are in no tier. */
static inline void walk_settle_absent(struct hps_walk *walk, uint32_t n)
{
    HPS_ASSERT(n <= walk->batch.n);
    walk->batch.n -= n;
    walk->n_absent += n;
}

/* ---- tiers_blocking.c ------------------------------------------------------------------------ */

/* Query one tier for the missing keys of all walks, except keys that wait for other lookups.
 *
 * thread  one that may block
 * error   the status of the first call of the store that failed. *out_failed is the first walk of
 *         that call. *out_refused is true if the breaker refused the call. Keys found before stay
 *         found
 */
hps_status walk_ask_blocking(struct walk_step *step, uint32_t tier,
                             const struct hps_walk **out_failed, bool *out_refused) HPS_MUST_CHECK;

/* ---- tiers_upward.c -------------------------------------------------------------------------- */

/* Insert the rows of keys [begin, begin + n) of the batch into the memory tiers above tier `from`,
 * which has found them (index in step->tiers). The lowest of these tiers comes first. A tier whose
 * query failed, or that is in call->closed, gets no rows. Failed insertions are reported in
 * walk->reports and are no error. */
void walk_insert_found(const struct walk_step *step, struct hps_walk *walk, uint32_t from,
                       uint32_t begin, uint32_t n);
/* Like walk_insert_found, for a tier `from` that blocks. Also copies the rows to lookups that wait
 * for them, and queues the rows for shared tiers above `from`. */
void walk_spread_found(struct walk_step *step, struct hps_walk *walk, uint32_t from, uint32_t begin,
                       uint32_t n);
/* Call it after the lowest tier has answered. Missing keys that do not wait for other lookups are
 * then in no tier. Remember these keys as absent, and report this to lookups that wait for them. */
void walk_prove_absent(struct walk_step *step, struct hps_walk *walk);

/* ---- tiers_others.c -------------------------------------------------------------------------- */

/* Find the missing keys that other lookups are fetching, and move them to the front of the batch:
 * walk->fetch.n_joined keys. If there is no memory, no fetches are shared. Call walk_leave_others
 * at the end of the step. */
void walk_join_others(struct walk_step *step, struct hps_walk *walk);
/* Wait until no key of the walks waits for another lookup any more. Returns earlier if another
 * lookup has given up a key that this step must now fetch.
 *
 * thread  one that may block
 * error   DEADLINE, CANCELLED
 */
hps_status walk_await_others(struct walk_step *step, struct hps_error *err) HPS_MUST_CHECK;
/* Give up the keys that this walk has not fetched. If other lookups wait for such a key, the first
 * of them fetches it. */
void walk_leave_others(struct walk_step *step, struct hps_walk *walk);

#endif
