/* SPDX-License-Identifier: Apache-2.0
 *
 * Epoch-based reclamation: readers announce the epoch they entered in; a retired thing is reused
 * once every reader that could have seen it has left. Readers never wait. Hold an epoch only while
 * copying rows, never across a store call, a queue or a send. Any thread.
 */
#ifndef HPS_BASE_EPOCH_H
#define HPS_BASE_EPOCH_H

#include <stdbool.h>
#include <stdint.h>

struct hps_epoch;
struct hps_epoch_slot;

/* NULL: no memory. */
struct hps_epoch *hps_epoch_new(void);
void hps_epoch_free(struct hps_epoch *epoch); /* no reader may be inside */
/* Enter and leave; the slot is found per thread, any number of threads, no nesting of one epoch. */
struct hps_epoch_slot *hps_epoch_enter(struct hps_epoch *epoch);
void hps_epoch_leave(struct hps_epoch *epoch, struct hps_epoch_slot *slot);
/* A stamp for something just unlinked; it may be reused when hps_epoch_passed(stamp). */
uint64_t hps_epoch_retire(struct hps_epoch *epoch);
bool hps_epoch_passed(struct hps_epoch *epoch, uint64_t stamp);

#endif
