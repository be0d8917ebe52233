/* SPDX-License-Identifier: Apache-2.0
 *
 * Loads at run time. The caller's thread checks them, the loader thread runs them one by one, and
 * one switch makes them visible.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/log.h"
#include "cache/update/update.h"
#include "server/catalog/internal.h"
#include "server/load/records.h"

enum { CATCH_UP_POLL_US = 20 * 1000 };

#define CATCH_UP_US_MAX (UINT64_C(60) * 1000 * 1000)

/* ---- a new version --------------------------------------------------------------------------- */

/* The version with the highest number, also if it is loading. Lock held. */
static struct hps_version *newest(struct catalog_model *model)
{
    struct hps_version *version = NULL;
    for (struct catalog_entry *entry = model->entries; entry != NULL; entry = entry->next) {
        version = entry->version;
    }
    return version;
}

/* False: out of memory. *out_text is NULL if `text` is NULL or empty. */
static bool copy_text(const char *text, char **out_text)
{
    bool given = text != NULL && text[0] != '\0';
    *out_text = given ? hps_strdup(text) : NULL;
    return !given || *out_text != NULL;
}

/* Number, lineage and names of the new version. Lock held. */
static hps_status name_version(const struct hps_catalog *catalog, struct catalog_model *model,
                               const struct hps_load_request *request,
                               const struct hps_source *source, struct hps_version **out_version,
                               struct hps_error *err)
{
    const struct hps_version *last = newest(model);
    int64_t number = request->version;
    if (number == 0 && last != NULL && last->number == INT64_MAX) {
        return hps_error_set(err, HPS_RANGE,
                             "version: model \"%s\" has version %" PRId64
                             ", the largest possible; give a number",
                             model->name, last->number);
    }
    if (number == 0) {
        number = last != NULL ? last->number + 1 : 1;
    }
    const struct catalog_entry *same = catalog_entry(model, number);
    if (same != NULL) {
        return hps_error_set(err, HPS_EXISTS, "version %" PRId64 " of model \"%s\" is %s", number,
                             model->name,
                             same->state == ENTRY_UNLOADING ? "still unloading" : "already loaded");
    }
    struct hps_version *version = hps_version_new(model->name, number, source->n_tables);
    if (version == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for a version");
    }
    char own[48];
    snprintf(own, sizeof(own), "%" PRId64, number);
    const char *lineage = request->lineage;
    if (lineage == NULL || lineage[0] == '\0') {
        lineage = source->manifest.lineage;
    }
    if (lineage == NULL) {
        lineage = last != NULL && last->lineage != NULL ? last->lineage : own;
    }
    version->key_bytes = catalog->options.config->key_bytes;
    version->lineage = hps_strdup(lineage);
    version->label = hps_strdup(request->label != NULL ? request->label : "");
    version->source = hps_strdup(source->text);
    version->fingerprint = hps_strdup(source->print.text);
    bool good = copy_text(request->config, &version->config) &&
                copy_text(catalog_defined_hash(model), &version->configured);
    if (!good || version->lineage == NULL || version->label == NULL || version->source == NULL ||
        version->fingerprint == NULL) {
        hps_version_free(version);
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for a version");
    }
    *out_version = version;
    return HPS_OK;
}

/* ---- a load ---------------------------------------------------------------------------------- */

void hps_load_unref(struct hps_load *load)
{
    unsigned n_before = load != NULL ? atomic_fetch_sub(&load->refs, 1) : 0;
    HPS_ASSERT(load == NULL || n_before > 0);
    if (n_before != 1) {
        return;
    }
    hps_source_close(&load->source);
    hps_version_diff_free(&load->outcome.diff);
    hps_free(load->progress.conversions);
    hps_strings_fini(&load->notes);
    hps_free(load);
}

static void load_unlink(struct hps_load *load)
{
    struct hps_load **at = &load->catalog->loads;
    while (*at != load) {
        HPS_ASSERT(*at != NULL);
        at = &(*at)->next;
    }
    *at = load->next;
}

/* Store the time since which the files lack updates, before the version is visible. A later
 * process, which takes updates, may need it. */
static hps_status seed_updates(struct hps_load *load, struct hps_error *err)
{
    const struct hps_catalog_options *options = &load->catalog->options;
    if (options->updater == NULL && hps_stores_durable(&options->env.stores) == NULL) {
        return HPS_OK;
    }
    struct hps_version *version = load->entry->version;
    hps_version_pin(version);
    hps_status status =
        hps_updater_seed(version, &load->source.manifest, load->source.print.mtime_ms_oldest,
                         load->model->n_switches, err);
    hps_version_unpin(version);
    return status;
}

/* Give the version's tables their places in the model's order, and append new tables to it.
 * switch_lock held. */
static hps_status place_tables(struct hps_load *load, struct hps_error *err)
{
    struct hps_catalog *catalog = load->catalog;
    struct catalog_model *model = load->model;
    hps_lock_acquire(&catalog->lock);
    hps_status status = hps_table_order_apply(&model->order, load->entry->version);
    if (status == HPS_OK) {
        status = catalog_tell_order(catalog, model);
    }
    hps_lock_release(&catalog->lock);
    if (status != HPS_OK) {
        return hps_error_set(err, status, "no memory for the order of tables");
    }
    if (model->order.n > model->n_order_stored && model->active != 0 &&
        catalog_durable(catalog) != NULL) { /* otherwise the activation writes it */
        const struct catalog_model_change as_is = {
            .active = model->active, .previous = model->previous, .n_switches = model->n_switches};
        status = catalog_put_model(catalog, model, &as_is, err);
    }
    return status;
}

static void add_gone(struct hps_versions_gone *to, const struct hps_versions_gone *from)
{
    HPS_ASSERT(from->n <= HPS_VERSIONS_GONE_MAX);
    for (uint32_t i = 0; i < from->n && to->n < HPS_VERSIONS_GONE_MAX; i++) {
        to->numbers[to->n++] = from->numbers[i];
    }
}

/* switch_lock held. */
static hps_status activate_loaded(struct hps_load *load, struct hps_error *err)
{
    struct hps_catalog *catalog = load->catalog;
    struct hps_switched switched;
    hps_status status = HPS_OK;
    if (!load->force) {
        status = catalog_check_active(catalog, load->model, load->entry, err);
    }
    if (status == HPS_OK) {
        status = catalog_activate_locked(catalog, load->model, load->number, false, &switched, err);
    }
    if (status != HPS_OK) {
        return hps_error_prefix(err, status, "loaded, but not activated");
    }
    add_gone(&switched.gone, &load->outcome.gone);
    hps_version_diff_free(&load->outcome.diff);
    load->outcome = switched;
    load->activated = true;
    return HPS_OK;
}

/* Make the version visible, record it, and activate it if requested. switch_lock held. */
static hps_status publish(struct hps_load *load, struct hps_error *err)
{
    struct hps_catalog *catalog = load->catalog;
    struct catalog_entry *entry = load->entry;
    struct hps_store *durable = catalog_durable(catalog);
    HPS_ASSERT(entry->state == ENTRY_LOADING && !load->published);
    HPS_ASSERT(entry->version->n_tiers > 0);
    hps_status status = place_tables(load, err);
    if (status == HPS_OK) {
        status = hps_update_open(entry->version, err);
    }
    if (status == HPS_OK) {
        status = seed_updates(load, err);
    }
    if (status == HPS_OK) {
        status = hps_updater_place(entry->version, err);
    }
    if (status == HPS_OK && durable != NULL) {
        status = hps_records_put_version(durable, entry->version, err);
    }
    if (status == HPS_OK && durable != NULL && catalog_shared(catalog) != NULL) {
        status = hps_records_delete_unused(durable, entry->version, err);
    }
    if (status != HPS_OK) {
        return status;
    }
    hps_lock_acquire(&catalog->lock);
    catalog_entry_spaces(entry);
    catalog_version_metrics(catalog, entry->version);
    hps_warmup_attach(catalog->warmup, entry->version);
    hps_lock_release(&catalog->lock);
    status = hps_models_add(catalog->options.models, entry->version);
    if (status != HPS_OK) {
        return hps_error_set(err, status, "no memory for the model set");
    }
    hps_lock_acquire(&catalog->lock);
    load->n_rows_dropped = catalog_rows_dropped(entry);
    entry->state = ENTRY_RESIDENT;
    /* Out of memory: no difference is reported. */
    hps_ignore(catalog_diff(load->model, entry->version, &load->outcome.diff));
    load->outcome.previous = load->model->active;
    load->published = true;
    bool activate =
        load->model->active == 0 || (load->activate && catalog->options.updater == NULL);
    if (load->activate && !activate) { /* the pin keeps it until activate_fresh */
        hps_version_pin(entry->version);
        load->waiting = entry;
        load->waiting_until_us = hps_clock_us() + CATCH_UP_US_MAX;
        entry->n_switching++;
    }
    hps_lock_release(&catalog->lock);
    hps_updater_add(catalog->options.updater, entry->version, load->model->n_switches);
    if (load->replace) {
        catalog_replace_locked(catalog, load->model, load->number, &load->outcome.gone);
    }
    if (activate) {
        status = activate_loaded(load, err);
    }
    if (status == HPS_OK) {
        hps_lock_acquire(&catalog->lock);
        catalog_load_succeeded(catalog, load->model);
        hps_lock_release(&catalog->lock);
    }
    return status;
}

/* Undo a failed publish, so that the version stays invisible. */
static void unpublish(struct hps_load *load)
{
    struct hps_catalog *catalog = load->catalog;
    struct hps_version *version = load->entry->version;
    struct hps_error err = {0};
    if (load->published) {
        return; /* only the activation failed: the version stays */
    }
    HPS_ASSERT(load->entry->state == ENTRY_LOADING);
    if (catalog_durable(catalog) != NULL) {
        hps_ignore(hps_records_delete_version(catalog_durable(catalog), version->model,
                                              version->number, &err)); /* if it was written */
    }
    hps_lock_acquire(&catalog->lock);
    load->entry->host = NULL;
    load->entry->shared = NULL;
    load->entry->durable = NULL;
    catalog_gpu_hide(catalog, load->entry);
    hps_lock_release(&catalog->lock);
    catalog_gpu_close(version);
    for (uint32_t i = 0; i < version->n_tiers; i++) {
        hps_load_drop_space(&catalog->options.env, version->tiers[i]);
    }
}

static void log_end(const struct hps_load *load, hps_status status, const struct hps_error *err)
{
    uint64_t us = hps_clock_us() - atomic_load(&load->progress.started_us);
    if (status == HPS_OK) {
        HPS_LOG(INFO, "catalog", "version loaded", HPS_STR("model", load->model->name),
                HPS_I64("version", load->number), HPS_U64("rows", load->n_rows),
                HPS_U64("bytes", load->plan.row_bytes), HPS_U64("duplicates", load->duplicate_keys),
                HPS_U64("duration_us", us));
        if (load->n_rows_dropped > 0) {
            HPS_LOG(WARN, "catalog",
                    "rows dropped: a table has more rows than volatile_db.overflow_margin times "
                    "num_partitions, and no other store keeps them; raise overflow_margin and load "
                    "again",
                    HPS_STR("model", load->model->name), HPS_I64("version", load->number),
                    HPS_U64("rows", load->n_rows_dropped));
        }
    } else {
        HPS_LOG(ERROR, "catalog", "load failed", HPS_STR("model", load->model->name),
                HPS_I64("version", load->number), HPS_STR("error", err->text));
    }
}

/* The version is loaded and applies its updates. False: it has caught up, or the wait has ended.
 * True: it has not, and the load is queued again behind other tasks of the thread. */
static bool catches_up(struct hps_load *load, hps_status *out_status, struct hps_error *err)
{
    struct hps_catalog *catalog = load->catalog;
    HPS_ASSERT(load->waiting != NULL);
    atomic_store(&load->progress.stage, "catch-up");
    *out_status = catalog_check_lag(catalog, load->model_name, load->number, err);
    if (*out_status == HPS_OK || hps_clock_us() >= load->waiting_until_us ||
        hps_thread_pause(CATCH_UP_POLL_US, &load->progress.cancel)) {
        return false;
    }
    return hps_pool_post(catalog->loader, &load->task) == HPS_OK;
}

/* Activate the version if `status` says that it has caught up. switch_lock not held. */
static hps_status activate_fresh(struct hps_load *load, hps_status status, struct hps_error *err)
{
    struct hps_catalog *catalog = load->catalog;
    struct catalog_entry *entry = load->waiting;
    struct hps_switched switched;
    HPS_ASSERT(load->published);
    if (status == HPS_OK) {
        status = hps_catalog_activate(catalog, load->model_name, load->number, load->force,
                                      &switched, err);
    }
    if (status == HPS_OK) {
        add_gone(&switched.gone, &load->outcome.gone);
        hps_version_diff_free(&load->outcome.diff);
        load->outcome = switched;
    }
    load->activated = status == HPS_OK;
    atomic_store(&load->progress.stage, "done");
    hps_lock_acquire(&catalog->lock);
    HPS_ASSERT(entry->n_switching > 0);
    entry->n_switching--;
    hps_lock_release(&catalog->lock);
    hps_version_unpin(entry->version);
    return status == HPS_OK ? HPS_OK : hps_error_prefix(err, status, "loaded, but not activated");
}

static hps_status carry_out(struct hps_load *load, struct hps_error *err)
{
    struct hps_catalog *catalog = load->catalog;
    hps_lock_acquire(&catalog->lock);
    uint64_t used = catalog_host_used(catalog);
    hps_lock_release(&catalog->lock);
    uint64_t budget = catalog->options.env.host_bytes_max;
    load->plan.host_bytes_available = budget > used ? budget - used : 0;
    hps_status status = hps_load_run(&load->env, &load->source, &load->plan, load->entry->version,
                                     &load->progress, err);
    if (status != HPS_OK) {
        log_end(load, status, err);
        return status;
    }
    load->duplicate_keys = load->entry->version->duplicate_keys;
    load->n_rows = load->plan.n_rows - load->duplicate_keys;
    catalog_gpu_open(catalog, load->entry);
    catalog_warm_load(load);
    hps_lock_acquire(&catalog->switch_lock);
    status = publish(load, err);
    if (status != HPS_OK) {
        unpublish(load);
    }
    log_end(load, status, err);
    hps_lock_release(&catalog->switch_lock); /* now an unload may free a published version */
    return status;
}

static void run_load(struct hps_task *task)
{
    struct hps_load *load = (struct hps_load *)task;
    struct hps_catalog *catalog = load->catalog;
    struct hps_error err = {0};
    hps_status status = load->waiting == NULL ? carry_out(load, &err) : HPS_OK;
    if (status == HPS_OK && load->waiting != NULL) {
        if (catches_up(load, &status, &err)) {
            return;
        }
        status = activate_fresh(load, status, &err);
    }
    /* Before the load is done, remove versions that are not in use, except versions that the reaper
     * is removing. */
    catalog_reap(catalog);
    hps_lock_acquire(&catalog->lock);
    load_unlink(load);
    if (!load->published) {
        struct hps_version *version = load->entry->version;
        if (status != HPS_CANCELLED) {
            err.status = status;
            catalog_load_failed(catalog, load->model, &err);
        }
        catalog_version_metrics_remove(catalog, version);
        catalog_entry_remove(catalog, load->model, load->entry);
        hps_version_free(version);
    }
    if (load->awaited != NULL) {
        catalog_await_end(catalog, load->awaited);
    }
    HPS_ASSERT(!load->done);
    load->entry = NULL;
    load->model = NULL;
    load->error = err;
    load->error.status = status;
    load->done = true;
    hps_lock_release(&catalog->lock);
    hps_load_unref(load);
}

/* Reserve a version number, and add the load to the lists. takes `source` on success. */
static hps_status reserve(struct hps_catalog *catalog, const struct hps_load_request *request,
                          struct hps_source *source, struct hps_load *load, struct hps_error *err)
{
    struct hps_version *version = NULL;
    hps_status status = HPS_OK;
    hps_lock_acquire(&catalog->lock);
    struct catalog_model *model = catalog_model(catalog, request->model, true);
    if (model == NULL) {
        status = hps_error_set(err, HPS_NO_MEMORY, "no memory for a model");
        goto out;
    }
    if (request->only_first && model->entries != NULL) {
        status = hps_error_set(err, HPS_EXISTS, "model \"%s\" has a version", model->name);
        goto out;
    }
    HPS_ASSERT(load->entry == NULL);
    hps_source_sort(source, &model->order);
    status = name_version(catalog, model, request, source, &version, err);
    if (status != HPS_OK) {
        goto out;
    }
    load->entry = catalog_entry_add(catalog, model, version, ENTRY_LOADING);
    if (load->entry == NULL) {
        status = hps_error_set(err, HPS_NO_MEMORY, "no memory for a version");
        goto out;
    }
    load->model = model;
    snprintf(load->model_name, sizeof(load->model_name), "%s", model->name);
    load->awaited = request->awaited ? model : NULL;
    load->env = catalog->options.env;
    load->number = version->number;
    load->source = *source;
    memset(source, 0, sizeof(*source));
    load->next = catalog->loads;
    catalog->loads = load;
    catalog_failures_show(catalog, model);
    catalog_expect(catalog, model);
out:
    hps_lock_release(&catalog->lock);
    return status;
}

static void abandon(struct hps_load *load, const struct hps_error *err)
{
    struct hps_catalog *catalog = load->catalog;
    hps_lock_acquire(&catalog->lock);
    struct hps_version *version = load->entry->version;
    load_unlink(load);
    if (load->model->config != NULL && load->model->entries->next == NULL) {
        /* A load from models[] may have been skipped because of this one. */
        catalog_load_failed(catalog, load->model, err);
    }
    catalog_version_metrics_remove(catalog, version);
    catalog_entry_remove(catalog, load->model, load->entry);
    hps_lock_release(&catalog->lock);
    hps_version_free(version);
    hps_load_unref(load);
}

/* Predict what the load will change. Reject a forbidden change now, before hours of work. */
static hps_status foresee(struct hps_load *load, const struct hps_load_request *request,
                          struct hps_error *err)
{
    struct hps_catalog *catalog = load->catalog;
    struct hps_version_diff diff = {0};
    hps_status status = HPS_OK;
    hps_lock_acquire(&catalog->lock);
    catalog_foresee(catalog, load->model, load->activate, load->replace, &load->going);
    if (!catalog_is_kept(catalog, load->model, load->entry->version)) {
        HPS_LOG(WARN, "catalog",
                "version not stored: there is no persistent_db, and a restart loads models[]; "
                "change models[] to keep this version",
                HPS_STR("model", load->model->name), HPS_I64("version", load->number));
    }
    status = catalog_load_notes(catalog, load->model, request, &load->source, load->entry->version,
                                &load->notes);
    if (status != HPS_OK) {
        hps_ignore(hps_error_set(err, status, "no memory for the notes of a load"));
    } else if (load->activate && !load->force) {
        status = catalog_diff(load->model, load->entry->version, &diff);
        status = status == HPS_OK
                     ? catalog_check_diff(catalog, load->model, load->number, &diff, err)
                     : hps_error_set(err, status, "no memory to compare versions");
    }
    hps_lock_release(&catalog->lock);
    hps_version_diff_free(&diff);
    return status;
}

hps_status catalog_load_begin(struct hps_catalog *catalog, const struct hps_load_request *request,
                              struct hps_source *source, struct hps_load **out_load,
                              struct hps_error *err)
{
    struct hps_load *load = hps_calloc(1, sizeof(*load));
    struct hps_load_conversion *conversions = hps_calloc(source->n_tables, sizeof(*conversions));
    if (load == NULL || conversions == NULL) {
        hps_free(load);
        hps_free(conversions);
        hps_source_close(source);
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for a load");
    }
    load->progress.conversions = conversions;
    load->task.run = run_load;
    load->catalog = catalog;
    load->activate = request->activate;
    load->force = request->force;
    load->replace = request->replace;
    atomic_store(&load->refs, 1);
    atomic_store(&load->progress.stage, "plan");
    hps_status status = reserve(catalog, request, source, load, err);
    if (status != HPS_OK) {
        hps_source_close(source);
        hps_load_unref(load);
        return status;
    }
    /* Read the files only now: the entry has reserved the number. */
    status = hps_load_plan(&load->env, &load->source, 0, load->entry->version, &load->plan, err);
    load->plan.start_hash = hps_updater_start_hash(catalog->options.updater, &load->source.manifest,
                                                   load->source.print.mtime_ms_oldest);
    if (status == HPS_OK) {
        status = foresee(load, request, err);
    }
    if (status == HPS_OK && atomic_load(&catalog->closing)) {
        status = hps_error_set(err, HPS_UNAVAILABLE, "the server is draining");
    }
    if (status == HPS_OK) {
        atomic_fetch_add(&load->refs, 1);
        if (hps_pool_post(catalog->loader, &load->task) != HPS_OK) {
            atomic_fetch_sub(&load->refs, 1);
            status = hps_error_set(err, HPS_UNAVAILABLE, "the server is draining");
        }
    }
    if (status != HPS_OK) {
        err->status = status;
        abandon(load, err);
        return status;
    }
    *out_load = load;
    return HPS_OK;
}

/* Check and complete the request, and open its files. Also read the files of the models[] entry
 * again, so that drift means a later change of the entry, and not a load of other files. */
static hps_status open_request(struct hps_catalog *catalog, const struct hps_load_request *request,
                               struct catalog_request *out_whole, struct hps_source *out_source,
                               struct hps_error *err)
{
    const struct hps_config_model *config =
        hps_config_model_find(catalog->options.config, request->model);
    struct hps_error unseen;
    hps_status status = catalog_request_open(catalog, request, out_whole, err);
    if (status != HPS_OK) {
        return status;
    }
    status = catalog_source_open(catalog, &out_whole->said, out_source, err);
    if (status != HPS_OK) {
        catalog_request_close(out_whole);
    } else if (config != NULL) {
        hps_ignore(catalog_define(catalog, config, &unseen)); /* keep the last state */
    }
    return status;
}

hps_status hps_catalog_load(struct hps_catalog *catalog, const struct hps_load_request *request,
                            struct hps_load **out_load, struct hps_error *err)
{
    struct catalog_request whole;
    struct hps_source source;
    hps_status status = open_request(catalog, request, &whole, &source, err);
    if (status != HPS_OK) {
        return status;
    }
    status = catalog_load_begin(catalog, &whole.said, &source, out_load, err);
    catalog_request_close(&whole); /* the version has copies of its default rows */
    return status;
}

/* What the load of a dry run would change. Also gives its tables their places. */
static hps_status plan_effect(struct hps_catalog *catalog, const struct hps_load_request *request,
                              const struct hps_source *source, struct hps_version *version,
                              struct hps_switched *out_effect, struct hps_strings *out_notes,
                              struct hps_error *err)
{
    struct hps_table_order order = {0};
    struct hps_switched effect = {0};
    hps_status status = HPS_OK;
    hps_lock_acquire(&catalog->lock);
    struct catalog_model *model = catalog_model(catalog, request->model, false);
    if (model != NULL) {
        effect.previous = model->active;
        catalog_foresee(catalog, model, request->activate, request->replace, &effect.gone);
        status = catalog_diff(model, version, &effect.diff);
    }
    if (model != NULL && status == HPS_OK) {
        status = hps_table_order_copy(&model->order, &order);
    }
    if (status == HPS_OK) {
        status = catalog_load_notes(catalog, model, request, source, version, out_notes);
    }
    hps_lock_release(&catalog->lock);
    if (status == HPS_OK) {
        status = hps_table_order_apply(&order, version);
    }
    hps_table_order_free(&order);
    if (status != HPS_OK) {
        hps_version_diff_free(&effect.diff);
        hps_strings_fini(out_notes);
        return hps_error_set(err, status, "no memory to compare versions");
    }
    *out_effect = effect;
    return HPS_OK;
}

hps_status hps_catalog_load_plan(struct hps_catalog *catalog,
                                 const struct hps_load_request *request,
                                 struct hps_load_plan *out_plan, struct hps_version **out_version,
                                 struct hps_switched *out_effect, struct hps_strings *out_notes,
                                 struct hps_error *err)
{
    const struct hps_config_model *entry =
        hps_config_model_find(catalog->options.config, request->model);
    struct catalog_request whole;
    struct hps_source source;
    struct hps_version *version = NULL;
    struct hps_strings notes = {0};
    struct catalog_model unknown = {.name = (char *)request->model};
    hps_status status = open_request(catalog, request, &whole, &source, err);
    if (status != HPS_OK) {
        return status;
    }
    hps_lock_acquire(&catalog->lock);
    struct catalog_model *model = catalog_model(catalog, request->model, false);
    if (model != NULL) {
        hps_source_sort(&source, &model->order);
    }
    status = name_version(catalog, model != NULL ? model : &unknown, &whole.said, &source, &version,
                          err);
    uint64_t used = catalog_host_used(catalog);
    const struct hps_load_env env = catalog->options.env;
    hps_lock_release(&catalog->lock);
    if (status == HPS_OK) {
        status = hps_load_plan(&env, &source, used, version, out_plan, err);
    }
    if (status == HPS_OK) {
        entry = entry != NULL ? entry : whole.said.entry;
        out_plan->device_bytes_needed = catalog_gpu_bytes(catalog, version, entry);
        status = plan_effect(catalog, &whole.said, &source, version, out_effect, &notes, err);
    }
    hps_source_close(&source);
    catalog_request_close(&whole);
    if (status != HPS_OK) {
        hps_version_free(version);
        return status;
    }
    *out_version = version;
    *out_notes = notes;
    return HPS_OK;
}

void hps_load_state_get(struct hps_load *load, struct hps_load_state *out_state)
{
    struct hps_load_state state = {0};
    struct hps_load_progress *progress = &load->progress;
    state.stage = atomic_load(&progress->stage);
    HPS_ASSERT(state.stage != NULL);
    state.rows_done = atomic_load(&progress->rows_done);
    state.rows_total = atomic_load(&progress->rows_total);
    state.bytes_done = atomic_load(&progress->bytes_done);
    state.bytes_total = atomic_load(&progress->bytes_total);
    uint32_t table = atomic_load(&progress->table);
    if (table < load->source.n_tables) {
        snprintf(state.table, sizeof(state.table), "%s", load->source.tables[table].files.name);
    }
    state.remaining_ms = hps_load_remaining_ms(progress, hps_clock_us());
    hps_lock_acquire(&load->catalog->lock);
    state.version = load->number;
    state.duplicate_keys = load->duplicate_keys;
    state.n_rows = load->n_rows;
    state.n_rows_dropped = load->n_rows_dropped;
    state.going = load->done ? load->outcome.gone : load->going;
    state.done = load->done;
    state.activated = load->activated;
    state.error = load->error;
    hps_lock_release(&load->catalog->lock);
    *out_state = state;
}

const struct hps_switched *hps_load_outcome(const struct hps_load *load)
{
    HPS_ASSERT(load->done);
    return &load->outcome;
}

const struct hps_load_conversion *hps_load_conversions(const struct hps_load *load, uint32_t *out_n)
{
    HPS_ASSERT(load->done && load->progress.conversions != NULL);
    *out_n = load->source.n_tables;
    return load->progress.conversions;
}

const char *hps_load_table_name(const struct hps_load *load, uint32_t table)
{
    HPS_ASSERT(table < load->source.n_tables);
    return load->source.tables[table].files.name;
}

const struct hps_strings *hps_load_notes(const struct hps_load *load)
{
    return &load->notes;
}
