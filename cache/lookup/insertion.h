/* SPDX-License-Identifier: Apache-2.0
 *
 * Asynchronous insertion: keys that a lookup did not wait for are queued here. Jobs on the I/O
 * threads fetch their rows from the tiers below and insert them into the memory tiers above.
 *
 *     lookup ── add ─▶ [ keys, one queue per version ] ── job: walk down, insert upward ─▶ done
 *
 * An inserted row is never older than the row in the tier. Each job reads the version's clock
 * before it reads rows. The tier inserts a row only if the stripe of its key is older
 * (cache/version/stamps.h). A stale row is dropped and counted.
 *
 * The number of queued rows is bounded. Rows beyond the bound are dropped and counted; no lookup
 * waits for the queue. A key that is queued or being fetched is not queued again. Jobs run only
 * while no lookup waits for an I/O thread, and on a limited number of threads.
 *
 * The backfill of shared tiers (backfill.h) is called and stopped through this interface, too.
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
    struct hps_pool *io;                      /* borrowed, like `metrics` */
    uint32_t rows_max;                        /* bound of rows queued or being fetched */
    uint32_t jobs_max;                        /* jobs that may run at the same time */
    size_t backfill_bytes_max;                /* 0: HPS_BACKFILL_BYTES_MAX */
    const struct hps_lookup_metrics *metrics; /* NULL: not counted */
};

/* NO_MEMORY */
hps_status hps_insertion_new(const struct hps_insertion_options *options,
                             struct hps_insertion **out_insertion) HPS_MUST_CHECK;
/* Queue keys of one table; keys that do not fit are counted. Never waits for a store. The caller
 * holds a pin of the version; the queue holds another until the keys have been fetched.
 * Thread-safe. */
void hps_insertion_add(struct hps_insertion *insertion, struct hps_version *version,
                       const struct hps_table *table, const hps_key *keys, uint32_t n);
/* Rows for a shared tier: see hps_backfill_add. */
void hps_insertion_backfill(struct hps_insertion *insertion, const struct hps_backfill_rows *rows);
/* Drop the queued keys of a version that is being unloaded, and cancel the jobs that fetch for it.
 * The queue's pin is released here, or when the last of these jobs ends. insertion: may be NULL.
 * Thread-safe. */
void hps_insertion_forget(struct hps_insertion *insertion, const struct hps_version *version);
/* Drop all keys, cancel all jobs and accept no more. Waits for the current insertion into a shared
 * tier. Jobs end later: freeing the I/O pool waits for them. May be NULL. */
void hps_insertion_stop(struct hps_insertion *insertion);
/* After hps_insertion_stop and after the I/O pool has been freed. May be NULL. */
void hps_insertion_free(struct hps_insertion *insertion);
/* Rows queued or being fetched; bytes that wait for shared tiers. Thread-safe. */
uint32_t hps_insertion_rows(struct hps_insertion *insertion);
size_t hps_insertion_backfill_bytes(struct hps_insertion *insertion);

#endif
