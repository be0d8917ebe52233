/* SPDX-License-Identifier: Apache-2.0
 *
 * Steps of a lookup that are calls: the outcome of each, and that a lookup driven by
 * hps_lookup_state_next gets its rows. One thread.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cache/lookup/step.h"
#include "cache/version/stamps.h"
#include "tests/lib/lookup_fixture.h"

enum { KEYS = 4, ROW_BYTES = 16 };

/* Four keys: memory has the first, the disk the second, and no tier the third and fourth. */
struct step_test {
    struct fixture fx;
    struct hps_arena *arena;
    struct hps_lookup_part part;
    struct hps_lookup lookup;
    struct hps_lookup_state lookup_state;
    struct hps_error err;
    hps_key keys[KEYS];
    _Alignas(HPS_ROWS_ALIGN) uint8_t rows[KEYS * ROW_BYTES];
    unsigned n_updates; /* updates still to come, one before each store call */
};

static void update(struct step_test *t)
{
    hps_stamps_begin(t->fx.version.stamps);
    hps_stamps_mark(t->fx.version.stamps, 0, t->keys, KEYS);
    hps_stamps_end(t->fx.version.stamps);
}

static bool on_call(const void *ctx)
{
    struct step_test *t = (struct step_test *)(uintptr_t)ctx;

    if (t->n_updates > 0 && t->lookup_state.step != HPS_STEP_MEMORY) {
        t->n_updates--;
        update(t);
    }
    return false;
}

static int setup(void **state)
{
    struct step_test *t = hps_calloc(1, sizeof(*t));

    assert_non_null(t);
    fixture_open(&t->fx, 0);
    t->fx.version.stamps = hps_stamps_new();
    t->arena = hps_arena_new(4096, 1 << 20);
    assert_non_null(t->arena);
    for (uint32_t i = 0; i < KEYS; i++) {
        t->keys[i] = i + 1;
    }
    fixture_put(&t->fx, FIXTURE_HOST, 0, t->keys[0]);
    fixture_put(&t->fx, FIXTURE_DISK, 0, t->keys[0]);
    fixture_put(&t->fx, FIXTURE_DISK, 0, t->keys[1]);
    t->part = (struct hps_lookup_part){
        .table = &t->fx.tables[0], .keys = (const uint8_t *)t->keys, .n_keys = KEYS};
    t->lookup = (struct hps_lookup){.version = &t->fx.version,
                                    .arena = t->arena,
                                    .parts = &t->part,
                                    .n_parts = 1,
                                    .miss_policy = HPS_MISS_EXACT,
                                    .unknown_policy = HPS_UNKNOWN_DEFAULT_ROW,
                                    .cancelled = on_call,
                                    .cancelled_ctx = t};
    *state = t;
    return 0;
}

static int teardown(void **state)
{
    struct step_test *t = *state;

    hps_arena_free(t->arena);
    hps_stamps_free(t->fx.version.stamps);
    fixture_close(&t->fx);
    hps_free(t);
    return 0;
}

static void begin(struct step_test *t)
{
    assert_int_equal(hps_lookup_plan(&t->lookup, &t->err), HPS_OK);
    assert_true(t->lookup.rows_bytes <= sizeof(t->rows));
    t->lookup.rows = t->rows;
    t->lookup_state =
        (struct hps_lookup_state){.miss_policy = t->lookup.miss_policy, .unit = t->lookup.unit};
}

static enum hps_outcome step(struct step_test *t, enum hps_step which)
{
    t->lookup_state.step = which;
    return hps_lookup_step(&t->lookup, which, &t->err);
}

/* Run the steps as the lookup service does, without waits for other threads. */
static void run(struct step_test *t)
{
    enum hps_outcome outcome = HPS_OUTCOME_OVER;

    while (!hps_step_is_last(t->lookup_state.step)) {
        t->lookup_state = hps_lookup_state_next(&t->lookup_state, outcome, false);
        outcome = HPS_OUTCOME_OVER;
        if (t->lookup_state.step == HPS_STEP_GPU_FIRST) {
            outcome = HPS_OUTCOME_REFUSED;
        } else if (hps_step_is_call(t->lookup_state.step)) {
            outcome = hps_lookup_step(&t->lookup, t->lookup_state.step, &t->err);
        }
    }
}

static void check_rows(const struct step_test *t)
{
    for (uint32_t i = 0; i < 2; i++) {
        uint8_t row[ROW_BYTES];
        fixture_row(&t->fx.tables[0], t->keys[i], row);
        assert_memory_equal(t->rows + i * ROW_BYTES, row, ROW_BYTES);
        assert_int_equal(t->part.key_status[i], HPS_KEY_FOUND);
    }
    assert_int_equal(t->part.key_status[2], HPS_KEY_UNKNOWN);
}

static void test_step_when_memory_misses_then_open_and_the_stores_complete_it(void **state)
{
    struct step_test *t = *state;
    begin(t);
    assert_int_equal(step(t, HPS_STEP_BEGIN), HPS_OUTCOME_OVER);
    assert_int_equal(step(t, HPS_STEP_MEMORY), HPS_OUTCOME_OPEN);
    assert_int_equal(step(t, HPS_STEP_STORES), HPS_OUTCOME_WHOLE);
    check_rows(t);
}

static void test_step_when_the_lookup_does_not_wait_for_stores_then_default_rows(void **state)
{
    struct step_test *t = *state;
    t->lookup.miss_policy = HPS_MISS_WAIT;
    t->lookup.wait_us_max = 1000 * 1000;
    begin(t);
    assert_int_equal(step(t, HPS_STEP_MEMORY), HPS_OUTCOME_OPEN);
    assert_int_equal(step(t, HPS_STEP_DEFAULTS), HPS_OUTCOME_WHOLE);
    assert_int_equal(t->part.n_defaulted, KEYS - 1);
    assert_int_equal(hps_fake_calls(t->fx.stores[FIXTURE_DISK], HPS_FAKE_GET), 0);
}

static void test_step_when_a_store_fails_then_its_error(void **state)
{
    struct step_test *t = *state;
    begin(t);
    assert_int_equal(step(t, HPS_STEP_MEMORY), HPS_OUTCOME_OPEN);
    hps_fake_fail(t->fx.stores[FIXTURE_DISK], HPS_FAKE_GET, HPS_IO, 0, 1, 0);
    assert_int_equal(step(t, HPS_STEP_STORES), HPS_OUTCOME_ERROR);
    assert_int_equal(t->err.status, HPS_IO);
}

static void test_step_when_updates_come_then_torn_and_read_again(void **state)
{
    struct step_test *t = *state;
    t->lookup.unit = true;
    begin(t);
    assert_int_equal(step(t, HPS_STEP_MEMORY), HPS_OUTCOME_OPEN);
    t->n_updates = 1;
    assert_int_equal(step(t, HPS_STEP_STORES), HPS_OUTCOME_TORN);
    t->n_updates = 100; /* more updates than reads */
    assert_int_equal(step(t, HPS_STEP_REREAD), HPS_OUTCOME_TORN);
    assert_int_equal(t->err.status, HPS_ABORTED);
    assert_in_range(t->n_updates, 1, 100 - HPS_LOOKUP_REREADS_MAX);
    t->n_updates = 0;
    assert_int_equal(step(t, HPS_STEP_REREAD), HPS_OUTCOME_WHOLE);
    check_rows(t);
}

static void test_step_when_a_row_is_ahead_then_a_unit_waits_and_a_row_fails(void **state)
{
    struct step_test *t = *state;
    for (unsigned unit = 0; unit < 2; unit++) {
        t->lookup.unit = unit != 0;
        begin(t);
        assert_int_equal(step(t, HPS_STEP_MEMORY), HPS_OUTCOME_OPEN);
        hps_fake_fail(t->fx.stores[FIXTURE_DISK], HPS_FAKE_GET, HPS_ABORTED, 0, 1, 0);
        enum hps_outcome outcome = step(t, HPS_STEP_STORES);
        assert_int_equal(outcome, unit != 0 ? HPS_OUTCOME_AHEAD : HPS_OUTCOME_ERROR);
    }
    assert_int_equal(step(t, HPS_STEP_BEGIN), HPS_OUTCOME_OVER);
    assert_false(t->lookup.ahead);
}

static void test_step_when_an_update_may_have_added_an_absent_key_then_overtaken(void **state)
{
    struct step_test *t = *state;
    t->lookup.unit = true;
    t->lookup.unknown_policy = HPS_UNKNOWN_ERROR;
    begin(t);
    assert_int_equal(step(t, HPS_STEP_MEMORY), HPS_OUTCOME_OPEN);
    t->n_updates = 1;
    assert_int_equal(step(t, HPS_STEP_STORES), HPS_OUTCOME_OVERTAKEN);
    assert_int_equal(step(t, HPS_STEP_BEGIN), HPS_OUTCOME_OVER);
    assert_int_equal(step(t, HPS_STEP_MEMORY), HPS_OUTCOME_OPEN);
    assert_int_equal(step(t, HPS_STEP_STORES), HPS_OUTCOME_ERROR);
    assert_int_equal(t->err.status, HPS_NOT_FOUND);
}

static void test_step_when_driven_by_the_state_machine_then_it_ends_with_rows(void **state)
{
    struct step_test *t = *state;
    begin(t);
    run(t);
    assert_int_equal(t->lookup_state.step, HPS_STEP_DONE);
    check_rows(t);

    const struct hps_call call = {0};
    struct hps_space *host = t->fx.version.tiers[FIXTURE_HOST];
    assert_int_equal(host->store->ops->erase(host, &call, &t->fx.tables[0], &t->keys[1], 1),
                     HPS_OK);
    t->lookup.unit = true;
    begin(t);
    t->n_updates = 3;
    run(t);
    assert_int_equal(t->lookup_state.step, HPS_STEP_DONE);
    assert_int_equal(t->n_updates, 0);
    assert_true(t->lookup.n_reread > 0);
    check_rows(t);
}

int main(void)
{
#define STEP_TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
    const struct CMUnitTest tests[] = {
        STEP_TEST(test_step_when_memory_misses_then_open_and_the_stores_complete_it),
        STEP_TEST(test_step_when_the_lookup_does_not_wait_for_stores_then_default_rows),
        STEP_TEST(test_step_when_a_store_fails_then_its_error),
        STEP_TEST(test_step_when_updates_come_then_torn_and_read_again),
        STEP_TEST(test_step_when_a_row_is_ahead_then_a_unit_waits_and_a_row_fails),
        STEP_TEST(test_step_when_an_update_may_have_added_an_absent_key_then_overtaken),
        STEP_TEST(test_step_when_driven_by_the_state_machine_then_it_ends_with_rows),
    };
    return cmocka_run_group_tests_name("lookup_step", tests, NULL, NULL);
}
