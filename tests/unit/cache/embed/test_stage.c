/* SPDX-License-Identifier: Apache-2.0
 *
 * Changes: rejected keys, repeated keys, and full rings and slices.
 */
#include "tests/lib/embed_fixture.h"

#include "base/heap.h"

enum { ROW_BYTES = 1024 };

static int setup(void **state)
{
    static struct embed_fixture fixture;
    fixture_open(&fixture, 0, NULL);
    *state = &fixture;
    return 0;
}

static int teardown(void **state)
{
    fixture_close(*state);
    return 0;
}

static bool even_is_fresh(const void *ctx, uint32_t i)
{
    (void)ctx;
    return i % 2 == 0;
}

/* Rows of the keys with version 1. */
static void make_rows(const struct embed_table *table, uint8_t *rows, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        embed_row(table, table->keys[i], 1, rows + (size_t)i * table->row_bytes);
    }
}

static void test_insertion_when_guard_refuses_keys_then_only_other_keys_are_inserted(void **state)
{
    struct embed_fixture *f = *state;
    struct hps_insert_guard guard = {even_is_fresh, NULL};
    struct hps_embed_range_usage usage;
    struct embed_table table;
    uint8_t rows[20 * 64];
    uint32_t n_taken;

    embed_table_open(&f->rig, &table, 64, 100, 20, 0);
    make_rows(&table, rows, 20);
    assert_int_equal(hps_embed_stage(f->rig.cache, table.range, HPS_EMBED_INSERT, table.keys, rows,
                                     20, &guard, &n_taken),
                     HPS_OK);
    assert_int_equal(n_taken, 20);
    for (uint32_t i = 0; i < 20; i += 2) {
        table.versions[i] = 1;
    }
    embed_lookup_all(&f->rig, &table);
    embed_expect_counts(&f->rig, &table);
    hps_embed_range_usage(table.range, &usage);
    assert_int_equal(usage.n_stale, 10);
    /* an update does not use the guard */
    assert_int_equal(hps_embed_stage(f->rig.cache, table.range, HPS_EMBED_UPDATE, table.keys, rows,
                                     20, &guard, &n_taken),
                     HPS_OK);
    hps_embed_range_usage(table.range, &usage);
    assert_int_equal(usage.n_stale, 10);
    embed_table_close(&table);
}

static void test_stage_when_keys_repeat_then_the_last_row_counts(void **state)
{
    struct embed_fixture *f = *state;
    struct embed_table table;
    uint32_t indices[256];

    embed_table_open(&f->rig, &table, 64, 100, 7, 0);
    for (uint32_t op = 0; op < 4; op++) {
        for (uint32_t i = 0; i < 256; i++) {
            indices[i] = embed_random(&f->rig, 7);
        }
        embed_change(&f->rig, &table, op % 2 == 0 ? HPS_EMBED_INSERT : HPS_EMBED_UPDATE, indices,
                     256);
        embed_lookup_all(&f->rig, &table);
        if (op == 1) {
            embed_change(&f->rig, &table, HPS_EMBED_ERASE, indices, 256);
        }
    }
    embed_expect_counts(&f->rig, &table);
    embed_table_close(&table);
}

/* While the device is held, rows fill the staging ring: the first call takes some rows, the next
 * call takes none. After the device continues, a call takes the rest. */
static void test_stage_when_full_then_takes_the_first_rows_and_later_the_rest(void **state)
{
    struct embed_fixture *f = *state;
    struct embed_table table;
    uint32_t n_taken, n = 400; /* 256 of them fit */

    embed_table_open(&f->rig, &table, ROW_BYTES, 1000, n, 0);
    uint8_t *rows = hps_alloc((size_t)n * ROW_BYTES);
    make_rows(&table, rows, n);
    hps_device_sim_hold(f->device, true);
    assert_int_equal(hps_embed_stage(f->rig.cache, table.range, HPS_EMBED_INSERT, table.keys, rows,
                                     n, NULL, &n_taken),
                     HPS_OK);
    assert_int_equal(n_taken, 256);
    hps_embed_advance(f->rig.cache);
    uint32_t n_more;
    assert_int_equal(hps_embed_stage(f->rig.cache, table.range, HPS_EMBED_INSERT,
                                     table.keys + n_taken, rows + (size_t)n_taken * ROW_BYTES,
                                     n - n_taken, NULL, &n_more),
                     HPS_AGAIN);
    assert_false(hps_embed_idle(f->rig.cache));
    hps_device_sim_hold(f->device, false);
    embed_drain(&f->rig);
    assert_int_equal(hps_embed_stage(f->rig.cache, table.range, HPS_EMBED_INSERT,
                                     table.keys + n_taken, rows + (size_t)n_taken * ROW_BYTES,
                                     n - n_taken, NULL, &n_more),
                     HPS_OK);
    assert_int_equal(n_more, n - n_taken);
    for (uint32_t i = 0; i < n; i++) {
        table.versions[i] = 1;
    }
    embed_lookup_all(&f->rig, &table);
    embed_expect_counts(&f->rig, &table);
    hps_free(rows);
    embed_table_close(&table);
}

/* Erasures need no space for rows, but each advance begins a slice, and slices are few. */
static void test_stage_when_all_slices_are_in_flight_then_again(void **state)
{
    struct embed_fixture *f = *state;
    struct embed_table table;
    uint32_t n_taken, n_slices = 0;

    embed_table_open(&f->rig, &table, 64, 100, 20, 0);
    hps_device_sim_hold(f->device, true);
    while (hps_embed_stage(f->rig.cache, table.range, HPS_EMBED_ERASE, table.keys, NULL, 20, NULL,
                           &n_taken) == HPS_OK) {
        hps_embed_advance(f->rig.cache);
        n_slices++;
    }
    assert_int_equal(n_slices, HPS_EMBED_SLICES);
    hps_device_sim_hold(f->device, false);
    embed_drain(&f->rig);
    assert_int_equal(hps_embed_stage(f->rig.cache, table.range, HPS_EMBED_ERASE, table.keys, NULL,
                                     20, NULL, &n_taken),
                     HPS_OK);
    embed_table_close(&table);
}

/* More ranges and more changes than one slice holds. */
static void test_stage_when_a_slice_is_full_then_continues_in_the_next(void **state)
{
    enum { N_TABLES = HPS_EMBED_SLICE_RANGES + 3 };
    struct embed_fixture *f = *state;
    struct hps_embed_range **ranges = hps_calloc(N_TABLES, sizeof(struct hps_embed_range *));
    const struct hps_embed_range_config config = {4, 1, 4096};
    struct hps_embed_range_usage usage;
    uint8_t row[4] = {1, 2, 3, 4};
    hps_key key = 5;
    uint32_t n_taken;

    for (uint32_t i = 0; i < N_TABLES; i++) {
        assert_int_equal(hps_embed_range_new(f->rig.cache, &config, &ranges[i], &f->err), HPS_OK);
        assert_int_equal(hps_embed_stage(f->rig.cache, ranges[i], HPS_EMBED_INSERT, &key, row, 1,
                                         NULL, &n_taken),
                         HPS_OK);
    }
    embed_drain(&f->rig);
    for (uint32_t i = 0; i < N_TABLES; i++) {
        hps_embed_range_usage(ranges[i], &usage);
        assert_int_equal(usage.n_rows, 1);
        hps_embed_range_free(ranges[i]);
    }
    hps_free(ranges);
}

static void test_stage_when_range_is_retired_then_takes_and_ignores_all(void **state)
{
    struct embed_fixture *f = *state;
    struct embed_table table;
    uint8_t rows[20 * 64];
    uint32_t n_taken;

    embed_table_open(&f->rig, &table, 64, 100, 20, 0);
    make_rows(&table, rows, 20);
    hps_embed_range_retire(table.range);
    assert_int_equal(hps_embed_stage(f->rig.cache, table.range, HPS_EMBED_INSERT, table.keys, rows,
                                     20, NULL, &n_taken),
                     HPS_OK);
    assert_int_equal(n_taken, 20);
    assert_true(hps_embed_idle(f->rig.cache));
    embed_table_close(&table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(test_insertion_when_guard_refuses_keys_then_only_other_keys_are_inserted),
        TEST(test_stage_when_keys_repeat_then_the_last_row_counts),
        TEST(test_stage_when_full_then_takes_the_first_rows_and_later_the_rest),
        TEST(test_stage_when_all_slices_are_in_flight_then_again),
        TEST(test_stage_when_a_slice_is_full_then_continues_in_the_next),
        TEST(test_stage_when_range_is_retired_then_takes_and_ignores_all),
#undef TEST
    };
    return cmocka_run_group_tests_name("embed_stage", tests, NULL, NULL);
}
