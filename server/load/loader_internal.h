/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files of the loader:
 *
 * - plan.c: memory and disk that a load needs
 * - loader.c: the pass from files into stores
 * - seed_shared.c: filling a shared store above another afterwards
 *
 * refill.c, the refill after a restart, is separate. On the loader thread.
 */
#ifndef HPS_SERVER_LOAD_LOADER_INTERNAL_H
#define HPS_SERVER_LOAD_LOADER_INTERNAL_H

#include "backends/store_bulk.h"
#include "server/load/loader.h"

/* The store of a role during a load. */
struct loader_target {
    struct hps_store *store;     /* NULL: none */
    struct hps_space *space;     /* open space of the version; NULL: not yet open */
    struct hps_store_load *load; /* NULL: it gets no rows in this pass */
};

/* A running load. */
struct loader_run {
    const struct hps_load_env *env;
    const struct hps_source *source;
    struct hps_version *version;
    struct hps_load_progress *progress;
    struct loader_target targets[HPS_ROLE_COUNT];
    uint64_t load_hash;
    hps_key *keys; /* [batch] */
    uint8_t *rows; /* [batch][row_bytes] */
    uint32_t batch;
};

/* ---- plan.c ---------------------------------------------------------------------------------- */

/* Open the file of a table. The caller closes out_reader. error: of the reader, with the table's
 * name. Any thread; may block. */
hps_status loader_open_reader(const struct hps_load_env *env, const struct hps_source_table *table,
                              struct hps_row_reader **out_reader, struct hps_error *err)
    HPS_MUST_CHECK;

/* ---- loader.c -------------------------------------------------------------------------------- */

/* Allocate run->keys and run->rows for run->batch rows of `table`; frees the previous ones.
 * NO_MEMORY */
hps_status loader_batch_room(struct loader_run *run, const struct hps_table *table,
                             struct hps_error *err) HPS_MUST_CHECK;
/* Open a space in the role's store, which must exist. For a shared store the load id must be known.
 * error: of the store */
hps_status loader_open_space(struct loader_run *run, enum hps_store_role role,
                             struct hps_error *err) HPS_MUST_CHECK;

/* ---- seed_shared.c --------------------------------------------------------------------------- */

/* Open the space in the shared store above the durable one, and give it its share of the rows. The
 * durable store has all rows, and the load id is known. A shared store that is unreachable, or has
 * the rows from another daemon, is left unchanged: no row in it is wrong. error: CANCELLED; of the
 * durable store */
hps_status loader_seed_shared(struct loader_run *run, struct hps_error *err) HPS_MUST_CHECK;

#endif
