/* SPDX-License-Identifier: Apache-2.0
 *
 * A sub-table of a store (backends/store.h): updates of a store that several daemons write. All of
 * them read the same log of updates. Each batch says which records of the log it has. The first
 * daemon that applies these records writes them; later daemons find them applied. Every store with
 * HPS_STORE_SHARED has this sub-table.
 */
#ifndef HPS_BACKENDS_STORE_LOG_H
#define HPS_BACKENDS_STORE_LOG_H

#include "backends/store.h"
#include "base/hash.h"

/* How far one partition of a log of updates is applied. A shared store identifies a partition by an
 * id that is the same in every daemon (hps_log_partition). */
struct hps_log_position {
    uint64_t partition;
    int64_t offset; /* of the next record; at most 2^53 */
    int64_t start;  /* where updates of the version begin in this partition; -1: not known */
};

/* The id of a partition of a topic; `log` is the id of the log's cluster. Stored in shared stores,
 * so the hash must never change. */
static inline uint64_t hps_log_partition(const char *log, const char *topic, int32_t number)
{
    uint64_t hash = hps_hash_bytes(log, strlen(log), 0);
    hash = hps_hash_bytes(topic, strlen(topic), hash);
    return hps_hash_bytes(&number, sizeof(number), hash);
}

/* The records [first, next) of a partition. */
struct hps_log_span {
    uint64_t partition;
    int64_t start; /* as above; a shard that does not name the partition is at this offset */
    int64_t first;
    int64_t next;
};

/* All updates of the records [first, next) of each span; for each key only the last write. */
struct hps_log_batch {
    const struct hps_write *writes; /* [n_writes] */
    const uint32_t *write_spans;    /* [n_writes] index of the span that the write comes from */
    uint32_t n_writes;
    const struct hps_log_span *spans; /* [n_spans] of different partitions */
    uint32_t n_spans;
    /* Set if row versions decide which write of a key wins. The store then erases the keys instead
     * of writing rows, which is correct in any order. */
    bool erase_only;
};

/* Result of a batch, counted in shards of the store. Each shard has all of the batch or none of it.
 * get does not read a shard that is behind, until apply has brought it up to date from behind(), or
 * reset has emptied it. */
struct hps_log_report {
    uint32_t n_applied; /* shards that took the batch */
    uint32_t n_had;     /* shards that had it already, from another daemon */
    uint32_t n_gap;     /* shards that are behind the start of the batch, or have lost data */
    uint32_t n_failed;  /* shards that could not be reached, or refused */
};

/* Calls for one space are made by one thread at a time. */
struct hps_store_log_ops {
    /* Set the positions of the version to exactly these [n]: at first, and after a seek. Later gets
     * return no rows of earlier positions. Does not access the servers.
     * error   NO_MEMORY */
    hps_status (*positions_set)(struct hps_space *space, const struct hps_log_position *positions,
                                uint32_t n);
    /* Ask all shards for their positions. The caller sets partition and start of each entry. The
     * call sets offset to the lowest offset of any shard; a shard that does not name the partition
     * counts as at `start`.
     * error   UNAVAILABLE: a shard did not answer; DATA_LOSS: a shard is missing */
    hps_status (*positions_get)(struct hps_space *space, const struct hps_call *call,
                                struct hps_log_position *positions, uint32_t n);
    /* The version no longer matches the log, because it skipped records. Until positions_set is
     * called, get finds nothing and insert takes nothing. Does not access the servers. */
    void (*leave)(struct hps_space *space);
    /* Apply a batch to every shard that does not have it yet. Any daemon may apply it; the first
     * one writes. On OK the version is at the end of each span, or stays beyond it, even if some
     * shards are behind; out_report counts those. A batch may be applied again. Older batches bring
     * shards that are behind up to date.
     * call    deadline_us 0: the store's limit for writes
     * error   the version stays where it is; apply the batch again. NO_MEMORY. If no other store
     *         has the rows also EXHAUSTED: a server is full; UNAVAILABLE; DATA_LOSS: shards are
     *         behind */
    hps_status (*apply)(struct hps_space *space, const struct hps_call *call,
                        const struct hps_log_batch *batch, struct hps_log_report *out_report);
    /* Find the offsets from which the log must be applied again so that no shard is behind. For
     * each partition, out_positions has the lowest offset of any shard. *out_n is 0 if no shard is
     * behind.
     * error   RANGE: a shard has no known position, or there are more than `capacity` entries; call
     *         reset. UNAVAILABLE: a shard did not answer; out_positions covers the rest. NO_MEMORY
     */
    hps_status (*behind)(struct hps_space *space, const struct hps_call *call,
                         struct hps_log_position *out_positions, uint32_t capacity,
                         uint32_t *out_n);
    /* Empty every shard that is behind. It then has no rows, and is at the version's positions.
     * out_report: n_applied shards were emptied, n_had are not behind, n_failed.
     * error   PRECONDITION: no other store has the rows */
    hps_status (*reset)(struct hps_space *space, const struct hps_call *call,
                        struct hps_log_report *out_report);
};

#endif
