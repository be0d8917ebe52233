/* SPDX-License-Identifier: Apache-2.0
 *
 * What a store is to the rest of hpsd. A store holds *spaces*, one per resident version of a model;
 * a space holds that version's tables. All calls are synchronous and batched, and may be made by
 * any thread at the same time, unless said otherwise. Only server/main.c names a concrete store.
 */
#ifndef HPS_BACKENDS_STORE_H
#define HPS_BACKENDS_STORE_H

#include <stdatomic.h>

#include "base/arena.h"
#include "base/status.h"
#include "base/types.h"

/* One embedding table of one version. Owned by the version; immutable while it is resident. */
struct hps_table {
    const char *name;
    uint32_t id;        /* index in the version, and its key prefix in stores */
    uint32_t dim;       /* values per row */
    uint32_t row_bytes; /* dim * bytes of dtype */
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
};

/* What a call may cost. */
struct hps_call {
    struct hps_arena *scratch; /* of the calling thread; NULL or full: the store uses the heap */
    uint64_t deadline_us;      /* hps_clock_us, 0 = none */
};

/* Keys still to be found. A store swaps each key it answers behind `n`, so that afterwards
 * keys[n .. n_before) and slots[n .. n_before) are just what this store found. */
struct hps_batch {
    hps_key *keys;   /* [n on entry] permuted: missing first, found behind */
    uint32_t *slots; /* [n on entry] row number in `rows` of keys[i] */
    uint8_t *rows;   /* row i at rows + i * row_bytes */
    uint32_t n;      /* still missing */
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
};

/* Keys of one table of a request. */
struct hps_part_batch {
    const struct hps_table *table;
    struct hps_batch batch;
};

/* Rows or deletes of one table, and a record, of one atomic write. */
struct hps_write {
    const struct hps_table *table;
    const hps_key *keys; /* [n] unique */
    const uint8_t *rows; /* [n][row_bytes]; NULL: the keys are deleted */
    uint32_t n;
};
struct hps_record {
    const void *key; /* at most HPS_RECORD_KEY_BYTES_MAX */
    size_t key_size;
    const void *value; /* NULL: the record is deleted */
    size_t value_size;
};

struct hps_store_usage {
    uint64_t n_rows;         /* of the space (estimate where a store cannot count) */
    uint64_t used_bytes;     /* of the space */
    uint64_t capacity_bytes; /* of the whole store, 0 = unbounded */
    uint64_t huge_bytes;     /* of the space, in areas that have huge pages (memory tiers) */
};

enum {
    HPS_STORE_DURABLE = 1,  /* survives the process; has records (the catalog lives there) */
    HPS_STORE_BLOCKING = 2, /* get may block on I/O: not on a loop thread */
    HPS_STORE_KEEPS = 4,    /* a put that finds no room leaves the keys the rows that they had */
};

enum { HPS_RECORD_KEY_BYTES_MAX = 1024 };

/* Of the id of a table that belongs to the one with the rest of the id: what updates know of its
 * rows. A durable store takes it as any other in get and apply, and nobody else sees it. */
#define HPS_TABLE_HIDDEN (UINT32_C(1) << 31)

struct hps_store;
struct hps_space;
struct hps_store_load;

/* Called for every record or space found; a status other than OK ends the scan and is returned. */
typedef hps_status (*hps_record_fn)(void *ctx, const void *key, size_t key_size, const void *value,
                                    size_t value_size);
typedef hps_status (*hps_space_fn)(void *ctx, const char *model, int64_t version);

struct hps_store_ops {
    const char *name; /* metric label: "host", "rocksdb", … */
    enum hps_tier_kind tier;
    uint32_t caps;

    /* Every space must have been closed. */
    void (*close)(struct hps_store *store);

    /* Open the space, making it if it does not exist. EXISTS: there is an open handle already. */
    hps_status (*space_open)(struct hps_store *store, const struct hps_space_id *id,
                             struct hps_space **out_space, struct hps_error *err);
    /* Release the handle; what is stored stays in a durable store, and is gone from any other. */
    void (*space_close)(struct hps_space *space);
    /* Delete what is stored and release the handle. No call of this space may be under way. On an
     * error the handle is gone too, and what a durable store has may still be there. */
    hps_status (*space_drop)(struct hps_space *space, struct hps_error *err);
    void (*space_usage)(struct hps_space *space, struct hps_store_usage *out_usage);
    /* Rows of the table that went for others, of any version, since this was last asked. NULL: none
     * ever does. */
    uint64_t (*evictions_take)(struct hps_space *space, const struct hps_table *table);
    /* Make the index large enough for the rows that the tables had when the space was opened:
     * putting them then needs no more than a load of them. NULL where there is nothing to make.
     * EXHAUSTED: over budget; nothing has changed. */
    hps_status (*reserve)(struct hps_space *space, struct hps_error *err);

    /* Whether this version is the one that is served by default; new spaces are not. Rows of others
     * never push rows of such a space out, but give way to them. NULL: makes no difference. */
    void (*space_active)(struct hps_space *space, bool active);

    /* Copy the rows of the keys it has (see struct hps_batch). On an error the batch is consistent:
     * answered keys stay answered. UNAVAILABLE: skip this tier. DEADLINE: give up. */
    hps_status (*get)(struct hps_space *space, const struct hps_call *call,
                      const struct hps_table *table, struct hps_batch *batch);
    /* The same for several tables at once, as one read. NULL: ask table by table. */
    hps_status (*get_many)(struct hps_space *space, const struct hps_call *call,
                           struct hps_part_batch *parts, uint32_t n_parts);
    /* Insert rows that were found below, the one of keys[i] at rows + slots[i] * row_bytes; of a
     * key that is there already the row stays. What has no room, or is not fresh by `guard` (NULL:
     * all is), is left out, which is no error. NULL where a store takes no insertions.
     * out_report: set in any case */
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

    /* All of the writes and records, or none, also after a crash. The records are the space's own:
     * positions, for one. They are no rows (a load or a scan does not see them), go with the space,
     * and are read by space_record_scan; a later write of one key replaces an earlier one. Safe
     * from a killed process at once, from a power cut as soon as the store syncs. n_writes may be
     * 0. Only durable stores (NULL elsewhere). EXHAUSTED: the free-space guard; nothing was
     * written. */
    hps_status (*apply)(struct hps_space *space, const struct hps_call *call,
                        const struct hps_write *writes, uint32_t n_writes,
                        const struct hps_record *records, uint32_t n_records,
                        struct hps_error *err);

    /* Bulk load of an empty space (else PRECONDITION) by one thread: tables in ascending id, keys
     * of a table ascending (unsigned) and unique, else INVALID. Nothing is visible to get before
     * load_commit returns OK, then all tables are at once. A commit that succeeds frees the load;
     * after any failure, a commit's too, load_abort frees it and leaves the space empty.
     * bytes_expected: of all rows (0 unknown), refused with EXHAUSTED, needed and available bytes,
     * when it cannot fit. */
    hps_status (*load_begin)(struct hps_space *space, uint64_t rows_expected,
                             uint64_t bytes_expected, struct hps_store_load **out_load,
                             struct hps_error *err);
    hps_status (*load_add)(struct hps_store_load *load, const struct hps_table *table,
                           const hps_key *keys, const uint8_t *rows, uint32_t n,
                           struct hps_error *err);
    hps_status (*load_commit)(struct hps_store_load *load, struct hps_error *err);
    void (*load_abort)(struct hps_store_load *load);

    /* Every row of a table in key order, in batches; used to fill tiers above at start. NULL where
     * a store cannot. `fn` is called with borrowed arrays; its failure ends the scan. */
    hps_status (*scan)(struct hps_space *space, const struct hps_table *table,
                       hps_status (*fn)(void *ctx, const hps_key *keys, const uint8_t *rows,
                                        uint32_t n),
                       void *ctx, struct hps_error *err);

    /* What apply recorded in this space, in order of the keys' bytes. Durable stores only. */
    hps_status (*space_record_scan)(struct hps_space *space, hps_record_fn fn, void *ctx,
                                    struct hps_error *err);

    /* Only durable stores (NULL elsewhere). Records are few and small: the catalog. */
    /* Both are on disk when they return OK. */
    hps_status (*record_put)(struct hps_store *store, const void *key, size_t key_size,
                             const void *value, size_t value_size, struct hps_error *err);
    hps_status (*record_delete)(struct hps_store *store, const void *key, size_t key_size,
                                struct hps_error *err);
    /* Those whose key begins with `prefix` ("": all), in order of the keys' bytes. Others are not
     * read, so that damage to them does no harm. */
    hps_status (*record_scan)(struct hps_store *store, const char *prefix, hps_record_fn fn,
                              void *ctx, struct hps_error *err);
    /* Every space that exists on disk, opened or not. */
    hps_status (*space_list)(struct hps_store *store, hps_space_fn fn, void *ctx,
                             struct hps_error *err);
    /* Bytes free for loads and updates before the free-space guard (0 = none left). */
    uint64_t (*bytes_free)(struct hps_store *store);
    /* Why nothing can be written now, for people; NULL: it can. Static text. */
    const char *(*writes_refused)(struct hps_store *store);
    /* Keep the store as it is now in `<dir>/hpsd`, by hard links where `dir` is on the same file
     * system, else by copies; it opens like any other with `dir` as its path. What is in memory is
     * written out first. Writes and loads go on meanwhile. May block. NULL: it cannot.
     * error   EXISTS: there is something; EXHAUSTED: the disk of the store or of `dir`;
     *         PRECONDITION: open read-only; IO */
    hps_status (*checkpoint)(struct hps_store *store, const char *dir, struct hps_error *err);
};

struct hps_store {
    const struct hps_store_ops *ops;
};

/* First member of a store's own space struct. */
struct hps_space {
    struct hps_store *store;
    /* Set by a store that evicts, before it first lets a row go or leaves out one that was put: a
     * miss proves nothing about the stores below any more. So ask for it after the miss. Whoever
     * fills an empty space anew may clear it before. */
    atomic_bool incomplete;
};

#endif
