/* SPDX-License-Identifier: Apache-2.0
 *
 * What comes next of a look-up: a pure function from what has been done, and what came of it, to
 * the next step. No clock is read, no tier asked, no thread chosen here; whoever has the look-up
 * does the step (cache/lookup/step.h says with which call, server/lookup/dispatch.c on which
 * thread) and asks again.
 *
 *     BEGIN ─▶ GPU_FIRST ─▶ MEMORY ─▶ GPU_MISSES ─▶ COLLECT ─▶ STORES, or DEFAULTS ─▶ DONE
 *                             │       (only where there is a gpu)│           │
 *                             └──── all keys are answered ───────┴───────────┴─────▶ DONE
 *
 * Beside the way down, of a look-up that wants a unit (of a batch of updates all rows or none):
 *
 *     torn: all rows are there, but of several states      REREAD ─▶ AWAIT_REREAD ─▶ REREAD
 *     ahead: the only copy of a row is newer than the version          AWAIT_UPDATES ─▶ BEGIN
 *     overtaken: a key that was in no tier may have come meanwhile     BEGIN
 *
 * Once the client has gone, ABANDON what is half done, and then FAILED.
 */
#ifndef HPS_CACHE_LOOKUP_NEXT_H
#define HPS_CACHE_LOOKUP_NEXT_H

#include <stdbool.h>
#include <stdint.h>

#include "cache/version/version.h"

enum {
    HPS_LOOKUP_TRIES_MAX = 3,  /* from the beginning; what was ahead does not count */
    HPS_LOOKUP_WAITS_MAX = 20, /* both kinds together: about a second in all */
    HPS_LOOKUP_WAIT_US = 1000, /* the first wait; each is twice as long as the one before, up to */
    HPS_LOOKUP_WAIT_US_MAX = 64 * 1000
};

enum hps_step {
    HPS_STEP_NONE,          /* nothing has been done */
    HPS_STEP_BEGIN,         /* a try: what earlier ones found is forgotten */
    HPS_STEP_GPU_FIRST,     /* ask the gpu for the parts that want it before the memory tiers */
    HPS_STEP_MEMORY,        /* ask the memory tiers, for what the gpu did not have */
    HPS_STEP_GPU_MISSES,    /* ask the gpu for what they miss */
    HPS_STEP_COLLECT,       /* take what it had of that */
    HPS_STEP_STORES,        /* ask the tiers that may block */
    HPS_STEP_DEFAULTS,      /* default rows for all that is open: its wait is over */
    HPS_STEP_REREAD,        /* read again what updates have changed */
    HPS_STEP_AWAIT_UPDATES, /* wait for wait_us: the version may catch up with the row */
    HPS_STEP_AWAIT_REREAD,  /* the same: before the next REREAD */
    HPS_STEP_ABANDON,       /* there will be no answer: account for what was done */
    HPS_STEP_DONE,          /* answer; the last step, as the next */
    HPS_STEP_FAILED,        /* for `failure` */
    HPS_STEP_COUNT
};

/* What came of a step. */
enum hps_outcome {
    HPS_OUTCOME_OVER,      /* it has ended; it has nothing to say, or the gpu has answered */
    HPS_OUTCOME_OPEN,      /* keys are left */
    HPS_OUTCOME_WHOLE,     /* every key is answered, and all rows are of one state if it matters */
    HPS_OUTCOME_TORN,      /* every key is answered, but updates have changed some meanwhile */
    HPS_OUTCOME_AHEAD,     /* the only copy of a row is newer than the version */
    HPS_OUTCOME_OVERTAKEN, /* a key in no tier, which an error would be for, may have come */
    HPS_OUTCOME_ERROR,     /* the look-up has ended with one */
    HPS_OUTCOME_REFUSED,   /* by the gpu: there is nothing to ask, or it takes no question */
    HPS_OUTCOME_LATE,      /* the wait was over: before a thread took it, or the gpu answered */
    HPS_OUTCOME_BUSY,      /* too much waits for a thread: nothing was done */
    HPS_OUTCOME_COUNT
};

enum hps_failure {
    HPS_FAILURE_NONE,
    HPS_FAILURE_ERROR,   /* the one that a step ended with */
    HPS_FAILURE_UPDATES, /* they came each time: the client may try again */
    HPS_FAILURE_BUSY,    /* no thread */
    HPS_FAILURE_GONE     /* the client */
};

/* A look-up's way so far. Travels with the look-up from thread to thread. */
struct hps_course {
    /* in; as long as it lives */
    enum hps_miss_policy miss_policy; /* as planned; of a version without one: exact */
    bool unit;                        /* of a batch of updates all rows or none */
    bool has_gpu;                     /* its version has caches on a device */

    /* by hps_course_next; zeroed before its first use */
    enum hps_step step;
    enum hps_failure failure; /* of FAILED, and of ABANDON before it */
    unsigned n_tries;         /* from the beginning; what was ahead does not count */
    unsigned n_waits;
    uint64_t wait_us; /* of AWAIT_UPDATES and AWAIT_REREAD */
};

/* The course with its next step, after course->step came to `outcome` (of NONE: OVER). A step that
 * cannot come to that, or after which nothing comes, is asserted against.
 *
 * cancelled   nobody waits for the answer any more. A step that no thread had begun was then taken
 *             back: LATE
 * thread      any; changes nothing
 */
struct hps_course hps_course_next(const struct hps_course *course, enum hps_outcome outcome,
                                  bool cancelled);

/* A step after which nothing comes. */
static inline bool hps_step_is_last(enum hps_step step)
{
    return step == HPS_STEP_DONE || step == HPS_STEP_FAILED;
}

/* Rows were read more than once. */
static inline bool hps_course_was_repeated(const struct hps_course *course)
{
    return course->n_tries + course->n_waits > 1;
}

/* Asserts what holds between any two steps; hps_course_next does in debug and sanitizer builds. */
void hps_course_sane(const struct hps_course *course);

#endif
