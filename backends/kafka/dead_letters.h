/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies of rejected records, sent to the dead-letter topic. On the consumer's thread, which also
 * runs the producer's callbacks.
 */
#ifndef HPS_BACKENDS_KAFKA_DEAD_LETTERS_H
#define HPS_BACKENDS_KAFKA_DEAD_LETTERS_H

#include "backends/kafka/handle.h"

struct hps_kafka_dead_letters {
    const rd_kafka_conf_t *shared;
    rd_kafka_t *producer; /* opened for the first letter */
    /* Letters that were sent since the last flush that found none late: [newer]. Earlier ones: the
     * other one. */
    uint64_t n_in_flight[2];
    unsigned newer;
    struct hps_dead_letters since_flush;
};

/* dead_letter and dead_letter_flush of update_log.h. The struct must not move while the producer is
 * open. */
hps_status hps_kafka_dead_letters_send(struct hps_kafka_dead_letters *of, const char *topic,
                                       const struct hps_consumer_record *record, const char *reason,
                                       uint32_t timeout_ms, struct hps_error *err);
void hps_kafka_dead_letters_flush(struct hps_kafka_dead_letters *of, uint32_t timeout_ms,
                                  struct hps_dead_letters *out_letters);
void hps_kafka_dead_letters_close(struct hps_kafka_dead_letters *of);

#endif
