/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows and slots of erased keys that are unlinked from a table but may still be read. A FIFO: an
 * entry can be reused once every reader that may have seen it has left. Used by the table's writer
 * only. The writer waits for readers only if push has no memory.
 */
#ifndef HPS_BACKENDS_HOST_LIMBO_H
#define HPS_BACKENDS_HOST_LIMBO_H

#include <stdbool.h>
#include <stdint.h>

#include "base/epoch.h"
#include "base/status.h"

struct hps_host_gone {
    uint32_t row;
    uint32_t generation; /* of the bucket array of `slot`; 0: no slot */
    uint64_t slot;
};

/* Memory of an entry, in addition to its row. */
enum { HPS_HOST_GONE_BYTES = sizeof(struct hps_host_gone) };

struct hps_host_limbo_block;

struct hps_host_limbo {
    struct hps_epoch *epoch;
    struct hps_host_limbo_block *head;  /* oldest block, popped from */
    struct hps_host_limbo_block *tail;  /* newest block, pushed to */
    struct hps_host_limbo_block *spare; /* unused blocks */
    uint32_t n_spare;
    uint64_t n;
};

hps_status hps_host_limbo_open(struct hps_host_limbo *limbo, struct hps_epoch *epoch)
    HPS_MUST_CHECK;
void hps_host_limbo_close(struct hps_host_limbo *limbo);
/* False: no memory for another entry. Pop entries first, waiting for readers if needed. */
bool hps_host_limbo_push(struct hps_host_limbo *limbo, const struct hps_host_gone *gone);
/* Start the grace period of all entries, even if the last block is not full. */
void hps_host_limbo_seal(struct hps_host_limbo *limbo);
/* Pop the oldest entry. False: its readers have not left. */
bool hps_host_limbo_pop(struct hps_host_limbo *limbo, struct hps_host_gone *out_gone);

#endif
