/* SPDX-License-Identifier: Apache-2.0
 *
 * A FIFO of rows that a writer has replaced or erased, but that readers may still see. The entry of
 * an erased row also has the slot that the key had in the index. Row and slot can be reused once
 * every reader that may have seen them has left. Used by the table's writer only. The writer waits
 * for readers only if push has no memory.
 */
#ifndef HPS_BACKENDS_HOST_LIMBO_H
#define HPS_BACKENDS_HOST_LIMBO_H

#include <stdbool.h>
#include <stdint.h>

#include "base/epoch.h"
#include "base/status.h"

struct hps_host_gone {
    uint32_t row;
    /* Generation of the bucket array with `slot`; 0: no slot, because the row was replaced. */
    uint32_t generation;
    uint64_t slot;
};

/* Bytes of memory for one entry of the FIFO, in addition to its row. */
enum { HPS_HOST_GONE_BYTES = sizeof(struct hps_host_gone) };

struct hps_host_limbo_block;

struct hps_host_limbo {
    struct hps_epoch *epoch;
    struct hps_host_limbo_block *head;  /* oldest block, popped from */
    struct hps_host_limbo_block *tail;  /* newest block, pushed to */
    struct hps_host_limbo_block *spare; /* unused blocks */
    uint32_t n_spare;
    uint64_t n; /* entries */
};

hps_status hps_host_limbo_open(struct hps_host_limbo *limbo, struct hps_epoch *epoch)
    HPS_MUST_CHECK;
void hps_host_limbo_close(struct hps_host_limbo *limbo);
/* Append an entry. False: there is no memory for it. The caller must pop entries first, and wait
 * for readers if needed. */
bool hps_host_limbo_push(struct hps_host_limbo *limbo, const struct hps_host_gone *gone);
/* Start the grace period of the newest block of entries now, so that its entries can be popped
 * earlier. Otherwise the grace period starts when the block is full. It ends when all readers that
 * may see the block's entries have left. Only then can the entries be popped. */
void hps_host_limbo_seal(struct hps_host_limbo *limbo);
/* Pop the oldest entry. False: there is no entry, or readers may still see it. */
bool hps_host_limbo_pop(struct hps_host_limbo *limbo, struct hps_host_gone *out_gone);

#endif
