/* SPDX-License-Identifier: Apache-2.0
 *
 * Bulk loads of the same rows by several daemons do not disturb each other.
 */
#include <stdlib.h>

#include "backends/redis/internal.h"
#include "backends/store_bulk.h"
#include "tests/lib/redis_fixture.h"

enum { N = 1000 };

static hps_key keys[N];
static uint8_t rows[N * FX_ROW];

static struct hps_store_load *begin(struct hps_space *space)
{
    struct hps_store_load *load = NULL;
    assert_int_equal(space->store->ops->bulk->begin(space, N, 0, &load, &fx_error), HPS_OK);
    return load;
}

static void add(struct hps_space *space, struct hps_store_load *load, uint32_t from, uint32_t to)
{
    struct hps_write write;
    for (uint32_t i = 0; i < N; i++) {
        keys[i] = i;
    }
    fx_write(&write, keys, rows, N, 4);
    assert_int_equal(space->store->ops->bulk->add(load, &fx_tables[0], keys + from,
                                                  rows + (size_t)from * FX_ROW, to - from,
                                                  &fx_error),
                     HPS_OK);
}

static void test_load_when_two_daemons_load_then_the_first_commit_counts(void **state)
{
    (void)state;
    struct hps_space *one = fx_daemon("one");
    struct hps_space *two = fx_daemon("two");
    struct hps_store_load *first = begin(one);
    struct hps_store_load *second = begin(two);
    add(one, first, 0, N);
    add(two, second, 0, N / 2);
    assert_int_equal(one->store->ops->bulk->commit(first, &fx_error), HPS_OK);
    assert_int_equal(fx_found(one, N, 4), N);
    assert_int_equal(fx_found(two, N, 4), 0); /* its own load is not committed yet */
    add(two, second, N / 2, N);
    assert_int_equal(two->store->ops->bulk->commit(second, &fx_error), HPS_OK);
    assert_int_equal(fx_found(two, N, 4), N);
    assert_string_equal(hps_redis_rig_ask(fx_rig, 0, "KEYS *load*"), "");
}

static void test_load_when_cut_off_then_the_next_one_begins_clean(void **state)
{
    (void)state;
    struct hps_space *space = fx_daemon("one");
    struct hps_store_load *load = begin(space);
    add(space, load, 0, N);
    assert_non_null(strstr(hps_redis_rig_ask(fx_rig, 0, "KEYS *"), ":load:one"));
    space->store->ops->bulk->abort(load);
    assert_string_equal(hps_redis_rig_ask(fx_rig, 0, "KEYS *load*"), "");
    load = begin(space);
    add(space, load, 0, N / 2);
    assert_int_equal(space->store->ops->bulk->commit(load, &fx_error), HPS_OK);
    assert_int_equal(fx_found(space, N, 4), N / 2);
}

static void test_load_when_the_server_refuses_a_command_then_its_reply_is_the_error(void **state)
{
    (void)state;
    static const struct {
        const char *take; /* permissions to remove from the user */
        const char *answer;
    } cases[] = {
        {"-hmget", "'hmget'"}, {"-hlen", "'hlen'"},     {"-evalsha", "'evalsha'"},
        {"-script", "script"}, {"-unlink", "'unlink'"},
    };
    struct hps_space *space = fx_space(fx_open("one"));
    struct hps_store_load *load = NULL;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char ask[80];
        hps_redis_rig_ask(fx_rig, 0, "SCRIPT FLUSH");
        (void)snprintf(ask, sizeof(ask), "ACL SETUSER default %s", cases[i].take);
        assert_string_equal(hps_redis_rig_ask(fx_rig, 0, ask), "OK");
        assert_int_equal(space->store->ops->bulk->begin(space, N, 0, &load, &fx_error),
                         HPS_UNAVAILABLE);
        assert_string_equal(hps_redis_rig_ask(fx_rig, 0, "ACL SETUSER default +@all"), "OK");
        if (strstr(fx_error.text, "NOPERM") == NULL ||
            strstr(fx_error.text, cases[i].answer) == NULL) {
            fail_msg("case %zu: '%s'", i, fx_error.text);
        }
    }
    char set[200];
    (void)snprintf(set, sizeof(set), "SET %.*s x",
                   (int)redis_space_of(space)->shards[0].keys[0].size,
                   redis_space_of(space)->shards[0].keys[0].text);
    assert_string_equal(hps_redis_rig_ask(fx_rig, 0, set), "OK");
    assert_int_equal(space->store->ops->bulk->begin(space, N, 0, &load, &fx_error), HPS_INVALID);
    assert_non_null(strstr(fx_error.text, "WRONGTYPE"));
    assert_string_equal(hps_redis_rig_ask(fx_rig, 0, "ACL SETUSER default -evalsha"), "OK");
    assert_int_equal(space->store->ops->space_drop(space, &fx_error), HPS_UNAVAILABLE);
    assert_string_equal(hps_redis_rig_ask(fx_rig, 0, "ACL SETUSER default +@all"), "OK");
    assert_non_null(strstr(fx_error.text, "NOPERM"));
}

static void test_drop_when_a_load_was_cut_off_then_its_rows_are_deleted(void **state)
{
    (void)state;
    struct hps_space *killed = fx_daemon("one");
    struct hps_store_load *load = begin(killed);
    add(killed, load, 0, N);
    struct hps_store *store = fx_open("one"); /* the next process */
    struct hps_space *space = fx_space(store);
    assert_non_null(strstr(hps_redis_rig_ask(fx_rig, 0, "KEYS *"), ":load:one"));
    assert_int_equal(store->ops->space_drop(space, &fx_error), HPS_OK);
    assert_string_equal(hps_redis_rig_ask(fx_rig, 0, "KEYS *load*"), "");
    store->ops->close(store);
    killed->store->ops->bulk->abort(load);
}

static void test_load_when_updates_arrive_during_it_then_its_rows_have_the_versions_position(
    void **state)
{
    (void)state;
    struct hps_space *space = fx_daemon("one");
    fx_at(space, 5);
    struct hps_store_load *load = begin(space);
    add(space, load, 0, N);
    assert_int_equal(space->store->ops->bulk->commit(load, &fx_error), HPS_OK);
    assert_int_equal(fx_apply(space, 5, 6, N / 2).n_applied, FX_SHARDS);
    assert_int_equal(fx_found(space, N / 2, 5), N / 2);
}

static void test_load_when_the_server_falls_silent_then_unavailable(void **state)
{
    (void)state;
    struct hps_redis_store_options options = fx_options("one");
    options.write_timeout_us = 1000 * 1000;
    struct hps_space *space = fx_daemon_with(&options);
    struct hps_store_load *load = begin(space);
    add(space, load, 0, N - 1);
    hps_redis_rig_pause(fx_rig, 0);
    assert_int_equal(
        space->store->ops->bulk->add(load, &fx_tables[0], keys + N - 1, rows, 1, &fx_error),
        HPS_UNAVAILABLE);
    assert_non_null(strstr(fx_error.text, " in time")); /* the reply or the connection is late */
    space->store->ops->bulk->abort(load);
    hps_redis_rig_resume(fx_rig, 0);
}

/* A fail-over may lose acknowledged writes. */
static void test_load_when_some_of_its_rows_are_lost_then_it_fails_and_publishes_no_row(
    void **state)
{
    (void)state;
    struct hps_redis_store_options options = fx_options("one");
    options.authoritative = true; /* so a missing row would be an unknown key */
    struct hps_space *space = fx_daemon_with(&options);
    struct hps_store_load *load = begin(space);
    add(space, load, 0, N / 2);
    const char *names = hps_redis_rig_ask(fx_rig, 0, "KEYS *load*");
    char command[256];
    snprintf(command, sizeof(command), "DEL %.*s", (int)strcspn(names, "\r\n "), names);
    (void)hps_redis_rig_ask(fx_rig, 0, command);
    add(space, load, N / 2, N);
    assert_int_equal(space->store->ops->bulk->commit(load, &fx_error), HPS_UNAVAILABLE);
    assert_non_null(strstr(fx_error.text, "lost rows"));
    space->store->ops->bulk->abort(load);
    load = begin(space); /* the failed load left no shards */
    add(space, load, 0, N);
    assert_int_equal(space->store->ops->bulk->commit(load, &fx_error), HPS_OK);
    assert_int_equal(fx_found(space, N, 4), N);
}

static uint64_t n_hset(void)
{
    const char *stats = hps_redis_rig_ask(fx_rig, 0, "INFO commandstats");
    const char *at = strstr(stats, "cmdstat_hset:calls=");
    return at == NULL ? 0 : strtoull(at + strlen("cmdstat_hset:calls="), NULL, 10);
}

/* A server serves no other client while it executes a command. */
static void test_load_when_shards_get_many_rows_then_commands_have_at_most_fields_max(void **state)
{
    (void)state;
    struct hps_redis_store_options options = fx_options("one");
    options.fields_max = 3;
    options.n_shards = 2;
    struct hps_space *space = fx_daemon_with(&options);
    struct hps_store_load *load = begin(space);
    uint64_t n_before = n_hset();
    add(space, load, 0, N);
    uint64_t n = n_hset() - n_before;
    assert_true(n >= N / 3 && n <= N / 3 + 2);
    assert_int_equal(space->store->ops->bulk->commit(load, &fx_error), HPS_OK);
    assert_int_equal(fx_found(space, N, 4), N);
}

static void test_load_when_redis_has_the_only_copy_then_empty_shards_are_not_replaced(void **state)
{
    (void)state;
    struct hps_redis_store_options options = fx_options("one");
    options.authoritative = true;
    struct hps_space *one = fx_daemon_with(&options);
    options.member = "two";
    struct hps_space *two = fx_daemon_with(&options);
    struct hps_store_load *first = begin(one);
    struct hps_store_load *second = begin(two);
    add(one, first, 0, 1);
    add(two, second, 0, 1);
    assert_int_equal(one->store->ops->bulk->commit(first, &fx_error), HPS_OK);
    assert_int_equal(fx_apply(one, 0, 6, 0).n_applied, FX_SHARDS);
    assert_int_equal(two->store->ops->bulk->commit(second, &fx_error), HPS_OK);
    assert_int_equal(fx_apply(one, 6, 7, 0).n_applied, FX_SHARDS); /* all kept their positions */
}

static void test_load_when_a_batch_failed_before_then_shards_begin_at_its_start(void **state)
{
    (void)state;
    struct hps_redis_store_options options = fx_options("one");
    options.authoritative = true;
    struct hps_space *space = fx_daemon_with(&options);
    const struct hps_log_span span = {FX_PARTITION, 0, 0, 6};
    const struct hps_log_batch batch = {.spans = &span, .n_spans = 1};
    struct hps_log_report report;
    assert_int_equal(space->store->ops->log->apply(space, &fx_call, &batch, &report),
                     HPS_DATA_LOSS);
    struct hps_store_load *load = begin(space);
    add(space, load, 0, N);
    assert_int_equal(space->store->ops->bulk->commit(load, &fx_error), HPS_OK);
    assert_int_equal(fx_apply(space, 0, 6, 0).n_applied, FX_SHARDS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        FX_TEST(test_load_when_two_daemons_load_then_the_first_commit_counts),
        FX_TEST(test_load_when_cut_off_then_the_next_one_begins_clean),
        FX_TEST(test_load_when_the_server_refuses_a_command_then_its_reply_is_the_error),
        FX_TEST(test_drop_when_a_load_was_cut_off_then_its_rows_are_deleted),
        FX_TEST(test_load_when_shards_get_many_rows_then_commands_have_at_most_fields_max),
        FX_TEST(test_load_when_updates_arrive_during_it_then_its_rows_have_the_versions_position),
        FX_TEST(test_load_when_the_server_falls_silent_then_unavailable),
        FX_TEST(test_load_when_some_of_its_rows_are_lost_then_it_fails_and_publishes_no_row),
        FX_TEST(test_load_when_redis_has_the_only_copy_then_empty_shards_are_not_replaced),
        FX_TEST(test_load_when_a_batch_failed_before_then_shards_begin_at_its_start),
    };
    return cmocka_run_group_tests(tests, fx_start, fx_stop);
}
