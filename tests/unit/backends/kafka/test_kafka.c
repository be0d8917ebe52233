/* SPDX-License-Identifier: Apache-2.0
 *
 * Kafka when things go wrong, on librdkafka's mock cluster: outages, gaps, refusals, moved leaders.
 * What every update log does is in tests/contract, what only a real broker does in
 * tests/e2e/test_kafka_log.py.
 */
#include <inttypes.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "backends/kafka/consumer.h"
#include "tests/lib/log_client.h"

static int setup(void **state)
{
    struct log_client *rig = hps_calloc(1, sizeof(*rig));
    assert_non_null(rig);
    /* What is waited for after a failure need not take as long as in life. */
    const struct hps_kafka_property quick[] = {{"reconnect.backoff.ms", "10"},
                                               {"reconnect.backoff.max.ms", "50"},
                                               {"retry.backoff.ms", "10"}};
    *rig = client_open(2, quick, 3);
    *state = rig;
    return 0;
}

static int teardown(void **state)
{
    struct log_client *rig = *state;
    client_close(rig);
    hps_free(rig);
    return 0;
}

static void assign(struct log_client *rig, int32_t partition, int64_t offset)
{
    assign_to(rig->consumer, TOPIC, partition, offset, (uint32_t)partition);
}

static void append(struct log_client *rig, int32_t partition, uint64_t first, uint32_t n)
{
    append_many(rig->mock, partition, first, n);
}

/* A topic of one partition with n records, which is read from its beginning. */
static void begin(struct log_client *rig, uint32_t n)
{
    hps_mock_kafka_topic(rig->mock, TOPIC, 1);
    append(rig, 0, 0, n);
    assign(rig, 0, 0);
}

/* What was seen of the log. Records of partition 0 are to be next, next + 1, … */
struct seen {
    int64_t next;
    uint32_t n_events[HPS_CONSUMER_COMMITS + 1];
    struct hps_consumer_event last[HPS_CONSUMER_COMMITS + 1];
    char text[HPS_CONSUMER_COMMITS + 1][256];
};

static void look(struct log_client *rig, struct seen *seen)
{
    struct hps_consumer_poll poll = poll_once(rig->consumer, 100, 100, 1 << 20);
    for (uint32_t i = 0; i < poll.n_records; i++) {
        uint64_t number = 0;
        assert_int_equal(poll.records[i].offset, seen->next);
        memcpy(&number, poll.records[i].value, sizeof(number));
        assert_int_equal(number, seen->next);
        seen->next++;
    }
    for (uint32_t i = 0; i < poll.n_events; i++) {
        enum hps_consumer_event_kind kind = poll.events[i].kind;
        seen->n_events[kind]++;
        seen->last[kind] = poll.events[i];
        snprintf(seen->text[kind], sizeof(seen->text[kind]), "%s", poll.events[i].text);
    }
}

/* Look until there was another event of that kind. */
static void look_for(struct log_client *rig, struct seen *seen, enum hps_consumer_event_kind kind)
{
    uint64_t end_us = answer_end_us();
    for (uint32_t before = seen->n_events[kind]; seen->n_events[kind] == before;) {
        look(rig, seen);
        assert_before(end_us, "an event");
    }
}

static void look_until(struct log_client *rig, struct seen *seen, int64_t next)
{
    uint64_t end_us = answer_end_us();
    while (seen->next < next) {
        look(rig, seen);
        assert_before(end_us, "records");
    }
}

/* All up to `next`, and told so. The mock says where a partition ends beside an error, and
 * librdkafka then takes the end for the news: it must have been told before. */
static void catch_up(struct log_client *rig, struct seen *seen, int64_t next)
{
    look_until(rig, seen, next);
    while (seen->n_events[HPS_CONSUMER_CAUGHT_UP] == 0 ||
           seen->last[HPS_CONSUMER_CAUGHT_UP].offset != next) {
        look_for(rig, seen, HPS_CONSUMER_CAUGHT_UP);
    }
}

/* ---- dead letters ---------------------------------------------------------------------------- */

static void test_dead_letter_when_properties_ask_for_no_answers_then_each_is_reported(void **state)
{
    const struct hps_kafka_property properties[] = {{"acks", "0"},
                                                    {"delivery.report.only.error", "true"}};
    struct log_client rig = client_open(1, properties, 2);
    struct hps_error err = {0};
    (void)state;
    begin(&rig, 1);
    struct hps_consumer_poll poll = {0};
    while (poll.n_records == 0) {
        poll = poll_once(rig.consumer, 100, 100, 1 << 20);
    }
    for (unsigned fails = 0; fails < 2; fails++) {
        hps_mock_kafka_fail(rig.mock, HPS_MOCK_PRODUCE, HPS_MOCK_TOPIC_DENIED, fails);
        struct hps_dead_letters letters = {0};
        assert_int_equal(rig.consumer->ops->dead_letter(rig.consumer, TOPIC, &poll.records[0],
                                                        "bad", ANSWER_MS, &err),
                         HPS_OK);
        rig.consumer->ops->dead_letter_flush(rig.consumer, ANSWER_MS, &letters);
        assert_int_equal(letters.status, fails ? HPS_PERMISSION : HPS_OK);
        assert_int_equal(letters.n_lost, fails);
        assert_int_equal(letters.n_acknowledged, 1 - fails);
    }
    client_close(&rig);
}

/* ---- outages --------------------------------------------------------------------------------- */

static void test_poll_when_the_cluster_goes_and_comes_then_told_once_and_nothing_is_lost(void **s)
{
    struct log_client *rig = *s;
    struct seen seen = {0};
    begin(rig, 50);
    look_until(rig, &seen, 50);
    for (uint32_t i = 1; i <= 2; i++) {
        hps_mock_kafka_down(rig->mock, true);
        look_for(rig, &seen, HPS_CONSUMER_DOWN);
        assert_int_equal(seen.last[HPS_CONSUMER_DOWN].status, HPS_UNAVAILABLE);
        assert_int_equal(seen.last[HPS_CONSUMER_DOWN].tag, HPS_CONSUMER_NO_TAG);
        assert_true(strlen(seen.text[HPS_CONSUMER_DOWN]) > 0);
        for (int k = 0; k < 10; k++) {
            look(rig, &seen);
        }
        assert_int_equal(seen.n_events[HPS_CONSUMER_DOWN], i);
        assert_int_equal(seen.n_events[HPS_CONSUMER_UP], i - 1);
        hps_mock_kafka_down(rig->mock, false);
        look_for(rig, &seen, HPS_CONSUMER_UP);
        append(rig, 0, (uint64_t)seen.next, 50);
        look_until(rig, &seen, 50 + 50 * i);
        assert_int_equal(seen.n_events[HPS_CONSUMER_UP], i);
    }
}

static void test_consumer_when_there_is_no_cluster_then_calls_end_and_it_is_told(void **state)
{
    (void)state;
    /* Nothing listens on the port of a cluster that is no more. */
    struct hps_mock_kafka *mock = hps_mock_kafka_new(1);
    struct log_client rig = {.log = open_log(hps_mock_kafka_brokers(mock), NULL, 0)};
    hps_mock_kafka_free(mock);
    rig.consumer = open_one(rig.log);
    struct hps_consumer_topics topics = {0};
    struct hps_consumer_offsets part = {.topic = TOPIC, .time_unix_ms = -1};
    struct hps_error err = {0};
    struct seen seen = {0};
    rig.consumer->ops->topics(rig.consumer, 0, &topics);
    assert_int_equal(topics.asked_us, 0);
    assert_int_equal(rig.consumer->ops->offsets(rig.consumer, &part, 1, 300, &err), HPS_OK);
    assert_int_equal(part.status, HPS_UNAVAILABLE);
    assign(&rig, 0, 0);
    look_for(&rig, &seen, HPS_CONSUMER_DOWN);
    assert_int_equal(seen.last[HPS_CONSUMER_DOWN].status, HPS_UNAVAILABLE);
    commit_to(rig.consumer, 0, 1);
    look(&rig, &seen);
    rig.consumer->ops->close(rig.consumer);
    rig.log->ops->close(rig.log);
}

static void test_poll_when_the_leader_moves_then_reading_goes_on(void **state)
{
    struct log_client *rig = *state;
    struct seen seen = {0};
    begin(rig, 20);
    for (int32_t i = 0; i < 4; i++) {
        look_until(rig, &seen, 20 * (i + 1));
        hps_mock_kafka_leader(rig->mock, TOPIC, 0, i % 2 + 1);
        append(rig, 0, 20 * ((uint64_t)i + 1), 20);
    }
    look_until(rig, &seen, 100);
    assert_int_equal(seen.n_events[HPS_CONSUMER_GAP], 0);
    assert_int_equal(seen.n_events[HPS_CONSUMER_GONE], 0);
    assert_int_equal(seen.n_events[HPS_CONSUMER_FAILED], 0);
}

static void test_poll_when_fetches_fail_for_a_while_then_nothing_is_told_or_lost(void **state)
{
    struct log_client *rig = *state;
    struct seen seen = {0};
    const int errors[] = {HPS_MOCK_NOT_LEADER, HPS_MOCK_REQUEST_TIMED_OUT, HPS_MOCK_STORAGE};
    begin(rig, 10);
    look_until(rig, &seen, 10);
    for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
        hps_mock_kafka_fail(rig->mock, HPS_MOCK_FETCH, errors[i], 3);
        append(rig, 0, (uint64_t)seen.next, 10);
        look_until(rig, &seen, seen.next + 10);
    }
    assert_int_equal(seen.n_events[HPS_CONSUMER_GAP], 0);
    assert_int_equal(seen.n_events[HPS_CONSUMER_FAILED], 0);
}

/* ---- gaps and refusals ----------------------------------------------------------------------- */

static void test_poll_when_old_records_were_dropped_then_a_gap(void **state)
{
    struct log_client *rig = *state;
    struct seen seen = {0};
    hps_mock_kafka_topic(rig->mock, TOPIC, 1);
    /* More than the mock keeps: the first are gone. */
    for (uint64_t i = 0; i < 100; i++) {
        hps_mock_kafka_append_many(rig->mock, TOPIC, 0, i, 1, 100000);
        hps_mock_kafka_flush(rig->mock);
    }
    struct hps_consumer_offsets part = {.topic = TOPIC, .time_unix_ms = -1};
    struct hps_error err = {0};
    assert_int_equal(rig->consumer->ops->offsets(rig->consumer, &part, 1, ANSWER_MS, &err), HPS_OK);
    assert_true(part.low > 10);
    assert_int_equal(part.high, 100);
    seen.next = 10;
    assign(rig, 0, 10);
    look_for(rig, &seen, HPS_CONSUMER_GAP);
    assert_int_equal(seen.next, 10);
    assert_int_equal(seen.last[HPS_CONSUMER_GAP].offset, 10);
    /* What an operator may choose. */
    seen.next = part.low;
    assign(rig, 0, part.low);
    look_until(rig, &seen, 100);
    assert_int_equal(seen.n_events[HPS_CONSUMER_GAP], 1);
}

static void test_poll_when_in_the_midst_the_offset_is_no_more_then_a_gap_after_the_records(
    void **state)
{
    struct log_client *rig = *state;
    struct seen seen = {0};
    begin(rig, 30);
    catch_up(rig, &seen, 30);
    hps_mock_kafka_fail(rig->mock, HPS_MOCK_FETCH, HPS_MOCK_OFFSET_OUT_OF_RANGE, 1);
    look_for(rig, &seen, HPS_CONSUMER_GAP);
    assert_int_equal(seen.last[HPS_CONSUMER_GAP].offset, 30);
    /* Stopped, whatever comes. */
    append(rig, 0, 30, 10);
    for (int i = 0; i < 10; i++) {
        look(rig, &seen);
    }
    assert_int_equal(seen.next, 30);
    assign(rig, 0, 30);
    look_until(rig, &seen, 40);
    assert_int_equal(seen.n_events[HPS_CONSUMER_GAP], 1);
}

static void test_poll_when_a_gap_was_not_told_yet_and_the_partition_moves_then_it_never_is(
    void **state)
{
    struct log_client *rig = *state;
    struct seen seen = {0};
    hps_mock_kafka_topic(rig->mock, TOPIC, 2);
    append(rig, 0, 0, 30);
    assign(rig, 0, 29); /* then moves back: what is told of 29 is not of 0 */
    for (int i = 0; i < 3; i++) {
        assign(rig, 0, 35);
        /* Its refusal has come when another partition, asked of the same broker, was answered. */
        assign(rig, 1, 0);
        look_for(rig, &seen, HPS_CONSUMER_CAUGHT_UP);
        seen.n_events[HPS_CONSUMER_GAP] = 0;
        assign(rig, 0, 0);
        seen.next = 0;
        look_until(rig, &seen, 30);
        assert_int_equal(seen.n_events[HPS_CONSUMER_GAP], 0);
    }
}

static void test_poll_when_the_topic_is_denied_then_the_partition_fails_alone(void **state)
{
    struct log_client *rig = *state;
    struct seen seen = {0};
    begin(rig, 10);
    catch_up(rig, &seen, 10);
    hps_mock_kafka_fail(rig->mock, HPS_MOCK_FETCH, HPS_MOCK_TOPIC_DENIED, 1);
    look_for(rig, &seen, HPS_CONSUMER_FAILED);
    assert_int_equal(seen.last[HPS_CONSUMER_FAILED].status, HPS_PERMISSION);
    assert_int_equal(seen.last[HPS_CONSUMER_FAILED].offset, 10);
    append(rig, 0, 10, 10);
    assign(rig, 0, 10);
    look_until(rig, &seen, 20);
}

/* ---- commits --------------------------------------------------------------------------------- */

static void committed_wait(struct log_client *rig, struct seen *seen, int64_t offset)
{
    uint64_t end_us = answer_end_us();
    while (hps_mock_kafka_committed(rig->mock, "g", TOPIC, 0) != offset) {
        look(rig, seen);
        assert_before(end_us, "a commit");
    }
}

static void test_commit_when_many_are_made_then_the_last_is_there_in_the_end(void **state)
{
    struct log_client *rig = *state;
    struct seen seen = {0};
    begin(rig, 100);
    for (int64_t i = 1; i <= 100; i++) {
        commit_to(rig->consumer, 0, i);
    }
    look_until(rig, &seen, 100);
    committed_wait(rig, &seen, 100);
    assert_int_equal(seen.n_events[HPS_CONSUMER_COMMITS], 0);
}

static void test_commit_when_it_is_refused_then_told_once_and_reading_goes_on(void **state)
{
    struct log_client *rig = *state;
    struct seen seen = {0};
    begin(rig, 10);
    look_until(rig, &seen, 10);
    hps_mock_kafka_fail(rig->mock, HPS_MOCK_OFFSET_COMMIT, HPS_MOCK_GROUP_DENIED, 1);
    commit_to(rig->consumer, 0, 5);
    look_for(rig, &seen, HPS_CONSUMER_COMMITS);
    assert_int_equal(seen.last[HPS_CONSUMER_COMMITS].status, HPS_PERMISSION);
    assert_non_null(strstr(seen.text[HPS_CONSUMER_COMMITS], "\"g\""));
    append(rig, 0, 10, 10);
    assign(rig, 0, 10); /* which a commit that waits must not keep from starting */
    look_until(rig, &seen, 20);
    commit_to(rig->consumer, 0, 20);
    look_for(rig, &seen, HPS_CONSUMER_COMMITS);
    assert_int_equal(seen.last[HPS_CONSUMER_COMMITS].status, HPS_OK);
    committed_wait(rig, &seen, 20);
}

/* ---- settings -------------------------------------------------------------------------------- */

static hps_status try_open(const char *name, const char *value, struct hps_error *err)
{
    struct hps_update_log *log = NULL;
    struct hps_kafka_property property = {name, value};
    struct hps_kafka_options options = {
        .brokers = "127.0.0.1:1", .properties = &property, .n_properties = 1};
    hps_status status = hps_kafka_open(&options, &log, err);
    if (status == HPS_OK) {
        log->ops->close(log);
    }
    return status;
}

static void test_open_when_a_property_is_wrong_or_ours_then_the_error_names_it(void **state)
{
    (void)state;
    const struct hps_kafka_property wrong[] = {{"no.such.property", "1"},
                                               {"security.protocol", "carrier pigeon"},
                                               {"enable.auto.commit", "true"},
                                               {"auto.offset.reset", "earliest"},
                                               {"group.id", "mine"},
                                               {"bootstrap.servers", "elsewhere:9092"},
                                               {"socket.timeout.ms", "a while"}};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct hps_error err = {0};
        assert_int_equal(try_open(wrong[i].name, wrong[i].value, &err), HPS_INVALID);
        assert_non_null(strstr(err.text, wrong[i].name));
    }
}

static void test_open_when_properties_are_librdkafkas_then_they_pass(void **state)
{
    (void)state;
    struct hps_error err = {0};
    assert_int_equal(try_open("security.protocol", "sasl_ssl", &err), HPS_OK);
    assert_int_equal(try_open("sasl.mechanisms", "SCRAM-SHA-256", &err), HPS_OK);
    assert_int_equal(try_open("isolation.level", "read_uncommitted", &err), HPS_OK);
    assert_int_equal(try_open("fetch.max.bytes", "1000000", &err), HPS_OK);
}

static void test_consumer_when_the_ca_file_is_not_there_then_it_is_refused(void **state)
{
    (void)state;
    const struct hps_kafka_property tls[] = {{"security.protocol", "ssl"},
                                             {"ssl.ca.location", "/does/not/exist.pem"}};
    struct hps_update_log *log = open_log("127.0.0.1:1;127.0.0.1:2", tls, 2);
    struct hps_consumer *consumer = NULL;
    struct hps_error err = {0};
    struct hps_consumer_options options = {.name = "c"};
    assert_int_equal(log->ops->consumer_open(log, &options, &consumer, &err), HPS_INVALID);
    assert_non_null(strstr(err.text, "ssl.ca.location"));
    log->ops->close(log);
}

static void test_check_when_only_a_consumer_would_find_it_then_it_is_found_without_one(void **state)
{
    (void)state;
    const struct hps_kafka_property tls[] = {{"security.protocol", "ssl"},
                                             {"ssl.ca.location", "/does/not/exist.pem"}};
    struct hps_mock_kafka *mock = hps_mock_kafka_new(1);
    struct hps_kafka_options options = {
        .brokers = hps_mock_kafka_brokers(mock), .properties = tls, .n_properties = 2};
    struct hps_error err = {0};
    assert_int_equal(hps_kafka_check(&options, &err), HPS_INVALID);
    assert_non_null(strstr(err.text, "ssl.ca.location"));
    options.n_properties = 1;
    assert_int_equal(hps_kafka_check(&options, &err), HPS_OK);
    options.properties = &(const struct hps_kafka_property){"no.such.property", "1"};
    assert_int_equal(hps_kafka_check(&options, &err), HPS_INVALID);
    assert_non_null(strstr(err.text, "no.such.property"));
    hps_mock_kafka_free(mock);
}

static void test_poll_when_we_cannot_be_authenticated_then_down_says_so(void **state)
{
    (void)state;
    /* The mock speaks neither TLS nor SASL. */
    struct hps_mock_kafka *mock = hps_mock_kafka_new(1);
    const struct hps_kafka_property sasl[] = {{"security.protocol", "sasl_plaintext"},
                                              {"sasl.mechanisms", "PLAIN"},
                                              {"sasl.username", "u"},
                                              {"sasl.password", "p"}};
    struct log_client rig = {.log = open_log(hps_mock_kafka_brokers(mock), sasl, 4)};
    struct seen seen = {0};
    rig.consumer = open_one(rig.log);
    assign(&rig, 0, 0);
    look_for(&rig, &seen, HPS_CONSUMER_DOWN);
    assert_int_equal(seen.last[HPS_CONSUMER_DOWN].status, HPS_UNAUTHENTICATED);
    for (int i = 0; i < 10; i++) {
        look(&rig, &seen);
    }
    assert_int_equal(seen.n_events[HPS_CONSUMER_DOWN], 1);
    assert_int_equal(seen.n_events[HPS_CONSUMER_UP], 0);
    struct hps_consumer_topics topics = {0};
    rig.consumer->ops->topics(rig.consumer, 0, &topics);
    assert_int_equal(topics.asked_us, 0);
    rig.consumer->ops->close(rig.consumer);
    rig.log->ops->close(rig.log);
    hps_mock_kafka_free(mock);
}

static void test_open_when_client_id_is_given_then_each_connection_adds_its_name(void **state)
{
    struct log_client *rig = *state;
    const struct hps_kafka_property given[] = {{"client.id", "fleet-7"},
                                               {"reconnect.backoff.ms", "10"}};
    struct hps_update_log *log = open_log(hps_mock_kafka_brokers(rig->mock), given, 2);
    struct hps_consumer *consumer = open_one(log);
    const rd_kafka_conf_t *conf = rd_kafka_conf(((struct hps_kafka_consumer *)consumer)->rk);
    char text[64];
    size_t size = sizeof(text);
    assert_int_equal(rd_kafka_conf_get(conf, "client.id", text, &size), RD_KAFKA_CONF_OK);
    assert_string_equal(text, "fleet-7-c");
    size = sizeof(text);
    assert_int_equal(rd_kafka_conf_get(conf, "reconnect.backoff.ms", text, &size),
                     RD_KAFKA_CONF_OK);
    assert_string_equal(text, "10");
    consumer->ops->close(consumer);
    log->ops->close(log);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(
            test_open_when_client_id_is_given_then_each_connection_adds_its_name, setup, teardown),
        cmocka_unit_test(test_dead_letter_when_properties_ask_for_no_answers_then_each_is_reported),
        TEST(test_poll_when_the_cluster_goes_and_comes_then_told_once_and_nothing_is_lost),
        cmocka_unit_test(test_consumer_when_there_is_no_cluster_then_calls_end_and_it_is_told),
        TEST(test_poll_when_the_leader_moves_then_reading_goes_on),
        TEST(test_poll_when_fetches_fail_for_a_while_then_nothing_is_told_or_lost),
        TEST(test_poll_when_old_records_were_dropped_then_a_gap),
        TEST(test_poll_when_in_the_midst_the_offset_is_no_more_then_a_gap_after_the_records),
        TEST(test_poll_when_a_gap_was_not_told_yet_and_the_partition_moves_then_it_never_is),
        TEST(test_poll_when_the_topic_is_denied_then_the_partition_fails_alone),
        TEST(test_commit_when_many_are_made_then_the_last_is_there_in_the_end),
        TEST(test_commit_when_it_is_refused_then_told_once_and_reading_goes_on),
        cmocka_unit_test(test_open_when_a_property_is_wrong_or_ours_then_the_error_names_it),
        cmocka_unit_test(test_open_when_properties_are_librdkafkas_then_they_pass),
        cmocka_unit_test(test_consumer_when_the_ca_file_is_not_there_then_it_is_refused),
        cmocka_unit_test(
            test_check_when_only_a_consumer_would_find_it_then_it_is_found_without_one),
        cmocka_unit_test(test_poll_when_we_cannot_be_authenticated_then_down_says_so),
    };
#undef TEST
    return cmocka_run_group_tests(tests, NULL, NULL);
}
