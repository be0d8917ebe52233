/* SPDX-License-Identifier: Apache-2.0
 *
 * manifest.json and the config.json of a DLE checkpoint. See config/manifest.h. Any thread.
 */
#include "config/manifest.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/buf.h"
#include "base/heap.h"
#include "base/rows/fileio.h"
#include "config/json.h"

enum { MANIFEST_VERSION = 1, MANIFEST_BYTES_MAX = 64 << 20, ITEMS_MAX = 1 << 20 };

static const char format_name[] = "hpsd-manifest";

/* The file being read. After a failure reading stops; the first failure is reported. */
struct source {
    const struct hps_roots *roots; /* NULL: any path */
    const char *path;
    struct hps_error *err;
    hps_status status;
};

static void no_memory(struct source *source)
{
    source->status =
        hps_error_set(source->err, HPS_NO_MEMORY, "%s: no memory to read it", source->path);
}

static void wrong(struct source *source, const char *where, const char *field, const char *expected)
{
    if (source->status == HPS_OK) {
        source->status = hps_error_set(source->err, HPS_INVALID, "%s: %s%s: expected %s",
                                       source->path, where, field, expected);
    }
}

/* Zeroed memory for n items; NULL: n is 0, or the source has failed. owner: the caller */
static void *alloc_items(struct source *source, size_t n, size_t size)
{
    void *items = source->status == HPS_OK && n > 0 ? hps_calloc(n, size) : NULL;

    if (source->status == HPS_OK && n > 0 && items == NULL) {
        no_memory(source);
    }
    return items;
}

/* A string of an object; NULL: an optional one is missing, or a failure. owner: the caller */
static char *get_string(struct source *source, const json_t *object, const char *where,
                        const char *field, bool required)
{
    const json_t *value = json_object_get(object, field);

    if (source->status != HPS_OK || (value == NULL && !required)) {
        return NULL;
    }
    if (!json_is_string(value)) {
        wrong(source, where, field, "a string");
        return NULL;
    }
    char *text = hps_strdup(json_string_value(value));
    if (text == NULL) {
        no_memory(source);
    }
    return text;
}

/* Whether the integer exists. If not, and on failure, *out_value is unchanged. */
static bool get_integer(struct source *source, const json_t *object, const char *where,
                        const char *field, int64_t min, int64_t max, int64_t *out_value)
{
    const json_t *value = json_object_get(object, field);

    if (value == NULL) {
        return false;
    }
    if (!json_is_integer(value) || json_integer_value(value) < min ||
        json_integer_value(value) > max) {
        char expected[80];
        (void)snprintf(expected, sizeof(expected), "an integer from %" PRId64 " to %" PRId64, min,
                       max);
        wrong(source, where, field, expected);
        return false;
    }
    *out_value = json_integer_value(value);
    return true;
}

/* Number of items of an array of the object; 0 if it is missing, or on failure. */
static size_t get_array(struct source *source, const json_t *object, const char *where,
                        const char *field, const json_t **out_array)
{
    const json_t *array = json_object_get(object, field);

    *out_array = array;
    if (array != NULL && (!json_is_array(array) || json_array_size(array) > ITEMS_MAX)) {
        wrong(source, where, field, "an array of at most 1048576 items");
        return 0;
    }
    return json_array_size(array);
}

/* Whether a file name stays below the directory: relative, without "..". */
static bool name_is_below(const char *name)
{
    size_t n = strlen(name);

    return n > 0 && name[0] != '/' && strcmp(name, "..") != 0 && strncmp(name, "../", 3) != 0 &&
           strstr(name, "/../") == NULL && (n < 3 || strcmp(name + n - 3, "/..") != 0);
}

static void read_crc(struct source *source, const char *where, const char *text,
                     struct hps_manifest_file *file)
{
    size_t n = strlen(text);

    for (size_t i = 0; i < n; i++) {
        const char *digit = strchr("0123456789abcdef", text[i] | 0x20);
        if (digit == NULL || *digit == '\0') {
            n = 0;
            break;
        }
        file->crc32c = file->crc32c << 4 | (uint32_t)(digit - "0123456789abcdef");
    }
    if (n != 8) {
        wrong(source, where, "crc32c", "8 hexadecimal digits");
    }
    file->crc32c_known = true;
}

static void read_file_entry(struct source *source, const json_t *json, const char *where,
                            struct hps_manifest_file *file)
{
    int64_t bytes = 0;

    file->name = get_string(source, json, where, "name", true);
    if (file->name != NULL && !name_is_below(file->name)) {
        wrong(source, where, "name", "a relative file name without '..'");
    }
    file->bytes_known = get_integer(source, json, where, "bytes", 0, INT64_MAX, &bytes);
    file->bytes = (uint64_t)bytes;
    char *crc = get_string(source, json, where, "crc32c", false);
    if (crc != NULL) {
        read_crc(source, where, crc, file);
    }
    hps_free(crc);
}

static void read_dtype(struct source *source, const json_t *json, const char *where,
                       struct hps_manifest_table *table)
{
    char *dtype = get_string(source, json, where, "dtype", false);

    if (dtype != NULL && (!hps_dtype_parse(dtype, strlen(dtype), &table->dtype) ||
                          !hps_dtype_is_stored(table->dtype))) {
        wrong(source, where, "dtype",
              "\"fp32\", \"fp16\", \"bf16\", \"int8_rowwise_f32\" or \"int8_rowwise_f16\"");
    }
    hps_free(dtype);
}

static void read_table(struct source *source, const json_t *json, size_t index,
                       struct hps_manifest_table *table)
{
    HPS_ASSERT(json != NULL);
    char where[64];
    const json_t *files = NULL;
    int64_t dim = 0;
    int64_t n_rows = 0;

    (void)snprintf(where, sizeof(where), "tables[%zu].", index);
    table->name = get_string(source, json, where, "name", true);
    if (table->name != NULL && !hps_model_name_valid(table->name)) {
        wrong(source, where, "name", "1 to 120 letters, digits, '_' or '-'");
    }
    (void)get_integer(source, json, where, "dim", 1, HPS_ROW_DIM_MAX, &dim);
    table->dim = (uint32_t)dim;
    table->n_rows_known = get_integer(source, json, where, "rows", 0, INT64_MAX, &n_rows);
    table->n_rows = (uint64_t)n_rows;
    read_dtype(source, json, where, table);
    size_t n_files = get_array(source, json, where, "files", &files);
    table->files = alloc_items(source, n_files, sizeof(*table->files));
    table->n_files = table->files != NULL ? n_files : 0;
    for (size_t i = 0; i < table->n_files && source->status == HPS_OK; i++) {
        (void)snprintf(where, sizeof(where), "tables[%zu].files[%zu].", index, i);
        read_file_entry(source, json_array_get(files, i), where, &table->files[i]);
    }
}

static void read_tables(struct source *source, const json_t *json, struct hps_manifest *manifest)
{
    const json_t *tables = NULL;
    size_t n_tables = get_array(source, json, "", "tables", &tables);

    if (n_tables == 0 || n_tables > HPS_MODEL_TABLES_MAX) {
        wrong(source, "", "tables", "an array of 1 to 4096 tables");
    }
    manifest->tables = alloc_items(source, n_tables, sizeof(*manifest->tables));
    manifest->n_tables = manifest->tables != NULL ? n_tables : 0;
    for (size_t i = 0; i < manifest->n_tables && source->status == HPS_OK; i++) {
        read_table(source, json_array_get(tables, i), i, &manifest->tables[i]);
        for (size_t k = 0; k < i && source->status == HPS_OK; k++) {
            if (strcmp(manifest->tables[k].name, manifest->tables[i].name) == 0) {
                source->status = hps_error_set(source->err, HPS_INVALID, "%s: table '%s' twice",
                                               source->path, manifest->tables[i].name);
            }
        }
    }
}

static void read_position(struct source *source, const json_t *json, size_t index,
                          struct hps_manifest_position *position)
{
    char where[64];
    int64_t partition = 0;

    (void)snprintf(where, sizeof(where), "start_positions[%zu].", index);
    position->topic = get_string(source, json, where, "topic", true);
    bool has_cluster = json_object_get(json, "cluster") != NULL;
    position->cluster =
        has_cluster ? get_string(source, json, where, "cluster", true) : alloc_items(source, 1, 1);
    if (!get_integer(source, json, where, "partition", 0, INT32_MAX, &partition)) {
        wrong(source, where, "partition", "an integer");
    }
    position->partition = (int32_t)partition;
    if (!get_integer(source, json, where, "offset", 0, INT64_MAX, &position->offset)) {
        wrong(source, where, "offset", "an integer");
    }
}

static void read_positions(struct source *source, const json_t *json, struct hps_manifest *manifest)
{
    const json_t *positions = NULL;
    size_t n = get_array(source, json, "", "start_positions", &positions);

    manifest->positions = alloc_items(source, n, sizeof(*manifest->positions));
    manifest->n_positions = manifest->positions != NULL ? n : 0;
    for (size_t i = 0; i < manifest->n_positions && source->status == HPS_OK; i++) {
        read_position(source, json_array_get(positions, i), i, &manifest->positions[i]);
    }
}

static void read_manifest(struct source *source, const json_t *json, struct hps_manifest *manifest)
{
    manifest->file = "manifest.json";
    char *format = get_string(source, json, "", "format", false);
    int64_t version = MANIFEST_VERSION;

    if (format != NULL && strcmp(format, format_name) != 0) {
        wrong(source, "", "format", "\"hpsd-manifest\"");
    }
    hps_free(format);
    (void)get_integer(source, json, "", "version", 1, INT32_MAX, &version);
    if (source->status == HPS_OK && version > MANIFEST_VERSION) {
        source->status = hps_error_set(source->err, HPS_NEWER_FORMAT,
                                       "%s: version: %" PRId64 ", this program reads up to %d",
                                       source->path, version, MANIFEST_VERSION);
    }
    manifest->lineage = get_string(source, json, "", "lineage", false);
    read_tables(source, json, manifest);
    read_positions(source, json, manifest);
}

/* The DLE scripts write one width per table, or one for all; 0: none. */
static uint32_t dle_dim(struct source *source, const json_t *dims, size_t index)
{
    const json_t *dim = json_is_array(dims) ? json_array_get(dims, index) : dims;

    if (dim == NULL) {
        return 0;
    }
    if (!json_is_integer(dim) || json_integer_value(dim) < 1 ||
        json_integer_value(dim) > HPS_ROW_DIM_MAX) {
        wrong(source, "", "embedding_dim", "integers from 1 to 65536");
        return 0;
    }
    return (uint32_t)json_integer_value(dim);
}

/* Without a description of tables there is nothing to check. */
static void read_dle(struct source *source, const json_t *json, struct hps_manifest *manifest)
{
    manifest->file = "config.json";
    const json_t *rows = NULL;
    size_t n_tables = get_array(source, json, "", "categorical_cardinalities", &rows);

    if (n_tables > HPS_MODEL_TABLES_MAX) {
        wrong(source, "", "categorical_cardinalities", "at most 4096 tables");
    }
    manifest->tables = alloc_items(source, n_tables, sizeof(*manifest->tables));
    manifest->n_tables = manifest->tables != NULL ? n_tables : 0;
    for (size_t i = 0; i < manifest->n_tables && source->status == HPS_OK; i++) {
        struct hps_manifest_table *table = &manifest->tables[i];
        const json_t *n = json_array_get(rows, i);

        if (!json_is_integer(n) || json_integer_value(n) < 0) {
            wrong(source, "", "categorical_cardinalities", "integers from 0");
        }
        table->n_rows = (uint64_t)json_integer_value(n);
        table->n_rows_known = true;
        table->name = hps_file_path("feature_%zu", i);
        table->dim = dle_dim(source, json_object_get(json, "embedding_dim"), i);
        if (table->name == NULL) {
            no_memory(source);
        }
    }
}

/* The whole file as JSON, an object unless the source has failed. owner: the caller (json_decref)
 */
static json_t *load_json(struct source *source)
{
    uint64_t bytes = 0;
    int fd = -1;
    json_error_t error;
    json_t *json = NULL;

    source->status = hps_roots_open_read(source->roots, source->path, &fd, &bytes, source->err);
    if (source->status != HPS_OK) {
        return NULL;
    }
    char *text = NULL;
    if (bytes > MANIFEST_BYTES_MAX) {
        source->status =
            hps_error_set(source->err, HPS_INVALID, "%s: %" PRIu64 " bytes, expected at most %d",
                          source->path, bytes, MANIFEST_BYTES_MAX);
        goto out;
    }
    text = hps_alloc((size_t)bytes);
    if (text == NULL) {
        no_memory(source);
        goto out;
    }
    source->status = hps_file_pread(fd, source->path, text, (size_t)bytes, 0, source->err);
    if (source->status != HPS_OK) {
        goto out;
    }
    hps_status status = hps_json_load(text, (size_t)bytes, 0, &json, &error);
    if (status == HPS_NO_MEMORY) {
        no_memory(source);
    } else if (status != HPS_OK) {
        source->status = hps_error_set(source->err, HPS_INVALID, "%s: line %d: %s", source->path,
                                       error.line, error.text);
    } else if (!json_is_object(json)) {
        wrong(source, "", "top level", "an object");
    }
out:
    hps_free(text);
    close(fd);
    return json;
}

static hps_status read_with(void (*read)(struct source *, const json_t *, struct hps_manifest *),
                            const struct hps_roots *roots, const char *path,
                            struct hps_manifest *out_manifest, struct hps_error *err)
{
    struct source source = {.roots = roots, .path = path, .err = err};
    struct hps_manifest manifest = {0};
    json_t *json = load_json(&source);

    if (source.status == HPS_OK) {
        read(&source, json, &manifest);
    }
    json_decref(json);
    if (source.status == HPS_OK) {
        *out_manifest = manifest;
    } else {
        hps_manifest_close(&manifest);
    }
    return source.status;
}

hps_status hps_manifest_read(const char *path, struct hps_manifest *out_manifest,
                             struct hps_error *err)
{
    return read_with(read_manifest, NULL, path, out_manifest, err);
}

hps_status hps_manifest_read_dle(const char *path, struct hps_manifest *out_manifest,
                                 struct hps_error *err)
{
    return read_with(read_dle, NULL, path, out_manifest, err);
}

hps_status hps_manifest_open(const struct hps_model_dir *dir, struct hps_manifest *out_manifest,
                             struct hps_error *err)
{
    if (dir->manifest_path != NULL) {
        return read_with(read_manifest, dir->roots, dir->manifest_path, out_manifest, err);
    }
    if (dir->dle_path != NULL) {
        return read_with(read_dle, dir->roots, dir->dle_path, out_manifest, err);
    }
    *out_manifest = (struct hps_manifest){0};
    return HPS_OK;
}

void hps_manifest_close(struct hps_manifest *manifest)
{
    for (size_t i = 0; i < manifest->n_tables; i++) {
        for (size_t k = 0; k < manifest->tables[i].n_files; k++) {
            hps_free(manifest->tables[i].files[k].name);
        }
        hps_free(manifest->tables[i].files);
        hps_free(manifest->tables[i].name);
    }
    for (size_t i = 0; i < manifest->n_positions; i++) {
        hps_free(manifest->positions[i].cluster);
        hps_free(manifest->positions[i].topic);
    }
    hps_free(manifest->tables);
    hps_free(manifest->positions);
    hps_free(manifest->lineage);
    *manifest = (struct hps_manifest){0};
}

const struct hps_manifest_table *hps_manifest_find(const struct hps_manifest *manifest,
                                                   const char *table)
{
    for (size_t i = 0; i < manifest->n_tables; i++) {
        if (strcmp(manifest->tables[i].name, table) == 0) {
            return &manifest->tables[i];
        }
    }
    return NULL;
}

static hps_status check_size(const struct hps_manifest_file *file, const struct hps_roots *roots,
                             const char *dir_path, struct hps_error *err)
{
    HPS_ASSERT(dir_path != NULL);
    struct stat st;

    char *path = hps_file_path("%s/%s", dir_path, file->name);
    if (path == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "%s: no memory to check it", dir_path);
    }
    hps_status status = hps_roots_stat(roots, path, &st, err);
    if (status != HPS_OK) {
        hps_ignore(hps_error_prefix(err, status, "manifest.json names a file"));
    } else if (file->bytes_known && (uint64_t)st.st_size != file->bytes) {
        status = hps_error_set(err, HPS_PRECONDITION,
                               "%s: %" PRIu64 " bytes, expected %" PRIu64 " as in manifest.json",
                               path, (uint64_t)st.st_size, file->bytes);
    }
    hps_free(path);
    return status;
}

static hps_status check_sizes(const struct hps_manifest_table *table, const struct hps_roots *roots,
                              const char *dir_path, struct hps_error *err)
{
    hps_status status = HPS_OK;
    for (size_t i = 0; i < table->n_files && status == HPS_OK; i++) {
        status = check_size(&table->files[i], roots, dir_path, err);
    }
    return status;
}

hps_status hps_manifest_check_dir(const struct hps_manifest *manifest,
                                  const struct hps_model_dir *dir, struct hps_error *err)
{
    if (manifest->n_tables == 0) {
        return HPS_OK;
    }
    for (size_t i = 0; i < dir->n_tables; i++) {
        if (hps_manifest_find(manifest, dir->tables[i].name) == NULL) {
            return hps_error_set(err, HPS_PRECONDITION, "%s: table '%s' has files but is not in %s",
                                 dir->path, dir->tables[i].name, manifest->file);
        }
    }
    for (size_t i = 0; i < manifest->n_tables; i++) {
        const struct hps_manifest_table *table = &manifest->tables[i];
        bool found = false;

        for (size_t k = 0; k < dir->n_tables && !found; k++) {
            found = strcmp(dir->tables[k].name, table->name) == 0;
        }
        if (!found) {
            return hps_error_set(err, HPS_PRECONDITION, "%s: table '%s' is in %s but has no files",
                                 dir->path, table->name, manifest->file);
        }
        hps_status status = check_sizes(table, dir->roots, dir->path, err);
        if (status != HPS_OK) {
            return status;
        }
    }
    return HPS_OK;
}

hps_status hps_manifest_check_sizes(const struct hps_manifest *manifest, const char *table,
                                    const char *dir_path, struct hps_error *err)
{
    const struct hps_manifest_table *said = hps_manifest_find(manifest, table);
    return said == NULL ? HPS_OK : check_sizes(said, NULL, dir_path, err);
}

hps_status hps_manifest_check_table(const struct hps_manifest *manifest, const char *table,
                                    const struct hps_row_desc *desc, struct hps_error *err)
{
    HPS_ASSERT(table != NULL);
    const struct hps_manifest_table *said = hps_manifest_find(manifest, table);

    if (said == NULL) {
        return HPS_OK;
    }
    if (said->dim != 0 && said->dim != desc->dim) {
        bool narrow_keys = desc->form == HPS_ROW_FORM_HUGECTR && desc->dim == 2 * said->dim;
        return hps_error_set(
            err, HPS_PRECONDITION,
            "table '%s': %" PRIu32 " values per row, expected %" PRIu32 " as in %s%s", table,
            desc->dim, said->dim, manifest->file,
            narrow_keys ? "; its key file looks like keys of 4 bytes, write int64" : "");
    }
    if (said->n_rows_known && said->n_rows != desc->n_rows) {
        return hps_error_set(err, HPS_PRECONDITION,
                             "table '%s': %" PRIu64 " rows, expected %" PRIu64 " as in %s", table,
                             desc->n_rows, said->n_rows, manifest->file);
    }
    if (said->dtype != 0 && said->dtype != desc->file_dtype) {
        return hps_error_set(err, HPS_PRECONDITION, "table '%s': rows of %s, expected %s as in %s",
                             table, hps_dtype_name(desc->file_dtype), hps_dtype_name(said->dtype),
                             manifest->file);
    }
    return HPS_OK;
}

hps_status hps_manifest_check_files(const struct hps_manifest *manifest, const char *table,
                                    const struct hps_roots *roots, const char *dir_path,
                                    const atomic_bool *cancel, struct hps_error *err)
{
    const struct hps_manifest_table *said = hps_manifest_find(manifest, table);

    for (size_t i = 0; said != NULL && i < said->n_files; i++) {
        const struct hps_manifest_file *file = &said->files[i];
        uint64_t bytes = 0;
        uint32_t crc = 0;
        int fd = -1;

        if (!file->crc32c_known) {
            continue;
        }
        char *path = hps_file_path("%s/%s", dir_path, file->name);
        if (path == NULL) {
            return hps_error_set(err, HPS_NO_MEMORY, "%s: no memory to check it", dir_path);
        }
        hps_status status = hps_roots_open_read(roots, path, &fd, &bytes, err);
        if (status == HPS_OK) {
            status = hps_file_copy(fd, -1, path, bytes, cancel, &crc, err);
            close(fd);
        }
        if (status == HPS_OK && crc != file->crc32c) {
            status = hps_error_set(err, HPS_DATA_LOSS,
                                   "%s: CRC-32C %08" PRIx32 ", expected %08" PRIx32 " as in %s",
                                   path, crc, file->crc32c, manifest->file);
        }
        hps_free(path);
        if (status != HPS_OK) {
            return status;
        }
    }
    return HPS_OK;
}

/* The setters take their value and fail if it is NULL, so one check of all results is enough. */
static json_t *file_json(const struct hps_manifest_file *file)
{
    HPS_ASSERT(file->name != NULL);
    char crc[16];
    json_t *json = json_object();
    int failed = json_object_set_new(json, "name", json_string(file->name));

    if (file->bytes_known) {
        failed |= json_object_set_new(json, "bytes", json_integer((json_int_t)file->bytes));
    }
    if (file->crc32c_known) {
        (void)snprintf(crc, sizeof(crc), "%08" PRIx32, file->crc32c);
        failed |= json_object_set_new(json, "crc32c", json_string(crc));
    }
    if (failed != 0) {
        json_decref(json);
        return NULL;
    }
    return json;
}

static json_t *table_json(const struct hps_manifest_table *table)
{
    json_t *json = json_object();
    json_t *files = json_array();
    int failed = json_object_set_new(json, "name", json_string(table->name));

    if (table->dim != 0) {
        failed |= json_object_set_new(json, "dim", json_integer(table->dim));
    }
    if (table->n_rows_known) {
        failed |= json_object_set_new(json, "rows", json_integer((json_int_t)table->n_rows));
    }
    if (table->dtype != 0) {
        failed |= json_object_set_new(json, "dtype", json_string(hps_dtype_name(table->dtype)));
    }
    for (size_t i = 0; i < table->n_files; i++) {
        failed |= json_array_append_new(files, file_json(&table->files[i]));
    }
    failed |= json_object_set_new(json, "files", files);
    if (failed != 0) {
        json_decref(json);
        return NULL;
    }
    return json;
}

static json_t *position_json(const struct hps_manifest_position *position)
{
    return json_pack("{s:s, s:s, s:i, s:I}", "cluster", position->cluster, "topic", position->topic,
                     "partition", (int)position->partition, "offset", (json_int_t)position->offset);
}

static json_t *manifest_json(const struct hps_manifest *manifest)
{
    json_t *json = json_object();
    json_t *tables = json_array();
    json_t *positions = json_array();
    int failed = json_object_set_new(json, "format", json_string(format_name));

    failed |= json_object_set_new(json, "version", json_integer(MANIFEST_VERSION));
    if (manifest->lineage != NULL) {
        failed |= json_object_set_new(json, "lineage", json_string(manifest->lineage));
    }
    for (size_t i = 0; i < manifest->n_tables; i++) {
        failed |= json_array_append_new(tables, table_json(&manifest->tables[i]));
    }
    failed |= json_object_set_new(json, "tables", tables);
    for (size_t i = 0; i < manifest->n_positions; i++) {
        failed |= json_array_append_new(positions, position_json(&manifest->positions[i]));
    }
    if (manifest->n_positions > 0) {
        failed |= json_object_set_new(json, "start_positions", positions);
    } else {
        json_decref(positions);
    }
    if (failed != 0) {
        json_decref(json);
        return NULL;
    }
    return json;
}

static int append_text(const char *data, size_t size, void *ctx)
{
    struct hps_buf *text = (struct hps_buf *)ctx;

    return hps_buf_append(text, data, size) == HPS_OK ? 0 : -1;
}

hps_status hps_manifest_write(const struct hps_manifest *manifest, const char *path,
                              struct hps_error *err)
{
    HPS_ASSERT(path != NULL);
    struct hps_buf text;
    hps_status status = HPS_NO_MEMORY;

    hps_buf_init(&text, MANIFEST_BYTES_MAX);
    json_t *json = manifest_json(manifest);
    if (json != NULL && json_dump_callback(json, append_text, &text, JSON_INDENT(2)) == 0 &&
        append_text("\n", 1, &text) == 0) {
        status = hps_file_replace(path, text.data, text.size, err);
    } else {
        hps_error_set(err, status, "%s: no memory to write it, or a name that is not UTF-8", path);
    }
    json_decref(json);
    hps_buf_fini(&text);
    return status;
}
