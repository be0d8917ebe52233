/* SPDX-License-Identifier: Apache-2.0
 *
 * One step of a look-up (cache/lookup/next.h) as a call of cache/lookup/lookup.h, on the thread
 * that has the look-up, and what came of it. Steps that wait for others, or end the look-up, are
 * not calls: asking the gpu, waiting, answering.
 */
#ifndef HPS_CACHE_LOOKUP_STEP_H
#define HPS_CACHE_LOOKUP_STEP_H

#include "cache/lookup/lookup.h"
#include "cache/lookup/next.h"

/* A step that is a call. */
static inline bool hps_step_is_call(enum hps_step step)
{
    return step == HPS_STEP_BEGIN || step == HPS_STEP_MEMORY || step == HPS_STEP_COLLECT ||
           step == HPS_STEP_STORES || step == HPS_STEP_DEFAULTS || step == HPS_STEP_REREAD ||
           step == HPS_STEP_ABANDON;
}

/* Do it.
 *
 * thread   STORES and REREAD: one that may block
 * err      set when this returns TORN, AHEAD, OVERTAKEN or ERROR
 */
enum hps_outcome hps_lookup_step(struct hps_lookup *lookup, enum hps_step step,
                                 struct hps_error *err) HPS_MUST_CHECK;

#endif
