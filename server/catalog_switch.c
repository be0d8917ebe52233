/* SPDX-License-Identifier: Apache-2.0
 *
 * Which version is active, and versions that go. Runs on the admin and loader threads; what it
 * decides is written down before it becomes visible.
 */
#include <inttypes.h>
#include <time.h>

#include "base/clock.h"
#include "base/heap.h"
#include "base/log.h"
#include "server/catalog_internal.h"
#include "server/catalog_records.h"
#include "server/metrics.h"

enum { UNLOAD_POLL_NS = 1000 * 1000 };

hps_status catalog_activate_locked(struct hps_catalog *catalog, struct catalog_model *model,
                                   int64_t number, int64_t *out_previous, uint64_t *out_pause_us,
                                   struct hps_error *err)
{
    struct hps_store *durable = catalog->options.env.durable;
    int64_t before = model->active;
    int64_t previous = before != number ? before : model->previous;
    if (durable != NULL) {
        hps_status status = hps_records_put_model(durable, model->name, number, previous, err);
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
    model->active = number;
    model->previous = previous;
    model->drift = false;
    pthread_mutex_unlock(&catalog->lock);
    hps_metric_set(hps_server_metric(catalog->options.metrics, HPS_M_MODEL_ACTIVE_VERSION,
                                     model->name, NULL, NULL, NULL),
                   (double)number);
    HPS_LOG(INFO, "catalog", "version activated", HPS_STR("model", model->name),
            HPS_I64("version", number), HPS_I64("previous", before));
    return HPS_OK;
}

/* The model and its resident version `number`; lock held by nobody. */
static hps_status find_resident(struct hps_catalog *catalog, const char *name, int64_t number,
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
    hps_status status = find_resident(catalog, name, version, &model, &entry, err);
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
        status = find_resident(catalog, name, target, &model, &entry, err);
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

static void wait_until_idle(struct hps_version *version)
{
    const struct timespec pause = {0, UNLOAD_POLL_NS};
    while (!hps_version_idle(version)) {
        nanosleep(&pause, NULL);
    }
}

static hps_status drop_spaces(struct hps_version *version, struct hps_error *err)
{
    hps_status status = HPS_OK;
    for (uint32_t i = 0; i < version->n_tiers; i++) {
        struct hps_space *space = version->tiers[i];
        hps_status dropped = space->store->ops->space_drop(space, err);
        if (dropped != HPS_OK) {
            status = dropped;
        }
    }
    return status;
}

/* Records first: after a crash the next open removes the rows that no record names. */
static hps_status forget(struct hps_catalog *catalog, struct catalog_model *model, int64_t number,
                         struct hps_error *err)
{
    struct hps_store *durable = catalog->options.env.durable;
    if (durable == NULL) {
        return HPS_OK;
    }
    if (model->active == number) {
        hps_status status = hps_records_delete_model(durable, model->name, err);
        if (status != HPS_OK) {
            return status;
        }
    }
    return hps_records_delete_version(durable, model->name, number, err);
}

hps_status catalog_unload_locked(struct hps_catalog *catalog, struct catalog_model *model,
                                 struct catalog_entry *entry, struct hps_error *err)
{
    struct hps_version *version = entry->version;
    int64_t number = version->number;
    hps_status status = forget(catalog, model, number, err);
    if (status != HPS_OK) {
        return status;
    }
    status = hps_models_remove(catalog->options.models, model->name, number);
    if (status != HPS_OK) {
        return hps_error_set(err, status,
                             "version %" PRId64 " of model \"%s\" cannot be taken out: %s", number,
                             model->name, hps_status_text(status));
    }
    pthread_mutex_lock(&catalog->lock);
    entry->state = ENTRY_UNLOADING;
    model->active = model->active == number ? 0 : model->active;
    model->previous = model->previous == number ? 0 : model->previous;
    pthread_mutex_unlock(&catalog->lock);
    wait_until_idle(version);
    pthread_mutex_lock(&catalog->lock);
    entry->host = NULL;
    entry->durable = NULL;
    pthread_mutex_unlock(&catalog->lock);
    status = drop_spaces(version, err);
    HPS_LOG(INFO, "catalog", "version unloaded", HPS_STR("model", version->model),
            HPS_I64("version", number));
    pthread_mutex_lock(&catalog->lock);
    bool last = model->entries == entry && entry->next == NULL;
    catalog_entry_remove(catalog, model, entry);
    pthread_mutex_unlock(&catalog->lock);
    if (last) {
        hps_metrics_remove(catalog->options.metrics, "model", version->model);
    }
    hps_version_free(version);
    return status;
}

hps_status hps_catalog_unload(struct hps_catalog *catalog, const char *name, int64_t number,
                              struct hps_error *err)
{
    struct catalog_model *model;
    struct catalog_entry *entry;
    pthread_mutex_lock(&catalog->switch_lock);
    hps_status status = find_resident(catalog, name, number, &model, &entry, err);
    if (status == HPS_OK && model->active == number &&
        (model->entries != entry || entry->next != NULL)) {
        status = hps_error_set(
            err, HPS_PRECONDITION,
            "version %" PRId64 " of model \"%s\" is active: activate another first", number, name);
    }
    if (status == HPS_OK) {
        status = catalog_unload_locked(catalog, model, entry, err);
    }
    pthread_mutex_unlock(&catalog->switch_lock);
    return status;
}

/* The oldest version that may go, or NULL while there are no more than keep_versions. */
static struct catalog_entry *superfluous(struct hps_catalog *catalog, struct catalog_model *model,
                                         int64_t keep)
{
    struct catalog_entry *oldest = NULL;
    uint32_t n = 0;
    for (struct catalog_entry *entry = model->entries; entry != NULL; entry = entry->next) {
        if (entry->state != ENTRY_RESIDENT) {
            continue;
        }
        n++;
        int64_t number = entry->version->number;
        if (oldest == NULL && number != model->active && number != keep) {
            oldest = entry;
        }
    }
    return n > catalog->options.config->server.keep_versions ? oldest : NULL;
}

void catalog_retire_locked(struct hps_catalog *catalog, struct catalog_model *model, int64_t keep)
{
    for (;;) {
        pthread_mutex_lock(&catalog->lock);
        struct catalog_entry *entry = superfluous(catalog, model, keep);
        pthread_mutex_unlock(&catalog->lock);
        struct hps_error err = {0};
        if (entry == NULL) {
            return;
        }
        int64_t number = entry->version->number;
        if (catalog_unload_locked(catalog, model, entry, &err) != HPS_OK) {
            HPS_LOG(WARN, "catalog", "an old version was not removed",
                    HPS_STR("model", model->name), HPS_I64("version", number),
                    HPS_STR("error", err.text));
            return;
        }
    }
}
