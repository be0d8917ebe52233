/* SPDX-License-Identifier: Apache-2.0
 *
 * Concurrent readers, inserters and one updater, compared with a dictionary. No row is torn, or
 * older than the row published before its lookup, or missing without a reason. Rows have their
 * key and sequence number in every word.
 */
// clang-format off
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>
// clang-format on

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "backends/host/map.h"
#include "base/hash.h"
#include "base/heap.h"

enum {
    N_KEYS = 2048,
    N_READERS = 3,
    N_INSERTERS = 2,
#ifdef HPS_TSAN
    N_UPDATES = 60000,
#else
    N_UPDATES = 300000,
#endif
    N_EXTRA = 30000, /* added keys that make the index grow */
    BATCH = 96,
    WORDS = 8,
    ROW = WORDS * 8,
};

static const struct hps_call no_limit = {0};
static const struct hps_table table = {
    .name = "t", .id = 0, .dim = 16, .row_bytes = ROW, .dtype = HPS_DTYPE_FP32, .n_rows = N_KEYS};

/* Contents of a store below: sequence number << 1 | the key exists. */
struct dictionary {
    struct hps_store *store;
    struct hps_space *space;
    bool evicts;
    atomic_bool done;
    atomic_uint n_bad;
    atomic_ulong n_found;
    atomic_ulong n_evicted;
    _Atomic(uint64_t) stamps[N_KEYS]; /* odd while the key is updated */
    _Atomic(uint64_t) begun[N_KEYS];  /* the value that the updater writes */
    _Atomic(uint64_t) ended[N_KEYS];  /* the last value that is also in the map */
};

static void row_make(uint64_t *row, hps_key key, uint64_t seq)
{
    row[0] = seq;
    for (unsigned i = 1; i < WORDS; i++) {
        row[i] = hps_mix64(key + i) ^ hps_mix64(seq * 31 + i);
    }
}

static bool row_whole(const uint64_t *row, hps_key key)
{
    uint64_t wanted[WORDS];
    row_make(wanted, key, row[0]);
    return memcmp(row, wanted, sizeof(wanted)) == 0;
}

static void bad(struct dictionary *d, const char *what, hps_key key)
{
    if (atomic_fetch_add(&d->n_bad, 1) == 0) {
        print_message("%s: key %llu\n", what, (unsigned long long)key);
    }
}

static void check(struct dictionary *d, hps_key key, uint64_t before, const uint64_t *row)
{
    uint64_t after = atomic_load(&d->begun[key]);
    if (row == NULL) {
        /* a map that loses rows is marked incomplete before */
        if ((before & 1) != 0 && before == after && !atomic_load(&d->space->incomplete)) {
            bad(d, "missing", key);
        }
        return;
    }
    if (!row_whole(row, key)) {
        bad(d, "torn", key);
    } else if (row[0] < before >> 1 || (row[0] == before >> 1 && (before & 1) == 0)) {
        bad(d, "stale", key);
    } else if (row[0] > after >> 1) {
        bad(d, "from nowhere", key);
    }
}

static void *read_rows(void *ctx)
{
    struct dictionary *d = ctx;
    uint64_t rows[BATCH][WORDS];
    uint64_t random = hps_mix64((uint64_t)(uintptr_t)&rows);
    while (!atomic_load(&d->done)) {
        hps_key keys[BATCH];
        uint32_t slots[BATCH];
        uint64_t before[BATCH];
        random = hps_mix64(random);
        uint32_t n = 1 + (uint32_t)(random % BATCH);
        for (uint32_t i = 0; i < n; i++) {
            random = hps_mix64(random + i);
            keys[i] = random % N_KEYS * (random >> 60) / 16; /* some keys are read more often */
            slots[i] = i;
            before[i] = atomic_load(&d->ended[keys[i]]);
        }
        struct hps_batch batch = {.keys = keys, .slots = slots, .rows = (uint8_t *)rows, .n = n};
        if (d->store->ops->get(d->space, &no_limit, &table, &batch) != HPS_OK) {
            bad(d, "get", 0);
        }
        for (uint32_t i = 0; i < n; i++) {
            check(d, keys[i], before[slots[i]], i < batch.n ? NULL : rows[slots[i]]);
        }
        atomic_fetch_add(&d->n_found, n - batch.n);
        sched_yield();
    }
    return NULL;
}

struct walk {
    struct dictionary *d;
    hps_key keys[BATCH];
    uint64_t stamps[BATCH];
};

static bool fresh(const void *ctx, uint32_t i)
{
    const struct walk *walk = ctx;
    uint64_t stamp = atomic_load(&walk->d->stamps[walk->keys[i]]);
    return stamp == walk->stamps[i] && stamp % 2 == 0;
}

static void *insert_rows(void *ctx)
{
    struct walk walk = {.d = ctx};
    struct dictionary *d = ctx;
    uint64_t rows[BATCH][WORDS];
    uint32_t slots[BATCH];
    uint64_t random = hps_mix64((uint64_t)(uintptr_t)&rows);
    while (!atomic_load(&d->done)) {
        uint32_t n = 0;
        for (uint32_t i = 0; i < BATCH; i++) {
            random = hps_mix64(random + i);
            hps_key key = random % N_KEYS;
            uint64_t stamp = atomic_load(&d->stamps[key]);
            uint64_t truth = atomic_load(&d->begun[key]);
            if ((truth & 1) != 0) {
                walk.keys[n] = key;
                walk.stamps[n] = stamp;
                row_make(rows[n], key, truth >> 1);
                slots[n] = n;
                n++;
            }
        }
        const struct hps_insert_guard guard = {fresh, &walk};
        struct hps_insert_report report;
        if (d->store->ops->insert(d->space, &no_limit, &table, walk.keys, slots,
                                  (const uint8_t *)rows, n, &guard, &report) != HPS_OK) {
            bad(d, "insert", 0);
        }
        atomic_fetch_add(&d->n_evicted, report.n_evicted);
        sched_yield();
    }
    return NULL;
}

/* Write a row or a delete to the store below, then to the map. Stamps inform the inserters. */
static void update(struct dictionary *d, hps_key key, uint64_t seq, bool there)
{
    const struct hps_store_ops *ops = d->store->ops;
    uint64_t row[WORDS];
    atomic_fetch_add(&d->stamps[key], 1);
    atomic_store(&d->begun[key], seq << 1 | (there ? 1 : 0));
    row_make(row, key, seq);
    hps_status status = there ? ops->put(d->space, &no_limit, &table, &key, (const uint8_t *)row, 1)
                              : ops->erase(d->space, &no_limit, &table, &key, 1);
    if (status != HPS_OK && !(d->evicts && status == HPS_EXHAUSTED)) {
        bad(d, "update", key);
    }
    atomic_store(&d->ended[key], seq << 1 | (there ? 1 : 0));
    atomic_fetch_add(&d->stamps[key], 1);
}

static void extra(struct dictionary *d, uint64_t i)
{
    uint64_t row[WORDS];
    hps_key key = N_KEYS + i;
    row_make(row, key, 1);
    hps_status status =
        d->store->ops->put(d->space, &no_limit, &table, &key, (const uint8_t *)row, 1);
    if (status != HPS_OK && !(d->evicts && status == HPS_EXHAUSTED)) {
        bad(d, "extra", key);
    }
}

/* All threads have done enough work: the updater may have had a CPU for itself. */
static bool seen_enough(struct dictionary *d)
{
    return atomic_load(&d->n_found) > 1000 && (!d->evicts || atomic_load(&d->n_evicted) > 1000);
}

static void run(struct dictionary *d)
{
    struct hps_error error;
    struct hps_space_id id = {.model = "m", .version = 1, .tables = &table, .n_tables = 1};
    pthread_t readers[N_READERS];
    pthread_t inserters[N_INSERTERS];
    assert_int_equal(d->store->ops->space_open(d->store, &id, &d->space, &error), HPS_OK);
    for (unsigned i = 0; i < N_READERS; i++) {
        assert_int_equal(pthread_create(&readers[i], NULL, read_rows, d), 0);
    }
    for (unsigned i = 0; i < N_INSERTERS; i++) {
        assert_int_equal(pthread_create(&inserters[i], NULL, insert_rows, d), 0);
    }
    for (uint64_t seq = 1; seq <= N_UPDATES || !seen_enough(d); seq++) {
        uint64_t random = hps_mix64(seq);
        update(d, random % N_KEYS, seq, random >> 62 != 0);
        if (seq <= N_UPDATES && seq % (N_UPDATES / N_EXTRA) == 0) {
            extra(d, seq);
        }
    }
    atomic_store(&d->done, true);
    for (unsigned i = 0; i < N_READERS; i++) {
        pthread_join(readers[i], NULL);
    }
    for (unsigned i = 0; i < N_INSERTERS; i++) {
        pthread_join(inserters[i], NULL);
    }
    assert_int_equal(atomic_load(&d->n_bad), 0);
    assert_true(atomic_load(&d->n_found) > 0);
    /* The threads have ended: the map must have the last rows. */
    for (hps_key key = 0; key < N_KEYS; key++) {
        hps_key k = key;
        uint32_t slot = 0;
        uint64_t row[WORDS];
        struct hps_batch batch = {.keys = &k, .slots = &slot, .rows = (uint8_t *)row, .n = 1};
        assert_int_equal(d->store->ops->get(d->space, &no_limit, &table, &batch), HPS_OK);
        check(d, key, atomic_load(&d->ended[key]), batch.n == 0 ? row : NULL);
    }
    assert_int_equal(atomic_load(&d->n_bad), 0);
    d->store->ops->space_close(d->space);
    d->store->ops->close(d->store);
}

static void test_table_when_used_concurrently_then_equal_to_a_dictionary(void **state)
{
    (void)state;
    struct hps_error error;
    struct dictionary *d = hps_calloc(1, sizeof(*d));
    assert_int_equal(hps_host_map_open(UINT64_C(64) << 20, &d->store, &error), HPS_OK);
    run(d);
    hps_free(d);
}

/* A fraction of the keys fits, and most extra keys are inserted, so rows are evicted all the
 * time. */
static void test_table_when_it_evicts_concurrently_then_equal_except_missing_rows(void **state)
{
    (void)state;
    struct hps_error error;
    struct dictionary *d = hps_calloc(1, sizeof(*d));
    const struct hps_host_map_options options = {.bytes_max = 200000, .evicts = true};
    assert_int_equal(hps_host_map_open_with(&options, &d->store, &error), HPS_OK);
    d->evicts = true;
    run(d);
    assert_true(atomic_load(&d->n_evicted) > 1000);
    hps_free(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table_when_used_concurrently_then_equal_to_a_dictionary),
        cmocka_unit_test(test_table_when_it_evicts_concurrently_then_equal_except_missing_rows),
    };
    return cmocka_run_group_tests_name("host_table", tests, NULL, NULL);
}
