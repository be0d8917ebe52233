/* SPDX-License-Identifier: Apache-2.0
 *
 * Encoding a lookup for the device: the keys of its parts in tiles, the bags that have keys, and
 * the form of the rows of each part. See internal.h for threads.
 */
#include <string.h>

#include "base/assert.h"
#include "cache/embed/internal.h"

enum { ALIGN = 256, ROW_ALIGN = 16, LANES_MAX = 32, VALUES_PER_LANE = 4 };

struct hps_embed_block hps_embed_block_of(const struct hps_embed_cache_config *config)
{
    uint64_t n_parts = config->batch_parts_max, n_keys = config->batch_keys_max;
    uint64_t n_tiles = n_keys / HPS_EMBED_TILE_KEYS + n_parts;
    struct hps_embed_block block = {.parts = ALIGN};

    block.tiles =
        block.parts + hps_embed_align_up(n_parts * sizeof(struct hps_embed_part_desc), ALIGN);
    block.hits = block.tiles + hps_embed_align_up(n_tiles * sizeof(struct hps_embed_tile), ALIGN);
    block.bags = block.hits + hps_embed_align_up((n_tiles + 1) * sizeof(uint32_t), ALIGN);
    block.keys = block.bags + hps_embed_align_up(n_keys * sizeof(struct hps_embed_bag), ALIGN);
    block.weights = block.keys + hps_embed_align_up(n_keys * sizeof(hps_key), ALIGN);
    block.end = block.weights + hps_embed_align_up(n_keys * sizeof(float), ALIGN);
    return block;
}

/* ---- sizes ----------------------------------------------------------------------------------- */

static bool is_pooled(const struct hps_embed_part *part)
{
    return part->shape != NULL && part->shape->pooling != HPS_POOLING_NONE;
}

static uint32_t rows_of(const struct hps_embed_part *part)
{
    return is_pooled(part) ? part->shape->n_bags : part->n;
}

static uint64_t row_bytes_of(const struct hps_embed_part *part)
{
    return part->shape == NULL ? part->range->config.row_bytes
                               : hps_dtype_row_bytes(part->shape->wanted, part->shape->dim);
}

static uint64_t stride_of(const struct hps_embed_part *part)
{
    return part->stride != 0 ? part->stride : row_bytes_of(part);
}

static bool is_dense(const struct hps_embed_part *part)
{
    return stride_of(part) == row_bytes_of(part);
}

/* From the begin of the first row to the end of the last one. */
static uint64_t bytes_of(const struct hps_embed_part *part)
{
    uint32_t n = rows_of(part);

    return n == 0 ? 0 : (n - 1) * stride_of(part) + row_bytes_of(part);
}

/* Whether the device will stay within the region and within the range's rows. */
static bool is_sound(const struct hps_embed_cache *cache, const struct hps_embed_part *part)
{
    const struct hps_embed_range *range = part->range;
    const struct hps_embed_shape *shape = part->shape;
    bool sound = range->cache == cache && !range->freed && part->offset <= part->region->size &&
                 bytes_of(part) <= part->region->size - part->offset &&
                 stride_of(part) >= row_bytes_of(part) && stride_of(part) <= UINT32_MAX;

    if (shape == NULL || !sound) {
        return sound;
    }
    uint64_t value_bytes = hps_dtype_row_bytes(shape->wanted, 1);
    return value_bytes > 0 && !hps_dtype_is_int8(shape->wanted) && shape->dim > 0 &&
           hps_dtype_row_bytes(shape->stored, shape->dim) == range->config.row_bytes &&
           (part->offset | stride_of(part)) % value_bytes == 0 &&
           (!is_pooled(part) || shape->offsets[shape->n_bags] - shape->offsets[0] == part->n);
}

hps_status hps_embed_plan(const struct hps_embed_cache *cache, const struct hps_embed_part *parts,
                          uint32_t n_parts, struct hps_embed_plan *out_plan)
{
    uint64_t host_bytes = 0;

    *out_plan = (struct hps_embed_plan){0};
    if (n_parts > cache->config.batch_parts_max) {
        return HPS_INVALID;
    }
    for (uint32_t i = 0; i < n_parts; i++) {
        const struct hps_embed_part *part = &parts[i];
        HPS_ASSERT(is_sound(cache, part));
        out_plan->n_keys += part->n;
        if (part->region->host != NULL && is_dense(part)) {
            host_bytes += bytes_of(part);
            out_plan->gather_bytes += hps_embed_align_up(bytes_of(part), ROW_ALIGN);
        }
    }
    if (host_bytes <= cache->config.mapped_bytes_max) {
        out_plan->gather_bytes = 0;
    }
    out_plan->gather_bytes = hps_embed_align_up(out_plan->gather_bytes, ALIGN);
    return out_plan->n_keys > cache->config.batch_keys_max ||
                   out_plan->gather_bytes > cache->config.gather_bytes
               ? HPS_INVALID
               : HPS_OK;
}

/* ---- records --------------------------------------------------------------------------------- */

/* Lanes for n pieces of a row, a power of two. */
static uint32_t lanes_for(uint32_t n)
{
    uint32_t lanes = 1;

    while (lanes < n && lanes < LANES_MAX) {
        lanes *= 2;
    }
    return lanes;
}

/* The widest unit that divides row size, stride and address. */
static uint8_t unit_for(uint64_t row_bytes, uint64_t stride, uint64_t out)
{
    uint64_t all = row_bytes | stride | out;

    return all % 16 == 0 ? 16 : all % 4 == 0 ? 4 : 1;
}

static void describe(struct hps_embed_part_desc *desc, const struct hps_embed_part *part,
                     uint64_t out)
{
    const struct hps_embed_range *range = part->range;
    const struct hps_embed_shape *shape = part->shape;
    bool empty = range->retired || !range->live; /* its memory has no rows of this range */
    const struct hps_embed_desc *from = empty ? &range->cache->empty : &range->desc;

    *desc = (struct hps_embed_part_desc){
        .sets = from->sets,
        .rows = from->rows,
        .sketch = from->sketch,
        .seed = from->seed,
        .out = out,
        .n_sets = from->n_sets,
        .row_stride = from->row_stride,
        .out_stride = (uint32_t)stride_of(part),
        .pooling = HPS_POOLING_NONE,
    };
    if (shape == NULL) {
        desc->unit_bytes = unit_for(row_bytes_of(part), desc->out_stride, out);
        desc->row_units = (uint32_t)row_bytes_of(part) / desc->unit_bytes;
        desc->lanes = (uint8_t)lanes_for(desc->row_units);
        return;
    }
    desc->row_units = shape->dim;
    desc->stored = (uint8_t)shape->stored;
    desc->wanted = (uint8_t)shape->wanted;
    desc->pooling = (uint8_t)shape->pooling;
    desc->lanes = (uint8_t)lanes_for((shape->dim + VALUES_PER_LANE - 1) / VALUES_PER_LANE);
    desc->weighted = shape->weights != NULL;
}

/* Bags without keys need no work on the device. */
static void pack_bags(struct hps_embed_ticket *ticket, const struct hps_embed_block *block,
                      const struct hps_embed_part *part, uint32_t first_key)
{
    const struct hps_embed_shape *shape = part->shape;
    struct hps_embed_bag *bags = (struct hps_embed_bag *)(ticket->host + block->bags);

    if (shape->weights != NULL) {
        memcpy(ticket->host + block->weights + (size_t)first_key * sizeof(float), shape->weights,
               (size_t)part->n * sizeof(float));
    }
    for (uint32_t b = 0; b < shape->n_bags; b++) {
        uint32_t n = shape->offsets[b + 1] - shape->offsets[b];
        if (n > 0) {
            bags[ticket->n_bags++] = (struct hps_embed_bag){
                .part = ticket->n_parts, .first_key = first_key, .n = n, .row = b};
        }
        first_key += n;
    }
}

static void pack_keys(struct hps_embed_ticket *ticket, const struct hps_embed_block *block,
                      const struct hps_embed_part *part, uint32_t first_key)
{
    struct hps_embed_tile *tiles = (struct hps_embed_tile *)(ticket->host + block->tiles);

    memcpy(ticket->host + block->keys + (size_t)first_key * sizeof(hps_key), part->keys,
           (size_t)part->n * sizeof(hps_key));
    for (uint32_t row = 0; row < part->n; row += HPS_EMBED_TILE_KEYS) {
        uint32_t left = part->n - row;
        tiles[ticket->n_tiles++] = (struct hps_embed_tile){
            .part = ticket->n_parts,
            .first_key = first_key + row,
            .first_row = row,
            .n = left < HPS_EMBED_TILE_KEYS ? left : HPS_EMBED_TILE_KEYS,
        };
    }
}

static void pack_part(struct hps_embed_ticket *ticket, const struct hps_embed_block *block,
                      const struct hps_embed_part *part, uint32_t first_key, hps_devptr *gather)
{
    struct hps_embed_part_desc *desc =
        (struct hps_embed_part_desc *)(ticket->host + block->parts) + ticket->n_parts;
    struct hps_embed_use *use = &ticket->uses[ticket->n_parts];

    *use = (struct hps_embed_use){
        .range = part->range,
        .region = part->region,
        .offset = part->offset,
        .bytes = bytes_of(part),
        .first_tile = ticket->n_tiles,
    };
    if (*gather != 0 && part->region->host != NULL && is_dense(part)) {
        use->gather = *gather;
        *gather += hps_embed_align_up(use->bytes, ROW_ALIGN);
    }
    describe(desc, part, use->gather != 0 ? use->gather : part->region->memory + part->offset);
    if (part->n > 0) {
        pack_keys(ticket, block, part, first_key);
    }
    if (part->n > 0 && is_pooled(part)) {
        pack_bags(ticket, block, part, first_key);
        ticket->bag_lanes = ticket->bag_lanes > desc->lanes ? ticket->bag_lanes : desc->lanes;
    }
    hps_embed_range_use(part->range);
    part->region->n_uses++;
}

void hps_embed_pack(struct hps_embed_ticket *ticket, const struct hps_embed_part *parts,
                    uint32_t n_parts, hps_devptr gather)
{
    const struct hps_embed_block block = hps_embed_block_of(&ticket->cache->config);
    uint32_t first_key = 0;

    ticket->n_tiles = 0;
    ticket->n_bags = 0;
    ticket->bag_lanes = 1;
    for (ticket->n_parts = 0; ticket->n_parts < n_parts; ticket->n_parts++) {
        pack_part(ticket, &block, &parts[ticket->n_parts], first_key, &gather);
        first_key += parts[ticket->n_parts].n;
    }
}
