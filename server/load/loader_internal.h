/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files of the loader:
 *
 * - plan.c: memory and disk that a load needs
 * - loader.c: the passes over the files, which write rows to stores
 * - seed_shared.c: after a pass, copies rows from the durable store to a shared store above it
 *
 * refill.c, which fills the host map after a restart, does not use this header. Loader thread,
 * unless stated otherwise.
 */
#ifndef HPS_SERVER_LOAD_LOADER_INTERNAL_H
#define HPS_SERVER_LOAD_LOADER_INTERNAL_H

#include "backends/store_bulk.h"
#include "server/load/loader.h"

/* The store of a role during a load. */
struct loader_target {
    struct hps_store *store;     /* NULL: there is no store of this role */
    struct hps_space *space;     /* the version's space in the store; NULL: not open yet */
    struct hps_store_load *load; /* NULL: the pass writes no rows to this store */
};

/* A running load. */
struct loader_run {
    const struct hps_load_env *env;
    const struct hps_source *source;
    struct hps_version *version;
    struct hps_load_progress *progress;
    struct loader_target targets[HPS_ROLE_COUNT];
    uint64_t load_hash; /* hash of all keys and rows so far; becomes the load id */
    hps_key *keys;      /* [batch] */
    uint8_t *rows;      /* [batch][row_bytes of the table] */
    uint32_t batch;     /* rows that are written to the stores at a time */
};

/* ---- plan.c ---------------------------------------------------------------------------------- */

/* Open a reader of a table's files. The caller closes *out_reader. Any thread; may block.
 * error   as hps_row_reader_open; the text has the table's name */
hps_status loader_open_reader(const struct hps_load_env *env, const struct hps_source_table *table,
                              struct hps_row_reader **out_reader, struct hps_error *err)
    HPS_MUST_CHECK;

/* ---- loader.c -------------------------------------------------------------------------------- */

/* Set run->batch for rows of `table`, and replace run->keys and run->rows by arrays of that length.
 * error   NO_MEMORY */
hps_status loader_batch_alloc(struct loader_run *run, const struct hps_table *table,
                              struct hps_error *err) HPS_MUST_CHECK;
/* Open the version's space in the store of this role. There must be such a store. If the store is
 * shared, version->load_id must be set.
 * error   of the store */
hps_status loader_open_space(struct loader_run *run, enum hps_store_role role,
                             struct hps_error *err) HPS_MUST_CHECK;

/* ---- seed_shared.c --------------------------------------------------------------------------- */

/* Open the version's space in the shared store above the durable store, and copy rows from the
 * durable store to it. env->shared_seed_ratio is the share of the rows to copy. The durable store
 * must have all rows, and version->load_id must be set. Returns OK without copying if another
 * daemon has copied the rows already. Also returns OK if the shared store is unreachable or fails.
 * The shared store then starts empty.
 * error   CANCELLED; errors of the durable store */
hps_status loader_seed_shared(struct loader_run *run, struct hps_error *err) HPS_MUST_CHECK;

#endif
