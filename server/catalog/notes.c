/* SPDX-License-Identifier: Apache-2.0
 *
 * Sentences about a load for its caller. Under the catalog's lock.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/buf.h"
#include "server/catalog/internal.h"

enum { NOTE_BYTES_MAX = 8192, TABLES_REPORTED_MAX = 32 };

static hps_status add(struct hps_strings *notes, struct hps_buf *text)
{
    hps_buf_put_bytes(text, "", 1);
    hps_status status = text->status;
    if (status == HPS_OK) {
        status = hps_strings_append(notes, (const char *)text->data);
    }
    hps_buf_clear(text);
    return status;
}

/* ---- a load ---------------------------------------------------------------------------------- */

/* The model's tables, then the new ones of the version. */
static hps_status note_order(const struct catalog_model *model, const struct hps_version *version,
                             struct hps_strings *notes, struct hps_buf *text)
{
    struct hps_table_order order = {0};
    hps_status status = model != NULL ? hps_table_order_copy(&model->order, &order) : HPS_OK;
    for (uint32_t i = 0; status == HPS_OK && i < version->n_tables; i++) {
        status = hps_table_order_add(&order, version->tables[i].name);
    }
    if (status == HPS_OK && order.n > 1) {
        hps_buf_put(text, "order of tables, for lookups by position:");
        for (uint32_t i = 0; i < order.n && i < TABLES_REPORTED_MAX; i++) {
            hps_buf_putf(text, "%s %" PRIu32 " %s", i > 0 ? "," : "", i, order.names[i]);
        }
        if (order.n > TABLES_REPORTED_MAX) {
            hps_buf_putf(text, ", and %" PRIu32 " more (hpsctl tables)",
                         order.n - TABLES_REPORTED_MAX);
        }
        status = add(notes, text);
    }
    hps_table_order_free(&order);
    return status;
}

/* The version with the highest number other than `version`; NULL: none. */
static const struct hps_version *newest_other(const struct catalog_model *model,
                                              const struct hps_version *version)
{
    const struct hps_version *newest = NULL;
    for (const struct catalog_entry *entry = model != NULL ? model->entries : NULL; entry != NULL;
         entry = entry->next) {
        newest = entry->version != version ? entry->version : newest;
    }
    return newest;
}

static hps_status note_updates(const struct hps_catalog *catalog, const struct catalog_model *model,
                               const struct hps_load_request *request,
                               const struct hps_source *source, const struct hps_version *version,
                               struct hps_strings *notes, struct hps_buf *text)
{
    char start[256];
    const struct hps_version *last = newest_other(model, version);
    bool named = (request->lineage != NULL && request->lineage[0] != '\0') ||
                 source->manifest.lineage != NULL;
    if (!hps_updater_start_text(catalog->options.updater, &source->manifest,
                                source->print.mtime_ms_oldest, start, sizeof(start))) {
        return HPS_OK;
    }
    hps_buf_putf(text, "updates: %s", start);
    hps_status status = add(notes, text);
    if (status != HPS_OK || named || last == NULL) {
        return status;
    }
    hps_buf_putf(text,
                 "lineage \"%s\" is that of version %" PRId64
                 ", so its updates also apply to this version; --lineage, or lineage in "
                 "manifest.json, sets another",
                 version->lineage, last->number);
    return add(notes, text);
}

static void list_ignored(void *ctx, const struct hps_config_change *change)
{
    struct hps_buf *options = ctx;
    if (!change->kept) {
        hps_buf_putf(options, "%s %s", options->size > 0 ? "," : "", change->path);
    }
}

/* Unknown options of the load's entry, and options that the server's entry overrides. */
static hps_status note_entry(const struct catalog_model *model,
                             const struct hps_load_request *request, struct hps_strings *notes,
                             struct hps_buf *text)
{
    struct hps_buf options;
    hps_status status = HPS_OK;
    size_t n_warnings = request->entry_notes != NULL ? request->entry_notes->n : 0;
    for (size_t i = 0; status == HPS_OK && i < n_warnings; i++) {
        if (hps_note_is_warning(&request->entry_notes->items[i])) {
            status = hps_strings_append(notes, request->entry_notes->items[i].text);
        }
    }
    bool own = request->config != NULL && request->config[0] != '\0';
    if (status != HPS_OK || !own || model == NULL || model->config == NULL) {
        return status;
    }
    hps_buf_init(&options, NOTE_BYTES_MAX / 2);
    status = hps_config_diff_entry(model->config, request->entry, list_ignored, &options);
    status = status == HPS_OK ? options.status : status;
    if (status == HPS_OK && options.size > 0) {
        hps_buf_putf(text,
                     "options ignored, because the configuration of the server has this model:%.*s",
                     (int)options.size, (const char *)options.data);
        status = add(notes, text);
    }
    hps_buf_fini(&options);
    return status;
}

static hps_status note_restart(const struct hps_catalog *catalog, const struct catalog_model *model,
                               const struct hps_version *version, struct hps_strings *notes,
                               struct hps_buf *text)
{
    if (catalog_is_kept(catalog, model, version)) {
        return HPS_OK;
    }
    bool configured = model != NULL && model->config != NULL;
    hps_buf_putf(text, "warning: persistent_db is disabled: a restart %s this version",
                 configured ? "loads models[], and forgets" : "forgets");
    return add(notes, text);
}

hps_status catalog_load_notes(const struct hps_catalog *catalog, const struct catalog_model *model,
                              const struct hps_load_request *request,
                              const struct hps_source *source, const struct hps_version *version,
                              struct hps_strings *out_notes)
{
    struct hps_strings notes = {0};
    struct hps_buf text;
    hps_buf_init(&text, NOTE_BYTES_MAX);
    hps_status status = note_order(model, version, &notes, &text);
    if (status == HPS_OK) {
        status = note_updates(catalog, model, request, source, version, &notes, &text);
    }
    if (status == HPS_OK) {
        status = note_entry(model, request, &notes, &text);
    }
    if (status == HPS_OK) {
        status = note_restart(catalog, model, version, &notes, &text);
    }
    hps_buf_fini(&text);
    if (status != HPS_OK) {
        hps_strings_fini(&notes);
        return status;
    }
    *out_notes = notes;
    return HPS_OK;
}
