/* SPDX-License-Identifier: Apache-2.0
 *
 * The load of one version: sort, write, ingest. On the loader thread. What it needs is planned
 * before (plan.c); what a shared store above another gets comes after it (seed_shared.c).
 */
#include "server/load/loader.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/heap.h"
#include "base/rows/rowsort.h"
#include "server/load/loader_internal.h"

enum { LOAD_BATCH_BYTES = 1 << 20 };

struct hps_space_id hps_load_space_id(const struct hps_version *version)
{
    return (struct hps_space_id){
        .model = version->model,
        .version = version->number,
        .tables = version->tables,
        .n_tables = version->n_tables,
        .load_id = version->load_id == NULL ? 0 : strtoull(version->load_id, NULL, 16)};
}

/* ---- stores ---------------------------------------------------------------------------------- */

static hps_status begin_store(struct loader_run *run, struct hps_store *store,
                              struct hps_space **out_space, struct hps_store_load **out_load,
                              const struct hps_load_plan *plan, struct hps_error *err)
{
    const struct hps_space_id id = hps_load_space_id(run->version);
    struct hps_space *space = NULL;
    hps_status status = store->ops->space_open(store, &id, &space, err);
    if (status != HPS_OK) {
        return status;
    }
    *out_space = space;
    return store->ops->bulk->begin(space, plan->n_rows, plan->row_bytes, out_load, err);
}

static hps_status begin_stores(struct loader_run *run, const struct hps_load_plan *plan,
                               struct hps_error *err)
{
    const struct hps_load_env *env = run->env;
    if (env->durable != NULL) {
        hps_status status =
            begin_store(run, env->durable, &run->durable_space, &run->durable, plan, err);
        if (status != HPS_OK) {
            return status;
        }
        if (plan->disk_bytes_needed > plan->disk_bytes_available) {
            return hps_error_set(err, HPS_EXHAUSTED,
                                 "disk: %" PRIu64 " bytes needed, %" PRIu64 " available",
                                 plan->disk_bytes_needed, plan->disk_bytes_available);
        }
    }
    if (env->host == NULL) {
        return HPS_OK;
    }
    hps_status status = HPS_EXHAUSTED;
    bool lowest = hps_load_env_lowest(env) == env->host;
    /* Rows of a shared store without a durable one may have had updates: no file has those. */
    bool fits = env->durable != NULL && plan->host_bytes_needed <= plan->host_bytes_available;
    if (lowest || fits) {
        status = begin_store(run, env->host, &run->host_space, &run->host, plan, err);
    }
    if (status != HPS_EXHAUSTED || lowest) {
        return status;
    }
    /* Not all rows fit: the map starts empty and takes rows as they are asked for. */
    if (run->host_space != NULL) {
        return HPS_OK;
    }
    const struct hps_space_id id = hps_load_space_id(run->version);
    return env->host->ops->space_open(env->host, &id, &run->host_space, err);
}

static hps_status commit_stores(struct loader_run *run, struct hps_error *err)
{
    atomic_store(&run->progress->stage, "ingest");
    if (run->durable != NULL) {
        struct hps_store_load *load = run->durable;
        hps_status status = run->env->durable->ops->bulk->commit(load, err);
        if (status != HPS_OK) {
            return status;
        }
        run->durable = NULL;
    }
    if (run->shared != NULL) {
        hps_status status = run->env->redis->ops->bulk->commit(run->shared, err);
        if (status != HPS_OK) {
            return status;
        }
        run->shared = NULL;
    }
    if (run->host != NULL) {
        hps_status status = run->env->host->ops->bulk->commit(run->host, err);
        if (status == HPS_EXHAUSTED && run->env->durable != NULL) {
            run->env->host->ops->bulk->abort(
                run->host); /* as if it had had no room from the start */
        } else if (status != HPS_OK) {
            return status;
        } else {
            atomic_store(&run->version->host_complete, true);
        }
        run->host = NULL;
    }
    return HPS_OK;
}

void hps_load_give_up(const struct hps_load_env *env, struct hps_space *space)
{
    if (space == NULL) {
        return;
    }
    const struct hps_store_ops *ops = space->store->ops;
    if (space->store == env->redis && env->durable == NULL) {
        ops->space_close(space);
    } else {
        hps_ignore(ops->space_drop(space, NULL)); /* what is left is removed later */
    }
}

static void undo(struct loader_run *run)
{
    if (run->durable != NULL) {
        run->env->durable->ops->bulk->abort(run->durable);
    }
    if (run->shared != NULL) {
        run->env->redis->ops->bulk->abort(run->shared);
    }
    if (run->host != NULL) {
        run->env->host->ops->bulk->abort(run->host);
    }
    hps_load_give_up(run->env, run->durable_space);
    hps_load_give_up(run->env, run->shared_space);
    hps_load_give_up(run->env, run->host_space);
}

hps_status loader_open_shared(struct loader_run *run, struct hps_error *err)
{
    const struct hps_space_id id = hps_load_space_id(run->version);
    struct hps_store *redis = run->env->redis;
    return redis->ops->space_open(redis, &id, &run->shared_space, err);
}

/* ---- tables ---------------------------------------------------------------------------------- */

static hps_status write_batch(struct loader_run *run, const struct hps_table *table, uint32_t n,
                              struct hps_error *err)
{
    hps_status status = HPS_OK;
    if (run->durable != NULL) {
        status =
            run->env->durable->ops->bulk->add(run->durable, table, run->keys, run->rows, n, err);
    }
    if (status == HPS_OK && run->shared != NULL) {
        status = run->env->redis->ops->bulk->add(run->shared, table, run->keys, run->rows, n, err);
    }
    if (status == HPS_OK && run->host != NULL) {
        status = run->env->host->ops->bulk->add(run->host, table, run->keys, run->rows, n, err);
        if (status == HPS_EXHAUSTED && run->durable != NULL) {
            run->env->host->ops->bulk->abort(run->host);
            run->host = NULL;
            status = HPS_OK;
        }
    }
    if (status != HPS_OK) {
        return status;
    }
    uint64_t bytes = (uint64_t)n * table->row_bytes;
    run->load_hash = hps_hash_bytes(run->keys, n * sizeof(*run->keys), run->load_hash);
    run->load_hash = hps_hash_bytes(run->rows, bytes, run->load_hash);
    atomic_fetch_add(&run->progress->rows_done, n);
    atomic_fetch_add(&run->progress->bytes_done, bytes);
    return HPS_OK;
}

static hps_status write_sorted(struct loader_run *run, struct hps_rowsort *sort,
                               struct hps_table *table, struct hps_error *err)
{
    uint64_t n_rows = 0;
    for (;;) {
        size_t n = 0;
        hps_status status = hps_rowsort_next(sort, run->batch, run->keys, run->rows, &n, err);
        if (status == HPS_OK && n > 0) {
            status = write_batch(run, table, (uint32_t)n, err);
        }
        if (status != HPS_OK) {
            return status;
        }
        if (n == 0) {
            break;
        }
        n_rows += n;
    }
    struct hps_rowsort_progress done;
    hps_rowsort_progress_get(sort, &done);
    run->version->duplicate_keys += done.n_duplicates;
    atomic_fetch_add(&run->progress->rows_done, done.n_duplicates);
    table->n_rows = n_rows;
    return HPS_OK;
}

hps_status loader_batch_room(struct loader_run *run, const struct hps_table *table,
                             struct hps_error *err)
{
    hps_free(run->keys);
    hps_free(run->rows);
    run->batch = LOAD_BATCH_BYTES / table->row_bytes + 1;
    run->keys = hps_calloc(run->batch, sizeof(*run->keys));
    run->rows = hps_alloc((size_t)run->batch * table->row_bytes);
    if (run->keys == NULL || run->rows == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for %u rows", run->batch);
    }
    return HPS_OK;
}

static hps_status load_table(struct loader_run *run, uint32_t i, struct hps_error *err)
{
    struct hps_table *table = &run->version->tables[i];
    const struct hps_source_table *from = &run->source->tables[i];
    struct hps_row_reader *reader = NULL;
    struct hps_rowsort *sort = NULL;
    atomic_store(&run->progress->table, i);
    hps_status status = loader_batch_room(run, table, err);
    if (status == HPS_OK && run->source->dir != NULL) {
        status = hps_manifest_check_files(&run->source->manifest, table->name, run->source->dir,
                                          &run->progress->cancel, err);
    }
    if (status == HPS_OK) {
        status = loader_open_reader(run->env, from, &reader, err);
    }
    if (status != HPS_OK) {
        goto out;
    }
    const struct hps_row_desc *desc = hps_row_reader_desc(reader);
    if (desc->dim != table->dim || desc->dtype != table->dtype) {
        status = hps_error_set(err, HPS_PRECONDITION, "%s changed since the load began",
                               from->files.path);
        goto out;
    }
    const struct hps_rowsort_options options = {.row_bytes = table->row_bytes,
                                                .memory_bytes = run->env->memory_bytes,
                                                .n_rows_hint = desc->n_rows,
                                                .dir = run->env->spill_dir,
                                                .disk_free_bytes_min =
                                                    run->env->disk_free_min_bytes,
                                                .cancel = &run->progress->cancel};
    atomic_store(&run->progress->stage, "sort");
    status = hps_rowsort_new(&options, &sort, err);
    if (status == HPS_OK) {
        status = hps_rowsort_take(sort, reader, err);
    }
    if (status == HPS_OK) {
        status = hps_rowsort_finish(sort, err);
    }
    if (status == HPS_OK) {
        atomic_store(&run->progress->stage, "write");
        status = write_sorted(run, sort, table, err);
    }
    if (status == HPS_OK) { /* rows of two trainings are worse than no rows */
        status = hps_source_check_unchanged(from, err);
    }
    if (status != HPS_OK) {
        status = hps_error_prefix(err, status, "table \"%s\"", table->name);
    }
out:
    hps_rowsort_free(sort);
    hps_row_reader_close(reader);
    return status;
}

static hps_status load_tables(struct loader_run *run, struct hps_error *err)
{
    hps_status status = HPS_OK;
    run->load_hash = 0;
    run->version->duplicate_keys = 0;
    atomic_store(&run->progress->rows_done, 0);
    atomic_store(&run->progress->bytes_done, 0);
    for (uint32_t i = 0; status == HPS_OK && i < run->version->n_tables; i++) {
        status = load_table(run, i, err);
    }
    return status;
}

/* ---- the version ----------------------------------------------------------------------------- */

static hps_status set_load_id(struct loader_run *run, struct hps_error *err)
{
    char id[17];
    snprintf(id, sizeof(id), "%016" PRIx64, run->load_hash);
    hps_free(run->version->load_id);
    run->version->load_id = hps_strdup(id);
    return run->version->load_id != NULL
               ? HPS_OK
               : hps_error_set(err, HPS_NO_MEMORY, "no memory for the load id");
}

static void add_tier(struct hps_version *version, struct hps_space *space,
                     struct hps_breaker *breaker)
{
    if (space != NULL) {
        version->breakers[version->n_tiers] = breaker;
        version->tiers[version->n_tiers++] = space;
    }
}

static void finish_version(struct loader_run *run)
{
    struct hps_version *version = run->version;
    add_tier(version, run->host_space, NULL);
    add_tier(version, run->shared_space, NULL); /* it knows by itself which of its servers are up */
    add_tier(version, run->durable_space, run->env->durable_breaker);
    version->shared_takes_missed = run->env->shared_takes_missed;
    version->loaded_unix_ms = hps_clock_wall_ms();
}

/* ---- a durable store, or the host map alone -------------------------------------------------- */

static hps_status load_durable(struct loader_run *run, const struct hps_load_plan *plan,
                               struct hps_error *err)
{
    hps_status status = begin_stores(run, plan, err);
    if (status == HPS_OK) {
        status = load_tables(run, err);
    }
    if (status == HPS_OK) {
        status = commit_stores(run, err);
    }
    if (status == HPS_OK) {
        if (plan->start_hash != 0) {
            run->load_hash =
                hps_hash_bytes(&plan->start_hash, sizeof(plan->start_hash), run->load_hash);
        }
        status = set_load_id(run, err);
    }
    return status == HPS_OK && run->env->redis != NULL ? loader_seed_shared(run, err) : status;
}

/* ---- a shared store without a durable one ---------------------------------------------------- */

/* Its shards are named by the load id: the files are read a first time for that. If it has the
 * rows from an earlier load, or another daemon's, those are used. */
static hps_status load_shared(struct loader_run *run, const struct hps_load_plan *plan,
                              struct hps_error *err)
{
    const struct hps_store_ops *ops = run->env->redis->ops;
    const char *print = run->version->fingerprint;
    hps_status status = begin_stores(run, plan, err);
    if (ops->bulk == NULL) { /* another program writes its rows */
        run->load_hash = print == NULL ? 0 : hps_hash_bytes(print, strlen(print), 0);
    } else if (status == HPS_OK) {
        status = load_tables(run, err);
    }
    if (status == HPS_OK) {
        status = set_load_id(run, err);
    }
    if (status == HPS_OK) {
        status = loader_open_shared(run, err);
    }
    if (status != HPS_OK || ops->bulk == NULL) {
        return status;
    }
    uint64_t load_hash = run->load_hash;
    status = ops->bulk->begin(run->shared_space, plan->n_rows, plan->row_bytes, &run->shared, err);
    if (status == HPS_PRECONDITION) {
        return HPS_OK;
    }
    if (status == HPS_OK) {
        status = load_tables(run, err);
    }
    if (status == HPS_OK && run->load_hash != load_hash) {
        status = hps_error_set(err, HPS_PRECONDITION, "the files changed since the load began");
    }
    return status == HPS_OK ? commit_stores(run, err) : status;
}

/* ---- either ---------------------------------------------------------------------------------- */

hps_status hps_load_run(const struct hps_load_env *env, const struct hps_source *source,
                        const struct hps_load_plan *plan, struct hps_version *version,
                        struct hps_load_progress *progress, struct hps_error *err)
{
    struct loader_run run = {
        .env = env, .source = source, .version = version, .progress = progress};
    bool shared = env->redis != NULL && env->durable == NULL;
    atomic_store(&progress->started_us, hps_clock_us());
    atomic_store(&progress->rows_total, plan->n_rows);
    atomic_store(&progress->bytes_total, plan->row_bytes);
    hps_status status = shared ? load_shared(&run, plan, err) : load_durable(&run, plan, err);
    if (status != HPS_OK) {
        undo(&run);
    } else {
        finish_version(&run);
        atomic_store(&progress->stage, "done");
    }
    hps_free(run.keys);
    hps_free(run.rows);
    return status;
}

/* ---- after a restart ------------------------------------------------------------------------- */

hps_status hps_load_open_spaces(const struct hps_load_env *env, struct hps_version *version,
                                struct hps_error *err)
{
    const struct hps_space_id id = hps_load_space_id(version);
    struct hps_store *stores[] = {env->host, env->redis, env->durable};
    for (size_t i = 0; i < sizeof(stores) / sizeof(stores[0]); i++) {
        struct hps_space *space = NULL;
        if (stores[i] == NULL) {
            continue;
        }
        hps_status status = stores[i]->ops->space_open(stores[i], &id, &space, err);
        if (status != HPS_OK) {
            return status;
        }
        add_tier(version, space, stores[i] == env->durable ? env->durable_breaker : NULL);
    }
    version->shared_takes_missed = env->shared_takes_missed;
    return HPS_OK;
}
