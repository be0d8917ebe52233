/* SPDX-License-Identifier: Apache-2.0
 *
 * What a store is to the rest of hpsd. A store holds *spaces*, one per resident version of a model;
 * a space holds that version's tables. All calls are synchronous and batched, and may be made by
 * any thread at the same time, unless said otherwise. Only server/main.c names a concrete store.
 *
 * The calls of `struct hps_store_ops` are those that every store has. What only some can do is in
 * sub-tables, each whole or NULL: store_bulk.h (loads), store_durable.h (records, atomic writes),
 * store_log.h (updates of a store that is shared), store_limits.h (rows that give way to others),
 * store_pool.h (pooled answers) and store_servers.h (servers that it is made of). hps_store_check
 * checks that the calls and the capabilities of a store agree.
 */
#ifndef HPS_BACKENDS_STORE_H
#define HPS_BACKENDS_STORE_H

#include <stdatomic.h>

#include "base/arena.h"
#include "base/dtype.h"
#include "base/status.h"
#include "base/types.h"

/* One embedding table of one version. Owned by the version; immutable while it is resident. */
struct hps_table {
    const char *name;
    uint32_t id;        /* index in the version, and its key prefix in stores */
    uint32_t dim;       /* values per row */
    uint32_t row_bytes; /* hps_dtype_row_bytes(dtype, dim) */
    enum hps_dtype dtype;
    uint64_t n_rows;         /* rows loaded from files */
    const void *default_row; /* [row_bytes] */
};

/* Names a space. Strings are borrowed for the call. */
struct hps_space_id {
    const char *model;
    int64_t version;
    const struct hps_table *tables;
    uint32_t n_tables;
    /* Of the rows that were loaded, 0: not known. In a shared store versions of one number whose
     * load ids differ have separate rows. */
    uint64_t load_id;
};

/* What a call may cost. */
struct hps_call {
    struct hps_arena *scratch; /* of the calling thread; NULL or full: the store uses the heap */
    uint64_t deadline_us;      /* hps_clock_us, 0 = none */
    /* Is the answer not wanted any longer? Asked now and then by a store in memory, where a call
     * can be long: of bags (store_pool.h). By any thread. NULL: it is wanted. */
    bool (*cancelled)(const void *ctx);
    const void *cancelled_ctx;
    /* Of a shared store: rows that are exactly of the positions that log->positions_set and
     * log->apply have made known, at some time during the call: whoever wants them of one time
     * looks whether batches came meanwhile. Otherwise they may be of later ones. */
    bool exact_position;
    bool *later; /* set to true if what was found, or was not, may be of them; NULL: nobody asks */
};

/* Rows as whoever asked wants them: row i at rows + i * stride, its `dim` values as `dtype`, which
 * is FP32, FP16, BF16 or what the table has. A place of a row may be at any address. */
struct hps_shape {
    uint8_t *rows;
    size_t stride; /* bytes, at least those of one row */
    enum hps_dtype dtype;
};

/* Keys still to be found. A store swaps each key it answers behind `n`, so that afterwards
 * keys[n .. n_before) and slots[n .. n_before) are just what this store found. */
struct hps_batch {
    hps_key *keys;   /* [n on entry] permuted: missing first, found behind */
    uint32_t *slots; /* [n on entry] row number in `rows` of keys[i] */
    uint8_t *rows;   /* row i, as it is stored, at rows + i * row_bytes */
    uint32_t n;      /* still missing */
    /* shape.rows not NULL: of a store with HPS_STORE_SHAPES rows go there, converted, and not to
     * `rows`, which may be NULL. Any other store knows nothing of it. */
    struct hps_shape shape;
};

/* Move keys[i] behind the missing ones: it has been answered. The key now at i is a new one. */
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

/* Which of the rows found below may still be inserted: false for one that an update has overtaken.
 * Asked under the lock that a put or erase of the key takes; it must be quick and take no lock. */
struct hps_insert_guard {
    bool (*fresh)(const void *ctx, uint32_t i); /* i: index into the keys of the insertion */
    const void *ctx;
};

/* What became of an insertion; keys that were there already are in neither. */
struct hps_insert_report {
    uint32_t n_inserted;
    uint32_t n_no_room;
    uint32_t n_stale;
    uint32_t n_evicted; /* others that went for those that came in */
    uint32_t n_failed;  /* that some of its servers did not take; where all failed the call does */
};

/* Keys of one table of a request. */
struct hps_part_batch {
    const struct hps_table *table;
    struct hps_batch batch;
};

/* Rows or deletes of one table, of one write of several. */
struct hps_write {
    const struct hps_table *table;
    const hps_key *keys; /* [n] unique */
    const uint8_t *rows; /* [n][row_bytes]; NULL: the keys are deleted */
    uint32_t n;
};

struct hps_store_usage {
    uint64_t n_rows;         /* of the space */
    bool rows_estimated;     /* the store cannot count, and writes of a key may count twice */
    uint64_t used_bytes;     /* of the space */
    uint64_t capacity_bytes; /* of the whole store, 0 = unbounded */
    uint64_t huge_bytes;     /* of the space, in areas that have huge pages (memory tiers) */
    /* of the space, let go by a limit in rows though no store below has them; since it was opened
     */
    uint64_t n_rows_dropped;
    uint32_t n_shards_lost; /* of a shared store that has the only copy: look-ups there fail */
};

/* Capabilities: what the callers of a store decide by, instead of its name. */
enum {
    HPS_STORE_DURABLE = 1,  /* survives the process; has `durable` (the catalog lives there) */
    HPS_STORE_BLOCKING = 2, /* get may block on I/O: not on a loop thread */
    HPS_STORE_KEEPS = 4,    /* a put that finds no room leaves the keys the rows that they had */
    /* Other daemons read and write it, it outlives them, and it may lose what it has acknowledged:
     * rows change by log->apply alone, as put and erase do not say of which position they are. */
    HPS_STORE_SHARED = 8,
    HPS_STORE_INSERTS = 16, /* insert takes rows; else it leaves out all of them */
    HPS_STORE_SCANS = 32,   /* scan goes over all rows; else it is refused */
    HPS_STORE_JOINS = 64,   /* get_many is one read, not one for each table */
    HPS_STORE_SHAPES = 128, /* get writes rows to batch->shape, if that is asked for */
};

struct hps_store;
struct hps_space;
struct hps_store_bulk_ops;
struct hps_store_durable_ops;
struct hps_store_limits_ops;
struct hps_store_log_ops;
struct hps_store_pool_ops;
struct hps_store_servers_ops;

/* Called with rows of a scan, which are borrowed; a status other than OK ends the scan. */
typedef hps_status (*hps_rows_fn)(void *ctx, const hps_key *keys, const uint8_t *rows, uint32_t n);

struct hps_store_ops {
    const char *name; /* metric label: "host", "rocksdb", … */
    enum hps_tier_kind tier;
    uint32_t caps; /* HPS_STORE_… */

    /* What only some stores can do. NULL: this one cannot; else all of the calls are there. */
    const struct hps_store_bulk_ops *bulk;
    const struct hps_store_durable_ops *durable;
    const struct hps_store_limits_ops *limits;
    const struct hps_store_log_ops *log;
    const struct hps_store_pool_ops *pool;
    const struct hps_store_servers_ops *servers;

    /* Every space must have been closed. */
    void (*close)(struct hps_store *store);

    /* Open the space, making it if it does not exist. EXISTS: there is an open handle already. */
    hps_status (*space_open)(struct hps_store *store, const struct hps_space_id *id,
                             struct hps_space **out_space, struct hps_error *err);
    /* Release the handle; what is stored stays in a durable or shared store, and is gone from any
     * other. */
    void (*space_close)(struct hps_space *space);
    /* Delete what is stored, but from a shared store only if no other daemon has the space open,
     * and release the handle. No call of this space may be under way. On an error the handle is
     * gone too, and what a durable store has may still be there. */
    hps_status (*space_drop)(struct hps_space *space, struct hps_error *err);
    void (*space_usage)(struct hps_space *space, struct hps_store_usage *out_usage);

    /* Copy the rows of the keys that the space has (see struct hps_batch). On an error the batch is
     * consistent: answered keys stay answered; in the place of a row that is missing there may be
     * anything. UNAVAILABLE: skip this tier. DEADLINE: ask no further one. ABORTED: nothing else
     * has the rows, and there they are of later positions than exact_position wants. */
    hps_status (*get)(struct hps_space *space, const struct hps_call *call,
                      const struct hps_table *table, struct hps_batch *batch);
    /* The same for several tables; of one that JOINS, all of them at once. */
    hps_status (*get_many)(struct hps_space *space, const struct hps_call *call,
                           struct hps_part_batch *parts, uint32_t n_parts);
    /* Insert rows that were found below, the one of keys[i] at rows + slots[i] * row_bytes; of a
     * key that is there already the row stays. What has no room, or is not fresh by `guard` (NULL:
     * all is), is left out, which is no error. out_report: set in any case */
    hps_status (*insert)(struct hps_space *space, const struct hps_call *call,
                         const struct hps_table *table, const hps_key *keys, const uint32_t *slots,
                         const uint8_t *rows, uint32_t n, const struct hps_insert_guard *guard,
                         struct hps_insert_report *out_report);
    /* Insert or replace n rows [n][row_bytes]; of a key given twice the last one stays. EXHAUSTED:
     * over budget; then the keys that were not written are not in the store with an older row
     * either, unless it is one that KEEPS them: erase them there if a store below it has the new
     * rows. */
    hps_status (*put)(struct hps_space *space, const struct hps_call *call,
                      const struct hps_table *table, const hps_key *keys, const uint8_t *rows,
                      uint32_t n);
    hps_status (*erase)(struct hps_space *space, const struct hps_call *call,
                        const struct hps_table *table, const hps_key *keys, uint32_t n);

    /* Every row of a table in key order, in batches: to refill tiers above after a start. `fn` may
     * ask the space for rows itself; its failure ends the scan.
     * error   DATA_LOSS: some of it is damaged; UNIMPLEMENTED: this store cannot (HPS_STORE_SCANS)
     */
    hps_status (*scan)(struct hps_space *space, const struct hps_table *table, hps_rows_fn fn,
                       void *ctx, struct hps_error *err);
};

struct hps_store {
    const struct hps_store_ops *ops;
};

/* First member of a store's own space struct. */
struct hps_space {
    struct hps_store *store;
    /* Set by a store that evicts, before it first lets a row go or leaves out one that was put: a
     * miss proves nothing about the stores below any more. So ask for it after the miss. Whoever
     * refills an empty space may clear it before. */
    atomic_bool incomplete;
};

/* Assert that the table of calls is complete, that each of its sub-tables is, and that they agree
 * with its capabilities. Whoever adds a store to others checks it so. */
void hps_store_check(const struct hps_store_ops *ops);

/* Calls of a store that has nothing better. get_many: table by table. */
hps_status hps_store_get_each(struct hps_space *space, const struct hps_call *call,
                              struct hps_part_batch *parts, uint32_t n_parts);
/* insert: leaves out all rows, for want of room. */
hps_status hps_store_insert_none(struct hps_space *space, const struct hps_call *call,
                                 const struct hps_table *table, const hps_key *keys,
                                 const uint32_t *slots, const uint8_t *rows, uint32_t n,
                                 const struct hps_insert_guard *guard,
                                 struct hps_insert_report *out_report);
/* scan: UNIMPLEMENTED. */
hps_status hps_store_scan_none(struct hps_space *space, const struct hps_table *table,
                               hps_rows_fn fn, void *ctx, struct hps_error *err);

#endif
