/* SPDX-License-Identifier: Apache-2.0
 *
 * A sub-table of a store (backends/store.h): updates of a store that several daemons write. All of
 * them read the same log of updates. Each batch names the records of the log that it contains. The
 * first daemon that applies a batch writes it; later daemons find it applied. Every store with
 * HPS_STORE_SHARED has this sub-table.
 */
#ifndef HPS_BACKENDS_STORE_LOG_H
#define HPS_BACKENDS_STORE_LOG_H

#include "backends/store.h"
#include "base/hash.h"

/* How far one partition of a log of updates is applied. */
struct hps_log_position {
    uint64_t partition; /* hps_log_partition: the same in every daemon */
    int64_t offset;     /* of the next record to apply; at most 2^53 */
    int64_t start;      /* offset where the version's updates begin; -1: not known */
};

/* The id of partition `number` of `topic`. `log` is the id of the log's cluster. Ids are stored in
 * shared stores, so the hash must never change. */
static inline uint64_t hps_log_partition(const char *log, const char *topic, int32_t number)
{
    uint64_t hash = hps_hash_bytes(log, strlen(log), 0);
    hash = hps_hash_bytes(topic, strlen(topic), hash);
    return hps_hash_bytes(&number, sizeof(number), hash);
}

/* The records [first, next) of a partition. */
struct hps_log_span {
    uint64_t partition; /* hps_log_partition */
    /* Offset where the version's updates begin; -1: not known. A shard that has no position for the
     * partition counts as being at this offset. */
    int64_t start;
    int64_t first; /* offset */
    int64_t next;  /* offset */
};

/* All updates in the records of the spans. For each key, only the last write is included. */
struct hps_log_batch {
    const struct hps_write *writes; /* [n_writes] */
    const uint32_t *write_spans;    /* [n_writes] index of the span that the write comes from */
    uint32_t n_writes;
    const struct hps_log_span *spans; /* [n_spans] of different partitions */
    uint32_t n_spans;
    /* The store must erase the keys instead of writing their rows, which is correct in any order of
     * batches. Set for versions with row versions (cache/update/update.h). */
    bool erase_only;
};

/* Result of a batch, counted in shards of the store. Each shard has all of the batch or none of it.
 * A shard without it is behind the version, and get finds no rows there. There are two ways to fix
 * it: apply the log again from the offsets that `behind` returns, or empty the shard (`reset`). */
struct hps_log_report {
    uint32_t n_applied; /* shards that applied the batch now */
    uint32_t n_had;     /* shards that had the batch already */
    uint32_t n_gap;     /* shards that are at an offset before the batch, or have lost data */
    uint32_t n_failed;  /* shards that could not be reached, or whose server refused the batch */
};

/* Calls for one space are made by one thread at a time. */
struct hps_store_log_ops {
    /* Set the positions of the version to exactly positions[n]. To be called at the start and after
     * a seek. Later gets return no rows of shards at earlier positions. Does not access the
     * servers.
     * error   NO_MEMORY */
    hps_status (*positions_set)(struct hps_space *space, const struct hps_log_position *positions,
                                uint32_t n);
    /* Query the positions of all shards. The caller sets partition and start of each entry. The
     * call sets offset to the lowest offset of any shard. A shard that has no position for the
     * partition counts as being at `start`.
     * error   UNAVAILABLE: a shard did not answer; DATA_LOSS: a shard is missing */
    hps_status (*positions_get)(struct hps_space *space, const struct hps_call *call,
                                struct hps_log_position *positions, uint32_t n);
    /* Tell the store that the version has skipped records of the log, so that the store's rows no
     * longer match it. Until positions_set is called, get finds no rows and insert inserts none.
     * Does not access the servers. */
    void (*leave)(struct hps_space *space);
    /* Apply a batch to every shard that does not have it yet. OK: the version's positions are at
     * the end of each span, or beyond the end if they were beyond it before the call. Some shards
     * may be behind; out_report counts them. A get that begins after this call returns rows only of
     * shards that are at these positions or later, so every row that it returns has the batch's
     * updates. A batch may be applied again. Applying older batches again brings shards that are
     * behind up to date.
     * call    deadline_us 0: only the store's own limit for writes applies
     * error   NO_MEMORY. If no other store has the rows, also EXHAUSTED: a server is full;
     *         UNAVAILABLE: a shard was not reached; DATA_LOSS: a shard is behind. An error leaves
     *         the version's positions unchanged, and the caller must apply the batch again */
    hps_status (*apply)(struct hps_space *space, const struct hps_call *call,
                        const struct hps_log_batch *batch, struct hps_log_report *out_report);
    /* Find the offsets from which the log must be applied again, so that no shard is behind any
     * more. out_positions has an entry for each partition in which a shard is behind: the lowest
     * offset of these shards. *out_n is the number of entries, 0 if no shard is behind.
     * error   RANGE: a shard is missing or has no known position, or there are more than `capacity`
     *         entries; the caller should call reset. UNAVAILABLE: a shard did not answer;
     *         out_positions covers the other shards. NO_MEMORY */
    hps_status (*behind)(struct hps_space *space, const struct hps_call *call,
                         struct hps_log_position *out_positions, uint32_t capacity,
                         uint32_t *out_n);
    /* Empty every shard that is behind. An emptied shard has no rows and is at the version's
     * positions. out_report: n_applied: emptied shards; n_had: shards that were not behind;
     * n_failed: shards that did not answer or could not be emptied.
     * error   PRECONDITION: no other store has the rows; NO_MEMORY */
    hps_status (*reset)(struct hps_space *space, const struct hps_call *call,
                        struct hps_log_report *out_report);
};

#endif
