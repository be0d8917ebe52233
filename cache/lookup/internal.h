/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of a look-up share: lookup.c (its course), unique.c (which keys are walked),
 * threshold.c (which parts wait for the stores), rows.c (the rows of a part that is answered),
 * count.c (what is counted), unit.c (updates that come meanwhile) and gpu.c. On the thread that
 * holds the look-up.
 */
#ifndef HPS_CACHE_LOOKUP_INTERNAL_H
#define HPS_CACHE_LOOKUP_INTERNAL_H

#include <string.h>

#include "base/dtype.h"
#include "base/index_set.h"
#include "cache/lookup/lookup.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "keys and rows are used as they travel");

/* Key `index` of those sent. Run per key, hence here. */
static inline hps_key lookup_key_at(const struct hps_lookup_part *part, uint32_t index)
{
    hps_key key;

    memcpy(&key, part->keys + (size_t)index * sizeof(key), sizeof(key));
    return key;
}

/* The type of the answer's rows. */
static inline enum hps_dtype lookup_output_type(const struct hps_lookup *lookup)
{
    return lookup->output == 0 ? HPS_DTYPE_FP32 : lookup->output;
}

/* ---- lookup.c -------------------------------------------------------------------------------- */

/* Before any tier is asked; again: nothing happens. */
void lookup_begin(struct hps_lookup *lookup);

/* ---- unique.c -------------------------------------------------------------------------------- */

/* Find the unique keys of a part, but for those that the gpu had: its walk and its duplicates.
 * EXHAUSTED: arena */
hps_status lookup_start_part(struct hps_lookup *lookup, struct hps_lookup_part *part)
    HPS_MUST_CHECK;
/* An empty set for n keys over lookup->set, in place of the one that was there. EXHAUSTED: arena */
hps_status lookup_take_set(struct hps_lookup *lookup, uint64_t n, struct hps_index_set *out_set)
    HPS_MUST_CHECK;

/* ---- threshold.c ----------------------------------------------------------------------------- */

/* The memory tiers have been asked: are the stores below waited for? May take lookup->set. */
bool lookup_waits_for_stores(struct hps_lookup *lookup, const struct hps_lookup_part *part);

/* ---- rows.c ---------------------------------------------------------------------------------- */

/* The part waits for nothing more: all of its rows, and their status. What still misses is queued
 * to be fetched behind the answer, if that is wanted. NOT_FOUND (HPS_UNKNOWN_ERROR: names table and
 * key), EXHAUSTED (arena) */
hps_status lookup_finish_part(struct hps_lookup *lookup, struct hps_lookup_part *part,
                              struct hps_error *err) HPS_MUST_CHECK;

/* ---- count.c --------------------------------------------------------------------------------- */

/* What the tiers did for a part is counted, and added to the look-up's times. tier_asked:
 * [HPS_TIER_COUNT], of tiers that were asked becomes true. */
void lookup_count_part(struct hps_lookup *lookup, const struct hps_lookup_part *part,
                       bool *tier_asked);
/* How long the tiers that were asked took; both arrays: [HPS_TIER_COUNT]. */
void lookup_observe_tiers(const struct hps_lookup_metrics *metrics, const uint64_t *tier_us,
                          const bool *tier_asked);
/* What was asked for is noted, and the keys are counted if there is an answer. */
void lookup_count_end(const struct hps_lookup *lookup, bool answered);

/* ---- unit.c ---------------------------------------------------------------------------------- */

/* The last row has been read, or a key is in no tier, which was read, too: may some be of a batch
 * of updates of which others are not? Then ABORTED, and lookup->torn if all rows are there. */
hps_status lookup_check_unit(struct hps_lookup *lookup, hps_status status, struct hps_error *err)
    HPS_MUST_CHECK;

/* ---- gpu.c ----------------------------------------------------------------------------------- */

/* Rows of the part's table can be on the device now. */
bool lookup_gpu_caches(const struct hps_lookup *lookup, const struct hps_lookup_part *part);
/* The same, and the device has answered for it. */
bool lookup_gpu_answered(const struct hps_lookup *lookup, const struct hps_lookup_part *part);
/* When the look-up has begun: lookup->gpu_deadline_us. */
uint64_t lookup_gpu_deadline_us(const struct hps_lookup *lookup);
/* Before the rows block is written: another one, if a gpu that was lost or left may still write to
 * it. NO_MEMORY: then there is none. */
hps_status lookup_gpu_block(struct hps_lookup *lookup, struct hps_error *err) HPS_MUST_CHECK;
/* Before the parts are started: what a gpu that was asked first had of them. */
void lookup_gpu_hits(struct hps_lookup *lookup);
/* What the gpu found leaves the walks, whose rows are in their places then; and is counted. */
void lookup_gpu_take(struct hps_lookup *lookup);
/* The memory tiers have answered: what they found below the gpu is offered to it, and parts with
 * misses that it was not asked for wait for it. One that refused is left alone. */
void lookup_gpu_offer(struct hps_lookup *lookup);
/* There will be no answer. */
void lookup_gpu_forget(struct hps_lookup *lookup);

#endif
