/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernels of kernels.h.
 */
#include "bench/gpu/kernels.h"
#include "cache/device/simt.h"

enum { BENCH_UNROLL = 4 }; /* rows that a lane has in flight, as in the lookup */

HPS_DEVICE_CODE void *bench_at(uint64_t address)
{
    return (void *)(uintptr_t)address;
}

/* ---- gather ---------------------------------------------------------------------------------- */

/* The sets of 32 rows, four lanes each. Returns the id, or 0 in the one case of 2^32 in which a set
 * matches: so the row's address depends on the set. */
HPS_DEVICE_CODE uint64_t bench_load_sets(uint64_t sets, uint64_t id)
{
    struct hps_quad ways[4];
    uint32_t lane = hps_lane();
    bool matches = false;

    for (uint32_t step = 0; step < 4; step++) {
        uint64_t its_set =
            hps_shuffle_u64(id / HPS_EMBED_KERNEL_WAYS, step * 8 + lane / 4) * HPS_EMBED_SET_BYTES;
        ways[step] = hps_load_quad(bench_at(sets + its_set + lane % 4 * 16));
    }
    for (uint32_t step = 0; step < 4; step++) {
        uint32_t all = ways[step].x ^ ways[step].y ^ ways[step].z ^ ways[step].w;
        matches = matches || all == 0x9E3779B9;
    }
    return hps_any(matches) ? 0 : id;
}

HPS_KERNEL(bench_kernel_gather, struct bench_gather_args, args, BENCH_THREADS, 4)
{
    uint32_t rows_per_step = HPS_WARP / args->lanes, quads = args->row_bytes / 16;
    uint32_t in_row = hps_lane() & (args->lanes - 1), in_step = hps_lane() / args->lanes;
    uint32_t first = hps_grid_warp() * HPS_WARP;
    uint64_t id = 0;

    if (first + hps_lane() < args->n) {
        id = hps_load_u64(bench_at(args->ids + (uint64_t)(first + hps_lane()) * 8));
    }
    if (args->sets != 0) {
        id = bench_load_sets(args->sets, id);
    }
    for (uint32_t base = 0; base < HPS_WARP; base += BENCH_UNROLL * rows_per_step) {
        uint64_t from[BENCH_UNROLL], to[BENCH_UNROLL];
        for (uint32_t k = 0; k < BENCH_UNROLL; k++) {
            uint32_t in_warp = base + k * rows_per_step + in_step, i = first + in_warp;
            uint64_t its_id = hps_shuffle_u64(id, in_warp % HPS_WARP);
            from[k] =
                in_warp < HPS_WARP && i < args->n ? args->rows + its_id * args->row_stride : 0;
            to[k] = args->out + (uint64_t)i * args->row_bytes;
        }
        for (uint32_t j = in_row; j < quads; j += args->lanes) {
            struct hps_quad moved[BENCH_UNROLL];
            for (uint32_t k = 0; k < BENCH_UNROLL; k++) {
                struct hps_quad none = {0, 0, 0, 0};
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

/* ---- memory ---------------------------------------------------------------------------------- */

HPS_KERNEL(bench_kernel_copy, struct bench_copy_args, args, BENCH_THREADS, 4)
{
    for (uint64_t i = hps_grid_thread(); i < args->n_quads; i += hps_grid_threads()) {
        hps_store_quad(bench_at(args->to + i * 16), hps_load_quad(bench_at(args->from + i * 16)));
    }
}

/* Quad i of the row of a key. */
HPS_DEVICE_CODE void bench_store_words(uint64_t to, uint64_t key, uint64_t i)
{
    uint64_t low = bench_word(key, 2 * i), high = bench_word(key, 2 * i + 1);
    struct hps_quad quad = {(uint32_t)low, (uint32_t)(low >> 32), (uint32_t)high,
                            (uint32_t)(high >> 32)};

    hps_store_quad(bench_at(to + i * 16), quad);
}

HPS_KERNEL(bench_kernel_random, struct bench_random_args, args, BENCH_THREADS, 4)
{
    for (uint64_t i = hps_grid_thread(); i < args->n_quads; i += hps_grid_threads()) {
        bench_store_words(args->to, args->seed, i);
    }
}

/* ---- an index -------------------------------------------------------------------------------- */

/* Takes a free way of the line of that number. Returns it, or WAYS. */
HPS_DEVICE_CODE uint32_t bench_take(const struct hps_embed_desc *desc, uint32_t line,
                                    uint64_t marker, uint64_t key)
{
    uint64_t *ways = (uint64_t *)bench_at(hps_embed_set_at(desc->sets, line));
    uint32_t way = 0;

    for (; way < HPS_EMBED_KERNEL_WAYS; way++) {
        uint64_t seen = marker;
        if (hps_atomic_cas_u64(&ways[way], &seen, key, HPS_RELAXED)) {
            break;
        }
    }
    return way;
}

/* The line that the key is put into; UINT32_MAX: set and spill are full. */
HPS_DEVICE_CODE uint32_t bench_place(const struct hps_embed_desc *desc, uint64_t key, uint32_t *way)
{
    uint32_t n_sets = desc->n_sets, shift = hps_embed_block_shift(n_sets);
    uint32_t set = hps_embed_set(hps_embed_mix(key, desc->seed), n_sets), block = set >> shift;
    uint64_t marker = set == desc->home_set ? desc->marker_home : desc->marker;

    *way = bench_take(desc, set, marker, key);
    if (*way < HPS_EMBED_KERNEL_WAYS) {
        return set;
    }
    marker = block == desc->home_set >> shift ? desc->marker_home : desc->marker;
    for (uint32_t i = 0; i < hps_embed_spill_lines(n_sets); i++) {
        uint32_t line = hps_embed_spill(n_sets, block) + i;
        *way = bench_take(desc, line, marker, key);
        if (*way < HPS_EMBED_KERNEL_WAYS) {
            uint64_t marks = hps_embed_marks_at(desc->sets, n_sets, block);
            hps_atomic_or_u32((uint32_t *)bench_at(marks), 1u << (set & ((1u << shift) - 1)),
                              HPS_RELAXED);
            return line;
        }
    }
    return UINT32_MAX;
}

HPS_KERNEL(bench_kernel_fill, struct bench_fill_args, args, BENCH_THREADS, 4)
{
    const struct hps_embed_desc *desc = &args->desc;
    uint64_t n_spilled = 0;

    for (uint64_t i = hps_grid_thread(); i < args->n; i += hps_grid_threads()) {
        uint64_t key = bench_key(args->table, i);
        uint32_t way, line = bench_place(desc, key, &way);
        if (line == UINT32_MAX) {
            continue;
        }
        n_spilled += line < desc->n_sets ? 0 : 1;
        uint64_t row = hps_embed_row_at(desc->rows, hps_embed_slot(line, way), desc->row_stride);
        for (uint32_t j = 0; j < desc->row_stride / 16; j++) {
            bench_store_words(row, key, j);
        }
    }
    hps_atomic_add_u64((uint64_t *)bench_at(args->n_spilled), n_spilled, HPS_RELAXED);
}
