/* SPDX-License-Identifier: Apache-2.0
 *
 * A sub-table of a store (backends/store.h): pooled rows. A store in memory adds the rows of a bag
 * in place, without copying them to the caller first.
 */
#ifndef HPS_BACKENDS_STORE_POOL_H
#define HPS_BACKENDS_STORE_POOL_H

#include "backends/store.h"
#include "base/row_sum.h"

/* Bags of keys of one table. Bag b has the keys [offsets[b], offsets[b + 1]). The caller owns all
 * arrays. */
struct hps_bags {
    const uint8_t *keys;      /* int64 LE, unaligned */
    const uint8_t *weights;   /* float LE, one for each key, unaligned; NULL: all are 1 */
    const uint32_t *offsets;  /* [n_bags + 1] never decreasing */
    enum hps_pooling pooling; /* not NONE */
    struct hps_shape out;     /* row b: the pooled row of bag b, as FP32, FP16 or BF16 */
    /* [(n_bags + 31) / 32] result: bit b % 32 of word b / 32 is set if bag b was pooled. */
    uint32_t *whole;
};

/* Whether the bag was pooled. */
static inline bool hps_bags_whole(const struct hps_bags *bags, uint32_t bag)
{
    return (bags->whole[bag / 32] >> (bag % 32) & 1) != 0;
}

struct hps_store_pool_ops {
    /* Pool each bag of [first, first + n) if the store has all its keys. This includes bags without
     * keys. The call writes the row of the bag to `out` and sets its bit in `whole`. It clears the
     * bits of the other bags in the range; their rows in `out` have undefined content. The values
     * are the result of hps_row_sum_add for each key in order, then hps_row_sum_end. If an update
     * replaces a row during the call, the call adds the old or the new row.
     *
     * shape   first: a multiple of 32; n: a multiple of 32, unless the range includes the last bag
     * thread  any; several threads may pool different ranges of the same bags
     * error   DEADLINE, CANCELLED, NO_MEMORY: no bit of the range is set */
    hps_status (*bags)(struct hps_space *space, const struct hps_call *call,
                       const struct hps_table *table, const struct hps_bags *bags, uint32_t first,
                       uint32_t n);
};

#endif
