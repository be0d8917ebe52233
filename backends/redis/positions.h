/* SPDX-License-Identifier: Apache-2.0
 *
 * A set of log positions, one per partition: the positions of a shard's rows, or the positions that
 * a version has reached. A set usually has a few to a few hundred positions, in the order in which
 * they were added. Not thread-safe.
 */
#ifndef HPS_BACKENDS_REDIS_POSITIONS_H
#define HPS_BACKENDS_REDIS_POSITIONS_H

#include "backends/store.h"
#include "backends/store_log.h"
#include "base/buf.h"

enum {
    HPS_REDIS_POSITION_BYTES = 16, /* stored form: u64 partition in host order, i64 BE offset */
    HPS_REDIS_SPAN_BYTES = 32      /* stored form of a span: partition, start, first, next */
};

struct hps_redis_position {
    uint64_t partition; /* hps_log_partition */
    int64_t offset;     /* of the next record to apply */
    /* A shard that has no position for the partition counts as being at this offset; -1: not
     * known. */
    int64_t start;
};

struct hps_redis_positions {
    struct hps_redis_position *items; /* [n] */
    uint32_t n;
    uint32_t capacity;
};

/* Frees the memory of the set, which is then empty. */
void hps_redis_positions_fini(struct hps_redis_positions *positions);
void hps_redis_positions_clear(struct hps_redis_positions *positions);
/* The position of a partition, valid until the set changes. NULL: the set lacks it. */
const struct hps_redis_position *hps_redis_positions_find(
    const struct hps_redis_positions *positions, uint64_t partition);
/* Make `to` a copy of `from`. NO_MEMORY: `to` is unchanged. */
hps_status hps_redis_positions_copy(struct hps_redis_positions *to,
                                    const struct hps_redis_positions *from) HPS_MUST_CHECK;
/* Raise the offset of `partition` to at least `offset`. If the set lacks the partition, add it.
 * `start` replaces the old start unless `start` is negative. The only error is NO_MEMORY. */
hps_status hps_redis_positions_raise(struct hps_redis_positions *positions, uint64_t partition,
                                     int64_t start, int64_t offset) HPS_MUST_CHECK;
/* Replace the set with the one whose stored form is in `data`. INVALID: malformed; NO_MEMORY */
hps_status hps_redis_positions_decode(struct hps_redis_positions *positions, const void *data,
                                      size_t size) HPS_MUST_CHECK;
/* Append the stored form of the set, or of spans, to `out`. */
hps_status hps_redis_positions_encode(const struct hps_redis_positions *positions,
                                      struct hps_buf *out) HPS_MUST_CHECK;
hps_status hps_redis_spans_encode(const struct hps_log_span *spans, uint32_t n, struct hps_buf *out)
    HPS_MUST_CHECK;

/* Whether `shard` is at or beyond the positions in `of` in every partition. */
bool hps_redis_positions_cover(const struct hps_redis_positions *shard,
                               const struct hps_redis_positions *of);
/* Whether `of` is at or beyond the positions in `shard` in every partition. */
bool hps_redis_positions_within(const struct hps_redis_positions *shard,
                                const struct hps_redis_positions *of);

#endif
