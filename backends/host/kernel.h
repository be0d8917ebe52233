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

enum {
    HPS_HOST_LINE_BYTES = 64,
    HPS_HOST_BLOCK_KEYS = 512, /* what is noted of them between the passes stays in L1 */
    HPS_HOST_AHEAD = 48,       /* keys between fetch and use: 24 to 64 measured the same */
};

/* What is done with the place of a key that was found. */
enum hps_host_note {
    HPS_HOST_NOTE_NOTHING,
    HPS_HOST_NOTE_TOUCH, /* in the index, for eviction */
    HPS_HOST_NOTE_PLACE, /* in the block: it may be touched later */
};

/* Keys that are looked up together. */
struct hps_host_block {
    const struct hps_host_buckets *now;
    uint32_t lo; /* of a batch: keys[lo .. lo + n) */
    uint32_t n;
    uint32_t n_found;
    /* Where each one is to be probed; with HPS_HOST_NOTE_PLACE, where it was found. */
    struct hps_host_bucket *buckets[HPS_HOST_BLOCK_KEYS];
    const uint8_t *rows[HPS_HOST_BLOCK_KEYS]; /* NULL: not there */
    uint8_t places[HPS_HOST_BLOCK_KEYS];      /* with HPS_HOST_NOTE_PLACE: slot of the bucket */
};

/* Where rows go, and as what. */
struct hps_host_out {
    uint8_t *rows; /* that of slot s goes to rows + s * stride */
    size_t stride;
    hps_row_convert_fn convert; /* NULL: as they are stored */
    uint32_t dim;
    bool stream; /* past the caches */
};

struct hps_host_lookup {
    const struct hps_host_index *index;
    const uint8_t *rows; /* row n at rows + n * stride */
    uint32_t row_bytes;
    uint32_t stride;
    uint32_t fetch_bytes; /* of a row in steps of a line, before its last byte: all of its lines */
    enum hps_host_note note;
    struct hps_host_out out;
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

/* What the batch wants of the table: its shape, or rows as they are stored. Those of a call that
 * are more than L2 holds, and all aligned, are worth writing past the caches. */
struct hps_host_out hps_host_out(const struct hps_table *table, const struct hps_batch *batch);

/* For reading only: nothing is noted, and `out` is to be set for whoever copies. */
struct hps_host_lookup hps_host_lookup(const struct hps_host_index *index,
                                       const struct hps_host_rows *rows);

/* All kernels that this build has, best first; the last one runs everywhere. */
const struct hps_host_kernel *hps_host_kernels(unsigned *out_n);
/* The best one that runs here. */
const struct hps_host_kernel *hps_host_kernel(void);

/* Look up keys [lo, hi) of the batch, where [hi, n) is known to be missing. */
void hps_host_look_up(const struct hps_host_lookup *lookup, const struct hps_host_kernel *kernel,
                      struct hps_batch *batch, uint32_t lo, uint32_t hi);

/* Loops over the lines of a row, where their number is a constant. clang unrolls those by itself,
 * and refuses to be told so where it is not. */
#ifdef __clang__
#define HPS_HOST_UNROLL
#else
#define HPS_HOST_UNROLL _Pragma("GCC unroll 8")
#endif

/* Fetch a row that will be read soon. To L2: there are more misses to be had at once there than in
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
