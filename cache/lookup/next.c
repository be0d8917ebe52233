/* SPDX-License-Identifier: Apache-2.0
 *
 * Decides the next step of a lookup: see next.h. Any thread.
 */
#include "cache/lookup/next.h"

#include "base/assert.h"

#define BIT(outcome) (1u << HPS_OUTCOME_##outcome)

/* Outcomes of a step that reads the last rows. */
enum {
    ENDS = BIT(WHOLE) | BIT(ERROR),
    ENDS_UNIT = BIT(TORN) | BIT(AHEAD) | BIT(OVERTAKEN), /* only if a unit is wanted */
    GPU = BIT(OVER) | BIT(REFUSED) | BIT(LATE),
    THREAD = BIT(BUSY) | BIT(LATE)
};

/* The possible outcomes of each step. Only tiers that may block have rows that are ahead. */
static const uint32_t OUTCOMES[HPS_STEP_COUNT] = {
    [HPS_STEP_NONE] = BIT(OVER),
    [HPS_STEP_BEGIN] = BIT(OVER),
    [HPS_STEP_GPU_FIRST] = GPU,
    [HPS_STEP_MEMORY] = ENDS | BIT(TORN) | BIT(OVERTAKEN) | BIT(OPEN) | THREAD,
    [HPS_STEP_GPU_MISSES] = GPU,
    [HPS_STEP_COLLECT] = ENDS | BIT(TORN) | BIT(OVERTAKEN) | BIT(OPEN) | THREAD,
    [HPS_STEP_STORES] = ENDS | BIT(TORN) | BIT(OVERTAKEN) | BIT(AHEAD) | THREAD,
    [HPS_STEP_DEFAULTS] = ENDS | BIT(TORN) | BIT(OVERTAKEN),
    [HPS_STEP_REREAD] = ENDS | BIT(TORN) | BIT(AHEAD) | THREAD,
    [HPS_STEP_AWAIT_UPDATES] = BIT(OVER) | BIT(LATE),
    [HPS_STEP_AWAIT_REREAD] = BIT(OVER) | BIT(LATE),
    [HPS_STEP_ABANDON] = BIT(OVER),
};

/* The usual next step. NONE: the step ends the lookup, or always needs a decision. */
static const enum hps_step NEXT[HPS_STEP_COUNT] = {
    [HPS_STEP_NONE] = HPS_STEP_BEGIN,
    [HPS_STEP_BEGIN] = HPS_STEP_GPU_FIRST,
    [HPS_STEP_GPU_FIRST] = HPS_STEP_MEMORY,
    [HPS_STEP_MEMORY] = HPS_STEP_STORES, /* with a gpu: GPU_MISSES */
    [HPS_STEP_GPU_MISSES] = HPS_STEP_COLLECT,
    [HPS_STEP_COLLECT] = HPS_STEP_STORES,
    [HPS_STEP_STORES] = HPS_STEP_DEFAULTS,     /* no thread was free in time */
    [HPS_STEP_AWAIT_UPDATES] = HPS_STEP_BEGIN, /* waiting is not a try */
    [HPS_STEP_AWAIT_REREAD] = HPS_STEP_REREAD,
    [HPS_STEP_ABANDON] = HPS_STEP_FAILED,
};

/* Whether the step can be late only because the client has disconnected. Other steps have a bound
 * on their wait. */
static bool is_late_only_if_gone(const struct hps_lookup_state *state)
{
    bool waits = state->step == HPS_STEP_STORES && state->miss_policy == HPS_MISS_WAIT;
    bool at_gpu = state->step == HPS_STEP_GPU_FIRST || state->step == HPS_STEP_GPU_MISSES;

    return !waits && !at_gpu;
}

static void check_outcome(const struct hps_lookup_state *state, enum hps_outcome outcome,
                          bool cancelled)
{
    HPS_ASSERT((unsigned)outcome < HPS_OUTCOME_COUNT);
    HPS_ASSERT((OUTCOMES[state->step] & 1u << outcome) != 0);
    HPS_ASSERT(state->unit || (ENDS_UNIT & 1u << outcome) == 0);
    HPS_ASSERT(state->has_gpu || state->step != HPS_STEP_GPU_FIRST ||
               outcome == HPS_OUTCOME_REFUSED);
    HPS_ASSERT(outcome != HPS_OUTCOME_LATE || cancelled || !is_late_only_if_gone(state));
}

void hps_lookup_state_sane(const struct hps_lookup_state *state)
{
    enum hps_step step = state->step;
    bool of_unit =
        step == HPS_STEP_REREAD || step == HPS_STEP_AWAIT_UPDATES || step == HPS_STEP_AWAIT_REREAD;
    bool of_gpu = step == HPS_STEP_GPU_MISSES || step == HPS_STEP_COLLECT;

    HPS_ASSERT((unsigned)step < HPS_STEP_COUNT);
    HPS_ASSERT(state->unit || !of_unit);
    HPS_ASSERT(state->has_gpu || !of_gpu);
    HPS_ASSERT(step != HPS_STEP_DEFAULTS || state->miss_policy == HPS_MISS_WAIT);
    HPS_ASSERT(step != HPS_STEP_NONE || state->n_tries == 0);
    HPS_ASSERT(state->n_tries > 0 || step == HPS_STEP_NONE || step == HPS_STEP_FAILED);
    HPS_ASSERT(state->n_tries <= (state->unit ? HPS_LOOKUP_TRIES_MAX : 1));
    HPS_ASSERT(state->n_waits <= (state->unit ? HPS_LOOKUP_WAITS_MAX : 0));
    HPS_ASSERT((state->failure != HPS_FAILURE_NONE) ==
               (step == HPS_STEP_FAILED || step == HPS_STEP_ABANDON));
}

/* ---- steps ----------------------------------------------------------------------------------- */

static void fail(struct hps_lookup_state *next, enum hps_failure failure)
{
    next->step = HPS_STEP_FAILED;
    next->failure = failure;
}

/* Tiers have been queried, but their rows will not be sent. */
static void abandon(struct hps_lookup_state *next, enum hps_failure failure)
{
    next->step = HPS_STEP_ABANDON;
    next->failure = failure;
}

/* Wait, unless the lookup has waited the maximum number of times. */
static void await(struct hps_lookup_state *next, enum hps_step step)
{
    if (next->n_waits == HPS_LOOKUP_WAITS_MAX) {
        fail(next, HPS_FAILURE_UPDATES);
        return;
    }
    next->step = step;
    next->wait_us = (uint64_t)HPS_LOOKUP_WAIT_US << next->n_waits++;
    if (next->wait_us > HPS_LOOKUP_WAIT_US_MAX) {
        next->wait_us = HPS_LOOKUP_WAIT_US_MAX;
    }
}

static void begin_again(struct hps_lookup_state *next)
{
    if (next->n_tries == HPS_LOOKUP_TRIES_MAX) {
        fail(next, HPS_FAILURE_UPDATES);
        return;
    }
    next->step = HPS_STEP_BEGIN;
    next->n_tries++;
}

/* The rows are of several states: read them again. */
static void reread(struct hps_lookup_state *next)
{
    if (next->step == HPS_STEP_REREAD) {
        await(next, HPS_STEP_AWAIT_REREAD);
    } else {
        next->step = HPS_STEP_REREAD;
    }
}

/* No thread was free. Under HPS_MISS_WAIT, the lookup stops waiting for the stores. If all rows
 * have been read, the walk is not abandoned: its work has been counted. */
static void find_no_thread(struct hps_lookup_state *next)
{
    if (next->step == HPS_STEP_STORES && next->miss_policy == HPS_MISS_WAIT) {
        next->step = HPS_STEP_DEFAULTS;
    } else if (next->step == HPS_STEP_REREAD) {
        fail(next, HPS_FAILURE_BUSY);
    } else {
        abandon(next, HPS_FAILURE_BUSY);
    }
}

/* Go to the usual next step. */
static void go_on(struct hps_lookup_state *next)
{
    enum hps_step step = next->step;

    next->step = step == HPS_STEP_MEMORY && next->has_gpu ? HPS_STEP_GPU_MISSES : NEXT[step];
    next->n_tries = step == HPS_STEP_NONE ? 1 : next->n_tries;
    HPS_ASSERT(next->step != HPS_STEP_NONE);
}

/* The client has disconnected. An unfinished walk is abandoned first, so that its work is counted;
 * a finished one has been counted. */
static void end_unanswered(struct hps_lookup_state *next, enum hps_outcome outcome)
{
    bool ended = ((ENDS | ENDS_UNIT) & 1u << outcome) != 0;
    bool reads = next->step >= HPS_STEP_GPU_FIRST && next->step <= HPS_STEP_DEFAULTS;

    if (next->step == HPS_STEP_ABANDON) {
        next->step = HPS_STEP_FAILED;
    } else if (reads && !ended) {
        abandon(next, HPS_FAILURE_GONE);
    } else {
        fail(next, HPS_FAILURE_GONE);
    }
}

/* ---- by outcome of the step ------------------------------------------------------------------ */

static void decide(struct hps_lookup_state *next, enum hps_outcome outcome)
{
    switch (outcome) {
    case HPS_OUTCOME_OVER:
    case HPS_OUTCOME_OPEN:
    case HPS_OUTCOME_REFUSED:
    case HPS_OUTCOME_LATE:
        go_on(next);
        break;
    case HPS_OUTCOME_WHOLE:
        next->step = HPS_STEP_DONE;
        break;
    case HPS_OUTCOME_TORN:
        reread(next);
        break;
    case HPS_OUTCOME_AHEAD:
        await(next, HPS_STEP_AWAIT_UPDATES);
        break;
    case HPS_OUTCOME_OVERTAKEN:
        begin_again(next);
        break;
    case HPS_OUTCOME_ERROR:
        fail(next, HPS_FAILURE_ERROR);
        break;
    case HPS_OUTCOME_BUSY:
        find_no_thread(next);
        break;
    case HPS_OUTCOME_COUNT:
        break;
    }
}

struct hps_lookup_state hps_lookup_state_next(const struct hps_lookup_state *state,
                                              enum hps_outcome outcome, bool cancelled)
{
    struct hps_lookup_state next = *state;

    HPS_DEBUG_SANE(hps_lookup_state_sane(state));
    check_outcome(state, outcome, cancelled);
    if (cancelled) {
        end_unanswered(&next, outcome);
    } else {
        decide(&next, outcome);
    }
    HPS_DEBUG_SANE(hps_lookup_state_sane(&next));
    return next;
}
