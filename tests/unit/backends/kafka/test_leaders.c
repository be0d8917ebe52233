/* SPDX-License-Identifier: Apache-2.0
 *
 * What leaders say when one of them does not, on librdkafka's mock cluster of three brokers: each
 * leads the partition of its number. What holds in good weather is in tests/contract.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/log_client.h"

enum {
    HANGS_MS = 600000, /* an answer that does not come while anybody waits */
    N = 3,
};

struct rig {
    struct log_client client;
    struct hps_watch *watches[N + 1]; /* by partition, which is also the number of its leader */
};

static int setup_with(void **state, uint32_t n_properties)
{
    struct rig *rig = hps_calloc(1, sizeof(*rig));
    assert_non_null(rig);
    const struct hps_kafka_property quick[] = {{"socket.timeout.ms", "2500"},
                                               {"retry.backoff.ms", "10"}};
    rig->client = client_open(N, quick, n_properties);
    hps_mock_kafka_topic(rig->client.mock, TOPIC, N + 1);
    for (int32_t i = 1; i <= N; i++) {
        hps_mock_kafka_leader(rig->client.mock, TOPIC, i, i);
        rig->watches[i] = watch_of(rig->client.consumer, TOPIC, i);
    }
    *state = rig;
    return 0;
}

/* Connections are given up sooner than by itself, or not. */
static int setup(void **state)
{
    return setup_with(state, 2);
}

static int setup_patient(void **state)
{
    return setup_with(state, 0);
}

static int teardown(void **state)
{
    struct rig *rig = *state;
    client_close(&rig->client);
    hps_free(rig);
    return 0;
}

static struct hps_leader_response response_of(struct rig *rig, int32_t partition)
{
    struct hps_leader_response response = {0};
    rig->client.consumer->ops->leader_response(rig->watches[partition], &response);
    return response;
}

static void all_responded(struct rig *rig)
{
    for (int32_t i = 1; i <= N; i++) {
        append_many(rig->client.mock, i, 0, (uint32_t)i);
        assert_int_equal(response_now(rig->client.consumer, rig->watches[i]).high, i);
    }
}

/* Broker 2 says nothing from here on, and partition 1 ends at `high`: all that the others are asked
 * goes on, many times over. */
static void others_go_on(struct rig *rig, int64_t high)
{
    struct hps_leader_response last = response_of(rig, 2);
    for (int i = 0; i < 5; i++) {
        append_many(rig->client.mock, 1, 0, 1);
        assert_int_equal(response_now(rig->client.consumer, rig->watches[1]).high, high + 1 + i);
        assert_int_equal(response_now(rig->client.consumer, rig->watches[3]).high, 3);
    }
    struct hps_leader_response silent =
        response_wait(rig->client.consumer, rig->watches[2], HPS_UNAVAILABLE);
    assert_true(silent.asked_us - last.asked_us < 1000000); /* what was on its way */
    assert_int_equal(silent.high, 2);
    assert_non_null(strstr(silent.text, "broker 2"));
    uint64_t stands_us = silent.asked_us;
    for (int i = 0; i < 20; i++) {
        response_now(rig->client.consumer, rig->watches[1]);
        assert_int_equal(response_of(rig, 2).asked_us, stands_us);
        assert_int_equal(response_of(rig, 2).status, HPS_UNAVAILABLE);
    }
}

static void test_heard_when_a_leader_hangs_or_is_cut_off_then_its_own_word_stands_still(
    void **state)
{
    struct rig *rig = *state;
    all_responded(rig);
    hps_mock_kafka_slow(rig->client.mock, 2, HANGS_MS);
    others_go_on(rig, 1);
    hps_mock_kafka_slow(rig->client.mock, 2, 0);
    assert_int_equal(response_now(rig->client.consumer, rig->watches[2]).high, 2);
    hps_mock_kafka_broker_down(rig->client.mock, 2, true);
    others_go_on(rig, 6);
    hps_mock_kafka_broker_down(rig->client.mock, 2, false);
    assert_int_equal(response_now(rig->client.consumer, rig->watches[2]).high, 2);
}

static void test_heard_when_a_leader_is_slow_then_its_word_is_as_old_as_the_question(void **state)
{
    struct rig *rig = *state;
    all_responded(rig);
    hps_mock_kafka_slow(rig->client.mock, 2, 400);
    for (int i = 0; i < 3; i++) {
        struct hps_leader_response response = response_now(rig->client.consumer, rig->watches[2]);
        assert_int_equal(response.high, 2);
        assert_true(hps_clock_us() - response.asked_us >= 300000);
    }
    hps_mock_kafka_slow(rig->client.mock, 2, 0);
}

static void test_heard_when_the_leader_moves_then_the_new_one_is_asked(void **state)
{
    struct rig *rig = *state;
    all_responded(rig);
    for (int i = 0; i < 4; i++) {
        hps_mock_kafka_leader(rig->client.mock, TOPIC, 2, i % N + 1);
        append_many(rig->client.mock, 2, 0, 1);
        assert_int_equal(response_now(rig->client.consumer, rig->watches[2]).high, 3 + i);
    }
    /* From one that hangs, which tells nobody that it leads no longer. */
    hps_mock_kafka_leader(rig->client.mock, TOPIC, 2, 2);
    response_now(rig->client.consumer, rig->watches[2]);
    hps_mock_kafka_slow(rig->client.mock, 2, HANGS_MS);
    response_wait(rig->client.consumer, rig->watches[2], HPS_UNAVAILABLE);
    hps_mock_kafka_leader(rig->client.mock, TOPIC, 2, 3);
    assert_int_equal(response_now(rig->client.consumer, rig->watches[2]).high, 6);
}

static void test_heard_when_questions_are_refused_then_it_says_so_until_they_are_answered_again(
    void **state)
{
    struct rig *rig = *state;
    all_responded(rig);
    /* Two of one leader, so that what is refused is asked of each alone, too. */
    hps_mock_kafka_leader(rig->client.mock, TOPIC, 0, 1);
    rig->watches[0] = watch_of(rig->client.consumer, TOPIC, 0);
    response_now(rig->client.consumer, rig->watches[0]);
    hps_mock_kafka_fail(rig->client.mock, HPS_MOCK_LIST_OFFSETS, HPS_MOCK_TOPIC_DENIED, 12);
    struct hps_leader_response response =
        response_wait(rig->client.consumer, rig->watches[1], HPS_PERMISSION);
    assert_int_equal(response.high, 1);
    assert_non_null(strstr(response.text, "broker 1"));
    for (int32_t i = 0; i <= N; i++) {
        assert_int_equal(response_now(rig->client.consumer, rig->watches[i]).high, i);
    }
}

/* ---- offsets --------------------------------------------------------------------------------- */

/* Of the partitions from 1 on. */
static void ask_offsets(struct rig *rig, struct hps_consumer_offsets parts[static N])
{
    struct hps_error err = {0};
    for (int32_t i = 0; i < N; i++) {
        parts[i] =
            (struct hps_consumer_offsets){.topic = TOPIC, .partition = i + 1, .time_unix_ms = -1};
    }
    assert_int_equal(
        rig->client.consumer->ops->offsets(rig->client.consumer, parts, N, ANSWER_MS, &err),
        HPS_OK);
}

static void test_offsets_when_a_leader_says_nothing_then_the_others_answer_at_once(void **state)
{
    struct rig *rig = *state;
    struct hps_consumer_offsets parts[N];
    all_responded(rig);
    ask_offsets(rig, parts);
    for (int32_t i = 0; i < N; i++) {
        assert_int_equal(parts[i].status, HPS_OK);
        assert_int_equal(parts[i].high, i + 1);
    }
    hps_mock_kafka_slow(rig->client.mock, 2, HANGS_MS);
    response_wait(rig->client.consumer, rig->watches[2], HPS_UNAVAILABLE);
    for (int i = 0; i < 3; i++) {
        /* Were the silent one waited for, not even one would end within the time of all. */
        uint64_t begun_us = hps_clock_us();
        ask_offsets(rig, parts);
        assert_true(hps_clock_us() - begun_us < UINT64_C(1000) * ANSWER_MS / 2);
        assert_int_equal(parts[0].status, HPS_OK);
        assert_int_equal(parts[0].high, 1);
        assert_int_equal(parts[1].status, HPS_UNAVAILABLE);
        assert_int_equal(parts[2].status, HPS_OK);
        assert_int_equal(parts[2].high, 3);
    }
}

static void test_offsets_when_a_leader_just_fell_silent_then_the_others_answer(void **state)
{
    struct rig *rig = *state;
    struct hps_consumer_offsets parts[N];
    all_responded(rig);
    ask_offsets(rig, parts);
    hps_mock_kafka_slow(rig->client.mock, 1, HANGS_MS); /* the first that is asked */
    ask_offsets(rig, parts);
    assert_int_equal(parts[0].status, HPS_UNAVAILABLE);
    assert_int_equal(parts[1].status, HPS_OK);
    assert_int_equal(parts[2].status, HPS_OK);
}

static void test_offsets_when_leaders_do_not_know_a_listed_topic_then_it_is_not_called_gone(
    void **state)
{
    struct rig *rig = *state;
    struct hps_consumer_offsets parts[N];
    all_responded(rig);
    hps_mock_kafka_fail(rig->client.mock, HPS_MOCK_LIST_OFFSETS, HPS_MOCK_NO_TOPIC, 1000);
    response_wait(rig->client.consumer, rig->watches[1], HPS_UNAVAILABLE);
    ask_offsets(rig, parts);
    for (int32_t i = 0; i < N; i++) {
        assert_int_equal(parts[i].status, HPS_UNAVAILABLE);
    }
}

/* ---- the rest of what must not wait for one broker ------------------------------------------- */

static void test_topics_when_a_broker_hangs_then_another_one_lists_them(void **state)
{
    struct rig *rig = *state;
    all_responded(rig);
    for (int32_t broker = 1; broker <= N; broker++) {
        hps_mock_kafka_slow(rig->client.mock, broker, HANGS_MS);
        for (int i = 0; i < 10; i++) {
            assert_int_equal(topics_count(rig->client.consumer), 1);
        }
        hps_mock_kafka_slow(rig->client.mock, broker, 0);
        response_now(rig->client.consumer, rig->watches[broker]);
    }
}

/* Poll until the topic is not listed. Until then no list from `error_us` on may count. */
static uint64_t missing_wait(struct rig *rig, uint64_t error_us)
{
    uint64_t end_us = answer_end_us();
    struct hps_consumer_topics topics = {0};
    struct hps_consumer *consumer = rig->client.consumer;
    consumer->ops->topics(consumer, 0, &topics);
    while (n_existing(&topics) > 0) {
        assert_true(topics.asked_us <= error_us);
        (void)poll_once(consumer, 5, 10, 1000);
        assert_before(end_us, "a list without the topic");
        consumer->ops->topics(consumer, 0, &topics);
    }
    return topics.asked_us;
}

static void test_topics_when_lists_lack_one_then_nothing_is_proved_until_it_is_deleted(void **state)
{
    struct rig *rig = *state;
    struct hps_consumer *consumer = rig->client.consumer;
    all_responded(rig);
    assert_int_equal(topics_count(consumer), 1);
    /* As from a broker that has just started. */
    hps_mock_kafka_topic_fail(rig->client.mock, TOPIC, HPS_MOCK_NO_TOPIC);
    hps_mock_kafka_topic_fail(rig->client.mock, TOPIC, 0);
    assert_int_equal(topics_count(consumer), 1);
    uint64_t begun_us = hps_clock_us();
    hps_mock_kafka_topic_fail(rig->client.mock, TOPIC, HPS_MOCK_NO_TOPIC);
    assert_true(missing_wait(rig, hps_clock_us()) > begun_us + 900000);
    assert_int_equal(topics_count(consumer), 0);
    hps_mock_kafka_topic_fail(rig->client.mock, TOPIC, 0);
    assert_int_equal(topics_count(consumer), 1);
    /* A refusal needs no second list. */
    hps_mock_kafka_topic_fail(rig->client.mock, TOPIC, HPS_MOCK_TOPIC_DENIED);
    assert_int_equal(topics_count(consumer), 0);
}

static void test_watch_when_lists_lack_a_known_topic_then_not_missing_until_it_is_deleted(
    void **state)
{
    struct rig *rig = *state;
    struct hps_consumer *consumer = rig->client.consumer;
    struct hps_consumer_topics topics = {0};
    struct hps_leader_response response = {0};
    uint64_t end_us = answer_end_us();
    all_responded(rig);
    assert_int_equal(topics_count(consumer), 1);
    hps_mock_kafka_topic_fail(rig->client.mock, TOPIC, HPS_MOCK_NO_TOPIC);
    rig->watches[0] = watch_of(consumer, TOPIC, 0);
    for (response = response_of(rig, 0); response.status != HPS_NOT_FOUND;
         response = response_of(rig, 0)) {
        linger(consumer, end_us);
    }
    consumer->ops->topics(consumer, 0, &topics);
    assert_int_equal(n_existing(&topics), 0);
}

static void test_topics_when_one_has_an_error_then_it_is_named_and_the_others_go_on(void **state)
{
    struct rig *rig = *state;
    static const char other[] = "hps_et.m.other";
    struct hps_consumer_topics topics = {0};
    uint64_t end_us = answer_end_us();
    hps_mock_kafka_topic(rig->client.mock, other, 1);
    struct hps_consumer *consumer =
        open_consumer(rig->client.log, (const char *const[]){TOPIC, other}, 2);
    all_responded(rig);
    assert_int_equal(topics_count(consumer), 2);
    hps_mock_kafka_topic_fail(rig->client.mock, other, HPS_MOCK_NO_LEADER);
    while (topics.error[0] == '\0') {
        linger(consumer, end_us);
        consumer->ops->topics(consumer, 0, &topics);
    }
    assert_string_equal(topics.error, "hps_et.m.other: Broker: Leader not available");
    uint64_t stands_us = topics.asked_us;
    struct hps_consumer_offsets parts[N];
    for (int32_t i = 1; i <= N; i++) {
        assert_int_equal(topics_count(rig->client.consumer), 1);
        response_now(consumer, watch_of(consumer, TOPIC, i));
    }
    ask_offsets(rig, parts);
    for (int32_t i = 0; i < N; i++) {
        assert_int_equal(parts[i].status, HPS_OK);
    }
    consumer->ops->topics(consumer, 0, &topics);
    assert_int_equal(topics.asked_us, stands_us);
    hps_mock_kafka_topic_fail(rig->client.mock, other, 0);
    assert_string_equal(topics_now(consumer).error, "");
    consumer->ops->close(consumer);
}

static void test_recall_when_a_leader_hangs_then_only_its_own_have_no_answer(void **state)
{
    struct rig *rig = *state;
    struct hps_recalled recalled = {0};
    all_responded(rig);
    hps_mock_kafka_slow(rig->client.mock, 2, HANGS_MS);
    for (int32_t i = N; i >= 1; i--) {
        rig->client.consumer->ops->recall(rig->watches[i], i - 1);
    }
    for (int32_t i = 1; i <= N; i += 2) {
        recalled = recalled_wait(rig->client.consumer, rig->watches[i]);
        assert_int_equal(recalled.offset, i - 1);
    }
    assert_false(rig->client.consumer->ops->recalled(rig->watches[2], &recalled));
    hps_mock_kafka_slow(rig->client.mock, 2, 0);
    recalled = recalled_wait(rig->client.consumer, rig->watches[2]);
    assert_int_equal(recalled.offset, 1);
}

static void test_recall_when_a_record_takes_long_to_come_then_it_is_waited_for(void **state)
{
    struct rig *rig = *state;
    struct hps_recalled recalled = {0};
    all_responded(rig);
    /* Longer than a connection is kept that may hang; its leader answers all else. */
    hps_mock_kafka_delay(rig->client.mock, 2, HPS_MOCK_FETCH, 4000, 1000);
    rig->client.consumer->ops->recall(rig->watches[2], 1);
    recalled = recalled_wait(rig->client.consumer, rig->watches[2]);
    assert_int_equal(recalled.offset, 1);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_heard_when_a_leader_hangs_or_is_cut_off_then_its_own_word_stands_still),
        TEST(test_heard_when_a_leader_is_slow_then_its_word_is_as_old_as_the_question),
        TEST(test_heard_when_the_leader_moves_then_the_new_one_is_asked),
        TEST(test_heard_when_questions_are_refused_then_it_says_so_until_they_are_answered_again),
        TEST(test_offsets_when_a_leader_says_nothing_then_the_others_answer_at_once),
        TEST(test_offsets_when_a_leader_just_fell_silent_then_the_others_answer),
        TEST(test_offsets_when_leaders_do_not_know_a_listed_topic_then_it_is_not_called_gone),
        TEST(test_topics_when_a_broker_hangs_then_another_one_lists_them),
        TEST(test_topics_when_lists_lack_one_then_nothing_is_proved_until_it_is_deleted),
        TEST(test_watch_when_lists_lack_a_known_topic_then_not_missing_until_it_is_deleted),
        TEST(test_topics_when_one_has_an_error_then_it_is_named_and_the_others_go_on),
        TEST(test_recall_when_a_leader_hangs_then_only_its_own_have_no_answer),
        cmocka_unit_test_setup_teardown(
            test_recall_when_a_record_takes_long_to_come_then_it_is_waited_for, setup_patient,
            teardown),
    };
#undef TEST
    return cmocka_run_group_tests(tests, NULL, NULL);
}
