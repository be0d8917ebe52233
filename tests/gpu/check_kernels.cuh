/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernels of check_kernels.h.
 */
#include "cache/device/simt.h"
#include "tests/gpu/check_kernels.h"

HPS_KERNEL(check_warp, struct check_warp_args, args, CHECK_THREADS, 4)
{
    uint32_t i = hps_grid_thread();
    uint32_t value = hps_load_u32(&args->input[i]);
    for (uint32_t round = 0; round < args->rounds; round++) {
        args->ballots[i] = hps_ballot((value & 1) != 0);
        args->any[i] = hps_any(value % 61 == 0) ? 1 : 0;
        args->shuffled[i] = hps_shuffle_u32(value, value % HPS_WARP);
        uint64_t wide = (uint64_t)value << 32 | hps_lane();
        args->shuffled_64[i] = hps_shuffle_u64(wide, (hps_lane() + 1) % HPS_WARP);
    }
    uint32_t *where = &args->where[(size_t)i * 6];
    where[0] = hps_block();
    where[1] = hps_thread();
    where[2] = hps_lane();
    where[3] = hps_warp();
    where[4] = hps_grid_warp();
    where[5] = hps_grid_thread();
}

HPS_KERNEL(check_block, struct check_block_args, args, CHECK_THREADS, 4)
{
    HPS_SHARED(struct check_block_shared, shared);
    uint32_t i = hps_grid_thread();
    uint32_t value = hps_load_u32(&args->input[i]);
    for (uint32_t round = 0; round < args->rounds; round++) {
        shared->values[hps_thread()] = value;
        shared->warp_values[hps_thread()] = value;
        hps_warp_barrier();
        if (hps_lane() == 0) {
            uint64_t sum = 0;
            for (uint32_t lane = 0; lane < HPS_WARP; lane++) {
                sum += shared->warp_values[hps_warp() * HPS_WARP + lane];
            }
            shared->partial[hps_warp()] = sum;
        }
        hps_block_barrier();
        args->rotated[i] = shared->values[(hps_thread() + 33) % hps_block_threads()];
        if (hps_thread() == 0) {
            uint64_t sum = 0;
            for (uint32_t warp = 0; warp < CHECK_WARPS; warp++) {
                sum += shared->partial[warp];
            }
            args->sums[hps_block()] = sum;
        }
        hps_block_barrier();
    }
}

HPS_KERNEL(check_memory, struct check_memory_args, args, CHECK_THREADS, 4)
{
    const uint8_t *from = (const uint8_t *)args->from;
    for (uint32_t i = hps_grid_thread(); i < args->n; i += hps_grid_threads()) {
        size_t at = (size_t)i * 16;
        hps_store_quad((uint8_t *)args->quads + at, hps_load_quad(from + at));
        for (uint32_t k = 0; k < 4; k++) {
            hps_store_u32(&args->words[i * 4 + k], hps_load_u32(from + at + k * 4));
        }
        for (uint32_t k = 0; k < 2; k++) {
            args->doubles[i * 2 + k] = hps_load_u64(from + at + k * 8);
        }
    }
}

HPS_KERNEL(check_atomic, struct check_atomic_args, args, CHECK_THREADS, 4)
{
    HPS_SHARED(uint32_t, is_last);
    uint32_t i = hps_grid_thread();
    hps_atomic_add_u32(&args->words[0], i, HPS_RELAXED);
    hps_atomic_or_u32(&args->words[1], 1U << (i % 32), HPS_RELAXED);
    hps_atomic_add_u64(&args->doubles[0], (uint64_t)i << 20, HPS_RELAXED);
    uint32_t seen = hps_atomic_load_u32(&args->words[3], HPS_RELAXED);
    while (!hps_atomic_cas_u32(&args->words[3], &seen, seen + i, HPS_RELAXED)) {
    }
    uint64_t seen_64 = hps_atomic_load_u64(&args->doubles[1], HPS_RELAXED);
    while (!hps_atomic_cas_u64(&args->doubles[1], &seen_64, seen_64 + i, HPS_RELAXED)) {
    }
    uint32_t was = hps_atomic_exchange_u32(&args->words[2], i, HPS_RELAXED);
    hps_atomic_add_u32(&args->words[7], was - i, HPS_RELAXED);
    hps_atomic_store_u8(&args->bytes[i % 256],
                        (uint8_t)(hps_atomic_load_u8(&args->bytes[i % 256]) | 0x80));
    hps_atomic_add_u32(&args->words[5],
                       (uint32_t)hps_mul_high_u64(~(uint64_t)0 - i, (uint64_t)i << 32),
                       HPS_RELAXED);
    hps_atomic_add_u32(&args->words[6], hps_count_bits(i + 1) + hps_first_bit(i + 1), HPS_RELAXED);
    if (hps_thread() == 0) {
        args->rows[hps_block()] = hps_block() + 1;
        *is_last = hps_atomic_add_u32(&args->words[4], 1, HPS_ACQ_REL) == hps_grid_blocks() - 1;
    }
    hps_block_barrier();
    if (*is_last != 0 && hps_thread() == 0) {
        uint64_t total = 0;
        for (uint32_t block = 0; block < hps_grid_blocks(); block++) {
            total += args->rows[block];
        }
        *args->total = total;
        hps_fence_system();
        hps_flag_raise(args->flag, args->flag_value);
    }
}
