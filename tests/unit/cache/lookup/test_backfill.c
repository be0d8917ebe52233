/* SPDX-License-Identifier: Apache-2.0
 *
 * The tier walk with a tier shared between daemons, between host and disk: where rows are found,
 * asynchronous insertion into the shared tier, and rows of updates that this daemon has not
 * applied yet.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/clock.h"
#include "cache/lookup/insertion.h"
#include "cache/version/absent.h"
#include "tests/lib/walk_fixture.h"
#include "tests/lib/walk_metrics.h"

enum {
    KEYS_MAX = WALKER_KEYS_MAX,
    WALKERS = 2,
    REDIS = 1,
    DISK = 2,
    T0_ROW_BYTES = WALKER_ROW_BYTES
};

struct shared_test {
    struct fixture fx;
    struct hps_store *redis;
    struct walk_metrics metrics;
    struct hps_pool *pool;
    struct hps_insertion *insertion;
    struct walker walkers[WALKERS];
};

/* ---- rig ------------------------------------------------------------------------------------- */

static void make_insertion(struct shared_test *t, size_t backfill_bytes_max)
{
    assert_int_equal(hps_pool_new("io", 1, 100, &t->pool), HPS_OK);
    const struct hps_insertion_options options = {.io = t->pool,
                                                  .rows_max = KEYS_MAX,
                                                  .jobs_max = 1,
                                                  .backfill_bytes_max = backfill_bytes_max,
                                                  .metrics = &t->metrics.series};
    assert_int_equal(hps_insertion_new(&options, &t->insertion), HPS_OK);
    for (unsigned i = 0; i < WALKERS; i++) {
        t->walkers[i].call.insertion = t->insertion;
    }
}

static void end_insertion(struct shared_test *t)
{
    hps_insertion_stop(t->insertion);
    hps_pool_free(t->pool);
    hps_insertion_free(t->insertion);
    t->insertion = NULL;
    t->pool = NULL;
}

static int setup(void **state)
{
    struct shared_test *t = hps_calloc(1, sizeof(*t));

    assert_non_null(t);
    fixture_open(&t->fx, 0);
    t->redis = fixture_open_middle(&t->fx, true);
    t->fx.version.absent = hps_absent_new();
    t->fx.version.flight = hps_flight_new();
    t->fx.version.stamps = hps_stamps_new();
    assert_non_null(t->fx.version.absent);
    assert_non_null(t->fx.version.flight);
    assert_non_null(t->fx.version.stamps);
    walk_metrics_open(&t->metrics);
    for (unsigned i = 0; i < WALKERS; i++) {
        t->walkers[i].fx = &t->fx;
    }
    *state = t;
    return 0;
}

static int teardown(void **state)
{
    struct shared_test *t = *state;

    hps_fake_gate_open(t->redis, HPS_FAKE_INSERT); /* a failed test may leave it shut */
    hps_fake_gate_open(t->redis, HPS_FAKE_GET);
    end_insertion(t);
    assert_true(hps_version_idle(&t->fx.version));
    hps_absent_free(t->fx.version.absent);
    hps_flight_free(t->fx.version.flight);
    hps_stamps_free(t->fx.version.stamps);
    if (t->redis != NULL) {
        fixture_close_middle(&t->fx, t->redis);
    }
    fixture_close(&t->fx);
    walk_metrics_close(&t->metrics);
    hps_free(t);
    return 0;
}

static struct hps_store *disk(struct shared_test *t)
{
    return t->fx.stores[FIXTURE_DISK];
}

static hps_status walk(struct shared_test *t, hps_key from, hps_key to)
{
    return walker_walk(&t->walkers[0], from, to);
}

/* Every key of the walk has its row. */
static void check_rows(const struct walker *walker, hps_key from, hps_key to)
{
    uint8_t row[T0_ROW_BYTES];

    for (hps_key key = from; key < to; key++) {
        fixture_row(&walker->fx->tables[0], key, row);
        assert_memory_equal(walker->rows + (key - from) * T0_ROW_BYTES, row, T0_ROW_BYTES);
    }
}

static const struct hps_tier_report *report(const struct shared_test *t, uint32_t tier)
{
    return &t->walkers[0].walk.reports[fixture_kind(&t->fx, tier)];
}

static uint32_t n_in(struct shared_test *t, uint32_t tier, hps_key from, hps_key to)
{
    uint32_t n = 0;

    for (hps_key key = from; key < to; key++) {
        n += fixture_has(&t->fx, tier, 0, key) ? 1 : 0;
    }
    return n;
}

/* Wait until no key or row is queued for insertion. */
static void settle(struct shared_test *t)
{
    while (hps_insertion_rows(t->insertion) > 0 || hps_insertion_backfill_bytes(t->insertion) > 0) {
        brief_pause();
    }
}

static unsigned dropped(const struct shared_test *t, enum hps_drop_reason reason)
{
    return (unsigned)hps_metric_value(t->metrics.series.insertion_dropped[reason]);
}

static unsigned n_queued(const struct shared_test *t)
{
    return (unsigned)hps_metric_value(t->metrics.series.insertion_shared_queue_rows);
}

static unsigned filled(const struct shared_test *t)
{
    return (unsigned)hps_metric_value(t->metrics.series.insertion_rows_async[HPS_TIER_REDIS]);
}

/* Mark the keys in the stamps as an update does. */
static void update(struct shared_test *t, const hps_key *keys, uint32_t n)
{
    hps_stamps_begin(t->fx.version.stamps);
    hps_stamps_mark(t->fx.version.stamps, 0, keys, n);
    hps_stamps_end(t->fx.version.stamps);
}

/* ---- where rows are found -------------------------------------------------------------------- */

static void test_walk_when_three_tiers_have_rows_then_each_gets_the_misses_of_the_last(void **state)
{
    struct shared_test *t = *state;
    uint32_t n_hits = 0;

    make_insertion(t, 0);
    fixture_put_range(&t->fx, FIXTURE_HOST, 0, 0, 10);
    fixture_put_range(&t->fx, REDIS, 0, 5, 30);
    fixture_put_range(&t->fx, DISK, 0, 0, 45);
    walker_begin(&t->walkers[0], 0, 50);
    assert_int_equal(hps_walk_memory(&t->walkers[0].walk, &t->walkers[0].call, NULL), HPS_OK);
    assert_int_equal(hps_fake_calls(t->redis, HPS_FAKE_GET), 0);
    assert_true(hps_walk_hits(&t->walkers[0].walk, HPS_TIER_HOST, &n_hits));
    assert_int_equal(n_hits, 10);
    assert_false(hps_walk_hits(&t->walkers[0].walk, HPS_TIER_REDIS, &n_hits)); /* not queried yet */
    assert_int_equal(hps_walk_rest(&t->walkers[0].walk, &t->walkers[0].call, &t->walkers[0].err),
                     HPS_OK);
    assert_int_equal(report(t, 0)->n_found, 10);
    assert_int_equal(report(t, REDIS)->n_asked, 40);
    assert_int_equal(report(t, REDIS)->n_found, 20);
    assert_int_equal(report(t, DISK)->n_asked, 20);
    assert_int_equal(report(t, DISK)->n_found, 15);
    assert_int_equal(t->walkers[0].walk.n_absent, 5);
    check_rows(&t->walkers[0], 0, 45);
    settle(t);
    assert_int_equal(n_in(t, FIXTURE_HOST, 0, 45), 45); /* rows of redis and of the disk */
    assert_int_equal(n_in(t, REDIS, 0, 5), 0);          /* found in the host tier */
    assert_int_equal(n_in(t, REDIS, 5, 45), 40);
    assert_int_equal(filled(t), 15);
    assert_int_equal(hps_fake_keys(t->redis, HPS_FAKE_INSERT), 15);
}

static void test_walk_when_a_request_has_many_tables_then_the_shared_tier_is_called_once(
    void **state)
{
    struct shared_test *t = *state;
    struct hps_walk walks[FIXTURE_TABLES];
    hps_key keys[FIXTURE_TABLES];
    uint32_t slots[FIXTURE_TABLES] = {0};
    uint8_t rows[FIXTURE_TABLES][FIXTURE_DIM_MAX * 4];

    make_insertion(t, 0);
    for (uint32_t i = 0; i < FIXTURE_TABLES; i++) {
        keys[i] = 100 + i;
        fixture_put(&t->fx, i == 2 ? DISK : REDIS, i, keys[i]);
        struct hps_batch batch = {.keys = &keys[i], .slots = &slots[i], .rows = rows[i], .n = 1};
        hps_walk_init(&walks[i], &t->fx.version, &t->fx.tables[i], &batch);
        walks[i].next = i + 1 < FIXTURE_TABLES ? &walks[i + 1] : NULL;
    }
    const struct hps_walk_call call = {.insertion = t->insertion};
    assert_int_equal(hps_walk_rest(walks, &call, NULL), HPS_OK);
    assert_int_equal(hps_fake_calls(t->redis, HPS_FAKE_GET_MANY), 1);
    assert_int_equal(hps_fake_calls(t->redis, HPS_FAKE_GET), 0);
    for (uint32_t i = 0; i < FIXTURE_TABLES; i++) {
        assert_int_equal(walks[i].reports[i == 2 ? HPS_TIER_ROCKSDB : HPS_TIER_REDIS].n_found, 1);
    }
    settle(t);
    assert_true(fixture_has(&t->fx, REDIS, 2, keys[2]));
}

static void test_walk_when_a_part_is_large_then_the_shared_tier_is_called_once(void **state)
{
    struct shared_test *t = *state;

    make_insertion(t, 0);
    fixture_put_range(&t->fx, DISK, 0, 0, 20);
    assert_int_equal(walk(t, 0, KEYS_MAX), HPS_OK);
    assert_int_equal(t->walkers[0].walk.n_absent, KEYS_MAX - 20);
    assert_int_equal(hps_fake_calls(t->redis, HPS_FAKE_GET), 1);
    assert_int_equal(hps_fake_calls(disk(t), HPS_FAKE_GET), 2);
}

static void test_walk_when_the_shared_tier_misses_then_only_the_disk_proves_absence(void **state)
{
    struct shared_test *t = *state;

    make_insertion(t, 0);
    fixture_put_range(&t->fx, DISK, 0, 0, 5);
    hps_fake_fail(disk(t), HPS_FAKE_GET, HPS_UNAVAILABLE, 0, 1, 0);
    assert_int_equal(walk(t, 0, 10), HPS_UNAVAILABLE);
    assert_int_equal(t->walkers[0].walk.n_absent, 0);
    assert_false(hps_absent_has(t->fx.version.absent, 0, 7));
    assert_int_equal(walk(t, 0, 10), HPS_OK);
    assert_int_equal(t->walkers[0].walk.n_absent, 5);
    assert_true(hps_absent_has(t->fx.version.absent, 0, 7));
    assert_false(hps_absent_has(t->fx.version.absent, 0, 3));
}

/* A shared tier may lose rows at any time. It does not make the host map incomplete. */
static void test_walk_when_the_host_map_is_complete_then_a_miss_still_proves_absence(void **state)
{
    struct shared_test *t = *state;

    make_insertion(t, 0);
    t->fx.version.host_complete = true;
    atomic_store(&t->fx.version.tiers[REDIS]->incomplete, true);
    assert_int_equal(walk(t, 0, 10), HPS_OK);
    assert_int_equal(t->walkers[0].walk.n_absent, 10);
    assert_int_equal(hps_fake_calls(t->redis, HPS_FAKE_GET), 0);
}

/* ---- a shared tier that fails ---------------------------------------------------------------- */

static void test_walk_when_the_shared_tier_fails_then_it_is_skipped_without_more_calls(void **state)
{
    struct shared_test *t = *state;

    make_insertion(t, 0);
    fixture_put_range(&t->fx, REDIS, 0, 0, 10);
    fixture_put_range(&t->fx, DISK, 0, 0, 20);
    hps_fake_fail(t->redis, HPS_FAKE_GET, HPS_UNAVAILABLE, 0, 1, 4);
    assert_int_equal(walk(t, 0, 20), HPS_OK);
    check_rows(&t->walkers[0], 0, 20);
    assert_int_equal(report(t, REDIS)->n_faults, 1);
    assert_int_equal(report(t, REDIS)->status, HPS_UNAVAILABLE);
    assert_int_equal(report(t, REDIS)->n_found + report(t, DISK)->n_found, 20);
    assert_int_equal(t->walkers[0].walk.n_absent, 0);
    settle(t);
    assert_int_equal(n_in(t, FIXTURE_HOST, 0, 20), 20);
    assert_int_equal(hps_fake_calls(t->redis, HPS_FAKE_INSERT), 0);
}

static void test_walk_when_the_shared_tier_is_the_lowest_then_its_failure_fails_the_walk(
    void **state)
{
    struct shared_test *t = *state;

    make_insertion(t, 0);
    t->fx.version.n_tiers = 2;
    fixture_put_range(&t->fx, REDIS, 0, 0, 5);
    hps_fake_fail(t->redis, HPS_FAKE_GET, HPS_UNAVAILABLE, 0, 1, 2);
    assert_int_equal(walk(t, 0, 10), HPS_UNAVAILABLE);
    assert_non_null(strstr(t->walkers[0].err.text, "table 't0': tier redis: unavailable"));
    assert_int_equal(t->walkers[0].walk.n_absent, 0);
    assert_int_equal(walk(t, 0, 10), HPS_OK);
    assert_int_equal(t->walkers[0].walk.n_absent, 5);
    check_rows(&t->walkers[0], 0, 5);
    settle(t);
    assert_int_equal(hps_fake_calls(t->redis, HPS_FAKE_INSERT), 0);
    t->fx.version.n_tiers = 3;
}

static void test_walk_when_the_shared_tier_takes_no_missed_rows_then_none_is_inserted(void **state)
{
    struct shared_test *t = *state;

    make_insertion(t, 0);
    t->fx.version.shared_takes_missed = false;
    fixture_put_range(&t->fx, DISK, 0, 0, 20);
    assert_int_equal(walk(t, 0, 20), HPS_OK);
    settle(t);
    assert_int_equal(n_in(t, FIXTURE_HOST, 0, 20), 20);
    assert_int_equal(hps_fake_calls(t->redis, HPS_FAKE_INSERT), 0);
}

/* ---- asynchronous insertion into the shared tier --------------------------------------------- */

static void test_backfill_when_the_shared_tier_hangs_then_no_lookup_waits_and_copies_are_bounded(
    void **state)
{
    struct shared_test *t = *state;

    make_insertion(t, 64 * 1024);
    fixture_put_range(&t->fx, DISK, 0, 0, 10000);
    hps_fake_gate_shut(t->redis, HPS_FAKE_INSERT);
    assert_int_equal(walk(t, 0, 100), HPS_OK);
    hps_fake_gate_wait(t->redis, HPS_FAKE_INSERT, 1);
    assert_int_equal(walk(t, 100, 10000), HPS_OK); /* 160 KB of rows, and their keys */
    check_rows(&t->walkers[0], 100, 10000);
    assert_in_range(hps_insertion_backfill_bytes(t->insertion), 1, 64 * 1024);
    unsigned n_dropped = dropped(t, HPS_DROP_QUEUE_FULL);
    assert_in_range(n_dropped, 1, 9900);
    assert_int_equal(n_queued(t), 10000 - n_dropped);
    hps_fake_gate_open(t->redis, HPS_FAKE_INSERT);
    settle(t);
    assert_int_equal(n_queued(t), 0);
    assert_int_equal(filled(t), 10000 - n_dropped);
    assert_int_equal(n_in(t, REDIS, 0, 10000), 10000 - n_dropped);
}

static void test_backfill_when_many_lookups_leave_rows_then_few_insert_calls(void **state)
{
    struct shared_test *t = *state;

    make_insertion(t, 0);
    fixture_put_range(&t->fx, DISK, 0, 0, 1000);
    hps_fake_gate_shut(t->redis, HPS_FAKE_INSERT);
    assert_int_equal(walk(t, 0, 10), HPS_OK);
    hps_fake_gate_wait(t->redis, HPS_FAKE_INSERT, 1);
    for (hps_key from = 10; from < 1000; from += 10) {
        assert_int_equal(walk(t, from, from + 10), HPS_OK);
    }
    hps_fake_gate_open(t->redis, HPS_FAKE_INSERT);
    settle(t);
    assert_int_equal(hps_fake_calls(t->redis, HPS_FAKE_INSERT), 2);
    assert_int_equal(n_in(t, REDIS, 0, 1000), 1000);
}

static void test_backfill_when_an_update_comes_before_it_runs_then_its_keys_stay_out(void **state)
{
    struct shared_test *t = *state;
    const hps_key updated[] = {3, 15};

    make_insertion(t, 0);
    fixture_put_range(&t->fx, DISK, 0, 0, 30);
    hps_fake_gate_shut(t->redis, HPS_FAKE_INSERT);
    assert_int_equal(walk(t, 0, 10), HPS_OK);
    hps_fake_gate_wait(t->redis, HPS_FAKE_INSERT, 1);
    assert_int_equal(walk(t, 10, 20), HPS_OK);
    update(t, updated, 2);
    assert_int_equal(walk(t, 20, 30), HPS_OK); /* in one call with the keys before */
    hps_fake_gate_open(t->redis, HPS_FAKE_INSERT);
    settle(t);
    assert_int_equal(n_in(t, REDIS, 0, 30), 28);
    assert_false(fixture_has(&t->fx, REDIS, 0, 3));
    assert_false(fixture_has(&t->fx, REDIS, 0, 15));
    assert_int_equal(dropped(t, HPS_DROP_STALE), 2);
    assert_int_equal(filled(t), 28);
}

static void test_backfill_when_the_shared_tier_or_a_part_of_it_fails_then_it_is_counted(
    void **state)
{
    static const hps_status statuses[] = {HPS_UNAVAILABLE, HPS_OK}; /* OK: a part fails */
    struct shared_test *t = *state;

    make_insertion(t, 0);
    for (unsigned i = 0; i < 2; i++) {
        hps_key from = 20 * (hps_key)i;
        fixture_put_range(&t->fx, DISK, 0, from, from + 20);
        hps_fake_fail(t->redis, HPS_FAKE_INSERT, statuses[i], 0, 1, 5);
        assert_int_equal(walk(t, from, from + 20), HPS_OK);
        settle(t);
        assert_int_equal(filled(t), 5 * (i + 1));
        assert_int_equal(dropped(t, HPS_DROP_FAILED), 15 * (i + 1));
    }
}

static void test_backfill_when_the_version_is_removed_then_its_rows_are_dropped_and_unpinned(
    void **state)
{
    struct shared_test *t = *state;

    make_insertion(t, 0);
    fixture_put_range(&t->fx, DISK, 0, 0, 30);
    hps_fake_gate_shut(t->redis, HPS_FAKE_INSERT);
    assert_int_equal(walk(t, 0, 10), HPS_OK);
    hps_fake_gate_wait(t->redis, HPS_FAKE_INSERT, 1);
    assert_int_equal(walk(t, 10, 30), HPS_OK);
    hps_insertion_forget(t->insertion, &t->fx.version);
    assert_int_equal(dropped(t, HPS_DROP_STOPPED), 20);
    assert_int_equal(n_queued(t), 10);
    assert_false(hps_version_idle(&t->fx.version)); /* a call is running */
    hps_fake_gate_open(t->redis, HPS_FAKE_INSERT);
    settle(t);
    assert_true(hps_version_idle(&t->fx.version));
    assert_int_equal(n_in(t, REDIS, 0, 30), 10);
    assert_int_equal(walk(t, 30, 40), HPS_OK); /* the version still serves lookups */
}

static void test_backfill_when_it_stops_then_no_row_is_queued(void **state)
{
    struct shared_test *t = *state;

    make_insertion(t, 0);
    fixture_put_range(&t->fx, DISK, 0, 0, 40);
    assert_int_equal(walk(t, 0, 10), HPS_OK);
    settle(t);
    hps_insertion_stop(t->insertion);
    assert_true(hps_version_idle(&t->fx.version));
    assert_int_equal(walk(t, 10, 40), HPS_OK);
    assert_int_equal(dropped(t, HPS_DROP_STOPPED), 30);
    assert_int_equal(hps_insertion_backfill_bytes(t->insertion), 0);
    assert_true(hps_version_idle(&t->fx.version));
}

/* If a lookup stops waiting and the version has no host map, the shared tier gets the row for
 * the next lookup. */
static void test_lookup_when_there_is_no_map_then_late_rows_go_into_the_shared_tier(void **state)
{
    struct shared_test *t = *state;
    struct hps_version *version = &t->fx.version;
    struct hps_space *host = version->tiers[0];
    struct hps_arena *arena = hps_arena_new(4096, 1 << 20);
    _Alignas(HPS_ROWS_ALIGN) uint8_t rows[HPS_ROWS_ALIGN];
    const hps_key key = 3;
    struct hps_lookup_part part = {
        .table = &t->fx.tables[0], .keys = (const uint8_t *)&key, .n_keys = 1};
    bool done = false;

    make_insertion(t, 0);
    fixture_put_range(&t->fx, DISK, 0, 0, 10);
    version->tiers[0] = version->tiers[REDIS];
    version->tiers[1] = version->tiers[DISK];
    version->n_tiers = 2;
    struct hps_lookup lookup = {.version = version,
                                .arena = arena,
                                .parts = &part,
                                .n_parts = 1,
                                .miss_policy = HPS_MISS_WAIT,
                                .wait_us_max = 100,
                                .insertion = t->insertion};
    hps_clock_fake(1000);
    hps_fake_latency(disk(t), HPS_FAKE_GET, 500);
    assert_int_equal(hps_lookup_plan(&lookup, NULL), HPS_OK);
    lookup.rows = rows;
    assert_int_equal(hps_lookup_run_memory(&lookup, &done, NULL), HPS_OK);
    assert_false(done);
    assert_int_equal(hps_lookup_run_rest(&lookup, NULL), HPS_OK);
    assert_int_equal(part.n_defaulted, 1);
    settle(t);
    hps_clock_real();
    assert_true(fixture_has(&t->fx, 0, 0, key));
    assert_int_equal(filled(t), 1);
    version->tiers[2] = version->tiers[1];
    version->tiers[1] = version->tiers[0];
    version->tiers[0] = host;
    version->n_tiers = 3;
    hps_arena_free(arena);
}

struct adder {
    pthread_t thread;
    struct shared_test *t;
    hps_key from;
};

static void *add_and_forget(void *arg)
{
    struct adder *adder = arg;
    struct shared_test *t = adder->t;
    uint8_t rows[8 * T0_ROW_BYTES];
    hps_key keys[8];
    uint32_t slots[8];

    for (unsigned round = 0; round < 500; round++) {
        for (uint32_t i = 0; i < 8; i++) {
            keys[i] = adder->from + round * 8 + i;
            slots[i] = 7 - i;
            fixture_row(&t->fx.tables[0], keys[i], rows + slots[i] * T0_ROW_BYTES);
        }
        const struct hps_backfill_rows found = {.version = &t->fx.version,
                                                .space = t->fx.version.tiers[REDIS],
                                                .table = &t->fx.tables[0],
                                                .keys = keys,
                                                .slots = slots,
                                                .rows = rows,
                                                .n = 8,
                                                .since = 2};
        hps_insertion_backfill(t->insertion, &found);
        if (round % 100 == 99) {
            hps_insertion_forget(t->insertion, &t->fx.version);
        }
    }
    return NULL;
}

static void test_backfill_when_many_add_and_forget_then_each_row_is_inserted_or_counted(
    void **state)
{
    struct shared_test *t = *state;
    struct adder adders[4];

    make_insertion(t, 16 * 1024);
    for (unsigned i = 0; i < 4; i++) {
        adders[i] = (struct adder){.t = t, .from = i * 4000};
        assert_int_equal(pthread_create(&adders[i].thread, NULL, add_and_forget, &adders[i]), 0);
    }
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(adders[i].thread, NULL), 0);
    }
    settle(t);
    uint32_t n = n_in(t, REDIS, 0, 16000);
    assert_int_equal(n, filled(t));
    assert_int_equal(n + dropped(t, HPS_DROP_QUEUE_FULL) + dropped(t, HPS_DROP_STOPPED), 16000);
}

/* ---- rows of later positions ----------------------------------------------------------------- */

/* A reply may contain such rows, but the host tier must not keep them for unit lookups. It gets
 * the rows of the disk. */
static void test_walk_when_shared_rows_are_later_then_memory_gets_rows_of_this_version(void **state)
{
    struct shared_test *t = *state;
    const hps_key key = 5;
    const uint8_t later[T0_ROW_BYTES] = {1, 2, 3};
    struct hps_space *space = t->fx.version.tiers[REDIS];
    struct hps_call call = {0};

    make_insertion(t, 0);
    fixture_put_range(&t->fx, DISK, 0, 0, 10);
    assert_int_equal(space->store->ops->put(space, &call, &t->fx.tables[0], &key, later, 1),
                     HPS_OK);
    hps_fake_later(t->redis, true);
    assert_int_equal(walk(t, 5, 6), HPS_OK);
    assert_int_equal(report(t, REDIS)->n_found, 1);
    assert_memory_equal(t->walkers[0].rows, later, T0_ROW_BYTES);
    settle(t);
    assert_true(fixture_has(&t->fx, FIXTURE_HOST, 0, key)); /* the row of the disk */
    assert_int_equal(hps_fake_calls(disk(t), HPS_FAKE_GET), 1);
    assert_int_equal(hps_metric_value(t->metrics.series.insertion_rows_async[HPS_TIER_HOST]), 1);
}

static void test_walk_when_it_is_exact_then_later_rows_are_misses(void **state)
{
    struct shared_test *t = *state;

    make_insertion(t, 0);
    fixture_put_range(&t->fx, DISK, 0, 0, 10);
    fixture_put_range(&t->fx, REDIS, 0, 0, 10);
    hps_fake_later(t->redis, true);
    t->walkers[0].call.exact = true;
    assert_int_equal(walk(t, 0, 10), HPS_OK);
    assert_int_equal(report(t, REDIS)->n_found, 0);
    assert_int_equal(report(t, DISK)->n_found, 10);
    check_rows(&t->walkers[0], 0, 10);
    hps_fake_later(t->redis, false);
    assert_int_equal(n_in(t, FIXTURE_HOST, 0, 10), 10);
}

static void test_walk_when_it_is_exact_then_it_shares_no_fetch_of_another_walk(void **state)
{
    struct shared_test *t = *state;

    make_insertion(t, 0);
    fixture_put_range(&t->fx, REDIS, 0, 0, 10);
    fixture_put_range(&t->fx, DISK, 0, 0, 10);
    hps_fake_later(t->redis, true);
    hps_fake_gate_shut(t->redis, HPS_FAKE_GET);
    walker_start(&t->walkers[0], 0, 10);
    hps_fake_gate_wait(t->redis, HPS_FAKE_GET, 1);
    t->walkers[1].call.exact = true;
    walker_start(&t->walkers[1], 0, 10);
    hps_fake_gate_wait(t->redis, HPS_FAKE_GET, 2); /* it reads for itself */
    hps_fake_gate_open(t->redis, HPS_FAKE_GET);
    assert_int_equal(walker_join(&t->walkers[0]), HPS_OK);
    assert_int_equal(walker_join(&t->walkers[1]), HPS_OK);
    assert_int_equal(t->walkers[0].walk.reports[HPS_TIER_REDIS].n_found, 10);
    assert_int_equal(t->walkers[1].walk.reports[HPS_TIER_ROCKSDB].n_found, 10);
    assert_int_equal(t->walkers[1].walk.reports[HPS_TIER_ROCKSDB].n_shared, 0);
    settle(t);
}

static void test_walk_when_the_lowest_tier_has_later_rows_then_memory_does_not_keep_them(
    void **state)
{
    struct shared_test *t = *state;

    make_insertion(t, 0);
    t->fx.version.n_tiers = 2;
    fixture_put_range(&t->fx, REDIS, 0, 0, 10);
    hps_fake_later(t->redis, true);
    assert_int_equal(walk(t, 0, 12), HPS_OK);
    check_rows(&t->walkers[0], 0, 10);
    settle(t);
    assert_int_equal(n_in(t, FIXTURE_HOST, 0, 10), 0);
    assert_int_equal(t->walkers[0].walk.n_absent, 2);
    assert_false(hps_absent_has(t->fx.version.absent, 0, 11)); /* an update may delete it */
    hps_fake_later(t->redis, false);
    assert_int_equal(walk(t, 0, 12), HPS_OK);
    assert_int_equal(n_in(t, FIXTURE_HOST, 0, 10), 10);
    assert_true(hps_absent_has(t->fx.version.absent, 0, 11));
    t->fx.version.n_tiers = 3;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(test_walk_when_three_tiers_have_rows_then_each_gets_the_misses_of_the_last),
        TEST(test_walk_when_a_request_has_many_tables_then_the_shared_tier_is_called_once),
        TEST(test_walk_when_a_part_is_large_then_the_shared_tier_is_called_once),
        TEST(test_walk_when_the_shared_tier_misses_then_only_the_disk_proves_absence),
        TEST(test_walk_when_the_host_map_is_complete_then_a_miss_still_proves_absence),
        TEST(test_walk_when_the_shared_tier_fails_then_it_is_skipped_without_more_calls),
        TEST(test_walk_when_the_shared_tier_is_the_lowest_then_its_failure_fails_the_walk),
        TEST(test_walk_when_the_shared_tier_takes_no_missed_rows_then_none_is_inserted),
        TEST(test_backfill_when_the_shared_tier_hangs_then_no_lookup_waits_and_copies_are_bounded),
        TEST(test_backfill_when_many_lookups_leave_rows_then_few_insert_calls),
        TEST(test_backfill_when_an_update_comes_before_it_runs_then_its_keys_stay_out),
        TEST(test_backfill_when_the_shared_tier_or_a_part_of_it_fails_then_it_is_counted),
        TEST(test_backfill_when_the_version_is_removed_then_its_rows_are_dropped_and_unpinned),
        TEST(test_backfill_when_it_stops_then_no_row_is_queued),
        TEST(test_lookup_when_there_is_no_map_then_late_rows_go_into_the_shared_tier),
        TEST(test_backfill_when_many_add_and_forget_then_each_row_is_inserted_or_counted),
        TEST(test_walk_when_shared_rows_are_later_then_memory_gets_rows_of_this_version),
        TEST(test_walk_when_it_is_exact_then_later_rows_are_misses),
        TEST(test_walk_when_it_is_exact_then_it_shares_no_fetch_of_another_walk),
        TEST(test_walk_when_the_lowest_tier_has_later_rows_then_memory_does_not_keep_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
