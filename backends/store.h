/* SPDX-License-Identifier: Apache-2.0
 *
 * The interface of stores. A store holds *spaces*, one for each resident version of a model; a
 * space holds the tables of that version. All calls are synchronous, batched and thread-safe unless
 * stated otherwise. A shared store divides the rows of a space into *shards*; each shard has its
 * own log positions (store_log.h). Only server/main.c names a concrete store.
 *
 * Every store has the calls of `struct hps_store_ops`. Optional calls are grouped in sub-tables. A
 * store that lacks a sub-table has NULL there; otherwise it has all calls of the sub-table:
 *
 *     store_bulk.h     loads
 *     store_durable.h  records, atomic writes
 *     store_log.h      updates of a store that several daemons share
 *     store_limits.h   memory limits and eviction
 *     store_pool.h     pooled rows
 *     store_servers.h  the servers behind a store
 *
 * hps_store_check asserts that calls and capabilities agree.
 */
#ifndef HPS_BACKENDS_STORE_H
#define HPS_BACKENDS_STORE_H

#include <stdatomic.h>

#include "base/arena.h"
#include "base/dtype.h"
#include "base/status.h"
#include "base/types.h"

/* One embedding table of one version. Owned by the version; immutable while the version is
 * resident. */
struct hps_table {
    const char *name;
    uint32_t id;        /* index in the version, and key prefix in stores */
    uint32_t dim;       /* values per row */
    uint32_t row_bytes; /* hps_dtype_row_bytes(dtype, dim) */
    enum hps_dtype dtype;
    uint64_t n_rows;         /* rows loaded from files */
    const void *default_row; /* [row_bytes] */
};

/* Identifies a space. The strings and `tables` are borrowed: see space_open. */
struct hps_space_id {
    const char *model;
    int64_t version;
    const struct hps_table *tables;
    uint32_t n_tables;
    /* Identifies the load of the version's rows. 0: not known. In a shared store, versions with the
     * same number and different load ids have separate rows. */
    uint64_t load_id;
};

/* Context and limits of one call. */
struct hps_call {
    /* Arena of the calling thread. The store uses the heap if it is NULL or full. */
    struct hps_arena *scratch;
    uint64_t deadline_us; /* in time of hps_clock_us; 0: no deadline */
    /* Returns true if the caller no longer needs the result. Long calls of memory stores, such as
     * bags (store_pool.h), call this function at intervals, from any thread. NULL: the call is
     * never cancelled. */
    bool (*cancelled)(const void *ctx);
    const void *cancelled_ctx;
    /* For shared stores, to which other daemons may have applied later updates than this daemon.
     * False: return rows of shards that are at the version's log positions or at later ones. True:
     * return no rows of shards at later positions. Updates applied during the call move the
     * version's positions, so the returned rows may be at different positions. */
    bool exact_position;
    /* The store sets *later to true if returned rows are at later log positions than the version.
     * Otherwise it leaves *later unchanged. May be NULL. */
    bool *later;
};

/* Destination and type of the rows of a call: row i goes to rows + i * stride, as `dim` values of
 * `dtype`. `dtype` is FP32, FP16, BF16 or the type of the table. Rows need no alignment. */
struct hps_shape {
    uint8_t *rows;
    size_t stride; /* bytes; at least the size of one row */
    enum hps_dtype dtype;
};

/* Keys to be looked up. A store swaps each key that it finds to the end and decrements `n`. Let
 * n_before be the value of `n` before the call. Afterwards the found keys are keys[n .. n_before),
 * and their rows have the numbers slots[n .. n_before). */
struct hps_batch {
    hps_key *keys;   /* [n before the call] the call moves found keys to the end */
    uint32_t *slots; /* [n before the call] row number of keys[i], swapped together with keys */
    uint8_t *rows;   /* row number s is at rows + s * row_bytes, in the stored type */
    uint32_t n;      /* keys still missing */
    /* If shape.rows is not NULL, a store with HPS_STORE_SHAPES writes converted rows there. `rows`
     * is then unused and may be NULL. Stores without that capability ignore `shape`. */
    struct hps_shape shape;
};

static inline void hps_batch_swap(struct hps_batch *batch, uint32_t i, uint32_t j)
{
    hps_key key = batch->keys[i];
    uint32_t slot = batch->slots[i];
    batch->keys[i] = batch->keys[j];
    batch->slots[i] = batch->slots[j];
    batch->keys[j] = key;
    batch->slots[j] = slot;
}

/* Mark keys[i] as found: swap it with the last missing key. Afterwards keys[i] is another key. */
static inline void hps_batch_found(struct hps_batch *batch, uint32_t i)
{
    hps_batch_swap(batch, i, --batch->n);
}

/* Decides which rows of an insertion may be inserted. The store calls `fresh` for each key. False:
 * an update may have changed the row since it was read, so the store must not insert it. The
 * callback must be quick and take no lock. cache/version/stamps.h proves that no old row gets in.
 *
 * In a store that is not shared, `fresh` is called under the lock that put and erase take for the
 * key. put and erase take it for each of their keys, even for keys that the store lacks. So an
 * update that comes after the check replaces or erases the row.
 *
 * A shared store has no such lock. Instead, it compares the shard's log positions with the
 * version's positions twice: before it calls `fresh`, and again when it inserts the row. If they
 * differ, the row is not inserted. An update after the first comparison has one of two effects. If
 * it changes the shard before the insertion, it changes the shard's positions, and the row is not
 * inserted. If it changes the shard after the insertion, it replaces or erases the inserted row. */
struct hps_insert_guard {
    /* i: index into the `keys` passed to the insertion. The store may use any order of i. */
    bool (*fresh)(const void *ctx, uint32_t i);
    const void *ctx;
};

/* Result of an insertion: numbers of rows. Rows of keys that the store had already are not
 * counted. */
struct hps_insert_report {
    uint32_t n_inserted;
    uint32_t n_no_capacity; /* not inserted: no space */
    /* Not inserted: rejected by the guard, or their shard is not at the version's log positions. */
    uint32_t n_stale;
    uint32_t n_evicted; /* rows of other keys, evicted to make space */
    uint32_t n_failed;  /* not inserted: their server failed; if all servers fail, the call fails */
};

/* The keys of one table of a request. */
struct hps_part_batch {
    const struct hps_table *table;
    struct hps_batch batch;
};

/* Upserts or deletes of one table. Several writes may be applied together. */
struct hps_write {
    const struct hps_table *table;
    const hps_key *keys; /* [n] unique */
    const uint8_t *rows; /* [n][row_bytes]; NULL: the keys are deleted */
    uint32_t n;
};

struct hps_store_usage {
    uint64_t n_rows; /* of the space */
    /* n_rows is an estimate: a key that was written several times may be counted more than once. */
    bool rows_estimated;
    uint64_t used_bytes;     /* of the space */
    uint64_t capacity_bytes; /* of the whole store; 0: unlimited */
    uint64_t huge_bytes;     /* memory of the space in huge pages; 0 for stores on disk */
    /* Rows lost since the space was opened: a row limit dropped them, and no store below has
     * them. */
    uint64_t n_rows_dropped;
    /* For a shared store that has the only copy of the rows: shards that it has lost. Lookups of
     * their keys fail. */
    uint32_t n_shards_lost;
    /* Damaged pages on disk that lookups and scans have found. Lookups of their keys fail. */
    uint32_t n_pages_damaged;
};

/* Capabilities. A caller must decide by the capabilities of a store, never by its name. */
enum {
    /* The data outlives the process and includes the catalog; ops->durable is set. */
    HPS_STORE_DURABLE = 1,
    HPS_STORE_BLOCKING = 2, /* get may block on I/O; do not call it on a loop thread */
    HPS_STORE_KEEPS = 4,    /* if put has no space for a new row, the key keeps its old row */
    /* Other daemons read and write the store, and it outlives them. It may lose acknowledged
     * writes. Rows change only through log->apply, since put and erase carry no positions. */
    HPS_STORE_SHARED = 8,
    HPS_STORE_INSERTS = 16, /* insert can insert rows; without this, it inserts none */
    HPS_STORE_SCANS = 32,   /* scan is supported; without this, it returns UNIMPLEMENTED */
    HPS_STORE_JOINS = 64,   /* get_many reads all tables at once; without this, one after another */
    HPS_STORE_SHAPES = 128, /* get converts rows to batch->shape, if the caller sets it */
};

struct hps_store;
struct hps_space;
struct hps_store_bulk_ops;
struct hps_store_durable_ops;
struct hps_store_limits_ops;
struct hps_store_log_ops;
struct hps_store_pool_ops;
struct hps_store_servers_ops;

/* Receives n rows of a scan, borrowed for the call. Any status but OK ends the scan. */
typedef hps_status (*hps_rows_fn)(void *ctx, const hps_key *keys, const uint8_t *rows, uint32_t n);

struct hps_store_ops {
    const char *name; /* metric label: "host", "rocksdb", … */
    enum hps_tier_kind tier;
    uint32_t caps; /* HPS_STORE_… */

    /* Sub-tables. NULL: the store does not support these calls. */
    const struct hps_store_bulk_ops *bulk;
    const struct hps_store_durable_ops *durable;
    const struct hps_store_limits_ops *limits;
    const struct hps_store_log_ops *log;
    const struct hps_store_pool_ops *pool;
    const struct hps_store_servers_ops *servers;

    /* Close the store. All its spaces must be closed already. */
    void (*close)(struct hps_store *store);

    /* Open a space; create it if it does not exist. The strings of `id` are borrowed for the call,
     * `id->tables` until the space is closed. EXISTS: a handle of this space is open already. */
    hps_status (*space_open)(struct hps_store *store, const struct hps_space_id *id,
                             struct hps_space **out_space, struct hps_error *err);
    /* Release the handle. A durable or shared store keeps the data; other stores drop it. */
    void (*space_close)(struct hps_space *space);
    /* Delete the data and release the handle. A shared store keeps the data while another daemon
     * has the space open. No other call of this space may be in flight. On an error the handle is
     * released, too, and a durable store may still have the data. */
    hps_status (*space_drop)(struct hps_space *space, struct hps_error *err);
    void (*space_usage)(struct hps_space *space, struct hps_store_usage *out_usage);

    /* Copy the rows that the space has (struct hps_batch). After an error the batch is consistent:
     * found keys stay found. The row of a missing key has undefined content.
     * error   UNAVAILABLE: the caller should query the next lower tier. DEADLINE: the caller should
     *         query no lower tier either. ABORTED: only this store has the rows, and they are at
     *         later log positions than exact_position permits */
    hps_status (*get)(struct hps_space *space, const struct hps_call *call,
                      const struct hps_table *table, struct hps_batch *batch);
    /* Same as get, for several tables. A store with HPS_STORE_JOINS reads all of them at once. */
    hps_status (*get_many)(struct hps_space *space, const struct hps_call *call,
                           struct hps_part_batch *parts, uint32_t n_parts);
    /* Insert n rows that were found in a lower tier. The row of keys[i] is at rows + slots[i] *
     * row_bytes. If the store has a key already, its row stays. Rows that do not fit and rows that
     * `guard` rejects are not inserted, which is no error. *out_report is always set. Only the
     * updater may pass NULL as guard, to insert new rows of its own batch; then no row is
     * rejected. */
    hps_status (*insert)(struct hps_space *space, const struct hps_call *call,
                         const struct hps_table *table, const hps_key *keys, const uint32_t *slots,
                         const uint8_t *rows, uint32_t n, const struct hps_insert_guard *guard,
                         struct hps_insert_report *out_report);
    /* Insert or replace n rows [n][row_bytes]. If a key occurs twice, its last row wins.
     * error   EXHAUSTED: over budget. For keys whose new rows were not written, the store has no
     *         row any more. A store with HPS_STORE_KEEPS still has their old rows instead. If a
     *         store below has the new rows, the caller must erase these keys.
     *         After any other error, a key may have its old row, its new row, or none. */
    hps_status (*put)(struct hps_space *space, const struct hps_call *call,
                      const struct hps_table *table, const hps_key *keys, const uint8_t *rows,
                      uint32_t n);
    /* Delete the rows of n keys. Keys that the store lacks are no error.
     * error   after any error, some keys may still have rows. A store in the memory of this process
     *         never fails */
    hps_status (*erase)(struct hps_space *space, const struct hps_call *call,
                        const struct hps_table *table, const hps_key *keys, uint32_t n);

    /* Pass every row of a table to `fn`, in batches, in ascending order of keys (unsigned). Used to
     * refill higher tiers after a start. `fn` may call functions of the space. A failure of `fn`
     * ends the scan.
     * error   DATA_LOSS: some rows are damaged; UNIMPLEMENTED: the store lacks HPS_STORE_SCANS */
    hps_status (*scan)(struct hps_space *space, const struct hps_table *table, hps_rows_fn fn,
                       void *ctx, struct hps_error *err);
};

struct hps_store {
    const struct hps_store_ops *ops;
};

/* First member of the space struct of each store. */
struct hps_space {
    struct hps_store *store;
    /* True: the store may lack rows that lower stores have, so a miss does not prove that a key is
     * unknown. A store that evicts sets this flag before it first drops a row or fails to put one.
     * So a caller must read the flag after the miss. Before a refill inserts all rows again, it may
     * clear the flag. */
    atomic_bool incomplete;
};

/* Assert that the table of calls and its sub-tables are complete, and that they agree with the
 * capabilities. hps_stores_add calls it for each store. */
void hps_store_check(const struct hps_store_ops *ops);

/* Default implementations for stores. Implements get_many with one get for each table. */
hps_status hps_store_get_each(struct hps_space *space, const struct hps_call *call,
                              struct hps_part_batch *parts, uint32_t n_parts);
/* Implements get with get_many. */
hps_status hps_store_get_one(struct hps_space *space, const struct hps_call *call,
                             const struct hps_table *table, struct hps_batch *batch);
/* insert: inserts no row and counts all of them in n_no_capacity. */
hps_status hps_store_insert_none(struct hps_space *space, const struct hps_call *call,
                                 const struct hps_table *table, const hps_key *keys,
                                 const uint32_t *slots, const uint8_t *rows, uint32_t n,
                                 const struct hps_insert_guard *guard,
                                 struct hps_insert_report *out_report);
/* Implement put and erase with durable->apply. A failure is logged. */
hps_status hps_store_put_applied(struct hps_space *space, const struct hps_call *call,
                                 const struct hps_table *table, const hps_key *keys,
                                 const uint8_t *rows, uint32_t n);
hps_status hps_store_erase_applied(struct hps_space *space, const struct hps_call *call,
                                   const struct hps_table *table, const hps_key *keys, uint32_t n);
/* scan: returns UNIMPLEMENTED. */
hps_status hps_store_scan_none(struct hps_space *space, const struct hps_table *table,
                               hps_rows_fn fn, void *ctx, struct hps_error *err);

#endif
