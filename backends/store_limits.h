/* SPDX-License-Identifier: Apache-2.0
 *
 * A sub-table of a store (backends/store.h): a store in memory with a budget, which evicts rows to
 * stay within it.
 */
#ifndef HPS_BACKENDS_STORE_LIMITS_H
#define HPS_BACKENDS_STORE_LIMITS_H

#include "backends/store.h"

struct hps_store_limits_ops {
    /* Rows of the table that were evicted, for rows of any version, since the last call. */
    uint64_t (*evictions_take)(struct hps_space *space, const struct hps_table *table);
    /* Make the index large enough for the rows that the tables had when the space was opened.
     * Putting these rows then needs no more memory than loading them.
     * error   EXHAUSTED: over budget; nothing has changed */
    hps_status (*reserve)(struct hps_space *space, struct hps_error *err);
    /* Say whether this version is the active one. A new space is not active. Rows of an active
     * space are never evicted for rows of an inactive one. An inactive space may lose its rows to
     * an active one. */
    void (*space_active)(struct hps_space *space, bool active);
};

#endif
