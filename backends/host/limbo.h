/* SPDX-License-Identifier: Apache-2.0
 *
 * What has been unlinked from a table of the host map but may still be read: rows, and the slots of
 * erased keys. First in, first out; each is free for use again once every reader that could have
 * seen it has left. Belongs to the table's writer, which never waits for readers.
 */
#ifndef HPS_BACKENDS_HOST_LIMBO_H
#define HPS_BACKENDS_HOST_LIMBO_H

#include <stdbool.h>
#include <stdint.h>

#include "base/epoch.h"
#include "base/status.h"

struct hps_host_gone {
    uint32_t row;
    uint32_t generation; /* of the bucket array that `slot` is in; 0: no slot */
    uint64_t slot;
};

/* What an entry takes beside its row. */
enum { HPS_HOST_GONE_BYTES = sizeof(struct hps_host_gone) };

struct hps_host_limbo_block;

struct hps_host_limbo {
    struct hps_epoch *epoch;
    struct hps_host_limbo_block *head;  /* the oldest: popped from */
    struct hps_host_limbo_block *tail;  /* open: pushed to */
    struct hps_host_limbo_block *spare; /* empty ones */
    uint32_t n_spare;
    uint64_t n;
};

hps_status hps_host_limbo_open(struct hps_host_limbo *limbo, struct hps_epoch *epoch)
    HPS_MUST_CHECK;
void hps_host_limbo_close(struct hps_host_limbo *limbo);
/* False: no memory for another entry. Pop first, waiting if need be. */
bool hps_host_limbo_push(struct hps_host_limbo *limbo, const struct hps_host_gone *gone);
/* Let the grace period of all that is in it begin, also where a block is not full. */
void hps_host_limbo_seal(struct hps_host_limbo *limbo);
/* The oldest entry if its readers have left. */
bool hps_host_limbo_pop(struct hps_host_limbo *limbo, struct hps_host_gone *out_gone);

#endif
