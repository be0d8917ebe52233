/* SPDX-License-Identifier: Apache-2.0
 *
 * Next step of a lookup: every state and outcome against a table of transitions, every path from
 * start to end, and some paths by name. One thread.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/assert.h"
#include "cache/lookup/next.h"

/* ---- the table of transitions ---------------------------------------------------------------- */

enum {
    ANY = 0,
    UNIT = 1 << 0,    /* the lookup wants a unit */
    GPU = 1 << 1,     /* the version has a gpu */
    NO_GPU = 1 << 2,  /* ... has no gpu */
    WAIT = 1 << 3,    /* the lookup waits for rows for a limited time */
    NO_WAIT = 1 << 4, /* ... without a limit */
    TRIES = 1 << 5,   /* another try is allowed */
    NO_TRIES = 1 << 6,
    WAITS = 1 << 7, /* another wait is allowed */
    NO_WAITS = 1 << 8,
};

struct row {
    enum hps_step step;
    enum hps_outcome outcome;
    unsigned when; /* all of these conditions */
    enum hps_step next;
    enum hps_failure failure;
};

#define S(name) HPS_STEP_##name
#define O(name) HPS_OUTCOME_##name
#define F(name) HPS_FAILURE_##name

/* Transitions while the client is connected. hps_lookup_state_next asserts against all others. */
static const struct row TABLE[] = {
    {S(NONE), O(OVER), ANY, S(BEGIN), F(NONE)},
    {S(BEGIN), O(OVER), ANY, S(GPU_FIRST), F(NONE)},

    {S(GPU_FIRST), O(OVER), GPU, S(MEMORY), F(NONE)},
    {S(GPU_FIRST), O(LATE), GPU, S(MEMORY), F(NONE)},
    {S(GPU_FIRST), O(REFUSED), ANY, S(MEMORY), F(NONE)},

    {S(MEMORY), O(OPEN), GPU, S(GPU_MISSES), F(NONE)},
    {S(MEMORY), O(OPEN), NO_GPU, S(STORES), F(NONE)},
    {S(MEMORY), O(WHOLE), ANY, S(DONE), F(NONE)},
    {S(MEMORY), O(TORN), UNIT, S(REREAD), F(NONE)},
    {S(MEMORY), O(OVERTAKEN), UNIT | TRIES, S(BEGIN), F(NONE)},
    {S(MEMORY), O(OVERTAKEN), UNIT | NO_TRIES, S(FAILED), F(UPDATES)},
    {S(MEMORY), O(ERROR), ANY, S(FAILED), F(ERROR)},
    {S(MEMORY), O(BUSY), ANY, S(ABANDON), F(BUSY)},

    {S(GPU_MISSES), O(OVER), GPU, S(COLLECT), F(NONE)},
    {S(GPU_MISSES), O(LATE), GPU, S(COLLECT), F(NONE)},
    {S(GPU_MISSES), O(REFUSED), GPU, S(COLLECT), F(NONE)},

    {S(COLLECT), O(OPEN), GPU, S(STORES), F(NONE)},
    {S(COLLECT), O(WHOLE), GPU, S(DONE), F(NONE)},
    {S(COLLECT), O(TORN), GPU | UNIT, S(REREAD), F(NONE)},
    {S(COLLECT), O(OVERTAKEN), GPU | UNIT | TRIES, S(BEGIN), F(NONE)},
    {S(COLLECT), O(OVERTAKEN), GPU | UNIT | NO_TRIES, S(FAILED), F(UPDATES)},
    {S(COLLECT), O(ERROR), GPU, S(FAILED), F(ERROR)},
    {S(COLLECT), O(BUSY), GPU, S(ABANDON), F(BUSY)},

    {S(STORES), O(WHOLE), ANY, S(DONE), F(NONE)},
    {S(STORES), O(TORN), UNIT, S(REREAD), F(NONE)},
    {S(STORES), O(AHEAD), UNIT | WAITS, S(AWAIT_UPDATES), F(NONE)},
    {S(STORES), O(AHEAD), UNIT | NO_WAITS, S(FAILED), F(UPDATES)},
    {S(STORES), O(OVERTAKEN), UNIT | TRIES, S(BEGIN), F(NONE)},
    {S(STORES), O(OVERTAKEN), UNIT | NO_TRIES, S(FAILED), F(UPDATES)},
    {S(STORES), O(ERROR), ANY, S(FAILED), F(ERROR)},
    {S(STORES), O(BUSY), WAIT, S(DEFAULTS), F(NONE)},
    {S(STORES), O(BUSY), NO_WAIT, S(ABANDON), F(BUSY)},
    {S(STORES), O(LATE), WAIT, S(DEFAULTS), F(NONE)},

    {S(DEFAULTS), O(WHOLE), WAIT, S(DONE), F(NONE)},
    {S(DEFAULTS), O(TORN), WAIT | UNIT, S(REREAD), F(NONE)},
    {S(DEFAULTS), O(OVERTAKEN), WAIT | UNIT | TRIES, S(BEGIN), F(NONE)},
    {S(DEFAULTS), O(OVERTAKEN), WAIT | UNIT | NO_TRIES, S(FAILED), F(UPDATES)},
    {S(DEFAULTS), O(ERROR), WAIT, S(FAILED), F(ERROR)},

    {S(REREAD), O(WHOLE), UNIT, S(DONE), F(NONE)},
    {S(REREAD), O(TORN), UNIT | WAITS, S(AWAIT_REREAD), F(NONE)},
    {S(REREAD), O(TORN), UNIT | NO_WAITS, S(FAILED), F(UPDATES)},
    {S(REREAD), O(AHEAD), UNIT | WAITS, S(AWAIT_UPDATES), F(NONE)},
    {S(REREAD), O(AHEAD), UNIT | NO_WAITS, S(FAILED), F(UPDATES)},
    {S(REREAD), O(ERROR), UNIT, S(FAILED), F(ERROR)},
    {S(REREAD), O(BUSY), UNIT, S(FAILED), F(BUSY)},

    {S(AWAIT_UPDATES), O(OVER), UNIT, S(BEGIN), F(NONE)},
    {S(AWAIT_REREAD), O(OVER), UNIT, S(REREAD), F(NONE)},

    /* F(NONE): the previous failure stays */
    {S(ABANDON), O(OVER), ANY, S(FAILED), F(NONE)},
};

enum { N_ROWS = sizeof(TABLE) / sizeof(TABLE[0]) };

static unsigned conditions_of(const struct hps_lookup_state *lookup_state)
{
    unsigned conditions = lookup_state->unit ? UNIT : 0;

    conditions |= lookup_state->has_gpu ? GPU : NO_GPU;
    conditions |= lookup_state->miss_policy == HPS_MISS_WAIT ? WAIT : NO_WAIT;
    conditions |= lookup_state->n_tries < HPS_LOOKUP_TRIES_MAX ? TRIES : NO_TRIES;
    conditions |= lookup_state->n_waits < HPS_LOOKUP_WAITS_MAX ? WAITS : NO_WAITS;
    return conditions;
}

/* The client has disconnected: reads of tiers that have not completed are abandoned. */
static struct row row_of_gone(enum hps_step step, enum hps_outcome outcome)
{
    bool reads = step >= S(GPU_FIRST) && step <= S(DEFAULTS);
    bool half = outcome == O(OVER) || outcome == O(OPEN) || outcome == O(REFUSED) ||
                outcome == O(LATE) || outcome == O(BUSY);

    return (struct row){step, outcome, ANY, reads && half ? S(ABANDON) : S(FAILED), F(GONE)};
}

/* A thread or a timer owns the step. If the client disconnects, the step can be withdrawn before
 * it begins. */
static bool can_be_taken_back(enum hps_step step)
{
    return step == S(MEMORY) || step == S(COLLECT) || step == S(STORES) || step == S(REREAD) ||
           step == S(AWAIT_UPDATES) || step == S(AWAIT_REREAD);
}

/* NULL: an impossible transition. */
static const struct row *row_of(const struct hps_lookup_state *lookup_state,
                                enum hps_outcome outcome, bool cancelled)
{
    static struct row gone;
    unsigned conditions = conditions_of(lookup_state);
    const struct row *row = NULL;

    for (unsigned i = 0; i < N_ROWS && row == NULL; i++) {
        if (TABLE[i].step == lookup_state->step && TABLE[i].outcome == outcome &&
            (TABLE[i].when & conditions) == TABLE[i].when) {
            row = &TABLE[i];
        }
    }
    gone = row_of_gone(lookup_state->step, outcome);
    bool taken_back = outcome == O(LATE) && can_be_taken_back(lookup_state->step);
    return cancelled && (row != NULL || taken_back) ? &gone : row;
}

/* The state after this transition. */
static struct hps_lookup_state changed_by(const struct row *row,
                                          const struct hps_lookup_state *lookup_state)
{
    struct hps_lookup_state next = *lookup_state;

    next.step = row->next;
    next.failure = row->step == S(ABANDON) ? lookup_state->failure : row->failure;
    if (row->next == S(BEGIN) && row->step != S(AWAIT_UPDATES)) {
        next.n_tries++;
    }
    if (row->next == S(AWAIT_UPDATES) || row->next == S(AWAIT_REREAD)) {
        next.wait_us = lookup_state->n_waits < 6 ? 1000u << lookup_state->n_waits : 64 * 1000;
        next.n_waits++;
    }
    return next;
}

static void assert_same(const struct hps_lookup_state *a, const struct hps_lookup_state *b)
{
    assert_int_equal(a->step, b->step);
    assert_int_equal(a->failure, b->failure);
    assert_int_equal(a->n_tries, b->n_tries);
    assert_int_equal(a->n_waits, b->n_waits);
    assert_int_equal(a->wait_us, b->wait_us);
    assert_int_equal(a->miss_policy, b->miss_policy);
    assert_int_equal(a->unit, b->unit);
    assert_int_equal(a->has_gpu, b->has_gpu);
}

/* ---- impossible transitions ------------------------------------------------------------------ */

static jmp_buf refused;

static void on_assert(const char *expr, const char *file, int line)
{
    (void)expr;
    (void)file;
    (void)line;
    longjmp(refused, 1);
}

/* Whether hps_lookup_state_next asserts against this transition. */
static bool is_refused(const struct hps_lookup_state *lookup_state, enum hps_outcome outcome,
                       bool cancelled)
{
    volatile bool asserted = true;

    hps_assert_hook(on_assert);
    if (setjmp(refused) == 0) {
        (void)hps_lookup_state_next(lookup_state, outcome, cancelled);
        asserted = false;
    }
    hps_assert_hook(NULL);
    return asserted;
}

/* Whether the state is valid between two steps. hps_lookup_state_next takes only valid states. */
static bool is_sane(const struct hps_lookup_state *lookup_state)
{
    volatile bool asserted = true;

    hps_assert_hook(on_assert);
    if (setjmp(refused) == 0) {
        hps_lookup_state_sane(lookup_state);
        asserted = false;
    }
    hps_assert_hook(NULL);
    return !asserted;
}

/* ---- every state ----------------------------------------------------------------------------- */

enum { N_KINDS = 20 };

static struct hps_lookup_state lookup_state_of(unsigned kind)
{
    return (struct hps_lookup_state){
        .miss_policy = kind % 5, .unit = kind / 5 % 2, .has_gpu = kind / 10 % 2};
}

static void check_outcomes(const struct hps_lookup_state *lookup_state)
{
    for (unsigned i = 0; i < 2 * HPS_OUTCOME_COUNT; i++) {
        enum hps_outcome outcome = i / 2;
        bool cancelled = i % 2 != 0;
        const struct row *row = row_of(lookup_state, outcome, cancelled);
        if (row == NULL) {
            assert_true(is_refused(lookup_state, outcome, cancelled));
        } else {
            struct hps_lookup_state expected = changed_by(row, lookup_state);
            struct hps_lookup_state next = hps_lookup_state_next(lookup_state, outcome, cancelled);
            assert_same(&next, &expected);
        }
    }
}

/* Check with each number of tries and waits, and with one too many of either. */
static void check_step(struct hps_lookup_state *lookup_state)
{
    for (unsigned n = 0; n < 5 * (HPS_LOOKUP_WAITS_MAX + 2); n++) {
        lookup_state->n_tries = n % 5;
        lookup_state->n_waits = n / 5;
        if (is_sane(lookup_state)) {
            check_outcomes(lookup_state);
        } else {
#ifdef HPS_DEBUG
            assert_true(is_refused(lookup_state, O(OVER), false));
#endif
        }
    }
}

static void test_next_when_any_state_and_outcome_then_as_in_the_table(void **state)
{
    (void)state;
    for (unsigned i = 0; i < N_KINDS * HPS_STEP_COUNT; i++) {
        struct hps_lookup_state lookup_state = lookup_state_of(i % N_KINDS);
        lookup_state.step = i / N_KINDS;
        for (unsigned failure = F(NONE); failure <= F(GONE); failure++) {
            lookup_state.failure = failure;
            check_step(&lookup_state);
        }
    }
}

/* ---- every path ------------------------------------------------------------------------------ */

/* States that a lookup of one kind can reach, and results of all paths. */
struct ways {
    bool seen[HPS_STEP_COUNT][HPS_FAILURE_GONE + 1][HPS_LOOKUP_TRIES_MAX + 1]
             [HPS_LOOKUP_WAITS_MAX + 1];
    uint64_t wait_us_max; /* the longest total wait of a path */
    bool failed_for[HPS_FAILURE_GONE + 1];
    bool took[HPS_STEP_COUNT];

    bool used[N_ROWS];
};

static void note(struct ways *ways, const struct hps_lookup_state *lookup_state, unsigned n_steps,
                 uint64_t wait_us)
{
    assert_in_range(n_steps, 0, 1000); /* every path ends */
    ways->took[lookup_state->step] = true;
    ways->wait_us_max = wait_us > ways->wait_us_max ? wait_us : ways->wait_us_max;
    if (hps_step_is_last(lookup_state->step)) {
        ways->failed_for[lookup_state->failure] = true;
        for (unsigned outcome = 0; outcome < HPS_OUTCOME_COUNT; outcome++) {
            assert_true(is_refused(lookup_state, outcome, false));
        }
    }
}

static void follow(struct ways *ways, const struct hps_lookup_state *lookup_state, unsigned n_steps,
                   uint64_t wait_us)
{
    bool *seen = &ways->seen[lookup_state->step][lookup_state->failure][lookup_state->n_tries]
                            [lookup_state->n_waits];

    note(ways, lookup_state, n_steps, wait_us);
    for (unsigned i = 0; i < 2 * HPS_OUTCOME_COUNT && !*seen; i++) {
        bool cancelled = i % 2 != 0;
        const struct row *row = row_of(lookup_state, i / 2, cancelled);
        if (row != NULL) {
            struct hps_lookup_state next = hps_lookup_state_next(lookup_state, i / 2, cancelled);
            bool waits = next.step == S(AWAIT_UPDATES) || next.step == S(AWAIT_REREAD);
            if (!cancelled) {
                ways->used[row - TABLE] = true;
            }
            follow(ways, &next, n_steps + 1, wait_us + (waits ? next.wait_us : 0));
        }
    }
    *seen = true;
}

static void check_kind(const struct hps_lookup_state *lookup_state, const struct ways *ways)
{
    bool waits = lookup_state->miss_policy == HPS_MISS_WAIT;

    assert_true(ways->took[S(DONE)]);
    assert_true(ways->failed_for[F(ERROR)] && ways->failed_for[F(BUSY)]);
    assert_true(ways->failed_for[F(GONE)]);
    assert_int_equal(ways->failed_for[F(UPDATES)], lookup_state->unit);
    assert_int_equal(ways->took[S(GPU_MISSES)], lookup_state->has_gpu);
    assert_int_equal(ways->took[S(COLLECT)], lookup_state->has_gpu);
    assert_int_equal(ways->took[S(DEFAULTS)], waits);
    assert_int_equal(ways->took[S(REREAD)], lookup_state->unit);
    assert_int_equal(ways->took[S(AWAIT_UPDATES)], lookup_state->unit);
    assert_int_equal(ways->took[S(AWAIT_REREAD)], lookup_state->unit);
    /* Row lookups never wait; units wait for about a second in total. */
    assert_int_equal(ways->wait_us_max, lookup_state->unit ? (63 + 14 * 64) * 1000 : 0);
}

static void test_next_when_every_path_is_followed_then_each_ends_and_each_transition_is_used(
    void **state)
{
    static struct ways ways;
    bool used[N_ROWS] = {false};

    (void)state;
    for (unsigned kind = 0; kind < N_KINDS; kind++) {
        struct hps_lookup_state lookup_state = lookup_state_of(kind);
        memset(&ways, 0, sizeof(ways));
        follow(&ways, &lookup_state, 0, 0);
        check_kind(&lookup_state, &ways);
        for (unsigned i = 0; i < N_ROWS; i++) {
            used[i] = used[i] || ways.used[i];
        }
    }
    for (unsigned i = 0; i < N_ROWS; i++) {
        assert_true(used[i]);
    }
}

/* ---- paths by name --------------------------------------------------------------------------- */

static void take(struct hps_lookup_state *lookup_state, enum hps_outcome outcome,
                 enum hps_step next)
{
    *lookup_state = hps_lookup_state_next(lookup_state, outcome, false);
    assert_int_equal(lookup_state->step, next);
}

/* The state before the memory tiers are queried. */
static struct hps_lookup_state at_memory(enum hps_miss_policy policy, bool unit, bool has_gpu)
{
    struct hps_lookup_state lookup_state = {
        .miss_policy = policy, .unit = unit, .has_gpu = has_gpu};

    take(&lookup_state, O(OVER), S(BEGIN));
    take(&lookup_state, O(OVER), S(GPU_FIRST));
    take(&lookup_state, has_gpu ? O(OVER) : O(REFUSED), S(MEMORY));
    return lookup_state;
}

static void test_row_when_memory_misses_then_the_gpu_and_the_stores_are_read(void **state)
{
    (void)state;
    struct hps_lookup_state lookup_state = at_memory(HPS_MISS_EXACT, false, true);
    take(&lookup_state, O(OPEN), S(GPU_MISSES));
    take(&lookup_state, O(OVER), S(COLLECT));
    take(&lookup_state, O(OPEN), S(STORES));
    take(&lookup_state, O(WHOLE), S(DONE));
    assert_false(hps_lookup_state_was_repeated(&lookup_state));

    lookup_state = at_memory(HPS_MISS_EXACT, false, false);
    take(&lookup_state, O(OPEN), S(STORES));
    take(&lookup_state, O(WHOLE), S(DONE));
}

static void test_row_when_the_gpu_is_late_then_the_lookup_continues_without_it(void **state)
{
    (void)state;
    struct hps_lookup_state lookup_state = {.miss_policy = HPS_MISS_WAIT, .has_gpu = true};
    take(&lookup_state, O(OVER), S(BEGIN));
    take(&lookup_state, O(OVER), S(GPU_FIRST));
    take(&lookup_state, O(LATE), S(MEMORY));
    take(&lookup_state, O(OPEN), S(GPU_MISSES));
    take(&lookup_state, O(REFUSED), S(COLLECT)); /* the gpu is not called twice */
    take(&lookup_state, O(OPEN), S(STORES));
    take(&lookup_state, O(LATE), S(DEFAULTS));
    take(&lookup_state, O(WHOLE), S(DONE));
}

static void test_row_when_no_thread_is_free_then_refused_or_defaulted(void **state)
{
    (void)state;
    struct hps_lookup_state lookup_state = at_memory(HPS_MISS_EXACT, false, false);
    take(&lookup_state, O(OPEN), S(STORES));
    take(&lookup_state, O(BUSY), S(ABANDON));
    take(&lookup_state, O(OVER), S(FAILED));
    assert_int_equal(lookup_state.failure, F(BUSY));

    lookup_state = at_memory(HPS_MISS_WAIT, false, false);
    take(&lookup_state, O(OPEN), S(STORES));
    take(&lookup_state, O(BUSY), S(DEFAULTS));
    take(&lookup_state, O(WHOLE), S(DONE));
}

static void test_unit_when_a_row_is_ahead_then_it_waits_for_a_second_and_tries_once(void **state)
{
    (void)state;
    struct hps_lookup_state lookup_state = at_memory(HPS_MISS_EXACT, true, false);
    uint64_t wait_us = 0;

    for (unsigned i = 0; i < HPS_LOOKUP_WAITS_MAX; i++) {
        take(&lookup_state, O(OPEN), S(STORES));
        take(&lookup_state, O(AHEAD), S(AWAIT_UPDATES));
        wait_us += lookup_state.wait_us;
        take(&lookup_state, O(OVER), S(BEGIN));
        take(&lookup_state, O(OVER), S(GPU_FIRST));
        take(&lookup_state, O(REFUSED), S(MEMORY));
    }
    assert_int_equal(wait_us, (63 + 14 * 64) * 1000);
    assert_int_equal(lookup_state.n_tries, 1);
    assert_true(hps_lookup_state_was_repeated(&lookup_state));
    take(&lookup_state, O(OPEN), S(STORES));
    take(&lookup_state, O(AHEAD), S(FAILED));
    assert_int_equal(lookup_state.failure, F(UPDATES));
}

static void test_unit_when_an_update_may_have_added_a_key_then_it_tries_three_times(void **state)
{
    (void)state;
    struct hps_lookup_state lookup_state = at_memory(HPS_MISS_EXACT, true, false);

    for (unsigned i = 1; i < HPS_LOOKUP_TRIES_MAX; i++) {
        take(&lookup_state, O(OVERTAKEN), S(BEGIN));
        take(&lookup_state, O(OVER), S(GPU_FIRST));
        take(&lookup_state, O(REFUSED), S(MEMORY));
    }
    assert_int_equal(lookup_state.n_tries, HPS_LOOKUP_TRIES_MAX);
    take(&lookup_state, O(OVERTAKEN), S(FAILED));
    assert_int_equal(lookup_state.failure, F(UPDATES));
}

/* Both kinds of waits share one limit. */
static void test_unit_when_updates_come_each_time_then_it_is_read_again_between_waits(void **state)
{
    (void)state;
    struct hps_lookup_state lookup_state = at_memory(HPS_MISS_EXACT, true, false);
    take(&lookup_state, O(OPEN), S(STORES));
    take(&lookup_state, O(AHEAD), S(AWAIT_UPDATES));
    take(&lookup_state, O(OVER), S(BEGIN));
    take(&lookup_state, O(OVER), S(GPU_FIRST));
    take(&lookup_state, O(REFUSED), S(MEMORY));
    take(&lookup_state, O(TORN), S(REREAD));
    for (unsigned i = 1; i < HPS_LOOKUP_WAITS_MAX; i++) {
        take(&lookup_state, O(TORN), S(AWAIT_REREAD));
        assert_int_equal(lookup_state.wait_us, i < 6 ? 1000u << i : 64 * 1000);
        take(&lookup_state, O(OVER), S(REREAD));
    }
    struct hps_lookup_state whole = lookup_state;
    take(&whole, O(WHOLE), S(DONE));
    take(&lookup_state, O(TORN), S(FAILED));
    assert_int_equal(lookup_state.failure, F(UPDATES));
}

static void test_next_when_the_client_disconnects_then_only_incomplete_reads_are_abandoned(
    void **state)
{
    (void)state;
    struct hps_lookup_state half = at_memory(HPS_MISS_EXACT, true, false);
    take(&half, O(OPEN), S(STORES));
    struct hps_lookup_state next = hps_lookup_state_next(&half, O(LATE), true);
    assert_int_equal(next.step, S(ABANDON));
    next = hps_lookup_state_next(&next, O(OVER), true);
    assert_int_equal(next.step, S(FAILED));
    assert_int_equal(next.failure, F(GONE));

    struct hps_lookup_state whole = half;
    take(&whole, O(TORN), S(REREAD));
    next = hps_lookup_state_next(&whole, O(LATE), true);
    assert_int_equal(next.step, S(FAILED));
    assert_int_equal(next.failure, F(GONE));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_next_when_any_state_and_outcome_then_as_in_the_table),
        cmocka_unit_test(
            test_next_when_every_path_is_followed_then_each_ends_and_each_transition_is_used),
        cmocka_unit_test(test_row_when_memory_misses_then_the_gpu_and_the_stores_are_read),
        cmocka_unit_test(test_row_when_the_gpu_is_late_then_the_lookup_continues_without_it),
        cmocka_unit_test(test_row_when_no_thread_is_free_then_refused_or_defaulted),
        cmocka_unit_test(test_unit_when_a_row_is_ahead_then_it_waits_for_a_second_and_tries_once),
        cmocka_unit_test(test_unit_when_an_update_may_have_added_a_key_then_it_tries_three_times),
        cmocka_unit_test(test_unit_when_updates_come_each_time_then_it_is_read_again_between_waits),
        cmocka_unit_test(
            test_next_when_the_client_disconnects_then_only_incomplete_reads_are_abandoned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
