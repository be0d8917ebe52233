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
    /* Make the index of each table large enough for the number of rows that the table had when the
     * space was opened (hps_table.n_rows). Without this call, the index would grow step by step
     * during a refill. A growth adds more slots than the rows need, so the refill would need more
     * memory than a load, which makes the index for the known number of rows at once.
     * error   EXHAUSTED: over budget; nothing has changed */
    hps_status (*reserve)(struct hps_space *space, struct hps_error *err);
    /* Tell the store whether the version of this space is the active one. A new space is inactive.
     * The store never evicts rows of an active space to free memory for rows of an inactive one. It
     * may evict rows of an inactive space to free memory for an active one. */
    void (*space_active)(struct hps_space *space, bool active);
};

#endif
