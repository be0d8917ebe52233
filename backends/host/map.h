/* SPDX-License-Identifier: Apache-2.0
 *
 * The host tier: rows in a hash map in CPU memory, within one byte budget for all its spaces.
 * Threads: as backends/store.h says; no call waits for a disk or a network.
 */
#ifndef HPS_BACKENDS_HOST_MAP_H
#define HPS_BACKENDS_HOST_MAP_H

#include "backends/store.h"
#include "base/epoch.h"

struct hps_host_map_options {
    uint64_t bytes_max; /* index and rows of all spaces together */
    /* A store below has every row: what is asked for pushes out what is not. Otherwise rows that
     * find no room are refused. */
    bool evicts;
    /* No store below has the rows, and yet a table drops some when it has rows_max: loads and
     * updates push out, too. For want of bytes it refuses, as one that never evicts. */
    bool lossy;
    uint64_t rows_max;   /* of each table that evicts or is lossy, 0: only bytes_max counts */
    double target_ratio; /* of rows_max: down to it a table evicts that has reached rows_max */
};

/* out_store set only on success; close by ops. */
hps_status hps_host_map_open_with(const struct hps_host_map_options *options,
                                  struct hps_store **out_store, struct hps_error *err)
    HPS_MUST_CHECK;
/* A host map that never evicts. */
hps_status hps_host_map_open(uint64_t bytes_max, struct hps_store **out_store,
                             struct hps_error *err) HPS_MUST_CHECK;

/* What its readers are inside of while they copy rows: for tests, which stay there. */
struct hps_epoch *hps_host_map_epoch(struct hps_store *store);

#endif
