/* SPDX-License-Identifier: Apache-2.0
 *
 * A sub-table of a store (backends/store.h): rows of files, put into an empty space all at once.
 * Part of every store whose rows hpsd loads itself.
 */
#ifndef HPS_BACKENDS_STORE_BULK_H
#define HPS_BACKENDS_STORE_BULK_H

#include "backends/store.h"

/* A load that is under way: each store has its own. */
struct hps_store_load;

/* One load of a space at a time, by one thread: tables in ascending id, keys of a table ascending
 * (unsigned) and unique, else INVALID. Nothing is visible to get before commit returns OK, then all
 * tables are at once. */
struct hps_store_bulk_ops {
    /* Begin the load of an empty space (else PRECONDITION).
     * unit    bytes_expected: of all rows, 0: not known
     * error   EXHAUSTED: they cannot fit; the text has the needed and the available bytes */
    hps_status (*begin)(struct hps_space *space, uint64_t rows_expected, uint64_t bytes_expected,
                        struct hps_store_load **out_load, struct hps_error *err);
    /* shape   keys[n]; rows[n][row_bytes], borrowed */
    hps_status (*add)(struct hps_store_load *load, const struct hps_table *table,
                      const hps_key *keys, const uint8_t *rows, uint32_t n, struct hps_error *err);
    /* OK: the load is freed. After any failure, of commit too, abort is still to be called. */
    hps_status (*commit)(struct hps_store_load *load, struct hps_error *err);
    /* Free the load and leave the space empty. */
    void (*abort)(struct hps_store_load *load);
};

#endif
