/* SPDX-License-Identifier: Apache-2.0
 *
 * A gpu tier on the simulated device above a fixture's version. Used by one thread.
 */
#ifndef HPS_TESTS_LIB_GPU_FIXTURE_H
#define HPS_TESTS_LIB_GPU_FIXTURE_H

#include "cache/device/sim/sim.h"
#include "cache/gpu/internal.h"
#include "tests/lib/lookup_fixture.h"

enum {
    GPU_FIXTURE_ROWS = 2000,
    GPU_FIXTURE_TABLES_MAX = 8,
    GPU_FIXTURE_SLAB = 8 << 20,
    GPU_FIXTURE_STALL_US = 600 * 1000 * 1000
};

struct gpu_fixture {
    struct hps_block_pool *blocks;
    struct hps_gpu_tier *tier;
    struct hps_gpu_space *space;
};

/* cached[i]: of table i are any rows cached; NULL: of all of them. The device is slow under
 * sanitizers, but never lost for that. */
static inline void gpu_fixture_open(struct gpu_fixture *gpu, struct hps_version *version,
                                    const bool *cached)
{
    struct hps_gpu_share shares[GPU_FIXTURE_TABLES_MAX];
    struct hps_error err;

    gpu->blocks = hps_block_pool_new(0);
    hps_status status = hps_block_pool_slab_add(gpu->blocks, GPU_FIXTURE_SLAB);
    HPS_ASSERT(status == HPS_OK);
    const struct hps_sim_driver sim =
        hps_sim_driver((struct hps_device_sim_config){.seed = 7, .delay_us_max = 20});
    const struct hps_gpu_tier_options options = {.driver = &sim.driver,
                                                 .cache = {.arena_bytes = 4 << 20,
                                                           .gather_bytes = 1 << 20,
                                                           .stage_bytes = 1 << 20,
                                                           .seed = 3,
                                                           .sample_rate = 1},
                                                 .blocks = gpu->blocks,
                                                 .stall_us_max = GPU_FIXTURE_STALL_US};
    status = hps_gpu_tier_open(&options, &gpu->tier, &err);
    HPS_ASSERT(status == HPS_OK);
    HPS_ASSERT(version->n_tables <= GPU_FIXTURE_TABLES_MAX);
    for (uint32_t i = 0; i < version->n_tables; i++) {
        bool any = cached == NULL || cached[i];
        shares[i] = (struct hps_gpu_share){.n_rows = GPU_FIXTURE_ROWS,
                                           .n_rows_cached = any ? GPU_FIXTURE_ROWS : 0};
    }
    const struct hps_gpu_space_options space = {.model = version->model,
                                                .number = version->number,
                                                .tables = version->tables,
                                                .shares = shares,
                                                .n_tables = version->n_tables};
    status = hps_gpu_space_open(gpu->tier, &space, &gpu->space, &err);
    HPS_ASSERT(status == HPS_OK);
    hps_gpu_space_active(gpu->space, true);
    version->gpu = gpu->space;
}

static inline void gpu_fixture_close(struct gpu_fixture *gpu)
{
    hps_gpu_tier_drain(gpu->tier);
    hps_gpu_space_close(gpu->space);
    hps_gpu_tier_close(gpu->tier);
    hps_block_pool_free(gpu->blocks);
}

/* Offer the gpu a row under this key; lookups that begin now see it. */
static inline void gpu_fixture_put(struct gpu_fixture *gpu, const struct hps_table *table,
                                   hps_key key, const uint8_t *row)
{
    const uint32_t slot = 0;
    struct hps_insert_report report;

    const struct hps_gpu_insertion insertion = {
        .table_id = table->id, .n = 1, .keys = &key, .slots = &slot, .rows = row};
    hps_gpu_insert(gpu->space, &insertion, &report);
    HPS_ASSERT(report.n_inserted == 1);
}

#endif
