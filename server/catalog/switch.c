/* SPDX-License-Identifier: Apache-2.0
 *
 * Which version is active. Runs on the admin, loader and switch threads. A decision is recorded
 * before it becomes visible.
 */
#include <inttypes.h>

#include "backends/store_limits.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "server/catalog/internal.h"
#include "server/load/records.h"
#include "server/observe/metrics.h"

void catalog_show_active(struct hps_catalog *catalog, const struct catalog_model *model)
{
    hps_metric_set(hps_server_metric(catalog->options.metrics, HPS_M_MODEL_ACTIVE_VERSION,
                                     model->name, NULL, NULL, NULL),
                   (double)model->active);
}

hps_status catalog_check_lag(struct hps_catalog *catalog, const char *model, int64_t number,
                             struct hps_error *err)
{
    hps_lock_acquire(&catalog->lock);
    uint64_t lag_max_ms = (uint64_t)catalog->activate_lag_max_s * 1000;
    hps_lock_release(&catalog->lock);
    return hps_updater_check_lag(catalog->options.updater, model, number, lag_max_ms, err);
}

void catalog_share_memory(const struct catalog_model *model)
{
    for (struct catalog_entry *entry = model->entries; entry != NULL; entry = entry->next) {
        bool active = entry->version->number == model->active;
        if (entry->state == ENTRY_RESIDENT && entry->host != NULL &&
            entry->host->store->ops->limits != NULL) {
            entry->host->store->ops->limits->space_active(entry->host, active);
        }
    }
}

/* ---- differences ----------------------------------------------------------------------------- */

hps_status catalog_diff(struct catalog_model *model, const struct hps_version *version,
                        struct hps_version_diff *out_diff)
{
    const struct catalog_entry *active = catalog_entry(model, model->active);
    if (active == NULL || active->version == version) {
        return HPS_OK;
    }
    return hps_version_diff(active->version, version, out_diff);
}

hps_status catalog_check_diff(const struct hps_catalog *catalog, struct catalog_model *model,
                              int64_t number, const struct hps_version_diff *diff,
                              struct hps_error *err)
{
    hps_status status = hps_version_diff_check(diff, catalog->activate_rows_loss_max, err);
    if (status == HPS_OK) {
        return HPS_OK;
    }
    struct hps_error why = *err;
    return hps_error_set(err, status,
                         "version %" PRId64
                         " of model \"%s\" differs too much from the active version %" PRId64
                         ": %s; use --force to activate it anyway",
                         number, model->name, model->active, why.text);
}

/* ---- the switch ------------------------------------------------------------------------------ */

/* lock not held */
static hps_status make_active(struct hps_catalog *catalog, struct catalog_model *model,
                              int64_t number, bool back, struct hps_switched *switched,
                              struct hps_error *err)
{
    int64_t previous = model->active != number ? model->active : model->previous;
    previous = back ? 0 : previous; /* a second rollback does not undo the first */
    hps_status status = HPS_OK;
    hps_lock_acquire(&catalog->lock);
    const struct catalog_entry *entry = catalog_entry(model, number);
    HPS_ASSERT(entry != NULL && entry->state == ENTRY_RESIDENT);
    status = catalog_diff(model, entry->version, &switched->diff);
    hps_lock_release(&catalog->lock);
    if (status != HPS_OK) {
        return hps_error_set(err, status, "no memory to compare versions");
    }
    if (catalog_durable(catalog) != NULL) {
        const struct catalog_model_change change = {
            .active = number, .previous = previous, .n_switches = model->n_switches + 1};
        status = catalog_put_model(catalog, model, &change, err);
    }
    if (status != HPS_OK) {
        return status;
    }
    uint64_t start_us = hps_clock_us();
    status = hps_models_activate(catalog->options.models, model->name, number);
    if (status != HPS_OK) {
        return hps_error_set(err, status, "version %" PRId64 " of \"%s\" cannot be activated: %s",
                             number, model->name, hps_status_text(status));
    }
    switched->pause_us = hps_clock_us() - start_us;
    switched->version = number;
    switched->previous = model->active;
    hps_lock_acquire(&catalog->lock);
    model->active = number;
    catalog_note_active(model, catalog_entry(model, number));
    model->n_switches++;
    model->previous = previous;
    catalog_judge(catalog, model);
    catalog_share_memory(model);
    catalog_model_sane(model);
    hps_lock_release(&catalog->lock);
    return HPS_OK;
}

hps_status catalog_activate_locked(struct hps_catalog *catalog, struct catalog_model *model,
                                   int64_t number, bool back, struct hps_switched *out_switched,
                                   struct hps_error *err)
{
    struct hps_switched switched = {0};
    hps_status status = make_active(catalog, model, number, back, &switched, err);
    if (status != HPS_OK) {
        hps_version_diff_free(&switched.diff);
        return status;
    }
    hps_lock_acquire(&catalog->lock);
    struct catalog_entry *entry = catalog_entry(model, number);
    struct catalog_entry *last =
        switched.previous != number ? catalog_entry(model, switched.previous) : NULL;
    HPS_ASSERT(entry != NULL && model->active == number);
    HPS_ASSERT(last != entry);
    hps_lock_release(&catalog->lock);
    catalog_gpu_active(last, false);
    catalog_gpu_active(entry, true);
    hps_updater_activated(catalog->options.updater, entry->version, model->n_switches);
    catalog_show_active(catalog, model);
    HPS_LOG(INFO, "catalog", "version activated", HPS_STR("model", model->name),
            HPS_I64("version", number), HPS_I64("previous", switched.previous));
    catalog_warm_behind(catalog, catalog->warmer, entry->version);
    catalog_retire_locked(catalog, model, &switched.gone);
    *out_switched = switched;
    return HPS_OK;
}

/* ---- calls ----------------------------------------------------------------------------------- */

hps_status catalog_resident(struct hps_catalog *catalog, const char *name, int64_t number,
                            struct catalog_model **out_model, struct catalog_entry **out_entry,
                            struct hps_error *err)
{
    hps_status status = HPS_OK;
    hps_lock_acquire(&catalog->lock);
    struct catalog_model *model = catalog_model(catalog, name, false);
    struct catalog_entry *entry = model != NULL ? catalog_entry(model, number) : NULL;
    if (model == NULL) {
        status = hps_error_set(err, HPS_NOT_FOUND, "model \"%s\" is not loaded", name);
    } else if (entry == NULL) {
        status = hps_error_set(err, HPS_NOT_FOUND,
                               "version %" PRId64 " of model \"%s\" is not loaded", number, name);
    } else if (entry->state != ENTRY_RESIDENT) {
        status =
            hps_error_set(err, HPS_PRECONDITION, "version %" PRId64 " of model \"%s\" is %s",
                          number, name, entry->state == ENTRY_LOADING ? "loading" : "unloading");
    } else {
        *out_model = model;
        *out_entry = entry;
    }
    hps_lock_release(&catalog->lock);
    return status;
}

hps_status catalog_check_active(struct hps_catalog *catalog, struct catalog_model *model,
                                const struct catalog_entry *entry, struct hps_error *err)
{
    struct hps_version_diff diff = {0};
    HPS_ASSERT(entry->model == model);
    hps_lock_acquire(&catalog->lock);
    hps_status status = catalog_diff(model, entry->version, &diff);
    status = status != HPS_OK
                 ? hps_error_set(err, status, "no memory to compare versions")
                 : catalog_check_diff(catalog, model, entry->version->number, &diff, err);
    hps_lock_release(&catalog->lock);
    hps_version_diff_free(&diff);
    return status;
}

hps_status hps_catalog_activate(struct hps_catalog *catalog, const char *name, int64_t version,
                                bool force, struct hps_switched *out_switched,
                                struct hps_error *err)
{
    struct catalog_model *model;
    struct catalog_entry *entry;
    hps_lock_acquire(&catalog->switch_lock);
    hps_status status = catalog_resident(catalog, name, version, &model, &entry, err);
    if (status == HPS_OK && !force) {
        status = catalog_check_active(catalog, model, entry, err);
    }
    if (status == HPS_OK) {
        status = catalog_activate_locked(catalog, model, version, false, out_switched, err);
    }
    hps_lock_release(&catalog->switch_lock);
    if (status == HPS_OK) {
        catalog_reap(catalog);
    }
    return status;
}

hps_status hps_catalog_rollback(struct hps_catalog *catalog, const char *name,
                                struct hps_switched *out_switched, struct hps_error *err)
{
    struct catalog_entry *entry;
    int64_t target = 0;
    hps_lock_acquire(&catalog->switch_lock);
    hps_lock_acquire(&catalog->lock);
    struct catalog_model *model = catalog_model(catalog, name, false);
    target = model != NULL ? model->previous : 0;
    hps_lock_release(&catalog->lock);
    hps_status status = HPS_OK;
    if (model != NULL && target == 0) {
        status = hps_error_set(err, HPS_PRECONDITION,
                               "model \"%s\" has no version to roll back to: none was active "
                               "before, it was unloaded, or "
                               "the last switch was a rollback; use hpsctl activate",
                               name);
    } else {
        status = catalog_resident(catalog, name, target, &model, &entry, err);
    }
    if (status == HPS_OK) {
        status = catalog_activate_locked(catalog, model, target, true, out_switched, err);
    }
    hps_lock_release(&catalog->switch_lock);
    if (status == HPS_OK) {
        catalog_reap(catalog);
    }
    return status;
}
