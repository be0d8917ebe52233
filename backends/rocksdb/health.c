/* SPDX-License-Identifier: Apache-2.0
 *
 * RocksDB's health: whether it takes writes, and whether its WAL met a full disk.
 *
 *     TAKEN ── an error ──▶ STOPPED ◀─▶ RECOVERING ── a write succeeds ──▶ TAKEN
 *       └── disk full in a write to the WAL ──▶ WAL_FULL ── a newer WAL exists ──▶ STOPPED
 *                                                  └── RocksDB started none ──▶ WAL_LOST
 *
 * RocksDB reports errors to its listener, on its own threads and on writing threads. Writers report
 * the results of their writes. Both wake rocksdb-sync (wal.c), which finds out when writes succeed
 * again. Only a write can show that an error has ended.
 */
#include <inttypes.h>
#include <string.h>

#include "backends/rocksdb/internal.h"
#include "base/assert.h"
#include "base/heap.h"
#include "base/log.h"

#define FULL_TEXT "WAL write failed: disk full; "
#define LOST_TEXT FULL_TEXT "lookups continue, writes only after a restart"

/* ---- states ---------------------------------------------------------------------------------- */

static enum hps_rocksdb_writes state_of(const struct hps_rocksdb *store)
{
    return atomic_load(&store->health.writes);
}

/* Caller must hold health.lock. */
static void health_sane(const struct hps_rocksdb_health *health)
{
    switch (atomic_load(&health->writes)) {
    case HPS_WRITES_TAKEN:
    case HPS_WRITES_STOPPED:
    case HPS_WRITES_RECOVERING:
        HPS_ASSERT(health->full_wal == 0);
        return;
    case HPS_WRITES_WAL_FULL:
    case HPS_WRITES_WAL_LOST:
        HPS_ASSERT(health->full_wal != 0);
        HPS_ASSERT(atomic_load(&health->n_events) > 0);
        return;
    }
    HPS_ASSERT(false);
}

/* Change to state `to` if the state is one of `from`. False: it is another one. Caller must hold
 * health.lock.
 *
 * from      enum hps_rocksdb_writes, or-ed
 * full_wal  0 except for WAL_FULL and WAL_LOST */
static bool move_locked(struct hps_rocksdb_health *health, unsigned from,
                        enum hps_rocksdb_writes to, uint64_t full_wal)
{
    enum hps_rocksdb_writes was = atomic_load(&health->writes);
    if ((from & was) == 0) {
        return false;
    }
    HPS_ASSERT(was != HPS_WRITES_WAL_LOST);
    health->full_wal = full_wal;
    atomic_store(&health->writes, to);
    health_sane(health);
    return true;
}

static bool move(struct hps_rocksdb *store, unsigned from, enum hps_rocksdb_writes to)
{
    hps_lock_acquire(&store->health.lock);
    bool moved = move_locked(&store->health, from, to, 0);
    hps_lock_release(&store->health.lock);
    return moved;
}

void hps_rocksdb_health_init(struct hps_rocksdb_health *health)
{
    hps_lock_init(&health->lock, HPS_LOCK_ROCKSDB_HEALTH);
    atomic_init(&health->writes, HPS_WRITES_TAKEN);
}

void hps_rocksdb_health_fini(struct hps_rocksdb_health *health)
{
    while (health->damages != NULL) { /* left by an open that failed */
        struct hps_rocksdb_damage *damage = health->damages;
        health->damages = damage->next;
        hps_free(damage);
    }
    hps_lock_fini(&health->lock);
}

/* ---- events of RocksDB ----------------------------------------------------------------------- */

static const char *reason_text(int reason)
{
    static const char *const names[] = {"flush",
                                        "compaction",
                                        "WAL",
                                        "memtable",
                                        "manifest",
                                        "flush without WAL",
                                        "manifest without WAL"};
    return reason >= 0 && reason < (int)(sizeof(names) / sizeof(names[0])) ? names[reason]
                                                                           : "other";
}

/* The number of the WAL in which a write has just failed. It is the newest one: only RocksDB's
 * writers start a new WAL, one at a time, and the failed thread is the current writer. So the files
 * are listed here, which delays only writes that fail anyway. If the number cannot be read, return
 * one that no WAL exceeds, so that a restart is required. */
static uint64_t wal_newest(const struct hps_rocksdb *store)
{
    struct hps_rocksdb_dir_files wals;
    struct hps_error error;
    hps_status status = hps_rocksdb_dir_files(&store->dir, ".log", &wals, &error);
    return status == HPS_OK && wals.newest != 0 ? wals.newest : UINT64_MAX;
}

static void error_reported(struct hps_rocksdb *store, const struct hps_rocksdb_event *event)
{
    struct hps_rocksdb_health *health = &store->health;
    bool wal_full =
        event->reason == HPS_ROCKSDB_REASON_WAL && event->subcode == HPS_ROCKSDB_SUBCODE_NO_SPACE;
    bool stops = event->severity >= HPS_ROCKSDB_SEVERITY_HARD;
    uint64_t full_wal = wal_full ? wal_newest(store) : 0;
    hps_lock_acquire(&health->lock);
    if (event->severity >= HPS_ROCKSDB_SEVERITY_FATAL) {
        atomic_store(&health->needs_open, true);
    }
    atomic_fetch_add(&health->n_events, 1);
    if (wal_full) {
        move_locked(health,
                    HPS_WRITES_TAKEN | HPS_WRITES_STOPPED | HPS_WRITES_RECOVERING |
                        HPS_WRITES_WAL_FULL,
                    HPS_WRITES_WAL_FULL, full_wal);
    } else if (stops) {
        move_locked(health, HPS_WRITES_TAKEN | HPS_WRITES_RECOVERING, HPS_WRITES_STOPPED, 0);
    }
    hps_lock_release(&health->lock);
    if (wal_full) {
        HPS_LOG(ERROR, "rocksdb", FULL_TEXT "free disk space", HPS_STR("dir", store->dir.path),
                HPS_U64("wal", full_wal), HPS_STR("error", event->text));
    } else if (stops) {
        HPS_LOG(ERROR, "rocksdb", "writes stopped: background error; lookups continue",
                HPS_STR("reason", reason_text(event->reason)), HPS_I64("severity", event->severity),
                HPS_STR("error", event->text));
    } else {
        HPS_LOG(WARN, "rocksdb", "background error: RocksDB retries",
                HPS_STR("reason", reason_text(event->reason)), HPS_I64("severity", event->severity),
                HPS_STR("error", event->text));
    }
}

static void recovery_ended(struct hps_rocksdb *store, const struct hps_rocksdb_event *event)
{
    hps_lock_acquire(&store->health.lock);
    atomic_fetch_add(&store->health.n_events, 1);
    if (event->code != HPS_ROCKSDB_CODE_OK) {
        move_locked(&store->health, HPS_WRITES_RECOVERING, HPS_WRITES_STOPPED, 0);
    }
    hps_lock_release(&store->health.lock);
    if (event->code != HPS_ROCKSDB_CODE_OK) {
        HPS_LOG(WARN, "rocksdb", "recovery failed: another error; restart hpsd",
                HPS_STR("error", event->text));
    }
}

void hps_rocksdb_health_event(void *ctx, const struct hps_rocksdb_event *event)
{
    struct hps_rocksdb *store = ctx;
    HPS_ASSERT(event->text != NULL);
    switch (event->kind) {
    case HPS_ROCKSDB_ERROR:
        HPS_ASSERT(event->code != HPS_ROCKSDB_CODE_OK);
        error_reported(store, event);
        break;
    case HPS_ROCKSDB_RECOVERY_BEGUN:
        move(store, HPS_WRITES_STOPPED, HPS_WRITES_RECOVERING);
        break;
    case HPS_ROCKSDB_RECOVERY_ENDED:
        recovery_ended(store, event);
        break;
    case HPS_ROCKSDB_COMPACTION_FAILED:
        HPS_ASSERT(event->family != NULL);
        if (hps_rocksdb_text_status(event->text) == HPS_DATA_LOSS) {
            hps_rocksdb_damaged_note(store, event->family);
        }
        break;
    }
    hps_rocksdb_sync_wake(store);
}

/* ---- results of writes ----------------------------------------------------------------------- */

hps_status hps_rocksdb_wal_check(const struct hps_rocksdb *store, struct hps_error *err)
{
    switch (state_of(store)) {
    case HPS_WRITES_WAL_FULL:
        return hps_error_set(
            err, HPS_EXHAUSTED,
            "rocksdb: %s: " FULL_TEXT
            "writes continue when the disk has space and RocksDB has started another WAL",
            store->dir.path);
    case HPS_WRITES_WAL_LOST:
        return hps_error_set(err, HPS_EXHAUSTED, "rocksdb: %s: " LOST_TEXT, store->dir.path);
    default:
        return HPS_OK;
    }
}

uint64_t hps_rocksdb_write_begin(struct hps_rocksdb *store)
{
    HPS_ASSERT(!store->dir.read_only);
    hps_rwlock_read(&store->wal.gate);
    return atomic_load(&store->health.n_events);
}

void hps_rocksdb_write_failed(struct hps_rocksdb *store, const char *text)
{
    if (state_of(store) == HPS_WRITES_TAKEN && move(store, HPS_WRITES_TAKEN, HPS_WRITES_STOPPED)) {
        HPS_LOG(ERROR, "rocksdb", "writes stopped: a write failed; lookups continue",
                HPS_STR("error", text));
    }
}

/* Record a successful write. It proves nothing if it began before the last event, or after an error
 * that only a new open ends. RocksDB calls the listener before it refuses writes. */
static void write_taken(struct hps_rocksdb *store, uint64_t begun)
{
    struct hps_rocksdb_health *health = &store->health;
    if (state_of(store) == HPS_WRITES_TAKEN || atomic_load(&health->needs_open)) {
        return;
    }
    hps_lock_acquire(&health->lock);
    uint64_t n_events = atomic_load(&health->n_events);
    HPS_ASSERT(begun <= n_events);
    bool resumed =
        begun == n_events &&
        move_locked(health, HPS_WRITES_STOPPED | HPS_WRITES_RECOVERING, HPS_WRITES_TAKEN, 0);
    hps_lock_release(&health->lock);
    if (resumed) {
        HPS_LOG(INFO, "rocksdb", "writes resumed");
    }
}

void hps_rocksdb_write_end(struct hps_rocksdb *store, uint64_t begun, const char *text)
{
    if (text != NULL) {
        hps_rocksdb_write_failed(store, text);
    } else {
        write_taken(store, begun);
    }
    hps_rwlock_release(&store->wal.gate);
}

/* ---- whether writes are taken again ---------------------------------------------------------- */

/* Rewrite the format record, without the WAL. False: RocksDB takes no writes now. */
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
    if (rocksdb_property_int_cf(store->db, store->default_family,
                                "rocksdb.num-entries-active-mem-table", &n) != 0 ||
        n > 0) {
        return true;
    }
    hps_rwlock_read(&store->wal.gate); /* like any write */
    bool written = format_rewrite(store);
    hps_rwlock_release(&store->wal.gate);
    return written;
}

/* Whether RocksDB has a WAL that can be written. When a full disk has space again, RocksDB writes
 * out its memory, starts a new WAL with that, and takes writes. It starts no WAL if its memory was
 * empty. Another write to the failed WAL would end the process (Debian 12). So hpsd always keeps
 * data in memory (hps_rocksdb_memory_keep), and sends no write until a newer WAL exists. The memory
 * can be empty only if the failed write was the first one of its WAL, because that write may itself
 * have triggered the flush. */
static bool wal_renewed(struct hps_rocksdb *store)
{
    struct hps_rocksdb_health *health = &store->health;
    struct hps_rocksdb_dir_files wals;
    struct hps_error error;
    if (state_of(store) != HPS_WRITES_WAL_FULL) {
        return state_of(store) != HPS_WRITES_WAL_LOST;
    }
    hps_lock_acquire(&health->lock);
    uint64_t full_wal = health->full_wal;
    hps_lock_release(&health->lock);
    if (!format_rewrite(store) ||
        hps_rocksdb_dir_files(&store->dir, ".log", &wals, &error) != HPS_OK) {
        return false;
    }
    bool renewed = wals.newest > full_wal;
    hps_lock_acquire(&health->lock);
    bool moved =
        health->full_wal == full_wal &&
        move_locked(health, HPS_WRITES_WAL_FULL, renewed ? HPS_WRITES_STOPPED : HPS_WRITES_WAL_LOST,
                    renewed ? 0 : full_wal);
    hps_lock_release(&health->lock);
    if (moved && !renewed) {
        HPS_LOG(ERROR, "rocksdb", FULL_TEXT "RocksDB starts no other WAL; restart hpsd",
                HPS_STR("dir", store->dir.path), HPS_U64("wal", full_wal));
    }
    return moved && renewed;
}

bool hps_rocksdb_health_settled(const struct hps_rocksdb *store)
{
    return state_of(store) == HPS_WRITES_TAKEN &&
           atomic_load(&store->health.n_events) == store->health.n_events_seen;
}

/* Only a write shows whether an error has ended. Syncing the WAL before that is useless. If that
 * sync itself had failed, another one would end the process with Debian 12's RocksDB. */
bool hps_rocksdb_takes_writes(struct hps_rocksdb *store)
{
    uint64_t n_events = atomic_load(&store->health.n_events);
    if (hps_rocksdb_health_settled(store)) {
        return true;
    }
    if (atomic_load(&store->health.needs_open) ||
        hps_rocksdb_dir_guard_small(&store->dir, 0, NULL) != HPS_OK || !wal_renewed(store)) {
        return false;
    }
    char *text = NULL;
    rocksdb_writebatch_t *nothing = rocksdb_writebatch_create();
    rocksdb_write(store->db, store->write, nothing, &text);
    rocksdb_writebatch_destroy(nothing);
    if (text != NULL) {
        hps_rocksdb_write_failed(store, text);
        rocksdb_free(text);
        return false;
    }
    write_taken(store, n_events);
    store->health.n_events_seen = n_events;
    return true;
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
    switch (state_of(store)) {
    case HPS_WRITES_TAKEN:
        return NULL;
    case HPS_WRITES_WAL_FULL:
        return FULL_TEXT "writes continue when the disk has space";
    case HPS_WRITES_WAL_LOST:
        return LOST_TEXT;
    case HPS_WRITES_RECOVERING:
        return "writes stopped: disk full; they continue when the disk has space";
    case HPS_WRITES_STOPPED:
        break;
    }
    return "writes stopped: failed disk or damaged file; see the log, then restart hpsd";
}
