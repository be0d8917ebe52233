/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds the files of each table in a directory or models[]. Runs on the admin and loader threads.
 */
#include "server/load/source.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/heap.h"
#include "base/rows/fileio.h"

_Static_assert((int)HPS_CONFIG_ROW_DTYPE_FP32 == (int)HPS_DTYPE_FP32 &&
                   (int)HPS_CONFIG_ROW_DTYPE_FP16 == (int)HPS_DTYPE_FP16 &&
                   (int)HPS_CONFIG_ROW_DTYPE_BF16 == (int)HPS_DTYPE_BF16 &&
                   (int)HPS_CONFIG_ROW_DTYPE_INT8_F32 == (int)HPS_DTYPE_INT8_ROWWISE_F32 &&
                   (int)HPS_CONFIG_ROW_DTYPE_INT8_F16 == (int)HPS_DTYPE_INT8_ROWWISE_F16,
               "types of rows");

void hps_source_close(struct hps_source *source)
{
    for (uint32_t i = 0; i < source->n_tables; i++) {
        hps_model_table_close(&source->tables[i].files);
    }
    hps_free(source->tables);
    hps_free(source->text);
    hps_free(source->dir);
    hps_manifest_close(&source->manifest);
    hps_roots_close(source->roots);
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

/* Apply the options of models[] for a table; NULL: none. */
static void take_config(struct hps_source_table *table, const struct hps_config_table *known)
{
    if (known != NULL) {
        table->dim = known->dim;
        table->default_values = known->default_values;
        table->n_default_values = known->n_default_values;
        table->row_dtype = (enum hps_dtype)known->row_dtype;
    }
}

void hps_source_set_row_dtype(struct hps_source *source, enum hps_dtype dtype)
{
    HPS_ASSERT(dtype == 0 || hps_dtype_is_stored(dtype));
    for (uint32_t i = 0; i < source->n_tables; i++) {
        source->tables[i].row_dtype = dtype;
    }
}

/* Compute the fingerprint by canonical paths. `files` are the files of the source. */
static hps_status canonical_print(struct hps_source *source, struct hps_model_table *files,
                                  struct hps_error *err)
{
    char path[PATH_MAX];
    hps_status status = HPS_OK;
    uint32_t n = 0;
    while (status == HPS_OK && n < source->n_tables) {
        hps_source_canonical(source->tables[n].files.path, path);
        files[n].path = hps_strdup(path);
        status = files[n++].path != NULL
                     ? HPS_OK
                     : hps_error_set(err, HPS_NO_MEMORY, "no memory for a path");
    }
    if (status == HPS_OK) {
        status = hps_model_fingerprint(files, source->n_tables, &source->canonical, err);
    }
    for (uint32_t i = 0; i < n; i++) {
        hps_free(files[i].path);
    }
    return status;
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
    if (status == HPS_OK) {
        status = canonical_print(source, files, err);
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
    HPS_ASSERT(source->n_tables == 0);
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
        const struct hps_manifest_table *said =
            hps_manifest_find(&source->manifest, table->files.name);
        take_config(table, config_table(model, table->files.name));
        table->file_dtype = said != NULL ? said->dtype : 0;
    }
    hps_status status = order_by_manifest(source, err);
    return status == HPS_OK ? source_print(source, err) : status;
}

hps_status hps_source_open_dir(struct hps_roots *roots, const char *path,
                               const struct hps_config_model *model, struct hps_source *out_source,
                               struct hps_error *err)
{
    struct hps_source source = {.roots = roots};
    struct hps_model_dir dir;
    hps_status status = hps_model_dir_open(path, roots, &dir, err);
    if (status != HPS_OK) {
        hps_source_close(&source);
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

static hps_status source_add(struct hps_source *source, const char *name, const char *path,
                             const struct hps_config_table *known, struct hps_error *err)
{
    struct hps_source_table *to = &source->tables[source->n_tables];
    HPS_ASSERT(to->files.name == NULL); /* zeroed by the caller */
    hps_status status = hps_model_table_open(name, path, source->roots, &to->files, err);
    if (status != HPS_OK) {
        return hps_error_prefix(err, status, "table \"%s\"", name);
    }
    source->n_tables++;
    take_config(to, known);
    return HPS_OK;
}

/* takes `source`; `status`: result of adding its tables. */
static hps_status source_finish(struct hps_source *source, hps_status status,
                                struct hps_source *out_source, struct hps_error *err)
{
    HPS_ASSERT(status != HPS_OK || source->n_tables > 0);
    if (status == HPS_OK) {
        status = source_print(source, err);
    }
    if (status != HPS_OK) {
        hps_source_close(source);
        return status;
    }
    *out_source = *source;
    return HPS_OK;
}

/* Add the directory that contains the target of a configured path. */
static hps_status add_root_of(struct hps_roots *roots, const struct hps_config_table *table,
                              struct hps_error *err)
{
    char resolved[PATH_MAX];
    struct stat info;
    char *file = hps_strndup(table->path, hps_safetensors_file_size(table->path));
    if (file == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for a path");
    }
    bool found = realpath(file, resolved) != NULL;
    hps_free(file);
    if (!found) {
        int error = errno;
        /* A link without target, or not the common prefix of a pair either. */
        if (lstat(table->path, &info) == 0 || !hps_source_canonical(table->path, resolved)) {
            hps_status status = hps_file_error(err, error, "cannot open", table->path);
            return hps_error_prefix(err, status, "table \"%s\"", table->name);
        }
    }
    char *slash = strrchr(resolved, '/');
    HPS_ASSERT(slash != NULL);
    slash[slash == resolved ? 1 : 0] = '\0';
    return hps_roots_add(roots, resolved, err);
}

hps_status hps_source_open_config(const struct hps_strings *model_roots,
                                  const struct hps_config_model *model,
                                  struct hps_source *out_source, struct hps_error *err)
{
    struct hps_source source = {0};
    hps_status status =
        hps_roots_open("server.model_roots", (const char *const *)model_roots->items,
                       model_roots->n, &source.roots, err);
    for (size_t i = 0; status == HPS_OK && i < model->n_tables; i++) {
        status = add_root_of(source.roots, &model->tables[i], err);
    }
    if (status != HPS_OK) {
        return source_finish(&source, status, out_source, err);
    }
    source.text = hps_strdup(model->n_tables == 1 ? model->tables[0].path : HPS_SOURCE_CONFIG);
    source.tables = hps_calloc(model->n_tables, sizeof(*source.tables));
    if (source.text == NULL || source.tables == NULL) {
        status = hps_error_set(err, HPS_NO_MEMORY, "no memory for %zu tables", model->n_tables);
    }
    for (size_t i = 0; status == HPS_OK && i < model->n_tables; i++) {
        const struct hps_config_table *table = &model->tables[i];
        status = source_add(&source, table->name, table->path, table, err);
    }
    return source_finish(&source, status, out_source, err);
}

static hps_status check_named(const struct hps_source_named *tables, size_t n_tables,
                              struct hps_error *err)
{
    if (n_tables == 0 || n_tables > HPS_MODEL_TABLES_MAX) {
        return hps_error_set(err, HPS_INVALID, "tables: got %zu, expected 1 to %d", n_tables,
                             HPS_MODEL_TABLES_MAX);
    }
    for (size_t i = 1; i < n_tables; i++) {
        for (size_t k = 0; k < i; k++) {
            if (strcmp(tables[i].name, tables[k].name) == 0) {
                return hps_error_set(err, HPS_INVALID, "tables: \"%.130s\" twice: %s and %s",
                                     tables[i].name, tables[k].path, tables[i].path);
            }
        }
    }
    return HPS_OK;
}

/* Text for messages: the path of the first table, and the number of further tables. owner: the
 * caller */
static char *named_text(const struct hps_source_named *tables, size_t n_tables)
{
    return n_tables == 1 ? hps_strdup(tables[0].path)
                         : hps_file_path("%s and %zu more", tables[0].path, n_tables - 1);
}

hps_status hps_source_open_tables(struct hps_roots *roots, const struct hps_source_named *tables,
                                  size_t n_tables, const struct hps_config_model *model,
                                  struct hps_source *out_source, struct hps_error *err)
{
    struct hps_source source = {.roots = roots};
    hps_status status = check_named(tables, n_tables, err);
    if (status != HPS_OK) {
        return source_finish(&source, status, out_source, err);
    }
    source.text = named_text(tables, n_tables);
    source.tables = hps_calloc(n_tables, sizeof(*source.tables));
    if (source.text == NULL || source.tables == NULL) {
        status = hps_error_set(err, HPS_NO_MEMORY, "no memory for %zu tables", n_tables);
    }
    for (size_t i = 0; status == HPS_OK && i < n_tables; i++) {
        status = source_add(&source, tables[i].name, tables[i].path,
                            config_table(model, tables[i].name), err);
        if (status == HPS_OK && tables[i].row_dtype.given) {
            source.tables[i].row_dtype = tables[i].row_dtype.dtype;
        }
    }
    return source_finish(&source, status, out_source, err);
}

bool hps_source_canonical(const char *path, char out_path[PATH_MAX])
{
    char above[PATH_MAX];
    char resolved[PATH_MAX];
    size_t size = strlen(path);
    while (size > 1 && path[size - 1] == '/') {
        size--;
    }
    size_t n_file = hps_safetensors_file_size(path);
    size_t begin = size < n_file ? size : n_file; /* names of tensors may have slashes */
    while (begin > 0 && path[begin - 1] != '/') {
        begin--;
    }
    int n = snprintf(above, sizeof(above), "%.*s", (int)begin, begin > 0 ? path : "");
    const char *last = path + begin;
    bool is_name = size > begin && strncmp(last, ".", size - begin) != 0 &&
                   strncmp(last, "..", size - begin) != 0;
    bool fits = n >= 0 && (size_t)n < sizeof(above) && size < PATH_MAX;
    if (fits && realpath(!is_name ? path : begin > 0 ? above : ".", resolved) != NULL) {
        n = !is_name
                ? snprintf(out_path, PATH_MAX, "%s", resolved)
                : snprintf(out_path, PATH_MAX, "%s/%.*s",
                           strcmp(resolved, "/") == 0 ? "" : resolved, (int)(size - begin), last);
        if (n >= 0 && n < PATH_MAX) {
            return true;
        }
    }
    snprintf(out_path, PATH_MAX, "%s", path);
    return false;
}

static int by_place(const void *a, const void *b)
{
    const struct hps_source_table *left = a, *right = b;
    if (left->place != right->place) {
        return left->place < right->place ? -1 : 1;
    }
    return 0;
}

void hps_source_sort(struct hps_source *source, const struct hps_table_order *order)
{
    for (uint32_t i = 0; i < source->n_tables; i++) {
        uint32_t place = hps_table_order_find(order, source->tables[i].files.name);
        source->tables[i].place = place != UINT32_MAX ? place : (uint64_t)UINT32_MAX + i;
    }
    qsort(source->tables, source->n_tables, sizeof(*source->tables), by_place);
    for (uint32_t i = 1; i < source->n_tables; i++) {
        HPS_DEBUG_ASSERT(source->tables[i - 1].place < source->tables[i].place);
    }
}
