/* SPDX-License-Identifier: Apache-2.0
 *
 * A set of log positions, one per partition: those that the rows of a shard are of, or those that a
 * version has reached. A few to a few hundred, in the order in which they were added. Used by one
 * thread at a time.
 */
#ifndef HPS_BACKENDS_REDIS_POSITIONS_H
#define HPS_BACKENDS_REDIS_POSITIONS_H

#include "backends/store.h"
#include "backends/store_log.h"
#include "base/buf.h"

enum {
    HPS_REDIS_POSITION_BYTES = 16, /* as stored: u64 partition as it is in memory, i64 BE offset */
    HPS_REDIS_SPAN_BYTES = 32      /* the same with start, first and next */
};

struct hps_redis_position {
    uint64_t partition;
    int64_t offset;
    int64_t start; /* where one who does not name the partition is; -1: not known */
};

struct hps_redis_positions {
    struct hps_redis_position *items; /* [n] */
    uint32_t n;
    uint32_t capacity;
};

void hps_redis_positions_fini(struct hps_redis_positions *positions); /* leaves an empty one */
void hps_redis_positions_clear(struct hps_redis_positions *positions);
/* NULL: not named. Valid until the next change. */
const struct hps_redis_position *hps_redis_positions_find(
    const struct hps_redis_positions *positions, uint64_t partition);
/* `to` becomes what `from` is. NO_MEMORY: it is as before */
hps_status hps_redis_positions_copy(struct hps_redis_positions *to,
                                    const struct hps_redis_positions *from) HPS_MUST_CHECK;
/* The position of `partition` becomes at least `offset`; `start` is learnt if it is known.
 * NO_MEMORY */
hps_status hps_redis_positions_raise(struct hps_redis_positions *positions, uint64_t partition,
                                     int64_t start, int64_t offset) HPS_MUST_CHECK;
/* INVALID: not as stored. */
hps_status hps_redis_positions_decode(struct hps_redis_positions *positions, const void *data,
                                      size_t size) HPS_MUST_CHECK;
hps_status hps_redis_positions_encode(const struct hps_redis_positions *positions,
                                      struct hps_buf *out) HPS_MUST_CHECK;
hps_status hps_redis_spans_encode(const struct hps_log_span *spans, uint32_t n, struct hps_buf *out)
    HPS_MUST_CHECK;

/* All that `of` has applied, `shard` has too. */
bool hps_redis_positions_cover(const struct hps_redis_positions *shard,
                               const struct hps_redis_positions *of);
/* `shard` has applied nothing that `of` has not. */
bool hps_redis_positions_within(const struct hps_redis_positions *shard,
                                const struct hps_redis_positions *of);

#endif
