/* SPDX-License-Identifier: Apache-2.0
 *
 * Applies batches of updates: the only way in which rows of a resident version change. A batch has
 * rows, deletes, and positions: how far its source (such as Kafka) has been read after the batch.
 * Rows and deletes are applied from the lowest tier up. Then the positions become the version's
 * published state:
 *
 *     check ─▶ last write per key ─▶ stamps ─▶ durable store: rows + deletes + positions, at once
 *           ─▶ tiers above, bottom-up, the gpu last ─▶ stamps ─▶ positions and sequence published
 *
 * A shared tier gets each batch together with the log positions before and after it (store_log.h:
 * apply). Lookups do not read a shard that lacks earlier batches. The shard catches up when these
 * batches are applied to it again (hps_update_replay).
 *
 * Guarantees:
 * - An insertion never brings back an older row. hps_update_apply marks the stamps of all keys
 *   before it changes any tier, then changes the tiers from the lowest up. Every insertion of a row
 *   that was read from a tier compares the stamps (stamps.h).
 * - Batches of a version are applied in order, by one thread. If several partitions have records
 *   of one key, the order of these records is not defined, unless the version has row versions.
 * - If hps_version.row_versions is set, each update of a key has a number, its *row version*. The
 *   update has an effect only if no update of the key with a higher row version has been applied
 *   before. So the order of arrival makes no difference. The durable store keeps the row versions
 *   of writes and deletes with the rows.
 * - For one key, a lookup finds the row before the batch or the row after it, never a mixture. A
 *   lookup that begins after the batch is published finds the row after it.
 * - A lookup may find some keys of a batch with new rows and others with old rows. If the stamps
 *   show that no batch has changed any key of the lookup since the lookup began, its rows have all
 *   changes of each batch or none. A lookup whose keys change again and again may delay updates for
 *   a short time (hps_update_hold).
 * - A batch that fails with INVALID, or that the durable store refuses, has changed nothing. After
 *   any other failure it may be *half-applied*: some tiers have its changes, others do not. A
 *   failed batch is never published. The caller must apply a half-applied batch again before any
 *   other one. Otherwise upper tiers would keep old rows, although lower tiers have newer ones.
 *   Updates contain whole rows, so applying them twice gives the same result.
 * - If a host map above a durable store cannot take a row, it drops the older row of that key
 *   instead, which never fails. If a shard of a shared tier cannot take a batch, lookups no longer
 *   read the shard until it has caught up.
 * - A host map without a store below it undoes a batch if a row does not fit. When hps_update_apply
 *   returns, all keys have their old rows again. Before that, lookups may find rows of the failed
 *   batch. There is one exception, in a map that does not evict. If all new keys fit, but readers
 *   still use the memory of replaced rows, the batch stays half-applied. The caller must apply it
 *   again to complete it.
 * - After a crash, the rows of the durable store match the stored positions.
 * - If the lowest tier is shared, a batch is published once all shards of that tier have it. If the
 *   batch fails, some shards may have it; the caller must apply the batch again to complete it.
 *
 * At most one thread at a time may call hps_update_apply for a version. The call may block. The
 * thread must hold a pin of the version, so that an unload waits for the batch.
 */
#ifndef HPS_CACHE_UPDATE_UPDATE_H
#define HPS_CACHE_UPDATE_UPDATE_H

#include "backends/store_durable.h"
#include "backends/store_log.h"
#include "cache/version/version.h"

/* Rows or deletes of one table. If a key occurs more than once, its last write counts. */
struct hps_update_part {
    uint32_t table_id;   /* index in the version */
    uint32_t row_bytes;  /* size of each row; not used for deletes */
    uint32_t source;     /* a number for the caller's own use; these functions do not read it */
    uint32_t n;          /* number of keys */
    const hps_key *keys; /* [n] */
    const uint8_t *rows; /* [n][row_bytes] in the table's type; NULL: the keys are deleted */
    /* [n] row version of each update; only used if the version has row versions. */
    const uint64_t *row_versions;
};

struct hps_update_batch {
    /* [n_parts] in order: if a key occurs in several parts, its write in the last one counts */
    const struct hps_update_part *parts;
    uint32_t n_parts;
    /* [n_positions] how far the source of updates has been read after this batch. Only the source
     * interprets their keys and values. A position replaces an earlier one with the same key. */
    const struct hps_record *positions;
    uint32_t n_positions;
    bool nan_allowed; /* rows may have NaN and Inf; if false, such values make the batch INVALID */
    /* For a version with a shared tier: the parts have all updates of the log records in these
     * spans. If n_spans is 0, n_parts must be 0. */
    const struct hps_log_span *spans; /* [n_spans] of different partitions */
    uint32_t n_spans;
    const uint32_t *part_spans; /* [n_parts] index of the span from which each part comes */
    /* The version has skipped records of the log, so its rows differ from the rows of other
     * daemons. This and later batches do not change the shared tier, and lookups find no rows
     * there, until positions_set (store_log.h) is called. Not allowed if the shared tier is the
     * lowest. */
    bool apart;
};

enum {
    HPS_UPDATE_KEYS_MAX = 1 << 26, /* maximum number of keys of one batch */
    /* Longest time that a batch waits for the end of a hold (hps_update_hold) */
    HPS_UPDATE_HOLD_US_MAX = 100 * 1000,
    /* Longest time that hps_update_hold waits for the end of the current batch */
    HPS_UPDATE_HOLD_WAIT_US_MAX = 500 * 1000
};

/* Prepare a version for updates: make its stamps, and read the stored positions and sequence. Call
 * it after the version's tiers are open and before the version is published. hps_version_free frees
 * the stamps, positions and sequence.
 *
 * error   DATA_LOSS: the stored state cannot be read; PRECONDITION: the version has row versions
 *         and no durable store; NO_MEMORY
 */
hps_status hps_update_open(struct hps_version *version, struct hps_error *err) HPS_MUST_CHECK;

/* Check a part as hps_update_apply does, so that the caller can leave a bad record out of a batch.
 * INVALID: `err` names table, value and limit. Thread-safe. */
hps_status hps_update_check(const struct hps_version *version, const struct hps_update_part *part,
                            bool nan_allowed, struct hps_error *err) HPS_MUST_CHECK;

/* Apply a batch.
 *
 * owner   everything is borrowed for the call
 * error   INVALID, NO_MEMORY. EXHAUSTED: there is no space on the disk, or in a host map without a
 *         store below it; pause, then apply the same batch again. PRECONDITION: a tier does not
 *         accept updates. DATA_LOSS: a host map without a store below it could not undo a failed
 *         batch and has lost rows. Other errors of the stores
 */
hps_status hps_update_apply(struct hps_version *version, const struct hps_update_batch *batch,
                            struct hps_error *err) HPS_MUST_CHECK;

/* Whether the last call of hps_update_apply has left a half-applied batch, which must be applied
 * again before any other one. Updater thread. */
bool hps_update_half_applied(const struct hps_version *version);

/* The version's space in the shared tier; NULL: the version has no shared tier. The updater thread
 * may call the store's `log` functions for this space between batches. */
struct hps_space *hps_update_shared(const struct hps_version *version);
/* Whether the lowest tier of the version is shared. */
bool hps_update_shared_alone(const struct hps_version *version);
/* Return the sum of the shared tier's reports since the last call, and reset it. Updater thread. */
void hps_update_shared_take(struct hps_version *version, struct hps_log_report *out_report);
/* Apply a batch to the shared tier only, for shards that lack it. The version must have applied the
 * batch before. batch->positions are ignored. Errors as of hps_update_apply. Updater thread. */
hps_status hps_update_replay(struct hps_version *version, const struct hps_update_batch *batch,
                             struct hps_log_report *out_report, struct hps_error *err)
    HPS_MUST_CHECK;

/* Hold updates back: wait for the end of the batch that is being applied, then delay the next batch
 * until hps_update_release. A batch is delayed by at most HPS_UPDATE_HOLD_US_MAX. One lookup at a
 * time can hold updates back.
 *
 * Returns true if updates are held back; hps_update_release must follow. Returns false if another
 * lookup holds them back, a batch already waits for the end of a hold, or the version takes no
 * updates. Also returns false if the current batch takes longer than HPS_UPDATE_HOLD_WAIT_US_MAX.
 *
 * thread  any that may block for HPS_UPDATE_HOLD_WAIT_US_MAX
 */
bool hps_update_hold(struct hps_version *version) HPS_MUST_CHECK;
void hps_update_release(struct hps_version *version);

/* The number of rows of the version: loaded rows, plus rows that updates added, less rows that they
 * removed. It is exact until the first update, and afterwards if the host map is the lowest tier.
 * Otherwise it is an estimate, and *out_estimated is true. Thread-safe. */
uint64_t hps_update_rows(const struct hps_version *version, bool *out_estimated);
/* The number of rows of one table, like hps_update_rows. The number is also an estimate if the host
 * map is the lowest tier and has dropped rows of the version. Thread-safe. */
uint64_t hps_update_table_rows(const struct hps_version *version, uint32_t table_id,
                               bool *out_estimated);
/* Number of rows of one table that the host map stores without an index, because their keys are
 * consecutive (hps_store_limits_ops.dense_rows). Thread-safe. */
uint64_t hps_update_dense_rows(const struct hps_version *version, uint32_t table_id);
/* How much of a tier the version uses: the result of space_usage for `space`. If the store only
 * estimates the number of rows, n_rows is the result of hps_update_rows instead. Thread-safe. */
void hps_update_usage(const struct hps_version *version, struct hps_space *space,
                      struct hps_store_usage *out_usage);
/* Set out_known[i] to whether keys[i] has a row, also of a batch that is half-applied. Reads the
 * host map if it is complete, otherwise the lowest tier. Does not count as lookups.
 *
 * shape   keys, out_known: [n]; keys may repeat
 * thread  the updater thread; may block
 * error   UNIMPLEMENTED: the lowest tier is shared; NO_MEMORY, or an error of the store
 */
hps_status hps_update_known(const struct hps_version *version, uint32_t table_id,
                            const hps_key *keys, uint32_t n, bool *out_known) HPS_MUST_CHECK;
/* The number of batches published so far; a lookup that begins now sees all of them. Thread-safe.
 */
uint64_t hps_update_sequence(const struct hps_version *version);
/* Set the times that hps_update_event_time_ms and hps_update_as_of_ms return, both in Unix ms; 0:
 * not known. event_time_ms: the newest event time of an applied update. as_of_ms: the time before
 * which every logged update is applied, by hps_clock_forward_ms. Updater thread. */
void hps_update_times_set(struct hps_version *version, int64_t event_time_ms, int64_t as_of_ms);
int64_t hps_update_event_time_ms(const struct hps_version *version); /* thread-safe */
int64_t hps_update_as_of_ms(const struct hps_version *version);      /* thread-safe */
/* The highest possible age of an update that the version lacks: the time since as_of_ms, in ms.
 * Returns -1 if as_of_ms is not known. Thread-safe. */
int64_t hps_update_age_ms(const struct hps_version *version);
/* Call fn with the key and value of each published position, in no order. fn must not call
 * functions of this header. Stops at the first status of fn that is not OK, and returns it.
 * Thread-safe. */
hps_status hps_update_positions(struct hps_version *version, hps_record_fn fn, void *ctx)
    HPS_MUST_CHECK;

/* Whether a record of a durable store is a position, as passed to hps_update_positions. *out_name
 * points into `key`. */
bool hps_update_is_position(const void *key, size_t key_size, const void **out_name,
                            size_t *out_name_size);

/* For version->updates_free; no effect if NULL. */
void hps_updates_free(struct hps_updates *updates);

#endif
