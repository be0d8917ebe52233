/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernels of kernels.h.
 */
#include "bench/gpu/kernels.h"
#include "cache/device/simt.h"

enum { BENCH_UNROLL = 4 }; /* as the look-up has */

HPS_DEVICE_CODE void *bench_at(uint64_t address)
{
    return (void *)(uintptr_t)address;
}

HPS_KERNEL(bench_kernel_gather, struct bench_gather_args, args, BENCH_THREADS, 4)
{
    uint32_t rows_per_step = HPS_WARP / args->lanes, quads = args->row_bytes / 16;
    uint32_t in_row = hps_lane() & (args->lanes - 1), in_step = hps_lane() / args->lanes;
    uint32_t first = hps_grid_warp() * HPS_WARP;

    for (uint32_t base = 0; base < HPS_WARP; base += BENCH_UNROLL * rows_per_step) {
        uint64_t from[BENCH_UNROLL], to[BENCH_UNROLL];
        for (uint32_t k = 0; k < BENCH_UNROLL; k++) {
            uint32_t in_warp = base + k * rows_per_step + in_step, i = first + in_warp;
            from[k] = 0;
            to[k] = args->out + (uint64_t)i * args->row_bytes;
            if (in_warp < HPS_WARP && i < args->n) {
                uint64_t id = hps_load_u32(bench_at(args->ids + (uint64_t)i * 4));
                from[k] = args->rows + id * args->row_bytes;
            }
        }
        for (uint32_t j = in_row; j < quads; j += args->lanes) {
            struct hps_quad moved[BENCH_UNROLL];
            for (uint32_t k = 0; k < BENCH_UNROLL; k++) {
                struct hps_quad none = {0};
                moved[k] =
                    from[k] != 0 ? hps_load_quad(bench_at(from[k] + (uint64_t)j * 16)) : none;
            }
            for (uint32_t k = 0; k < BENCH_UNROLL; k++) {
                if (from[k] != 0) {
                    hps_store_quad(bench_at(to[k] + (uint64_t)j * 16), moved[k]);
                }
            }
        }
    }
}

HPS_KERNEL(bench_kernel_copy, struct bench_copy_args, args, BENCH_THREADS, 4)
{
    for (uint64_t i = hps_grid_thread(); i < args->n_quads; i += hps_grid_threads()) {
        hps_store_quad(bench_at(args->to + i * 16), hps_load_quad(bench_at(args->from + i * 16)));
    }
}

HPS_DEVICE_CODE bool bench_place(const struct hps_embed_desc *desc, uint64_t key)
{
    uint32_t set = hps_embed_set(hps_embed_mix(key, desc->seed), desc->n_sets);
    uint64_t *ways = (uint64_t *)bench_at(hps_embed_set_at(desc->sets, set));
    uint64_t marker = set == desc->home_set ? desc->marker_home : desc->marker;

    for (uint32_t way = 0; way < HPS_EMBED_KERNEL_WAYS; way++) {
        uint64_t seen = marker;
        if (hps_atomic_cas_u64(&ways[way], &seen, key, HPS_RELAXED)) {
            return true;
        }
    }
    return false;
}

HPS_KERNEL(bench_kernel_fill, struct bench_fill_args, args, BENCH_THREADS, 4)
{
    uint64_t n_placed = 0;

    for (uint64_t i = hps_grid_thread(); i < args->n; i += hps_grid_threads()) {
        n_placed += bench_place(&args->desc, bench_key(args->table, i)) ? 1 : 0;
    }
    hps_atomic_add_u64((uint64_t *)bench_at(args->n_placed), n_placed, HPS_RELAXED);
}
