/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files of the host map:
 *
 *     map.c      the store and its options; lookups, insertions, updates and scans of rows
 *     pool.c     pooled rows: rows are added in place
 *     space.c    spaces: the tables of a version as one set; usage
 *     load.c     loads, which replace the set of a space
 *     share.c    quotas of tables in the budget, and which table loses memory to another
 *
 * table.h is the interface of one table; it includes the headers of a table's parts.
 */
#ifndef HPS_BACKENDS_HOST_INTERNAL_H
#define HPS_BACKENDS_HOST_INTERNAL_H

#include <stdatomic.h>

#include "backends/host/table.h"
#include "backends/store.h"
#include "backends/store_bulk.h"
#include "backends/store_pool.h"
#include "base/assert.h"
#include "base/lock.h"

/* All tables of a space; a load replaces them together. */
struct host_set {
    uint32_t n_tables;
    struct hps_host_table *tables[];
};

struct host_space {
    struct hps_space base;
    char *model;
    int64_t version;
    uint32_t n_tables;
    struct hps_table *tables; /* [n_tables] copies; names are not used */
    /* Threads that write rows hold this lock for reading. A load holds it for writing while it
     * replaces `set`. */
    struct hps_rwlock set_lock;
    _Atomic(struct host_set *) set;

    /* Protected by the store's lock: */
    bool loading; /* a load has begun and not ended */
    bool active;  /* see hps_store_limits_ops.space_active */
    /* The current load, once its tables have been created; otherwise NULL. */
    struct hps_store_load *load;
    struct host_space *next;
};

/* Lock order: set_lock of a space, lock of a table, lock of the store. A thread that holds the
 * store's lock must not wait for the lock of a table (hps_lock_try is allowed). */
struct host_map {
    struct hps_store base;
    struct hps_store_ops ops; /* host_ops with the capabilities of this store */
    struct hps_host_shared shared;
    /* Protects the list of spaces; also held while the `set` of a space is replaced. */
    struct hps_lock lock;
    struct host_space *spaces;
};

struct hps_store_load {
    struct host_space *space;
    struct host_set *set;
    /* A table of this load was cleared to free memory for an active version, so the load must
     * fail. */
    atomic_bool gave_way;
    bool sized;     /* hps_table.n_rows of all tables is the number of their rows */
    bool tight;     /* see host_is_tight */
    bool any;       /* a row was added */
    uint32_t table; /* id of the table of the last added row */
    hps_key key;    /* of the last added row */
};

static inline struct host_map *host_of(struct hps_space *space)
{
    return (struct host_map *)space->store;
}

/* The host table in the current set of a space. The caller must be in an epoch, or ensure that no
 * load is committed concurrently. */
static inline struct hps_host_table *host_table_of(struct hps_space *base,
                                                   const struct hps_table *table)
{
    struct host_space *space = (struct host_space *)base;
    struct host_set *set = atomic_load_explicit(&space->set, memory_order_acquire);
    HPS_ASSERT(table->id < set->n_tables);
    struct hps_host_table *host = set->tables[table->id];
    HPS_ASSERT(host->rows.row_bytes == table->row_bytes);
    return host;
}

/* ---- pool.c ---------------------------------------------------------------------------------- */

hps_status host_bags(struct hps_space *space, const struct hps_call *call,
                     const struct hps_table *table, const struct hps_bags *bags, uint32_t first,
                     uint32_t n) HPS_MUST_CHECK;

/* ---- space.c: calls of struct hps_store_ops, and helpers for loads --------------------------- */

hps_status host_space_open(struct hps_store *store, const struct hps_space_id *id,
                           struct hps_space **out_space, struct hps_error *err) HPS_MUST_CHECK;
void host_space_close(struct hps_space *space);
hps_status host_space_drop(struct hps_space *space, struct hps_error *err) HPS_MUST_CHECK;
void host_space_usage(struct hps_space *space, struct hps_store_usage *out_usage);
uint64_t host_evictions_take(struct hps_space *space, const struct hps_table *table);
void host_refilled(struct hps_space *space, bool failed);
uint64_t host_dense_rows(struct hps_space *space, const struct hps_table *table);
hps_status host_reserve(struct hps_space *space, const struct hps_table *table, const hps_key *keys,
                        uint32_t n, struct hps_error *err) HPS_MUST_CHECK;

/* Create a set of empty host tables for tables[n_tables]. Fails with EXHAUSTED or NO_MEMORY. */
hps_status host_set_new(struct host_map *store, struct host_space *space,
                        const struct hps_table *tables, uint32_t n_tables,
                        struct host_set **out_set) HPS_MUST_CHECK;
/* No thread may use the set any more. No effect if set is NULL. */
void host_set_free(struct host_set *set);
/* How many of n_rows loaded rows a table keeps: at most rows_max if the store is lossy (table.h),
 * otherwise all. */
uint64_t host_rows_kept(const struct hps_host_shared *shared, uint64_t n_rows);
/* Bytes of the tables with the rows they expect, without dense ranges. */
uint64_t host_tables_bytes(const struct host_map *store, const struct hps_table *tables,
                           uint32_t n_tables);
/* Whether dense ranges must not need more memory than indexes would (hps_host_dense.tight). Their
 * holes may need up to a quarter more, and hps_host_dense_extra for each table. needed: without
 * ranges */
bool host_is_tight(const struct hps_table *tables, uint32_t n_tables, uint64_t needed,
                   uint64_t available);
/* Set `err` to a message that there is no memory for `what`. If `status` is EXHAUSTED, the message
 * has the needed bytes, `bytes`, and the available bytes of the budget. Returns `status`. */
hps_status host_fail_budget(struct host_map *store, hps_status status, const char *what,
                            uint64_t bytes, struct hps_error *err);

/* ---- load.c: calls of struct hps_store_bulk_ops ---------------------------------------------- */

hps_status host_load_begin(struct hps_space *space, uint64_t rows_expected, uint64_t bytes_expected,
                           struct hps_store_load **out_load, struct hps_error *err) HPS_MUST_CHECK;
hps_status host_load_add(struct hps_store_load *load, const struct hps_table *table,
                         const hps_key *keys, const uint8_t *rows, uint32_t n,
                         struct hps_error *err) HPS_MUST_CHECK;
hps_status host_load_commit(struct hps_store_load *load, struct hps_error *err) HPS_MUST_CHECK;
void host_load_abort(struct hps_store_load *load);

/* ---- share.c --------------------------------------------------------------------------------- */

/* Compute the quotas of the tables again. The tables of active versions have quotas only if they do
 * not all fit the budget. Without quotas, the tables that are used first would take the whole
 * budget. Caller must hold the store's lock. */
void host_shares_update(struct host_map *store);
void host_space_active(struct hps_space *space, bool active);
/* The callback give_way of struct hps_host_shared: clear another table to free memory for `table`.
 * Tables that are being cleared already are chosen first, then tables of inactive versions, then
 * tables far above their quota. If the chosen table belongs to a load, that load fails. Takes the
 * store's lock. */
enum hps_host_way host_give_way(struct hps_host_shared *shared, const struct hps_host_table *table);

#endif
