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
#include "base/dtype.h"
#include "base/hash.h"
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
    /* Of the rows that were loaded, 0: not known. In a shared store versions of one number whose
     * load ids differ are apart. */
    uint64_t load_id;
};

/* What a call may cost. */
struct hps_call {
    struct hps_arena *scratch; /* of the calling thread; NULL or full: the store uses the heap */
    uint64_t deadline_us;      /* hps_clock_us, 0 = none */
    /* Of a shared store: rows that are exactly of the positions that log_positions_set and
     * log_apply have made known, at some time during the call: whoever wants them of one time looks
     * whether batches came meanwhile. Otherwise they may be of later ones. */
    bool exact_position;
    bool *later; /* set to true if what was found, or was not, may be of them; NULL: nobody asks */
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
    uint32_t n_failed;  /* that a part of the store did not take; where all failed the call does */
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

/* How far a log of updates has been applied in one of its partitions. A shared store knows a
 * partition by an id that is the same in every daemon: hps_log_partition. */
struct hps_log_position {
    uint64_t partition;
    int64_t offset; /* of the record that is next; at most 2^53 */
    int64_t start;  /* where the updates of the version begin there; -1: not known */
};

/* The id of a partition of a topic; `log` is the id of the log's cluster. Stable for ever. */
static inline uint64_t hps_log_partition(const char *log, const char *topic, int32_t number)
{
    uint64_t hash = hps_hash_bytes(log, strlen(log), 0);
    hash = hps_hash_bytes(topic, strlen(topic), hash);
    return hps_hash_bytes(&number, sizeof(number), hash);
}

/* The records [first, next) of a partition. */
struct hps_log_span {
    uint64_t partition;
    int64_t start; /* as above: a shard that does not name the partition is there */
    int64_t first;
    int64_t next;
};

/* All that the log says from first to next of each span, of each key the last write. */
struct hps_log_batch {
    const struct hps_write *writes; /* [n_writes] */
    const uint32_t *write_spans;    /* [n_writes] the span that the write comes from */
    uint32_t n_writes;
    const struct hps_log_span *spans; /* [n_spans] of partitions that differ */
    uint32_t n_spans;
    /* Row versions decide which write of a key counts: take the keys out instead of writing rows,
     * as that is right in any order. */
    bool erase_only;
};

/* What became of a batch, by the shards of a store: in each all of it is there, or nothing of it.
 * What is behind is not read from until log_apply has been given the records from log_behind on, or
 * log_reset. */
struct hps_log_report {
    uint32_t n_applied; /* shards that took it */
    uint32_t n_had;     /* that had it from elsewhere */
    uint32_t n_gap;     /* that are behind where it begins, or have lost what they had */
    uint32_t n_failed;  /* that could not be reached, or refused */
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

/* One of the servers that a store is made of. Counts are since the store was opened. */
struct hps_store_server {
    char address[280];
    const char *role; /* static: "master", "replica", "entry" (none of both, as yet) */
    bool up;          /* false: left alone, or never reached */
    uint32_t n_slots; /* shares of the keys that it has */
    uint32_t n_connections;
    uint64_t latency_us; /* of a round trip, moving average; 0: none yet */
    uint64_t n_commands;
    uint64_t n_keys; /* that look-ups asked it for */
    uint64_t n_keys_found;
    uint64_t n_bytes_sent;
    uint64_t n_bytes_received;
    uint64_t n_errors; /* answers that are errors */
    uint64_t n_timeouts;
    uint64_t n_broken;  /* connections that broke or could not be made */
    uint64_t n_refused; /* commands not sent, as it was left alone */
    char error[320];    /* why it is down, or the last failure; "" if none */
};

/* The same of all of them together, and what became of rows and shards. */
struct hps_store_shared_stats {
    const char *kind;     /* static: "standalone", "cluster", "unknown" */
    uint32_t n_slots;     /* of all keys */
    uint32_t n_slots_up;  /* whose server is there: look-ups of the rest find nothing */
    uint64_t n_redirects; /* commands sent on to another server */
    uint64_t n_rows_found;
    uint64_t n_rows_absent;
    uint64_t n_rows_behind; /* there, but of earlier positions than the version's */
    uint64_t n_rows_ahead;  /* of later ones, which exact_position leaves out */
    uint64_t n_rows_inserted;
    uint64_t n_rows_refused; /* insertions that were too late, or too early */
    uint64_t n_rows_evicted;
    uint64_t n_shards_gap;    /* shards that a batch of updates found behind it */
    uint64_t n_shards_failed; /* that a batch could not reach */
    uint64_t n_shards_reset;
    char error[320]; /* why not all is known of the servers: who has which keys; "": it is */
};

enum {
    HPS_STORE_DURABLE = 1,  /* survives the process; has records (the catalog lives there) */
    HPS_STORE_BLOCKING = 2, /* get may block on I/O: not on a loop thread */
    HPS_STORE_KEEPS = 4,    /* a put that finds no room leaves the keys the rows that they had */
    /* Other daemons read and write it, it outlives them, and it may lose what it has acknowledged:
     * rows change by log_apply alone, as put and erase do not say of which position they are. */
    HPS_STORE_SHARED = 8,
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
    /* Release the handle; what is stored stays in a durable or shared store, and is gone from any
     * other. */
    void (*space_close)(struct hps_space *space);
    /* Delete what is stored, but from a shared store only if no other daemon has the space open,
     * and release the handle. No call of this space may be under way. On an error the handle is
     * gone too, and what a durable store has may still be there. */
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
     * answered keys stay answered; in the place of a row that is missing there may be anything.
     * UNAVAILABLE: skip this tier. DEADLINE: give up. ABORTED: nothing else has the rows, and there
     * they are of later positions than exact_position wants. */
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

    /* Only shared stores (NULL elsewhere, and where one is only read). log_*: one thread at a time.
     */
    /* The version is at these positions [n], and nowhere else: at first, and after a seek. A get
     * that begins from now on answers with no rows of earlier ones. Does not ask the store.
     * NO_MEMORY */
    hps_status (*log_positions_set)(struct hps_space *space,
                                    const struct hps_log_position *positions, uint32_t n);
    /* How far all shards are: set the offset of each position, partition and start given, to the
     * lowest of any, which is the start where one does not name the partition. UNAVAILABLE: one
     * could not be asked; DATA_LOSS: one is not there */
    hps_status (*log_positions_get)(struct hps_space *space, const struct hps_call *call,
                                    struct hps_log_position *positions, uint32_t n);
    /* The version is no longer what the log makes of its files: records were passed over. Until
     * log_positions_set get finds nothing, and insert takes nothing. Does not ask the store. */
    void (*log_leave)(struct hps_space *space);
    /* Apply what the log says between two positions to all that is there, as far as it is not there
     * yet: any daemon does it, the first one counts. Then the version is at the end of each span,
     * unless it was beyond, also where shards are behind, which out_report tells. So a batch may be
     * applied again, and shards that are behind are brought on by older ones.
     * call    deadline_us: 0: as long as the store allows for writes
     * error   the version stays where it is, for the batch to be applied again: NO_MEMORY; and
     * where nothing else has the rows EXHAUSTED: full, UNAVAILABLE, DATA_LOSS: shards are behind */
    hps_status (*log_apply)(struct hps_space *space, const struct hps_call *call,
                            const struct hps_log_batch *batch, struct hps_log_report *out_report);
    /* From where on the log must be applied again so that no shard is behind: per partition, the
     * lowest offset of any, at most `capacity` of them. *out_n 0: none is behind; RANGE: one is
     * that knows no position at all, or capacity is too small: log_reset is needed. UNAVAILABLE:
     * one could not be asked (out_n is of the others). */
    hps_status (*log_behind)(struct hps_space *space, const struct hps_call *call,
                             struct hps_log_position *out_positions, uint32_t capacity,
                             uint32_t *out_n);
    /* Empty every shard that is behind: it has no rows, and so no wrong ones, as of the version's
     * positions. out_report: n_applied were emptied, n_had are not behind, n_failed. PRECONDITION:
     * nothing else has the rows. */
    hps_status (*log_reset)(struct hps_space *space, const struct hps_call *call,
                            struct hps_log_report *out_report);

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

    /* Every row of a table in key order, in batches; used to fill tiers above at start, and for an
     * export. Of a shared store in any order, and some more than once: of those the last counts.
     * NULL where a store cannot. `fn` is called with borrowed arrays, and may ask the space for
     * rows itself; its failure ends the scan. error   INVALID: what is there has other keys, rows
     * or shards than it should; UNAVAILABLE: some of it is out of reach; DATA_LOSS: some of it
     * went, or is damaged */
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

    /* What is known of the store's servers just now; asks none of them. Only stores that are made
     * of servers (NULL elsewhere). The first `capacity` of them; returns their number. */
    uint32_t (*servers)(struct hps_store *store, struct hps_store_server *out_servers,
                        uint32_t capacity);
    void (*shared_stats)(struct hps_store *store, struct hps_store_shared_stats *out_stats);
    /* Read the certificates for its servers again. If that fails, those that there are stay. */
    hps_status (*renew_tls)(struct hps_store *store, struct hps_error *err) HPS_MUST_CHECK;
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
