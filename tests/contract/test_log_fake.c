/* SPDX-License-Identifier: Apache-2.0
 *
 * The fake update log passes the contract and plays its script.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "tests/contract/log_contract.h"
#include "tests/lib/log_client.h"

static struct hps_update_log *open_fake(void *ctx)
{
    struct hps_update_log **log = ctx;
    *log = hps_fake_log_new("fake cluster");
    return *log;
}

static void make_topic(void *ctx, const char *topic, int32_t n_partitions)
{
    hps_fake_log_topic(*(struct hps_update_log **)ctx, topic, n_partitions);
}

static void append(void *ctx, const char *topic, int32_t partition,
                   const struct hps_fake_record *record)
{
    hps_fake_log_append(*(struct hps_update_log **)ctx, topic, partition, record);
}

static void test_script_when_played_then_consumers_see_it(void **state)
{
    (void)state;
    struct hps_update_log *log = hps_fake_log_new("one");
    struct hps_error err = {0};
    struct hps_fake_record record = {.value = "v", .value_size = 1};
    hps_fake_log_topic(log, "hps_et.m.t", 1);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(hps_fake_log_append(log, "hps_et.m.t", 0, &record), i);
    }
    hps_fake_log_append_hole(log, "hps_et.m.t", 0);
    hps_fake_log_compact(log, "hps_et.m.t", 0, 5);
    hps_fake_log_trim(log, "hps_et.m.t", 0, 3);
    struct hps_consumer *consumer = open_one(log);
    struct hps_consumer_position at = {"hps_et.m.t", 0, 2};
    assert_int_equal(consumer->ops->assign(consumer, &at, 0, &err), HPS_OK);
    struct hps_consumer_poll poll = poll_once(consumer, 0, 100, 1 << 20);
    assert_int_equal(poll.n_events, 1);
    assert_int_equal(poll.events[0].kind, HPS_CONSUMER_GAP);
    at.offset = 3;
    assert_int_equal(consumer->ops->assign(consumer, &at, 0, &err), HPS_OK);
    hps_fake_log_set(log, HPS_FAKE_AWAY, HPS_UNAUTHENTICATED);
    poll = poll_once(consumer, 0, 100, 1 << 20);
    assert_int_equal(poll.n_records, 0);
    assert_int_equal(poll.events[0].kind, HPS_CONSUMER_DOWN);
    assert_int_equal(poll.events[0].status, HPS_UNAUTHENTICATED);
    assert_int_equal(poll_once(consumer, 0, 100, 1 << 20).n_events, 0);
    hps_fake_log_set(log, HPS_FAKE_AWAY, HPS_OK);
    poll = poll_once(consumer, 0, 100, 1 << 20);
    assert_int_equal(poll.events[0].kind, HPS_CONSUMER_UP);
    assert_int_equal(poll.n_records, 6); /* 3 4 6 7 8 9 */
    assert_int_equal(poll.records[2].offset, 6);
    assert_int_equal(poll.events[1].kind, HPS_CONSUMER_CAUGHT_UP);
    assert_int_equal(poll.events[1].offset, 11);
    hps_fake_log_topic_set(log, "hps_et.m.t", HPS_FAKE_DELETED, true);
    hps_fake_log_topic(log, "hps_et.m.t", 1);
    poll = poll_once(consumer, 0, 100, 1 << 20);
    assert_int_equal(poll.events[0].kind, HPS_CONSUMER_GONE);
    at.offset = 0;
    hps_fake_log_topic_set(log, "hps_et.m.t", HPS_FAKE_FAILS, HPS_PERMISSION);
    assert_int_equal(consumer->ops->assign(consumer, &at, 0, &err), HPS_OK);
    poll = poll_once(consumer, 0, 100, 1 << 20);
    assert_int_equal(poll.events[0].kind, HPS_CONSUMER_FAILED);
    assert_int_equal(poll.events[0].status, HPS_PERMISSION);
    consumer->ops->commit(consumer, &at, 1);
    assert_int_equal(hps_fake_log_committed(log, "hps_et.m.t", 0), 0);
    assert_int_equal(hps_fake_log_committed(log, "hps_et.m.t", 1), -1);
    hps_fake_log_break_consumers(log);
    assert_int_equal(consumer->ops->poll(consumer, 0, 100, 1 << 20, &poll, &err), HPS_INTERNAL);
    consumer->ops->close(consumer);
    hps_fake_log_consumers_wait(log, 0);
    log->ops->close(log);
}

int main(void)
{
    struct hps_update_log *log = NULL;
    const struct log_contract contract = {
        .name = "fake",
        .ctx = &log,
        .open = open_fake,
        .make_topic = make_topic,
        .append = append,
        .has_times = true,
    };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_script_when_played_then_consumers_see_it),
    };
    return log_contract_run(&contract) + cmocka_run_group_tests(tests, NULL, NULL);
}
