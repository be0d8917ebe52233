/* SPDX-License-Identifier: Apache-2.0
 *
 * Decides the next step of a lookup: a pure function of the steps so far and their outcomes. It
 * reads no clock, queries no tier and chooses no thread. The owner of the lookup performs the step
 * (cache/lookup/step.h: which call; server/lookup/dispatch.c: which thread) and asks for the next
 * one.
 *
 *     BEGIN ─▶ GPU_FIRST ─▶ MEMORY ─▶ GPU_MISSES ─▶ COLLECT ─▶ STORES, or DEFAULTS ─▶ DONE
 *                             │       (only if there is a gpu)   │           │
 *                             └──── all keys are answered ───────┴───────────┴─────▶ DONE
 *
 * Further steps of a lookup that wants a consistency unit (all rows of a batch of updates or none):
 *
 *     torn: all rows are there, but of several states      REREAD ─▶ AWAIT_REREAD ─▶ REREAD
 *     ahead: the only copy of a row is newer than the version          AWAIT_UPDATES ─▶ BEGIN
 *     overtaken: an update may have added a key that was in no tier    BEGIN
 *
 * If the client disconnects, an unfinished lookup goes to ABANDON and then to FAILED.
 */
#ifndef HPS_CACHE_LOOKUP_NEXT_H
#define HPS_CACHE_LOOKUP_NEXT_H

#include <stdbool.h>
#include <stdint.h>

#include "cache/version/version.h"

enum {
    HPS_LOOKUP_TRIES_MAX = 3,  /* tries from the beginning; waits for updates do not count */
    HPS_LOOKUP_WAITS_MAX = 20, /* of both kinds together: about a second in all */
    HPS_LOOKUP_WAIT_US = 1000, /* the first wait; it doubles each time, up to the next */
    HPS_LOOKUP_WAIT_US_MAX = 64 * 1000
};

enum hps_step {
    HPS_STEP_NONE,          /* before the first step */
    HPS_STEP_BEGIN,         /* start a try: forget what earlier ones found */
    HPS_STEP_GPU_FIRST,     /* query the gpu for the parts that want it before the memory tiers */
    HPS_STEP_MEMORY,        /* query the memory tiers for keys that the gpu did not have */
    HPS_STEP_GPU_MISSES,    /* query the gpu for keys that they missed */
    HPS_STEP_COLLECT,       /* take the gpu's answer */
    HPS_STEP_STORES,        /* query the tiers that may block */
    HPS_STEP_DEFAULTS,      /* use default rows for all missing keys: the time to wait has passed */
    HPS_STEP_REREAD,        /* read rows again that updates have changed */
    HPS_STEP_AWAIT_UPDATES, /* wait for wait_us: the version may catch up with the row */
    HPS_STEP_AWAIT_REREAD,  /* wait for wait_us before the next REREAD */
    HPS_STEP_ABANDON,       /* there will be no answer: count the work done */
    HPS_STEP_DONE,          /* answer; a last step, like the next */
    HPS_STEP_FAILED,        /* answer with `failure` */
    HPS_STEP_COUNT
};

/* The outcome of a step. */
enum hps_outcome {
    HPS_OUTCOME_OVER,  /* it has ended without a result, or the gpu has answered */
    HPS_OUTCOME_OPEN,  /* some keys are not answered */
    HPS_OUTCOME_WHOLE, /* every key is answered; if a unit is wanted, all rows are of one state */
    HPS_OUTCOME_TORN,  /* every key is answered, but updates have changed some rows since */
    HPS_OUTCOME_AHEAD, /* the only copy of a row is newer than the version */
    HPS_OUTCOME_OVERTAKEN, /* the lookup would fail for a key in no tier, but an update may have
                              added it */
    HPS_OUTCOME_ERROR,     /* the lookup has ended with an error */
    HPS_OUTCOME_REFUSED,   /* the gpu was not queried: nothing to query, or it does not accept it */
    HPS_OUTCOME_LATE,      /* the time to wait passed before a thread took it or the gpu answered */
    HPS_OUTCOME_BUSY,      /* too many steps wait for a thread: nothing was done */
    HPS_OUTCOME_COUNT
};

enum hps_failure {
    HPS_FAILURE_NONE,
    HPS_FAILURE_ERROR,   /* the error of a step */
    HPS_FAILURE_UPDATES, /* updates changed the rows each time: the client may retry */
    HPS_FAILURE_BUSY,    /* no thread was free */
    HPS_FAILURE_GONE     /* the client has disconnected */
};

/* The state of a lookup between steps. It moves with the lookup from thread to thread. */
struct hps_course {
    /* in; constant */
    enum hps_miss_policy miss_policy; /* as planned; EXACT if the version sets no policy */
    bool unit;                        /* all rows of a batch of updates or none */
    bool has_gpu;                     /* the version has caches on a device */

    /* set by hps_course_next; zeroed before its first use */
    enum hps_step step;
    enum hps_failure failure; /* of FAILED, and of an ABANDON before it */
    unsigned n_tries;         /* tries from the beginning; waits for updates do not count */
    unsigned n_waits;
    uint64_t wait_us; /* for AWAIT_UPDATES and AWAIT_REREAD */
};

/* Returns the state with the next step, after course->step ended with `outcome` (for NONE: OVER).
 * Asserts that the step can have this outcome and is not a last step.
 *
 * cancelled   the answer is no longer wanted. A step that no thread had begun was then taken back:
 *             LATE
 * thread      any; no side effects
 */
struct hps_course hps_course_next(const struct hps_course *course, enum hps_outcome outcome,
                                  bool cancelled);

/* Whether no step follows. */
static inline bool hps_step_is_last(enum hps_step step)
{
    return step == HPS_STEP_DONE || step == HPS_STEP_FAILED;
}

/* Whether rows were read more than once. */
static inline bool hps_course_was_repeated(const struct hps_course *course)
{
    return course->n_tries + course->n_waits > 1;
}

/* Asserts the invariants between two steps. hps_course_next calls it in debug and sanitizer builds.
 */
void hps_course_sane(const struct hps_course *course);

#endif
