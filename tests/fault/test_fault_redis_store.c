/* SPDX-License-Identifier: Apache-2.0
 *
 * Daemons share a Redis that loses shards, forgets acknowledged writes and stalls. All of them
 * follow one log at their own pace, and restart. Each row that is read is at least as new as the
 * state that the reader's own daemon has published, and is in the log.
 *
 * The log is a function: it defines whether record o writes key k, and the row. So every thread
 * can compute the right rows of any offset.
 */
#include <pthread.h>
#include <stdatomic.h>

#define FX_ODD_ROWS

#include "backends/redis/internal.h"
#include "tests/lib/fault_heap.h"
#include "tests/lib/pause.h"
#include "tests/lib/redis_calls.h"
#include "tests/lib/redis_fixture.h"
#include "tests/lib/work.h"

enum {
    N_KEYS = 96,
    N_DAEMONS = 3,
    N_RECORDS = HPS_TEST_WORK(600), /* or more, see go_on */
    BATCH_MAX = 6,
    NEVER = -1 /* the row of the files */
};

/* ---- the log --------------------------------------------------------------------------------- */

static bool writes(int64_t offset, hps_key key)
{
    return hps_mix64((uint64_t)offset * 1000003 + key) % 16 == 0;
}

/* The last record before `end` that writes the key. */
static int64_t last_write(hps_key key, int64_t end)
{
    int64_t offset = end - 1;
    while (offset >= 0 && !writes(offset, key)) {
        offset--;
    }
    return offset >= 0 ? offset : NEVER;
}

/* The record of a row. Fails unless the row is complete and the record writes the key. */
static int64_t record_of(const uint8_t *row, hps_key key, int64_t from, int64_t end)
{
    uint8_t wanted[FX_ROW];
    for (int64_t offset = end - 1; offset >= from; offset--) {
        if (offset != NEVER && !writes(offset, key)) {
            continue;
        }
        fx_fill(wanted, FX_ROW, key, offset);
        if (memcmp(row, wanted, FX_ROW) == 0) {
            return offset;
        }
    }
    return INT64_MIN;
}

/* ---- a daemon -------------------------------------------------------------------------------- */

struct daemon {
    char name[8];
    struct hps_redis_store_options options;
    pthread_t updater;
    pthread_t reader;
    struct hps_space *space;
    pthread_rwlock_t restarts; /* held while the space is in use */
    _Atomic int64_t begun;     /* its own store has all records before */
    _Atomic int64_t published; /* Redis has them, too, if it was reachable */
    uint64_t random;
    _Atomic uint64_t n_found;
    _Atomic uint64_t n_inserted;
    _Atomic uint64_t n_gaps;
};

static struct daemon daemons[N_DAEMONS];
static _Atomic int64_t n_records = N_RECORDS;
static _Atomic int64_t furthest; /* of all daemons */
static atomic_bool stops;
static _Atomic uint64_t n_wrong;

static uint64_t next_random(uint64_t *random)
{
    *random = hps_mix64(*random + HPS_HASH_GOLDEN);
    return *random;
}

static void raise_furthest(int64_t next)
{
    int64_t far = atomic_load(&furthest);
    while (far < next && !atomic_compare_exchange_weak(&furthest, &far, next)) {
    }
}

static void space_start(struct daemon *daemon)
{
    daemon->space = fx_space(fx_open_with(&daemon->options));
    fx_at(daemon->space, atomic_load(&daemon->published));
}

/* Apply [first, next), with the last write of each key. */
static struct hps_log_report apply(struct daemon *daemon, int64_t first, int64_t next)
{
    hps_key keys[N_KEYS];
    static _Thread_local uint8_t rows[N_KEYS * FX_ROW];
    struct hps_log_report report = {0};
    struct hps_write write = {&fx_tables[0], keys, rows, 0};
    const uint32_t from = 0;
    for (hps_key key = 0; key < N_KEYS; key++) {
        int64_t offset = last_write(key, next);
        if (offset >= first) {
            keys[write.n] = key;
            fx_fill(rows + (size_t)write.n++ * FX_ROW, FX_ROW, key, offset);
        }
    }
    const struct hps_log_span span = {FX_PARTITION, 0, first, next};
    const struct hps_log_batch batch = {&write, &from, 1, &span, 1, false};
    assert_int_equal(
        daemon->space->store->ops->log->apply(daemon->space, &fx_call, &batch, &report), HPS_OK);
    return report;
}

/* Bring shards that are behind up to date: from the log, or by a reset. */
static void recover(struct daemon *daemon)
{
    const struct hps_store_ops *ops = daemon->space->store->ops;
    struct hps_log_position behind;
    struct hps_log_report report;
    uint32_t n = 0;
    int64_t end = atomic_load(&daemon->begun);
    hps_status status = ops->log->behind(daemon->space, &fx_call, &behind, 1, &n);
    atomic_fetch_add(&daemon->n_gaps, 1);
    if (status == HPS_OK && n == 1 && next_random(&daemon->random) % 2 == 0) {
        for (int64_t offset = behind.offset; offset < end; offset += BATCH_MAX) {
            (void)apply(daemon, offset, offset + BATCH_MAX < end ? offset + BATCH_MAX : end);
        }
        return;
    }
    hps_ignore(ops->log->reset(daemon->space, &fx_call, &report)); /* retried later */
}

static void *updater_run(void *ctx)
{
    struct daemon *daemon = ctx;
    while (!atomic_load(&stops)) {
        int64_t end = atomic_load(&n_records);
        int64_t first = atomic_load(&daemon->published);
        if (first == end) {
            brief_pause();
            continue;
        }
        int64_t next = first + 1 + (int64_t)(next_random(&daemon->random) % BATCH_MAX);
        next = next < end ? next : end;
        raise_furthest(next);
        if (next_random(&daemon->random) % 50 == 0) { /* it is killed and restarts */
            pthread_rwlock_wrlock(&daemon->restarts);
            fx_close(daemon->space);
            space_start(daemon);
            pthread_rwlock_unlock(&daemon->restarts);
        }
        pthread_rwlock_rdlock(&daemon->restarts);
        atomic_store(&daemon->begun, next);
        struct hps_log_report report = apply(daemon, first, next);
        if (report.n_gap + report.n_failed > 0 && next_random(&daemon->random) % 4 != 0) {
            recover(daemon);
        }
        pthread_rwlock_unlock(&daemon->restarts);
        atomic_store(&daemon->published, next);
        for (uint64_t i = next_random(&daemon->random) % 64; i > 0; i--) {
            brief_pause(); /* so that no daemon is always first */
        }
    }
    return NULL;
}

/* ---- lookups --------------------------------------------------------------------------------- */

struct fill {
    const struct daemon *daemon;
    const hps_key *keys;
    int64_t at;
};

/* Like the stamps of a version: no batch has changed the key since its row was read. */
static bool is_fresh(const void *ctx, uint32_t i)
{
    const struct fill *fill = ctx;
    int64_t begun = atomic_load(&fill->daemon->begun);
    return last_write(fill->keys[i], begun) == last_write(fill->keys[i], fill->at);
}

/* Insert missing rows from the daemon's own store. */
static void insert(struct daemon *daemon, const hps_key *keys, uint32_t n, int64_t at)
{
    static _Thread_local uint8_t rows[N_KEYS * FX_ROW];
    uint32_t slots[N_KEYS];
    struct hps_insert_report report = {0};
    const struct fill fill = {daemon, keys, at};
    const struct hps_insert_guard guard = {is_fresh, &fill};
    for (uint32_t i = 0; i < n; i++) {
        slots[i] = i;
        fx_fill(rows + (size_t)i * FX_ROW, FX_ROW, keys[i], last_write(keys[i], at));
    }
    hps_ignore(daemon->space->store->ops->insert(daemon->space, &fx_call, &fx_tables[0], keys,
                                                 slots, rows, n, &guard, &report));
    atomic_fetch_add(&daemon->n_inserted, report.n_inserted);
}

static void do_lookup(struct daemon *daemon, uint64_t *random)
{
    static _Thread_local uint8_t rows[N_KEYS * FX_ROW];
    hps_key keys[N_KEYS];
    uint32_t slots[N_KEYS];
    uint32_t n = 1 + (uint32_t)(next_random(random) % N_KEYS);
    uint32_t first = (uint32_t)(next_random(random) % N_KEYS);
    for (uint32_t i = 0; i < n; i++) {
        keys[i] = (first + i) % N_KEYS;
        slots[i] = i;
    }
    int64_t at = atomic_load(&daemon->published);
    const struct hps_call call = {.exact_position = next_random(random) % 4 == 0};
    struct hps_batch batch = {.keys = keys, .slots = slots, .rows = rows, .n = n};
    hps_status status = daemon->space->store->ops->get(daemon->space, &call, &fx_tables[0], &batch);
    assert_true(status == HPS_OK || status == HPS_UNAVAILABLE);
    bool still = atomic_load(&daemon->begun) == at; /* otherwise rows may be of the next batch */
    for (uint32_t i = batch.n; i < n; i++) {
        int64_t from = last_write(keys[i], at);
        int64_t record =
            record_of(rows + (size_t)slots[i] * FX_ROW, keys[i], NEVER, atomic_load(&furthest));
        if (record < from || (call.exact_position && still && record != from)) {
            atomic_fetch_add(&n_wrong, 1);
            print_error("%s at %lld: key %llu is of record %lld, not of %lld or a later one\n",
                        daemon->name, (long long)at, (unsigned long long)keys[i], (long long)record,
                        (long long)from);
        }
    }
    atomic_fetch_add(&daemon->n_found, n - batch.n);
    if (batch.n > 0 && status == HPS_OK) {
        insert(daemon, keys, batch.n, at);
    }
}

static void *reader_run(void *ctx)
{
    struct daemon *daemon = ctx;
    uint64_t random = hps_mix64((uint64_t)daemon->name[0]);
    while (!atomic_load(&stops)) {
        pthread_rwlock_rdlock(&daemon->restarts);
        do_lookup(daemon, &random);
        pthread_rwlock_unlock(&daemon->restarts);
        brief_pause();
    }
    return NULL;
}

/* ---- failures -------------------------------------------------------------------------------- */

/* Shards are numbered by the list of keys. Copies of shards may be from any earlier time. */
static void disturb(uint64_t *random)
{
    unsigned shard = 1 + (unsigned)(next_random(random) % FX_SHARDS);
    switch (next_random(random) % 8) {
    case 0:
        (void)hps_redis_rig_ask(fx_rig, 0,
                                "EVAL local\tk=redis.call('KEYS','hpsd*[0-9]}')[%u]if\tk\tthen"
                                "\tredis.call('UNLINK',k)end 0",
                                shard);
        break;
    case 1:
    case 2:
        (void)hps_redis_rig_ask(fx_rig, 0,
                                "EVAL local\tk=redis.call('KEYS','hpsd*[0-9]}')[%u]if\tk\tthen"
                                "\tredis.call('COPY',k,'kept'..k,'REPLACE')end 0",
                                shard);
        break;
    case 3:
    case 4:
        (void)hps_redis_rig_ask(fx_rig, 0,
                                "EVAL local\tk=redis.call('KEYS','kept*')[%u]if\tk\tthen"
                                "\tredis.call('COPY',k,k:sub(5),'REPLACE')end 0",
                                shard);
        break;
    case 5:
        (void)hps_redis_rig_ask(fx_rig, 0, "SCRIPT FLUSH");
        break;
    case 6:
        (void)hps_redis_rig_ask(fx_rig, 0, "CLIENT KILL TYPE normal SKIPME yes");
        break;
    default:
        (void)hps_redis_rig_ask(fx_rig, 0, "PING");
        break;
    }
}

static bool all_done(void)
{
    for (uint32_t i = 0; i < N_DAEMONS; i++) {
        if (atomic_load(&daemons[i].published) < atomic_load(&n_records)) {
            return false;
        }
    }
    return true;
}

/* Sums over all daemons. */
struct totals {
    uint64_t n_found;
    uint64_t n_inserted;
    uint64_t n_gaps;
};

static struct totals totals_now(void)
{
    struct totals totals = {0};
    for (uint32_t i = 0; i < N_DAEMONS; i++) {
        totals.n_found += atomic_load(&daemons[i].n_found);
        totals.n_inserted += atomic_load(&daemons[i].n_inserted);
        totals.n_gaps += atomic_load(&daemons[i].n_gaps);
    }
    return totals;
}

/* Continue until all records are applied and all tested events have happened. Until then, extend
 * the log. */
static bool go_on(void)
{
    struct totals totals = totals_now();
    if (!all_done()) {
        return true;
    }
    if (totals.n_found > 0 && totals.n_inserted > 0 && totals.n_gaps > 0) {
        return false;
    }
    assert_true(atomic_fetch_add(&n_records, BATCH_MAX) < 20 * N_RECORDS);
    return true;
}

static void start_all(void)
{
    atomic_store(&stops, false);
    for (uint32_t i = 0; i < N_DAEMONS; i++) {
        struct daemon *daemon = &daemons[i];
        (void)snprintf(daemon->name, sizeof(daemon->name), "%c", (char)('a' + i));
        daemon->options = fx_options(daemon->name);
        daemon->random = i;
        assert_int_equal(pthread_rwlock_init(&daemon->restarts, NULL), 0);
        space_start(daemon);
    }
    for (uint32_t i = 0; i < N_DAEMONS; i++) {
        assert_int_equal(pthread_create(&daemons[i].updater, NULL, updater_run, &daemons[i]), 0);
        assert_int_equal(pthread_create(&daemons[i].reader, NULL, reader_run, &daemons[i]), 0);
    }
}

static void test_daemons_when_redis_loses_and_restores_then_no_row_is_older(void **state)
{
    (void)state;
    uint64_t random = 1;
    start_all();
    while (go_on()) {
        disturb(&random);
    }
    atomic_store(&stops, true);
    for (uint32_t i = 0; i < N_DAEMONS; i++) {
        assert_int_equal(pthread_join(daemons[i].updater, NULL), 0);
        assert_int_equal(pthread_join(daemons[i].reader, NULL), 0);
    }
    struct totals totals = totals_now();
    print_message("%llu rows found, %llu inserted, %llu times behind\n",
                  (unsigned long long)totals.n_found, (unsigned long long)totals.n_inserted,
                  (unsigned long long)totals.n_gaps);
    assert_int_equal(atomic_load(&n_wrong), 0);
    /* No more failures: all shards recover when the client uses the server again. */
    struct hps_log_report report = {.n_failed = 1};
    uint64_t end_us = hps_clock_us() + FX_WAIT_US;
    while (report.n_failed > 0 && hps_clock_us() < end_us) {
        recover(&daemons[0]);
        assert_int_equal(
            daemons[0].space->store->ops->log->reset(daemons[0].space, &fx_call, &report), HPS_OK);
    }
    assert_int_equal(report.n_applied + report.n_had, FX_SHARDS);
    uint64_t before = atomic_load(&daemons[1].n_found);
    hps_key keys[N_KEYS];
    for (hps_key key = 0; key < N_KEYS; key++) {
        keys[key] = key;
    }
    insert(&daemons[0], keys, N_KEYS, atomic_load(&n_records));
    for (random = 0; atomic_load(&daemons[1].n_found) < before + N_KEYS; random++) {
        do_lookup(&daemons[1], &random);
    }
    assert_int_equal(atomic_load(&n_wrong), 0);
    for (uint32_t i = 0; i < N_DAEMONS; i++) {
        fx_close(daemons[i].space);
        (void)pthread_rwlock_destroy(&daemons[i].restarts);
    }
}

/* ---- no failures ----------------------------------------------------------------------------- */

enum { N_BATCHES = HPS_TEST_WORK(400), N_READERS = 3, N_SOUND = 8 };

static struct hps_space *sound; /* the only copy */
static _Atomic int64_t sound_begun, sound_published;
static _Atomic uint64_t n_sound_reads;

/* The number of rows that belong to a record in [from, end). */
static uint32_t n_right(const hps_key *keys, const uint8_t *rows, int64_t from, int64_t end)
{
    uint8_t wanted[FX_ROW];
    uint32_t n = 0;
    for (uint32_t i = 0; i < N_SOUND; i++) {
        bool right = false;
        for (int64_t offset = from; offset < end && !right; offset++) {
            fx_fill(wanted, FX_ROW, keys[i], offset);
            right = memcmp(rows + (size_t)i * FX_ROW, wanted, FX_ROW) == 0;
        }
        n += right ? 1 : 0;
    }
    return n;
}

static void *sound_reader(void *ctx)
{
    (void)ctx;
    while (!atomic_load(&stops)) {
        hps_key keys[N_SOUND];
        uint32_t slots[N_SOUND];
        uint8_t rows[N_SOUND * FX_ROW];
        hps_key asked[N_SOUND];
        for (uint32_t i = 0; i < N_SOUND; i++) {
            asked[i] = keys[i] = i;
            slots[i] = i;
        }
        int64_t from = atomic_load(&sound_published) - 1;
        struct hps_batch batch = {.keys = keys, .slots = slots, .rows = rows, .n = N_SOUND};
        hps_status status = sound->store->ops->get(sound, &fx_call, &fx_tables[0], &batch);
        int64_t end = atomic_load(&furthest);
        if (status != HPS_OK || batch.n > 0 || n_right(asked, rows, from, end) < N_SOUND) {
            atomic_fetch_add(&n_wrong, 1);
            print_error("%s, %u missing, from %lld to %lld\n", hps_status_text(status), batch.n,
                        (long long)from, (long long)end);
        }
        atomic_fetch_add(&n_sound_reads, 1);
    }
    return NULL;
}

/* Another daemon, sometimes ahead and sometimes behind. The first daemon does not know its
 * batches. */
static void *sound_other(void *ctx)
{
    struct hps_space *space = ctx;
    hps_key keys[N_SOUND];
    uint8_t rows[N_SOUND * FX_ROW];
    for (uint32_t i = 0; i < N_SOUND; i++) {
        keys[i] = i;
    }
    for (int64_t first = 1; !atomic_load(&stops);) {
        const struct hps_log_span span = {FX_PARTITION, 0, first, first + 1};
        const uint32_t from = 0;
        struct hps_write write;
        struct hps_log_report report;
        if (first > atomic_load(&sound_begun) + 1) { /* not too far ahead */
            brief_pause();
            continue;
        }
        raise_furthest(first + 1);
        fx_write(&write, keys, rows, N_SOUND, first);
        const struct hps_log_batch batch = {&write, &from, 1, &span, 1, false};
        if (space->store->ops->log->apply(space, &fx_call, &batch, &report) != HPS_OK) {
            atomic_fetch_add(&n_wrong, 1);
        }
        first++;
    }
    return NULL;
}

/* With a healthy server every lookup succeeds, however fast updates come. */
static void test_get_when_batches_come_fast_to_the_only_copy_then_it_never_fails(void **state)
{
    (void)state;
    struct hps_redis_store_options options = fx_options("one");
    pthread_t threads[N_READERS + 1];
    struct hps_space *other = fx_daemon("two");
    fx_at(other, 1);
    assert_int_equal(fx_insert(other, N_SOUND, 0).n_inserted, N_SOUND);
    options.authoritative = true;
    sound = fx_daemon_with(&options);
    fx_at(sound, 1);
    atomic_store(&stops, false);
    atomic_store(&n_wrong, 0);
    atomic_store(&furthest, 1);
    atomic_store(&sound_begun, 1);
    atomic_store(&sound_published, 1);
    assert_int_equal(pthread_create(&threads[0], NULL, sound_other, other), 0);
    for (uint32_t i = 1; i <= N_READERS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, sound_reader, NULL), 0);
    }
    for (int64_t first = 1; first < N_BATCHES || atomic_load(&n_sound_reads) < N_BATCHES; first++) {
        atomic_store(&sound_begun, first);
        raise_furthest(first + 1);
        struct hps_log_report report = fx_apply(sound, first, first + 1, N_SOUND);
        assert_int_equal(report.n_gap + report.n_failed, 0);
        atomic_store(&sound_published, first + 1);
    }
    atomic_store(&stops, true);
    for (uint32_t i = 0; i <= N_READERS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    print_message("%llu look-ups\n", (unsigned long long)atomic_load(&n_sound_reads));
    assert_int_equal(atomic_load(&n_wrong), 0);
}

/* ---- no memory ------------------------------------------------------------------------------- */

static struct hps_space *poor;
static uint64_t n_poor_found;
static int64_t poor_at = 10; /* the version's offset, kept for the next round */

/* One batch, one lookup and one insertion, with each allocation failing once. The batch either
 * moved the version or did not; rows must be right in both cases. */
static void live_poorly(void *ctx)
{
    enum { N = 100 };
    static uint8_t rows[N * FX_ROW];
    static hps_key keys[N];
    static uint32_t slots[N];
    const struct hps_store_ops *ops = poor->store->ops;
    const struct hps_log_span span = {FX_PARTITION, 0, poor_at, poor_at + 1};
    const uint32_t from = 0;
    struct hps_write write;
    struct hps_log_report report;
    struct hps_insert_report inserted;
    (void)ctx;
    for (uint32_t i = 0; i < N; i++) {
        keys[i] = i;
        slots[i] = i;
    }
    fx_write(&write, keys, rows, N, poor_at);
    const struct hps_log_batch log = {&write, &from, 1, &span, 1, false};
    hps_status status = ops->log->apply(poor, &fx_call, &log, &report);
    assert_true(status == HPS_OK || status == HPS_NO_MEMORY);
    poor_at += status == HPS_OK ? 1 : 0;
    struct hps_batch batch = {.keys = keys, .slots = slots, .rows = rows, .n = N};
    hps_ignore(ops->get(poor, &fx_call, &fx_tables[0], &batch));
    n_poor_found += N - batch.n;
    for (uint32_t i = batch.n; i < N; i++) {
        uint8_t row[FX_ROW];
        fx_fill(row, FX_ROW, keys[i], poor_at - 1);
        assert_memory_equal(rows + (size_t)slots[i] * FX_ROW, row, FX_ROW);
    }
    hps_ignore(ops->log->reset(poor, &fx_call, &report));
    fx_write(&write, keys, rows, N, poor_at - 1);
    hps_ignore(ops->insert(poor, &fx_call, &fx_tables[0], keys, slots, rows, N, NULL, &inserted));
}

static void open_poorly(void *ctx)
{
    struct hps_store *store = NULL;
    struct hps_redis_store_options options = fx_options("one");
    const struct hps_space_id id = {"m", 1, fx_tables, 2, 99};
    (void)ctx;
    if (hps_redis_open(&options, &store, &fx_error) != HPS_OK) {
        assert_null(store);
        return;
    }
    (void)hps_redis_cluster_wait(hps_redis_of(store), hps_clock_us() + FX_WAIT_US);
    if (store->ops->space_open(store, &id, &poor, &fx_error) == HPS_OK) {
        const struct hps_log_position position = {FX_PARTITION, poor_at, 0};
        if (store->ops->log->positions_set(poor, &position, 1) == HPS_OK) {
            live_poorly(NULL);
            live_poorly(NULL);
        }
        store->ops->space_close(poor);
    }
    store->ops->close(store);
}

/* Other threads allocate, too, so the failing call differs between runs. In time, all calls
 * fail. */
static void test_calls_when_memory_runs_out_then_no_old_row_is_read_and_no_leak(void **state)
{
    (void)state;
    (void)fx_options("one"); /* skips the test without a server */
    for (size_t fail_at = 1; fail_at < HPS_TEST_WORK(300); fail_at += 1) {
        hps_fault_heap_install(fail_at);
        open_poorly(NULL);
        assert_int_equal(hps_fault_heap_live(), 0);
        hps_fault_heap_remove();
    }
    assert_true(n_poor_found > 0);
}

/* ---- slots that move, and a fail-over -------------------------------------------------------- */

static int start_cluster(void **state)
{
    (void)state;
    if (hps_redis_rig_present()) {
        fx_rig = hps_redis_rig_cluster(3, 1, NULL);
    }
    return 0;
}

/* Replicas may serve reads, and receive updates a moment later. */
static void test_get_when_replicas_lag_then_no_row_is_older(void **state)
{
    (void)state;
    enum { N = 300 };
    struct hps_redis_store_options options = fx_options("one");
    options.redis.replica_reads = true;
    struct hps_space *space = fx_daemon_with(&options);
    fx_at(space, 10);
    assert_int_equal(fx_insert(space, N, 9).n_inserted, N);
    for (int64_t offset = 10; offset < 60; offset++) {
        assert_int_equal(fx_apply(space, offset, offset + 1, N).n_applied, FX_SHARDS);
        (void)fx_found(space, N, offset); /* each found row is of that record */
        assert_int_equal(fx_insert(space, N, offset).n_stale, 0);
    }
    uint64_t end_us = hps_clock_us() + FX_WAIT_US;
    while (fx_found(space, N, 59) < N) {
        assert_true(hps_clock_us() < end_us);
        brief_pause();
    }
}

/* No tier has the rows that a lagging replica lacks. */
static void test_get_when_redis_is_the_only_copy_then_no_replica_is_read(void **state)
{
    (void)state;
    enum { N = 300 };
    struct hps_redis_store_options options = fx_options("one");
    struct hps_redis_node_stats nodes[8];
    struct hps_store_load *load = NULL;
    uint8_t row[FX_ROW];
    options.redis.replica_reads = true;
    options.authoritative = true;
    struct hps_space *space = fx_daemon_with(&options);
    const struct hps_store_ops *ops = space->store->ops;
    fx_at(space, 10);
    assert_int_equal(ops->bulk->begin(space, N, 0, &load, &fx_error), HPS_OK);
    for (hps_key key = 0; key < N; key++) {
        fx_fill(row, FX_ROW, key, 9);
        assert_int_equal(ops->bulk->add(load, &fx_tables[0], &key, row, 1, &fx_error), HPS_OK);
    }
    assert_int_equal(ops->bulk->commit(load, &fx_error), HPS_OK);
    for (int64_t offset = 10; offset < 60; offset++) {
        assert_int_equal(fx_apply(space, offset, offset + 1, N).n_applied, FX_SHARDS);
        assert_int_equal(fx_found(space, N, offset), N);
    }
    uint32_t n = hps_redis_cluster_nodes(hps_redis_of(space->store), nodes, 8);
    assert_int_equal(n, 6);
    for (uint32_t i = 0; i < n; i++) {
        assert_true(nodes[i].role != HPS_REDIS_REPLICA || nodes[i].n_commands == 0);
    }
}

/* One master is paused for a while. Calls end at their deadline, rows of other masters are
 * found, and missed writes are applied after the pause. */
static void test_calls_when_one_master_is_paused_then_other_masters_are_used(void **state)
{
    (void)state;
    enum { N = 300, SOON_US = 200 * 1000 };
    static hps_key keys[N];
    static uint32_t slots[N];
    static uint8_t rows[2][N * FX_ROW];
    struct hps_redis_store_options options = fx_options("one");
    struct hps_log_position behind[4];
    struct hps_log_report report;
    struct hps_write write;
    const uint32_t from = 0;
    const struct hps_log_span span = {FX_PARTITION, 0, 10, 11};
    uint32_t n_behind = 0;
    struct hps_space *space = fx_daemon_with(&options);
    fx_at(space, 10);
    assert_int_equal(fx_insert(space, N, 9).n_inserted, N);
    assert_int_equal(fx_found(space, N, 9), N);
    for (uint32_t i = 0; i < N; i++) {
        keys[i] = i;
        slots[i] = i;
    }
    fx_write(&write, keys, rows[0], N, 10);
    const struct hps_log_batch log = {&write, &from, 1, &span, 1, false};
    hps_redis_rig_pause(fx_rig, 1);
    struct hps_call soon = {.deadline_us = hps_clock_us() + SOON_US};
    assert_int_equal(space->store->ops->log->apply(space, &soon, &log, &report), HPS_OK);
    assert_in_range(report.n_failed, 1, FX_SHARDS);
    soon.deadline_us = hps_clock_us() + SOON_US;
    struct hps_batch batch = {.keys = keys, .slots = slots, .rows = rows[1], .n = N};
    hps_ignore(space->store->ops->get(space, &soon, &fx_tables[0], &batch)); /* in time or late */
    assert_in_range(batch.n, 1, N);
    for (uint32_t i = batch.n; i < N; i++) {
        assert_memory_equal(rows[1] + (size_t)slots[i] * FX_ROW, rows[0] + keys[i] * FX_ROW,
                            FX_ROW);
    }
    for (uint32_t i = 0; i < N; i++) {
        keys[i] = N + i;
        slots[i] = i;
    }
    struct hps_insert_report in;
    soon.deadline_us = hps_clock_us() + SOON_US;
    hps_status status =
        space->store->ops->insert(space, &soon, &fx_tables[0], keys, slots, rows[0], N, NULL, &in);
    if (status == HPS_OK) { /* the result of each row is known */
        assert_int_equal(in.n_inserted + in.n_stale + in.n_failed, N);
    }
    hps_redis_rig_resume(fx_rig, 1);
    uint64_t end_us = hps_clock_us() + FX_WAIT_US;
    while (space->store->ops->log->behind(space, &fx_call, behind, 4, &n_behind) != HPS_OK) {
        assert_true(hps_clock_us() < end_us);
        brief_pause();
    }
    if (n_behind > 0) { /* otherwise the delayed writes were executed after all */
        assert_int_equal(behind[0].offset, 10);
        report = fx_apply(space, 10, 11, N);
        assert_int_equal(report.n_applied + report.n_had, FX_SHARDS);
    }
    assert_int_equal(fx_found(space, N, 10), N);
}

/* The slot of each shard moves to the next master: first its assignment, then its contents. */
static void test_shards_when_slots_move_then_rows_and_positions_stay_together(void **state)
{
    (void)state;
    enum { N = 300, N_MASTERS = 3, FIELDS = HPS_REDIS_SLOTS / N_MASTERS };
    struct hps_redis_store_options options = fx_options("one");
    struct hps_space *space = fx_daemon_with(&options);
    int64_t offset = 10;
    fx_at(space, offset);
    assert_int_equal(fx_insert(space, N, offset - 1).n_inserted, N);
    for (uint32_t i = 0; i < FX_SHARDS; i++) {
        uint16_t slot = redis_space_of(space)->shards[i].slot;
        uint32_t from = slot / FIELDS < N_MASTERS ? slot / FIELDS : N_MASTERS - 1;
        uint32_t to = (from + 1) % N_MASTERS;
        for (int step = 0; step < 4; step++, offset++) {
            switch (step) {
            case 0:
                hps_redis_rig_migrate_begin(fx_rig, slot, from, to);
                break;
            case 1:
                assert_int_equal(hps_redis_rig_migrate_keys(fx_rig, slot, from, to, 10), 1);
                break;
            case 2:
                hps_redis_rig_migrate_end(fx_rig, slot, from, to);
                break;
            default:
                break;
            }
            assert_int_equal(fx_apply(space, offset, offset + 1, N).n_applied, FX_SHARDS);
            assert_int_equal(fx_found(space, N, offset), N);
            assert_int_equal(fx_insert(space, N + 1, offset).n_stale, 0);
        }
    }
}

/* The replica of master 0 takes over without the last updates. */
static void test_shards_when_a_fail_over_loses_writes_then_behind_until_applied_again(void **state)
{
    (void)state;
    enum { N = 300 };
    struct hps_redis_store_options options = fx_options("one");
    struct hps_log_position behind[4];
    uint32_t n_behind = 0;
    struct hps_space *space = fx_daemon_with(&options);
    fx_at(space, 10);
    assert_int_equal(fx_insert(space, N, 9).n_inserted, N);
    /* WAIT covers only the writes of its own connection. */
    char key[64];
    assert_string_equal(hps_redis_rig_ask(fx_rig, 0, "SET %s 1", redis_key_at(0, "waited", key)),
                        "OK");
    hps_redis_rig_await(fx_rig, 0, "1", "WAIT 1 20000");
    hps_redis_rig_pause(fx_rig, 3);
    (void)hps_redis_rig_ask(fx_rig, 0, "CLIENT KILL TYPE replica");
    assert_int_equal(fx_apply(space, 10, 15, N).n_applied, FX_SHARDS);
    assert_int_equal(fx_found(space, N, 14), N);
    hps_redis_rig_kill(fx_rig, 0);
    hps_redis_rig_resume(fx_rig, 3);
    hps_redis_rig_takeover(fx_rig, 3);
    uint64_t end_us = hps_clock_us() + FX_WAIT_US;
    while (space->store->ops->log->behind(space, &fx_call, behind, 4, &n_behind) != HPS_OK) {
        assert_true(hps_clock_us() < end_us);
        (void)fx_found(space, N, 14); /* rows of other masters, no older ones */
        brief_pause();
    }
    assert_int_equal(n_behind, 1);
    assert_int_equal(behind[0].offset, 10);
    uint32_t n_left = fx_found(space, N, 14);
    assert_in_range(n_left, 1, N - 1);
    assert_in_range(fx_apply(space, 15, 16, 0).n_gap, 1, FX_SHARDS - 1);
    assert_int_equal(fx_found(space, N, 14), n_left);
    assert_in_range(fx_apply(space, 10, 15, N).n_applied, 1, FX_SHARDS - 1);
    assert_in_range(fx_apply(space, 15, 16, 0).n_applied, 1, FX_SHARDS - 1);
    assert_int_equal(fx_found(space, N, 14), N);
}

int main(void)
{
    const struct CMUnitTest shared[] = {
        FX_TEST(test_daemons_when_redis_loses_and_restores_then_no_row_is_older),
        FX_TEST(test_get_when_batches_come_fast_to_the_only_copy_then_it_never_fails),
        FX_TEST(test_calls_when_memory_runs_out_then_no_old_row_is_read_and_no_leak),
    };
    const struct CMUnitTest cluster[] = {
        FX_TEST(test_calls_when_one_master_is_paused_then_other_masters_are_used),
        FX_TEST(test_shards_when_slots_move_then_rows_and_positions_stay_together),
        FX_TEST(test_get_when_replicas_lag_then_no_row_is_older),
        FX_TEST(test_get_when_redis_is_the_only_copy_then_no_replica_is_read),
        FX_TEST(test_shards_when_a_fail_over_loses_writes_then_behind_until_applied_again),
    };
    int failed = cmocka_run_group_tests_name("one server", shared, fx_start, fx_stop);
    return failed + cmocka_run_group_tests_name("cluster", cluster, start_cluster, fx_stop);
}
