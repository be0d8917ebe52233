/* SPDX-License-Identifier: Apache-2.0
 *
 * Row counts of a version with a real RocksDB, which cannot count rows, and in memory only.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <string.h>
#include <cmocka.h>

#include "backends/host/map.h"
#include "backends/rocksdb/rocksdb.h"
#include "base/heap.h"
#include "base/log.h"
#include "cache/update/update.h"
#include "tests/lib/tmpdir.h"

enum { DIM = 4, TABLES = 2, ROWS = 15000, BATCH = 500, PIECE = 50 };

static const struct hps_call no_limit = {0};

struct rig {
    struct hps_tmpdir dir;
    struct hps_store *store;
    struct hps_version *version;
};

static void open_version(struct rig *rig)
{
    static const char *const names[TABLES] = {"items", "users"};
    struct hps_error err = {0};
    struct hps_version *version = hps_version_new("m", 1, TABLES);
    for (uint32_t i = 0; i < TABLES; i++) {
        version->tables[i] = (struct hps_table){.name = hps_strdup(names[i]),
                                                .id = i,
                                                .dim = DIM,
                                                .n_rows = ROWS,
                                                .dtype = HPS_DTYPE_FP32,
                                                .row_bytes = DIM * sizeof(float)};
    }
    const struct hps_space_id id = {"m", 1, version->tables, TABLES, 0};
    assert_int_equal(rig->store->ops->space_open(rig->store, &id, &version->tiers[0], &err),
                     HPS_OK);
    version->n_tiers = 1;
    assert_int_equal(hps_update_open(version, &err), HPS_OK);
    hps_version_pin(version);
    rig->version = version;
}

static void close_version(struct rig *rig)
{
    hps_version_unpin(rig->version);
    rig->store->ops->space_close(rig->version->tiers[0]);
    hps_version_free(rig->version);
}

/* Put the rows that a load would have stored. */
static void put_rows(struct rig *rig)
{
    static float rows[BATCH][DIM];
    hps_key keys[BATCH];
    struct hps_space *space = rig->version->tiers[0];
    for (uint32_t t = 0; t < TABLES; t++) {
        for (hps_key key = 0; key < ROWS;) {
            for (uint32_t i = 0; i < BATCH; i++) {
                keys[i] = key++;
            }
            assert_int_equal(space->store->ops->put(space, &no_limit, &rig->version->tables[t],
                                                    keys, (const uint8_t *)rows, BATCH),
                             HPS_OK);
        }
    }
}

static void open_store(struct rig *rig)
{
    const struct hps_rocksdb_options options = {.path = rig->dir.path,
                                                .n_threads = 2,
                                                .batch_keys_max = 1024,
                                                .disk_free_min_bytes = 1 << 20,
                                                .block_cache_bytes = 1 << 20};
    struct hps_error err = {0};
    if (hps_rocksdb_open(&options, &rig->store, &err) != HPS_OK) {
        fail_msg("%s", err.text);
    }
}

static int setup(void **state)
{
    struct rig *rig = hps_calloc(1, sizeof(*rig));
    hps_log_level_set(HPS_LOG_ERROR);
    hps_tmpdir_open(&rig->dir);
    open_store(rig);
    open_version(rig);
    put_rows(rig);
    *state = rig;
    return 0;
}

static int setup_memory(void **state)
{
    struct rig *rig = hps_calloc(1, sizeof(*rig));
    struct hps_error err = {0};
    hps_tmpdir_open(&rig->dir);
    assert_int_equal(hps_host_map_open(64 << 20, &rig->store, &err), HPS_OK);
    open_version(rig);
    put_rows(rig);
    *state = rig;
    return 0;
}

static int teardown(void **state)
{
    struct rig *rig = *state;
    close_version(rig);
    rig->store->ops->close(rig->store);
    hps_tmpdir_close(&rig->dir);
    hps_free(rig);
    return 0;
}

/* Open the store and the version again, like a restart. */
static void reopen(struct rig *rig)
{
    close_version(rig);
    rig->store->ops->close(rig->store);
    open_store(rig);
    open_version(rig);
}

/* Apply a batch of these keys to a table: rows, or deletes. */
static void apply(struct rig *rig, uint32_t table, const hps_key *keys, uint32_t n, bool deletes)
{
    static float rows[BATCH][DIM];
    const struct hps_update_part part = {.table_id = table,
                                         .row_bytes = deletes ? 0 : sizeof(rows[0]),
                                         .n = n,
                                         .keys = keys,
                                         .rows = deletes ? NULL : (const uint8_t *)rows};
    const struct hps_record position = {"at", 2, "here", 4};
    const struct hps_update_batch batch = {
        .parts = &part, .n_parts = n > 0 ? 1 : 0, .positions = &position, .n_positions = 1};
    struct hps_error err = {0};
    if (hps_update_apply(rig->version, &batch, &err) != HPS_OK) {
        fail_msg("%s", err.text);
    }
}

/* Batches of the keys from `first` to `end`, by `step`. */
static void apply_range(struct rig *rig, uint32_t table, hps_key first, hps_key end, hps_key step,
                        bool deletes)
{
    hps_key keys[BATCH];
    uint32_t n = 0;
    for (hps_key key = first; key < end; key += step) {
        keys[n++] = key;
        if (n == BATCH || key + step >= end) {
            apply(rig, table, keys, n, deletes);
            n = 0;
        }
    }
}

static uint64_t rows_of(const struct rig *rig, bool estimated)
{
    bool is_estimated = !estimated;
    uint64_t n = hps_update_rows(rig->version, &is_estimated);
    assert_int_equal(is_estimated, estimated);
    struct hps_store_usage usage;
    hps_update_usage(rig->version, rig->version->tiers[0], &usage);
    assert_int_equal(usage.n_rows, n);
    assert_int_equal(usage.rows_estimated, estimated);
    return n;
}

static uint64_t table_rows(const struct rig *rig, uint32_t table)
{
    bool estimated;
    return hps_update_table_rows(rig->version, table, &estimated);
}

static void test_rows_when_only_positions_were_stored_then_exact_also_after_a_restart(void **state)
{
    struct rig *rig = *state;
    assert_int_equal(rows_of(rig, false), TABLES * ROWS);
    apply(rig, 0, NULL, 0, false);
    assert_int_equal(hps_update_sequence(rig->version), 1);
    assert_int_equal(rows_of(rig, false), TABLES * ROWS);
    reopen(rig);
    assert_int_equal(hps_update_sequence(rig->version), 1);
    assert_int_equal(rows_of(rig, false), TABLES * ROWS);
}

static void test_rows_when_all_are_written_again_then_not_counted_twice(void **state)
{
    struct rig *rig = *state;
    apply_range(rig, 0, 0, ROWS, 1, false);
    assert_int_equal(rows_of(rig, true), TABLES * ROWS);
    apply_range(rig, 0, 0, ROWS, 1, false);
    assert_int_equal(rows_of(rig, true), TABLES * ROWS);
    reopen(rig);
    assert_int_equal(rows_of(rig, true), TABLES * ROWS);
}

static void test_rows_when_some_are_added_and_some_deleted_then_counted(void **state)
{
    struct rig *rig = *state;
    apply_range(rig, 0, ROWS, ROWS + 5000, 1, false);
    assert_int_equal(rows_of(rig, true), TABLES * ROWS + 5000);
    apply_range(rig, 1, 0, 2000, 1, true);
    apply_range(rig, 1, 1 << 20, (1 << 20) + 2000, 1, true); /* keys that do not exist */
    assert_int_equal(rows_of(rig, true), TABLES * ROWS + 3000);
    assert_int_equal(table_rows(rig, 0), ROWS + 5000);
    assert_int_equal(table_rows(rig, 1), ROWS - 2000);
    reopen(rig);
    assert_int_equal(table_rows(rig, 0), ROWS + 5000);
    assert_int_equal(table_rows(rig, 1), ROWS - 2000);
    apply_range(rig, 1, 0, 2000, 1, true); /* the same deletes again */
    assert_int_equal(table_rows(rig, 1), ROWS - 2000);
}

static void test_rows_when_batches_are_small_then_each_key_is_counted(void **state)
{
    struct rig *rig = *state;
    for (hps_key key = ROWS - 20; key < ROWS + 30; key++) {
        apply(rig, 0, &key, 1, false);
    }
    assert_int_equal(table_rows(rig, 0), ROWS + 30);
}

/* Half of each batch is new, in an order that is not in step with a sample. */
static void test_rows_when_batches_are_mixed_then_nearly_right(void **state)
{
    struct rig *rig = *state;
    apply_range(rig, 0, 0, 2 * ROWS, 2, false);
    uint64_t n = table_rows(rig, 0);
    assert_in_range(n, ROWS + ROWS / 2 - ROWS / 10, ROWS + ROWS / 2 + ROWS / 10);
    hps_key keys[BATCH];
    for (hps_key batch = 0; batch < 20; batch++) {
        for (uint32_t i = 0; i < BATCH; i++) {
            hps_key at = batch * BATCH + i;
            keys[i] = i % 2 == 0 ? at : at + (1 << 24);
        }
        apply(rig, 1, keys, BATCH, false);
    }
    n = table_rows(rig, 1);
    assert_in_range(n, ROWS + 5000 - 1000, ROWS + 5000 + 1000);
}

static void test_rows_when_an_earlier_hpsd_has_applied_updates_then_estimated(void **state)
{
    struct rig *rig = *state;
    uint64_t sequence = 7;
    struct hps_error err = {0};
    const struct hps_record record = {"update/sequence", 15, &sequence, sizeof(sequence)};
    struct hps_space *space = rig->version->tiers[0];
    assert_int_equal(space->store->ops->durable->apply(space, &no_limit, NULL, 0, &record, 1, &err),
                     HPS_OK);
    reopen(rig);
    assert_int_equal(rows_of(rig, true), TABLES * ROWS);
}

static void test_rows_when_their_record_is_damaged_then_data_loss(void **state)
{
    struct rig *rig = *state;
    struct hps_error err = {0};
    const struct hps_record record = {"update/rows/\1\0\0\0", 16, "short", 5};
    struct hps_space *space = rig->version->tiers[0];
    assert_int_equal(space->store->ops->durable->apply(space, &no_limit, NULL, 0, &record, 1, &err),
                     HPS_OK);
    hps_updates_free(rig->version->updates);
    hps_stamps_free(rig->version->stamps);
    rig->version->updates = NULL;
    rig->version->stamps = NULL;
    assert_int_equal(hps_update_open(rig->version, &err), HPS_DATA_LOSS);
    assert_non_null(strstr(err.text, "of table 1 has 5 bytes"));
}

static void test_rows_when_in_memory_only_then_exact(void **state)
{
    struct rig *rig = *state;
    hps_key keys[PIECE];
    apply_range(rig, 0, 0, 2 * ROWS, 2, false);
    assert_int_equal(rows_of(rig, false), TABLES * ROWS + ROWS / 2);
    assert_int_equal(table_rows(rig, 0), ROWS + ROWS / 2);
    for (uint32_t i = 0; i < PIECE; i++) {
        keys[i] = ROWS - PIECE / 2 + i;
    }
    apply(rig, 1, keys, PIECE, true);
    assert_int_equal(table_rows(rig, 1), ROWS - PIECE / 2);
    assert_int_equal(rows_of(rig, false), TABLES * ROWS + ROWS / 2 - PIECE / 2);
}

static void test_known_when_keys_repeat_then_each_has_a_result(void **state)
{
    const struct rig *rig = *state;
    static const hps_key keys[] = {5, ROWS + 5, 5, UINT64_MAX, 0};
    bool known[5];
    assert_int_equal(hps_update_known(rig->version, 1, keys, 5, known), HPS_OK);
    for (uint32_t i = 0; i < 5; i++) {
        assert_int_equal(known[i], keys[i] < ROWS);
    }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_rows_when_only_positions_were_stored_then_exact_also_after_a_restart),
        TEST(test_rows_when_all_are_written_again_then_not_counted_twice),
        TEST(test_rows_when_some_are_added_and_some_deleted_then_counted),
        TEST(test_rows_when_batches_are_small_then_each_key_is_counted),
        TEST(test_rows_when_batches_are_mixed_then_nearly_right),
        TEST(test_rows_when_an_earlier_hpsd_has_applied_updates_then_estimated),
        TEST(test_rows_when_their_record_is_damaged_then_data_loss),
        cmocka_unit_test_setup_teardown(test_rows_when_in_memory_only_then_exact, setup_memory,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_known_when_keys_repeat_then_each_has_a_result, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_known_when_keys_repeat_then_each_has_a_result,
                                        setup_memory, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
