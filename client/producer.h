/* SPDX-License-Identifier: Apache-2.0
 *
 * A producer of Kafka records with librdkafka: idempotent, acknowledged by all replicas, in order
 * within a partition. A producer belongs to one thread at a time. That thread runs its callbacks
 * within every call. librdkafka has its own threads in addition.
 *
 * The first record that fails ends the producer: every later call returns that error.
 */
#ifndef HPS_CLIENT_PRODUCER_H
#define HPS_CLIENT_PRODUCER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* Borrowed during hps_producer_open only. */
struct hps_producer_options {
    const char *brokers; /* "host:port", several separated by ',' or ';' */
    const char *const
        *properties; /* [n_properties] "name=value" of librdkafka; they override our own */
    size_t n_properties;
    uint64_t timeout_us; /* for an answer of the brokers, and for the acknowledgement of a record */
};

struct hps_producer_header {
    const char *name;
    const void *value;
    size_t size;
};

/* Borrowed during hps_producer_send only. */
struct hps_producer_record {
    uint32_t topic; /* of hps_producer_topic */
    int32_t partition;
    const void *key; /* NULL: none */
    size_t key_size;
    const void *value; /* NULL: a tombstone, which deletes the key in a compacted topic */
    size_t value_size;
    const struct hps_producer_header *headers; /* [n_headers] */
    size_t n_headers;
};

struct hps_producer_counts {
    uint64_t n_sent;
    uint64_t n_acknowledged;
    uint64_t bytes_acknowledged; /* of keys and values */
    uint64_t
        n_unplaced; /* last records of partitions: acknowledged, but their offset is not known */
};

struct hps_producer;

/* Connects and waits until a broker answers.
 *
 * error   INVALID: a property; UNAVAILABLE: no broker answered in time, with the reason;
 *         UNAUTHENTICATED; PERMISSION; NO_MEMORY
 */
hps_status hps_producer_open(const struct hps_producer_options *options,
                             struct hps_producer **out_producer, struct hps_error *err)
    HPS_MUST_CHECK;
/* Drops the records that are not acknowledged; call hps_producer_flush before. NULL has no
 * effect. */
void hps_producer_close(struct hps_producer *producer);

/* Finds a topic. The same name yields the same number. Waits up to 3 s for a broker that creates
 * topics automatically.
 *
 * error   NOT_FOUND: no topic of this name; PERMISSION; UNAVAILABLE; INVALID; EXHAUSTED: more than
 *         4,097 topics; NO_MEMORY
 */
hps_status hps_producer_topic(struct hps_producer *producer, const char *name, uint32_t *out_topic,
                              uint32_t *out_n_partitions, struct hps_error *err) HPS_MUST_CHECK;

/* Queues a record. Waits while the queue is full and records are still acknowledged.
 *
 * error   DEADLINE: records were not acknowledged in time; EXHAUSTED: larger than the client or the
 *         broker allows; PERMISSION; INVALID: rejected by the broker; NO_MEMORY
 */
hps_status hps_producer_send(struct hps_producer *producer,
                             const struct hps_producer_record *record, struct hps_error *err)
    HPS_MUST_CHECK;
/* Runs callbacks for up to wait_us; returns earlier after one. Returns the first error of a
 * record. */
hps_status hps_producer_poll(struct hps_producer *producer, uint64_t wait_us, struct hps_error *err)
    HPS_MUST_CHECK;
/* Waits until every record is acknowledged or one fails; errors as hps_producer_send. */
hps_status hps_producer_flush(struct hps_producer *producer, struct hps_error *err) HPS_MUST_CHECK;

void hps_producer_counts_get(const struct hps_producer *producer,
                             struct hps_producer_counts *out_counts);
/* The offset of the last acknowledged record of a partition. */
typedef void (*hps_producer_position_fn)(void *ctx, const char *topic, uint32_t partition,
                                         int64_t offset);
/* Calls `fn` for every partition with acknowledged records, in the order in which the topics were
 * found. */
void hps_producer_positions(const struct hps_producer *producer, hps_producer_position_fn fn,
                            void *ctx);
/* A range of offsets of acknowledged records. It contains no other records, unless a partition has
 * more than 2^20 ranges or the broker did not return the offset of a record. */
typedef void (*hps_producer_range_fn)(void *ctx, const char *topic, uint32_t partition,
                                      int64_t first, int64_t last);
/* Calls `fn` for all ranges, partition by partition as above, within a partition in order of
 * acknowledgement. */
void hps_producer_ranges(const struct hps_producer *producer, hps_producer_range_fn fn, void *ctx);

#endif
