/* SPDX-License-Identifier: Apache-2.0
 *
 * Commits of positions to a consumer group, which Kafka's tools show. Any thread; no call waits.
 */
#ifndef HPS_BACKENDS_KAFKA_COMMITS_H
#define HPS_BACKENDS_KAFKA_COMMITS_H

#include "backends/kafka/handle.h"

struct hps_kafka_commits;

/* `shared` and `group` are borrowed for the life of the commits. NULL: no memory. */
struct hps_kafka_commits *hps_kafka_commits_new(const rd_kafka_conf_t *shared, const char *group);
/* Takes some seconds if a commit is in flight. NULL: no effect. */
void hps_kafka_commits_free(struct hps_kafka_commits *commits);
/* Note positions for the next commit. */
void hps_kafka_commits_add(struct hps_kafka_commits *commits,
                           const struct hps_consumer_position *positions, uint32_t n_positions);
/* Take the result of the last commit, and send the next one; to be called by each poll. True: the
 * result of the commits differs from `*seen`, which is updated. */
bool hps_kafka_commits_turn(struct hps_kafka_commits *commits, hps_status *seen,
                            char out_text[HPS_KAFKA_TEXT_BYTES]);

#endif
