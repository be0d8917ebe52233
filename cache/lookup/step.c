/* SPDX-License-Identifier: Apache-2.0
 *
 * The steps of a lookup that are calls: see step.h.
 */
#include "cache/lookup/step.h"

#include "base/assert.h"

/* done: if the step succeeded, whether every key is answered. */
static enum hps_outcome outcome_of(const struct hps_lookup *lookup, hps_status status, bool done)
{
    if (status == HPS_OK) {
        return done ? HPS_OUTCOME_WHOLE : HPS_OUTCOME_OPEN;
    }
    if (status != HPS_ABORTED || !lookup->unit) {
        return HPS_OUTCOME_ERROR;
    }
    HPS_ASSERT(!lookup->torn || !lookup->ahead);
    if (lookup->torn) {
        return HPS_OUTCOME_TORN;
    }
    return lookup->ahead ? HPS_OUTCOME_AHEAD : HPS_OUTCOME_OVERTAKEN;
}

enum hps_outcome hps_lookup_step(struct hps_lookup *lookup, enum hps_step step,
                                 struct hps_error *err)
{
    hps_status status = HPS_OK;
    bool done = true;

    HPS_ASSERT(hps_step_is_call(step));
    switch (step) {
    case HPS_STEP_MEMORY:
        status = hps_lookup_run_memory(lookup, &done, err);
        break;
    case HPS_STEP_COLLECT:
        status = hps_lookup_run_gpu(lookup, &done, err);
        break;
    case HPS_STEP_STORES:
        status = hps_lookup_run_rest(lookup, err);
        break;
    case HPS_STEP_DEFAULTS:
        status = hps_lookup_run_defaults(lookup, err);
        break;
    case HPS_STEP_REREAD:
        status = hps_lookup_reread(lookup, err);
        break;
    case HPS_STEP_BEGIN:
        if (lookup->begun) {
            hps_lookup_again(lookup);
        }
        return HPS_OUTCOME_OVER;
    default: /* ABANDON */
        hps_lookup_abandon(lookup);
        return HPS_OUTCOME_OVER;
    }
    HPS_ASSERT(status == HPS_OK || err->status == status);
    return outcome_of(lookup, status, done);
}
