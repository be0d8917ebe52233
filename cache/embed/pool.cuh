/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernel that pools the rows of bags. It runs after the lookup kernel, which found the rows. A
 * few neighbouring lanes pool one bag: each lane adds four columns of all rows, in the order of the
 * keys. So a sum has the same bits as a sum of hps_row_sum_add, and does not depend on the other
 * parts of the lookup.
 */
#include "base/row_sum.h"
#include "cache/embed/kernels.h"
#include "cache/embed/values.cuh"

enum { POOL_ROWS = 4 }; /* rows that a lane loads at one time */

/* The sums of four columns of a bag, and the sums by which they may be divided. */
struct embed_sum {
    float values[EMBED_VALUES];
    float weights;
    float squares; /* of weights */
};

HPS_DEVICE_CODE void embed_add_row(struct embed_sum *sum, const struct hps_quad *raw,
                                   uint32_t stored, float weight)
{
    for (uint32_t i = 0; i < EMBED_VALUES; i++) {
        float product = hps_float_multiply(weight, embed_value(raw, stored, i));
        sum->values[i] = hps_float_add(sum->values[i], product);
    }
    sum->weights = hps_float_add(sum->weights, weight);
    sum->squares = hps_float_add(sum->squares, hps_float_multiply(weight, weight));
}

/* Add columns first to first + 3 of all n rows. Returns false if a row is not cached. */
HPS_DEVICE_CODE bool embed_add_rows(struct embed_sum *sum, uint64_t found, uint32_t n,
                                    uint32_t stored, uint32_t dim, uint32_t first)
{
    for (uint32_t i = 0; i < n; i += POOL_ROWS) {
        struct hps_quad keys[POOL_ROWS], rows[POOL_ROWS];
        bool missing = false;
        for (uint32_t k = 0; k < POOL_ROWS; k++) {
            uint32_t at = i + k < n ? i + k : n - 1; /* after the last key: read it again, but do
                                                        not add it */
            keys[k] = hps_load_quad(embed_at(found + (uint64_t)at * 16)); /* row, weight */
            missing = missing || embed_pair(keys[k].x, keys[k].y) == 0;
        }
        if (missing) {
            return false;
        }
        for (uint32_t k = 0; k < POOL_ROWS; k++) {
            rows[k] = embed_load_values(embed_pair(keys[k].x, keys[k].y), stored, dim, first);
        }
        for (uint32_t k = 0; k < POOL_ROWS; k++) {
            if (i + k < n) {
                embed_add_row(sum, &rows[k], stored, hps_float_of_bits(keys[k].z));
            }
        }
    }
    return true;
}

/* embed_add_rows, compiled separately for each stored type. */
HPS_DEVICE_CODE bool embed_add_rows_of(struct embed_sum *sum, uint64_t found, uint32_t n,
                                       uint32_t stored, uint32_t dim, uint32_t first)
{
    switch (stored) {
    case HPS_DTYPE_FP32:
        return embed_add_rows(sum, found, n, HPS_DTYPE_FP32, dim, first);
    case HPS_DTYPE_FP16:
        return embed_add_rows(sum, found, n, HPS_DTYPE_FP16, dim, first);
    case HPS_DTYPE_BF16:
        return embed_add_rows(sum, found, n, HPS_DTYPE_BF16, dim, first);
    case HPS_DTYPE_INT8_ROWWISE_F32:
        return embed_add_rows(sum, found, n, HPS_DTYPE_INT8_ROWWISE_F32, dim, first);
    default:
        return embed_add_rows(sum, found, n, HPS_DTYPE_INT8_ROWWISE_F16, dim, first);
    }
}

/* Divide the sums as hps_row_sum_end does. n: number of keys of the bag. */
HPS_DEVICE_CODE void embed_divide(struct embed_sum *sum, uint32_t pooling, uint32_t n)
{
    float by = pooling == HPS_POOLING_MEAN            ? sum->weights
               : pooling == HPS_POOLING_SQRTN         ? hps_float_root(sum->squares)
               : pooling == HPS_POOLING_MEAN_BY_COUNT ? (float)n
                                                      : 1.0f;

    for (uint32_t i = 0; i < EMBED_VALUES; i++) {
        sum->values[i] = by == 0.0f ? 0.0f : hps_float_divide(sum->values[i], by);
    }
}

/* Pool one bag. lane: index of the calling lane among the lanes of the bag. */
HPS_DEVICE_CODE void embed_pool_bag(const struct hps_embed_pool_args *args, uint32_t index,
                                    uint32_t lane)
{
    const struct hps_embed_bag *bags = (const struct hps_embed_bag *)embed_at(args->bags);
    const struct hps_embed_part_desc *parts =
        (const struct hps_embed_part_desc *)embed_at(args->parts);
    struct hps_quad bag = hps_load_quad(&bags[index]); /* part, first key, n, row */
    const struct hps_embed_part_desc *part = &parts[bag.x];
    uint32_t how = hps_load_u32(&part->unit_bytes); /* unused, stored, wanted, pooling */
    uint32_t stored = how >> 8 & 0xff, wanted = how >> 16 & 0xff;
    uint32_t dim = hps_load_u32(&part->row_units);
    uint64_t found = args->found + (uint64_t)bag.y * sizeof(struct hps_embed_found);
    uint64_t to = hps_load_u64(&part->out) + (uint64_t)bag.w * hps_load_u32(&part->out_stride);

    for (uint32_t first = lane * EMBED_VALUES; first < dim; first += args->lanes * EMBED_VALUES) {
        struct embed_sum sum = {{0, 0, 0, 0}, 0, 0};
        uint32_t n = dim - first < EMBED_VALUES ? dim - first : EMBED_VALUES;
        if (!embed_add_rows_of(&sum, found, bag.z, stored, dim, first)) {
            return;
        }
        embed_divide(&sum, how >> 24, bag.z);
        embed_store_values(to + (uint64_t)first * (wanted == HPS_DTYPE_FP32 ? 4 : 2), wanted,
                           sum.values, n);
    }
}

HPS_KERNEL(hps_embed_kernel_pool, struct hps_embed_pool_args, args, HPS_EMBED_BLOCK_THREADS, 4)
{
    uint32_t bag = embed_lanes_divide(hps_grid_thread(), args->lanes);

    if (bag < args->n_bags) {
        embed_pool_bag(args, bag, embed_lanes_remainder(hps_grid_thread(), args->lanes));
    }
    if (embed_last_block(args->blocks_done, false) && hps_lane() == 0) {
        embed_raise_flag(args->flag, args->sequence, args->blocks_done);
    }
}
