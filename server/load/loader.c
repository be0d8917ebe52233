/* SPDX-License-Identifier: Apache-2.0
 *
 * The load of one version: plan, sort, write, ingest. Runs on the loader thread.
 */
#include "server/load/loader.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/dtype.h"
#include "base/hash.h"
#include "base/heap.h"
#include "base/log.h"
#include "base/rows/rowsort.h"
#include "cache/lookup/lookup.h"
#include "server/load/records.h"

enum { LOAD_BATCH_BYTES = 1 << 20, PAUSE_STEP_MS = 20 };

/* ---- plan ------------------------------------------------------------------------------------ */

static hps_status fill_default_row(const struct hps_source_table *source, struct hps_table *table,
                                   struct hps_error *err)
{
    uint32_t n = source->n_default_values;
    if (n > 1 && n != table->dim) {
        return hps_error_set(err, HPS_INVALID,
                             "table \"%s\": default row has %u values, the table has width %u",
                             table->name, n, table->dim);
    }
    float *row = hps_calloc(table->dim, sizeof(*row));
    void *stored = hps_calloc(1, table->row_bytes);
    if (row == NULL || stored == NULL) {
        hps_free(row);
        hps_free(stored);
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for a row of %u values", table->dim);
    }
    for (uint32_t i = 0; n > 0 && i < table->dim; i++) {
        row[i] = source->default_values[n == 1 ? 0 : i];
    }
    hps_dtype_convert(stored, table->dtype, row, HPS_DTYPE_FP32, table->dim);
    hps_free(row);
    table->default_row = stored;
    return HPS_OK;
}

static hps_status open_reader(const struct hps_load_env *env, const struct hps_source_table *table,
                              struct hps_row_reader **out_reader, struct hps_error *err)
{
    const struct hps_row_options options = {.form = table->files.form,
                                            .dim = table->dim,
                                            .key_bytes = env->key_bytes,
                                            .nan_allowed = env->nan_allowed};
    hps_status status = hps_row_reader_open(table->files.path, &options, out_reader, err);
    if (status != HPS_OK) {
        return hps_error_prefix(err, status, "table \"%s\"", table->files.name);
    }
    return HPS_OK;
}

static hps_status plan_table(const struct hps_load_env *env, const struct hps_source *source,
                             uint32_t i, struct hps_table *table, struct hps_load_plan *plan,
                             struct hps_error *err)
{
    const struct hps_source_table *from = &source->tables[i];
    struct hps_row_reader *reader = NULL;
    hps_status status = open_reader(env, from, &reader, err);
    if (status != HPS_OK) {
        return status;
    }
    const struct hps_row_desc desc = *hps_row_reader_desc(reader);
    hps_row_reader_close(reader);
    status = hps_manifest_check_table(&source->manifest, from->files.name, &desc, err);
    if (status != HPS_OK) {
        return status;
    }
    char *name = hps_strdup(from->files.name);
    if (name == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for a table's name");
    }
    *table = (struct hps_table){.name = name,
                                .id = i,
                                .dim = desc.dim,
                                .row_bytes = desc.dim * hps_dtype_bytes(desc.dtype),
                                .dtype = desc.dtype,
                                .n_rows = desc.n_rows};
    plan->n_rows += desc.n_rows;
    plan->row_bytes += desc.n_rows * table->row_bytes;
    uint64_t spilled = desc.n_rows * (table->row_bytes + sizeof(hps_key));
    if (!desc.sorted_unique && spilled > env->memory_bytes && spilled > plan->disk_bytes_needed) {
        plan->disk_bytes_needed = spilled; /* the largest sort: they run one after the other */
    }
    return fill_default_row(from, table, err);
}

static bool host_is_lowest(const struct hps_load_env *env)
{
    return env->host != NULL && hps_load_env_lowest(env) == env->host;
}

/* Of a table: those that its only copy has no place for. */
static uint64_t rows_dropped(const struct hps_load_env *env, const struct hps_table *table)
{
    bool beyond =
        env->host_rows_max != 0 && host_is_lowest(env) && table->n_rows > env->host_rows_max;
    return beyond ? table->n_rows - env->host_rows_max : 0;
}

uint64_t hps_load_host_bytes(const struct hps_load_env *env, const struct hps_table *tables,
                             uint32_t n_tables)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < n_tables; i++) {
        uint64_t row = ((uint64_t)tables[i].row_bytes + 15) / 16 * 16;
        bytes += (tables[i].n_rows - rows_dropped(env, &tables[i])) * (row + 24) + 4096;
    }
    return bytes;
}

/* About what Redis makes of the rows that a load gives it: a value, a field and an entry for each.
 */
static uint64_t redis_bytes(const struct hps_load_env *env, const struct hps_version *version)
{
    enum { ENTRY_BYTES = 60, ALLOCATED_PERCENT = 110 };
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < version->n_tables; i++) {
        const struct hps_table *table = &version->tables[i];
        uint64_t row = (uint64_t)table->row_bytes * ALLOCATED_PERCENT / 100 + ENTRY_BYTES;
        bytes += table->n_rows * row;
    }
    return env->durable == NULL ? bytes : (uint64_t)((double)bytes * env->redis_fill_ratio);
}

hps_status hps_load_plan(const struct hps_load_env *env, const struct hps_source *source,
                         uint64_t host_used_bytes, struct hps_version *version,
                         struct hps_load_plan *out_plan, struct hps_error *err)
{
    HPS_ASSERT(version->n_tables == source->n_tables);
    struct hps_load_plan plan = {0};
    for (uint32_t i = 0; i < source->n_tables; i++) {
        hps_status status = plan_table(env, source, i, &version->tables[i], &plan, err);
        if (status != HPS_OK) {
            return status;
        }
    }
    if (env->durable != NULL) {
        /* Rows, 12 key bytes and about 3 % of index and filter. */
        plan.disk_bytes_needed += plan.row_bytes + plan.row_bytes / 32 + plan.n_rows * 16;
        plan.disk_bytes_available = env->durable->ops->bytes_free(env->durable);
    }
    if (env->redis != NULL && env->redis->ops->load_begin != NULL) {
        plan.redis_bytes_needed = redis_bytes(env, version);
    }
    for (uint32_t i = 0; i < version->n_tables; i++) {
        plan.n_rows_dropped += rows_dropped(env, &version->tables[i]);
    }
    if (env->host != NULL) {
        bool filled = env->durable != NULL || env->redis == NULL; /* by a load, that is */
        plan.host_bytes_needed =
            filled ? hps_load_host_bytes(env, version->tables, version->n_tables) : 0;
        plan.host_bytes_available =
            env->host_bytes_max > host_used_bytes ? env->host_bytes_max - host_used_bytes : 0;
    }
    *out_plan = plan;
    return HPS_OK;
}

/* ---- run ------------------------------------------------------------------------------------- */

struct run {
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

struct hps_space_id hps_load_space_id(const struct hps_version *version)
{
    return (struct hps_space_id){
        .model = version->model,
        .version = version->number,
        .tables = version->tables,
        .n_tables = version->n_tables,
        .load_id = version->load_id == NULL ? 0 : strtoull(version->load_id, NULL, 16)};
}

static hps_status begin_store(struct run *run, struct hps_store *store,
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
    return store->ops->load_begin(space, plan->n_rows, plan->row_bytes, out_load, err);
}

static hps_status begin_stores(struct run *run, const struct hps_load_plan *plan,
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
    /* Rows of a redis without a durable store may have had updates: no file has those. */
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

static hps_status write_batch(struct run *run, const struct hps_table *table, uint32_t n,
                              struct hps_error *err)
{
    hps_status status = HPS_OK;
    if (run->durable != NULL) {
        status =
            run->env->durable->ops->load_add(run->durable, table, run->keys, run->rows, n, err);
    }
    if (status == HPS_OK && run->redis != NULL) {
        status = run->env->redis->ops->load_add(run->redis, table, run->keys, run->rows, n, err);
    }
    if (status == HPS_OK && run->host != NULL) {
        status = run->env->host->ops->load_add(run->host, table, run->keys, run->rows, n, err);
        if (status == HPS_EXHAUSTED && run->durable != NULL) {
            run->env->host->ops->load_abort(run->host);
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

static hps_status write_sorted(struct run *run, struct hps_rowsort *sort, struct hps_table *table,
                               struct hps_error *err)
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

static hps_status batch_room(struct run *run, const struct hps_table *table, struct hps_error *err)
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

static hps_status load_table(struct run *run, uint32_t i, struct hps_error *err)
{
    struct hps_table *table = &run->version->tables[i];
    const struct hps_source_table *from = &run->source->tables[i];
    struct hps_row_reader *reader = NULL;
    struct hps_rowsort *sort = NULL;
    atomic_store(&run->progress->table, i);
    hps_status status = batch_room(run, table, err);
    if (status == HPS_OK && run->source->dir != NULL) {
        status = hps_manifest_check_files(&run->source->manifest, table->name, run->source->dir,
                                          &run->progress->cancel, err);
    }
    if (status == HPS_OK) {
        status = open_reader(run->env, from, &reader, err);
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

static hps_status commit_stores(struct run *run, struct hps_error *err)
{
    atomic_store(&run->progress->stage, "ingest");
    if (run->durable != NULL) {
        struct hps_store_load *load = run->durable;
        hps_status status = run->env->durable->ops->load_commit(load, err);
        if (status != HPS_OK) {
            return status;
        }
        run->durable = NULL;
    }
    if (run->redis != NULL) {
        hps_status status = run->env->redis->ops->load_commit(run->redis, err);
        if (status != HPS_OK) {
            return status;
        }
        run->redis = NULL;
    }
    if (run->host != NULL) {
        hps_status status = run->env->host->ops->load_commit(run->host, err);
        if (status == HPS_EXHAUSTED && run->env->durable != NULL) {
            run->env->host->ops->load_abort(
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

static void undo(struct run *run)
{
    if (run->durable != NULL) {
        run->env->durable->ops->load_abort(run->durable);
    }
    if (run->redis != NULL) {
        run->env->redis->ops->load_abort(run->redis);
    }
    if (run->host != NULL) {
        run->env->host->ops->load_abort(run->host);
    }
    hps_load_give_up(run->env, run->durable_space);
    hps_load_give_up(run->env, run->redis_space);
    hps_load_give_up(run->env, run->host_space);
}

static hps_status set_load_id(struct run *run, struct hps_error *err)
{
    char id[17];
    snprintf(id, sizeof(id), "%016" PRIx64, run->load_hash);
    hps_free(run->version->load_id);
    run->version->load_id = hps_strdup(id);
    return run->version->load_id != NULL
               ? HPS_OK
               : hps_error_set(err, HPS_NO_MEMORY, "no memory for the load id");
}

static hps_status open_redis(struct run *run, struct hps_error *err)
{
    const struct hps_space_id id = hps_load_space_id(run->version);
    struct hps_store *redis = run->env->redis;
    return redis->ops->space_open(redis, &id, &run->redis_space, err);
}

static void add_tier(struct hps_version *version, struct hps_space *space,
                     struct hps_breaker *breaker)
{
    if (space != NULL) {
        version->breakers[version->n_tiers] = breaker;
        version->tiers[version->n_tiers++] = space;
    }
}

static void finish_version(struct run *run)
{
    struct hps_version *version = run->version;
    add_tier(version, run->host_space, NULL);
    add_tier(version, run->redis_space, NULL); /* it knows by itself which of its nodes are up */
    add_tier(version, run->durable_space, run->env->durable_breaker);
    version->shared_takes_missed = run->env->redis_takes_missed;
    version->loaded_unix_ms = hps_clock_wall_ms();
}

static hps_status load_tables(struct run *run, struct hps_error *err)
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

/* ---- a redis above a durable store: what it gets from that one ------------------------------- */

struct spread {
    struct run *run;
    struct hps_store_load *load;
    const struct hps_table *table;
    uint64_t hash_max; /* rows whose hash is beyond it stay below */
    struct hps_error *err;
    bool began;  /* redis has been there */
    bool failed; /* redis did */
};

static hps_status spread_rows(void *ctx, const hps_key *keys, const uint8_t *rows, uint32_t n)
{
    struct spread *spread = ctx;
    struct run *run = spread->run;
    const struct hps_table *table = spread->table;
    for (uint32_t i = 0; i < n;) {
        if (atomic_load(&run->progress->cancel)) {
            return hps_error_set(spread->err, HPS_CANCELLED, "the load was cancelled");
        }
        uint32_t n_kept = 0;
        for (; i < n && n_kept < run->batch; i++) {
            if (hps_mix64(hps_mix64((uint64_t)keys[i]) + table->id) <= spread->hash_max) {
                run->keys[n_kept] = keys[i];
                memcpy(run->rows + (size_t)n_kept++ * table->row_bytes,
                       rows + (size_t)i * table->row_bytes, table->row_bytes);
            }
        }
        hps_status status = run->env->redis->ops->load_add(spread->load, table, run->keys,
                                                           run->rows, n_kept, spread->err);
        if (status != HPS_OK) {
            spread->failed = true;
            return status;
        }
    }
    atomic_fetch_add(&run->progress->rows_done, n);
    return HPS_OK;
}

/* A failure of the durable store, or that it was cancelled, ends the load; one of redis does not.
 */
static hps_status spread_tables(struct spread *spread, struct hps_error *err)
{
    struct run *run = spread->run;
    const struct hps_store_ops *from = run->env->durable->ops;
    hps_status status = HPS_OK;
    for (uint32_t i = 0; status == HPS_OK && i < run->version->n_tables; i++) {
        spread->table = &run->version->tables[i];
        atomic_store(&run->progress->table, i);
        status = batch_room(run, spread->table, err);
        if (status == HPS_OK) {
            status = from->scan(run->durable_space, spread->table, spread_rows, spread, err);
        }
    }
    return status;
}

static hps_status spread_once(struct spread *spread, struct hps_error *err)
{
    struct run *run = spread->run;
    const struct hps_store_ops *ops = run->env->redis->ops;
    spread->load = NULL;
    atomic_store(&run->progress->rows_done, 0);
    hps_status status = ops->load_begin(run->redis_space, 0, 0, &spread->load, err);
    spread->began = spread->began || status == HPS_OK;
    spread->failed = status != HPS_OK && status != HPS_PRECONDITION;
    if (status == HPS_OK) {
        status = spread_tables(spread, err);
    }
    if (status == HPS_OK) {
        status = ops->load_commit(spread->load, err);
        spread->failed = status != HPS_OK;
    }
    if (status != HPS_OK && spread->load != NULL) {
        ops->load_abort(spread->load);
    }
    return status;
}

/* False: the load was cancelled meanwhile. */
static bool pause_load(const struct run *run, uint32_t pause_ms)
{
    const struct timespec step = {0, PAUSE_STEP_MS * 1000 * 1000};
    for (uint32_t ms = 0; ms < pause_ms && !atomic_load(&run->progress->cancel);
         ms += PAUSE_STEP_MS) {
        nanosleep(&step, NULL);
    }
    return !atomic_load(&run->progress->cancel);
}

/* Again, if it was there and went: a fail-over is over by then. Not if it was away from the start:
 * that may take long. */
static hps_status spread_all(struct spread *spread, struct hps_error *err)
{
    static const uint32_t pauses_ms[] = {0, 2000, 4000, 8000};
    hps_status status = spread_once(spread, err);
    for (size_t i = 0; i < sizeof(pauses_ms) / sizeof(pauses_ms[0]); i++) {
        if (!spread->failed || !spread->began || status != HPS_UNAVAILABLE) {
            break;
        }
        if (!pause_load(spread->run, pauses_ms[i])) {
            spread->failed = false;
            return hps_error_set(err, HPS_CANCELLED, "the load was cancelled");
        }
        status = spread_once(spread, err);
    }
    return status;
}

/* If it is away, or has the rows from another daemon, so be it: it has none that are wrong. Until
 * the version is published it is down as one that nobody uses, in case that this process ends. */
static hps_status fill_redis(struct run *run, struct hps_error *err)
{
    double ratio = run->env->redis_fill_ratio;
    struct spread spread = {.run = run, .err = err};
    hps_status status = hps_records_put_unused(run->env->durable, run->version, err);
    if (status == HPS_OK) {
        status = open_redis(run, err);
    }
    if (status != HPS_OK || ratio <= 0) {
        return status;
    }
    uint64_t n_rows = atomic_load(&run->progress->rows_done);
    spread.hash_max = ratio >= 1 ? UINT64_MAX : (uint64_t)(ratio * 0x1p64);
    atomic_store(&run->progress->stage, "fill");
    status = spread_all(&spread, err);
    if (spread.failed) {
        HPS_LOG(WARN, "catalog", "redis was not filled: it begins empty",
                HPS_STR("model", run->version->model), HPS_I64("version", run->version->number),
                HPS_STR("error", err->text));
    }
    atomic_store(&run->progress->rows_done, n_rows);
    return spread.failed || status == HPS_PRECONDITION ? HPS_OK : status;
}

static hps_status load_durable(struct run *run, const struct hps_load_plan *plan,
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
    return status == HPS_OK && run->env->redis != NULL ? fill_redis(run, err) : status;
}

/* ---- a redis without a durable store --------------------------------------------------------- */

/* Its shards are named by the load id: the files are read a first time for that. If it has the
 * rows from an earlier load, or another daemon's, those are used. */
static hps_status load_shared(struct run *run, const struct hps_load_plan *plan,
                              struct hps_error *err)
{
    const struct hps_store_ops *ops = run->env->redis->ops;
    const char *print = run->version->fingerprint;
    hps_status status = begin_stores(run, plan, err);
    if (ops->load_begin == NULL) { /* another program writes its rows */
        run->load_hash = print == NULL ? 0 : hps_hash_bytes(print, strlen(print), 0);
    } else if (status == HPS_OK) {
        status = load_tables(run, err);
    }
    if (status == HPS_OK) {
        status = set_load_id(run, err);
    }
    if (status == HPS_OK) {
        status = open_redis(run, err);
    }
    if (status != HPS_OK || ops->load_begin == NULL) {
        return status;
    }
    uint64_t load_hash = run->load_hash;
    status = ops->load_begin(run->redis_space, plan->n_rows, plan->row_bytes, &run->redis, err);
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

hps_status hps_load_run(const struct hps_load_env *env, const struct hps_source *source,
                        const struct hps_load_plan *plan, struct hps_version *version,
                        struct hps_load_progress *progress, struct hps_error *err)
{
    struct run run = {.env = env, .source = source, .version = version, .progress = progress};
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
    version->shared_takes_missed = env->redis_takes_missed;
    return HPS_OK;
}

/* ---- fill ------------------------------------------------------------------------------------ */

struct fill {
    const struct hps_version *version;
    struct hps_space *host;
    const struct hps_table *table;
    const atomic_bool *cancel;
    uint64_t since;  /* of the version's stamps, before the scan of the table began */
    uint32_t *slots; /* [n_slots] 0, 1, 2, ... */
    uint32_t n_slots;
    uint64_t n_stale; /* that were updated again and again while they were read */
};

static hps_status fill_slots(struct fill *fill, uint32_t n)
{
    if (n <= fill->n_slots) {
        return HPS_OK;
    }
    uint32_t *slots = hps_realloc(fill->slots, n * sizeof(*slots));
    if (slots == NULL) {
        return HPS_NO_MEMORY;
    }
    fill->slots = slots;
    for (uint32_t i = fill->n_slots; i < n; i++) {
        slots[i] = i;
    }
    fill->n_slots = n;
    return HPS_OK;
}

/* Insert rows that were read since `since`, but for those that an update may have overtaken. */
static hps_status fill_insert(struct fill *fill, const hps_key *keys, const uint32_t *slots,
                              const uint8_t *rows, uint32_t n, uint64_t since,
                              uint32_t *out_n_stale)
{
    const struct hps_call call = {0};
    struct hps_insert_report report = {0};
    const struct hps_stamp_guard stamps = {fill->version->stamps, keys, fill->table->id, since};
    const struct hps_insert_guard guard = {hps_stamp_guard_fresh, &stamps};
    hps_status status = fill->host->store->ops->insert(fill->host, &call, fill->table, keys, slots,
                                                       rows, n, &guard, &report);
    *out_n_stale = report.n_stale;
    bool full = report.n_no_room > 0 || report.n_evicted > 0;
    return status == HPS_OK && full ? HPS_EXHAUSTED : status;
}

/* Keys that an update may have overtaken, or that only share the stripe of one that was: those that
 * are not in the host map are read again, until no update comes between. */
struct again {
    hps_key *keys;
    uint32_t *slots;
    uint8_t *rows;
    uint32_t n;
};

/* Ask a tier for what is left; those that it has are behind the others then. */
static hps_status again_get(struct fill *fill, struct again *again, struct hps_space *space,
                            uint32_t *out_n_missing)
{
    const struct hps_call call = {0};
    memcpy(again->slots, fill->slots, again->n * sizeof(*again->slots));
    struct hps_batch batch = {again->keys, again->slots, again->rows, again->n};
    hps_status status = space->store->ops->get(space, &call, fill->table, &batch);
    *out_n_missing = batch.n;
    return status;
}

static hps_status again_try(struct fill *fill, struct again *again)
{
    struct hps_space *from = fill->version->tiers[fill->version->n_tiers - 1];
    uint64_t since = hps_stamps_now(fill->version->stamps);
    uint32_t n_missing;
    uint32_t n_stale = 0;
    hps_status status = again_get(fill, again, fill->host, &n_missing);
    again->n = n_missing;
    if (status == HPS_OK) {
        status = again_get(fill, again, from, &n_missing);
    }
    if (status != HPS_OK) {
        return status;
    }
    uint32_t n = again->n - n_missing; /* the missing ones have been deleted */
    status = fill_insert(fill, again->keys + n_missing, again->slots + n_missing, again->rows, n,
                         since, &n_stale);
    memmove(again->keys, again->keys + n_missing, n * sizeof(*again->keys));
    again->n = n_stale > 0 ? n : 0;
    return status;
}

static hps_status fill_again(struct fill *fill, const hps_key *keys, uint32_t n)
{
    enum { TRIES_MAX = 1000 }; /* a batch of updates is over after milliseconds */
    struct again again = {.keys = hps_alloc(n * sizeof(*keys)),
                          .slots = hps_alloc(n * sizeof(uint32_t)),
                          .rows = hps_alloc((size_t)n * fill->table->row_bytes),
                          .n = n};
    hps_status status = HPS_NO_MEMORY;
    if (again.keys != NULL && again.slots != NULL && again.rows != NULL) {
        memcpy(again.keys, keys, n * sizeof(*keys));
        status = HPS_OK;
    }
    for (unsigned try = 0; again.n > 0 && status == HPS_OK && try < TRIES_MAX; try++) {
        if (try > 0) {
            sched_yield();
        }
        status = atomic_load(fill->cancel) ? HPS_CANCELLED : again_try(fill, &again);
    }
    fill->n_stale += again.n;
    hps_free(again.keys);
    hps_free(again.slots);
    hps_free(again.rows);
    return status;
}

static hps_status fill_rows(void *ctx, const hps_key *keys, const uint8_t *rows, uint32_t n)
{
    struct fill *fill = ctx;
    uint32_t n_stale = 0;
    if (atomic_load(fill->cancel)) {
        return HPS_CANCELLED;
    }
    hps_status status = fill_slots(fill, n);
    if (status == HPS_OK) {
        status = fill_insert(fill, keys, fill->slots, rows, n, fill->since, &n_stale);
    }
    return status == HPS_OK && n_stale > 0 ? fill_again(fill, keys, n) : status;
}

/* Rows of other versions, and those that look-ups missed meanwhile, may have taken the room of rows
 * that the fill had put. */
static hps_status check_filled(const struct fill *fill, struct hps_error *err)
{
    if (fill->n_stale > 0) {
        return hps_error_set(err, HPS_ABORTED,
                             "host: updates came again and again between the reading and the "
                             "putting of %" PRIu64 " rows",
                             fill->n_stale);
    }
    if (atomic_load(&fill->host->incomplete)) {
        return hps_error_set(err, HPS_EXHAUSTED,
                             "host: rows found no room beside those that were asked for meanwhile");
    }
    return HPS_OK;
}

hps_status hps_load_fill_host(const struct hps_load_env *env, struct hps_version *version,
                              const atomic_bool *cancel, struct hps_error *err)
{
    struct hps_space *from = version->tiers[version->n_tiers - 1];
    struct hps_space *host = version->tiers[0];
    HPS_ASSERT(host->store == env->host && from != host);
    struct fill fill = {.version = version, .host = host, .cancel = cancel};
    atomic_store(&version->host_complete, false);
    atomic_store(&host->incomplete, false); /* what it has lost so far is put there again */
    hps_status status =
        host->store->ops->reserve != NULL ? host->store->ops->reserve(host, err) : HPS_OK;
    for (uint32_t i = 0; status == HPS_OK && i < version->n_tables; i++) {
        fill.table = &version->tables[i];
        fill.since = hps_stamps_now(version->stamps);
        status = from->store->ops->scan(from, fill.table, fill_rows, &fill, err);
    }
    if (status == HPS_OK) {
        status = check_filled(&fill, err);
    }
    if (status == HPS_OK) {
        atomic_store(&version->host_complete, true); /* unless rows are lost: `incomplete` tells */
    }
    hps_free(fill.slots);
    return status;
}
