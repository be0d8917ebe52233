/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions that the files of a lookup share: plan.c (forms and places of rows), lookup.c (the
 * steps), unique.c (unique keys), threshold.c (which parts wait for the stores), rows.c (completing
 * the rows of a part), bags.c (bags of keys), count.c (metrics), unit.c (consistency units) and
 * gpu.c. Only the thread that owns the lookup may call these functions. Comments end with the
 * errors that the function returns. "EXHAUSTED (arena)" means that the lookup's arena is full.
 */
#ifndef HPS_CACHE_LOOKUP_INTERNAL_H
#define HPS_CACHE_LOOKUP_INTERNAL_H

#include <string.h>

#include "base/dtype.h"
#include "base/index_set.h"
#include "cache/lookup/lookup.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "keys and rows are used as they travel");

/* keys[index] of the part; part->keys may be unaligned. Inline because it runs once per key. */
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
/* If the memory tiers can write the part's rows to their places in the reply, set these places in
 * the batch. part->rows must be set. */
void lookup_set_places(const struct hps_lookup *lookup, struct hps_lookup_part *part,
                       struct hps_batch *batch);
/* Size in bytes of the rows of all keys of the part, as stored. */
uint64_t lookup_gathered_bytes(const struct hps_lookup_part *part);
/* Allocate memory for gathered rows, for the parts that are not answered yet and have no memory for
 * gathered rows. Call it with `below` false before the memory tiers are queried. Call it with
 * `below` true before the gpu or the stores are queried for keys that the memory tiers missed.
 * hps_lookup_release frees the memory. NO_MEMORY */
hps_status lookup_gather(struct hps_lookup *lookup, bool below, struct hps_error *err)
    HPS_MUST_CHECK;

/* ---- lookup.c -------------------------------------------------------------------------------- */

/* Set the lookup's deadlines, `since`, update_sequence and event_time_ms. Call it before the first
 * tier is queried. Further calls have no effect. */
void lookup_begin(struct hps_lookup *lookup);
/* The permissions and limits of the lookup's walks, with this deadline and without helpers. */
struct hps_walk_call lookup_walk_call(const struct hps_lookup *lookup, uint64_t deadline_us);

/* ---- unique.c -------------------------------------------------------------------------------- */

/* Find the unique keys of a part, and set up its walk and duplicates. Keys whose bits are set in
 * part->hits are left out. EXHAUSTED (arena) */
hps_status lookup_start_part(struct hps_lookup *lookup, struct hps_lookup_part *part)
    HPS_MUST_CHECK;
/* Make an empty set for n keys in lookup->set; the previous set becomes invalid. EXHAUSTED (arena)
 */
hps_status lookup_take_set(struct hps_lookup *lookup, uint64_t n, struct hps_index_set *out_set)
    HPS_MUST_CHECK;

/* ---- threshold.c ----------------------------------------------------------------------------- */

/* Whether the part waits for the stores, now that the memory tiers have answered. The
 * function may use lookup->set. */
bool lookup_waits_for_stores(struct hps_lookup *lookup, const struct hps_lookup_part *part);

/* ---- rows.c ---------------------------------------------------------------------------------- */

/* Finish a part that waits for no tier any more: set the status of its keys and, unless it has
 * bags, complete its rows. Keys that are still missing are queued for asynchronous insertion,
 * except under HPS_MISS_MEMORY_ONLY. NOT_FOUND: unknown_policy is HPS_UNKNOWN_ERROR, and a key
 * is in no tier; `err` names the table and the key. EXHAUSTED (arena) */
hps_status lookup_finish_part(struct hps_lookup *lookup, struct hps_lookup_part *part,
                              struct hps_error *err) HPS_MUST_CHECK;

/* ---- bags.c ---------------------------------------------------------------------------------- */

/* If a memory tier pools, let it pool the bags for which it has all keys. No effect on parts that
 * queried the gpu first, or if the lookup wants a consistency unit. Call it before
 * lookup_start_part. EXHAUSTED (arena) */
hps_status lookup_pool_bags(struct hps_lookup *lookup, struct hps_error *err) HPS_MUST_CHECK;
/* Record the bags that a tier of this kind has pooled: their bits are set in `whole` (see struct
 * hps_bags). The part keeps the pointer `whole`. The keys of these bags become part->hits.
 * EXHAUSTED (arena) */
hps_status lookup_take_whole(struct hps_lookup *lookup, struct hps_lookup_part *part,
                             uint32_t *whole, enum hps_tier_kind kind) HPS_MUST_CHECK;
/* Report the work of lookup_pool_bags in the walks. Call it after lookup_start_part. */
void lookup_report_pooled(struct hps_lookup *lookup);
/* Pool the bags that no tier has pooled. All parts must be finished. helpers: threads that share
 * the work; NULL: only the caller. EXHAUSTED (arena), DEADLINE, CANCELLED */
hps_status lookup_add_bags(struct hps_lookup *lookup, struct hps_pool *helpers,
                           struct hps_error *err) HPS_MUST_CHECK;

/* ---- count.c --------------------------------------------------------------------------------- */

/* Add the tiers' work on a part to the metrics, and the time of this work to lookup->tier_us and
 * others_us. tier_asked: [HPS_TIER_COUNT], set to true for each tier that was queried. */
void lookup_count_part(struct hps_lookup *lookup, const struct hps_lookup_part *part,
                       bool *tier_asked);
/* Add the time of each tier that was queried to the metric tier_duration. Both arrays:
 * [HPS_TIER_COUNT]. */
void lookup_observe_tiers(const struct hps_lookup_metrics *metrics, const uint64_t *tier_us,
                          const bool *tier_asked);
/* Add the keys that were found to the hot-key counts. If `answered` is true (the lookup ended with
 * OK), also update the metrics of keys. */
void lookup_count_end(const struct hps_lookup *lookup, bool answered);

/* ---- unit.c ---------------------------------------------------------------------------------- */

/* Check a lookup that wants a consistency unit, after its last tier was queried. status: the result
 * of the lookup so far. Changes the result to ABORTED in two cases. First, `status` is OK, but
 * updates have changed rows after the lookup read them; lookup->torn is then set. Second, `status`
 * is NOT_FOUND, but updates may have added the missing key. In all other cases, and if the lookup
 * wants no unit, returns `status`, which may be ABORTED because the lookup is ahead. */
hps_status lookup_check_unit(struct hps_lookup *lookup, hps_status status, struct hps_error *err)
    HPS_MUST_CHECK;

/* ---- gpu.c ----------------------------------------------------------------------------------- */

/* Whether a device may have rows of the part's table now. */
bool lookup_gpu_caches(const struct hps_lookup *lookup, const struct hps_lookup_part *part);
/* Whether lookup_gpu_caches is true and the device has answered the query for the part. */
bool lookup_gpu_answered(const struct hps_lookup *lookup, const struct hps_lookup_part *part);
/* Upper bound of the memory, in bytes, for rows that the memory tiers miss and the gpu has. 0 if
 * the gpu is not queried for keys that the memory tiers miss. */
uint64_t lookup_gpu_scratch_bytes(const struct hps_lookup *lookup,
                                  const struct hps_lookup_part *part);
/* Compute lookup->gpu_deadline_us: the current time plus the longest wait for the gpu, or 0 if the
 * wait has no bound. */
uint64_t lookup_gpu_deadline_us(const struct hps_lookup *lookup);
/* Replace lookup->block if a gpu may still write to it: the gpu was lost, or the lookup continued
 * without its answer. Call it before rows are written. NO_MEMORY: the lookup has no block any more.
 */
hps_status lookup_gpu_block(struct hps_lookup *lookup, struct hps_error *err) HPS_MUST_CHECK;
/* For parts that queried the gpu first, set part->hits to the keys that the gpu has found. Call it
 * before lookup_start_part. EXHAUSTED (arena) */
hps_status lookup_gpu_hits(struct hps_lookup *lookup, struct hps_error *err) HPS_MUST_CHECK;
/* Apply the gpu's answer to the walks: write the reports of the gpu tier, copy the rows that the
 * gpu found among the missing keys to their places, and mark these keys as found. */
void lookup_gpu_take(struct hps_lookup *lookup);
/* Call it after the memory tiers have answered. If a part queried the gpu first, offers the gpu the
 * rows that the gpu missed and the host map found. Sets waits_for_gpu for parts with missing keys
 * that the gpu may have. A part whose earlier query the gpu did not answer does not wait. */
void lookup_gpu_offer(struct hps_lookup *lookup);
/* Forget the query of the gpu: no part waits for an answer any more. */
void lookup_gpu_forget(struct hps_lookup *lookup);

#endif
