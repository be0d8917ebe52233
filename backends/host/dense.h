/* SPDX-License-Identifier: Apache-2.0
 *
 * The dense range of a table: rows of consecutive keys, without an index. The row of a key is at
 * (key - first) * stride of one array. Every 64 rows are a *group* with a head of 16 bytes: a bit
 * for each row that exists, and a version. Keys outside the range are in the table's index, so a
 * table is a range and an index. Rows of the range are never evicted.
 *
 *     heads   | bits of rows 0-63, version | bits of rows 64-127, version | ...
 *     rows    | row 0 | row 1 | row 2 | ...
 *
 * Writing. A write changes a row in place. `writes` is odd during a write, and counts: it is 2n
 * after n writes. The version of a group is the value of `writes` during the last write of one of
 * its rows. To delete a row, the writer only clears its bit.
 *
 * Reading. A reader takes no lock. It reads blocks of keys in three steps: read `writes` and find
 * the rows; copy or add the rows; read `writes` again. If it was even and has not changed, all rows
 * are complete. Otherwise the reader compares the versions of the groups with the value of the
 * first step. Rows of a group that was written since are read again, at most HPS_HOST_DENSE_TRIES
 * times. Then the reader takes `lock`, which every write takes for one row.
 *
 * The plain reads of the second step race with the writer. This is safe on all CPUs, because the
 * values that are read decide nothing: they are only copied or added, and the third step discards
 * the result if a write has begun. ThreadSanitizer cannot know that. So in its builds a reader
 * holds `lock` during the three steps, and the tests of other builds look for torn rows.
 *
 * Growing. The range begins at the smallest key, when rows come in ascending order: in a load or a
 * refill. It then grows at its end, up to each new key that leaves enough of it filled. The index
 * may have keys of the new part. Their rows are copied, then the new end is published, then the
 * keys are removed from the index. A reader that finds no row in the index therefore reads the end
 * of the range again.
 *
 * Limits. A range never shrinks: deletes free none of its memory, and it keeps at most a fifth of
 * holes only as long as it grows. If the keys of a table move on, so that new keys follow the range
 * and old ones are deleted, the range stops growing at 5/4 of the rows that it had. Later keys are
 * in the index, and need memory in addition. When a store that evicts is full, a table has only the
 * memory of its index to evict. If the index is empty, new keys outside the range are not cached.
 *
 * Only the table's writer calls the functions of this file, with the exceptions that are named
 * "readers".
 */
#ifndef HPS_BACKENDS_HOST_DENSE_H
#define HPS_BACKENDS_HOST_DENSE_H

#include "backends/host/kernel.h"
#include "backends/host/rows.h"
#include "base/lock.h"

enum {
    HPS_HOST_DENSE_TRIES = 4, /* of a reader, before it takes the lock */
    /* A range grows over at most this many keys at once, which bounds the work of one write. A
     * larger gap ends the range. */
    HPS_HOST_DENSE_GAP = 1 << 12,
    HPS_HOST_DENSE_HOLES = 256, /* permitted in any range */
};

struct hps_host_dense {
    hps_key first;
    _Atomic(uint64_t) n;        /* numbers in the range, a multiple of HPS_HOST_GROUP_ROWS */
    struct hps_host_rows rows;  /* [n] */
    struct hps_host_rows heads; /* [n / HPS_HOST_GROUP_ROWS] struct hps_host_group */
    _Atomic(uint64_t) n_rows;   /* rows that exist; any thread may read it */
    /* The first n_full rows exist, so that readers need not read their heads. There may be more. */
    _Atomic(uint64_t) n_full;
    uint64_t n_expected; /* rows of the table, when the range began */
    /* The budget may be too small for holes. The range may only have holes that need less memory
     * than an index of its rows. */
    bool tight;
    uint64_t n_far; /* keys refused since the range grew, because they were too far from the end */
    struct hps_lock lock;
    _Alignas(HPS_HOST_LINE_BYTES) _Atomic(uint64_t) writes;
};

/* Whether the first n keys of a table, in ascending order, promise a dense range: there are at
 * least HPS_HOST_GROUP_ROWS of them, and the first half of them fills 80 % of its key range, not
 * counting HPS_HOST_GROUP_ROWS holes. */
bool hps_host_dense_promising(const hps_key *keys, uint32_t n);

/* Upper bound of the bytes that a range and an index of the other keys need in addition to one
 * index of all rows. If the range is not tight, add a quarter of its rows for holes. */
uint64_t hps_host_dense_extra(uint32_t row_bytes, bool tight);

/* Create a range that begins at `first` and has no rows. Fails with EXHAUSTED or NO_MEMORY. */
hps_status hps_host_dense_new(struct hps_host_account *account, uint32_t row_bytes, hps_key first,
                              uint64_t n_expected, bool tight, struct hps_host_dense **out_dense)
    HPS_MUST_CHECK;
/* No thread may use the range any more. No effect if dense is NULL. */
void hps_host_dense_free(struct hps_host_dense *dense);

/* Whether the range has a place for the key. For readers, too. */
static inline bool hps_host_dense_covers(const struct hps_host_dense *dense, hps_key key)
{
    return key - dense->first < atomic_load_explicit(&dense->n, memory_order_acquire);
}

static inline struct hps_host_group *hps_host_dense_group(const struct hps_host_dense *dense,
                                                          uint64_t number)
{
    return (struct hps_host_group *)(void *)dense->heads.area.start + number / HPS_HOST_GROUP_ROWS;
}

/* Number of rows in the range. Any thread. */
static inline uint64_t hps_host_dense_rows(const struct hps_host_dense *dense)
{
    return atomic_load_explicit(&dense->n_rows, memory_order_relaxed);
}

/* Whether the row of a key of the range exists. For readers, too. */
bool hps_host_dense_has(const struct hps_host_dense *dense, hps_key key);

/* Whether the range should grow to `key`, which it does not cover: the key is close to the end, and
 * 80 % of the longer range would have rows, not counting HPS_HOST_DENSE_HOLES. */
bool hps_host_dense_wants(const struct hps_host_dense *dense, hps_key key);
/* Get memory for a range up to `key`, without publishing the new end. Returns the number for
 * hps_host_dense_publish. Until then, only the writer may use the new rows. Fails with EXHAUSTED or
 * NO_MEMORY; the range has not changed. */
hps_status hps_host_dense_grow(struct hps_host_dense *dense, hps_key key, uint64_t *out_n)
    HPS_MUST_CHECK;
void hps_host_dense_publish(struct hps_host_dense *dense, uint64_t n);

/* Write the row of a key. The range covers the key, or has grown to it. Returns whether the row is
 * new. */
bool hps_host_dense_put(struct hps_host_dense *dense, hps_key key, const uint8_t *data);
/* Returns whether there was a row. */
bool hps_host_dense_erase(struct hps_host_dense *dense, hps_key key);
void hps_host_dense_each(const struct hps_host_dense *dense, void (*fn)(void *ctx, hps_key key),
                         void *ctx);

/* ---- readers, inside an epoch ---------------------------------------------------------------- */

/* The notes of the first step. */
struct hps_host_seen {
    uint64_t writes; /* an even number; later writes may have changed the rows */
    /* Of each key: number of its row in the range; HPS_HOST_ROW_NONE: not in the range. */
    uint32_t numbers[HPS_HOST_BLOCK_KEYS];
};

/* Prefetch the rows of the first `n` keys that are in the range, before the first step. */
void hps_host_dense_fetch(const struct hps_host_dense *dense, const struct hps_host_lookup *lookup,
                          const hps_key *keys, uint32_t n);
/* First step: find the rows of a block, as hps_host_kernel.probe does. Keys outside the range are
 * found in the index of `lookup`. Its `note` is HPS_HOST_NOTE_NOTHING or HPS_HOST_NOTE_TOUCH. */
void hps_host_dense_probe(struct hps_host_dense *dense, const struct hps_host_lookup *lookup,
                          const hps_key *keys, struct hps_host_block *block,
                          struct hps_host_seen *seen);
/* Third step: whether no write has changed the rows of keys [lo, hi) of the block since the first
 * step. */
bool hps_host_dense_valid(const struct hps_host_dense *dense, const struct hps_host_seen *seen,
                          uint32_t lo, uint32_t hi);
/* Repeat the second step for keys [lo, hi) until it is valid. `read` reads their rows. */
void hps_host_dense_again(struct hps_host_dense *dense, const struct hps_host_seen *seen,
                          uint32_t lo, uint32_t hi, void (*read)(void *ctx), void *ctx);
/* End the steps of a block. */
void hps_host_dense_leave(struct hps_host_dense *dense);

/* hps_host_lookup_run for a table with a range. */
void hps_host_dense_run(struct hps_host_dense *dense, const struct hps_host_lookup *lookup,
                        const struct hps_host_kernel *kernel, struct hps_batch *batch, uint32_t lo,
                        uint32_t hi);

#endif
