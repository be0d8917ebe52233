/* SPDX-License-Identifier: Apache-2.0
 *
 * From a directory or models[] to the files of each table. Runs on the admin and loader threads.
 */
#include "server/source.h"

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

/* Position of `name` in the manifest; behind all others when it is not there. */
static size_t manifest_rank(const struct hps_manifest *manifest, const char *name)
{
    for (size_t i = 0; i < manifest->n_tables; i++) {
        if (strcmp(manifest->tables[i].name, name) == 0) {
            return i;
        }
    }
    return manifest->n_tables;
}

/* Stable insertion sort: tables are few, and mostly in order. */
static void order_by_manifest(struct hps_source *source)
{
    for (uint32_t i = 1; i < source->n_tables; i++) {
        struct hps_source_table moving = source->tables[i];
        size_t rank = manifest_rank(&source->manifest, moving.files.name);
        uint32_t at = i;
        while (at > 0 &&
               manifest_rank(&source->manifest, source->tables[at - 1].files.name) > rank) {
            source->tables[at] = source->tables[at - 1];
            at--;
        }
        source->tables[at] = moving;
    }
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
    order_by_manifest(source);
    return source_print(source, err);
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

void hps_source_order_like(struct hps_source *source, const struct hps_version *version)
{
    if (source->n_tables != version->n_tables) {
        return;
    }
    for (uint32_t i = 0; i < source->n_tables; i++) {
        const char *name = source->tables[i].files.name;
        if (hps_version_table(version, name, strlen(name)) == UINT32_MAX) {
            return;
        }
    }
    for (uint32_t i = 0; i < source->n_tables;) {
        const char *name = source->tables[i].files.name;
        uint32_t to = hps_version_table(version, name, strlen(name));
        if (to == i) {
            i++;
            continue;
        }
        struct hps_source_table moving = source->tables[to];
        source->tables[to] = source->tables[i];
        source->tables[i] = moving;
    }
}
