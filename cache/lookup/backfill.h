/* SPDX-License-Identifier: Apache-2.0
 *
 * Backfill: inserts rows that lookups found below a shared tier (Redis) into that tier. Lookups
 * copy the rows into a queue, and one thread, "backfill", inserts them later.
 *
 *     lookup ── add: copy ─▶ [ rows of many lookups ] ── thread: insert unchanged rows ─▶ done
 *
 * The total size of the copies is bounded. Rows beyond the bound are dropped and counted, so that a
 * slow tier delays no lookup. One call of the store inserts rows of one table from several lookups.
 * The store rejects rows that an update may have changed since they were read. It checks the stamps
 * (cache/version/stamps.h) and the positions of its shards (struct hps_insert_guard in
 * backends/store.h).
 */
#ifndef HPS_CACHE_LOOKUP_BACKFILL_H
#define HPS_CACHE_LOOKUP_BACKFILL_H

#include "cache/version/version.h"

struct hps_backfill;
struct hps_lookup_metrics;

enum {
    HPS_BACKFILL_BYTES_MAX = 32 * 1024 * 1024, /* default bound of all copies */
    HPS_BACKFILL_CALL_ROWS = 4096,             /* most rows per call of a store */
    HPS_BACKFILL_CALL_BYTES = 1024 * 1024      /* most bytes of copies per call of a store */
};

/* Rows of one table: the row of keys[i] is at rows + slots[i] * table->row_bytes. */
struct hps_backfill_rows {
    struct hps_version *version; /* pinned by the caller */
    struct hps_space *space;     /* the version's space in the shared tier (HPS_STORE_INSERTS) */
    const struct hps_table *table;
    const hps_key *keys;   /* [n] */
    const uint32_t *slots; /* [n] */
    const uint8_t *rows;
    uint32_t n;     /* number of keys */
    uint64_t since; /* hps_stamps_now, read before the rows (stamps.h) */
};

/* bytes_max: most bytes of copies that wait or are being inserted. metrics: borrowed; if NULL,
 * nothing is counted. Returns NULL if there is no memory. */
struct hps_backfill *hps_backfill_new(size_t bytes_max, const struct hps_lookup_metrics *metrics);
/* Copy rows for a later insertion. Rows are dropped and counted if they exceed the bound, or if
 * there is no memory or no thread. The backfill pins the version until its copies have been
 * inserted or dropped. The first call starts the thread. Thread-safe; never waits for a store. */
void hps_backfill_add(struct hps_backfill *backfill, const struct hps_backfill_rows *rows);
/* Drop the waiting copies of a version that is being unloaded, and release their pins. Copies that
 * are being inserted hold their pins until the store has answered. Thread-safe. */
void hps_backfill_forget(struct hps_backfill *backfill, const struct hps_version *version);
/* Drop all copies and accept no more. Waits for the current call of a store, for at most the
 * store's write timeout. Afterwards the backfill holds no pins. */
void hps_backfill_stop(struct hps_backfill *backfill);
/* Free the backfill after hps_backfill_stop. No effect if NULL. */
void hps_backfill_free(struct hps_backfill *backfill);
/* Bytes of copies that wait or are being inserted. Thread-safe. */
size_t hps_backfill_bytes(struct hps_backfill *backfill);

#endif
