/* SPDX-License-Identifier: Apache-2.0
 *
 * What the kernels of the embedding cache share.
 */
#ifndef HPS_CACHE_EMBED_COMMON_CUH
#define HPS_CACHE_EMBED_COMMON_CUH

#include "cache/device/simt.h"

HPS_DEVICE_CODE void *embed_at(uint64_t address)
{
    return (void *)(uintptr_t)address;
}

HPS_DEVICE_CODE uint64_t embed_pair(uint32_t low, uint32_t high)
{
    return (uint64_t)high << 32 | low;
}

/* True in the first warp of the block that ends last: it sees what all blocks have written.
 * blocks_done is 0 again. */
HPS_DEVICE_CODE bool embed_last_block(uint64_t blocks_done)
{
    uint32_t *done = (uint32_t *)embed_at(blocks_done);
    uint32_t n = 0;

    hps_block_barrier();
    if (hps_warp() != 0) {
        return false;
    }
    if (hps_lane() == 0) {
        n = hps_atomic_add_u32(done, 1, HPS_ACQ_REL) + 1;
        if (n == hps_grid_blocks()) {
            hps_atomic_store_u32(done, 0, HPS_RELAXED);
        }
    }
    hps_warp_barrier();
    return hps_shuffle_u32(n, 0) == hps_grid_blocks();
}

#endif
