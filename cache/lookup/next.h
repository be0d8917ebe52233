/* SPDX-License-Identifier: Apache-2.0
 *
 * Decides the next step of a lookup. hps_lookup_state_next is a pure function of the lookup's state
 * and the outcome of its last step. It reads no clock, queries no tier and chooses no thread. The
 * owner of the lookup performs the step and calls hps_lookup_state_next again. cache/lookup/step.h
 * performs most steps, and server/lookup/dispatch.c chooses the thread.
 *
 *     BEGIN ─▶ GPU_FIRST ─▶ MEMORY ─▶ GPU_MISSES ─▶ COLLECT ─▶ STORES, or DEFAULTS ─▶ DONE
 *                             │       (only if there is a gpu)   │           │
 *                             └──── all keys are answered ───────┴───────────┴─────▶ DONE
 *
 * A lookup wants a consistency unit if its rows must have, of each batch of updates, either all
 * changes or none. Its further steps, by outcome:
 *
 *     TORN        every key is answered, but updates have    REREAD ─▶ AWAIT_REREAD ─▶ REREAD
 *                 changed some rows after the read
 *     AHEAD       the only copy of a row is newer            AWAIT_UPDATES ─▶ BEGIN
 *                 than the version
 *     OVERTAKEN   an update may have added a key             BEGIN
 *                 that was in no tier
 *
 * If the client disconnects, the next step is FAILED. The step ABANDON comes before FAILED if the
 * step that has just ended was one of GPU_FIRST to DEFAULTS, unless its outcome was WHOLE, TORN,
 * AHEAD, OVERTAKEN or ERROR.
 */
#ifndef HPS_CACHE_LOOKUP_NEXT_H
#define HPS_CACHE_LOOKUP_NEXT_H

#include <stdbool.h>
#include <stdint.h>

#include "cache/version/version.h"

enum {
    /* Most tries of a lookup. A try starts with the step BEGIN, but a BEGIN after AWAIT_UPDATES
     * does not count as a new try. */
    HPS_LOOKUP_TRIES_MAX = 3,
    /* Most waits of a lookup: AWAIT_UPDATES and AWAIT_REREAD together. 20 waits take about 1 s. */
    HPS_LOOKUP_WAITS_MAX = 20,
    /* Length of the first wait. Each later wait is twice as long as the one before it, but at most
     * HPS_LOOKUP_WAIT_US_MAX. */
    HPS_LOOKUP_WAIT_US = 1000,
    HPS_LOOKUP_WAIT_US_MAX = 64 * 1000
};

enum hps_step {
    HPS_STEP_NONE,          /* before the first step */
    HPS_STEP_BEGIN,         /* start a try: drop the results of an earlier one */
    HPS_STEP_GPU_FIRST,     /* query the gpu for the parts that query it before the memory tiers */
    HPS_STEP_MEMORY,        /* query the memory tiers for keys that GPU_FIRST has not found */
    HPS_STEP_GPU_MISSES,    /* query the gpu for keys that the memory tiers did not have */
    HPS_STEP_COLLECT,       /* take the gpu's answer to GPU_MISSES */
    HPS_STEP_STORES,        /* query the tiers that may block */
    HPS_STEP_DEFAULTS,      /* the time to wait for the stores has passed: use default rows for all
                               missing keys */
    HPS_STEP_REREAD,        /* read the rows again that updates have changed */
    HPS_STEP_AWAIT_UPDATES, /* wait for state.wait_us, so that the updater can apply more updates */
    HPS_STEP_AWAIT_REREAD,  /* wait for state.wait_us before the next REREAD */
    HPS_STEP_ABANDON,       /* no answer will be sent: add the work done to the metrics */
    HPS_STEP_DONE,          /* last step: send the answer */
    HPS_STEP_FAILED,        /* last step: send the error for state.failure */
    HPS_STEP_COUNT
};

/* The outcome of a step. */
enum hps_outcome {
    HPS_OUTCOME_OVER,  /* a step that reads no rows has ended, or the gpu has answered */
    HPS_OUTCOME_OPEN,  /* some keys are not answered */
    HPS_OUTCOME_WHOLE, /* every key is answered; if a unit is wanted, all rows are of one unit */
    HPS_OUTCOME_TORN,  /* every key is answered, but updates changed some rows after the read */
    HPS_OUTCOME_AHEAD, /* the only copy of a row is newer than the version */
    HPS_OUTCOME_OVERTAKEN, /* the lookup would fail because a key is in no tier, but an update may
                              have added the key since */
    HPS_OUTCOME_ERROR,     /* the lookup has ended with an error */
    HPS_OUTCOME_REFUSED,   /* the gpu was not queried: there was nothing to query, or the gpu did
                              not accept the query */
    HPS_OUTCOME_LATE,      /* within the time to wait, no thread began the step, or the gpu did not
                              answer */
    HPS_OUTCOME_BUSY, /* the step was not performed, because too many steps wait for a thread */
    HPS_OUTCOME_COUNT
};

enum hps_failure {
    HPS_FAILURE_NONE,
    HPS_FAILURE_ERROR,   /* a step has set the error */
    HPS_FAILURE_UPDATES, /* updates changed the rows in every try: the client may retry */
    HPS_FAILURE_BUSY,    /* no thread was free */
    HPS_FAILURE_GONE     /* the client has disconnected */
};

/* The state of a lookup between steps. It moves with the lookup from thread to thread. */
struct hps_lookup_state {
    /* in; constant */
    enum hps_miss_policy miss_policy; /* as set by hps_lookup_plan; MODEL (0) means EXACT */
    bool unit;                        /* the lookup wants a consistency unit */
    bool has_gpu;                     /* the version has caches on a device */

    /* set by hps_lookup_state_next; zeroed before its first use */
    enum hps_step step;
    enum hps_failure failure; /* set with the steps FAILED and ABANDON */
    unsigned n_tries;         /* tries so far, at most HPS_LOOKUP_TRIES_MAX */
    unsigned n_waits;         /* waits so far, at most HPS_LOOKUP_WAITS_MAX */
    uint64_t wait_us;         /* length of the current AWAIT_UPDATES or AWAIT_REREAD */
};

/* Returns the state with the next step, after state->step has ended with `outcome`. For the step
 * NONE, pass OVER. Asserts that the step can have this outcome and is not a last step.
 *
 * cancelled   the client has disconnected. If the caller therefore withdrew the step before a
 *         thread began it, `outcome` is LATE
 * thread      any; no side effects
 */
struct hps_lookup_state hps_lookup_state_next(const struct hps_lookup_state *state,
                                              enum hps_outcome outcome, bool cancelled);

/* Whether this is a last step: DONE or FAILED. */
static inline bool hps_step_is_last(enum hps_step step)
{
    return step == HPS_STEP_DONE || step == HPS_STEP_FAILED;
}

/* Whether the lookup had a second try or a wait. Its rows may then have been read more than once.
 */
static inline bool hps_lookup_state_was_repeated(const struct hps_lookup_state *state)
{
    return state->n_tries + state->n_waits > 1;
}

/* Assert that the state is consistent. hps_lookup_state_next calls it in debug and sanitizer
 * builds. */
void hps_lookup_state_sane(const struct hps_lookup_state *state);

#endif
