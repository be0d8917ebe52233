/* SPDX-License-Identifier: Apache-2.0
 *
 * Which version is active. Runs on the admin and loader threads; what it decides is written down
 * before it becomes visible.
 */
#include <inttypes.h>

#include "base/clock.h"
#include "base/log.h"
#include "server/catalog_internal.h"
#include "server/catalog_records.h"
#include "server/metrics.h"

void catalog_show_active(struct hps_catalog *catalog, const struct catalog_model *model)
{
    hps_metric_set(hps_server_metric(catalog->options.metrics, HPS_M_MODEL_ACTIVE_VERSION,
                                     model->name, NULL, NULL, NULL),
                   (double)model->active);
}

hps_status catalog_check_lag(struct hps_catalog *catalog, const char *model, int64_t number,
                             struct hps_error *err)
{
    pthread_mutex_lock(&catalog->lock);
    uint64_t lag_max_ms = (uint64_t)catalog->activate_lag_max_s * 1000;
    pthread_mutex_unlock(&catalog->lock);
    return hps_updater_check_lag(catalog->options.updater, model, number, lag_max_ms, err);
}

void catalog_share_memory(const struct catalog_model *model)
{
    for (struct catalog_entry *entry = model->entries; entry != NULL; entry = entry->next) {
        bool active = entry->version->number == model->active;
        if (entry->state == ENTRY_RESIDENT && entry->host != NULL &&
            entry->host->store->ops->space_active != NULL) {
            entry->host->store->ops->space_active(entry->host, active);
        }
    }
}

hps_status catalog_activate_locked(struct hps_catalog *catalog, struct catalog_model *model,
                                   int64_t number, int64_t *out_previous, uint64_t *out_pause_us,
                                   struct hps_error *err)
{
    struct hps_store *durable = catalog->options.env.durable;
    int64_t before = model->active;
    int64_t previous = before != number ? before : model->previous;
    if (durable != NULL) {
        hps_status status = hps_records_put_model(durable, model->name, number, previous,
                                                  model->n_switches + 1, err);
        if (status != HPS_OK) {
            return status;
        }
    }
    uint64_t start_us = hps_clock_us();
    hps_status status = hps_models_activate(catalog->options.models, model->name, number);
    if (status != HPS_OK) {
        return hps_error_set(err, status, "version %" PRId64 " of \"%s\" cannot be activated: %s",
                             number, model->name, hps_status_text(status));
    }
    *out_pause_us = hps_clock_us() - start_us;
    *out_previous = before;
    pthread_mutex_lock(&catalog->lock);
    struct catalog_entry *entry = catalog_entry(model, number);
    struct catalog_entry *last = before != number ? catalog_entry(model, before) : NULL;
    model->active = number;
    model->n_switches++;
    model->previous = previous;
    model->drift = false;
    catalog_share_memory(model);
    pthread_mutex_unlock(&catalog->lock);
    catalog_gpu_active(last, false);
    catalog_gpu_active(entry, true);
    hps_updater_activated(catalog->options.updater, entry->version, model->n_switches);
    catalog_show_active(catalog, model);
    HPS_LOG(INFO, "catalog", "version activated", HPS_STR("model", model->name),
            HPS_I64("version", number), HPS_I64("previous", before));
    catalog_warm_behind(catalog, catalog->warmer, entry->version);
    return HPS_OK;
}

hps_status catalog_resident(struct hps_catalog *catalog, const char *name, int64_t number,
                            struct catalog_model **out_model, struct catalog_entry **out_entry,
                            struct hps_error *err)
{
    hps_status status = HPS_OK;
    pthread_mutex_lock(&catalog->lock);
    struct catalog_model *model = catalog_model(catalog, name, false);
    struct catalog_entry *entry = model != NULL ? catalog_entry(model, number) : NULL;
    if (model == NULL) {
        status = hps_error_set(err, HPS_NOT_FOUND, "model \"%s\" is not loaded", name);
    } else if (entry == NULL) {
        status = hps_error_set(err, HPS_NOT_FOUND,
                               "version %" PRId64 " of model \"%s\" is not resident", number, name);
    } else if (entry->state != ENTRY_RESIDENT) {
        status =
            hps_error_set(err, HPS_PRECONDITION, "version %" PRId64 " of model \"%s\" is %s",
                          number, name, entry->state == ENTRY_LOADING ? "loading" : "unloading");
    } else {
        *out_model = model;
        *out_entry = entry;
    }
    pthread_mutex_unlock(&catalog->lock);
    return status;
}

hps_status hps_catalog_activate(struct hps_catalog *catalog, const char *name, int64_t version,
                                int64_t *out_previous, uint64_t *out_pause_us,
                                struct hps_error *err)
{
    struct catalog_model *model;
    struct catalog_entry *entry;
    pthread_mutex_lock(&catalog->switch_lock);
    hps_status status = catalog_resident(catalog, name, version, &model, &entry, err);
    if (status == HPS_OK) {
        status = catalog_activate_locked(catalog, model, version, out_previous, out_pause_us, err);
    }
    pthread_mutex_unlock(&catalog->switch_lock);
    return status;
}

hps_status hps_catalog_rollback(struct hps_catalog *catalog, const char *name, int64_t *out_version,
                                int64_t *out_previous, uint64_t *out_pause_us,
                                struct hps_error *err)
{
    struct catalog_entry *entry;
    int64_t target = 0;
    pthread_mutex_lock(&catalog->switch_lock);
    pthread_mutex_lock(&catalog->lock);
    struct catalog_model *model = catalog_model(catalog, name, false);
    target = model != NULL ? model->previous : 0;
    pthread_mutex_unlock(&catalog->lock);
    hps_status status = HPS_OK;
    if (model != NULL && target == 0) {
        status = hps_error_set(err, HPS_PRECONDITION,
                               "model \"%s\" has no earlier version to go back to", name);
    } else {
        status = catalog_resident(catalog, name, target, &model, &entry, err);
    }
    if (status == HPS_OK) {
        status = catalog_activate_locked(catalog, model, target, out_previous, out_pause_us, err);
    }
    if (status == HPS_OK) {
        *out_version = target;
    }
    pthread_mutex_unlock(&catalog->switch_lock);
    return status;
}
