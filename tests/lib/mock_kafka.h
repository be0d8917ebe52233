/* SPDX-License-Identifier: Apache-2.0
 *
 * A Kafka cluster in the test program: librdkafka's mock brokers on loopback ports, and a producer.
 * A partition keeps 5 MB and drops older records. Topics cannot be deleted, and offsets cannot be
 * queried by time. Failing calls fail the test.
 */
#ifndef HPS_TESTS_LIB_MOCK_KAFKA_H
#define HPS_TESTS_LIB_MOCK_KAFKA_H

#include "tests/lib/fake_log.h"

struct hps_mock_kafka;

struct hps_mock_kafka *hps_mock_kafka_new(int n_brokers);
void hps_mock_kafka_free(struct hps_mock_kafka *mock);
const char *hps_mock_kafka_brokers(const struct hps_mock_kafka *mock); /* host:port,… */

void hps_mock_kafka_topic(struct hps_mock_kafka *mock, const char *topic, int32_t n_partitions);
/* Lists of topics report this error for the topic; 0: no error. */
void hps_mock_kafka_topic_fail(struct hps_mock_kafka *mock, const char *topic, int error);
/* Append a record, and wait until it is stored. */
void hps_mock_kafka_append(struct hps_mock_kafka *mock, const char *topic, int32_t partition,
                           const struct hps_fake_record *record);
/* Append n records of `size` bytes. Each begins with its number as a u64. They are sent only when
 * `hps_mock_kafka_flush` returns. */
void hps_mock_kafka_append_many(struct hps_mock_kafka *mock, const char *topic, int32_t partition,
                                uint64_t first, uint32_t n, size_t size);
void hps_mock_kafka_flush(struct hps_mock_kafka *mock);

/* Ways to damage a batch. */
enum hps_mock_damage {
    HPS_MOCK_BAD_CHECKSUM,
    HPS_MOCK_BAD_ZSTD,
    HPS_MOCK_BAD_CODEC, /* a codec that does not exist */
};
/* Append a damaged batch of n records, and wait until it is stored. From then on broker 1 leads the
 * partition. */
void hps_mock_kafka_append_damaged(struct hps_mock_kafka *mock, const char *topic,
                                   int32_t partition, uint32_t n, enum hps_mock_damage damage);

/* All brokers close and refuse connections, or accept them again. */
void hps_mock_kafka_down(struct hps_mock_kafka *mock, bool down);
/* The same for one broker; the first is 1. */
void hps_mock_kafka_broker_down(struct hps_mock_kafka *mock, int32_t broker, bool down);
/* Delay all replies of the broker. With a delay longer than every timeout, the broker seems to
 * hang. */
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
    HPS_MOCK_NO_LEADER = 5,
    HPS_MOCK_NOT_LEADER = 6,
    HPS_MOCK_REQUEST_TIMED_OUT = 7,
    HPS_MOCK_NO_COORDINATOR = 15,
    HPS_MOCK_TOPIC_DENIED = 29,
    HPS_MOCK_GROUP_DENIED = 30,
    HPS_MOCK_DUPLICATE = 46, /* of a sequence number: the record is stored already */
    HPS_MOCK_STORAGE = 56,
};
/* Delay the replies to the next n requests of this kind that reach the broker. */
void hps_mock_kafka_delay(struct hps_mock_kafka *mock, int32_t broker, int api, int rtt_ms,
                          uint32_t n);
/* Reply to the next n requests of this kind with the error. */
void hps_mock_kafka_fail(struct hps_mock_kafka *mock, int api, int error, uint32_t n);
void hps_mock_kafka_leader(struct hps_mock_kafka *mock, const char *topic, int32_t partition,
                           int32_t broker); /* from 1 */
/* The offset that a group committed; -1: none. */
int64_t hps_mock_kafka_committed(struct hps_mock_kafka *mock, const char *group, const char *topic,
                                 int32_t partition);

#endif
