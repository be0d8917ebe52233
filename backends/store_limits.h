/* SPDX-License-Identifier: Apache-2.0
 *
 * A sub-table of a store (backends/store.h): a store in memory with a budget, which evicts rows to
 * stay within it.
 */
#ifndef HPS_BACKENDS_STORE_LIMITS_H
#define HPS_BACKENDS_STORE_LIMITS_H

#include "backends/store.h"

struct hps_store_limits_ops {
    /* Returns the number of rows of this table evicted since the last call. */
    uint64_t (*evictions_take)(struct hps_space *space, const struct hps_table *table);
    /* Prepare for a refill of one table with hps_table.n_rows rows in ascending order of keys.
     * keys[n]: the first of them, or none. The store makes its index large enough, or begins a
     * range of consecutive keys, which needs no index. Without this call, the index would grow step
     * by step during a refill. A growth adds more slots than the rows need, so the refill would
     * need more memory than a load.
     * error   EXHAUSTED: over budget; nothing has changed */
    hps_status (*reserve)(struct hps_space *space, const struct hps_table *table,
                          const hps_key *keys, uint32_t n, struct hps_error *err);
    /* End the refill of all tables. failed: some rows are missing, so the store drops the ranges
     * that the refill has begun, and with them the other rows of their tables. */
    void (*refilled)(struct hps_space *space, bool failed);
    /* Returns the number of rows that are stored without an index, because their keys are
     * consecutive. 0: all rows of the table are in an index. */
    uint64_t (*dense_rows)(struct hps_space *space, const struct hps_table *table);
    /* Tell the store whether the version of this space is the active one. A new space is inactive.
     * The store never evicts rows of an active space to free memory for rows of an inactive one. It
     * may evict rows of an inactive space to free memory for an active one. */
    void (*space_active)(struct hps_space *space, bool active);
};

#endif
