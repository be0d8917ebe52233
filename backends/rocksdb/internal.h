/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files of the persistent store that use RocksDB:
 *
 *     rocksdb.c      the store: opening and closing it
 *     database.c     the database: creating, identifying and opening it
 *     options.c      RocksDB's options, and how files are read
 *     spaces.c       spaces and their column families
 *     damaged.c      families with damage in their files
 *     read.c         lookups and scans
 *     write.c        put, erase, apply
 *     wal.c          RocksDB's write-ahead log (WAL) and its sync
 *     health.c       whether RocksDB accepts writes
 *     listener.cc    RocksDB's reports of errors and recoveries
 *     load.c         bulk loads
 *     records.c      the catalog, and reading the records of a space
 *     checkpoint.c   copies of the store
 *     errors.c       meaning of RocksDB's errors
 *
 * dir.c and write_order.c are part of the store but do not use RocksDB.
 *
 * Threads: only one thread may use the store while it is being opened or closed. In between, any
 * number of threads may use it; their calls may wait for the disk. The store's own threads are
 * rocksdb-sync (wal.c), the readers (read.c) and one for each load (load.c). Fields are immutable
 * once the store is open, unless a comment says otherwise. A *family* is a column family of
 * RocksDB.
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
/* Path for RocksDB's own log files. No directory can be created there, so RocksDB writes no log
 * files. */
#define HPS_ROCKSDB_NO_LOG_DIR "/dev/null/none"

enum {
    HPS_ROCKSDB_KEY_BYTES = 12,          /* table u32, key u64, both big-endian */
    HPS_ROCKSDB_NAME_MAX_BYTES = 160,    /* longest name of a family, including the NUL */
    HPS_ROCKSDB_RECORD_PREFIX_BYTES = 4, /* size of HPS_ROCKSDB_RECORD_TABLE in a key */
};

/* Keys of a space's records begin with this number instead of a table id. */
#define HPS_ROCKSDB_RECORD_TABLE UINT32_MAX

struct hps_rocksdb_family {
    char *name;
    rocksdb_column_family_handle_t *handle;
    bool open;     /* a handle of the family's space is open */
    bool leftover; /* a drop was begun and may have failed, so the rows must not be used */
    /* A compaction found damage. RocksDB no longer compacts the family after the next open. */
    bool damaged;
    /* For a family in store->dropped: all flushes that were running when it was dropped have
     * ended. */
    bool flushed;
    bool compacted; /* the same for compactions */
    struct hps_rocksdb_family *next;
};

/* Whether RocksDB accepts writes. health.c has a diagram of the transitions. */
enum hps_rocksdb_writes {
    HPS_WRITES_TAKEN = 1 << 0,      /* writes are accepted */
    HPS_WRITES_STOPPED = 1 << 1,    /* an error has stopped writes; ends when a write succeeds */
    HPS_WRITES_RECOVERING = 1 << 2, /* as STOPPED, while RocksDB tries to recover */
    /* A write to the WAL failed on a full disk; hpsd sends RocksDB no further writes. */
    HPS_WRITES_WAL_FULL = 1 << 3,
    /* As WAL_FULL, and RocksDB starts no new WAL until the store is opened again. */
    HPS_WRITES_WAL_LOST = 1 << 4,
};

/* A family in which a compaction found damage. */
struct hps_rocksdb_damage {
    char family[HPS_ROCKSDB_NAME_MAX_BYTES];
    struct hps_rocksdb_damage *next;
};

struct hps_rocksdb_health {
    /* Protects the fields below; atomics may be read without it. Its holder takes no other lock of
     * the store. */
    struct hps_lock lock;
    _Atomic(enum hps_rocksdb_writes) writes;
    uint64_t full_wal;         /* number of the WAL whose write failed on a full disk; 0: none */
    atomic_bool needs_open;    /* an error has occurred that only opening the store again can end */
    _Atomic uint64_t n_events; /* errors and recoveries reported by RocksDB */
    /* n_events when rocksdb-sync last saw a write succeed. Used by rocksdb-sync only. */
    uint64_t n_events_seen;
    struct hps_rocksdb_damage *damages; /* reported by RocksDB, but not recorded on disk yet */
};

struct hps_rocksdb_wal {
    uint32_t sync_ms;       /* interval of syncs; 0: each write is synced */
    atomic_bool dirty;      /* unsynced writes exist */
    struct hps_rwlock gate; /* held for reading by writes to the WAL, for writing by a sync */
    struct hps_worker sync; /* rocksdb-sync */
    struct hps_lock lock;   /* protects woken and closing */
    struct hps_cond wake;   /* wakes rocksdb-sync */
    bool woken;             /* RocksDB has reported an event */
    bool closing;           /* rocksdb-sync must end */
};

struct hps_rocksdb {
    struct hps_store base;
    struct hps_rocksdb_dir dir;
    enum hps_read_mode mode; /* never AUTO once the store is open */
    uint32_t batch_keys_max;
    rocksdb_t *db;
    rocksdb_options_t *options;
    rocksdb_options_t *sst_options;
    rocksdb_options_t *sst_aligned; /* no block of a file crosses a page */
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
    _Atomic uint64_t format; /* format number of the database */
    bool base_files;         /* new versions may get base files */
    struct hps_lock lock;    /* protects the families and their flags */
    struct hps_rocksdb_family *families;
    /* Dropped families whose handles are still open (spaces.c). */
    struct hps_rocksdb_family *dropped;

    /* Threads that share large gets; NULL: the calling thread reads all rows. */
    struct hps_pool *readers;
    uint64_t memory_bytes; /* page cache available for the files */
    uint32_t n_cpus;
    /* Reads wait for the disk: the files exceed memory_bytes, or reads are direct. Set by
     * hps_rocksdb_mode_review. */
    atomic_bool disk_bound;
    atomic_uint_fast64_t mapped_bytes;
    /* Files are mapped: recent share of keys that waited for the disk (read.c). */
    atomic_uint cold_share;

    struct hps_rocksdb_wal wal;
    struct hps_rocksdb_health health;
};

struct hps_rocksdb_space {
    struct hps_space base;
    struct hps_rocksdb_family *family;
    const struct hps_table *tables; /* borrowed */
    uint32_t n_tables;
    bool loading; /* protected by the store's lock */
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

/* Encode the key of a row in its family.
 *
 * shape   out[HPS_ROCKSDB_KEY_BYTES] */
static inline void hps_rocksdb_key_encode(char *out, uint32_t table, hps_key key)
{
    uint32_t table_be = __builtin_bswap32(table);
    uint64_t key_be = __builtin_bswap64(key);
    memcpy(out, &table_be, sizeof(table_be));
    memcpy(out + sizeof(table_be), &key_be, sizeof(key_be));
}

/* ---- errors.c -------------------------------------------------------------------------------- */

/* Install a handler for uncaught exceptions of RocksDB. It logs the exception and its cause, and
 * ends the process with exit code 4. */
void hps_rocksdb_catch_exceptions(void);

/* The status for an error text of RocksDB. IO if the text is unknown. */
hps_status hps_rocksdb_text_status(const char *text);
/* Set err to "rocksdb: what: text", and return the status for `text`. Takes ownership of `text`,
 * which RocksDB allocated. */
hps_status hps_rocksdb_fail_text(char *text, struct hps_error *err, const char *what);
/* Same as hps_rocksdb_fail_text, but writes `what` and `text` to the log instead of an hps_error.
 * Does not log DEADLINE. */
hps_status hps_rocksdb_log_text(char *text, const char *what);
/* Set err, and return NO_MEMORY. */
hps_status hps_rocksdb_fail_memory(struct hps_error *err);
/* Set err to say that the store is read-only, and return PRECONDITION. */
hps_status hps_rocksdb_fail_read_only(const struct hps_rocksdb *store, struct hps_error *err);

/* ---- options.c ------------------------------------------------------------------------------- */

/* Create all options of the store. Its directory must be open. */
void hps_rocksdb_options_fill(struct hps_rocksdb *store, const struct hps_rocksdb_options *given);
/* Set the options that only have a text form, and the listener. INTERNAL: this RocksDB does not
 * know one of them. */
hps_status hps_rocksdb_options_set_text(struct hps_rocksdb *store, struct hps_error *err)
    HPS_MUST_CHECK;
/* Free the options. The database must be closed. No effect if there are no options. */
void hps_rocksdb_options_free(struct hps_rocksdb *store);
/* Set store->mode and store->memory_bytes from `given` and the existing files. INVALID: the file
 * system does not support direct reads, which `given` requires. */
hps_status hps_rocksdb_mode_choose(struct hps_rocksdb *store,
                                   const struct hps_rocksdb_options *given, struct hps_error *err)
    HPS_MUST_CHECK;
/* Copy store->mode into the options. */
void hps_rocksdb_options_set_mode(struct hps_rocksdb *store);
/* Set store->disk_bound from the size of the existing files. Called at the open, after each load
 * and drop, and at intervals. */
void hps_rocksdb_mode_review(struct hps_rocksdb *store);

/* ---- damaged.c ------------------------------------------------------------------------------- */

/* Read the names of damaged families from disk. Returns the names, one per line. NULL: no family is
 * damaged, or an error has occurred.
 *
 * owner   the caller frees the result (hps_free), which may be non-NULL on failure, too
 * error   in *out_status, which is always set: NO_MEMORY, IO, PERMISSION */
char *hps_rocksdb_damaged_read(const struct hps_rocksdb *store, struct hps_error *err,
                               hps_status *out_status);
/* Whether the family `name` is in `names`, which may be NULL. */
bool hps_rocksdb_damaged_names(const char *names, const char *name);
/* Record on disk which families are damaged. Caller must hold the store's lock. */
hps_status hps_rocksdb_damaged_write(struct hps_rocksdb *store, struct hps_error *err)
    HPS_MUST_CHECK;
/* Add this family, in which a compaction found damage, to health.damages. Does not take the store's
 * lock. */
void hps_rocksdb_damaged_note(struct hps_rocksdb *store, const char *family);
/* Set `damaged` of the families in health.damages, record them on disk, and empty that list. Takes
 * the store's lock. */
void hps_rocksdb_damaged_mark(struct hps_rocksdb *store);

/* ---- health.c -------------------------------------------------------------------------------- */

void hps_rocksdb_health_init(struct hps_rocksdb_health *health);
/* To be called after the database was closed, because until then RocksDB may report events. */
void hps_rocksdb_health_fini(struct hps_rocksdb_health *health);
/* The listener's callback (listener.h); ctx is the store. RocksDB may call it from the start of the
 * open to the end of the close. */
hps_rocksdb_event_fn hps_rocksdb_health_event;

/* To be called before a write. EXHAUSTED: a write to the WAL failed on a full disk, and RocksDB has
 * not started a new WAL since. */
hps_status hps_rocksdb_wal_check(const struct hps_rocksdb *store, struct hps_error *err)
    HPS_MUST_CHECK;
/* To be called before and after each write to the WAL. write_begin acquires wal.gate for reading
 * and returns health.n_events. write_end updates the health with the result of the write and
 * releases the gate.
 *
 * begun   the result of write_begin
 * text    the error of the write, borrowed; NULL: the write succeeded */
uint64_t hps_rocksdb_write_begin(struct hps_rocksdb *store);
void hps_rocksdb_write_end(struct hps_rocksdb *store, uint64_t begun, const char *text);
/* Report a failed write of rocksdb-sync, which holds wal.gate for writing. */
void hps_rocksdb_write_failed(struct hps_rocksdb *store, const char *text);

/* Whether a write has succeeded since RocksDB last reported an event. For rocksdb-sync. */
bool hps_rocksdb_health_settled(const struct hps_rocksdb *store);
/* Same as hps_rocksdb_health_settled, but if no write has succeeded since the last event, attempts
 * one first. For rocksdb-sync, which holds wal.gate for writing. */
bool hps_rocksdb_takes_writes(struct hps_rocksdb *store);
/* Ensure that the memtable of the default family is not empty. Only then does RocksDB start a new
 * WAL after a full disk (health.c). False: RocksDB accepts no writes now. */
bool hps_rocksdb_memory_keep(struct hps_rocksdb *store);

/* ---- wal.c ----------------------------------------------------------------------------------- */

/* To be called before the database is opened. */
void hps_rocksdb_wal_init(struct hps_rocksdb_wal *wal, uint32_t sync_ms);
/* To be called after the database was closed, because until then RocksDB may call
 * hps_rocksdb_sync_wake. */
void hps_rocksdb_wal_fini(struct hps_rocksdb_wal *wal);
/* If there are many old WALs, write out all memtables, so that RocksDB deletes the WALs. Called at
 * the open. */
void hps_rocksdb_wals_limit(struct hps_rocksdb *store);
/* Start rocksdb-sync, as the last step of an open. EXHAUSTED: no thread can be started. */
hps_status hps_rocksdb_sync_start(struct hps_rocksdb *store, struct hps_error *err) HPS_MUST_CHECK;
/* Wake rocksdb-sync, because RocksDB has reported an event. Any thread. */
void hps_rocksdb_sync_wake(struct hps_rocksdb *store);
/* Stop rocksdb-sync, if it was started, and sync the last writes. */
void hps_rocksdb_sync_stop(struct hps_rocksdb *store);

/* ---- spaces.c -------------------------------------------------------------------------------- */

/* Add a family to the store's list. Takes ownership of `handle`, also on failure. Once the store is
 * open, the caller must hold its lock.
 *
 * out_family   may be NULL
 * error        NO_MEMORY */
hps_status hps_rocksdb_family_add(struct hps_rocksdb *store, const char *name,
                                  rocksdb_column_family_handle_t *handle,
                                  struct hps_rocksdb_family **out_family, struct hps_error *err)
    HPS_MUST_CHECK;
/* Free a family that is in no list. Its files stay, unless it was dropped. */
void hps_rocksdb_family_free(struct hps_rocksdb_family *family);
/* Free dropped families that no flush, compaction or write of RocksDB uses any more. True: some
 * dropped families are left. */
bool hps_rocksdb_dropped_free(struct hps_rocksdb *store);
/* Free all dropped families. If there are any, cancel RocksDB's background jobs first. To be called
 * only when the store is closed. */
void hps_rocksdb_dropped_close(struct hps_rocksdb *store);

/* ---- database.c ------------------------------------------------------------------------------ */

/* Open the database with all its families; create it if its directory is absent or empty. This runs
 * on a new thread, and the caller waits for it. The directory must be open and the options created.
 * On failure some handles may be open; closing the store closes them.
 *
 * error   NEWER_FORMAT, DATA_LOSS (corrupt), PRECONDITION (not a database of hpsd), NOT_FOUND
 *         (read-only and no database), BUSY, EXHAUSTED, INVALID (read mode), NO_MEMORY, IO */
hps_status hps_rocksdb_database_start_behind(struct hps_rocksdb *store,
                                             const struct hps_rocksdb_options *given,
                                             struct hps_error *err) HPS_MUST_CHECK;
/* Compare the sizes of all files with the sizes that the database has recorded. To be called before
 * the first lookup. DATA_LOSS: a file is shorter or longer. */
hps_status hps_rocksdb_files_check(const struct hps_rocksdb *store, struct hps_error *err)
    HPS_MUST_CHECK;

/* ---- read.c ---------------------------------------------------------------------------------- */

/* Start the reader threads. store->mode must be set. The close of the store ends them. */
hps_status hps_rocksdb_readers_start(struct hps_rocksdb *store,
                                     const struct hps_rocksdb_options *given, struct hps_error *err)
    HPS_MUST_CHECK;

/* ---- calls of struct hps_store_ops; contracts in backends/store*.h --------------------------- */

/* read.c */
hps_status hps_rocksdb_get_many(struct hps_space *space, const struct hps_call *call,
                                struct hps_part_batch *parts, uint32_t n_parts);
hps_status hps_rocksdb_scan(struct hps_space *space, const struct hps_table *table,
                            hps_status (*fn)(void *ctx, const hps_key *keys, const uint8_t *rows,
                                             uint32_t n),
                            void *ctx, struct hps_error *err);

hps_status hps_rocksdb_view(struct hps_space *space, const struct hps_view *view,
                            struct hps_error *err);

/* write.c */
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
/* `options`: of the read. */
hps_status hps_rocksdb_space_records(struct hps_space *space, const rocksdb_readoptions_t *options,
                                     hps_record_fn fn, void *ctx, struct hps_error *err);
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
