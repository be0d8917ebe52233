/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows that are fetched behind the answers: keys that a look-up did not wait for are queued here,
 * fetched from the tiers below by jobs on the I/O threads, and put into the memory tiers above.
 *
 *     look-up ── add ─▶ [ keys, one queue per version ] ── job: walk down, insert upward ─▶ done
 *
 * The queue is bounded in rows. What finds no room is dropped and counted: neither a look-up nor a
 * client ever waits for it. A key that waits or is being fetched is not queued again. Jobs run when
 * no look-up waits for an I/O thread, and never on more than some of the threads.
 *
 * The backfill of rows that were found below a shared tier (backfill.h) is called and stopped
 * through here, too.
 */
#ifndef HPS_CACHE_LOOKUP_INSERTION_H
#define HPS_CACHE_LOOKUP_INSERTION_H

#include "base/pool.h"
#include "cache/lookup/backfill.h"
#include "cache/version/version.h"

struct hps_insertion;
struct hps_lookup_metrics;

enum { HPS_INSERTION_JOB_KEYS = 4096, HPS_INSERTION_JOB_BYTES = 4 * 1024 * 1024 };

struct hps_insertion_options {
    struct hps_pool *io;                      /* borrowed, as metrics */
    uint32_t rows_max;                        /* that wait or are being fetched */
    uint32_t jobs_max;                        /* at a time */
    size_t backfill_bytes_max;                /* 0: HPS_BACKFILL_BYTES_MAX */
    const struct hps_lookup_metrics *metrics; /* NULL: not counted */
};

/* NO_MEMORY */
hps_status hps_insertion_new(const struct hps_insertion_options *options,
                             struct hps_insertion **out_insertion) HPS_MUST_CHECK;
/* Queue keys of one table; what is not taken is counted. Never blocks on a store. The caller holds
 * a pin of the version; one more is held until its keys have been fetched. Any thread. */
void hps_insertion_add(struct hps_insertion *insertion, struct hps_version *version,
                       const struct hps_table *table, const hps_key *keys, uint32_t n);
/* Rows for a shared tier: as hps_backfill_add. */
void hps_insertion_backfill(struct hps_insertion *insertion, const struct hps_backfill_rows *rows);
/* The version is being unloaded: drop what waits for it and cut off the jobs that fetch for it. Its
 * pin is given back here, or when the last of these jobs has ended. insertion: NULL is legal.
 * Any thread. */
void hps_insertion_forget(struct hps_insertion *insertion, const struct hps_version *version);
/* Drop all, cut off all jobs and take nothing any more. Freeing the pool then waits for the jobs;
 * rows that are being put into a shared tier are waited for here. NULL is legal. */
void hps_insertion_stop(struct hps_insertion *insertion);
/* After hps_insertion_stop, and after the pool is gone. NULL is legal. */
void hps_insertion_free(struct hps_insertion *insertion);
/* Rows that wait or are being fetched; bytes that wait for shared tiers. Any thread. */
uint32_t hps_insertion_rows(struct hps_insertion *insertion);
size_t hps_insertion_backfill_bytes(struct hps_insertion *insertion);

#endif
