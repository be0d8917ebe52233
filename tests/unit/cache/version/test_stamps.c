/* SPDX-License-Identifier: Apache-2.0
 *
 * Stamps: which rows that were read below may still be used.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cache/version/stamps.h"

static int setup(void **state)
{
    *state = hps_stamps_new();
    return *state == NULL ? -1 : 0;
}

static int teardown(void **state)
{
    hps_stamps_free(*state);
    return 0;
}

static void update(struct hps_stamps *stamps, uint32_t table_id, hps_key key)
{
    hps_stamps_begin(stamps);
    hps_stamps_mark(stamps, table_id, &key, 1);
    hps_stamps_end(stamps);
}

static void test_row_when_never_updated_then_may_be_used(void **state)
{
    uint64_t since = hps_stamps_now(*state);
    assert_true(hps_stamp_unchanged(*state, 0, 0, since));
    assert_true(hps_stamp_unchanged(*state, UINT32_MAX, UINT64_MAX, since));
}

static void test_row_when_updated_since_it_was_read_then_is_refused(void **state)
{
    uint64_t since = hps_stamps_now(*state);
    update(*state, 1, 42);
    assert_false(hps_stamp_unchanged(*state, 1, 42, since));
    assert_true(hps_stamp_unchanged(*state, 0, 42, since)); /* another table */
    assert_true(hps_stamp_unchanged(*state, 1, 43, since)); /* another key */
}

static void test_row_when_read_after_its_update_then_may_be_used(void **state)
{
    update(*state, 1, 42);
    assert_true(hps_stamp_unchanged(*state, 1, 42, hps_stamps_now(*state)));
}

static void test_row_when_read_while_its_batch_is_applied_then_is_refused(void **state)
{
    hps_key key = 42;
    hps_stamps_begin(*state);
    uint64_t before_mark = hps_stamps_now(*state);
    hps_stamps_mark(*state, 1, &key, 1);
    uint64_t since = hps_stamps_now(*state);
    assert_int_equal(since % 2, 1);
    assert_false(hps_stamp_unchanged(*state, 1, key, since));
    hps_stamps_end(*state);
    assert_int_equal(hps_stamps_now(*state) % 2, 0);
    assert_false(hps_stamp_unchanged(*state, 1, key, since));
    assert_false(hps_stamp_unchanged(*state, 1, key, before_mark));
    assert_true(hps_stamp_unchanged(*state, 1, key, hps_stamps_now(*state)));
}

static void test_row_when_its_batch_failed_half_way_then_is_refused_until_one_ends(void **state)
{
    hps_key keys[2] = {42, 43};
    hps_stamps_begin(*state);
    hps_stamps_mark(*state, 1, &keys[0], 1);
    uint64_t failed = hps_stamps_now(*state);
    hps_stamps_begin(*state); /* again, or another one */
    uint64_t since = hps_stamps_now(*state);
    assert_false(hps_stamp_unchanged(*state, 1, 42, since));
    hps_stamps_mark(*state, 1, &keys[1], 1);
    assert_false(hps_stamp_unchanged(*state, 1, 43, failed));
    hps_stamps_end(*state);
    assert_false(hps_stamp_unchanged(*state, 1, 42, since));
    assert_true(hps_stamp_unchanged(*state, 1, 42, hps_stamps_now(*state)));
}

static void test_row_when_other_batches_pass_then_may_still_be_used(void **state)
{
    update(*state, 1, 42);
    uint64_t since = hps_stamps_now(*state);
    for (hps_key key = 0; key < 40; key++) {
        update(*state, 1, key);
    }
    assert_true(hps_stamp_unchanged(*state, 1, 42, since));
}

static void test_guard_when_one_key_was_updated_then_refuses_that_one(void **state)
{
    const hps_key keys[3] = {7, 8, 9};
    struct hps_stamp_guard guard = {
        .stamps = *state, .keys = keys, .table_id = 2, .since = hps_stamps_now(*state)};
    update(*state, 2, 8);
    assert_true(hps_stamp_guard_fresh(&guard, 0));
    assert_false(hps_stamp_guard_fresh(&guard, 1));
    assert_true(hps_stamp_guard_fresh(&guard, 2));
}

static void test_stamps_when_version_is_never_updated_then_all_is_fresh(void **state)
{
    (void)state;
    assert_true(hps_stamp_unchanged(NULL, 0, 5, hps_stamps_now(NULL)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(test_row_when_never_updated_then_may_be_used),
        TEST(test_row_when_updated_since_it_was_read_then_is_refused),
        TEST(test_row_when_read_after_its_update_then_may_be_used),
        TEST(test_row_when_read_while_its_batch_is_applied_then_is_refused),
        TEST(test_row_when_its_batch_failed_half_way_then_is_refused_until_one_ends),
        TEST(test_row_when_other_batches_pass_then_may_still_be_used),
        TEST(test_guard_when_one_key_was_updated_then_refuses_that_one),
        TEST(test_stamps_when_version_is_never_updated_then_all_is_fresh),
#undef TEST
    };
    return cmocka_run_group_tests_name("stamps", tests, NULL, NULL);
}
