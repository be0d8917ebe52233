/* SPDX-License-Identifier: Apache-2.0
 *
 * The partitions that a consumer reads, their messages, and why reading ends. On the consumer's
 * thread.
 */
#ifndef HPS_BACKENDS_KAFKA_PARTITIONS_H
#define HPS_BACKENDS_KAFKA_PARTITIONS_H

#include <sys/queue.h>

#include "backends/kafka/recall.h"

enum { HPS_KAFKA_HELD_MAX = 4096 }; /* messages taken from librdkafka at once */

/* The search for the end of a bad batch: see partitions.c. */
struct hps_kafka_search {
    struct hps_watch *watch; /* for its recalls; NULL: no search runs */
    int64_t from;            /* the first offset that is skipped */
    int64_t base;            /* of the batch */
    int64_t in;              /* the highest offset that is known to be in the batch */
    int64_t out;             /* the lowest higher offset that is known not to be */
    int64_t at;              /* recalled now */
    hps_status status;
    char text[HPS_KAFKA_TEXT_BYTES];
};

/* A partition that is read. */
struct hps_kafka_partition {
    LIST_ENTRY(hps_kafka_partition) all;
    rd_kafka_topic_t *topic; /* a reference */
    int32_t number;
    uint32_t tag;
    int64_t next;     /* offset to deliver; lower ones are never delivered */
    int64_t stale_at; /* `next` at the last error of another offset */
    uint32_t n_stale; /* such errors since `next` became `stale_at` */
    /* While it runs, librdkafka does not read the partition, and no record is delivered. */
    struct hps_kafka_search search;
};

/* Messages taken from librdkafka. */
struct hps_kafka_held {
    rd_kafka_message_t **messages; /* [HPS_KAFKA_HELD_MAX] */
    uint32_t from;                 /* the last poll delivered those before it */
    uint32_t to;
    uint64_t message_bytes; /* average size of recent messages */
};

struct hps_kafka_partitions {
    rd_kafka_t *rk; /* the consumer's handle */
    struct hps_kafka_watches *watches;
    LIST_HEAD(, hps_kafka_partition) all; /* [n] */
    uint32_t n;
    struct hps_consumer_event *events; /* of this poll: [n_events] of [events_max] */
    uint32_t n_events;
    uint32_t events_max; /* three of each partition, and two of the log */
    struct hps_kafka_held held;
};

/* Close it in any case, before the watches and the handle. */
hps_status hps_kafka_partitions_open(struct hps_kafka_partitions *partitions, rd_kafka_t *rk,
                                     struct hps_kafka_watches *watches) HPS_MUST_CHECK;
void hps_kafka_partitions_close(struct hps_kafka_partitions *partitions);
/* Assert the invariants that hold between two calls. */
void hps_kafka_partitions_sane(const struct hps_kafka_partitions *partitions);

/* `assign` and `unassign` of update_log.h. */
hps_status hps_kafka_partitions_assign(struct hps_kafka_partitions *partitions,
                                       const struct hps_consumer_position *at, uint32_t tag,
                                       struct hps_error *err) HPS_MUST_CHECK;
void hps_kafka_partitions_unassign(struct hps_kafka_partitions *partitions, const char *topic,
                                   int32_t number);

/* To be called when a poll begins: free the messages that the last poll delivered, and forget its
 * events. */
void hps_kafka_partitions_begin(struct hps_kafka_partitions *partitions);
/* NULL: the partition is not read. */
struct hps_kafka_partition *hps_kafka_partition_find(struct hps_kafka_partitions *partitions,
                                                     const char *topic, int32_t number);
/* Add an event of the partition, or of the log if it is NULL, to this poll. Copies the text. */
struct hps_consumer_event *hps_kafka_event_add(struct hps_kafka_partitions *partitions,
                                               const struct hps_kafka_partition *partition,
                                               enum hps_consumer_event_kind kind, hps_status status,
                                               const char *text);
/* Take a message with an error. If reading ends, forgets the partition. */
void hps_kafka_partition_failed(struct hps_kafka_partitions *partitions,
                                struct hps_kafka_partition *partition,
                                const rd_kafka_message_t *message);
/* Continue the searches for the ends of bad batches. True: one is in flight. Call it after the
 * records of a poll were gathered: BAD must be reported before later records. */
bool hps_kafka_partitions_search(struct hps_kafka_partitions *partitions);

#endif
