/* SPDX-License-Identifier: Apache-2.0
 *
 * Applies update batches: the only way in which rows of a resident version change. Rows, deletes
 * and the positions of their source are applied from the lowest tier up. At the end they become the
 * version's published state:
 *
 *     check ─▶ last write per key ─▶ stamps ─▶ durable store: rows + deletes + positions, at once
 *           ─▶ tiers above, bottom-up, the gpu last ─▶ stamps ─▶ positions and sequence published
 *
 * A shared tier takes a batch together with the log positions before and after it (store_log.h:
 * apply). Shards that are behind are not read; they catch up when the log is applied to them again
 * (hps_update_replay).
 *
 * What holds:
 * - An insertion never brings back an older row. hps_update_apply marks the stamps of all keys
 *   before it changes any tier, then changes the tiers from the lowest up. Every insertion compares
 *   the stamps (stamps.h). Batches of a version are applied in order, by one thread. Across
 *   partitions, row versions decide.
 * - Per key, a lookup finds the row before the batch or the row after it, never a mixture. Once the
 *   batch is published, it never finds the row before.
 * - A lookup may see some keys of a batch with new rows and others with old rows. If the stamps
 *   show that no batch has changed any of its keys since it began, it has seen each batch whole or
 *   not at all. A lookup whose keys change again and again may hold updates back.
 * - A batch that is refused (INVALID, NO_MEMORY), or that the durable store did not take, has
 *   changed nothing. After any failure nothing is published, and the same batch may be applied
 *   again: rows are absolute, so applying them twice gives the same result.
 * - A tier above a durable store that cannot take a row drops the older row of that key.
 * - A host map without a store below it undoes a batch if a row does not fit: all keys have their
 *   old rows again when the call returns. Until then, lookups may see rows of the failed batch.
 *   There is one exception, in a map that does not evict: if all new keys fit and only readers
 * delay a replacement, the batch stays half applied, and applying it again continues it.
 * - After a crash every row matches the stored positions.
 * - If the lowest tier is shared, a batch counts once all of that tier has it. A failed batch may
 *   have reached a part of the tier, and is applied again.
 * - With row versions, a write or delete of a key counts only if no higher version has been
 *   applied, in any batch. So the order of arrival makes no difference. The versions, also those of
 *   deletes, are kept in the durable store with the rows.
 *
 * One thread per version at a time, which may block. It holds a pin, so that an unload waits for
 * the batch.
 */
#ifndef HPS_CACHE_UPDATE_UPDATE_H
#define HPS_CACHE_UPDATE_UPDATE_H

#include "backends/store_durable.h"
#include "backends/store_log.h"
#include "cache/version/version.h"

/* Rows or deletes of one table, in order: the last write of a key counts. */
struct hps_update_part {
    uint32_t table_id;   /* index in the version */
    uint32_t row_bytes;  /* of each row; not used for deletes */
    uint32_t source;     /* for the caller's use */
    uint32_t n;          /* keys */
    const hps_key *keys; /* [n] */
    const uint8_t *rows; /* [n][row_bytes] in the table's type; NULL: the keys are deleted */
    const uint64_t *row_versions; /* [n] for a version that compares them; else not used */
};

struct hps_update_batch {
    const struct hps_update_part *parts; /* [n_parts] in order: the last write of a key counts */
    uint32_t n_parts;
    const struct hps_record
        *positions; /* [n_positions] of the source after the batch; key and value are any bytes */
    uint32_t n_positions;
    bool nan_allowed;
    /* For a version with a shared tier: the log positions between which the parts lie. Without
     * spans there are no parts. */
    const struct hps_log_span *spans; /* [n_spans] of different partitions */
    uint32_t n_spans;
    const uint32_t *part_spans; /* [n_parts] the span of each part */
    /* The version has skipped records, so its rows differ from those that the log gives. From now
     * on its updates leave the shared tier alone, until the tier is given positions again. Not
     * allowed if that tier is the lowest. */
    bool apart;
};

enum {
    HPS_UPDATE_KEYS_MAX = 1 << 26,           /* of one batch */
    HPS_UPDATE_HOLD_US_MAX = 100 * 1000,     /* how long a batch waits for the end of a hold */
    HPS_UPDATE_HOLD_WAIT_US_MAX = 500 * 1000 /* and a hold for the end of a batch */
};

/* Prepare a version for updates: make its stamps, and read the stored positions and sequence. Call
 * it before the version is visible and after its tiers are open. The state is freed with the
 * version.
 *
 * error   DATA_LOSS: the stored state cannot be read; PRECONDITION: row versions without a durable
 *         store; NO_MEMORY
 */
hps_status hps_update_open(struct hps_version *version, struct hps_error *err) HPS_MUST_CHECK;

/* Check a part as hps_update_apply does. INVALID names table, value and limit. For sources that put
 * many records into one batch and skip bad ones. Thread-safe. */
hps_status hps_update_check(const struct hps_version *version, const struct hps_update_part *part,
                            bool nan_allowed, struct hps_error *err) HPS_MUST_CHECK;

/* Apply a batch.
 *
 * owner   everything is borrowed for the call
 * error   INVALID; NO_MEMORY; EXHAUSTED: no space on the disk, or in a host map without a store
 *         below it: pause, then apply the same batch again; PRECONDITION: a tier takes no updates;
 *         DATA_LOSS: a host map without a store below it lost rows and could not restore them;
 *         other errors of the stores
 */
hps_status hps_update_apply(struct hps_version *version, const struct hps_update_batch *batch,
                            struct hps_error *err) HPS_MUST_CHECK;

/* The space of the shared tier that takes updates; NULL: none. Its `log` calls may be made between
 * batches, on the updater's thread. */
struct hps_space *hps_update_shared(const struct hps_version *version);
/* Whether that tier exists and is the lowest one. */
bool hps_update_shared_alone(const struct hps_version *version);
/* Return the sum of the shared tier's reports since the last call, and reset it. */
void hps_update_shared_take(struct hps_version *version, struct hps_log_report *out_report);
/* Apply to the shared tier alone a batch that the version has applied before, for shards that are
 * behind. batch->positions are ignored. Errors as of hps_update_apply. */
hps_status hps_update_replay(struct hps_version *version, const struct hps_update_batch *batch,
                             struct hps_log_report *out_report, struct hps_error *err)
    HPS_MUST_CHECK;

/* Hold updates back: wait for the batch that is being applied, and delay the next one until
 * hps_update_release, but at most for HPS_UPDATE_HOLD_US_MAX. One lookup at a time.
 *
 * Returns false if another lookup holds updates back, a batch waits for its turn, or the version
 * takes no updates. Also if the current batch takes longer than HPS_UPDATE_HOLD_WAIT_US_MAX.
 *
 * thread  any that may block that long
 */
bool hps_update_hold(struct hps_version *version) HPS_MUST_CHECK;
void hps_update_release(struct hps_version *version);

/* Rows of the version: loaded rows, plus rows that updates added, less rows that they removed.
 * Exact until the first update. Afterwards an estimate, except for a version that is only in
 * memory. Thread-safe, like the next two. */
uint64_t hps_update_rows(const struct hps_version *version, bool *out_estimated);
uint64_t hps_update_table_rows(const struct hps_version *version, uint32_t table_id,
                               bool *out_estimated);
/* Usage of a tier by the version. If the store can only estimate its rows: hps_update_rows. */
void hps_update_usage(const struct hps_version *version, struct hps_space *space,
                      struct hps_store_usage *out_usage);
/* Number of batches that every lookup sees which begins now. 0: none. Thread-safe. */
uint64_t hps_update_sequence(const struct hps_version *version);
/* Set by the updater for lookups: the newest applied event time, and the time before which all
 * updates are applied. Unix ms, 0: unknown. Thread-safe. */
void hps_update_times_set(struct hps_version *version, int64_t event_time_ms, int64_t as_of_ms);
int64_t hps_update_event_time_ms(const struct hps_version *version);
int64_t hps_update_as_of_ms(const struct hps_version *version);
/* Upper bound of the age of the version's rows in ms; -1: unknown. At least the time for which
 * as-of has not changed, even if the wall clock is set back. */
int64_t hps_update_age_ms(const struct hps_version *version);
/* Calls fn with each published position, in no order. fn must not call functions of this header.
 * Returns the first status of fn that is not OK. Thread-safe. */
hps_status hps_update_positions(struct hps_version *version, hps_record_fn fn, void *ctx)
    HPS_MUST_CHECK;

void hps_updates_free(struct hps_updates *updates); /* for version->updates_free; may be NULL */

#endif
