/* SPDX-License-Identifier: Apache-2.0
 *
 * A sub-table of a store (backends/store.h): loads. A load puts the rows of files into an empty
 * space, all at once. Every store that hpsd loads rows into has this sub-table.
 */
#ifndef HPS_BACKENDS_STORE_BULK_H
#define HPS_BACKENDS_STORE_BULK_H

#include "backends/store.h"

/* A load in progress; each store defines its own. */
struct hps_store_load;

/* A space has one load at a time, on one thread. The caller adds tables in ascending order of id,
 * and the rows of a table in strictly ascending order of keys (unsigned). Otherwise `add` returns
 * INVALID. Before commit returns OK, get finds no row of the space. Afterwards it finds the rows of
 * all tables. */
struct hps_store_bulk_ops {
    /* Begin to load an empty space.
     * unit    rows_expected: number of all rows; bytes_expected: their total size; 0: not known
     * error   PRECONDITION: the space is not empty; EXHAUSTED: the rows cannot fit, and the text
     *         has the needed and the available bytes */
    hps_status (*begin)(struct hps_space *space, uint64_t rows_expected, uint64_t bytes_expected,
                        struct hps_store_load **out_load, struct hps_error *err);
    /* Add the next n rows of a table.
     * shape   keys[n]; rows[n][row_bytes], borrowed for the call */
    hps_status (*add)(struct hps_store_load *load, const struct hps_table *table,
                      const hps_key *keys, const uint8_t *rows, uint32_t n, struct hps_error *err);
    /* Make all rows visible. OK: the load is freed. After a failure of `add` or `commit`, the
     * caller must call `abort`. */
    hps_status (*commit)(struct hps_store_load *load, struct hps_error *err);
    /* Free the load and leave the space empty. */
    void (*abort)(struct hps_store_load *load);
};

#endif
