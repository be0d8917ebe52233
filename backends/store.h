/* SPDX-License-Identifier: Apache-2.0
 *
 * The interface of stores. A store holds *spaces*, one for each resident version of a model; a
 * space holds the tables of that version. All calls are synchronous, batched and thread-safe unless
 * stated otherwise. Only server/main.c names a concrete store.
 *
 * Every store has the calls of `struct hps_store_ops`. Optional features are in sub-tables, each
 * complete or NULL: store_bulk.h (loads), store_durable.h (records, atomic writes), store_log.h
 * (updates of a shared store), store_limits.h (limits in memory, eviction), store_pool.h (pooled
 * answers) and store_servers.h (the servers of a store). hps_store_check asserts that calls and
 * capabilities agree.
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

/* Identifies a space. Strings are borrowed for the call. */
struct hps_space_id {
    const char *model;
    int64_t version;
    const struct hps_table *tables;
    uint32_t n_tables;
    /* Identifies the load of the rows; 0: not known. In a shared store, versions with the same
     * number and different load ids have separate rows. */
    uint64_t load_id;
};

/* Context and limits of one call. */
struct hps_call {
    struct hps_arena *scratch; /* of the calling thread; NULL or full: the store uses the heap */
    uint64_t deadline_us;      /* hps_clock_us, 0 = none */
    /* True if the caller no longer needs the answer. Checked now and then by calls that may take
     * long in a store in memory, such as bags (store_pool.h), from any thread. NULL: never
     * cancelled. */
    bool (*cancelled)(const void *ctx);
    const void *cancelled_ctx;
    /* For shared stores, whose rows may be newer than this version. True: return only rows at
     * exactly the positions that log->positions_set and log->apply had reached at some moment of
     * the call. A caller that needs rows of one moment must check for batches in between. False:
     * rows at later positions are returned, too. */
    bool exact_position;
    bool *later; /* set to true if the answer may be of later positions; may be NULL */
};

/* Where a caller wants rows, and in which type: row i goes to rows + i * stride, as `dim` values of
 * `dtype`. `dtype` is FP32, FP16, BF16 or the type of the table. Rows need no alignment. */
struct hps_shape {
    uint8_t *rows;
    size_t stride; /* bytes; at least the size of one row */
    enum hps_dtype dtype;
};

/* Keys to be looked up. A store swaps each key that it answers to the end and decrements `n`.
 * Afterwards keys[n .. n_before) and slots[n .. n_before) are exactly the keys that this store
 * answered. */
struct hps_batch {
    hps_key *keys;   /* [n on entry] reordered: missing keys first, found keys after them */
    uint32_t *slots; /* [n on entry] row number in `rows` of keys[i] */
    uint8_t *rows;   /* row i, in the stored type, at rows + i * row_bytes */
    uint32_t n;      /* keys still missing */
    /* If shape.rows is not NULL, a store with HPS_STORE_SHAPES writes converted rows there. `rows`
     * is then unused and may be NULL. Stores without that capability ignore `shape`. */
    struct hps_shape shape;
};

/* Mark keys[i] as answered: swap it with the last missing key. Afterwards keys[i] is another
 * key. */
static inline void hps_batch_found(struct hps_batch *batch, uint32_t i)
{
    uint32_t last = --batch->n;
    hps_key key = batch->keys[i];
    uint32_t slot = batch->slots[i];
    batch->keys[i] = batch->keys[last];
    batch->slots[i] = batch->slots[last];
    batch->keys[last] = key;
    batch->slots[last] = slot;
}

/* Decides which rows of an insertion may be inserted. Called for each key under the lock that put
 * and erase take for that key. False: an update may have changed the row since it was read; insert
 * must leave it out. The callback must be quick and take no lock.
 *
 * put and erase must take this lock for every key given, also for keys the store lacks. So an
 * update that comes after the check replaces or erases the row. A shared store has no such lock. It
 * inserts a row only if its shard is still at the positions that it had before the check
 * (redis/insert.c). */
struct hps_insert_guard {
    bool (*fresh)(const void *ctx, uint32_t i); /* i: index into the keys of the insertion */
    const void *ctx;
};

/* Result of an insertion. Keys that the store had already are not counted. */
struct hps_insert_report {
    uint32_t n_inserted;
    uint32_t n_no_room;
    uint32_t n_stale;
    uint32_t n_evicted; /* other keys, evicted to make space */
    uint32_t n_failed; /* not taken by servers that failed; if all of them failed, the call fails */
};

/* The keys of one table of a request. */
struct hps_part_batch {
    const struct hps_table *table;
    struct hps_batch batch;
};

/* Rows or deletes of one table; one of several writes that are applied together. */
struct hps_write {
    const struct hps_table *table;
    const hps_key *keys; /* [n] unique */
    const uint8_t *rows; /* [n][row_bytes]; NULL: the keys are deleted */
    uint32_t n;
};

struct hps_store_usage {
    uint64_t n_rows; /* of the space */
    /* n_rows is an estimate; several writes of a key may count more than once. */
    bool rows_estimated;
    uint64_t used_bytes;     /* of the space */
    uint64_t capacity_bytes; /* of the whole store; 0: unlimited */
    uint64_t huge_bytes;     /* of the space, in memory areas with huge pages (memory tiers) */
    /* Rows of the space that a row limit dropped although no store below has them, since it was
     * opened. */
    uint64_t n_rows_dropped;
    /* Of a shared store that has the only copy; lookups of these shards fail. */
    uint32_t n_shards_lost;
};

/* Capabilities. Callers of a store decide by these, never by its name. */
enum {
    HPS_STORE_DURABLE = 1,  /* survives the process; has `durable` (it holds the catalog) */
    HPS_STORE_BLOCKING = 2, /* get may block on I/O; do not call it on a loop thread */
    HPS_STORE_KEEPS = 4,    /* a put without space for a row keeps the old row of its key */
    /* Other daemons read and write the store, and it outlives them. It may lose acknowledged
     * writes. Rows change only through log->apply, since put and erase carry no positions. */
    HPS_STORE_SHARED = 8,
    HPS_STORE_INSERTS = 16, /* insert takes rows; otherwise it leaves out all of them */
    HPS_STORE_SCANS = 32,   /* scan works; otherwise it returns UNIMPLEMENTED */
    HPS_STORE_JOINS = 64,   /* get_many is one read for all tables */
    HPS_STORE_SHAPES = 128, /* get writes rows to batch->shape if the caller sets it */
};

struct hps_store;
struct hps_space;
struct hps_store_bulk_ops;
struct hps_store_durable_ops;
struct hps_store_limits_ops;
struct hps_store_log_ops;
struct hps_store_pool_ops;
struct hps_store_servers_ops;

/* Receives rows of a scan, borrowed for the call. Any status but OK ends the scan. */
typedef hps_status (*hps_rows_fn)(void *ctx, const hps_key *keys, const uint8_t *rows, uint32_t n);

struct hps_store_ops {
    const char *name; /* metric label: "host", "rocksdb", … */
    enum hps_tier_kind tier;
    uint32_t caps; /* HPS_STORE_… */

    /* Optional calls. NULL: not supported; otherwise every call of the sub-table is set. */
    const struct hps_store_bulk_ops *bulk;
    const struct hps_store_durable_ops *durable;
    const struct hps_store_limits_ops *limits;
    const struct hps_store_log_ops *log;
    const struct hps_store_pool_ops *pool;
    const struct hps_store_servers_ops *servers;

    /* All spaces must be closed. */
    void (*close)(struct hps_store *store);

    /* Open a space; create it if it does not exist. EXISTS: a handle is open already. */
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
     * answered keys stay answered. The row of a missing key has undefined content.
     * error   UNAVAILABLE: skip this tier; DEADLINE: skip all further tiers; ABORTED: only this
     *         store has the rows, and they are of later positions than exact_position permits */
    hps_status (*get)(struct hps_space *space, const struct hps_call *call,
                      const struct hps_table *table, struct hps_batch *batch);
    /* Same as get, for several tables. A store with HPS_STORE_JOINS reads all of them at once. */
    hps_status (*get_many)(struct hps_space *space, const struct hps_call *call,
                           struct hps_part_batch *parts, uint32_t n_parts);
    /* Insert rows that were found in a lower tier; the row of keys[i] is at rows + slots[i] *
     * row_bytes. If the store has a key already, its row stays. Rows that do not fit, and rows that
     * `guard` rejects, are left out; that is not an error. guard NULL: insert all rows. *out_report
     * is always set. */
    hps_status (*insert)(struct hps_space *space, const struct hps_call *call,
                         const struct hps_table *table, const hps_key *keys, const uint32_t *slots,
                         const uint8_t *rows, uint32_t n, const struct hps_insert_guard *guard,
                         struct hps_insert_report *out_report);
    /* Insert or replace n rows [n][row_bytes]. If a key is given twice, the last row wins.
     * error   EXHAUSTED: over budget. The store then has no row at all for the keys that it did not
     *         write, so no old row either. A store with HPS_STORE_KEEPS has their old rows: erase
     *         them if a store below has the new ones. */
    hps_status (*put)(struct hps_space *space, const struct hps_call *call,
                      const struct hps_table *table, const hps_key *keys, const uint8_t *rows,
                      uint32_t n);
    hps_status (*erase)(struct hps_space *space, const struct hps_call *call,
                        const struct hps_table *table, const hps_key *keys, uint32_t n);

    /* Pass every row of a table to `fn`, in key order and in batches. Used to refill higher tiers
     * after a start. `fn` may call the space. A failure of `fn` ends the scan.
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
    /* Set by a store that evicts, before it first drops a row or leaves out a put row. From then on
     * a miss says nothing about the stores below. Read it after the miss. A caller that refills an
     * empty space may clear it first. */
    atomic_bool incomplete;
};

/* Assert that the table of calls and its sub-tables are complete, and that they agree with the
 * capabilities. hps_stores_add calls it for each store. */
void hps_store_check(const struct hps_store_ops *ops);

/* Default implementations for stores. get_many: one get for each table. */
hps_status hps_store_get_each(struct hps_space *space, const struct hps_call *call,
                              struct hps_part_batch *parts, uint32_t n_parts);
/* insert: leaves out all rows and counts them in n_no_room. */
hps_status hps_store_insert_none(struct hps_space *space, const struct hps_call *call,
                                 const struct hps_table *table, const hps_key *keys,
                                 const uint32_t *slots, const uint8_t *rows, uint32_t n,
                                 const struct hps_insert_guard *guard,
                                 struct hps_insert_report *out_report);
/* scan: returns UNIMPLEMENTED. */
hps_status hps_store_scan_none(struct hps_space *space, const struct hps_table *table,
                               hps_rows_fn fn, void *ctx, struct hps_error *err);

#endif
