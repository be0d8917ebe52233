/* SPDX-License-Identifier: Apache-2.0
 *
 * Known state of shards: judged again when the version moves, forgotten when a shard does not
 * reply, and never replaced by an older state.
 */
#include "backends/redis/internal.h"

#include "tests/lib/pause.h"
#include "tests/lib/redis_fixture.h"

static struct hps_space *space;
static struct redis_space *own;
static bool readable, exact; /* by redis_judge_rows, or of shard 0 after learn */

/* Hold the store's lock: the maintenance thread, which counts rows, waits. Only the test queries
 * and reads the shards. */
static void hold(const struct hps_redis_store_options *options)
{
    space = fx_daemon_with(options);
    own = redis_space_of(space);
    hps_lock_acquire(&own->redis->lock);
}

static void hold_one(void)
{
    const struct hps_redis_store_options options = fx_options("one");
    hold(&options);
}

static int release(void **state)
{
    (void)state;
    if (own != NULL) {
        hps_lock_release(&own->redis->lock);
        own = NULL;
    }
    return 0;
}

/* Record a reply to a request that was sent at `seen`. */
static bool learn_at(struct redis_shard_seen seen, const char *digest, int64_t offset)
{
    struct hps_redis_positions positions = {0};
    struct hps_buf bytes;
    hps_buf_init(&bytes, 1 << 10);
    assert_int_equal(hps_redis_positions_raise(&positions, FX_PARTITION, -1, offset), HPS_OK);
    assert_int_equal(hps_redis_positions_encode(&positions, &bytes), HPS_OK);
    bool learnt = redis_shard_learn(own, 0, seen, digest, strlen(digest), bytes.data, bytes.size);
    hps_buf_fini(&bytes);
    hps_redis_positions_fini(&positions);
    return learnt;
}

/* Record a reply to a request sent now. */
static void learn(const char *digest, int64_t offset)
{
    (void)learn_at(redis_shard_seen(own, 0), digest, offset);
    readable = own->shards[0].readable;
    exact = own->shards[0].exact;
}

static void test_learn_when_the_version_moves_then_shards_are_judged_again(void **state)
{
    (void)state;
    hold_one();
    fx_at(space, 10);
    learn("aaaaaaaaaaaaaaaaaaaa", 9);
    assert_false(readable);
    learn("bbbbbbbbbbbbbbbbbbbb", 11);
    assert_true(readable);
    assert_false(exact);
    fx_at(space, 11);
    assert_true(own->shards[0].readable);
    assert_true(own->shards[0].exact);
    fx_at(space, 12);
    assert_false(own->shards[0].readable);
    learn("short", 13); /* not a digest */
    assert_false(readable);
    assert_false(own->shards[0].known);
    learn("", 13); /* the shard is missing */
    assert_false(readable);
    assert_true(own->shards[0].missing);
    learn("cccccccccccccccccccc", 12);
    assert_true(exact);
    redis_shard_forget(own, 0, redis_shard_seen(own, 0));
    assert_false(own->shards[0].readable);
}

/* A reply to a request sent before another reply arrived may describe an older state. */
static void test_learn_when_an_older_reply_arrives_last_then_the_newer_state_stays(void **state)
{
    (void)state;
    hold_one();
    fx_at(space, 10);
    struct redis_shard_seen seen = redis_shard_seen(own, 0);
    assert_true(learn_at(seen, "bbbbbbbbbbbbbbbbbbbb", 11));
    fx_at(space, 11);
    assert_true(learn_at(seen, "aaaaaaaaaaaaaaaaaaaa", 10)); /* the known state is newer */
    assert_true(own->shards[0].exact);
    assert_false(learn_at(seen, "", 0)); /* the order of the two replies is unknown */
    assert_true(own->shards[0].exact);
    redis_shard_forget(own, 0, seen);
    assert_true(own->shards[0].exact);
    assert_true(learn_at(seen, "cccccccccccccccccccc", 12)); /* a newer position */
    assert_true(own->shards[0].readable);
    assert_false(own->shards[0].exact);
}

/* Forgetting makes the state unknown but keeps the last known positions. */
static void test_learn_when_forgotten_since_the_request_then_older_positions_are_rejected(
    void **state)
{
    (void)state;
    hold_one();
    fx_at(space, 11);
    assert_true(learn_at(redis_shard_seen(own, 0), "bbbbbbbbbbbbbbbbbbbb", 11));
    struct redis_shard_seen seen = redis_shard_seen(own, 0);
    redis_shard_forget(own, 0, seen);
    assert_false(learn_at(seen, "aaaaaaaaaaaaaaaaaaaa", 10));
    assert_false(own->shards[0].known);
    assert_true(learn_at(seen, "bbbbbbbbbbbbbbbbbbbb", 11));
    assert_true(own->shards[0].exact);
    assert_true(learn_at(redis_shard_seen(own, 0), "", 0));
    seen = redis_shard_seen(own, 0);
    redis_shard_count(own, 0, 2, true, seen); /* it exists again, created during the count */
    assert_true(learn_at(seen, "cccccccccccccccccccc", 11));
    assert_true(own->shards[0].exact);
}

/* The state in the latest reply is recorded even if it is older: a server may have lost its
 * rows. */
static void test_learn_when_the_latest_reply_has_an_older_state_then_it_is_recorded(void **state)
{
    (void)state;
    hold_one();
    fx_at(space, 11);
    struct redis_shard_seen seen = redis_shard_seen(own, 0);
    assert_true(learn_at(seen, "bbbbbbbbbbbbbbbbbbbb", 11));
    assert_true(learn_at(redis_shard_seen(own, 0), "aaaaaaaaaaaaaaaaaaaa", 10));
    assert_true(own->shards[0].known);
    assert_false(own->shards[0].readable);
    seen = redis_shard_seen(own, 0);
    assert_true(learn_at(seen, "", 0));
    assert_true(own->shards[0].missing);
    assert_false(learn_at(seen, "bbbbbbbbbbbbbbbbbbbb", 11));
    assert_true(own->shards[0].missing);
    seen = redis_shard_seen(own, 0);
    assert_true(learn_at(seen, "", 0)); /* nothing changed */
    assert_true(learn_at(seen, "bbbbbbbbbbbbbbbbbbbb", 11));
    assert_true(own->shards[0].exact);
}

static struct hps_redis_value text_value(struct hps_redis_values *values, const void *data,
                                         size_t size)
{
    const struct hps_redis_value value = {
        .type = HPS_REDIS_TEXT, .at = (uint32_t)values->text.size, .size = (uint32_t)size};
    assert_int_equal(hps_buf_append(&values->text, data, size), HPS_OK);
    return value;
}

/* Judge rows of a lookup that began at `seen` and offset `begin`. Offset -1: the reply has no
 * positions. */
static bool judge(struct redis_shard_seen seen, int64_t begin, const char *digest, int64_t offset)
{
    struct hps_redis_positions at = {0};
    struct hps_redis_positions of = {0};
    struct hps_redis_values values;
    struct hps_redis_value items[2];
    struct hps_buf bytes;
    hps_redis_values_init(&values, 2, 1 << 10);
    hps_buf_init(&bytes, 1 << 10);
    assert_int_equal(hps_redis_positions_raise(&at, FX_PARTITION, 0, begin), HPS_OK);
    assert_int_equal(hps_redis_positions_raise(&of, FX_PARTITION, -1, offset), HPS_OK);
    assert_int_equal(hps_redis_positions_encode(&of, &bytes), HPS_OK);
    items[0] = text_value(&values, digest, strlen(digest));
    items[1] = text_value(&values, bytes.data, bytes.size);
    values.items = items;
    values.n = offset < 0 ? 1 : 2;
    bool decided = redis_judge_rows(own, 0, seen, &at, &values, &readable, &exact);
    values.items = NULL;
    hps_redis_values_fini(&values);
    hps_buf_fini(&bytes);
    hps_redis_positions_fini(&at);
    hps_redis_positions_fini(&of);
    return decided;
}

static void test_judge_when_the_version_moved_then_the_position_of_the_request_decides(void **state)
{
    (void)state;
    hold_one();
    struct redis_shard_seen seen = redis_shard_seen(own, 0);
    fx_at(space, 12);
    assert_true(learn_at(seen, "cccccccccccccccccccc", 12));
    assert_true(judge(seen, 10, "aaaaaaaaaaaaaaaaaaaa", 10));
    assert_true(readable && exact);
    assert_true(judge(seen, 10, "bbbbbbbbbbbbbbbbbbbb", 11));
    assert_true(readable && exact); /* the version has applied these updates, too */
    assert_true(own->shards[0].exact);
    assert_true(judge(seen, 11, "aaaaaaaaaaaaaaaaaaaa", 10));
    assert_false(readable || exact);
    assert_false(judge(seen, 10, "aaaaaaaaaaaaaaaaaaaa", -1));
    assert_true(judge(seen, 10, "cccccccccccccccccccc", -1)); /* a known digest */
    assert_true(readable && exact);
    assert_true(judge(seen, 10, "dddddddddddddddddddd", 13));
    assert_true(readable && !exact);
    assert_true(judge(seen, 10, "short", 13));
    assert_false(readable || exact);
}

/* The reply may come from a replica, which describes a past state of its master. */
static void test_judge_when_a_replica_may_have_replied_then_no_state_is_recorded(void **state)
{
    (void)state;
    struct hps_redis_store_options options = fx_options("one");
    options.redis.replica_reads = true;
    hold(&options);
    redis_shard_forget(
        own, 0, redis_shard_seen(own, 0)); /* the maintenance thread may have recorded a state */
    fx_at(space, 10);
    assert_true(judge(redis_shard_seen(own, 0), 10, "aaaaaaaaaaaaaaaaaaaa", 10));
    assert_true(readable && exact);
    assert_false(own->shards[0].known);
}

/* A lookup may record the new state of a shard before the batch that made it returns. */
static void test_moved_when_the_new_state_is_already_known_then_it_stays(void **state)
{
    (void)state;
    static const uint8_t a[] = "aaaaaaaaaaaaaaaaaaaa";
    static const uint8_t b[] = "bbbbbbbbbbbbbbbbbbbb";
    const struct hps_log_span span = {FX_PARTITION, 0, 10, 11};
    hold_one();
    fx_at(space, 11);
    learn((const char *)a, 10);
    redis_shard_moved(own, 0, a, b, &span, 1);
    assert_true(own->shards[0].exact);
    redis_shard_moved(own, 0, a, b, &span, 1); /* a lookup has recorded it already */
    assert_true(own->shards[0].exact);
    learn("cccccccccccccccccccc", 12);
    redis_shard_moved(own, 0, a, b, &span, 1); /* another daemon has applied later batches */
    assert_true(own->shards[0].readable && !own->shards[0].exact);
    learn("dddddddddddddddddddd", 9);
    redis_shard_moved(own, 0, a, b, &span, 1); /* the batch is of another digest */
    assert_false(own->shards[0].known);
}

static void test_count_when_older_than_the_known_state_then_it_is_ignored(void **state)
{
    (void)state;
    hold_one();
    fx_at(space, 10);
    struct redis_shard_seen seen = redis_shard_seen(own, 0);
    learn("aaaaaaaaaaaaaaaaaaaa", 10); /* during the count */
    redis_shard_count(own, 0, 0, true, seen);
    assert_true(own->shards[0].exact);
    redis_shard_count(own, 0, 0, false, redis_shard_seen(own, 0));
    assert_true(own->shards[0].exact);
    redis_shard_count(own, 0, 0, true, redis_shard_seen(own, 0));
    assert_true(own->shards[0].missing);
    seen = redis_shard_seen(own, 0);
    redis_shard_forget(own, 0, seen);
    learn("", 0);
    redis_shard_count(own, 0, 5, true, seen);
    assert_true(own->shards[0].missing);
    redis_shard_count(own, 0, 5, true, redis_shard_seen(own, 0));
    assert_false(own->shards[0].missing);
}

static void test_count_when_older_than_a_write_then_the_row_count_of_the_write_stays(void **state)
{
    (void)state;
    hold_one();
    struct redis_shard_seen seen[FX_SHARDS];
    uint64_t n_rows = 0;
    for (uint32_t i = 0; i < FX_SHARDS; i++) {
        seen[i] = redis_shard_seen(own, i);
    }
    assert_int_equal(fx_insert(space, 100, 0).n_inserted, 100); /* during the counts */
    for (uint32_t i = 0; i < FX_SHARDS; i++) {
        redis_shard_count(own, i, 0, false, seen[i]);
        n_rows += own->shards[i].n_rows;
    }
    assert_int_equal(n_rows, 100);
    seen[0] = redis_shard_seen(own, 0);
    redis_shard_count(own, 0, 9, false, seen[0]);
    assert_int_equal(own->shards[0].n_rows, 7); /* two fields hold positions */
    learn("", 0);                               /* a reply during the count: the shard is missing */
    redis_shard_count(own, 0, 9, false, seen[0]);
    assert_int_equal(own->shards[0].n_rows, 0);
}

static void test_ask_when_the_server_is_paused_then_all_shards_are_silent_and_unknown(void **state)
{
    (void)state;
    hold_one();
    assert_int_equal(fx_insert(space, 100, 0).n_inserted, 100);
    assert_int_equal(redis_shards_ask(own, false, hps_clock_us() + FX_WAIT_US, NULL), 0);
    assert_true(own->shards[3].exact);
    hps_redis_rig_pause(fx_rig, 0);
    assert_int_equal(redis_shards_ask(own, true, hps_clock_us() + 30000, NULL),
                     0); /* all shards are known */
    assert_int_equal(redis_shards_ask(own, false, hps_clock_us() + 30000, NULL), FX_SHARDS);
    hps_redis_rig_resume(fx_rig, 0);
    assert_false(own->shards[3].known);
    uint64_t end_us = hps_clock_us() + FX_WAIT_US;
    while (redis_shards_ask(own, true, hps_clock_us() + FX_WAIT_US, NULL) > 0) {
        assert_true(hps_clock_us() < end_us);
        brief_pause();
    }
    assert_true(own->shards[3].exact);
}

int main(void)
{
#define STATE_TEST(name) cmocka_unit_test_setup_teardown(name, fx_clean, release)
    const struct CMUnitTest tests[] = {
        STATE_TEST(test_learn_when_the_version_moves_then_shards_are_judged_again),
        STATE_TEST(test_learn_when_an_older_reply_arrives_last_then_the_newer_state_stays),
        STATE_TEST(test_learn_when_forgotten_since_the_request_then_older_positions_are_rejected),
        STATE_TEST(test_learn_when_the_latest_reply_has_an_older_state_then_it_is_recorded),
        STATE_TEST(test_judge_when_the_version_moved_then_the_position_of_the_request_decides),
        STATE_TEST(test_judge_when_a_replica_may_have_replied_then_no_state_is_recorded),
        STATE_TEST(test_moved_when_the_new_state_is_already_known_then_it_stays),
        STATE_TEST(test_count_when_older_than_the_known_state_then_it_is_ignored),
        STATE_TEST(test_count_when_older_than_a_write_then_the_row_count_of_the_write_stays),
        STATE_TEST(test_ask_when_the_server_is_paused_then_all_shards_are_silent_and_unknown),
    };
    return cmocka_run_group_tests(tests, fx_start, fx_stop);
}
