/* SPDX-License-Identifier: Apache-2.0
 *
 * Gathers the facts about a partition, has next.c decide the step that follows an event, and
 * carries it out. Thread `update`.
 */
#ifndef HPS_SERVER_UPDATE_PARTITION_STEPS_H
#define HPS_SERVER_UPDATE_PARTITION_STEPS_H

#include "server/update/partition/partition.h"

/* The facts of a partition as they are now. */
struct update_facts update_facts_of(const struct hps_update_stream *stream,
                                    const struct update_partition *partition);
/* Decide the step that follows an event of a partition, and carry it out, except for
 * UPDATE_DO_LEARN and the note, which the caller carries out. text: the error of the event, for the
 * reason; may be NULL. Returns the step. */
struct update_step update_step(struct hps_update_stream *stream, struct update_partition *partition,
                               const struct update_event *event, const char *text);
/* The log or the consumer was lost: start over the partitions that the consumer reads. */
void update_start_over(struct hps_update_stream *stream);
/* Require a proof that the partition's topic is the one that was read. own: only its own witness
 * proves it. */
void update_identity_due(struct update_partition *partition, bool own);

#endif
