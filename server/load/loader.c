/* SPDX-License-Identifier: Apache-2.0
 *
 * The load of one version: sort, write, ingest. On the loader thread. plan.c runs before it, and
 * seed_shared.c after it.
 */
#include "server/load/loader.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/heap.h"
#include "base/log.h"
#include "base/rows/rowsort.h"
#include "server/load/loader_internal.h"

enum { LOAD_BATCH_BYTES = 1 << 20, LOG_US = 10000000 };

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

hps_status loader_open_space(struct loader_run *run, enum hps_store_role role,
                             struct hps_error *err)
{
    const struct hps_space_id id = hps_load_space_id(run->version);
    struct loader_target *target = &run->targets[role];
    HPS_ASSERT(target->store != NULL && target->space == NULL);
    return target->store->ops->space_open(target->store, &id, &target->space, err);
}

static hps_status begin(struct loader_run *run, enum hps_store_role role,
                        const struct hps_load_plan *plan, struct hps_error *err)
{
    struct loader_target *target = &run->targets[role];
    hps_status status = loader_open_space(run, role, err);
    if (status != HPS_OK) {
        return status;
    }
    return target->store->ops->bulk->begin(target->space, plan->n_rows, plan->row_bytes,
                                           &target->load, err);
}

static void abort_load(struct loader_target *target)
{
    if (target->load != NULL) {
        target->store->ops->bulk->abort(target->load);
        target->load = NULL;
    }
}

static hps_status begin_durable(struct loader_run *run, const struct hps_load_plan *plan,
                                struct hps_error *err)
{
    hps_status status = begin(run, HPS_ROLE_DURABLE, plan, err);
    if (status == HPS_OK && plan->disk_bytes_needed > plan->disk_bytes_available) {
        return hps_error_set(err, HPS_EXHAUSTED,
                             "disk: %" PRIu64 " bytes needed, %" PRIu64 " available",
                             plan->disk_bytes_needed, plan->disk_bytes_available);
    }
    return status;
}

static hps_status begin_host(struct loader_run *run, const struct hps_load_plan *plan,
                             struct hps_error *err)
{
    const struct loader_target *host = &run->targets[HPS_ROLE_HOST];
    bool lowest = hps_stores_lowest(&run->env->stores) == host->store;
    /* Without a durable store, the shared store may have updates of these rows that no file has. */
    bool fits = run->targets[HPS_ROLE_DURABLE].store != NULL &&
                plan->host_bytes_needed <= plan->host_bytes_available;
    hps_status status = HPS_EXHAUSTED;
    if (lowest || fits) {
        status = begin(run, HPS_ROLE_HOST, plan, err);
    }
    if (status != HPS_EXHAUSTED || lowest) {
        return status;
    }
    /* Not all rows fit: the store starts empty, and lookups insert rows. */
    return host->space != NULL ? HPS_OK : loader_open_space(run, HPS_ROLE_HOST, err);
}

static hps_status begin_stores(struct loader_run *run, const struct hps_load_plan *plan,
                               struct hps_error *err)
{
    hps_status status = HPS_OK;
    if (run->targets[HPS_ROLE_DURABLE].store != NULL) {
        status = begin_durable(run, plan, err);
    }
    if (status == HPS_OK && run->targets[HPS_ROLE_HOST].store != NULL) {
        status = begin_host(run, plan, err);
    }
    return status;
}

/* Whether the host map has too little memory for all rows while another store has them. The load
 * then continues as if the map had lacked memory from the start. */
static bool gives_way(const struct loader_run *run, enum hps_store_role role, hps_status status)
{
    return role == HPS_ROLE_HOST && status == HPS_EXHAUSTED &&
           run->targets[HPS_ROLE_DURABLE].store != NULL;
}

/* From the lowest store up, so that a row in one store is in the stores below it. */
static hps_status commit_stores(struct loader_run *run, struct hps_error *err)
{
    atomic_store(&run->progress->stage, "ingest");
    for (unsigned role = HPS_ROLE_COUNT; role-- > 0;) {
        struct loader_target *target = &run->targets[role];
        if (target->load == NULL) {
            continue;
        }
        hps_status status = target->store->ops->bulk->commit(target->load, err);
        if (gives_way(run, role, status)) {
            abort_load(target);
        } else if (status != HPS_OK) {
            return status;
        } else if (role == HPS_ROLE_HOST) {
            atomic_store(&run->version->host_complete, true);
        }
        target->load = NULL;
    }
    return HPS_OK;
}

void hps_load_drop_space(const struct hps_load_env *env, struct hps_space *space)
{
    if (space == NULL) {
        return;
    }
    const struct hps_store_ops *ops = space->store->ops;
    if (space->store == hps_stores_shared_alone(&env->stores)) {
        ops->space_close(space);
    } else {
        hps_ignore(ops->space_drop(space, NULL)); /* a later start removes the rest */
    }
}

static void undo(struct loader_run *run)
{
    for (unsigned role = HPS_ROLE_COUNT; role-- > 0;) {
        abort_load(&run->targets[role]);
    }
    for (unsigned role = HPS_ROLE_COUNT; role-- > 0;) {
        hps_load_drop_space(run->env, run->targets[role].space);
    }
}

/* ---- tables ---------------------------------------------------------------------------------- */

static hps_status write_batch(struct loader_run *run, const struct hps_table *table, uint32_t n,
                              struct hps_error *err)
{
    hps_status status = HPS_OK;
    for (unsigned role = HPS_ROLE_COUNT; role-- > 0 && status == HPS_OK;) {
        struct loader_target *target = &run->targets[role];
        if (target->load == NULL) {
            continue;
        }
        status = target->store->ops->bulk->add(target->load, table, run->keys, run->rows, n, err);
        if (gives_way(run, role, status)) {
            abort_load(target);
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

/* The load id covers type and width, because other bytes are other rows. Tables of FP32 keep their
 * ids of earlier builds. */
static void hash_form(struct loader_run *run, const struct hps_table *table)
{
    const uint32_t form[2] = {(uint32_t)table->dtype, table->dim};
    if (table->dtype != HPS_DTYPE_FP32) {
        run->load_hash = hps_hash_bytes(form, sizeof(form), run->load_hash);
    }
}

static void note_conversion(struct loader_run *run, uint32_t i, const struct hps_row_reader *reader)
{
    const struct hps_row_desc *desc = hps_row_reader_desc(reader);
    if (run->progress->conversions != NULL) {
        run->progress->conversions[i] = (struct hps_load_conversion){
            .from = desc->file_dtype, .to = desc->dtype, .loss = *hps_row_reader_loss(reader)};
    }
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

hps_status loader_batch_alloc(struct loader_run *run, const struct hps_table *table,
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
    hps_status status = loader_batch_alloc(run, table, err);
    if (status == HPS_OK && run->source->dir != NULL) {
        status = hps_manifest_check_files(&run->source->manifest, table->name, run->source->roots,
                                          run->source->dir, &run->progress->cancel, err);
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
    hash_form(run, table);
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
        note_conversion(run, i, reader);
    }
    if (status == HPS_OK) { /* a mix of two trainings is worse than no rows */
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

/* Add the next lower tier. A shared store has its own breakers, one for each server. */
static void add_tier(const struct hps_load_env *env, struct hps_version *version,
                     struct hps_space *space)
{
    bool durable = hps_store_role(space->store) == HPS_ROLE_DURABLE;
    HPS_ASSERT(version->n_tiers < HPS_TIERS_MAX);
    version->breakers[version->n_tiers] = durable ? env->durable_breaker : NULL;
    version->tiers[version->n_tiers++] = space;
}

static void finish_version(struct loader_run *run)
{
    struct hps_version *version = run->version;
    for (unsigned role = 0; role < HPS_ROLE_COUNT; role++) {
        if (run->targets[role].space != NULL) {
            add_tier(run->env, version, run->targets[role].space);
        }
    }
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
    bool seeds = run->targets[HPS_ROLE_SHARED].store != NULL;
    return status == HPS_OK && seeds ? loader_seed_shared(run, err) : status;
}

/* ---- a shared store without a durable one ---------------------------------------------------- */

/* The load id names its shards, so the files are read once to compute it. Rows of an earlier load,
 * or of another daemon, are used if they exist. */
static hps_status load_shared(struct loader_run *run, const struct hps_load_plan *plan,
                              struct hps_error *err)
{
    struct loader_target *shared = &run->targets[HPS_ROLE_SHARED];
    const struct hps_store_ops *ops = shared->store->ops;
    hps_status status = begin_stores(run, plan, err);
    if (status == HPS_OK) {
        status = load_tables(run, err);
    }
    if (status == HPS_OK) {
        status = set_load_id(run, err);
    }
    if (status == HPS_OK) {
        status = loader_open_space(run, HPS_ROLE_SHARED, err);
    }
    if (status != HPS_OK) {
        return status;
    }
    uint64_t load_hash = run->load_hash;
    status = ops->bulk->begin(shared->space, plan->n_rows, plan->row_bytes, &shared->load, err);
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
    bool shared = hps_stores_shared_alone(&env->stores) != NULL;
    for (uint32_t i = 0; i < env->stores.n; i++) {
        run.targets[hps_store_role(env->stores.items[i])].store = env->stores.items[i];
    }
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
    for (uint32_t i = 0; i < env->stores.n; i++) {
        struct hps_store *store = env->stores.items[i];
        struct hps_space *space = NULL;
        hps_status status = store->ops->space_open(store, &id, &space, err);
        if (status != HPS_OK) {
            return status;
        }
        add_tier(env, version, space);
    }
    version->shared_takes_missed = env->shared_takes_missed;
    return HPS_OK;
}

/* ---- progress -------------------------------------------------------------------------------- */

uint64_t hps_load_remaining_ms(const struct hps_load_progress *progress, uint64_t now_us)
{
    uint64_t started_us = atomic_load(&progress->started_us);
    uint64_t done = atomic_load(&progress->rows_done), total = atomic_load(&progress->rows_total);
    if (started_us == 0 || done == 0 || done >= total) {
        return 0;
    }
    return (uint64_t)((double)(now_us - started_us) / 1000 * (double)(total - done) / (double)done);
}

void hps_load_progress_log(struct hps_load_progress *progress, const char *model, int64_t version,
                           const char *table, uint64_t now_us)
{
    uint64_t started_us = atomic_load(&progress->started_us);
    uint64_t last_us = progress->logged_us > started_us ? progress->logged_us : started_us;
    if (started_us == 0 || now_us < last_us + LOG_US) {
        return;
    }
    uint64_t bytes = atomic_load(&progress->bytes_done);
    uint64_t left_ms = hps_load_remaining_ms(progress, now_us);
    double seconds = (double)(now_us - started_us) / 1e6;
    progress->logged_us = now_us;
    HPS_LOG(INFO, "catalog", "version loading", HPS_STR("model", model),
            HPS_I64("version", version), HPS_STR("stage", atomic_load(&progress->stage)),
            HPS_STR("table", table), HPS_U64("rows", atomic_load(&progress->rows_done)),
            HPS_U64("rows_total", atomic_load(&progress->rows_total)), HPS_U64("bytes", bytes),
            HPS_U64("bytes_per_s", (double)bytes / seconds),
            left_ms > 0 ? HPS_U64("left_s", (left_ms + 999) / 1000) : HPS_LOG_END);
}
