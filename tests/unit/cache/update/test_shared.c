/* SPDX-License-Identifier: Apache-2.0
 *
 * Batches of a version with a tier shared between daemons: the rows that the tier gets, and when
 * a batch counts as applied.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/lib/fake_shared.h"
#include "tests/lib/update_fixture.h"

enum { P = 7, TIER_SHARED = 1, TIER_DISK = 2 };

static int setup(void **state)
{
    struct update_fixture *fx = hps_calloc(1, sizeof(*fx));
    fixture_stores(fx);
    fx->shared = hps_fake_shared_new(false);
    assert_non_null(fx->shared);
    fixture_version(fx, 7, "run");
    hps_version_pin(fx->version);
    *state = fx;
    return 0;
}

static int setup_alone(void **state)
{
    struct update_fixture *fx = hps_calloc(1, sizeof(*fx));
    fixture_stores(fx);
    fx->disk->ops->close(fx->disk);
    fx->disk = NULL;
    fx->shared = hps_fake_shared_new(true);
    assert_non_null(fx->shared);
    fixture_version(fx, 7, "run");
    hps_version_pin(fx->version);
    *state = fx;
    return 0;
}

/* A batch [first, next) with the rows of keys 1 and 2, which are in different shards. */
struct two {
    hps_key keys[2];
    float rows[2][FIXTURE_DIM];
    uint64_t row_versions[2];
    struct hps_update_part part;
    struct hps_log_span span;
    uint32_t part_span;
    struct hps_update_batch batch;
};

static const struct hps_update_batch *two(struct two *two, int64_t first, int64_t next, float value)
{
    *two = (struct two){.keys = {1, 2},
                        .rows = {{value, value}, {value, value}},
                        .row_versions = {(uint64_t)next, (uint64_t)next},
                        .span = {.partition = P, .start = 0, .first = first, .next = next}};
    two->part = (struct hps_update_part){.table_id = FIXTURE_ITEMS,
                                         .row_bytes = sizeof(two->rows[0]),
                                         .n = 2,
                                         .keys = two->keys,
                                         .rows = (const uint8_t *)two->rows,
                                         .row_versions = two->row_versions};
    two->batch = (struct hps_update_batch){.parts = &two->part,
                                           .n_parts = 1,
                                           .spans = &two->span,
                                           .n_spans = 1,
                                           .part_spans = &two->part_span};
    return &two->batch;
}

static hps_status apply(struct update_fixture *fx, int64_t first, int64_t next, float value)
{
    struct two batch;
    struct hps_error err;
    return hps_update_apply(fx->version, two(&batch, first, next, value), &err);
}

static float value(struct update_fixture *fx, uint32_t tier, hps_key key)
{
    return fixture_tier_value(fx, tier, FIXTURE_ITEMS, key);
}

static void test_apply_when_no_other_daemon_was_first_then_every_tier_has_the_rows(void **state)
{
    struct update_fixture *fx = *state;
    struct hps_log_report report;
    assert_true(hps_update_shared(fx->version) == fx->version->tiers[TIER_SHARED]);
    assert_false(hps_update_shared_alone(fx->version));
    assert_int_equal(apply(fx, 0, 5, 10), HPS_OK);
    for (uint32_t tier = 0; tier <= TIER_DISK; tier++) {
        assert_true(value(fx, tier, 1) == 10 && value(fx, tier, 2) == 10);
    }
    hps_update_shared_take(fx->version, &report);
    assert_int_equal(report.n_applied, HPS_SHARED_SHARDS);
    hps_update_shared_take(fx->version, &report);
    assert_int_equal(report.n_applied, 0);
}

static void test_apply_when_another_daemon_is_ahead_then_its_rows_stay(void **state)
{
    struct update_fixture *fx = *state;
    assert_int_equal(apply(fx, 0, 5, 10), HPS_OK);
    hps_fake_shared_move(fx->shared, 0, P, 20);
    assert_int_equal(apply(fx, 5, 9, 11), HPS_OK);
    assert_true(value(fx, TIER_SHARED, 2) == 10); /* its row at offset 20 */
    assert_true(value(fx, TIER_SHARED, 1) == 11);
    assert_true(value(fx, TIER_DISK, 2) == 11);
}

static void test_apply_when_shards_are_behind_or_down_then_the_batch_counts_without_them(
    void **state)
{
    struct update_fixture *fx = *state;
    struct hps_log_report report;
    assert_int_equal(apply(fx, 0, 5, 10), HPS_OK);
    hps_fake_shared_move(fx->shared, 0, P, 3);
    hps_fake_shared_away(fx->shared, 1, true);
    assert_int_equal(apply(fx, 5, 9, 11), HPS_OK);
    assert_true(value(fx, 0, 1) == 11 && value(fx, TIER_DISK, 1) == 11);
    hps_fake_shared_away(fx->shared, 1, false);
    assert_true(value(fx, TIER_SHARED, 1) == -1); /* the old row is not used */
    assert_true(value(fx, TIER_SHARED, 2) == -1);
    hps_update_shared_take(fx->version, &report);
    assert_int_equal(report.n_gap, 1);
    assert_int_equal(report.n_failed, 1);
}

static void test_replay_when_shards_are_behind_then_only_they_take_it(void **state)
{
    struct update_fixture *fx = *state;
    struct hps_log_report report = {0};
    struct hps_error err;
    struct two batch;
    hps_fake_shared_away(fx->shared, 1, true);
    assert_int_equal(apply(fx, 0, 5, 10), HPS_OK);
    hps_fake_shared_away(fx->shared, 1, false);
    uint64_t before = hps_update_sequence(fx->version);
    assert_int_equal(hps_update_replay(fx->version, two(&batch, 0, 5, 10), &report, &err), HPS_OK);
    assert_int_equal(report.n_applied, 1);
    assert_int_equal(report.n_had, 1);
    assert_true(value(fx, TIER_SHARED, 1) == 10);
    assert_int_equal(hps_update_sequence(fx->version), before);
}

static void test_apply_when_apart_then_the_shared_tier_gets_no_batch(void **state)
{
    struct update_fixture *fx = *state;
    struct hps_error err;
    struct two batch;
    assert_int_equal(apply(fx, 0, 5, 10), HPS_OK);
    uint64_t n = hps_fake_shared_batches(fx->shared);
    two(&batch, 5, 9, 11);
    batch.batch.apart = true;
    assert_int_equal(hps_update_apply(fx->version, &batch.batch, &err), HPS_OK);
    assert_int_equal(hps_fake_shared_batches(fx->shared), n);
    assert_true(hps_fake_shared_left(fx->shared));
    assert_true(value(fx, TIER_SHARED, 1) == -1);
    assert_true(value(fx, TIER_DISK, 1) == 11);
}

static void test_apply_when_row_versions_are_compared_then_the_shared_tier_removes_keys(
    void **state)
{
    struct update_fixture *fx = *state;
    hps_version_unpin(fx->version);
    fixture_version_close(fx);
    fx->row_versions = true;
    fixture_version(fx, 8, "run");
    hps_version_pin(fx->version);
    assert_int_equal(apply(fx, 0, 5, 10), HPS_OK);
    assert_true(value(fx, TIER_DISK, 1) == 10);
    assert_true(value(fx, TIER_SHARED, 1) == -1);
    assert_int_equal(hps_fake_shared_at(fx->shared, 1, P), 5);
}

/* A shard that is behind in one partition may lack a higher version of a key. Its row may be
 * older than this write, so the key is removed. */
static void test_apply_when_a_higher_row_version_is_stored_then_the_key_is_still_removed(
    void **state)
{
    struct update_fixture *fx = *state;
    static const struct hps_call no_limit;
    const float old[FIXTURE_DIM] = {1, 1};
    const hps_key key = 1;
    hps_version_unpin(fx->version);
    fixture_version_close(fx);
    fx->row_versions = true;
    fixture_version(fx, 8, "run");
    hps_version_pin(fx->version);
    hps_fake_shared_away(fx->shared, 1, true); /* it misses this batch of the first partition */
    struct two batch;
    struct hps_error err;
    two(&batch, 0, 9, 10);
    assert_int_equal(hps_update_apply(fx->version, &batch.batch, &err), HPS_OK);
    hps_fake_shared_away(fx->shared, 1, false);
    const struct hps_table *table = &fx->version->tables[FIXTURE_ITEMS];
    struct hps_space *shared = fx->version->tiers[TIER_SHARED];
    assert_int_equal(
        shared->store->ops->put(shared, &no_limit, table, &key, (const uint8_t *)old, 1), HPS_OK);
    two(&batch, 0, 5, 11); /* an older row version, of another partition */
    batch.span.partition = P + 1;
    assert_int_equal(hps_update_apply(fx->version, &batch.batch, &err), HPS_OK);
    assert_true(value(fx, TIER_DISK, 1) == 10);
    assert_int_equal(hps_fake_shared_at(fx->shared, 1, P + 1), 5);
    hps_fake_shared_move(fx->shared, 1, P, 9); /* so that its rows may be read */
    assert_true(value(fx, TIER_SHARED, 1) == -1);
}

static void test_apply_when_it_is_the_only_copy_then_counts_once_all_shards_have_it(void **state)
{
    struct update_fixture *fx = *state;
    assert_true(hps_update_shared_alone(fx->version));
    assert_int_equal(apply(fx, 0, 5, 10), HPS_OK);
    assert_int_equal(hps_update_sequence(fx->version), 1);
    hps_fake_shared_away(fx->shared, 1, true);
    assert_int_equal(apply(fx, 5, 9, 11), HPS_UNAVAILABLE);
    assert_int_equal(hps_update_sequence(fx->version), 1);
    assert_true(value(fx, 0, 1) == 10);
    hps_fake_shared_away(fx->shared, 1, false);
    assert_int_equal(apply(fx, 5, 9, 11), HPS_OK);
    assert_int_equal(hps_update_sequence(fx->version), 2);
    assert_true(value(fx, TIER_SHARED, 1) == 11 && value(fx, TIER_SHARED, 2) == 11);
    assert_true(value(fx, 0, 1) == 11);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(
            test_apply_when_no_other_daemon_was_first_then_every_tier_has_the_rows, setup,
            fixture_teardown),
        cmocka_unit_test_setup_teardown(test_apply_when_another_daemon_is_ahead_then_its_rows_stay,
                                        setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(
            test_apply_when_shards_are_behind_or_down_then_the_batch_counts_without_them, setup,
            fixture_teardown),
        cmocka_unit_test_setup_teardown(test_replay_when_shards_are_behind_then_only_they_take_it,
                                        setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_apply_when_apart_then_the_shared_tier_gets_no_batch,
                                        setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(
            test_apply_when_row_versions_are_compared_then_the_shared_tier_removes_keys, setup,
            fixture_teardown),
        cmocka_unit_test_setup_teardown(
            test_apply_when_a_higher_row_version_is_stored_then_the_key_is_still_removed, setup,
            fixture_teardown),
        cmocka_unit_test_setup_teardown(
            test_apply_when_it_is_the_only_copy_then_counts_once_all_shards_have_it, setup_alone,
            fixture_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
