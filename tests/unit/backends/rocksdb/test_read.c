/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads: damage is data loss and never a wrong row, and large lookups that the readers share.
 */
#include "backends/rocksdb/internal.h"
#include "tests/unit/backends/rocksdb/rocksdb_test.h"

#include <pthread.h>

#include "base/heap.h"
#include "tests/lib/fault_heap.h"
#include "tests/lib/work.h"

/* ---- damage ---------------------------------------------------------------------------------- */

static hps_status count_rows(void *ctx, const hps_key *keys, const uint8_t *rows, uint32_t n)
{
    (void)keys;
    (void)rows;
    *(uint64_t *)ctx += n;
    return HPS_OK;
}

static void test_get_when_file_is_damaged_then_data_loss_and_never_a_wrong_row(void **state)
{
    (void)state;
    struct hps_store *store = open_store();
    struct hps_space *space = open_space(store);
    load(space, 5000);
    store->ops->space_close(space);
    store->ops->close(store);
    assert_int_equal(damage_files(), 1);
    store = open_store();
    space = open_space(store);
    unsigned n_lost = 0;
    for (hps_key key = 0; key < 5000; key += 5) {
        bool found = false;
        hps_status status = get(space, &table, key, &found); /* checks the row if found */
        assert_true(status == HPS_OK || status == HPS_DATA_LOSS);
        assert_true(found == (status == HPS_OK));
        n_lost += status == HPS_DATA_LOSS;
    }
    assert_true(n_lost > 100);
    assert_true(n_lost < 900);
    uint64_t n_rows = 0;
    assert_int_equal(store->ops->scan(space, &table, count_rows, &n_rows, &error), HPS_DATA_LOSS);
    assert_non_null(strstr(error.text, ".sst"));
    store->ops->space_close(space);
    store->ops->close(store);
}

static void test_get_when_row_has_a_wrong_size_then_data_loss(void **state)
{
    (void)state;
    struct hps_store *store = open_store();
    struct hps_space *space = open_space(store);
    load(space, 3);
    struct hps_table other = table;
    other.row_bytes = 5;
    hps_key key = 1;
    const uint8_t row[5] = {0};
    assert_int_equal(store->ops->put(space, &no_limit, &other, &key, row, 1), HPS_OK);
    bool found = true;
    assert_int_equal(get(space, &table, 1, &found), HPS_DATA_LOSS);
    assert_false(found);
    assert_true(has(space, 0));
    assert_true(has(space, 2));
    store->ops->space_close(space);
    store->ops->close(store);
}

/* ---- large lookups --------------------------------------------------------------------------- */

static hps_status get_parallel(struct hps_space *space, hps_key n, uint32_t *out_n_missing)
{
    hps_key *keys = hps_calloc(n, sizeof(*keys));
    uint32_t *slots = hps_calloc(n, sizeof(*slots));
    uint8_t *rows = hps_alloc(n * ROW_BYTES);
    uint8_t expected[ROW_BYTES];
    for (uint32_t i = 0; i < n; i++) {
        keys[i] = (hps_key)i * 4999 % n;
        slots[i] = i;
    }
    struct hps_batch batch = {.keys = keys, .slots = slots, .rows = rows, .n = (uint32_t)n};
    hps_status status = space->store->ops->get(space, &no_limit, &table, &batch);
    for (uint32_t i = batch.n; i < n; i++) {
        fill(expected, keys[i]);
        assert_memory_equal(rows + (size_t)slots[i] * ROW_BYTES, expected, ROW_BYTES);
    }
    *out_n_missing = batch.n;
    hps_free(rows);
    hps_free(slots);
    hps_free(keys);
    return status;
}

static void *get_again(void *ctx)
{
    enum { N_TIMES = HPS_TEST_WORK(5) > 0 ? HPS_TEST_WORK(5) : 1 };
    uint32_t n_missing = 1;
    for (unsigned i = 0; i < N_TIMES; i++) {
        assert_int_equal(get_parallel(ctx, 20000, &n_missing), HPS_OK);
        assert_int_equal(n_missing, 10000);
    }
    return NULL;
}

static void test_get_when_large_and_read_in_any_mode_then_every_row_is_right(void **state)
{
    (void)state;
    struct hps_store *store = open_store();
    struct hps_space *space = open_space(store);
    load(space, 10000);
    for (unsigned m = 0; m < sizeof(modes) / sizeof(modes[0]); m++) {
        store->ops->space_close(space);
        store->ops->close(store);
        assert_int_equal(open_mode(modes[m], &store), HPS_OK);
        space = open_space(store);
        pthread_t others[3]; /* more readers than the store has helpers */
        for (unsigned i = 0; i < 3; i++) {
            assert_int_equal(pthread_create(&others[i], NULL, get_again, space), 0);
        }
        for (unsigned i = 0; i < 3; i++) {
            pthread_join(others[i], NULL);
        }
    }
    store->ops->space_close(space);
    store->ops->close(store);
    assert_int_equal(damage_files(), 1);
    store = open_store();
    space = open_space(store);
    uint32_t n_missing = 0;
    assert_int_equal(get_parallel(space, 20000, &n_missing), HPS_DATA_LOSS);
    assert_true(n_missing > 10000);
    store->ops->space_close(space);
    store->ops->close(store);
}

/* Each piece of a read allocates once, and a thread has at least one piece. */
static void test_get_when_large_and_rows_are_in_memory_then_at_most_one_thread_per_cpu(void **state)
{
    (void)state;
    enum { N_KEYS = 60000, N_CHUNKS = N_KEYS / 1000, N_CPUS = 2, N_OTHERS_MAX = 20 };
    struct hps_store *base = NULL;
    hps_fault_heap_install(0);
    assert_int_equal(open_mode(HPS_READ_MMAP, &base), HPS_OK); /* with 7 readers */
    struct hps_rocksdb *store = (struct hps_rocksdb *)base;
    struct hps_space *space = open_space(base);
    uint32_t n_missing = 0;
    load(space, 10000);
    assert_false(store->disk_bound);
    store->n_cpus = N_CPUS;
    atomic_store(&store->cold_share, 0);
    size_t n_before = hps_fault_heap_allocations();
    assert_int_equal(get_parallel(space, N_KEYS, &n_missing), HPS_OK);
    size_t n_allocations = hps_fault_heap_allocations() - n_before;
    assert_int_equal(n_missing, N_KEYS - 10000);
    assert_in_range(n_allocations, N_CPUS, N_CPUS + N_OTHERS_MAX);
    assert_true(N_CPUS + N_OTHERS_MAX < N_CHUNKS);
    base->ops->space_close(space);
    base->ops->close(base);
    hps_fault_heap_remove();
}

static void test_get_when_of_one_key_then_it_changes_the_share_of_cold_keys_little(void **state)
{
    (void)state;
    enum { COLD_ALL = 1 << 16 };
    struct hps_store *base = NULL;
    assert_int_equal(open_mode(HPS_READ_MMAP, &base), HPS_OK);
    struct hps_rocksdb *store = (struct hps_rocksdb *)base;
    struct hps_space *space = open_space(base);
    load(space, 100);
    assert_true(has(space, 1)); /* its page is in memory from here on */
    atomic_store(&store->cold_share, COLD_ALL);
    for (unsigned n = 1; n <= 20; n++) {
        assert_true(has(space, 1));
        assert_true(atomic_load(&store->cold_share) >= COLD_ALL - n * COLD_ALL / 256);
    }
    base->ops->space_close(space);
    base->ops->close(base);
}

/* Where files exceed the memory for them, reads wait for the disk and are cut for many readers. */
static void test_auto_when_the_files_grow_and_shrink_then_reads_follow_them(void **state)
{
    (void)state;
    struct hps_rocksdb_options options = options_of(false);
    struct hps_store *base = NULL;
    options.memory_bytes = 1 << 20;
    assert_int_equal(hps_rocksdb_open(&options, &base, &error), HPS_OK);
    const struct hps_rocksdb *store = (const struct hps_rocksdb *)base;
    assert_int_equal(store->mode, HPS_READ_MMAP);
    assert_false(store->disk_bound);
    struct hps_space *space = open_space(base);
    load(space, 10000); /* 5 MB */
    assert_true(store->disk_bound);
    assert_int_equal(store->mode, HPS_READ_MMAP);
    assert_int_equal(base->ops->space_drop(space, &error), HPS_OK);
    assert_false(store->disk_bound);
    base->ops->close(base);
    options.load_bytes = 2 << 20; /* as the configuration will have it */
    assert_int_equal(hps_rocksdb_open(&options, &base, &error), HPS_OK);
    store = (const struct hps_rocksdb *)base;
    assert_int_equal(store->mode, HPS_READ_DIRECT);
    assert_true(store->disk_bound);
    base->ops->close(base);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(
            test_get_when_file_is_damaged_then_data_loss_and_never_a_wrong_row, setup, teardown),
        cmocka_unit_test_setup_teardown(test_get_when_row_has_a_wrong_size_then_data_loss, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(
            test_get_when_large_and_read_in_any_mode_then_every_row_is_right, setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_get_when_large_and_rows_are_in_memory_then_at_most_one_thread_per_cpu, setup,
            teardown),
        cmocka_unit_test_setup_teardown(
            test_get_when_of_one_key_then_it_changes_the_share_of_cold_keys_little, setup,
            teardown),
        cmocka_unit_test_setup_teardown(
            test_auto_when_the_files_grow_and_shrink_then_reads_follow_them, setup, teardown),
    };
    return cmocka_run_group_tests_name("rocksdb_read", tests, NULL, NULL);
}
