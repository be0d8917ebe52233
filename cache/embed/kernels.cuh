/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernels of the embedding cache; kernels.h describes their data. Lookups and applications of
 * changes run on one stream, one after the other. Kernels that count keys run at the same time as
 * these, and write only to the counts of sketches.
 */
#include "cache/embed/common.cuh"
#include "cache/embed/kernels.h"
#include "cache/embed/values.cuh"

enum { UNROLL = 4 }; /* rows that a lane loads at one time; with 8, registers are spilled */

#define EMBED_NO_SLOT UINT64_MAX

#if HPS_EMBED_CACHE_HINTS
#define EMBED_LOAD_WAYS hps_load_quad_kept
#define EMBED_LOAD_ROW  hps_load_quad_once
#else
#define EMBED_LOAD_WAYS hps_load_quad
#define EMBED_LOAD_ROW  hps_load_quad
#endif
#if HPS_EMBED_APPLY_KEPT
#define EMBED_APPLY_ROW hps_store_quad_kept
#else
#define EMBED_APPLY_ROW hps_store_quad
#endif

/* ---- lookup ---------------------------------------------------------------------------------- */

/* Find keys in their sets. Lane i passes key i and its set, and gets the way of the key in the set,
 * or HPS_EMBED_KERNEL_WAYS if the set does not have it. Four lanes read one set, 16 bytes each, so
 * a warp reads 8 sets at a time. All 32 sets are loaded before the first is compared. */
HPS_DEVICE_CODE uint32_t embed_find(uint64_t sets, uint64_t key, uint32_t set)
{
    uint32_t lane = hps_lane();
    uint32_t way = HPS_EMBED_KERNEL_WAYS;
    struct hps_quad ways[4];
    uint64_t wanted[4];

    for (uint32_t step = 0; step < 4; step++) {
        uint32_t from = step * 8 + lane / 4;
        uint32_t its_set = hps_shuffle_u32(set, from);
        wanted[step] = hps_shuffle_u64(key, from);
        ways[step] = EMBED_LOAD_WAYS(embed_at(hps_embed_set_at(sets, its_set) + lane % 4 * 16));
    }
    for (uint32_t step = 0; step < 4; step++) {
        uint32_t even = hps_ballot(embed_pair(ways[step].x, ways[step].y) == wanted[step]);
        uint32_t odd = hps_ballot(embed_pair(ways[step].z, ways[step].w) == wanted[step]);
        if (lane / 8 == step) {
            even = even >> lane % 8 * 4 & 0xf;
            odd = odd >> lane % 8 * 4 & 0xf;
            way = even != 0 ? 2 * hps_first_bit(even) : way;
            way = odd != 0 ? 2 * hps_first_bit(odd) + 1 : way;
        }
    }
    return way;
}

/* Search the spills for keys that are not in their set. Lane i gets the slot of key i, or
 * EMBED_NO_SLOT if the spill does not have it or `missed` is false. Reads a spill only if the set
 * of a missed key is marked. */
HPS_DEVICE_CODE uint64_t embed_find_spilled(uint64_t sets, uint32_t n_sets, uint64_t key,
                                            uint32_t set, bool missed)
{
    uint32_t shift = hps_embed_block_shift(n_sets), block = set >> shift;
    uint32_t lines = hps_embed_spill_lines(n_sets);
    uint32_t marks = 0;
    uint64_t slot = EMBED_NO_SLOT;

    if (missed) {
        marks = hps_load_u32(embed_at(hps_embed_marks_at(sets, n_sets, block)));
    }
    bool wants = (marks >> (set & ((1u << shift) - 1)) & 1) != 0;
    for (uint32_t line = 0; line < lines; line++) {
        if (hps_ballot(wants) == 0) {
            break;
        }
        /* other lanes read set 0 and ignore the result */
        uint32_t at = wants ? hps_embed_spill(n_sets, block) + line : 0;
        uint32_t way = embed_find(sets, key, at);
        if (wants && way < HPS_EMBED_KERNEL_WAYS) {
            slot = hps_embed_slot(at, way);
            wants = false;
        }
    }
    return slot;
}

/* The rows of the cached keys of one tile, and their destination. */
struct embed_copy {
    uint64_t rows;
    uint64_t out; /* destination of the tile's first row */
    uint32_t row_stride;
    uint32_t out_stride;
    uint32_t units; /* units per row; values per row, if rows are converted */
    uint32_t lanes; /* lanes per row */
    uint32_t hits;  /* bit i: key i of the tile is cached */
    uint32_t n;     /* number of keys */
};

HPS_DEVICE_CODE uint8_t embed_load_byte(const void *from)
{
    return *(const uint8_t *)from;
}
HPS_DEVICE_CODE void embed_store_byte(void *to, uint8_t value)
{
    *(uint8_t *)to = value;
}

/* Compute the source and destination addresses of the rows that one lane copies; source 0: no row.
 * Lane i has the slot of key i. The whole warp takes part, and `lanes` neighbouring lanes copy one
 * row. */
HPS_DEVICE_CODE void embed_copy_rows(const struct embed_copy *copy, uint64_t slot, uint32_t base,
                                     uint64_t *from, uint64_t *to)
{
    uint32_t rows_per_step = embed_lanes_divide(HPS_WARP, copy->lanes);
    uint32_t in_step = embed_lanes_divide(hps_lane(), copy->lanes);

    for (uint32_t k = 0; k < UNROLL; k++) {
        uint32_t row = base + k * rows_per_step + in_step;
        uint64_t its_slot = hps_shuffle_u64(slot, row % HPS_WARP);
        bool hit = row < HPS_WARP && (copy->hits >> row % HPS_WARP & 1) != 0;
        from[k] = hit ? hps_embed_row_at(copy->rows, its_slot, copy->row_stride) : 0;
        to[k] = copy->out + (uint64_t)row * copy->out_stride;
    }
}

/* Copy the rows of the cached keys, in units of one size. */
#define EMBED_COPY(name, unit, zero, load, store)                                          \
    HPS_DEVICE_CODE void name(const struct embed_copy *copy, uint64_t slot)                \
    {                                                                                      \
        uint32_t lanes = copy->lanes, step = UNROLL * embed_lanes_divide(HPS_WARP, lanes); \
        for (uint32_t base = 0; base < copy->n; base += step) {                            \
            uint64_t from[UNROLL], to[UNROLL];                                             \
            embed_copy_rows(copy, slot, base, from, to);                                   \
            uint32_t j = embed_lanes_remainder(hps_lane(), lanes);                         \
            for (; j < copy->units; j += lanes) {                                          \
                uint64_t at = (uint64_t)j * sizeof(unit);                                  \
                unit moved[UNROLL];                                                        \
                for (uint32_t k = 0; k < UNROLL; k++) {                                    \
                    unit none = zero;                                                      \
                    moved[k] = from[k] != 0 ? load(embed_at(from[k] + at)) : none;         \
                }                                                                          \
                for (uint32_t k = 0; k < UNROLL; k++) {                                    \
                    if (from[k] != 0) {                                                    \
                        store(embed_at(to[k] + at), moved[k]);                             \
                    }                                                                      \
                }                                                                          \
            }                                                                              \
        }                                                                                  \
    }

EMBED_COPY(embed_copy_quads, struct hps_quad, {0}, EMBED_LOAD_ROW, hps_store_quad)
EMBED_COPY(embed_copy_words, uint32_t, 0, hps_load_u32, hps_store_u32)
EMBED_COPY(embed_copy_bytes, uint8_t, 0, embed_load_byte, embed_store_byte)

/* Convert the rows of the cached keys from the type `stored` to the type `wanted`. */
HPS_DEVICE_CODE void embed_convert(const struct embed_copy *copy, uint64_t slot, uint32_t stored,
                                   uint32_t wanted)
{
    uint32_t dim = copy->units, step = copy->lanes * EMBED_VALUES;
    uint32_t value_bytes = wanted == HPS_DTYPE_FP32 ? 4 : 2;

    for (uint32_t base = 0; base < copy->n;
         base += UNROLL * embed_lanes_divide(HPS_WARP, copy->lanes)) {
        uint64_t from[UNROLL], to[UNROLL];
        embed_copy_rows(copy, slot, base, from, to);
        uint32_t j = embed_lanes_remainder(hps_lane(), copy->lanes) * EMBED_VALUES;
        for (; j < dim; j += step) {
#if HPS_EMBED_CONVERT_AHEAD
            struct hps_quad ahead[UNROLL];
            embed_load_ahead(ahead, from, UNROLL, stored, dim, j);
#endif
            for (uint32_t k = 0; k < UNROLL; k++) {
                if (from[k] == 0) {
                    continue;
                }
#if HPS_EMBED_CONVERT_AHEAD
                struct hps_quad raw = embed_finish_values(&ahead[k], from[k], stored, dim);
#else
                struct hps_quad raw = embed_load_values(from[k], stored, dim, j);
#endif
                float values[EMBED_VALUES];
                for (uint32_t i = 0; i < EMBED_VALUES; i++) {
                    values[i] = embed_value(&raw, stored, i);
                }
                embed_store_values(to[k] + (uint64_t)j * value_bytes, wanted, values,
                                   dim - j < EMBED_VALUES ? dim - j : EMBED_VALUES);
            }
        }
    }
}

/* Store the addresses of the rows of the cached keys, for the pool kernel. key: index of the tile's
 * first key in the lookup. */
HPS_DEVICE_CODE void embed_note_found(const struct hps_embed_lookup_args *args,
                                      const struct embed_copy *copy, uint64_t slot, uint32_t key,
                                      bool weighted)
{
    uint32_t lane = hps_lane();
    struct hps_quad found = {0, 0, hps_float_bits(1.0f), 0};

    if (lane >= copy->n) {
        return;
    }
    if ((copy->hits >> lane & 1) != 0) {
        uint64_t row = hps_embed_row_at(copy->rows, slot, copy->row_stride);
        found.x = (uint32_t)row;
        found.y = (uint32_t)(row >> 32);
    }
    if (weighted) {
        found.z = hps_load_u32(embed_at(args->weights + (uint64_t)(key + lane) * 4));
    }
    hps_store_quad(embed_at(args->found + (uint64_t)(key + lane) * sizeof(struct hps_embed_found)),
                   found);
}

/* Copy or convert the rows of a tile to their destination. With pooling, only note their addresses.
 */
HPS_DEVICE_CODE void embed_give_rows(const struct hps_embed_lookup_args *args,
                                     const struct hps_embed_part_desc *part,
                                     const struct hps_quad *tile, uint64_t slot, uint32_t hits)
{
    uint32_t how = hps_load_u32(&part->unit_bytes); /* also loads stored, wanted, pooling */
    uint32_t lanes = hps_load_u32(&part->lanes);    /* also loads weighted */
    uint32_t unit_bytes = how & 0xff, pooling = how >> 24;
    struct embed_copy copy;

    copy.rows = hps_load_u64(&part->rows);
    copy.out_stride = hps_load_u32(&part->out_stride);
    copy.out = hps_load_u64(&part->out) + (uint64_t)tile->z * copy.out_stride;
    copy.row_stride = hps_load_u32(&part->row_stride);
    copy.units = hps_load_u32(&part->row_units);
    copy.lanes = lanes & 0xff;
    copy.hits = hits;
    copy.n = tile->w;
    if (unit_bytes == 0 && pooling != HPS_POOLING_NONE) {
        embed_note_found(args, &copy, slot, tile->y, (lanes >> 8 & 0xff) != 0);
        return;
    }
    if (hits == 0) {
        return;
    }
    if (unit_bytes == 16) {
        embed_copy_quads(&copy, slot);
    } else if (unit_bytes == 4) {
        embed_copy_words(&copy, slot);
    } else if (unit_bytes == 1) {
        embed_copy_bytes(&copy, slot);
    } else {
        embed_convert(&copy, slot, how >> 8 & 0xff, how >> 16 & 0xff);
    }
}

HPS_DEVICE_CODE void embed_lookup_tile(const struct hps_embed_lookup_args *args, uint32_t index)
{
    const struct hps_embed_tile *tiles = (const struct hps_embed_tile *)embed_at(args->tiles);
    const struct hps_embed_part_desc *parts =
        (const struct hps_embed_part_desc *)embed_at(args->parts);
    struct hps_quad tile = hps_load_quad(&tiles[index]); /* part, first key, first row, n */
    const struct hps_embed_part_desc *part = &parts[tile.x];
    uint32_t lane = hps_lane();
    uint64_t key = 0;

    if (lane < tile.w) {
        key = hps_load_u64(embed_at(args->keys + (uint64_t)(tile.y + lane) * 8));
    }
    uint32_t n_sets = hps_load_u32(&part->n_sets);
    uint64_t sets = hps_load_u64(&part->sets);
    uint32_t set = hps_embed_set(hps_embed_mix(key, hps_load_u64(&part->seed)), n_sets);
    uint32_t way = embed_find(sets, key, set);
    uint64_t slot = way < HPS_EMBED_KERNEL_WAYS ? hps_embed_slot(set, way) : EMBED_NO_SLOT;
    bool missed = lane < tile.w && slot == EMBED_NO_SLOT;
    if (hps_ballot(missed) != 0) {
        uint64_t spilled = embed_find_spilled(sets, n_sets, key, set, missed);
        slot = missed ? spilled : slot;
    }
    uint32_t hits = hps_ballot(lane < tile.w && slot != EMBED_NO_SLOT);
    if (lane == 0) {
        hps_store_u32(embed_at(args->hits + (uint64_t)index * 4), hits);
    }
    embed_give_rows(args, part, &tile, slot, hits);
}

HPS_KERNEL(hps_embed_kernel_lookup, struct hps_embed_lookup_args, args,
           HPS_EMBED_LOOKUP_BLOCK_THREADS, HPS_EMBED_LOOKUP_BLOCKS)
{
    if (hps_grid_warp() < args->n_tiles) {
        embed_lookup_tile(args, hps_grid_warp());
    }
    if (args->flag != 0 && embed_last_block(args->blocks_done, false) && hps_lane() == 0) {
        embed_raise_flag(args->flag, args->sequence, args->blocks_done);
    }
}

/* ---- the sketch ------------------------------------------------------------------------------ */

/* The estimated number of lookups of a key: the smallest of its cells. */
HPS_DEVICE_CODE uint32_t embed_estimate(uint64_t sketch, uint32_t n_cells, uint64_t twice)
{
    uint32_t least = HPS_EMBED_COUNT_MAX;

    for (uint32_t row = 0; row < HPS_EMBED_SKETCH_ROWS; row++) {
        uint32_t count = hps_atomic_load_u8(
            (const uint8_t *)embed_at(hps_embed_cell_at(sketch, n_cells, row, twice)));
        least = count < least ? count : least;
    }
    return least;
}

/* Count a key. Raises only the smallest of its cells, because larger cells have also counted other
 * keys ("conservative update"). Two lanes that count at one time may raise a cell by only 1. */
HPS_DEVICE_CODE void embed_count(uint64_t sketch, uint32_t n_cells, uint64_t twice)
{
    uint32_t least = embed_estimate(sketch, n_cells, twice);

    if (least == HPS_EMBED_COUNT_MAX) {
        return;
    }
    for (uint32_t row = 0; row < HPS_EMBED_SKETCH_ROWS; row++) {
        uint8_t *cell = (uint8_t *)embed_at(hps_embed_cell_at(sketch, n_cells, row, twice));
        if (hps_atomic_load_u8(cell) == least) {
            hps_atomic_store_u8(cell, (uint8_t)(least + 1));
        }
    }
}

HPS_KERNEL(hps_embed_kernel_observe, struct hps_embed_observe_args, args, HPS_EMBED_BLOCK_THREADS,
           4)
{
    const struct hps_embed_tile *tiles = (const struct hps_embed_tile *)embed_at(args->tiles);
    const struct hps_embed_part_desc *parts =
        (const struct hps_embed_part_desc *)embed_at(args->parts);
    uint64_t index = args->first + (uint64_t)hps_grid_warp() * args->step;

    if (index >= args->n_tiles) {
        return;
    }
    struct hps_quad tile = hps_load_quad(&tiles[index]);
    const struct hps_embed_part_desc *part = &parts[tile.x];
    uint64_t sketch = hps_load_u64(&part->sketch);
    if (sketch == 0 || hps_lane() >= tile.w) {
        return;
    }
    uint64_t key = hps_load_u64(embed_at(args->keys + (uint64_t)(tile.y + hps_lane()) * 8));
    uint64_t twice = hps_mix64(hps_embed_mix(key, hps_load_u64(&part->seed)));
    embed_count(sketch, hps_embed_sketch_cells(hps_load_u32(&part->n_sets)), twice);
}

HPS_KERNEL(hps_embed_kernel_halve, struct hps_embed_halve_args, args, HPS_EMBED_BLOCK_THREADS, 4)
{
    uint32_t *words = (uint32_t *)embed_at(args->sketch);
    uint64_t threads = (uint64_t)hps_grid_blocks() * HPS_EMBED_BLOCK_THREADS;
    uint64_t thread = (uint64_t)hps_block() * HPS_EMBED_BLOCK_THREADS + hps_thread();

    for (uint64_t i = thread; i < args->n_words; i += threads) {
        uint32_t counts = hps_atomic_load_u32(&words[i], HPS_RELAXED);
        hps_atomic_store_u32(&words[i], counts >> 1 & 0x7f7f7f7f, HPS_RELAXED);
    }
}

/* ---- changes --------------------------------------------------------------------------------- */

/* The state of a warp while it changes one block. The first HPS_EMBED_KERNEL_WAYS lanes each have
 * one way of the current set. The lanes after them each have one way of the block's spill. */
struct embed_change {
    const struct hps_embed_desc *desc;
    uint64_t way_key; /* the key of the lane's way */
    uint64_t marker;  /* the key that marks the way as empty */
    uint64_t before;  /* the key that the lane's way has in memory */
    uint32_t n_ways;  /* lanes that have a way */
    uint32_t spill;   /* the set number of the spill's first line */
    uint32_t set;     /* the current set */
    uint32_t n_inserted, n_evicted, n_erased, n_refused;
};

/* The way whose key has the fewest lookups, if `wanted` is true or `key` has more lookups;
 * otherwise HPS_WARP. The hash of `key` decides among ways with equal counts, so that two wanted
 * keys do not evict each other repeatedly. */
HPS_DEVICE_CODE uint32_t embed_victim(const struct embed_change *change, uint64_t key, bool wanted)
{
    const struct hps_embed_desc *desc = change->desc;
    uint32_t lane = hps_lane(), n_cells = hps_embed_sketch_cells(hps_load_u32(&desc->n_sets));
    uint64_t sketch = hps_load_u64(&desc->sketch), seed = hps_load_u64(&desc->seed);
    uint64_t twice = hps_mix64(hps_embed_mix(change->way_key, seed));
    uint32_t mine = embed_estimate(sketch, n_cells, twice);

    twice = hps_mix64(hps_embed_mix(key, seed));
    /* use the estimate of lane 0: counts may change, and all lanes must have the same value */
    uint32_t newcomer = hps_shuffle_u32(embed_estimate(sketch, n_cells, twice), 0);
    uint32_t turn = (uint32_t)twice & (HPS_WARP - 1);
    mine = lane < change->n_ways ? mine : HPS_EMBED_COUNT_MAX + 1;
    uint32_t best = mine << 5 | (lane ^ turn); /* the estimate, then the way */
    for (uint32_t distance = HPS_WARP / 2; distance > 0; distance /= 2) {
        uint32_t other = hps_shuffle_u32(best, lane ^ distance);
        best = other < best ? other : best;
    }
    return wanted || newcomer > best >> 5 ? (best & (HPS_WARP - 1)) ^ turn : HPS_WARP;
}

/* The way to which a change writes its row; HPS_WARP: it writes no row. Updates way_key and the
 * counts of *change. */
HPS_DEVICE_CODE uint32_t embed_way_for(struct embed_change *change, uint64_t key, uint32_t op)
{
    bool is_way = hps_lane() < change->n_ways;
    uint32_t present = hps_ballot(is_way && change->way_key == key);
    uint32_t empty = hps_ballot(is_way && change->way_key == change->marker);
    uint32_t way = HPS_WARP;

    if (op != HPS_EMBED_ENTRY_INSERT && op != HPS_EMBED_ENTRY_INSERT_WANTED) {
        if (present != 0 && op == HPS_EMBED_ENTRY_ERASE) {
            if (hps_lane() == hps_first_bit(present)) {
                change->way_key = change->marker;
            }
            change->n_erased++;
        }
        return present != 0 && op == HPS_EMBED_ENTRY_UPDATE ? hps_first_bit(present) : way;
    }
    if (present != 0) {
        return way;
    }
    if (empty != 0) { /* the set comes before the spill */
        way = hps_first_bit(empty);
    } else {
        way = embed_victim(change, key, op == HPS_EMBED_ENTRY_INSERT_WANTED);
        if (way == HPS_WARP) {
            change->n_refused++;
            return way;
        }
        change->n_evicted++;
    }
    change->n_inserted++;
    if (hps_lane() == way) {
        change->way_key = key;
    }
    return way;
}

/* The address of the lane's way. */
HPS_DEVICE_CODE uint64_t *embed_way_at(const struct embed_change *change)
{
    uint32_t lane = hps_lane();
    bool spilled = lane >= HPS_EMBED_KERNEL_WAYS;
    uint64_t line =
        hps_embed_set_at(hps_load_u64(&change->desc->sets), spilled ? change->spill : change->set);

    return (uint64_t *)embed_at(line) + (spilled ? lane - HPS_EMBED_KERNEL_WAYS : lane);
}

/* Write changed ways to memory: the ways of the spill, if `spill` is true, else the ways of the
 * current set. */
HPS_DEVICE_CODE void embed_put_ways(struct embed_change *change, bool spill)
{
    if (hps_lane() < change->n_ways && (hps_lane() >= HPS_EMBED_KERNEL_WAYS) == spill &&
        change->way_key != change->before) {
        *embed_way_at(change) = change->way_key;
        change->before = change->way_key;
    }
}

HPS_DEVICE_CODE void embed_take_ways(struct embed_change *change, bool spill, uint64_t marker)
{
    if (hps_lane() < change->n_ways && (hps_lane() >= HPS_EMBED_KERNEL_WAYS) == spill) {
        change->marker = marker;
        change->way_key = *embed_way_at(change);
        change->before = change->way_key;
    }
}

/* The marker of a set or spill. home: whether desc->marker hashes to this set or block. */
HPS_DEVICE_CODE uint64_t embed_marker(const struct hps_embed_desc *desc, bool home)
{
    return hps_load_u64(home ? &desc->marker_home : &desc->marker);
}

HPS_DEVICE_CODE uint32_t embed_set_of(const struct hps_embed_desc *desc, uint64_t key)
{
    return hps_embed_set(hps_embed_mix(key, hps_load_u64(&desc->seed)),
                         hps_load_u32(&desc->n_sets));
}

/* Make `set` the current set. */
HPS_DEVICE_CODE void embed_change_set(struct embed_change *change, uint32_t set)
{
    if (set != change->set) {
        embed_put_ways(change, false);
        change->set = set;
        embed_take_ways(change, false,
                        embed_marker(change->desc, set == hps_load_u32(&change->desc->home_set)));
    }
}

/* Write the changed ways of the spill to memory, and mark the sets that have keys in the spill. */
HPS_DEVICE_CODE void embed_put_spill(struct embed_change *change, uint32_t block)
{
    const struct hps_embed_desc *desc = change->desc;
    uint32_t n_sets = hps_load_u32(&desc->n_sets), lane = hps_lane();
    uint32_t in_block = (1u << hps_embed_block_shift(n_sets)) - 1;
    uint32_t marks = 0;

    embed_put_ways(change, true);
    if (lane >= HPS_EMBED_KERNEL_WAYS && lane < change->n_ways &&
        change->way_key != change->marker) {
        marks = 1u << (embed_set_of(desc, change->way_key) & in_block);
    }
    for (uint32_t distance = HPS_WARP / 2; distance > 0; distance /= 2) {
        marks |= hps_shuffle_u32(marks, lane ^ distance);
    }
    if (lane == 0) {
        hps_store_u32(embed_at(hps_embed_marks_at(hps_load_u64(&desc->sets), n_sets, block)),
                      marks);
    }
}

HPS_DEVICE_CODE void embed_add_counts(const struct embed_change *change, uint64_t counts,
                                      uint32_t range)
{
    struct hps_embed_counts *to = (struct hps_embed_counts *)embed_at(counts) + range;

    if (change->n_inserted != 0) {
        hps_atomic_add_u32(&to->n_inserted, change->n_inserted, HPS_RELAXED);
    }
    if (change->n_evicted != 0) {
        hps_atomic_add_u32(&to->n_evicted, change->n_evicted, HPS_RELAXED);
    }
    if (change->n_erased != 0) {
        hps_atomic_add_u32(&to->n_erased, change->n_erased, HPS_RELAXED);
    }
    if (change->n_refused != 0) {
        hps_atomic_add_u32(&to->n_refused, change->n_refused, HPS_RELAXED);
    }
}

/* Copy a staged row to the row of a way, by the whole warp. A lane always writes the same quads of
 * a row, so two changes of one row need no barrier between them. first: with
 * HPS_EMBED_APPLY_TOGETHER, the lane's first quad of the staged row. */
HPS_DEVICE_CODE void embed_put_row(const struct embed_change *change, uint64_t from, uint32_t way,
                                   struct hps_quad first)
{
    const struct hps_embed_desc *desc = change->desc;
    uint64_t slot = way < HPS_EMBED_KERNEL_WAYS
                        ? hps_embed_slot(change->set, way)
                        : hps_embed_slot(change->spill, way - HPS_EMBED_KERNEL_WAYS);
    uint32_t row_stride = hps_load_u32(&desc->row_stride);
    uint64_t to = hps_embed_row_at(hps_load_u64(&desc->rows), slot, row_stride);

    uint32_t j = hps_lane();
#if HPS_EMBED_APPLY_TOGETHER
    if (j < row_stride / 16) {
        EMBED_APPLY_ROW(embed_at(to + (uint64_t)j * 16), first);
    }
    j += HPS_WARP;
#else
    (void)first;
#endif
    for (; j < row_stride / 16; j += HPS_WARP) {
        EMBED_APPLY_ROW(embed_at(to + (uint64_t)j * 16),
                        hps_load_quad(embed_at(from + (uint64_t)j * 16)));
    }
}

#if HPS_EMBED_APPLY_TOGETHER
/* The lane's first quad of the staged row of an entry; 0 if the entry has no such quad. */
HPS_DEVICE_CODE struct hps_quad embed_first_quad(const struct hps_embed_apply_args *args,
                                                 const struct hps_embed_desc *desc,
                                                 const struct hps_quad *entry)
{
    struct hps_quad none = {0, 0, 0, 0};

    return (entry->w & 0xff) != HPS_EMBED_ENTRY_ERASE &&
                   hps_lane() < hps_load_u32(&desc->row_stride) / 16
               ? hps_load_quad(embed_at(args->rows + (uint64_t)entry->z * 16 + hps_lane() * 16))
               : none;
}

/* Apply the entries of a group. The first loads do not depend on each other: each lane reads its
 * way of the set or spill, and its quad of the row. marker: the marker of the block's spill. */
HPS_DEVICE_CODE void embed_apply_entries(const struct hps_embed_apply_args *args,
                                         const struct hps_quad *group, struct embed_change *change,
                                         uint64_t marker)
{
    const struct hps_embed_desc *desc = change->desc;
    uint32_t first_set = group->y << hps_embed_block_shift(hps_load_u32(&desc->n_sets));
    const struct hps_quad *entries = (const struct hps_quad *)embed_at(args->entries) + group->z;
    struct hps_quad next = hps_load_quad(&entries[0]);
    struct hps_quad first = embed_first_quad(args, desc, &next);

    change->set = first_set + (next.w >> 8);
    change->marker = hps_lane() >= HPS_EMBED_KERNEL_WAYS
                         ? marker
                         : embed_marker(desc, change->set == hps_load_u32(&desc->home_set));
    if (hps_lane() < change->n_ways) {
        change->way_key = *embed_way_at(change);
        change->before = change->way_key;
    }
    for (uint32_t i = 0; i < group->w; i++) {
        struct hps_quad entry = next, quad = first;
        if (i + 1 < group->w) {
            next = hps_load_quad(&entries[i + 1]);
            first = embed_first_quad(args, desc, &next);
        }
        embed_change_set(change, first_set + (entry.w >> 8));
        uint32_t way = embed_way_for(change, embed_pair(entry.x, entry.y), entry.w & 0xff);
        if (way < HPS_WARP) {
            embed_put_row(change, args->rows + (uint64_t)entry.z * 16, way, quad);
        }
    }
}
#endif

HPS_DEVICE_CODE void embed_apply_group(const struct hps_embed_apply_args *args, uint32_t index)
{
    const struct hps_embed_group *groups = (const struct hps_embed_group *)embed_at(args->groups);
    const struct hps_embed_desc *descs = (const struct hps_embed_desc *)embed_at(args->descs);
    struct hps_quad group = hps_load_quad(&groups[index]); /* range, block, first, n */
    const struct hps_embed_desc *desc = &descs[group.x];
    uint32_t n_sets = hps_load_u32(&desc->n_sets);
    uint32_t home = hps_load_u32(&desc->home_set) >> hps_embed_block_shift(n_sets);
    struct embed_change change = {desc, 0, 0, 0, 0, 0, UINT32_MAX, 0, 0, 0, 0};

    change.n_ways = HPS_EMBED_KERNEL_WAYS * (1 + hps_embed_spill_lines(n_sets));
    change.spill = hps_embed_spill(n_sets, group.y);
#if HPS_EMBED_APPLY_TOGETHER
    embed_apply_entries(args, &group, &change, embed_marker(desc, group.y == home));
#else
    struct hps_quad none = {0, 0, 0, 0};
    embed_take_ways(&change, true, embed_marker(desc, group.y == home));
    for (uint32_t i = 0; i < group.w; i++) {
        struct hps_quad entry =
            hps_load_quad(embed_at(args->entries + (uint64_t)(group.z + i) * 16));
        uint64_t key = embed_pair(entry.x, entry.y);
        embed_change_set(&change, embed_set_of(desc, key));
        uint32_t way = embed_way_for(&change, key, entry.w);
        if (way < HPS_WARP) {
            embed_put_row(&change, args->rows + (uint64_t)entry.z * 16, way, none);
        }
    }
#endif
    embed_put_ways(&change, false);
    if (hps_ballot(change.way_key != change.before) != 0) {
        embed_put_spill(&change, group.y);
    }
    if (hps_lane() == 0) {
        embed_add_counts(&change, args->counts, group.x);
    }
}

HPS_KERNEL(hps_embed_kernel_apply, struct hps_embed_apply_args, args, HPS_EMBED_BLOCK_THREADS, 4)
{
    if (hps_grid_warp() < args->n_groups) {
        embed_apply_group(args, hps_grid_warp());
    }
    if (embed_last_block(args->blocks_done, true)) {
        uint32_t *counts = (uint32_t *)embed_at(args->counts);
        uint32_t *out = (uint32_t *)embed_at(args->counts_out);
        uint32_t n = args->n_ranges * (uint32_t)(sizeof(struct hps_embed_counts) / 4);
        for (uint32_t i = hps_lane(); i < n; i += HPS_WARP) {
            hps_store_u32(&out[i], hps_atomic_load_u32(&counts[i], HPS_RELAXED));
            hps_atomic_store_u32(&counts[i], 0, HPS_RELAXED);
        }
    }
}
