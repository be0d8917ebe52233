/* SPDX-License-Identifier: Apache-2.0
 *
 * Queries for the offsets of a consumer's partitions. On the consumer's thread.
 */
#ifndef HPS_BACKENDS_KAFKA_OFFSETS_H
#define HPS_BACKENDS_KAFKA_OFFSETS_H

#include "backends/kafka/recall.h"

/* `offsets` of update_log.h, through `rk`. NO_MEMORY. */
hps_status hps_kafka_offsets(rd_kafka_t *rk, struct hps_kafka_watches *watches,
                             struct hps_consumer_offsets *partitions, uint32_t n_partitions,
                             uint32_t timeout_ms, struct hps_error *err) HPS_MUST_CHECK;

#endif
