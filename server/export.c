/* SPDX-License-Identifier: Apache-2.0
 *
 * From a store's scan into files: see server/export.h. One thread.
 */
#include "server/export.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/log.h"
#include "base/rows/fileio.h"
#include "base/rows/rowfile.h"

#define NOTE_US (UINT64_C(10) * 1000 * 1000) /* between two lines of the log */

struct export
{
    const struct hps_export_options *options;
    const char *model;
    const struct hps_table *table;
    struct hps_row_writer *writer;
    uint64_t n_rows; /* of the table */
    uint64_t started_us;
    uint64_t noted_us;
    struct hps_error *err;
};

/* ---- a table --------------------------------------------------------------------------------- */

static hps_status take_rows(void *ctx, const hps_key *keys, const uint8_t *rows, uint32_t n)
{
    struct export *export = ctx;
    HPS_ASSERT(export->writer != NULL && export->table != NULL);
    if (export->options->stops != NULL && export->options->stops()) {
        return hps_error_set(export->err, HPS_CANCELLED, "stopped by a signal");
    }
    hps_status status = hps_row_writer_append(export->writer, keys, rows, n, export->err);
    export->n_rows += n;
    if (status == HPS_OK && hps_clock_us() - export->noted_us >= NOTE_US) {
        export->noted_us = hps_clock_us();
        HPS_LOG(INFO, "export", "rows so far", HPS_STR("model", export->model),
                HPS_STR("table", export->table->name), HPS_U64("rows", export->n_rows));
    }
    return status;
}

/* Some rows may be there twice: a load takes the last of each key. */
static hps_status write_rows(struct export *export, struct hps_space *space, const char *path)
{
    const struct hps_table *table = export->table;
    const struct hps_row_writer_options options = {
        .form = HPS_ROW_FORM_HUGECTR, .dim = table->dim, .dtype = table->dtype};
    export->n_rows = 0;
    export->started_us = export->noted_us = hps_clock_us();
    hps_status status = hps_row_writer_open(path, &options, &export->writer, export->err);
    if (status != HPS_OK) {
        return status;
    }
    status = space->store->ops->scan(space, table, take_rows, export, export->err);
    if (status == HPS_OK && export->n_rows == 0) {
        status = hps_error_set(export->err, HPS_INVALID,
                               "table '%s': the store has no row of the table: expected the names "
                               "of model and table, and num_partitions, that HPS wrote it with",
                               table->name);
    }
    if (status != HPS_OK) {
        hps_row_writer_abort(export->writer);
        return status;
    }
    status = hps_row_writer_close(export->writer, export->err);
    if (status == HPS_OK) {
        HPS_LOG(INFO, "export", "table written", HPS_STR("model", export->model),
                HPS_STR("table", table->name), HPS_U64("rows", export->n_rows),
                HPS_U64("bytes", export->n_rows * (sizeof(hps_key) + table->row_bytes)),
                HPS_U64("duration_us", hps_clock_us() - export->started_us));
    }
    return status;
}

/* ---- a model --------------------------------------------------------------------------------- */

static hps_status make_dir(const char *path, struct hps_error *err)
{
    if (mkdir(path, 0777) != 0) {
        return errno == EEXIST ? HPS_OK : hps_file_error(err, errno, "cannot create", path);
    }
    return hps_file_sync_parent(path, err);
}

static hps_status write_tables(struct export *export, struct hps_space *space,
                               struct hps_config_model *model, const struct hps_table *tables,
                               const char *dir)
{
    hps_status status = HPS_OK;
    for (size_t i = 0; i < model->n_tables && status == HPS_OK; i++) {
        char *path = hps_file_path("%s/%s", dir, tables[i].name);
        export->table = &tables[i];
        HPS_ASSERT(export->table->id == i);
        status = path != NULL ? write_rows(export, space, path)
                              : hps_error_set(export->err, HPS_NO_MEMORY, "no memory for a path");
        if (status == HPS_OK) {
            hps_free(model->tables[i].path);
            model->tables[i].path = path;
        } else {
            hps_free(path);
        }
    }
    return status;
}

static hps_status write_model(struct export *export, struct hps_config_model *model,
                              const char *dir)
{
    struct hps_store *store = export->options->store;
    HPS_ASSERT((store->ops->caps & HPS_STORE_SCANS) != 0);
    struct hps_space *space = NULL;
    struct hps_table *tables = hps_calloc(model->n_tables, sizeof(*tables));
    char *own_dir = hps_file_path("%s/%s", dir, model->name);
    hps_status status = HPS_OK;
    if (tables == NULL || own_dir == NULL) {
        status =
            hps_error_set(export->err, HPS_NO_MEMORY, "no memory for %zu tables", model->n_tables);
        goto out;
    }
    for (size_t i = 0; i < model->n_tables; i++) {
        uint32_t dim = model->tables[i].dim;
        tables[i] =
            (struct hps_table){.name = model->tables[i].name,
                               .id = (uint32_t)i,
                               .dim = dim,
                               .row_bytes = (uint32_t)hps_dtype_row_bytes(HPS_DTYPE_FP32, dim),
                               .dtype = HPS_DTYPE_FP32};
    }
    const struct hps_space_id id = {.model = model->name,
                                    .version = 1,
                                    .tables = tables,
                                    .n_tables = (uint32_t)model->n_tables};
    export->model = model->name;
    status = make_dir(own_dir, export->err);
    if (status == HPS_OK) {
        status = store->ops->space_open(store, &id, &space, export->err);
    }
    if (status == HPS_OK) {
        status = write_tables(export, space, model, tables, own_dir);
        store->ops->space_close(space);
    }
    if (status != HPS_OK) {
        status = hps_error_prefix(export->err, status, "model \"%s\"", model->name);
        (void)rmdir(own_dir); /* if there is nothing in it */
    }
out:
    hps_free(tables);
    hps_free(own_dir);
    return status;
}

/* ---- all of them ----------------------------------------------------------------------------- */

static hps_status check_empty(const char *dir, struct hps_error *err)
{
    hps_status status = HPS_OK;
    DIR *listing = opendir(dir);
    if (listing == NULL) {
        return hps_file_error(err, errno, "cannot list", dir);
    }
    for (const struct dirent *entry = readdir(listing); entry != NULL && status == HPS_OK;
         entry = readdir(listing)) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            status =
                hps_error_set(err, HPS_EXISTS, "%s: there is %s in it, expected an empty directory",
                              dir, entry->d_name);
        }
    }
    (void)closedir(listing);
    return status;
}

hps_status hps_export(const struct hps_export_options *options, struct hps_config *config,
                      struct hps_error *err)
{
    struct export export = {.options = options, .err = err};
    char dir[PATH_MAX];
    hps_status status = make_dir(options->dir, err);
    if (status == HPS_OK && realpath(options->dir, dir) == NULL) {
        status = hps_file_error(err, errno, "cannot resolve", options->dir);
    }
    if (status == HPS_OK) {
        status = check_empty(dir, err);
    }
    if (status == HPS_OK && config->n_models == 0) {
        status = hps_error_set(err, HPS_INVALID, "models[]: got none, expected those to export");
    }
    for (size_t i = 0; i < config->n_models && status == HPS_OK; i++) {
        status = write_model(&export, &config->models[i], dir);
    }
    return status;
}
