/* SPDX-License-Identifier: Apache-2.0
 *
 * One table of the host map: index, rows, and old data that readers may still see; and a dense
 * range (dense.h), if there is one. A writer holds `lock`. A reader holds no lock, but is in an
 * epoch.
 */
#ifndef HPS_BACKENDS_HOST_TABLE_H
#define HPS_BACKENDS_HOST_TABLE_H

#include "backends/host/dense.h"
#include "backends/host/evict.h"
#include "backends/host/index.h"
#include "backends/host/kernel.h"
#include "backends/host/limbo.h"
#include "backends/host/rows.h"
#include "base/lock.h"

struct hps_host_table;

/* Result of an attempt to free the memory of another table. */
enum hps_host_way {
    HPS_HOST_WAY_NONE,  /* no other table should or can be cleared now */
    HPS_HOST_WAY_SOON,  /* memory will be free once readers or a writer have left another table */
    HPS_HOST_WAY_GIVEN, /* the memory of another table is free now */
};

/* Shared by all tables of a store. */
struct hps_host_shared {
    struct hps_host_budget budget;
    struct hps_epoch *epoch;
    uint64_t seed; /* secret, so that clients cannot choose keys of one bucket */
    const struct hps_host_kernel *kernel;
    bool evicts; /* tables may evict: a store below has every row, or `lossy` is set */
    /* No store below has the rows. A table that has reached rows_max evicts rows during insertions
     * and puts. If `lossy` is not set, tables evict rows only during insertions. */
    bool lossy;
    bool dense;        /* tables may have a dense range */
    uint64_t rows_max; /* limit of the rows of each table, in addition to the budget */
    /* A table that has reached rows_max evicts rows gradually, down to this number. */
    uint64_t rows_target;
    /* Clear another table, which share.c chooses, to free memory for `table`. The caller holds the
     * lock of `table`. */
    enum hps_host_way (*give_way)(struct hps_host_shared *shared,
                                  const struct hps_host_table *table);
};

struct hps_host_table {
    struct hps_host_shared *shared;
    struct hps_lock lock;
    struct hps_host_account account;
    struct hps_host_index index;
    struct hps_host_rows rows;
    struct hps_host_limbo limbo;
    struct hps_host_evict evict;
    _Atomic(struct hps_host_dense *) dense; /* NULL: all rows are in the index */
    struct hps_host_dense *dense_cleared;   /* removed by a clear, and not freed yet */
    uint64_t n_refused; /* times that the budget was full and no other table was cleared */
    /* Memory will be free soon, so evicting a key now is unnecessary. */
    bool awaits;
    bool draining;                /* evicting from rows_max to rows_target */
    struct hps_host_cursor moved; /* progress of moving rows below the limit (rows.h) */
    atomic_bool clearing;         /* all rows were removed, but their memory is not free yet */
    uint64_t clearing_stamp;      /* that memory can be freed once this epoch stamp has passed */
    atomic_bool active;           /* its version is the active one */
    atomic_bool touched;          /* readers count hits, for eviction */
    atomic_bool *incomplete;      /* hps_space.incomplete of its space */
    _Atomic(uint64_t) n_rows;
    /* Total of rows that a lossy table has dropped because of rows_max. */
    _Atomic(uint64_t) n_dropped;
    /* Rows evicted since evictions_take was last called, including rows removed by a clear. */
    _Atomic(uint64_t) n_evicted;
};

/* Limit of rows of a table. Row ids have 32 bits, and some are kept for spare rows. */
#define HPS_HOST_TABLE_ROWS_MAX (UINT32_MAX - (UINT32_C(1) << 16))

/* Bytes charged to the budget for a table with n_rows rows; UINT64_MAX if the number does not fit
 * 64 bits. */
uint64_t hps_host_table_bytes(const struct hps_host_shared *shared, uint32_t row_bytes,
                              uint64_t n_rows);

/* Create an empty table for about n_rows rows. Fails with EXHAUSTED or NO_MEMORY. */
hps_status hps_host_table_new(struct hps_host_shared *shared, uint32_t row_bytes, uint64_t n_rows,
                              atomic_bool *incomplete, struct hps_host_table **out_table)
    HPS_MUST_CHECK;
/* No thread may use the table any more. No effect if table is NULL. */
void hps_host_table_free(struct hps_host_table *table);

/* The caller must hold the lock for the functions below, with these exceptions:
 * hps_host_table_prepare takes the lock; hps_host_table_get, hps_host_table_rows and
 * hps_host_table_dense need no lock. */

/* Replace the row of a key, or add the key if there is space.
 * error   EXHAUSTED, NO_MEMORY: a table that evicts and is not lossy no longer has the key; any
 *         other table keeps the old row of the key. EXHAUSTED can also mean that readers still hold
 *         as many old rows as permitted. In that case the call works once these readers have
 *         left. */
hps_status hps_host_table_put(struct hps_host_table *table, hps_key key, const uint8_t *data)
    HPS_MUST_CHECK;
/* Add a key that the table lacks. A table that evicts may evict other keys for it, and adds their
 * number to *n_evicted. EXHAUSTED, NO_MEMORY: the key was not added. */
hps_status hps_host_table_insert(struct hps_host_table *table, hps_key key, const uint8_t *data,
                                 uint32_t *n_evicted) HPS_MUST_CHECK;
void hps_host_table_erase(struct hps_host_table *table, hps_key key);
/* Whether the table has the key, before an insertion. The dense range may grow to the key, so that
 * a refill also moves keys that lookups have inserted into the index. */
bool hps_host_table_has(struct hps_host_table *table, hps_key key);

/* Prefetch index buckets for a loop that writes keys[n]. The loop calls this function before it
 * writes keys[i]. */
void hps_host_table_fetch(const struct hps_host_table *table, const hps_key *keys, uint32_t n,
                          uint32_t i);

/* Remove all rows. Readers in an epoch may still see them. The table accepts no rows until
 * hps_host_table_clear_end has returned true. */
void hps_host_table_clear(struct hps_host_table *table);
/* Free the memory of the rows that hps_host_table_clear removed. False: readers may still see these
 * rows; call again later. */
bool hps_host_table_clear_end(struct hps_host_table *table);

/* Prepare the table for about n_rows rows in ascending order of keys. keys[n]: the first of them,
 * or none. If they promise a dense range, it begins at keys[0]. Otherwise the index becomes large
 * enough for n_rows. tight: see hps_host_dense. Takes the lock, and releases it between steps.
 * Fails with EXHAUSTED or NO_MEMORY. */
hps_status hps_host_table_prepare(struct hps_host_table *table, uint64_t n_rows,
                                  const hps_key *keys, uint32_t n, bool tight) HPS_MUST_CHECK;

/* The dense range, or NULL. The caller is in an epoch, or holds the lock. */
static inline struct hps_host_dense *hps_host_table_dense(const struct hps_host_table *table)
{
    return atomic_load_explicit(&table->dense, memory_order_acquire);
}

/* Look up keys [lo, hi) of the batch. The keys [hi, batch->n) are known to be missing. The caller
 * must be in an epoch. */
void hps_host_table_get(const struct hps_host_table *table, const struct hps_host_out *out,
                        struct hps_batch *batch, uint32_t lo, uint32_t hi);

/* Number of rows in the table. If the caller does not hold the lock, a writer may have changed the
 * number already when the call returns. */
static inline uint64_t hps_host_table_rows(const struct hps_host_table *table)
{
    return atomic_load_explicit(&table->n_rows, memory_order_relaxed);
}

#endif
