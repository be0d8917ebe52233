/* SPDX-License-Identifier: Apache-2.0
 *
 * The persistent store, and the only file that knows RocksDB. Calls block on disk, so they come
 * from worker threads; any number at a time.
 *
 * On disk: `<path>/hpsd` is the database, `<path>/hpsd.lock` keeps it to one process. The default
 * family holds one record, the format. "catalog" holds the records, `<model>@<version>` one
 * version: its keys are table id and key, both big-endian, so that key order is load order. Behind
 * all tables lie the version's own records, below a table id that no table has: one batch writes
 * rows and positions, and dropping the family drops both.
 *
 * The log is written with every write, so that a killed process loses nothing, and synced by a
 * thread of the store once in wal_sync_ms, for the sake of the machine's power.
 *
 * RocksDB aborts the process when the disk is full under its write-ahead log, so every write looks
 * at the free space first and stops well before.
 */
#include "backends/rocksdb/rocksdb.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <rocksdb/c.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "backends/rocksdb/dir.h"
#include "backends/rocksdb/write_order.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/key_sort.h"
#include "base/log.h"
#include "base/pool.h"
#include "base/rows/fileio.h"
#include "base/thread.h"

#define MIB            (UINT64_C(1) << 20)
#define FORMAT_KEY     "hpsd.format"
#define CATALOG        "catalog"
#define DEFAULT_FAMILY "default"
/* No directory can be made there, so RocksDB goes without its own log file. */
#define NO_LOG_DIR "/dev/null/none"

enum {
    KEY_BYTES = 12,   /* table u32, key u64 */
    ENTRY_BYTES = 24, /* key and the block format's own share of a row, rounded up */
    NAME_MAX_BYTES = 160,
    MODEL_MAX_BYTES = 120,
    SCAN_ROWS = 1024,
    BLOCK_BYTES = 4096, /* one disk read per row; 1 KB blocks measured no better */
    BATCH_KEYS_MAX = 1 << 16,
    CHUNK_KEYS = 1024,    /* of one multi-get: the deadline is looked at between them */
    SPLIT_KEYS_CPU = 512, /* least share of a reader, where reading is copying */
    SPLIT_KEYS_DISK = 32, /* the same where each row is a wait for the disk */
    LOAD_BLOCKS = 8,
    LOAD_BLOCK_BYTES = 1 << 20, /* and at least one row, which has 256 KiB at most */
    LOGS_MAX = 16,
    READERS_MAX = 32, /* more threads got no more out of a disk */
    RECORD_PREFIX_BYTES = 4,
    RECORD_ENTRY_BYTES = 64,
    LOOK_MS = 1000, /* the sync thread, where each write is synced by itself */
};

#define RECORD_TABLE    UINT32_MAX /* where a table id stands in the keys of a space's records */
#define APPLY_BYTES_MAX (UINT64_C(1) << 30) /* RocksDB's own limit of a batch is 4 GiB */

#define SST_BYTES          (256 * MIB)
#define WRITE_BUFFER_BYTES (256 * MIB)
#define WAL_BYTES          (256 * MIB)
#define CHECK_BYTES        (64 * MIB)
#define BATCH_BYTES        (16 * MIB)

struct family {
    char *name;
    rocksdb_column_family_handle_t *handle;
    bool open;     /* there is a space handle of it */
    bool leftover; /* a drop has failed: there is nothing in it for anybody */
    bool damaged;  /* a compaction met damage in it: the next open lets none touch it */
    struct family *next;
};

struct rocks {
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
    pthread_mutex_t lock; /* families and their flags */
    struct family *families;

    struct hps_pool *readers; /* NULL: whoever asks reads alone */
    uint32_t split_keys;      /* least share of a reader */

    uint32_t wal_sync_ms;
    atomic_bool wal_dirty;       /* something was written since the log was last synced */
    atomic_bool stopped;         /* RocksDB took no write when it was last asked */
    _Atomic uint64_t broken_log; /* number of the log that a write failed in; 0: none */
    atomic_bool log_lost;        /* RocksDB begins no other one until it is opened again */
    uint64_t n_errors;           /* its count of them at the last look; the sync thread's */
    pthread_rwlock_t log_gate;   /* shared: a write to the log; alone: its sync */
    pthread_t sync_thread;
    bool sync_started;
    pthread_mutex_t sync_lock;
    pthread_cond_t sync_wake;
    bool closing; /* under sync_lock */
};

struct rocks_space {
    struct hps_space base;
    struct family *family;
    bool loading; /* under the store's lock */
};

/* Rows of one table on their way to a file: n times key and row. */
struct load_block {
    uint32_t n;
    uint32_t entry_bytes;
    char *data; /* [LOAD_BLOCK_BYTES] */
};

/* Who loads fills blocks; a thread of the load writes them to files meanwhile. */
struct hps_store_load {
    struct rocks *store;
    struct rocks_space *space;
    char *dir;

    bool any; /* a row was added: the two below hold the last one's place */
    uint32_t table;
    hps_key key;

    struct load_block blocks[LOAD_BLOCKS];
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t n_filled;  /* blocks; under `lock`, as all below to `error` */
    uint64_t n_written; /* blocks */
    bool ended;         /* no more blocks come; the thread ends when it has written all */
    hps_status status;  /* of the thread; what comes after a failure is thrown away */
    struct hps_error error;

    rocksdb_sstfilewriter_t *writer; /* NULL between files; the thread's, as all below */
    char **files;
    size_t n_files;
    uint64_t file_bytes;
    uint64_t unchecked_bytes; /* written since the free space was looked at */
};

/* ---- errors ---- */

static hps_status text_status(const char *text)
{
    if (strncmp(text, "Corruption", 10) == 0 ||
        strstr(text, "larger than file length") != NULL || /* mapped, and cut short */
        strstr(text, "while mmap file for read") != NULL /* and empty */) {
        return HPS_DATA_LOSS;
    }
    if (strstr(text, "/LOCK") != NULL) {
        return HPS_BUSY;
    }
    if (strstr(text, "No space left") != NULL || strstr(text, "Space limit") != NULL) {
        return HPS_EXHAUSTED;
    }
    if (strstr(text, "imed out") != NULL) {
        return HPS_DEADLINE;
    }
    if (strncmp(text, "Invalid argument", 16) == 0 || strncmp(text, "Not implemented", 15) == 0) {
        return HPS_INTERNAL;
    }
    return HPS_IO;
}

/* takes `text`, which RocksDB allocated. */
static hps_status fail_text(char *text, struct hps_error *err, const char *what)
{
    hps_status status = hps_error_set(err, text_status(text), "rocksdb: %s: %s", what, text);
    rocksdb_free(text);
    return status;
}

/* As fail_text, for calls that have no hps_error to fill: the message goes to the log. */
static hps_status log_text(char *text, const char *what)
{
    hps_status status = text_status(text);
    if (status != HPS_DEADLINE) {
        HPS_LOG(ERROR, "rocksdb", what, HPS_STR("status", hps_status_text(status)),
                HPS_STR("error", text));
    }
    rocksdb_free(text);
    return status;
}

static hps_status fail_memory(struct hps_error *err)
{
    return hps_error_set(err, HPS_NO_MEMORY, "rocksdb: out of memory");
}

static hps_status fail_read_only(const struct rocks *store, struct hps_error *err)
{
    return hps_error_set(err, HPS_PRECONDITION, "rocksdb: %s is open read-only", store->dir.path);
}

static uint64_t clamp(uint64_t value, uint64_t low, uint64_t high)
{
    return value < low ? low : value > high ? high : value;
}

/* ---- options ---- */

/* filter: only for files that flushes and compactions write. Most rows lie in ingested files at the
 * bottom, where a filter would cost memory for every row and only help keys that exist nowhere.
 * Blocks of mapped files are read where they lie: a cache of them would only be asked in vain. */
static void options_set_table(const struct rocks *store, rocksdb_options_t *options, bool filter)
{
    rocksdb_block_based_table_options_t *table = rocksdb_block_based_options_create();
    rocksdb_block_based_options_set_block_size(table, BLOCK_BYTES);
    rocksdb_block_based_options_set_format_version(table, 5);
    if (store->cache != NULL && store->mode != HPS_ROCKSDB_READ_MMAP) {
        rocksdb_block_based_options_set_block_cache(table, store->cache);
    } else {
        rocksdb_block_based_options_set_no_block_cache(table, 1);
    }
    if (filter) {
        rocksdb_block_based_options_set_filter_policy(table, rocksdb_filterpolicy_create_bloom(10));
    }
    rocksdb_options_set_block_based_table_factory(options, table);
    rocksdb_block_based_options_destroy(table);
}

static rocksdb_options_t *options_new(const struct rocks *store,
                                      const struct hps_rocksdb_options *given, bool filter)
{
    rocksdb_options_t *options = rocksdb_options_create();
    options_set_table(store, options, filter);
    rocksdb_options_set_optimize_filters_for_hits(options, filter);
    rocksdb_options_set_compression(options, rocksdb_no_compression); /* floats do not compress */
    rocksdb_options_set_paranoid_checks(options, 1);
    rocksdb_options_set_max_open_files(options, -1);
    rocksdb_options_set_max_background_jobs(options,
                                            given->n_threads > 2 ? (int)given->n_threads : 2);
    /* What is in memory is written out in the background, beside the free-space guard: keep it to a
     * part of what the guard holds back. */
    uint64_t buffers = clamp(store->dir.disk_free_min_bytes / 8, MIB, WRITE_BUFFER_BYTES);
    rocksdb_options_set_db_write_buffer_size(options, (size_t)buffers);
    rocksdb_options_set_write_buffer_size(options, (size_t)(buffers / 4));
    rocksdb_options_set_target_file_size_base(options, buffers / 4);
    rocksdb_options_set_max_bytes_for_level_base(options, buffers);
    rocksdb_options_set_max_total_wal_size(options, clamp(buffers, MIB, WAL_BYTES));
    rocksdb_options_set_manifest_preallocation_size(options, 64 << 10);
    /* A torn tail is what a crash leaves; a hole in the middle is data loss and must be seen. */
    rocksdb_options_set_wal_recovery_mode(options,
                                          rocksdb_tolerate_corrupted_tail_records_recovery);
    /* Its options when it opens, and no more: its own log file meets a full disk, too, and Debian
     * 12's library aborts at the next line then. */
    rocksdb_options_set_info_log_level(options, 4 /* fatal */);
    rocksdb_options_set_keep_log_file_num(options, 4);
    if (store->dir.read_only) {
        rocksdb_options_set_db_log_dir(options, NO_LOG_DIR);
    }
    return options;
}

/* Options that only the text form has.
 *
 * avoid_flush: what the log brings back stays in memory, and what is in memory is left to the log:
 * an open and a close write next to nothing, so that they work on a full disk.
 *
 * hint: the memory table looks for the place of a key from that of the key before in its table (the
 * prefix of a key), as batches come in the order of their keys (write_order.h). */
static hps_status options_set_text(struct rocks *store, struct hps_error *err)
{
    char *text = NULL;
    rocksdb_options_t *options = rocksdb_options_create();
    rocksdb_get_options_from_string(store->options,
                                    "avoid_flush_during_recovery=true;"
                                    "avoid_flush_during_shutdown=true;"
                                    "memtable_insert_with_hint_prefix_extractor=fixed:4",
                                    options, &text);
    if (text != NULL) {
        rocksdb_options_destroy(options);
        return fail_text(text, err, "cannot set options");
    }
    rocksdb_options_destroy(store->options);
    store->options = options;
    return HPS_OK;
}

static void options_fill(struct rocks *store, const struct hps_rocksdb_options *given)
{
    if (given->block_cache_bytes != 0) {
        store->cache = rocksdb_cache_create_lru((size_t)given->block_cache_bytes);
    }
    store->options = options_new(store, given, true);
    store->sst_options = options_new(store, given, false);
    store->read = rocksdb_readoptions_create();
    store->read_scan = rocksdb_readoptions_create();
    rocksdb_readoptions_set_fill_cache(store->read_scan, 0);
    rocksdb_readoptions_set_readahead_size(store->read_scan, 2 * MIB);
    /* A batch that names a dropped family would otherwise poison the database, over restarts too.
     */
    store->write = rocksdb_writeoptions_create();
    rocksdb_writeoptions_set_ignore_missing_column_families(store->write, 1);
    rocksdb_writeoptions_set_sync(store->write, store->wal_sync_ms == 0);
    store->write_synced = rocksdb_writeoptions_create();
    rocksdb_writeoptions_set_sync(store->write_synced, 1);
    store->write_unlogged = rocksdb_writeoptions_create();
    rocksdb_writeoptions_disable_WAL(store->write_unlogged, 1);
    store->ingest = rocksdb_ingestexternalfileoptions_create();
    rocksdb_ingestexternalfileoptions_set_move_files(store->ingest, 1);
    store->env_options = rocksdb_envoptions_create();
}

static void options_set_mode(struct rocks *store)
{
    rocksdb_options_t *each[2] = {store->options, store->sst_options};
    for (unsigned i = 0; i < 2; i++) {
        options_set_table(store, each[i], i == 0);
        rocksdb_options_set_allow_mmap_reads(each[i], store->mode == HPS_ROCKSDB_READ_MMAP);
        rocksdb_options_set_use_direct_reads(each[i], store->mode == HPS_ROCKSDB_READ_DIRECT);
    }
}

static void options_free(struct rocks *store)
{
    if (store->options == NULL) {
        return;
    }
    rocksdb_envoptions_destroy(store->env_options);
    rocksdb_ingestexternalfileoptions_destroy(store->ingest);
    rocksdb_writeoptions_destroy(store->write_unlogged);
    rocksdb_writeoptions_destroy(store->write_synced);
    rocksdb_writeoptions_destroy(store->write);
    rocksdb_readoptions_destroy(store->read_scan);
    rocksdb_readoptions_destroy(store->read);
    rocksdb_options_destroy(store->sst_options);
    rocksdb_options_destroy(store->options);
    if (store->cache != NULL) {
        rocksdb_cache_destroy(store->cache);
    }
}

/* ---- damaged families ----
 *
 * A compaction that meets a damaged block stops all writing, also of what would replace or unload
 * the family, and would do so again after each restart. So `<dir>/hpsd.damaged` names, one a line,
 * the families that have no compactions any more.
 */

static char *damaged_path(const struct rocks *store)
{
    return hps_rocksdb_dir_join(store->dir.dir, "hpsd.damaged");
}

/* Names, a line each; NULL: none. owner: the caller (hps_free). */
static char *damaged_read(const struct rocks *store, struct hps_error *err, hps_status *out_status)
{
    char *path = damaged_path(store);
    char *names = NULL;
    uint64_t bytes = 0;
    int fd = -1;
    hps_status status =
        path != NULL ? hps_file_open_read(path, &fd, &bytes, err) : fail_memory(err);
    if (status == HPS_OK) {
        names = hps_calloc(1, bytes + 1);
        status = names != NULL ? hps_file_pread(fd, path, names, bytes, 0, err) : fail_memory(err);
        close(fd);
    }
    hps_free(path);
    *out_status = status == HPS_NOT_FOUND ? HPS_OK : status;
    return names;
}

static bool damaged_names(const char *names, const char *name)
{
    size_t size = strlen(name);
    for (const char *at = names; at != NULL && *at != '\0';) {
        const char *end = strchrnul(at, '\n');
        if ((size_t)(end - at) == size && memcmp(at, name, size) == 0) {
            return true;
        }
        at = *end != '\0' ? end + 1 : end;
    }
    return false;
}

/* Under the store's lock. */
static hps_status damaged_write(struct rocks *store, struct hps_error *err)
{
    size_t size = 0;
    for (const struct family *f = store->families; f != NULL; f = f->next) {
        size += f->damaged ? strlen(f->name) + 1 : 0;
    }
    char *path = damaged_path(store);
    char *names = hps_alloc(size + 1);
    hps_status status = path != NULL && names != NULL ? HPS_OK : fail_memory(err);
    size_t at = 0;
    for (const struct family *f = store->families; status == HPS_OK && f != NULL; f = f->next) {
        if (f->damaged) {
            at += (size_t)snprintf(names + at, size + 1 - at, "%s\n", f->name);
        }
    }
    if (status == HPS_OK && size > 0) {
        status = hps_file_replace(path, names, size, err);
    } else if (status == HPS_OK && unlink(path) != 0 && errno != ENOENT) {
        status = hps_rocksdb_dir_fail(err, "cannot remove", path);
    }
    hps_free(names);
    hps_free(path);
    return status;
}

/* `text` says why RocksDB stopped writing: if that is damage in a file, remember whose. */
static void damaged_note(struct rocks *store, const char *text)
{
    struct hps_error error;
    if (text_status(text) != HPS_DATA_LOSS) {
        return;
    }
    const rocksdb_livefiles_t *files = rocksdb_livefiles(store->db);
    int n = rocksdb_livefiles_count(files);
    pthread_mutex_lock(&store->lock);
    for (int i = 0; i < n; i++) {
        struct family *f = store->families;
        const char *name = rocksdb_livefiles_column_family_name(files, i);
        while (f != NULL && strcmp(f->name, name) != 0) {
            f = f->next;
        }
        if (f != NULL && !f->damaged && strstr(text, rocksdb_livefiles_name(files, i)) != NULL) {
            f->damaged = true;
            HPS_LOG(ERROR, "rocksdb", "a version is damaged: restart hpsd, then replace it",
                    HPS_STR("family", f->name));
            if (damaged_write(store, &error) != HPS_OK) {
                HPS_LOG(ERROR, "rocksdb", "which version is damaged was not written down",
                        HPS_STR("error", error.text));
            }
        }
    }
    pthread_mutex_unlock(&store->lock);
    rocksdb_livefiles_destroy(files);
}

/* ---- the log ---- */

/* Does `text` say that it was the log that could not be written? Then remember which one. */
static void log_note(struct rocks *store, const char *text)
{
    const char *what = strstr(text, "While appending to file: ");
    const char *end = what != NULL ? strstr(what, ".log: ") : NULL;
    const char *name = end;
    while (name != NULL && name > what && name[-1] != '/') {
        name--;
    }
    if (name != NULL) {
        atomic_store(&store->broken_log, strtoull(name, NULL, 10));
    }
}

/* Write the format record once more, which needs no log. False: RocksDB takes no writes now. */
static bool format_rewrite(struct rocks *store)
{
    size_t size = 0;
    char *text = NULL;
    char *value = rocksdb_get(store->db, store->read, FORMAT_KEY, strlen(FORMAT_KEY), &size, &text);
    if (value != NULL) {
        rocksdb_put(store->db, store->write_unlogged, FORMAT_KEY, strlen(FORMAT_KEY), value, size,
                    &text);
    }
    bool written = text == NULL;
    rocksdb_free(value);
    rocksdb_free(text);
    return written;
}

/* Have something in memory. False: RocksDB takes no writes now. */
static bool memory_keep(struct rocks *store)
{
    uint64_t n = 0;
    return rocksdb_property_int_cf(store->db, store->default_family,
                                   "rocksdb.num-entries-active-mem-table", &n) != 0 ||
           n > 0 || format_rewrite(store);
}

/* When a disk that was full has room again RocksDB writes out what it has in memory, begins another
 * log with that, and takes writes. It begins none if nothing was there, and one more write to the
 * broken log ends the process (Debian 12): so something is always there, and nobody writes before
 * it is there again. Only where the write that failed was the first one of its log can there be
 * nothing: it may have sent all of memory to be written out itself. Of the sync thread. */
static bool log_mended(struct rocks *store)
{
    struct hps_rocksdb_dir_files logs;
    struct hps_error error;
    uint64_t broken = atomic_load(&store->broken_log);
    if (broken == 0) {
        return true;
    }
    if (atomic_load(&store->log_lost) || !format_rewrite(store) ||
        hps_rocksdb_dir_files(&store->dir, ".log", &logs, &error) != HPS_OK) {
        return false;
    }
    if (logs.newest <= broken) { /* it takes writes, and has begun none */
        atomic_store(&store->log_lost, true);
        HPS_LOG(ERROR, "rocksdb", "the log met a full disk: restart hpsd",
                HPS_STR("dir", store->dir.path));
        return false;
    }
    atomic_compare_exchange_strong(&store->broken_log, &broken, 0);
    return true;
}

#define LOG_LOST "the log met a full disk; look-ups go on, writes after a restart only"

static hps_status log_check(struct rocks *store, struct hps_error *err)
{
    return atomic_load(&store->broken_log) == 0
               ? HPS_OK
               : hps_error_set(err, HPS_EXHAUSTED, "rocksdb: %s: %s", store->dir.path,
                               atomic_load(&store->log_lost)
                                   ? LOG_LOST
                                   : "the log met a full disk; writes go on when RocksDB has begun "
                                     "another one");
}

/* text: how a write ended, NULL when it was taken. Borrowed. */
static void write_ended(struct rocks *store, const char *text)
{
    bool stopped = text != NULL;
    if (stopped) {
        log_note(store, text);
    }
    if (atomic_load(&store->stopped) == stopped ||
        atomic_exchange(&store->stopped, stopped) == stopped) {
        return;
    }
    if (stopped) {
        HPS_LOG(ERROR, "rocksdb", "RocksDB takes no writes", HPS_STR("error", text));
        damaged_note(store, text);
    } else {
        HPS_LOG(INFO, "rocksdb", "RocksDB takes writes again");
    }
}

/* An error of the disk in the background stops all writing, for good or until a full disk has room
 * again, and only a write tells which. To sync the log meanwhile is of no use, and where it was
 * that sync that failed, Debian 12's RocksDB ends the process. */
static bool takes_writes(struct rocks *store)
{
    uint64_t n_errors = 0;
    (void)rocksdb_property_int(store->db, "rocksdb.background-errors", &n_errors);
    if (n_errors == store->n_errors && !atomic_load(&store->stopped) &&
        atomic_load(&store->broken_log) == 0) {
        return true;
    }
    if (hps_rocksdb_dir_guard_small(&store->dir, 0, NULL) != HPS_OK || !log_mended(store)) {
        return false;
    }
    char *text = NULL;
    rocksdb_writebatch_t *nothing = rocksdb_writebatch_create();
    rocksdb_write(store->db, store->write, nothing, &text);
    rocksdb_writebatch_destroy(nothing);
    write_ended(store, text);
    bool taken = text == NULL;
    rocksdb_free(text);
    store->n_errors = taken ? n_errors : store->n_errors;
    return taken;
}

/* Alone: to sync a log that a write has just failed in ends the process (Debian 12). */
static void wal_sync(struct rocks *store)
{
    if (!atomic_load(&store->wal_dirty) && !atomic_load(&store->stopped) &&
        atomic_load(&store->broken_log) == 0) {
        return;
    }
    char *text = NULL;
    pthread_rwlock_wrlock(&store->log_gate);
    if (takes_writes(store) && atomic_exchange(&store->wal_dirty, false)) {
        rocksdb_flush_wal(store->db, 1, &text);
        if (text != NULL) {
            atomic_store(&store->wal_dirty, true); /* tried again once it takes writes */
            write_ended(store, text);
        }
    }
    pthread_rwlock_unlock(&store->log_gate);
    if (text != NULL) {
        hps_ignore(log_text(text, "the log cannot be synced"));
    }
}

static void *sync_run(void *arg)
{
    struct rocks *store = arg;
    uint32_t every_ms = store->wal_sync_ms != 0 ? store->wal_sync_ms : LOOK_MS;
    pthread_setname_np(pthread_self(), "rocksdb-sync");
    struct timespec due;
    clock_gettime(CLOCK_MONOTONIC, &due);
    pthread_mutex_lock(&store->sync_lock);
    while (!store->closing) {
        due.tv_sec += every_ms / 1000;
        due.tv_nsec += (long)(every_ms % 1000) * 1000000;
        if (due.tv_nsec >= 1000000000) {
            due.tv_nsec -= 1000000000;
            due.tv_sec++;
        }
        int waited = 0;
        while (!store->closing && waited != ETIMEDOUT) {
            waited = pthread_cond_timedwait(&store->sync_wake, &store->sync_lock, &due);
        }
        pthread_mutex_unlock(&store->sync_lock);
        wal_sync(store);
        memory_keep(store);
        hps_rocksdb_dir_ballast(&store->dir);
        clock_gettime(CLOCK_MONOTONIC, &due);
        pthread_mutex_lock(&store->sync_lock);
    }
    pthread_mutex_unlock(&store->sync_lock);
    return NULL;
}

static void sync_init(struct rocks *store)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&store->sync_wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&store->sync_lock, NULL);
    pthread_rwlockattr_t sync_first; /* or it would never find the log at rest */
    pthread_rwlockattr_init(&sync_first);
    pthread_rwlockattr_setkind_np(&sync_first, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    pthread_rwlock_init(&store->log_gate, &sync_first);
    pthread_rwlockattr_destroy(&sync_first);
}

static hps_status sync_start(struct rocks *store, struct hps_error *err)
{
    store->sync_started = hps_thread_start(0, sync_run, store, &store->sync_thread) == HPS_OK;
    return store->sync_started
               ? HPS_OK
               : hps_error_set(err, HPS_EXHAUSTED, "rocksdb: no thread to sync the log");
}

/* Also where it was not started. What was written is on disk afterwards. */
static void sync_stop(struct rocks *store)
{
    if (store->sync_started) {
        pthread_mutex_lock(&store->sync_lock);
        store->closing = true;
        pthread_cond_signal(&store->sync_wake);
        pthread_mutex_unlock(&store->sync_lock);
        pthread_join(store->sync_thread, NULL);
        wal_sync(store); /* what was written since its last one */
    }
    pthread_cond_destroy(&store->sync_wake);
    pthread_mutex_destroy(&store->sync_lock);
    pthread_rwlock_destroy(&store->log_gate);
}

/* ---- family names ---- */

static bool model_legal(const char *model, size_t size)
{
    if (size == 0 || size > MODEL_MAX_BYTES) {
        return false;
    }
    for (size_t i = 0; i < size; i++) {
        char c = model[i];
        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
              c == '_' || c == '-')) {
            return false;
        }
    }
    return true;
}

static hps_status family_name(const struct hps_space_id *id, char *out_name, struct hps_error *err)
{
    if (!model_legal(id->model, strlen(id->model)) || id->version < 0) {
        return hps_error_set(err, HPS_INVALID,
                             "rocksdb: cannot store model \"%s\" version %" PRId64
                             ": names are 1 to %d of a-z A-Z 0-9 _ -, versions not negative",
                             id->model, id->version, MODEL_MAX_BYTES);
    }
    (void)snprintf(out_name, NAME_MAX_BYTES, "%s@%" PRId64, id->model, id->version);
    return HPS_OK;
}

/* Split "<model>@<version>". out_model has room for MODEL_MAX_BYTES and a NUL. */
static bool family_parse(const char *name, char *out_model, int64_t *out_version)
{
    const char *at = strrchr(name, '@');
    if (at == NULL || !model_legal(name, (size_t)(at - name)) || at[1] < '0' || at[1] > '9') {
        return false;
    }
    char *end = NULL;
    errno = 0;
    long long version = strtoll(at + 1, &end, 10);
    if (errno != 0 || *end != '\0') {
        return false;
    }
    memcpy(out_model, name, (size_t)(at - name));
    out_model[at - name] = '\0';
    *out_version = version;
    return true;
}

/* ---- open ---- */

/* Make the database beside its place and move it there, so that one without a format record is
 * never ours, not even after a crash. */
static hps_status database_create(struct rocks *store, const char *dir, struct hps_error *err)
{
    char *fresh = hps_rocksdb_dir_join(dir, "hpsd.new");
    if (fresh == NULL) {
        return fail_memory(err);
    }
    char *text = NULL;
    rocksdb_t *db = NULL;
    rocksdb_column_family_handle_t *catalog = NULL;
    char format[16];
    int format_size = snprintf(format, sizeof(format), "%d", HPS_ROCKSDB_FORMAT);
    hps_status status = hps_rocksdb_dir_remove_tree(fresh, err);
    if (status != HPS_OK) {
        goto done;
    }
    rocksdb_options_set_create_if_missing(store->options, 1);
    db = rocksdb_open(store->options, fresh, &text);
    rocksdb_options_set_create_if_missing(store->options, 0);
    if (text == NULL) {
        catalog = rocksdb_create_column_family(db, store->options, CATALOG, &text);
    }
    if (text == NULL) {
        rocksdb_column_family_handle_destroy(catalog);
        rocksdb_put(db, store->write_synced, FORMAT_KEY, strlen(FORMAT_KEY), format,
                    (size_t)format_size, &text);
    }
    if (db != NULL) {
        rocksdb_close(db);
    }
    if (text != NULL) {
        status = fail_text(text, err, "cannot create the database");
    } else if (rename(fresh, store->dir.path) != 0) {
        status = hps_rocksdb_dir_fail(err, "cannot create", store->dir.path);
    } else {
        status = hps_rocksdb_dir_sync(dir, err);
    }
done:
    hps_free(fresh);
    return status;
}

static hps_status format_check(const struct rocks *store, const char *value, size_t size,
                               struct hps_error *err)
{
    uint64_t format = 0;
    bool number = size > 0 && size < 10;
    for (size_t i = 0; number && i < size; i++) {
        number = value[i] >= '0' && value[i] <= '9';
        format = format * 10 + (uint64_t)(value[i] - '0');
    }
    if (!number || format == 0) {
        return hps_error_set(err, HPS_DATA_LOSS, "rocksdb: %s: unreadable format record",
                             store->dir.path);
    }
    if (format > HPS_ROCKSDB_FORMAT) {
        return hps_error_set(err, HPS_NEWER_FORMAT,
                             "rocksdb: %s has format %" PRIu64 ", this build reads up to %d",
                             store->dir.path, format, HPS_ROCKSDB_FORMAT);
    }
    return HPS_OK;
}

/* Read the format record without touching anything in the directory. */
static hps_status database_check(const struct rocks *store, struct hps_error *err)
{
    rocksdb_options_t *options = rocksdb_options_create();
    rocksdb_options_set_db_log_dir(options, NO_LOG_DIR);
    char *text = NULL;
    rocksdb_t *db = rocksdb_open_for_read_only(options, store->dir.path, 0, &text);
    rocksdb_options_destroy(options);
    if (text != NULL) {
        return fail_text(text, err, "cannot open the database");
    }
    size_t size = 0;
    char *value = rocksdb_get(db, store->read, FORMAT_KEY, strlen(FORMAT_KEY), &size, &text);
    hps_status status;
    if (text != NULL) {
        status = fail_text(text, err, "cannot read the format record");
    } else if (value == NULL) {
        status = hps_error_set(err, HPS_PRECONDITION,
                               "rocksdb: %s is not ours (it has no %s record) and is left alone",
                               store->dir.path, FORMAT_KEY);
    } else {
        status = format_check(store, value, size, err);
    }
    rocksdb_free(value);
    rocksdb_close(db);
    return status;
}

/* takes `handle`, on failure too. */
static hps_status family_add(struct rocks *store, const char *name,
                             rocksdb_column_family_handle_t *handle, struct family **out_family,
                             struct hps_error *err)
{
    struct family *family = hps_calloc(1, sizeof(*family));
    char *copy = hps_strdup(name);
    if (family == NULL || copy == NULL) {
        hps_free(family);
        hps_free(copy);
        rocksdb_column_family_handle_destroy(handle);
        return fail_memory(err);
    }
    family->name = copy;
    family->handle = handle;
    family->next = store->families;
    store->families = family;
    if (out_family != NULL) {
        *out_family = family;
    }
    return HPS_OK;
}

/* Put the handles where they belong. takes them all, on failure too. */
static hps_status families_take(struct rocks *store, char **names, size_t n,
                                rocksdb_column_family_handle_t **handles, struct hps_error *err)
{
    hps_status status = HPS_OK;
    for (size_t i = 0; i < n; i++) {
        if (strcmp(names[i], DEFAULT_FAMILY) == 0) {
            store->default_family = handles[i];
        } else if (strcmp(names[i], CATALOG) == 0) {
            store->catalog = handles[i];
        } else if (status == HPS_OK) {
            status = family_add(store, names[i], handles[i], NULL, err);
        } else {
            rocksdb_column_family_handle_destroy(handles[i]);
        }
    }
    if (status == HPS_OK && store->catalog == NULL) {
        status = hps_error_set(err, HPS_DATA_LOSS, "rocksdb: %s has no catalog", store->dir.path);
    }
    return status;
}

static void families_mark(struct rocks *store, const char *damaged)
{
    for (struct family *f = store->families; f != NULL; f = f->next) {
        f->damaged = damaged_names(damaged, f->name);
        if (f->damaged) {
            HPS_LOG(WARN, "rocksdb", "a damaged version is not compacted: replace it",
                    HPS_STR("family", f->name));
        }
    }
}

static hps_status database_open(struct rocks *store, struct hps_error *err)
{
    char *text = NULL;
    size_t n = 0;
    char **names = rocksdb_list_column_families(store->options, store->dir.path, &n, &text);
    if (text != NULL) {
        return fail_text(text, err, "cannot list the families");
    }
    hps_status status = HPS_OK;
    const rocksdb_options_t **options = hps_calloc(n, sizeof(*options));
    rocksdb_column_family_handle_t **handles = hps_calloc(n, sizeof(*handles));
    rocksdb_options_t *untouched = rocksdb_options_create_copy(store->options);
    char *damaged = NULL;
    rocksdb_options_set_disable_auto_compactions(untouched, 1);
    if (options == NULL || handles == NULL) {
        status = fail_memory(err);
        goto done;
    }
    damaged = damaged_read(store, err, &status);
    if (status != HPS_OK) {
        goto done;
    }
    for (size_t i = 0; i < n; i++) {
        options[i] = damaged_names(damaged, names[i]) ? untouched : store->options;
    }
    if (store->dir.read_only) {
        store->db = rocksdb_open_for_read_only_column_families(store->options, store->dir.path,
                                                               (int)n, (const char *const *)names,
                                                               options, handles, 0, &text);
    } else {
        store->db =
            rocksdb_open_column_families(store->options, store->dir.path, (int)n,
                                         (const char *const *)names, options, handles, &text);
    }
    status = text != NULL ? fail_text(text, err, "cannot open the database")
                          : families_take(store, names, n, handles, err);
    families_mark(store, damaged);
done:
    rocksdb_options_destroy(untouched);
    hps_free(damaged);
    hps_free((void *)options);
    hps_free(handles);
    rocksdb_list_column_families_destroy(names, n);
    return status;
}

/* A file that is shorter than the database knows would end the process when a mapping of it is
 * read, so all are compared before the first look-up. */
static hps_status files_check(const struct rocks *store, struct hps_error *err)
{
    const rocksdb_livefiles_t *files = rocksdb_livefiles(store->db);
    int n = rocksdb_livefiles_count(files);
    hps_status status = HPS_OK;
    for (int i = 0; i < n && status == HPS_OK; i++) {
        struct stat info = {0};
        const char *name = rocksdb_livefiles_name(files, i); /* begins with a slash */
        char *path = hps_rocksdb_dir_join(store->dir.path, name + 1);
        if (path == NULL) {
            status = fail_memory(err);
        } else if (stat(path, &info) != 0) {
            /* Not there: compacted away since, for one that is missing fails the open. */
            status = errno == ENOENT ? HPS_OK : hps_rocksdb_dir_fail(err, "cannot look at", path);
        } else if ((size_t)info.st_size != rocksdb_livefiles_size(files, i)) {
            status = hps_error_set(err, HPS_DATA_LOSS,
                                   "rocksdb: %s has %" PRId64 " bytes, the database knows %zu",
                                   path, (int64_t)info.st_size, rocksdb_livefiles_size(files, i));
        }
        hps_free(path);
    }
    rocksdb_livefiles_destroy(files);
    return status;
}

/* An open begins a log of its own, and all are kept from the first one on that has what is in
 * memory only. So that starts alone do not make ever more of them, memory is written out at last,
 * where the disk has room for it. RocksDB looks which logs may go only when it has written
 * something. */
static void logs_limit(struct rocks *store)
{
    struct hps_rocksdb_dir_files logs;
    struct hps_error error;
    if (hps_rocksdb_dir_files(&store->dir, ".log", &logs, &error) != HPS_OK || logs.n <= LOGS_MAX ||
        hps_rocksdb_dir_guard(&store->dir, logs.bytes, &error) != HPS_OK) {
        return; /* the next open does it */
    }
    memory_keep(store);
    rocksdb_flushoptions_t *options = rocksdb_flushoptions_create();
    char *text = NULL;
    for (struct family *f = store->families; f != NULL && text == NULL; f = f->next) {
        rocksdb_flush_cf(store->db, options, f->handle, &text);
    }
    if (text == NULL) {
        rocksdb_flush_cf(store->db, options, store->catalog, &text);
    }
    if (text == NULL) {
        rocksdb_flush_cf(store->db, options, store->default_family, &text);
    }
    rocksdb_flushoptions_destroy(options);
    if (text != NULL) {
        hps_ignore(log_text(text, "what old logs have was not written out"));
    }
}

static void family_free(struct family *family)
{
    rocksdb_column_family_handle_destroy(family->handle);
    hps_free(family->name);
    hps_free(family);
}

/* Also for a half-opened store. Every handle goes before the database. */
static void rocks_close(struct hps_store *base)
{
    struct rocks *store = (struct rocks *)base;
    sync_stop(store);
    hps_pool_free(store->readers);
    while (store->families != NULL) {
        struct family *family = store->families;
        HPS_ASSERT(!family->open);
        store->families = family->next;
        family_free(family);
    }
    if (store->catalog != NULL) {
        rocksdb_column_family_handle_destroy(store->catalog);
    }
    if (store->default_family != NULL) {
        rocksdb_column_family_handle_destroy(store->default_family);
    }
    if (store->db != NULL) {
        rocksdb_close(store->db);
    }
    options_free(store);
    hps_rocksdb_dir_close(&store->dir);
    pthread_mutex_destroy(&store->lock);
    hps_free(store);
}

/* Threads that help with one large read: as many as the disk takes, or as there are CPUs where
 * reading is copying. The caller is one of them. */
static hps_status readers_start(struct rocks *store, const struct hps_rocksdb_options *given,
                                struct hps_error *err)
{
    bool disk = store->mode == HPS_ROCKSDB_READ_DIRECT;
    uint64_t n_max = disk ? READERS_MAX : (uint64_t)sysconf(_SC_NPROCESSORS_ONLN);
    uint32_t n = (uint32_t)clamp(given->n_threads, 1, n_max) - 1;
    store->split_keys = disk ? SPLIT_KEYS_DISK : SPLIT_KEYS_CPU;
    if (n == 0) {
        return HPS_OK;
    }
    hps_status status = hps_pool_new("rocksdb-read", n, 2 * (size_t)n, &store->readers);
    return status == HPS_OK ? HPS_OK
                            : hps_error_set(err, status, "rocksdb: cannot start %u readers", n);
}

/* How files are read: mapped while they fit the memory that is theirs, else past the page cache,
 * which would only be turned over. */
static hps_status mode_choose(struct rocks *store, const struct hps_rocksdb_options *given,
                              struct hps_error *err)
{
    struct hps_rocksdb_dir_files files;
    bool direct_works = hps_rocksdb_dir_direct_works(&store->dir);
    hps_status status = hps_rocksdb_dir_files(&store->dir, ".sst", &files, err);
    if (status != HPS_OK) {
        return status;
    }
    store->mode = given->read_mode;
    if (store->mode == HPS_ROCKSDB_READ_AUTO) {
        store->mode = files.bytes <= given->memory_bytes ? HPS_ROCKSDB_READ_MMAP
                      : direct_works                     ? HPS_ROCKSDB_READ_DIRECT
                                                         : HPS_ROCKSDB_READ_BUFFERED;
    }
    if (store->mode == HPS_ROCKSDB_READ_DIRECT && !direct_works) {
        return hps_error_set(err, HPS_INVALID,
                             "rocksdb: read_mode direct: the file system of %s cannot",
                             store->dir.path);
    }
    static const char *const names[] = {"auto", "mmap", "direct", "buffered"};
    HPS_LOG(INFO, "rocksdb", "read mode", HPS_STR("mode", names[store->mode]),
            HPS_U64("bytes", files.bytes), HPS_U64("memory_bytes", given->memory_bytes));
    return HPS_OK;
}

/* Find the database, or make it where nothing is. */
static hps_status database_find(struct rocks *store, const char *dir, struct hps_error *err)
{
    enum hps_rocksdb_dir_state state = HPS_ROCKSDB_DIR_OTHER;
    hps_status status = hps_rocksdb_dir_look(&store->dir, &state, err);
    if (status != HPS_OK) {
        return status;
    }
    if (state == HPS_ROCKSDB_DIR_OTHER) {
        return hps_error_set(
            err, HPS_PRECONDITION,
            "rocksdb: %s is not ours (not empty, and no database) and is left alone",
            store->dir.path);
    }
    if (state != HPS_ROCKSDB_DIR_DATABASE && store->dir.read_only) {
        return hps_error_set(err, HPS_NOT_FOUND, "rocksdb: there is no database in %s",
                             store->dir.path);
    }
    if (state != HPS_ROCKSDB_DIR_DATABASE) {
        return database_create(store, dir, err);
    }
    status = database_check(store, err);
    if (status == HPS_OK && !store->dir.read_only) {
        status = hps_rocksdb_dir_remove_loads(&store->dir, err);
    }
    return status;
}

static hps_status database_start(struct rocks *store, const struct hps_rocksdb_options *given,
                                 struct hps_error *err)
{
    hps_status status = database_find(store, given->path, err);
    if (status == HPS_OK) {
        status = mode_choose(store, given, err);
    }
    if (status == HPS_OK && !store->dir.read_only) { /* opening writes a little */
        status = hps_rocksdb_dir_guard_vital(&store->dir, 0, err);
    }
    if (status == HPS_OK) {
        options_set_mode(store);
        status = database_open(store, err);
    }
    return status;
}

struct opening {
    struct rocks *store;
    const struct hps_rocksdb_options *given;
    struct hps_error *err;
    hps_status status;
};

/* The threads for flushes and compactions are RocksDB's, and begin like the one that opens it. */
static void *opening_run(void *arg)
{
    struct opening *opening = arg;
    pthread_setname_np(pthread_self(), "rocksdb-open");
    hps_thread_background();
    opening->status = database_start(opening->store, opening->given, opening->err);
    return NULL;
}

static hps_status database_start_behind(struct rocks *store,
                                        const struct hps_rocksdb_options *given,
                                        struct hps_error *err)
{
    struct opening opening = {.store = store, .given = given, .err = err};
    pthread_t thread;
    hps_status status = hps_thread_start(0, opening_run, &opening, &thread);
    if (status != HPS_OK) {
        return hps_error_set(err, status, "rocksdb: no thread to open the database");
    }
    pthread_join(thread, NULL);
    return opening.status;
}

static hps_status rocks_open(struct rocks *store, const struct hps_rocksdb_options *given,
                             struct hps_error *err)
{
    hps_status status = hps_rocksdb_dir_open(&store->dir, given->path, given->read_only,
                                             given->disk_free_min_bytes, err);
    if (status != HPS_OK) {
        return status;
    }
    options_fill(store, given);
    status = options_set_text(store, err);
    if (status == HPS_OK) {
        status = database_start_behind(store, given, err);
    }
    if (status == HPS_OK) {
        status = files_check(store, err);
    }
    if (status == HPS_OK) {
        status = readers_start(store, given, err);
    }
    if (status == HPS_OK && !store->dir.read_only) {
        logs_limit(store);
        memory_keep(store);
        hps_rocksdb_dir_ballast(&store->dir);
        status = sync_start(store, err);
    }
    return status;
}

/* ---- spaces ---- */

static struct rocks *rocks_of(struct hps_space *space)
{
    return (struct rocks *)space->store;
}

static rocksdb_column_family_handle_t *handle_of(struct hps_space *space)
{
    return ((struct rocks_space *)space)->family->handle;
}

/* Under the store's lock. On success the caller frees it: the files go with the handle. */
static hps_status family_drop(struct rocks *store, struct family *family, struct hps_error *err)
{
    char *text = NULL;
    struct family **link = &store->families;
    family->leftover = true;
    hps_status status = hps_rocksdb_dir_guard_vital(&store->dir, 0, err);
    if (status != HPS_OK) {
        return status;
    }
    rocksdb_drop_column_family(store->db, family->handle, &text);
    if (text != NULL) {
        return fail_text(text, err, "cannot drop the family");
    }
    while (*link != family) {
        link = &(*link)->next;
    }
    *link = family->next;
    if (family->damaged && damaged_write(store, NULL) != HPS_OK) {
        HPS_LOG(WARN, "rocksdb", "a damaged version is gone, its mark is not",
                HPS_STR("family", family->name));
    }
    return HPS_OK;
}

/* Under the store's lock. */
static hps_status family_get(struct rocks *store, const char *name, struct family **out_family,
                             struct hps_error *err)
{
    struct family *f = store->families;
    while (f != NULL && strcmp(f->name, name) != 0) {
        f = f->next;
    }
    if (f != NULL && f->open) {
        return hps_error_set(err, HPS_EXISTS, "rocksdb: %s is open already", name);
    }
    if (f != NULL && !f->leftover) {
        *out_family = f;
        return HPS_OK;
    }
    hps_status dropped = f != NULL ? family_drop(store, f, err) : HPS_OK;
    if (dropped != HPS_OK) {
        return dropped;
    }
    if (f != NULL) {
        family_free(f);
    }
    if (store->dir.read_only) {
        return fail_read_only(store, err);
    }
    hps_status status = hps_rocksdb_dir_guard_small(&store->dir, 0, err);
    if (status != HPS_OK) {
        return status;
    }
    char *text = NULL;
    rocksdb_column_family_handle_t *handle =
        rocksdb_create_column_family(store->db, store->options, name, &text);
    if (text != NULL) {
        return fail_text(text, err, "cannot create the family");
    }
    return family_add(store, name, handle, out_family, err);
}

static hps_status rocks_space_open(struct hps_store *base, const struct hps_space_id *id,
                                   struct hps_space **out_space, struct hps_error *err)
{
    struct rocks *store = (struct rocks *)base;
    char name[NAME_MAX_BYTES];
    hps_status status = family_name(id, name, err);
    if (status != HPS_OK) {
        return status;
    }
    struct rocks_space *space = hps_calloc(1, sizeof(*space));
    if (space == NULL) {
        return fail_memory(err);
    }
    pthread_mutex_lock(&store->lock);
    status = family_get(store, name, &space->family, err);
    if (status == HPS_OK) {
        space->family->open = true;
    }
    pthread_mutex_unlock(&store->lock);
    if (status != HPS_OK) {
        hps_free(space);
        return status;
    }
    space->base.store = base;
    *out_space = &space->base;
    return HPS_OK;
}

static void rocks_space_close(struct hps_space *base)
{
    struct rocks *store = rocks_of(base);
    struct rocks_space *space = (struct rocks_space *)base;
    pthread_mutex_lock(&store->lock);
    HPS_ASSERT(!space->loading);
    space->family->open = false;
    pthread_mutex_unlock(&store->lock);
    hps_free(space);
}

static hps_status rocks_space_drop(struct hps_space *base, struct hps_error *err)
{
    struct rocks *store = rocks_of(base);
    struct family *family = ((struct rocks_space *)base)->family;
    if (store->dir.read_only) {
        rocks_space_close(base);
        return fail_read_only(store, err);
    }
    pthread_mutex_lock(&store->lock);
    family->open = false;
    hps_status status = family_drop(store, family, err);
    pthread_mutex_unlock(&store->lock);
    hps_free(base);
    if (status == HPS_OK) {
        family_free(family);
        hps_rocksdb_dir_ballast(&store->dir);
    }
    return status;
}

static uint64_t property(struct hps_space *space, const char *name)
{
    uint64_t value = 0;
    if (rocksdb_property_int_cf(rocks_of(space)->db, handle_of(space), name, &value) != 0) {
        return 0;
    }
    return value;
}

static void rocks_space_usage(struct hps_space *space, struct hps_store_usage *out_usage)
{
    *out_usage = (struct hps_store_usage){
        .n_rows = property(space, "rocksdb.estimate-num-keys"),
        .rows_estimated = true,
        .used_bytes = property(space, "rocksdb.live-sst-files-size") +
                      property(space, "rocksdb.cur-size-all-mem-tables"),
    };
}

/* ---- reads ---- */

static void key_encode(char *out, uint32_t table, hps_key key)
{
    uint32_t table_be = __builtin_bswap32(table);
    uint64_t key_be = __builtin_bswap64(key);
    memcpy(out, &table_be, sizeof(table_be));
    memcpy(out + sizeof(table_be), &key_be, sizeof(key_be));
}

static uint64_t read_u64_be(const char *from)
{
    uint64_t value;
    memcpy(&value, from, sizeof(value));
    return __builtin_bswap64(value);
}

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "keys are swapped to big-endian");

static bool key_is_record(const char *key, size_t size)
{
    uint32_t prefix = 0;
    if (size >= RECORD_PREFIX_BYTES) {
        memcpy(&prefix, key, sizeof(prefix));
    }
    return prefix == RECORD_TABLE;
}

/* Where a key that is asked for came from: index in a part's batch. */
struct asked {
    uint32_t part;
    uint32_t at;
};

/* Arrays for one multi-get of up to n_max keys, in one piece of memory. */
struct multi_get {
    struct asked *asked;
    const char **keys;
    size_t *sizes;
    rocksdb_pinnableslice_t **values;
    char **errors;
    char *bytes;
};

static size_t multi_get_bytes(uint32_t n_max)
{
    return n_max * (sizeof(struct asked) + sizeof(char *) + sizeof(size_t) + 2 * sizeof(void *) +
                    KEY_BYTES);
}

static void multi_get_init(struct multi_get *get, void *memory, uint32_t n_max)
{
    get->keys = memory;
    get->sizes = (size_t *)(void *)(get->keys + n_max);
    get->values = (rocksdb_pinnableslice_t **)(void *)(get->sizes + n_max);
    get->errors = (char **)(void *)(get->values + n_max);
    get->asked = (struct asked *)(void *)(get->errors + n_max);
    get->bytes = (char *)(get->asked + n_max);
    for (uint32_t i = 0; i < n_max; i++) {
        get->keys[i] = get->bytes + (size_t)i * KEY_BYTES;
        get->sizes[i] = KEY_BYTES;
    }
}

/* Copy one answer to its row. The value is not freed. */
static hps_status answer_take(struct hps_space *space, const struct hps_table *table,
                              const rocksdb_pinnableslice_t *value, hps_key key, uint8_t *row)
{
    size_t size = 0;
    const char *data = rocksdb_pinnableslice_value(value, &size);
    if (size != table->row_bytes) {
        HPS_LOG(ERROR, "rocksdb", "row of a wrong size",
                HPS_STR("family", ((struct rocks_space *)space)->family->name),
                HPS_STR("table", table->name), HPS_U64("key", key), HPS_U64("bytes", size),
                HPS_U64("expected", table->row_bytes));
        return HPS_DATA_LOSS;
    }
    memcpy(row, data, size);
    return HPS_OK;
}

/* One part of a read: a batch in key order. */
struct read_part {
    const struct hps_table *table;
    struct hps_batch *batch;
    uint32_t first; /* number of its first key among all of the read */
};

/* One request's keys, read in chunks, by one thread or several. Parts are in order of table id, so
 * that key order is that of the family. Only the marks and rows of its chunk are written by who
 * reads it; the batches are put in order when all chunks are done. */
struct read {
    struct hps_space *space;
    struct read_part *parts;
    uint32_t n_parts;
    uint32_t n_keys;
    uint32_t n_chunk; /* keys of a chunk; the last may have fewer */
    uint32_t n_chunks;
    uint8_t *marks; /* [n_keys] 1: found */
    uint64_t deadline_us;
    const rocksdb_readoptions_t *options;
    atomic_int status; /* the first failure; chunks that begin after it are left out */
};

static void read_fail(struct read *read, hps_status status)
{
    int none = HPS_OK;
    atomic_compare_exchange_strong(&read->status, &none, (int)status);
}

/* Take the answer to what was asked as number i. */
static void read_answer(struct read *read, struct multi_get *get, uint32_t i)
{
    const struct read_part *part = &read->parts[get->asked[i].part];
    uint32_t at = get->asked[i].at;
    if (get->errors[i] != NULL) {
        if (atomic_load(&read->status) == HPS_OK) {
            read_fail(read, log_text(get->errors[i], "read failed"));
        } else {
            rocksdb_free(get->errors[i]);
        }
    }
    if (get->values[i] == NULL) {
        return;
    }
    uint8_t *row = part->batch->rows + (size_t)part->batch->slots[at] * part->table->row_bytes;
    hps_status status =
        answer_take(read->space, part->table, get->values[i], part->batch->keys[at], row);
    rocksdb_pinnableslice_destroy(get->values[i]);
    if (status == HPS_OK) {
        read->marks[part->first + at] = 1;
    } else {
        read_fail(read, status);
    }
}

static void read_asked(struct read *read, struct multi_get *get, uint32_t n)
{
    memset(get->values, 0, n * sizeof(*get->values));
    memset(get->errors, 0, n * sizeof(*get->errors));
    rocksdb_batched_multi_get_cf(rocks_of(read->space)->db, read->options, handle_of(read->space),
                                 n, get->keys, get->sizes, get->values, get->errors, true);
    for (uint32_t i = 0; i < n; i++) {
        read_answer(read, get, i);
    }
}

/* The part that has key number `first` of the read. */
static uint32_t read_part_of(const struct read *read, uint32_t first)
{
    uint32_t lo = 0;
    uint32_t hi = read->n_parts;
    while (hi - lo > 1) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (read->parts[mid].first <= first) {
            lo = mid;
        } else {
            hi = mid;
        }
    }
    return lo;
}

static void read_chunk(struct read *read, struct multi_get *get, uint32_t chunk)
{
    if (read->deadline_us != 0 && hps_clock_us() >= read->deadline_us) {
        read_fail(read, HPS_DEADLINE);
    }
    if (atomic_load(&read->status) != HPS_OK) {
        return;
    }
    uint32_t first = chunk * read->n_chunk;
    uint32_t left = read->n_keys - first < read->n_chunk ? read->n_keys - first : read->n_chunk;
    uint32_t n = 0;
    for (uint32_t p = read_part_of(read, first); left > 0; p++) {
        const struct read_part *part = &read->parts[p];
        if (n > 0 && part->table->id == read->parts[p - 1].table->id) {
            read_asked(read, get, n); /* the same table again: its keys begin anew */
            n = 0;
        }
        uint32_t at = first > part->first ? first - part->first : 0;
        for (; at < part->batch->n && left > 0; at++, left--, n++) {
            key_encode(get->bytes + (size_t)n * KEY_BYTES, part->table->id, part->batch->keys[at]);
            get->asked[n] = (struct asked){p, at};
        }
    }
    read_asked(read, get, n);
}

/* A chunk of a read that several threads share. */
static void read_piece(void *ctx, uint32_t chunk)
{
    struct read *read = ctx;
    void *memory = hps_alloc(multi_get_bytes(read->n_chunk));
    if (memory == NULL) {
        read_fail(read, HPS_NO_MEMORY);
        return;
    }
    struct multi_get get;
    multi_get_init(&get, memory, read->n_chunk);
    read_chunk(read, &get, chunk);
    hps_free(memory);
}

/* RocksDB's deadline is wall-clock time. owner: the caller's. */
static rocksdb_readoptions_t *read_until(uint64_t deadline_us, uint64_t now_us)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t wall_us = (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
    rocksdb_readoptions_t *read = rocksdb_readoptions_create();
    rocksdb_readoptions_set_deadline(read, wall_us + (deadline_us - now_us));
    return read;
}

/* Read all chunks, and put what was found behind what is missing. get NULL: with the readers. */
static hps_status read_run(struct read *read, struct multi_get *get)
{
    rocksdb_readoptions_t *until = NULL;
    read->options = rocks_of(read->space)->read;
    if (read->deadline_us != 0) {
        uint64_t now_us = hps_clock_us();
        if (now_us >= read->deadline_us) {
            return HPS_DEADLINE;
        }
        read->options = until = read_until(read->deadline_us, now_us);
    }
    if (get == NULL) {
        hps_pool_split(rocks_of(read->space)->readers, read->n_chunks, read_piece, read);
    }
    for (uint32_t chunk = 0; get != NULL && chunk < read->n_chunks; chunk++) {
        read_chunk(read, get, chunk);
    }
    if (until != NULL) {
        rocksdb_readoptions_destroy(until);
    }
    for (uint32_t p = 0; p < read->n_parts; p++) {
        struct hps_batch *batch = read->parts[p].batch;
        for (uint32_t i = batch->n; i-- > 0;) {
            if (read->marks[read->parts[p].first + i] != 0) {
                hps_batch_found(batch, i);
            }
        }
    }
    return (hps_status)atomic_load(&read->status);
}

/* How the keys are cut. Returns whether there is enough work for several threads. */
static bool read_cut(struct read *read)
{
    const struct rocks *store = rocks_of(read->space);
    uint32_t n_max = store->batch_keys_max < CHUNK_KEYS ? store->batch_keys_max : CHUNK_KEYS;
    bool shared = store->readers != NULL && read->n_keys >= 2 * store->split_keys;
    if (shared) {
        uint32_t n_threads = hps_pool_threads(store->readers) + 1;
        uint32_t n_even = (read->n_keys + n_threads - 1) / n_threads;
        n_even = n_even > store->split_keys ? n_even : store->split_keys;
        n_max = n_even < n_max ? n_even : n_max;
    }
    read->n_chunk = read->n_keys < n_max ? read->n_keys : n_max;
    read->n_chunks = (read->n_keys + read->n_chunk - 1) / read->n_chunk;
    return shared;
}

/* Put the parts that ask for something in order of table id: they nearly always are. */
static void read_order(struct read *read, struct hps_part_batch *parts, uint32_t n_parts)
{
    for (uint32_t i = 0; i < n_parts; i++) {
        if (parts[i].batch.n == 0) {
            continue;
        }
        uint32_t at = read->n_parts++;
        for (; at > 0 && read->parts[at - 1].table->id > parts[i].table->id; at--) {
            read->parts[at] = read->parts[at - 1];
        }
        read->parts[at] = (struct read_part){.table = parts[i].table, .batch = &parts[i].batch};
        hps_key_sort(parts[i].batch.keys, parts[i].batch.slots, parts[i].batch.n);
    }
    for (uint32_t p = 0; p < read->n_parts; p++) {
        read->parts[p].first = read->n_keys;
        read->n_keys += read->parts[p].batch->n;
    }
}

static void *scratch_alloc(const struct hps_call *call, size_t bytes, void **out_heap)
{
    void *memory = call->scratch != NULL ? hps_arena_alloc(call->scratch, bytes) : NULL;
    if (memory == NULL) {
        memory = *out_heap = hps_alloc(bytes);
    }
    return memory;
}

static hps_status rocks_get_many(struct hps_space *space, const struct hps_call *call,
                                 struct hps_part_batch *parts, uint32_t n_parts)
{
    struct read read = {.space = space, .deadline_us = call->deadline_us};
    struct multi_get get;
    void *parts_heap = NULL;
    void *heap = NULL;
    hps_status status = HPS_OK;
    read.parts = scratch_alloc(call, n_parts * sizeof(*read.parts), &parts_heap);
    if (read.parts == NULL) {
        return HPS_NO_MEMORY;
    }
    read_order(&read, parts, n_parts);
    if (read.n_keys > 0) {
        bool shared = read_cut(&read);
        size_t bytes = shared ? 0 : multi_get_bytes(read.n_chunk);
        uint8_t *memory = scratch_alloc(call, bytes + read.n_keys, &heap);
        if (memory == NULL) {
            status = HPS_NO_MEMORY;
        } else {
            if (!shared) {
                multi_get_init(&get, memory, read.n_chunk);
            }
            read.marks = memset(memory + bytes, 0, read.n_keys);
            status = read_run(&read, shared ? NULL : &get);
        }
    }
    hps_free(heap);
    hps_free(parts_heap);
    return status;
}

static hps_status rocks_get(struct hps_space *space, const struct hps_call *call,
                            const struct hps_table *table, struct hps_batch *batch)
{
    struct hps_part_batch part = {.table = table, .batch = *batch};
    hps_status status = rocks_get_many(space, call, &part, 1);
    batch->n = part.batch.n; /* the arrays are the caller's */
    return status;
}

struct scan_buffer {
    hps_key *keys;
    uint8_t *rows;
    uint32_t n;
};

static hps_status scan_rows(rocksdb_iterator_t *iter, const struct hps_table *table,
                            struct scan_buffer *buffer,
                            hps_status (*fn)(void *ctx, const hps_key *keys, const uint8_t *rows,
                                             uint32_t n),
                            void *ctx, struct hps_error *err)
{
    char prefix[KEY_BYTES];
    key_encode(prefix, table->id, 0);
    hps_status status = HPS_OK;
    for (rocksdb_iter_seek(iter, prefix, KEY_BYTES); rocksdb_iter_valid(iter);
         rocksdb_iter_next(iter)) {
        size_t key_size = 0;
        size_t size = 0;
        const char *key = rocksdb_iter_key(iter, &key_size);
        const char *row = rocksdb_iter_value(iter, &size);
        if (key_size != KEY_BYTES || memcmp(key, prefix, sizeof(uint32_t)) != 0) {
            break;
        }
        hps_key number = read_u64_be(key + sizeof(uint32_t));
        if (size != table->row_bytes) {
            return hps_error_set(err, HPS_DATA_LOSS,
                                 "rocksdb: table %s key %" PRIu64 ": %zu bytes instead of %" PRIu32,
                                 table->name, number, size, table->row_bytes);
        }
        buffer->keys[buffer->n] = number;
        memcpy(buffer->rows + (size_t)buffer->n * size, row, size);
        if (++buffer->n == SCAN_ROWS) {
            buffer->n = 0;
            status = fn(ctx, buffer->keys, buffer->rows, SCAN_ROWS);
            if (status != HPS_OK) {
                return status;
            }
        }
    }
    char *text = NULL;
    rocksdb_iter_get_error(iter, &text);
    if (text != NULL) {
        return fail_text(text, err, "scan failed");
    }
    return buffer->n > 0 ? fn(ctx, buffer->keys, buffer->rows, buffer->n) : HPS_OK;
}

static hps_status rocks_scan(struct hps_space *space, const struct hps_table *table,
                             hps_status (*fn)(void *ctx, const hps_key *keys, const uint8_t *rows,
                                              uint32_t n),
                             void *ctx, struct hps_error *err)
{
    struct rocks *store = rocks_of(space);
    struct scan_buffer buffer = {
        .keys = hps_alloc(SCAN_ROWS * sizeof(hps_key)),
        .rows = hps_alloc((size_t)SCAN_ROWS * table->row_bytes),
    };
    hps_status status;
    if (buffer.keys == NULL || buffer.rows == NULL) {
        status = fail_memory(err);
    } else {
        rocksdb_iterator_t *iter =
            rocksdb_create_iterator_cf(store->db, store->read_scan, handle_of(space));
        status = scan_rows(iter, table, &buffer, fn, ctx, err);
        rocksdb_iter_destroy(iter);
    }
    hps_free(buffer.keys);
    hps_free(buffer.rows);
    return status;
}

/* ---- writes ---- */

struct batch {
    rocksdb_writebatch_t *writes;
    rocksdb_column_family_handle_t *family;
};

static void batch_add_row(void *ctx, const struct hps_table *table, hps_key row_key,
                          const uint8_t *row)
{
    const struct batch *batch = ctx;
    char key[KEY_BYTES];
    HPS_ASSERT(table->id != RECORD_TABLE);
    key_encode(key, table->id, row_key);
    if (row != NULL) {
        rocksdb_writebatch_put_cf(batch->writes, batch->family, key, KEY_BYTES, (const char *)row,
                                  table->row_bytes);
    } else {
        rocksdb_writebatch_delete_cf(batch->writes, batch->family, key, KEY_BYTES);
    }
}

/* takes `batch` where it fails. NO_MEMORY */
static hps_status batch_add(rocksdb_writebatch_t *batch, struct hps_space *space,
                            const struct hps_write *writes, uint32_t n_writes)
{
    struct batch to = {batch, handle_of(space)};
    hps_status status = hps_write_order(writes, n_writes, batch_add_row, &to);
    if (status != HPS_OK) {
        rocksdb_writebatch_destroy(batch);
    }
    return status;
}

/* takes `batch`. out_text: RocksDB's, NULL when written. */
static void batch_write(struct rocks *store, rocksdb_writebatch_t *batch, char **out_text)
{
    *out_text = NULL;
    pthread_rwlock_rdlock(&store->log_gate);
    rocksdb_write(store->db, store->write, batch, out_text);
    write_ended(store, *out_text);
    pthread_rwlock_unlock(&store->log_gate);
    rocksdb_writebatch_destroy(batch);
    if (*out_text == NULL && store->wal_sync_ms != 0) {
        atomic_store(&store->wal_dirty, true);
    }
}

static uint64_t batch_bytes(uint32_t n, uint64_t row_bytes)
{
    return n * (row_bytes + ENTRY_BYTES);
}

/* rows NULL: delete the keys. */
static hps_status write_chunk(struct hps_space *space, const struct hps_table *table,
                              const hps_key *keys, const uint8_t *rows, uint32_t n)
{
    struct rocks *store = rocks_of(space);
    struct hps_error error;
    /* twice: into the log now and into a file when the memory is written out */
    hps_status status = hps_rocksdb_dir_guard(
        &store->dir, 2 * batch_bytes(n, rows != NULL ? table->row_bytes : 0), &error);
    if (status == HPS_OK) {
        status = log_check(store, &error);
    }
    if (status != HPS_OK) {
        HPS_LOG(WARN, "rocksdb", "write refused", HPS_STR("error", error.text));
        return status;
    }
    char *text = NULL;
    rocksdb_writebatch_t *batch = rocksdb_writebatch_create();
    const struct hps_write write = {.table = table, .keys = keys, .rows = rows, .n = n};
    status = batch_add(batch, space, &write, 1);
    if (status != HPS_OK) {
        return status;
    }
    batch_write(store, batch, &text);
    return text == NULL ? HPS_OK : log_text(text, "write failed");
}

static hps_status write_all(struct hps_space *space, const struct hps_call *call,
                            const struct hps_table *table, const hps_key *keys, const uint8_t *rows,
                            uint32_t n)
{
    struct rocks *store = rocks_of(space);
    if (store->dir.read_only) {
        return HPS_PRECONDITION;
    }
    uint64_t n_fit = clamp(BATCH_BYTES / (table->row_bytes + ENTRY_BYTES), 1, UINT32_MAX);
    uint32_t n_chunk = (uint32_t)clamp(store->batch_keys_max, 1, n_fit);
    hps_status status = HPS_OK;
    for (uint32_t i = 0; i < n && status == HPS_OK; i += n_chunk) {
        if (call->deadline_us != 0 && hps_clock_us() >= call->deadline_us) {
            return HPS_DEADLINE;
        }
        n_chunk = n - i < n_chunk ? n - i : n_chunk;
        status = write_chunk(space, table, keys + i,
                             rows != NULL ? rows + (size_t)i * table->row_bytes : NULL, n_chunk);
    }
    return status;
}

static hps_status rocks_put(struct hps_space *space, const struct hps_call *call,
                            const struct hps_table *table, const hps_key *keys, const uint8_t *rows,
                            uint32_t n)
{
    return write_all(space, call, table, keys, rows, n);
}

static hps_status rocks_erase(struct hps_space *space, const struct hps_call *call,
                              const struct hps_table *table, const hps_key *keys, uint32_t n)
{
    return write_all(space, call, table, keys, NULL, n);
}

/* Bytes of an apply, checked against the limits of one batch and of the disk. */
static hps_status apply_check(struct rocks *store, const struct hps_call *call,
                              const struct hps_write *writes, uint32_t n_writes,
                              const struct hps_record *records, uint32_t n_records,
                              struct hps_error *err)
{
    if (store->dir.read_only) {
        return fail_read_only(store, err);
    }
    if (call->deadline_us != 0 && hps_clock_us() >= call->deadline_us) {
        return hps_error_set(err, HPS_DEADLINE, "rocksdb: no time left to write the batch");
    }
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < n_writes; i++) {
        bytes += batch_bytes(writes[i].n, writes[i].rows != NULL ? writes[i].table->row_bytes : 0);
    }
    for (uint32_t i = 0; i < n_records; i++) {
        HPS_ASSERT(records[i].key_size <= HPS_RECORD_KEY_BYTES_MAX);
        bytes += RECORD_ENTRY_BYTES + records[i].key_size + records[i].value_size;
    }
    if (bytes > APPLY_BYTES_MAX) {
        return hps_error_set(err, HPS_INVALID,
                             "rocksdb: a batch of %" PRIu64 " bytes, %" PRIu64 " at most", bytes,
                             APPLY_BYTES_MAX);
    }
    hps_status status = hps_rocksdb_dir_guard(&store->dir, 2 * bytes, err);
    return status == HPS_OK ? log_check(store, err) : status;
}

static void batch_add_record(rocksdb_writebatch_t *batch, struct hps_space *space,
                             const struct hps_record *record)
{
    char key[RECORD_PREFIX_BYTES + HPS_RECORD_KEY_BYTES_MAX];
    uint32_t prefix = RECORD_TABLE;
    memcpy(key, &prefix, sizeof(prefix));
    memcpy(key + RECORD_PREFIX_BYTES, record->key, record->key_size);
    size_t size = RECORD_PREFIX_BYTES + record->key_size;
    if (record->value != NULL) {
        rocksdb_writebatch_put_cf(batch, handle_of(space), key, size, record->value,
                                  record->value_size);
    } else {
        rocksdb_writebatch_delete_cf(batch, handle_of(space), key, size);
    }
}

static hps_status rocks_apply(struct hps_space *space, const struct hps_call *call,
                              const struct hps_write *writes, uint32_t n_writes,
                              const struct hps_record *records, uint32_t n_records,
                              struct hps_error *err)
{
    struct rocks *store = rocks_of(space);
    hps_status status = apply_check(store, call, writes, n_writes, records, n_records, err);
    if (status != HPS_OK || n_writes + n_records == 0) { /* an empty batch takes room, too */
        return status;
    }
    char *text = NULL;
    rocksdb_writebatch_t *batch = rocksdb_writebatch_create();
    if (batch_add(batch, space, writes, n_writes) != HPS_OK) {
        return fail_memory(err);
    }
    for (uint32_t i = 0; i < n_records; i++) {
        batch_add_record(batch, space, &records[i]);
    }
    batch_write(store, batch, &text);
    return text == NULL ? HPS_OK : fail_text(text, err, "cannot apply the batch");
}

/* ---- loads ---- */

static hps_status space_check_empty(struct rocks_space *space, struct hps_error *err)
{
    struct rocks *store = rocks_of(&space->base);
    rocksdb_iterator_t *iter =
        rocksdb_create_iterator_cf(store->db, store->read, space->family->handle);
    rocksdb_iter_seek_to_first(iter);
    char *text = NULL;
    rocksdb_iter_get_error(iter, &text);
    hps_status status = HPS_OK;
    if (text != NULL) {
        status = fail_text(text, err, "cannot read the family");
    } else if (rocksdb_iter_valid(iter)) {
        size_t size = 0;
        const char *key = rocksdb_iter_key(iter, &size);
        status = key_is_record(key, size)
                     ? HPS_OK
                     : hps_error_set(err, HPS_PRECONDITION, "rocksdb: %s is not empty",
                                     space->family->name);
    }
    rocksdb_iter_destroy(iter);
    return status;
}

static hps_status load_claim(struct rocks_space *space, bool claim, struct hps_error *err)
{
    struct rocks *store = rocks_of(&space->base);
    hps_status status = HPS_OK;
    pthread_mutex_lock(&store->lock);
    if (claim && space->loading) {
        status = hps_error_set(err, HPS_PRECONDITION, "rocksdb: %s is being loaded already",
                               space->family->name);
    } else {
        space->loading = claim;
    }
    pthread_mutex_unlock(&store->lock);
    return status;
}

/* Let the thread write what it has and end. */
static void load_join(struct hps_store_load *load)
{
    pthread_mutex_lock(&load->lock);
    bool running = !load->ended;
    load->ended = true;
    pthread_cond_signal(&load->changed);
    pthread_mutex_unlock(&load->lock);
    if (running) {
        pthread_join(load->thread, NULL);
    }
}

/* The thread has ended, or never was. */
static void load_free(struct hps_store_load *load)
{
    struct hps_error error;
    if (load->writer != NULL) {
        rocksdb_sstfilewriter_destroy(load->writer);
    }
    if (load->dir != NULL && hps_rocksdb_dir_remove_tree(load->dir, &error) != HPS_OK) {
        HPS_LOG(WARN, "rocksdb", "left a load directory", HPS_STR("error", error.text));
    }
    for (size_t i = 0; i < load->n_files; i++) {
        hps_free(load->files[i]);
    }
    for (size_t i = 0; i < LOAD_BLOCKS; i++) {
        hps_free(load->blocks[i].data);
    }
    hps_free((void *)load->files);
    hps_free(load->dir);
    hps_ignore(load_claim(load->space, false, NULL)); /* giving up a claim cannot fail */
    pthread_cond_destroy(&load->changed);
    pthread_mutex_destroy(&load->lock);
    hps_free(load);
}

static void rocks_load_abort(struct hps_store_load *load)
{
    pthread_mutex_lock(&load->lock);
    load->status = load->status == HPS_OK ? HPS_CANCELLED : load->status;
    pthread_mutex_unlock(&load->lock);
    load_join(load);
    load_free(load);
}

static hps_status load_dir_make(struct hps_store_load *load, struct hps_error *err)
{
    char name[NAME_MAX_BYTES + 8];
    (void)snprintf(name, sizeof(name), "load-%s", load->space->family->name);
    load->dir = hps_rocksdb_dir_join(load->store->dir.path, name);
    if (load->dir == NULL) {
        return fail_memory(err);
    }
    hps_status status = hps_rocksdb_dir_remove_tree(load->dir, err);
    if (status == HPS_OK && mkdir(load->dir, 0750) != 0) {
        status = hps_rocksdb_dir_fail(err, "cannot create", load->dir);
    }
    return status;
}

static hps_status load_file_open(struct hps_store_load *load, struct hps_error *err)
{
    char name[32];
    (void)snprintf(name, sizeof(name), "%06zu.sst", load->n_files);
    char **files = hps_realloc((void *)load->files, (load->n_files + 1) * sizeof(*files));
    if (files == NULL) {
        return fail_memory(err);
    }
    load->files = files;
    files[load->n_files] = hps_rocksdb_dir_join(load->dir, name);
    if (files[load->n_files] == NULL) {
        return fail_memory(err);
    }
    load->n_files++;
    load->file_bytes = 0;
    load->writer = rocksdb_sstfilewriter_create(load->store->env_options, load->store->sst_options);
    char *text = NULL;
    rocksdb_sstfilewriter_open(load->writer, files[load->n_files - 1], &text);
    return text == NULL ? HPS_OK : fail_text(text, err, "cannot write a load file");
}

static hps_status load_file_finish(struct hps_store_load *load, struct hps_error *err)
{
    if (load->writer == NULL) {
        return HPS_OK;
    }
    char *text = NULL;
    rocksdb_sstfilewriter_finish(load->writer, &text);
    rocksdb_sstfilewriter_destroy(load->writer);
    load->writer = NULL;
    return text == NULL ? HPS_OK : fail_text(text, err, "cannot finish a load file");
}

/* Between two looks at the free space at most half of what the guard holds back is written. */
static hps_status load_check_space(struct hps_store_load *load, uint64_t bytes,
                                   struct hps_error *err)
{
    uint64_t reserve = load->store->dir.disk_free_min_bytes;
    load->unchecked_bytes += bytes;
    if (load->writer != NULL && load->unchecked_bytes < clamp(reserve / 2, 1, CHECK_BYTES)) {
        return HPS_OK;
    }
    load->unchecked_bytes = 0;
    return hps_rocksdb_dir_guard(&load->store->dir, bytes, err);
}

static hps_status load_write_entry(struct hps_store_load *load, const char *entry,
                                   uint32_t entry_bytes, struct hps_error *err)
{
    uint64_t bytes = (uint64_t)entry_bytes + ENTRY_BYTES - KEY_BYTES;
    hps_status status = HPS_OK;
    if (load->file_bytes + bytes > SST_BYTES) {
        status = load_file_finish(load, err);
    }
    if (status == HPS_OK) {
        status = load_check_space(load, bytes, err);
    }
    if (status == HPS_OK && load->writer == NULL) {
        status = load_file_open(load, err);
    }
    if (status != HPS_OK) {
        return status;
    }
    char *text = NULL;
    rocksdb_sstfilewriter_put(load->writer, entry, KEY_BYTES, entry + KEY_BYTES,
                              entry_bytes - KEY_BYTES, &text);
    if (text != NULL) {
        return fail_text(text, err, "cannot write a load file");
    }
    load->file_bytes += bytes;
    return HPS_OK;
}

static hps_status load_write_block(struct hps_store_load *load, const struct load_block *block,
                                   struct hps_error *err)
{
    hps_status status = HPS_OK;
    for (uint32_t i = 0; i < block->n && status == HPS_OK; i++) {
        status = load_write_entry(load, block->data + (size_t)i * block->entry_bytes,
                                  block->entry_bytes, err);
    }
    return status;
}

/* The thread of a load: writes blocks in order, then the end of the last file. */
static void *load_run(void *arg)
{
    struct hps_store_load *load = arg;
    struct hps_error error = {0};
    hps_status status = HPS_OK;
    pthread_setname_np(pthread_self(), "rocksdb-load");
    pthread_mutex_lock(&load->lock);
    for (;;) {
        while (load->n_written == load->n_filled && !load->ended) {
            pthread_cond_wait(&load->changed, &load->lock);
        }
        bool more = load->n_written < load->n_filled;
        const struct load_block *block = &load->blocks[load->n_written % LOAD_BLOCKS];
        bool wanted = load->status == HPS_OK;
        pthread_mutex_unlock(&load->lock);
        if (wanted) {
            status = more ? load_write_block(load, block, &error) : load_file_finish(load, &error);
        }
        pthread_mutex_lock(&load->lock);
        if (wanted && load->status == HPS_OK && status != HPS_OK) {
            load->status = status;
            load->error = error;
        }
        if (!more) {
            break;
        }
        load->n_written++;
        pthread_cond_signal(&load->changed);
    }
    pthread_mutex_unlock(&load->lock);
    return NULL;
}

static hps_status load_status(struct hps_store_load *load, struct hps_error *err)
{
    pthread_mutex_lock(&load->lock);
    hps_status status = load->status;
    if (status != HPS_OK && err != NULL) {
        *err = load->error;
    }
    pthread_mutex_unlock(&load->lock);
    return status;
}

/* Give the block that is being filled to the thread, and wait until the next one is free. */
static hps_status load_hand_over(struct hps_store_load *load, struct hps_error *err)
{
    pthread_mutex_lock(&load->lock);
    if (load->blocks[load->n_filled % LOAD_BLOCKS].n > 0) {
        load->n_filled++;
        pthread_cond_signal(&load->changed);
    }
    while (load->n_filled - load->n_written == LOAD_BLOCKS) {
        pthread_cond_wait(&load->changed, &load->lock);
    }
    load->blocks[load->n_filled % LOAD_BLOCKS].n = 0;
    pthread_mutex_unlock(&load->lock);
    return load_status(load, err);
}

static hps_status load_add_row(struct hps_store_load *load, const struct hps_table *table,
                               hps_key key, const uint8_t *row, struct hps_error *err)
{
    if (load->any && (table->id < load->table || (table->id == load->table && key <= load->key))) {
        return hps_error_set(err, HPS_INVALID,
                             "rocksdb: table %s: key %" PRIu64 " is not above the one before it",
                             table->name, key);
    }
    uint32_t entry_bytes = KEY_BYTES + table->row_bytes;
    struct load_block *block = &load->blocks[load->n_filled % LOAD_BLOCKS];
    if (block->n > 0 &&
        (load->table != table->id || (size_t)(block->n + 1) * entry_bytes > LOAD_BLOCK_BYTES)) {
        hps_status status = load_hand_over(load, err);
        if (status != HPS_OK) {
            return status;
        }
        block = &load->blocks[load->n_filled % LOAD_BLOCKS];
    }
    char *entry = block->data + (size_t)block->n * entry_bytes;
    key_encode(entry, table->id, key);
    memcpy(entry + KEY_BYTES, row, table->row_bytes);
    block->entry_bytes = entry_bytes;
    block->n++;
    load->any = true;
    load->table = table->id;
    load->key = key;
    return HPS_OK;
}

static hps_status rocks_load_add(struct hps_store_load *load, const struct hps_table *table,
                                 const hps_key *keys, const uint8_t *rows, uint32_t n,
                                 struct hps_error *err)
{
    hps_status status = HPS_OK;
    HPS_ASSERT(KEY_BYTES + table->row_bytes <= LOAD_BLOCK_BYTES);
    for (uint32_t i = 0; i < n && status == HPS_OK; i++) {
        status = load_add_row(load, table, keys[i], rows + (size_t)i * table->row_bytes, err);
    }
    return status;
}

static hps_status load_blocks_make(struct hps_store_load *load, struct hps_error *err)
{
    for (size_t i = 0; i < LOAD_BLOCKS; i++) {
        load->blocks[i].data = hps_alloc(LOAD_BLOCK_BYTES);
        if (load->blocks[i].data == NULL) {
            return fail_memory(err);
        }
    }
    return HPS_OK;
}

static hps_status rocks_load_begin(struct hps_space *base, uint64_t rows_expected,
                                   uint64_t bytes_expected, struct hps_store_load **out_load,
                                   struct hps_error *err)
{
    struct rocks_space *space = (struct rocks_space *)base;
    struct rocks *store = rocks_of(base);
    if (store->dir.read_only) {
        return fail_read_only(store, err);
    }
    uint64_t needed;
    if (__builtin_mul_overflow(rows_expected, (uint64_t)ENTRY_BYTES, &needed) ||
        __builtin_add_overflow(needed, bytes_expected, &needed)) {
        needed = UINT64_MAX;
    }
    hps_status status = hps_rocksdb_dir_guard(&store->dir, needed, err);
    if (status == HPS_OK) {
        status = space_check_empty(space, err);
    }
    if (status == HPS_OK) {
        status = load_claim(space, true, err);
    }
    if (status != HPS_OK) {
        return status;
    }
    struct hps_store_load *load = hps_calloc(1, sizeof(*load));
    if (load == NULL) {
        hps_ignore(load_claim(space, false, NULL)); /* giving up a claim cannot fail */
        return fail_memory(err);
    }
    load->store = store;
    load->space = space;
    pthread_mutex_init(&load->lock, NULL);
    pthread_cond_init(&load->changed, NULL);
    status = load_blocks_make(load, err);
    if (status == HPS_OK) {
        status = load_dir_make(load, err);
    }
    if (status == HPS_OK && hps_thread_start(0, load_run, load, &load->thread) != HPS_OK) {
        status = hps_error_set(err, HPS_EXHAUSTED, "rocksdb: no thread to load with");
    }
    if (status != HPS_OK) {
        load_free(load);
        return status;
    }
    *out_load = load;
    return HPS_OK;
}

static hps_status rocks_load_commit(struct hps_store_load *load, struct hps_error *err)
{
    struct rocks *store = load->store;
    hps_status status = load_hand_over(load, err);
    load_join(load);
    if (status == HPS_OK) {
        status = load_status(load, err);
    }
    if (status == HPS_OK) {
        status = hps_rocksdb_dir_guard_small(&store->dir, 0, err);
    }
    if (status != HPS_OK) {
        return status;
    }
    if (load->n_files > 0) {
        char *text = NULL;
        rocksdb_ingest_external_file_cf(store->db, load->space->family->handle,
                                        (const char *const *)load->files, load->n_files,
                                        store->ingest, &text);
        if (text != NULL) {
            return fail_text(text, err, "cannot ingest the load");
        }
    }
    load_free(load);
    return HPS_OK;
}

/* ---- records ---- */

static hps_status rocks_record_put(struct hps_store *base, const void *key, size_t key_size,
                                   const void *value, size_t value_size, struct hps_error *err)
{
    struct rocks *store = (struct rocks *)base;
    if (store->dir.read_only) {
        return fail_read_only(store, err);
    }
    hps_status status = hps_rocksdb_dir_guard_vital(&store->dir, key_size + value_size, err);
    if (status == HPS_OK) {
        status = log_check(store, err);
    }
    if (status != HPS_OK) {
        return status;
    }
    char *text = NULL;
    pthread_rwlock_rdlock(&store->log_gate);
    rocksdb_put_cf(store->db, store->write_synced, store->catalog, key, key_size, value, value_size,
                   &text);
    write_ended(store, text);
    pthread_rwlock_unlock(&store->log_gate);
    return text == NULL ? HPS_OK : fail_text(text, err, "cannot write a record");
}

static hps_status rocks_record_delete(struct hps_store *base, const void *key, size_t key_size,
                                      struct hps_error *err)
{
    struct rocks *store = (struct rocks *)base;
    if (store->dir.read_only) {
        return fail_read_only(store, err);
    }
    hps_status status = hps_rocksdb_dir_guard_vital(&store->dir, key_size, err);
    if (status == HPS_OK) {
        status = log_check(store, err);
    }
    if (status != HPS_OK) {
        return status;
    }
    char *text = NULL;
    pthread_rwlock_rdlock(&store->log_gate);
    rocksdb_delete_cf(store->db, store->write_synced, store->catalog, key, key_size, &text);
    write_ended(store, text);
    pthread_rwlock_unlock(&store->log_gate);
    return text == NULL ? HPS_OK : fail_text(text, err, "cannot delete a record");
}

/* From where `iter` stands, while keys begin with `prefix`; the first n_hidden bytes of each key
 * are left away. */
static hps_status scan_records(rocksdb_iterator_t *iter, const char *prefix, size_t n_hidden,
                               hps_record_fn fn, void *ctx, struct hps_error *err)
{
    size_t prefix_size = strlen(prefix);
    hps_status status = HPS_OK;
    for (; status == HPS_OK && rocksdb_iter_valid(iter); rocksdb_iter_next(iter)) {
        size_t key_size = 0;
        size_t value_size = 0;
        const char *key = rocksdb_iter_key(iter, &key_size);
        if (key_size < prefix_size || memcmp(key, prefix, prefix_size) != 0) {
            break;
        }
        const char *value = rocksdb_iter_value(iter, &value_size);
        status = fn(ctx, key + n_hidden, key_size - n_hidden, value, value_size);
    }
    char *text = NULL;
    rocksdb_iter_get_error(iter, &text);
    if (text != NULL) {
        status = fail_text(text, err, "cannot read the records");
    }
    rocksdb_iter_destroy(iter);
    return status;
}

static hps_status rocks_record_scan(struct hps_store *base, const char *prefix, hps_record_fn fn,
                                    void *ctx, struct hps_error *err)
{
    struct rocks *store = (struct rocks *)base;
    rocksdb_iterator_t *iter = rocksdb_create_iterator_cf(store->db, store->read, store->catalog);
    rocksdb_iter_seek(iter, prefix, strlen(prefix));
    return scan_records(iter, prefix, 0, fn, ctx, err);
}

static hps_status rocks_space_record_scan(struct hps_space *space, hps_record_fn fn, void *ctx,
                                          struct hps_error *err)
{
    struct rocks *store = rocks_of(space);
    uint32_t prefix = RECORD_TABLE;
    rocksdb_iterator_t *iter = rocksdb_create_iterator_cf(store->db, store->read, handle_of(space));
    rocksdb_iter_seek(iter, (const char *)&prefix, RECORD_PREFIX_BYTES);
    return scan_records(iter, "", RECORD_PREFIX_BYTES, fn, ctx, err);
}

/* The names are copied first: `fn` may open or drop what it is told. */
static hps_status rocks_space_list(struct hps_store *base, hps_space_fn fn, void *ctx,
                                   struct hps_error *err)
{
    struct rocks *store = (struct rocks *)base;
    pthread_mutex_lock(&store->lock);
    size_t n = 0;
    for (const struct family *f = store->families; f != NULL; f = f->next) {
        n++;
    }
    char(*names)[NAME_MAX_BYTES] = hps_calloc(n, sizeof(*names));
    size_t i = 0;
    for (const struct family *f = store->families; names != NULL && f != NULL; f = f->next) {
        (void)snprintf(names[i++], NAME_MAX_BYTES, "%s", f->name);
    }
    pthread_mutex_unlock(&store->lock);
    if (names == NULL) {
        return fail_memory(err);
    }
    hps_status status = HPS_OK;
    for (i = 0; i < n && status == HPS_OK; i++) {
        char model[MODEL_MAX_BYTES + 1];
        int64_t version;
        if (family_parse(names[i], model, &version)) {
            status = fn(ctx, model, version);
        }
    }
    hps_free(names);
    return status;
}

static uint64_t rocks_bytes_free(struct hps_store *base)
{
    return hps_rocksdb_dir_free_bytes(&((const struct rocks *)base)->dir);
}

static const char *rocks_writes_refused(struct hps_store *base)
{
    struct rocks *store = (struct rocks *)base;
    if (store->dir.read_only) {
        return "opened read-only";
    }
    if (hps_rocksdb_dir_free_bytes(&store->dir) == 0) {
        return "disk nearly full: loads and updates are refused";
    }
    if (atomic_load(&store->log_lost)) {
        return LOG_LOST;
    }
    return atomic_load(&store->stopped) ? "a failed disk or a damaged file has stopped all "
                                          "writing: see the log, restart hpsd"
                                        : NULL;
}

/* ---- checkpoints ---- */

static uint64_t families_property(struct rocks *store, const char *name)
{
    uint64_t sum = 0;
    pthread_mutex_lock(&store->lock);
    for (const struct family *f = store->families; f != NULL; f = f->next) {
        uint64_t value = 0;
        if (rocksdb_property_int_cf(store->db, f->handle, name, &value) == 0) {
            sum += value;
        }
    }
    pthread_mutex_unlock(&store->lock);
    return sum;
}

static hps_status rocks_checkpoint(struct hps_store *base, const char *dir, struct hps_error *err)
{
    struct rocks *store = (struct rocks *)base;
    char *text = NULL;
    if (store->dir.read_only) {
        return fail_read_only(store, err);
    }
    hps_status status = hps_rocksdb_dir_guard_copy(
        &store->dir, dir, families_property(store, "rocksdb.total-sst-files-size"),
        families_property(store, "rocksdb.cur-size-all-mem-tables"), err);
    char *path = hps_rocksdb_dir_join(dir, "hpsd");
    if (status == HPS_OK && path == NULL) {
        status = fail_memory(err);
    }
    if (status == HPS_OK && access(path, F_OK) == 0) {
        status = hps_error_set(err, HPS_EXISTS, "rocksdb: %s is there already", path);
    }
    if (status == HPS_OK) {
        rocksdb_checkpoint_t *checkpoint = rocksdb_checkpoint_object_create(store->db, &text);
        if (text == NULL) {
            rocksdb_checkpoint_create(checkpoint, path, 0, &text);
            rocksdb_checkpoint_object_destroy(checkpoint);
        }
        if (text != NULL) {
            status = fail_text(text, err, "cannot make a checkpoint");
        }
    }
    hps_free(path);
    return status;
}

static const struct hps_store_ops rocks_ops = {
    .name = "rocksdb",
    .tier = HPS_TIER_ROCKSDB,
    .caps = HPS_STORE_DURABLE | HPS_STORE_BLOCKING,
    .close = rocks_close,
    .space_open = rocks_space_open,
    .space_close = rocks_space_close,
    .space_drop = rocks_space_drop,
    .space_usage = rocks_space_usage,
    .get = rocks_get,
    .get_many = rocks_get_many,
    .put = rocks_put,
    .erase = rocks_erase,
    .apply = rocks_apply,
    .space_record_scan = rocks_space_record_scan,
    .load_begin = rocks_load_begin,
    .load_add = rocks_load_add,
    .load_commit = rocks_load_commit,
    .load_abort = rocks_load_abort,
    .scan = rocks_scan,
    .record_put = rocks_record_put,
    .record_delete = rocks_record_delete,
    .record_scan = rocks_record_scan,
    .space_list = rocks_space_list,
    .bytes_free = rocks_bytes_free,
    .writes_refused = rocks_writes_refused,
    .checkpoint = rocks_checkpoint,
};

hps_status hps_rocksdb_open(const struct hps_rocksdb_options *options, struct hps_store **out_store,
                            struct hps_error *err)
{
    struct rocks *store = hps_calloc(1, sizeof(*store));
    if (store == NULL) {
        return fail_memory(err);
    }
    store->base.ops = &rocks_ops;
    store->batch_keys_max = (uint32_t)clamp(options->batch_keys_max, 1, BATCH_KEYS_MAX);
    store->wal_sync_ms = options->wal_sync_ms;
    pthread_mutex_init(&store->lock, NULL);
    sync_init(store);
    hps_status status = rocks_open(store, options, err);
    if (status != HPS_OK) {
        rocks_close(&store->base);
        return status;
    }
    *out_store = &store->base;
    return HPS_OK;
}
