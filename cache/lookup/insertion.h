/* SPDX-License-Identifier: Apache-2.0
 *
 * Asynchronous insertion: keys that a lookup did not wait for are queued here. Jobs on the I/O
 * threads fetch the rows of these keys from the stores and insert them into the memory tiers.
 *
 *     lookup ── add ─▶ [ keys, one queue per version ] ── job: walk down, insert upward ─▶ done
 *
 * A job never inserts a row that lacks an update of its key. Before it reads rows, it reads the
 * clock of the version's updates. It inserts a row only if no update has marked the row's key since
 * then (cache/version/stamps.h). Other rows are dropped and counted.
 *
 * The number of queued keys is bounded. Keys beyond the bound are dropped and counted; no lookup
 * waits for the queue. A key that is queued or being fetched is not queued again. A job starts only
 * while no lookup waits for an I/O thread. The number of jobs at one time is limited.
 *
 * A struct hps_insertion owns the backfill of shared tiers (backfill.h). Callers add rows to it,
 * and stop it, through the functions below.
 */
#ifndef HPS_CACHE_LOOKUP_INSERTION_H
#define HPS_CACHE_LOOKUP_INSERTION_H

#include "base/pool.h"
#include "cache/lookup/backfill.h"
#include "cache/version/version.h"

struct hps_insertion;
struct hps_lookup_metrics;

/* Most keys, and most bytes of their rows, that one job fetches. The last row may exceed the limit
 * of bytes. */
enum { HPS_INSERTION_JOB_KEYS = 4096, HPS_INSERTION_JOB_BYTES = 4 * 1024 * 1024 };

struct hps_insertion_options {
    struct hps_pool *io;       /* the I/O threads; borrowed */
    uint32_t rows_max;         /* most keys that are queued or being fetched */
    uint32_t jobs_max;         /* most jobs that are posted or run at one time */
    size_t backfill_bytes_max; /* most bytes of the backfill's copies; 0: HPS_BACKFILL_BYTES_MAX */
    const struct hps_lookup_metrics *metrics; /* borrowed; NULL: not counted */
};

/* Make an insertion with empty queues. *options is copied. NO_MEMORY */
hps_status hps_insertion_new(const struct hps_insertion_options *options,
                             struct hps_insertion **out_insertion) HPS_MUST_CHECK;
/* Queue keys of one table. Keys that do not fit are dropped and counted. Never waits for a store.
 * The caller holds a pin of the version; the queue holds another one until the keys have been
 * fetched or dropped. Thread-safe. */
void hps_insertion_add(struct hps_insertion *insertion, struct hps_version *version,
                       const struct hps_table *table, const hps_key *keys, uint32_t n);
/* Calls hps_backfill_add: copies rows that are inserted into a shared tier later. Thread-safe. */
void hps_insertion_backfill(struct hps_insertion *insertion, const struct hps_backfill_rows *rows);
/* Drop the queued keys and the backfill's copies of a version that is being unloaded, and cancel
 * the jobs that fetch for this version. The queue's pin is released by this call, or when the last
 * of these jobs ends. No effect if insertion is NULL. Thread-safe. */
void hps_insertion_forget(struct hps_insertion *insertion, const struct hps_version *version);
/* Drop all keys and copies, cancel all jobs, and accept no more keys and copies. Waits for the
 * current insertion into a shared tier. Does not wait for jobs: freeing the I/O pool waits for
 * them. No effect if insertion is NULL. */
void hps_insertion_stop(struct hps_insertion *insertion);
/* Free the insertion after hps_insertion_stop and after freeing the I/O pool. No effect if NULL. */
void hps_insertion_free(struct hps_insertion *insertion);
/* Number of keys that are queued or being fetched. Thread-safe. */
uint32_t hps_insertion_rows(struct hps_insertion *insertion);
/* The result of hps_backfill_bytes. Thread-safe. */
size_t hps_insertion_backfill_bytes(struct hps_insertion *insertion);

#endif
