/* SPDX-License-Identifier: Apache-2.0
 *
 * A sub-table of a store (backends/store.h): loads. A load puts the rows of files into an empty
 * space, all at once. Every store that hpsd loads rows into has it.
 */
#ifndef HPS_BACKENDS_STORE_BULK_H
#define HPS_BACKENDS_STORE_BULK_H

#include "backends/store.h"

/* A load in progress; each store defines its own. */
struct hps_store_load;

/* A space has one load at a time, on one thread. Tables come in ascending order of id. The keys of
 * a table are unique and ascending (unsigned); otherwise INVALID. get sees nothing before commit
 * returns OK, and then all tables. */
struct hps_store_bulk_ops {
    /* Begin to load an empty space.
     * unit    bytes_expected: of all rows; 0: not known
     * error   PRECONDITION: the space is not empty; EXHAUSTED: the rows cannot fit, and the text
     *         has the needed and the available bytes */
    hps_status (*begin)(struct hps_space *space, uint64_t rows_expected, uint64_t bytes_expected,
                        struct hps_store_load **out_load, struct hps_error *err);
    /* shape   keys[n]; rows[n][row_bytes], borrowed */
    hps_status (*add)(struct hps_store_load *load, const struct hps_table *table,
                      const hps_key *keys, const uint8_t *rows, uint32_t n, struct hps_error *err);
    /* OK: all rows are visible and the load is freed. After any failure, also of commit, call
     * abort. */
    hps_status (*commit)(struct hps_store_load *load, struct hps_error *err);
    /* Free the load and leave the space empty. */
    void (*abort)(struct hps_store_load *load);
};

#endif
