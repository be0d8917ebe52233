/* SPDX-License-Identifier: Apache-2.0
 *
 * Embedding caches of versions: opened before a version is published, closed when nobody uses it,
 * and preferred while it is active. Admin, loader and reaper threads; main for views.
 */
#include "base/heap.h"
#include "base/log.h"
#include "server/catalog_internal.h"

/* Memory for what is seen of its caches. NULL: there is none. */
static struct hps_gpu_share *prepare(const struct hps_config_model *config,
                                     struct catalog_entry *entry)
{
    const struct hps_version *version = entry->version;
    struct hps_gpu_share *shares = hps_calloc(version->n_tables, sizeof(*shares));
    entry->gpu_usages = hps_calloc(version->n_tables, sizeof(*entry->gpu_usages));
    entry->gpu_evicted = hps_calloc(version->n_tables, sizeof(*entry->gpu_evicted));
    if (shares != NULL) {
        hps_devices_shares(config, version->tables, version->n_tables, shares);
    }
    if (entry->gpu_usages == NULL || entry->gpu_evicted == NULL) {
        hps_free(shares);
        return NULL;
    }
    return shares;
}

/* On every device of the model that can be used. NULL: on none */
static struct hps_gpu_space *open_space(const struct hps_catalog *catalog,
                                        const struct hps_config_model *config,
                                        const struct hps_gpu_space_options *options)
{
    const struct hps_devices *devices = catalog->options.devices;
    struct hps_gpu_space *space = NULL;
    for (unsigned i = 0; i < hps_devices_of_count(config); i++) {
        struct hps_gpu_tier *tier = hps_devices_of(devices, config, i);
        struct hps_error err = {0};
        hps_status status = HPS_OK;
        if (tier != NULL) {
            status = space == NULL ? hps_gpu_space_open(tier, options, &space, &err)
                                   : hps_gpu_space_add(space, tier, options, &err);
        }
        if (status != HPS_OK) {
            HPS_LOG(WARN, "catalog", "a version is served without an embedding cache",
                    HPS_STR("model", options->model), HPS_I64("version", options->number),
                    HPS_I64("device", hps_gpu_tier_info(tier)->index), HPS_STR("error", err.text));
        }
    }
    return space;
}

void catalog_gpu_open(struct hps_catalog *catalog, struct catalog_entry *entry)
{
    struct hps_version *version = entry->version;
    const struct hps_config_model *config =
        hps_config_model_find(catalog->options.config, version->model);
    if (!hps_devices_any_of(catalog->options.devices, config)) {
        return;
    }
    struct hps_gpu_share *shares = prepare(config, entry);
    if (shares == NULL) {
        HPS_LOG(WARN, "catalog", "a version is served without an embedding cache",
                HPS_STR("model", version->model), HPS_I64("version", version->number),
                HPS_STR("error", "no memory for its tables"));
        return;
    }
    const struct hps_gpu_space_options options = {.model = version->model,
                                                  .number = version->number,
                                                  .tables = version->tables,
                                                  .shares = shares,
                                                  .n_tables = version->n_tables};
    struct hps_gpu_space *space = open_space(catalog, config, &options);
    hps_free(shares);
    if (space == NULL) {
        return;
    }
    version->gpu = space;
    pthread_mutex_lock(&catalog->lock);
    entry->gpu = space;
    catalog_policies(catalog, entry);
    pthread_mutex_unlock(&catalog->lock);
}

void catalog_gpu_hide(struct catalog_entry *entry)
{
    uint64_t n_rows, n_bytes;
    catalog_gpu_usage(entry, &n_rows, &n_bytes);
    entry->gpu = NULL;
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
    if (entry->gpu == NULL || hps_gpu_space_lost(entry->gpu)) {
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
    unsigned n_devices = 0;
    uint64_t bytes = 0;
    for (unsigned i = 0; config != NULL && i < hps_devices_of_count(config); i++) {
        n_devices += hps_devices_of(catalog->options.devices, config, i) != NULL ? 1 : 0;
    }
    if (n_devices == 0) {
        return 0;
    }
    struct hps_gpu_share *shares = hps_calloc(version->n_tables, sizeof(*shares));
    if (shares != NULL) {
        hps_devices_shares(config, version->tables, version->n_tables, shares);
        bytes = n_devices * hps_gpu_share_bytes(version->tables, shares, version->n_tables);
    }
    hps_free(shares);
    return bytes;
}
