/* SPDX-License-Identifier: Apache-2.0
 *
 * The producer against librdkafka's own mock of a cluster, which makes every topic that is asked
 * for; a real broker is in tests/e2e/test_publish.py.
 */
#include "client/producer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/mock_kafka.h"

static const char *const MOCK[] = {"test.mock.num.brokers=1", "linger.ms=0"};

static struct hps_producer *open_with(const char *const *properties, size_t n)
{
    const struct hps_producer_options options = {
        .brokers = "", .properties = properties, .n_properties = n, .timeout_us = 30000000};
    struct hps_producer *producer = NULL;
    struct hps_error err = {0};

    if (hps_producer_open(&options, &producer, &err) != HPS_OK) {
        fail_msg("%s", err.text);
    }
    return producer;
}

static struct hps_producer *mock_open(void)
{
    return open_with(MOCK, 2);
}

struct seen {
    unsigned n;
    char topic[2][16];
    uint32_t partition[2];
    int64_t offset[2];
};

static void see_position(void *ctx, const char *topic, uint32_t partition, int64_t offset)
{
    struct seen *seen = ctx;

    assert_true(seen->n < 2);
    memcpy(seen->topic[seen->n], topic, strlen(topic) + 1);
    seen->partition[seen->n] = partition;
    seen->offset[seen->n++] = offset;
}

static void test_send_when_flushed_then_acknowledged_and_positions_known(void **state)
{
    (void)state;
    struct hps_producer *producer = mock_open();
    struct hps_producer_counts counts;
    struct hps_error err = {0};
    struct seen seen = {0};
    uint32_t topic;
    uint32_t other;
    uint32_t n_partitions = 0;

    assert_int_equal(hps_producer_topic(producer, "first", &topic, &n_partitions, &err), HPS_OK);
    assert_true(n_partitions > 1);
    assert_int_equal(hps_producer_topic(producer, "second", &other, &n_partitions, &err), HPS_OK);
    assert_int_not_equal(topic, other);
    uint32_t again;
    assert_int_equal(hps_producer_topic(producer, "first", &again, &n_partitions, &err), HPS_OK);
    assert_int_equal(again, topic);

    const struct hps_producer_header header = {"h", "12345678", 8};
    struct hps_producer_record record = {.topic = topic,
                                         .partition = 1,
                                         .key = "key",
                                         .key_size = 3,
                                         .value = "value",
                                         .value_size = 5,
                                         .headers = &header,
                                         .n_headers = 1};
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(hps_producer_send(producer, &record, &err), HPS_OK);
    }
    record = (struct hps_producer_record){.topic = other, .key = "k", .key_size = 1};
    assert_int_equal(hps_producer_send(producer, &record, &err), HPS_OK);
    assert_int_equal(hps_producer_flush(producer, &err), HPS_OK);
    assert_int_equal(hps_producer_poll(producer, 0, &err), HPS_OK);
    hps_producer_counts_get(producer, &counts);
    assert_int_equal(counts.n_sent, 4);
    assert_int_equal(counts.n_acknowledged, 4);
    assert_int_equal(counts.bytes_acknowledged, 3 * 8 + 1);
    hps_producer_positions(producer, see_position, &seen);
    assert_int_equal(seen.n, 2);
    assert_string_equal(seen.topic[0], "first");
    assert_int_equal(seen.partition[0], 1);
    assert_int_equal(seen.offset[0], 2);
    assert_string_equal(seen.topic[1], "second");
    assert_int_equal(seen.offset[1], 0);
    hps_producer_close(producer);
}

struct seen_ranges {
    unsigned n;
    int64_t first[3], last[3];
};

static void see_range(void *ctx, const char *topic, uint32_t partition, int64_t first, int64_t last)
{
    struct seen_ranges *seen = ctx;

    assert_true(seen->n < 3);
    assert_string_equal(topic, "t");
    assert_int_equal(partition, 1);
    seen->first[seen->n] = first;
    seen->last[seen->n++] = last;
}

static void send_some(struct hps_producer *producer, uint32_t topic, unsigned n)
{
    const struct hps_producer_record record = {
        .topic = topic, .partition = 1, .value = "v", .value_size = 1};
    struct hps_error err = {0};

    for (unsigned i = 0; i < n; i++) {
        assert_int_equal(hps_producer_send(producer, &record, &err), HPS_OK);
    }
    assert_int_equal(hps_producer_flush(producer, &err), HPS_OK);
}

static void test_send_when_another_writes_between_then_its_offsets_are_not_ours(void **state)
{
    (void)state;
    struct hps_mock_kafka *mock = hps_mock_kafka_new(1);
    const struct hps_producer_options options = {.brokers = hps_mock_kafka_brokers(mock),
                                                 .timeout_us = 30000000};
    struct hps_producer *ours = NULL;
    struct hps_producer *theirs = NULL;
    struct seen_ranges seen = {0};
    struct hps_producer_counts counts;
    struct hps_error err = {0};
    uint32_t topic;
    uint32_t n_partitions;

    hps_mock_kafka_topic(mock, "t", 2);
    assert_int_equal(hps_producer_open(&options, &ours, &err), HPS_OK);
    assert_int_equal(hps_producer_open(&options, &theirs, &err), HPS_OK);
    assert_int_equal(hps_producer_topic(ours, "t", &topic, &n_partitions, &err), HPS_OK);
    assert_int_equal(hps_producer_topic(theirs, "t", &topic, &n_partitions, &err), HPS_OK);
    hps_producer_ranges(ours, see_range, &seen);
    assert_int_equal(seen.n, 0);
    send_some(ours, topic, 3);
    send_some(ours, topic, 2);
    send_some(theirs, topic, 1);
    send_some(ours, topic, 1);
    hps_producer_ranges(ours, see_range, &seen);
    assert_int_equal(seen.n, 2);
    assert_int_equal(seen.first[0], 0);
    assert_int_equal(seen.last[0], 4);
    assert_int_equal(seen.first[1], 6);
    assert_int_equal(seen.last[1], 6);
    hps_producer_counts_get(ours, &counts);
    assert_int_equal(counts.n_unplaced, 0);
    hps_producer_close(ours);
    hps_producer_close(theirs);
    hps_mock_kafka_free(mock);
}

static void test_send_when_the_broker_tells_no_offsets_then_that_is_known(void **state)
{
    (void)state;
    struct hps_mock_kafka *mock = hps_mock_kafka_new(1);
    const struct hps_producer_options options = {.brokers = hps_mock_kafka_brokers(mock),
                                                 .timeout_us = 30000000};
    struct hps_producer *producer = NULL;
    struct hps_producer_counts counts;
    struct seen_ranges seen = {0};
    struct hps_error err = {0};
    uint32_t topic;
    uint32_t n_partitions;

    hps_mock_kafka_topic(mock, "t", 2);
    assert_int_equal(hps_producer_open(&options, &producer, &err), HPS_OK);
    hps_mock_kafka_fail(mock, HPS_MOCK_PRODUCE, HPS_MOCK_DUPLICATE, 3);
    assert_int_equal(hps_producer_topic(producer, "t", &topic, &n_partitions, &err), HPS_OK);
    for (unsigned i = 0; i < 3; i++) { /* three requests */
        send_some(producer, topic, 1);
    }
    hps_producer_counts_get(producer, &counts);
    assert_int_equal(counts.n_acknowledged, 3);
    assert_int_equal(counts.n_unplaced, 3);
    hps_producer_ranges(producer, see_range, &seen);
    assert_int_equal(seen.n, 0);
    hps_producer_close(producer);
    hps_mock_kafka_free(mock);
}

static void test_send_when_larger_than_allowed_then_refused_with_advice(void **state)
{
    (void)state;
    static uint8_t large[1100000];
    struct hps_producer *producer = mock_open();
    struct hps_producer_counts counts;
    struct hps_error err = {0};
    uint32_t topic;
    uint32_t n_partitions;

    assert_int_equal(hps_producer_topic(producer, "t", &topic, &n_partitions, &err), HPS_OK);
    const struct hps_producer_record record = {
        .topic = topic, .value = large, .value_size = sizeof(large)};
    assert_int_equal(hps_producer_send(producer, &record, &err), HPS_EXHAUSTED);
    assert_non_null(strstr(err.text, "message.max.bytes"));
    assert_non_null(strstr(err.text, "1100000"));
    hps_producer_counts_get(producer, &counts);
    assert_int_equal(counts.n_sent, 0);
    hps_producer_close(producer);
}

static void test_send_when_larger_than_the_queue_then_refused_with_advice(void **state)
{
    (void)state;
    static const char *const properties[] = {"test.mock.num.brokers=1", "linger.ms=0",
                                             "queue.buffering.max.kbytes=1"};
    static uint8_t large[2000];
    struct hps_producer *producer = open_with(properties, 3);
    struct hps_producer_counts counts;
    struct hps_error err = {0};
    uint32_t topic;
    uint32_t n_partitions;

    assert_int_equal(hps_producer_topic(producer, "t", &topic, &n_partitions, &err), HPS_OK);
    struct hps_producer_record record = {.topic = topic, .value = large, .value_size = 600};
    for (unsigned i = 0; i < 5; i++) { /* full with one, which makes room in time */
        assert_int_equal(hps_producer_send(producer, &record, &err), HPS_OK);
    }
    record.value_size = sizeof(large);
    assert_int_equal(hps_producer_send(producer, &record, &err), HPS_EXHAUSTED);
    assert_non_null(strstr(err.text, "queue.buffering.max.kbytes"));
    assert_non_null(strstr(err.text, "2000"));
    assert_int_equal(hps_producer_flush(producer, &err), HPS_OK);
    hps_producer_counts_get(producer, &counts);
    assert_int_equal(counts.n_acknowledged, 5);
    hps_producer_close(producer);
}

static void test_close_when_records_are_queued_then_dropped(void **state)
{
    (void)state;
    struct hps_producer *producer = mock_open();
    struct hps_error err = {0};
    uint32_t topic;
    uint32_t n_partitions;

    assert_int_equal(hps_producer_topic(producer, "t", &topic, &n_partitions, &err), HPS_OK);
    const struct hps_producer_record record = {.topic = topic, .value = "v", .value_size = 1};
    for (unsigned i = 0; i < 1000; i++) {
        assert_int_equal(hps_producer_send(producer, &record, &err), HPS_OK);
    }
    hps_producer_close(producer);
    hps_producer_close(NULL);
}

static void test_open_when_property_is_wrong_then_invalid_and_named(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        {"no.such.property=1", "property \"no.such.property\": "},
        {"linger.ms", "expected NAME=VALUE"},
        {"=1", "expected NAME=VALUE"},
        {"acks=none", "acks"},
        {"acks=0", "property \"acks\": got 0, expected all"},
        {"request.required.acks=1", "property \"acks\": got 1, expected all"},
        {"delivery.report.only.error=true", "property \"delivery.report.only.error\": got true"},
        {"sasl.pasword=secret", "property \"sasl.pasword\": "},
        {"sasl.password: secret=", "expected NAME=VALUE"},
        {"sasl.password secret", "expected NAME=VALUE"},
    };

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct hps_producer *producer = NULL;
        struct hps_error err = {0};
        const struct hps_producer_options options = {.brokers = "127.0.0.1:1",
                                                     .properties = &bad[i][0],
                                                     .n_properties = 1,
                                                     .timeout_us = 1000};
        assert_int_equal(hps_producer_open(&options, &producer, &err), HPS_INVALID);
        if (strstr(err.text, bad[i][1]) == NULL || strstr(err.text, "secret") != NULL) {
            fail_msg("%s", err.text);
        }
        assert_null(producer);
    }
}

static void test_open_when_nobody_listens_then_unavailable_and_why(void **state)
{
    (void)state;
    struct hps_producer *producer = NULL;
    struct hps_error err = {0};
    const struct hps_producer_options options = {.brokers = "127.0.0.1:1;127.0.0.1:1",
                                                 .timeout_us = 200000};

    assert_int_equal(hps_producer_open(&options, &producer, &err), HPS_UNAVAILABLE);
    assert_non_null(strstr(err.text, "127.0.0.1:1,127.0.0.1:1"));
    assert_null(producer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_send_when_flushed_then_acknowledged_and_positions_known),
        cmocka_unit_test(test_send_when_another_writes_between_then_its_offsets_are_not_ours),
        cmocka_unit_test(test_send_when_the_broker_tells_no_offsets_then_that_is_known),
        cmocka_unit_test(test_send_when_larger_than_allowed_then_refused_with_advice),
        cmocka_unit_test(test_send_when_larger_than_the_queue_then_refused_with_advice),
        cmocka_unit_test(test_close_when_records_are_queued_then_dropped),
        cmocka_unit_test(test_open_when_property_is_wrong_then_invalid_and_named),
        cmocka_unit_test(test_open_when_nobody_listens_then_unavailable_and_why),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
