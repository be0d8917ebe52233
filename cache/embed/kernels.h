/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the host and the kernels of the embedding cache: the placement of keys, and the records
 * sent to the device. Compiled by gcc, and by nvcc for both sides.
 *
 * A range in device memory:
 *
 *     sets    [n_sets][8] keys            64 bytes per set; an empty way holds the marker
 *     spill   [n_blocks][lines][8] keys   likewise; numbered as sets, from n_sets on
 *     marks   [n_blocks] bits             bit b of word i: set b of block i has rows in its spill
 *     rows    [(n_sets + n_blocks * lines) * 8]
 *                                         row_stride bytes each, a multiple of 16; way w of set s:
 *                                         row s * 8 + w
 *     sketch  [4][n_cells] counts         a byte each
 *
 * A *block* is up to 32 neighbouring sets that share a spill for rows whose set is full. With slots
 * = rows / 0.6, two rows in a hundred do not fit into their set. 1 to 3 lines of 8 ways per block
 * take nearly all of them. A lookup that misses in a set reads the set's mark, and reads the spill
 * only if the mark is set.
 *
 * All 2^64 keys are valid, so the marker is one of them. A key that hashes to another block is
 * never looked up in this one, so it can mark empty ways here. The marker's own set, and the spill
 * of its block, use a second marker that hashes to another block.
 */
#ifndef HPS_CACHE_EMBED_KERNELS_H
#define HPS_CACHE_EMBED_KERNELS_H

#include <assert.h>

#include "base/hash.h"
#include "base/row_sum.h"
#include "cache/device/device.h"
#include "cache/embed/variants.h"

enum {
    HPS_EMBED_KERNEL_WAYS = 8,
    HPS_EMBED_SET_BYTES = 64,
    HPS_EMBED_SPILL_LINES_MAX = 3, /* with the ways of one set: one lane of a warp each */
    HPS_EMBED_TILE_KEYS = 32,      /* one warp */
#if defined(HPS_TSAN) || defined(__SANITIZE_ADDRESS__)
    HPS_EMBED_BLOCK_THREADS = 64, /* of a simulated device, where threads are expensive */
    HPS_EMBED_LOOKUP_BLOCK_THREADS = HPS_EMBED_LOOKUP_THREADS / 4,
#else
    HPS_EMBED_BLOCK_THREADS = 256,
    HPS_EMBED_LOOKUP_BLOCK_THREADS = HPS_EMBED_LOOKUP_THREADS,
#endif
    HPS_EMBED_BLOCK_WARPS = HPS_EMBED_BLOCK_THREADS / 32,
    HPS_EMBED_LOOKUP_WARPS = HPS_EMBED_LOOKUP_BLOCK_THREADS / 32, /* per block */
    HPS_EMBED_SKETCH_ROWS = 4,
    HPS_EMBED_SKETCH_CELLS_PER_SET = 16, /* per row of the sketch: two per slot */
    HPS_EMBED_SKETCH_BYTES_PER_SET = 64,
    HPS_EMBED_COUNT_MAX = 255,
};

/* ---- where a key goes ------------------------------------------------------------------------ */

HPS_HASH_ANYWHERE static inline uint64_t hps_embed_mix(uint64_t key, uint64_t seed)
{
    return hps_mix64(key ^ seed);
}

/* n_sets > 0. The high half of the product of two 32-bit numbers: needs no division and works for
 * any n_sets. */
HPS_HASH_ANYWHERE static inline uint32_t hps_embed_set(uint64_t mixed, uint32_t n_sets)
{
    return (uint32_t)(((mixed >> 32) * n_sets) >> 32);
}

/* log2 of the sets that share a spill: smaller if there are few sets, so that there are at least
 * two blocks. */
HPS_HASH_ANYWHERE static inline uint32_t hps_embed_block_shift(uint32_t n_sets)
{
    return n_sets >= 128  ? 5
           : n_sets >= 64 ? 4
           : n_sets >= 32 ? 3
           : n_sets >= 16 ? 2
           : n_sets >= 8  ? 1
                          : 0;
}

HPS_HASH_ANYWHERE static inline uint32_t hps_embed_blocks(uint32_t n_sets)
{
    return ((n_sets - 1) >> hps_embed_block_shift(n_sets)) + 1;
}

/* Lines of the spill of a block, 8 ways each: at most HPS_EMBED_SPILL_LINES_MAX. */
HPS_HASH_ANYWHERE static inline uint32_t hps_embed_spill_lines(uint32_t n_sets)
{
    return n_sets >= 128 ? 3 : n_sets >= 8 ? 2 : 1;
}

/* The first line of a block's spill, as a set number. */
HPS_HASH_ANYWHERE static inline uint32_t hps_embed_spill(uint32_t n_sets, uint32_t block)
{
    return n_sets + block * hps_embed_spill_lines(n_sets);
}

HPS_HASH_ANYWHERE static inline uint64_t hps_embed_set_at(uint64_t sets, uint32_t set)
{
    return sets + (uint64_t)set * HPS_EMBED_SET_BYTES;
}

/* The address of a block's marks. */
HPS_HASH_ANYWHERE static inline uint64_t hps_embed_marks_at(uint64_t sets, uint32_t n_sets,
                                                            uint32_t block)
{
    return hps_embed_set_at(sets, hps_embed_spill(n_sets, hps_embed_blocks(n_sets))) +
           (uint64_t)block * 4;
}

HPS_HASH_ANYWHERE static inline uint64_t hps_embed_slot(uint32_t set, uint32_t way)
{
    return (uint64_t)set * HPS_EMBED_KERNEL_WAYS + way;
}

HPS_HASH_ANYWHERE static inline uint64_t hps_embed_row_at(uint64_t rows, uint64_t slot,
                                                          uint32_t row_stride)
{
    return rows + slot * row_stride;
}

HPS_HASH_ANYWHERE static inline uint32_t hps_embed_sketch_cells(uint32_t n_sets)
{
    uint64_t n_cells = (uint64_t)n_sets * HPS_EMBED_SKETCH_CELLS_PER_SET;
    return n_cells < UINT32_MAX ? (uint32_t)n_cells : UINT32_MAX;
}

/* The address of the cell of a key in one row of a sketch. The rows differ by double hashing
 * (Kirsch and Mitzenmacher, "Less hashing, same performance", 2006). twice: hps_mix64 of the mixed
 * key. */
HPS_HASH_ANYWHERE static inline uint64_t hps_embed_cell_at(uint64_t sketch, uint32_t n_cells,
                                                           uint32_t row, uint64_t twice)
{
#if HPS_EMBED_SKETCH_LINE
    uint64_t line = ((uint64_t)(uint32_t)twice * (n_cells / HPS_EMBED_SKETCH_CELLS_PER_SET)) >> 32;
    return sketch + line * HPS_EMBED_SKETCH_BYTES_PER_SET + row * HPS_EMBED_SKETCH_CELLS_PER_SET +
           (twice >> (32 + row * 4) & (HPS_EMBED_SKETCH_CELLS_PER_SET - 1));
#else
    uint32_t hash = (uint32_t)twice + row * ((uint32_t)(twice >> 32) | 1);
    return sketch + (uint64_t)row * n_cells + (((uint64_t)hash * n_cells) >> 32);
#endif
}

/* ---- records --------------------------------------------------------------------------------- */

/* A range, for changes. */
struct hps_embed_desc {
    uint64_t sets;
    uint64_t rows;
    uint64_t sketch;
    uint64_t seed;
    uint64_t marker;
    uint64_t marker_home; /* used in the set that `marker` hashes to, and in its spill */
    uint32_t n_sets;
    uint32_t home_set;
    uint32_t row_stride; /* a multiple of 16 bytes; also of a staged row */
    uint32_t zero;
};

/* A part of a batch: its range, and the destination and form of its rows. They are copied as
 * stored, or converted, or, with pooling, summed by a second kernel. */
struct hps_embed_part_desc {
    uint64_t sets;
    uint64_t rows;
    uint64_t sketch; /* 0: keys are not counted */
    uint64_t seed;
    uint64_t out;
    uint32_t n_sets;
    uint32_t row_stride;
    uint32_t out_stride;
    uint32_t row_units; /* copied units per row; values per row if unit_bytes is 0 */
    /* one load: */
    uint8_t unit_bytes; /* size of a copied unit: 16, 4 or 1; 0: rows are converted */
    uint8_t stored;     /* from this type, enum hps_dtype, */
    uint8_t wanted;     /* to this type, */
    uint8_t pooling;    /* and summed this way; HPS_POOLING_NONE: not summed */
    /* one load: */
    uint8_t lanes; /* that copy or convert one row: a power of two, at most 32 */
    uint8_t weighted;
    uint16_t zero;
};

/* Up to 32 keys of one part, looked up by one warp. */
struct hps_embed_tile {
    uint32_t part;
    uint32_t first_key; /* of the batch */
    uint32_t first_row; /* of the part */
    uint32_t n;
};

/* The result for a key of a part with pooling. */
struct hps_embed_found {
    uint64_t row;    /* its address; 0: not cached */
    uint32_t weight; /* fp32 */
    uint32_t zero;
};

/* A bag that has keys. */
struct hps_embed_bag {
    uint32_t part;
    uint32_t first_key; /* of the batch */
    uint32_t n;
    uint32_t row; /* of the part: the destination of the bag's row */
};

enum {
    HPS_EMBED_ENTRY_INSERT,
    HPS_EMBED_ENTRY_INSERT_WANTED,
    HPS_EMBED_ENTRY_UPDATE,
    HPS_EMBED_ENTRY_ERASE
};

/* One change. The changes of one block of one range form a *group*: they are neighbours, ordered by
 * set and then as staged. One warp applies a group, one change after the other. */
struct hps_embed_entry {
    uint64_t key;
    uint32_t row; /* in the staging area, in units of 16 bytes */
    uint32_t op;  /* APPLY_TOGETHER: op in the lowest byte, and above it the set within the block */
};
struct hps_embed_group {
    uint32_t range; /* index into the descriptors of the slice */
    uint32_t block;
    uint32_t first; /* index of the first entry */
    uint32_t n;
};

/* The changes that one application made to one range. */
struct hps_embed_counts {
    uint32_t n_inserted;
    uint32_t n_evicted;
    uint32_t n_erased;
    uint32_t n_refused;
};

static_assert(sizeof(struct hps_embed_desc) == 64, "one line of memory");
static_assert(sizeof(struct hps_embed_part_desc) == 64, "one line of memory");
static_assert(offsetof(struct hps_embed_part_desc, unit_bytes) % 4 == 0, "one load");
static_assert(offsetof(struct hps_embed_part_desc, lanes) % 4 == 0, "one load");
static_assert(sizeof(struct hps_embed_tile) == 16, "one load");
static_assert(sizeof(struct hps_embed_found) == 16, "one load");
static_assert(sizeof(struct hps_embed_bag) == 16, "one load");
static_assert(sizeof(struct hps_embed_entry) == 16, "one load");
static_assert(sizeof(struct hps_embed_group) == 16, "one load");
static_assert(sizeof(struct hps_embed_counts) == 16, "no holes");

/* ---- kernels --------------------------------------------------------------------------------- */

/* Look up all tiles. Rows that hit are stored at their destination, and each tile gets a word of
 * hit bits. At the end the last block stores `sequence` to *flag, when everything is visible to the
 * host. */
struct hps_embed_lookup_args {
    uint64_t parts;       /* struct hps_embed_part_desc [] */
    uint64_t tiles;       /* struct hps_embed_tile [n_tiles] */
    uint64_t keys;        /* of the batch */
    uint64_t weights;     /* fp32 of its keys; valid only for weighted parts */
    uint64_t found;       /* struct hps_embed_found of its keys, valid for parts with pooling */
    uint64_t hits;        /* uint32_t [n_tiles] */
    uint64_t blocks_done; /* uint32_t, 0 before and after */
    uint64_t flag;        /* uint32_t in host memory; 0: the pool kernel that follows raises it */
    uint32_t n_tiles;
    uint32_t sequence;
};
extern const struct hps_kernel hps_embed_kernel_lookup;

/* Runs after the lookup of the same batch. Sums the rows of each bag whose keys were all found, and
 * stores the result. Stores nothing for other bags. */
struct hps_embed_pool_args {
    uint64_t parts;
    uint64_t bags; /* struct hps_embed_bag [n_bags] */
    uint64_t found;
    uint64_t blocks_done;
    uint64_t flag;
    uint32_t n_bags;
    uint32_t lanes; /* per bag: a power of two, at most 32 */
    uint32_t sequence;
    uint32_t zero;
};
extern const struct hps_kernel hps_embed_kernel_pool;

/* Count the keys of every step-th tile, beginning with `first`. */
struct hps_embed_observe_args {
    uint64_t parts;
    uint64_t tiles;
    uint64_t keys;
    uint32_t n_tiles; /* of the batch */
    uint32_t first;
    uint32_t step;
    uint32_t zero;
};
extern const struct hps_kernel hps_embed_kernel_observe;

/* Halve all counts of a sketch. */
struct hps_embed_halve_args {
    uint64_t sketch;  /* 4 counts per word */
    uint64_t n_words; /* of 4 bytes */
};
extern const struct hps_kernel hps_embed_kernel_halve;
enum { HPS_EMBED_HALVE_WORDS_PER_THREAD = 16 };

/* Apply a slice of changes. */
struct hps_embed_apply_args {
    uint64_t descs;      /* struct hps_embed_desc [n_ranges] */
    uint64_t groups;     /* struct hps_embed_group [n_groups] */
    uint64_t entries;    /* struct hps_embed_entry [] */
    uint64_t rows;       /* staging area */
    uint64_t counts;     /* struct hps_embed_counts [n_ranges], 0 before and after */
    uint64_t counts_out; /* the same in host memory */
    uint64_t blocks_done;
    uint32_t n_groups;
    uint32_t n_ranges;
};
extern const struct hps_kernel hps_embed_kernel_apply;

/* All kernels, for hps_device_open. */
extern const struct hps_kernel *const hps_embed_kernels[];
extern const size_t hps_embed_n_kernels;

#endif
