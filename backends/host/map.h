/* SPDX-License-Identifier: Apache-2.0
 *
 * The host tier: rows in a hash map in CPU memory, with one byte budget for all spaces. All
 * calls are thread-safe (backends/store.h). No call waits for a disk or a network.
 */
#ifndef HPS_BACKENDS_HOST_MAP_H
#define HPS_BACKENDS_HOST_MAP_H

#include "backends/store.h"
#include "base/epoch.h"

struct hps_host_map_options {
    uint64_t bytes_max; /* limit for the indexes and rows of all spaces together */
    /* Set if a store below has every row. An insertion (hps_store_ops.insert) then evicts rows of
     * its table that are used less. Loads and updates do not, but like insertions they may clear
     * another table (host_give_way in internal.h). If neither `evicts` nor `lossy` is set, the
     * store refuses rows that do not fit. */
    bool evicts;
    /* Set if no store below has the rows, and rows_max limits the tables. Loads, updates and
     * insertions to a table that has reached rows_max then evict other rows of the table, which are
     * lost. Rows that do not fit bytes_max are refused. Must not be set together with `evicts`. */
    bool lossy;
    /* Store rows of consecutive keys without an index (dense.h). Must not be set if rows_max limits
     * the tables. */
    bool dense;
    uint64_t rows_max;   /* maximum rows of each table; 0: only bytes_max limits the table */
    double target_ratio; /* a table that has reached rows_max evicts down to rows_max times this */
};

/* Open the store. The caller must close it. The only error is NO_MEMORY. */
hps_status hps_host_map_open_with(const struct hps_host_map_options *options,
                                  struct hps_store **out_store, struct hps_error *err)
    HPS_MUST_CHECK;
/* Open a host map that never evicts, with only bytes_max set. */
hps_status hps_host_map_open(uint64_t bytes_max, struct hps_store **out_store,
                             struct hps_error *err) HPS_MUST_CHECK;

/* The epoch that readers enter while they copy rows. Tests use it: they stay in the epoch to act as
 * a slow reader. */
struct hps_epoch *hps_host_map_epoch(struct hps_store *store);

#endif
