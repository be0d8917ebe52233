/* SPDX-License-Identifier: Apache-2.0
 *
 * Commits that are refused, or have no answer, and what must not wait for them; on librdkafka's
 * mock cluster.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/log_client.h"

enum {
    FOR_EVER = 10000, /* requests */
    N = 8,
};

struct rig {
    struct log_client client;
    /* What was seen of it. */
    uint32_t n_records;
    uint32_t n_reported;
    hps_status reported;
    char text[256];
};

static int setup(void **state)
{
    struct rig *rig = hps_calloc(1, sizeof(*rig));
    assert_non_null(rig);
    const struct hps_kafka_property quick[] = {{"reconnect.backoff.ms", "10"},
                                               {"reconnect.backoff.max.ms", "50"},
                                               {"retry.backoff.ms", "10"}};
    rig->client = client_open(2, quick, 3);
    hps_mock_kafka_topic(rig->client.mock, TOPIC, N);
    for (int32_t i = 0; i < N; i++) {
        hps_mock_kafka_append_many(rig->client.mock, TOPIC, i, 0, 1, 100);
    }
    hps_mock_kafka_flush(rig->client.mock);
    *state = rig;
    return 0;
}

static int teardown(void **state)
{
    struct rig *rig = *state;
    client_close(&rig->client);
    hps_free(rig);
    return 0;
}

static void look(struct rig *rig, struct hps_consumer *consumer)
{
    struct hps_consumer_poll poll = poll_once(consumer, 20, 100, 1 << 20);
    rig->n_records += poll.n_records;
    for (uint32_t i = 0; i < poll.n_events; i++) {
        if (poll.events[i].kind == HPS_CONSUMER_COMMITS) {
            rig->n_reported++;
            rig->reported = poll.events[i].status;
            strncpy(rig->text, poll.events[i].text, sizeof(rig->text) - 1);
        }
    }
}

static void reported_wait(struct rig *rig, struct hps_consumer *consumer, uint32_t n_reported)
{
    uint64_t end_us = answer_end_us();
    while (rig->n_reported < n_reported) {
        look(rig, consumer);
        assert_before(end_us, "word of commits");
    }
    assert_int_equal(rig->n_reported, n_reported);
}

/* A partition that is new to the consumer, while a commit is under way: its first record comes. */
static void begin_partition(struct rig *rig, int32_t partition, uint64_t end_us)
{
    uint32_t n = rig->n_records;
    commit_to(rig->client.consumer, partition, 0);
    assign_to(rig->client.consumer, TOPIC, partition, 0, (uint32_t)partition);
    while (rig->n_records == n) {
        look(rig, rig->client.consumer);
        assert_before(end_us, "the first record of a partition");
    }
}

static void test_poll_when_the_group_is_denied_then_every_new_partition_begins(void **state)
{
    struct rig *rig = *state;
    uint64_t end_us = answer_end_us(); /* for all of them */
    hps_mock_kafka_fail(rig->client.mock, HPS_MOCK_FIND_COORDINATOR, HPS_MOCK_GROUP_DENIED,
                        FOR_EVER);
    for (int32_t i = 0; i < N; i++) {
        begin_partition(rig, i, end_us);
    }
    reported_wait(rig, rig->client.consumer, 1);
    assert_int_equal(rig->reported, HPS_PERMISSION);
    assert_non_null(strstr(rig->text, "\"g\""));
    /* Told once, however often it is tried. */
    for (int i = 0; i < 100; i++) {
        commit_to(rig->client.consumer, 0, i);
        look(rig, rig->client.consumer);
    }
    assert_int_equal(rig->n_reported, 1);
    hps_mock_kafka_fail(rig->client.mock, HPS_MOCK_FIND_COORDINATOR, 0, 0);
    reported_wait(rig, rig->client.consumer, 2);
    assert_int_equal(rig->reported, HPS_OK);
    assert_int_equal(hps_mock_kafka_committed(rig->client.mock, "g", TOPIC, 0), 99);
}

static void test_poll_when_no_coordinator_is_there_then_every_new_partition_begins(void **state)
{
    struct rig *rig = *state;
    uint64_t end_us = answer_end_us();
    hps_mock_kafka_fail(rig->client.mock, HPS_MOCK_FIND_COORDINATOR, HPS_MOCK_NO_COORDINATOR,
                        FOR_EVER);
    for (int32_t i = 0; i < N; i++) {
        begin_partition(rig, i, end_us);
    }
    /* Which may pass, so it is not worth a word at once. */
    assert_int_equal(rig->n_reported, 0);
    hps_mock_kafka_fail(rig->client.mock, HPS_MOCK_FIND_COORDINATOR, 0, 0);
    commit_to(rig->client.consumer, 3, 1);
    while (hps_mock_kafka_committed(rig->client.mock, "g", TOPIC, 3) != 1) {
        look(rig, rig->client.consumer);
        assert_true(hps_clock_us() < end_us);
    }
    assert_int_equal(rig->n_reported, 0);
}

static void test_commit_when_a_topic_is_denied_then_the_others_are_committed(void **state)
{
    struct rig *rig = *state;
    hps_mock_kafka_fail(rig->client.mock, HPS_MOCK_OFFSET_COMMIT, HPS_MOCK_TOPIC_DENIED, 1);
    commit_to(rig->client.consumer, 0, 1);
    reported_wait(rig, rig->client.consumer, 1);
    assert_int_equal(rig->reported, HPS_PERMISSION);
    commit_to(rig->client.consumer, 1, 1);
    reported_wait(rig, rig->client.consumer, 2);
    assert_int_equal(rig->reported, HPS_OK);
    for (int32_t i = 0; i < 2; i++) { /* what was refused is not lost either */
        assert_int_equal(hps_mock_kafka_committed(rig->client.mock, "g", TOPIC, i), 1);
    }
}

static void test_commit_when_consumers_share_a_group_then_each_is_told(void **state)
{
    struct rig *rig = *state;
    struct hps_consumer *other = open_one(rig->client.log);
    hps_mock_kafka_fail(rig->client.mock, HPS_MOCK_OFFSET_COMMIT, HPS_MOCK_GROUP_DENIED, 1);
    commit_to(rig->client.consumer, 0, 1);
    reported_wait(rig, rig->client.consumer, 1);
    reported_wait(rig, other, 2);
    assert_int_equal(rig->reported, HPS_PERMISSION);
    commit_to(other, 1, 1);
    reported_wait(rig, other, 3);
    reported_wait(rig, rig->client.consumer, 4);
    assert_int_equal(rig->reported, HPS_OK);
    other->ops->close(other);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_poll_when_the_group_is_denied_then_every_new_partition_begins),
        TEST(test_poll_when_no_coordinator_is_there_then_every_new_partition_begins),
        TEST(test_commit_when_a_topic_is_denied_then_the_others_are_committed),
        TEST(test_commit_when_consumers_share_a_group_then_each_is_told),
    };
#undef TEST
    return cmocka_run_group_tests(tests, NULL, NULL);
}
