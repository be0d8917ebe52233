/* SPDX-License-Identifier: Apache-2.0
 *
 * Lookups in one table of the host map: blocks of keys in two passes, with the widest vectors of
 * the CPU. Any thread, inside an epoch.
 */
#ifndef HPS_BACKENDS_HOST_KERNEL_H
#define HPS_BACKENDS_HOST_KERNEL_H

#include "backends/host/index.h"
#include "backends/host/rows.h"
#include "backends/store.h"

enum {
    HPS_HOST_LINE_BYTES = 64,
    HPS_HOST_BLOCK_KEYS = 512, /* a block's notes between the passes fit L1 */
    HPS_HOST_AHEAD = 48,       /* keys between prefetch and use: 24 to 64 measured the same */
};

/* What to do with the place of a found key. */
enum hps_host_note {
    HPS_HOST_NOTE_NOTHING,
    HPS_HOST_NOTE_TOUCH, /* count the hit in the index, for eviction */
    HPS_HOST_NOTE_PLACE, /* store it in the block, to be counted later */
};

/* Keys that are looked up together. */
struct hps_host_block {
    const struct hps_host_buckets *now;
    uint32_t lo; /* keys[lo .. lo + n) of a batch */
    uint32_t n;
    uint32_t n_found;
    /* First bucket to probe for each key. With HPS_HOST_NOTE_PLACE, then the bucket where it was
     * found. */
    struct hps_host_bucket *buckets[HPS_HOST_BLOCK_KEYS];
    const uint8_t *rows[HPS_HOST_BLOCK_KEYS]; /* NULL: not found */
    uint8_t places[HPS_HOST_BLOCK_KEYS];      /* with HPS_HOST_NOTE_PLACE: slot of the bucket */
};

/* Destination and form of rows. */
struct hps_host_out {
    uint8_t *rows; /* row of slot s at rows + s * stride */
    size_t stride;
    hps_row_convert_fn convert; /* NULL: copy as stored */
    uint32_t dim;
    bool stream; /* write past the caches */
};

struct hps_host_lookup {
    const struct hps_host_index *index;
    const uint8_t *rows; /* row n at rows + n * stride */
    uint32_t row_bytes;
    uint32_t stride;
    /* Prefetch offsets 0, 64, … below this, then the last byte: covers all lines of a row. */
    uint32_t fetch_bytes;
    enum hps_host_note note;
    struct hps_host_out out;
};

struct hps_host_kernel {
    const char *name;
    bool (*runs)(void); /* on this CPU */
    /* First pass: find the rows. */
    void (*probe)(const struct hps_host_lookup *lookup, const hps_key *keys,
                  struct hps_host_block *block);
    /* Second pass: copy the found rows. */
    void (*copy)(const struct hps_host_lookup *lookup, struct hps_batch *batch,
                 const struct hps_host_block *block);
};

/* The destination for a batch: its shape, or rows as stored. Rows bypass the caches if they are
 * aligned and do not fit L2 together. */
struct hps_host_out hps_host_out(const struct hps_table *table, const struct hps_batch *batch);

/* A lookup that only reads: nothing is noted. Set `out` before copying. */
struct hps_host_lookup hps_host_lookup(const struct hps_host_index *index,
                                       const struct hps_host_rows *rows);

/* All kernels of this build, best first; the last one runs on every CPU. */
const struct hps_host_kernel *hps_host_kernels(unsigned *out_n);
/* The best kernel for this CPU. */
const struct hps_host_kernel *hps_host_kernel(void);

/* Look up keys [lo, hi) of the batch. The keys [hi, n) are known to be missing. */
void hps_host_look_up(const struct hps_host_lookup *lookup, const struct hps_host_kernel *kernel,
                      struct hps_batch *batch, uint32_t lo, uint32_t hi);

/* For loops over the lines of a row with a constant count. clang unrolls them without the pragma,
 * and rejects it if the count is not constant. */
#ifdef __clang__
#define HPS_HOST_UNROLL
#else
#define HPS_HOST_UNROLL _Pragma("GCC unroll 8")
#endif

/* Prefetch a row that will be read soon, into L2, which can have more outstanding misses than
 * L1. */
static inline __attribute__((always_inline)) void hps_host_row_fetch(
    const struct hps_host_lookup *lookup, const uint8_t *row)
{
    HPS_HOST_UNROLL for (uint32_t at = 0; at < lookup->fetch_bytes; at += HPS_HOST_LINE_BYTES)
    {
        __builtin_prefetch(row + at, 0, 2);
    }
    __builtin_prefetch(row + lookup->row_bytes - 1, 0, 2);
}

#endif
