/* SPDX-License-Identifier: Apache-2.0
 *
 * Hot keys by model and table, and their records in the persistent store. warmup_run.c uses them.
 *
 * Records are hints, and independent of each other: a save that a crash interrupts, or a damaged
 * record, loses some keys only. Their keys are hot/MODEL/NUMBER.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "backends/store_durable.h"
#include "base/assert.h"
#include "base/heap.h"
#include "base/log.h"
#include "cache/version/tier.h"
#include "server/load/loader.h"
#include "server/load/warmup_internal.h"

enum { RECORD_KEY_BYTES_MAX = 192 };

/* ---- lists ----------------------------------------------------------------------------------- */

struct hps_warmup *hps_warmup_new(const struct hps_warmup_options *options)
{
    struct hps_warmup *warmup = hps_calloc(1, sizeof(*warmup));
    if (warmup == NULL) {
        return NULL;
    }
    warmup->options = *options;
    warmup->rows = hps_server_metric(options->metrics, HPS_M_INSERTION_ROWS,
                                     hps_tier_name(HPS_TIER_HOST), "warmup", NULL, NULL);
    hps_lock_init(&warmup->lock, HPS_LOCK_WARMUP);
    return warmup;
}

static void model_free(struct warm_model *model)
{
    while (model->tables != NULL) {
        struct warm_table *table = model->tables;
        model->tables = table->next;
        hps_hot_free(table->hot);
        hps_free(table->name);
        hps_free(table);
    }
    hps_free(model->name);
    hps_free(model);
}

void hps_warmup_free(struct hps_warmup *warmup)
{
    if (warmup == NULL) {
        return;
    }
    while (warmup->models != NULL) {
        struct warm_model *model = warmup->models;
        warmup->models = model->next;
        model_free(model);
    }
    hps_lock_fini(&warmup->lock);
    hps_free(warmup);
}

struct warm_model *warmup_model(struct hps_warmup *warmup, const char *name, bool make)
{
    struct warm_model **at = &warmup->models;
    while (*at != NULL && strcmp((*at)->name, name) != 0) {
        at = &(*at)->next;
    }
    if (*at != NULL || !make) {
        return *at;
    }
    struct warm_model *model = hps_calloc(1, sizeof(*model));
    char *copy = hps_strdup(name);
    if (model == NULL || copy == NULL) {
        hps_free(model);
        hps_free(copy);
        return NULL;
    }
    model->name = copy;
    *at = model;
    return model;
}

struct warm_table *warmup_table(const struct warm_model *model, const char *name, size_t size)
{
    struct warm_table *table = model->tables;
    while (table != NULL && (strlen(table->name) != size || memcmp(table->name, name, size) != 0)) {
        table = table->next;
    }
    return table;
}

/* The counts of a table, with capacity for n_keys; NULL: out of memory. Lock held. */
static struct hps_hot *hot_of(struct warm_model *model, const char *name, size_t size,
                              uint32_t n_keys)
{
    struct warm_table *table = warmup_table(model, name, size);
    if (table != NULL) {
        hps_ignore(hps_hot_grow(table->hot, n_keys)); /* out of memory: fewer keys are counted */
        return table->hot;
    }
    table = hps_calloc(1, sizeof(*table));
    char *copy = hps_strndup(name, size);
    struct hps_hot *hot = hps_hot_new(n_keys);
    if (table == NULL || copy == NULL || hot == NULL) {
        hps_free(table);
        hps_free(copy);
        hps_hot_free(hot);
        return NULL;
    }
    *table = (struct warm_table){.next = model->tables, .name = copy, .hot = hot};
    model->tables = table;
    return hot;
}

/* Number of keys to count for a table. Its share of the model's counts is that of its rows. The
 * maximum is 1.5 times its rows, or the rows that the map can hold. The extra half separates the
 * last keys that fit from keys that are about as hot. With a device only the table's rows are the
 * bound. */
static uint32_t keys_worth(const struct hps_warmup *warmup, const struct hps_version *version,
                           const struct hps_table *table, uint64_t n_rows_all)
{
    double share = n_rows_all > 0 ? (double)table->n_rows / (double)n_rows_all : 0;
    uint64_t n_places = warmup->options.hot_bytes_max / HPS_HOT_KEY_BYTES;
    uint64_t n = (uint64_t)((double)n_places * share);
    uint64_t useful = warmup->options.host_bytes_max / hps_load_host_row_bytes(table->row_bytes);
    useful = useful < table->n_rows && version->gpu == NULL ? useful : table->n_rows;
    useful += useful / 2;
    n = n < useful ? n : useful;
    return n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
}

void hps_warmup_attach(struct hps_warmup *warmup, struct hps_version *version)
{
    uint64_t n_rows = 0;
    if (warmup->options.hot_bytes_max == 0 ||
        (warmup->options.host == NULL && version->gpu == NULL)) {
        return;
    }
    for (uint32_t i = 0; i < version->n_tables; i++) {
        n_rows += version->tables[i].n_rows;
    }
    hps_lock_acquire(&warmup->lock);
    struct warm_model *model = warmup_model(warmup, version->model, true);
    for (uint32_t i = 0; model != NULL && i < version->n_tables; i++) {
        const struct hps_table *table = &version->tables[i];
        model->attached = true;
        version->hot[i] = hot_of(model, table->name, strlen(table->name),
                                 keys_worth(warmup, version, table, n_rows));
    }
    hps_lock_release(&warmup->lock);
}

void hps_warmup_detach(struct hps_warmup *warmup, const char *name)
{
    hps_lock_acquire(&warmup->lock);
    struct warm_model *model = warmup_model(warmup, name, false);
    if (model != NULL) {
        model->attached = false;
    }
    hps_lock_release(&warmup->lock);
}

/* ---- reading --------------------------------------------------------------------------------- */

static size_t record_key(char key[RECORD_KEY_BYTES_MAX], const char *model, uint32_t number)
{
    return (size_t)snprintf(key, RECORD_KEY_BYTES_MAX, "hot/%s/%06u", model, number);
}

/* Model name and number in the key of a record. False: not such a key. */
static bool parse_key(const char *key, size_t size, char out_model[RECORD_KEY_BYTES_MAX],
                      uint32_t *out_number)
{
    char text[RECORD_KEY_BYTES_MAX];
    char same[RECORD_KEY_BYTES_MAX];
    if (size >= sizeof(text)) {
        return false;
    }
    memcpy(text, key, size);
    text[size] = '\0';
    return sscanf(text, "hot/%150[^/]/%9u", out_model, out_number) == 2 &&
           record_key(same, out_model, *out_number) == size && memcmp(same, text, size) == 0;
}

static void take_record(const struct warm_model *model, const struct hps_hot_record *record)
{
    const struct warm_table *table = warmup_table(model, record->table, record->table_size);
    for (uint32_t i = 0; table != NULL && i < record->n; i++) {
        struct hps_hot_key key = hps_hot_record_key(record, i);
        hps_hot_add(table->hot, key.key, key.count);
    }
}

static hps_status read_record(void *ctx, const void *key, size_t key_size, const void *value,
                              size_t value_size)
{
    struct hps_warmup *warmup = ctx;
    char name[RECORD_KEY_BYTES_MAX];
    uint32_t number;
    if (!parse_key(key, key_size, name, &number)) {
        return HPS_OK;
    }
    struct hps_hot_record record;
    struct hps_error err = {0};
    struct warm_model *model = warmup_model(warmup, name, true);
    if (model == NULL) {
        return HPS_NO_MEMORY;
    }
    model->n_records = number >= model->n_records ? number + 1 : model->n_records;
    if (hps_hot_record_read(value, value_size, &record, &err) == HPS_OK) {
        take_record(model, &record);
    } else {
        model->stale = true; /* the next save replaces it */
        HPS_LOG(WARN, "warmup",
                "hot-key record skipped: it is unreadable; its keys are not warmed up",
                HPS_STR("model", name), HPS_U64("record", number), HPS_STR("error", err.text));
    }
    return HPS_OK;
}

void hps_warmup_read(struct hps_warmup *warmup)
{
    struct hps_store *durable = warmup->options.durable;
    struct hps_error err = {0};
    if (durable == NULL || warmup->options.hot_bytes_max == 0 ||
        (warmup->options.host == NULL && !warmup->options.gpu)) {
        return;
    }
    hps_lock_acquire(&warmup->lock); /* no other thread uses it yet */
    hps_status status =
        durable->ops->durable->record_scan(durable, "hot/", read_record, warmup, &err);
    hps_lock_release(&warmup->lock);
    if (status != HPS_OK) {
        HPS_LOG(WARN, "warmup",
                "hot-key records unreadable: the scan failed; keys not read are not warmed up",
                HPS_STR("error", err.text[0] != '\0' ? err.text : hps_status_text(status)));
    }
}

/* ---- saving ---------------------------------------------------------------------------------- */

static hps_status put_record(struct hps_store *durable, const struct warm_model *model,
                             const struct warm_table *table, const struct hps_hot_key *keys,
                             uint32_t n, uint32_t number, struct hps_error *err)
{
    char key[RECORD_KEY_BYTES_MAX];
    uint32_t name_size = (uint32_t)strlen(table->name);
    size_t size = hps_hot_record_size(name_size, n);
    uint64_t free_bytes = durable->ops->durable->bytes_free(durable);
    if (size > free_bytes) { /* the reserve of free disk space is not for hints */
        return hps_error_set(err, HPS_EXHAUSTED,
                             "got a record of %zu bytes, but only %" PRIu64
                             " are free above disk_free_min_bytes",
                             size, free_bytes);
    }
    uint8_t *data = hps_alloc(size);
    if (data == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for a record of %u keys", n);
    }
    hps_hot_record_write(table->name, name_size, keys, n, data);
    hps_status status = durable->ops->durable->record_put(
        durable, key, record_key(key, model->name, number), data, size, err);
    hps_free(data);
    return status;
}

static hps_status save_table(struct hps_store *durable, struct warm_model *model,
                             const struct warm_table *table, uint32_t *number,
                             struct hps_error *err)
{
    struct hps_hot_key *keys = NULL;
    uint32_t n = 0;
    hps_status status = hps_hot_top(table->hot, &keys, &n);
    if (status != HPS_OK) {
        return hps_error_set(err, status, "no memory for the hot keys of \"%s\"", table->name);
    }
    for (uint32_t at = 0; status == HPS_OK && at < n; at += HPS_HOT_RECORD_KEYS_MAX) {
        uint32_t left = n - at;
        uint32_t n_now = left < HPS_HOT_RECORD_KEYS_MAX ? left : HPS_HOT_RECORD_KEYS_MAX;
        model->n_records = *number >= model->n_records ? *number + 1 : model->n_records;
        status = put_record(durable, model, table, keys + at, n_now, (*number)++, err);
    }
    hps_free(keys);
    return status;
}

/* Delete the records from `number` on. */
static hps_status delete_records(struct hps_store *durable, struct warm_model *model,
                                 uint32_t number, struct hps_error *err)
{
    char key[RECORD_KEY_BYTES_MAX];
    while (model->n_records > number) {
        hps_status status = durable->ops->durable->record_delete(
            durable, key, record_key(key, model->name, model->n_records - 1), err);
        if (status != HPS_OK) {
            return status;
        }
        model->n_records--;
    }
    return HPS_OK;
}

/* The first table. The list may grow at its front during a save. */
static struct warm_table *first_table(struct hps_warmup *warmup, const struct warm_model *model)
{
    hps_lock_acquire(&warmup->lock);
    struct warm_table *table = model->tables;
    hps_lock_release(&warmup->lock);
    return table;
}

static void save_model(struct hps_warmup *warmup, struct warm_model *model, bool write, bool age)
{
    struct hps_store *durable = warmup->options.durable;
    struct hps_error err = {0};
    hps_status status = HPS_OK;
    uint64_t n_seen = 0;
    uint32_t number = 0;
    struct warm_table *tables = first_table(warmup, model);
    for (struct warm_table *table = tables; table != NULL; table = table->next) {
        n_seen += hps_hot_seen(table->hot);
    }
    write = write && (n_seen != model->n_seen || model->stale);
    for (struct warm_table *table = tables; table != NULL; table = table->next) {
        if (write && status == HPS_OK) {
            status = save_table(durable, model, table, &number, &err);
        }
        if (age) {
            hps_hot_age(table->hot);
        }
    }
    if (write && status == HPS_OK) {
        status = delete_records(durable, model, number, &err);
    }
    if (write) {
        model->n_seen = n_seen;
        model->stale = status != HPS_OK;
        HPS_LOG(DEBUG, "warmup", "hot keys saved", HPS_STR("model", model->name),
                HPS_U64("records", number), HPS_STR("status", hps_status_text(status)));
    }
    if (status != HPS_OK) {
        HPS_LOG(WARN, "warmup",
                "hot keys not saved: a record could not be written; retry at the next save",
                HPS_STR("model", model->name), HPS_STR("error", err.text));
    }
}

/* Take the first model without a version off the list; NULL: all have one. */
static struct warm_model *take_detached(struct hps_warmup *warmup)
{
    hps_lock_acquire(&warmup->lock);
    struct warm_model **at = &warmup->models;
    while (*at != NULL && (*at)->attached) {
        at = &(*at)->next;
    }
    struct warm_model *model = *at;
    if (model != NULL) {
        *at = model->next;
    }
    hps_lock_release(&warmup->lock);
    return model;
}

/* Delete a model's records. If that fails, the next start reads them, finds no model, and tries
 * again. */
static void forget(struct hps_warmup *warmup, struct warm_model *model)
{
    struct hps_store *durable = warmup->options.durable;
    struct hps_error err = {0};
    if (delete_records(durable, model, 0, &err) != HPS_OK) {
        HPS_LOG(WARN, "warmup",
                "hot keys of an unloaded model not deleted: retry after the next start",
                HPS_STR("model", model->name), HPS_STR("error", err.text));
    }
    model_free(model);
}

void hps_warmup_save(struct hps_warmup *warmup, bool write, bool age)
{
    struct warm_model *model;
    write = write && warmup->options.durable != NULL && !warmup->options.read_only;
    while (write && (model = take_detached(warmup)) != NULL) {
        forget(warmup, model);
    }
    hps_lock_acquire(&warmup->lock);
    model = warmup->models;
    hps_lock_release(&warmup->lock);
    while (model != NULL) { /* models are appended, and only this thread removes them */
        save_model(warmup, model, write, age);
        hps_lock_acquire(&warmup->lock);
        model = model->next;
        hps_lock_release(&warmup->lock);
    }
}
