/* SPDX-License-Identifier: Apache-2.0
 *
 * Stamps record when updates last changed a key. They prevent an insertion from bringing back an
 * older row: between the read of a row in a lower tier and its insertion into a higher one, an
 * update may change the row.
 *
 * A version has one clock and 2^20 stripes; each key hashes to one stripe. The clock is odd while a
 * batch is being applied. A batch that fails half-way leaves the clock odd until a later batch
 * ends. A batch writes its odd time into the stripes of all its keys before it changes any tier. A
 * walk reads the clock *before* it reads rows; that value is `since`. A row may be inserted only if
 * the stripe of its key is less than `since`.
 *
 *     clock      2        3 (a batch) 4                 5 (a batch) 6
 *     walk 1     since=2 ── reads ──────── stripe 3: refused
 *     walk 2                          since=4 ─ reads ─ stripe 3 < 4: inserted ─ replaced by 5
 *     walk 3               since=3 ─────────── stripe 3: refused, the row may be the old one
 *
 * If the stripe is less than `since`, every batch that marked it had ended before the row was read,
 * so the row has those updates. The comparison must be made under the lock that an update of the
 * key takes in that tier. The updater takes it for every key of a batch, also for keys that the
 * tier lacks. So a batch that marks the stripe after the comparison takes the lock later, and
 * replaces or erases the row. Keys that share a stripe only cause needless refusals.
 *
 * A key whose stripe is less than `since` is *unchanged*. This answers two more questions. May a
 * lookup that begins now use a row, or a proof of absence, that was read after `since`? Yes, if the
 * key is unchanged. Do several rows belong to one state? Yes, if `since` was read before the first
 * row and, after the last row was read, all keys are unchanged.
 *
 * NULL stamps belong to a version without updates: nothing ever changes. Thread-safe, except that
 * only the version's updater calls begin, mark and end.
 */
#ifndef HPS_CACHE_VERSION_STAMPS_H
#define HPS_CACHE_VERSION_STAMPS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/types.h"

struct hps_stamps;

/* Reserves address space for all stripes; a stripe takes memory once an update has marked it. NULL:
 * no memory. */
struct hps_stamps *hps_stamps_new(void);
void hps_stamps_free(struct hps_stamps *stamps); /* may be NULL */

/* The clock; read it before the rows. Odd: a batch is being applied, or has failed half-way. If the
 * clock has the same even value before and after some rows are read, these rows are of one state: a
 * reader that has seen a row of a newer batch also sees that batch's odd clock and all its marks.
 */
uint64_t hps_stamps_now(const struct hps_stamps *stamps);
/* Whether the stripe of the key is less than `since`. Then no batch has marked it that began after
 * `since` was read, or was being applied at that moment. */
bool hps_stamp_unchanged(const struct hps_stamps *stamps, uint32_t table_id, hps_key key,
                         uint64_t since);

/* The context of a struct hps_insert_guard: the rows of these keys were read after `since`. */
struct hps_stamp_guard {
    const struct hps_stamps *stamps;
    const hps_key *keys; /* all keys of the insertion, in its order */
    uint32_t table_id;
    uint64_t since;
};
/* hps_insert_guard.fresh; guard: struct hps_stamp_guard. True if keys[i] is unchanged. */
bool hps_stamp_guard_fresh(const void *guard, uint32_t i);

/* For each batch, the updater calls begin, marks the keys of every table, changes the tiers from
 * the lowest one up, and calls end. Do not call hps_stamps_end if the batch failed half-way: the
 * clock then keeps its odd value until the next batch ends. */
void hps_stamps_begin(struct hps_stamps *stamps);
void hps_stamps_mark(struct hps_stamps *stamps, uint32_t table_id, const hps_key *keys, uint32_t n);
void hps_stamps_end(struct hps_stamps *stamps);

#endif
