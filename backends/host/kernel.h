/* SPDX-License-Identifier: Apache-2.0
 *
 * Lookups in one table of the host map. Keys are looked up in blocks, in two passes: the first pass
 * finds the rows, the second copies them. A *kernel* is an implementation of both passes for one
 * vector width; the widest that the CPU supports is used. Any thread may look up keys, but only
 * inside an epoch (base/epoch.h).
 */
#ifndef HPS_BACKENDS_HOST_KERNEL_H
#define HPS_BACKENDS_HOST_KERNEL_H

#include <string.h>

#include "backends/host/index.h"
#include "backends/host/rows.h"
#include "backends/store.h"

enum {
    HPS_HOST_LINE_BYTES = 64,
    HPS_HOST_BLOCK_KEYS = 512, /* so that struct hps_host_block fits the L1 cache */
    /* A key is prefetched this many keys ahead; 24 to 64 are equally fast. */
    HPS_HOST_AHEAD = 48,
};

/* The part of a dense range (dense.h) that kernels read. Every 64 rows have a head of 16 bytes. */
enum { HPS_HOST_GROUP_ROWS = 64 };

struct hps_host_group {
    _Atomic(uint64_t) present; /* bit i: row i of the group exists */
    _Atomic(uint64_t) version; /* hps_host_dense.writes during the last write; 0: no write */
};
_Static_assert(sizeof(struct hps_host_group) == 16, "4 heads per cache line");

struct hps_host_span {
    hps_key first;
    uint64_t n;
    uint64_t n_full; /* at most n; all of the first n_full rows exist */
    const struct hps_host_group *groups;
    const uint8_t *rows;
};

/* What the first pass does with the place of a found key. */
enum hps_host_note {
    HPS_HOST_NOTE_NOTHING,
    HPS_HOST_NOTE_TOUCH, /* count the hit in the index, for eviction */
    HPS_HOST_NOTE_PLACE, /* store the place in the block; the caller counts the hit later */
};

/* Keys [lo, lo + n) of a batch, which are looked up together, and the results of the first pass. */
struct hps_host_block {
    const struct hps_host_buckets *now;
    uint32_t lo;
    uint32_t n;
    uint32_t n_found;
    /* Not NULL: the table has a dense range, and there is no first pass. The second pass copies
     * rows of the range until it reaches a key that the range lacks. If the range has all keys, it
     * sets hps_batch.n to `lo`; otherwise keys, slots and n of the batch do not change. `n` may
     * then be any number, and the arrays are not used. */
    const struct hps_host_span *span;
    /* First bucket to probe for each key. With HPS_HOST_NOTE_PLACE, the first pass replaces it by
     * the bucket where the key was found. */
    struct hps_host_bucket *buckets[HPS_HOST_BLOCK_KEYS];
    const uint8_t *rows[HPS_HOST_BLOCK_KEYS]; /* row of each key; NULL: not found */
    /* With HPS_HOST_NOTE_PLACE: slot of each key in its bucket. */
    uint8_t places[HPS_HOST_BLOCK_KEYS];
};

/* Destination and type of rows. */
struct hps_host_out {
    uint8_t *rows; /* row number s (hps_batch.slots) is at rows + s * stride */
    size_t stride;
    hps_row_convert_fn convert; /* NULL: rows are copied as stored */
    uint32_t dim;
    bool stream; /* write with non-temporal stores, which bypass the caches */
};

struct hps_host_lookup {
    const struct hps_host_index *index;
    const uint8_t *rows; /* the row with id n is at rows + n * stride */
    uint32_t row_bytes;
    uint32_t stride;
    /* A prefetch touches the offsets 0, 64, … below fetch_bytes and the last byte of a row. These
     * touch every cache line of the row. */
    uint32_t fetch_bytes;
    enum hps_host_note note;
    struct hps_host_out out;
};

struct hps_host_kernel {
    const char *name;
    bool (*runs)(void); /* whether this CPU supports the kernel */
    /* First pass: find the rows. */
    void (*probe)(const struct hps_host_lookup *lookup, const hps_key *keys,
                  struct hps_host_block *block);
    /* Second pass: copy the found rows. */
    void (*copy)(const struct hps_host_lookup *lookup, struct hps_batch *batch,
                 const struct hps_host_block *block);
};

static inline uint8_t *hps_host_out_at(const struct hps_host_out *out, uint32_t slot)
{
    return out->rows + slot * out->stride;
}

/* Copy or convert one row. */
static inline void hps_host_row_read(const struct hps_host_lookup *lookup, uint8_t *to,
                                     const uint8_t *from)
{
    if (lookup->out.convert != NULL) {
        lookup->out.convert(to, from, lookup->out.dim);
    } else {
        memcpy(to, from, lookup->row_bytes);
    }
}

static inline const struct hps_host_group *hps_host_span_group(const struct hps_host_span *span,
                                                               uint64_t number)
{
    return span->groups + number / HPS_HOST_GROUP_ROWS;
}

/* Whether the row with this number exists. */
static inline bool hps_host_group_has(const struct hps_host_group *group, uint64_t number)
{
    uint64_t present = atomic_load_explicit(&group->present, memory_order_relaxed);
    return (present >> (number % HPS_HOST_GROUP_ROWS) & 1) != 0;
}

/* The destination of the rows of a batch: its `shape` if that is set, otherwise its `rows`, in the
 * stored type. `stream` is set if the rows are aligned and together do not fit the L2 cache. */
struct hps_host_out hps_host_out(const struct hps_table *table, const struct hps_batch *batch);

/* A lookup that does not count hits (HPS_HOST_NOTE_NOTHING). The caller must set `out` before the
 * second pass. */
struct hps_host_lookup hps_host_lookup(const struct hps_host_index *index,
                                       const struct hps_host_rows *rows);

/* All kernels of this build, best first; the last one runs on every CPU. */
const struct hps_host_kernel *hps_host_kernels(unsigned *out_n);
/* The best kernel for this CPU. */
const struct hps_host_kernel *hps_host_kernel(void);

/* Look up keys [lo, hi) of the batch. The keys [hi, batch->n) are known to be missing. */
void hps_host_lookup_run(const struct hps_host_lookup *lookup, const struct hps_host_kernel *kernel,
                         struct hps_batch *batch, uint32_t lo, uint32_t hi);

/* Unrolls a loop over the cache lines of a row. clang unrolls loops with a constant count without
 * this pragma, and rejects it if the count is not constant. */
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
