/* SPDX-License-Identifier: Apache-2.0
 *
 * RocksDB's write-ahead log ("the log" here), and whether RocksDB takes writes at all.
 *
 * The log is written with every write, so that a killed process loses nothing, and synced by a
 * thread of the store once in wal_sync_ms, for the sake of the machine's power. The same thread,
 * rocksdb-sync, finds out when RocksDB takes writes again after an error of the disk. Whoever
 * writes says here how that ended.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "backends/rocksdb/internal.h"
#include "base/clock.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/thread.h"

enum {
    LOGS_MAX = 16,
    LOOK_MS = 1000, /* the sync thread, where each write is synced by itself */
};

#define LOG_LOST "the log met a full disk; look-ups go on, writes after a restart only"

/* ---- a log that met a full disk -------------------------------------------------------------- */

/* Does `text` say that it was the log that could not be written? Then remember which one. */
static void log_note(struct hps_rocksdb *store, const char *text)
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
static bool format_rewrite(struct hps_rocksdb *store)
{
    size_t size = 0;
    char *text = NULL;
    char *value = rocksdb_get(store->db, store->read, HPS_ROCKSDB_FORMAT_KEY,
                              strlen(HPS_ROCKSDB_FORMAT_KEY), &size, &text);
    if (value != NULL) {
        rocksdb_put(store->db, store->write_unlogged, HPS_ROCKSDB_FORMAT_KEY,
                    strlen(HPS_ROCKSDB_FORMAT_KEY), value, size, &text);
    }
    bool written = text == NULL;
    rocksdb_free(value);
    rocksdb_free(text);
    return written;
}

bool hps_rocksdb_memory_keep(struct hps_rocksdb *store)
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
static bool log_mended(struct hps_rocksdb *store)
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

hps_status hps_rocksdb_log_check(struct hps_rocksdb *store, struct hps_error *err)
{
    return atomic_load(&store->broken_log) == 0
               ? HPS_OK
               : hps_error_set(err, HPS_EXHAUSTED, "rocksdb: %s: %s", store->dir.path,
                               atomic_load(&store->log_lost)
                                   ? LOG_LOST
                                   : "the log met a full disk; writes go on when RocksDB has begun "
                                     "another one");
}

/* ---- whether RocksDB takes writes ------------------------------------------------------------ */

void hps_rocksdb_write_ended(struct hps_rocksdb *store, const char *text)
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
        hps_rocksdb_damaged_note(store, text);
    } else {
        HPS_LOG(INFO, "rocksdb", "RocksDB takes writes again");
    }
}

/* An error of the disk in the background stops all writing, for good or until a full disk has room
 * again, and only a write tells which. To sync the log meanwhile is of no use, and where it was
 * that sync that failed, Debian 12's RocksDB ends the process. */
static bool takes_writes(struct hps_rocksdb *store)
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
    hps_rocksdb_write_ended(store, text);
    bool taken = text == NULL;
    rocksdb_free(text);
    store->n_errors = taken ? n_errors : store->n_errors;
    return taken;
}

const char *hps_rocksdb_writes_refused(struct hps_store *base)
{
    struct hps_rocksdb *store = (struct hps_rocksdb *)base;
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

/* ---- the sync -------------------------------------------------------------------------------- */

/* Alone: to sync a log that a write has just failed in ends the process (Debian 12). */
static void wal_sync(struct hps_rocksdb *store)
{
    if (!atomic_load(&store->wal_dirty) && !atomic_load(&store->stopped) &&
        atomic_load(&store->broken_log) == 0) {
        return;
    }
    char *text = NULL;
    hps_rwlock_write(&store->log_gate);
    if (takes_writes(store) && atomic_exchange(&store->wal_dirty, false)) {
        rocksdb_flush_wal(store->db, 1, &text);
        if (text != NULL) {
            atomic_store(&store->wal_dirty, true); /* tried again once it takes writes */
            hps_rocksdb_write_ended(store, text);
        }
    }
    hps_rwlock_release(&store->log_gate);
    if (text != NULL) {
        hps_ignore(hps_rocksdb_log_text(text, "the log cannot be synced"));
    }
}

static void *sync_run(void *arg)
{
    struct hps_rocksdb *store = arg;
    uint32_t every_ms = store->wal_sync_ms != 0 ? store->wal_sync_ms : LOOK_MS;
    pthread_setname_np(pthread_self(), "rocksdb-sync");
    uint64_t due_us = hps_clock_us();
    hps_lock_acquire(&store->sync_lock);
    while (!store->closing) {
        due_us += (uint64_t)every_ms * 1000;
        while (!store->closing &&
               hps_cond_wait_until(&store->sync_wake, &store->sync_lock, due_us)) {
        }
        hps_lock_release(&store->sync_lock);
        wal_sync(store);
        hps_rocksdb_memory_keep(store);
        hps_rocksdb_dir_ballast(&store->dir);
        due_us = hps_clock_us();
        hps_lock_acquire(&store->sync_lock);
    }
    hps_lock_release(&store->sync_lock);
    return NULL;
}

void hps_rocksdb_sync_init(struct hps_rocksdb *store)
{
    hps_cond_init(&store->sync_wake);
    hps_lock_init(&store->sync_lock, HPS_LOCK_ROCKSDB_SYNC);
    hps_rwlock_init(&store->log_gate, HPS_LOCK_ROCKSDB_LOG_GATE);
}

hps_status hps_rocksdb_sync_start(struct hps_rocksdb *store, struct hps_error *err)
{
    store->sync_started = hps_thread_start(0, sync_run, store, &store->sync_thread) == HPS_OK;
    return store->sync_started
               ? HPS_OK
               : hps_error_set(err, HPS_EXHAUSTED, "rocksdb: no thread to sync the log");
}

void hps_rocksdb_sync_stop(struct hps_rocksdb *store)
{
    if (store->sync_started) {
        hps_lock_acquire(&store->sync_lock);
        store->closing = true;
        hps_cond_signal(&store->sync_wake);
        hps_lock_release(&store->sync_lock);
        pthread_join(store->sync_thread, NULL);
        wal_sync(store); /* what was written since its last one */
    }
    hps_cond_fini(&store->sync_wake);
    hps_lock_fini(&store->sync_lock);
    hps_rwlock_fini(&store->log_gate);
}

/* ---- old logs -------------------------------------------------------------------------------- */

/* An open begins a log of its own, and all are kept from the first one on that has what is in
 * memory only. So that starts alone do not make ever more of them, memory is written out at last,
 * where the disk has room for it. RocksDB looks which logs may go only when it has written
 * something. */
void hps_rocksdb_logs_limit(struct hps_rocksdb *store)
{
    struct hps_rocksdb_dir_files logs;
    struct hps_error error;
    if (hps_rocksdb_dir_files(&store->dir, ".log", &logs, &error) != HPS_OK || logs.n <= LOGS_MAX ||
        hps_rocksdb_dir_guard(&store->dir, logs.bytes, &error) != HPS_OK) {
        return; /* the next open does it */
    }
    hps_rocksdb_memory_keep(store);
    rocksdb_flushoptions_t *options = rocksdb_flushoptions_create();
    char *text = NULL;
    for (struct hps_rocksdb_family *f = store->families; f != NULL && text == NULL; f = f->next) {
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
        hps_ignore(hps_rocksdb_log_text(text, "what old logs have was not written out"));
    }
}
