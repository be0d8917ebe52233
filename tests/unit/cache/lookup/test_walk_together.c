/* SPDX-License-Identifier: Apache-2.0
 *
 * Concurrent walks and updates: shared fetches, keys known to be absent, rows that an update has
 * overtaken, stores that are down, and parts that are read together.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "backends/breaker.h"
#include "base/clock.h"
#include "cache/version/absent.h"
#include "tests/lib/fault_heap.h"
#include "tests/lib/walk_fixture.h"

enum { WALKERS = 4 };

struct together_test {
    struct fixture fx;
    struct walker walkers[WALKERS];
};

static int setup(void **state)
{
    struct together_test *t = hps_calloc(1, sizeof(*t));

    assert_non_null(t);
    fixture_open(&t->fx, 0);
    t->fx.version.absent = hps_absent_new();
    t->fx.version.flight = hps_flight_new();
    assert_non_null(t->fx.version.absent);
    assert_non_null(t->fx.version.flight);
    for (unsigned i = 0; i < WALKERS; i++) {
        t->walkers[i].fx = &t->fx;
    }
    *state = t;
    return 0;
}

static int teardown(void **state)
{
    struct together_test *t = *state;

    hps_clock_real();
    hps_absent_free(t->fx.version.absent);
    hps_flight_free(t->fx.version.flight);
    hps_stamps_free(t->fx.version.stamps);
    hps_breaker_free(t->fx.version.breakers[FIXTURE_DISK]);
    fixture_close(&t->fx);
    hps_free(t);
    return 0;
}

static struct hps_store *disk(struct together_test *t)
{
    return t->fx.stores[FIXTURE_DISK];
}

static const struct hps_tier_report *disk_report(const struct walker *walker)
{
    return &walker->walk.reports[HPS_TIER_ROCKSDB];
}

/* Check ranges and rows of a finished walk, and that its counts add up. */
static void check(const struct walker *walker)
{
    const struct hps_walk *walk = &walker->walk;
    uint32_t n = walk->batch.n + walk->n_absent;
    uint32_t n_below = walk->n_keys - walk->reports[HPS_TIER_HOST].n_found;
    uint8_t row[16];

    for (unsigned kind = 0; kind < HPS_TIER_COUNT; kind++) {
        const struct hps_tier_report *report = &walk->reports[kind];
        uint32_t begin_at = hps_walk_found_begin(walk, kind);
        for (uint32_t i = begin_at; i < begin_at + report->n_found; i++) {
            fixture_row(&walker->fx->tables[0], walk->batch.keys[i], row);
            assert_memory_equal(walker->rows + (size_t)walk->batch.slots[i] * 16, row, 16);
            assert_int_equal(walk->batch.keys[i], walker->from + walk->batch.slots[i]);
        }
        n += report->n_found;
        assert_true(report->n_shared <= report->n_found);
    }
    assert_int_equal(n, walk->n_keys);
    assert_int_equal(n_below, disk_report(walker)->n_asked + disk_report(walker)->n_shared +
                                  walk->n_remembered + walk->n_shared_absent);
}

/* ---- single flight --------------------------------------------------------------------------- */

/* Walker 0 reads keys [0, 10) from the disk, which holds the call. */
static void start_leader(struct together_test *t)
{
    hps_fake_gate_shut(disk(t), HPS_FAKE_GET);
    walker_start(&t->walkers[0], 0, 10);
    hps_fake_gate_wait(disk(t), HPS_FAKE_GET, 1);
}

static void test_walks_when_they_miss_the_same_keys_then_each_is_fetched_once(void **state)
{
    struct together_test *t = *state;

    fixture_put_range(&t->fx, FIXTURE_DISK, 0, 0, 8);
    start_leader(t);
    for (unsigned i = 1; i < WALKERS; i++) {
        walker_start(&t->walkers[i], 0, 10);
        walker_until_it_waits(&t->walkers[i]);
    }
    hps_fake_gate_open(disk(t), HPS_FAKE_GET);
    for (unsigned i = 0; i < WALKERS; i++) {
        assert_int_equal(walker_join(&t->walkers[i]), HPS_OK);
        check(&t->walkers[i]);
        assert_int_equal(disk_report(&t->walkers[i])->n_found, 8);
        assert_int_equal(t->walkers[i].walk.n_absent, 2);
        assert_int_equal(disk_report(&t->walkers[i])->n_shared, i == 0 ? 0 : 8);
        assert_int_equal(t->walkers[i].walk.n_shared_absent, i == 0 ? 0 : 2);
    }
    assert_int_equal(hps_fake_calls(disk(t), HPS_FAKE_GET), 1);
    assert_int_equal(hps_fake_keys(disk(t), HPS_FAKE_GET), 10);
}

static void test_walk_when_it_waits_for_another_then_the_wait_is_counted_separately(void **state)
{
    struct together_test *t = *state;

    hps_clock_fake(hps_clock_us());
    fixture_put_range(&t->fx, FIXTURE_DISK, 0, 0, 8);
    start_leader(t);
    walker_start(&t->walkers[1], 0, 10);
    walker_until_it_waits(&t->walkers[1]);
    hps_clock_advance(5000);
    hps_fake_gate_open(disk(t), HPS_FAKE_GET);
    assert_int_equal(walker_join(&t->walkers[0]), HPS_OK);
    assert_int_equal(walker_join(&t->walkers[1]), HPS_OK);
    assert_int_equal(t->walkers[0].walk.wait_us, 0);
    assert_int_equal(disk_report(&t->walkers[0])->duration_us, 5000);
    assert_int_equal(t->walkers[1].walk.wait_us, 5000);
    assert_int_equal(disk_report(&t->walkers[1])->duration_us, 0);
}

static void test_walks_when_some_keys_are_in_flight_then_other_keys_are_fetched_at_once(
    void **state)
{
    struct together_test *t = *state;
    struct walker *other = &t->walkers[1];

    fixture_put_range(&t->fx, FIXTURE_DISK, 0, 0, 20);
    start_leader(t);
    walker_start(other, 5, 15);
    hps_fake_gate_wait(disk(t), HPS_FAKE_GET, 2); /* it reads keys [10, 15) already */
    assert_int_equal(hps_fake_keys(disk(t), HPS_FAKE_GET), 15);
    hps_fake_gate_open(disk(t), HPS_FAKE_GET);
    assert_int_equal(walker_join(&t->walkers[0]), HPS_OK);
    assert_int_equal(walker_join(other), HPS_OK);
    assert_int_equal(disk_report(other)->n_asked, 5);
    assert_int_equal(disk_report(other)->n_shared, 5);
    check(other);
    check(&t->walkers[0]);
}

static void test_walks_when_the_leader_fails_then_one_that_waits_fetches(void **state)
{
    struct together_test *t = *state;
    static const hps_status kinds[] = {HPS_UNAVAILABLE, HPS_DEADLINE, HPS_CANCELLED};

    fixture_put_range(&t->fx, FIXTURE_DISK, 0, 0, 40);
    for (unsigned k = 0; k < 3; k++) {
        hps_key from = 10 * k;
        uint64_t n_keys = hps_fake_keys(disk(t), HPS_FAKE_GET);
        hps_fake_gate_shut(disk(t), HPS_FAKE_GET);
        hps_fake_fail(disk(t), HPS_FAKE_GET, kinds[k], 0, 1, 0);
        walker_start(&t->walkers[0], from, from + 10);
        hps_fake_gate_wait(disk(t), HPS_FAKE_GET, 1);
        for (unsigned i = 1; i < WALKERS; i++) {
            walker_start(&t->walkers[i], from, from + 10);
            walker_until_it_waits(&t->walkers[i]);
        }
        hps_fake_gate_open(disk(t), HPS_FAKE_GET);
        for (unsigned i = 0; i < WALKERS; i++) {
            assert_int_equal(walker_join(&t->walkers[i]), i == 0 ? kinds[k] : HPS_OK);
        }
        for (unsigned i = 1; i < WALKERS; i++) {
            assert_int_equal(disk_report(&t->walkers[i])->n_found, 10);
            check(&t->walkers[i]);
        }
        assert_int_equal(hps_fake_keys(disk(t), HPS_FAKE_GET), n_keys + 2 * 10);
    }
}

static void test_walk_when_it_waits_and_its_deadline_passes_then_it_ends(void **state)
{
    struct together_test *t = *state;

    hps_clock_fake(1000);
    fixture_put_range(&t->fx, FIXTURE_DISK, 0, 0, 10);
    fixture_put_range(&t->fx, FIXTURE_HOST, 0, 10, 12);
    start_leader(t);
    t->walkers[1].call.deadline_us = 2000;
    walker_start(&t->walkers[1], 5, 12);
    walker_until_it_waits(&t->walkers[1]);
    hps_clock_advance(1000);
    assert_int_equal(walker_join(&t->walkers[1]), HPS_DEADLINE);
    assert_int_equal(t->walkers[1].walk.batch.n, 5);
    assert_int_equal(t->walkers[1].walk.reports[HPS_TIER_HOST].n_found, 2);
    memset(t->walkers[1].rows, 0xaa, sizeof(t->walkers[1].rows)); /* the walk no longer uses them */
    hps_fake_gate_open(disk(t), HPS_FAKE_GET);
    assert_int_equal(walker_join(&t->walkers[0]), HPS_OK);
    for (unsigned i = 0; i < sizeof(t->walkers[1].rows); i++) {
        assert_int_equal(t->walkers[1].rows[i], 0xaa);
    }
}

static void test_walk_when_it_waits_and_is_cancelled_then_only_it_ends(void **state)
{
    struct together_test *t = *state;

    fixture_put_range(&t->fx, FIXTURE_DISK, 0, 0, 10);
    start_leader(t);
    for (unsigned i = 1; i < 3; i++) {
        walker_start(&t->walkers[i], 0, 10);
        walker_until_it_waits(&t->walkers[i]);
    }
    t->walkers[1].cancel = true;
    assert_int_equal(walker_join(&t->walkers[1]), HPS_CANCELLED);
    hps_fake_gate_open(disk(t), HPS_FAKE_GET);
    assert_int_equal(walker_join(&t->walkers[0]), HPS_OK);
    assert_int_equal(walker_join(&t->walkers[2]), HPS_OK);
    assert_int_equal(t->walkers[0].status, HPS_OK);
    assert_int_equal(t->walkers[2].status, HPS_OK);
    check(&t->walkers[2]);
    assert_int_equal(hps_fake_calls(disk(t), HPS_FAKE_GET), 1);
}

/* ---- updates --------------------------------------------------------------------------------- */

static void make_stamps(struct together_test *t)
{
    t->fx.version.stamps = hps_stamps_new();
    assert_non_null(t->fx.version.stamps);
}

static void update(struct together_test *t, hps_key key)
{
    hps_stamps_begin(t->fx.version.stamps);
    hps_stamps_mark(t->fx.version.stamps, 0, &key, 1);
    hps_absent_remove(t->fx.version.absent, 0, &key, 1);
    hps_stamps_end(t->fx.version.stamps);
}

static void test_walk_when_updates_overtake_it_then_it_does_not_keep_the_old_rows(void **state)
{
    struct together_test *t = *state;

    make_stamps(t);
    fixture_put_range(&t->fx, FIXTURE_DISK, 0, 0, 5); /* keys [5, 10) are unknown */
    start_leader(t);
    update(t, 2);
    update(t, 7);
    hps_fake_gate_open(disk(t), HPS_FAKE_GET);
    assert_int_equal(walker_join(&t->walkers[0]), HPS_OK);
    check(&t->walkers[0]);
    assert_int_equal(t->walkers[0].walk.reports[HPS_TIER_HOST].n_inserted, 4);
    assert_int_equal(t->walkers[0].walk.reports[HPS_TIER_HOST].n_stale, 1);
    assert_false(fixture_has(&t->fx, FIXTURE_HOST, 0, 2));
    assert_true(fixture_has(&t->fx, FIXTURE_HOST, 0, 3));
    assert_false(hps_absent_has(t->fx.version.absent, 0, 7));
    assert_true(hps_absent_has(t->fx.version.absent, 0, 8));
}

static void test_walks_when_an_update_comes_between_then_they_do_not_share(void **state)
{
    struct together_test *t = *state;
    struct walker *later = &t->walkers[1];

    make_stamps(t);
    start_leader(t);
    fixture_put_range(&t->fx, FIXTURE_DISK, 0, 4, 5);
    update(t, 4);
    walker_start(later, 0, 10);
    hps_fake_gate_wait(disk(t), HPS_FAKE_GET, 2);
    assert_int_equal(hps_fake_keys(disk(t), HPS_FAKE_GET), 11); /* key 4 is fetched again */
    hps_fake_gate_open(disk(t), HPS_FAKE_GET);
    assert_int_equal(walker_join(&t->walkers[0]), HPS_OK);
    assert_int_equal(walker_join(later), HPS_OK);
    assert_int_equal(disk_report(later)->n_found, 1);
    assert_int_equal(disk_report(later)->n_shared, 0);
    assert_int_equal(later->walk.n_shared_absent, 9);
    check(later);
}

/* ---- the negative set ------------------------------------------------------------------------ */

static void test_walk_when_keys_were_absent_before_then_the_disk_is_not_read(void **state)
{
    struct together_test *t = *state;
    struct walker *walker = &t->walkers[0];

    fixture_put_range(&t->fx, FIXTURE_DISK, 0, 0, 5);
    assert_int_equal(walker_walk(walker, 0, 10), HPS_OK);
    assert_int_equal(walker->walk.n_absent, 5);
    assert_int_equal(walker->walk.n_remembered, 0);
    walker_begin(walker, 0, 12); /* only the first step, like MEMORY_ONLY */
    assert_int_equal(hps_walk_memory(&walker->walk, &walker->call, &walker->err), HPS_OK);
    assert_int_equal(walker->walk.reports[HPS_TIER_HOST].n_found, 5);
    assert_int_equal(walker->walk.n_absent, 5);
    assert_int_equal(walker->walk.n_remembered, 5);
    assert_int_equal(walker->walk.batch.n, 2);
    assert_int_equal(hps_walk_rest(&walker->walk, &walker->call, &walker->err), HPS_OK);
    assert_int_equal(walker->walk.n_absent, 7);
    check(walker);
    assert_int_equal(hps_fake_keys(disk(t), HPS_FAKE_GET), 12);
}

static void test_walk_when_the_disk_fails_then_nothing_is_remembered(void **state)
{
    struct together_test *t = *state;
    struct walker *walker = &t->walkers[0];

    hps_fake_fail(disk(t), HPS_FAKE_GET, HPS_IO, 0, 1, 0);
    assert_int_equal(walker_walk(walker, 0, 10), HPS_IO);
    walker_begin(walker, 0, 10);
    assert_int_equal(hps_walk_memory(&walker->walk, &walker->call, &walker->err), HPS_OK);
    assert_int_equal(walker->walk.batch.n, 10);
}

/* ---- stores that are down -------------------------------------------------------------------- */

static struct hps_breaker *make_breaker(const char *name)
{
    struct hps_breaker_options options = HPS_BREAKER_DEFAULT(name);

    options.failures_max = 3;
    struct hps_breaker *breaker = hps_breaker_new(&options);
    assert_non_null(breaker);
    return breaker;
}

static void test_walk_when_the_lowest_tier_is_down_then_it_fails_at_once_until_a_probe(void **state)
{
    struct together_test *t = *state;
    struct walker *walker = &t->walkers[0];

    hps_clock_fake(1000);
    t->fx.version.breakers[FIXTURE_DISK] = make_breaker("rocksdb");
    fixture_put_range(&t->fx, FIXTURE_DISK, 0, 0, 10);
    fixture_put_range(&t->fx, FIXTURE_HOST, 0, 20, 25);
    hps_fake_fail(disk(t), HPS_FAKE_GET, HPS_UNAVAILABLE, 0, 3, 0);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(walker_walk(walker, 0, 10), HPS_UNAVAILABLE);
        assert_null(strstr(walker->err.text, "probe"));
    }
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(walker_walk(walker, 0, 10), HPS_UNAVAILABLE);
        assert_non_null(strstr(walker->err.text, "table 't0': tier rocksdb: unavailable"));
        assert_non_null(strstr(walker->err.text, "probe"));
        assert_int_equal(disk_report(walker)->n_asked, 0);
        assert_int_equal(disk_report(walker)->n_faults, 1);
    }
    assert_int_equal(hps_fake_calls(disk(t), HPS_FAKE_GET), 3);
    assert_int_equal(walker_walk(walker, 20, 25), HPS_OK); /* memory still serves its rows */
    hps_clock_advance(100 * 1000);
    assert_int_equal(walker_walk(walker, 0, 10), HPS_OK);
    check(walker);
    assert_int_equal(hps_fake_calls(disk(t), HPS_FAKE_GET), 4);
}

static void test_walk_when_a_middle_tier_is_down_then_it_is_skipped_without_a_call(void **state)
{
    struct together_test *t = *state;
    struct walker *walker = &t->walkers[0];
    struct hps_store *redis = fixture_open_middle(&t->fx, false);
    struct hps_space *space = t->fx.version.tiers[2];

    hps_clock_fake(1000);
    t->fx.version.breakers[1] = make_breaker("redis");
    hps_fake_fail(redis, HPS_FAKE_GET, HPS_UNAVAILABLE, 0, UINT32_MAX, 0);
    for (hps_key key = 0; key < 60; key++) {
        uint8_t row[16];
        struct hps_call call = {0};
        fixture_row(&t->fx.tables[0], key, row);
        assert_int_equal(space->store->ops->put(space, &call, &t->fx.tables[0], &key, row, 1),
                         HPS_OK);
    }
    for (hps_key from = 0; from < 60; from += 10) {
        assert_int_equal(walker_walk(walker, from, from + 10), HPS_OK);
        assert_int_equal(walker->walk.reports[HPS_TIER_ROCKSDB].n_found, 10);
        assert_int_equal(walker->walk.reports[HPS_TIER_REDIS].status, HPS_UNAVAILABLE);
        assert_int_equal(walker->walk.reports[HPS_TIER_REDIS].n_faults, 1);
    }
    assert_int_equal(hps_fake_calls(redis, HPS_FAKE_GET), 3);
    fixture_close_middle(&t->fx, redis);
}

static void test_walks_when_two_tiers_block_then_shared_rows_are_in_the_range_of_their_tier(
    void **state)
{
    struct together_test *t = *state;
    struct hps_store *redis = fixture_open_middle(&t->fx, false);
    struct walker *other = &t->walkers[1];

    fixture_put_range(&t->fx, 2, 0, 0, 4);
    fixture_put_range(&t->fx, 1, 0, 4, 8);
    fixture_put_range(&t->fx, 2, 0, 12, 16);
    fixture_put_range(&t->fx, 1, 0, 16, 18);
    fixture_put_range(&t->fx, FIXTURE_HOST, 0, 18, 20);
    hps_fake_gate_shut(redis, HPS_FAKE_GET);
    walker_start(&t->walkers[0], 0, 10);
    hps_fake_gate_wait(redis, HPS_FAKE_GET, 1);
    walker_start(other, 0, 20);
    hps_fake_gate_wait(redis, HPS_FAKE_GET, 2);
    hps_fake_gate_open(redis, HPS_FAKE_GET);
    assert_int_equal(walker_join(&t->walkers[0]), HPS_OK);
    assert_int_equal(walker_join(other), HPS_OK);
    assert_int_equal(other->walk.reports[HPS_TIER_HOST].n_found, 2);
    assert_int_equal(other->walk.reports[HPS_TIER_REDIS].n_found, 6);
    assert_int_equal(other->walk.reports[HPS_TIER_ROCKSDB].n_found, 8);
    assert_int_equal(other->walk.n_absent, 4);
    for (uint32_t tier = 0; tier < 3; tier++) {
        enum hps_tier_kind kind = fixture_kind(&t->fx, tier);
        uint32_t at = hps_walk_found_begin(&other->walk, kind);
        for (uint32_t i = at; i < at + other->walk.reports[kind].n_found; i++) {
            hps_key key = other->walk.batch.keys[i];
            uint32_t expected = key >= 18 ? 0 : (key >= 16 || (key >= 4 && key < 8)) ? 1 : 2;
            assert_int_equal(tier, expected);
        }
    }
    fixture_close_middle(&t->fx, redis);
}

/* ---- several parts --------------------------------------------------------------------------- */

/* A version with a disk that reads several tables in one call. */
static void test_walks_of_a_lookup_when_the_store_joins_reads_then_one_call(void **state)
{
    struct together_test *t = *state;
    const struct hps_fake_options options = {
        .name = "rocksdb", .tier = HPS_TIER_ROCKSDB, .caps = HPS_STORE_BLOCKING | HPS_STORE_JOINS};
    struct hps_store *plain = t->fx.stores[FIXTURE_DISK];
    struct hps_space *plain_space = t->fx.version.tiers[FIXTURE_DISK];
    const struct hps_space_id id = {
        .model = "m", .version = 7, .tables = t->fx.tables, .n_tables = FIXTURE_TABLES};
    struct hps_store *store = hps_fake_store_new(&options);
    struct hps_walk walks[3];
    hps_key keys[3][4];
    uint32_t slots[3][4];
    uint8_t rows[3][4 * FIXTURE_DIM_MAX * 4];
    struct hps_error err;

    assert_int_equal(store->ops->space_open(store, &id, &t->fx.version.tiers[FIXTURE_DISK], &err),
                     HPS_OK);
    for (uint32_t p = 0; p < 3; p++) {
        struct hps_batch batch = {.keys = keys[p], .slots = slots[p], .rows = rows[p], .n = 4};
        for (uint32_t i = 0; i < 4; i++) {
            keys[p][i] = i;
            slots[p][i] = i;
        }
        fixture_put(&t->fx, FIXTURE_DISK, p, p);
        fixture_put(&t->fx, FIXTURE_HOST, p, 3);
        hps_walk_init(&walks[p], &t->fx.version, &t->fx.tables[p], &batch);
        walks[p].next = p < 2 ? &walks[p + 1] : NULL;
    }
    struct hps_walk_call call = {0};
    assert_int_equal(hps_walk_rest(&walks[0], &call, &err), HPS_OK);
    assert_int_equal(hps_fake_calls(store, HPS_FAKE_GET), 0);
    assert_int_equal(hps_fake_calls(store, HPS_FAKE_GET_MANY), 1);
    assert_int_equal(hps_fake_keys(store, HPS_FAKE_GET_MANY), 9);
    for (uint32_t p = 0; p < 3; p++) {
        uint8_t row[FIXTURE_DIM_MAX * 4];
        fixture_row(&t->fx.tables[p], p, row);
        assert_memory_equal(rows[p] + p * t->fx.tables[p].row_bytes, row,
                            t->fx.tables[p].row_bytes);
        assert_int_equal(walks[p].reports[HPS_TIER_ROCKSDB].n_found, 1);
        assert_int_equal(walks[p].reports[HPS_TIER_HOST].n_inserted, 1);
        assert_int_equal(walks[p].n_absent, 2);
        assert_true(fixture_has(&t->fx, FIXTURE_HOST, p, p));
    }
    store->ops->space_close(t->fx.version.tiers[FIXTURE_DISK]);
    store->ops->close(store);
    t->fx.stores[FIXTURE_DISK] = plain;
    t->fx.version.tiers[FIXTURE_DISK] = plain_space;
}

static void test_walks_of_a_lookup_when_two_read_one_table_then_they_share_the_fetch(void **state)
{
    struct together_test *t = *state;

    fixture_put_range(&t->fx, FIXTURE_DISK, 0, 0, 5);
    walker_begin(&t->walkers[0], 0, 8);
    walker_begin(&t->walkers[1], 0, 8);
    t->walkers[0].walk.next = &t->walkers[1].walk;
    walker_run(&t->walkers[0]);
    assert_int_equal(t->walkers[0].status, HPS_OK);
    check(&t->walkers[0]);
    check(&t->walkers[1]);
    assert_int_equal(disk_report(&t->walkers[1])->n_shared, 5);
    hps_fake_fail(disk(t), HPS_FAKE_GET, HPS_IO, 0, 1, 0);
    walker_begin(&t->walkers[0], 20, 28); /* if the read fails, the call does not wait for itself */
    walker_begin(&t->walkers[1], 20, 28);
    t->walkers[0].walk.next = &t->walkers[1].walk;
    walker_run(&t->walkers[0]);
    assert_int_equal(t->walkers[0].status, HPS_IO);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void walk_hungry(void *ctx)
{
    struct together_test *t = ctx;
    struct hps_space *host = t->fx.version.tiers[FIXTURE_HOST];
    struct hps_call call = {0};

    assert_int_equal(walker_walk(&t->walkers[0], 0, 10), HPS_OK);
    check(&t->walkers[0]);
    assert_int_equal(t->walkers[0].walk.n_absent, 2);
    for (hps_key key = 0; key < 10; key++) { /* so that each round starts like the first */
        assert_int_equal(host->store->ops->erase(host, &call, &t->fx.tables[0], &key, 1), HPS_OK);
        hps_absent_remove(t->fx.version.absent, 0, &key, 1);
    }
}

static void test_walk_when_memory_runs_out_then_it_still_finds_everything(void **state)
{
    struct together_test *t = *state;
    hps_key other = 99;

    fixture_put_range(&t->fx, FIXTURE_DISK, 0, 0, 8);
    fixture_put_range(&t->fx, FIXTURE_HOST, 0, 0, 10); /* so that no structure grows later */
    hps_absent_add(t->fx.version.absent, 0, &other, 1, NULL);
    for (hps_key key = 0; key < 10; key++) {
        struct hps_space *host = t->fx.version.tiers[FIXTURE_HOST];
        struct hps_call call = {0};
        assert_int_equal(host->store->ops->erase(host, &call, &t->fx.tables[0], &key, 1), HPS_OK);
    }
    assert_true(hps_fault_heap_run(walk_hungry, t) >= 2); /* allocations for keys in flight */
}

/* ---- races ----------------------------------------------------------------------------------- */

enum { RACE_ROUNDS = 300 };

static void *race(void *arg)
{
    struct walker *walker = arg;
    uint64_t random = (uint64_t)(uintptr_t)walker;
    uint64_t *sums = hps_calloc(2, sizeof(*sums));

    assert_non_null(sums);
    for (unsigned i = 0; i < RACE_ROUNDS; i++) {
        random = hps_mix64(random + 1);
        hps_key from = random % 100;
        hps_status status = walker_walk(walker, from, from + 1 + random / 100 % 20);
        assert_true(status == HPS_OK || status == HPS_IO || status == HPS_CANCELLED);
        if (status == HPS_OK) {
            check(walker);
            assert_int_equal(walker->walk.batch.n, 0);
        }
        walker->cancel = false;
        sums[0] += disk_report(walker)->n_asked;
        sums[1] += disk_report(walker)->n_found - disk_report(walker)->n_shared;
    }
    return sums;
}

/* Keys leave the host tier and the negative set all the time, reads of the disk fail at times,
 * and lookups are cancelled. */
static void disturb(struct together_test *t, unsigned round)
{
    struct hps_space *host = t->fx.version.tiers[FIXTURE_HOST];
    struct hps_call call = {0};

    for (hps_key key = round % 5; key < 120; key += 5) {
        hps_status status = host->store->ops->erase(host, &call, &t->fx.tables[0], &key, 1);
        assert_int_equal(status, HPS_OK);
        update(t, key);
    }
    hps_fake_fail(disk(t), HPS_FAKE_GET, HPS_IO, 3, 1, 2);
    t->walkers[round % WALKERS].cancel = round % 3 == 0;
}

static void test_walks_when_they_race_then_rows_are_right_and_counts_add_up(void **state)
{
    struct together_test *t = *state;
    uint64_t n_asked = 0;
    void *sums;

    make_stamps(t);
    for (hps_key key = 0; key < 120; key++) {
        if (key % 4 != 0) {
            fixture_put(&t->fx, FIXTURE_DISK, 0, key);
        }
    }
    for (unsigned i = 0; i < WALKERS; i++) {
        assert_int_equal(pthread_create(&t->walkers[i].thread, NULL, race, &t->walkers[i]), 0);
    }
    for (unsigned round = 0; round < 100; round++) {
        disturb(t, round);
    }
    for (unsigned i = 0; i < WALKERS; i++) {
        assert_int_equal(pthread_join(t->walkers[i].thread, &sums), 0);
        n_asked += ((uint64_t *)sums)[0];
        hps_free(sums);
    }
    assert_int_equal(n_asked, hps_fake_keys(disk(t), HPS_FAKE_GET));
}

int main(void)
{
#define TOGETHER_TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
    const struct CMUnitTest tests[] = {
        TOGETHER_TEST(test_walks_when_they_miss_the_same_keys_then_each_is_fetched_once),
        TOGETHER_TEST(test_walk_when_it_waits_for_another_then_the_wait_is_counted_separately),
        TOGETHER_TEST(test_walks_when_some_keys_are_in_flight_then_other_keys_are_fetched_at_once),
        TOGETHER_TEST(test_walks_when_the_leader_fails_then_one_that_waits_fetches),
        TOGETHER_TEST(test_walk_when_it_waits_and_its_deadline_passes_then_it_ends),
        TOGETHER_TEST(test_walk_when_it_waits_and_is_cancelled_then_only_it_ends),
        TOGETHER_TEST(test_walk_when_updates_overtake_it_then_it_does_not_keep_the_old_rows),
        TOGETHER_TEST(test_walks_when_an_update_comes_between_then_they_do_not_share),
        TOGETHER_TEST(test_walk_when_keys_were_absent_before_then_the_disk_is_not_read),
        TOGETHER_TEST(test_walk_when_the_disk_fails_then_nothing_is_remembered),
        TOGETHER_TEST(test_walk_when_the_lowest_tier_is_down_then_it_fails_at_once_until_a_probe),
        TOGETHER_TEST(test_walk_when_a_middle_tier_is_down_then_it_is_skipped_without_a_call),
        TOGETHER_TEST(
            test_walks_when_two_tiers_block_then_shared_rows_are_in_the_range_of_their_tier),
        TOGETHER_TEST(test_walks_of_a_lookup_when_the_store_joins_reads_then_one_call),
        TOGETHER_TEST(test_walks_of_a_lookup_when_two_read_one_table_then_they_share_the_fetch),
        TOGETHER_TEST(test_walk_when_memory_runs_out_then_it_still_finds_everything),
        TOGETHER_TEST(test_walks_when_they_race_then_rows_are_right_and_counts_add_up),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
