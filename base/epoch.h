/* SPDX-License-Identifier: Apache-2.0
 *
 * Epoch-based reclamation. Readers enter and leave an epoch. A writer unlinks an object, retires
 * it, and reuses it after every reader that could have seen it has left. Each reader needs a slot.
 * A reader waits only if all slots are in use and there is no memory for more. A reader may be in
 * an epoch only while it copies rows. It must leave before it calls a store, waits for a queue or
 * sends. Any thread.
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
/* Enter an epoch. Any number of threads may be inside. A thread must not enter an epoch that it is
 * in already. The result must be passed to hps_epoch_leave. */
struct hps_epoch_slot *hps_epoch_enter(struct hps_epoch *epoch);
void hps_epoch_leave(struct hps_epoch *epoch, struct hps_epoch_slot *slot);
/* Retire objects that the caller has unlinked. Returns their stamp for hps_epoch_passed. */
uint64_t hps_epoch_retire(struct hps_epoch *epoch);
/* Whether all readers that could have seen objects with this stamp have left, so that the objects
 * may be reused. */
bool hps_epoch_passed(struct hps_epoch *epoch, uint64_t stamp);

#endif
