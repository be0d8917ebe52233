/* SPDX-License-Identifier: Apache-2.0
 *
 * Lookups that do not wait for misses: the hit rate of each part, and the keys left for
 * asynchronous insertion. The host tier represents the embedding cache. The only thread for jobs
 * is blocked, so that the tests can count queued keys.
 */
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/clock.h"
#include "cache/version/absent.h"
#include "tests/lib/lookup_fixture.h"
#include "tests/lib/pause.h"

enum { KEYS_MAX = 400, PARTS = 2 };

struct threshold_test {
    struct fixture fx;
    struct hps_arena *arena;
    uint8_t *rows;
    hps_key keys[PARTS][KEYS_MAX];
    struct hps_lookup_part parts[PARTS];
    struct hps_lookup lookup;
    struct hps_error err;
    struct hps_pool *pool;
    struct hps_insertion *insertion;
    struct hps_task hold;
    sem_t go_on;
};

static struct threshold_test *the_test;

static void run_hold(struct hps_task *task)
{
    (void)task;
    sem_wait(&the_test->go_on);
}

static int setup(void **state)
{
    struct threshold_test *t = hps_calloc(1, sizeof(*t));

    assert_non_null(t);
    the_test = t;
    fixture_open(&t->fx, 0);
    t->fx.version.absent = hps_absent_new();
    assert_non_null(t->fx.version.absent);
    t->fx.version.miss_policy = HPS_MISS_THRESHOLD;
    t->fx.version.cache_tier = HPS_TIER_HOST;
    t->fx.version.hit_rate_threshold = 0.9;
    t->arena = hps_arena_new(4096, 1 << 24);
    assert_non_null(t->arena);
    sem_init(&t->go_on, 0, 0);
    t->hold.run = run_hold;
    assert_int_equal(hps_pool_new("io", 1, 100, &t->pool), HPS_OK);
    assert_int_equal(hps_pool_post(t->pool, &t->hold), HPS_OK);
    const struct hps_insertion_options options = {.io = t->pool, .rows_max = 1000, .jobs_max = 1};
    assert_int_equal(hps_insertion_new(&options, &t->insertion), HPS_OK);
    *state = t;
    return 0;
}

static int teardown(void **state)
{
    struct threshold_test *t = *state;

    sem_post(&t->go_on);
    hps_insertion_stop(t->insertion);
    hps_pool_free(t->pool);
    hps_clock_real();
    hps_insertion_free(t->insertion);
    assert_true(hps_version_idle(&t->fx.version));
    hps_absent_free(t->fx.version.absent);
    hps_free_aligned(t->rows);
    hps_arena_free(t->arena);
    fixture_close(&t->fx);
    hps_free(t);
    return 0;
}

/* Keys of part i, each sent `times` times: n_host are in the host tier, n_disk only on disk,
 * n_absent are known to be absent. */
static void set_part(struct threshold_test *t, uint32_t i, uint32_t n_host, uint32_t n_disk,
                     uint32_t n_absent, uint32_t times)
{
    uint32_t n = n_host + n_disk + n_absent;

    assert_true(n * times <= KEYS_MAX);
    for (uint32_t k = 0; k < n; k++) {
        hps_key key = 1000 * i + k;
        for (uint32_t copy = 0; copy < times; copy++) {
            t->keys[i][copy * n + k] = key;
        }
        if (k < n_host) {
            fixture_put(&t->fx, FIXTURE_HOST, i, key);
        }
        if (k < n_host + n_disk) {
            fixture_put(&t->fx, FIXTURE_DISK, i, key);
        } else {
            hps_absent_add(t->fx.version.absent, i, &key, 1, NULL);
        }
    }
    t->parts[i] = (struct hps_lookup_part){
        .table = &t->fx.tables[i], .keys = (const uint8_t *)t->keys[i], .n_keys = n * times};
}

/* Returns whether the memory tiers completed the lookup. */
static bool ask(struct threshold_test *t, uint32_t n_parts)
{
    bool done = false;

    hps_arena_reset(t->arena);
    hps_free_aligned(t->rows);
    t->lookup.version = &t->fx.version;
    t->lookup.arena = t->arena;
    t->lookup.parts = t->parts;
    t->lookup.n_parts = n_parts;
    t->lookup.set = NULL;
    t->lookup.set_size = 0;
    t->lookup.insertion = t->insertion;
    assert_int_equal(hps_lookup_plan(&t->lookup, &t->err), HPS_OK);
    t->rows = hps_alloc_aligned(64, t->lookup.rows_bytes + 64);
    assert_non_null(t->rows);
    t->lookup.rows = t->rows;
    assert_int_equal(hps_lookup_run_memory(&t->lookup, &done, &t->err), HPS_OK);
    return done;
}

static void finish(struct threshold_test *t)
{
    assert_int_equal(hps_lookup_run_rest(&t->lookup, &t->err), HPS_OK);
}

static uint32_t n_queued(struct threshold_test *t)
{
    return hps_insertion_rows(t->insertion);
}

/* Counts of keys as sent, with duplicates. */
static void expect(const struct threshold_test *t, uint32_t part, uint32_t n_defaulted,
                   uint32_t n_unknown)
{
    assert_int_equal(t->parts[part].n_defaulted, n_defaulted);
    assert_int_equal(t->parts[part].n_unknown, n_unknown);
}

static void test_threshold_when_the_rate_is_reached_exactly_then_asynchronous(void **state)
{
    struct threshold_test *t = *state;

    set_part(t, 0, 90, 10, 0, 1);
    assert_true(ask(t, 1));
    expect(t, 0, 10, 0);
    assert_int_equal(n_queued(t), 10);
    assert_int_equal(hps_fake_calls(t->fx.stores[FIXTURE_DISK], HPS_FAKE_GET), 0);
    for (uint32_t k = 0; k < 100; k++) {
        assert_int_equal(t->parts[0].key_status[k], k < 90 ? HPS_KEY_FOUND : HPS_KEY_DEFAULTED);
    }
    assert_memory_equal(t->parts[0].rows + 90 * 16, t->fx.tables[0].default_row, 16);
}

static void test_threshold_when_one_key_below_the_rate_then_synchronous(void **state)
{
    struct threshold_test *t = *state;

    set_part(t, 0, 89, 10, 0, 1); /* 0.899 */
    assert_false(ask(t, 1));
    finish(t);
    assert_null(t->parts[0].key_status);
    assert_int_equal(n_queued(t), 0);
}

static void test_threshold_when_keys_are_sent_twice_then_the_rate_counts_unique_keys(void **state)
{
    struct threshold_test *t = *state;

    set_part(t, 0, 18, 2, 0, 3);
    for (uint32_t k = 0; k < 20; k++) { /* 20 more of one miss: 0.675 of the keys as sent */
        t->keys[0][60 + k] = 19;
    }
    t->parts[0].n_keys = 80;
    assert_true(ask(t, 1));
    expect(t, 0, 2 * 3 + 20, 0);
    assert_int_equal(t->parts[0].n_unique, 20);
    assert_int_equal(n_queued(t), 2);
    t->keys[0][80] = 5000; /* one more miss: 18 of 21 unique keys are hits */
    t->parts[0].n_keys = 81;
    assert_false(ask(t, 1));
    finish(t);
    expect(t, 0, 0, 1);
}

static void test_threshold_when_keys_are_known_to_be_absent_then_they_count_as_hits(void **state)
{
    struct threshold_test *t = *state;

    set_part(t, 0, 45, 10, 45, 1);
    assert_true(ask(t, 1));
    expect(t, 0, 10, 45);
    set_part(t, 1, 0, 0, 50, 1); /* unknown keys alone do not wait either */
    t->parts[0] = t->parts[1];
    assert_true(ask(t, 1));
    expect(t, 0, 0, 50);
}

static void test_threshold_when_there_are_no_keys_or_no_misses_then_done(void **state)
{
    struct threshold_test *t = *state;

    t->fx.version.hit_rate_threshold = 1.0;
    set_part(t, 0, 0, 0, 0, 1);
    set_part(t, 1, 20, 0, 0, 1);
    assert_true(ask(t, 2));
    assert_int_equal(t->parts[0].n_unique, 0);
    assert_null(t->parts[1].key_status);
    assert_int_equal(n_queued(t), 0);
}

static void test_threshold_when_one_or_more_then_always_synchronous(void **state)
{
    struct threshold_test *t = *state;

    set_part(t, 0, 399, 1, 0, 1);
    t->fx.version.hit_rate_threshold = 1.0;
    assert_false(ask(t, 1));
    t->fx.version.hit_rate_threshold = 1.5;
    assert_false(ask(t, 1));
    t->fx.version.hit_rate_threshold = 399.0 / 400.0;
    assert_true(ask(t, 1));
}

static void test_threshold_when_tables_differ_then_each_part_decides_for_itself(void **state)
{
    struct threshold_test *t = *state;

    set_part(t, 0, 95, 5, 0, 1);
    set_part(t, 1, 5, 95, 0, 1);
    assert_false(ask(t, 2));
    assert_int_equal(n_queued(t), 5);
    finish(t);
    expect(t, 0, 5, 0);
    expect(t, 1, 0, 0);
    assert_null(t->parts[1].key_status);
    assert_int_equal(hps_fake_keys(t->fx.stores[FIXTURE_DISK], HPS_FAKE_GET), 95);
    assert_true(fixture_has(&t->fx, FIXTURE_HOST, 1, 1050)); /* inserted by the lookup itself */
    assert_false(fixture_has(&t->fx, FIXTURE_HOST, 0, 96));
}

static void test_threshold_when_there_is_no_cache_tier_or_no_queue_then_exact(void **state)
{
    struct threshold_test *t = *state;
    struct hps_insertion *insertion = t->insertion;

    set_part(t, 0, 99, 1, 0, 1);
    t->fx.version.cache_tier = HPS_TIER_GPU; /* this version has no gpu */
    assert_false(ask(t, 1));
    t->fx.version.cache_tier = HPS_TIER_HOST;
    t->insertion = NULL;
    assert_false(ask(t, 1));
    t->insertion = insertion;
    assert_true(ask(t, 1));
}

static void test_policies_when_named_then_they_override_the_threshold(void **state)
{
    struct threshold_test *t = *state;

    set_part(t, 0, 95, 5, 0, 1);
    t->lookup.miss_policy = HPS_MISS_EXACT;
    assert_false(ask(t, 1));
    t->lookup.miss_policy = HPS_MISS_MEMORY_ONLY;
    assert_true(ask(t, 1));
    expect(t, 0, 5, 0);
    assert_int_equal(n_queued(t), 0); /* MEMORY_ONLY queues no keys */
    t->lookup.miss_policy = HPS_MISS_WAIT;
    t->lookup.wait_us_max = 0;
    assert_true(ask(t, 1));
    expect(t, 0, 5, 0);
    assert_int_equal(n_queued(t), 5);
}

static void test_wait_when_it_runs_out_then_the_rest_is_fetched_asynchronously(void **state)
{
    struct threshold_test *t = *state;

    hps_clock_fake(1000);
    hps_fake_latency(t->fx.stores[FIXTURE_DISK], HPS_FAKE_GET, 60);
    set_part(t, 0, 5, 20, 0, 1);
    set_part(t, 1, 0, 30, 0, 1);
    t->lookup.miss_policy = HPS_MISS_WAIT;
    t->lookup.wait_us_max = 100;
    assert_false(ask(t, 2));
    finish(t); /* reads the first part in time, the second late */
    expect(t, 0, 0, 0);
    expect(t, 1, 30, 0);
    assert_int_equal(n_queued(t), 30);
    assert_int_equal(hps_fake_calls(t->fx.stores[FIXTURE_DISK], HPS_FAKE_GET), 2);
    assert_true(fixture_has(&t->fx, FIXTURE_HOST, 0, 24));
}

static void erase_from_host(struct threshold_test *t, hps_key from, uint32_t n)
{
    struct hps_space *space = t->fx.version.tiers[FIXTURE_HOST];
    struct hps_call call = {0};

    for (uint32_t i = 0; i < n; i++) {
        hps_key key = from + i;
        assert_int_equal(space->store->ops->erase(space, &call, &t->fx.tables[0], &key, 1), HPS_OK);
    }
}

static void test_threshold_when_the_cache_tier_is_full_then_exact_until_it_has_capacity(
    void **state)
{
    struct threshold_test *t = *state;

    fixture_close(&t->fx);
    struct hps_absent *absent = t->fx.version.absent;
    fixture_open(&t->fx, 90 * 16);
    t->fx.version.absent = absent;
    t->fx.version.miss_policy = HPS_MISS_THRESHOLD;
    t->fx.version.cache_tier = HPS_TIER_HOST;
    t->fx.version.hit_rate_threshold = 0.8;
    set_part(t, 0, 90, 10, 0, 1);
    assert_true(ask(t, 1));
    expect(t, 0, 10, 0);
    sem_post(&t->go_on);
    while (n_queued(t) > 0) {
        brief_pause();
    }
    assert_true(t->fx.version.cache_full);
    assert_false(ask(t, 1)); /* otherwise its rows would stay missing */
    finish(t);
    assert_null(t->parts[0].key_status);
    erase_from_host(t, 0, 5);
    assert_false(ask(t, 1));
    finish(t); /* five of fifteen rows fit */
    assert_true(t->fx.version.cache_full);
    erase_from_host(t, 0, 30);
    t->parts[0].n_keys = 60; /* thirty of these are misses */
    assert_false(ask(t, 1));
    finish(t);
    assert_false(t->fx.version.cache_full);
    erase_from_host(t, 40, 4);
    assert_true(ask(t, 1));
    expect(t, 0, 4, 0);
}

static void test_threshold_when_no_tier_could_take_rows_then_no_asynchronous_fetch(void **state)
{
    struct threshold_test *t = *state;

    set_part(t, 0, 0, 10, 0, 1);
    struct hps_space *host = t->fx.version.tiers[0];
    t->fx.version.tiers[0] = t->fx.version.tiers[1]; /* the disk only */
    t->fx.version.n_tiers = 1;
    t->lookup.miss_policy = HPS_MISS_WAIT;
    assert_true(ask(t, 1));
    expect(t, 0, 10, 0);
    assert_int_equal(n_queued(t), 0);
    t->lookup.miss_policy = HPS_MISS_THRESHOLD;
    assert_false(ask(t, 1));
    t->fx.version.tiers[0] = host;
    t->fx.version.n_tiers = 2;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(test_threshold_when_the_rate_is_reached_exactly_then_asynchronous),
        TEST(test_threshold_when_one_key_below_the_rate_then_synchronous),
        TEST(test_threshold_when_keys_are_sent_twice_then_the_rate_counts_unique_keys),
        TEST(test_threshold_when_keys_are_known_to_be_absent_then_they_count_as_hits),
        TEST(test_threshold_when_there_are_no_keys_or_no_misses_then_done),
        TEST(test_threshold_when_one_or_more_then_always_synchronous),
        TEST(test_threshold_when_tables_differ_then_each_part_decides_for_itself),
        TEST(test_threshold_when_there_is_no_cache_tier_or_no_queue_then_exact),
        TEST(test_policies_when_named_then_they_override_the_threshold),
        TEST(test_wait_when_it_runs_out_then_the_rest_is_fetched_asynchronously),
        TEST(test_threshold_when_the_cache_tier_is_full_then_exact_until_it_has_capacity),
        TEST(test_threshold_when_no_tier_could_take_rows_then_no_asynchronous_fetch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
