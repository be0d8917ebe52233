/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls of every store: rows that are put, read, inserted, erased and scanned, in separate
 * tables and versions, by one thread and by several.
 */
#include "tests/contract/store_contract_internal.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "base/clock.h"
#include "base/heap.h"
#include "tests/lib/work.h"

/* ---- get, put, erase ------------------------------------------------------------------------- */

static void test_get_when_empty_then_all_are_missing(void **state)
{
    (void)state;
    struct hps_store *store = contract_open();
    struct hps_space *space = contract_space_open(store, 1);
    hps_key keys[3] = {5, 0, UINT64_MAX};
    uint32_t slots[3] = {0, 1, 2};
    uint8_t rows[3 * 64];
    struct hps_batch batch = {.keys = keys, .slots = slots, .rows = rows, .n = 3};
    assert_int_equal(store->ops->get(space, &contract_no_limit, &contract_tables[0], &batch),
                     HPS_OK);
    assert_int_equal(batch.n, 3);
    contract_drop(space);
    store->ops->close(store);
}

/* Only stores with the capability use the shape; other stores ignore it. */
static void test_get_when_a_shape_is_given_then_rows_have_it_or_it_is_ignored(void **state)
{
    (void)state;
    enum { N = 40, STRIDE = 33 };
    const struct hps_table *table = &contract_tables[0]; /* 16 values of FP32 */
    struct hps_store *store = contract_open();
    struct hps_space *space = contract_space_open(store, 1);
    bool shapes = (store->ops->caps & HPS_STORE_SHAPES) != 0;
    hps_key keys[N];
    uint32_t slots[N];
    uint8_t rows[N * 64], shaped[N * STRIDE], stored[64], wanted[32];
    for (uint32_t i = 0; i < N; i++) {
        keys[i] = i;
        slots[i] = N - 1 - i;
        assert_int_equal(contract_put(space, table, i, i), HPS_OK);
    }
    memset(rows, 0xee, sizeof(rows));
    memset(shaped, 0xee, sizeof(shaped));
    struct hps_batch batch = {.keys = keys,
                              .slots = slots,
                              .rows = rows,
                              .n = N,
                              .shape = {shaped, STRIDE, HPS_DTYPE_BF16}};
    assert_int_equal(store->ops->get(space, &contract_no_limit, table, &batch), HPS_OK);
    assert_int_equal(batch.n, 0);
    for (uint32_t i = 0; i < N; i++) {
        store_contract_fill(stored, 64, i, i);
        hps_row_convert(wanted, HPS_DTYPE_BF16, stored, HPS_DTYPE_FP32, 16);
        const uint8_t *row = rows + (size_t)(N - 1 - i) * 64;
        const uint8_t *in_shape = shaped + (size_t)(N - 1 - i) * STRIDE;
        assert_memory_equal(shapes ? in_shape : row, shapes ? wanted : stored, shapes ? 32 : 64);
        assert_int_equal(in_shape[32], 0xee);
        assert_true(shapes ? row[0] == 0xee : in_shape[0] == 0xee);
    }
    contract_drop(space);
    store->ops->close(store);
}

static void test_put_when_repeated_then_the_last_row_is_read(void **state)
{
    (void)state;
    struct hps_store *store = contract_open();
    struct hps_space *space = contract_space_open(store, 1);
    for (uint64_t seq = 0; seq < 2000; seq++) {
        assert_int_equal(contract_put(space, &contract_tables[0], 7, seq), HPS_OK);
        assert_true(contract_has(space, &contract_tables[0], 7, seq));
    }
    assert_false(contract_has(space, &contract_tables[0], 8, 0));
    contract_drop(space);
    store->ops->close(store);
}

static void test_put_when_key_twice_in_batch_then_the_last_wins(void **state)
{
    (void)state;
    struct hps_store *store = contract_open();
    struct hps_space *space = contract_space_open(store, 1);
    hps_key keys[3] = {9, 4, 9};
    uint8_t rows[3 * 64];
    for (unsigned i = 0; i < 3; i++) {
        store_contract_fill(rows + i * 64, 64, keys[i], i);
    }
    assert_int_equal(store->ops->put(space, &contract_no_limit, &contract_tables[0], keys, rows, 3),
                     HPS_OK);
    assert_true(contract_has(space, &contract_tables[0], 9, 2));
    assert_true(contract_has(space, &contract_tables[0], 4, 1));
    contract_drop(space);
    store->ops->close(store);
}

static void test_erase_when_present_or_absent_then_missing(void **state)
{
    (void)state;
    struct hps_store *store = contract_open();
    struct hps_space *space = contract_space_open(store, 1);
    for (uint64_t round = 0; round < 50; round++) {
        for (hps_key key = 0; key < 40; key++) {
            assert_int_equal(contract_put(space, &contract_tables[1], key, round), HPS_OK);
        }
        for (hps_key key = 0; key < 80; key += 2) {
            assert_int_equal(contract_erase(space, &contract_tables[1], key), HPS_OK);
        }
        for (hps_key key = 0; key < 80; key++) {
            assert_int_equal(contract_has(space, &contract_tables[1], key, round),
                             key % 2 == 1 && key < 40);
        }
    }
    contract_drop(space);
    store->ops->close(store);
}

static void test_calls_when_no_keys_then_ok(void **state)
{
    (void)state;
    struct hps_store *store = contract_open();
    struct hps_space *space = contract_space_open(store, 1);
    struct hps_batch batch = {.keys = NULL, .slots = NULL, .rows = NULL, .n = 0};
    assert_int_equal(store->ops->get(space, &contract_no_limit, &contract_tables[0], &batch),
                     HPS_OK);
    assert_int_equal(store->ops->put(space, &contract_no_limit, &contract_tables[0], NULL, NULL, 0),
                     HPS_OK);
    assert_int_equal(store->ops->erase(space, &contract_no_limit, &contract_tables[0], NULL, 0),
                     HPS_OK);
    contract_drop(space);
    store->ops->close(store);
}

static void test_keys_when_at_the_edges_then_all_valid(void **state)
{
    (void)state;
    static const hps_key edges[] = {0,
                                    1,
                                    INT64_MAX,
                                    (uint64_t)INT64_MAX + 1,
                                    UINT64_MAX - 1,
                                    UINT64_MAX,
                                    UINT32_MAX,
                                    (uint64_t)UINT32_MAX + 1};
    enum { N = sizeof(edges) / sizeof(edges[0]) };
    struct hps_store *store = contract_open();
    struct hps_space *space = contract_space_open(store, 1);
    for (unsigned i = 0; i < N; i++) {
        assert_false(contract_has(space, &contract_tables[2], edges[i], 0));
        assert_int_equal(contract_put(space, &contract_tables[2], edges[i], 3), HPS_OK);
    }
    for (unsigned i = 0; i < N; i++) {
        assert_true(contract_has(space, &contract_tables[2], edges[i], 3));
        assert_int_equal(contract_erase(space, &contract_tables[2], edges[i]), HPS_OK);
        assert_false(contract_has(space, &contract_tables[2], edges[i], 3));
    }
    contract_drop(space);
    store->ops->close(store);
}

/* Random keys, every third present, some twice; slots in random order. */
static void test_get_when_mixed_then_batch_is_permuted_and_rows_are_in_their_slots(void **state)
{
    (void)state;
    enum { N = 1000 };
    struct hps_store *store = contract_open();
    struct hps_space *space = contract_space_open(store, 1);
    const struct hps_table *table = &contract_tables[0];
    hps_key *keys = hps_alloc(N * sizeof(*keys));
    hps_key *by_slot = hps_alloc(N * sizeof(*by_slot));
    uint32_t *slots = hps_alloc(N * sizeof(*slots));
    uint8_t *rows = hps_calloc(N, table->row_bytes);
    bool *seen = hps_calloc(N, sizeof(*seen));
    uint32_t n_there = 0;
    for (uint32_t i = 0; i < N; i++) {
        keys[i] = contract_mix(i % 900); /* 100 duplicates */
        slots[i] = (uint32_t)((i * 617 + 5) % N);
        by_slot[slots[i]] = keys[i];
        n_there += i % 900 % 3 == 0;
        if (i < 900 && i % 3 == 0) {
            assert_int_equal(contract_put(space, table, keys[i], 1), HPS_OK);
        }
    }
    struct hps_batch batch = {.keys = keys, .slots = slots, .rows = rows, .n = N};
    assert_int_equal(store->ops->get(space, &contract_no_limit, table, &batch), HPS_OK);
    assert_int_equal(batch.n, N - n_there);
    uint8_t zeros[64] = {0};
    for (uint32_t i = 0; i < N; i++) {
        assert_true(slots[i] < N);
        assert_false(seen[slots[i]]);
        seen[slots[i]] = true;
        assert_true(by_slot[slots[i]] == keys[i]);
        const uint8_t *row = rows + (size_t)slots[i] * table->row_bytes;
        if (i < batch.n) {
            assert_memory_equal(row, zeros, 64);
        } else {
            assert_true(store_contract_check(row, 64, keys[i], 1));
        }
    }
    hps_free(keys);
    hps_free(by_slot);
    hps_free(slots);
    hps_free(rows);
    hps_free(seen);
    contract_drop(space);
    store->ops->close(store);
}

/* Rows of every type, next to unaligned rows. */
static void test_rows_when_of_any_width_then_read_back_unchanged(void **state)
{
    (void)state;
    static const uint32_t dims[] = {1, 2, 3, 5, 16, 17, 100, 128, 1000, 4095, 4096};
    enum { N_DIMS = sizeof(dims) / sizeof(dims[0]), N_KEYS = 20 };
    enum { N = N_DIMS * (HPS_DTYPE_STORED_END - 1) };
    static uint8_t rows[N_KEYS * CONTRACT_ROW_BYTES_MAX];
    struct hps_table wide[N];
    for (uint32_t i = 0; i < N; i++) {
        enum hps_dtype dtype = (enum hps_dtype)(i / N_DIMS + 1);
        wide[i] =
            (struct hps_table){.name = "w",
                               .id = i,
                               .dim = dims[i % N_DIMS],
                               .row_bytes = (uint32_t)hps_dtype_row_bytes(dtype, dims[i % N_DIMS]),
                               .dtype = dtype,
                               .default_row = contract_tables[0].default_row};
    }
    struct hps_store *store = contract_open();
    struct hps_space *space = contract_space_open_tables(store, 1, wide, N);
    for (uint32_t i = 0; i < N; i++) {
        hps_key keys[N_KEYS];
        for (uint32_t k = 0; k < N_KEYS; k++) {
            keys[k] = k;
            store_contract_fill(rows + (size_t)k * wide[i].row_bytes, wide[i].row_bytes, k, i);
        }
        assert_int_equal(store->ops->put(space, &contract_no_limit, &wide[i], keys, rows, N_KEYS),
                         HPS_OK);
    }
    for (uint32_t i = 0; i < N; i++) {
        for (hps_key key = 0; key < N_KEYS; key++) {
            assert_true(contract_has(space, &wide[i], key, i));
        }
    }
    contract_drop(space);
    store->ops->close(store);
}

static void test_get_when_deadline_passed_then_deadline_and_batch_unchanged(void **state)
{
    (void)state;
    struct hps_store *store = contract_open();
    struct hps_space *space = contract_space_open(store, 1);
    assert_int_equal(contract_put(space, &contract_tables[0], 1, 0), HPS_OK);
    hps_clock_fake(1000);
    struct hps_call late = {.deadline_us = 999};
    hps_key keys[2] = {1, 2};
    uint32_t slots[2] = {0, 1};
    uint8_t rows[128];
    struct hps_batch batch = {.keys = keys, .slots = slots, .rows = rows, .n = 2};
    assert_int_equal(store->ops->get(space, &late, &contract_tables[0], &batch), HPS_DEADLINE);
    assert_int_equal(batch.n, 2);
    assert_int_equal(keys[slots[0] == 0 ? 0 : 1], 1);
    struct hps_call early = {.deadline_us = 1000 + 60000000};
    assert_int_equal(store->ops->get(space, &early, &contract_tables[0], &batch), HPS_OK);
    assert_int_equal(batch.n, 1);
    hps_clock_real();
    contract_drop(space);
    store->ops->close(store);
}

static void test_get_when_scratch_is_too_small_then_all_rows_are_read(void **state)
{
    (void)state;
    struct hps_store *store = contract_open();
    struct hps_space *space = contract_space_open(store, 1);
    assert_int_equal(contract_put(space, &contract_tables[0], 1, 0), HPS_OK);
    struct hps_arena *arena = hps_arena_new(64, 64);
    assert_non_null(arena);
    struct hps_call call = {.scratch = arena};
    hps_key keys[2] = {1, 2};
    uint32_t slots[2] = {0, 1};
    uint8_t rows[128];
    struct hps_batch batch = {.keys = keys, .slots = slots, .rows = rows, .n = 2};
    assert_int_equal(store->ops->get(space, &call, &contract_tables[0], &batch), HPS_OK);
    assert_int_equal(batch.n, 1);
    hps_arena_free(arena);
    contract_drop(space);
    store->ops->close(store);
}

/* ---- spaces ---------------------------------------------------------------------------------- */

static void test_tables_and_versions_when_same_keys_then_apart(void **state)
{
    (void)state;
    struct hps_store *store = contract_open();
    struct hps_space *one = contract_space_open(store, 1);
    struct hps_space *two = contract_space_open(store, 2);
    assert_int_equal(contract_put(one, &contract_tables[0], 1, 10), HPS_OK);
    assert_int_equal(contract_put(one, &contract_tables[2], 1, 11), HPS_OK);
    assert_int_equal(contract_put(two, &contract_tables[0], 1, 20), HPS_OK);
    assert_true(contract_has(one, &contract_tables[0], 1, 10));
    assert_true(contract_has(one, &contract_tables[2], 1, 11));
    assert_false(contract_has(one, &contract_tables[1], 1, 0));
    assert_true(contract_has(two, &contract_tables[0], 1, 20));
    assert_false(contract_has(two, &contract_tables[2], 1, 0));
    assert_int_equal(contract_erase(one, &contract_tables[0], 1), HPS_OK);
    assert_true(contract_has(one, &contract_tables[2], 1, 11));
    contract_drop(one);
    assert_true(contract_has(two, &contract_tables[0], 1, 20));
    contract_drop(two);
    store->ops->close(store);
}

static void test_space_when_open_twice_then_exists(void **state)
{
    (void)state;
    struct hps_store *store = contract_open();
    struct hps_space *space = contract_space_open(store, 1);
    struct hps_space_id id = {
        .model = "m", .version = 1, .tables = contract_tables, .n_tables = CONTRACT_TABLES};
    struct hps_space *other = NULL;
    assert_int_equal(store->ops->space_open(store, &id, &other, &contract_error), HPS_EXISTS);
    assert_null(other);
    contract_drop(space);
    store->ops->close(store);
}

static bool odd_index(const void *ctx, uint32_t i)
{
    (void)ctx;
    return i % 2 == 1;
}

static void test_insert_when_some_exist_or_are_stale_then_only_new_fresh_rows(void **state)
{
    (void)state;
    enum { N = 100 };
    struct hps_store *store = contract_open();
    struct hps_space *space = contract_space_open(store, 1);
    const struct hps_insert_guard guard = {odd_index, NULL};
    struct hps_insert_report report = {0};
    static uint8_t rows[N * CONTRACT_ROW_BYTES_MAX];
    hps_key keys[N];
    uint32_t slots[N];
    if ((store->ops->caps & HPS_STORE_INSERTS) == 0) {
        contract_drop(space);
        store->ops->close(store);
        skip();
    }
    for (uint32_t i = 0; i < N; i++) {
        keys[i] = 1000 + i;
        slots[i] = N - 1 - i;
        store_contract_fill(rows + (size_t)slots[i] * contract_tables[1].row_bytes,
                            contract_tables[1].row_bytes, keys[i], 7);
    }
    assert_int_equal(contract_put(space, &contract_tables[1], keys[1], 9), HPS_OK);
    assert_int_equal(store->ops->insert(space, &contract_no_limit, &contract_tables[1], keys, slots,
                                        rows, N, &guard, &report),
                     HPS_OK);
    assert_int_equal(report.n_inserted, N / 2 - 1);
    assert_int_equal(report.n_stale, N / 2);
    assert_int_equal(report.n_no_capacity, 0);
    assert_true(
        contract_has(space, &contract_tables[1], keys[1], 9)); /* newer than the row from below */
    assert_false(contract_has(space, &contract_tables[1], keys[2], 7));
    assert_int_equal(store->ops->insert(space, &contract_no_limit, &contract_tables[1], keys, slots,
                                        rows, N, NULL, &report),
                     HPS_OK);
    assert_int_equal(report.n_inserted, N / 2);
    for (uint32_t i = 0; i < N; i++) {
        assert_true(contract_has(space, &contract_tables[1], keys[i], i == 1 ? 9 : 7));
    }
    contract_drop(space);
    store->ops->close(store);
}

static void test_drop_when_opened_again_then_empty(void **state)
{
    (void)state;
    struct hps_store *store = contract_open();
    for (uint64_t round = 0; round < 3; round++) {
        struct hps_space *space = contract_space_open(store, 1);
        assert_false(contract_has(space, &contract_tables[0], 1, 0));
        assert_int_equal(contract_put(space, &contract_tables[0], 1, round), HPS_OK);
        contract_drop(space);
    }
    store->ops->close(store);
}

static void test_usage_when_rows_exist_then_counts_them(void **state)
{
    (void)state;
    struct hps_store *store = contract_open();
    struct hps_space *space = contract_space_open(store, 1);
    for (hps_key key = 0; key < 100; key++) {
        assert_int_equal(contract_put(space, &contract_tables[0], key, 0), HPS_OK);
    }
    struct hps_store_usage usage;
    store->ops->space_usage(space, &usage);
    assert_int_equal(usage.n_rows, 100);
    assert_true(usage.used_bytes >= 100 * 64);
    contract_drop(space);
    store->ops->close(store);
}

static void test_put_when_over_budget_then_no_older_row_is_left(void **state)
{
    (void)state;
    if (!contract_store->budget) {
        skip();
    }
    enum { N = 64 };
    struct hps_store *store = contract_open_bytes(1 << 20);
    struct hps_space *space = contract_space_open(store, 1);
    const struct hps_table *table = &contract_tables[2];
    hps_key key = 0;
    while (contract_put(space, table, key, 0) == HPS_OK) {
        key++;
        assert_true(key < 4096);
    }
    assert_true(key > 1000);
    hps_key keys[N];
    uint8_t *rows = hps_alloc(N * 512);
    for (unsigned i = 0; i < N; i++) {
        keys[i] = i % 2 == 0 ? 1000000 + i : i; /* new keys do not fit; old ones are replaced */
        store_contract_fill(rows + i * 512, 512, keys[i], 1);
    }
    assert_int_equal(store->ops->put(space, &contract_no_limit, table, keys, rows, N),
                     HPS_EXHAUSTED);
    for (unsigned i = 0; i < N; i++) {
        (void)contract_has(space, table, keys[i], 1); /* if the key exists, then with the new row */
    }
    assert_true(contract_has(space, table, 500, 0));
    assert_int_equal(contract_put(space, table, 500, 9),
                     HPS_OK); /* a full store still takes updates */
    assert_true(contract_has(space, table, 500, 9));
    hps_free(rows);
    contract_drop(space);
    store->ops->close(store);
}

/* ---- scan ------------------------------------------------------------------------------------ */

struct scan {
    struct hps_space *space;
    const struct hps_table *table;
    uint64_t n;
    hps_key last;
    uint64_t stop_after;
};

static hps_status scan_row(void *ctx, const hps_key *keys, const uint8_t *rows, uint32_t n)
{
    struct scan *scan = ctx;
    assert_true(n > 0);
    for (uint32_t i = 0; i < n; i++) {
        assert_true(scan->n == 0 || keys[i] > scan->last);
        size_t row_bytes = scan->table->row_bytes;
        assert_true(store_contract_check(rows + i * row_bytes, row_bytes, keys[i], 4));
        scan->last = keys[i];
        scan->n++;
    }
    /* The callback of a scan may read other rows. */
    hps_key key = keys[0];
    uint32_t slot = 0;
    uint8_t row[512];
    struct hps_batch batch = {.keys = &key, .slots = &slot, .rows = row, .n = 1};
    const struct hps_call call = {0};
    const struct hps_store_ops *ops = scan->space->store->ops;
    assert_int_equal(ops->get(scan->space, &call, scan->table, &batch), HPS_OK);
    assert_int_equal(batch.n, 0);
    return scan->n >= scan->stop_after ? HPS_CANCELLED : HPS_OK;
}

static void test_scan_when_many_rows_then_in_key_order(void **state)
{
    (void)state;
    enum { N = 5000 };
    struct hps_store *store = contract_open();
    if ((store->ops->caps & HPS_STORE_SCANS) == 0) {
        store->ops->close(store);
        skip();
    }
    struct hps_space *space = contract_space_open(store, 1);
    for (uint64_t i = 0; i < N; i++) {
        assert_int_equal(
            contract_put(space, &contract_tables[1], i == 7 ? UINT64_MAX : contract_mix(i), 4),
            HPS_OK);
    }
    assert_int_equal(contract_put(space, &contract_tables[0], 1, 0),
                     HPS_OK); /* of other tables: not scanned */
    assert_int_equal(contract_put(space, &contract_tables[2], 1, 0), HPS_OK);
    struct scan scan = {.space = space, .table = &contract_tables[1], .stop_after = UINT64_MAX};
    assert_int_equal(store->ops->scan(space, &contract_tables[1], scan_row, &scan, &contract_error),
                     HPS_OK);
    assert_int_equal(scan.n, N);
    assert_true(scan.last == UINT64_MAX);
    scan = (struct scan){.space = space, .table = &contract_tables[1], .stop_after = 1};
    assert_int_equal(store->ops->scan(space, &contract_tables[1], scan_row, &scan, &contract_error),
                     HPS_CANCELLED);
    assert_true(scan.n < N);
    contract_drop(space);
    store->ops->close(store);
}

/* ---- threads --------------------------------------------------------------------------------- */

enum { RACE_KEYS = 512, RACE_READERS = 3, RACE_WRITES = HPS_TEST_WORK(5000), RACE_BATCH = 100 };

struct race {
    struct hps_space *space;
    const struct hps_table *table;
    atomic_bool done;
    _Atomic(uint64_t) started[RACE_KEYS]; /* seq of the newest write that has begun */
    _Atomic(uint64_t) ended[RACE_KEYS];   /* seq of the newest write that has ended */
    atomic_uint n_bad;
};

/* The first 8 bytes of a row are its seq. All later bytes depend on key and seq. */
static void race_fill(uint8_t *row, hps_key key, uint64_t seq)
{
    memcpy(row, &seq, sizeof(seq));
    store_contract_fill(row + sizeof(seq), 512 - sizeof(seq), key, seq);
}

static void *race_read(void *ctx)
{
    struct race *race = ctx;
    hps_key keys[RACE_BATCH];
    uint32_t slots[RACE_BATCH];
    uint64_t floor[RACE_BATCH];
    uint8_t *rows = hps_alloc(RACE_BATCH * 512);
    uint64_t random = (uint64_t)(uintptr_t)&keys;
    while (!atomic_load(&race->done)) {
        for (uint32_t i = 0; i < RACE_BATCH; i++) {
            random = contract_mix(random + i);
            keys[i] = random % RACE_KEYS;
            slots[i] = i;
            floor[i] = atomic_load(&race->ended[keys[i]]);
        }
        struct hps_batch batch = {.keys = keys, .slots = slots, .rows = rows, .n = RACE_BATCH};
        hps_status status =
            race->space->store->ops->get(race->space, &contract_no_limit, race->table, &batch);
        bool good = status == HPS_OK;
        for (uint32_t i = batch.n; good && i < RACE_BATCH; i++) {
            const uint8_t *row = rows + (size_t)slots[i] * 512;
            uint64_t seq;
            memcpy(&seq, row, sizeof(seq));
            good = store_contract_check(row + sizeof(seq), 512 - sizeof(seq), keys[i], seq) &&
                   seq >= floor[slots[i]] && seq <= atomic_load(&race->started[keys[i]]);
        }
        if (!good) {
            atomic_fetch_add(&race->n_bad, 1);
        }
        sched_yield(); /* with one lock for the store, the writer may need it */
    }
    hps_free(rows);
    return NULL;
}

/* One writer replaces rows, erases some, and inserts keys that no reader uses, so that indexes
 * grow. */
static void race_write(struct race *race)
{
    const struct hps_store_ops *ops = race->space->store->ops;
    uint8_t row[512];
    for (uint64_t seq = 1; seq <= RACE_WRITES; seq++) {
        hps_key key = contract_mix(seq) % RACE_KEYS;
        atomic_store(&race->started[key], seq);
        race_fill(row, key, seq);
        assert_int_equal(ops->put(race->space, &contract_no_limit, race->table, &key, row, 1),
                         HPS_OK);
        atomic_store(&race->ended[key], seq);
        if (seq % 4 == 0) {
            hps_key other = contract_mix(seq + 1) % RACE_KEYS;
            assert_int_equal(ops->erase(race->space, &contract_no_limit, race->table, &other, 1),
                             HPS_OK);
        }
        if (seq % 8 == 0) {
            hps_key extra = RACE_KEYS + seq;
            race_fill(row, extra, seq);
            assert_int_equal(ops->put(race->space, &contract_no_limit, race->table, &extra, row, 1),
                             HPS_OK);
        }
    }
}

static void test_get_when_raced_by_a_writer_then_no_torn_or_stale_row(void **state)
{
    (void)state;
    struct hps_store *store = contract_open();
    struct hps_space *space = contract_space_open(store, 1);
    struct race *race = hps_calloc(1, sizeof(*race));
    assert_non_null(race);
    race->space = space;
    race->table = &contract_tables[2];
    pthread_t readers[RACE_READERS];
    for (unsigned i = 0; i < RACE_READERS; i++) {
        assert_int_equal(pthread_create(&readers[i], NULL, race_read, race), 0);
    }
    race_write(race);
    atomic_store(&race->done, true);
    for (unsigned i = 0; i < RACE_READERS; i++) {
        pthread_join(readers[i], NULL);
    }
    assert_int_equal(atomic_load(&race->n_bad), 0);
    hps_free(race);
    contract_drop(space);
    store->ops->close(store);
}

/* ---- closed spaces --- */

static void test_space_when_closed_then_kept_by_durable_and_shared_stores(void **state)
{
    (void)state;
    struct hps_store *store = contract_open();
    bool kept = (store->ops->caps & (HPS_STORE_DURABLE | HPS_STORE_SHARED)) != 0;
    struct hps_space *space = contract_space_open(store, 1);
    struct hps_store_load *load = NULL;
    assert_int_equal(contract_load_begin(space, 0, 0, &load), HPS_OK);
    assert_int_equal(contract_load_add(space, load, &contract_tables[0], 1), HPS_OK);
    contract_load_commit(space, load);
    assert_int_equal(contract_put(space, &contract_tables[0], 2, 0), HPS_OK);
    store->ops->space_close(space);
    space = contract_space_open(store, 1);
    assert_int_equal(contract_has(space, &contract_tables[0], 1, 0), kept);
    assert_int_equal(contract_has(space, &contract_tables[0], 2, 0), kept);
    contract_drop(space);
    store->ops->close(store);
}

/* ---- get_many -------------------------------------------------------------------------------- */

enum { MANY_PARTS = 5, MANY_KEYS = 3000 };

/* One part of a test of get_many: all keys are requested, and keys of many_there() exist. */
struct many {
    hps_key keys[MANY_KEYS];
    uint32_t slots[MANY_KEYS];
    uint8_t *rows;
};

static bool many_there(hps_key key)
{
    return contract_mix(key) % 4 != 0;
}

static void many_put(struct hps_space *space, const struct hps_table *table)
{
    uint8_t *rows = hps_alloc((size_t)MANY_KEYS * table->row_bytes);
    hps_key *keys = hps_calloc(MANY_KEYS, sizeof(*keys));
    uint32_t n = 0;
    for (hps_key key = 0; key < MANY_KEYS; key++) {
        if (many_there(key)) {
            keys[n] = key << 50 | key; /* use the high bits, too */
            store_contract_fill(rows + (size_t)n * table->row_bytes, table->row_bytes, keys[n], 3);
            n++;
        }
    }
    assert_int_equal(space->store->ops->put(space, &contract_no_limit, table, keys, rows, n),
                     HPS_OK);
    hps_free(keys);
    hps_free(rows);
}

static void many_ask(struct many *many, const struct hps_table *table, uint32_t n,
                     struct hps_part_batch *part)
{
    for (uint32_t i = 0; i < n; i++) {
        hps_key key = (hps_key)i * 1009 % MANY_KEYS; /* in no order, all different */
        many->keys[i] = key << 50 | key;
        many->slots[i] = n - 1 - i;
    }
    many->rows = hps_calloc(n + 1, table->row_bytes);
    *part = (struct hps_part_batch){
        table, {.keys = many->keys, .slots = many->slots, .rows = many->rows, .n = n}};
}

static void many_check(const struct many *many, const struct hps_part_batch *part, uint32_t n)
{
    uint32_t row_bytes = part->table->row_bytes;
    for (uint32_t i = 0; i < n; i++) {
        hps_key key = many->keys[i] & ((UINT64_C(1) << 50) - 1);
        const uint8_t *row = many->rows + (size_t)many->slots[i] * row_bytes;
        assert_int_equal(many_there(key), i >= part->batch.n);
        assert_true((hps_key)(n - 1 - many->slots[i]) * 1009 % MANY_KEYS == key);
        assert_true(i < part->batch.n || store_contract_check(row, row_bytes, many->keys[i], 3));
    }
}

static void test_get_many_when_parts_are_mixed_then_as_table_by_table(void **state)
{
    (void)state;
    static const uint32_t of_table[MANY_PARTS] = {2, 0, 0, 1, 2}; /* unordered, with repeats */
    static const uint32_t n_keys[MANY_PARTS] = {MANY_KEYS, 700, 1, 0, MANY_KEYS};
    struct hps_store *store = contract_open();
    struct hps_space *space = contract_space_open(store, 1);
    struct hps_part_batch parts[MANY_PARTS];
    struct many *many = hps_calloc(MANY_PARTS, sizeof(*many));
    assert_non_null(many);
    many_put(space, &contract_tables[0]);
    many_put(space, &contract_tables[2]);
    assert_int_equal(store->ops->get_many(space, &contract_no_limit, parts, 0), HPS_OK);
    for (unsigned i = 0; i < MANY_PARTS; i++) {
        many_ask(&many[i], &contract_tables[of_table[i]], n_keys[i], &parts[i]);
    }
    assert_int_equal(store->ops->get_many(space, &contract_no_limit, parts, MANY_PARTS), HPS_OK);
    for (unsigned i = 0; i < MANY_PARTS; i++) {
        many_check(&many[i], &parts[i], n_keys[i]);
        hps_free(many[i].rows);
    }
    hps_clock_fake(1000);
    many_ask(&many[0], &contract_tables[0], 100, &parts[0]);
    struct hps_call late = {.deadline_us = 1000};
    assert_int_equal(store->ops->get_many(space, &late, parts, 1), HPS_DEADLINE);
    assert_int_equal(parts[0].batch.n, 100);
    hps_clock_real();
    hps_free(many[0].rows);
    hps_free(many);
    contract_drop(space);
    store->ops->close(store);
}

int contract_core_run(const char *name)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_get_when_empty_then_all_are_missing, contract_clean),
        cmocka_unit_test_teardown(test_get_when_a_shape_is_given_then_rows_have_it_or_it_is_ignored,
                                  contract_clean),
        cmocka_unit_test_teardown(test_put_when_repeated_then_the_last_row_is_read, contract_clean),
        cmocka_unit_test_teardown(test_put_when_key_twice_in_batch_then_the_last_wins,
                                  contract_clean),
        cmocka_unit_test_teardown(test_erase_when_present_or_absent_then_missing, contract_clean),
        cmocka_unit_test_teardown(test_calls_when_no_keys_then_ok, contract_clean),
        cmocka_unit_test_teardown(test_keys_when_at_the_edges_then_all_valid, contract_clean),
        cmocka_unit_test_teardown(
            test_get_when_mixed_then_batch_is_permuted_and_rows_are_in_their_slots, contract_clean),
        cmocka_unit_test_teardown(test_rows_when_of_any_width_then_read_back_unchanged,
                                  contract_clean),
        cmocka_unit_test_teardown(test_get_when_deadline_passed_then_deadline_and_batch_unchanged,
                                  contract_clean),
        cmocka_unit_test_teardown(test_get_when_scratch_is_too_small_then_all_rows_are_read,
                                  contract_clean),
        cmocka_unit_test_teardown(test_tables_and_versions_when_same_keys_then_apart,
                                  contract_clean),
        cmocka_unit_test_teardown(test_space_when_open_twice_then_exists, contract_clean),
        cmocka_unit_test_teardown(test_insert_when_some_exist_or_are_stale_then_only_new_fresh_rows,
                                  contract_clean),
        cmocka_unit_test_teardown(test_drop_when_opened_again_then_empty, contract_clean),
        cmocka_unit_test_teardown(test_usage_when_rows_exist_then_counts_them, contract_clean),
        cmocka_unit_test_teardown(test_put_when_over_budget_then_no_older_row_is_left,
                                  contract_clean),
        cmocka_unit_test_teardown(test_scan_when_many_rows_then_in_key_order, contract_clean),
        cmocka_unit_test_teardown(test_get_when_raced_by_a_writer_then_no_torn_or_stale_row,
                                  contract_clean),
        cmocka_unit_test_teardown(test_space_when_closed_then_kept_by_durable_and_shared_stores,
                                  contract_clean),
        cmocka_unit_test_teardown(test_get_many_when_parts_are_mixed_then_as_table_by_table,
                                  contract_clean),
    };
    return cmocka_run_group_tests_name(name, tests, NULL, NULL);
}
