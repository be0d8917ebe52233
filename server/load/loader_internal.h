/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the loader share: plan.c (what a load needs), loader.c (the pass from files
 * into stores), fill_redis.c (what a Redis above a store gets after that). refill.c, the refill
 * after a restart, is on its own. On the loader thread.
 */
#ifndef HPS_SERVER_LOAD_LOADER_INTERNAL_H
#define HPS_SERVER_LOAD_LOADER_INTERNAL_H

#include "backends/store_bulk.h"
#include "server/load/loader.h"

/* A load under way. */
struct loader_run {
    const struct hps_load_env *env;
    const struct hps_source *source;
    struct hps_version *version;
    struct hps_load_progress *progress;
    struct hps_space *host_space;
    struct hps_space *redis_space;
    struct hps_space *durable_space;
    struct hps_store_load *host;
    struct hps_store_load *redis; /* of a redis without a durable store */
    struct hps_store_load *durable;
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
/* Open run->redis_space; the load id is known. error: what the store says */
hps_status loader_open_redis(struct loader_run *run, struct hps_error *err) HPS_MUST_CHECK;

/* ---- fill_redis.c ---------------------------------------------------------------------------- */

/* Rows are in the durable store, the load id is known: open the Redis above it, and put its share
 * of them there. If it is away, or has the rows from another daemon, so be it: it has none that are
 * wrong. error: CANCELLED; what the durable store says */
hps_status loader_fill_redis(struct loader_run *run, struct hps_error *err) HPS_MUST_CHECK;

#endif
