/* SPDX-License-Identifier: Apache-2.0
 *
 * Backfill: rows that lookups found below a shared tier (Redis) are inserted into that tier later.
 * Lookups leave copies here, and one thread, "backfill", inserts them.
 *
 *     lookup ── add: copy ─▶ [ rows of many lookups ] ── thread: insert, if still fresh ─▶ done
 *
 * The bytes of the copies are bounded. Rows beyond the bound are dropped and counted, so that a
 * slow tier delays no lookup. Waiting rows of one table are inserted in one call. The stamps are
 * compared at insertion, so a row that an update has replaced since it was read is not inserted.
 */
#ifndef HPS_CACHE_LOOKUP_BACKFILL_H
#define HPS_CACHE_LOOKUP_BACKFILL_H

#include "cache/version/version.h"

struct hps_backfill;
struct hps_lookup_metrics;

enum {
    HPS_BACKFILL_BYTES_MAX = 32 * 1024 * 1024, /* copies that wait or are being inserted */
    HPS_BACKFILL_CALL_ROWS = 4096,             /* per call of a store, like the next */
    HPS_BACKFILL_CALL_BYTES = 1024 * 1024
};

/* Rows of one table: the row of keys[i] is at rows + slots[i] * row_bytes. */
struct hps_backfill_rows {
    struct hps_version *version; /* pinned by the caller */
    struct hps_space *space;     /* of the version; its store takes insertions */
    const struct hps_table *table;
    const hps_key *keys;
    const uint32_t *slots;
    const uint8_t *rows;
    uint32_t n;
    uint64_t since; /* hps_stamps_now before the rows were read */
};

/* bytes_max: see HPS_BACKFILL_BYTES_MAX. metrics: borrowed, NULL: not counted. Returns NULL if
 * there is no memory. */
struct hps_backfill *hps_backfill_new(size_t bytes_max, const struct hps_lookup_metrics *metrics);
/* Copy rows; rows that do not fit are counted. Pins the version until its copies are inserted. The
 * thread starts with the first rows. Thread-safe; never waits for a store. */
void hps_backfill_add(struct hps_backfill *backfill, const struct hps_backfill_rows *rows);
/* Drop waiting copies of a version that is being unloaded. Copies that are being inserted hold
 * their pin until the store has answered. Thread-safe. */
void hps_backfill_forget(struct hps_backfill *backfill, const struct hps_version *version);
/* Drop all copies and accept no more. Waits for the current call of the store, at most for its
 * write timeout. Afterwards no version is pinned. */
void hps_backfill_stop(struct hps_backfill *backfill);
/* After hps_backfill_stop. May be NULL. */
void hps_backfill_free(struct hps_backfill *backfill);
/* Bytes of copies that wait or are being inserted. Thread-safe. */
size_t hps_backfill_bytes(struct hps_backfill *backfill);

#endif
