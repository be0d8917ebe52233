/* SPDX-License-Identifier: Apache-2.0
 *
 * Models that cannot be served, and why: for readiness, lookups and `hpsctl models`. Also begins
 * the loads from models[], on the loader thread.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/heap.h"
#include "base/log.h"
#include "server/catalog/internal.h"
#include "server/catalog/store_servers.h"
#include "server/observe/metrics.h"

/* ---- models that cannot be served ------------------------------------------------------------ */

static const struct catalog_entry *loading_entry(const struct catalog_model *model)
{
    const struct catalog_entry *entry = model->entries;
    while (entry != NULL && entry->state != ENTRY_LOADING) {
        entry = entry->next;
    }
    return entry;
}

static const struct catalog_entry *resident_entry(const struct catalog_model *model)
{
    const struct catalog_entry *entry = model->entries;
    while (entry != NULL && entry->state != ENTRY_RESIDENT) {
        entry = entry->next;
    }
    return entry;
}

/* Returns the state of a model that cannot be served, and sets `out_why` to a sentence. Lock held.
 */
static const char *describe(const struct hps_catalog *catalog, const struct catalog_model *model,
                            char out_why[HPS_MODEL_WHY_BYTES])
{
    const struct catalog_entry *loading = loading_entry(model);
    if (loading != NULL || model->waiting) {
        double ratio = loading != NULL ? catalog_load_ratio(catalog, loading) : 0;
        int percent = (int)(100 * ratio);
        snprintf(out_why, HPS_MODEL_WHY_BYTES, "model \"%s\" is loading, %d %%", model->name,
                 percent > 99 ? 99 : percent); /* not 100 % before it is active */
        return "loading";
    }
    if (model->failure.status != HPS_OK) {
        snprintf(out_why, HPS_MODEL_WHY_BYTES, "model \"%s\" failed to load: %s; %s", model->name,
                 model->failure.text,
                 model->unreached ? "the load is retried"
                                  : "fix the cause, then send SIGHUP or use hpsctl load");
        return "failed";
    }
    snprintf(out_why, HPS_MODEL_WHY_BYTES, "model \"%s\" has no active version; use hpsctl %s",
             model->name, resident_entry(model) != NULL ? "activate" : "load");
    return "absent";
}

static bool serves(struct catalog_model *model)
{
    const struct catalog_entry *entry = catalog_entry(model, model->active);
    return entry != NULL && entry->state != ENTRY_LOADING;
}

void catalog_expect(struct hps_catalog *catalog, struct catalog_model *model)
{
    char why[HPS_MODEL_WHY_BYTES];
    bool expected = !serves(model) && strcmp(describe(catalog, model, why), "absent") != 0;
    hps_status status =
        hps_models_expect(catalog->options.models, model->name, expected ? why : NULL);
    hps_ignore(status); /* no memory: lookups get NOT_FOUND until the next tick */
}

void catalog_expect_all(struct hps_catalog *catalog)
{
    hps_lock_acquire(&catalog->lock);
    for (struct catalog_model *model = catalog->models; model != NULL; model = model->next) {
        catalog_expect(catalog, model);
    }
    hps_lock_release(&catalog->lock);
}

void hps_catalog_each_unserved(struct hps_catalog *catalog,
                               void (*fn)(void *ctx, const struct hps_unserved_view *view),
                               void *ctx)
{
    char why[HPS_MODEL_WHY_BYTES];
    hps_lock_acquire(&catalog->lock);
    for (struct catalog_model *model = catalog->models; model != NULL; model = model->next) {
        if (!serves(model)) {
            const struct hps_unserved_view view = {model->name, describe(catalog, model, why), why};
            fn(ctx, &view);
        }
    }
    hps_lock_release(&catalog->lock);
}

/* ---- failures -------------------------------------------------------------------------------- */

static struct hps_metric *failures(const struct hps_catalog *catalog, const char *model)
{
    return hps_server_metric(catalog->options.metrics, HPS_M_MODEL_LOAD_FAILURES, model, NULL, NULL,
                             NULL);
}

void catalog_failures_show(const struct hps_catalog *catalog, const struct catalog_model *model)
{
    hps_metric_add(failures(catalog, model->name), 0);
}

void catalog_model_metrics_remove(const struct hps_catalog *catalog,
                                  const struct catalog_model *model)
{
    const struct hps_metric_label labels[] = {{"model", model->name}};
    uint64_t n = (uint64_t)hps_metric_value(failures(catalog, model->name));
    hps_metrics_remove(catalog->options.metrics, labels, 1);
    if (n > 0 || model->config != NULL) { /* keep the count: a counter must not be reset */
        hps_metric_add(failures(catalog, model->name), n);
    }
}

void catalog_load_failed(const struct hps_catalog *catalog, struct catalog_model *model,
                         const struct hps_error *err)
{
    HPS_ASSERT(err->status != HPS_OK);
    hps_metric_add(failures(catalog, model->name), 1);
    if (resident_entry(model) != NULL) {
        return; /* the model is served; the caller of the load gets the error */
    }
    model->failure = *err;
    if (err->text[0] == '\0') {
        snprintf(model->failure.text, sizeof(model->failure.text), "%s",
                 hps_status_text(err->status));
    }
    model->unreached = err->status == HPS_UNAVAILABLE &&
                       hps_stores_shared_alone(&catalog->options.env.stores) != NULL;
}

void catalog_load_succeeded(struct hps_catalog *catalog, struct catalog_model *model)
{
    model->failure = (struct hps_error){0};
    model->unreached = false;
    catalog_expect(catalog, model);
}

/* ---- readiness ------------------------------------------------------------------------------- */

/* A version that lost rows of its only copy fails lookups until it is loaded again. */
static bool is_whole(const struct catalog_entry *entry, char out_why[HPS_MODEL_WHY_BYTES])
{
    struct hps_store_usage usage;
    char what[48] = "updates that have left the log";
    if (entry->shared == NULL || entry->durable != NULL) {
        return true;
    }
    entry->shared->store->ops->space_usage(entry->shared, &usage);
    if (usage.n_shards_lost == 0 && !atomic_load(&entry->version->shared_lost)) {
        return true;
    }
    if (usage.n_shards_lost > 0) {
        snprintf(what, sizeof(what), "%" PRIu32 " shards", usage.n_shards_lost);
    }
    snprintf(out_why, HPS_MODEL_WHY_BYTES,
             "%s has lost %s of model \"%s\" version %" PRId64
             ", of which it held the only copy: load the version again",
             entry->shared->store->ops->name, what, entry->model->name, entry->version->number);
    return false;
}

bool hps_catalog_ready(struct hps_catalog *catalog, void (*fn)(void *ctx, const char *reason),
                       void *ctx)
{
    struct hps_store *alone = hps_stores_shared_alone(&catalog->options.env.stores);
    char reason[HPS_MODEL_WHY_BYTES];
    bool ready = alone == NULL || hps_store_servers_all_up(alone, reason, sizeof(reason));
    if (!ready && fn != NULL) {
        fn(ctx, reason);
    }
    hps_lock_acquire(&catalog->lock);
    for (struct catalog_model *model = catalog->models; model != NULL; model = model->next) {
        const struct catalog_entry *entry = catalog_entry(model, model->active);
        if (serves(model) && !model->awaits && is_whole(entry, reason)) {
            continue;
        }
        if (entry == NULL && model->config == NULL) {
            continue; /* a first load at run time does not affect readiness */
        }
        if (!serves(model)) {
            describe(catalog, model, reason);
        } else if (model->awaits) {
            snprintf(reason, sizeof(reason), "model \"%s\": its files have changed; loading them",
                     model->name);
        }
        ready = false;
        if (fn != NULL) {
            fn(ctx, reason);
        }
    }
    hps_lock_release(&catalog->lock);
    return ready;
}

/* ---- models[] -------------------------------------------------------------------------------- */

struct ensure_task {
    struct hps_task task;
    struct hps_catalog *catalog;
};

static void ensured(struct hps_catalog *catalog, const char *name, const struct hps_error *err)
{
    hps_lock_acquire(&catalog->lock);
    struct catalog_model *model = catalog_model(catalog, name, false);
    HPS_ASSERT(model != NULL); /* configured models are never removed */
    model->waiting = false;
    if (err->status != HPS_OK) {
        catalog_load_failed(catalog, model, err);
        catalog_await_end(catalog, model);
    }
    catalog_expect(catalog, model);
    hps_lock_release(&catalog->lock);
}

static void ensure_model(struct hps_catalog *catalog, const struct hps_config_model *config)
{
    struct hps_error err = {0};
    hps_lock_acquire(&catalog->lock);
    const struct catalog_model *model = catalog_model(catalog, config->name, false);
    HPS_ASSERT(model != NULL);
    bool waiting = model->waiting;
    bool there = model->entries != NULL;
    bool awaits = model->awaits;
    hps_lock_release(&catalog->lock);
    if (!waiting) {
        return;
    }
    err.status = there && !awaits ? HPS_EXISTS : catalog_load_config(catalog, config, awaits, &err);
    if (err.status == HPS_EXISTS || err.status == HPS_CANCELLED) {
        err = (struct hps_error){0}; /* another load was first, or the server stops */
    }
    if (err.status != HPS_OK) {
        HPS_LOG(ERROR, "catalog",
                "configured model not loaded: its load failed; fix the cause in error, then reload "
                "hpsd (SIGHUP) or use hpsctl load",
                HPS_STR("model", config->name), HPS_STR("error", err.text));
    }
    ensured(catalog, config->name, &err);
}

/* Loader thread. */
static void ensure_waiting(struct hps_catalog *catalog)
{
    const struct hps_config *config = catalog->options.config;
    for (size_t i = 0; i < config->n_models && !atomic_load(&catalog->closing); i++) {
        ensure_model(catalog, &config->models[i]);
    }
}

static void run_ensure(struct hps_task *task)
{
    struct hps_catalog *catalog = ((struct ensure_task *)task)->catalog;
    hps_free(task);
    ensure_waiting(catalog);
}

static bool is_any(const struct catalog_model *model)
{
    (void)model;
    return true;
}

static bool has_failed(const struct catalog_model *model)
{
    return model->failure.status != HPS_OK;
}

static bool is_unreached(const struct catalog_model *model)
{
    return model->unreached;
}

/* Mark configured models without versions, or with changed files, as waiting for their load.
 * Returns how many were marked. */
static unsigned mark_waiting(struct hps_catalog *catalog,
                             bool (*wanted)(const struct catalog_model *model))
{
    unsigned n = 0;
    hps_lock_acquire(&catalog->lock);
    for (struct catalog_model *model = catalog->models; model != NULL; model = model->next) {
        bool lacks = model->config != NULL && (model->entries == NULL || model->awaits);
        if (lacks && !model->waiting && wanted(model)) {
            model->waiting = true;
            catalog_expect(catalog, model);
            n++;
        }
    }
    hps_lock_release(&catalog->lock);
    return n;
}

/* The loader thread opens the files, because they may be on a slow file system. */
static void ensure(struct hps_catalog *catalog, bool (*wanted)(const struct catalog_model *model))
{
    const struct hps_config *config = catalog->options.config;
    struct hps_error err = {0};
    if (mark_waiting(catalog, wanted) == 0) {
        return;
    }
    struct ensure_task *task = hps_calloc(1, sizeof(*task));
    if (task != NULL) {
        task->task.run = run_ensure;
        task->catalog = catalog;
        if (hps_pool_post(catalog->loader, &task->task) == HPS_OK) {
            return;
        }
        hps_free(task);
    }
    hps_ignore(hps_error_set(&err, HPS_NO_MEMORY, "no memory to begin the load"));
    for (size_t i = 0; i < config->n_models; i++) {
        hps_lock_acquire(&catalog->lock);
        bool waiting = catalog_model(catalog, config->models[i].name, false)->waiting;
        hps_lock_release(&catalog->lock);
        if (waiting) {
            ensured(catalog, config->models[i].name, &err);
        }
    }
}

void hps_catalog_ensure_models(struct hps_catalog *catalog)
{
    ensure(catalog, is_any);
}

void hps_catalog_retry_models(struct hps_catalog *catalog)
{
    ensure(catalog, has_failed);
}

void catalog_load_again(struct hps_catalog *catalog)
{
    if (mark_waiting(catalog, is_unreached) > 0) {
        ensure_waiting(catalog);
    }
}
