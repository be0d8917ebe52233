/* SPDX-License-Identifier: Apache-2.0
 *
 * State of a model besides its versions: the order of its tables, and which versions have been
 * active. Under switch_lock, or before other threads know the catalog.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "base/assert.h"
#include "base/heap.h"
#include "base/log.h"
#include "server/catalog/internal.h"
#include "server/load/records.h"

/* ---- versions that have been active ---------------------------------------------------------- */

void catalog_note_active(struct catalog_model *model, struct catalog_entry *active)
{
    uint64_t last = 0;
    for (const struct catalog_entry *entry = model->entries; entry != NULL; entry = entry->next) {
        last = entry->last_active > last ? entry->last_active : last;
    }
    HPS_ASSERT(active->model == model);
    active->last_active = last + 1;
}

static int latest_first(const void *a, const void *b)
{
    const struct catalog_entry *const *left = a, *const *right = b;
    return (*left)->last_active < (*right)->last_active ? 1 : -1;
}

/* Numbers of the versions that have been active, `active` first; without `without`. */
static hps_status past_versions(const struct catalog_model *model, int64_t active, int64_t without,
                                int64_t **out_numbers, uint32_t *out_n)
{
    uint32_t n_entries = 0, n_past = 0;
    HPS_ASSERT(active != without || active == 0);
    for (const struct catalog_entry *entry = model->entries; entry != NULL; entry = entry->next) {
        n_entries++;
    }
    const struct catalog_entry **past = hps_calloc(n_entries + 1, sizeof(struct catalog_entry *));
    int64_t *numbers = hps_calloc(n_entries + 1, sizeof(*numbers));
    if (past == NULL || numbers == NULL) {
        hps_free(past);
        hps_free(numbers);
        return HPS_NO_MEMORY;
    }
    for (const struct catalog_entry *entry = model->entries; entry != NULL; entry = entry->next) {
        int64_t number = entry->version->number;
        if (entry->last_active > 0 && entry->state != ENTRY_UNLOADING && number != active &&
            number != without) {
            past[n_past++] = entry;
        }
    }
    HPS_ASSERT(n_past <= n_entries);
    qsort(past, n_past, sizeof(struct catalog_entry *), latest_first);
    numbers[0] = active;
    for (uint32_t i = 0; i < n_past; i++) {
        numbers[i + 1] = past[i]->version->number;
    }
    hps_free(past);
    *out_numbers = numbers;
    *out_n = n_past + 1;
    return HPS_OK;
}

/* ---- the record ------------------------------------------------------------------------------ */

/* Only collects the numbers under the lock, because the write may take long. The caller holds
 * switch_lock, so the order cannot change. */
hps_status catalog_put_model(struct hps_catalog *catalog, struct catalog_model *model,
                             const struct catalog_model_change *change, struct hps_error *err)
{
    int64_t *past = NULL;
    uint32_t n_past = 0;
    HPS_ASSERT(catalog_durable(catalog) != NULL);
    hps_lock_acquire(&catalog->lock);
    hps_status status = past_versions(model, change->active, change->without, &past, &n_past);
    hps_lock_release(&catalog->lock);
    if (status != HPS_OK) {
        return hps_error_set(err, status, "no memory for a catalog record");
    }
    const struct hps_model_record record = {.model = model->name,
                                            .active = change->active,
                                            .previous = change->previous,
                                            .n_switches = change->n_switches,
                                            .tables = (const char *const *)model->order.names,
                                            .n_tables = model->order.n,
                                            .past = past,
                                            .n_past = n_past};
    status = hps_records_put_model(catalog_durable(catalog), &record, err);
    hps_free(past);
    if (status == HPS_OK) {
        model->n_order_stored = record.n_tables;
    }
    return status;
}

/* Records of an earlier build lack past versions. Usually lower numbers than the active one were
 * active before it. */
static void guess_past(struct catalog_model *model)
{
    uint64_t n = 0;
    for (struct catalog_entry *entry = model->entries; entry != NULL; entry = entry->next) {
        int64_t number = entry->version->number;
        n++;
        entry->last_active = number < model->active ? n : 0;
    }
    struct catalog_entry *previous = catalog_entry(model, model->previous);
    struct catalog_entry *active = catalog_entry(model, model->active);
    if (previous != NULL) {
        previous->last_active = n + 1;
    }
    if (active != NULL) {
        active->last_active = n + 2;
    }
}

hps_status catalog_adopt_model(void *ctx, const struct hps_model_record *record)
{
    struct catalog_model *model = catalog_model(ctx, record->model, true);
    if (model == NULL) {
        return HPS_NO_MEMORY;
    }
    model->active = record->active;
    model->previous = record->previous;
    model->n_switches = record->n_switches;
    model->record_outdated = record->n_tables == 0;
    if (record->n_tables == 0) {
        guess_past(model);
        return HPS_OK;
    }
    for (uint32_t i = 0; i < record->n_past; i++) {
        struct catalog_entry *entry = catalog_entry(model, record->past[i]);
        if (entry != NULL) {
            entry->last_active = record->n_past - i;
        }
        model->record_outdated = model->record_outdated || entry == NULL;
    }
    hps_table_order_free(&model->order);
    for (uint32_t i = 0; i < record->n_tables; i++) {
        if (hps_table_order_add(&model->order, record->tables[i]) != HPS_OK) {
            return HPS_NO_MEMORY;
        }
    }
    model->n_order_stored = record->n_tables;
    return HPS_OK;
}

hps_status catalog_repair_model(struct hps_catalog *catalog, struct catalog_model *model,
                                struct hps_error *err)
{
    struct hps_store *durable = catalog_durable(catalog);
    if (!model->record_outdated || catalog->options.config->persistent_db.read_only) {
        return HPS_OK;
    }
    model->record_outdated = false;
    if (model->entries == NULL) {
        return hps_records_delete_model(durable, model->name, err);
    }
    const struct catalog_model_change as_is = {
        .active = model->active, .previous = model->previous, .n_switches = model->n_switches};
    return catalog_put_model(catalog, model, &as_is, err);
}

/* ---- the order of tables --------------------------------------------------------------------- */

hps_status catalog_configured_order(struct catalog_model *model)
{
    hps_status status = HPS_OK;
    hps_table_order_free(&model->order);
    for (size_t i = 0; status == HPS_OK && model->config != NULL && i < model->config->n_tables;
         i++) {
        status = hps_table_order_add(&model->order, model->config->tables[i].name);
    }
    return status;
}

static void warn_of_configured_order(const struct catalog_model *model)
{
    for (size_t i = 0; model->config != NULL && i < model->config->n_tables; i++) {
        const char *name = model->config->tables[i].name;
        if (hps_table_order_find(&model->order, name) == i) {
            continue;
        }
        HPS_LOG(WARN, "catalog",
                "order of tables kept: models[] has another one, but lookups without table names "
                "use the stored order (hpsctl tables); to use that of models[], unload every "
                "version of the model",
                HPS_STR("model", model->name), HPS_STR("table", name));
        return;
    }
}

hps_status catalog_tell_order(struct hps_catalog *catalog, const struct catalog_model *model)
{
    return hps_models_set_order(catalog->options.models, model->name,
                                (const char *const *)model->order.names, model->order.n);
}

hps_status catalog_settle_order(struct catalog_model *model)
{
    const struct catalog_entry *first = catalog_entry(model, model->active);
    hps_status status = HPS_OK;
    if (model->entries == NULL) { /* a crash left only its record, which is obsolete */
        model->record_outdated = model->record_outdated || model->n_order_stored > 0;
        model->n_order_stored = 0;
        return catalog_configured_order(model);
    }
    if (model->n_order_stored == 0) {
        for (const struct catalog_entry *entry = first == NULL ? model->entries : NULL;
             entry != NULL; entry = entry->next) {
            first = entry;
        }
        HPS_ASSERT(first != NULL);
        hps_table_order_free(&model->order);
        status = hps_table_order_apply(&model->order, first->version);
    }
    for (struct catalog_entry *entry = model->entries; status == HPS_OK && entry != NULL;
         entry = entry->next) {
        status = hps_table_order_apply(&model->order, entry->version);
    }
    if (status == HPS_OK) {
        warn_of_configured_order(model);
    }
    return status;
}
