/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens the devices of the configuration, and logs unusable ones. See devices.h.
 */
#include "server/catalog/devices.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/heap.h"
#include "base/log.h"

#define RESULT_BYTES_MAX (UINT64_C(1) << 30) /* default maximum */

struct device {
    int index;
    char node[16];
    struct hps_gpu_tier *tier;
    bool loss_taken; /* by hps_devices_take_lost */
};

struct hps_devices {
    unsigned n;
    bool none; /* the machine has no GPU */
    struct device items[];
};

enum { CACHED_ROWS_MIN = 64 }; /* minimum for a table */

/* ---- opening --------------------------------------------------------------------------------- */

unsigned hps_devices_of_count(const struct hps_config_model *model)
{
    if (model == NULL || !model->gpucache) {
        return 0;
    }
    return model->n_deployed_devices > 0 ? (unsigned)model->n_deployed_devices : 1;
}

static int device_of(const struct hps_config_model *model, unsigned i)
{
    return model->n_deployed_devices > 0 ? (int)model->deployed_device_list[i] : 0;
}

/* Add the device, unless it is in the list. */
static void list_device(struct hps_devices *devices, int index)
{
    unsigned at = 0;
    while (at < devices->n && devices->items[at].index != index) {
        at++;
    }
    if (at == devices->n) {
        struct device *device = &devices->items[devices->n++];
        HPS_ASSERT(device->tier == NULL);
        device->index = index;
        snprintf(device->node, sizeof(device->node), "%d", index);
    }
}

/* The devices to open, each once. NULL: out of memory. */
static struct hps_devices *list_devices(const struct hps_config *config)
{
    size_t n = 0;
    for (size_t i = 0; i < config->n_models; i++) {
        n += hps_devices_of_count(&config->models[i]);
    }
    struct hps_devices *devices = hps_calloc(1, sizeof(*devices) + n * sizeof(devices->items[0]));
    for (size_t i = 0; i < config->n_models && devices != NULL; i++) {
        for (unsigned j = 0; j < hps_devices_of_count(&config->models[i]); j++) {
            list_device(devices, device_of(&config->models[i], j));
        }
    }
    return devices;
}

/* Check for any GPU before opening one, so that a machine without GPUs gets its own message. */
static hps_status check_any(const struct hps_gpu_tier_options *options, struct hps_error *err)
{
    int n = 0;
    struct hps_error why = {0};
    hps_status status = hps_device_count(options->driver, &n, &why);
    if (status == HPS_OK && n > 0) {
        return HPS_OK;
    }
    return hps_error_set(err, HPS_NOT_FOUND, "no usable GPU: %s",
                         why.text[0] != '\0' ? why.text : "the machine has none");
}

static hps_status open_device(struct device *device, const struct hps_gpu_tier_options *options,
                              struct hps_error *err)
{
    struct hps_gpu_tier_options own = *options;
    struct hps_embed_cache_usage usage;
    own.index = device->index;
    hps_status status = hps_gpu_tier_open(&own, &device->tier, err);
    if (status != HPS_OK) {
        return status;
    }
    const struct hps_device_info *info = hps_gpu_tier_info(device->tier);
    hps_gpu_tier_usage(device->tier, &usage);
    HPS_LOG(
        INFO, "gpu", "device opened", HPS_I64("device", device->index), HPS_STR("name", info->name),
        HPS_STR("uuid", info->uuid), HPS_U64("memory_bytes", info->memory_bytes),
        HPS_U64("free_bytes", info->memory_free_bytes), HPS_U64("cache_bytes", usage.arena_bytes));
    return HPS_OK;
}

/* Continue without a device that cannot be used, if the configuration allows it. `err` has the
 * reason. */
static hps_status go_without(const struct hps_config *config, struct hps_error *err)
{
    bool async = config->server.async_without_gpu;
    if (config->server.on_device_loss == HPS_CONFIG_DEVICE_LOSS_EXIT) {
        return hps_error_prefix(err, HPS_UNAVAILABLE, "server.on_device_loss is exit");
    }
    HPS_LOG(WARN, "gpu",
            async ? "embedding caches off: no usable GPU, see reason; hit_rate_threshold applies "
                    "to the host map, as server.async_without_gpu is set"
                  : "embedding caches off: no usable GPU, see reason; every answer is exact and "
                    "comes from the host map or the persistent store",
            HPS_STR("reason", err->text));
    return HPS_OK;
}

static uint64_t result_bytes(const struct hps_config_server *server)
{
    uint64_t quarter = server->reply_bytes_in_flight / 4;
    uint64_t most = quarter < RESULT_BYTES_MAX ? quarter : RESULT_BYTES_MAX;
    return server->gpu_result_bytes != 0 ? server->gpu_result_bytes : most;
}

/* Open all usable devices; with `exit` each must be usable. */
static hps_status open_all(const struct hps_config *config, struct hps_devices *devices,
                           const struct hps_gpu_tier_options *options, struct hps_error *err)
{
    if (check_any(options, err) != HPS_OK) {
        devices->none = true;
        return go_without(config, err);
    }
    if (hps_block_pool_slab_add(options->blocks, result_bytes(&config->server)) != HPS_OK) {
        (void)hps_error_set(err, HPS_NO_MEMORY,
                            "server.gpu_result_bytes: no memory for %" PRIu64 " bytes",
                            result_bytes(&config->server));
        return go_without(config, err);
    }
    for (unsigned i = 0; i < devices->n; i++) {
        struct device *device = &devices->items[i];
        hps_status status = open_device(device, options, err);
        if (status != HPS_OK) {
            status = go_without(config, err);
        }
        if (status != HPS_OK) {
            return status;
        }
    }
    return HPS_OK;
}

hps_status hps_devices_open(const struct hps_config *config, const struct hps_device_driver *driver,
                            struct hps_block_pool *blocks, struct hps_devices **out_devices,
                            struct hps_error *err)
{
    struct hps_gpu_tier_options options = {
        .driver = driver,
        .cache = {.arena_bytes = config->server.gpu_memory_bytes},
        .blocks = blocks};
    bool wanted = false;
    *out_devices = NULL;
    for (size_t i = 0; i < config->n_models; i++) {
        wanted = wanted || config->models[i].gpucache;
    }
    if (!wanted) {
        return HPS_OK;
    }
    struct hps_devices *devices = list_devices(config);
    if (devices == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for the list of devices");
    }
    hps_status status = open_all(config, devices, &options, err);
    if (status != HPS_OK) {
        hps_devices_close(devices);
        return status;
    }
    *out_devices = devices;
    return HPS_OK;
}

void hps_devices_drain(struct hps_devices *devices)
{
    for (unsigned i = 0; devices != NULL && i < devices->n; i++) {
        hps_gpu_tier_drain(devices->items[i].tier);
    }
}

void hps_devices_close(struct hps_devices *devices)
{
    for (unsigned i = 0; devices != NULL && i < devices->n; i++) {
        hps_gpu_tier_close(devices->items[i].tier);
    }
    hps_free(devices);
}

/* ---- views ----------------------------------------------------------------------------------- */

struct hps_gpu_tier *hps_devices_of(const struct hps_devices *devices,
                                    const struct hps_config_model *model, unsigned i)
{
    if (devices == NULL || i >= hps_devices_of_count(model)) {
        return NULL;
    }
    for (unsigned j = 0; j < i; j++) {
        if (device_of(model, j) == device_of(model, i)) {
            return NULL;
        }
    }
    for (unsigned j = 0; j < devices->n; j++) {
        if (devices->items[j].index == device_of(model, i)) {
            return devices->items[j].tier;
        }
    }
    return NULL;
}

bool hps_devices_any_of(const struct hps_devices *devices, const struct hps_config_model *model)
{
    unsigned i = 0;
    while (i < hps_devices_of_count(model) && hps_devices_of(devices, model, i) == NULL) {
        i++;
    }
    return i < hps_devices_of_count(model);
}

unsigned hps_devices_count(const struct hps_devices *devices)
{
    return devices != NULL ? devices->n : 0;
}

void hps_devices_view(const struct hps_devices *devices, unsigned i,
                      struct hps_device_view *out_view)
{
    HPS_ASSERT(i < devices->n);
    const struct device *device = &devices->items[i];
    struct hps_device_view view = {.node = device->node,
                                   .name = devices->none ? "no GPU" : "cannot be used",
                                   .there = !devices->none};
    if (device->tier != NULL) {
        struct hps_embed_cache_usage usage;
        hps_gpu_tier_usage(device->tier, &usage);
        view.name = hps_gpu_tier_info(device->tier)->name;
        view.tier = device->tier;
        view.up = !hps_gpu_tier_lost(device->tier);
        HPS_ASSERT(usage.free_bytes <= usage.arena_bytes);
        view.used_bytes = usage.arena_bytes - usage.free_bytes;
        view.capacity_bytes = usage.arena_bytes;
    }
    *out_view = view;
}

unsigned hps_devices_take_lost(struct hps_devices *devices)
{
    unsigned n = 0;
    for (unsigned i = 0; devices != NULL && i < devices->n; i++) {
        struct device *device = &devices->items[i];
        if (device->tier != NULL && !device->loss_taken && hps_gpu_tier_lost(device->tier)) {
            device->loss_taken = true;
            n++;
        }
    }
    return n;
}

void hps_devices_shares(const struct hps_config_model *model, const struct hps_table *tables,
                        uint32_t n_tables, struct hps_gpu_share *out_shares)
{
    bool whole = hps_config_caches_whole(model);
    for (uint32_t i = 0; i < n_tables; i++) {
        double share = (double)tables[i].n_rows * model->gpucacheper;
        uint64_t n = whole ? tables[i].n_rows : (uint64_t)share;
        n += !whole && (double)n < share;
        if (n > 0 && n < CACHED_ROWS_MIN) { /* as in HPS: a small table is cached whole */
            n = tables[i].n_rows < CACHED_ROWS_MIN ? tables[i].n_rows : CACHED_ROWS_MIN;
        }
        out_shares[i] = (struct hps_gpu_share){.n_rows = tables[i].n_rows, .n_rows_cached = n};
    }
}
