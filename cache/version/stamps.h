/* SPDX-License-Identifier: Apache-2.0
 *
 * Stamps record when updates last changed a key. They prevent an insertion from bringing back an
 * older row: between the read of a row in a lower tier and its insertion into a higher one, an
 * update may change the row.
 *
 * A version has one clock and 2^20 stripes; each key hashes to one stripe. The clock is odd while a
 * batch is being applied. A batch writes its odd time into the stripes of all its keys before it
 * changes any tier. A *walk*, the search of one lookup through the tiers (cache/lookup/tiers.h),
 * reads the clock *before* it reads rows; that value is `since`. A row may be inserted only if the
 * stripe of its key is less than `since`. A value of `since` that is too small is always safe: it
 * only causes more rows to be refused.
 *
 *     clock      2        3 (a batch) 4                 5 (a batch) 6
 *     walk 1     since=2 ── reads ──────── stripe 3: refused
 *     walk 2                          since=4 ─ reads ─ stripe 3 < 4: inserted ─ replaced by 5
 *     walk 3               since=3 ─────────── stripe 3: refused, the row may be the old one
 *
 * Why no inserted row lacks an update:
 *
 * 1. Earlier updates. If the stripe is less than `since`, every batch that marked it had ended
 *    before the row was read. A batch ends after it has changed all tiers, or none. So the row has
 *    the updates of these batches. In a shared tier, lookups skip shards that lack any of these
 *    updates (store_log.h).
 * 2. Later updates. The stripe is compared under the lock that an update of the key takes in that
 *    tier. A batch marks its stripes before it takes this lock, and takes it for each of its keys,
 *    also for keys that the tier lacks. So if the comparison does not see a mark, the batch of this
 *    mark takes the lock later. It then replaces or erases the inserted row. For shared tiers,
 *    which have no such lock, see struct hps_insert_guard in backends/store.h.
 *
 * A batch that fails half-way leaves the clock odd. The updater applies the same batch again, with
 * the same odd time, until it ends (cache/update/update.h). If keys share a stripe, rows may be
 * refused needlessly, which does no harm.
 *
 * A key whose stripe is less than `since` is *unchanged*. This answers two more questions. May a
 * lookup that begins now use a row, or a proof of absence, that was read after `since`? Yes, if the
 * key is unchanged. Do several rows belong to one state? Yes, if `since` was read before the first
 * row and, after the last row was read, all keys are unchanged.
 *
 * For a version without updates, pass NULL as stamps: every key is then unchanged. Thread-safe,
 * except that only the version's updater calls begin, mark and end.
 */
#ifndef HPS_CACHE_VERSION_STAMPS_H
#define HPS_CACHE_VERSION_STAMPS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/types.h"

struct hps_stamps;

/* Reserves address space for all stripes; memory is allocated when updates mark stripes. Returns
 * NULL if there is no memory. */
struct hps_stamps *hps_stamps_new(void);
void hps_stamps_free(struct hps_stamps *stamps); /* no effect if NULL */

/* The clock; read it before the rows. Odd: a batch is being applied, or has failed half-way. Even:
 * the reader sees all changes of the batches that have ended. If the clock is even and the same
 * before and after some rows are read, no batch changed these rows in between: a reader that sees a
 * row of a batch also sees the batch's odd clock and its marks. */
uint64_t hps_stamps_now(const struct hps_stamps *stamps);
/* Whether the stripe of the key is less than `since`. If so, the stripe was not marked by a batch
 * that was being applied when `since` was read, or that began later. */
bool hps_stamp_unchanged(const struct hps_stamps *stamps, uint32_t table_id, hps_key key,
                         uint64_t since);

/* The context of a struct hps_insert_guard, for rows that were read after `since` was read. */
struct hps_stamp_guard {
    const struct hps_stamps *stamps;
    const hps_key *keys; /* all keys of the insertion, in its order */
    uint32_t table_id;
    uint64_t since;
};
/* The function for hps_insert_guard.fresh. guard: a struct hps_stamp_guard. Returns whether keys[i]
 * is unchanged. */
bool hps_stamp_guard_fresh(const void *guard, uint32_t i);

/* For each batch, the updater calls begin, marks the keys of every table, changes the tiers from
 * the lowest one up, and calls end. After a failure, it calls end only if the batch has left all
 * tiers unchanged and the clock was even before begin. Otherwise the clock stays odd until a later
 * batch ends. */
void hps_stamps_begin(struct hps_stamps *stamps);
void hps_stamps_mark(struct hps_stamps *stamps, uint32_t table_id, const hps_key *keys, uint32_t n);
void hps_stamps_end(struct hps_stamps *stamps);

#endif
