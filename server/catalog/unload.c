/* SPDX-License-Identifier: Apache-2.0
 *
 * Unloading. A version is unpublished under switch_lock. First its records are deleted, so that a
 * restart does not find it. Then it leaves the model set, so that no new request gets it. Its rows
 * are removed when the last request that uses it has ended; no lock is held until then.
 *
 * Admin and loader threads unpublish, and remove versions that are not in use. The reaper thread
 * removes the rest later.
 */
#include <inttypes.h>
#include <stddef.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/container.h"
#include "base/log.h"
#include "server/catalog/internal.h"
#include "server/load/records.h"
#include "server/observe/metrics.h"

#define TIDY_US (UINT64_C(5) * 1000 * 1000)

enum {
    /* The reaper polls: releasing a pin must stay cheap, so it wakes no thread. */
    REAP_POLL_US = 1000,
    REAPER_STACK_BYTES = 1 << 20
};

/* ---- unpublishing ---------------------------------------------------------------------------- */

/* Deletes the version's record first: without it the version does not exist, whatever the model's
 * record says. The model's record is written next. After a crash in between, the next open writes
 * it, before another version can get the number. */
static hps_status forget(struct hps_catalog *catalog, const struct catalog_entry *entry,
                         struct hps_error *err)
{
    struct hps_store *durable = catalog_durable(catalog);
    struct catalog_model *model = entry->model;
    int64_t number = entry->version->number;
    hps_status status = HPS_OK;
    if (durable == NULL) {
        return HPS_OK;
    }
    if (entry->shared != NULL) {
        status = hps_records_put_unused(durable, entry->version, err);
    }
    if (status == HPS_OK) {
        status = hps_records_delete_version(durable, model->name, number, err);
    }
    if (status != HPS_OK) {
        return status;
    }
    if (model->active == number) {
        status = hps_records_delete_model(durable, model->name, err);
    } else if (model->previous == number || entry->last_active > 0) {
        const struct catalog_model_change change = {
            .active = model->active,
            .previous = model->previous == number ? 0 : model->previous,
            .n_switches = model->n_switches,
            .without = number};
        status = catalog_put_model(catalog, model, &change, err);
    }
    if (status != HPS_OK) {
        HPS_LOG(WARN, "catalog",
                "catalog record outdated: writing it failed; it still names an unloaded version; "
                "the next change or start retries",
                HPS_STR("model", model->name), HPS_I64("version", number),
                HPS_STR("error", err->text));
    }
    return HPS_OK;
}

/* switch_lock held, lock not. */
static hps_status unpublish(struct hps_catalog *catalog, struct catalog_entry *entry,
                            struct hps_unload *unload, struct hps_error *err)
{
    struct catalog_model *model = entry->model;
    int64_t number = entry->version->number;
    HPS_ASSERT(entry->state == ENTRY_RESIDENT && entry->unload == NULL);
    hps_status status = forget(catalog, entry, err);
    if (status != HPS_OK) {
        return status;
    }
    status = hps_models_remove(catalog->options.models, model->name, number);
    if (status != HPS_OK) {
        return hps_error_set(err, status,
                             "version %" PRId64 " of model \"%s\" cannot be unloaded: %s", number,
                             model->name, hps_status_text(status));
    }
    hps_insertion_forget(catalog->options.insertion, entry->version);
    hps_updater_remove(catalog->options.updater, entry->version);
    hps_lock_acquire(&catalog->lock);
    entry->state = ENTRY_UNLOADING;
    entry->unload = unload;
    model->active = model->active == number ? 0 : model->active;
    model->previous = model->previous == number ? 0 : model->previous;
    catalog_judge(catalog, model);
    catalog_model_sane(model);
    struct catalog_entry **at = &catalog->unloading;
    while (*at != NULL) {
        at = &(*at)->next_unloading;
    }
    *at = entry;
    hps_lock_release(&catalog->lock);
    HPS_LOG(INFO, "catalog", "version unloading", HPS_STR("model", model->name),
            HPS_I64("version", number));
    return HPS_OK;
}

/* Whether the model has other versions, resident or loading. Lock held. */
static bool has_others(const struct catalog_entry *entry)
{
    for (struct catalog_entry *other = entry->model->entries; other != NULL; other = other->next) {
        if (other != entry && other->state != ENTRY_UNLOADING) {
            return true;
        }
    }
    return false;
}

hps_status hps_catalog_unload(struct hps_catalog *catalog, const char *name, int64_t number,
                              struct hps_unload *unload, struct hps_error *err)
{
    struct catalog_model *model;
    struct catalog_entry *entry;
    hps_lock_acquire(&catalog->switch_lock);
    hps_status status = catalog_resident(catalog, name, number, &model, &entry, err);
    if (status == HPS_OK) {
        hps_lock_acquire(&catalog->lock);
        bool in_use = model->active == number && has_others(entry);
        hps_lock_release(&catalog->lock);
        status = !in_use ? unpublish(catalog, entry, unload, err)
                         : hps_error_set(err, HPS_PRECONDITION,
                                         "version %" PRId64
                                         " of model \"%s\" is active: activate another first",
                                         number, name);
    }
    hps_lock_release(&catalog->switch_lock);
    if (status == HPS_OK) {
        catalog_reap(catalog);
    }
    return status;
}

/* ---- superfluous versions -------------------------------------------------------------------- */

/* keep_versions counts versions that are or have been active. A version that never was active is
 * not counted. It stays until it is activated, unloaded or replaced. */

static void note_gone(struct hps_versions_gone *gone, int64_t number)
{
    HPS_ASSERT(number > 0);
    if (gone->n < HPS_VERSIONS_GONE_MAX) {
        gone->numbers[gone->n++] = number;
    }
}

static bool is_among(const struct hps_versions_gone *gone, int64_t number)
{
    for (uint32_t i = 0; i < gone->n; i++) {
        if (gone->numbers[i] == number) {
            return true;
        }
    }
    return false;
}

/* Of the resident versions that have been active and are not in `gone`, the one that was active
 * longest ago. NULL: there are at most `keep`. Lock held. */
static struct catalog_entry *superfluous(const struct catalog_model *model, int64_t active,
                                         const struct hps_versions_gone *gone, uint32_t keep)
{
    struct catalog_entry *oldest = NULL;
    uint32_t n = 0;
    for (struct catalog_entry *entry = model->entries; entry != NULL; entry = entry->next) {
        int64_t number = entry->version->number;
        if (entry->state != ENTRY_RESIDENT || entry->last_active == 0 || is_among(gone, number)) {
            continue;
        }
        n++;
        if (number != active && entry->n_switching == 0 &&
            (oldest == NULL || entry->last_active < oldest->last_active)) {
            oldest = entry;
        }
    }
    return n > keep ? oldest : NULL;
}

/* A resident version that never was active and has no pending switch. Lock held. */
static struct catalog_entry *replaceable(const struct catalog_model *model, int64_t keep,
                                         const struct hps_versions_gone *gone)
{
    struct catalog_entry *entry = model->entries;
    while (entry != NULL &&
           (entry->state != ENTRY_RESIDENT || entry->last_active > 0 || entry->n_switching > 0 ||
            entry->version->number == keep || is_among(gone, entry->version->number))) {
        entry = entry->next;
    }
    return entry;
}

/* False: it could not be unpublished. */
static bool retire(struct hps_catalog *catalog, struct catalog_entry *entry,
                   struct hps_versions_gone *gone)
{
    int64_t number = entry->version->number;
    struct hps_error err = {0};
    if (unpublish(catalog, entry, NULL, &err) != HPS_OK) {
        HPS_LOG(WARN, "catalog",
                "superseded version not unloaded: its record could not be changed; the next switch "
                "retries",
                HPS_STR("model", entry->model->name), HPS_I64("version", number),
                HPS_STR("error", err.text));
        return false;
    }
    note_gone(gone, number);
    return true;
}

void catalog_retire_locked(struct hps_catalog *catalog, struct catalog_model *model,
                           struct hps_versions_gone *out_gone)
{
    static const struct hps_versions_gone none = {.n = 0};
    struct catalog_entry *entry;
    do {
        hps_lock_acquire(&catalog->lock);
        entry = superfluous(model, model->active, &none, catalog->keep_versions);
        hps_lock_release(&catalog->lock);
    } while (entry != NULL && retire(catalog, entry, out_gone));
}

void catalog_replace_locked(struct hps_catalog *catalog, struct catalog_model *model, int64_t keep,
                            struct hps_versions_gone *out_gone)
{
    static const struct hps_versions_gone none = {.n = 0};
    struct catalog_entry *entry;
    do {
        hps_lock_acquire(&catalog->lock);
        entry = replaceable(model, keep, &none);
        hps_lock_release(&catalog->lock);
    } while (entry != NULL && retire(catalog, entry, out_gone));
}

void catalog_foresee(const struct hps_catalog *catalog, const struct catalog_model *model,
                     bool activate, bool replace, struct hps_versions_gone *out_gone)
{
    struct catalog_entry *entry;
    HPS_ASSERT(catalog->keep_versions > 0);
    while (replace && out_gone->n < HPS_VERSIONS_GONE_MAX &&
           (entry = replaceable(model, 0, out_gone)) != NULL) {
        note_gone(out_gone, entry->version->number);
    }
    /* The new version counts as one, and none of these will be active. */
    while (activate && model->active != 0 && out_gone->n < HPS_VERSIONS_GONE_MAX &&
           (entry = superfluous(model, 0, out_gone, catalog->keep_versions - 1)) != NULL) {
        note_gone(out_gone, entry->version->number);
    }
}

/* ---- a whole model --------------------------------------------------------------------------- */

/* The next version to unload: a resident one, the active one last; NULL: none. Lock held. */
static struct catalog_entry *next_resident(const struct catalog_model *model)
{
    struct catalog_entry *last = NULL;
    for (struct catalog_entry *entry = model->entries; entry != NULL; entry = entry->next) {
        if (entry->state == ENTRY_RESIDENT && entry->version->number != model->active) {
            return entry;
        }
        last = entry->state == ENTRY_RESIDENT ? entry : last;
    }
    return last;
}

static bool is_loading(const struct catalog_model *model)
{
    const struct catalog_entry *entry = model->entries;
    while (entry != NULL && entry->state != ENTRY_LOADING) {
        entry = entry->next;
    }
    return entry != NULL;
}

/* NULL: no resident version, or a version is loading. switch_lock is held, so no version becomes
 * resident. A model without resident versions may be freed at any time. */
static struct catalog_entry *take_next(struct hps_catalog *catalog, const char *name,
                                       bool *out_loading)
{
    hps_lock_acquire(&catalog->lock);
    const struct catalog_model *model = catalog_model(catalog, name, false);
    *out_loading = model != NULL && is_loading(model);
    struct catalog_entry *entry = model != NULL && !*out_loading ? next_resident(model) : NULL;
    hps_lock_release(&catalog->lock);
    return entry;
}

/* switch_lock held. */
static hps_status unload_all(struct hps_catalog *catalog, const char *name,
                             struct hps_versions_gone *gone, struct hps_error *err)
{
    bool loading = false;
    struct catalog_entry *entry = take_next(catalog, name, &loading);
    if (entry == NULL && !loading) {
        return hps_error_set(err, HPS_NOT_FOUND, "model \"%.130s\" has no resident version", name);
    }
    while (entry != NULL) {
        int64_t number = entry->version->number;
        hps_status status = unpublish(catalog, entry, NULL, err);
        if (status != HPS_OK) {
            return status;
        }
        if (gone->n < HPS_VERSIONS_GONE_MAX) {
            note_gone(gone, number);
        }
        entry = take_next(catalog, name, &loading);
    }
    return !loading ? HPS_OK
                    : hps_error_set(err, HPS_PRECONDITION,
                                    "a version of model \"%s\" is loading; unload the model when "
                                    "that is done",
                                    name);
}

hps_status hps_catalog_unload_model(struct hps_catalog *catalog, const char *name,
                                    struct hps_versions_gone *out_gone, struct hps_error *err)
{
    *out_gone = (struct hps_versions_gone){.n = 0};
    hps_lock_acquire(&catalog->switch_lock);
    hps_status status = unload_all(catalog, name, out_gone, err);
    hps_lock_release(&catalog->switch_lock);
    catalog_reap(catalog);
    return status;
}

/* ---- removal --------------------------------------------------------------------------------- */

/* A shared store above another may be unreachable; drop_unused then deletes the rows later. */
static hps_status drop_shared(struct hps_catalog *catalog, struct hps_version *version,
                              struct hps_space *space)
{
    HPS_ASSERT(catalog_durable(catalog) != NULL);
    HPS_ASSERT(hps_store_role(space->store) == HPS_ROLE_SHARED);
    const struct hps_store *shared = space->store; /* space_drop frees the space */
    struct hps_error err = {0};
    hps_status status = shared->ops->space_drop(space, &err);
    if (status == HPS_OK) {
        status = hps_records_delete_unused(catalog_durable(catalog), version, &err);
    }
    if (status != HPS_OK) {
        HPS_LOG(WARN, "catalog",
                "rows of an unloaded version left in the shared tier: they could not be deleted; "
                "deleting them is retried",
                HPS_STR("tier", shared->ops->name), HPS_STR("model", version->model),
                HPS_I64("version", version->number), HPS_STR("error", err.text));
    }
    return status;
}

static hps_status drop_spaces(struct hps_catalog *catalog, struct hps_version *version,
                              struct hps_error *err)
{
    hps_status status = HPS_OK;
    for (uint32_t i = 0; i < version->n_tiers; i++) {
        struct hps_space *space = version->tiers[i];
        if (space->store == catalog_shared(catalog) && catalog_durable(catalog) != NULL) {
            hps_ignore(drop_shared(catalog, version, space));
            continue;
        }
        hps_status dropped = space->store->ops->space_drop(space, err);
        if (dropped != HPS_OK) {
            status = dropped;
        }
    }
    return status;
}

/* Runs on the loader thread, so that no load opens the space at the same time. An open space
 * belongs to a version that is not removed yet, or was loaded again. */
static hps_status drop_unused(struct hps_catalog *catalog, struct hps_version *version)
{
    struct hps_store *shared = catalog_shared(catalog);
    const struct hps_space_id id = hps_load_space_id(version);
    struct hps_space *space = NULL;
    struct hps_error err = {0};
    hps_status status = shared->ops->space_open(shared, &id, &space, &err);
    if (status == HPS_OK) {
        status = drop_shared(catalog, version, space);
    }
    return status == HPS_EXISTS ? HPS_OK : status;
}

static void drop_all_unused(struct hps_catalog *catalog)
{
    struct hps_unused_list list;
    struct hps_error err;
    hps_status status =
        hps_records_read_unused(catalog_durable(catalog), &list, &err) == HPS_OK ? HPS_OK : HPS_IO;
    for (uint32_t i = 0; i < list.n; i++) {
        if (status == HPS_OK && !atomic_load(&catalog->closing)) {
            status = drop_unused(catalog, list.versions[i]);
        }
        hps_version_free(list.versions[i]);
    }
}

static void run_tidy(struct hps_task *task)
{
    struct hps_catalog *catalog = HPS_CONTAINER_OF(task, struct hps_catalog, tidy);
    if (catalog_durable(catalog) != NULL) {
        drop_all_unused(catalog);
    } else {
        catalog_load_again(catalog);
    }
    atomic_store(&catalog->tidying, false);
}

void catalog_tidy(struct hps_catalog *catalog)
{
    uint64_t now_us = hps_clock_us();
    if (catalog_shared(catalog) == NULL ||
        (catalog->tidied_us != 0 && now_us - catalog->tidied_us < TIDY_US) ||
        atomic_exchange(&catalog->tidying, true)) {
        return;
    }
    catalog->tidied_us = now_us;
    catalog->tidy.run = run_tidy;
    if (hps_pool_post(catalog->loader, &catalog->tidy) != HPS_OK) {
        atomic_store(&catalog->tidying, false);
    }
}

/* Take an entry that is not in use off the list. Only the caller removes it. */
static struct catalog_entry *take_idle(struct hps_catalog *catalog)
{
    hps_lock_acquire(&catalog->lock);
    struct catalog_entry **at = &catalog->unloading;
    while (*at != NULL && !hps_version_idle((*at)->version)) {
        at = &(*at)->next_unloading;
    }
    struct catalog_entry *entry = *at;
    if (entry != NULL) {
        HPS_ASSERT(entry->state == ENTRY_UNLOADING);
        *at = entry->next_unloading;
        entry->host = NULL;
        entry->shared = NULL;
        entry->durable = NULL;
        catalog_gpu_hide(catalog, entry);
    }
    hps_lock_release(&catalog->lock);
    return entry;
}

static void finish(struct hps_catalog *catalog, struct catalog_entry *entry)
{
    struct hps_version *version = entry->version;
    struct hps_error err = {0};
    HPS_ASSERT(hps_version_idle(version));
    hps_table_metrics_evictions(version);
    catalog_gpu_close(version);
    err.status = drop_spaces(catalog, version, &err);
    if (err.status == HPS_OK) {
        HPS_LOG(INFO, "catalog", "version unloaded", HPS_STR("model", version->model),
                HPS_I64("version", version->number));
    } else {
        HPS_LOG(
            WARN, "catalog",
            "rows of an unloaded version left behind: they could not be deleted; the next start "
            "deletes them",
            HPS_STR("model", version->model), HPS_I64("version", version->number),
            HPS_STR("error", err.text));
    }
    /* switch_lock: its holders rely on the model. */
    hps_lock_acquire(&catalog->switch_lock);
    hps_lock_acquire(&catalog->lock);
    struct hps_unload *unload = entry->unload;
    if (entry->model->entries == entry && entry->next == NULL) {
        hps_warmup_detach(catalog->warmup, entry->model->name);
    }
    catalog_version_metrics_remove(catalog, version);
    catalog_entry_remove(catalog, entry->model, entry);
    hps_lock_release(&catalog->lock);
    hps_lock_release(&catalog->switch_lock);
    hps_version_free(version);
    if (unload != NULL) {
        unload->done(unload, &err);
    }
}

void catalog_reap(struct hps_catalog *catalog)
{
    struct catalog_entry *entry;
    while ((entry = take_idle(catalog)) != NULL) {
        finish(catalog, entry);
    }
    hps_lock_acquire(&catalog->lock);
    if (catalog->unloading != NULL) {
        hps_cond_signal(&catalog->reap);
    }
    hps_lock_release(&catalog->lock);
}

/* ---- the reaper ------------------------------------------------------------------------------ */

/* Wait until there may be something to remove. False: the catalog is closing. */
static bool reaper_wait(struct hps_catalog *catalog)
{
    hps_lock_acquire(&catalog->lock);
    while (catalog->unloading == NULL && !atomic_load(&catalog->closing)) {
        hps_cond_wait(&catalog->reap, &catalog->lock);
    }
    hps_lock_release(&catalog->lock);
    return !atomic_load(&catalog->closing);
}

static void *reaper_main(void *arg)
{
    struct hps_catalog *catalog = arg;
    while (reaper_wait(catalog)) {
        catalog_reap(catalog);
        hps_thread_pause(REAP_POLL_US, &catalog->closing);
    }
    return NULL;
}

hps_status catalog_reaper_start(struct hps_catalog *catalog, struct hps_error *err)
{
    hps_status status =
        hps_worker_start(&catalog->reaper, "reaper", REAPER_STACK_BYTES, reaper_main, catalog);
    return status == HPS_OK
               ? HPS_OK
               : hps_error_set(err, HPS_EXHAUSTED, "the reaper thread cannot be started");
}

void catalog_reaper_stop(struct hps_catalog *catalog)
{
    hps_lock_acquire(&catalog->lock);
    hps_cond_signal(&catalog->reap);
    hps_lock_release(&catalog->lock);
    hps_worker_join(&catalog->reaper);
    for (struct catalog_entry *entry = catalog->unloading; entry != NULL;
         entry = entry->next_unloading) {
        struct hps_error err = {0};
        struct hps_unload *unload = entry->unload;
        entry->unload = NULL;
        if (unload != NULL) {
            hps_ignore(
                hps_error_set(&err, HPS_UNAVAILABLE,
                              "the server stops: version %" PRId64
                              " of model \"%s\" is unloaded; the next start deletes its rows",
                              entry->version->number, entry->model->name));
            unload->done(unload, &err);
        }
    }
}
