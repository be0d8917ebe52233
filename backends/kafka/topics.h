/* SPDX-License-Identifier: Apache-2.0
 *
 * The topics of a consumer, with their ids and settings. On the consumer's thread.
 */
#ifndef HPS_BACKENDS_KAFKA_TOPICS_H
#define HPS_BACKENDS_KAFKA_TOPICS_H

#include "backends/kafka/leaders.h"

enum {
    HPS_KAFKA_ID_BYTES = 32, /* of a topic's id as text */
    HPS_KAFKA_CLUSTER_BYTES = 128
};

/* A request of the admin API. */
struct hps_kafka_admin {
    bool sent; /* it has no response yet */
    uint64_t sent_us;
    int64_t sent_unix_ms;
};

/* A topic that the consumer lists. */
struct hps_kafka_named {
    struct hps_kafka_watched *watched; /* a reference */
    struct hps_kafka_listed now;       /* in the newest list */
    uint64_t since_us;                 /* it has existed since then; 0: it does not exist */
    bool described;                    /* the broker has answered for its settings since then */
    char id[HPS_KAFKA_ID_BYTES];
};

struct hps_kafka_topics {
    struct hps_kafka_leaders *leaders;
    rd_kafka_t *rk; /* handle of the leaders */
    rd_kafka_queue_t *responses;
    struct hps_kafka_named *names;     /* [list.n_topics] */
    struct hps_consumer_topic *topics; /* [list.n_topics] */
    struct hps_consumer_topics list;   /* as reported last */
    char cluster_id[HPS_KAFKA_CLUSTER_BYTES];
    uint64_t settings_us; /* interval */
    struct hps_kafka_admin id_request;
    struct hps_kafka_admin settings_request;
};

/* Start to list the topics of the consumer. Close it in any case. */
hps_status hps_kafka_topics_open(struct hps_kafka_topics *topics, struct hps_kafka_leaders *leaders,
                                 const struct hps_consumer_options *options, struct hps_error *err)
    HPS_MUST_CHECK;
void hps_kafka_topics_close(struct hps_kafka_topics *topics);
/* `topics` of update_log.h. */
const struct hps_consumer_topics *hps_kafka_topics_get(struct hps_kafka_topics *topics,
                                                       uint64_t since_us);

#endif
