/* SPDX-License-Identifier: Apache-2.0
 *
 * models[] of the configuration: turns HPS's parallel lists, with one entry per table, into tables.
 * Main thread.
 */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/heap.h"
#include "base/rows/modeldir.h"
#include "config/parse_internal.h"

struct model_reader {
    const struct parse_reader *reader;
    const struct hps_text_path *path;
    json_t *object;
    struct hps_config_model *model;
};

/* The array of `id`; NULL if it is absent. Checks its type, and its length unless n is SIZE_MAX. */
static hps_status get_array(const struct model_reader *m, enum hps_option_id id, size_t n,
                            const json_t **out_array)
{
    HPS_ASSERT(id < HPS_OPTION_COUNT && hps_options[id].section == HPS_SECTION_model);
    const json_t *array = json_object_get(m->object, hps_options[id].name);
    struct hps_text_path path = {.parent = m->path, .key = hps_options[id].name};
    if (array != NULL && !json_is_array(array)) {
        return parse_fail_item(m->reader, &path, "a list with one entry for each table");
    }
    if (array != NULL && n != SIZE_MAX && json_array_size(array) != n) {
        return parse_fail(m->reader, &path, HPS_INVALID,
                          "got %zu entries, expected %zu, one for each table in sparse_files",
                          json_array_size(array), n);
    }
    *out_array = array;
    return HPS_OK;
}

/* Read an integer of a per-table list, within the range of the option. NULL: the list is missing.
 */
static hps_status read_u32(const struct model_reader *m, enum hps_option_id id, const json_t *array,
                           size_t i, uint32_t *out_value)
{
    HPS_ASSERT(array == NULL || i < json_array_size(array));
    if (array == NULL) {
        return HPS_OK;
    }
    const struct hps_option *option = &hps_options[id];
    struct hps_text_path list = {.parent = m->path, .key = option->name};
    struct hps_text_path path = {.parent = &list, .index = i};
    const json_t *item = json_array_get(array, i);
    struct hps_option number = *option;
    number.type = HPS_OPTION_TYPE_U32;
    number.offset = 0;
    char scratch[GOT_CHARS];
    const char *text = parse_scalar_text(m->reader, &path, &number, item, scratch, sizeof(scratch));
    hps_status status = text == NULL ? HPS_INVALID : hps_option_set_text(&number, out_value, text);
    return status == HPS_OK
               ? HPS_OK
               : parse_go_on(parse_fail_value(m->reader, &path, &number, NULL, status));
}

static const char *remote_scheme(const char *path)
{
    static const char *const schemes[] = {"hdfs:", "s3:", "gs:", "https:", "http:"};
    for (size_t i = 0; i < sizeof(schemes) / sizeof(schemes[0]); i++) {
        if (strncasecmp(path, schemes[i], strlen(schemes[i])) == 0) {
            return schemes[i];
        }
    }
    return NULL;
}

/* Read a path; "" after an error. */
static hps_status read_path(const struct model_reader *m, const struct hps_text_path *path,
                            const json_t *item, const char **out_file)
{
    const char *file = json_string_value(item);
    const char *scheme = file == NULL ? NULL : remote_scheme(file);
    *out_file = "";
    if (file == NULL || file[0] == '\0') {
        return parse_go_on(parse_fail_item(m->reader, path, "the path of a table"));
    }
    if (scheme != NULL) {
        return parse_go_on(parse_fail(
            m->reader, path, HPS_UNIMPLEMENTED,
            "got \"%.60s\", but this build lacks %s files; expected a local path", file, scheme));
    }
    *out_file = file;
    return HPS_OK;
}

/* INVALID: the number of tables is unknown. */
static hps_status read_sparse_files(const struct model_reader *m)
{
    const json_t *files = NULL;
    hps_status status = get_array(m, HPS_OPTION_model_sparse_files, SIZE_MAX, &files);
    struct hps_text_path list = {.parent = m->path, .key = "sparse_files"};
    size_t n = json_array_size(files);
    if (status == HPS_OK && files == NULL) {
        return HPS_INVALID; /* reported as a missing key */
    }
    if (status == HPS_OK && (n == 0 || n > HPS_MODEL_TABLES_MAX)) {
        return parse_fail(m->reader, &list, HPS_INVALID,
                          "got %zu entries, expected 1 to %d, one for each table", n,
                          (int)HPS_MODEL_TABLES_MAX);
    }
    for (size_t i = 0; i < n && status == HPS_OK; i++) {
        struct hps_text_path path = {.parent = &list, .index = i};
        const char *file = NULL;
        status = read_path(m, &path, json_array_get(files, i), &file);
        if (status != HPS_OK) {
            return status;
        }
        struct hps_config_table *table = NULL;
        status = hps_config_add_table(m->model, &table);
        if (status == HPS_OK) {
            table->path = hps_strdup(file);
            status = table->path == NULL ? HPS_NO_MEMORY : HPS_OK;
        }
        if (status != HPS_OK) {
            return parse_no_memory(m->reader);
        }
    }
    return status;
}

static hps_status check_name(const struct parse_reader *reader, const struct hps_text_path *path,
                             const char *name)
{
    if (name != NULL && hps_model_name_valid(name)) {
        return HPS_OK;
    }
    return parse_fail_item(reader, path, "a name of 1 to 120 of a-z A-Z 0-9 _ -");
}

static hps_status read_table_names(const struct model_reader *m)
{
    const json_t *names = NULL;
    size_t n = m->model->n_tables;
    hps_status status = get_array(m, HPS_OPTION_model_embedding_table_names, n, &names);
    struct hps_text_path list = {.parent = m->path, .key = "embedding_table_names"};
    for (size_t i = 0; i < n && status == HPS_OK; i++) {
        char fallback[48];
        struct hps_text_path path = {.parent = &list, .index = i};
        (void)snprintf(fallback, sizeof(fallback), "sparse_embedding%zu", i);
        const char *name = names == NULL ? fallback : json_string_value(json_array_get(names, i));
        status = check_name(m->reader, &path, name);
        for (size_t j = 0; j < i && status == HPS_OK; j++) {
            const char *other = m->model->tables[j].name; /* NULL: it was rejected */
            if (other != NULL && strcmp(other, name) == 0) {
                status = parse_fail(m->reader, &path, HPS_INVALID,
                                    "got \"%s\" again, expected different names", name);
            }
        }
        if (status == HPS_OK) {
            m->model->tables[i].name = hps_strdup(name);
            status = m->model->tables[i].name == NULL ? parse_no_memory(m->reader) : HPS_OK;
        }
        status = parse_go_on(status);
    }
    return status;
}

static hps_status read_widths(const struct model_reader *m)
{
    const json_t *dims = NULL;
    struct hps_config_model *model = m->model;
    hps_status status = parse_go_on(
        get_array(m, HPS_OPTION_model_embedding_vecsize_per_table, model->n_tables, &dims));
    for (size_t i = 0; i < model->n_tables && status == HPS_OK; i++) {
        struct hps_config_table *table = &model->tables[i];
        status = read_u32(m, HPS_OPTION_model_embedding_vecsize_per_table, dims, i, &table->dim);
    }
    return status;
}

/* Read a number, or a string with one, that float32 can hold. */
static hps_status read_float(const struct parse_reader *reader, const struct hps_text_path *path,
                             const json_t *item, float *out_value)
{
    static const struct hps_option number = {
        .type = HPS_OPTION_TYPE_F64, .f_min = -(double)FLT_MAX, .f_max = (double)FLT_MAX};
    char scratch[GOT_CHARS];
    double value = 0;
    const char *text = parse_scalar_text(reader, path, &number, item, scratch, sizeof(scratch));
    if (text == NULL || hps_option_set_text(&number, &value, text) != HPS_OK) {
        return parse_fail_item(reader, path, "a number that fits float32");
    }
    *out_value = (float)value;
    return HPS_OK;
}

/* Read one entry of default_value_for_each_table: NULL (short list), a number, or a row. */
static hps_status read_default_value(const struct parse_reader *reader,
                                     const struct hps_text_path *path, const json_t *item,
                                     struct hps_config_table *table)
{
    uint32_t n = json_is_array(item) ? table->dim : 1;
    if (n == 0) {
        return HPS_OK; /* the width was rejected */
    }
    if (json_is_array(item) && json_array_size(item) != n) {
        return parse_fail(
            reader, path, HPS_INVALID,
            "got %zu numbers, expected %u, the width of the table, or one number without a list",
            json_array_size(item), (unsigned)n);
    }
    table->default_values = hps_calloc(n, sizeof(float));
    if (table->default_values == NULL) {
        return parse_no_memory(reader);
    }
    table->n_default_values = n;
    if (item == NULL) {
        return HPS_OK;
    }
    if (!json_is_array(item)) {
        return read_float(reader, path, item, table->default_values);
    }
    hps_status status = HPS_OK;
    for (uint32_t i = 0; i < n && status == HPS_OK; i++) {
        struct hps_text_path inner = {.parent = path, .index = i};
        status = parse_go_on(
            read_float(reader, &inner, json_array_get(item, i), &table->default_values[i]));
    }
    return status;
}

static hps_status read_default_values(const struct model_reader *m)
{
    const json_t *values = NULL;
    size_t n = m->model->n_tables;
    hps_status status =
        get_array(m, HPS_OPTION_model_default_value_for_each_table, SIZE_MAX, &values);
    struct hps_text_path list = {.parent = m->path, .key = "default_value_for_each_table"};
    if (status == HPS_OK && values != NULL && json_array_size(values) != n) {
        status = parse_note(m->reader, &list, HPS_NOTE_WARNING,
                            "got %zu entries, expected %zu, one for each table; missing ones are "
                            "0.0, extra ones are ignored",
                            json_array_size(values), n);
    }
    for (size_t i = 0; i < n && status == HPS_OK; i++) {
        struct hps_text_path path = {.parent = &list, .index = i};
        status = parse_go_on(
            read_default_value(m->reader, &path, json_array_get(values, i), &m->model->tables[i]));
    }
    return status;
}

/* Read one word for all tables, or a list with one for each. */
static hps_status read_row_dtypes(const struct model_reader *m)
{
    struct hps_option word = hps_options[HPS_OPTION_model_row_dtype];
    const json_t *value = json_object_get(m->object, word.name);
    struct hps_text_path all = {.parent = m->path, .key = word.name};
    bool is_list = json_is_array(value);
    word.type = HPS_OPTION_TYPE_ENUM;
    word.offset = 0;
    if (value == NULL) {
        return HPS_OK;
    }
    if (is_list && json_array_size(value) != m->model->n_tables) {
        return parse_fail(
            m->reader, &all, HPS_INVALID,
            "got %zu entries, expected %zu, one for each table in sparse_files, or one "
            "word for all of them",
            json_array_size(value), m->model->n_tables);
    }
    for (size_t i = 0; i < m->model->n_tables; i++) {
        struct hps_text_path item = {.parent = &all, .index = i};
        const struct hps_text_path *path = is_list ? &item : &all;
        const json_t *json = is_list ? json_array_get(value, i) : value;
        const char *text = json_string_value(json);
        hps_status status = text == NULL
                                ? HPS_INVALID
                                : hps_option_set_text(&word, &m->model->tables[i].row_dtype, text);
        if (status != HPS_OK) {
            status = parse_go_on(parse_fail_value(m->reader, path, &word, text, status));
            if (status != HPS_OK || !is_list) {
                return status;
            }
        }
    }
    return HPS_OK;
}

static hps_status read_devices(const struct model_reader *m)
{
    const json_t *devices = NULL;
    hps_status status = get_array(m, HPS_OPTION_model_deployed_device_list, SIZE_MAX, &devices);
    size_t n = json_array_size(devices);
    if (status != HPS_OK || n == 0) {
        return status;
    }
    m->model->deployed_device_list = hps_calloc(n, sizeof(uint32_t));
    if (m->model->deployed_device_list == NULL) {
        return parse_no_memory(m->reader);
    }
    for (size_t i = 0; i < n && status == HPS_OK; i++) {
        status = read_u32(m, HPS_OPTION_model_deployed_device_list, devices, i,
                          &m->model->deployed_device_list[i]);
        m->model->n_deployed_devices = i + 1;
    }
    return status;
}

static hps_status check_model(const struct model_reader *m)
{
    const struct hps_config *config = m->reader->config;
    struct hps_text_path name = {.parent = m->path, .key = "model"};
    bool given = json_is_string(json_object_get(m->object, "model")); /* else it was rejected */
    hps_status status = given ? check_name(m->reader, &name, m->model->name) : HPS_INVALID;
    for (size_t i = 0; i + 1 < config->n_models && status == HPS_OK; i++) {
        if (strcmp(config->models[i].name, m->model->name) == 0) {
            status = parse_fail(m->reader, &name, HPS_INVALID,
                                "got \"%s\" again, expected different names", m->model->name);
        }
    }
    status = parse_go_on(status);
    struct hps_text_path label = {.parent = m->path, .key = "label"};
    if (status == HPS_OK && m->model->label[0] != '\0' && !hps_label_valid(m->model->label)) {
        status = parse_note(m->reader, &label, HPS_NOTE_WARNING,
                            "expected %s; a load refuses this label",
                            HPS_LABEL_RULE); /* versions that are stored already are still served */
    }
    if (m->model->use_static_table) {
        m->model->embedding_cache_type = HPS_CONFIG_CACHE_STATIC;
    }
    return status;
}

static hps_status read_model(const struct parse_reader *reader, const struct hps_text_path *path,
                             json_t *object)
{
    HPS_ASSERT(reader->config != NULL);
    struct model_reader m = {.reader = reader, .path = path, .object = object};
    if (hps_config_add_model(reader->config, &m.model) != HPS_OK) {
        return parse_no_memory(reader);
    }
    hps_status status = parse_section(reader, path, object, HPS_SECTION_model, m.model);
    if (status == HPS_OK) {
        status = check_model(&m);
    }
    if (status == HPS_OK) {
        status = parse_go_on(read_devices(&m));
    }
    if (status == HPS_OK) {
        status = read_sparse_files(&m);
    }
    if (status == HPS_OK) {
        status = parse_go_on(read_table_names(&m));
    }
    if (status == HPS_OK) {
        status = read_widths(&m);
    }
    if (status == HPS_OK) {
        status = parse_go_on(read_default_values(&m));
    }
    return status == HPS_OK ? read_row_dtypes(&m) : status;
}

hps_status parse_models(const struct parse_reader *reader, json_t *root)
{
    json_t *models = json_object_get(root, "models");
    struct hps_text_path list = {.key = "models"};
    if (models == NULL) {
        return HPS_OK; /* reported as a missing key */
    }
    if (!json_is_array(models)) {
        return parse_go_on(parse_fail_item(reader, &list, "a list of models"));
    }
    hps_status status = HPS_OK;
    for (size_t i = 0; i < json_array_size(models) && status == HPS_OK; i++) {
        struct hps_text_path path = {.parent = &list, .index = i};
        status = parse_go_on(read_model(reader, &path, json_array_get(models, i)));
    }
    return status;
}
