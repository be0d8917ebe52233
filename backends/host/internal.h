/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files of the host map:
 *
 *     map.c      the store and its options; lookups, insertions, updates and scans of rows
 *     pool.c     pooled answers: rows are summed in place
 *     space.c    spaces: the tables of a version as one set; usage
 *     load.c     loads, which replace the set of a space
 *     share.c    shares of the budget, and which table loses memory to another
 *
 * A table and its parts have headers of their own, from table.h on.
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
    struct hps_table *tables;   /* [n_tables] copies; names are not used */
    struct hps_rwlock set_lock; /* shared: writers; exclusive: while `set` is replaced */
    _Atomic(struct host_set *) set;
    bool loading; /* protected by the store's lock, like the next three */
    bool active;
    struct hps_store_load *load; /* a load with rows that are not in `set` yet */
    struct host_space *next;
};

/* Lock order: set_lock of a space, lock of a table, lock of the store. The holder of the store's
 * lock may only try locks of tables. */
struct host_map {
    struct hps_store base;
    struct hps_store_ops ops; /* host_ops with the capabilities of this store */
    struct hps_host_shared shared;
    struct hps_lock lock; /* protects the list of spaces; held while the `set` of one is replaced */
    struct host_space *spaces;
};

struct hps_store_load {
    struct host_space *space;
    struct host_set *set;
    atomic_bool gave_way; /* some of its rows were removed for an active version */
    bool any;             /* a row was added; the next two fields are its place */
    uint32_t table;
    hps_key key;
};

static inline struct host_map *host_of(struct hps_space *space)
{
    return (struct host_map *)space->store;
}

/* The current table. For a reader in an epoch, or while no load can be committed. */
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
hps_status host_reserve(struct hps_space *space, struct hps_error *err) HPS_MUST_CHECK;

/* Create a set of empty tables for the space, [n_tables]. sized: allocate the indexes for the
 * expected rows. EXHAUSTED; NO_MEMORY */
hps_status host_set_new(struct host_map *store, struct host_space *space,
                        const struct hps_table *tables, uint32_t n_tables, bool sized,
                        struct host_set **out_set) HPS_MUST_CHECK;
/* No reader or writer may be inside. NULL: no effect. */
void host_set_free(struct host_set *set);
/* How many of n_rows rows a table keeps in the end. */
uint64_t host_rows_kept(const struct hps_host_shared *shared, uint64_t n_rows);
/* Set `err` to say that there is no memory for `what`, which needs `bytes`. Returns `status`.
 * EXHAUSTED: the budget lacks the bytes. */
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

/* Recompute the shares. If the active tables do not all fit, each has a share. Without shares the
 * first table used would take the whole budget. Caller must hold the store's lock. */
void host_shares_update(struct host_map *store);
void host_space_active(struct hps_space *space, bool active);
/* For struct hps_host_shared: clear the table with the lowest claim, to free memory for `table`.
 * Takes the store's lock. If the table belongs to a load, that load fails. */
enum hps_host_way host_give_way(struct hps_host_shared *shared, const struct hps_host_table *table);

#endif
