/* SPDX-License-Identifier: Apache-2.0
 *
 * Properties of the host map only: growth, full buckets, reuse of erased slots, the exact
 * budget.
 */
// clang-format off
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>
// clang-format on

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "backends/host/map.h"
#include "backends/store_bulk.h"
#include "backends/store_limits.h"
#include "base/epoch.h"
#include "base/heap.h"
#include "tests/lib/work.h"

static struct hps_error error;
static const struct hps_call no_limit = {0};
static const struct hps_table narrow = {
    .name = "narrow", .id = 0, .dim = 2, .row_bytes = 8, .dtype = HPS_DTYPE_FP32};

struct fixture {
    struct hps_store *store;
    struct hps_space *space;
};

static struct fixture open_with(uint64_t bytes_max, const struct hps_table *table)
{
    struct fixture f = {0};
    assert_int_equal(hps_host_map_open(bytes_max, &f.store, &error), HPS_OK);
    struct hps_space_id id = {.model = "m", .version = 1, .tables = table, .n_tables = 1};
    assert_int_equal(f.store->ops->space_open(f.store, &id, &f.space, &error), HPS_OK);
    return f;
}

static struct fixture open_evicting(uint64_t bytes_max, uint64_t rows_max, double target,
                                    const struct hps_table *table)
{
    struct fixture f = {0};
    const struct hps_host_map_options options = {
        .bytes_max = bytes_max, .evicts = true, .rows_max = rows_max, .target_ratio = target};
    assert_int_equal(hps_host_map_open_with(&options, &f.store, &error), HPS_OK);
    struct hps_space_id id = {.model = "m", .version = 1, .tables = table, .n_tables = 1};
    assert_int_equal(f.store->ops->space_open(f.store, &id, &f.space, &error), HPS_OK);
    return f;
}

static struct fixture open_other(struct fixture *f, int64_t version, const struct hps_table *table)
{
    struct fixture g = {.store = f->store};
    struct hps_space_id id = {.model = "m", .version = version, .tables = table, .n_tables = 1};
    assert_int_equal(f->store->ops->space_open(f->store, &id, &g.space, &error), HPS_OK);
    return g;
}

static void close_all(struct fixture *f)
{
    f->store->ops->space_close(f->space);
    f->store->ops->close(f->store); /* asserts that all bytes were released */
}

static hps_status put(struct fixture *f, hps_key key, uint64_t value)
{
    return f->store->ops->put(f->space, &no_limit, &narrow, &key, (const uint8_t *)&value, 1);
}

static struct hps_insert_report insert(struct fixture *f, hps_key key, uint64_t value)
{
    struct hps_insert_report report;
    uint32_t slot = 0;
    assert_int_equal(f->store->ops->insert(f->space, &no_limit, &narrow, &key, &slot,
                                           (const uint8_t *)&value, 1, NULL, &report),
                     HPS_OK);
    return report;
}

static bool get(struct fixture *f, hps_key key, uint64_t *out_value)
{
    uint32_t slot = 0;
    struct hps_batch batch = {.keys = &key, .slots = &slot, .rows = (uint8_t *)out_value, .n = 1};
    assert_int_equal(f->store->ops->get(f->space, &no_limit, &narrow, &batch), HPS_OK);
    return batch.n == 0;
}

static struct hps_store_usage usage_of(struct fixture *f)
{
    struct hps_store_usage usage;
    f->store->ops->space_usage(f->space, &usage);
    return usage;
}

/* Buckets fill unevenly, so the index grows often and thousands of keys overflow. */
static void test_put_when_many_keys_then_index_grows_and_keeps_all(void **state)
{
    (void)state;
    enum { N = HPS_TEST_WORK(300000) };
    struct fixture f = open_with(UINT64_C(1) << 30, &narrow);
    for (uint64_t key = 0; key < N; key++) {
        assert_int_equal(put(&f, key * key, key), HPS_OK);
    }
    uint64_t value = 0;
    for (uint64_t key = 0; key < N; key++) {
        assert_true(get(&f, key * key, &value));
        assert_true(value == key);
        assert_false(get(&f, key * key + UINT64_MAX / 2, &value));
    }
    struct hps_store_usage usage = usage_of(&f);
    assert_int_equal(usage.n_rows, N);
    assert_true(usage.used_bytes >= N * 8);
    assert_true(usage.used_bytes <= (uint64_t)N * (8 + 26)); /* rows, 64 / 5 / 0.5 of index */
    close_all(&f);
}

static void test_put_when_keys_are_added_and_erased_then_slots_are_reused(void **state)
{
    (void)state;
    enum { ALIVE = 1000, TURNS = HPS_TEST_WORK(200000) };
    struct fixture f = open_with(UINT64_C(1) << 20, &narrow);
    uint64_t value = 0;
    for (uint64_t i = 0; i < TURNS; i++) {
        assert_int_equal(put(&f, i, i), HPS_OK);
        if (i >= ALIVE) {
            hps_key old = i - ALIVE;
            assert_int_equal(f.store->ops->erase(f.space, &no_limit, &narrow, &old, 1), HPS_OK);
            assert_false(get(&f, old, &value));
        }
    }
    for (uint64_t i = TURNS - ALIVE; i < TURNS; i++) {
        assert_true(get(&f, i, &value));
        assert_true(value == i);
    }
    assert_int_equal(usage_of(&f).n_rows, ALIVE);
    close_all(&f);
}

/* At the budget, a larger index does not fit: erased slots must be reused in place. */
static void test_put_when_full_and_keys_are_added_and_erased_then_never_refused(void **state)
{
    (void)state;
    struct fixture f = open_with(100000, &narrow);
    uint64_t n = 0;
    while (put(&f, n, n) == HPS_OK) {
        n++;
    }
    assert_true(n > 500);
    for (uint64_t i = 0; i < 20 * n; i++) {
        hps_key old = i;
        assert_int_equal(f.store->ops->erase(f.space, &no_limit, &narrow, &old, 1), HPS_OK);
        assert_int_equal(put(&f, n + i, i), HPS_OK);
    }
    assert_int_equal(usage_of(&f).n_rows, n);
    close_all(&f);
}

static void test_budget_when_filled_then_never_exceeded_and_well_used(void **state)
{
    (void)state;
    static const struct hps_table wide = {
        .name = "wide", .id = 0, .dim = 128, .row_bytes = 512, .dtype = HPS_DTYPE_FP32};
    const uint64_t budget = 8 << 20;
    struct fixture f = open_with(budget, &wide);
    uint8_t row[512] = {1};
    hps_status status = HPS_OK;
    hps_key key = 0;
    while (status == HPS_OK) {
        status = f.store->ops->put(f.space, &no_limit, &wide, &key, row, 1);
        key++;
        assert_true(usage_of(&f).used_bytes <= budget);
    }
    assert_int_equal(status, HPS_EXHAUSTED);
    struct hps_store_usage usage = usage_of(&f);
    assert_int_equal(usage.capacity_bytes, budget);
    assert_true(usage.n_rows * 512 * 6 / 5 >= budget); /* at most 1.2 times the raw rows */
    close_all(&f);
}

static void test_budget_when_spaces_share_it_then_counted_together(void **state)
{
    (void)state;
    struct fixture f = open_with(200000, &narrow);
    struct hps_space_id id = {.model = "other", .version = 1, .tables = &narrow, .n_tables = 1};
    struct hps_space *other = NULL;
    assert_int_equal(f.store->ops->space_open(f.store, &id, &other, &error), HPS_OK);
    uint64_t n = 0;
    while (put(&f, n, n) == HPS_OK) {
        n++;
    }
    struct fixture g = {f.store, other};
    uint64_t m = 0;
    while (put(&g, m, m) == HPS_OK) {
        m++;
    }
    assert_true(m < n);
    f.store->ops->space_close(other);
    struct hps_space_id third = {.model = "third", .version = 1, .tables = &narrow, .n_tables = 1};
    assert_int_equal(f.store->ops->space_open(f.store, &third, &other, &error), HPS_OK);
    f.store->ops->space_close(other);
    close_all(&f);
}

/* A new version must be able to open when another version has filled the map. */
static void test_open_when_budget_is_used_up_then_free_of_charge_and_rows_are_refused(void **state)
{
    (void)state;
    struct fixture f = open_with(100, &narrow);
    uint64_t value;
    assert_int_equal(put(&f, 1, 1), HPS_EXHAUSTED);
    assert_false(get(&f, 1, &value));
    assert_int_equal(f.store->ops->erase(f.space, &no_limit, &narrow, &(hps_key){1}, 1), HPS_OK);
    assert_int_equal(usage_of(&f).used_bytes, 0);
    assert_int_equal(usage_of(&f).n_rows, 0);
    struct hps_store_load *load = NULL;
    assert_int_equal(f.store->ops->bulk->begin(f.space, 100, 800, &load, &error), HPS_EXHAUSTED);
    assert_non_null(strstr(error.text, " of 100 "));
    close_all(&f);
}

/* A growing index needs memory for the old and the new array. A reserved index does not. */
static void test_reserve_when_rows_are_put_one_by_one_then_they_use_no_more_than_a_load(
    void **state)
{
    (void)state;
    enum { N = 123041 }; /* without reserve, the last thousand did not fit */
    struct hps_table table = narrow;
    table.n_rows = N;
    struct fixture f = open_with((uint64_t)N * (8 + 24), &table);
    assert_int_equal(put(&f, N, 7), HPS_OK); /* an existing row stays */
    assert_int_equal(f.store->ops->limits->reserve(f.space, &table, NULL, 0, &error), HPS_OK);
    uint64_t used_bytes = usage_of(&f).used_bytes;
    for (uint64_t key = 0; key < N; key++) {
        assert_int_equal(put(&f, key, key), HPS_OK);
    }
    assert_int_equal(f.store->ops->limits->reserve(f.space, &table, NULL, 0, &error), HPS_OK);
    assert_true(usage_of(&f).used_bytes - used_bytes <= (uint64_t)N * 8 + (64 << 10));
    uint64_t value = 0;
    assert_true(get(&f, N, &value));
    assert_int_equal(value, 7);
    close_all(&f);
    f = open_with(100000, &table);
    assert_int_equal(f.store->ops->limits->reserve(f.space, &table, NULL, 0, &error),
                     HPS_EXHAUSTED);
    assert_int_equal(usage_of(&f).used_bytes, 0);
    close_all(&f);
}

/* If load_begin accepts a number of rows, exactly these rows must fit. */
static void test_load_when_budget_is_exact_then_fits_and_one_byte_less_is_refused(void **state)
{
    (void)state;
    enum { N = 10000 };
    struct hps_table table = narrow;
    table.n_rows = N;
    uint64_t bytes = 0;
    for (uint64_t budget = 4096; bytes == 0; budget *= 2) { /* read the need from the error */
        struct fixture f = open_with(budget, &table);
        struct hps_store_load *load = NULL;
        hps_status status = f.store->ops->bulk->begin(f.space, N, N * 8, &load, &error);
        if (status == HPS_OK) {
            f.store->ops->bulk->abort(load);
            bytes = budget;
        }
        close_all(&f);
    }
    uint64_t low = bytes / 2;
    while (bytes - low > 1) {
        uint64_t middle = low + (bytes - low) / 2;
        struct fixture f = open_with(middle, &table);
        struct hps_store_load *load = NULL;
        if (f.store->ops->bulk->begin(f.space, N, N * 8, &load, &error) == HPS_OK) {
            f.store->ops->bulk->abort(load);
            bytes = middle;
        } else {
            low = middle;
        }
        close_all(&f);
    }
    struct fixture f = open_with(bytes, &table);
    struct hps_store_load *load = NULL;
    assert_int_equal(f.store->ops->bulk->begin(f.space, N, N * 8, &load, &error), HPS_OK);
    for (uint64_t key = 0; key < N; key++) {
        assert_int_equal(
            f.store->ops->bulk->add(load, &table, &key, (const uint8_t *)&key, 1, &error), HPS_OK);
    }
    assert_int_equal(f.store->ops->bulk->commit(load, &error), HPS_OK);
    uint64_t value = 0;
    assert_true(get(&f, N - 1, &value));
    close_all(&f);
}

static void test_load_when_more_rows_than_ids_then_refused_for_any_budget(void **state)
{
    (void)state;
    struct hps_table table = narrow;
    struct hps_store_load *load = NULL;
    table.n_rows = UINT64_C(1) << 32;
    struct fixture f = open_with(UINT64_C(1) << 40, &table);
    assert_int_equal(
        f.store->ops->bulk->begin(f.space, table.n_rows, 8 * table.n_rows, &load, &error),
        HPS_EXHAUSTED);
    assert_non_null(strstr(error.text, " has 4294967296 rows, at most "));
    assert_int_equal(usage_of(&f).used_bytes, 0);
    close_all(&f);
}

static void test_space_when_row_is_empty_then_invalid(void **state)
{
    (void)state;
    struct hps_store *store = NULL;
    assert_int_equal(hps_host_map_open(1 << 20, &store, &error), HPS_OK);
    struct hps_table none = narrow;
    none.row_bytes = 0;
    struct hps_space_id id = {.model = "m", .version = 1, .tables = &none, .n_tables = 1};
    struct hps_space *space = NULL;
    assert_int_equal(store->ops->space_open(store, &id, &space, &error), HPS_INVALID);
    store->ops->close(store);
}

/* ---- eviction -------------------------------------------------------------------------------- */

static uint64_t evictions_of(struct fixture *f)
{
    return f->store->ops->limits->evictions_take(f->space, &narrow);
}

static uint64_t insert_until_evicting(struct fixture *f)
{
    uint64_t n = 0;
    while (insert(f, n, n).n_evicted == 0) {
        n++;
    }
    return n;
}

static void test_insert_when_full_then_evicts_within_the_budget_and_is_incomplete_before(
    void **state)
{
    (void)state;
    struct fixture f = open_evicting(1 << 20, 0, 0, &narrow);
    uint64_t value = 0;
    uint64_t n = 0;
    for (; !atomic_load(&f.space->incomplete); n++) {
        assert_int_equal(insert(&f, n, n).n_inserted, 1);
    }
    assert_true(n > 15000);
    for (uint64_t key = n; key < 4 * n; key++) {
        assert_int_equal(insert(&f, key, key).n_inserted, 1); /* no reader delays it */
        assert_true(get(&f, key, &value));
        assert_true(usage_of(&f).used_bytes <= 1 << 20);
    }
    assert_true(usage_of(&f).n_rows > n - n / 20);
    close_all(&f);
}

static void test_insert_when_it_never_evicts_then_refused_and_all_stay(void **state)
{
    (void)state;
    struct fixture f = open_with(100000, &narrow);
    uint64_t value = 0;
    uint64_t n = 0;
    while (insert(&f, n, n).n_inserted == 1) {
        n++;
    }
    struct hps_insert_report report = insert(&f, n, n);
    assert_int_equal(report.n_no_capacity, 1);
    assert_int_equal(report.n_evicted, 0);
    for (uint64_t key = 0; key < n; key++) {
        assert_true(get(&f, key, &value));
    }
    close_all(&f);
}

/* Updates keep cached rows current. They do not show that a row is used, so they evict no row. */
static void test_put_when_full_then_replaces_but_evicts_no_row(void **state)
{
    (void)state;
    struct fixture f = open_evicting(100000, 0, 0, &narrow);
    uint64_t n = insert_until_evicting(&f);
    uint64_t value = 0;
    uint64_t n_rows = usage_of(&f).n_rows;
    uint64_t n_old = 0;
    for (uint64_t key = 0; key < n; key++) {
        bool had = get(&f, key, &value);
        hps_status status = put(&f, key, key + 1000000);
        assert_true(!had || status == HPS_OK);
        n_old += had && get(&f, key, &value) && value == key + 1000000 ? 1 : 0;
    }
    assert_true(n_old >= n_rows - 1);
    assert_int_equal(put(&f, UINT64_MAX, 5), HPS_EXHAUSTED);
    assert_false(get(&f, UINT64_MAX, &value));
    close_all(&f);
}

static void test_put_when_reader_stays_inside_and_no_row_is_free_then_dropped_not_old(void **state)
{
    (void)state;
    struct fixture f = open_evicting(1 << 20, 0, 0, &narrow);
    uint64_t n = insert_until_evicting(&f);
    uint64_t value = 0;
    struct hps_epoch_slot *slot = hps_epoch_enter(hps_host_map_epoch(f.store));
    hps_status status = HPS_OK;
    hps_key key = 0;
    uint64_t seq = n;
    uint64_t last = 0;
    for (; status == HPS_OK && seq < 100 * n; seq++) {
        key = seq % n;
        if (get(&f, key, &value)) {
            status = put(&f, key, seq);
            last = status == HPS_OK ? seq : last;
        }
    }
    assert_int_equal(status, HPS_EXHAUSTED); /* spare rows used up, without a wait */
    assert_false(get(&f, key, &value));
    hps_epoch_leave(hps_host_map_epoch(f.store), slot);
    assert_true(get(&f, last % n, &value));
    assert_true(value == last);
    assert_int_equal(insert(&f, key, 7).n_inserted, 1);
    close_all(&f);
}

/* Rows that readers use become free by themselves: evicting more rows would not help. */
static void test_insert_when_reader_stays_inside_then_evicts_at_most_the_spare_rows(void **state)
{
    (void)state;
    struct fixture f = open_evicting(1 << 20, 0, 0, &narrow);
    uint64_t n = insert_until_evicting(&f);
    uint64_t n_rows = usage_of(&f).n_rows;
    struct hps_epoch_slot *slot = hps_epoch_enter(hps_host_map_epoch(f.store));
    uint64_t n_in = 0;
    for (uint64_t key = n; key < 2 * n; key++) {
        n_in += insert(&f, key, key).n_inserted;
    }
    assert_true(n_in < n_rows / 100); /* spare rows used up, without a wait */
    assert_true(usage_of(&f).n_rows >= n_rows - n_rows / 100);
    hps_epoch_leave(hps_host_map_epoch(f.store), slot);
    for (uint64_t key = 2 * n; key < 3 * n; key++) {
        assert_int_equal(insert(&f, key, key).n_inserted, 1);
    }
    assert_true(usage_of(&f).n_rows >= n_rows - n_rows / 100);
    close_all(&f);
}

/* If the system refuses memory, the map evicts as if the budget were used up. */
static void test_insert_when_the_system_gives_no_memory_then_evicts_as_if_full(void **state)
{
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(HPS_TSAN)
    skip(); /* sanitizers would exceed the limit */
#endif
    struct fixture f = open_evicting(UINT64_C(1) << 28, 0, 0, &narrow);
    struct rlimit before;
    uint64_t n = 0;
    for (; n < 12000; n++) {
        assert_int_equal(insert(&f, n, n).n_inserted, 1);
    }
    uint64_t data_pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%*u %*u %*u %*u %*u %lu", &data_pages), 1);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(getrlimit(RLIMIT_DATA, &before), 0);
    struct rlimit limit = before;
    limit.rlim_cur = (rlim_t)data_pages * (rlim_t)sysconf(_SC_PAGESIZE) + (64 << 10);
    assert_int_equal(setrlimit(RLIMIT_DATA, &limit), 0);
    uint64_t n_in = 0;
    uint64_t n_evicted = 0;
    for (uint64_t key = n; key < 3 * n; key++) {
        struct hps_insert_report report = insert(&f, key, key);
        n_in += report.n_inserted;
        n_evicted += report.n_evicted;
    }
    assert_int_equal(setrlimit(RLIMIT_DATA, &before), 0);
    assert_true(n_evicted > 0);
    assert_true(n_in > 2 * n - n / 100);
    assert_true(usage_of(&f).n_rows >= n - n / 100);
    close_all(&f);
}

static void test_rows_max_when_reached_then_down_to_the_target_in_steps(void **state)
{
    (void)state;
    struct fixture f = open_evicting(UINT64_C(1) << 24, 1000, 0.8, &narrow);
    for (uint64_t key = 0; key < 1000; key++) {
        assert_int_equal(insert(&f, key, key).n_evicted, 0);
    }
    assert_int_equal(usage_of(&f).n_rows, 1000);
    uint64_t n_min = 1000;
    for (uint64_t key = 1000; key < 3000; key++) {
        assert_true(insert(&f, key, key).n_evicted <= 2);
        uint64_t n_rows = usage_of(&f).n_rows;
        assert_true(n_rows <= 1000);
        n_min = n_rows < n_min ? n_rows : n_min;
    }
    assert_true(n_min >= 795 && n_min <= 805);
    close_all(&f);
}

/* With rows_max, the operator accepts that a map which is the only store drops rows. */
static void test_load_when_lossy_and_beyond_rows_max_then_fits_by_dropping_rows(void **state)
{
    (void)state;
    enum { N = 5000 };
    struct hps_table table = narrow;
    struct fixture f = {0};
    struct hps_store_load *load = NULL;
    const struct hps_host_map_options options = {
        .bytes_max = 1 << 20, .lossy = true, .rows_max = 1000, .target_ratio = 0.8};
    table.n_rows = N;
    assert_int_equal(hps_host_map_open_with(&options, &f.store, &error), HPS_OK);
    struct hps_space_id id = {.model = "m", .version = 1, .tables = &table, .n_tables = 1};
    assert_int_equal(f.store->ops->space_open(f.store, &id, &f.space, &error), HPS_OK);
    assert_int_equal(f.store->ops->bulk->begin(f.space, N, N * 8, &load, &error), HPS_OK);
    for (uint64_t key = 0; key < N; key++) {
        assert_int_equal(
            f.store->ops->bulk->add(load, &table, &key, (const uint8_t *)&key, 1, &error), HPS_OK);
    }
    assert_int_equal(f.store->ops->bulk->commit(load, &error), HPS_OK);
    assert_in_range(usage_of(&f).n_rows, 790, 1000);
    uint64_t n_rows = usage_of(&f).n_rows;
    for (uint64_t key = N; key < 2 * N; key++) {
        assert_int_equal(put(&f, key, key), HPS_OK);
    }
    assert_in_range(usage_of(&f).n_rows, 790, 1000);
    assert_true(n_rows <= 1000);
    assert_int_equal(usage_of(&f).n_rows + usage_of(&f).n_rows_dropped, 2 * N);
    close_all(&f);
}

/* Only rows_max lets the map drop rows; a lack of memory never does. */
static void test_lossy_when_the_budget_is_too_small_then_refused_and_no_row_is_dropped(void **state)
{
    (void)state;
    enum { N = 50000, MARGIN = 40000 };
    struct hps_table table = narrow;
    struct fixture f = {0};
    struct hps_store_load *load = NULL;
    const struct hps_host_map_options options = {
        .bytes_max = 400000, .lossy = true, .rows_max = MARGIN, .target_ratio = 1};
    table.n_rows = N;
    assert_int_equal(hps_host_map_open_with(&options, &f.store, &error), HPS_OK);
    struct hps_space_id id = {.model = "m", .version = 1, .tables = &table, .n_tables = 1};
    assert_int_equal(f.store->ops->space_open(f.store, &id, &f.space, &error), HPS_OK);
    assert_int_equal(f.store->ops->bulk->begin(f.space, N, N * 8, &load, &error), HPS_EXHAUSTED);
    assert_non_null(strstr(error.text, "are available"));
    uint64_t n = 0, value = 0;
    while (n < MARGIN && put(&f, n, n) == HPS_OK) {
        n++;
    }
    assert_in_range(n, 1, MARGIN - 1);
    assert_int_equal(put(&f, n + 1, 1), HPS_EXHAUSTED);
    assert_int_equal(usage_of(&f).n_rows, n);
    assert_int_equal(usage_of(&f).n_rows_dropped, 0);
    for (uint64_t key = 0; key < n; key++) {
        assert_true(get(&f, key, &value));
        assert_int_equal(value, key);
    }
    close_all(&f);
}

static void test_version_when_not_active_then_is_evicted_and_evicts_no_other(void **state)
{
    (void)state;
    struct hps_table table = narrow;
    table.n_rows = 100000;
    struct fixture one = open_evicting(200000, 0, 0, &table);
    one.store->ops->limits->space_active(one.space, true);
    uint64_t n = insert_until_evicting(&one);
    struct fixture two = open_other(&one, 2, &table);
    uint64_t n_one = usage_of(&one).n_rows;
    uint64_t value = 0;
    for (uint64_t key = 0; key < n; key++) {
        (void)insert(&two, key, key);
    }
    assert_int_equal(usage_of(&one).n_rows, n_one); /* the other version evicted no row */
    assert_int_equal(evictions_of(&one), 1);
    assert_int_equal(evictions_of(&one), 0);
    one.store->ops->limits->space_active(one.space, false);
    two.store->ops->limits->space_active(two.space, true);
    for (uint64_t key = 0; key < 3 * n; key++) {
        (void)insert(&two, key, key);
    }
    assert_true(atomic_load(&one.space->incomplete));
    assert_int_equal(usage_of(&one).n_rows, 0);
    assert_int_equal(usage_of(&one).used_bytes, 0);
    assert_int_equal(evictions_of(&one), n_one); /* all in one step */
    assert_true(usage_of(&two).n_rows > n_one / 2);
    assert_false(get(&one, 5, &value));
    one.store->ops->limits->space_active(one.space, true); /* active again */
    two.store->ops->limits->space_active(two.space, false);
    for (uint64_t key = 0; key < 3 * n; key++) {
        (void)insert(&one, key, key);
    }
    assert_true(usage_of(&one).n_rows > n_one / 2);
    assert_int_equal(usage_of(&two).n_rows, 0);
    one.store->ops->space_close(two.space);
    close_all(&one);
}

/* Readers of the other version delay the release of its memory. The active version must not
 * evict its own rows because of that, neither for new rows nor for a larger index. */
static void test_version_when_another_is_being_evicted_then_the_active_one_keeps_its_rows(
    void **state)
{
    (void)state;
    struct hps_table table = narrow;
    table.n_rows = 100000;
    struct fixture one = open_evicting(1 << 20, 0, 0, &table);
    struct fixture two = open_other(&one, 2, &table);
    one.store->ops->limits->space_active(one.space, true);
    uint64_t n = 0;
    for (; n < 5000; n++) {
        assert_int_equal(insert(&one, n, n).n_inserted, 1);
    }
    assert_int_equal(insert_until_evicting(&two) > 1000, 1); /* uses all memory left */
    struct hps_epoch_slot *slot = hps_epoch_enter(hps_host_map_epoch(one.store));
    uint64_t n_in = 0;
    for (uint64_t key = n; key < 2 * n; key++) {
        struct hps_insert_report report = insert(&one, key, key);
        assert_int_equal(report.n_evicted, 0);
        n_in += report.n_inserted;
    }
    assert_true(n_in < n);
    hps_epoch_leave(hps_host_map_epoch(one.store), slot);
    for (uint64_t key = 2 * n; key < 3 * n; key++) {
        struct hps_insert_report report = insert(&one, key, key);
        assert_int_equal(report.n_inserted, 1);
        assert_int_equal(report.n_evicted, 0);
    }
    assert_int_equal(usage_of(&two).n_rows, 0);
    one.store->ops->space_close(two.space);
    close_all(&one);
}

/* Rows of a load belong to no version yet: active versions take their memory like that of an
 * inactive version. */
static void test_load_when_an_active_version_needs_the_memory_then_the_load_fails(void **state)
{
    (void)state;
    enum { N_LOAD = 60000 };
    struct hps_table table = narrow;
    table.n_rows = 100000;
    struct fixture one = open_evicting(1 << 20, 0, 0, &table);
    struct fixture two = open_other(&one, 2, &table);
    one.store->ops->limits->space_active(one.space, true);
    uint64_t n = 0;
    for (; n < 1000; n++) {
        assert_int_equal(insert(&one, n, n).n_inserted, 1);
    }
    struct hps_store_load *load = NULL;
    assert_int_equal(two.store->ops->bulk->begin(two.space, 0, 0, &load, &error), HPS_OK);
    hps_key key = 0;
    hps_status status = HPS_OK;
    for (; key < N_LOAD && status == HPS_OK && usage_of(&one).n_rows == n; key++) {
        status = two.store->ops->bulk->add(load, &table, &key, (const uint8_t *)&key, 1, &error);
    }
    assert_int_equal(status, HPS_EXHAUSTED); /* uses all memory left */
    for (; n < 10000; n++) {
        struct hps_insert_report report = insert(&one, n, n);
        assert_int_equal(report.n_inserted, 1);
        assert_int_equal(report.n_evicted, 0);
    }
    status = two.store->ops->bulk->add(load, &table, &key, (const uint8_t *)&key, 1, &error);
    assert_int_equal(status, HPS_EXHAUSTED);
    assert_non_null(strstr(error.text, "was stopped"));
    assert_int_equal(two.store->ops->bulk->commit(load, &error), HPS_EXHAUSTED);
    two.store->ops->bulk->abort(load);
    assert_int_equal(usage_of(&two).used_bytes, 0);
    one.store->ops->space_close(two.space);
    close_all(&one);
}

/* A table that exceeds its share still belongs to an active version. */
static void test_eviction_when_a_version_is_not_active_then_before_a_large_active_table(
    void **state)
{
    (void)state;
    struct hps_table table = narrow;
    table.n_rows = 100000;
    struct fixture one = open_evicting(1 << 20, 0, 0, &table);
    one.store->ops->limits->space_active(one.space, true);
    uint64_t n = 0;
    for (; usage_of(&one).used_bytes < 850000; n++) {
        assert_int_equal(insert(&one, n, n).n_inserted, 1);
    }
    struct fixture two = open_other(&one, 2, &table);
    (void)insert_until_evicting(&two); /* less than the first table's excess over its share */
    struct fixture three = open_other(&one, 3, &table);
    three.store->ops->limits->space_active(three.space, true);
    for (uint64_t key = 0; key < 1000; key++) {
        assert_int_equal(insert(&three, key, key).n_inserted, 1);
    }
    assert_int_equal(usage_of(&two).n_rows, 0);
    assert_int_equal(usage_of(&one).n_rows, n);
    one.store->ops->space_close(three.space);
    one.store->ops->space_close(two.space);
    close_all(&one);
}

static void test_tables_when_not_all_fit_then_each_has_its_share(void **state)
{
    (void)state;
    struct hps_table table = narrow;
    table.n_rows = 100000;
    struct fixture one = open_evicting(400000, 0, 0, &table);
    struct fixture two = open_other(&one, 2, &table);
    one.store->ops->limits->space_active(one.space, true);
    two.store->ops->limits->space_active(two.space, true);
    for (uint64_t key = 0; key < 100000; key++) {
        (void)insert(&one, key, key);
    }
    for (uint64_t key = 0; key < 100000; key++) {
        (void)insert(&two, key, key);
    }
    uint64_t n_one = usage_of(&one).n_rows;
    uint64_t n_two = usage_of(&two).n_rows;
    assert_true(n_one > 2000 && n_two > 2000);
    assert_true(n_one < 2 * n_two && n_two < 2 * n_one);
    one.store->ops->space_close(two.space);
    close_all(&one);
}

/* A tenth of a small table may be less than the minimum size of a table. */
static void test_tables_when_not_all_fit_then_small_ones_are_complete(void **state)
{
    (void)state;
    enum { N_SMALL = 500, N_LARGE = 200000 };
    struct hps_table large = narrow, small = narrow;
    large.n_rows = N_LARGE;
    small.n_rows = N_SMALL;
    struct fixture one = open_evicting(1 << 20, 0, 0, &large);
    struct fixture two = open_other(&one, 2, &small);
    one.store->ops->limits->space_active(one.space, true);
    two.store->ops->limits->space_active(two.space, true);
    for (uint64_t key = 0; key < N_LARGE; key++) {
        (void)insert(&one, key, key);
    }
    for (uint64_t key = 0; key < N_SMALL; key++) {
        (void)insert(&two, key, key);
    }
    assert_int_equal(usage_of(&two).n_rows, N_SMALL);
    uint64_t used = usage_of(&one).used_bytes + usage_of(&two).used_bytes;
    assert_true(used > (1 << 20) * 3 / 4); /* the large table has the rest */
    one.store->ops->space_close(two.space);
    close_all(&one);
}

/* The budget is for rows of any width: at 128 bytes, the index, its growth and eviction add at
 * most a fifth. */
static void test_memory_when_rows_come_one_by_one_then_at_most_1_2_times_the_rows(void **state)
{
    (void)state;
    static const struct hps_table wide = {
        .name = "wide", .id = 0, .dim = 32, .row_bytes = 128, .dtype = HPS_DTYPE_FP32};
    enum { N = 100000 + HPS_TEST_WORK(300000) };
    struct fixture f = open_evicting(UINT64_C(1) << 32, 0, 0, &wide);
    const uint8_t row[128] = {1};
    uint64_t worst = 0;
    for (uint64_t key = 0; key < N; key++) {
        assert_int_equal(f.store->ops->put(f.space, &no_limit, &wide, &key, row, 1), HPS_OK);
        if (key > 50000 && key % 64 == 0) {
            uint64_t percent = usage_of(&f).used_bytes * 100 / (key * 128);
            worst = percent > worst ? percent : worst;
        }
    }
    assert_true(worst <= 120);
    close_all(&f);
}

/* ---- threads --------------------------------------------------------------------------------- */

struct race {
    struct fixture f;
    atomic_bool done;
    atomic_uint n_bad;
};

static void *read_fixed_keys(void *ctx)
{
    struct race *race = ctx;
    uint64_t value = 0;
    while (!atomic_load(&race->done)) {
        for (hps_key key = 0; key < 64; key++) {
            if (!get(&race->f, key, &value) || value != key) {
                atomic_fetch_add(&race->n_bad, 1);
            }
        }
    }
    return NULL;
}

/* Keys that no writer changes must stay visible while the index is rebuilt. */
static void test_get_when_index_grows_and_is_cleaned_then_no_key_is_missed(void **state)
{
    (void)state;
    struct race race = {.f = open_with(UINT64_C(64) << 20, &narrow)};
    for (hps_key key = 0; key < 64; key++) {
        assert_int_equal(put(&race.f, key, key), HPS_OK);
    }
    pthread_t reader;
    assert_int_equal(pthread_create(&reader, NULL, read_fixed_keys, &race), 0);
    for (uint64_t i = 64; i < 60000; i++) {
        assert_int_equal(put(&race.f, i, i), HPS_OK);
        if (i % 3 != 0) {
            hps_key old = i;
            assert_int_equal(race.f.store->ops->erase(race.f.space, &no_limit, &narrow, &old, 1),
                             HPS_OK);
        }
    }
    atomic_store(&race.done, true);
    pthread_join(reader, NULL);
    assert_int_equal(atomic_load(&race.n_bad), 0);
    close_all(&race.f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_put_when_many_keys_then_index_grows_and_keeps_all),
        cmocka_unit_test(test_put_when_keys_are_added_and_erased_then_slots_are_reused),
        cmocka_unit_test(test_put_when_full_and_keys_are_added_and_erased_then_never_refused),
        cmocka_unit_test(test_budget_when_filled_then_never_exceeded_and_well_used),
        cmocka_unit_test(test_budget_when_spaces_share_it_then_counted_together),
        cmocka_unit_test(test_open_when_budget_is_used_up_then_free_of_charge_and_rows_are_refused),
        cmocka_unit_test(
            test_reserve_when_rows_are_put_one_by_one_then_they_use_no_more_than_a_load),
        cmocka_unit_test(test_load_when_budget_is_exact_then_fits_and_one_byte_less_is_refused),
        cmocka_unit_test(test_load_when_more_rows_than_ids_then_refused_for_any_budget),
        cmocka_unit_test(test_space_when_row_is_empty_then_invalid),
        cmocka_unit_test(
            test_insert_when_full_then_evicts_within_the_budget_and_is_incomplete_before),
        cmocka_unit_test(test_insert_when_it_never_evicts_then_refused_and_all_stay),
        cmocka_unit_test(test_put_when_full_then_replaces_but_evicts_no_row),
        cmocka_unit_test(test_put_when_reader_stays_inside_and_no_row_is_free_then_dropped_not_old),
        cmocka_unit_test(test_insert_when_reader_stays_inside_then_evicts_at_most_the_spare_rows),
        cmocka_unit_test(test_insert_when_the_system_gives_no_memory_then_evicts_as_if_full),
        cmocka_unit_test(test_rows_max_when_reached_then_down_to_the_target_in_steps),
        cmocka_unit_test(test_load_when_lossy_and_beyond_rows_max_then_fits_by_dropping_rows),
        cmocka_unit_test(
            test_lossy_when_the_budget_is_too_small_then_refused_and_no_row_is_dropped),
        cmocka_unit_test(test_version_when_not_active_then_is_evicted_and_evicts_no_other),
        cmocka_unit_test(
            test_version_when_another_is_being_evicted_then_the_active_one_keeps_its_rows),
        cmocka_unit_test(test_load_when_an_active_version_needs_the_memory_then_the_load_fails),
        cmocka_unit_test(
            test_eviction_when_a_version_is_not_active_then_before_a_large_active_table),
        cmocka_unit_test(test_tables_when_not_all_fit_then_each_has_its_share),
        cmocka_unit_test(test_tables_when_not_all_fit_then_small_ones_are_complete),
        cmocka_unit_test(test_memory_when_rows_come_one_by_one_then_at_most_1_2_times_the_rows),
        cmocka_unit_test(test_get_when_index_grows_and_is_cleaned_then_no_key_is_missed),
    };
    return cmocka_run_group_tests_name("host_map", tests, NULL, NULL);
}
