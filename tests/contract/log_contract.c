/* SPDX-License-Identifier: Apache-2.0
 *
 * The test suite for every update log.
 */
#include "tests/contract/log_contract.h"

#include <inttypes.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/rows/update_record.h"
#include "tests/lib/log_client.h"

#define EVENT_TIME_MS INT64_C(1700000000000)

static const struct log_contract *contract;

struct rig {
    struct hps_update_log *log;
    struct hps_consumer *consumer;
};

static int setup(void **state)
{
    struct rig *rig = hps_calloc(1, sizeof(*rig));
    assert_non_null(rig);
    rig->log = contract->open(contract->ctx);
    rig->consumer = open_one(rig->log);
    *state = rig;
    return 0;
}

static int teardown(void **state)
{
    struct rig *rig = *state;
    if (rig->consumer != NULL) {
        rig->consumer->ops->close(rig->consumer);
    }
    rig->log->ops->close(rig->log);
    if (contract->clean != NULL) {
        contract->clean(contract->ctx);
    }
    hps_free(rig);
    return 0;
}

static void append(const char *topic, int32_t partition, const char *key, const char *value)
{
    struct hps_fake_record record = {
        .key = key,
        .key_size = key == NULL ? 0 : strlen(key),
        .value = value,
        .value_size = value == NULL ? 0 : strlen(value),
        .time_unix_ms = EVENT_TIME_MS,
        .time_of = HPS_RECORD_TIME_CREATED,
    };
    contract->append(contract->ctx, topic, partition, &record);
}

/* Append records with the values "0", "1", …: [from, to). */
static void append_numbers(const char *topic, int32_t partition, int from, int to)
{
    for (int i = from; i < to; i++) {
        char value[16];
        snprintf(value, sizeof(value), "%d", i);
        append(topic, partition, "k", value);
    }
}

/* Poll until there are records or events. */
static struct hps_consumer_poll poll_some(struct hps_consumer *consumer, uint32_t records_max,
                                          uint64_t bytes_max)
{
    struct hps_consumer_poll poll = {0};
    uint64_t end_us = answer_end_us();
    while (poll.n_records == 0 && poll.n_events == 0) {
        poll = poll_once(consumer, 1000, records_max, bytes_max);
        assert_before(end_us, "something");
    }
    return poll;
}

/* The next record, in a poll of its own. */
static struct hps_consumer_record record_wait(struct hps_consumer *consumer)
{
    struct hps_consumer_poll poll = {0};
    while (poll.n_records == 0) {
        poll = poll_some(consumer, 1, 1 << 20);
    }
    assert_int_equal(poll.n_records, 1);
    return poll.records[0];
}

static void make_and_assign(struct rig *rig, int n)
{
    contract->make_topic(contract->ctx, TOPIC, 1);
    append_numbers(TOPIC, 0, 0, n);
    assign_to(rig->consumer, TOPIC, 0, 0, 0);
}

/* Poll until there is an event of this kind. Records before it must be `next`, `next` + 1, … */
static struct hps_consumer_event event_wait(struct hps_consumer *consumer,
                                            enum hps_consumer_event_kind kind, int64_t *next)
{
    for (;;) {
        struct hps_consumer_poll poll = poll_some(consumer, 7, 1 << 20);
        for (uint32_t i = 0; i < poll.n_records; i++) {
            const struct hps_consumer_record *record = &poll.records[i];
            char value[16];
            assert_non_null(next);
            snprintf(value, sizeof(value), "%" PRId64, *next);
            assert_int_equal(record->offset, *next);
            assert_int_equal(record->value_size, strlen(value));
            assert_memory_equal(record->value, value, record->value_size);
            (*next)++;
        }
        for (uint32_t i = 0; i < poll.n_events; i++) {
            if (poll.events[i].kind == kind) {
                return poll.events[i];
            }
            if (poll.events[i].tag != HPS_CONSUMER_NO_TAG &&
                poll.events[i].kind != HPS_CONSUMER_CAUGHT_UP) {
                fail_msg("unexpected event %d: %s", poll.events[i].kind, poll.events[i].text);
            }
        }
    }
}

/* ---- topics and offsets ---------------------------------------------------------------------- */

static void test_topics_when_listed_then_the_named_ones_in_order(void **state)
{
    struct rig *rig = *state;
    const char *const names[] = {"hps_et.m.users", "hps_et.m.none", TOPIC, "hps_et.m"};
    const char *const expected[] = {"hps_et.m", TOPIC, "hps_et.m.none", "hps_et.m.users"};
    const int counts[] = {2, 3, 0, 1};
    struct hps_consumer *consumer = open_consumer(rig->log, names, 4);
    assert_int_equal(topics_count(consumer), 0);
    contract->make_topic(contract->ctx, "hps_et.m.users", 1);
    contract->make_topic(contract->ctx, "hps_et.m.others", 1);
    contract->make_topic(contract->ctx, TOPIC, 3);
    contract->make_topic(contract->ctx, "hps_et.m", 2);
    struct hps_consumer_topics topics = topics_now(consumer);
    assert_int_equal(topics.n_topics, 4);
    for (int i = 0; i < 4; i++) {
        assert_string_equal(topics.topics[i].name, expected[i]);
        assert_int_equal(topics.topics[i].n_partitions, counts[i]);
    }
    assert_in_range(topics.asked_unix_ms, 1, hps_clock_wall_ms());
    assert_true(strlen(topics.cluster_id) > 0);
    consumer->ops->close(consumer);
}

static void test_topics_when_one_appears_then_listed_for_consumers_that_name_it(void **state)
{
    struct rig *rig = *state;
    const char *const names[] = {TOPIC, "hps_et.m.users"};
    struct hps_consumer *both = open_consumer(rig->log, names, 2);
    contract->make_topic(contract->ctx, TOPIC, 2);
    assert_int_equal(topics_count(rig->consumer), 1);
    assert_int_equal(topics_count(both), 1);
    contract->make_topic(contract->ctx, "hps_et.m.users", 1);
    assert_int_equal(topics_count(rig->consumer), 1);
    assert_int_equal(topics_count(both), 2);
    both->ops->close(both);
}

static void test_assign_when_the_offset_is_negative_then_refused(void **state)
{
    struct rig *rig = *state;
    struct hps_error err = {0};
    struct hps_consumer_position at = {TOPIC, 0, -1};
    assert_int_equal(rig->consumer->ops->assign(rig->consumer, &at, 0, &err), HPS_INVALID);
}

static void test_offsets_when_requested_then_each_partition_has_its_own_result(void **state)
{
    struct rig *rig = *state;
    contract->make_topic(contract->ctx, TOPIC, 2);
    append_numbers(TOPIC, 0, 0, 5);
    struct hps_consumer_offsets parts[] = {
        {.topic = TOPIC, .partition = 0, .time_unix_ms = -1},
        {.topic = TOPIC, .partition = 1, .time_unix_ms = -1},
        {.topic = TOPIC, .partition = 2, .time_unix_ms = -1},
        {.topic = "hps_et.m.none", .partition = 0, .time_unix_ms = -1},
    };
    struct hps_error err = {0};
    struct hps_consumer *consumer = rig->consumer;
    assert_int_equal(consumer->ops->offsets(consumer, parts, 4, ANSWER_MS, &err), HPS_OK);
    assert_int_equal(parts[0].status, HPS_OK);
    assert_int_equal(parts[0].low, 0);
    assert_int_equal(parts[0].high, 5);
    assert_int_equal(parts[0].at_time, 5);
    assert_int_equal(parts[1].status, HPS_OK);
    assert_int_equal(parts[1].low, 0);
    assert_int_equal(parts[1].high, 0);
    assert_int_equal(parts[2].status, HPS_NOT_FOUND);
    assert_int_equal(parts[3].status, HPS_NOT_FOUND);
}

static void test_offsets_when_requested_by_time_then_the_first_record_since(void **state)
{
    struct rig *rig = *state;
    if (!contract->has_times) {
        skip();
    }
    contract->make_topic(contract->ctx, TOPIC, 1);
    for (int i = 0; i < 4; i++) {
        struct hps_fake_record record = {
            .value = "v",
            .value_size = 1,
            .time_unix_ms = EVENT_TIME_MS + 1000 * i,
            .time_of = HPS_RECORD_TIME_CREATED,
        };
        contract->append(contract->ctx, TOPIC, 0, &record);
    }
    struct {
        int64_t time;
        int64_t offset;
    } cases[] = {{0, 0}, {EVENT_TIME_MS, 0}, {EVENT_TIME_MS + 1500, 2}, {EVENT_TIME_MS + 9000, 4}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct hps_consumer_offsets part = {.topic = TOPIC, .time_unix_ms = cases[i].time};
        struct hps_error err = {0};
        assert_int_equal(rig->consumer->ops->offsets(rig->consumer, &part, 1, ANSWER_MS, &err),
                         HPS_OK);
        assert_int_equal(part.at_time, cases[i].offset);
        assert_int_equal(part.high, 4);
    }
}

/* ---- records --------------------------------------------------------------------------------- */

static void test_poll_when_records_exist_then_they_arrive_as_they_were_sent(void **state)
{
    struct rig *rig = *state;
    contract->make_topic(contract->ctx, TOPIC, 1);
    append(TOPIC, 0, NULL, "only a value");
    append(TOPIC, 0, "", "empty key");
    append(TOPIC, 0, "a key", NULL);
    append(TOPIC, 0, "a key", "");
    assign_to(rig->consumer, TOPIC, 0, 0, 17);
    for (int n = 0; n < 4; n++) {
        const struct hps_consumer_record record = record_wait(rig->consumer);
        assert_int_equal(record.tag, 17);
        assert_int_equal(record.offset, n);
        assert_int_equal(record.partition, 0);
        assert_string_equal(record.topic, TOPIC);
        assert_int_equal(record.time_unix_ms, EVENT_TIME_MS);
        assert_int_equal(record.time_of, HPS_RECORD_TIME_CREATED);
        assert_int_equal(record.key == NULL, n == 0);
        assert_int_equal(record.key_size, n < 2 ? 0 : 5);
        assert_int_equal(record.value == NULL, n == 2);
        assert_int_equal(record.value_size, n == 0 ? 12 : n == 1 ? 9 : 0);
    }
}

static void test_header_when_read_then_the_last_of_that_name(void **state)
{
    struct rig *rig = *state;
    contract->make_topic(contract->ctx, TOPIC, 1);
    struct hps_fake_header headers[] = {
        {"hps-version", "1", 1}, {"none", NULL, 0}, {"hps-version", "22", 2}, {"empty", "", 0}};
    struct hps_fake_record sent = {
        .value = "v", .value_size = 1, .headers = headers, .n_headers = 4};
    contract->append(contract->ctx, TOPIC, 0, &sent);
    append(TOPIC, 0, NULL, "bare");
    assign_to(rig->consumer, TOPIC, 0, 0, 0);
    struct hps_consumer *consumer = rig->consumer;
    for (int n = 0; n < 2; n++) {
        const struct hps_consumer_record record = record_wait(consumer);
        const void *value = "?";
        size_t size = 9;
        bool there = consumer->ops->header(&record, "hps-version", &value, &size);
        assert_int_equal(there, n == 0);
        if (n == 0) {
            assert_int_equal(size, 2);
            assert_memory_equal(value, "22", 2);
            assert_true(consumer->ops->header(&record, "none", &value, &size));
            assert_int_equal(size, 0);
            assert_true(consumer->ops->header(&record, "empty", &value, &size));
            assert_int_equal(size, 0);
            assert_false(consumer->ops->header(&record, "hps-versio", &value, &size));
        }
    }
}

static void test_poll_when_all_was_delivered_then_caught_up_is_reported_each_time(void **state)
{
    struct rig *rig = *state;
    contract->make_topic(contract->ctx, TOPIC, 1);
    append_numbers(TOPIC, 0, 0, 10);
    assign_to(rig->consumer, TOPIC, 0, 0, 3);
    int64_t next = 0;
    struct hps_consumer_event event = event_wait(rig->consumer, HPS_CONSUMER_CAUGHT_UP, &next);
    assert_int_equal(event.tag, 3);
    assert_int_equal(event.offset, next);
    assert_int_equal(next, 10);
    append_numbers(TOPIC, 0, 10, 12);
    while (event.offset < 12) { /* it may come for 11, with the next record */
        event = event_wait(rig->consumer, HPS_CONSUMER_CAUGHT_UP, &next);
    }
    assert_int_equal(event.offset, 12);
    assert_int_equal(next, 12);
}

static void test_poll_when_bytes_are_bounded_then_no_more_but_at_least_one_record(void **state)
{
    struct rig *rig = *state;
    contract->make_topic(contract->ctx, TOPIC, 1);
    char value[1000];
    memset(value, 'x', sizeof(value));
    struct hps_fake_record record = {.value = value, .value_size = sizeof(value)};
    for (int i = 0; i < 60; i++) {
        contract->append(contract->ctx, TOPIC, 0, &record);
    }
    assign_to(rig->consumer, TOPIC, 0, 0, 0);
    int64_t next = 0;
    while (next < 60) {
        uint64_t bytes_max = next < 20 ? 10 : 3500;
        struct hps_consumer_poll poll = poll_some(rig->consumer, 100, bytes_max);
        assert_true(poll.n_records <= (bytes_max == 10 ? 1 : 3));
        for (uint32_t i = 0; i < poll.n_records; i++) {
            assert_int_equal(poll.records[i].offset, next++);
        }
    }
}

static void test_assign_when_the_offset_moves_then_only_records_from_there(void **state)
{
    struct rig *rig = *state;
    make_and_assign(rig, 500);
    /* Within the fetched records: forward, back, to the same place, and to the end. */
    int64_t places[] = {0, 100, 3, 400, 7, 7, 499, 500, 250, 0};
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        assign_to(rig->consumer, TOPIC, 0, places[i], (uint32_t)i);
        int64_t next = places[i];
        int64_t until = next + 20 < 500 ? next + 20 : 500;
        while (next < until) {
            struct hps_consumer_poll poll = poll_some(rig->consumer, 8, 1 << 20);
            for (uint32_t k = 0; k < poll.n_records; k++) {
                assert_int_equal(poll.records[k].tag, i);
                assert_int_equal(poll.records[k].offset, next++);
            }
        }
    }
    int64_t next = 0;
    assign_to(rig->consumer, TOPIC, 0, 0, 0);
    while (next < 500) {
        event_wait(rig->consumer, HPS_CONSUMER_CAUGHT_UP, &next);
    }
}

static void test_unassign_when_records_were_fetched_then_no_more_of_them(void **state)
{
    struct rig *rig = *state;
    contract->make_topic(contract->ctx, TOPIC, 2);
    append_numbers(TOPIC, 0, 0, 100);
    append_numbers(TOPIC, 1, 0, 100);
    assign_to(rig->consumer, TOPIC, 0, 0, 0);
    assign_to(rig->consumer, TOPIC, 1, 0, 1);
    bool seen[2] = {false, false};
    while (!seen[0] || !seen[1]) {
        struct hps_consumer_poll poll = poll_some(rig->consumer, 3, 1 << 20);
        for (uint32_t i = 0; i < poll.n_records; i++) {
            seen[poll.records[i].tag] = true;
        }
    }
    rig->consumer->ops->unassign(rig->consumer, TOPIC, 0);
    rig->consumer->ops->unassign(rig->consumer, TOPIC, 0);
    rig->consumer->ops->unassign(rig->consumer, "hps_et.m.none", 0);
    assign_to(rig->consumer, TOPIC, 1, 0, 1);
    int64_t next = 0;
    while (next < 100) {
        struct hps_consumer_poll poll = poll_some(rig->consumer, 16, 1 << 20);
        for (uint32_t i = 0; i < poll.n_records; i++) {
            assert_int_equal(poll.records[i].tag, 1);
            assert_int_equal(poll.records[i].offset, next++);
        }
    }
}

/* ---- events ---------------------------------------------------------------------------------- */

static void test_assign_when_the_offset_is_past_the_end_then_a_gap(void **state)
{
    struct rig *rig = *state;
    contract->make_topic(contract->ctx, TOPIC, 2);
    append_numbers(TOPIC, 1, 0, 5);
    assign_to(rig->consumer, TOPIC, 1, 6, 4);
    struct hps_consumer_event event = event_wait(rig->consumer, HPS_CONSUMER_GAP, NULL);
    assert_int_equal(event.tag, 4);
    assert_int_equal(event.offset, 6);
    /* The partition stays stopped until it is assigned again. */
    append_numbers(TOPIC, 1, 5, 9);
    assign_to(rig->consumer, TOPIC, 0, 0, 0);
    event = event_wait(rig->consumer, HPS_CONSUMER_CAUGHT_UP, NULL);
    assert_int_equal(event.tag, 0);
    assign_to(rig->consumer, TOPIC, 1, 6, 4);
    int64_t next = 6;
    while (next < 9) {
        event_wait(rig->consumer, HPS_CONSUMER_CAUGHT_UP, &next);
    }
}

/* ---- leader responses ------------------------------------------------------------------------ */

static struct hps_recalled recall_wait(struct hps_consumer *consumer, struct hps_watch *of,
                                       int64_t offset)
{
    uint64_t begun_us = hps_clock_us();
    consumer->ops->recall(of, offset);
    struct hps_recalled recalled = recalled_wait(consumer, of);
    assert_int_equal(recalled.asked_offset, offset);
    assert_true(recalled.asked_us >= begun_us);
    return recalled;
}

static void test_response_when_records_were_logged_before_the_request_then_it_counts_them(
    void **state)
{
    struct rig *rig = *state;
    contract->make_topic(contract->ctx, TOPIC, 2);
    struct hps_watch *first = watch_of(rig->consumer, TOPIC, 0);
    struct hps_watch *second = watch_of(rig->consumer, TOPIC, 1);
    assert_ptr_not_equal(first, second);
    assert_ptr_equal(watch_of(rig->consumer, TOPIC, 0), first);
    for (int i = 0; i < 10; i++) {
        append_numbers(TOPIC, 0, 3 * i, 3 * i + 3);
        int64_t before_ms = hps_clock_forward_ms();
        struct hps_leader_response response = response_now(rig->consumer, first);
        assert_int_equal(response.high, 3 * i + 3);
        assert_in_range(response.asked_unix_ms, before_ms, hps_clock_forward_ms());
    }
    assert_int_equal(response_now(rig->consumer, second).high, 0);
}

static void test_watch_when_a_consumer_closes_then_other_consumers_get_their_responses(void **state)
{
    struct rig *rig = *state;
    contract->make_topic(contract->ctx, TOPIC, 1);
    append_numbers(TOPIC, 0, 0, 4);
    struct hps_consumer *other = open_one(rig->log);
    struct hps_watch *mine = watch_of(rig->consumer, TOPIC, 0);
    struct hps_watch *theirs = watch_of(other, TOPIC, 0);
    assert_int_equal(response_now(other, theirs).high, 4);
    assert_int_equal(recall_wait(other, theirs, 1).offset, 1);
    other->ops->recall(theirs, 2); /* the consumer closes before the result */
    other->ops->close(other);
    append_numbers(TOPIC, 0, 4, 6);
    assert_int_equal(response_now(rig->consumer, mine).high, 6);
    assert_int_equal(recall_wait(rig->consumer, mine, 5).offset, 5);
}

static void test_watch_when_the_partition_is_missing_then_the_response_says_so(void **state)
{
    struct rig *rig = *state;
    contract->make_topic(contract->ctx, TOPIC, 1);
    append_numbers(TOPIC, 0, 0, 2);
    struct hps_watch *there = watch_of(rig->consumer, TOPIC, 0);
    struct hps_watch *none = watch_of(rig->consumer, TOPIC, 1);
    struct hps_leader_response response = response_wait(rig->consumer, none, HPS_NOT_FOUND);
    assert_int_equal(response.asked_us, 0);
    assert_true(strlen(response.text) > 0);
    assert_int_equal(response_now(rig->consumer, there).high, 2);
    struct hps_consumer_offsets parts[] = {
        {.topic = TOPIC, .partition = 0, .time_unix_ms = -1},
        {.topic = TOPIC, .partition = 1, .time_unix_ms = -1},
    };
    struct hps_error err = {0};
    assert_int_equal(rig->consumer->ops->offsets(rig->consumer, parts, 2, ANSWER_MS, &err), HPS_OK);
    assert_int_equal(parts[0].status, HPS_OK);
    assert_int_equal(parts[0].high, 2);
    assert_int_equal(parts[1].status, HPS_NOT_FOUND);
}

static void test_recall_when_records_exist_then_each_has_its_hash(void **state)
{
    struct rig *rig = *state;
    const struct {
        const char *key, *value;
    } records[] = {{NULL, "only a value"}, {"", "empty key"}, {"a key", NULL}, {"a key", ""}};
    contract->make_topic(contract->ctx, TOPIC, 1);
    struct hps_watch *of = watch_of(rig->consumer, TOPIC, 0);
    int32_t broker = response_now(rig->consumer, of).broker;
    assert_true(broker >= 0);
    struct hps_recalled recalled = {0};
    assert_false(rig->consumer->ops->recalled(of, &recalled));
    for (size_t i = 0; i < sizeof(records) / sizeof(records[0]); i++) {
        append(TOPIC, 0, records[i].key, records[i].value);
    }
    for (size_t i = 0; i < sizeof(records) / sizeof(records[0]); i++) {
        const char *key = records[i].key;
        const char *value = records[i].value;
        recalled = recall_wait(rig->consumer, of, (int64_t)i);
        assert_int_equal(recalled.low, 0);
        assert_int_equal(recalled.offset, i);
        assert_int_equal(recalled.broker, broker);
        assert_int_equal(recalled.time_unix_ms, EVENT_TIME_MS);
        assert_true(recalled.hash == hps_update_record_hash(key, key == NULL ? 0 : strlen(key),
                                                            value,
                                                            value == NULL ? 0 : strlen(value)));
    }
}

static void test_recall_when_the_record_does_not_exist_then_none_until_it_does(void **state)
{
    struct rig *rig = *state;
    contract->make_topic(contract->ctx, TOPIC, 1);
    struct hps_watch *of = watch_of(rig->consumer, TOPIC, 0);
    assert_int_equal(recall_wait(rig->consumer, of, 0).offset, -1);
    append_numbers(TOPIC, 0, 0, 3);
    assert_int_equal(recall_wait(rig->consumer, of, 3).offset, -1);
    assert_int_equal(recall_wait(rig->consumer, of, 30).offset, -1);
    assert_int_equal(recall_wait(rig->consumer, of, 2).offset, 2);
    append_numbers(TOPIC, 0, 3, 4);
    assert_int_equal(recall_wait(rig->consumer, of, 3).offset, 3);
}

static void test_recall_when_repeated_during_polls_then_both_get_their_records(void **state)
{
    struct rig *rig = *state;
    contract->make_topic(contract->ctx, TOPIC, 1);
    append_numbers(TOPIC, 0, 0, 300);
    struct hps_watch *of = watch_of(rig->consumer, TOPIC, 0);
    assign_to(rig->consumer, TOPIC, 0, 0, 0);
    int64_t next = 0;
    for (int64_t i = 0; next < 300; i++) {
        rig->consumer->ops->recall(of, (7 * i) % 300);
        struct hps_consumer_poll poll = poll_some(rig->consumer, 4, 1 << 20);
        for (uint32_t k = 0; k < poll.n_records; k++) {
            assert_int_equal(poll.records[k].offset, next++);
        }
    }
    assert_int_equal(recall_wait(rig->consumer, of, 299).offset, 299);
}

/* ---- waking ---------------------------------------------------------------------------------- */

static void *wake_it(void *arg)
{
    struct hps_consumer *consumer = arg;
    consumer->ops->wake(consumer);
    return NULL;
}

static void test_poll_when_no_record_comes_or_woken_then_it_returns(void **state)
{
    struct rig *rig = *state;
    assert_int_equal(poll_once(rig->consumer, 1, 10, 1000).n_records, 0); /* timeout */
    assert_int_equal(poll_once(rig->consumer, 0, 10, 1000).n_records, 0);
    for (int i = 0; i < 20; i++) {
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, wake_it, rig->consumer), 0);
        if (i % 2 == 0) {
            pthread_join(thread, NULL);
        }
        /* A lost wake-up would take hours. */
        assert_int_equal(poll_once(rig->consumer, 1 << 30, 10, 1000).n_records, 0);
        if (i % 2 != 0) {
            pthread_join(thread, NULL);
        }
    }
}

/* ---- dead letters and commits ---------------------------------------------------------------- */

static bool header_is(struct hps_consumer *consumer, const struct hps_consumer_record *record,
                      const char *name, const char *text)
{
    const void *value = NULL;
    size_t size = 0;
    return consumer->ops->header(record, name, &value, &size) && size == strlen(text) &&
           memcmp(value, text, size) == 0;
}

static void test_dead_letter_when_flushed_then_the_copy_names_its_origin(void **state)
{
    struct rig *rig = *state;
    struct hps_consumer *consumer = rig->consumer;
    struct hps_error err = {0};
    contract->make_topic(contract->ctx, TOPIC, 2);
    contract->make_topic(contract->ctx, "hps_et.m.dead", 1);
    append(TOPIC, 1, "first", "fine");
    struct hps_fake_header header = {"hps-version", "7", 1};
    struct hps_fake_record bad = {.key = "k\0y",
                                  .key_size = 3,
                                  .value = "wrong",
                                  .value_size = 5,
                                  .headers = &header,
                                  .n_headers = 1};
    contract->append(contract->ctx, TOPIC, 1, &bad);
    assign_to(consumer, TOPIC, 1, 1, 0);
    struct hps_consumer_poll poll = {0};
    while (poll.n_records == 0) {
        poll = poll_some(consumer, 10, 1000);
    }
    struct hps_dead_letters letters = {0};
    assert_int_equal(consumer->ops->dead_letter(consumer, "hps_et.m.dead", &poll.records[0],
                                                "too narrow", ANSWER_MS, &err),
                     HPS_OK);
    consumer->ops->dead_letter_flush(consumer, ANSWER_MS, &letters);
    if (letters.status != HPS_OK || letters.n_acknowledged != 1 || letters.late) {
        fail_msg("flush: %s", letters.text);
    }
    consumer->ops->unassign(consumer, TOPIC, 1);
    assign_to(consumer, "hps_et.m.dead", 0, 0, 9);
    do {
        poll = poll_some(consumer, 10, 1000);
    } while (poll.n_records == 0);
    const struct hps_consumer_record *letter = &poll.records[0];
    assert_int_equal(letter->tag, 9);
    assert_int_equal(letter->key_size, 3);
    assert_memory_equal(letter->key, "k\0y", 3);
    assert_memory_equal(letter->value, "wrong", 5);
    assert_true(header_is(consumer, letter, "hps-version", "7"));
    assert_true(header_is(consumer, letter, "hps-reason", "too narrow"));
    assert_true(header_is(consumer, letter, "hps-topic", TOPIC));
    assert_true(header_is(consumer, letter, "hps-partition", "1"));
    assert_true(header_is(consumer, letter, "hps-offset", "1"));
    /* Without sent records there is no wait. */
    consumer->ops->dead_letter_flush(consumer, ANSWER_MS, &letters);
    assert_int_equal(letters.status, HPS_OK);
    assert_int_equal(letters.n_acknowledged + letters.n_lost, 0);
}

static void test_commit_when_made_then_reading_continues_unchanged(void **state)
{
    struct rig *rig = *state;
    make_and_assign(rig, 20);
    struct hps_consumer_position positions[] = {{TOPIC, 0, 20}};
    rig->consumer->ops->commit(rig->consumer, positions, 1);
    rig->consumer->ops->commit(rig->consumer, positions, 0);
    int64_t next = 0;
    while (next < 20) {
        event_wait(rig->consumer, HPS_CONSUMER_CAUGHT_UP, &next);
    }
}

int log_contract_run(const struct log_contract *of)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_topics_when_listed_then_the_named_ones_in_order),
        TEST(test_topics_when_one_appears_then_listed_for_consumers_that_name_it),
        TEST(test_assign_when_the_offset_is_negative_then_refused),
        TEST(test_offsets_when_requested_then_each_partition_has_its_own_result),
        TEST(test_offsets_when_requested_by_time_then_the_first_record_since),
        TEST(test_poll_when_records_exist_then_they_arrive_as_they_were_sent),
        TEST(test_header_when_read_then_the_last_of_that_name),
        TEST(test_poll_when_all_was_delivered_then_caught_up_is_reported_each_time),
        TEST(test_poll_when_bytes_are_bounded_then_no_more_but_at_least_one_record),
        TEST(test_assign_when_the_offset_moves_then_only_records_from_there),
        TEST(test_unassign_when_records_were_fetched_then_no_more_of_them),
        TEST(test_assign_when_the_offset_is_past_the_end_then_a_gap),
        TEST(test_response_when_records_were_logged_before_the_request_then_it_counts_them),
        TEST(test_watch_when_a_consumer_closes_then_other_consumers_get_their_responses),
        TEST(test_watch_when_the_partition_is_missing_then_the_response_says_so),
        TEST(test_recall_when_records_exist_then_each_has_its_hash),
        TEST(test_recall_when_the_record_does_not_exist_then_none_until_it_does),
        TEST(test_recall_when_repeated_during_polls_then_both_get_their_records),
        TEST(test_poll_when_no_record_comes_or_woken_then_it_returns),
        TEST(test_dead_letter_when_flushed_then_the_copy_names_its_origin),
        TEST(test_commit_when_made_then_reading_continues_unchanged),
    };
#undef TEST
    contract = of;
    return _cmocka_run_group_tests(of->name, tests, sizeof(tests) / sizeof(tests[0]), NULL, NULL);
}
