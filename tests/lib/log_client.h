/* SPDX-License-Identifier: Apache-2.0
 *
 * An update log as its tests ask it: each call fails the test if it fails. After cmocka.h.
 */
#ifndef HPS_TESTS_LIB_LOG_CLIENT_H
#define HPS_TESTS_LIB_LOG_CLIENT_H

#include "backends/kafka/kafka.h"
#include "base/clock.h"
#include "base/heap.h"
#include "tests/lib/mock_kafka.h"

enum { ANSWER_MS = 60000 }; /* no test waits so long unless it fails */
#define TOPIC "hps_et.m.items"

static inline uint64_t answer_end_us(void)
{
    return hps_clock_us() + UINT64_C(1000) * ANSWER_MS;
}

static inline void assert_before(uint64_t end_us, const char *what)
{
    if (hps_clock_us() > end_us) {
        fail_msg("not in time: %s", what);
    }
}

static inline struct hps_update_log *open_log(const char *brokers,
                                              const struct hps_kafka_property *properties,
                                              uint32_t n)
{
    struct hps_update_log *log = NULL;
    struct hps_error err = {0};
    struct hps_kafka_options options = {.brokers = brokers,
                                        .group = "g",
                                        .client_id = "test",
                                        .properties = properties,
                                        .n_properties = n};
    if (hps_kafka_open(&options, &log, &err) != HPS_OK) {
        fail_msg("%s", err.text);
    }
    return log;
}

/* A consumer of the topics [n]. */
static inline struct hps_consumer *open_consumer(struct hps_update_log *log,
                                                 const char *const *topics, uint32_t n)
{
    struct hps_consumer *consumer = NULL;
    struct hps_error err = {0};
    struct hps_consumer_options options = {
        .name = "c", .topics = topics, .n_topics = n, .settings_ms = ANSWER_MS};
    if (log->ops->consumer_open(log, &options, &consumer, &err) != HPS_OK) {
        fail_msg("%s", err.text);
    }
    return consumer;
}

static inline void assign_to(struct hps_consumer *consumer, const char *topic, int32_t partition,
                             int64_t offset, uint32_t tag)
{
    struct hps_error err = {0};
    struct hps_consumer_position at = {topic, partition, offset};
    if (consumer->ops->assign(consumer, &at, tag, &err) != HPS_OK) {
        fail_msg("%s", err.text);
    }
}

static inline struct hps_consumer_poll poll_once(struct hps_consumer *consumer, uint32_t timeout_ms,
                                                 uint32_t records_max, uint64_t bytes_max)
{
    struct hps_consumer_poll poll = {0};
    struct hps_error err = {0};
    if (consumer->ops->poll(consumer, timeout_ms, records_max, bytes_max, &poll, &err) != HPS_OK) {
        fail_msg("%s", err.text);
    }
    return poll;
}

static inline void commit_to(struct hps_consumer *consumer, int32_t partition, int64_t offset)
{
    struct hps_consumer_position position = {TOPIC, partition, offset};
    consumer->ops->commit(consumer, &position, 1);
}

static inline struct hps_watch *watch_of(struct hps_consumer *consumer, const char *topic,
                                         int32_t partition)
{
    struct hps_watch *found = NULL;
    struct hps_error err = {0};
    if (consumer->ops->watch(consumer, topic, partition, &found, &err) != HPS_OK) {
        fail_msg("%s", err.text);
    }
    return found;
}

/* Wait a moment for what does not come by polling. */
static inline void linger(struct hps_consumer *consumer, uint64_t end_us)
{
    (void)poll_once(consumer, 5, 10, 1000);
    assert_before(end_us, "what is waited for");
}

/* The answer to a question that was sent to the leader from now on. */
static inline struct hps_leader_response response_now(struct hps_consumer *consumer,
                                                      const struct hps_watch *of)
{
    struct hps_leader_response response = {0};
    uint64_t begun_us = hps_clock_us();
    uint64_t end_us = answer_end_us();
    for (consumer->ops->leader_response(of, &response);
         response.status != HPS_OK || response.asked_us < begun_us;
         consumer->ops->leader_response(of, &response)) {
        linger(consumer, end_us);
    }
    return response;
}

/* The newest word that ended so. */
static inline struct hps_leader_response response_wait(struct hps_consumer *consumer,
                                                       const struct hps_watch *of,
                                                       hps_status status)
{
    struct hps_leader_response response = {0};
    uint64_t end_us = answer_end_us();
    for (consumer->ops->leader_response(of, &response); response.status != status;
         consumer->ops->leader_response(of, &response)) {
        linger(consumer, end_us);
    }
    return response;
}

/* Wait for a list that was requested from now on. */
static inline struct hps_consumer_topics topics_now(struct hps_consumer *consumer)
{
    uint64_t begun_us = hps_clock_us();
    uint64_t end_us = answer_end_us();
    struct hps_consumer_topics topics = {0};
    for (consumer->ops->topics(consumer, begun_us, &topics); topics.asked_us < begun_us;
         consumer->ops->topics(consumer, begun_us, &topics)) {
        linger(consumer, end_us);
    }
    return topics;
}

/* The number of topics that exist. */
static inline uint32_t n_existing(const struct hps_consumer_topics *topics)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < topics->n_topics; i++) {
        n += topics->topics[i].n_partitions > 0;
    }
    return n;
}

static inline uint32_t topics_count(struct hps_consumer *consumer)
{
    struct hps_consumer_topics topics = topics_now(consumer);
    return n_existing(&topics);
}

/* The answer to what was asked by recall. */
static inline struct hps_recalled recalled_wait(struct hps_consumer *consumer,
                                                const struct hps_watch *of)
{
    struct hps_recalled recalled = {0};
    uint64_t end_us = answer_end_us();
    while (!consumer->ops->recalled(of, &recalled)) {
        linger(consumer, end_us);
    }
    assert_int_equal(recalled.status, HPS_OK);
    return recalled;
}

/* A consumer of TOPIC. */
static inline struct hps_consumer *open_one(struct hps_update_log *log)
{
    return open_consumer(log, (const char *const[]){TOPIC}, 1);
}

/* A mock cluster, a log on it, and one consumer of TOPIC. */
struct log_client {
    struct hps_mock_kafka *mock;
    struct hps_update_log *log;
    struct hps_consumer *consumer;
};

static inline struct log_client client_open(int n_brokers, const struct hps_kafka_property *quick,
                                            uint32_t n)
{
    struct log_client client = {.mock = hps_mock_kafka_new(n_brokers)};
    client.log = open_log(hps_mock_kafka_brokers(client.mock), quick, n);
    client.consumer = open_one(client.log);
    return client;
}

static inline void client_close(struct log_client *client)
{
    client->consumer->ops->close(client->consumer);
    client->log->ops->close(client->log);
    hps_mock_kafka_free(client->mock);
}

/* n records from number `first` on, each of which holds its number. */
static inline void append_many(struct hps_mock_kafka *mock, int32_t partition, uint64_t first,
                               uint32_t n)
{
    hps_mock_kafka_append_many(mock, TOPIC, partition, first, n, 100);
    hps_mock_kafka_flush(mock);
}

#endif
