/* SPDX-License-Identifier: Apache-2.0
 *
 * The catalog's state: opening, closing and views.
 */
#include "server/catalog/catalog.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/lock.h"
#include "base/log.h"
#include "cache/update/update.h"
#include "server/catalog/internal.h"
#include "server/observe/metrics.h"

/* The configuration has the numbers of the messages, and so do the enums of the cache. */
_Static_assert((int)HPS_CONFIG_MISS_EXACT == (int)HPS_MISS_EXACT &&
                   (int)HPS_CONFIG_MISS_WAIT == (int)HPS_MISS_WAIT &&
                   (int)HPS_CONFIG_MISS_MEMORY_ONLY == (int)HPS_MISS_MEMORY_ONLY &&
                   (int)HPS_CONFIG_MISS_THRESHOLD == (int)HPS_MISS_THRESHOLD,
               "miss policies");
_Static_assert((int)HPS_CONFIG_UNKNOWN_KEY_DEFAULT_ROW == (int)HPS_UNKNOWN_DEFAULT_ROW &&
                   (int)HPS_CONFIG_UNKNOWN_KEY_ZERO == (int)HPS_UNKNOWN_ZERO &&
                   (int)HPS_CONFIG_UNKNOWN_KEY_ERROR == (int)HPS_UNKNOWN_ERROR,
               "unknown-key policies");

/* ---- lists ----------------------------------------------------------------------------------- */

/* The miss policy looks at the embedding cache. Without one, or if its device is lost, it looks at
 * the host map with async_without_gpu. Otherwise it looks at no tier, and every answer is exact. */
static enum hps_tier_kind cache_tier(const struct hps_catalog *catalog,
                                     const struct catalog_entry *entry)
{
    bool gpu = entry->gpu != NULL && !hps_gpu_space_lost(entry->gpu);
    return !gpu && catalog->async_without_gpu ? HPS_TIER_HOST : HPS_TIER_GPU;
}

void catalog_policies(const struct hps_catalog *catalog, struct catalog_entry *entry)
{
    struct hps_config_policies policies;
    hps_config_model_policies(catalog_config(entry), &policies);
    atomic_store(&entry->version->miss_policy, (enum hps_miss_policy)policies.miss);
    atomic_store(&entry->version->unknown_policy, (enum hps_unknown_policy)policies.unknown_key);
    atomic_store(&entry->version->cache_tier, cache_tier(catalog, entry));
    atomic_store(&entry->version->hit_rate_threshold, policies.hit_rate_threshold);
}

static void set_policies(struct hps_catalog *catalog, struct catalog_model *model)
{
    for (struct catalog_entry *entry = model->entries; entry != NULL; entry = entry->next) {
        catalog_policies(catalog, entry);
    }
}

struct catalog_model *catalog_model(struct hps_catalog *catalog, const char *name, bool make)
{
    struct catalog_model **at = &catalog->models;
    while (*at != NULL && strcmp((*at)->name, name) < 0) {
        at = &(*at)->next;
    }
    if (*at != NULL && strcmp((*at)->name, name) == 0) {
        return *at;
    }
    struct catalog_model *model = make ? hps_calloc(1, sizeof(*model)) : NULL;
    if (model == NULL) {
        return NULL;
    }
    model->name = hps_strdup(name);
    if (model->name == NULL) {
        hps_free(model);
        return NULL;
    }
    model->config = hps_config_model_find(catalog->options.config, name);
    if (catalog_configured_order(model) != HPS_OK) {
        hps_free(model->name);
        hps_free(model);
        return NULL;
    }
    model->next = *at;
    *at = model;
    return model;
}

struct catalog_entry *catalog_entry(struct catalog_model *model, int64_t number)
{
    for (struct catalog_entry *entry = model->entries; entry != NULL; entry = entry->next) {
        if (entry->version->number == number) {
            return entry;
        }
    }
    return NULL;
}

void catalog_model_sane(struct catalog_model *model)
{
    const struct catalog_entry *active = catalog_entry(model, model->active);
    HPS_ASSERT(model->active == 0 || (active != NULL && active->state == ENTRY_RESIDENT));
    HPS_ASSERT(model->previous == 0 || model->previous != model->active);
    for (const struct catalog_entry *entry = model->entries; entry != NULL; entry = entry->next) {
        HPS_ASSERT(entry->model == model);
        HPS_ASSERT(entry->next == NULL || entry->version->number < entry->next->version->number);
        HPS_ASSERT(entry->unload == NULL || entry->state == ENTRY_UNLOADING);
    }
}

struct catalog_entry *catalog_entry_add(struct hps_catalog *catalog, struct catalog_model *model,
                                        struct hps_version *version, enum entry_state state)
{
    HPS_ASSERT(catalog_entry(model, version->number) == NULL);
    struct catalog_entry *entry = hps_calloc(1, sizeof(*entry));
    if (entry == NULL) {
        hps_version_free(version);
        return NULL;
    }
    entry->model = model;
    entry->version = version;
    entry->state = state;
    if (catalog_follow(catalog, entry) != HPS_OK) {
        hps_free(entry);
        hps_version_free(version);
        return NULL;
    }
    struct catalog_entry **at = &model->entries;
    while (*at != NULL && (*at)->version->number < version->number) {
        at = &(*at)->next;
    }
    entry->next = *at;
    *at = entry;
    return entry;
}

void catalog_model_free(struct hps_catalog *catalog, struct catalog_model *model)
{
    struct catalog_model **at = &catalog->models;
    HPS_ASSERT(model->entries == NULL);
    while (*at != model) {
        HPS_ASSERT(*at != NULL);
        at = &(*at)->next;
    }
    *at = model->next;
    hps_table_order_free(&model->order);
    catalog_defined_free(model->defined);
    /* Neither call needs memory. */
    hps_ignore(hps_models_expect(catalog->options.models, model->name, NULL));
    hps_ignore(hps_models_set_order(catalog->options.models, model->name, NULL, 0));
    hps_free(model->name);
    hps_free(model);
}

void catalog_entry_remove(struct hps_catalog *catalog, struct catalog_model *model,
                          struct catalog_entry *entry)
{
    struct catalog_entry **at = &model->entries;
    HPS_ASSERT(entry->model == model);
    HPS_ASSERT(entry->n_switching == 0); /* a switch to it has a pin */
    while (*at != entry) {
        HPS_ASSERT(*at != NULL);
        at = &(*at)->next;
    }
    *at = entry->next;
    hps_free(entry->gpu_usages);
    hps_config_free(entry->own);
    hps_free(entry);
    if (model->entries != NULL) {
        return;
    }
    if (model->config == NULL) {
        catalog_model_free(catalog, model);
    } else {
        model->n_order_stored = 0;
        hps_ignore(catalog_configured_order(model)); /* no memory: the next load sets the order */
        catalog_expect(catalog, model);
    }
}

void catalog_entry_spaces(struct catalog_entry *entry)
{
    struct hps_space **const by_role[HPS_ROLE_COUNT] = {[HPS_ROLE_HOST] = &entry->host,
                                                        [HPS_ROLE_SHARED] = &entry->shared,
                                                        [HPS_ROLE_DURABLE] = &entry->durable};
    for (uint32_t i = 0; i < entry->version->n_tiers; i++) {
        struct hps_space *space = entry->version->tiers[i];
        struct hps_space **at = by_role[hps_store_role(space->store)];
        HPS_ASSERT(*at == NULL || *at == space);
        *at = space;
    }
}

void catalog_version_metrics(struct hps_catalog *catalog, struct hps_version *version)
{
    for (uint32_t i = 0; i < version->n_tables; i++) {
        hps_table_metrics_fill(catalog->options.metrics, version, i, &version->metrics[i]);
    }
    version->update_rows_put = hps_server_metric(catalog->options.metrics, HPS_M_UPDATE_ROWS,
                                                 version->model, "put", NULL, NULL);
    version->update_rows_deleted = hps_server_metric(catalog->options.metrics, HPS_M_UPDATE_ROWS,
                                                     version->model, "delete", NULL, NULL);
    version->update_rows_older = hps_server_metric(catalog->options.metrics, HPS_M_UPDATE_ROWS,
                                                   version->model, "older", NULL, NULL);
    /* Out of memory: the version serves, but its use is not counted. */
    version->usage = hps_usages_of(catalog->usages, version->model, version->number);
}

void catalog_version_metrics_remove(struct hps_catalog *catalog, const struct hps_version *version)
{
    struct catalog_model *model = catalog_model(catalog, version->model, false);
    HPS_ASSERT(model != NULL && catalog_entry(model, version->number) != NULL);
    bool last = model->entries->version == version && model->entries->next == NULL;
    char number[32];
    snprintf(number, sizeof(number), "%" PRId64, version->number);
    const struct hps_metric_label labels[] = {{"model", version->model}, {"version", number}};
    hps_metrics_remove(catalog->options.metrics, labels, 2);
    if (last) {
        catalog_model_metrics_remove(catalog, model);
    }
}

/* Adds the number of rows in the space to `rows`, which may be NULL. */
static uint64_t space_bytes(struct hps_space *space, uint64_t *rows)
{
    struct hps_store_usage usage = {0};
    if (space != NULL) {
        space->store->ops->space_usage(space, &usage);
    }
    if (rows != NULL) {
        *rows += usage.n_rows;
    }
    return usage.used_bytes;
}

uint64_t catalog_rows_dropped(const struct catalog_entry *entry)
{
    struct hps_store_usage usage = {0};
    if (entry->host != NULL) {
        entry->host->store->ops->space_usage(entry->host, &usage);
    }
    return usage.n_rows_dropped;
}

uint64_t catalog_host_used(struct hps_catalog *catalog)
{
    uint64_t bytes = 0;
    for (struct catalog_model *model = catalog->models; model != NULL; model = model->next) {
        for (struct catalog_entry *entry = model->entries; entry != NULL; entry = entry->next) {
            bytes += space_bytes(entry->host, NULL);
        }
    }
    return bytes;
}

/* ---- opening --------------------------------------------------------------------------------- */

/* Lock held, or before other threads know the catalog. */
static void configure(struct hps_catalog *catalog, const struct hps_config *config,
                      struct hps_strings *model_roots)
{
    struct hps_strings old = catalog->model_roots;
    catalog->model_roots = *model_roots;
    *model_roots = old;
    catalog->keep_versions = config->server.keep_versions;
    catalog->warmup_timeout_s = config->server.warmup_timeout_s;
    catalog->activate_lag_max_s = config->server.activate_lag_max_s;
    catalog->activate_rows_loss_max = config->server.activate_rows_loss_max;
    catalog->hot_keys_save_s = config->server.hot_keys_save_s;
    catalog->async_without_gpu = config->server.async_without_gpu;
    catalog->options.env.memory_bytes = config->server.load_memory_bytes;
    catalog->options.env.nan_allowed = config->server.nan_policy == HPS_CONFIG_NAN_ACCEPT;
    hps_updater_reconfigure(catalog->options.updater, catalog->options.env.nan_allowed,
                            config->update_source.max_rows_per_s);
    for (struct catalog_model *model = catalog->models; model != NULL; model = model->next) {
        set_policies(catalog, model);
    }
}

void hps_catalog_device_lost(struct hps_catalog *catalog)
{
    hps_lock_acquire(&catalog->lock);
    for (struct catalog_model *model = catalog->models; model != NULL; model = model->next) {
        set_policies(catalog, model);
    }
    hps_lock_release(&catalog->lock);
}

void hps_catalog_reconfigure(struct hps_catalog *catalog, const struct hps_config *config,
                             struct hps_strings *model_roots)
{
    hps_lock_acquire(&catalog->lock);
    configure(catalog, config, model_roots);
    hps_lock_release(&catalog->lock);
    hps_strings_fini(model_roots); /* the old ones */
}

/* Configured models stay in the list for the life of the catalog, with or without versions. */
static hps_status add_configured(struct hps_catalog *catalog, struct hps_error *err)
{
    const struct hps_config *config = catalog->options.config;
    struct hps_strings roots;
    if (hps_strings_copy(&config->server.model_roots, &roots) != HPS_OK) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for the catalog");
    }
    configure(catalog, config, &roots);
    for (size_t i = 0; i < config->n_models; i++) {
        struct catalog_model *model = catalog_model(catalog, config->models[i].name, true);
        if (model == NULL) {
            return hps_error_set(err, HPS_NO_MEMORY, "no memory for the catalog");
        }
        catalog_failures_show(catalog, model);
    }
    return HPS_OK;
}

static hps_status start_threads(struct hps_catalog *catalog, struct hps_error *err)
{
    struct hps_pool_options background = {.name = "loader", .n_threads = 1, .is_background = true};
    hps_status status = hps_pool_start(&background, &catalog->loader);
    if (status == HPS_OK) {
        background.name = "warmup";
        status = hps_pool_start(&background, &catalog->warmer);
    }
    if (status == HPS_OK) {
        status = hps_pool_new("switch", 1, 0, &catalog->switcher);
    }
    if (status != HPS_OK) {
        return hps_error_set(err, status,
                             "the loader, warm-up and switch threads cannot be started");
    }
    return catalog_reaper_start(catalog, err);
}

static hps_status make_warmup(struct hps_catalog *catalog, struct hps_error *err)
{
    const struct hps_config *config = catalog->options.config;
    const struct hps_load_env *env = &catalog->options.env;
    const struct hps_warmup_options options = {.host = hps_stores_host(&env->stores),
                                               .gpu =
                                                   hps_devices_count(catalog->options.devices) > 0,
                                               .durable = hps_stores_durable(&env->stores),
                                               .host_bytes_max = env->host_bytes_max,
                                               .hot_bytes_max = config->server.hot_keys_bytes,
                                               .read_only = config->persistent_db.read_only,
                                               .metrics = catalog->options.metrics};
    catalog->warmup = hps_warmup_new(&options);
    if (catalog->warmup == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for the catalog");
    }
    return HPS_OK;
}

hps_status hps_catalog_open(const struct hps_catalog_options *options,
                            struct hps_catalog **out_catalog, struct hps_error *err)
{
    struct hps_catalog *catalog = hps_calloc(1, sizeof(*catalog));
    if (catalog == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for the catalog");
    }
    catalog->options = *options;
    HPS_ASSERT(hps_stores_lowest(&options->env.stores) != NULL);
    hps_lock_init(&catalog->lock, HPS_LOCK_CATALOG);
    hps_lock_init(&catalog->switch_lock, HPS_LOCK_CATALOG_SWITCH);
    hps_cond_init(&catalog->reap);
    catalog->usages = hps_usages_new();
    hps_status status = catalog->usages != NULL
                            ? start_threads(catalog, err)
                            : hps_error_set(err, HPS_NO_MEMORY, "no memory for the catalog");
    if (status == HPS_OK) {
        status = add_configured(catalog, err);
    }
    if (status == HPS_OK) {
        status = make_warmup(catalog, err);
    }
    if (status == HPS_OK && hps_stores_durable(&options->env.stores) != NULL) {
        status = catalog_recover(catalog, err);
    } else if (status == HPS_OK) {
        HPS_LOG(WARN, "catalog",
                "versions not stored: persistent_db is disabled; a restart loads models[] and "
                "forgets versions loaded by hand; configure persistent_db to keep them");
    }
    if (status != HPS_OK) {
        hps_catalog_close(catalog);
        return status;
    }
    catalog->saved_us = hps_clock_us();
    catalog->opened = true;
    *out_catalog = catalog;
    return HPS_OK;
}

/* ---- closing --------------------------------------------------------------------------------- */

static void close_version(struct hps_catalog *catalog, struct hps_version *version)
{
    if (hps_models_remove(catalog->options.models, version->model, version->number) == HPS_OK) {
        HPS_ASSERT(hps_version_idle(version));
    }
    catalog_gpu_close(version);
    for (uint32_t i = 0; i < version->n_tiers; i++) {
        version->tiers[i]->store->ops->space_close(version->tiers[i]);
    }
    hps_version_free(version);
}

void hps_catalog_stop(struct hps_catalog *catalog)
{
    if (catalog == NULL) {
        return;
    }
    hps_thread_interrupt(&catalog->closing);
    hps_lock_acquire(&catalog->lock);
    for (struct hps_load *load = catalog->loads; load != NULL; load = load->next) {
        hps_thread_interrupt(&load->progress.cancel);
    }
    hps_lock_release(&catalog->lock);
    hps_pool_free(catalog->loader);
    catalog->loader = NULL;
    catalog_warm_stop(catalog);                 /* after the loader, which posts to its threads */
    hps_updater_stop(catalog->options.updater); /* releases the pins of its streams */
    catalog_reaper_stop(catalog);
}

void hps_catalog_close(struct hps_catalog *catalog)
{
    if (catalog == NULL) {
        return;
    }
    hps_catalog_stop(catalog);
    catalog_reap(catalog);
    HPS_ASSERT(catalog->unloading == NULL);
    HPS_ASSERT(catalog->loads == NULL);
    HPS_ASSERT(catalog->warm_ups == NULL);
    while (catalog->models != NULL) {
        struct catalog_model *model = catalog->models;
        model->config = NULL;
        if (model->entries == NULL) {
            catalog_model_free(catalog, model);
            continue;
        }
        close_version(catalog, model->entries->version);
        catalog_entry_remove(catalog, model, model->entries);
    }
    hps_warmup_free(catalog->warmup);
    hps_usages_free(catalog->usages);
    hps_cond_fini(&catalog->reap);
    hps_lock_fini(&catalog->lock);
    hps_lock_fini(&catalog->switch_lock);
    hps_strings_fini(&catalog->model_roots);
    hps_free(catalog);
}

/* ---- views ----------------------------------------------------------------------------------- */

static const char *state_text(const struct catalog_model *model, const struct catalog_entry *entry)
{
    switch (entry->state) {
    case ENTRY_LOADING:
        return "loading";
    case ENTRY_UNLOADING:
        return "unloading";
    case ENTRY_RESIDENT:
        break;
    }
    return entry->version->number == model->active ? "active" : "resident";
}

double catalog_load_ratio(const struct hps_catalog *catalog, const struct catalog_entry *entry)
{
    if (entry->state != ENTRY_LOADING) {
        return 1;
    }
    for (struct hps_load *load = catalog->loads; load != NULL; load = load->next) {
        uint64_t total = atomic_load(&load->progress.rows_total);
        if (load->entry == entry && total > 0) {
            return (double)atomic_load(&load->progress.rows_done) / (double)total;
        }
    }
    return 0;
}

void hps_catalog_each(struct hps_catalog *catalog,
                      void (*fn)(void *ctx, const struct hps_version_view *view), void *ctx)
{
    hps_lock_acquire(&catalog->lock);
    for (struct catalog_model *model = catalog->models; model != NULL; model = model->next) {
        for (struct catalog_entry *entry = model->entries; entry != NULL; entry = entry->next) {
            struct hps_version_view view = {.model = model->name,
                                            .active_version = model->active,
                                            .state = state_text(model, entry),
                                            .version = entry->version,
                                            .load_ratio = catalog_load_ratio(catalog, entry)};
            if (entry->host != NULL || entry->shared != NULL || entry->durable != NULL) {
                view.n_rows = hps_update_rows(entry->version, &view.rows_estimated);
            }
            catalog_warm_progress(catalog, entry->version, &view.n_keys_warm, &view.n_keys_hot);
            view.host_bytes = space_bytes(entry->host, NULL);
            view.n_rows_dropped = catalog_rows_dropped(entry);
            view.shared_bytes = space_bytes(entry->shared, NULL);
            view.persistent_bytes = space_bytes(entry->durable, NULL);
            catalog_gpu_view(catalog, entry, &view);
            fn(ctx, &view);
        }
    }
    hps_lock_release(&catalog->lock);
}

unsigned hps_catalog_drift(struct hps_catalog *catalog, void (*fn)(void *ctx, const char *model),
                           void *ctx)
{
    unsigned n = 0;
    hps_lock_acquire(&catalog->lock);
    for (struct catalog_model *model = catalog->models; model != NULL; model = model->next) {
        if (model->drift) {
            n++;
            if (fn != NULL) {
                fn(ctx, model->name);
            }
        }
    }
    hps_lock_release(&catalog->lock);
    return n;
}

const struct hps_load_env *hps_catalog_env(const struct hps_catalog *catalog)
{
    return &catalog->options.env;
}

static void add_persistent(const struct catalog_entry *entry, struct hps_catalog_totals *totals)
{
    struct hps_store_usage usage = {0};
    if (entry->durable != NULL) {
        hps_update_usage(entry->version, entry->durable, &usage);
    }
    totals->persistent_rows += usage.n_rows;
    totals->persistent_bytes += usage.used_bytes;
    totals->persistent_estimated = totals->persistent_estimated || usage.rows_estimated;
}

void hps_catalog_totals_get(struct hps_catalog *catalog, struct hps_catalog_totals *out_totals)
{
    struct hps_catalog_totals totals = {0};
    hps_lock_acquire(&catalog->lock);
    for (struct catalog_model *model = catalog->models; model != NULL; model = model->next) {
        for (struct catalog_entry *entry = model->entries; entry != NULL; entry = entry->next) {
            totals.host_bytes += space_bytes(entry->host, &totals.host_rows);
            totals.host_rows_dropped += catalog_rows_dropped(entry);
            totals.shared_bytes += space_bytes(entry->shared, &totals.shared_rows);
            add_persistent(entry, &totals);
            totals.n_loading += entry->state == ENTRY_LOADING;
        }
    }
    hps_lock_release(&catalog->lock);
    *out_totals = totals;
}
