/* SPDX-License-Identifier: Apache-2.0
 *
 * Life of struct hps_config other than parsing: defaults, the configuration of `--table`, notes,
 * free. Main thread.
 */
#include "config/config.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/heap.h"
#include "base/rows/modeldir.h"
#include "base/text.h"
#include "config/options.h"

/* ---- notes ----------------------------------------------------------------------------------- */

void hps_notes_init(struct hps_notes *notes)
{
    *notes = (struct hps_notes){0};
}

void hps_notes_fini(struct hps_notes *notes)
{
    for (size_t i = 0; i < notes->n; i++) {
        hps_free(notes->items[i].text);
    }
    hps_free(notes->items);
    hps_notes_init(notes);
}

bool hps_notes_drop(struct hps_notes *notes)
{
    if (notes == NULL) {
        return true;
    }
    bool full = notes->n - notes->n_errors == HPS_NOTES_MAX;
    notes->n_dropped += full ? 1 : 0;
    return full;
}

bool hps_note_is_warning(const struct hps_note *note)
{
    return note->kind == HPS_NOTE_IGNORED || note->kind == HPS_NOTE_WARNING;
}

/* takes `text`; NULL: no memory. */
static hps_status append_note(struct hps_notes *notes, enum hps_note_kind kind, char *text)
{
    struct hps_note *items =
        text == NULL ? NULL : hps_realloc(notes->items, (notes->n + 1) * sizeof(*items));
    if (items == NULL) {
        hps_free(text);
        return HPS_NO_MEMORY;
    }
    notes->items = items;
    notes->items[notes->n++] = (struct hps_note){.kind = kind, .text = text};
    notes->n_errors += kind == HPS_NOTE_ERROR;
    return HPS_OK;
}

hps_status hps_notes_add_error(struct hps_notes *notes, const struct hps_error *err,
                               struct hps_error *first)
{
    HPS_ASSERT(err->status != HPS_OK);
    if (first->status == HPS_OK) {
        *first = *err;
    }
    if (err->status == HPS_NO_MEMORY || notes == NULL) {
        return err->status == HPS_NO_MEMORY ? HPS_NO_MEMORY : HPS_OK;
    }
    if (notes->n_errors == HPS_NOTES_MAX) {
        notes->n_dropped++;
        return HPS_OK;
    }
    return append_note(notes, HPS_NOTE_ERROR, hps_strdup(err->text));
}

hps_status hps_notes_add(struct hps_notes *notes, enum hps_note_kind kind, const char *fmt, ...)
{
    HPS_ASSERT(fmt != NULL && kind != HPS_NOTE_ERROR);
    if (hps_notes_drop(notes)) {
        return HPS_OK;
    }
    char raw[HPS_NOTE_BYTES_MAX], text[HPS_NOTE_BYTES_MAX];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(raw, sizeof(raw), fmt, args);
    va_end(args);
    (void)hps_text_plain(raw, strlen(raw), text, sizeof(text));
    return append_note(notes, kind, hps_strdup(text));
}

/* ---- life ------------------------------------------------------------------------------------ */

hps_status hps_config_new(const char *file, struct hps_config **out_config, struct hps_error *err)
{
    struct hps_config *config = hps_calloc(1, sizeof(*config));
    if (config == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "%s: out of memory", file);
    }
    config->file = hps_strdup(file);
    hps_status status = config->file == NULL ? HPS_NO_MEMORY : HPS_OK;
    for (int i = 0; i < HPS_SECTION_SINGLES && status == HPS_OK; i++) {
        enum hps_option_section section = (enum hps_option_section)i;
        status = hps_section_set_defaults(section, hps_section_base(config, section));
    }
    if (status != HPS_OK) {
        hps_config_free(config);
        return hps_error_set(err, status, "%s: out of memory", file);
    }
    config->key_bytes = 8;
    *out_config = config;
    return HPS_OK;
}

static void table_fini(struct hps_config_table *table)
{
    hps_free(table->name);
    hps_free(table->path);
    hps_free(table->default_values);
}

static void model_fini(struct hps_config_model *model)
{
    for (size_t i = 0; i < model->n_tables; i++) {
        table_fini(&model->tables[i]);
    }
    hps_free(model->tables);
    hps_free(model->deployed_device_list);
    hps_section_fini(HPS_SECTION_model, model);
}

void hps_config_free(struct hps_config *config)
{
    if (config == NULL) {
        return;
    }
    for (size_t i = 0; i < config->n_models; i++) {
        model_fini(&config->models[i]);
    }
    hps_free(config->models);
    for (int i = 0; i < HPS_SECTION_SINGLES; i++) {
        enum hps_option_section section = (enum hps_option_section)i;
        hps_section_fini(section, hps_section_base(config, section));
    }
    hps_free(config->file);
    hps_free(config);
}

hps_status hps_config_add_model(struct hps_config *config, struct hps_config_model **out_model)
{
    HPS_ASSERT(config->n_models == 0 || config->models != NULL);
    struct hps_config_model *models =
        hps_realloc(config->models, (config->n_models + 1) * sizeof(*models));
    if (models == NULL) {
        return HPS_NO_MEMORY;
    }
    config->models = models;
    struct hps_config_model *model = &models[config->n_models];
    *model = (struct hps_config_model){0};
    config->n_models++; /* hps_config_free also frees incomplete models */
    hps_status status = hps_section_set_defaults(HPS_SECTION_model, model);
    if (status == HPS_OK) {
        *out_model = model;
    }
    return status;
}

hps_status hps_config_add_table(struct hps_config_model *model, struct hps_config_table **out_table)
{
    HPS_ASSERT(model->n_tables == 0 || model->tables != NULL);
    struct hps_config_table *tables =
        hps_realloc(model->tables, (model->n_tables + 1) * sizeof(*tables));
    if (tables == NULL) {
        return HPS_NO_MEMORY;
    }
    model->tables = tables;
    struct hps_config_table *table = &tables[model->n_tables];
    *table = (struct hps_config_table){0};
    model->n_tables++;
    *out_table = table;
    return HPS_OK;
}

const struct hps_config_model *hps_config_model_find(const struct hps_config *config,
                                                     const char *name)
{
    for (size_t i = 0; i < config->n_models; i++) {
        if (strcmp(config->models[i].name, name) == 0) {
            return &config->models[i];
        }
    }
    return NULL;
}

void hps_config_model_policies(const struct hps_config_model *model,
                               struct hps_config_policies *out_policies)
{
    static const enum hps_option_id ids[] = {HPS_OPTION_model_miss_policy,
                                             HPS_OPTION_model_unknown_key_policy};
    struct hps_config_model defaults = {.hit_rate_threshold = 1.0};
    for (size_t i = 0; model == NULL && i < sizeof(ids) / sizeof(ids[0]); i++) {
        hps_status status =
            hps_option_set_text(&hps_options[ids[i]], &defaults, hps_options[ids[i]].def);
        HPS_ASSERT(status == HPS_OK);
    }
    model = model == NULL ? &defaults : model;
    bool whole = model->embedding_cache_type == HPS_CONFIG_CACHE_STATIC ||
                 model->embedding_cache_type == HPS_CONFIG_CACHE_UVM;
    *out_policies =
        (struct hps_config_policies){.miss = model->miss_policy,
                                     .unknown_key = model->unknown_key_policy,
                                     .hit_rate_threshold = whole ? 1.0 : model->hit_rate_threshold};
}

void hps_config_sane(const struct hps_config *config)
{
    const struct hps_config_server *server = &config->server;
    HPS_ASSERT(config->key_bytes == 4 || config->key_bytes == 8);
    HPS_ASSERT(config->volatile_db.memory_bytes > 0 && config->volatile_db.num_partitions > 0);
    HPS_ASSERT(server->loop_threads > 0 && server->worker_threads > 0 && server->io_threads > 0);
    HPS_ASSERT(server->reply_bytes_in_flight > 0);
    bool has_state_dir = server->state_dir[0] != '\0'; /* else the file is only checked */
    HPS_ASSERT(!has_state_dir || server->admin_listen.address[0] != '\0');
    HPS_ASSERT(server->listen.n > 0);
    HPS_ASSERT((server->tls.certificate[0] == '\0') == (server->tls.key[0] == '\0'));
    HPS_ASSERT(config->persistent_db.type == HPS_CONFIG_PERSISTENT_DISABLED || !has_state_dir ||
               config->persistent_db.path[0] != '\0');
    HPS_ASSERT(config->update_source.type == HPS_CONFIG_UPDATE_SOURCE_NULL ||
               config->update_source.group[0] != '\0');
    for (size_t i = 0; i < config->n_models; i++) {
        HPS_DEBUG_ASSERT(hps_config_model_find(config, config->models[i].name) ==
                         &config->models[i]); /* names differ */
    }
}

void hps_config_clear_listeners(struct hps_config_listeners *listeners)
{
    for (size_t i = 0; i < listeners->n; i++) {
        hps_free(listeners->items[i].address);
    }
    hps_free(listeners->items);
    *listeners = (struct hps_config_listeners){0};
}

hps_status hps_config_add_listener(struct hps_config_listeners *listeners, const char *address,
                                   bool plaintext)
{
    HPS_ASSERT(address != NULL);
    char *copy = hps_strdup(address);
    if (copy == NULL) {
        return HPS_NO_MEMORY;
    }
    struct hps_config_listener *items =
        hps_realloc(listeners->items, (listeners->n + 1) * sizeof(*items));
    if (items == NULL) {
        hps_free(copy);
        return HPS_NO_MEMORY;
    }
    listeners->items = items;
    items[listeners->n++] = (struct hps_config_listener){.address = copy, .plaintext = plaintext};
    return HPS_OK;
}

/* ---- --table --------------------------------------------------------------------------------- */

static hps_status add_table_argument(struct hps_config_model *model, const char *argument,
                                     struct hps_error *err)
{
    HPS_ASSERT(argument != NULL);
    const char *equals = strchr(argument, '=');
    if (equals == NULL || equals == argument || equals[1] == '\0') {
        return hps_error_set(err, HPS_INVALID, "--table: got \"%.80s\", expected NAME=PATH",
                             argument);
    }
    struct hps_config_table *table = NULL;
    hps_status status = hps_config_add_table(model, &table);
    if (status != HPS_OK) {
        return hps_error_set(err, status, "--table: out of memory");
    }
    table->name = hps_strndup(argument, (size_t)(equals - argument));
    table->path = hps_strdup(equals + 1);
    table->default_values = hps_calloc(1, sizeof(float));
    table->n_default_values = table->default_values == NULL ? 0 : 1;
    if (table->name == NULL || table->path == NULL || table->default_values == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "--table: out of memory");
    }
    if (!hps_model_name_valid(table->name)) {
        return hps_error_set(
            err, HPS_INVALID,
            "--table: got the name \"%.130s\", expected 1 to 120 of a-z A-Z 0-9 _ -", table->name);
    }
    for (size_t i = 0; i + 1 < model->n_tables; i++) {
        if (strcmp(model->tables[i].name, table->name) == 0) {
            return hps_error_set(err, HPS_INVALID, "--table: \"%s\" is given twice", table->name);
        }
    }
    return HPS_OK;
}

static hps_status set_option(enum hps_option_id id, void *base, struct hps_option_set *set,
                             const char *text)
{
    hps_option_mark(set, &hps_options[id]);
    return hps_option_set_text(&hps_options[id], base, text);
}

static hps_status set_table_mode(struct hps_config *config, struct hps_config_model *model)
{
    hps_status status = set_option(HPS_OPTION_model_model, model, &model->set, "default");
    if (status == HPS_OK) {
        status = set_option(HPS_OPTION_model_gpucache, model, &model->set, "false");
    }
    if (status == HPS_OK) {
        status = set_option(HPS_OPTION_model_hit_rate_threshold, model, &model->set, "1.0");
    }
    if (status == HPS_OK) {
        status = set_option(HPS_OPTION_model_miss_policy, model, &model->set, "exact");
    }
    if (status == HPS_OK) {
        status = set_option(HPS_OPTION_persistent_db_type, &config->persistent_db,
                            &config->persistent_db.set, "rocks_db");
    }
    return status;
}

hps_status hps_config_for_tables(const char *const *args, size_t n_args,
                                 struct hps_config **out_config, struct hps_error *err)
{
    HPS_ASSERT(n_args > 0);
    HPS_ASSERT(n_args > 0);
    struct hps_config *config = NULL;
    struct hps_config_model *model = NULL;
    hps_status status = hps_config_new("--table", &config, err);
    if (status != HPS_OK) {
        return status;
    }
    status = hps_config_add_model(config, &model);
    if (status == HPS_OK) {
        config->from_tables = true;
        status = set_table_mode(config, model);
    }
    if (status != HPS_OK) {
        (void)hps_error_set(err, status, "--table: %s", hps_status_text(status));
    }
    for (size_t i = 0; i < n_args && status == HPS_OK; i++) {
        status = add_table_argument(model, args[i], err);
    }
    if (status != HPS_OK) {
        hps_config_free(config);
        return status;
    }
    *out_config = config;
    return HPS_OK;
}
