/* SPDX-License-Identifier: Apache-2.0
 *
 * Sends records to Kafka with librdkafka: idempotent, acknowledged by all replicas, and in order
 * within a partition. A producer belongs to one thread at a time, and librdkafka's callbacks run on
 * that thread within each call. librdkafka also has its own threads.
 *
 * The first record that fails ends the producer: every later call returns the error of that record.
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
    /* [n_properties] properties of librdkafka, "name=value". They override the properties that this
     * module sets. Properties with which records are not acknowledged by all in-sync replicas, or
     * acknowledgements are not reported, are refused (hps_producer_open). */
    const char *const *properties;
    size_t n_properties;
    uint64_t timeout_us; /* time limit of a broker's reply and of an acknowledgement */
};

struct hps_producer_header {
    const char *name;
    const void *value;
    size_t size;
};

/* Borrowed during hps_producer_send only. */
struct hps_producer_record {
    uint32_t topic; /* number from hps_producer_topic */
    int32_t partition;
    const void *key; /* NULL: the record has no key */
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
    /* Acknowledged records for which no range is reported so far (hps_producer_ranges), because
     * their offsets are not known. A broker returns no offset for a record that it receives twice
     * (a retry). The range of the next record with a known offset, in the same partition, includes
     * them. */
    uint64_t n_unplaced;
};

struct hps_producer;

/* Connects and waits until a broker answers.
 *
 * error   INVALID: a property is malformed or unknown, `acks` is not "all" or "-1", or
 *         `delivery.report.only.error` is "true"; UNAVAILABLE: no broker answered in time (`err`
 *         has the reason); UNAUTHENTICATED; PERMISSION; NO_MEMORY
 */
hps_status hps_producer_open(const struct hps_producer_options *options,
                             struct hps_producer **out_producer, struct hps_error *err)
    HPS_MUST_CHECK;
/* Closes the producer and drops the records that are not acknowledged. To keep them, call
 * hps_producer_flush before. NULL has no effect. */
void hps_producer_close(struct hps_producer *producer);

/* Returns the number of a topic for use in records, and its number of partitions. The same name
 * yields the same number. If the topic does not exist, waits up to 3 s, because a broker may create
 * it automatically.
 *
 * error   NOT_FOUND: no topic of this name; PERMISSION; UNAUTHENTICATED; UNAVAILABLE: no broker
 *         answered in time; INVALID; EXHAUSTED: more than 4,097 topics; NO_MEMORY
 */
hps_status hps_producer_topic(struct hps_producer *producer, const char *name, uint32_t *out_topic,
                              uint32_t *out_n_partitions, struct hps_error *err) HPS_MUST_CHECK;

/* Queues a record. While the queue is full, waits for acknowledgements of earlier records.
 *
 * error   DEADLINE: records were not acknowledged in time; EXHAUSTED: a record is larger than
 *         librdkafka or the broker allows; PERMISSION; INVALID: the broker rejected a record;
 *         NO_MEMORY
 */
hps_status hps_producer_send(struct hps_producer *producer,
                             const struct hps_producer_record *record, struct hps_error *err)
    HPS_MUST_CHECK;
/* Runs the callbacks of librdkafka that are due. If none is due, waits up to wait_us for one.
 * Returns the error of the first record that failed, else OK. */
hps_status hps_producer_poll(struct hps_producer *producer, uint64_t wait_us, struct hps_error *err)
    HPS_MUST_CHECK;
/* Waits until every queued record is acknowledged or one fails. Returns the errors of
 * hps_producer_send. */
hps_status hps_producer_flush(struct hps_producer *producer, struct hps_error *err) HPS_MUST_CHECK;

void hps_producer_counts_get(const struct hps_producer *producer,
                             struct hps_producer_counts *out_counts);
/* Receives the offset of the last acknowledged record of a partition. */
typedef void (*hps_producer_position_fn)(void *ctx, const char *topic, uint32_t partition,
                                         int64_t offset);
/* Calls `fn` for every partition with acknowledged records: in the order of topic numbers, and
 * within a topic in the order of partitions. */
void hps_producer_positions(const struct hps_producer *producer, hps_producer_position_fn fn,
                            void *ctx);
/* Receives a range of offsets, `first` to `last` inclusive, of acknowledged records of this
 * producer. The range contains no records of other producers, unless a partition has more than 2^20
 * ranges or the broker did not return the offset of a record. */
typedef void (*hps_producer_range_fn)(void *ctx, const char *topic, uint32_t partition,
                                      int64_t first, int64_t last);
/* Calls `fn` for all ranges, in the order of hps_producer_positions, and within a partition in the
 * order of acknowledgement. */
void hps_producer_ranges(const struct hps_producer *producer, hps_producer_range_fn fn, void *ctx);

#endif
