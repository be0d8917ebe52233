/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files of a lookup: plan.c (forms and places of rows), lookup.c (the steps),
 * unique.c (unique keys), threshold.c (which parts wait for the stores), rows.c (the rows of an
 * answered part), bags.c (bags of keys), count.c (metrics), unit.c (consistency units) and gpu.c.
 * For the thread that owns the lookup.
 */
#ifndef HPS_CACHE_LOOKUP_INTERNAL_H
#define HPS_CACHE_LOOKUP_INTERNAL_H

#include <string.h>

#include "base/dtype.h"
#include "base/index_set.h"
#include "cache/lookup/lookup.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "keys and rows are used as they travel");

/* Key `index` as sent. Inline because it runs once per key. */
static inline hps_key lookup_key_at(const struct hps_lookup_part *part, uint32_t index)
{
    hps_key key;

    memcpy(&key, part->keys + (size_t)index * sizeof(key), sizeof(key));
    return key;
}

static inline uint64_t lookup_align_rows(uint64_t bytes)
{
    return (bytes + HPS_ROWS_ALIGN - 1) & ~(uint64_t)(HPS_ROWS_ALIGN - 1);
}

/* ---- plan.c ---------------------------------------------------------------------------------- */

/* Reset the part to its state before the walk. */
void lookup_reset_part(struct hps_lookup_part *part);
/* Set where the walk writes rows that need no extra memory: their places in the reply. part->rows
 * must be set. */
void lookup_set_places(const struct hps_lookup *lookup, struct hps_lookup_part *part,
                       struct hps_batch *batch);
/* Size of the rows of all keys of the part in their stored form. */
uint64_t lookup_gathered_bytes(const struct hps_lookup_part *part);
/* Allocate memory for rows that the tiers queried next do not write to their places. For parts that
 * are not answered yet. below: for the tiers below memory; call at most once with each value until
 * hps_lookup_release. NO_MEMORY */
hps_status lookup_gather(struct hps_lookup *lookup, bool below, struct hps_error *err)
    HPS_MUST_CHECK;

/* ---- lookup.c -------------------------------------------------------------------------------- */

/* Before any tier is queried. No effect if called again. */
void lookup_begin(struct hps_lookup *lookup);
/* The call for a walk, or for pieces of work outside it. */
struct hps_walk_call lookup_walk_call(const struct hps_lookup *lookup, uint64_t deadline_us);

/* ---- unique.c -------------------------------------------------------------------------------- */

/* Find the unique keys of a part, except its hits. Sets up its walk and its duplicates. EXHAUSTED:
 * arena */
hps_status lookup_start_part(struct hps_lookup *lookup, struct hps_lookup_part *part)
    HPS_MUST_CHECK;
/* Make an empty set for n keys in lookup->set, which replaces the previous one. EXHAUSTED: arena */
hps_status lookup_take_set(struct hps_lookup *lookup, uint64_t n, struct hps_index_set *out_set)
    HPS_MUST_CHECK;

/* ---- threshold.c ----------------------------------------------------------------------------- */

/* Whether the part waits for the stores, now that the memory tiers have answered. May use
 * lookup->set. */
bool lookup_waits_for_stores(struct hps_lookup *lookup, const struct hps_lookup_part *part);

/* ---- rows.c ---------------------------------------------------------------------------------- */

/* The part waits for no tier any more: set the status of its keys, and complete its rows unless it
 * has bags. Keys still missing are queued for insertion if the policy wants that. NOT_FOUND
 * (HPS_UNKNOWN_ERROR: names table and key), EXHAUSTED (arena) */
hps_status lookup_finish_part(struct hps_lookup *lookup, struct hps_lookup_part *part,
                              struct hps_error *err) HPS_MUST_CHECK;

/* ---- bags.c ---------------------------------------------------------------------------------- */

/* Let a memory tier that pools add the bags that it has whole. Before the parts are started.
 * EXHAUSTED: arena */
hps_status lookup_pool_bags(struct hps_lookup *lookup, struct hps_error *err) HPS_MUST_CHECK;
/* A tier of this kind has added the part's bags in `whole` (see struct hps_bags; it must stay).
 * Their keys become the part's hits. EXHAUSTED: arena */
hps_status lookup_take_whole(struct hps_lookup *lookup, struct hps_lookup_part *part,
                             uint32_t *whole, enum hps_tier_kind kind) HPS_MUST_CHECK;
/* Report in the walks what that tier did. After the parts are started. */
void lookup_report_pooled(struct hps_lookup *lookup);
/* Add the remaining bags. All parts are finished. helpers: may take pieces; NULL: none. EXHAUSTED
 * (arena), DEADLINE, CANCELLED */
hps_status lookup_add_bags(struct hps_lookup *lookup, struct hps_pool *helpers,
                           struct hps_error *err) HPS_MUST_CHECK;

/* ---- count.c --------------------------------------------------------------------------------- */

/* Count the tiers' work on a part, and add it to the lookup's times. tier_asked: [HPS_TIER_COUNT],
 * set to true for each tier that was queried. */
void lookup_count_part(struct hps_lookup *lookup, const struct hps_lookup_part *part,
                       bool *tier_asked);
/* Observe the time of each tier that was queried; both arrays: [HPS_TIER_COUNT]. */
void lookup_observe_tiers(const struct hps_lookup_metrics *metrics, const uint64_t *tier_us,
                          const bool *tier_asked);
/* Note the requested keys for the hot-key counts; if the lookup was answered, count its keys. */
void lookup_count_end(const struct hps_lookup *lookup, bool answered);

/* ---- unit.c ---------------------------------------------------------------------------------- */

/* Call it after the last row was read or a key was found to be in no tier. Returns `status`, or
 * ABORTED if the lookup wants a unit and may have seen only a part of a batch. lookup->torn is then
 * set if all rows are there. */
hps_status lookup_check_unit(struct hps_lookup *lookup, hps_status status, struct hps_error *err)
    HPS_MUST_CHECK;

/* ---- gpu.c ----------------------------------------------------------------------------------- */

/* Whether a device may have rows of the part's table now. */
bool lookup_gpu_caches(const struct hps_lookup *lookup, const struct hps_lookup_part *part);
/* The same, and the device has answered for the part. */
bool lookup_gpu_answered(const struct hps_lookup *lookup, const struct hps_lookup_part *part);
/* Upper bound of the memory for querying the gpu for misses of the part; 0: it is not queried for
 * them. */
uint64_t lookup_gpu_scratch_bytes(const struct hps_lookup *lookup,
                                  const struct hps_lookup_part *part);
/* The value of lookup->gpu_deadline_us at the start of the lookup. */
uint64_t lookup_gpu_deadline_us(const struct hps_lookup *lookup);
/* Call it before rows are written: replaces the block if a gpu that was lost or left may still
 * write to it. NO_MEMORY: then the lookup has no block. */
hps_status lookup_gpu_block(struct hps_lookup *lookup, struct hps_error *err) HPS_MUST_CHECK;
/* Take the hits of a gpu that was queried first. Before the parts are started. EXHAUSTED: arena */
hps_status lookup_gpu_hits(struct hps_lookup *lookup, struct hps_error *err) HPS_MUST_CHECK;
/* Take the gpu's answer into the walks: keys that it found are no longer missing, and their rows
 * are in their places. Fills its reports. */
void lookup_gpu_take(struct hps_lookup *lookup);
/* After the memory tiers have answered: offer the gpu the rows that they found and it missed. Parts
 * with misses for which it was not queried yet wait for it. A gpu that refused is not used. */
void lookup_gpu_offer(struct hps_lookup *lookup);
/* Forget the gpu's question: no part waits for it any more. */
void lookup_gpu_forget(struct hps_lookup *lookup);

#endif
