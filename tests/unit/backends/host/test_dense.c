/* SPDX-License-Identifier: Apache-2.0
 *
 * Dense ranges of the host map: when they begin and grow, random calls compared with a model, and
 * readers of all kernels with writers of the same 64 rows.
 */
// clang-format off
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>
// clang-format on

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "backends/host/internal.h"
#include "backends/host/map.h"
#include "backends/store_limits.h"
#include "base/hash.h"
#include "base/heap.h"
#include "tests/lib/work.h"

enum { FIRST_KEYS = 64, BUDGET_MIB = 512, N_BUDGETS = 1 + HPS_TEST_WORK(7) };

static struct hps_error error;
static const struct hps_call no_limit;

struct fixture {
    struct hps_store *store;
    struct hps_space *space;
    struct hps_table table;
};

static struct fixture open_map(enum hps_dtype dtype, uint32_t dim, uint64_t n_rows, uint64_t bytes)
{
    const struct hps_host_map_options options = {.bytes_max = bytes, .dense = true};
    struct fixture f = {.table = {.name = "t",
                                  .dim = dim,
                                  .row_bytes = (uint32_t)hps_dtype_row_bytes(dtype, dim),
                                  .dtype = dtype,
                                  .n_rows = n_rows}};
    struct hps_space_id id = {.model = "m", .version = 1, .tables = &f.table, .n_tables = 1};
    assert_int_equal(hps_host_map_open_with(&options, &f.store, &error), HPS_OK);
    assert_int_equal(f.store->ops->space_open(f.store, &id, &f.space, &error), HPS_OK);
    return f;
}

static void close_map(struct fixture *f)
{
    f->store->ops->space_close(f->space);
    f->store->ops->close(f->store);
}

/* Begin a range at `first`, as a refill does. */
static void begin_range(struct fixture *f, hps_key first)
{
    hps_key keys[FIRST_KEYS];
    for (uint32_t i = 0; i < FIRST_KEYS; i++) {
        keys[i] = first + i;
    }
    assert_int_equal(f->store->ops->limits->reserve(f->space, &f->table, keys, FIRST_KEYS, &error),
                     HPS_OK);
}

static uint64_t dense_rows(struct fixture *f)
{
    return f->store->ops->limits->dense_rows(f->space, &f->table);
}

static void put(struct fixture *f, hps_key key, const void *row)
{
    assert_int_equal(f->store->ops->put(f->space, &no_limit, &f->table, &key, row, 1), HPS_OK);
}

static void erase(struct fixture *f, hps_key key)
{
    assert_int_equal(f->store->ops->erase(f->space, &no_limit, &f->table, &key, 1), HPS_OK);
}

static bool get(struct fixture *f, hps_key key, void *out)
{
    uint32_t slot = 0;
    struct hps_batch batch = {.keys = &key, .slots = &slot, .rows = out, .n = 1};
    assert_int_equal(f->store->ops->get(f->space, &no_limit, &f->table, &batch), HPS_OK);
    return batch.n == 0;
}

static struct hps_store_usage usage_of(struct fixture *f)
{
    struct hps_store_usage usage;
    f->store->ops->space_usage(f->space, &usage);
    return usage;
}

/* ---- begin and growth ------------------------------------------------------------------------ */

static void test_promising_when_a_fifth_is_missing_then_still_true(void **state)
{
    (void)state;
    hps_key keys[800];
    for (uint32_t i = 0; i < 800; i++) {
        keys[i] = UINT64_MAX - 2000 + i + i / 4; /* four of five numbers */
    }
    assert_true(hps_host_dense_promising(keys, 800));
    assert_true(hps_host_dense_promising(keys, FIRST_KEYS));
    assert_false(hps_host_dense_promising(keys, FIRST_KEYS - 1));
    assert_false(hps_host_dense_promising(keys, 0));
    keys[799] += 1000;
    assert_true(hps_host_dense_promising(keys, 800)); /* the second half does not matter */
    keys[399] += FIRST_KEYS;
    assert_true(hps_host_dense_promising(keys, 800));
    keys[399] += 2;
    assert_false(hps_host_dense_promising(keys, 800));
}

/* Load the keys of `filled` (row = key), and return whether the load succeeded. */
static hps_status load(struct fixture *f, bool (*filled)(hps_key key), hps_key begin, hps_key end)
{
    enum { PIECE = 1000 };
    hps_key keys[PIECE];
    uint64_t rows[PIECE];
    const struct hps_store_bulk_ops *bulk = f->store->ops->bulk;
    struct hps_store_load *loading = NULL;
    uint32_t n = 0;
    hps_status status = bulk->begin(f->space, f->table.n_rows, f->table.n_rows * f->table.row_bytes,
                                    &loading, &error);
    for (hps_key key = begin; status == HPS_OK && key < end; key++) {
        if (filled(key)) {
            keys[n] = key;
            rows[n++] = key;
        }
        if (n == PIECE || (key + 1 == end && n > 0)) {
            status = bulk->add(loading, &f->table, keys, (const uint8_t *)rows, n, &error);
            n = 0;
        }
    }
    if (status == HPS_OK) {
        return bulk->commit(loading, &error);
    }
    if (loading != NULL) {
        bulk->abort(loading);
    }
    return status;
}

static bool fill_all(hps_key key)
{
    (void)key;
    return true;
}

static bool fill_nine_tenths(hps_key key)
{
    return hps_mix64(key) % 10 != 0;
}

static bool fill_half(hps_key key)
{
    return hps_mix64(key) % 2 != 0;
}

/* The first part is full; of the rest, one key in 100 exists. */
static bool fill_first(hps_key key)
{
    return key < 50000 || key % 100 == 0;
}

/* The first part is full; of the rest, a third exists. */
static bool fill_then_third(hps_key key)
{
    return key < 50000 || key % 3 == 0;
}

static void check_loaded(struct fixture *f, bool (*filled)(hps_key key), hps_key end)
{
    uint64_t value;
    for (hps_key key = 0; key < end + 1000; key++) {
        bool has = get(f, key, &value);
        assert_int_equal(has, key < end && filled(key));
        assert_true(!has || value == key);
    }
}

static uint64_t count(bool (*filled)(hps_key key), hps_key end)
{
    uint64_t n = 0;
    for (hps_key key = 0; key < end; key++) {
        n += filled(key) ? 1 : 0;
    }
    return n;
}

static void test_load_when_keys_fill_a_range_then_it_is_dense(void **state)
{
    (void)state;
    enum { END = 100000 };
    static const struct {
        bool (*filled)(hps_key key);
        uint64_t n_least;
        uint64_t n_most;
    } cases[] = {{fill_all, END, END},
                 {fill_nine_tenths, END * 89 / 100, END * 91 / 100},
                 {fill_half, 0, 0},
                 {fill_first, 50000, 50300}};
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct fixture f =
            open_map(HPS_DTYPE_FP32, 2, count(cases[i].filled, END), (uint64_t)BUDGET_MIB << 20);
        assert_int_equal(load(&f, cases[i].filled, 0, END), HPS_OK);
        assert_in_range(dense_rows(&f), cases[i].n_least, cases[i].n_most);
        assert_int_equal(usage_of(&f).n_rows, f.table.n_rows);
        check_loaded(&f, cases[i].filled, END);
        close_map(&f);
    }
}

/* A load that fits with an index fits with a range, too. */
static void test_load_when_the_budget_is_tight_then_holes_cost_nothing(void **state)
{
    (void)state;
    static const struct {
        bool (*filled)(hps_key key);
        hps_key end;
        uint64_t step; /* of the budgets */
    } cases[] = {{fill_all, 200000, 256 << 10},      {fill_nine_tenths, 200000, 256 << 10},
                 {fill_first, 200000, 256 << 10},    {fill_then_third, 200000, 256 << 10},
                 {fill_all, 100, 4 << 10},           {fill_nine_tenths, 5000, 4 << 10},
                 {fill_nine_tenths, 20000, 16 << 10}};
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint64_t n = count(cases[i].filled, cases[i].end);
        unsigned n_loaded = 0;
        /* from the smallest budget that begin accepts to larger ones */
        for (uint64_t bytes = cases[i].step; n_loaded < N_BUDGETS; bytes += cases[i].step) {
            struct fixture f = open_map(HPS_DTYPE_FP32, 2, n, bytes);
            if (load(&f, cases[i].filled, 0, cases[i].end) == HPS_OK) {
                check_loaded(&f, cases[i].filled, cases[i].end);
                n_loaded++;
            } else {
                assert_non_null(strstr(error.text, "the load needs"));
                assert_int_equal(n_loaded, 0);
            }
            close_map(&f);
        }
    }
}

/* A growth that fails returns its part of the memory, so that the index can have it. */
static void test_put_when_the_range_cannot_grow_then_the_index_gets_the_row(void **state)
{
    (void)state;
    enum { DIM = 512, N_LOADED = 1024, N = 1600, FAR = 2300 };
    const float row[DIM] = {0};
    float out[DIM];
    struct fixture f = open_map(HPS_DTYPE_FP32, DIM, N_LOADED, 4 << 20);
    begin_range(&f, 0);
    for (hps_key key = 0; key < N; key++) {
        put(&f, key, row);
    }
    uint64_t used = usage_of(&f).used_bytes;
    put(&f, FAR, row);
    assert_int_equal(dense_rows(&f), N);
    assert_true(get(&f, FAR, out));
    assert_true(usage_of(&f).used_bytes <= used + (128 << 10));
    close_map(&f);
}

/* Lookups and updates write keys ahead of a refill. */
static void test_refill_when_keys_ahead_of_it_are_written_then_no_index_is_reserved(void **state)
{
    (void)state;
    enum { N = 100000, AHEAD = 50000, N_AHEAD = 500 };
    struct fixture f = open_map(HPS_DTYPE_FP32, 2, N, (uint64_t)BUDGET_MIB << 20);
    begin_range(&f, 0);
    for (hps_key key = AHEAD; key < AHEAD + N_AHEAD; key++) {
        put(&f, key, &(uint64_t){key});
    }
    assert_true(usage_of(&f).used_bytes <= 128 << 10);
    for (hps_key key = 0; key < N; key++) {
        put(&f, key, &(uint64_t){key});
    }
    assert_int_equal(dense_rows(&f), N);
    assert_true(usage_of(&f).used_bytes <= N * 8 + N / 4 + (256 << 10));
    close_map(&f);
}

static void test_usage_when_a_range_is_full_then_rows_need_no_index(void **state)
{
    (void)state;
    enum { N = 1 << 18 };
    struct fixture f = open_map(HPS_DTYPE_FP32, 2, N, (uint64_t)BUDGET_MIB << 20);
    assert_int_equal(load(&f, fill_all, 0, N), HPS_OK);
    assert_true(usage_of(&f).used_bytes <= N * 8 + N / 4 + (64 << 10));
    close_map(&f);
}

static void test_growth_when_the_index_has_keys_of_the_new_part_then_they_move(void **state)
{
    (void)state;
    enum { N = 2000 };
    struct fixture f = open_map(HPS_DTYPE_FP32, 2, N, (uint64_t)BUDGET_MIB << 20);
    uint64_t value = 7;
    for (hps_key key = 500; key < N; key += 3) { /* rows that lookups have inserted */
        put(&f, key, &(uint64_t){key});
    }
    begin_range(&f, 0);
    assert_int_equal(dense_rows(&f), 0);
    for (hps_key key = 0; key < N; key += 2) {
        put(&f, key, &(uint64_t){key + 1});
    }
    assert_in_range(dense_rows(&f), 300, N);
    put(&f, UINT64_MAX, &value);
    for (hps_key key = 0; key < N; key++) {
        bool early = key >= 500 && (key - 500) % 3 == 0;
        assert_int_equal(get(&f, key, &value), key % 2 == 0 || early);
        assert_true((key % 2 != 0 && !early) || value == (key % 2 == 0 ? key + 1 : key));
    }
    assert_true(get(&f, UINT64_MAX, &value));
    close_map(&f);
}

/* Insert a row that lookups have inserted before. */
static void test_insert_when_the_index_has_the_key_then_it_moves_into_the_range(void **state)
{
    (void)state;
    enum { N = 1000 };
    const uint32_t slot = 0;
    struct fixture f = open_map(HPS_DTYPE_FP32, 2, N, (uint64_t)BUDGET_MIB << 20);
    for (hps_key key = 0; key < N; key++) {
        put(&f, key, &(uint64_t){key + 1});
    }
    begin_range(&f, 0);
    for (hps_key key = 0; key < N; key++) {
        struct hps_insert_report report;
        const uint64_t value = 7;
        assert_int_equal(f.store->ops->insert(f.space, &no_limit, &f.table, &key, &slot,
                                              (const uint8_t *)&value, 1, NULL, &report),
                         HPS_OK);
        assert_int_equal(report.n_inserted + report.n_no_capacity, 0);
    }
    assert_int_equal(dense_rows(&f), N);
    for (hps_key key = 0; key < N; key++) {
        uint64_t value = 0;
        assert_true(get(&f, key, &value));
        assert_int_equal(value, key + 1);
    }
    assert_int_equal(usage_of(&f).n_rows, N);
    close_map(&f);
}

static void test_refilled_when_it_failed_then_the_range_is_dropped(void **state)
{
    (void)state;
    uint64_t value = 3;
    struct fixture f = open_map(HPS_DTYPE_FP32, 2, 100, (uint64_t)BUDGET_MIB << 20);
    begin_range(&f, 0);
    put(&f, 5, &value);
    f.store->ops->limits->refilled(f.space, false);
    assert_true(get(&f, 5, &value));
    assert_int_equal(dense_rows(&f), 1);
    f.store->ops->limits->refilled(f.space, true);
    assert_int_equal(dense_rows(&f), 0);
    assert_false(get(&f, 5, &value));
    assert_true(atomic_load(&f.space->incomplete));
    assert_int_equal(usage_of(&f).used_bytes, 0);
    put(&f, 5, &value);
    assert_true(get(&f, 5, &value));
    close_map(&f);
}

static void test_usage_when_a_range_is_dropped_then_no_huge_pages_are_left(void **state)
{
    (void)state;
    enum { DIM = 4096, N = 2000 };
    static const float row[DIM];
    struct fixture f = open_map(HPS_DTYPE_FP32, DIM, N, (uint64_t)BUDGET_MIB << 20);
    begin_range(&f, 0);
    for (hps_key key = 0; key < N; key++) {
        put(&f, key, row);
    }
    assert_true(usage_of(&f).used_bytes >= N * sizeof(row));
    f.store->ops->limits->refilled(f.space, true);
    assert_int_equal(usage_of(&f).used_bytes, 0);
    assert_int_equal(usage_of(&f).huge_bytes, 0);
    close_map(&f);
}

/* Begin a write of a row, like hps_host_dense_put. */
static void write_begin(struct hps_host_dense *dense, uint64_t number)
{
    uint64_t writes = atomic_fetch_add(&dense->writes, 1);
    atomic_store(&hps_host_dense_group(dense, number)->version, writes + 1);
}

/* A writer that was interrupted in a row does not stop readers. */
static void test_get_when_a_write_does_not_end_then_the_reader_takes_the_lock(void **state)
{
    (void)state;
    uint64_t value = 3;
#ifdef HPS_TSAN
    skip(); /* there the reader has the lock already */
#endif
    struct fixture f = open_map(HPS_DTYPE_FP32, 2, 100, (uint64_t)BUDGET_MIB << 20);
    begin_range(&f, 0);
    put(&f, 5, &value);
    struct hps_host_dense *dense = hps_host_table_dense(host_table_of(f.space, &f.table));
    write_begin(dense, 5);
    value = 0;
    assert_true(get(&f, 5, &value));
    assert_int_equal(value, 3);
    atomic_fetch_add(&dense->writes, 1);
    close_map(&f);
}

/* A read is repeated only if a row of the same groups was written. */
static void test_valid_when_rows_are_written_then_false_for_their_groups(void **state)
{
    (void)state;
    uint64_t value = 3;
    const hps_key keys[] = {5, 6, 70, UINT64_MAX};
    struct hps_host_block *block = hps_calloc(1, sizeof(*block));
    struct hps_host_seen *seen = hps_calloc(1, sizeof(*seen));
    struct fixture f = open_map(HPS_DTYPE_FP32, 2, 100, (uint64_t)BUDGET_MIB << 20);
    begin_range(&f, 0);
    put(&f, 5, &value);
    put(&f, 70, &value);
    put(&f, UINT64_MAX, &value);
    struct hps_host_table *table = host_table_of(f.space, &f.table);
    struct hps_host_dense *dense = hps_host_table_dense(table);
    const struct hps_host_lookup lookup = hps_host_lookup(&table->index, &table->rows);
    block->now = atomic_load(&table->index.now);
    block->n = 4;
    hps_host_dense_probe(dense, &lookup, keys, block, seen);
    hps_host_dense_leave(dense);
    assert_int_equal(block->n_found, 3);
    assert_null(block->rows[1]);
    assert_true(hps_host_dense_valid(dense, seen, 0, 4));
    put(&f, 6, &value);
    put(&f, UINT64_MAX, &value);
    assert_false(hps_host_dense_valid(dense, seen, 0, 1));
    assert_true(hps_host_dense_valid(dense, seen, 2, 4));
    write_begin(dense, 70);
    hps_host_dense_probe(dense, &lookup, keys, block, seen);
    hps_host_dense_leave(dense);
    assert_true(hps_host_dense_valid(dense, seen, 0, 2));
    assert_false(hps_host_dense_valid(dense, seen, 0, 3));
    atomic_fetch_add(&dense->writes, 1);
    assert_false(hps_host_dense_valid(dense, seen, 2, 3));
    close_map(&f);
    hps_free(block);
    hps_free(seen);
}

/* The part of a range that readers trust to be full ends at the first hole. */
static void test_full_when_rows_are_deleted_and_written_then_it_ends_at_the_first_hole(void **state)
{
    (void)state;
    enum { N = 20000 };
    const uint64_t value = 3;
    struct fixture f = open_map(HPS_DTYPE_FP32, 2, N, (uint64_t)BUDGET_MIB << 20);
    begin_range(&f, 0);
    for (hps_key key = 0; key < N; key++) {
        put(&f, key, &value);
    }
    struct hps_host_dense *dense = hps_host_table_dense(host_table_of(f.space, &f.table));
    assert_int_equal(atomic_load(&dense->n_full), N);
    erase(&f, 130);
    erase(&f, 5);
    assert_int_equal(atomic_load(&dense->n_full), 5);
    put(&f, 7, &value);
    assert_int_equal(atomic_load(&dense->n_full), 5);
    put(&f, 5, &value);
    assert_int_equal(atomic_load(&dense->n_full), 130);
    for (unsigned i = 0; i < 5; i++) { /* each write continues for 4,096 rows */
        put(&f, 130, &value);
    }
    assert_int_equal(atomic_load(&dense->n_full), N);
    close_map(&f);
}

static struct fixture *written; /* by a write during the copy; NULL: none */

static void copy_then_write(const struct hps_host_lookup *lookup, struct hps_batch *batch,
                            const struct hps_host_block *block)
{
    const uint64_t value = 9;
    hps_host_kernel()->copy(lookup, batch, block);
    if (written != NULL) {
        struct fixture *f = written;
        written = NULL;
        put(f, 5, &value);
        put(f, 700, &value);
    }
}

/* If all keys are in the range, they are copied in one pass, without the first step. */
static void test_run_when_a_row_is_written_after_its_copy_then_it_is_read_again(void **state)
{
    (void)state;
#ifdef HPS_TSAN
    skip(); /* there the reader has the lock, and no write can come between */
#endif
    enum { N = 2 * HPS_HOST_BLOCK_KEYS }; /* more than a block */
    const struct hps_host_kernel kernel = {.name = "writes", .copy = copy_then_write};
    const uint64_t value = 3;
    hps_key keys[N];
    uint32_t slots[N];
    uint64_t rows[N] = {0};
    struct hps_batch batch = {.keys = keys, .slots = slots, .rows = (uint8_t *)rows, .n = N};
    struct fixture f = open_map(HPS_DTYPE_FP32, 2, N, (uint64_t)BUDGET_MIB << 20);
    begin_range(&f, 0);
    for (uint32_t i = 0; i < N; i++) {
        put(&f, i, &value);
        keys[i] = i * 7 % N;
        slots[i] = N - 1 - i;
    }
    struct hps_host_table *table = host_table_of(f.space, &f.table);
    struct hps_host_lookup lookup = hps_host_lookup(&table->index, &table->rows);
    lookup.out = hps_host_out(&f.table, &batch);
    written = &f;
    hps_host_dense_run(hps_host_table_dense(table), &lookup, &kernel, &batch, 0, N);
    assert_null(written);
    assert_int_equal(batch.n, 0);
    for (uint32_t i = 0; i < N; i++) {
        assert_int_equal(rows[slots[i]], keys[i] == 5 || keys[i] == 700 ? 9 : 3);
    }
    close_map(&f);
}

/* ---- random calls ---------------------------------------------------------------------------- */

enum { SPAN = 3000, STEPS = HPS_TEST_WORK(60000), MODEL_DIM = 20 };

struct model {
    uint32_t seq[SPAN]; /* of the last write of each key; 0: no row */
    struct fixture f;
    hps_key base;
    uint64_t random;
};

static uint32_t draw(struct model *m, uint32_t below)
{
    m->random = hps_mix64(m->random + 1);
    return (uint32_t)(m->random % below);
}

static void row_of(const struct model *m, uint32_t k, uint8_t *row)
{
    for (uint32_t b = 0; b < m->f.table.row_bytes; b++) {
        row[b] = (uint8_t)hps_mix64(((uint64_t)k << 32 | m->seq[k]) * 1024 + b);
    }
}

static void model_get(struct model *m)
{
    enum { N_MAX = 1500 };
    hps_key *keys = hps_calloc(N_MAX, sizeof(*keys));
    uint32_t *slots = hps_calloc(N_MAX, sizeof(*slots));
    uint8_t *rows = hps_alloc((size_t)N_MAX * m->f.table.row_bytes);
    uint8_t wanted[MODEL_DIM * 4];
    uint32_t ks[N_MAX];
    uint32_t n = draw(m, 8) == 0 ? draw(m, N_MAX) : draw(m, 40);
    for (uint32_t i = 0; i < n; i++) {
        ks[i] = draw(m, SPAN);
        keys[i] = m->base + ks[i];
        slots[i] = i;
    }
    struct hps_batch batch = {.keys = keys, .slots = slots, .rows = rows, .n = n};
    assert_int_equal(m->f.store->ops->get(m->f.space, &no_limit, &m->f.table, &batch), HPS_OK);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t k = ks[slots[i]];
        assert_true(keys[i] == m->base + k);
        assert_int_equal(i >= batch.n, m->seq[k] != 0);
        if (m->seq[k] != 0) {
            row_of(m, k, wanted);
            assert_memory_equal(rows + (size_t)slots[i] * m->f.table.row_bytes, wanted,
                                m->f.table.row_bytes);
        }
    }
    hps_free(keys);
    hps_free(slots);
    hps_free(rows);
}

struct scanned {
    const struct model *m;
    uint32_t next;
};

static hps_status check_scanned(void *ctx, const hps_key *keys, const uint8_t *rows, uint32_t n)
{
    struct scanned *scan = ctx;
    uint8_t wanted[MODEL_DIM * 4];
    for (uint32_t i = 0; i < n; i++) {
        while (scan->m->seq[scan->next] == 0) {
            scan->next++;
        }
        assert_true(keys[i] == scan->m->base + scan->next);
        row_of(scan->m, scan->next, wanted);
        assert_memory_equal(rows + (size_t)i * scan->m->f.table.row_bytes, wanted,
                            scan->m->f.table.row_bytes);
        scan->next++;
    }
    return HPS_OK;
}

static void model_scan(struct model *m)
{
    struct scanned scan = {m, 0};
    assert_int_equal(m->f.store->ops->scan(m->f.space, &m->f.table, check_scanned, &scan, &error),
                     HPS_OK);
    while (scan.next < SPAN && m->seq[scan.next] == 0) {
        scan.next++;
    }
    assert_int_equal(scan.next, SPAN);
}

static void model_step(struct model *m, uint32_t step)
{
    uint8_t row[MODEL_DIM * 4];
    uint32_t at = step / (STEPS / SPAN); /* ascending, as in a refill, and random keys */
    uint32_t k = draw(m, 4) == 0 ? draw(m, SPAN) : at < SPAN ? at : draw(m, SPAN);
    hps_key key = m->base + k;
    switch (draw(m, 8)) {
    case 0:
        erase(&m->f, key);
        m->seq[k] = 0;
        break;
    case 1: {
        static const uint32_t slot = 0;
        struct hps_insert_report report;
        bool had = m->seq[k] != 0;
        m->seq[k] = had ? m->seq[k] : step + 1;
        row_of(m, k, row);
        row[0] = had ? (uint8_t)~row[0] : row[0]; /* not inserted, because there is a row */
        assert_int_equal(m->f.store->ops->insert(m->f.space, &no_limit, &m->f.table, &key, &slot,
                                                 row, 1, NULL, &report),
                         HPS_OK);
        assert_int_equal(report.n_inserted, had ? 0 : 1);
        break;
    }
    case 2:
        model_get(m);
        break;
    default:
        m->seq[k] = step + 1;
        row_of(m, k, row);
        put(&m->f, key, row);
    }
}

static void test_table_when_calls_are_random_then_as_the_model(void **state)
{
    (void)state;
    static const enum hps_dtype dtypes[] = {HPS_DTYPE_FP32, HPS_DTYPE_INT8_ROWWISE_F16};
    for (unsigned round = 0; round < 4; round++) {
        struct model *m = hps_calloc(1, sizeof(*m));
        uint64_t n_rows = 0;
        m->f = open_map(dtypes[round % 2], MODEL_DIM - round, SPAN, (uint64_t)BUDGET_MIB << 20);
        m->base = round < 2 ? 0 : UINT64_MAX - 10 * SPAN;
        m->random = round + 1;
        begin_range(&m->f, m->base + 64 * round); /* smaller keys are outside */
        for (uint32_t step = 0; step < STEPS; step++) {
            model_step(m, step);
        }
        model_scan(m);
        for (uint32_t k = 0; k < SPAN; k++) {
            n_rows += m->seq[k] != 0 ? 1 : 0;
        }
        assert_int_equal(usage_of(&m->f).n_rows, n_rows);
        assert_true(dense_rows(&m->f) > SPAN / 2);
        close_map(&m->f);
        hps_free(m);
    }
}

/* ---- readers with writers -------------------------------------------------------------------- */

enum {
    RACE_ROWS = 64,
    RACE_DIM = 132,
    RACE_BAG = 4,
    RACE_ROUNDS = HPS_TEST_WORK(1200),
    N_READERS = 3
};

struct race {
    struct fixture f;
    atomic_uint n_reading;
    atomic_uint n_torn;
};

/* In each row all values are equal. */
static void *write_rows(void *ctx)
{
    struct race *race = ctx;
    float row[RACE_DIM];
    for (uint64_t seq = 1; atomic_load(&race->n_reading) > 0; seq++) {
        hps_key key = hps_mix64(seq) % RACE_ROWS;
        for (uint32_t d = 0; d < race->f.table.dim; d++) {
            row[d] = (float)(seq % 1024);
        }
        if (seq % 16 == 0) {
            erase(&race->f, key);
        }
        put(&race->f, key, row);
    }
    return NULL;
}

static bool is_torn(const float *values, uint32_t dim)
{
    bool torn = false;
    for (uint32_t d = 1; d < dim; d++) {
        torn = torn || values[d] != values[0];
    }
    return torn;
}

static void *read_rows(void *ctx)
{
    enum { N = 96 };
    struct race *race = ctx;
    struct fixture *f = &race->f;
    uint32_t dim = f->table.dim;
    float *out = hps_alloc_aligned(64, (size_t)N * dim * sizeof(*out));
    hps_key keys[N];
    uint32_t slots[N];
    uint32_t offsets[N / RACE_BAG + 1];
    uint32_t whole[1];
    for (uint32_t round = 0; round < RACE_ROUNDS; round++) {
        for (uint32_t i = 0; i < N; i++) {
            keys[i] = hps_mix64(round * N + i) % RACE_ROWS;
            slots[i] = i;
            offsets[i / RACE_BAG + 1] = i + 1;
        }
        offsets[0] = 0;
        struct hps_bags bags = {.keys = (const uint8_t *)keys,
                                .offsets = offsets,
                                .pooling = HPS_POOLING_SUM,
                                .out = {(uint8_t *)out, dim * sizeof(*out), HPS_DTYPE_FP32},
                                .whole = whole};
        assert_int_equal(
            f->store->ops->pool->bags(f->space, &no_limit, &f->table, &bags, 0, N / RACE_BAG),
            HPS_OK);
        for (uint32_t b = 0; b < N / RACE_BAG; b++) {
            bool torn = hps_bags_whole(&bags, b) && is_torn(out + (size_t)b * dim, dim);
            atomic_fetch_add(&race->n_torn, torn ? 1 : 0);
        }
        bool half = round % 2 == 0;
        struct hps_batch batch = {.keys = keys, .slots = slots, .rows = (uint8_t *)out, .n = N};
        if (half) {
            batch.shape = (struct hps_shape){(uint8_t *)out, dim * sizeof(*out), HPS_DTYPE_FP16};
        }
        assert_int_equal(f->store->ops->get(f->space, &no_limit, &f->table, &batch), HPS_OK);
        for (uint32_t i = batch.n; i < N; i++) {
            float row[RACE_DIM];
            memcpy(row, out + (size_t)slots[i] * dim, dim * sizeof(*row));
            if (half) {
                hps_row_convert(row, HPS_DTYPE_FP32, out + (size_t)slots[i] * dim, HPS_DTYPE_FP16,
                                dim);
            }
            atomic_fetch_add(&race->n_torn, is_torn(row, dim) ? 1 : 0);
        }
    }
    atomic_fetch_sub(&race->n_reading, 1);
    hps_free_aligned(out);
    return NULL;
}

static void race_run(uint32_t dim, const struct hps_host_kernel *kernel)
{
    struct race race = {.f = open_map(HPS_DTYPE_FP32, dim, RACE_ROWS, (uint64_t)BUDGET_MIB << 20)};
    pthread_t writer;
    pthread_t readers[N_READERS];
    const float zeros[RACE_DIM] = {0};
    host_of(race.f.space)->shared.kernel = kernel;
    begin_range(&race.f, 0);
    for (hps_key key = 0; key < RACE_ROWS; key++) {
        put(&race.f, key, zeros);
    }
    assert_int_equal(dense_rows(&race.f), RACE_ROWS);
    atomic_store(&race.n_reading, N_READERS);
    assert_int_equal(pthread_create(&writer, NULL, write_rows, &race), 0);
    for (unsigned i = 0; i < N_READERS; i++) {
        assert_int_equal(pthread_create(&readers[i], NULL, read_rows, &race), 0);
    }
    for (unsigned i = 0; i < N_READERS; i++) {
        assert_int_equal(pthread_join(readers[i], NULL), 0);
    }
    assert_int_equal(pthread_join(writer, NULL), 0);
    assert_int_equal(atomic_load(&race.n_torn), 0);
    close_map(&race.f);
}

static void test_readers_when_rows_of_their_groups_are_written_then_no_row_is_torn(void **state)
{
    (void)state;
    static const uint32_t dims[] = {16, 20, RACE_DIM, 128};
    unsigned n = 0;
    const struct hps_host_kernel *kernels = hps_host_kernels(&n);
    for (unsigned k = 0; k < n; k++) {
        for (unsigned d = 0; kernels[k].runs() && d < sizeof(dims) / sizeof(dims[0]); d++) {
            race_run(dims[d], &kernels[k]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_promising_when_a_fifth_is_missing_then_still_true),
        cmocka_unit_test(test_load_when_keys_fill_a_range_then_it_is_dense),
        cmocka_unit_test(test_load_when_the_budget_is_tight_then_holes_cost_nothing),
        cmocka_unit_test(test_put_when_the_range_cannot_grow_then_the_index_gets_the_row),
        cmocka_unit_test(test_refill_when_keys_ahead_of_it_are_written_then_no_index_is_reserved),
        cmocka_unit_test(test_usage_when_a_range_is_dropped_then_no_huge_pages_are_left),
        cmocka_unit_test(test_usage_when_a_range_is_full_then_rows_need_no_index),
        cmocka_unit_test(test_growth_when_the_index_has_keys_of_the_new_part_then_they_move),
        cmocka_unit_test(test_insert_when_the_index_has_the_key_then_it_moves_into_the_range),
        cmocka_unit_test(test_refilled_when_it_failed_then_the_range_is_dropped),
        cmocka_unit_test(test_get_when_a_write_does_not_end_then_the_reader_takes_the_lock),
        cmocka_unit_test(test_valid_when_rows_are_written_then_false_for_their_groups),
        cmocka_unit_test(
            test_full_when_rows_are_deleted_and_written_then_it_ends_at_the_first_hole),
        cmocka_unit_test(test_run_when_a_row_is_written_after_its_copy_then_it_is_read_again),
        cmocka_unit_test(test_table_when_calls_are_random_then_as_the_model),
        cmocka_unit_test(test_readers_when_rows_of_their_groups_are_written_then_no_row_is_torn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
