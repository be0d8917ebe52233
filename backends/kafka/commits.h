/* SPDX-License-Identifier: Apache-2.0
 *
 * Commits of positions, which Kafka's tools show. Any thread; no call waits.
 */
#ifndef HPS_BACKENDS_KAFKA_COMMITS_H
#define HPS_BACKENDS_KAFKA_COMMITS_H

#include "backends/kafka/handle.h"

struct hps_kafka_commits;

/* `shared` is borrowed for the life of the commits. */
hps_status hps_kafka_commits_new(const rd_kafka_conf_t *shared,
                                 struct hps_kafka_commits **out_commits) HPS_MUST_CHECK;
void hps_kafka_commits_free(struct hps_kafka_commits *commits); /* NULL: no effect */
void hps_kafka_commits_add(struct hps_kafka_commits *commits, const char *group,
                           const struct hps_consumer_position *positions, uint32_t n_positions);
/* True: the result of the group's commits differs from `*seen`, which is updated. */
bool hps_kafka_commits_news(struct hps_kafka_commits *commits, const char *group, hps_status *seen,
                            char out_text[HPS_KAFKA_TEXT_BYTES]);

#endif
