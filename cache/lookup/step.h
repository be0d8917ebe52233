/* SPDX-License-Identifier: Apache-2.0
 *
 * Performs one step of a lookup (cache/lookup/next.h) by calling a function of
 * cache/lookup/lookup.h. The caller performs all other steps: queries of the gpu, waits, DONE and
 * FAILED. Only the thread that owns the lookup may call hps_lookup_step.
 */
#ifndef HPS_CACHE_LOOKUP_STEP_H
#define HPS_CACHE_LOOKUP_STEP_H

#include "cache/lookup/lookup.h"
#include "cache/lookup/next.h"

/* Whether hps_lookup_step can perform the step. */
static inline bool hps_step_is_call(enum hps_step step)
{
    return step == HPS_STEP_BEGIN || step == HPS_STEP_MEMORY || step == HPS_STEP_COLLECT ||
           step == HPS_STEP_STORES || step == HPS_STEP_DEFAULTS || step == HPS_STEP_REREAD ||
           step == HPS_STEP_ABANDON;
}

/* Perform a step for which hps_step_is_call is true.
 *
 * thread   for the steps STORES and REREAD: one that may block
 * err      set if the outcome is TORN, AHEAD, OVERTAKEN or ERROR
 */
enum hps_outcome hps_lookup_step(struct hps_lookup *lookup, enum hps_step step,
                                 struct hps_error *err) HPS_MUST_CHECK;

#endif
