/* SPDX-License-Identifier: Apache-2.0
 *
 * Computes the memory and disk that a load needs. Opens every file once, for names, widths and
 * default rows of the tables. On the loader thread, or the caller's of a dry run; may block.
 */
#include "backends/store_durable.h"
#include "base/assert.h"
#include "base/dtype.h"
#include "base/heap.h"
#include "server/load/loader_internal.h"

hps_status hps_load_default_row(const struct hps_source_table *source, struct hps_table *table,
                                struct hps_error *err)
{
    uint32_t n = source->n_default_values;
    if (n > 1 && n != table->dim) {
        return hps_error_set(err, HPS_INVALID,
                             "table \"%s\": default row has %u values, the table has width %u",
                             table->name, n, table->dim);
    }
    uint32_t at = 0;
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
    hps_status status = HPS_OK;
    if (hps_row_fits(row, table->dtype, table->dim, &at)) {
        hps_row_convert(stored, table->dtype, row, HPS_DTYPE_FP32, table->dim);
    } else {
        status = hps_error_set(err, HPS_INVALID,
                               "table \"%s\": value %u of its default row, %g, does not fit %s",
                               table->name, at, (double)row[at], hps_dtype_name(table->dtype));
    }
    hps_free(row);
    table->default_row = stored;
    return status;
}

hps_status loader_open_reader(const struct hps_load_env *env, const struct hps_source_table *table,
                              struct hps_row_reader **out_reader, struct hps_error *err)
{
    const struct hps_row_options options = {.form = table->files.form,
                                            .dim = table->dim,
                                            .key_bytes = env->key_bytes,
                                            .nan_allowed = env->nan_allowed,
                                            .dtype = table->file_dtype,
                                            .row_dtype = table->row_dtype,
                                            .roots = table->files.roots};
    hps_status status = hps_row_reader_open(table->files.path, &options, out_reader, err);
    if (status != HPS_OK) {
        return hps_error_prefix(err, status, "table \"%s\"", table->files.name);
    }
    return HPS_OK;
}

hps_status hps_load_describe(const struct hps_load_env *env, const struct hps_source_table *table,
                             struct hps_row_desc *out_desc, struct hps_error *err)
{
    struct hps_row_reader *reader = NULL;
    hps_status status = loader_open_reader(env, table, &reader, err);
    if (status == HPS_OK) {
        *out_desc = *hps_row_reader_desc(reader);
        hps_row_reader_close(reader);
    }
    return status;
}

/* Add a sort or a later merge. They run one after the other, so the largest counts. */
static void plan_beside(struct hps_load_plan *plan, uint64_t bytes)
{
    if (bytes > plan->disk_bytes_needed) {
        plan->disk_bytes_needed = bytes;
    }
}

static hps_status plan_table(const struct hps_load_env *env, const struct hps_source *source,
                             uint32_t i, struct hps_table *table, struct hps_load_plan *plan,
                             struct hps_error *err)
{
    const struct hps_source_table *from = &source->tables[i];
    struct hps_row_desc desc;
    hps_status status = hps_load_describe(env, from, &desc, err);
    if (status == HPS_OK) {
        status = hps_manifest_check_table(&source->manifest, from->files.name, &desc, err);
    }
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
                                .row_bytes = (uint32_t)hps_dtype_row_bytes(desc.dtype, desc.dim),
                                .dtype = desc.dtype,
                                .n_rows = desc.n_rows};
    plan->n_rows += desc.n_rows;
    plan->row_bytes += desc.n_rows * table->row_bytes;
    /* Only tables without a file of keys are known to be sorted; their keys are 0, 1, 2, … */
    uint64_t base_bytes = hps_disk_base_bytes(desc.n_rows, table->row_bytes);
    plan->store_bytes += env->base_files && desc.sorted_unique
                             ? base_bytes
                             : hps_disk_table_bytes(desc.n_rows, table->row_bytes);
    uint64_t spilled = desc.n_rows * (table->row_bytes + sizeof(hps_key));
    if (!desc.sorted_unique && spilled > env->memory_bytes) {
        plan_beside(plan, spilled);
    }
    if (env->base_files && env->merges) {
        plan_beside(plan, base_bytes);
    }
    return hps_load_default_row(from, table, err);
}

static bool host_is_lowest(const struct hps_load_env *env)
{
    struct hps_store *host = hps_stores_host(&env->stores);
    return host != NULL && hps_stores_lowest(&env->stores) == host;
}

/* Rows of a table beyond host_rows_max, if the host map has the only copy. */
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
        uint64_t row = hps_load_host_row_bytes(tables[i].row_bytes);
        bytes += (tables[i].n_rows - rows_dropped(env, &tables[i])) * row + 4096;
    }
    return bytes;
}

/* Estimated bytes in a shared store: a value, a field and an entry for each row that it gets. */
static uint64_t shared_bytes(const struct hps_load_env *env, const struct hps_version *version)
{
    enum { ENTRY_BYTES = 60, ALLOCATED_PERCENT = 110 };
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < version->n_tables; i++) {
        const struct hps_table *table = &version->tables[i];
        uint64_t row = (uint64_t)table->row_bytes * ALLOCATED_PERCENT / 100 + ENTRY_BYTES;
        bytes += table->n_rows * row;
    }
    return hps_stores_durable(&env->stores) == NULL
               ? bytes
               : (uint64_t)((double)bytes * env->shared_seed_ratio);
}

hps_status hps_load_plan(const struct hps_load_env *env, const struct hps_source *source,
                         uint64_t host_used_bytes, struct hps_version *version,
                         struct hps_load_plan *out_plan, struct hps_error *err)
{
    HPS_ASSERT(version->n_tables == source->n_tables);
    struct hps_load_plan plan = {0};
    struct hps_store *shared = hps_stores_shared(&env->stores);
    struct hps_store *durable = hps_stores_durable(&env->stores);
    for (uint32_t i = 0; i < source->n_tables; i++) {
        hps_status status = plan_table(env, source, i, &version->tables[i], &plan, err);
        if (status != HPS_OK) {
            return status;
        }
    }
    if (durable != NULL) {
        plan.disk_bytes_needed += plan.store_bytes;
        plan.disk_bytes_available = durable->ops->durable->bytes_free(durable);
    }
    if (shared != NULL && shared->ops->bulk != NULL) {
        plan.shared_bytes_needed = shared_bytes(env, version);
    }
    for (uint32_t i = 0; i < version->n_tables; i++) {
        plan.n_rows_dropped += rows_dropped(env, &version->tables[i]);
    }
    if (hps_stores_host(&env->stores) != NULL) {
        /* by the load; otherwise lookups insert rows */
        bool loaded = durable != NULL || shared == NULL;
        plan.host_bytes_needed =
            loaded ? hps_load_host_bytes(env, version->tables, version->n_tables) : 0;
        plan.host_bytes_available =
            env->host_bytes_max > host_used_bytes ? env->host_bytes_max - host_used_bytes : 0;
    }
    *out_plan = plan;
    return HPS_OK;
}
