/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks a load request, and completes it from the models[] entry in it. On the caller's thread.
 */
#include <inttypes.h>
#include <string.h>

#include "base/assert.h"
#include "base/heap.h"
#include "base/utf8.h"
#include "server/catalog/internal.h"

enum { TEXT_BYTES_MAX = 256 };

/* Replies contain these texts, and stock clients reject replies with strings that are not UTF-8. */
static hps_status check_text(const char *field, const char *text, struct hps_error *err)
{
    size_t size = text == NULL ? 0 : strlen(text);
    if (size > TEXT_BYTES_MAX) {
        return hps_error_set(err, HPS_INVALID, "%s: got %zu bytes, expected at most %d", field,
                             size, TEXT_BYTES_MAX);
    }
    for (size_t at = 0; at < size;) {
        uint32_t point;
        size_t length = hps_utf8_decode(text + at, size - at, &point);
        if (length == 0) {
            return hps_error_set(err, HPS_INVALID, "%s: byte %zu is not UTF-8", field, at);
        }
        at += length;
    }
    return HPS_OK;
}

static hps_status check_names(const struct hps_load_request *request, struct hps_error *err)
{
    const char *label = request->label;
    hps_status status = check_text("label", label, err);
    if (status == HPS_OK) {
        status = check_text("lineage", request->lineage, err);
    }
    if (status == HPS_OK && label != NULL && label[0] != '\0' && !hps_label_valid(label)) {
        status = hps_error_set(err, HPS_INVALID, "label: got \"%.130s\", expected %s", label,
                               HPS_LABEL_RULE);
    }
    return status;
}

static bool is_empty(const char *text)
{
    return text == NULL || text[0] == '\0';
}

/* Add the tables of the entry, and the number and names that the request leaves open. */
static hps_status complete(struct hps_catalog *catalog, struct catalog_request *whole,
                           struct hps_error *err)
{
    struct hps_load_request *said = &whole->said;
    const struct hps_config_model *entry = said->entry;
    HPS_ASSERT(entry->n_tables > 0);
    whole->tables = hps_calloc(entry->n_tables, sizeof(*whole->tables));
    if (whole->tables == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for %zu tables", entry->n_tables);
    }
    for (size_t i = 0; i < entry->n_tables; i++) {
        whole->tables[i] =
            (struct hps_source_named){.name = entry->tables[i].name, .path = entry->tables[i].path};
    }
    said->tables = whole->tables;
    said->n_tables = entry->n_tables;
    said->version = said->version != 0 ? said->version : catalog_configured_number(catalog, entry);
    said->label = is_empty(said->label) ? entry->label : said->label;
    said->lineage = is_empty(said->lineage) ? entry->lineage : said->lineage;
    return HPS_OK;
}

/* Parse the entry of the request, and give it the model name of the request. */
static hps_status read_entry(struct hps_catalog *catalog, struct catalog_request *whole,
                             struct hps_error *err)
{
    struct hps_load_request *said = &whole->said;
    if (!is_empty(said->directory) || said->n_tables > 0) {
        return hps_error_set(err, HPS_INVALID,
                             "config: got it together with %s, expected only one of them",
                             said->n_tables > 0 ? "tables" : "directory");
    }
    hps_status status = hps_config_parse_entry(said->config, strlen(said->config), "config",
                                               &whole->config, &whole->entry_notes, err);
    if (status != HPS_OK) {
        return status;
    }
    struct hps_config_model *entry = &whole->config->models[0];
    char *name = hps_strdup(said->model);
    if (name == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for the name of a model");
    }
    hps_free(entry->name);
    entry->name = name;
    if (entry->row_versions && catalog_durable(catalog) == NULL) {
        return hps_error_set(err, HPS_INVALID,
                             "config: row_versions: got true, but the versions are kept in "
                             "persistent_db, and there is none");
    }
    status = hps_config_print_entry(entry, &whole->text);
    if (status == HPS_OK) {
        status = hps_buf_append(&whole->text, "", 1);
    }
    if (status != HPS_OK) {
        return hps_error_set(err, status, "no memory for the entry of a model");
    }
    said->config = (const char *)whole->text.data;
    said->entry = entry;
    return complete(catalog, whole, err);
}

void catalog_request_close(struct catalog_request *whole)
{
    hps_config_free(whole->config);
    hps_free(whole->tables);
    hps_buf_fini(&whole->text);
    hps_notes_fini(&whole->entry_notes);
}

hps_status catalog_request_open(struct hps_catalog *catalog, const struct hps_load_request *request,
                                struct catalog_request *out_whole, struct hps_error *err)
{
    struct catalog_request whole = {.said = *request};
    hps_status status = HPS_OK;
    HPS_ASSERT(request->entry == NULL);
    hps_buf_init(&whole.text, HPS_ENTRY_BYTES_MAX);
    hps_notes_init(&whole.entry_notes);
    if (!hps_model_name_valid(request->model)) {
        status = hps_error_set(err, HPS_INVALID,
                               "model: got \"%.130s\", expected 1 to 120 of a-z A-Z 0-9 _ -",
                               request->model);
    } else if (request->version < 0) {
        status = hps_error_set(err, HPS_INVALID,
                               "version: got %" PRId64 ", expected 1 or more (0: next)",
                               request->version);
    } else if (!is_empty(request->config)) {
        status = read_entry(catalog, &whole, err);
    } else {
        /* for its tables */
        whole.said.entry = hps_config_model_find(catalog->options.config, request->model);
    }
    if (status == HPS_OK) {
        status = check_names(&whole.said, err);
    }
    if (status != HPS_OK) {
        catalog_request_close(&whole);
        return status;
    }
    *out_whole = whole;
    out_whole->said.entry_notes = &out_whole->entry_notes;
    return HPS_OK;
}
