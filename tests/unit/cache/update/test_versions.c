/* SPDX-License-Identifier: Apache-2.0
 *
 * Row versions: after writes and deletes in any order, every tier has the highest version.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/lib/update_fixture.h"

enum { N_WRITES = 4, KEY = 1 };

/* Version i + 1 of the key has values[i]; 0 deletes the key. */
struct history {
    float values[N_WRITES];
    float last; /* -1: no row */
};

static int setup(void **state)
{
    struct update_fixture *fx = hps_calloc(1, sizeof(*fx));
    assert_non_null(fx);
    fx->row_versions = true;
    fixture_stores(fx);
    fixture_version(fx, 7, "run");
    hps_version_pin(fx->version);
    *state = fx;
    return 0;
}

/* A part of the items table that writes one key. */
struct write {
    hps_key key;
    float row[FIXTURE_DIM];
    uint64_t row_version;
    struct hps_update_part part;
};

static void make(struct write *write, hps_key key, uint64_t row_version, float value)
{
    *write = (struct write){.key = key, .row = {value, value}, .row_version = row_version};
    write->part = (struct hps_update_part){.table_id = FIXTURE_ITEMS,
                                           .row_bytes = sizeof(write->row),
                                           .n = 1,
                                           .keys = &write->key,
                                           .rows = value == 0 ? NULL : (const uint8_t *)write->row,
                                           .row_versions = &write->row_version};
}

static hps_status apply(struct update_fixture *fx, const struct hps_update_part *parts, uint32_t n)
{
    struct hps_error err;
    const struct hps_update_batch batch = {.parts = parts, .n_parts = n};
    return hps_update_apply(fx->version, &batch, &err);
}

static void apply_one(struct update_fixture *fx, hps_key key, uint64_t row_version, float value)
{
    struct write write;
    make(&write, key, row_version, value);
    assert_int_equal(apply(fx, &write.part, 1), HPS_OK);
}

/* The permutation of the writes 0 … N_WRITES - 1 with this number. */
static void permute(unsigned order, unsigned *out)
{
    unsigned left[N_WRITES];
    for (unsigned i = 0; i < N_WRITES; i++) {
        left[i] = i;
    }
    for (unsigned i = 0, n = N_WRITES; i < N_WRITES; i++, n--) {
        unsigned at = order % n;
        order /= n;
        out[i] = left[at];
        left[at] = left[n - 1];
    }
}

static void test_writes_when_in_any_order_then_the_highest_version_stays(void **state)
{
    struct update_fixture *fx = *state;
    static const struct history histories[2] = {{{10, 0, 30, 40}, 40}, {{10, 20, 30, 0}, -1}};
    hps_key key = 100;
    for (unsigned h = 0; h < 2; h++) {
        for (unsigned order = 0; order < 24; order++) {
            for (unsigned together = 0; together <= N_WRITES; together += 2, key++) {
                unsigned at[N_WRITES];
                struct write writes[N_WRITES];
                struct hps_update_part parts[N_WRITES];
                permute(order, at);
                for (unsigned i = 0; i < N_WRITES; i++) {
                    make(&writes[i], key, at[i] + 1, histories[h].values[at[i]]);
                    parts[i] = writes[i].part;
                }
                unsigned n = together == 0 ? 1 : together; /* writes per batch */
                for (unsigned i = 0; i < N_WRITES; i += n) {
                    assert_int_equal(apply(fx, parts + i, n), HPS_OK);
                }
                assert_true(fixture_value(fx, FIXTURE_ITEMS, key) == histories[h].last);
            }
        }
    }
}

static void test_delete_when_the_key_never_existed_then_older_writes_are_left_out(void **state)
{
    struct update_fixture *fx = *state;
    apply_one(fx, KEY, 5, 0);
    apply_one(fx, KEY, 4, 40);
    assert_true(fixture_value(fx, FIXTURE_ITEMS, KEY) == -1);
    apply_one(fx, KEY, UINT64_MAX, 60);
    assert_true(fixture_value(fx, FIXTURE_ITEMS, KEY) == 60);
    apply_one(fx, KEY, UINT64_MAX - 1, 0);
    assert_true(fixture_value(fx, FIXTURE_ITEMS, KEY) == 60);
    assert_int_equal(hps_update_sequence(fx->version), 4); /* batches without a write count, too */
}

static void test_part_when_some_keys_are_older_then_only_newer_ones_are_written(void **state)
{
    struct update_fixture *fx = *state;
    const hps_key keys[4] = {1, 2, 3, 2};
    const float rows[4][FIXTURE_DIM] = {{11, 11}, {12, 12}, {13, 13}, {14, 14}};
    const uint64_t row_versions[4] = {5, 9, 5, 8};
    const struct hps_update_part part = {.table_id = FIXTURE_ITEMS,
                                         .row_bytes = sizeof(rows[0]),
                                         .n = 4,
                                         .keys = keys,
                                         .rows = (const uint8_t *)rows,
                                         .row_versions = row_versions};
    apply_one(fx, 1, 6, 60);
    assert_int_equal(apply(fx, &part, 1), HPS_OK);
    assert_true(fixture_value(fx, FIXTURE_ITEMS, 1) == 60);
    assert_true(fixture_value(fx, FIXTURE_ITEMS, 2) == 12);
    assert_true(fixture_value(fx, FIXTURE_ITEMS, 3) == 13);
    apply_one(fx, 3, 4, 99); /* keys of one batch have their own versions */
    apply_one(fx, 2, 9, 22);
    assert_true(fixture_value(fx, FIXTURE_ITEMS, 3) == 13);
    assert_true(fixture_value(fx, FIXTURE_ITEMS, 2) == 22);
    assert_true(fixture_value(fx, FIXTURE_USERS, 3) == -1);
}

static void test_batch_when_it_failed_half_way_then_a_retry_completes_it(void **state)
{
    struct update_fixture *fx = *state;
    struct write write;
    apply_one(fx, KEY, 1, 10);
    make(&write, KEY, 2, 20);
    hps_fake_fail(fx->host, HPS_FAKE_PUT, HPS_IO, 0, 1, 0);
    hps_fake_fail(fx->host, HPS_FAKE_ERASE, HPS_IO, 0, 1, 0);
    assert_int_not_equal(apply(fx, &write.part, 1), HPS_OK);
    assert_true(fixture_tier_value(fx, 1, FIXTURE_ITEMS, KEY) == 20);
    assert_true(fixture_tier_value(fx, 0, FIXTURE_ITEMS, KEY) == 10);
    assert_int_equal(apply(fx, &write.part, 1), HPS_OK);
    assert_true(fixture_value(fx, FIXTURE_ITEMS, KEY) == 20);
}

static void test_batch_when_versions_cannot_be_read_then_no_write_is_applied(void **state)
{
    struct update_fixture *fx = *state;
    struct write write;
    apply_one(fx, KEY, 1, 10);
    make(&write, KEY, 2, 20);
    hps_fake_fail(fx->disk, HPS_FAKE_GET, HPS_IO, 0, 1, 0);
    assert_int_equal(apply(fx, &write.part, 1), HPS_IO);
    assert_true(fixture_value(fx, FIXTURE_ITEMS, KEY) == 10);
    assert_int_equal(hps_stamps_now(fx->version->stamps) % 2, 0);
}

static void test_versions_when_opened_again_then_still_compared(void **state)
{
    struct update_fixture *fx = *state;
    apply_one(fx, 1, 5, 50);
    apply_one(fx, 2, 5, 0);
    hps_version_unpin(fx->version);
    fixture_version_close(fx);
    fixture_version(fx, 7, "run");
    hps_version_pin(fx->version);
    apply_one(fx, 1, 4, 40);
    apply_one(fx, 2, 4, 40);
    assert_true(fixture_tier_value(fx, 1, FIXTURE_ITEMS, 1) == 50);
    assert_true(fixture_value(fx, FIXTURE_ITEMS, 2) == -1);
}

static void test_part_when_it_has_no_versions_then_refused(void **state)
{
    struct update_fixture *fx = *state;
    struct write write;
    make(&write, KEY, 1, 10);
    write.part.row_versions = NULL;
    assert_int_equal(apply(fx, &write.part, 1), HPS_INVALID);
}

static void test_open_when_no_store_is_durable_then_precondition(void **state)
{
    struct update_fixture *fx = *state;
    struct hps_version *version = hps_version_new("m", 8, 1);
    struct hps_error err;
    assert_non_null(version);
    version->tiers[0] = fx->version->tiers[0];
    version->n_tiers = 1;
    version->row_versions = true;
    assert_int_equal(hps_update_open(version, &err), HPS_PRECONDITION);
    assert_non_null(strstr(err.text, "row_versions"));
    hps_version_free(version);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_writes_when_in_any_order_then_the_highest_version_stays),
        TEST(test_delete_when_the_key_never_existed_then_older_writes_are_left_out),
        TEST(test_part_when_some_keys_are_older_then_only_newer_ones_are_written),
        TEST(test_batch_when_it_failed_half_way_then_a_retry_completes_it),
        TEST(test_batch_when_versions_cannot_be_read_then_no_write_is_applied),
        TEST(test_versions_when_opened_again_then_still_compared),
        TEST(test_part_when_it_has_no_versions_then_refused),
        TEST(test_open_when_no_store_is_durable_then_precondition),
    };
    return cmocka_run_group_tests_name("update_versions", tests, NULL, NULL);
}
