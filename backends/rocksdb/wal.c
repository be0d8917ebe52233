/* SPDX-License-Identifier: Apache-2.0
 *
 * RocksDB's write-ahead log, the WAL: its sync, and the number of files.
 *
 * Every write goes to the WAL, so a killed process loses nothing. rocksdb-sync, a thread of the
 * store, syncs it every wal_sync_ms, which limits the loss in a power cut. The same thread finds
 * out when RocksDB takes writes again after an error, and records which families are damaged.
 * Reports of RocksDB wake it.
 */
#include "backends/rocksdb/internal.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"

enum {
    WALS_MAX = 16,
    LOOK_MS = 1000, /* interval of the sync thread if each write is synced */
    REVIEW_US = 60000000,
    FREE_MS = 20, /* interval while dropped families wait for jobs of RocksDB */
};

/* ---- the sync -------------------------------------------------------------------------------- */

/* Holds the gate exclusively: syncing a WAL in which a write has just failed ends the process
 * (Debian 12). */
static void wal_sync(struct hps_rocksdb *store)
{
    struct hps_rocksdb_wal *wal = &store->wal;
    if (!atomic_load(&wal->dirty) && hps_rocksdb_health_settled(store)) {
        return;
    }
    char *text = NULL;
    hps_rwlock_write(&wal->gate);
    if (hps_rocksdb_takes_writes(store) && atomic_exchange(&wal->dirty, false)) {
        rocksdb_flush_wal(store->db, 1, &text);
        if (text != NULL) {
            atomic_store(&wal->dirty, true); /* retried once RocksDB takes writes */
            hps_rocksdb_write_failed(store, text);
        }
    }
    hps_rwlock_release(&wal->gate);
    if (text != NULL) {
        hps_ignore(hps_rocksdb_log_text(text, "WAL sync failed"));
    }
}

static void *sync_run(void *arg)
{
    struct hps_rocksdb *store = arg;
    struct hps_rocksdb_wal *wal = &store->wal;
    bool dropped = false;
    uint64_t due_us = hps_clock_us(), reviewed_us = due_us;
    hps_lock_acquire(&wal->lock);
    while (!wal->closing) {
        uint32_t pause_ms = dropped ? FREE_MS : wal->sync_ms != 0 ? wal->sync_ms : LOOK_MS;
        due_us += (uint64_t)pause_ms * 1000;
        while (!wal->closing && !wal->woken &&
               hps_cond_wait_until(&wal->wake, &wal->lock, due_us)) {
        }
        wal->woken = false;
        hps_lock_release(&wal->lock);
        hps_rocksdb_damaged_mark(store);
        wal_sync(store);
        dropped = hps_rocksdb_dropped_free(store);
        hps_rocksdb_memory_keep(store);
        hps_rocksdb_dir_ballast(&store->dir);
        due_us = hps_clock_us();
        if (due_us - reviewed_us > REVIEW_US) { /* updates create files, too */
            hps_rocksdb_mode_review(store);
            reviewed_us = due_us;
        }
        hps_lock_acquire(&wal->lock);
    }
    hps_lock_release(&wal->lock);
    return NULL;
}

void hps_rocksdb_sync_wake(struct hps_rocksdb *store)
{
    hps_lock_acquire(&store->wal.lock);
    store->wal.woken = true;
    hps_cond_signal(&store->wal.wake);
    hps_lock_release(&store->wal.lock);
}

void hps_rocksdb_wal_init(struct hps_rocksdb_wal *wal, uint32_t sync_ms)
{
    wal->sync_ms = sync_ms;
    hps_cond_init(&wal->wake);
    hps_lock_init(&wal->lock, HPS_LOCK_ROCKSDB_SYNC);
    hps_rwlock_init(&wal->gate, HPS_LOCK_ROCKSDB_WAL_GATE);
}

void hps_rocksdb_wal_fini(struct hps_rocksdb_wal *wal)
{
    HPS_ASSERT(!wal->sync.running);
    hps_cond_fini(&wal->wake);
    hps_lock_fini(&wal->lock);
    hps_rwlock_fini(&wal->gate);
}

hps_status hps_rocksdb_sync_start(struct hps_rocksdb *store, struct hps_error *err)
{
    struct hps_rocksdb_wal *wal = &store->wal;
    HPS_ASSERT(store->db != NULL && !store->dir.read_only);
    hps_status status = hps_worker_start(&wal->sync, "rocksdb-sync", 0, sync_run, store);
    return status == HPS_OK ? HPS_OK
                            : hps_error_set(err, status, "rocksdb: no thread to sync the WAL");
}

void hps_rocksdb_sync_stop(struct hps_rocksdb *store)
{
    struct hps_rocksdb_wal *wal = &store->wal;
    if (!wal->sync.running) {
        return;
    }
    hps_worker_stop(&wal->sync, &wal->lock, &wal->wake, &wal->closing);
    hps_rocksdb_damaged_mark(store);
    wal_sync(store); /* writes since the last sync */
}

/* ---- old WALs -------------------------------------------------------------------------------- */

/* Each open starts a new WAL. A WAL is kept while it, or an older one, has data that is only in
 * memory. Repeated starts would therefore accumulate WALs. So memory is written out if there are
 * too many and the disk has space. RocksDB deletes WALs only after it has written something. */
void hps_rocksdb_wals_limit(struct hps_rocksdb *store)
{
    struct hps_rocksdb_dir_files wals;
    struct hps_error error;
    HPS_ASSERT(!store->wal.sync.running);
    if (hps_rocksdb_dir_files(&store->dir, ".log", &wals, &error) != HPS_OK || wals.n <= WALS_MAX ||
        hps_rocksdb_dir_guard(&store->dir, wals.bytes, &error) != HPS_OK) {
        return; /* the next open tries again */
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
        hps_ignore(hps_rocksdb_log_text(text, "old WALs kept: a memtable flush failed"));
    }
}
