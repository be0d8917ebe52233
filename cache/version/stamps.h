/* SPDX-License-Identifier: Apache-2.0
 *
 * When was a row last updated? So that rows found below never bring an old one back into a tier
 * above: between the read of a row and its insertion an update may have come.
 *
 * One clock and 2^20 stripes per version. The clock is the apply stamp: odd while a batch is being
 * applied, and while the last one is in some tiers only. A batch marks the stripes of its keys with
 * its odd time before it changes any tier. Who inserts rows reads the clock *before* it reads
 * below, and inserts a row only if the stripe of its key is older than that. Keys that share a
 * stripe only cost a needless refusal.
 *
 *     clock      2        3 (a batch) 4                 5 (a batch) 6
 *     walk 1     since=2 ── reads ──────── stripe 3: refused
 *     walk 2                          since=4 ─ reads ─ stripe 3 < 4: inserted ─ replaced by 5
 *     walk 3               since=3 ─────────── stripe 3: refused, the read may have come too early
 *
 * The check must be made under the lock that the update of the key takes afterwards (the updater
 * takes it for every key of the batch, also one that is not there): then a row that passed the
 * check too early is replaced by the update that follows.
 *
 * The same answers "may this row, or proof of absence, that somebody read since `since` be used for
 * a look-up that begins now?": yes while the key is unchanged since then. And "are these rows of
 * one state?": if all of their keys are unchanged since before the first was read, after the last
 * was.
 *
 * NULL stamps are those of a version that is never updated: nothing ever changes. Any thread, but
 * begin, mark and end: the one updater of the version.
 */
#ifndef HPS_CACHE_VERSION_STAMPS_H
#define HPS_CACHE_VERSION_STAMPS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/types.h"

struct hps_stamps;

/* Address space for all stripes; memory only for those that updates have touched. NULL: no memory.
 */
struct hps_stamps *hps_stamps_new(void);
void hps_stamps_free(struct hps_stamps *stamps); /* NULL is legal */

/* The clock, to be read before the rows are. Odd: a batch is being applied. Rows that were read
 * between two equal even ones are of the same batches: whoever sees a row of a batch by what its
 * tier guards it with also sees, afterwards, the odd clock and all marks, which came before. */
uint64_t hps_stamps_now(const struct hps_stamps *stamps);
/* No batch since `since`, nor one that was under way then, has the key. */
bool hps_stamp_unchanged(const struct hps_stamps *stamps, uint32_t table_id, hps_key key,
                         uint64_t since);

/* For struct hps_insert_guard: keys of one table that were read since `since`. */
struct hps_stamp_guard {
    const struct hps_stamps *stamps;
    const hps_key *keys; /* those of the insertion */
    uint32_t table_id;
    uint64_t since;
};
bool hps_stamp_guard_fresh(const void *guard, uint32_t i); /* guard: struct hps_stamp_guard */

/* A batch: begin, mark the keys of every table, change the tiers from the lowest up, end; but not
 * end if it failed half-way, so that the clock is odd, and the same, until the next batch has
 * ended. */
void hps_stamps_begin(struct hps_stamps *stamps);
void hps_stamps_mark(struct hps_stamps *stamps, uint32_t table_id, const hps_key *keys, uint32_t n);
void hps_stamps_end(struct hps_stamps *stamps);

#endif
