/* SPDX-License-Identifier: Apache-2.0
 *
 * One table of the host map: index, rows, and what waits for its readers to leave. A writer holds
 * `lock`; readers need an epoch and nothing else.
 */
#ifndef HPS_BACKENDS_HOST_TABLE_H
#define HPS_BACKENDS_HOST_TABLE_H

#include "backends/host/evict.h"
#include "backends/host/index.h"
#include "backends/host/kernel.h"
#include "backends/host/limbo.h"
#include "backends/host/rows.h"
#include "base/lock.h"

struct hps_host_table;

/* Whether a table has given way to another. */
enum hps_host_way {
    HPS_HOST_WAY_NONE,  /* there is none that should */
    HPS_HOST_WAY_SOON,  /* its readers or its writer have to leave first */
    HPS_HOST_WAY_GIVEN, /* its memory is free */
};

/* What all tables of a store share. */
struct hps_host_shared {
    struct hps_host_budget budget;
    struct hps_epoch *epoch;
    uint64_t seed; /* clients must not be able to aim at one bucket */
    const struct hps_host_kernel *kernel;
    bool evicts;          /* a store below has every row, or it is */
    bool lossy;           /* for rows_max alone, and for rows that are put, too */
    uint64_t rows_max;    /* of a table that evicts, beside the budget */
    uint64_t rows_target; /* down to which it evicts, bit by bit, once it had rows_max */
    /* Make one give way that has less right to the memory than this table, which lacks it now.
     * Called with the lock of the table held. */
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
    uint64_t n_refused; /* times that the budget had no room, and no other table gave way */
    bool awaits;        /* what it lacks comes back soon: no key need go for it */
    bool draining;      /* from rows_max to rows_target */
    struct hps_host_cursor moved; /* rows that lie where memory is given back, so far */
    atomic_bool clearing;         /* all rows were let go; their memory comes back ... */
    uint64_t clearing_stamp;      /* ... when this has passed */
    atomic_bool active;           /* its version is the one that is served by default */
    atomic_bool touched;          /* finds are noted, for eviction */
    atomic_bool *incomplete;      /* of the space: set before a row is lost */
    _Atomic(uint64_t) n_rows;
    _Atomic(uint64_t) n_dropped; /* of a lossy table: by rows_max, ever */
    _Atomic(uint64_t) n_evicted; /* since it was last asked, those of all rows let go too */
};

/* Rows that a table can have, its spare ones aside: ids are of 32 bits. */
#define HPS_HOST_TABLE_ROWS_MAX (UINT32_MAX - (UINT32_C(1) << 16))

/* What a table with n_rows rows will be charged; UINT64_MAX if it does not fit 64 bits. */
uint64_t hps_host_table_bytes(const struct hps_host_shared *shared, uint32_t row_bytes,
                              uint64_t n_rows);

/* An empty table for about n_rows; sized: its index has room for them. EXHAUSTED, NO_MEMORY. */
hps_status hps_host_table_new(struct hps_host_shared *shared, uint32_t row_bytes, uint64_t n_rows,
                              bool sized, atomic_bool *incomplete,
                              struct hps_host_table **out_table) HPS_MUST_CHECK;
/* No reader or writer is inside. NULL is legal. */
void hps_host_table_free(struct hps_host_table *table);

/* All that follow but _get: with the lock held. */

/* Replace the row of a key that is there, or add one where there is room. EXHAUSTED, NO_MEMORY: a
 * table that evicts does not have the key any more; any other has what it had. EXHAUSTED also where
 * readers still have as many rows as may wait for them: the same call works when they have left. */
hps_status hps_host_table_put(struct hps_host_table *table, hps_key key, const uint8_t *data)
    HPS_MUST_CHECK;
/* Add a key that is not there, evicting others if the table does that; n_evicted is raised by so
 * many. EXHAUSTED, NO_MEMORY: it was left out. */
hps_status hps_host_table_insert(struct hps_host_table *table, hps_key key, const uint8_t *data,
                                 uint32_t *n_evicted) HPS_MUST_CHECK;
void hps_host_table_erase(struct hps_host_table *table, hps_key key);
bool hps_host_table_has(const struct hps_host_table *table, hps_key key);

/* Fetch what the next writes will look at. Call it before that of keys[i], for each i. */
void hps_host_table_fetch(const struct hps_host_table *table, const hps_key *keys, uint32_t n,
                          uint32_t i);

/* Let all rows go, readers undisturbed. _clear_end gives their memory back once the readers have
 * left; until it has returned true the table takes no rows. */
void hps_host_table_clear(struct hps_host_table *table);
bool hps_host_table_clear_end(struct hps_host_table *table);

/* Make the index large enough for n_rows. The lock is taken, and let go between steps. */
hps_status hps_host_table_reserve(struct hps_host_table *table, uint64_t n_rows) HPS_MUST_CHECK;

/* Look up keys [lo, hi) of the batch, where [hi, n) is known to be missing. In an epoch. */
void hps_host_table_get(const struct hps_host_table *table, const struct hps_host_out *out,
                        struct hps_batch *batch, uint32_t lo, uint32_t hi);

static inline uint64_t hps_host_table_rows(const struct hps_host_table *table)
{
    return atomic_load_explicit(&table->n_rows, memory_order_relaxed);
}

#endif
