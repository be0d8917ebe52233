/* SPDX-License-Identifier: Apache-2.0
 *
 * The contract of backends/store.h as tests. Each test gets a fresh store; those with threads start
 * and join their own.
 */
#include "tests/contract/store_contract.h"

// clang-format off
#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "backends/store_bulk.h"
#include "backends/store_durable.h"
#include "base/clock.h"
#include "base/heap.h"
#include "tests/lib/work.h"

enum { N_TABLES = 3, DEFAULT_BUDGET_MIB = 512 };

static const struct store_contract *contract;
static struct hps_error error;

static const uint8_t default_row[4096 * 4];
static const struct hps_call no_limit = {0};

static struct hps_table tables[N_TABLES] = {
    {.name = "a",
     .id = 0,
     .dim = 16,
     .row_bytes = 64,
     .dtype = HPS_DTYPE_FP32,
     .default_row = default_row},
    {.name = "b",
     .id = 1,
     .dim = 3,
     .row_bytes = 6,
     .dtype = HPS_DTYPE_FP16,
     .default_row = default_row},
    {.name = "c",
     .id = 2,
     .dim = 128,
     .row_bytes = 512,
     .dtype = HPS_DTYPE_FP32,
     .default_row = default_row},
};

/* ---- helpers --------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t x)
{
    x ^= x >> 30;
    x *= UINT64_C(0xbf58476d1ce4e5b9);
    x ^= x >> 27;
    x *= UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

void store_contract_fill(uint8_t *row, size_t row_bytes, hps_key key, uint64_t seq)
{
    uint64_t word = mix(key ^ mix(seq + 1));
    for (size_t i = 0; i < row_bytes; i++) {
        row[i] = (uint8_t)((word >> (8 * (i % 8))) + i / 8);
    }
}

bool store_contract_check(const uint8_t *row, size_t row_bytes, hps_key key, uint64_t seq)
{
    uint64_t word = mix(key ^ mix(seq + 1));
    for (size_t i = 0; i < row_bytes; i++) {
        if (row[i] != (uint8_t)((word >> (8 * (i % 8))) + i / 8)) {
            return false;
        }
    }
    return true;
}

static struct hps_store *store_open_bytes(uint64_t bytes_max)
{
    struct hps_store *store = NULL;
    hps_status status = contract->open(contract->ctx, bytes_max, &store, &error);
    if (status != HPS_OK) {
        fail_msg("open: %s", error.text);
    }
    hps_store_check(store->ops);
    return store;
}

static struct hps_store *store_open(void)
{
    return store_open_bytes((uint64_t)DEFAULT_BUDGET_MIB << 20);
}

static bool durable(const struct hps_store *store)
{
    return (store->ops->caps & HPS_STORE_DURABLE) != 0;
}

static struct hps_space *space_open_tables(struct hps_store *store, int64_t version,
                                           const struct hps_table *of, uint32_t n)
{
    struct hps_space_id id = {.model = "m", .version = version, .tables = of, .n_tables = n};
    struct hps_space *space = NULL;
    hps_status status = store->ops->space_open(store, &id, &space, &error);
    if (status != HPS_OK) {
        fail_msg("space_open: %s", error.text);
    }
    return space;
}

static struct hps_space *space_open(struct hps_store *store, int64_t version)
{
    return space_open_tables(store, version, tables, N_TABLES);
}

static hps_status put(struct hps_space *space, const struct hps_table *table, hps_key key,
                      uint64_t seq)
{
    uint8_t row[sizeof(default_row)];
    store_contract_fill(row, table->row_bytes, key, seq);
    return space->store->ops->put(space, &no_limit, table, &key, row, 1);
}

static hps_status erase(struct hps_space *space, const struct hps_table *table, hps_key key)
{
    return space->store->ops->erase(space, &no_limit, table, &key, 1);
}

/* Is the key there? If so its row must be that of `seq`. */
static bool has(struct hps_space *space, const struct hps_table *table, hps_key key, uint64_t seq)
{
    uint8_t row[sizeof(default_row)];
    hps_key keys[1] = {key};
    uint32_t slots[1] = {0};
    struct hps_batch batch = {keys, slots, row, 1};
    assert_int_equal(space->store->ops->get(space, &no_limit, table, &batch), HPS_OK);
    assert_true(keys[0] == key);
    if (batch.n == 0) {
        assert_true(store_contract_check(row, table->row_bytes, key, seq));
    }
    return batch.n == 0;
}

static hps_status load_begin(struct hps_space *space, uint64_t rows, uint64_t bytes,
                             struct hps_store_load **out_load)
{
    return space->store->ops->bulk->begin(space, rows, bytes, out_load, &error);
}

static hps_status load_add(struct hps_space *space, struct hps_store_load *load,
                           const struct hps_table *table, hps_key key)
{
    uint8_t row[sizeof(default_row)];
    store_contract_fill(row, table->row_bytes, key, 0);
    return space->store->ops->bulk->add(load, table, &key, row, 1, &error);
}

static void load_commit(struct hps_space *space, struct hps_store_load *load)
{
    assert_int_equal(space->store->ops->bulk->commit(load, &error), HPS_OK);
}

static void drop(struct hps_space *space)
{
    assert_int_equal(space->store->ops->space_drop(space, &error), HPS_OK);
}

static int clean(void **state)
{
    (void)state;
    hps_clock_real();
    if (contract->clean != NULL) {
        contract->clean(contract->ctx);
    }
    return 0;
}

/* ---- get, put, erase ------------------------------------------------------------------------- */

static void test_get_when_empty_then_all_are_missing(void **state)
{
    (void)state;
    struct hps_store *store = store_open();
    struct hps_space *space = space_open(store, 1);
    hps_key keys[3] = {5, 0, UINT64_MAX};
    uint32_t slots[3] = {0, 1, 2};
    uint8_t rows[3 * 64];
    struct hps_batch batch = {keys, slots, rows, 3};
    assert_int_equal(store->ops->get(space, &no_limit, &tables[0], &batch), HPS_OK);
    assert_int_equal(batch.n, 3);
    drop(space);
    store->ops->close(store);
}

static void test_put_when_repeated_then_the_last_row_is_read(void **state)
{
    (void)state;
    struct hps_store *store = store_open();
    struct hps_space *space = space_open(store, 1);
    for (uint64_t seq = 0; seq < 2000; seq++) {
        assert_int_equal(put(space, &tables[0], 7, seq), HPS_OK);
        assert_true(has(space, &tables[0], 7, seq));
    }
    assert_false(has(space, &tables[0], 8, 0));
    drop(space);
    store->ops->close(store);
}

static void test_put_when_key_twice_in_batch_then_the_last_wins(void **state)
{
    (void)state;
    struct hps_store *store = store_open();
    struct hps_space *space = space_open(store, 1);
    hps_key keys[3] = {9, 4, 9};
    uint8_t rows[3 * 64];
    for (unsigned i = 0; i < 3; i++) {
        store_contract_fill(rows + i * 64, 64, keys[i], i);
    }
    assert_int_equal(store->ops->put(space, &no_limit, &tables[0], keys, rows, 3), HPS_OK);
    assert_true(has(space, &tables[0], 9, 2));
    assert_true(has(space, &tables[0], 4, 1));
    drop(space);
    store->ops->close(store);
}

static void test_erase_when_present_or_absent_then_missing(void **state)
{
    (void)state;
    struct hps_store *store = store_open();
    struct hps_space *space = space_open(store, 1);
    for (uint64_t round = 0; round < 50; round++) {
        for (hps_key key = 0; key < 40; key++) {
            assert_int_equal(put(space, &tables[1], key, round), HPS_OK);
        }
        for (hps_key key = 0; key < 80; key += 2) {
            assert_int_equal(erase(space, &tables[1], key), HPS_OK);
        }
        for (hps_key key = 0; key < 80; key++) {
            assert_int_equal(has(space, &tables[1], key, round), key % 2 == 1 && key < 40);
        }
    }
    drop(space);
    store->ops->close(store);
}

static void test_calls_when_no_keys_then_nothing_happens(void **state)
{
    (void)state;
    struct hps_store *store = store_open();
    struct hps_space *space = space_open(store, 1);
    struct hps_batch batch = {NULL, NULL, NULL, 0};
    assert_int_equal(store->ops->get(space, &no_limit, &tables[0], &batch), HPS_OK);
    assert_int_equal(store->ops->put(space, &no_limit, &tables[0], NULL, NULL, 0), HPS_OK);
    assert_int_equal(store->ops->erase(space, &no_limit, &tables[0], NULL, 0), HPS_OK);
    drop(space);
    store->ops->close(store);
}

static void test_keys_when_at_the_edges_then_all_legal(void **state)
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
    struct hps_store *store = store_open();
    struct hps_space *space = space_open(store, 1);
    for (unsigned i = 0; i < N; i++) {
        assert_false(has(space, &tables[2], edges[i], 0));
        assert_int_equal(put(space, &tables[2], edges[i], 3), HPS_OK);
    }
    for (unsigned i = 0; i < N; i++) {
        assert_true(has(space, &tables[2], edges[i], 3));
        assert_int_equal(erase(space, &tables[2], edges[i]), HPS_OK);
        assert_false(has(space, &tables[2], edges[i], 3));
    }
    drop(space);
    store->ops->close(store);
}

/* Random keys, every third present, some twice; slots in random order. */
static void test_get_when_mixed_then_batch_is_permuted_and_rows_lie_in_their_slots(void **state)
{
    (void)state;
    enum { N = 1000 };
    struct hps_store *store = store_open();
    struct hps_space *space = space_open(store, 1);
    const struct hps_table *table = &tables[0];
    hps_key *keys = hps_alloc(N * sizeof(*keys));
    hps_key *by_slot = hps_alloc(N * sizeof(*by_slot));
    uint32_t *slots = hps_alloc(N * sizeof(*slots));
    uint8_t *rows = hps_calloc(N, table->row_bytes);
    bool *seen = hps_calloc(N, sizeof(*seen));
    uint32_t n_there = 0;
    for (uint32_t i = 0; i < N; i++) {
        keys[i] = mix(i % 900); /* 100 duplicates */
        slots[i] = (uint32_t)((i * 617 + 5) % N);
        by_slot[slots[i]] = keys[i];
        n_there += i % 900 % 3 == 0;
        if (i < 900 && i % 3 == 0) {
            assert_int_equal(put(space, table, keys[i], 1), HPS_OK);
        }
    }
    struct hps_batch batch = {keys, slots, rows, N};
    assert_int_equal(store->ops->get(space, &no_limit, table, &batch), HPS_OK);
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
    drop(space);
    store->ops->close(store);
}

static void test_rows_when_of_any_width_then_come_back_whole(void **state)
{
    (void)state;
    static const uint32_t dims[] = {1, 2, 3, 5, 16, 17, 100, 128, 1000, 4095, 4096};
    enum { N = sizeof(dims) / sizeof(dims[0]) };
    struct hps_table wide[N];
    for (uint32_t i = 0; i < N; i++) {
        wide[i] = (struct hps_table){.name = "w",
                                     .id = i,
                                     .dim = dims[i],
                                     .row_bytes = dims[i] * 4,
                                     .dtype = HPS_DTYPE_FP32,
                                     .default_row = default_row};
    }
    struct hps_store *store = store_open();
    struct hps_space *space = space_open_tables(store, 1, wide, N);
    for (uint32_t i = 0; i < N; i++) {
        for (hps_key key = 0; key < 50; key++) {
            assert_int_equal(put(space, &wide[i], key, i), HPS_OK);
        }
    }
    for (uint32_t i = 0; i < N; i++) {
        for (hps_key key = 0; key < 50; key++) {
            assert_true(has(space, &wide[i], key, i));
        }
    }
    drop(space);
    store->ops->close(store);
}

static void test_get_when_deadline_passed_then_deadline_and_batch_whole(void **state)
{
    (void)state;
    struct hps_store *store = store_open();
    struct hps_space *space = space_open(store, 1);
    assert_int_equal(put(space, &tables[0], 1, 0), HPS_OK);
    hps_clock_fake(1000);
    struct hps_call late = {.deadline_us = 999};
    hps_key keys[2] = {1, 2};
    uint32_t slots[2] = {0, 1};
    uint8_t rows[128];
    struct hps_batch batch = {keys, slots, rows, 2};
    assert_int_equal(store->ops->get(space, &late, &tables[0], &batch), HPS_DEADLINE);
    assert_int_equal(batch.n, 2);
    assert_int_equal(keys[slots[0] == 0 ? 0 : 1], 1);
    struct hps_call early = {.deadline_us = 1000 + 60000000};
    assert_int_equal(store->ops->get(space, &early, &tables[0], &batch), HPS_OK);
    assert_int_equal(batch.n, 1);
    hps_clock_real();
    drop(space);
    store->ops->close(store);
}

static void test_get_when_scratch_is_too_small_then_still_answers(void **state)
{
    (void)state;
    struct hps_store *store = store_open();
    struct hps_space *space = space_open(store, 1);
    assert_int_equal(put(space, &tables[0], 1, 0), HPS_OK);
    struct hps_arena *arena = hps_arena_new(64, 64);
    assert_non_null(arena);
    struct hps_call call = {.scratch = arena};
    hps_key keys[2] = {1, 2};
    uint32_t slots[2] = {0, 1};
    uint8_t rows[128];
    struct hps_batch batch = {keys, slots, rows, 2};
    assert_int_equal(store->ops->get(space, &call, &tables[0], &batch), HPS_OK);
    assert_int_equal(batch.n, 1);
    hps_arena_free(arena);
    drop(space);
    store->ops->close(store);
}

/* ---- spaces ---------------------------------------------------------------------------------- */

static void test_tables_and_versions_when_same_keys_then_apart(void **state)
{
    (void)state;
    struct hps_store *store = store_open();
    struct hps_space *one = space_open(store, 1);
    struct hps_space *two = space_open(store, 2);
    assert_int_equal(put(one, &tables[0], 1, 10), HPS_OK);
    assert_int_equal(put(one, &tables[2], 1, 11), HPS_OK);
    assert_int_equal(put(two, &tables[0], 1, 20), HPS_OK);
    assert_true(has(one, &tables[0], 1, 10));
    assert_true(has(one, &tables[2], 1, 11));
    assert_false(has(one, &tables[1], 1, 0));
    assert_true(has(two, &tables[0], 1, 20));
    assert_false(has(two, &tables[2], 1, 0));
    assert_int_equal(erase(one, &tables[0], 1), HPS_OK);
    assert_true(has(one, &tables[2], 1, 11));
    drop(one);
    assert_true(has(two, &tables[0], 1, 20));
    drop(two);
    store->ops->close(store);
}

static void test_space_when_open_twice_then_exists(void **state)
{
    (void)state;
    struct hps_store *store = store_open();
    struct hps_space *space = space_open(store, 1);
    struct hps_space_id id = {.model = "m", .version = 1, .tables = tables, .n_tables = N_TABLES};
    struct hps_space *other = NULL;
    assert_int_equal(store->ops->space_open(store, &id, &other, &error), HPS_EXISTS);
    assert_null(other);
    drop(space);
    store->ops->close(store);
}

static bool odd_index(const void *ctx, uint32_t i)
{
    (void)ctx;
    return i % 2 == 1;
}

static void test_insert_when_some_are_there_or_stale_then_only_new_fresh_rows(void **state)
{
    (void)state;
    enum { N = 100 };
    struct hps_store *store = store_open();
    struct hps_space *space = space_open(store, 1);
    const struct hps_insert_guard guard = {odd_index, NULL};
    struct hps_insert_report report = {0};
    static uint8_t rows[N * sizeof(default_row)];
    hps_key keys[N];
    uint32_t slots[N];
    if ((store->ops->caps & HPS_STORE_INSERTS) == 0) {
        drop(space);
        store->ops->close(store);
        skip();
    }
    for (uint32_t i = 0; i < N; i++) {
        keys[i] = 1000 + i;
        slots[i] = N - 1 - i;
        store_contract_fill(rows + (size_t)slots[i] * tables[1].row_bytes, tables[1].row_bytes,
                            keys[i], 7);
    }
    assert_int_equal(put(space, &tables[1], keys[1], 9), HPS_OK);
    assert_int_equal(
        store->ops->insert(space, &no_limit, &tables[1], keys, slots, rows, N, &guard, &report),
        HPS_OK);
    assert_int_equal(report.n_inserted, N / 2 - 1);
    assert_int_equal(report.n_stale, N / 2);
    assert_int_equal(report.n_no_room, 0);
    assert_true(has(space, &tables[1], keys[1], 9)); /* newer than what was found below */
    assert_false(has(space, &tables[1], keys[2], 7));
    assert_int_equal(
        store->ops->insert(space, &no_limit, &tables[1], keys, slots, rows, N, NULL, &report),
        HPS_OK);
    assert_int_equal(report.n_inserted, N / 2);
    for (uint32_t i = 0; i < N; i++) {
        assert_true(has(space, &tables[1], keys[i], i == 1 ? 9 : 7));
    }
    drop(space);
    store->ops->close(store);
}

static void test_drop_when_opened_again_then_empty(void **state)
{
    (void)state;
    struct hps_store *store = store_open();
    for (uint64_t round = 0; round < 3; round++) {
        struct hps_space *space = space_open(store, 1);
        assert_false(has(space, &tables[0], 1, 0));
        assert_int_equal(put(space, &tables[0], 1, round), HPS_OK);
        drop(space);
    }
    store->ops->close(store);
}

static void test_usage_when_rows_are_there_then_counts_them(void **state)
{
    (void)state;
    struct hps_store *store = store_open();
    struct hps_space *space = space_open(store, 1);
    for (hps_key key = 0; key < 100; key++) {
        assert_int_equal(put(space, &tables[0], key, 0), HPS_OK);
    }
    struct hps_store_usage usage;
    store->ops->space_usage(space, &usage);
    assert_int_equal(usage.n_rows, 100);
    assert_true(usage.used_bytes >= 100 * 64);
    drop(space);
    store->ops->close(store);
}

/* ---- loads ----------------------------------------------------------------------------------- */

static void test_load_when_committed_then_visible_at_once(void **state)
{
    (void)state;
    enum { N = 3000 };
    struct hps_store *store = store_open();
    struct hps_space *space = space_open(store, 1);
    struct hps_store_load *load = NULL;
    assert_int_equal(load_begin(space, N * 2, N * (64 + 512), &load), HPS_OK);
    for (hps_key key = 0; key < N; key++) {
        assert_int_equal(load_add(space, load, &tables[0], key * 3), HPS_OK);
    }
    for (hps_key key = 0; key < N; key++) {
        assert_int_equal(load_add(space, load, &tables[2], UINT64_MAX - N + key + 1), HPS_OK);
    }
    assert_false(has(space, &tables[0], 3, 0));
    load_commit(space, load);
    for (hps_key key = 0; key < N; key++) {
        assert_true(has(space, &tables[0], key * 3, 0));
        assert_false(has(space, &tables[0], key * 3 + 1, 0));
        assert_true(has(space, &tables[2], UINT64_MAX - key, 0));
    }
    assert_int_equal(put(space, &tables[0], 3, 5), HPS_OK); /* updates go over loaded rows */
    assert_true(has(space, &tables[0], 3, 5));
    assert_int_equal(erase(space, &tables[0], 6), HPS_OK);
    assert_false(has(space, &tables[0], 6, 0));
    drop(space);
    store->ops->close(store);
}

static void test_load_when_aborted_then_space_is_empty(void **state)
{
    (void)state;
    struct hps_store *store = store_open();
    struct hps_space *space = space_open(store, 1);
    for (unsigned round = 0; round < 2; round++) {
        struct hps_store_load *load = NULL;
        assert_int_equal(load_begin(space, 0, 0, &load), HPS_OK);
        assert_int_equal(load_add(space, load, &tables[0], 1), HPS_OK);
        store->ops->bulk->abort(load);
        assert_false(has(space, &tables[0], 1, 0));
    }
    struct hps_store_load *load = NULL; /* and it may be loaded after all */
    assert_int_equal(load_begin(space, 0, 0, &load), HPS_OK);
    assert_int_equal(load_add(space, load, &tables[0], 1), HPS_OK);
    load_commit(space, load);
    assert_true(has(space, &tables[0], 1, 0));
    drop(space);
    store->ops->close(store);
}

static void test_load_when_empty_then_commits(void **state)
{
    (void)state;
    struct hps_store *store = store_open();
    struct hps_space *space = space_open(store, 1);
    struct hps_store_load *load = NULL;
    assert_int_equal(load_begin(space, 0, 0, &load), HPS_OK);
    load_commit(space, load);
    assert_false(has(space, &tables[0], 1, 0));
    drop(space);
    store->ops->close(store);
}

static void test_load_when_out_of_order_then_invalid(void **state)
{
    (void)state;
    struct hps_store *store = store_open();
    struct hps_space *space = space_open(store, 1);
    struct hps_store_load *load = NULL;
    assert_int_equal(load_begin(space, 0, 0, &load), HPS_OK);
    assert_int_equal(load_add(space, load, &tables[0], 7), HPS_OK);
    assert_int_equal(load_add(space, load, &tables[0], 7), HPS_INVALID);
    store->ops->bulk->abort(load);
    assert_int_equal(load_begin(space, 0, 0, &load), HPS_OK);
    assert_int_equal(load_add(space, load, &tables[0], UINT64_MAX), HPS_OK);
    assert_int_equal(load_add(space, load, &tables[0], 1), HPS_INVALID); /* unsigned order */
    store->ops->bulk->abort(load);
    assert_int_equal(load_begin(space, 0, 0, &load), HPS_OK);
    assert_int_equal(load_add(space, load, &tables[1], 1), HPS_OK);
    assert_int_equal(load_add(space, load, &tables[0], 2), HPS_INVALID);
    store->ops->bulk->abort(load);
    assert_false(has(space, &tables[1], 1, 0));
    drop(space);
    store->ops->close(store);
}

static void test_load_when_space_is_not_empty_or_loading_then_refused(void **state)
{
    (void)state;
    struct hps_store *store = store_open();
    struct hps_space *space = space_open(store, 1);
    struct hps_store_load *load = NULL;
    struct hps_store_load *other = NULL;
    assert_int_equal(load_begin(space, 0, 0, &load), HPS_OK);
    assert_int_equal(load_begin(space, 0, 0, &other), HPS_PRECONDITION);
    store->ops->bulk->abort(load);
    assert_int_equal(put(space, &tables[0], 1, 0), HPS_OK);
    assert_int_equal(load_begin(space, 0, 0, &other), HPS_PRECONDITION);
    assert_null(other);
    drop(space);
    store->ops->close(store);
}

static void test_load_when_over_budget_then_refused_with_numbers(void **state)
{
    (void)state;
    if (!contract->budget) {
        skip();
    }
    struct hps_store *store = store_open_bytes(1 << 20);
    struct hps_space *space = space_open(store, 1);
    struct hps_store_load *load = NULL;
    assert_int_equal(load_begin(space, 100000, 100000 * 64, &load), HPS_EXHAUSTED);
    assert_null(load);
    assert_non_null(strstr(error.text, "needs") != NULL ? "" : strstr(error.text, "needed"));
    assert_int_equal(load_begin(space, 0, 0, &load), HPS_OK); /* unknown size: found out later */
    hps_status status = HPS_OK;
    for (hps_key key = 0; status == HPS_OK; key++) {
        status = load_add(space, load, &tables[2], key);
        assert_true(key < 4096);
    }
    assert_int_equal(status, HPS_EXHAUSTED);
    store->ops->bulk->abort(load);
    assert_int_equal(put(space, &tables[0], 1, 0), HPS_OK); /* all given back */
    drop(space);
    store->ops->close(store);
}

static void test_put_when_over_budget_then_no_older_row_is_left(void **state)
{
    (void)state;
    if (!contract->budget) {
        skip();
    }
    enum { N = 64 };
    struct hps_store *store = store_open_bytes(1 << 20);
    struct hps_space *space = space_open(store, 1);
    const struct hps_table *table = &tables[2];
    hps_key key = 0;
    while (put(space, table, key, 0) == HPS_OK) {
        key++;
        assert_true(key < 4096);
    }
    assert_true(key > 1000);
    hps_key keys[N];
    uint8_t *rows = hps_alloc(N * 512);
    for (unsigned i = 0; i < N; i++) {
        keys[i] = i % 2 == 0 ? 1000000 + i : i; /* new ones do not fit; old ones are replaced */
        store_contract_fill(rows + i * 512, 512, keys[i], 1);
    }
    assert_int_equal(store->ops->put(space, &no_limit, table, keys, rows, N), HPS_EXHAUSTED);
    for (unsigned i = 0; i < N; i++) {
        (void)has(space, table, keys[i], 1); /* if there, then the new row */
    }
    assert_true(has(space, table, 500, 0));
    assert_int_equal(put(space, table, 500, 9), HPS_OK); /* a full store still takes updates */
    assert_true(has(space, table, 500, 9));
    hps_free(rows);
    drop(space);
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
    /* Who is given rows may ask for others. */
    hps_key key = keys[0];
    uint32_t slot = 0;
    uint8_t row[512];
    struct hps_batch batch = {&key, &slot, row, 1};
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
    struct hps_store *store = store_open();
    if ((store->ops->caps & HPS_STORE_SCANS) == 0) {
        store->ops->close(store);
        skip();
    }
    struct hps_space *space = space_open(store, 1);
    for (uint64_t i = 0; i < N; i++) {
        assert_int_equal(put(space, &tables[1], i == 7 ? UINT64_MAX : mix(i), 4), HPS_OK);
    }
    assert_int_equal(put(space, &tables[0], 1, 0), HPS_OK); /* of other tables: not seen */
    assert_int_equal(put(space, &tables[2], 1, 0), HPS_OK);
    struct scan scan = {.space = space, .table = &tables[1], .stop_after = UINT64_MAX};
    assert_int_equal(store->ops->scan(space, &tables[1], scan_row, &scan, &error), HPS_OK);
    assert_int_equal(scan.n, N);
    assert_true(scan.last == UINT64_MAX);
    scan = (struct scan){.space = space, .table = &tables[1], .stop_after = 1};
    assert_int_equal(store->ops->scan(space, &tables[1], scan_row, &scan, &error), HPS_CANCELLED);
    assert_true(scan.n < N);
    drop(space);
    store->ops->close(store);
}

/* ---- threads --------------------------------------------------------------------------------- */

enum { RACE_KEYS = 512, RACE_READERS = 3, RACE_WRITES = HPS_TEST_WORK(20000), RACE_BATCH = 100 };

struct race {
    struct hps_space *space;
    const struct hps_table *table;
    atomic_bool done;
    _Atomic(uint64_t) started[RACE_KEYS]; /* seq of the newest write begun */
    _Atomic(uint64_t) ended[RACE_KEYS];   /* seq of the newest write done */
    atomic_uint n_bad;
};

/* Rows tell their seq in the first 8 bytes, behind which every byte depends on key and seq. */
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
            random = mix(random + i);
            keys[i] = random % RACE_KEYS;
            slots[i] = i;
            floor[i] = atomic_load(&race->ended[keys[i]]);
        }
        struct hps_batch batch = {keys, slots, rows, RACE_BATCH};
        hps_status status =
            race->space->store->ops->get(race->space, &no_limit, race->table, &batch);
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
        sched_yield(); /* the writer must get its turn where the store has one lock for all */
    }
    hps_free(rows);
    return NULL;
}

/* One writer replaces rows, erases some, and inserts keys that nobody reads so that indexes grow.
 */
static void race_write(struct race *race)
{
    const struct hps_store_ops *ops = race->space->store->ops;
    uint8_t row[512];
    for (uint64_t seq = 1; seq <= RACE_WRITES; seq++) {
        hps_key key = mix(seq) % RACE_KEYS;
        atomic_store(&race->started[key], seq);
        race_fill(row, key, seq);
        assert_int_equal(ops->put(race->space, &no_limit, race->table, &key, row, 1), HPS_OK);
        atomic_store(&race->ended[key], seq);
        if (seq % 4 == 0) {
            hps_key other = mix(seq + 1) % RACE_KEYS;
            assert_int_equal(ops->erase(race->space, &no_limit, race->table, &other, 1), HPS_OK);
        }
        if (seq % 8 == 0) {
            hps_key extra = RACE_KEYS + seq;
            race_fill(row, extra, seq);
            assert_int_equal(ops->put(race->space, &no_limit, race->table, &extra, row, 1), HPS_OK);
        }
    }
}

static void test_get_when_raced_by_a_writer_then_no_torn_or_stale_row(void **state)
{
    (void)state;
    struct hps_store *store = store_open();
    struct hps_space *space = space_open(store, 1);
    struct race *race = hps_calloc(1, sizeof(*race));
    assert_non_null(race);
    race->space = space;
    race->table = &tables[2];
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
    drop(space);
    store->ops->close(store);
}

static void *commit_reader(void *ctx)
{
    struct race *race = ctx;
    while (!atomic_load(&race->done)) {
        /* the second table must be there whenever the first is: they appear together */
        if (has(race->space, &tables[0], 5, 0) && !has(race->space, &tables[2], 5, 0)) {
            atomic_fetch_add(&race->n_bad, 1);
        }
    }
    return NULL;
}

static void test_load_when_committed_under_readers_then_tables_appear_together(void **state)
{
    (void)state;
    struct hps_store *store = store_open();
    for (int64_t version = 1; version <= 3; version++) {
        struct race *race = hps_calloc(1, sizeof(*race));
        assert_non_null(race);
        race->space = space_open(store, version);
        pthread_t reader;
        assert_int_equal(pthread_create(&reader, NULL, commit_reader, race), 0);
        struct hps_store_load *load = NULL;
        assert_int_equal(load_begin(race->space, 0, 0, &load), HPS_OK);
        for (hps_key key = 0; key < 100; key++) {
            assert_int_equal(load_add(race->space, load, &tables[0], key), HPS_OK);
        }
        for (hps_key key = 0; key < 100; key++) {
            assert_int_equal(load_add(race->space, load, &tables[2], key), HPS_OK);
        }
        load_commit(race->space, load);
        assert_true(has(race->space, &tables[0], 99, 0));
        atomic_store(&race->done, true);
        pthread_join(reader, NULL);
        assert_int_equal(atomic_load(&race->n_bad), 0);
        drop(race->space);
        hps_free(race);
    }
    store->ops->close(store);
}

/* ---- durable stores -------------------------------------------------------------------------- */

struct listed {
    unsigned n;
    int64_t version_sum;
    char text[256];
};

static hps_status list_space(void *ctx, const char *model, int64_t version)
{
    struct listed *listed = ctx;
    assert_string_equal(model, "m");
    listed->n++;
    listed->version_sum += version;
    return HPS_OK;
}

static hps_status list_record(void *ctx, const void *key, size_t key_size, const void *value,
                              size_t value_size)
{
    struct listed *listed = ctx;
    size_t used = strlen(listed->text);
    (void)snprintf(listed->text + used, sizeof(listed->text) - used, "%.*s=%.*s;", (int)key_size,
                   (const char *)key, (int)value_size, (const char *)value);
    listed->n++;
    return HPS_OK;
}

static void test_space_when_closed_then_kept_by_durable_and_shared_stores(void **state)
{
    (void)state;
    struct hps_store *store = store_open();
    bool kept = durable(store) || (store->ops->caps & HPS_STORE_SHARED) != 0;
    struct hps_space *space = space_open(store, 1);
    struct hps_store_load *load = NULL;
    assert_int_equal(load_begin(space, 0, 0, &load), HPS_OK);
    assert_int_equal(load_add(space, load, &tables[0], 1), HPS_OK);
    load_commit(space, load);
    assert_int_equal(put(space, &tables[0], 2, 0), HPS_OK);
    store->ops->space_close(space);
    space = space_open(store, 1);
    assert_int_equal(has(space, &tables[0], 1, 0), kept);
    assert_int_equal(has(space, &tables[0], 2, 0), kept);
    drop(space);
    store->ops->close(store);
}

static void test_spaces_when_durable_then_listed_until_dropped(void **state)
{
    (void)state;
    struct hps_store *store = store_open();
    if (!durable(store)) {
        assert_null(store->ops->durable);
        store->ops->close(store);
        skip();
    }
    struct hps_space *one = space_open(store, 100);
    struct hps_space *two = space_open(store, 20);
    store->ops->space_close(two);
    struct listed listed = {0};
    assert_int_equal(store->ops->durable->space_list(store, list_space, &listed, &error), HPS_OK);
    assert_int_equal(listed.n, 2);
    assert_int_equal(listed.version_sum, 120);
    drop(one);
    listed = (struct listed){0};
    assert_int_equal(store->ops->durable->space_list(store, list_space, &listed, &error), HPS_OK);
    assert_int_equal(listed.version_sum, 20);
    assert_true(store->ops->durable->bytes_free(store) > 0);
    store->ops->close(store);
}

static void test_records_when_put_and_deleted_then_scanned_in_order(void **state)
{
    (void)state;
    struct hps_store *store = store_open();
    if (!durable(store)) {
        store->ops->close(store);
        skip();
    }
    const struct hps_store_ops *ops = store->ops;
    assert_int_equal(ops->durable->record_put(store, "b", 1, "2", 1, &error), HPS_OK);
    assert_int_equal(ops->durable->record_put(store, "ab", 2, "x", 1, &error), HPS_OK);
    assert_int_equal(ops->durable->record_put(store, "a", 1, "", 0, &error), HPS_OK);
    assert_int_equal(ops->durable->record_put(store, "ab", 2, "1", 1, &error), HPS_OK);
    assert_int_equal(ops->durable->record_put(store, "c", 1, "3", 1, &error), HPS_OK);
    assert_int_equal(ops->durable->record_delete(store, "c", 1, &error), HPS_OK);
    assert_int_equal(ops->durable->record_delete(store, "none", 4, &error), HPS_OK);
    struct listed listed = {0};
    assert_int_equal(ops->durable->record_scan(store, "", list_record, &listed, &error), HPS_OK);
    assert_string_equal(listed.text, "a=;ab=1;b=2;");
    listed = (struct listed){0};
    assert_int_equal(ops->durable->record_scan(store, "a", list_record, &listed, &error), HPS_OK);
    assert_string_equal(listed.text, "a=;ab=1;");
    listed = (struct listed){0};
    assert_int_equal(ops->durable->record_scan(store, "aa", list_record, &listed, &error), HPS_OK);
    assert_int_equal(listed.n, 0);
    ops->close(store);
}

/* ---- get_many -------------------------------------------------------------------------------- */

enum { MANY_PARTS = 5, MANY_KEYS = 3000 };

/* One part of a test of get_many: every key is asked for, those that `there` says are there. */
struct many {
    hps_key keys[MANY_KEYS];
    uint32_t slots[MANY_KEYS];
    uint8_t *rows;
};

static bool many_there(hps_key key)
{
    return mix(key) % 4 != 0;
}

static void many_put(struct hps_space *space, const struct hps_table *table)
{
    uint8_t *rows = hps_alloc((size_t)MANY_KEYS * table->row_bytes);
    hps_key *keys = hps_calloc(MANY_KEYS, sizeof(*keys));
    uint32_t n = 0;
    for (hps_key key = 0; key < MANY_KEYS; key++) {
        if (many_there(key)) {
            keys[n] = key << 50 | key; /* the high bits too */
            store_contract_fill(rows + (size_t)n * table->row_bytes, table->row_bytes, keys[n], 3);
            n++;
        }
    }
    assert_int_equal(space->store->ops->put(space, &no_limit, table, keys, rows, n), HPS_OK);
    hps_free(keys);
    hps_free(rows);
}

static void many_ask(struct many *many, const struct hps_table *table, uint32_t n,
                     struct hps_part_batch *part)
{
    for (uint32_t i = 0; i < n; i++) {
        hps_key key = (hps_key)i * 1009 % MANY_KEYS; /* in no order; all different */
        many->keys[i] = key << 50 | key;
        many->slots[i] = n - 1 - i;
    }
    many->rows = hps_calloc(n + 1, table->row_bytes);
    *part = (struct hps_part_batch){table, {many->keys, many->slots, many->rows, n}};
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
    static const uint32_t of_table[MANY_PARTS] = {2, 0, 0, 1, 2}; /* unordered, and twice */
    static const uint32_t n_keys[MANY_PARTS] = {MANY_KEYS, 700, 1, 0, MANY_KEYS};
    struct hps_store *store = store_open();
    if (store->ops->get_many == NULL) {
        store->ops->close(store);
        skip();
    }
    struct hps_space *space = space_open(store, 1);
    struct hps_part_batch parts[MANY_PARTS];
    struct many *many = hps_calloc(MANY_PARTS, sizeof(*many));
    assert_non_null(many);
    many_put(space, &tables[0]);
    many_put(space, &tables[2]);
    assert_int_equal(store->ops->get_many(space, &no_limit, parts, 0), HPS_OK);
    for (unsigned i = 0; i < MANY_PARTS; i++) {
        many_ask(&many[i], &tables[of_table[i]], n_keys[i], &parts[i]);
    }
    assert_int_equal(store->ops->get_many(space, &no_limit, parts, MANY_PARTS), HPS_OK);
    for (unsigned i = 0; i < MANY_PARTS; i++) {
        many_check(&many[i], &parts[i], n_keys[i]);
        hps_free(many[i].rows);
    }
    hps_clock_fake(1000);
    many_ask(&many[0], &tables[0], 100, &parts[0]);
    struct hps_call late = {.deadline_us = 1000};
    assert_int_equal(store->ops->get_many(space, &late, parts, 1), HPS_DEADLINE);
    assert_int_equal(parts[0].batch.n, 100);
    hps_clock_real();
    hps_free(many[0].rows);
    hps_free(many);
    drop(space);
    store->ops->close(store);
}

/* ---- apply ----------------------------------------------------------------------------------- */

static uint8_t apply_rows[3][64];

/* Keys 1, 2 and 3 of table a get rows of `seq`, key 9 of table b is deleted, "pos" is `seq`. */
static hps_status apply(struct hps_space *space, uint64_t seq)
{
    static const hps_key keys[3] = {1, UINT64_MAX, 3};
    static const hps_key deleted = 9;
    char position[24];
    int size = snprintf(position, sizeof(position), "%llu", (unsigned long long)seq);
    for (unsigned i = 0; i < 3; i++) {
        store_contract_fill(apply_rows[i], tables[0].row_bytes, keys[i], seq);
    }
    const struct hps_write writes[2] = {{&tables[0], keys, apply_rows[0], 3},
                                        {&tables[1], &deleted, NULL, 1}};
    const struct hps_record records[2] = {{"pos", 3, position, (size_t)size},
                                          {"other", 5, seq % 2 != 0 ? "" : NULL, 0}};
    return space->store->ops->durable->apply(space, &no_limit, writes, 2, records, 2, &error);
}

static void check_applied(struct hps_space *space, uint64_t seq, const char *records)
{
    struct listed listed = {0};
    assert_true(has(space, &tables[0], 1, seq));
    assert_true(has(space, &tables[0], UINT64_MAX, seq));
    assert_true(has(space, &tables[0], 3, seq));
    assert_false(has(space, &tables[1], 9, 0));
    assert_int_equal(
        space->store->ops->durable->space_record_scan(space, list_record, &listed, &error), HPS_OK);
    assert_string_equal(listed.text, records);
}

static void test_apply_when_durable_then_rows_deletes_and_records_together(void **state)
{
    (void)state;
    struct hps_store *store = store_open();
    if (!durable(store)) {
        assert_null(store->ops->durable);
        store->ops->close(store);
        skip();
    }
    struct hps_space *space = space_open(store, 1);
    struct hps_space *other = space_open(store, 2);
    struct hps_store_load *load = NULL;
    assert_int_equal(put(space, &tables[1], 9, 0), HPS_OK);
    assert_int_equal(apply(space, 7), HPS_OK);
    check_applied(space, 7, "other=;pos=7;");
    assert_int_equal(apply(space, 8), HPS_OK);
    check_applied(space, 8, "pos=8;");
    store->ops->space_close(space); /* what is closed is kept */
    space = space_open(store, 1);
    check_applied(space, 8, "pos=8;");
    const struct hps_record record = {"p", 1, "1", 1}; /* records alone */
    assert_int_equal(store->ops->durable->apply(other, &no_limit, NULL, 0, &record, 1, &error),
                     HPS_OK);
    struct listed listed = {0};
    assert_int_equal(store->ops->durable->space_record_scan(other, list_record, &listed, &error),
                     HPS_OK);
    assert_string_equal(listed.text, "p=1;");
    listed = (struct listed){0};
    assert_int_equal(store->ops->durable->record_scan(store, "", list_record, &listed, &error),
                     HPS_OK);
    assert_int_equal(listed.n, 0);                            /* they are no records of the store */
    assert_int_equal(load_begin(other, 0, 0, &load), HPS_OK); /* nor rows */
    store->ops->bulk->abort(load);
    drop(other);
    other = space_open(store, 2);
    assert_int_equal(store->ops->durable->space_record_scan(other, list_record, &listed, &error),
                     HPS_OK);
    assert_int_equal(listed.n, 0); /* and gone with their space */
    drop(other);
    drop(space);
    store->ops->close(store);
}

static void test_apply_when_over_budget_then_nothing_of_it(void **state)
{
    (void)state;
    struct hps_store *store = store_open_bytes(4 * 64);
    if (!durable(store)) {
        store->ops->close(store);
        skip();
    }
    struct hps_space *space = space_open(store, 1);
    assert_int_equal(apply(space, 1), HPS_OK);
    if (contract->budget) {
        hps_key keys[2] = {100, 101};
        const struct hps_write write = {&tables[0], keys, apply_rows[0], 2};
        const struct hps_record record = {"pos", 3, "2", 1};
        assert_int_equal(
            store->ops->durable->apply(space, &no_limit, &write, 1, &record, 1, &error),
            HPS_EXHAUSTED);
        assert_false(has(space, &tables[0], 100, 0));
    }
    check_applied(space, 1, "other=;pos=1;");
    drop(space);
    store->ops->close(store);
}

int store_contract_run(const struct store_contract *of)
{
    contract = of;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_get_when_empty_then_all_are_missing, clean),
        cmocka_unit_test_teardown(test_put_when_repeated_then_the_last_row_is_read, clean),
        cmocka_unit_test_teardown(test_put_when_key_twice_in_batch_then_the_last_wins, clean),
        cmocka_unit_test_teardown(test_erase_when_present_or_absent_then_missing, clean),
        cmocka_unit_test_teardown(test_calls_when_no_keys_then_nothing_happens, clean),
        cmocka_unit_test_teardown(test_keys_when_at_the_edges_then_all_legal, clean),
        cmocka_unit_test_teardown(
            test_get_when_mixed_then_batch_is_permuted_and_rows_lie_in_their_slots, clean),
        cmocka_unit_test_teardown(test_rows_when_of_any_width_then_come_back_whole, clean),
        cmocka_unit_test_teardown(test_get_when_deadline_passed_then_deadline_and_batch_whole,
                                  clean),
        cmocka_unit_test_teardown(test_get_when_scratch_is_too_small_then_still_answers, clean),
        cmocka_unit_test_teardown(test_tables_and_versions_when_same_keys_then_apart, clean),
        cmocka_unit_test_teardown(test_space_when_open_twice_then_exists, clean),
        cmocka_unit_test_teardown(test_insert_when_some_are_there_or_stale_then_only_new_fresh_rows,
                                  clean),
        cmocka_unit_test_teardown(test_drop_when_opened_again_then_empty, clean),
        cmocka_unit_test_teardown(test_usage_when_rows_are_there_then_counts_them, clean),
        cmocka_unit_test_teardown(test_load_when_committed_then_visible_at_once, clean),
        cmocka_unit_test_teardown(test_load_when_aborted_then_space_is_empty, clean),
        cmocka_unit_test_teardown(test_load_when_empty_then_commits, clean),
        cmocka_unit_test_teardown(test_load_when_out_of_order_then_invalid, clean),
        cmocka_unit_test_teardown(test_load_when_space_is_not_empty_or_loading_then_refused, clean),
        cmocka_unit_test_teardown(test_load_when_over_budget_then_refused_with_numbers, clean),
        cmocka_unit_test_teardown(test_put_when_over_budget_then_no_older_row_is_left, clean),
        cmocka_unit_test_teardown(test_scan_when_many_rows_then_in_key_order, clean),
        cmocka_unit_test_teardown(test_get_when_raced_by_a_writer_then_no_torn_or_stale_row, clean),
        cmocka_unit_test_teardown(
            test_load_when_committed_under_readers_then_tables_appear_together, clean),
        cmocka_unit_test_teardown(test_space_when_closed_then_kept_by_durable_and_shared_stores,
                                  clean),
        cmocka_unit_test_teardown(test_spaces_when_durable_then_listed_until_dropped, clean),
        cmocka_unit_test_teardown(test_records_when_put_and_deleted_then_scanned_in_order, clean),
        cmocka_unit_test_teardown(test_get_many_when_parts_are_mixed_then_as_table_by_table, clean),
        cmocka_unit_test_teardown(test_apply_when_durable_then_rows_deletes_and_records_together,
                                  clean),
        cmocka_unit_test_teardown(test_apply_when_over_budget_then_nothing_of_it, clean),
    };
    return cmocka_run_group_tests_name(of->name, tests, NULL, NULL);
}
