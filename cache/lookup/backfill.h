/* SPDX-License-Identifier: Apache-2.0
 *
 * Backfill: rows that look-ups found below a tier which other daemons share (Redis) are put into it
 * behind the answers. Look-ups leave copies here, and one thread, "backfill", inserts them.
 *
 *     look-up ── add: copy ─▶ [ rows of many look-ups ] ── thread: insert, if still fresh ─▶ done
 *
 * The copies are bounded in bytes. What finds no room is dropped and counted: nobody waits for a
 * tier that is slow. Rows of one table that wait together go in one call. The stamps are asked when
 * they go in: a row may be late, but never one that an update has replaced.
 */
#ifndef HPS_CACHE_LOOKUP_BACKFILL_H
#define HPS_CACHE_LOOKUP_BACKFILL_H

#include "cache/version/version.h"

struct hps_backfill;
struct hps_lookup_metrics;

enum {
    HPS_BACKFILL_BYTES_MAX = 32 * 1024 * 1024, /* copies that wait or are being put there */
    HPS_BACKFILL_CALL_ROWS = 4096,             /* of one call of a store */
    HPS_BACKFILL_CALL_BYTES = 1024 * 1024
};

/* Rows of one table: that of keys[i] at rows + slots[i] * row_bytes. */
struct hps_backfill_rows {
    struct hps_version *version; /* pinned by the caller */
    struct hps_space *space;     /* of the version: a store that takes insertions */
    const struct hps_table *table;
    const hps_key *keys;
    const uint32_t *slots;
    const uint8_t *rows;
    uint32_t n;
    uint64_t since; /* hps_stamps_now before they were read */
};

/* bytes_max: see HPS_BACKFILL_BYTES_MAX. metrics: borrowed, NULL: not counted. NULL: no memory. */
struct hps_backfill *hps_backfill_new(size_t bytes_max, const struct hps_lookup_metrics *metrics);
/* Copy; what is not taken is counted. Pins the version until they are put there. The thread starts
 * with the first rows. Any thread; never blocks on a store. */
void hps_backfill_add(struct hps_backfill *backfill, const struct hps_backfill_rows *rows);
/* The version is being unloaded: drop what waits for it. What is being put there just now holds its
 * pin until the store has answered. Any thread. */
void hps_backfill_forget(struct hps_backfill *backfill, const struct hps_version *version);
/* Drop all and take nothing any more. Waits for the call that the thread is in: as long as the
 * store allows for writes. Then no version is pinned. */
void hps_backfill_stop(struct hps_backfill *backfill);
/* After hps_backfill_stop. NULL is legal. */
void hps_backfill_free(struct hps_backfill *backfill);
/* Copies that wait or are being put there, in bytes. Any thread. */
size_t hps_backfill_bytes(struct hps_backfill *backfill);

#endif
