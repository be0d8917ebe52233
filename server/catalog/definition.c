/* SPDX-License-Identifier: Apache-2.0
 *
 * The entry of models[] that a version follows, and how the active version differs from the
 * server's entry. docs/config.md has the rule. Loader, admin and main threads.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/hash.h"
#include "base/heap.h"
#include "base/log.h"
#include "cache/update/update.h"
#include "server/catalog/internal.h"
#include "server/update/partition/position.h"

enum {
    DIFFERS_FILES = 1,
    DIFFERS_DEFAULT_ROW = 2,
    DIFFERS_ROW_DTYPE = 4,
    DIFFERS_KEYS = 8,
    FIELDS_BYTES = 96
};

/* The server's entry of a model: the tables that a load would create, and their files. */
struct catalog_defined {
    struct hps_version *version;   /* only its tables are used */
    char print[17], canonical[17]; /* of its files, by their paths as given and without links */
    char hash[17];                 /* hash of all of it */
};

/* ---- entries --------------------------------------------------------------------------------- */

const struct hps_config_model *catalog_config(const struct catalog_entry *entry)
{
    return entry->model->config != NULL ? entry->model->config
           : entry->own != NULL         ? &entry->own->models[0]
                                        : NULL;
}

hps_status catalog_follow(const struct hps_catalog *catalog, struct catalog_entry *entry)
{
    struct hps_version *version = entry->version;
    struct hps_error err = {0};
    HPS_ASSERT(entry->own == NULL);
    if (version->config != NULL) {
        hps_status status = hps_config_parse_entry(version->config, strlen(version->config),
                                                   "config", &entry->own, NULL, &err);
        if (status == HPS_NO_MEMORY) {
            return status;
        }
        if (status != HPS_OK) {
            HPS_LOG(WARN, "catalog",
                    "entry of a version not read: another build wrote it; hpsd serves the version "
                    "without the entry; load the version again",
                    HPS_STR("model", version->model), HPS_I64("version", version->number),
                    HPS_STR("error", err.text));
        }
    }
    const struct hps_config_model *config = catalog_config(entry);
    if (config != NULL) {
        version->row_versions = config->row_versions;
        version->gpu_warms = config->init_ec;
        version->gpu_whole = config->init_ec && hps_config_caches_whole(config);
        version->batch_samples_max =
            catalog->options.config->from_tables ? 0 : config->max_batch_size;
    }
    catalog_policies(catalog, entry);
    return HPS_OK;
}

/* ---- the server's entry ---------------------------------------------------------------------- */

void catalog_defined_free(struct catalog_defined *defined)
{
    if (defined != NULL) {
        hps_version_free(defined->version);
        hps_free(defined);
    }
}

static void hash_defined(struct catalog_defined *defined)
{
    uint64_t hash = hps_hash_bytes(defined->print, strlen(defined->print), 0);
    for (uint32_t i = 0; i < defined->version->n_tables; i++) {
        const struct hps_table *table = &defined->version->tables[i];
        const uint64_t numbers[] = {table->dim, (uint64_t)table->dtype};
        hash = hps_hash_bytes(table->name, strlen(table->name) + 1, hash);
        hash = hps_hash_bytes(numbers, sizeof(numbers), hash);
        hash = hps_hash_bytes(table->default_row, table->row_bytes, hash);
    }
    snprintf(defined->hash, sizeof(defined->hash), "%016" PRIx64, hash);
}

/* Opens the files. */
static hps_status read_defined(struct hps_catalog *catalog, const struct hps_config_model *config,
                               struct catalog_defined **out_defined, struct hps_error *err)
{
    struct hps_source source;
    struct hps_load_plan plan;
    hps_lock_acquire(&catalog->lock);
    const struct hps_load_env env = catalog->options.env;
    hps_lock_release(&catalog->lock);
    hps_status status = catalog_source_open_config(catalog, config, &source, err);
    if (status != HPS_OK) {
        return status;
    }
    struct catalog_defined *defined = hps_calloc(1, sizeof(*defined));
    if (defined != NULL) {
        defined->version = hps_version_new(config->name, 1, source.n_tables);
    }
    status = defined == NULL || defined->version == NULL
                 ? hps_error_set(err, HPS_NO_MEMORY, "no memory for the entries of models[]")
                 : hps_load_plan(&env, &source, 0, defined->version, &plan, err);
    if (status == HPS_OK) {
        snprintf(defined->print, sizeof(defined->print), "%s", source.print.text);
        snprintf(defined->canonical, sizeof(defined->canonical), "%s", source.canonical.text);
        hash_defined(defined);
        *out_defined = defined;
    } else {
        catalog_defined_free(defined);
    }
    hps_source_close(&source);
    return status;
}

/* Whether the files cannot be read now, so that there is nothing to compare. */
static bool is_away(hps_status status)
{
    return status == HPS_NOT_FOUND || status == HPS_PERMISSION || status == HPS_IO ||
           status == HPS_NO_MEMORY || status == HPS_UNAVAILABLE;
}

hps_status catalog_define(struct hps_catalog *catalog, const struct hps_config_model *config,
                          struct hps_error *err)
{
    struct catalog_defined *defined = NULL;
    hps_status status = read_defined(catalog, config, &defined, err);
    hps_lock_acquire(&catalog->lock);
    struct catalog_model *model = catalog_model(catalog, config->name, false);
    HPS_ASSERT(model != NULL && model->config == config); /* models[] are never removed */
    if (!is_away(status)) {
        catalog_defined_free(model->defined);
        model->defined = defined;
        model->unusable = (struct hps_error){0};
        if (status != HPS_OK) {
            model->unusable = *err;
            model->unusable.status = status;
        }
    }
    catalog_judge(catalog, model);
    hps_lock_release(&catalog->lock);
    return status;
}

const char *catalog_defined_hash(const struct catalog_model *model)
{
    return model->defined != NULL ? model->defined->hash : NULL;
}

/* ---- differences ----------------------------------------------------------------------------- */

static const struct hps_table *table_of(const struct hps_version *version, const char *name)
{
    uint32_t i = hps_version_table(version, name, strlen(name));
    return i != UINT32_MAX ? &version->tables[i] : NULL;
}

/* One bit for each option that a load of the entry would change. */
static unsigned differences(const struct catalog_defined *defined,
                            const struct hps_version *version)
{
    bool same_files = strcmp(defined->print, version->fingerprint) == 0 ||
                      strcmp(defined->canonical, version->fingerprint) == 0;
    unsigned found = same_files ? 0 : DIFFERS_FILES;
    for (uint32_t i = 0; i < defined->version->n_tables; i++) {
        const struct hps_table *wanted = &defined->version->tables[i];
        const struct hps_table *table = table_of(version, wanted->name);
        if (table == NULL || table->dim != wanted->dim) {
            found |= DIFFERS_FILES;
        } else if (table->dtype != wanted->dtype) {
            found |= DIFFERS_ROW_DTYPE;
        } else if (memcmp(table->default_row, wanted->default_row, table->row_bytes) != 0) {
            found |= DIFFERS_DEFAULT_ROW;
        }
    }
    return found;
}

/* The same if the files cannot be read: compares the options of the entry only. */
static unsigned differences_of_entry(const struct hps_config_model *config,
                                     const struct hps_version *version)
{
    unsigned found = 0;
    struct hps_error unseen;
    for (size_t i = 0; i < config->n_tables; i++) {
        const struct hps_config_table *said = &config->tables[i];
        const struct hps_source_table source = {.default_values = said->default_values,
                                                .n_default_values = said->n_default_values};
        const struct hps_table *table = table_of(version, said->name);
        if (table == NULL || (said->dim != 0 && said->dim != table->dim)) {
            found |= DIFFERS_FILES;
        } else if (said->row_dtype != 0 && said->row_dtype != (uint32_t)table->dtype) {
            found |= DIFFERS_ROW_DTYPE;
        } else {
            struct hps_table wanted = *table;
            wanted.default_row = NULL;
            if (hps_load_default_row(&source, &wanted, &unseen) == HPS_OK &&
                memcmp(table->default_row, wanted.default_row, table->row_bytes) != 0) {
                found |= DIFFERS_DEFAULT_ROW;
            }
            hps_free((void *)(uintptr_t)wanted.default_row);
        }
    }
    return found;
}

/* Whether the entry was the same when the version was loaded. Records of earlier builds lack the
 * hash. There a version with other files counts as loaded by hand, unless its source is the entry.
 * If the files cannot be read, a version with its own entry counts as loaded by hand. */
static bool is_by_hand(const struct catalog_model *model, const struct hps_version *version,
                       unsigned differs)
{
    const struct hps_config_model *config = model->config;
    if (model->defined == NULL) {
        return version->config != NULL;
    }
    if (version->configured != NULL) {
        return strcmp(version->configured, model->defined->hash) == 0;
    }
    const char *source = config->n_tables == 1 ? config->tables[0].path : HPS_SOURCE_CONFIG;
    return (differs & DIFFERS_FILES) != 0 && strcmp(version->source, source) != 0;
}

/* Whether the rows were stored under other keys than those that lookups now ask for. */
static unsigned differences_of_keys(const struct hps_catalog *catalog,
                                    const struct hps_version *version)
{
    return version->key_bytes == 0 || version->key_bytes == catalog->options.config->key_bytes
               ? 0
               : DIFFERS_KEYS;
}

void catalog_judge(const struct hps_catalog *catalog, struct catalog_model *model)
{
    const struct catalog_entry *active = catalog_entry(model, model->active);
    bool from_tables = catalog->options.config->from_tables;
    unsigned keys = active != NULL ? differences_of_keys(catalog, active->version) : 0;
    model->differs = keys;
    model->by_hand = false;
    model->drift = keys != 0 || (active != NULL && model->unusable.status != HPS_OK);
    if (active == NULL || model->config == NULL || model->unusable.status != HPS_OK) {
        return;
    }
    model->differs = model->defined != NULL ? differences(model->defined, active->version)
                     : from_tables          ? 0
                                            : differences_of_entry(model->config, active->version);
    model->differs &= from_tables ? DIFFERS_FILES : ~0U;
    model->by_hand = model->differs != 0 && keys == 0 && !from_tables &&
                     is_by_hand(model, active->version, model->differs);
    model->differs |= keys;
    model->drift = model->differs != 0 && !model->by_hand;
}

bool catalog_is_defined(const struct hps_catalog *catalog, const struct catalog_model *model,
                        const struct hps_version *version)
{
    return model->defined != NULL && differences(model->defined, version) == 0 &&
           differences_of_keys(catalog, version) == 0;
}

bool catalog_is_kept(const struct hps_catalog *catalog, const struct catalog_model *model,
                     const struct hps_version *version)
{
    return catalog_durable(catalog) != NULL ||
           (model != NULL && model->config != NULL && catalog_is_defined(catalog, model, version));
}

int64_t catalog_find_defined(struct hps_catalog *catalog, const char *name)
{
    int64_t number = 0;
    hps_lock_acquire(&catalog->lock);
    struct catalog_model *model = catalog_model(catalog, name, false);
    for (struct catalog_entry *entry = model != NULL ? model->entries : NULL; entry != NULL;
         entry = entry->next) {
        if (entry->state == ENTRY_RESIDENT && catalog_is_defined(catalog, model, entry->version)) {
            number = entry->version->number;
        }
    }
    hps_lock_release(&catalog->lock);
    return number;
}

/* ---- messages -------------------------------------------------------------------------------- */

/* Names of the options that differ, for messages. */
static const char *fields_text(unsigned differs, char out_text[FIELDS_BYTES])
{
    static const struct {
        unsigned bit;
        const char *name;
    } fields[] = {{DIFFERS_FILES, "sparse_files"},
                  {DIFFERS_DEFAULT_ROW, "default_value_for_each_table"},
                  {DIFFERS_ROW_DTYPE, "row_dtype"},
                  {DIFFERS_KEYS, "supportlonglong"}};
    size_t at = 0;
    out_text[0] = '\0';
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        if ((differs & fields[i].bit) != 0) {
            at += (size_t)snprintf(out_text + at, FIELDS_BYTES - at, "%s%s", at > 0 ? ", " : "",
                                   fields[i].name);
        }
    }
    return out_text;
}

/* The command that loads the configured files. */
static void load_command(const struct hps_config *config, const struct catalog_model *model,
                         char out_command[2 * PATH_MAX])
{
    char file[PATH_MAX];
    bool found = realpath(config->file, file) != NULL;
    if (config->from_tables) {
        snprintf(out_command, 2 * PATH_MAX, "hpsctl load %s --table NAME=PATH --activate",
                 model->name);
    } else {
        snprintf(out_command, 2 * PATH_MAX, "hpsctl load %s --config %s --activate", model->name,
                 found ? file : config->file);
    }
}

static void log_drift(const struct hps_config *config, const struct catalog_model *model)
{
    char command[2 * PATH_MAX], fields[FIELDS_BYTES];
    load_command(config, model, command);
    HPS_LOG(WARN, "catalog",
            "models[] changed since the active version was loaded: hpsd serves the version as it "
            "was loaded; run command to load the new entry",
            HPS_STR("model", model->name), HPS_I64("version", model->active),
            HPS_STR("options", fields_text(model->differs, fields)), HPS_STR("command", command));
}

static void log_unusable(const struct catalog_model *model)
{
    HPS_LOG(WARN, "catalog",
            "models[] entry not usable: loading it would fail; hpsd serves the stored version; "
            "correct the entry",
            HPS_STR("model", model->name), HPS_I64("version", model->active),
            HPS_STR("error", model->unusable.text));
}

static void log_keys(const struct catalog_model *model)
{
    HPS_LOG(WARN, "catalog",
            "supportlonglong changed since the active version was loaded: lookups do not find the "
            "rows of keys below 0 or above 32 bits; set it back, or load the version again",
            HPS_STR("model", model->name), HPS_I64("version", model->active));
}

static void log_by_hand(const struct catalog_model *model)
{
    char fields[FIELDS_BYTES];
    HPS_LOG(INFO, "catalog",
            "version loaded by hand is active: models[] differs, as it did at that load; to load "
            "the entry of models[] use hpsctl load --config",
            HPS_STR("model", model->name), HPS_I64("version", model->active),
            HPS_STR("options", fields_text(model->differs, fields)));
}

/* Without --table this is no fault: the store has the rows. */
static void log_unread(const struct hps_config *config, const struct catalog_model *model,
                       const struct hps_error *err)
{
    if (config->from_tables) {
        HPS_LOG(WARN, "catalog",
                "files of --table not served: a file cannot be read; hpsd serves the rows of an "
                "earlier run; restore the file and restart hpsd",
                HPS_STR("model", model->name), HPS_I64("version", model->active),
                HPS_STR("error", err->text));
    }
}

/* Ends the search with ABORTED if a record of this partition was read. */
static hps_status find_read(void *ctx, const void *key, size_t key_size, const void *value,
                            size_t value_size)
{
    char topic[HPS_UPDATE_TOPIC_BYTES_MAX];
    int32_t partition;
    struct hps_position position;
    (void)ctx;
    if (!hps_position_key_parse(key, key_size, topic, &partition)) {
        return HPS_OK;
    }
    hps_status status = hps_position_decode(value, value_size, &position);
    return status == HPS_OK && position.last.known ? HPS_ABORTED : status;
}

/* Whether another configuration has applied updates. --table takes none, and its files lack them.
 */
static bool has_updates(struct hps_version *version)
{
    return hps_update_positions(version, find_read, NULL) != HPS_OK;
}

void catalog_check_files(struct hps_catalog *catalog, struct catalog_model *model)
{
    const struct hps_config *config = catalog->options.config;
    const struct catalog_entry *entry = catalog_entry(model, model->active);
    struct hps_error err = {0};
    if (entry == NULL) {
        return;
    }
    catalog_judge(catalog, model);
    if ((model->differs & DIFFERS_KEYS) != 0) {
        log_keys(model);
    }
    if (model->config == NULL) {
        return;
    }
    hps_status status = catalog_define(catalog, model->config, &err);
    if (status != HPS_OK && config->from_tables) {
        log_unread(config, model, &err);
    } else if (model->drift && model->unusable.status != HPS_OK) {
        log_unusable(model);
    } else if (model->drift && config->from_tables && !has_updates(entry->version)) {
        model->awaits = true;
        HPS_LOG(
            INFO, "catalog",
            "files of --table changed since an earlier run: hpsd loads them as the next version",
            HPS_STR("model", model->name), HPS_I64("version", model->active));
    } else if (model->drift) {
        log_drift(config, model);
    } else if (model->by_hand) {
        log_by_hand(model);
    }
}

void catalog_await_end(struct hps_catalog *catalog, struct catalog_model *model)
{
    if (!model->awaits) {
        return;
    }
    model->awaits = false;
    catalog_refill_model(catalog, model); /* refills were left out while it was awaited */
    if (model->drift && !atomic_load(&catalog->closing)) {
        HPS_LOG(WARN, "catalog",
                "files of --table not served: their load failed; hpsd serves the rows of an "
                "earlier run; fix the files and restart hpsd",
                HPS_STR("model", model->name), HPS_I64("version", model->active));
    }
}

void hps_catalog_notes(struct hps_catalog *catalog, void (*fn)(void *ctx, const char *note),
                       void *ctx)
{
    char note[3 * PATH_MAX], command[2 * PATH_MAX], fields[FIELDS_BYTES];
    hps_lock_acquire(&catalog->lock);
    for (struct catalog_model *model = catalog->models; model != NULL; model = model->next) {
        fields_text(model->differs, fields);
        note[0] = '\0';
        if (model->drift && model->config == NULL) {
            snprintf(note, sizeof(note),
                     "model \"%s\": %s changed since version %" PRId64
                     " was loaded, so lookups do not find all of its keys; set it back, or load "
                     "the version again",
                     model->name, fields, model->active);
        } else if (model->drift && model->unusable.status != HPS_OK) {
            snprintf(note, sizeof(note),
                     "model \"%s\": a load of its models[] entry would fail: %s", model->name,
                     model->unusable.text);
        } else if (model->drift) {
            load_command(catalog->options.config, model, command);
            snprintf(note, sizeof(note),
                     "model \"%s\": models[] changed (%s) since version %" PRId64
                     " was loaded; to load the new entry: %s",
                     model->name, fields, model->active, command);
        } else if (model->by_hand) {
            snprintf(note, sizeof(note),
                     "model \"%s\": version %" PRId64 " was loaded by hand; models[] differs in %s",
                     model->name, model->active, fields);
        }
        if (note[0] != '\0') {
            fn(ctx, note);
        }
        for (const struct catalog_entry *entry = model->entries; entry != NULL;
             entry = entry->next) {
            const char *label = entry->version->label;
            if (label != NULL && label[0] != '\0' && !hps_label_valid(label)) {
                snprintf(note, sizeof(note),
                         "model \"%s\": the label \"%s\" of version %" PRId64
                         " is not usable everywhere (KServe, paths); use its number, or load it "
                         "again with another --label",
                         model->name, label, entry->version->number);
                fn(ctx, note);
            }
        }
    }
    hps_lock_release(&catalog->lock);
}
