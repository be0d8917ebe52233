/* SPDX-License-Identifier: Apache-2.0
 *
 * Walks that are not lookups. Their purpose and their sets of tiers decide which tiers they
 * read, and whether they insert, share and remember. Also: explaining one key tier by tier.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "backends/breaker.h"
#include "base/clock.h"
#include "cache/lookup/tiers.h"
#include "cache/version/absent.h"
#include "cache/version/fetched.h"
#include "tests/lib/lookup_fixture.h"

enum { KEYS_MAX = 64, ROW_BYTES = 16, REDIS = 1, DISK = 2 };

/* A version with host, redis and disk. Only the disk has all rows. */
struct purpose_test {
    struct fixture fx;
    struct hps_store *redis;
    hps_key keys[KEYS_MAX];
    uint32_t slots[KEYS_MAX];
    uint8_t rows[KEYS_MAX * ROW_BYTES];
    struct hps_walk walk;
    struct hps_walk_call call;
    uint64_t n_calls; /* calls of the disk so far */
    struct hps_error err;
};

static int setup(void **state)
{
    struct purpose_test *t = hps_calloc(1, sizeof(*t));

    assert_non_null(t);
    fixture_open(&t->fx, 0);
    t->redis = fixture_open_middle(&t->fx, true);
    t->fx.version.absent = hps_absent_new();
    t->fx.version.fetched = hps_fetched_new();
    t->fx.version.flight = hps_flight_new();
    assert_non_null(t->fx.version.absent);
    assert_non_null(t->fx.version.fetched);
    assert_non_null(t->fx.version.flight);
    for (hps_key key = 0; key < 30; key++) {
        fixture_put(&t->fx, DISK, 0, key);
    }
    *state = t;
    return 0;
}

static int teardown(void **state)
{
    struct purpose_test *t = *state;

    hps_clock_real();
    hps_absent_free(t->fx.version.absent);
    hps_fetched_free(t->fx.version.fetched);
    hps_flight_free(t->fx.version.flight);
    fixture_close_middle(&t->fx, t->redis);
    fixture_close(&t->fx);
    hps_free(t);
    return 0;
}

/* Over keys 0 .. n of table t0. */
static hps_status walk(struct purpose_test *t, enum hps_walk_purpose purpose, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        t->keys[i] = i;
        t->slots[i] = i;
    }
    const struct hps_batch batch = {.keys = t->keys, .slots = t->slots, .rows = t->rows, .n = n};
    hps_walk_init(&t->walk, &t->fx.version, &t->fx.tables[0], &batch);
    t->call.purpose = purpose;
    return hps_walk_rest(&t->walk, &t->call, &t->err);
}

static uint64_t calls(struct hps_store *store)
{
    return hps_fake_calls(store, HPS_FAKE_GET) + hps_fake_calls(store, HPS_FAKE_GET_MANY);
}

static void test_report_when_rows_are_found_below_then_nothing_is_inserted_or_remembered(
    void **state)
{
    struct purpose_test *t = *state;

    assert_int_equal(walk(t, HPS_WALK_REPORT, 40), HPS_OK);
    assert_int_equal(t->walk.reports[HPS_TIER_ROCKSDB].n_found, 30);
    assert_int_equal(t->walk.n_absent, 10);
    assert_int_equal(t->walk.reports[HPS_TIER_HOST].n_inserted, 0);
    assert_int_equal(hps_fake_calls(t->fx.stores[FIXTURE_HOST], HPS_FAKE_INSERT), 0);
    assert_false(hps_absent_has(t->fx.version.absent, 0, 35));
    assert_int_equal(walk(t, HPS_WALK_ANSWER, 40), HPS_OK); /* inserts and remembers */
    assert_int_equal(t->walk.reports[HPS_TIER_HOST].n_inserted, 30);
    assert_true(hps_absent_has(t->fx.version.absent, 0, 35));
}

static void test_report_when_a_key_is_known_to_be_absent_then_the_tiers_are_still_read(void **state)
{
    struct purpose_test *t = *state;
    const hps_key key = 3;

    hps_absent_add(t->fx.version.absent, 0, &key, 1, NULL);
    assert_int_equal(walk(t, HPS_WALK_ANSWER, 10), HPS_OK);
    assert_int_equal(t->walk.n_remembered, 1);
    assert_int_equal(walk(t, HPS_WALK_REPORT, 10), HPS_OK);
    assert_int_equal(t->walk.n_remembered, 0);
    assert_int_equal(t->walk.reports[HPS_TIER_HOST].n_found, 9);
    assert_int_equal(t->walk.reports[HPS_TIER_ROCKSDB].n_found, 1);
}

static void test_walk_when_tiers_are_excluded_then_only_other_tiers_are_read(void **state)
{
    struct purpose_test *t = *state;

    fixture_put(&t->fx, FIXTURE_HOST, 0, 1);
    fixture_put(&t->fx, REDIS, 0, 1);
    fixture_put(&t->fx, REDIS, 0, 2);
    t->call.unasked = ~hps_tier_bit(HPS_TIER_REDIS);
    assert_int_equal(walk(t, HPS_WALK_REPORT, 10), HPS_OK);
    assert_int_equal(t->walk.reports[HPS_TIER_REDIS].n_asked, 10);
    assert_int_equal(t->walk.reports[HPS_TIER_REDIS].n_found, 2);
    assert_int_equal(t->walk.batch.n, 8); /* tiers below may have them */
    assert_int_equal(t->walk.n_absent, 0);
    assert_int_equal(calls(t->fx.stores[FIXTURE_HOST]), 0);
    assert_int_equal(calls(t->fx.stores[FIXTURE_DISK]), 0);
    t->call.unasked = hps_tier_bit(HPS_TIER_REDIS);
    uint64_t n_calls = calls(t->redis);
    assert_int_equal(walk(t, HPS_WALK_ANSWER, 10), HPS_OK);
    assert_int_equal(t->walk.reports[HPS_TIER_HOST].n_found, 1);
    assert_int_equal(t->walk.reports[HPS_TIER_ROCKSDB].n_found, 9);
    assert_int_equal(calls(t->redis), n_calls);
}

static void test_walk_when_a_tier_is_closed_for_insertion_then_it_gets_no_row(void **state)
{
    struct purpose_test *t = *state;

    t->call.closed = hps_tier_bit(HPS_TIER_HOST);
    assert_int_equal(walk(t, HPS_WALK_WARM, 10), HPS_OK);
    assert_int_equal(t->walk.reports[HPS_TIER_ROCKSDB].n_found, 10);
    assert_int_equal(t->walk.reports[HPS_TIER_HOST].n_inserted, 0);
    assert_false(fixture_has(&t->fx, FIXTURE_HOST, 0, 5));
    t->call.closed = hps_tier_bit(HPS_TIER_GPU);
    assert_int_equal(walk(t, HPS_WALK_WARM, 10), HPS_OK);
    assert_int_equal(t->walk.reports[HPS_TIER_HOST].n_inserted, 10);
    assert_true(fixture_has(&t->fx, FIXTURE_HOST, 0, 5));
}

/* True after the disk was read: the remaining keys wait for other walks. */
static bool asked_disk(const void *ctx)
{
    const struct purpose_test *t = ctx;

    return calls(t->fx.stores[FIXTURE_DISK]) > t->n_calls;
}

/* Another caller leads the fetch of key 2 and does not return: a walk that shares fetches waits
 * for it. */
static void test_walk_when_not_for_a_lookup_then_no_fetch_is_shared(void **state)
{
    struct purpose_test *t = *state;
    struct hps_flight_caller caller;
    uint8_t row[ROW_BYTES];
    struct hps_flight_key leader = {.key = 2, .row = row, .row_bytes = ROW_BYTES};

    hps_flight_caller_begin(&caller);
    assert_int_equal(hps_flight_join(t->fx.version.flight, &caller, NULL, &leader),
                     HPS_FLIGHT_LEADS);
    t->call.closed = UINT32_MAX;
    hps_status warm = walk(t, HPS_WALK_WARM, 10);
    uint32_t n_warm = t->walk.reports[HPS_TIER_ROCKSDB].n_found;
    hps_status report = walk(t, HPS_WALK_REPORT, 10);
    uint32_t n_report = t->walk.reports[HPS_TIER_ROCKSDB].n_found;
    t->n_calls = calls(t->fx.stores[FIXTURE_DISK]);
    t->call.cancelled = asked_disk;
    t->call.cancelled_ctx = t;
    hps_status answer = walk(t, HPS_WALK_ANSWER, 10);
    hps_flight_leave(t->fx.version.flight, &leader);
    hps_flight_caller_end(&caller);
    assert_int_equal(warm, HPS_OK);
    assert_int_equal(n_warm, 10);
    assert_int_equal(report, HPS_OK);
    assert_int_equal(n_report, 10);
    assert_int_equal(answer, HPS_CANCELLED);
    assert_int_equal(t->walk.reports[HPS_TIER_ROCKSDB].n_found, 9);
}

/* Rows that were inserted asynchronously and miss again: only walks for lookups and behind
 * replies count. */
static void test_walk_when_not_for_a_lookup_then_not_noted_as_an_asynchronous_fetch(void **state)
{
    struct purpose_test *t = *state;

    t->call.closed = UINT32_MAX;
    assert_int_equal(walk(t, HPS_WALK_WARM, 10), HPS_OK);
    assert_false(hps_fetched_often(t->fx.version.fetched, 0, 5));
    assert_int_equal(walk(t, HPS_WALK_BEHIND, 10), HPS_OK);
    assert_true(hps_fetched_often(t->fx.version.fetched, 0, 5));
    assert_int_equal(walk(t, HPS_WALK_REPORT, 10), HPS_OK);
    assert_int_equal(walk(t, HPS_WALK_WARM, 10), HPS_OK);
    assert_true(hps_fetched_often(t->fx.version.fetched, 0, 5));
    assert_int_equal(walk(t, HPS_WALK_ANSWER, 10), HPS_OK);
    assert_false(hps_fetched_often(t->fx.version.fetched, 0, 5));
}

/* The lowest tier has rows of updates that this version has not applied yet. */
static void test_warm_when_rows_may_be_of_later_updates_then_they_are_not_inserted(void **state)
{
    struct purpose_test *t = *state;

    fixture_put(&t->fx, REDIS, 0, 1);
    t->fx.version.n_tiers = 2; /* host and redis */
    hps_fake_later(t->redis, true);
    assert_int_equal(walk(t, HPS_WALK_WARM, 4), HPS_OK);
    assert_true(t->walk.reports[HPS_TIER_REDIS].later);
    assert_int_equal(t->walk.reports[HPS_TIER_HOST].n_inserted, 0);
    assert_false(fixture_has(&t->fx, FIXTURE_HOST, 0, 1));
    hps_fake_later(t->redis, false);
    assert_int_equal(walk(t, HPS_WALK_WARM, 4), HPS_OK);
    assert_false(t->walk.reports[HPS_TIER_REDIS].later);
    t->fx.version.n_tiers = 3;
}

static void test_walk_when_a_breaker_is_open_then_it_stops_every_purpose(void **state)
{
    struct purpose_test *t = *state;
    struct hps_breaker_options options = HPS_BREAKER_DEFAULT("rocksdb");

    hps_clock_fake(1000);
    options.failures_max = 1;
    t->fx.version.breakers[DISK] = hps_breaker_new(&options);
    assert_non_null(t->fx.version.breakers[DISK]);
    hps_fake_fail(t->fx.stores[FIXTURE_DISK], HPS_FAKE_GET, HPS_UNAVAILABLE, 0, 1, 0);
    assert_int_equal(walk(t, HPS_WALK_WARM, 10), HPS_UNAVAILABLE);
    uint64_t n_calls = calls(t->fx.stores[FIXTURE_DISK]);
    assert_int_equal(walk(t, HPS_WALK_WARM, 10), HPS_UNAVAILABLE);
    t->call.unasked = ~hps_tier_bit(HPS_TIER_ROCKSDB);
    assert_int_equal(walk(t, HPS_WALK_REPORT, 10), HPS_UNAVAILABLE);
    assert_int_equal(t->walk.reports[HPS_TIER_ROCKSDB].status, HPS_UNAVAILABLE);
    assert_int_equal(t->walk.reports[HPS_TIER_ROCKSDB].n_asked, 0);
    assert_int_equal(calls(t->fx.stores[FIXTURE_DISK]), n_calls);
    hps_breaker_free(t->fx.version.breakers[DISK]);
    t->fx.version.breakers[DISK] = NULL;
}

int main(void)
{
#define PURPOSE_TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
    const struct CMUnitTest tests[] = {
        PURPOSE_TEST(test_report_when_rows_are_found_below_then_nothing_is_inserted_or_remembered),
        PURPOSE_TEST(test_report_when_a_key_is_known_to_be_absent_then_the_tiers_are_still_read),
        PURPOSE_TEST(test_walk_when_tiers_are_excluded_then_only_other_tiers_are_read),
        PURPOSE_TEST(test_walk_when_a_tier_is_closed_for_insertion_then_it_gets_no_row),
        PURPOSE_TEST(test_walk_when_not_for_a_lookup_then_no_fetch_is_shared),
        PURPOSE_TEST(test_walk_when_not_for_a_lookup_then_not_noted_as_an_asynchronous_fetch),
        PURPOSE_TEST(test_warm_when_rows_may_be_of_later_updates_then_they_are_not_inserted),
        PURPOSE_TEST(test_walk_when_a_breaker_is_open_then_it_stops_every_purpose),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
