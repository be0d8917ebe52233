/* SPDX-License-Identifier: Apache-2.0
 *
 * A set of log positions, one per partition: the positions of a shard's rows, or the positions that
 * a version has reached. A few to a few hundred, in the order in which they were added. Not
 * thread-safe.
 */
#ifndef HPS_BACKENDS_REDIS_POSITIONS_H
#define HPS_BACKENDS_REDIS_POSITIONS_H

#include "backends/store.h"
#include "backends/store_log.h"
#include "base/buf.h"

enum {
    HPS_REDIS_POSITION_BYTES = 16, /* stored form: u64 partition in memory order, i64 BE offset */
    HPS_REDIS_SPAN_BYTES = 32      /* stored form of a span: partition, start, first, next */
};

struct hps_redis_position {
    uint64_t partition;
    int64_t offset;
    int64_t start; /* position of a shard that does not name the partition; -1: not known */
};

struct hps_redis_positions {
    struct hps_redis_position *items; /* [n] */
    uint32_t n;
    uint32_t capacity;
};

void hps_redis_positions_fini(struct hps_redis_positions *positions); /* leaves an empty set */
void hps_redis_positions_clear(struct hps_redis_positions *positions);
/* NULL: the set does not name the partition. Valid until the next change. */
const struct hps_redis_position *hps_redis_positions_find(
    const struct hps_redis_positions *positions, uint64_t partition);
/* Make `to` a copy of `from`. NO_MEMORY: `to` is unchanged. */
hps_status hps_redis_positions_copy(struct hps_redis_positions *to,
                                    const struct hps_redis_positions *from) HPS_MUST_CHECK;
/* Raise the position of `partition` to at least `offset`, adding it if it is not named. A start
 * that is not negative replaces the old one. NO_MEMORY */
hps_status hps_redis_positions_raise(struct hps_redis_positions *positions, uint64_t partition,
                                     int64_t start, int64_t offset) HPS_MUST_CHECK;
/* Replace the set by its stored form. INVALID: malformed; NO_MEMORY */
hps_status hps_redis_positions_decode(struct hps_redis_positions *positions, const void *data,
                                      size_t size) HPS_MUST_CHECK;
hps_status hps_redis_positions_encode(const struct hps_redis_positions *positions,
                                      struct hps_buf *out) HPS_MUST_CHECK;
hps_status hps_redis_spans_encode(const struct hps_log_span *spans, uint32_t n, struct hps_buf *out)
    HPS_MUST_CHECK;

/* True if `shard` has applied everything that `of` has. */
bool hps_redis_positions_cover(const struct hps_redis_positions *shard,
                               const struct hps_redis_positions *of);
/* True if `of` has applied everything that `shard` has. */
bool hps_redis_positions_within(const struct hps_redis_positions *shard,
                                const struct hps_redis_positions *of);

#endif
