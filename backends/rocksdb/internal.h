/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the persistent store share, the only ones that know RocksDB:
 *
 *     rocksdb.c      the store: opening and closing it
 *     database.c     the database: making it, whose it is, opening it
 *     options.c      how RocksDB is set, and how files are read
 *     spaces.c       spaces and their column families
 *     damaged.c      families with damage in their files
 *     read.c         look-ups and scans
 *     write.c        put, erase, apply
 *     wal.c          RocksDB's write-ahead log, its sync
 *     health.c       whether RocksDB takes writes
 *     listener.cc    what RocksDB says of that
 *     load.c         bulk loads
 *     records.c      the catalog, and reading the records of a space
 *     checkpoint.c   copies of the store
 *     errors.c       what RocksDB's errors mean
 *
 * Beside them, and without RocksDB, are dir.c and write_order.c.
 *
 * Threads: an open and a close have the store to themselves. Between them any number of threads are
 * in it, all of which may wait for the disk; rocksdb-sync (wal.c), the readers (read.c) and one for
 * each load (load.c) are the store's own. What is not marked below does not change once the store
 * is open.
 */
#ifndef HPS_BACKENDS_ROCKSDB_INTERNAL_H
#define HPS_BACKENDS_ROCKSDB_INTERNAL_H

#include <pthread.h>
#include <rocksdb/c.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "backends/rocksdb/dir.h"
#include "backends/rocksdb/listener.h"
#include "backends/rocksdb/rocksdb.h"
#include "backends/store_bulk.h"
#include "backends/store_durable.h"
#include "base/worker.h"

#define HPS_ROCKSDB_FORMAT_KEY "hpsd.format"
/* No directory can be made there, so RocksDB goes without its own log file. */
#define HPS_ROCKSDB_NO_LOG_DIR "/dev/null/none"

enum {
    HPS_ROCKSDB_KEY_BYTES = 12,   /* table u32, key u64 */
    HPS_ROCKSDB_ENTRY_BYTES = 24, /* key and the block format's own share of a row, rounded up */
    HPS_ROCKSDB_NAME_MAX_BYTES = 160, /* of a family, with its NUL */
    HPS_ROCKSDB_RECORD_PREFIX_BYTES = 4,
};

/* Where a table id stands in the keys of a space's records. */
#define HPS_ROCKSDB_RECORD_TABLE UINT32_MAX

struct hps_rocksdb_family {
    char *name;
    rocksdb_column_family_handle_t *handle;
    bool open;      /* there is a space handle of it */
    bool leftover;  /* a drop has failed: there is nothing in it for anybody */
    bool damaged;   /* a compaction met damage in it: the next open lets none touch it */
    bool flushed;   /* dropped: no flush runs any more that ran then */
    bool compacted; /* nor a compaction */
    struct hps_rocksdb_family *next;
};

/* Whether RocksDB takes writes: health.c draws who follows whom. */
enum hps_rocksdb_writes {
    HPS_WRITES_TAKEN = 1 << 0,
    HPS_WRITES_STOPPED = 1 << 1,    /* by an error; until a write is taken */
    HPS_WRITES_RECOVERING = 1 << 2, /* the same, and RocksDB tries to get out of it */
    HPS_WRITES_WAL_FULL = 1 << 3,   /* the disk was full under the WAL: nobody writes */
    HPS_WRITES_WAL_LOST = 1 << 4,   /* and RocksDB begins no other one until the next open */
};

/* A family that a compaction has met damage in. */
struct hps_rocksdb_damage {
    char family[HPS_ROCKSDB_NAME_MAX_BYTES];
    struct hps_rocksdb_damage *next;
};

struct hps_rocksdb_health {
    struct hps_lock lock; /* leaf: all below, which is read without it where it is atomic */
    _Atomic(enum hps_rocksdb_writes) writes;
    uint64_t full_wal;                  /* number of the WAL that a write failed in; 0: none */
    atomic_bool needs_open;             /* an error that RocksDB ends at a new open alone */
    _Atomic uint64_t n_events;          /* errors and ends of them that RocksDB has reported */
    uint64_t n_events_seen;             /* rocksdb-sync's: when it last saw a write taken */
    struct hps_rocksdb_damage *damages; /* reported, and not written down yet */
};

struct hps_rocksdb_wal {
    uint32_t sync_ms;       /* 0: each write is synced by itself */
    atomic_bool dirty;      /* something was written since the last sync */
    struct hps_rwlock gate; /* shared: a write to the WAL; alone: its sync */
    struct hps_worker sync; /* rocksdb-sync */
    struct hps_lock lock;   /* the two below */
    struct hps_cond wake;
    bool woken; /* something was reported */
    bool closing;
};

struct hps_rocksdb {
    struct hps_store base;
    struct hps_rocksdb_dir dir;
    enum hps_rocksdb_read_mode mode; /* not AUTO once the store is open */
    uint32_t batch_keys_max;
    rocksdb_t *db;
    rocksdb_options_t *options;
    rocksdb_options_t *sst_options;
    rocksdb_cache_t *cache;
    rocksdb_readoptions_t *read;
    rocksdb_readoptions_t *read_scan;
    rocksdb_writeoptions_t *write;
    rocksdb_writeoptions_t *write_synced;
    rocksdb_writeoptions_t *write_unlogged;
    rocksdb_ingestexternalfileoptions_t *ingest;
    rocksdb_envoptions_t *env_options;
    rocksdb_column_family_handle_t *default_family;
    rocksdb_column_family_handle_t *catalog;
    _Atomic uint64_t format; /* what its record says */
    struct hps_lock lock;    /* families and their flags */
    struct hps_rocksdb_family *families;
    struct hps_rocksdb_family *dropped; /* whose handles are still there, see spaces.c */

    struct hps_pool *readers; /* NULL: each caller reads alone */
    uint64_t memory_bytes;    /* of page cache for the files */
    uint32_t n_cpus;
    atomic_bool disk_bound; /* the files exceed it: hps_rocksdb_mode_review */

    struct hps_rocksdb_wal wal;
    struct hps_rocksdb_health health;
};

struct hps_rocksdb_space {
    struct hps_space base;
    struct hps_rocksdb_family *family;
    bool loading; /* under the store's lock */
};

static inline struct hps_rocksdb *hps_rocksdb_of(struct hps_space *space)
{
    return (struct hps_rocksdb *)space->store;
}

static inline rocksdb_column_family_handle_t *hps_rocksdb_handle(struct hps_space *space)
{
    return ((struct hps_rocksdb_space *)space)->family->handle;
}

static inline uint64_t hps_rocksdb_clamp(uint64_t value, uint64_t low, uint64_t high)
{
    return value < low ? low : value > high ? high : value;
}

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "keys are swapped to big-endian");

/* The key of a row in its family.
 *
 * shape   out[HPS_ROCKSDB_KEY_BYTES]
 */
static inline void hps_rocksdb_key_encode(char *out, uint32_t table, hps_key key)
{
    uint32_t table_be = __builtin_bswap32(table);
    uint64_t key_be = __builtin_bswap64(key);
    memcpy(out, &table_be, sizeof(table_be));
    memcpy(out + sizeof(table_be), &key_be, sizeof(key_be));
}

/* ---- errors.c -------------------------------------------------------------------------------- */

/* From now on an exception of RocksDB that nothing catches is logged with its cause, and the
 * process ends with exit code 4. */
void hps_rocksdb_catch_exceptions(void);

/* What `text` of RocksDB means. Borrowed. IO: none of those that are known. */
hps_status hps_rocksdb_text_status(const char *text);
/* takes `text`, which RocksDB allocated. Sets err to "rocksdb: what: text". */
hps_status hps_rocksdb_fail_text(char *text, struct hps_error *err, const char *what);
/* As hps_rocksdb_fail_text, for calls that have no hps_error to fill: the message goes to the log.
 */
hps_status hps_rocksdb_log_text(char *text, const char *what);
/* NO_MEMORY */
hps_status hps_rocksdb_fail_memory(struct hps_error *err);
/* PRECONDITION */
hps_status hps_rocksdb_fail_read_only(const struct hps_rocksdb *store, struct hps_error *err);

/* ---- options.c ------------------------------------------------------------------------------- */

/* All options of the store; its directory is open. */
void hps_rocksdb_options_fill(struct hps_rocksdb *store, const struct hps_rocksdb_options *given);
/* And the listener. INTERNAL: this RocksDB does not know one of them. */
hps_status hps_rocksdb_options_set_text(struct hps_rocksdb *store, struct hps_error *err)
    HPS_MUST_CHECK;
/* Also where they were not filled. Not while the database is open. */
void hps_rocksdb_options_free(struct hps_rocksdb *store);
/* Set store->mode, by the files that there are. INVALID: the file system cannot do it. */
hps_status hps_rocksdb_mode_choose(struct hps_rocksdb *store,
                                   const struct hps_rocksdb_options *given, struct hps_error *err)
    HPS_MUST_CHECK;
/* Put store->mode into the options. */
void hps_rocksdb_options_set_mode(struct hps_rocksdb *store);
/* Compare the files that there are now with the memory for them: at the open, after each load and
 * drop, and from time to time. */
void hps_rocksdb_mode_review(struct hps_rocksdb *store);

/* ---- damaged.c ------------------------------------------------------------------------------- */

/* Names of damaged families, a line each; NULL: none.
 *
 * owner   the caller (hps_free), on failure too
 * error   in *out_status, which is always set: NO_MEMORY, IO
 */
char *hps_rocksdb_damaged_read(const struct hps_rocksdb *store, struct hps_error *err,
                               hps_status *out_status);
/* Is the family `name` among `names`, which NULL has none of? */
bool hps_rocksdb_damaged_names(const char *names, const char *name);
/* Write down which families are damaged. Under the store's lock. */
hps_status hps_rocksdb_damaged_write(struct hps_rocksdb *store, struct hps_error *err)
    HPS_MUST_CHECK;
/* A compaction has met damage in the family of that name. Waits for nobody. */
void hps_rocksdb_damaged_note(struct hps_rocksdb *store, const char *family);
/* Mark the families that were noted, and write that down. Takes the store's lock. */
void hps_rocksdb_damaged_mark(struct hps_rocksdb *store);

/* ---- health.c -------------------------------------------------------------------------------- */

void hps_rocksdb_health_init(struct hps_rocksdb_health *health);
/* The database is closed: RocksDB reports nothing any more. */
void hps_rocksdb_health_fini(struct hps_rocksdb_health *health);
/* What the listener calls; ctx: the store, from before its database is opened until after it is
 * closed. */
hps_rocksdb_event_fn hps_rocksdb_health_event;

/* Before a write is made. EXHAUSTED: the WAL met a full disk, and RocksDB has begun no other one.
 */
hps_status hps_rocksdb_wal_check(const struct hps_rocksdb *store, struct hps_error *err)
    HPS_MUST_CHECK;
/* Around each write to the WAL: between the two the gate is held.
 *
 * begun   what write_begin returned
 * text    how it ended, NULL when it was taken; borrowed
 */
uint64_t hps_rocksdb_write_begin(struct hps_rocksdb *store);
void hps_rocksdb_write_end(struct hps_rocksdb *store, uint64_t begun, const char *text);
/* One of rocksdb-sync has failed, which has the gate for itself. */
void hps_rocksdb_write_failed(struct hps_rocksdb *store, const char *text);

/* Has a write been taken since RocksDB last reported something? Of rocksdb-sync. */
bool hps_rocksdb_health_settled(const struct hps_rocksdb *store);
/* The same, found out by a write if need be. Of rocksdb-sync, which has the gate for itself. */
bool hps_rocksdb_takes_writes(struct hps_rocksdb *store);
/* Have something in memory. False: RocksDB takes no writes now. */
bool hps_rocksdb_memory_keep(struct hps_rocksdb *store);

/* ---- wal.c ----------------------------------------------------------------------------------- */

/* Before the database is opened. */
void hps_rocksdb_wal_init(struct hps_rocksdb_wal *wal, uint32_t sync_ms);
/* After it is closed: until then RocksDB may wake rocksdb-sync. */
void hps_rocksdb_wal_fini(struct hps_rocksdb_wal *wal);
/* Have the WALs go that earlier starts have left, if there are too many. At a start. */
void hps_rocksdb_wals_limit(struct hps_rocksdb *store);
/* Start rocksdb-sync, the last thing of an open. EXHAUSTED */
hps_status hps_rocksdb_sync_start(struct hps_rocksdb *store, struct hps_error *err) HPS_MUST_CHECK;
/* RocksDB has reported something. Any thread. */
void hps_rocksdb_sync_wake(struct hps_rocksdb *store);
/* Also where it was not started. What was written is on disk afterwards. */
void hps_rocksdb_sync_stop(struct hps_rocksdb *store);

/* ---- spaces.c -------------------------------------------------------------------------------- */

/* Add to the store's list. takes `handle`, on failure too. Under the store's lock, once it is open.
 *
 * out_family   NULL is legal
 * error        NO_MEMORY
 */
hps_status hps_rocksdb_family_add(struct hps_rocksdb *store, const char *name,
                                  rocksdb_column_family_handle_t *handle,
                                  struct hps_rocksdb_family **out_family, struct hps_error *err)
    HPS_MUST_CHECK;
/* `family` is in no list any more. Its files stay, unless it was dropped. */
void hps_rocksdb_family_free(struct hps_rocksdb_family *family);
/* Free the dropped families that no job of RocksDB knows any more. True: some are left. */
bool hps_rocksdb_dropped_free(struct hps_rocksdb *store);
/* Free all of them; ends RocksDB's jobs for that. Only the close follows. */
void hps_rocksdb_dropped_close(struct hps_rocksdb *store);

/* ---- database.c ------------------------------------------------------------------------------ */

/* Find the database, or make it where nothing is, and open it: store->db and all families are there
 * then. On a thread of its own, which the caller waits for; its directory is open and its options
 * are filled. On failure some of the handles may be there, for the close.
 *
 * error   NEWER_FORMAT, DATA_LOSS (corrupt), PRECONDITION (not ours), NOT_FOUND (read-only and
 *         nothing there), BUSY, EXHAUSTED, INVALID (read mode), NO_MEMORY, IO
 */
hps_status hps_rocksdb_database_start_behind(struct hps_rocksdb *store,
                                             const struct hps_rocksdb_options *given,
                                             struct hps_error *err) HPS_MUST_CHECK;
/* Before the first look-up. DATA_LOSS: a file is shorter or longer than the database knows. */
hps_status hps_rocksdb_files_check(const struct hps_rocksdb *store, struct hps_error *err)
    HPS_MUST_CHECK;

/* ---- read.c ---------------------------------------------------------------------------------- */

/* store->readers and split_keys; store->mode is set. The close frees the readers. */
hps_status hps_rocksdb_readers_start(struct hps_rocksdb *store,
                                     const struct hps_rocksdb_options *given, struct hps_error *err)
    HPS_MUST_CHECK;

/* ---- calls of struct hps_store_ops, which says what they promise ----------------------------- */

/* read.c */
hps_status hps_rocksdb_get(struct hps_space *space, const struct hps_call *call,
                           const struct hps_table *table, struct hps_batch *batch);
hps_status hps_rocksdb_get_many(struct hps_space *space, const struct hps_call *call,
                                struct hps_part_batch *parts, uint32_t n_parts);
hps_status hps_rocksdb_scan(struct hps_space *space, const struct hps_table *table,
                            hps_status (*fn)(void *ctx, const hps_key *keys, const uint8_t *rows,
                                             uint32_t n),
                            void *ctx, struct hps_error *err);

/* write.c */
hps_status hps_rocksdb_put(struct hps_space *space, const struct hps_call *call,
                           const struct hps_table *table, const hps_key *keys, const uint8_t *rows,
                           uint32_t n);
hps_status hps_rocksdb_erase(struct hps_space *space, const struct hps_call *call,
                             const struct hps_table *table, const hps_key *keys, uint32_t n);
hps_status hps_rocksdb_apply(struct hps_space *space, const struct hps_call *call,
                             const struct hps_write *writes, uint32_t n_writes,
                             const struct hps_record *records, uint32_t n_records,
                             struct hps_error *err);

/* health.c */
const char *hps_rocksdb_writes_refused(struct hps_store *base);

/* load.c */
hps_status hps_rocksdb_load_begin(struct hps_space *base, uint64_t rows_expected,
                                  uint64_t bytes_expected, struct hps_store_load **out_load,
                                  struct hps_error *err);
hps_status hps_rocksdb_load_add(struct hps_store_load *load, const struct hps_table *table,
                                const hps_key *keys, const uint8_t *rows, uint32_t n,
                                struct hps_error *err);
hps_status hps_rocksdb_load_commit(struct hps_store_load *load, struct hps_error *err);
void hps_rocksdb_load_abort(struct hps_store_load *load);

/* records.c */
hps_status hps_rocksdb_record_put(struct hps_store *base, const void *key, size_t key_size,
                                  const void *value, size_t value_size, struct hps_error *err);
hps_status hps_rocksdb_record_delete(struct hps_store *base, const void *key, size_t key_size,
                                     struct hps_error *err);
hps_status hps_rocksdb_record_scan(struct hps_store *base, const char *prefix, hps_record_fn fn,
                                   void *ctx, struct hps_error *err);
hps_status hps_rocksdb_space_record_scan(struct hps_space *space, hps_record_fn fn, void *ctx,
                                         struct hps_error *err);

/* spaces.c */
hps_status hps_rocksdb_space_open(struct hps_store *base, const struct hps_space_id *id,
                                  struct hps_space **out_space, struct hps_error *err);
void hps_rocksdb_space_close(struct hps_space *base);
hps_status hps_rocksdb_space_drop(struct hps_space *base, struct hps_error *err);
void hps_rocksdb_space_usage(struct hps_space *space, struct hps_store_usage *out_usage);
hps_status hps_rocksdb_space_list(struct hps_store *base, hps_space_fn fn, void *ctx,
                                  struct hps_error *err);

/* checkpoint.c */
hps_status hps_rocksdb_checkpoint(struct hps_store *base, const char *dir, struct hps_error *err);

#endif
