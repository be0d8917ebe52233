/* SPDX-License-Identifier: Apache-2.0
 *
 * A Kafka cluster within the test program: librdkafka's mock brokers on loopback ports, and a
 * producer. It keeps 5 MB of a partition and forgets what is older. Topics cannot be deleted, and
 * times are not looked up. Calls fail the test when they fail.
 */
#ifndef HPS_TESTS_LIB_MOCK_KAFKA_H
#define HPS_TESTS_LIB_MOCK_KAFKA_H

#include "tests/lib/fake_log.h"

struct hps_mock_kafka;

struct hps_mock_kafka *hps_mock_kafka_new(int n_brokers);
void hps_mock_kafka_free(struct hps_mock_kafka *mock);
const char *hps_mock_kafka_brokers(const struct hps_mock_kafka *mock); /* host:port,… */

void hps_mock_kafka_topic(struct hps_mock_kafka *mock, const char *topic, int32_t n_partitions);
/* Lists of topics have this error for the topic; 0: none. */
void hps_mock_kafka_topic_fail(struct hps_mock_kafka *mock, const char *topic, int error);
/* Returns when it is there. */
void hps_mock_kafka_append(struct hps_mock_kafka *mock, const char *topic, int32_t partition,
                           const struct hps_fake_record *record);
/* n records of `size` bytes, the first of them holding its number as a u64; only sent when
 * `hps_mock_kafka_flush` returns. */
void hps_mock_kafka_append_many(struct hps_mock_kafka *mock, const char *topic, int32_t partition,
                                uint64_t first, uint32_t n, size_t size);
void hps_mock_kafka_flush(struct hps_mock_kafka *mock);

/* A batch of n records that cannot be read. */
enum hps_mock_damage {
    HPS_MOCK_BAD_CHECKSUM,
    HPS_MOCK_BAD_ZSTD,
    HPS_MOCK_BAD_CODEC, /* one that there is not */
};
/* Returns when it is there. The partition is led by broker 1 from then on. */
void hps_mock_kafka_append_damaged(struct hps_mock_kafka *mock, const char *topic,
                                   int32_t partition, uint32_t n, enum hps_mock_damage damage);

/* All brokers: connections are closed and refused, or accepted again. */
void hps_mock_kafka_down(struct hps_mock_kafka *mock, bool down);
/* The same of one broker, from 1. */
void hps_mock_kafka_broker_down(struct hps_mock_kafka *mock, int32_t broker, bool down);
/* Every answer of that broker comes so much later, as over a slow line; or never, as from one that
 * hangs, if that is longer than anybody waits. */
void hps_mock_kafka_slow(struct hps_mock_kafka *mock, int32_t broker, int rtt_ms);
/* Kafka's error codes and API keys. */
enum {
    HPS_MOCK_PRODUCE = 0,
    HPS_MOCK_FETCH = 1,
    HPS_MOCK_LIST_OFFSETS = 2,
    HPS_MOCK_OFFSET_COMMIT = 8,
    HPS_MOCK_FIND_COORDINATOR = 10,
};
enum {
    HPS_MOCK_OFFSET_OUT_OF_RANGE = 1,
    HPS_MOCK_NO_TOPIC = 3,
    HPS_MOCK_NOT_LEADER = 6,
    HPS_MOCK_REQUEST_TIMED_OUT = 7,
    HPS_MOCK_NO_COORDINATOR = 15,
    HPS_MOCK_TOPIC_DENIED = 29,
    HPS_MOCK_GROUP_DENIED = 30,
    HPS_MOCK_DUPLICATE = 46, /* of a sequence number: the record is there already */
    HPS_MOCK_STORAGE = 56,
};
/* The next n requests of that kind that come to a broker are answered so much later. */
void hps_mock_kafka_delay(struct hps_mock_kafka *mock, int32_t broker, int api, int rtt_ms,
                          uint32_t n);
/* The next n requests of that kind are answered so. */
void hps_mock_kafka_fail(struct hps_mock_kafka *mock, int api, int error, uint32_t n);
void hps_mock_kafka_leader(struct hps_mock_kafka *mock, const char *topic, int32_t partition,
                           int32_t broker); /* from 1 */
/* What a group committed, -1: nothing. */
int64_t hps_mock_kafka_committed(struct hps_mock_kafka *mock, const char *group, const char *topic,
                                 int32_t partition);

#endif
