/* SPDX-License-Identifier: Apache-2.0
 *
 * Watches of partitions, and recalls: reading the record at an offset again, without an effect on
 * what consumers read. A consumer has a list of watches, which belongs to its thread. Recalls are
 * for all consumers of the log. No call waits.
 */
#ifndef HPS_BACKENDS_KAFKA_RECALL_H
#define HPS_BACKENDS_KAFKA_RECALL_H

#include "backends/kafka/leaders.h"

struct hps_kafka_recalls;

/* `shared` is borrowed for the life of the recalls. NULL: no memory. */
struct hps_kafka_recalls *hps_kafka_recalls_new(const rd_kafka_conf_t *shared);
/* All watches must be freed. NULL: no effect. */
void hps_kafka_recalls_free(struct hps_kafka_recalls *recalls);

struct hps_kafka_watches {
    struct hps_kafka_leaders *leaders;
    struct hps_kafka_recalls *recalls;
    struct hps_watch *first;
};

/* Find the watch of the partition, or make it. INVALID: Kafka does not allow the topic's name;
 * NO_MEMORY. */
hps_status hps_kafka_watch(struct hps_kafka_watches *watches, const char *topic, int32_t partition,
                           struct hps_watch **out_watch, struct hps_error *err) HPS_MUST_CHECK;
void hps_kafka_watches_free(struct hps_kafka_watches *watches);
/* Make a watch that is not in the list, for recalls in addition to the updater's. Errors as
 * above. */
hps_status hps_kafka_watch_new(struct hps_kafka_watches *watches, const char *topic,
                               int32_t partition, struct hps_watch **out_watch) HPS_MUST_CHECK;
void hps_kafka_watch_free(struct hps_watch *watch); /* NULL: no effect */
struct hps_kafka_watched *hps_kafka_watched(const struct hps_watch *watch);

/* Operations of update_log.h. If the result of a recall is an error, its offset is that of
 * librdkafka's error. */
void hps_kafka_leader_response(const struct hps_watch *watch,
                               struct hps_leader_response *out_response);
void hps_kafka_recall(struct hps_watch *watch, int64_t offset);
bool hps_kafka_recalled(const struct hps_watch *watch, struct hps_recalled *out_recalled);

#endif
