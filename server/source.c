/* SPDX-License-Identifier: Apache-2.0
 *
 * From a directory or models[] to the files of each table. Runs on the admin and loader threads.
 */
#include "server/source.h"

#include <stdlib.h>
#include <string.h>

#include "base/heap.h"

void hps_source_close(struct hps_source *source)
{
    for (uint32_t i = 0; i < source->n_tables; i++) {
        hps_model_table_close(&source->tables[i].files);
    }
    hps_free(source->tables);
    hps_free(source->text);
    hps_free(source->dir);
    hps_manifest_close(&source->manifest);
    memset(source, 0, sizeof(*source));
}

static const struct hps_config_table *config_table(const struct hps_config_model *model,
                                                   const char *name)
{
    for (size_t i = 0; model != NULL && i < model->n_tables; i++) {
        if (strcmp(model->tables[i].name, name) == 0) {
            return &model->tables[i];
        }
    }
    return NULL;
}

static hps_status source_print(struct hps_source *source, struct hps_error *err)
{
    struct hps_model_table *files = hps_calloc(source->n_tables, sizeof(*files));
    if (files == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for %u tables", source->n_tables);
    }
    hps_status status = HPS_OK;
    for (uint32_t i = 0; status == HPS_OK && i < source->n_tables; i++) {
        files[i] = source->tables[i].files;
        status = hps_model_fingerprint(&files[i], 1, &source->tables[i].print, err);
        if (status != HPS_OK) {
            status = hps_error_prefix(err, status, "table \"%s\"", files[i].name);
        }
    }
    if (status == HPS_OK) {
        status = hps_model_fingerprint(files, source->n_tables, &source->print, err);
    }
    hps_free(files);
    return status;
}

hps_status hps_source_check_unchanged(const struct hps_source_table *table, struct hps_error *err)
{
    struct hps_fingerprint now;
    hps_status status = hps_model_fingerprint(&table->files, 1, &now, err);
    if (status == HPS_OK && now.hash != table->print.hash) {
        status = hps_error_set(err, HPS_PRECONDITION, "%s: changed while it was loaded",
                               table->files.path);
    }
    return status;
}

static hps_status order_by_manifest(struct hps_source *source, struct hps_error *err)
{
    struct hps_table_order order = {0};
    hps_status status = HPS_OK;
    for (size_t i = 0; status == HPS_OK && i < source->manifest.n_tables; i++) {
        status = hps_table_order_add(&order, source->manifest.tables[i].name);
    }
    if (status == HPS_OK) {
        hps_source_sort(source, &order);
    } else {
        status = hps_error_set(err, status, "no memory for the order of %zu tables",
                               source->manifest.n_tables);
    }
    hps_table_order_free(&order);
    return status;
}

/* takes the tables of `dir`. */
static hps_status source_from_dir(struct hps_source *source, struct hps_model_dir *dir,
                                  const struct hps_config_model *model, struct hps_error *err)
{
    source->text = hps_strdup(dir->path);
    source->dir = hps_strdup(dir->path);
    source->tables = hps_calloc(dir->n_tables, sizeof(*source->tables));
    if (source->text == NULL || source->dir == NULL || source->tables == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for %zu tables", dir->n_tables);
    }
    for (size_t i = 0; i < dir->n_tables; i++) {
        struct hps_source_table *table = &source->tables[source->n_tables++];
        table->files = dir->tables[i];
        memset(&dir->tables[i], 0, sizeof(dir->tables[i]));
        const struct hps_config_table *known = config_table(model, table->files.name);
        if (known != NULL) {
            table->dim = known->dim;
            table->default_values = known->default_values;
            table->n_default_values = known->n_default_values;
        }
    }
    hps_status status = order_by_manifest(source, err);
    return status == HPS_OK ? source_print(source, err) : status;
}

hps_status hps_source_open_dir(const char *path, const struct hps_config_model *model,
                               struct hps_source *out_source, struct hps_error *err)
{
    struct hps_source source = {0};
    struct hps_model_dir dir;
    hps_status status = hps_model_dir_open(path, &dir, err);
    if (status != HPS_OK) {
        return status;
    }
    status = hps_manifest_open(&dir, &source.manifest, err);
    if (status == HPS_OK) {
        status = hps_manifest_check_dir(&source.manifest, &dir, err);
    }
    if (status == HPS_OK) {
        status = source_from_dir(&source, &dir, model, err);
    }
    hps_model_dir_close(&dir);
    if (status != HPS_OK) {
        hps_source_close(&source);
        return status;
    }
    *out_source = source;
    return HPS_OK;
}

static hps_status source_add_config(struct hps_source *source, const struct hps_config_table *table,
                                    struct hps_error *err)
{
    struct hps_source_table *to = &source->tables[source->n_tables];
    hps_status status = hps_model_table_open(table->name, table->path, &to->files, err);
    if (status != HPS_OK) {
        return hps_error_prefix(err, status, "table \"%s\"", table->name);
    }
    source->n_tables++;
    to->dim = table->dim;
    to->default_values = table->default_values;
    to->n_default_values = table->n_default_values;
    return HPS_OK;
}

hps_status hps_source_open_config(const struct hps_config_model *model,
                                  struct hps_source *out_source, struct hps_error *err)
{
    struct hps_source source = {0};
    hps_status status = HPS_OK;
    source.text = hps_strdup(model->n_tables == 1 ? model->tables[0].path : "models[]");
    source.tables = hps_calloc(model->n_tables, sizeof(*source.tables));
    if (source.text == NULL || source.tables == NULL) {
        status = hps_error_set(err, HPS_NO_MEMORY, "no memory for %zu tables", model->n_tables);
    }
    for (size_t i = 0; status == HPS_OK && i < model->n_tables; i++) {
        status = source_add_config(&source, &model->tables[i], err);
    }
    if (status == HPS_OK) {
        status = source_print(&source, err);
    }
    if (status != HPS_OK) {
        hps_source_close(&source);
        return status;
    }
    *out_source = source;
    return HPS_OK;
}

static int by_place(const void *a, const void *b)
{
    const struct hps_source_table *left = a, *right = b;
    if (left->place != right->place) {
        return left->place < right->place ? -1 : 1;
    }
    return 0;
}

/* A table without a place comes behind those that have one, in the order in which it is now. */
void hps_source_sort(struct hps_source *source, const struct hps_table_order *order)
{
    for (uint32_t i = 0; i < source->n_tables; i++) {
        uint32_t place = hps_table_order_find(order, source->tables[i].files.name);
        source->tables[i].place = place != UINT32_MAX ? place : (uint64_t)UINT32_MAX + i;
    }
    qsort(source->tables, source->n_tables, sizeof(*source->tables), by_place);
}
