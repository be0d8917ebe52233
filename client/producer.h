/* SPDX-License-Identifier: Apache-2.0
 *
 * A producer of Kafka records over librdkafka: idempotent, acknowledged by all replicas, in order
 * within a partition. A producer belongs to one thread at a time, which serves its callbacks inside
 * every call; librdkafka has threads of its own beside it.
 *
 * The first record that the brokers do not take ends it: every later call answers that error.
 */
#ifndef HPS_CLIENT_PRODUCER_H
#define HPS_CLIENT_PRODUCER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* Borrowed for hps_producer_open only. */
struct hps_producer_options {
    const char *brokers; /* "host:port", several separated by ',' or ';' */
    const char *const
        *properties; /* [n_properties] "name=value" of librdkafka; they win over ours */
    size_t n_properties;
    uint64_t timeout_us; /* for an answer of the brokers, and for a record to be acknowledged */
};

struct hps_producer_header {
    const char *name;
    const void *value;
    size_t size;
};

/* Borrowed for hps_producer_send only. */
struct hps_producer_record {
    uint32_t topic; /* of hps_producer_topic */
    int32_t partition;
    const void *key; /* NULL: none */
    size_t key_size;
    const void *value; /* NULL: a null, which deletes the key of a compacted topic */
    size_t value_size;
    const struct hps_producer_header *headers; /* [n_headers] */
    size_t n_headers;
};

struct hps_producer_counts {
    uint64_t n_sent;
    uint64_t n_acknowledged;
    uint64_t bytes_acknowledged; /* of keys and values */
    uint64_t
        n_unplaced; /* of the last records of partitions: acknowledged, but at no known offset */
};

struct hps_producer;

/* Connect, and wait until a broker answers.
 *
 * error   INVALID: a property; UNAVAILABLE: no broker was reached, the text says why;
 *         UNAUTHENTICATED
 */
hps_status hps_producer_open(const struct hps_producer_options *options,
                             struct hps_producer **out_producer, struct hps_error *err)
    HPS_MUST_CHECK;
/* What is not acknowledged yet is dropped: flush before. NULL is legal. */
void hps_producer_close(struct hps_producer *producer);

/* Look a topic up; asking again gives the same number. A broker that makes topics by itself is
 * given the time to.
 *
 * error   NOT_FOUND: there is none of this name; PERMISSION; UNAVAILABLE
 */
hps_status hps_producer_topic(struct hps_producer *producer, const char *name, uint32_t *out_topic,
                              uint32_t *out_n_partitions, struct hps_error *err) HPS_MUST_CHECK;

/* Queue a record. Waits while the queue is full, as long as records are acknowledged.
 *
 * error   DEADLINE: records were not acknowledged in time; EXHAUSTED: larger than the client or the
 *         broker allows; PERMISSION; INVALID: refused by the broker; NO_MEMORY
 */
hps_status hps_producer_send(struct hps_producer *producer,
                             const struct hps_producer_record *record, struct hps_error *err)
    HPS_MUST_CHECK;
/* Serve callbacks for up to wait_us, returning early if there was one. Answers the first error. */
hps_status hps_producer_poll(struct hps_producer *producer, uint64_t wait_us, struct hps_error *err)
    HPS_MUST_CHECK;
/* Wait until every record is acknowledged, or one cannot be: errors as hps_producer_send. */
hps_status hps_producer_flush(struct hps_producer *producer, struct hps_error *err) HPS_MUST_CHECK;

void hps_producer_counts_get(const struct hps_producer *producer,
                             struct hps_producer_counts *out_counts);
/* The offset of the last acknowledged record of a partition. */
typedef void (*hps_producer_position_fn)(void *ctx, const char *topic, uint32_t partition,
                                         int64_t offset);
/* Of every partition to which something was sent, by topic in the order they were asked for. */
void hps_producer_positions(const struct hps_producer *producer, hps_producer_position_fn fn,
                            void *ctx);
/* Offsets from first to last are those of records that were acknowledged, and of no others unless
 * there are very many ranges, or records whose offset the broker did not say. */
typedef void (*hps_producer_range_fn)(void *ctx, const char *topic, uint32_t partition,
                                      int64_t first, int64_t last);
/* All of them, partition by partition as above, and in a partition as they were acknowledged. */
void hps_producer_ranges(const struct hps_producer *producer, hps_producer_range_fn fn, void *ctx);

#endif
