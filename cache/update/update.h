/* SPDX-License-Identifier: Apache-2.0
 *
 * The life of one update batch: the one way in which rows of a resident version change. Rows,
 * deletes and the positions of their source are applied from the lowest tier up, and become the
 * version's published state at the end:
 *
 *     check ─▶ last write per key ─▶ stamps ─▶ durable store: rows + deletes + positions, at once
 *           ─▶ tiers above, bottom-up, the gpu last ─▶ stamps ─▶ positions and sequence published
 *
 * A tier that is shared with other daemons takes a batch by the positions of the log before and
 * behind it (store_log.h: apply). Shards that are behind are not read from; they catch up when the
 * log is applied to them again (hps_update_replay).
 *
 * What holds:
 * - Per key, a look-up finds the row before the batch or the one after it, never a mixture, and
 *   never the one before again once the batch is published.
 * - Of a batch a look-up may see some keys with their new rows and others with their old ones. If,
 *   by their stamps (stamps.h), no batch has had any key of the look-up since that began, it has
 *   seen each batch whole or not at all. A hold keeps batches away from a look-up that finds its
 * keys changed again and again.
 * - A batch that is refused (INVALID, NO_MEMORY) or that the durable store did not take has changed
 *   nothing. After any failure nothing is published, and the same batch may be applied again: rows
 *   are absolute, so doing it twice is doing it once.
 * - A tier above a durable store that cannot take a row loses the older one of that key.
 * - A host map without a store below it takes a batch whole or not at all: if a row does not fit,
 *   all its keys have their old rows again when the call returns. Meanwhile a look-up may have seen
 *   rows of the failed batch.
 * - After a crash every row is that of the stored positions.
 * - Where a shared tier is the lowest, a batch counts once all of it has it. What failed may have
 *   reached some of it, and is applied again.
 * - With row versions a write, or delete, of a key counts only if none with a higher version has
 *   been applied, in whatever batch: so the order in which they come makes no difference. The
 *   versions are kept in the durable store beside the rows, also those of deletes.
 *
 * One thread per version at a time, which may block; it holds a pin, so that an unload waits for
 * the batch.
 */
#ifndef HPS_CACHE_UPDATE_UPDATE_H
#define HPS_CACHE_UPDATE_UPDATE_H

#include "backends/store_durable.h"
#include "backends/store_log.h"
#include "cache/version/version.h"

/* Rows or deletes of one table, in order: of a key given twice the last one counts. */
struct hps_update_part {
    uint32_t table_id;   /* index in the version */
    uint32_t row_bytes;  /* of the rows as they came; of deletes nothing */
    uint32_t source;     /* of whoever made it */
    uint32_t n;          /* keys */
    const hps_key *keys; /* [n] */
    const uint8_t *rows; /* [n][row_bytes] in the type of the table; NULL: the keys are deleted */
    const uint64_t *row_versions; /* [n] for a version that compares them; else not looked at */
};

struct hps_update_batch {
    const struct hps_update_part *parts; /* [n_parts] in order: the last write of a key counts */
    uint32_t n_parts;
    const struct hps_record
        *positions; /* [n_positions] of the source after the batch: key and value any bytes */
    uint32_t n_positions;
    bool nan_allowed;
    /* Of a version with a shared tier: between which positions of the log the parts lie; without
     * spans there are no parts. */
    const struct hps_log_span *spans; /* [n_spans] of partitions that differ */
    uint32_t n_spans;
    const uint32_t *part_spans; /* [n_parts] the span that each part comes from */
    /* The version has passed records over, so its rows are no longer those that the log makes: a
     * shared tier is left alone from now on, until the version is given positions there again. Not
     * where that tier is the lowest one. */
    bool apart;
};

enum {
    HPS_UPDATE_KEYS_MAX = 1 << 26,           /* of one batch */
    HPS_UPDATE_HOLD_US_MAX = 100 * 1000,     /* a batch waits so long for the end of a hold, */
    HPS_UPDATE_HOLD_WAIT_US_MAX = 500 * 1000 /* and a hold for the end of a batch */
};

/* Make a version that can be updated, and read how far it was: stamps, positions, sequence. Before
 * it is seen by anybody; its tiers are open. Freed with the version. DATA_LOSS: what is stored
 * cannot be read; PRECONDITION: row versions without a durable store; NO_MEMORY. */
hps_status hps_update_open(struct hps_version *version, struct hps_error *err) HPS_MUST_CHECK;

/* Would a batch with this part be refused? INVALID names table, value and limit. For sources that
 * put many records into one batch and skip the bad ones. Any thread. */
hps_status hps_update_check(const struct hps_version *version, const struct hps_update_part *part,
                            bool nan_allowed, struct hps_error *err) HPS_MUST_CHECK;

/* Apply a batch.
 * owner   everything is borrowed for the call
 * error   INVALID; NO_MEMORY; EXHAUSTED: no room on the disk, or in a host map without a store
 *         below it: pause and try the same batch again, which goes on where readers had the rows
 *         that it needed; PRECONDITION: the lowest tier takes no updates; DATA_LOSS: such a map
 *         that loses rows could not be put back; what the stores answered
 */
hps_status hps_update_apply(struct hps_version *version, const struct hps_update_batch *batch,
                            struct hps_error *err) HPS_MUST_CHECK;

/* The space of a tier that is shared with other daemons and takes updates; NULL: there is none. On
 * the updater's thread its log_* operations may be called between batches. */
struct hps_space *hps_update_shared(const struct hps_version *version);
/* ... and it is the lowest tier. */
bool hps_update_shared_alone(const struct hps_version *version);
/* What batches met in it since this was last asked. */
void hps_update_shared_take(struct hps_version *version, struct hps_log_report *out_report);
/* Apply a batch that has been applied, from an earlier position on, to what is behind in the shared
 * tier alone. As hps_update_apply; positions are not looked at. */
hps_status hps_update_replay(struct hps_version *version, const struct hps_update_batch *batch,
                             struct hps_log_report *out_report, struct hps_error *err)
    HPS_MUST_CHECK;

/* Hold updates back: wait for the batch that is under way, and keep the next one from beginning
 * until hps_update_release, or until it has waited HPS_UPDATE_HOLD_US_MAX. One look-up at a time.
 * False: another look-up holds them back, a batch waits for its turn, the one under way takes
 * longer than HPS_UPDATE_HOLD_WAIT_US_MAX, or the version takes no updates. Any thread that may
 * block so long. */
bool hps_update_hold(struct hps_version *version) HPS_MUST_CHECK;
void hps_update_release(struct hps_version *version);

/* Rows of the version: what was loaded, exact until the first update; then with what updates have
 * added and taken away, which is an estimate but for a version in memory alone. Any thread, as the
 * next two. */
uint64_t hps_update_rows(const struct hps_version *version, bool *out_estimated);
uint64_t hps_update_table_rows(const struct hps_version *version, uint32_t table_id,
                               bool *out_estimated);
/* What a tier has of the version; where the store can only estimate its rows, hps_update_rows. */
void hps_update_usage(const struct hps_version *version, struct hps_space *space,
                      struct hps_store_usage *out_usage);
/* Batches that every look-up which begins now sees. 0: none. Any thread. */
uint64_t hps_update_sequence(const struct hps_version *version);
/* For look-ups, by whoever applies: the newest event time that is applied, and the time since when
 * there may be updates that are not; Unix ms, 0: not known. Any thread. */
void hps_update_times_set(struct hps_version *version, int64_t event_time_ms, int64_t as_of_ms);
int64_t hps_update_event_time_ms(const struct hps_version *version);
int64_t hps_update_as_of_ms(const struct hps_version *version);
/* How old rows of the version may be at most, ms; -1: not known. Not less than for how long as-of
 * has not moved, should the wall clock be set back. */
int64_t hps_update_age_ms(const struct hps_version *version);
/* The published positions, in no order. fn must not call back here. Any thread. */
hps_status hps_update_positions(struct hps_version *version, hps_record_fn fn, void *ctx)
    HPS_MUST_CHECK;

void hps_updates_free(struct hps_updates *updates); /* as version->updates_free; NULL is legal */

#endif
