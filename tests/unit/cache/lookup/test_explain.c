/* SPDX-License-Identifier: Apache-2.0
 *
 * One key, asked of every tier: stores that fail or are left alone, and a device with and without a
 * cache of the table.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cache/lookup/explain.h"
#include "tests/lib/gpu_fixture.h"

struct explain_test {
    struct fixture fx;
    struct gpu_fixture gpu;
    struct hps_arena *arena;
    struct hps_key_answer answers[HPS_TIERS_MAX];
    uint32_t n;
};

static int setup(void **state)
{
    static const bool cached[FIXTURE_TABLES] = {true, false, true};
    struct explain_test *t = hps_calloc(1, sizeof(*t));

    assert_non_null(t);
    fixture_open(&t->fx, 0);
    gpu_fixture_open(&t->gpu, &t->fx.version, cached);
    t->arena = hps_arena_new(1024, 1 << 16);
    assert_non_null(t->arena);
    *state = t;
    return 0;
}

static int teardown(void **state)
{
    struct explain_test *t = *state;

    gpu_fixture_close(&t->gpu);
    hps_arena_free(t->arena);
    fixture_close(&t->fx);
    hps_free(t);
    return 0;
}

static void ask(struct explain_test *t, uint32_t table, hps_key key)
{
    hps_status status = hps_explain_key(&t->fx.version, &t->fx.tables[table], key, t->gpu.blocks,
                                        t->arena, t->answers, &t->n);

    assert_int_equal(status, HPS_OK);
    assert_int_equal(t->n, 3);
    assert_int_equal(t->answers[0].tier, HPS_TIER_GPU);
    assert_int_equal(t->answers[1].tier, HPS_TIER_HOST);
    assert_int_equal(t->answers[2].tier, HPS_TIER_ROCKSDB);
}

static void test_explain_when_several_tiers_have_the_key_then_each_says_so(void **state)
{
    struct explain_test *t = *state;
    uint8_t row[FIXTURE_DIM_MAX * 4];

    fixture_row(&t->fx.tables[0], 5, row);
    gpu_fixture_put(&t->gpu, &t->fx.tables[0], 5, row);
    fixture_put(&t->fx, FIXTURE_DISK, 0, 5);
    ask(t, 0, 5);
    assert_true(t->answers[0].found);
    assert_false(t->answers[1].found);
    assert_true(t->answers[2].found);
    for (uint32_t i = 0; i < t->n; i++) {
        assert_null(t->answers[i].error);
    }
    assert_memory_equal(t->answers[0].row, row, t->fx.tables[0].row_bytes);
    assert_memory_equal(t->answers[2].row, row, t->fx.tables[0].row_bytes);
    assert_false(fixture_has(&t->fx, FIXTURE_HOST, 0, 5)); /* it was looked at, and no more */
}

static void test_explain_when_a_tier_cannot_answer_then_it_says_why_and_the_others_do(void **state)
{
    struct explain_test *t = *state;

    fixture_put(&t->fx, FIXTURE_HOST, 1, 5);
    hps_fake_fail(t->fx.stores[FIXTURE_DISK], HPS_FAKE_GET, HPS_UNAVAILABLE, 0, 1, 0);
    ask(t, 1, 5);
    assert_false(t->answers[0].found);
    assert_string_equal(t->answers[0].error, "the device has no cache for this table now");
    assert_true(t->answers[1].found);
    assert_null(t->answers[1].error);
    assert_false(t->answers[2].found);
    assert_string_equal(t->answers[2].error, hps_status_text(HPS_UNAVAILABLE));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(
            test_explain_when_several_tiers_have_the_key_then_each_says_so, setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_explain_when_a_tier_cannot_answer_then_it_says_why_and_the_others_do, setup,
            teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
