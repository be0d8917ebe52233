/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the kernels of the embedding cache.
 */
#ifndef HPS_CACHE_EMBED_COMMON_CUH
#define HPS_CACHE_EMBED_COMMON_CUH

#include "cache/device/simt.h"
#include "cache/embed/variants.h"

HPS_DEVICE_CODE void *embed_at(uint64_t address)
{
    return (void *)(uintptr_t)address;
}

HPS_DEVICE_CODE uint64_t embed_pair(uint32_t low, uint32_t high)
{
    return (uint64_t)high << 32 | low;
}

/* Division by a number of lanes, which is a power of two. */
HPS_DEVICE_CODE uint32_t embed_lanes_divide(uint32_t n, uint32_t lanes)
{
    return HPS_EMBED_LANES_LOG ? n >> hps_first_bit(lanes) : n / lanes;
}
HPS_DEVICE_CODE uint32_t embed_lanes_remainder(uint32_t n, uint32_t lanes)
{
    return HPS_EMBED_LANES_LOG ? n & (lanes - 1) : n % lanes;
}

#if HPS_EMBED_TICKET_RELEASE
#define EMBED_TICKET_ORDER HPS_RELEASE
#else
#define EMBED_TICKET_ORDER HPS_ACQ_REL
#endif

/* Call it at the end of a block of threads. Returns true in the first warp of the block that ends
 * last, and resets blocks_done to 0. If `reads` is true, that warp then sees everything that all
 * blocks have written. If `reads` is false, the warp may only call embed_raise_flag afterwards. */
HPS_DEVICE_CODE bool embed_last_block(uint64_t blocks_done, bool reads)
{
    uint32_t *done = (uint32_t *)embed_at(blocks_done);
    uint32_t n = 0;

    hps_block_barrier();
    if (hps_warp() != 0) {
        return false;
    }
    if (hps_lane() == 0) {
        n = hps_atomic_add_u32(done, 1, EMBED_TICKET_ORDER) + 1;
        if (n == hps_grid_blocks()) {
            if (HPS_EMBED_TICKET_RELEASE && reads) {
                hps_fence_acquire(done);
            }
            hps_atomic_store_u32(done, 0, HPS_RELAXED);
        }
    }
    hps_warp_barrier();
    return hps_shuffle_u32(n, 0) == hps_grid_blocks();
}

/* Signal the host that all blocks have ended. Called by lane 0 of the warp in which
 * embed_last_block returned true. */
HPS_DEVICE_CODE void embed_raise_flag(uint64_t flag, uint32_t sequence, uint64_t blocks_done)
{
#if HPS_EMBED_TICKET_RELEASE
    hps_flag_raise_acquire((uint32_t *)embed_at(flag), sequence,
                           (const uint32_t *)embed_at(blocks_done));
#else
    (void)blocks_done;
    hps_flag_raise((uint32_t *)embed_at(flag), sequence);
#endif
}

#endif
