/* SPDX-License-Identifier: Apache-2.0
 *
 * Look-ups in one table of the host map: blocks of keys in two passes, in the widest vectors that
 * the CPU has. Any thread, inside an epoch.
 */
#ifndef HPS_BACKENDS_HOST_KERNEL_H
#define HPS_BACKENDS_HOST_KERNEL_H

#include "backends/host/index.h"
#include "backends/host/rows.h"
#include "backends/store.h"

enum { HPS_HOST_BLOCK_KEYS = 256 }; /* what is noted of them between the passes stays in L1 */

/* Keys of a batch that are looked up together. */
struct hps_host_block {
    const struct hps_host_buckets *now;
    uint32_t lo; /* of the batch: keys[lo .. lo + n) */
    uint32_t n;
    uint32_t n_found;
    struct hps_host_bucket *buckets[HPS_HOST_BLOCK_KEYS]; /* where each one is to be probed */
    const uint8_t *rows[HPS_HOST_BLOCK_KEYS];             /* NULL: not there */
};

struct hps_host_lookup {
    const struct hps_host_index *index;
    const uint8_t *rows; /* row n at rows + n * stride */
    uint32_t row_bytes;
    uint32_t stride;
    bool touch;  /* note in the index what was found, for eviction */
    bool stream; /* write rows past the caches */
};

struct hps_host_kernel {
    const char *name;
    bool (*runs)(void); /* on this CPU */
    /* Find the rows. */
    void (*probe)(const struct hps_host_lookup *lookup, const hps_key *keys,
                  struct hps_host_block *block);
    /* Copy those that were found. */
    void (*copy)(const struct hps_host_lookup *lookup, struct hps_batch *batch,
                 const struct hps_host_block *block);
};

static inline struct hps_host_lookup hps_host_lookup(const struct hps_host_index *index,
                                                     const struct hps_host_rows *rows)
{
    return (struct hps_host_lookup){.index = index,
                                    .rows = rows->area.start,
                                    .row_bytes = rows->row_bytes,
                                    .stride = rows->stride};
}

/* All kernels that this build has, best first; the last one runs everywhere. */
const struct hps_host_kernel *hps_host_kernels(unsigned *out_n);
/* The best one that runs here. */
const struct hps_host_kernel *hps_host_kernel(void);

/* Look up keys [lo, hi) of the batch, where [hi, n) is known to be missing. */
void hps_host_look_up(const struct hps_host_lookup *lookup, const struct hps_host_kernel *kernel,
                      struct hps_batch *batch, uint32_t lo, uint32_t hi);

/* Whether the rows of a call are worth writing past the caches: more of them than L2 holds, and
 * all aligned. */
bool hps_host_streams(uint32_t row_bytes, const struct hps_batch *batch);

#endif
