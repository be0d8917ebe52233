/* SPDX-License-Identifier: Apache-2.0
 *
 * Epoch-based reclamation. A reader announces the epoch in which it enters. A retired object may be
 * reused after every reader that could have seen it has left. A reader waits only for a slot, if
 * all are taken and there is no memory for more. Hold an epoch only while copying rows, never
 * across a store call, a queue or a send. Any thread.
 */
#ifndef HPS_BASE_EPOCH_H
#define HPS_BASE_EPOCH_H

#include <stdbool.h>
#include <stdint.h>

struct hps_epoch;
struct hps_epoch_slot;

/* NULL: no memory. */
struct hps_epoch *hps_epoch_new(void);
void hps_epoch_free(struct hps_epoch *epoch); /* no reader may be inside; no effect if NULL */
/* Enter and leave. The slot is found by thread; any number of threads, no nesting within one epoch.
 */
struct hps_epoch_slot *hps_epoch_enter(struct hps_epoch *epoch);
void hps_epoch_leave(struct hps_epoch *epoch, struct hps_epoch_slot *slot);
/* A stamp for an object that was just unlinked. It may be reused once hps_epoch_passed(stamp). */
uint64_t hps_epoch_retire(struct hps_epoch *epoch);
bool hps_epoch_passed(struct hps_epoch *epoch, uint64_t stamp);

#endif
