/* SPDX-License-Identifier: Apache-2.0
 *
 * Embedding caches of versions. They are opened before a version is published, closed when it is no
 * longer in use, and preferred while it is active. Admin, loader and reaper threads; main for
 * views.
 */
#include <stdio.h>

#include "base/assert.h"
#include "base/heap.h"
#include "base/log.h"
#include "server/catalog/internal.h"
#include "server/observe/metrics.h"

/* Allocate the usages for views, and compute the shares of the tables. NULL: out of memory. */
static struct hps_gpu_share *prepare(const struct hps_config_model *config,
                                     struct catalog_entry *entry)
{
    const struct hps_version *version = entry->version;
    struct hps_gpu_share *shares = hps_calloc(version->n_tables, sizeof(*shares));
    entry->gpu_usages = hps_calloc(version->n_tables, sizeof(*entry->gpu_usages));
    if (shares != NULL) {
        hps_devices_shares(config, version->tables, version->n_tables, shares);
    }
    if (entry->gpu_usages == NULL) {
        hps_free(shares);
        return NULL;
    }
    return shares;
}

/* Open caches on every usable device of the model. NULL: on none */
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
            HPS_LOG(WARN, "catalog",
                    "version served without an embedding cache: none could be made on its device; "
                    "see error",
                    HPS_STR("model", options->model), HPS_I64("version", options->number),
                    HPS_I64("device", hps_gpu_tier_info(tier)->index), HPS_STR("error", err.text));
        }
    }
    return space;
}

void catalog_gpu_open(struct hps_catalog *catalog, struct catalog_entry *entry)
{
    struct hps_version *version = entry->version;
    const struct hps_config_model *config = catalog_config(entry);
    if (!hps_devices_any_of(catalog->options.devices, config)) {
        return;
    }
    struct hps_gpu_share *shares = prepare(config, entry);
    if (shares == NULL) {
        HPS_LOG(WARN, "catalog",
                "version served without an embedding cache: none could be made on its device; see "
                "error",
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
    HPS_ASSERT(version->gpu == NULL && entry->gpu == NULL);
    version->gpu = space;
    hps_lock_acquire(&catalog->lock);
    entry->gpu = space;
    catalog_policies(catalog, entry);
    hps_lock_release(&catalog->lock);
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

/* Add what the device has done since the last call to the metrics. */
static void count_table(struct hps_catalog *catalog, const struct hps_version *version, uint32_t i,
                        const struct hps_embed_range_usage *before,
                        const struct hps_embed_range_usage *now)
{
    const char *gpu = hps_tier_name(HPS_TIER_GPU);
    const char *table = version->tables[i].name;
    struct hps_metrics *metrics = catalog->options.metrics;
    hps_metric_add(hps_server_metric(metrics, HPS_M_INSERTION_ROWS, gpu, "async", NULL, NULL),
                   now->n_inserted - before->n_inserted);
    hps_metric_add(
        hps_server_metric(metrics, HPS_M_TIER_REFUSALS, version->model, table, gpu, NULL),
        now->n_refused - before->n_refused);
    hps_metric_add(version->metrics[i].tier_evictions[HPS_TIER_GPU],
                   now->n_evicted - before->n_evicted);
}

static uint32_t count_wanted(const struct hps_gpu_space *space, uint32_t n_tables)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_tables; i++) {
        n += hps_gpu_space_rows_max(space, i) > 0;
    }
    return n;
}

/* "" if the version has its caches, or its model is configured for none. */
static void note_missing(const struct catalog_entry *entry, char *out_note, size_t size)
{
    const struct hps_config_model *config = catalog_config(entry);
    out_note[0] = '\0';
    if (config == NULL || !config->gpucache || entry->state == ENTRY_LOADING) {
        return;
    }
    uint32_t n = hps_gpu_space_tables_without_capacity(entry->gpu, NULL);
    const char *text = entry->gpu == NULL                  ? "no device"
                       : hps_gpu_space_lost(entry->gpu)    ? "device lost"
                       : hps_gpu_space_present(entry->gpu) ? ""
                       : hps_gpu_space_coming(entry->gpu)  ? "coming"
                                                           : "no device memory";
    if (text[0] == '\0' && n > 0) {
        snprintf(out_note, size, "no device memory for %u of %u tables", n,
                 count_wanted(entry->gpu, entry->version->n_tables));
    } else {
        snprintf(out_note, size, "%s", text);
    }
}

void catalog_gpu_view(struct hps_catalog *catalog, struct catalog_entry *entry,
                      struct hps_version_view *out_view)
{
    const struct hps_version *version = entry->version;
    struct hps_embed_range_usage now;
    HPS_ASSERT(entry->gpu == NULL || entry->gpu_usages != NULL);
    out_view->gpu = entry->gpu;
    note_missing(entry, out_view->gpu_note, sizeof(out_view->gpu_note));
    if (entry->gpu == NULL) {
        return;
    }
    for (uint32_t i = 0; i < version->n_tables; i++) {
        hps_gpu_space_usage(entry->gpu, i, &now);
        if (version->metrics[i].tier_evictions[HPS_TIER_GPU] != NULL) { /* published */
            count_table(catalog, version, i, &entry->gpu_usages[i], &now);
        } else {
            now.n_inserted = now.n_refused = now.n_evicted = 0; /* counted after publication */
        }
        entry->gpu_usages[i] = now;
        out_view->gpu_rows += now.n_rows;
        out_view->gpu_bytes += now.bytes;
    }
    out_view->gpu_usages = entry->gpu_usages;
}

void catalog_gpu_hide(struct hps_catalog *catalog, struct catalog_entry *entry)
{
    struct hps_version_view last = {0};
    catalog_gpu_view(catalog, entry, &last);
    entry->gpu = NULL;
}

uint64_t catalog_gpu_bytes(const struct hps_catalog *catalog, const struct hps_version *version,
                           const struct hps_config_model *config)
{
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
