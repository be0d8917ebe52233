/* SPDX-License-Identifier: Apache-2.0
 *
 * Asynchronous insertion: bounds, duplicate keys, counted drops, fairness between versions,
 * priority of lookups, removed versions and the stop. Jobs run on one I/O thread that the tests
 * can step. One test uses many threads.
 */
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/clock.h"
#include "cache/version/absent.h"
#include "tests/lib/fault_heap.h"
#include "tests/lib/lookup_fixture.h"
#include "tests/lib/pause.h"
#include "tests/lib/walk_metrics.h"

enum { KEYS_MAX = 3 * HPS_INSERTION_JOB_KEYS, VERSIONS = 2 };

struct marker {
    struct hps_task task; /* must be first */
    sem_t reached;
    sem_t go_on;
    uint64_t n_disk_calls; /* calls of the disk before this task */
    struct hps_store *disk;
};

struct insertion_test {
    struct fixture fx[VERSIONS];
    struct walk_metrics metrics;
    struct hps_pool *pool;
    struct hps_insertion *insertion;
    struct marker block;
    struct marker notes[2];
    hps_key keys[KEYS_MAX];
};

/* ---- rig ------------------------------------------------------------------------------------- */

static void make_queue(struct insertion_test *t, uint32_t rows_max, unsigned n_threads,
                       uint32_t jobs_max)
{
    const struct hps_insertion_options options = {
        .rows_max = rows_max, .jobs_max = jobs_max, .metrics = &t->metrics.series};
    struct hps_insertion_options with_pool = options;

    assert_int_equal(hps_pool_new("io", n_threads, 100, &t->pool), HPS_OK);
    with_pool.io = t->pool;
    assert_int_equal(hps_insertion_new(&with_pool, &t->insertion), HPS_OK);
}

static int setup(void **state)
{
    struct insertion_test *t = hps_calloc(1, sizeof(*t));

    assert_non_null(t);
    for (unsigned i = 0; i < VERSIONS; i++) {
        fixture_open(&t->fx[i], 0);
        t->fx[i].version.absent = hps_absent_new();
        t->fx[i].version.flight = hps_flight_new();
        assert_non_null(t->fx[i].version.absent);
        assert_non_null(t->fx[i].version.flight);
    }
    walk_metrics_open(&t->metrics);
    for (uint32_t i = 0; i < KEYS_MAX; i++) {
        t->keys[i] = 1000 + i;
    }
    *state = t;
    return 0;
}

static void end_queue(struct insertion_test *t)
{
    hps_insertion_stop(t->insertion);
    hps_pool_free(t->pool);
    hps_insertion_free(t->insertion);
    t->pool = NULL;
    t->insertion = NULL;
}

static int teardown(void **state)
{
    struct insertion_test *t = *state;

    for (unsigned i = 0; i < VERSIONS; i++) { /* a failed test may leave them shut */
        hps_fake_gate_open(t->fx[i].stores[FIXTURE_DISK], HPS_FAKE_GET);
    }
    sem_post(&t->block.go_on);
    end_queue(t);
    for (unsigned i = 0; i < VERSIONS; i++) {
        assert_true(hps_version_idle(&t->fx[i].version));
        hps_absent_free(t->fx[i].version.absent);
        hps_flight_free(t->fx[i].version.flight);
        hps_stamps_free(t->fx[i].version.stamps);
        fixture_close(&t->fx[i]);
    }
    walk_metrics_close(&t->metrics);
    hps_free(t);
    return 0;
}

static void run_note(struct hps_task *task)
{
    struct marker *marker = (struct marker *)task;

    marker->n_disk_calls = marker->disk == NULL ? 0 : hps_fake_calls(marker->disk, HPS_FAKE_GET);
    sem_post(&marker->reached);
}

static void run_block(struct hps_task *task)
{
    struct marker *marker = (struct marker *)task;

    sem_post(&marker->reached);
    sem_wait(&marker->go_on);
}

/* The test owns `marker`: the I/O thread may still use it while the test continues. */
static void marker_init(struct marker *marker, void (*run)(struct hps_task *task),
                        struct hps_store *disk)
{
    *marker = (struct marker){.task = {.run = run}, .disk = disk};
    sem_init(&marker->reached, 0, 0);
    sem_init(&marker->go_on, 0, 0);
}

/* Block the I/O thread until release. */
static void hold(struct insertion_test *t)
{
    marker_init(&t->block, run_block, NULL);
    assert_int_equal(hps_pool_post(t->pool, &t->block.task), HPS_OK);
    sem_wait(&t->block.reached);
}

static void release(struct insertion_test *t)
{
    sem_post(&t->block.go_on);
}

/* Let the I/O thread run one posted job. */
static void one_turn(struct insertion_test *t)
{
    marker_init(&t->notes[0], run_note, NULL);
    assert_int_equal(hps_pool_post_low(t->pool, &t->notes[0].task), HPS_OK);
    sem_wait(&t->notes[0].reached);
}

static void settle(struct insertion_test *t)
{
    while (hps_insertion_rows(t->insertion) > 0) {
        one_turn(t);
    }
    one_turn(t);
}

static void add(struct insertion_test *t, unsigned version, uint32_t table, uint32_t from,
                uint32_t to)
{
    struct fixture *fx = &t->fx[version];

    hps_insertion_add(t->insertion, &fx->version, &fx->tables[table], t->keys + from, to - from);
}

static void wait_until_empty(struct insertion_test *t)
{
    while (hps_insertion_rows(t->insertion) > 0) {
        brief_pause();
    }
}

static void store(struct insertion_test *t, unsigned version, uint32_t table, uint32_t from,
                  uint32_t to)
{
    for (uint32_t i = from; i < to; i++) {
        fixture_put(&t->fx[version], FIXTURE_DISK, table, t->keys[i]);
    }
}

static uint32_t n_in_host(struct insertion_test *t, unsigned version, uint32_t table, uint32_t from,
                          uint32_t to)
{
    uint32_t n = 0;

    for (uint32_t i = from; i < to; i++) {
        n += fixture_has(&t->fx[version], FIXTURE_HOST, table, t->keys[i]) ? 1 : 0;
    }
    return n;
}

static unsigned value(const struct hps_metric *metric)
{
    return (unsigned)hps_metric_value(metric);
}

static unsigned dropped(const struct insertion_test *t, enum hps_drop_reason reason)
{
    return value(t->metrics.series.insertion_dropped[reason]);
}

static unsigned inserted(const struct insertion_test *t)
{
    return value(t->metrics.series.insertion_rows_async[HPS_TIER_HOST]);
}

/* ---- fetched rows ---------------------------------------------------------------------------- */

static void test_add_when_jobs_have_run_then_rows_of_all_tables_are_in_the_host_tier(void **state)
{
    struct insertion_test *t = *state;

    make_queue(t, 1000, 1, 1);
    for (uint32_t table = 0; table < FIXTURE_TABLES; table++) {
        store(t, 0, table, 0, 100);
        add(t, 0, table, table, 100);
        add(t, 0, table, 0, table);
    }
    settle(t);
    for (uint32_t table = 0; table < FIXTURE_TABLES; table++) {
        assert_int_equal(n_in_host(t, 0, table, 0, 100), 100);
    }
    assert_int_equal(inserted(t), 300);
    assert_int_equal(value(t->metrics.series.insertion_rows[HPS_TIER_HOST]), 0);
    assert_int_equal(value(t->metrics.series.insertion_queue_rows), 0);
    assert_true(value(t->metrics.series.tier_duration[HPS_TIER_ROCKSDB]) > 0);
    assert_int_equal(value(t->metrics.series.tier_duration[HPS_TIER_HOST]), 0);
    assert_true(hps_version_idle(&t->fx[0].version));
}

static void test_add_when_queued_or_being_fetched_then_not_again(void **state)
{
    struct insertion_test *t = *state;
    struct hps_store *disk = t->fx[0].stores[FIXTURE_DISK];

    make_queue(t, 1000, 1, 1);
    store(t, 0, 0, 0, 200);
    hold(t);
    add(t, 0, 0, 0, 100);
    add(t, 0, 0, 50, 150);
    add(t, 0, 1, 0, 10); /* another table */
    assert_int_equal(hps_insertion_rows(t->insertion), 160);
    assert_int_equal(value(t->metrics.series.insertion_queue_rows), 160);
    hps_fake_gate_shut(disk, HPS_FAKE_GET);
    release(t);
    hps_fake_gate_wait(disk, HPS_FAKE_GET, 1);
    add(t, 0, 0, 0, 160);
    assert_int_equal(hps_insertion_rows(t->insertion), 170);
    hps_fake_gate_open(disk, HPS_FAKE_GET);
    settle(t);
    assert_int_equal(hps_fake_keys(disk, HPS_FAKE_GET), 170);
    assert_int_equal(inserted(t), 160);
    add(t, 0, 0, 0, 10); /* fetched before: it is queued again and found in memory */
    settle(t);
    assert_int_equal(hps_fake_keys(disk, HPS_FAKE_GET), 170);
    for (unsigned reason = 0; reason < HPS_DROP_COUNT; reason++) {
        assert_int_equal(dropped(t, reason), 0);
    }
}

static void test_add_when_the_queue_is_full_then_dropped_and_counted(void **state)
{
    struct insertion_test *t = *state;

    make_queue(t, 10, 1, 1);
    store(t, 0, 0, 0, 40);
    hold(t);
    add(t, 0, 0, 0, 25);
    assert_int_equal(hps_insertion_rows(t->insertion), 10);
    assert_int_equal(dropped(t, HPS_DROP_QUEUE_FULL), 15);
    add(t, 0, 0, 0, 25); /* ten of them are queued already */
    assert_int_equal(dropped(t, HPS_DROP_QUEUE_FULL), 30);
    add(t, 1, 0, 0, 5); /* of a version without queued keys: it must not stay pinned */
    assert_int_equal(dropped(t, HPS_DROP_QUEUE_FULL), 35);
    assert_true(hps_version_idle(&t->fx[1].version));
    release(t);
    settle(t);
    assert_int_equal(inserted(t), 10);
    add(t, 0, 0, 30, 40);
    settle(t);
    assert_int_equal(n_in_host(t, 0, 0, 30, 40), 10);
    assert_int_equal(dropped(t, HPS_DROP_QUEUE_FULL), 35);
}

static void test_job_when_a_key_is_in_no_tier_then_it_is_known_to_be_absent(void **state)
{
    struct insertion_test *t = *state;

    make_queue(t, 1000, 1, 1);
    store(t, 0, 1, 0, 5);
    add(t, 0, 1, 0, 10);
    settle(t);
    for (uint32_t i = 0; i < 10; i++) {
        assert_int_equal(hps_absent_has(t->fx[0].version.absent, 1, t->keys[i]), i >= 5);
    }
    assert_int_equal(inserted(t), 5);
    assert_int_equal(dropped(t, HPS_DROP_NOT_FETCHED), 0);
}

static void test_job_when_the_store_fails_then_dropped_and_fetched_when_added_again(void **state)
{
    struct insertion_test *t = *state;

    make_queue(t, 1000, 1, 1);
    store(t, 0, 0, 0, 20);
    hps_fake_fail(t->fx[0].stores[FIXTURE_DISK], HPS_FAKE_GET, HPS_UNAVAILABLE, 0, 1, 8);
    add(t, 0, 0, 0, 20);
    settle(t);
    assert_int_equal(dropped(t, HPS_DROP_NOT_FETCHED), 12);
    assert_int_equal(inserted(t), 8);
    assert_int_equal(value(t->metrics.series.tier_errors[HPS_TIER_ROCKSDB][HPS_FAULT_UNAVAILABLE]),
                     1);
    add(t, 0, 0, 0, 20);
    settle(t);
    assert_int_equal(n_in_host(t, 0, 0, 0, 20), 20);
    assert_int_equal(dropped(t, HPS_DROP_NOT_FETCHED), 12);
}

static void test_job_when_a_key_is_updated_during_it_then_its_old_row_is_left_out(void **state)
{
    struct insertion_test *t = *state;
    struct hps_store *disk = t->fx[0].stores[FIXTURE_DISK];
    struct hps_stamps *stamps = hps_stamps_new();

    assert_non_null(stamps);
    t->fx[0].version.stamps = stamps;
    make_queue(t, 1000, 1, 1);
    store(t, 0, 0, 0, 10);
    hps_fake_gate_shut(disk, HPS_FAKE_GET);
    add(t, 0, 0, 0, 10);
    hps_fake_gate_wait(disk, HPS_FAKE_GET, 1);
    hps_stamps_begin(stamps);
    hps_stamps_mark(stamps, 0, t->keys + 4, 1);
    hps_stamps_end(stamps);
    hps_fake_gate_open(disk, HPS_FAKE_GET);
    settle(t);
    assert_int_equal(n_in_host(t, 0, 0, 0, 10), 9);
    assert_int_equal(n_in_host(t, 0, 0, 4, 5), 0);
    assert_int_equal(dropped(t, HPS_DROP_STALE), 1);
}

/* ---- order ----------------------------------------------------------------------------------- */

static void test_job_when_a_lookup_waits_then_the_lookup_runs_first(void **state)
{
    struct insertion_test *t = *state;
    struct hps_store *disk = t->fx[0].stores[FIXTURE_DISK];
    struct marker *first = &t->notes[0];
    struct marker *second = &t->notes[1];

    make_queue(t, KEYS_MAX, 1, 1);
    store(t, 0, 0, 0, KEYS_MAX);
    marker_init(first, run_note, disk);
    marker_init(second, run_note, disk);
    hold(t);
    add(t, 0, 0, 0, KEYS_MAX);
    assert_int_equal(hps_pool_post(t->pool, &first->task), HPS_OK);
    hps_fake_gate_shut(disk, HPS_FAKE_GET);
    release(t);
    sem_wait(&first->reached);
    assert_int_equal(first->n_disk_calls, 0); /* posted after the job, ran before it */
    hps_fake_gate_wait(disk, HPS_FAKE_GET, 1);
    assert_int_equal(hps_pool_post(t->pool, &second->task), HPS_OK);
    hps_fake_gate_open(disk, HPS_FAKE_GET);
    sem_wait(&second->reached);
    assert_int_equal(second->n_disk_calls, 1); /* ran between two reads of the job */
    settle(t);
    assert_int_equal(hps_fake_calls(disk, HPS_FAKE_GET), 3);
    assert_int_equal(inserted(t), KEYS_MAX);
}

static void test_job_when_two_versions_wait_then_they_take_turns(void **state)
{
    struct insertion_test *t = *state;

    make_queue(t, KEYS_MAX + 10, 1, 1);
    store(t, 0, 0, 0, KEYS_MAX);
    store(t, 1, 0, 0, 10);
    hold(t);
    add(t, 0, 0, 0, KEYS_MAX);
    add(t, 1, 0, 0, 10);
    hps_fake_gate_shut(t->fx[1].stores[FIXTURE_DISK], HPS_FAKE_GET);
    release(t);
    hps_fake_gate_wait(t->fx[1].stores[FIXTURE_DISK], HPS_FAKE_GET, 1);
    assert_int_equal(hps_fake_calls(t->fx[0].stores[FIXTURE_DISK], HPS_FAKE_GET), 1);
    assert_int_equal(hps_insertion_rows(t->insertion), KEYS_MAX + 10 - HPS_INSERTION_JOB_KEYS);
    hps_fake_gate_open(t->fx[1].stores[FIXTURE_DISK], HPS_FAKE_GET);
    settle(t);
    assert_int_equal(n_in_host(t, 1, 0, 0, 10), 10);
    assert_int_equal(n_in_host(t, 0, 0, 0, KEYS_MAX), KEYS_MAX);
}

static void test_jobs_when_few_keys_are_queued_then_one_and_when_many_then_more(void **state)
{
    struct insertion_test *t = *state;
    struct hps_store *disk = t->fx[0].stores[FIXTURE_DISK];

    make_queue(t, KEYS_MAX, 4, 2);
    store(t, 0, 0, 0, KEYS_MAX);
    hps_fake_gate_shut(disk, HPS_FAKE_GET);
    add(t, 0, 0, 0, 1);
    hps_fake_gate_wait(disk, HPS_FAKE_GET, 1);
    add(t, 0, 0, 1, KEYS_MAX);
    hps_fake_gate_wait(disk, HPS_FAKE_GET, 2); /* two of four threads stay free */
    hps_fake_gate_open(disk, HPS_FAKE_GET);
    wait_until_empty(t);
    assert_int_equal(inserted(t), KEYS_MAX);
}

/* Give table 0 rows of this size, and no rows yet. */
static void widen(struct fixture *fx, uint32_t row_bytes)
{
    const struct hps_space_id id = {
        .model = "m", .version = 7, .tables = fx->tables, .n_tables = FIXTURE_TABLES};
    struct hps_error err;

    fx->tables[0].row_bytes = row_bytes;
    for (uint32_t i = 0; i < 2; i++) {
        const struct hps_store_ops *ops = fx->stores[i]->ops;
        ops->space_close(fx->version.tiers[i]);
        assert_int_equal(ops->space_open(fx->stores[i], &id, &fx->version.tiers[i], &err), HPS_OK);
    }
}

/* A job takes few wide rows, so more jobs run at once. */
static void test_jobs_when_few_wide_rows_are_queued_then_more_than_one(void **state)
{
    enum { N_KEYS = 20 };
    struct insertion_test *t = *state;
    struct hps_store *disk = t->fx[0].stores[FIXTURE_DISK];

    make_queue(t, KEYS_MAX, 4, 2);
    widen(&t->fx[0], HPS_INSERTION_JOB_BYTES / 4);
    hps_fake_gate_shut(disk, HPS_FAKE_GET);
    add(t, 0, 0, 0, 1);
    hps_fake_gate_wait(disk, HPS_FAKE_GET, 1);
    add(t, 0, 0, 1, N_KEYS);
    hps_fake_gate_wait(disk, HPS_FAKE_GET, 2);
    hps_fake_gate_open(disk, HPS_FAKE_GET);
    wait_until_empty(t);
    assert_int_equal(hps_fake_keys(disk, HPS_FAKE_GET), N_KEYS);
}

/* ---- ends ------------------------------------------------------------------------------------ */

static void test_forget_when_keys_are_queued_then_dropped_and_the_version_unpinned(void **state)
{
    struct insertion_test *t = *state;

    make_queue(t, 1000, 1, 1);
    store(t, 0, 0, 0, 100);
    store(t, 1, 0, 0, 100);
    hold(t);
    add(t, 0, 0, 0, 100);
    add(t, 1, 0, 0, 50);
    assert_false(hps_version_idle(&t->fx[0].version));
    hps_insertion_forget(t->insertion, &t->fx[0].version);
    assert_true(hps_version_idle(&t->fx[0].version));
    assert_false(hps_version_idle(&t->fx[1].version));
    assert_int_equal(hps_insertion_rows(t->insertion), 50);
    assert_int_equal(dropped(t, HPS_DROP_STOPPED), 100);
    hps_insertion_forget(t->insertion, &t->fx[0].version);
    hps_insertion_forget(NULL, &t->fx[0].version);
    release(t);
    settle(t);
    assert_int_equal(n_in_host(t, 0, 0, 0, 100), 0);
    assert_int_equal(n_in_host(t, 1, 0, 0, 50), 50);
}

static void test_forget_when_a_job_fetches_then_it_ends_before_the_next_read(void **state)
{
    struct insertion_test *t = *state;
    struct hps_store *disk = t->fx[0].stores[FIXTURE_DISK];

    make_queue(t, 1000, 1, 1);
    for (uint32_t table = 0; table < FIXTURE_TABLES; table++) {
        store(t, 0, table, 0, 10);
    }
    hps_fake_gate_shut(disk, HPS_FAKE_GET);
    hold(t);
    for (uint32_t table = 0; table < FIXTURE_TABLES; table++) {
        add(t, 0, table, 0, 10);
    }
    release(t);
    hps_fake_gate_wait(disk, HPS_FAKE_GET, 1);
    hps_insertion_forget(t->insertion, &t->fx[0].version);
    assert_false(hps_version_idle(&t->fx[0].version)); /* the job is running */
    add(t, 0, 0, 20, 30);
    assert_int_equal(dropped(t, HPS_DROP_STOPPED), 10);
    hps_fake_gate_open(disk, HPS_FAKE_GET);
    settle(t);
    assert_true(hps_version_idle(&t->fx[0].version));
    assert_int_equal(hps_fake_calls(disk, HPS_FAKE_GET), 1);
    assert_int_equal(dropped(t, HPS_DROP_STOPPED), 30);
}

static void test_stop_when_keys_are_queued_and_fetched_then_all_jobs_end(void **state)
{
    struct insertion_test *t = *state;
    struct hps_store *disk = t->fx[0].stores[FIXTURE_DISK];

    make_queue(t, KEYS_MAX + 10, 1, 1);
    store(t, 0, 0, 0, KEYS_MAX);
    hps_fake_gate_shut(disk, HPS_FAKE_GET);
    hold(t);
    add(t, 0, 0, 0, KEYS_MAX);
    add(t, 1, 0, 0, 10);
    release(t);
    hps_fake_gate_wait(disk, HPS_FAKE_GET, 1);
    hps_insertion_stop(t->insertion);
    assert_int_equal(hps_insertion_rows(t->insertion), HPS_INSERTION_JOB_KEYS);
    assert_int_equal(dropped(t, HPS_DROP_STOPPED), KEYS_MAX + 10 - HPS_INSERTION_JOB_KEYS);
    assert_true(hps_version_idle(&t->fx[1].version));
    add(t, 1, 0, 0, 10);
    assert_int_equal(dropped(t, HPS_DROP_STOPPED), KEYS_MAX + 20 - HPS_INSERTION_JOB_KEYS);
    hps_fake_gate_open(disk, HPS_FAKE_GET);
    hps_pool_free(t->pool);
    t->pool = NULL;
    assert_int_equal(hps_insertion_rows(t->insertion), 0);
    assert_true(hps_version_idle(&t->fx[0].version));
}

static void try_all(void *ctx)
{
    struct insertion_test *t = ctx;
    struct hps_insertion_options options = {
        .rows_max = 100, .jobs_max = 2, .metrics = &t->metrics.series};

    if (hps_pool_new("io", 1, 100, &t->pool) != HPS_OK) {
        return;
    }
    options.io = t->pool;
    if (hps_insertion_new(&options, &t->insertion) == HPS_OK) {
        add(t, 0, 0, 0, 10);
        wait_until_empty(t);
    }
    end_queue(t);
}

static void test_queue_when_any_allocation_fails_then_no_leak_and_no_hang(void **state)
{
    struct insertion_test *t = *state;

    store(t, 0, 0, 0, 10);
    hps_fake_fail(t->fx[0].stores[FIXTURE_HOST], HPS_FAKE_INSERT, HPS_EXHAUSTED, 0, UINT32_MAX, 0);
    assert_true(hps_fault_heap_run(try_all, t) > 4);
    assert_true(dropped(t, HPS_DROP_NOT_FETCHED) > 0); /* no memory for the rows */
    assert_true(dropped(t, HPS_DROP_FAILED) > 0);
}

/* ---- many threads ---------------------------------------------------------------------------- */

enum { ADDERS = 3, ROUNDS = 300 };

struct adder {
    struct insertion_test *t;
    pthread_t thread;
    uint64_t seed;
};

static void *add_and_add(void *arg)
{
    struct adder *adder = arg;

    for (uint64_t round = 0; round < ROUNDS; round++) {
        uint64_t random = hps_mix64(adder->seed + round);
        unsigned version = (unsigned)(random % VERSIONS);
        uint32_t from = (uint32_t)(random >> 8) % 1500;
        hps_version_pin(&adder->t->fx[version].version);
        add(adder->t, version, (uint32_t)(random >> 40) % FIXTURE_TABLES, from,
            from + (uint32_t)(random >> 48) % 300);
        hps_version_unpin(&adder->t->fx[version].version);
        if (random >> 60 == 0) {
            hps_insertion_forget(adder->t->insertion, &adder->t->fx[version].version);
        }
    }
    return NULL;
}

static void test_queue_when_many_add_and_forget_then_it_drains_and_rows_are_right(void **state)
{
    struct insertion_test *t = *state;
    struct adder adders[ADDERS];

    make_queue(t, 500, 4, 3);
    for (unsigned version = 0; version < VERSIONS; version++) {
        for (uint32_t table = 0; table < FIXTURE_TABLES; table++) {
            store(t, version, table, 0, 1800);
        }
    }
    for (unsigned i = 0; i < ADDERS; i++) {
        adders[i] = (struct adder){.t = t, .seed = i * 1000003};
        assert_int_equal(pthread_create(&adders[i].thread, NULL, add_and_add, &adders[i]), 0);
    }
    for (unsigned i = 0; i < ADDERS; i++) {
        pthread_join(adders[i].thread, NULL);
    }
    wait_until_empty(t);
    /* The forgets may have dropped all keys. Keys that are added now are fetched. */
    add(t, 0, 0, 0, 100);
    wait_until_empty(t);
    end_queue(t);
    assert_int_equal(n_in_host(t, 0, 0, 0, 100), 100);
    unsigned n = 0;
    for (unsigned version = 0; version < VERSIONS; version++) {
        assert_true(hps_version_idle(&t->fx[version].version));
        for (uint32_t table = 0; table < FIXTURE_TABLES; table++) {
            n += n_in_host(t, version, table, 0, 1800);
        }
    }
    assert_int_equal(n, inserted(t));
    assert_int_equal(value(t->metrics.series.insertion_queue_rows), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(test_add_when_jobs_have_run_then_rows_of_all_tables_are_in_the_host_tier),
        TEST(test_add_when_queued_or_being_fetched_then_not_again),
        TEST(test_add_when_the_queue_is_full_then_dropped_and_counted),
        TEST(test_job_when_a_key_is_in_no_tier_then_it_is_known_to_be_absent),
        TEST(test_job_when_the_store_fails_then_dropped_and_fetched_when_added_again),
        TEST(test_job_when_a_key_is_updated_during_it_then_its_old_row_is_left_out),
        TEST(test_job_when_a_lookup_waits_then_the_lookup_runs_first),
        TEST(test_job_when_two_versions_wait_then_they_take_turns),
        TEST(test_jobs_when_few_keys_are_queued_then_one_and_when_many_then_more),
        TEST(test_jobs_when_few_wide_rows_are_queued_then_more_than_one),
        TEST(test_forget_when_keys_are_queued_then_dropped_and_the_version_unpinned),
        TEST(test_forget_when_a_job_fetches_then_it_ends_before_the_next_read),
        TEST(test_stop_when_keys_are_queued_and_fetched_then_all_jobs_end),
        TEST(test_queue_when_any_allocation_fails_then_no_leak_and_no_hang),
        TEST(test_queue_when_many_add_and_forget_then_it_drains_and_rows_are_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
