/* SPDX-License-Identifier: Apache-2.0
 *
 * A sub-table of a store (backends/store.h): a store in memory that is kept within limits, and lets
 * rows go for others where it has to.
 */
#ifndef HPS_BACKENDS_STORE_LIMITS_H
#define HPS_BACKENDS_STORE_LIMITS_H

#include "backends/store.h"

struct hps_store_limits_ops {
    /* Rows of the table that went for others, of any version, since this was last asked. */
    uint64_t (*evictions_take)(struct hps_space *space, const struct hps_table *table);
    /* Make the index large enough for the rows that the tables had when the space was opened:
     * putting them then needs no more than a load of them.
     * error   EXHAUSTED: over budget; nothing has changed */
    hps_status (*reserve)(struct hps_space *space, struct hps_error *err);
    /* Whether this version is the one that is served by default; new spaces are not. Rows of others
     * never push rows of such a space out, but give way to them. */
    void (*space_active)(struct hps_space *space, bool active);
};

#endif
