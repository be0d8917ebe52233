/* SPDX-License-Identifier: Apache-2.0
 *
 * A sub-table of a store (backends/store.h): updates of a store that other daemons write, too. All
 * of them read one log of updates, so each batch says which records of the log it is of, and the
 * daemon that comes first with those records writes them. Part of a shared store, unless it is one
 * that is only read.
 */
#ifndef HPS_BACKENDS_STORE_LOG_H
#define HPS_BACKENDS_STORE_LOG_H

#include "backends/store.h"
#include "base/hash.h"

/* How far a log of updates has been applied in one of its partitions. A shared store names a
 * partition by an id that is the same in every daemon: hps_log_partition. */
struct hps_log_position {
    uint64_t partition;
    int64_t offset; /* of the record that is next; at most 2^53 */
    int64_t start;  /* where the updates of the version begin there; -1: not known */
};

/* The id of a partition of a topic; `log` is the id of the log's cluster. Stable for ever. */
static inline uint64_t hps_log_partition(const char *log, const char *topic, int32_t number)
{
    uint64_t hash = hps_hash_bytes(log, strlen(log), 0);
    hash = hps_hash_bytes(topic, strlen(topic), hash);
    return hps_hash_bytes(&number, sizeof(number), hash);
}

/* The records [first, next) of a partition. */
struct hps_log_span {
    uint64_t partition;
    int64_t start; /* as above: a shard that does not name the partition is there */
    int64_t first;
    int64_t next;
};

/* All that the log says from first to next of each span, of each key the last write. */
struct hps_log_batch {
    const struct hps_write *writes; /* [n_writes] */
    const uint32_t *write_spans;    /* [n_writes] the span that the write comes from */
    uint32_t n_writes;
    const struct hps_log_span *spans; /* [n_spans] of partitions that differ */
    uint32_t n_spans;
    /* Row versions decide which write of a key counts: take the keys out instead of writing rows,
     * as that is right in any order. */
    bool erase_only;
};

/* What became of a batch, by the shards of a store: in each all of it is there, or nothing of it.
 * What is behind is not read from until apply has been given the records from behind on, or reset.
 */
struct hps_log_report {
    uint32_t n_applied; /* shards that took it */
    uint32_t n_had;     /* that had it from elsewhere */
    uint32_t n_gap;     /* that are behind where it begins, or have lost what they had */
    uint32_t n_failed;  /* that could not be reached, or refused */
};

/* All of one space by one thread at a time. */
struct hps_store_log_ops {
    /* The version is at these positions [n], and nowhere else: at first, and after a seek. A get
     * that begins from now on answers with no rows of earlier ones. Does not ask the store.
     * NO_MEMORY */
    hps_status (*positions_set)(struct hps_space *space, const struct hps_log_position *positions,
                                uint32_t n);
    /* How far all shards are: set the offset of each position, partition and start given, to the
     * lowest of any, which is the start where one does not name the partition. UNAVAILABLE: one
     * could not be asked; DATA_LOSS: one is not there */
    hps_status (*positions_get)(struct hps_space *space, const struct hps_call *call,
                                struct hps_log_position *positions, uint32_t n);
    /* The version is no longer what the log makes of its files: records were passed over. Until
     * positions_set get finds nothing, and insert takes nothing. Does not ask the store. */
    void (*leave)(struct hps_space *space);
    /* Apply what the log says between two positions to all that is there, as far as it is not there
     * yet: any daemon does it, the first one counts. Then the version is at the end of each span,
     * unless it was beyond, also where shards are behind, which out_report tells. So a batch may be
     * applied again, and shards that are behind are brought on by older ones.
     * call    deadline_us: 0: as long as the store allows for writes
     * error   the version stays where it is, for the batch to be applied again: NO_MEMORY; and
     * where nothing else has the rows EXHAUSTED: full, UNAVAILABLE, DATA_LOSS: shards are behind */
    hps_status (*apply)(struct hps_space *space, const struct hps_call *call,
                        const struct hps_log_batch *batch, struct hps_log_report *out_report);
    /* From where on the log must be applied again so that no shard is behind: per partition, the
     * lowest offset of any, at most `capacity` of them. *out_n 0: none is behind; RANGE: one is
     * that knows no position at all, or capacity is too small: reset is needed. UNAVAILABLE:
     * one could not be asked (out_n is of the others). */
    hps_status (*behind)(struct hps_space *space, const struct hps_call *call,
                         struct hps_log_position *out_positions, uint32_t capacity,
                         uint32_t *out_n);
    /* Empty every shard that is behind: it has no rows, and so no wrong ones, as of the version's
     * positions. out_report: n_applied were emptied, n_had are not behind, n_failed. PRECONDITION:
     * nothing else has the rows. */
    hps_status (*reset)(struct hps_space *space, const struct hps_call *call,
                        struct hps_log_report *out_report);
};

#endif
