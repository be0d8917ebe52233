/* SPDX-License-Identifier: Apache-2.0
 *
 * What is known of shards: judged again when the version moves, forgotten when they do not answer.
 */
#include "backends/redis_store.h"

#include "tests/lib/redis_fixture.h"

static void learn(struct redis_space *space, const char *digest, int64_t offset, bool *out_readable,
                  bool *out_exact)
{
    struct hps_redis_positions positions = {0};
    struct hps_buf bytes;
    hps_buf_init(&bytes, 1 << 10);
    assert_int_equal(hps_redis_positions_raise(&positions, FX_PARTITION, -1, offset), HPS_OK);
    assert_int_equal(hps_redis_positions_encode(&positions, &bytes), HPS_OK);
    redis_shard_learn(space, 0, digest, strlen(digest), bytes.data, bytes.size, out_readable,
                      out_exact);
    hps_buf_fini(&bytes);
    hps_redis_positions_fini(&positions);
}

/* A space whose shards only the test asks and reads: the keeper, which counts their rows, waits. */
static struct hps_space *space_held(void)
{
    struct hps_space *space = fx_space(fx_open("one"));
    pthread_mutex_lock(&redis_space_of(space)->redis->lock);
    return space;
}

static void space_release(struct hps_space *space)
{
    pthread_mutex_unlock(&redis_space_of(space)->redis->lock);
    fx_close(space);
}

static void test_learn_when_the_version_moves_then_judged_again(void **state)
{
    (void)state;
    struct hps_space *space = space_held();
    struct redis_space *own = redis_space_of(space);
    bool readable = false;
    bool exact = false;
    fx_at(space, 10);
    learn(own, "aaaaaaaaaaaaaaaaaaaa", 9, &readable, &exact);
    assert_false(readable);
    learn(own, "bbbbbbbbbbbbbbbbbbbb", 11, &readable, &exact);
    assert_true(readable);
    assert_false(exact);
    fx_at(space, 11);
    assert_true(own->shards[0].readable);
    assert_true(own->shards[0].exact);
    fx_at(space, 12);
    assert_false(own->shards[0].readable);
    learn(own, "short", 13, &readable, &exact); /* no digest of ours */
    assert_false(readable);
    assert_false(own->shards[0].known);
    learn(own, "", 13, &readable, &exact); /* not there */
    assert_false(readable);
    assert_true(own->shards[0].missing);
    learn(own, "cccccccccccccccccccc", 12, &readable, &exact);
    assert_true(exact);
    redis_shard_forget(own, 0);
    assert_false(own->shards[0].readable);
    space_release(space);
}

static void test_count_when_it_is_older_than_what_is_known_then_it_teaches_nothing(void **state)
{
    (void)state;
    struct hps_space *space = space_held();
    struct redis_space *own = redis_space_of(space);
    bool readable = false;
    bool exact = false;
    fx_at(space, 10);
    struct redis_shard_seen seen = redis_shard_seen(own, 0);
    learn(own, "aaaaaaaaaaaaaaaaaaaa", 10, &readable, &exact); /* made while it was counted */
    redis_shard_count(own, 0, 0, true, seen);
    assert_true(own->shards[0].exact);
    redis_shard_count(own, 0, 0, false, redis_shard_seen(own, 0));
    assert_true(own->shards[0].exact);
    redis_shard_count(own, 0, 0, true, redis_shard_seen(own, 0));
    assert_true(own->shards[0].missing);
    seen = redis_shard_seen(own, 0);
    redis_shard_forget(own, 0);
    learn(own, "", 0, &readable, &exact);
    redis_shard_count(own, 0, 5, true, seen);
    assert_true(own->shards[0].missing);
    redis_shard_count(own, 0, 5, true, redis_shard_seen(own, 0));
    assert_false(own->shards[0].missing);
    space_release(space);
}

static void test_count_when_it_is_older_than_a_write_then_the_rows_of_the_write_count(void **state)
{
    (void)state;
    struct hps_space *space = space_held();
    struct redis_space *own = redis_space_of(space);
    struct redis_shard_seen seen[FX_SHARDS];
    uint64_t n_rows = 0;
    for (uint32_t i = 0; i < FX_SHARDS; i++) {
        seen[i] = redis_shard_seen(own, i);
    }
    assert_int_equal(fx_insert(space, 100, 0).n_inserted, 100); /* made while they were counted */
    for (uint32_t i = 0; i < FX_SHARDS; i++) {
        redis_shard_count(own, i, 0, false, seen[i]);
        n_rows += own->shards[i].n_rows;
    }
    assert_int_equal(n_rows, 100);
    seen[0] = redis_shard_seen(own, 0);
    redis_shard_count(own, 0, 9, false, seen[0]);
    assert_int_equal(own->shards[0].n_rows, 7); /* positions have two fields */
    bool readable = false;
    bool exact = false;
    learn(own, "", 0, &readable, &exact); /* heard meanwhile that it is not there */
    redis_shard_count(own, 0, 9, false, seen[0]);
    assert_int_equal(own->shards[0].n_rows, 0);
    space_release(space);
}

static void test_ask_when_the_server_is_gone_then_all_are_silent_and_unknown(void **state)
{
    (void)state;
    struct hps_space *space = space_held();
    struct redis_space *own = redis_space_of(space);
    assert_int_equal(fx_insert(space, 100, 0).n_inserted, 100);
    assert_int_equal(redis_shards_ask(own, false, hps_clock_us() + FX_WAIT_US), 0);
    assert_true(own->shards[3].exact);
    hps_redis_rig_pause(fx_rig, 0);
    assert_int_equal(redis_shards_ask(own, true, hps_clock_us() + 30000), 0); /* all are known */
    assert_int_equal(redis_shards_ask(own, false, hps_clock_us() + 30000), FX_SHARDS);
    hps_redis_rig_resume(fx_rig, 0);
    assert_false(own->shards[3].known);
    uint64_t end_us = hps_clock_us() + FX_WAIT_US;
    while (redis_shards_ask(own, true, hps_clock_us() + FX_WAIT_US) > 0) {
        assert_true(hps_clock_us() < end_us);
        sched_yield();
    }
    assert_true(own->shards[3].exact);
    space_release(space);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_learn_when_the_version_moves_then_judged_again, fx_clean),
        cmocka_unit_test_setup(
            test_count_when_it_is_older_than_what_is_known_then_it_teaches_nothing, fx_clean),
        cmocka_unit_test_setup(
            test_count_when_it_is_older_than_a_write_then_the_rows_of_the_write_count, fx_clean),
        cmocka_unit_test_setup(test_ask_when_the_server_is_gone_then_all_are_silent_and_unknown,
                               fx_clean),
    };
    return cmocka_run_group_tests(tests, fx_start, fx_stop);
}
