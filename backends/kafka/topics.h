/* SPDX-License-Identifier: Apache-2.0
 *
 * The topics of a consumer, with their ids and settings. On the consumer's thread.
 */
#ifndef HPS_BACKENDS_KAFKA_TOPICS_H
#define HPS_BACKENDS_KAFKA_TOPICS_H

#include "backends/kafka/leaders.h"

enum { HPS_KAFKA_ID_BYTES = 32 }; /* of a topic's id as text */

/* A request of the admin API. */
struct hps_kafka_admin {
    bool sent; /* it has no response yet */
    bool late; /* a caller has waited for the response in vain: the next one does not wait */
    uint64_t sent_us;
    int64_t sent_unix_ms;
};

/* A topic that the consumer lists. */
struct hps_kafka_named {
    struct hps_consumer_topic is; /* n_partitions as last reported; 0: the topic did not exist */
    char id[HPS_KAFKA_ID_BYTES];
    struct hps_kafka_watched *watched; /* a reference */
};

struct hps_kafka_topics {
    rd_kafka_t *rk; /* handle of the leaders */
    rd_kafka_queue_t *responses;
    struct hps_kafka_named *names; /* [n_names] in order of name */
    uint32_t n_names;
    struct hps_consumer_topic *reported; /* [n_reported] the existing topics */
    uint32_t n_reported;
    char *cluster_id;
    struct hps_kafka_admin id_request;
    struct hps_kafka_admin settings_request;
};

/* Start to list the names [n]. Close it in any case. */
hps_status hps_kafka_topics_open(struct hps_kafka_topics *topics, struct hps_kafka_leaders *leaders,
                                 const char *const *names, uint32_t n, struct hps_error *err)
    HPS_MUST_CHECK;
void hps_kafka_topics_close(struct hps_kafka_topics *topics);
/* `topics` and `listing` of update_log.h. */
hps_status hps_kafka_topics_list(struct hps_kafka_topics *topics, uint32_t timeout_ms,
                                 struct hps_consumer_topics *out_topics, struct hps_error *err);
void hps_kafka_topics_listing(struct hps_kafka_topics *topics,
                              struct hps_consumer_listing *out_listing);
#endif
