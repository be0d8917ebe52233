/* SPDX-License-Identifier: Apache-2.0
 *
 * The log and its consumers.
 */
#ifndef HPS_BACKENDS_KAFKA_CONSUMER_H
#define HPS_BACKENDS_KAFKA_CONSUMER_H

#include <stdatomic.h>

#include "backends/kafka/commits.h"
#include "backends/kafka/dead_letters.h"
#include "backends/kafka/partitions.h"
#include "backends/kafka/topics.h"

struct hps_kafka {
    struct hps_update_log base;
    rd_kafka_conf_t *shared; /* configuration of all handles */
    struct hps_kafka_leaders *leaders;
    struct hps_kafka_recalls *recalls;
    char *group; /* NULL: no commits; also `commits` */
    struct hps_kafka_commits *commits;
};

enum hps_kafka_link_phase {
    HPS_KAFKA_UP,
    HPS_KAFKA_DOWN, /* no broker responds */
    HPS_KAFKA_FATAL /* the handle cannot be used any more */
};

/* The connection to the cluster. */
struct hps_kafka_link {
    enum hps_kafka_link_phase phase;
    hps_status status;   /* the reason for DOWN, of the last broker that had one */
    hps_status reported; /* OK: the last event was UP, or none; otherwise the status of DOWN */
    char text[HPS_KAFKA_TEXT_BYTES];
    uint64_t text_us; /* hps_clock_us when it was set by an error */
};

struct hps_kafka_consumer {
    struct hps_consumer base;
    struct hps_kafka *log;
    rd_kafka_t *rk;
    rd_kafka_queue_t *queue;
    atomic_bool awake;
    struct hps_kafka_link link;
    struct hps_kafka_watches watches;
    struct hps_kafka_topics *topics;
    struct hps_kafka_partitions *partitions;
    bool searches;                       /* a search for the end of a bad batch runs */
    struct hps_consumer_record *records; /* [HPS_KAFKA_HELD_MAX] */
    hps_status commits_status;           /* as reported last */
    struct hps_kafka_dead_letters dead_letters;
};

hps_status hps_kafka_consumer_open(struct hps_update_log *base,
                                   const struct hps_consumer_options *options,
                                   struct hps_consumer **out_consumer, struct hps_error *err);

#endif
