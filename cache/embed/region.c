/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that lookups write to. See internal.h for threads.
 */
#include "base/assert.h"
#include "base/heap.h"
#include "cache/embed/internal.h"

enum { ALIGN = 16 };

static struct hps_embed_region *region_new(struct hps_embed_cache *cache, uint64_t size,
                                           struct hps_error *err)
{
    struct hps_embed_region *region = hps_calloc(1, sizeof(*region));

    if (region == NULL) {
        (void)hps_error_set(err, HPS_NO_MEMORY, "no memory for a region");
        return NULL;
    }
    region->cache = cache;
    region->size = size;
    return region;
}

hps_status hps_embed_region_host(struct hps_embed_cache *cache, void *memory, size_t size,
                                 struct hps_embed_region **out_region, struct hps_error *err)
{
    struct hps_embed_region *region = region_new(cache, size, err);

    HPS_ASSERT((uintptr_t)memory % ALIGN == 0);
    if (region == NULL) {
        return HPS_NO_MEMORY;
    }
    region->host = memory;
    hps_status status = hps_device_host_register(cache->device, memory, size, &region->memory, err);
    if (status != HPS_OK) {
        hps_free(region);
        return status;
    }
    *out_region = region;
    return HPS_OK;
}

hps_status hps_embed_region_device(struct hps_embed_cache *cache, hps_devptr memory, size_t size,
                                   struct hps_embed_region **out_region, struct hps_error *err)
{
    HPS_ASSERT(memory % ALIGN == 0);
    struct hps_embed_region *region = region_new(cache, size, err);
    if (region == NULL) {
        return HPS_NO_MEMORY;
    }
    region->memory = memory;
    *out_region = region;
    return HPS_OK;
}

hps_status hps_embed_region_free(struct hps_embed_region *region)
{
    if (region == NULL) {
        return HPS_OK;
    }
    if (region->cache->lost ? !hps_device_quiet(region->cache->device) : region->n_uses > 0) {
        return HPS_AGAIN;
    }
    HPS_ASSERT(region->n_uses == 0 || region->cache->lost);
    if (region->host != NULL) {
        hps_device_host_unregister(region->cache->device, region->host);
    }
    hps_free(region);
    return HPS_OK;
}
