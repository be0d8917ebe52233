/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of a look-up share: plan.c (what it will do, and where rows go), lookup.c (its
 * course), unique.c (which keys are walked), threshold.c (which parts wait for the stores), rows.c
 * (the rows of a part that is answered), bags.c (bags of keys), count.c (what is counted), unit.c
 * (updates that come meanwhile) and gpu.c. On the thread that holds the look-up.
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

static inline uint64_t lookup_align_rows(uint64_t bytes)
{
    return (bytes + HPS_ROWS_ALIGN - 1) & ~(uint64_t)(HPS_ROWS_ALIGN - 1);
}

/* ---- plan.c ---------------------------------------------------------------------------------- */

/* As before its walk: nothing has come of it. */
void lookup_reset_part(struct hps_lookup_part *part);
/* Where the walk of the part, whose part->rows is set, puts rows that no memory need be had for. */
void lookup_set_places(const struct hps_lookup *lookup, struct hps_lookup_part *part,
                       struct hps_batch *batch);
/* What the rows of all of its keys take, as they are stored. */
uint64_t lookup_gathered_bytes(const struct hps_lookup_part *part);
/* Before tiers are asked for the parts that are not answered yet: memory for rows that those tiers
 * do not put into their places. below: tiers below those in memory; at most once for each, until
 * hps_lookup_release. NO_MEMORY */
hps_status lookup_gather(struct hps_lookup *lookup, bool below, struct hps_error *err)
    HPS_MUST_CHECK;

/* ---- lookup.c -------------------------------------------------------------------------------- */

/* Before any tier is asked; again: nothing happens. */
void lookup_begin(struct hps_lookup *lookup);
/* A call of the walk, or of what is done in pieces beside it. */
struct hps_walk_call lookup_walk_call(const struct hps_lookup *lookup, uint64_t deadline_us);

/* ---- unique.c -------------------------------------------------------------------------------- */

/* Find the unique keys of a part, but for its hits: its walk and its duplicates.
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

/* The part waits for nothing more: the status of its keys, and all of its rows if it has no bags.
 * What still misses is queued to be fetched behind the answer, if that is wanted. NOT_FOUND
 * (HPS_UNKNOWN_ERROR: names table and key), EXHAUSTED (arena) */
hps_status lookup_finish_part(struct hps_lookup *lookup, struct hps_lookup_part *part,
                              struct hps_error *err) HPS_MUST_CHECK;

/* ---- bags.c ---------------------------------------------------------------------------------- */

/* Before the parts are started: a tier in memory that can adds bags of which it has every key.
 * EXHAUSTED: arena */
hps_status lookup_pool_bags(struct hps_lookup *lookup, struct hps_error *err) HPS_MUST_CHECK;
/* The part's bags that are `whole` (as struct hps_bags; it stays) are in their places, put there by
 * that tier, whose hits their keys are. EXHAUSTED: arena */
hps_status lookup_take_whole(struct hps_lookup *lookup, struct hps_lookup_part *part,
                             uint32_t *whole, enum hps_tier_kind kind) HPS_MUST_CHECK;
/* The parts are started: what that tier did is reported in their walks. */
void lookup_report_pooled(struct hps_lookup *lookup);
/* All parts are finished: add the bags that are left. helpers: may take pieces; NULL: nobody.
 * EXHAUSTED (arena), DEADLINE, CANCELLED */
hps_status lookup_add_bags(struct hps_lookup *lookup, struct hps_pool *helpers,
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
/* What asking it for misses of the part takes at most; 0: it is not asked so. */
uint64_t lookup_gpu_scratch_bytes(const struct hps_lookup *lookup,
                                  const struct hps_lookup_part *part);
/* When the look-up has begun: lookup->gpu_deadline_us. */
uint64_t lookup_gpu_deadline_us(const struct hps_lookup *lookup);
/* Before the rows block is written: another one, if a gpu that was lost or left may still write to
 * it. NO_MEMORY: then there is none. */
hps_status lookup_gpu_block(struct hps_lookup *lookup, struct hps_error *err) HPS_MUST_CHECK;
/* Before the parts are started: what a gpu that was asked first had of them. */
hps_status lookup_gpu_hits(struct hps_lookup *lookup, struct hps_error *err) HPS_MUST_CHECK;
/* What the gpu found leaves the walks, whose rows are in their places then; and is counted. */
void lookup_gpu_take(struct hps_lookup *lookup);
/* The memory tiers have answered: what they found below the gpu is offered to it, and parts with
 * misses that it was not asked for wait for it. One that refused is left alone. */
void lookup_gpu_offer(struct hps_lookup *lookup);
/* There will be no answer. */
void lookup_gpu_forget(struct hps_lookup *lookup);

#endif
