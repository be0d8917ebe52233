/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the loader share: plan.c (what a load needs), loader.c (the pass from files
 * into stores), seed_shared.c (what a shared store above another gets after that). refill.c, the
 * refill after a restart, is on its own. On the loader thread.
 */
#ifndef HPS_SERVER_LOAD_LOADER_INTERNAL_H
#define HPS_SERVER_LOAD_LOADER_INTERNAL_H

#include "backends/store_bulk.h"
#include "server/load/loader.h"

/* What a load does with the store of a role. */
struct loader_target {
    struct hps_store *store;     /* NULL: there is none */
    struct hps_space *space;     /* of the version, open; NULL: not yet */
    struct hps_store_load *load; /* under way; NULL: it gets no rows of this pass */
};

/* A load under way. */
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

/* Open the file of a table; the caller closes out_reader. error: what the reader says, with the
 * table's name. Any thread; may block. */
hps_status loader_open_reader(const struct hps_load_env *env, const struct hps_source_table *table,
                              struct hps_row_reader **out_reader, struct hps_error *err)
    HPS_MUST_CHECK;

/* ---- loader.c -------------------------------------------------------------------------------- */

/* Make run->keys and run->rows anew for rows of `table`, run->batch of them. NO_MEMORY */
hps_status loader_batch_room(struct loader_run *run, const struct hps_table *table,
                             struct hps_error *err) HPS_MUST_CHECK;
/* Open the space of the role's store, which there is; of a shared one the load id is known. error:
 * what the store says */
hps_status loader_open_space(struct loader_run *run, enum hps_store_role role,
                             struct hps_error *err) HPS_MUST_CHECK;

/* ---- seed_shared.c --------------------------------------------------------------------------- */

/* Rows are in the durable store, the load id is known: open the shared store above it, and put its
 * share of them there. One that is unreachable, or has the rows from another daemon, is left as it
 * is: no row in it is wrong. error: CANCELLED; what the durable store says */
hps_status loader_seed_shared(struct loader_run *run, struct hps_error *err) HPS_MUST_CHECK;

#endif
