/* SPDX-License-Identifier: Apache-2.0
 *
 * A sub-table of a store (backends/store.h): a store in memory that adds the rows of a bag where
 * they lie, instead of copying each one for the caller to add.
 */
#ifndef HPS_BACKENDS_STORE_POOL_H
#define HPS_BACKENDS_STORE_POOL_H

#include "backends/store.h"
#include "base/row_sum.h"

/* Bags of keys of one table; bag b has keys [offsets[b], offsets[b + 1]). All of it is the
 * caller's. */
struct hps_bags {
    const uint8_t *keys;      /* int64 LE, at any address */
    const uint8_t *weights;   /* float LE, one for each key, at any address; NULL: all are 1 */
    const uint32_t *offsets;  /* [n_bags + 1], never falling */
    enum hps_pooling pooling; /* any but NONE */
    struct hps_shape out;     /* row b: what bag b gives, as FP32, FP16 or BF16 */
    uint32_t *whole;          /* [(n_bags + 31) / 32] */
};

static inline bool hps_bags_whole(const struct hps_bags *bags, uint32_t bag)
{
    return (bags->whole[bag / 32] >> (bag % 32) & 1) != 0;
}

struct hps_store_pool_ops {
    /* Answer those of the bags [first, first + n) of which the store has every key (so, all that
     * are empty): `whole` says which, bit b % 32 of word b / 32 for bag b. Its words for these bags
     * are written whatever was in them; `out` has anything in the places of other bags. The values
     * are those of hps_row_sum_add, once for each key in their order, and hps_row_sum_end. A key
     * that is put meanwhile has its old row or the new one.
     *
     * shape   first: a multiple of 32; n: too, unless the last bag is among them
     * thread  any; pieces of the same bags by several threads at once
     * error   DEADLINE, CANCELLED, NO_MEMORY: no bit of these bags is set
     */
    hps_status (*bags)(struct hps_space *space, const struct hps_call *call,
                       const struct hps_table *table, const struct hps_bags *bags, uint32_t first,
                       uint32_t n);
};

#endif
