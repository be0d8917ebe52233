/* SPDX-License-Identifier: Apache-2.0
 *
 * Versions and tables in one budget, used concurrently: readers, inserters, an updater, loads
 * that are committed or aborted, scans, and changes of the active version. Each row belongs to
 * its key, the budget is never exceeded, and counts equal the number of rows.
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

#include "backends/host/map.h"
#include "backends/store_bulk.h"
#include "backends/store_limits.h"
#include "base/hash.h"
#include "base/heap.h"

enum {
    N_VERSIONS = 3, /* one more is opened and closed repeatedly */
    N_TABLES = 2,
    N_KEYS = 1 << 15,
    BATCH = 96,
    ROW_MAX = 56,
    BUDGET = 1 << 20,
#ifdef HPS_TSAN
    N_BATCHES = 1000,
#else
    N_BATCHES = 3000,
#endif
};

static struct hps_error error;
static const struct hps_call no_limit = {0};
static const struct hps_table tables[N_TABLES] = {
    {.name = "a", .id = 0, .dim = 14, .row_bytes = 56, .dtype = HPS_DTYPE_FP32, .n_rows = N_KEYS},
    {.name = "b", .id = 1, .dim = 5, .row_bytes = 10, .dtype = HPS_DTYPE_FP16, .n_rows = 4096},
};

struct world {
    struct hps_store *store;
    const struct hps_store_ops *ops;
    struct hps_space *spaces[N_VERSIONS];
    atomic_bool done;
    atomic_uint n_bad;
    atomic_ulong n_found;
};

static void row_make(uint8_t *row, unsigned version, const struct hps_table *table, hps_key key,
                     uint8_t seq)
{
    uint64_t random = hps_mix64(key + version * 4 + table->id + ((uint64_t)seq << 40));
    row[0] = seq;
    for (uint32_t i = 1; i < table->row_bytes; i++) {
        row[i] = (uint8_t)(random >> (i % 8 * 8)) ^ (uint8_t)i;
    }
}

static bool row_whole(const uint8_t *row, unsigned version, const struct hps_table *table,
                      hps_key key)
{
    uint8_t wanted[ROW_MAX];
    row_make(wanted, version, table, key, row[0]);
    return memcmp(row, wanted, table->row_bytes) == 0;
}

/* Some keys at the limits of the range, most in the middle; low keys are more frequent. */
static hps_key key_of(uint64_t random)
{
    static const hps_key odd[] = {0, 1, UINT64_MAX, UINT64_C(1) << 63, INT64_MAX, UINT32_MAX};
    if (random % 64 < sizeof(odd) / sizeof(odd[0])) {
        return odd[random % 64];
    }
    uint64_t key = random >> 32;
    return (random >> 8 & 3) != 0 ? key % (N_KEYS / 16) : key % N_KEYS;
}

struct turn {
    struct world *world;
    uint64_t random;
    unsigned version;
    const struct hps_table *table;
    uint32_t n;
    hps_key keys[BATCH];
    uint32_t slots[BATCH];
    uint8_t rows[BATCH * ROW_MAX];
};

static void turn_make(struct turn *turn)
{
    turn->random = hps_mix64(turn->random);
    turn->version = (unsigned)(turn->random % N_VERSIONS);
    turn->table = &tables[turn->random >> 8 & 1];
    turn->n = 1 + (uint32_t)((turn->random >> 16) % BATCH);
    for (uint32_t i = 0; i < turn->n; i++) {
        turn->random = hps_mix64(turn->random);
        turn->keys[i] = key_of(turn->random);
        turn->slots[i] = i;
        row_make(turn->rows + (size_t)i * turn->table->row_bytes, turn->version, turn->table,
                 turn->keys[i], (uint8_t)turn->random);
    }
}

static void *read_rows(void *ctx)
{
    struct turn turn = {.world = ctx, .random = (uint64_t)(uintptr_t)&turn};
    struct world *w = ctx;
    while (!atomic_load(&w->done)) {
        turn_make(&turn);
        struct hps_batch batch = {
            .keys = turn.keys, .slots = turn.slots, .rows = turn.rows, .n = turn.n};
        hps_status status = w->ops->get(w->spaces[turn.version], &no_limit, turn.table, &batch);
        unsigned n_bad = status != HPS_OK;
        for (uint32_t i = batch.n; i < turn.n; i++) {
            const uint8_t *row = turn.rows + (size_t)turn.slots[i] * turn.table->row_bytes;
            n_bad += row_whole(row, turn.version, turn.table, turn.keys[i]) ? 0 : 1;
        }
        atomic_fetch_add(&w->n_bad, n_bad);
        atomic_fetch_add(&w->n_found, turn.n - batch.n);
    }
    return NULL;
}

static void *insert_rows(void *ctx)
{
    struct turn turn = {.world = ctx, .random = (uint64_t)(uintptr_t)&turn};
    struct world *w = ctx;
    while (!atomic_load(&w->done)) {
        turn_make(&turn);
        struct hps_insert_report report;
        hps_status status = w->ops->insert(w->spaces[turn.version], &no_limit, turn.table,
                                           turn.keys, turn.slots, turn.rows, turn.n, NULL, &report);
        bool sane = status == HPS_OK && report.n_inserted + report.n_no_capacity <= turn.n;
        atomic_fetch_add(&w->n_bad, sane ? 0 : 1);
    }
    return NULL;
}

static void *update_rows(void *ctx)
{
    struct turn turn = {.world = ctx, .random = 77};
    struct world *w = ctx;
    while (!atomic_load(&w->done)) {
        turn_make(&turn);
        struct hps_space *space = w->spaces[turn.version];
        bool erase = (turn.random >> 60) == 0;
        hps_status status =
            erase ? w->ops->erase(space, &no_limit, turn.table, turn.keys, turn.n)
                  : w->ops->put(space, &no_limit, turn.table, turn.keys, turn.rows, turn.n);
        atomic_fetch_add(&w->n_bad, status == HPS_OK || status == HPS_EXHAUSTED ? 0 : 1);
    }
    return NULL;
}

struct count {
    unsigned version;
    const struct hps_table *table;
    uint64_t n;
    hps_key last;
};

static hps_status count_rows(void *ctx, const hps_key *keys, const uint8_t *rows, uint32_t n)
{
    struct count *count = ctx;
    for (uint32_t i = 0; i < n; i++) {
        const uint8_t *row = rows + (size_t)i * count->table->row_bytes;
        assert_true(count->n == 0 || keys[i] > count->last);
        assert_true(row_whole(row, count->version, count->table, keys[i]));
        count->last = keys[i];
        count->n++;
    }
    return HPS_OK;
}

static uint64_t scan(struct world *w, struct hps_space *space, unsigned version)
{
    uint64_t n = 0;
    for (unsigned i = 0; i < N_TABLES; i++) {
        struct count count = {.version = version, .table = &tables[i]};
        assert_int_equal(w->ops->scan(space, &tables[i], count_rows, &count, &error), HPS_OK);
        n += count.n;
    }
    return n;
}

static struct hps_space *space_open(struct world *w, unsigned version)
{
    struct hps_space *space = NULL;
    const struct hps_space_id id = {"m", (int64_t)version + 1, tables, N_TABLES, 0};
    assert_int_equal(w->ops->space_open(w->store, &id, &space, &error), HPS_OK);
    return space;
}

/* Load one more version, successfully or not, while other versions are in use. */
static void load_one(struct world *w, uint64_t random)
{
    struct hps_space *space = space_open(w, N_VERSIONS);
    struct hps_store_load *load = NULL;
    uint8_t row[ROW_MAX];
    hps_status status = w->ops->bulk->begin(space, 0, 0, &load, &error);
    assert_true(status == HPS_OK || status == HPS_EXHAUSTED);
    uint64_t n = 0;
    for (hps_key key = 0; status == HPS_OK && key < random % 4096; key++) {
        row_make(row, N_VERSIONS, &tables[0], key, (uint8_t)key);
        status = w->ops->bulk->add(load, &tables[0], &key, row, 1, &error);
        n += status == HPS_OK ? 1 : 0;
    }
    assert_true(status == HPS_OK || status == HPS_EXHAUSTED);
    status = load != NULL && status == HPS_OK ? w->ops->bulk->commit(load, &error) : HPS_EXHAUSTED;
    if (status != HPS_OK && load != NULL) {
        w->ops->bulk->abort(load);
    }
    uint64_t n_there = scan(w, space, N_VERSIONS);
    assert_true(status == HPS_OK ? n_there == n || atomic_load(&space->incomplete) : n_there == 0);
    w->ops->space_close(space);
}

static void check_budget(struct world *w)
{
    uint64_t used_bytes = 0;
    for (unsigned i = 0; i < N_VERSIONS; i++) {
        struct hps_store_usage usage;
        w->ops->space_usage(w->spaces[i], &usage);
        assert_true(usage.used_bytes <= BUDGET); /* one by one: a sum would mix several moments */
        used_bytes += usage.used_bytes;
    }
    assert_true(used_bytes <= N_VERSIONS * (uint64_t)BUDGET);
}

static void test_versions_when_used_concurrently_then_rows_and_counts_are_right(void **state)
{
    (void)state;
    static void *(*const works[])(void *) = {read_rows, read_rows, insert_rows, insert_rows,
                                             update_rows};
    enum { N_WORKERS = sizeof(works) / sizeof(works[0]) };
    pthread_t workers[N_WORKERS];
    struct world *w = hps_calloc(1, sizeof(*w));
    const struct hps_host_map_options options = {.bytes_max = BUDGET, .evicts = true};
    assert_int_equal(hps_host_map_open_with(&options, &w->store, &error), HPS_OK);
    w->ops = w->store->ops;
    for (unsigned i = 0; i < N_VERSIONS; i++) {
        w->spaces[i] = space_open(w, i);
    }
    for (unsigned i = 0; i < N_WORKERS; i++) {
        assert_int_equal(pthread_create(&workers[i], NULL, works[i], w), 0);
    }
    struct turn turn = {.world = w, .random = 5};
    for (unsigned i = 0; i < N_BATCHES / 10 || atomic_load(&w->n_found) == 0; i++) {
        turn_make(&turn);
        bool active = i % 4 != 0; /* sometimes no version, sometimes several */
        w->ops->limits->space_active(w->spaces[turn.version], active);
        if (i % 8 == 0) {
            load_one(w, turn.random);
        }
        (void)scan(w, w->spaces[turn.version], turn.version);
        check_budget(w);
    }
    atomic_store(&w->done, true);
    for (unsigned i = 0; i < N_WORKERS; i++) {
        pthread_join(workers[i], NULL);
    }
    assert_int_equal(atomic_load(&w->n_bad), 0);
    assert_true(atomic_load(&w->n_found) > 0);
    for (unsigned i = 0; i < N_VERSIONS; i++) {
        struct hps_store_usage usage;
        w->ops->space_usage(w->spaces[i], &usage);
        assert_int_equal(usage.n_rows, scan(w, w->spaces[i], i));
        w->ops->space_close(w->spaces[i]);
    }
    w->ops->close(w->store); /* asserts that all bytes were released */
    hps_free(w);
}

/* ---- counts ---------------------------------------------------------------------------------- */

struct counter {
    struct world *world;
    uint64_t random;
    uint64_t n_inserted;
    uint64_t n_evicted;
};

static void *insert_counted(void *ctx)
{
    struct counter *counter = ctx;
    struct world *w = counter->world;
    struct turn turn = {.world = w, .random = counter->random};
    for (unsigned i = 0; i < N_BATCHES; i++) {
        turn_make(&turn);
        struct hps_insert_report report;
        hps_status status = w->ops->insert(w->spaces[turn.version], &no_limit, turn.table,
                                           turn.keys, turn.slots, turn.rows, turn.n, NULL, &report);
        atomic_fetch_add(&w->n_bad, status == HPS_OK ? 0 : 1);
        counter->n_inserted += report.n_inserted;
        counter->n_evicted += report.n_evicted;
    }
    return NULL;
}

static void test_counts_when_many_insert_concurrently_then_rows_are_inserted_less_evicted(
    void **state)
{
    (void)state;
    enum { N_INSERTERS = 3 };
    struct world *w = hps_calloc(1, sizeof(*w));
    const struct hps_host_map_options options = {
        .bytes_max = BUDGET, .evicts = true, .rows_max = 9000, .target_ratio = 0.9};
    struct counter counters[N_INSERTERS];
    pthread_t threads[N_INSERTERS];
    pthread_t reader;
    assert_int_equal(hps_host_map_open_with(&options, &w->store, &error), HPS_OK);
    w->ops = w->store->ops;
    for (unsigned i = 0; i < N_VERSIONS; i++) {
        w->spaces[i] = space_open(w, i);
    }
    assert_int_equal(pthread_create(&reader, NULL, read_rows, w), 0);
    for (unsigned i = 0; i < N_INSERTERS; i++) {
        counters[i] = (struct counter){.world = w, .random = i + 1};
        assert_int_equal(pthread_create(&threads[i], NULL, insert_counted, &counters[i]), 0);
    }
    uint64_t n_rows = 0, n_inserted = 0, n_evicted = 0;
    for (unsigned i = 0; i < N_INSERTERS; i++) {
        pthread_join(threads[i], NULL);
        n_inserted += counters[i].n_inserted;
        n_evicted += counters[i].n_evicted;
    }
    atomic_store(&w->done, true);
    pthread_join(reader, NULL);
    for (unsigned i = 0; i < N_VERSIONS; i++) {
        struct hps_store_usage usage;
        w->ops->space_usage(w->spaces[i], &usage);
        assert_int_equal(usage.n_rows, scan(w, w->spaces[i], i));
        n_rows += usage.n_rows;
        w->ops->space_close(w->spaces[i]);
    }
    assert_int_equal(atomic_load(&w->n_bad), 0);
    assert_true(n_evicted > 0);
    assert_int_equal(n_rows, n_inserted - n_evicted);
    w->ops->close(w->store);
    hps_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_versions_when_used_concurrently_then_rows_and_counts_are_right),
        cmocka_unit_test(
            test_counts_when_many_insert_concurrently_then_rows_are_inserted_less_evicted),
    };
    return cmocka_run_group_tests_name("host_versions", tests, NULL, NULL);
}
