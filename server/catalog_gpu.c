/* SPDX-License-Identifier: Apache-2.0
 *
 * Embedding caches of versions: opened before a version is published, closed when nobody uses it,
 * and preferred while it is active. Admin, loader and reaper threads; main for views.
 */
#include "base/heap.h"
#include "base/log.h"
#include "server/catalog_internal.h"

static hps_status open_space(const struct hps_config_model *config, struct hps_gpu_tier *tier,
                             struct catalog_entry *entry, struct hps_gpu_space **out_space,
                             struct hps_error *err)
{
    const struct hps_version *version = entry->version;
    struct hps_gpu_share *shares = hps_calloc(version->n_tables, sizeof(*shares));
    entry->gpu_usages = hps_calloc(version->n_tables, sizeof(*entry->gpu_usages));
    entry->gpu_evicted = hps_calloc(version->n_tables, sizeof(*entry->gpu_evicted));
    hps_status status = HPS_NO_MEMORY;
    if (shares == NULL || entry->gpu_usages == NULL || entry->gpu_evicted == NULL) {
        hps_ignore(hps_error_set(err, status, "no memory for %u tables", version->n_tables));
    } else {
        hps_devices_shares(config, version->tables, version->n_tables, shares);
        const struct hps_gpu_space_options options = {.model = version->model,
                                                      .number = version->number,
                                                      .tables = version->tables,
                                                      .shares = shares,
                                                      .n_tables = version->n_tables};
        status = hps_gpu_space_open(tier, &options, out_space, err);
    }
    hps_free(shares);
    return status;
}

void catalog_gpu_open(struct hps_catalog *catalog, struct catalog_entry *entry)
{
    struct hps_version *version = entry->version;
    const struct hps_config_model *config =
        hps_config_model_find(catalog->options.config, version->model);
    struct hps_gpu_tier *tier = hps_devices_of(catalog->options.devices, config);
    struct hps_gpu_space *space = NULL;
    struct hps_error err = {0};
    if (tier == NULL) {
        return;
    }
    if (open_space(config, tier, entry, &space, &err) != HPS_OK) {
        HPS_LOG(WARN, "catalog", "a version is served without an embedding cache",
                HPS_STR("model", version->model), HPS_I64("version", version->number),
                HPS_STR("error", err.text));
        return;
    }
    version->gpu = space;
    pthread_mutex_lock(&catalog->lock);
    entry->gpu = space;
    entry->gpu_tier = tier;
    catalog_policies(catalog, entry);
    pthread_mutex_unlock(&catalog->lock);
}

void catalog_gpu_hide(struct catalog_entry *entry)
{
    uint64_t n_rows, n_bytes;
    catalog_gpu_usage(entry, &n_rows, &n_bytes);
    entry->gpu = NULL;
    entry->gpu_tier = NULL;
}

void catalog_gpu_close(struct hps_version *version)
{
    if (version->gpu != NULL) {
        hps_gpu_space_close(version->gpu);
        version->gpu = NULL;
    }
}

void catalog_gpu_active(const struct catalog_entry *entry, bool active)
{
    if (entry != NULL && entry->version->gpu != NULL) {
        hps_gpu_space_active(entry->version->gpu, active);
    }
}

/* A cache that was given up and made again counts from 0. */
static uint64_t since(uint64_t now, uint64_t before)
{
    return now >= before ? now - before : now;
}

void catalog_gpu_usage(struct catalog_entry *entry, uint64_t *out_rows, uint64_t *out_bytes)
{
    const struct hps_version *version = entry->version;
    *out_rows = 0;
    *out_bytes = 0;
    if (entry->gpu == NULL || hps_gpu_tier_lost(entry->gpu_tier)) {
        return;
    }
    hps_gpu_space_usages(entry->gpu, entry->gpu_usages);
    for (uint32_t i = 0; i < version->n_tables; i++) {
        const struct hps_embed_range_usage *usage = &entry->gpu_usages[i];
        struct hps_metric *evictions = version->metrics[i].tier_evictions[HPS_TIER_GPU];
        *out_rows += usage->n_rows;
        *out_bytes += usage->bytes;
        if (evictions != NULL) { /* it has been published */
            hps_metric_add(evictions, since(usage->n_evicted, entry->gpu_evicted[i]));
            entry->gpu_evicted[i] = usage->n_evicted;
        }
    }
}

uint64_t catalog_gpu_bytes(const struct hps_catalog *catalog, const struct hps_version *version)
{
    const struct hps_config_model *config =
        hps_config_model_find(catalog->options.config, version->model);
    struct hps_gpu_share *shares = NULL;
    uint64_t bytes = 0;
    if (hps_devices_of(catalog->options.devices, config) == NULL) {
        return 0;
    }
    shares = hps_calloc(version->n_tables, sizeof(*shares));
    if (shares != NULL) {
        hps_devices_shares(config, version->tables, version->n_tables, shares);
        bytes = hps_gpu_share_bytes(version->tables, shares, version->n_tables);
    }
    hps_free(shares);
    return bytes;
}
