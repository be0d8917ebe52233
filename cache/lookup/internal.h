/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of a look-up share. On the thread that holds the look-up.
 */
#ifndef HPS_CACHE_LOOKUP_INTERNAL_H
#define HPS_CACHE_LOOKUP_INTERNAL_H

#include "cache/lookup/lookup.h"

/* Before any tier is asked; again: nothing happens. */
void lookup_begin(struct hps_lookup *lookup);

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
