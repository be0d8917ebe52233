/* SPDX-License-Identifier: Apache-2.0
 *
 * A shard with too many rows evicts some: random rows, the least used rows or the oldest rows.
 */
#include "backends/store_servers.h"
#include "tests/lib/pause.h"
#include "tests/lib/redis_fixture.h"

static struct hps_space *space_that(enum hps_redis_evict evict, uint64_t rows_max)
{
    struct hps_redis_store_options options = fx_options("one");
    options.evict = evict;
    options.rows_max = rows_max;
    options.target_ratio = 0.5;
    options.sample_every = 1;
    return fx_daemon_with(&options);
}

static void test_insert_when_over_the_margin_then_down_to_the_target(void **state)
{
    (void)state;
    struct hps_store_shared_stats counters;
    struct hps_space *space = space_that(HPS_REDIS_EVICT_RANDOM, 100); /* 200 with both tables */
    struct hps_insert_report report = fx_insert(space, 1000, 3);
    assert_int_equal(report.n_inserted, 1000);
    assert_int_equal(report.n_evicted, 0); /* about 125 in each shard */
    report = fx_insert(space, 4096, 3);
    assert_int_equal(report.n_inserted, 3096);
    assert_int_equal(report.n_evicted, 4096 - 100 * FX_SHARDS); /* all had more than 200 */
    assert_int_equal(fx_found(space, 4096, 3), 100 * FX_SHARDS);
    space->store->ops->servers->stats(space->store, &counters);
    assert_int_equal(counters.n_rows_evicted, report.n_evicted);
    assert_true(atomic_load(&space->incomplete));
}

static void test_apply_when_over_the_margin_then_down_to_the_target(void **state)
{
    (void)state;
    struct hps_space *space = space_that(HPS_REDIS_EVICT_RANDOM, 100);
    fx_at(space, 3);
    assert_int_equal(fx_insert(space, 1, 2).n_inserted, 1); /* creates the shards */
    assert_int_equal(fx_apply(space, 3, 4, 4000).n_applied, FX_SHARDS);
    assert_int_equal(fx_found(space, 4000, 3), 100 * FX_SHARDS);
}

/* Look up keys [0, 200) until the server has recorded the use of all of them. */
static void use(struct hps_space *space)
{
    uint64_t end_us = hps_clock_us() + FX_WAIT_US;
    const char *ask =
        "EVAL local\tn=0;for\ti,k\tin\tipairs(redis.call('KEYS','*used'))do\tn=n+redis.call('HLEN'"
        ",k)end\treturn\tn 0";
    while (strcmp(hps_redis_rig_ask(fx_rig, 0, "%s", ask), "200") != 0) {
        assert_true(hps_clock_us() < end_us);
        assert_int_equal(fx_found(space, 200, 3), 200);
        brief_pause();
    }
}

static void evicts_what_is_not_used(enum hps_redis_evict evict)
{
    struct hps_space *space = space_that(evict, 100);
    assert_int_equal(fx_insert(space, 1000, 3).n_inserted, 1000);
    use(space);
    assert_int_equal(fx_insert(space, 4096, 3).n_inserted, 3096);
    assert_int_equal(fx_found(space, 4096, 3), 100 * FX_SHARDS);
    assert_in_range(fx_found(space, 200, 3), 160, 200); /* eviction takes samples: not quite all */
}

static void test_evict_when_by_use_then_used_rows_stay(void **state)
{
    (void)state;
    evicts_what_is_not_used(HPS_REDIS_EVICT_USED);
}

static void test_evict_when_by_age_then_used_rows_stay(void **state)
{
    (void)state;
    evicts_what_is_not_used(HPS_REDIS_EVICT_OLDEST);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        FX_TEST(test_insert_when_over_the_margin_then_down_to_the_target),
        FX_TEST(test_apply_when_over_the_margin_then_down_to_the_target),
        FX_TEST(test_evict_when_by_use_then_used_rows_stay),
        FX_TEST(test_evict_when_by_age_then_used_rows_stay),
    };
    return cmocka_run_group_tests(tests, fx_start, fx_stop);
}
