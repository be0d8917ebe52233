/* SPDX-License-Identifier: Apache-2.0
 *
 * Batches that cannot be read, on librdkafka's mock cluster: they are left out as they are, and
 * nothing else is. With a broker that sends more than one batch at a time: test_kafka_log.py.
 */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "backends/kafka/consumer.h"
#include "tests/lib/log_client.h"

enum { BAD_MAX = 64 };

struct rig {
    struct log_client client;
    int64_t end; /* of the log */
    /* What came: every offset either as a record, or as one that was left out. */
    int64_t next;
    int64_t caught_up;
    struct {
        int64_t from;
        int64_t to;
        hps_status status;
    } bad[BAD_MAX];
    uint32_t n_bad;
};

static int setup(void **state)
{
    struct rig *rig = hps_calloc(1, sizeof(*rig));
    assert_non_null(rig);
    const struct hps_kafka_property quick[] = {{"fetch.error.backoff.ms", "10"},
                                               {"fetch.wait.max.ms", "5"}};
    rig->client = client_open(1, quick, 2);
    hps_mock_kafka_topic(rig->client.mock, TOPIC, 2);
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

/* n records, each with its offset. */
static void append(struct rig *rig, uint32_t n)
{
    append_many(rig->client.mock, 0, (uint64_t)rig->end, n);
    rig->end += n;
}

static void damage(struct rig *rig, uint32_t n, enum hps_mock_damage how)
{
    hps_mock_kafka_append_damaged(rig->client.mock, TOPIC, 0, n, how);
    rig->end += n;
}

static void assign(struct rig *rig, int64_t offset)
{
    assign_to(rig->client.consumer, TOPIC, 0, offset, 5);
    rig->next = offset;
    rig->caught_up = -1;
    rig->n_bad = 0;
}

static void take_bad(struct rig *rig, const struct hps_consumer_event *event)
{
    assert_int_equal(event->tag, 5);
    assert_int_equal(event->offset, rig->next);
    assert_true(event->high > event->offset);
    assert_non_null(strstr(event->text, TOPIC));
    assert_in_range(rig->n_bad, 0, BAD_MAX - 1);
    rig->bad[rig->n_bad].from = event->offset;
    rig->bad[rig->n_bad].to = event->high;
    rig->bad[rig->n_bad++].status = event->status;
    rig->next = event->high;
}

/* Read to the end. */
static void read_all(struct rig *rig)
{
    uint64_t end_us = answer_end_us();
    while (rig->next < rig->end || rig->caught_up != rig->end) {
        struct hps_consumer_poll poll = poll_once(rig->client.consumer, 100, 7, 1 << 20);
        for (uint32_t i = 0; i < poll.n_records; i++) {
            uint64_t number = 0;
            memcpy(&number, poll.records[i].value, sizeof(number));
            assert_int_equal(poll.records[i].offset, rig->next);
            assert_int_equal(number, rig->next++);
        }
        for (uint32_t i = 0; i < poll.n_events; i++) {
            if (poll.events[i].kind == HPS_CONSUMER_BAD) {
                take_bad(rig, &poll.events[i]);
            } else {
                assert_int_equal(poll.events[i].kind, HPS_CONSUMER_CAUGHT_UP);
                rig->caught_up = poll.events[i].offset;
            }
        }
        if (hps_clock_us() > end_us) {
            fail_msg("at %" PRId64 " of %" PRId64, rig->next, rig->end);
        }
    }
}

static void test_poll_when_a_batch_cannot_be_read_then_it_is_left_out_and_nothing_else(void **state)
{
    struct rig *rig = *state;
    const struct {
        enum hps_mock_damage how;
        hps_status status;
    } kinds[] = {{HPS_MOCK_BAD_CHECKSUM, HPS_DATA_LOSS},
                 {HPS_MOCK_BAD_ZSTD, HPS_DATA_LOSS},
                 {HPS_MOCK_BAD_CODEC, HPS_UNIMPLEMENTED}};
    append(rig, 10);
    for (size_t i = 0; i < 3; i++) {
        damage(rig, 1, kinds[i].how);
        append(rig, 3);
    }
    assign(rig, 0);
    read_all(rig);
    assert_int_equal(rig->n_bad, 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(rig->bad[i].from, 10 + 4 * i);
        assert_int_equal(rig->bad[i].to, 11 + 4 * i);
        assert_int_equal(rig->bad[i].status, kinds[i].status);
    }
}

static void test_poll_when_a_bad_batch_has_many_records_then_its_end_is_found(void **state)
{
    struct rig *rig = *state;
    const uint32_t sizes[] = {2, 3, 4, 5, 8, 9, 100, 1000, 4096};
    enum { N = sizeof(sizes) / sizeof(sizes[0]) };
    int64_t begins[N];
    for (int i = 0; i < N; i++) {
        append(rig, 2);
        begins[i] = rig->end;
        damage(rig, sizes[i], i % 2 == 0 ? HPS_MOCK_BAD_ZSTD : HPS_MOCK_BAD_CHECKSUM);
    }
    append(rig, 2);
    assign(rig, 0);
    read_all(rig);
    assert_int_equal(rig->n_bad, N);
    for (int i = 0; i < N; i++) {
        assert_int_equal(rig->bad[i].from, begins[i]);
        assert_int_equal(rig->bad[i].to, begins[i] + sizes[i]);
    }
    /* From within one. */
    assign(rig, begins[7] + 400);
    read_all(rig);
    assert_int_equal(rig->bad[0].from, begins[7] + 400);
    assert_int_equal(rig->bad[0].to, begins[7] + 1000);
}

static void test_poll_when_bad_batches_follow_each_other_up_to_the_end_then_reading_goes_on(
    void **state)
{
    struct rig *rig = *state;
    append(rig, 5);
    damage(rig, 3, HPS_MOCK_BAD_ZSTD);
    damage(rig, 1, HPS_MOCK_BAD_CHECKSUM);
    damage(rig, 7, HPS_MOCK_BAD_ZSTD);
    assign(rig, 0);
    read_all(rig);
    assert_int_equal(rig->n_bad, 3);
    assert_int_equal(rig->bad[0].to, 8);
    assert_int_equal(rig->bad[1].to, 9);
    assert_int_equal(rig->bad[2].to, 16);
    append(rig, 5);
    read_all(rig);
    assert_int_equal(rig->n_bad, 3);
}

static void test_assign_when_the_end_of_a_bad_batch_is_being_looked_for_then_it_is_given_up(
    void **state)
{
    struct rig *rig = *state;
    append(rig, 20);
    damage(rig, 1000, HPS_MOCK_BAD_ZSTD);
    append(rig, 20);
    for (int i = 0; i < 30; i++) {
        assign(rig, 20);
        for (int k = 0; k < i; k++) {
            (void)poll_once(rig->client.consumer, 2, 7, 1 << 20);
        }
        assign(rig, 1020 + i % 20);
        read_all(rig);
        assert_int_equal(rig->n_bad, 0);
        assign(rig, 1020);
        rig->client.consumer->ops->unassign(rig->client.consumer, TOPIC, 0);
    }
}

static void test_assign_when_reading_has_failed_then_no_held_record_is_delivered(void **state)
{
    enum { N_LARGE = 200, LARGE = 8000, NO_RIGHT = RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED };
    struct rig *rig = *state;
    struct hps_kafka_consumer *consumer = (struct hps_kafka_consumer *)rig->client.consumer;
    struct hps_kafka_partitions *partitions = consumer->partitions;
    uint64_t end_us = answer_end_us();
    hps_mock_kafka_append_many(rig->client.mock, TOPIC, 0, 0, N_LARGE, LARGE);
    hps_mock_kafka_flush(rig->client.mock);
    rig->end = N_LARGE;
    assign(rig, 0);
    /* Larger than those before: librdkafka's do not all fit. */
    while (partitions->held.to < partitions->held.from + 2) {
        (void)poll_once(rig->client.consumer, 100, 50, 2 * LARGE);
        assert_before(end_us, "held records");
    }
    const rd_kafka_message_t refused = {.err = NO_RIGHT};
    hps_kafka_partition_failed(partitions, LIST_FIRST(&partitions->all), &refused);
    assert_int_equal(partitions->n, 0);
    assign(rig, 0);
    read_all(rig);
}

static void test_poll_when_errors_are_of_other_offsets_then_a_gap_only_after_many_in_a_row(
    void **state)
{
    struct rig *rig = *state;
    struct hps_kafka_consumer *consumer = (struct hps_kafka_consumer *)rig->client.consumer;
    struct hps_kafka_partitions *partitions = consumer->partitions;
    const rd_kafka_message_t stale = {.err = RD_KAFKA_RESP_ERR_OFFSET_OUT_OF_RANGE,
                                      .offset = 1 << 30};
    uint64_t end_us = answer_end_us();
    append(rig, 20);
    assign(rig, 0);
    for (int64_t i = 0; i < 10; i++) {
        hps_kafka_partition_failed(partitions, LIST_FIRST(&partitions->all), &stale);
        assert_int_equal(partitions->n, 1);
        while (rig->next == i) {
            rig->next += poll_once(rig->client.consumer, 100, 1, 1 << 20).n_records;
            assert_before(end_us, "a record after an error of another offset");
        }
    }
    read_all(rig);
    for (int i = 0; i < 8; i++) {
        hps_kafka_partition_failed(partitions, LIST_FIRST(&partitions->all), &stale);
        assert_int_equal(partitions->n, 1);
    }
    hps_kafka_partition_failed(partitions, LIST_FIRST(&partitions->all), &stale);
    assert_int_equal(partitions->n, 0);
    assert_int_equal(partitions->events[partitions->n_events - 1].kind, HPS_CONSUMER_GAP);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_poll_when_a_batch_cannot_be_read_then_it_is_left_out_and_nothing_else),
        TEST(test_poll_when_a_bad_batch_has_many_records_then_its_end_is_found),
        TEST(test_poll_when_bad_batches_follow_each_other_up_to_the_end_then_reading_goes_on),
        TEST(test_poll_when_errors_are_of_other_offsets_then_a_gap_only_after_many_in_a_row),
        TEST(test_assign_when_reading_has_failed_then_no_held_record_is_delivered),
        TEST(test_assign_when_the_end_of_a_bad_batch_is_being_looked_for_then_it_is_given_up),
    };
#undef TEST
    return cmocka_run_group_tests(tests, NULL, NULL);
}
