/* SPDX-License-Identifier: Apache-2.0
 *
 * The model set: an immutable snapshot that readers reach through one pointer inside an epoch. A
 * writer makes a changed copy, stores the pointer, and waits until no reader can hold the old one:
 * that is microseconds, because readers hold it only while they find and pin a version.
 */
#include "cache/models.h"

#include <sched.h>
#include <string.h>

#include "base/assert.h"
#include "base/epoch.h"
#include "base/heap.h"
#include "base/text.h"

struct model_entry {
    struct hps_version *version;
    bool active;
};

struct snapshot {
    size_t n;
    struct model_entry entries[];
};

struct hps_models {
    _Atomic(struct snapshot *) current;
    struct hps_epoch *epoch;
};

struct hps_models *hps_models_new(void)
{
    struct hps_models *models = hps_calloc(1, sizeof(*models));
    struct snapshot *empty = hps_calloc(1, sizeof(*empty));
    struct hps_epoch *epoch = hps_epoch_new();
    if (models == NULL || empty == NULL || epoch == NULL) {
        hps_epoch_free(epoch);
        hps_free(empty);
        hps_free(models);
        return NULL;
    }
    models->epoch = epoch;
    atomic_store(&models->current, empty);
    return models;
}

void hps_models_free(struct hps_models *models)
{
    if (models == NULL) {
        return;
    }
    struct snapshot *last = atomic_load(&models->current);
    HPS_ASSERT(last->n == 0);
    hps_free(last);
    hps_epoch_free(models->epoch);
    hps_free(models);
}

static hps_status not_there(bool model_known, const char *model, size_t size, int64_t number,
                            struct hps_error *err)
{
    if (!model_known) {
        return hps_error_set(err, HPS_NOT_FOUND, "model \"%.*s\" is not loaded",
                             size > 128 ? 128 : (int)size, model);
    }
    if (number == 0) {
        return hps_error_set(err, HPS_UNAVAILABLE, "model \"%.*s\" has no active version",
                             (int)size, model);
    }
    return hps_error_set(err, HPS_NOT_FOUND, "version %lld of model \"%.*s\" is not resident",
                         (long long)number, (int)size, model);
}

hps_status hps_models_pin(struct hps_models *models, const char *model, size_t model_size,
                          int64_t number, struct hps_version **out_version, struct hps_error *err)
{
    struct hps_version *found = NULL;
    bool model_known = false;
    struct hps_epoch_slot *slot = hps_epoch_enter(models->epoch);
    const struct snapshot *now = atomic_load(&models->current);
    for (size_t i = 0; i < now->n && found == NULL; i++) {
        const struct model_entry *entry = &now->entries[i];
        if (!hps_text_is(entry->version->model, model, model_size)) {
            continue;
        }
        model_known = true;
        if (number == 0 ? entry->active : entry->version->number == number) {
            found = entry->version;
            hps_version_pin(found);
        }
    }
    hps_epoch_leave(models->epoch, slot);
    if (found == NULL) {
        return not_there(model_known, model, model_size, number, err);
    }
    *out_version = found;
    return HPS_OK;
}

static struct snapshot *snapshot_copy(const struct hps_models *models, size_t n_more)
{
    const struct snapshot *old = atomic_load(&models->current);
    struct snapshot *copy =
        hps_alloc(sizeof(*copy) + (old->n + n_more) * sizeof(struct model_entry));
    if (copy != NULL) {
        copy->n = old->n;
        memcpy(copy->entries, old->entries, old->n * sizeof(struct model_entry));
    }
    return copy;
}

static void snapshot_publish(struct hps_models *models, struct snapshot *next)
{
    struct snapshot *old = atomic_exchange(&models->current, next);
    uint64_t stamp = hps_epoch_retire(models->epoch);
    while (!hps_epoch_passed(models->epoch, stamp)) {
        sched_yield();
    }
    hps_free(old);
}

static size_t snapshot_find(const struct snapshot *now, const char *model, int64_t number)
{
    for (size_t i = 0; i < now->n; i++) {
        if (now->entries[i].version->number == number &&
            strcmp(now->entries[i].version->model, model) == 0) {
            return i;
        }
    }
    return SIZE_MAX;
}

hps_status hps_models_add(struct hps_models *models, struct hps_version *version)
{
    struct snapshot *next = snapshot_copy(models, 1);
    if (next == NULL) {
        return HPS_NO_MEMORY;
    }
    if (snapshot_find(next, version->model, version->number) != SIZE_MAX) {
        hps_free(next);
        return HPS_EXISTS;
    }
    next->entries[next->n++] = (struct model_entry){version, false};
    snapshot_publish(models, next);
    return HPS_OK;
}

hps_status hps_models_activate(struct hps_models *models, const char *model, int64_t number)
{
    struct snapshot *next = snapshot_copy(models, 0);
    if (next == NULL) {
        return HPS_NO_MEMORY;
    }
    if (number != 0 && snapshot_find(next, model, number) == SIZE_MAX) {
        hps_free(next);
        return HPS_NOT_FOUND;
    }
    for (size_t i = 0; i < next->n; i++) {
        if (strcmp(next->entries[i].version->model, model) == 0) {
            next->entries[i].active = number != 0 && next->entries[i].version->number == number;
        }
    }
    snapshot_publish(models, next);
    return HPS_OK;
}

hps_status hps_models_remove(struct hps_models *models, const char *model, int64_t number)
{
    struct snapshot *next = snapshot_copy(models, 0);
    if (next == NULL) {
        return HPS_NO_MEMORY;
    }
    size_t at = snapshot_find(next, model, number);
    if (at == SIZE_MAX) {
        hps_free(next);
        return HPS_NOT_FOUND;
    }
    next->entries[at] = next->entries[--next->n];
    snapshot_publish(models, next);
    return HPS_OK;
}
