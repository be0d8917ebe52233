/* SPDX-License-Identifier: Apache-2.0
 *
 * The topics and partitions of the cluster, for all consumers of the log: which of the named topics
 * exist, which broker leads each watched partition, and the leader's latest response. Any thread;
 * only hps_kafka_watched_leader waits.
 */
#ifndef HPS_BACKENDS_KAFKA_LEADERS_H
#define HPS_BACKENDS_KAFKA_LEADERS_H

#include "backends/kafka/handle.h"

enum { HPS_KAFKA_NO_PARTITION = -1 };

struct hps_kafka_leaders;
struct hps_kafka_watched; /* a partition that is watched, for any consumer */

/* `shared` is borrowed for the life of the leaders. NULL: no memory. */
struct hps_kafka_leaders *hps_kafka_leaders_new(const rd_kafka_conf_t *shared);
/* All watched partitions must be released. NULL: no effect. */
void hps_kafka_leaders_free(struct hps_kafka_leaders *leaders);
/* Start the threads, unless they run. The other functions may be called after that. *out_rk is the
 * handle of the requests. It lives as long as the leaders, and connects to all brokers, so that it
 * can use any broker if one hangs. */
hps_status hps_kafka_leaders_start(struct hps_kafka_leaders *leaders, rd_kafka_t **out_rk,
                                   struct hps_error *err) HPS_MUST_CHECK;

/* Start to list the topic, and to query the leader of the partition; HPS_KAFKA_NO_PARTITION: only
 * the topic. INVALID: Kafka does not allow the name; NO_MEMORY. */
hps_status hps_kafka_watched_add(struct hps_kafka_leaders *leaders, const char *topic,
                                 int32_t partition, struct hps_kafka_watched **out_watched)
    HPS_MUST_CHECK;
void hps_kafka_watched_release(struct hps_kafka_watched *watched);

/* A topic in the newest list that proves something: see hps_consumer_topics. */
struct hps_kafka_listed {
    const char *topic; /* lives as long as the reference */
    uint64_t asked_us; /* hps_clock_us when the request was sent; 0: no such list yet */
    int64_t asked_unix_ms;
    int32_t n_partitions;     /* 0: the topic does not exist, or hpsd may not see it */
    int32_t broker;           /* id of the broker that leads the partition; -1: not known */
    rd_kafka_resp_err_t code; /* of the newest request, even if it proves nothing */
};

struct hps_kafka_listed hps_kafka_watched_listed(const struct hps_kafka_watched *watched);
/* Request a list now, unless the newest one was requested at or after since_us. */
void hps_kafka_leaders_list(struct hps_kafka_leaders *leaders, uint64_t since_us);
void hps_kafka_watched_response(const struct hps_kafka_watched *watched,
                                struct hps_leader_response *out_response);
/* Get the id of the broker that can be queried now, or the reason why no broker can. If the
 * partition has been watched for less than a second, waits for the first response. */
hps_status hps_kafka_watched_leader(const struct hps_kafka_watched *watched, uint64_t end_us,
                                    int32_t *out_broker);

#endif
