/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the host and the kernels of the embedding cache: the placement of keys, and the records
 * sent to the device. Compiled by gcc for the host, and by nvcc for the host and the device.
 *
 * A range in device memory:
 *
 *     sets    [n_sets][8] keys            64 bytes per set; the 8 keys are its *ways*
 *     spill   [n_blocks][lines][8] keys   a *line* is like a set; line i has set number n_sets + i
 *     marks   [n_blocks] 32-bit words     bit b of word i: set b of block i has keys in the spill
 *     rows    [(n_sets + n_blocks * lines) * 8]
 *                                         row_stride bytes each, a multiple of 16. The row of way w
 *                                         of set s has the number s * 8 + w, its *slot*
 *     sketch  [4][n_cells] counts         one byte each
 *
 * A *block* is up to 32 neighbouring sets that share a spill, for keys whose set is full. If the
 * sets of a range have 1 / 0.6 slots per cached row, 2 % of the keys do not fit into their set. The
 * spill of a block has 1 to 3 lines, which take nearly all of these keys. A lookup that misses in a
 * set reads the set's mark, and reads the spill only if the mark is set.
 *
 * A way without a key contains a *marker*. All 2^64 keys are valid, so the marker is also a valid
 * key. It can mark empty ways in every set to which it does not hash, because no lookup searches
 * for it there. The set to which it hashes, and the spill of that set's block, use a second marker,
 * which hashes to another block.
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
    /* A set and the spill of its block have at most 32 ways: one for each lane of a warp. */
    HPS_EMBED_SPILL_LINES_MAX = 3,
    HPS_EMBED_TILE_KEYS = 32, /* one key per lane of a warp */
#if defined(HPS_TSAN) || defined(__SANITIZE_ADDRESS__)
    HPS_EMBED_BLOCK_THREADS = 64, /* few, because threads of a simulated device are expensive */
    HPS_EMBED_LOOKUP_BLOCK_THREADS = HPS_EMBED_LOOKUP_THREADS / 4,
#else
    HPS_EMBED_BLOCK_THREADS = 256,
    HPS_EMBED_LOOKUP_BLOCK_THREADS = HPS_EMBED_LOOKUP_THREADS,
#endif
    HPS_EMBED_BLOCK_WARPS = HPS_EMBED_BLOCK_THREADS / 32,
    HPS_EMBED_LOOKUP_WARPS = HPS_EMBED_LOOKUP_BLOCK_THREADS / 32, /* warps per block of threads */
    HPS_EMBED_SKETCH_ROWS = 4,           /* each key has one cell in each row of the sketch */
    HPS_EMBED_SKETCH_CELLS_PER_SET = 16, /* in each row of the sketch */
    HPS_EMBED_SKETCH_BYTES_PER_SET = 64, /* in all rows of the sketch */
    HPS_EMBED_COUNT_MAX = 255, /* largest count of a cell: further keys do not raise it until the
                                  sketch is halved */
};

/* ---- placement of keys ----------------------------------------------------------------------- */

/* The hash of a key. seed: the seed of the range. */
HPS_HASH_ANYWHERE static inline uint64_t hps_embed_mix(uint64_t key, uint64_t seed)
{
    return hps_mix64(key ^ seed);
}

/* The set to which a key hashes; mixed: hps_embed_mix of the key. n_sets > 0. Takes the high half
 * of the product of two 32-bit numbers, which needs no division. */
HPS_HASH_ANYWHERE static inline uint32_t hps_embed_set(uint64_t mixed, uint32_t n_sets)
{
    return (uint32_t)(((mixed >> 32) * n_sets) >> 32);
}

/* log2 of the number of sets of a block. Ranges with fewer than 128 sets have smaller blocks, so
 * that every range has at least two blocks. */
HPS_HASH_ANYWHERE static inline uint32_t hps_embed_block_shift(uint32_t n_sets)
{
    return n_sets >= 128  ? 5
           : n_sets >= 64 ? 4
           : n_sets >= 32 ? 3
           : n_sets >= 16 ? 2
           : n_sets >= 8  ? 1
                          : 0;
}

/* The number of blocks of a range. */
HPS_HASH_ANYWHERE static inline uint32_t hps_embed_blocks(uint32_t n_sets)
{
    return ((n_sets - 1) >> hps_embed_block_shift(n_sets)) + 1;
}

/* The number of lines in the spill of a block: at most HPS_EMBED_SPILL_LINES_MAX. */
HPS_HASH_ANYWHERE static inline uint32_t hps_embed_spill_lines(uint32_t n_sets)
{
    return n_sets >= 128 ? 3 : n_sets >= 8 ? 2 : 1;
}

/* The set number of the first line of a block's spill. */
HPS_HASH_ANYWHERE static inline uint32_t hps_embed_spill(uint32_t n_sets, uint32_t block)
{
    return n_sets + block * hps_embed_spill_lines(n_sets);
}

/* The address of a set; sets: the address of set 0. */
HPS_HASH_ANYWHERE static inline uint64_t hps_embed_set_at(uint64_t sets, uint32_t set)
{
    return sets + (uint64_t)set * HPS_EMBED_SET_BYTES;
}

/* The address of a block's marks; sets: the address of set 0. */
HPS_HASH_ANYWHERE static inline uint64_t hps_embed_marks_at(uint64_t sets, uint32_t n_sets,
                                                            uint32_t block)
{
    return hps_embed_set_at(sets, hps_embed_spill(n_sets, hps_embed_blocks(n_sets))) +
           (uint64_t)block * 4;
}

/* The slot (number of the row) of a way. */
HPS_HASH_ANYWHERE static inline uint64_t hps_embed_slot(uint32_t set, uint32_t way)
{
    return (uint64_t)set * HPS_EMBED_KERNEL_WAYS + way;
}

/* The address of the row in a slot; rows: the address of row 0. */
HPS_HASH_ANYWHERE static inline uint64_t hps_embed_row_at(uint64_t rows, uint64_t slot,
                                                          uint32_t row_stride)
{
    return rows + slot * row_stride;
}

/* The number of cells in each row of a range's sketch. */
HPS_HASH_ANYWHERE static inline uint32_t hps_embed_sketch_cells(uint32_t n_sets)
{
    uint64_t n_cells = (uint64_t)n_sets * HPS_EMBED_SKETCH_CELLS_PER_SET;
    return n_cells < UINT32_MAX ? (uint32_t)n_cells : UINT32_MAX;
}

/* The address of the cell of a key in one row of a sketch. twice: hps_mix64 of hps_embed_mix of the
 * key. Each row uses another hash, by double hashing (Kirsch and Mitzenmacher, "Less hashing, same
 * performance", 2006). */
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

/* In these structs, `sets`, `rows` and `sketch` are the device addresses of a range's first set,
 * first row and sketch. Fields named `zero` are padding, and are 0. */

/* A range, as the kernel that applies changes uses it. */
struct hps_embed_desc {
    uint64_t sets;
    uint64_t rows;
    uint64_t sketch;
    uint64_t seed;        /* of the hash of keys */
    uint64_t marker;      /* the key in empty ways */
    uint64_t marker_home; /* the key in empty ways of home_set and of its block's spill */
    uint32_t n_sets;
    uint32_t home_set;   /* the set to which `marker` hashes */
    uint32_t row_stride; /* bytes from one row to the next, in the range and in the staging ring; a
                            multiple of 16 */
    uint32_t zero;
};

/* A part of a lookup: its range, and the destination and form of its rows. The lookup kernel copies
 * the rows as stored, or converts them. With pooling, the pool kernel sums them. */
struct hps_embed_part_desc {
    uint64_t sets;
    uint64_t rows;
    uint64_t sketch; /* 0: keys are not counted */
    uint64_t seed;   /* of the hash of keys */
    uint64_t out;    /* address of the destination of row 0 */
    uint32_t n_sets;
    uint32_t row_stride; /* bytes from one row of the range to the next */
    uint32_t out_stride; /* bytes from one row of the destination to the next */
    uint32_t row_units;  /* units per row, if rows are copied; else values per row */
    /* these four are read by one load: */
    uint8_t unit_bytes; /* size of a copied unit: 16, 4 or 1; 0: rows are converted or summed */
    uint8_t stored;     /* enum hps_dtype of the range's rows */
    uint8_t wanted;     /* enum hps_dtype of the destination */
    uint8_t pooling;    /* enum hps_pooling; HPS_POOLING_NONE: rows are not summed */
    /* these three are read by one load: */
    uint8_t lanes;    /* lanes that copy, convert or sum one row: a power of two, at most 32 */
    uint8_t weighted; /* 1: the keys have weights */
    uint16_t zero;
};

/* Up to 32 keys of one part, looked up by one warp. */
struct hps_embed_tile {
    uint32_t part;      /* index of the part */
    uint32_t first_key; /* index of the first key among the keys of the lookup */
    uint32_t first_row; /* index of the first key among the keys of the part */
    uint32_t n;         /* number of keys */
};

/* The result of the lookup kernel for a key of a part with pooling. */
struct hps_embed_found {
    uint64_t row;    /* address of its row; 0: not cached */
    uint32_t weight; /* bits of an fp32; 1.0 if the part has no weights */
    uint32_t zero;
};

/* A bag that has keys. */
struct hps_embed_bag {
    uint32_t part;      /* index of the part */
    uint32_t first_key; /* index of the first key among the keys of the lookup */
    uint32_t n;         /* number of keys */
    uint32_t row;       /* index of the bag in the part, and so of its row in the destination */
};

enum {
    HPS_EMBED_ENTRY_INSERT,
    HPS_EMBED_ENTRY_INSERT_WANTED,
    HPS_EMBED_ENTRY_UPDATE,
    HPS_EMBED_ENTRY_ERASE
};

/* One change. The changes of one block of one range form a *group*: they are neighbours in the
 * array of entries, ordered by set and then as staged. One warp applies a group, one change after
 * the other. */
struct hps_embed_entry {
    uint64_t key;
    uint32_t row; /* offset of its row in the staging ring, in units of 16 bytes */
    /* HPS_EMBED_ENTRY_.... If HPS_EMBED_APPLY_TOGETHER (variants.h) is 1, only the lowest byte has
     * this value, and the higher bytes have the index of the key's set in the block. */
    uint32_t op;
};
struct hps_embed_group {
    uint32_t range; /* index of the range in the slice */
    uint32_t block; /* index of the block in the range */
    uint32_t first; /* index of the first entry */
    uint32_t n;     /* number of entries */
};

/* How one slice of changes has changed one range: see hps_embed_range_usage. */
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

/* The arguments of each kernel are addresses of arrays, and numbers. Each block of threads
 * increments the counter blocks_done when it ends. The last block resets the counter to 0. */

/* Look up the keys of all tiles. Stores the rows of cached keys at their destination, and one word
 * of hit bits for each tile. After these stores, the last block of threads stores `sequence` to
 * *flag. A host that reads this value sees all results. */
struct hps_embed_lookup_args {
    uint64_t parts;       /* struct hps_embed_part_desc [] */
    uint64_t tiles;       /* struct hps_embed_tile [n_tiles] */
    uint64_t keys;        /* uint64_t [], of all parts */
    uint64_t weights;     /* fp32 [], one for each key; valid only for weighted parts */
    uint64_t found;       /* struct hps_embed_found [], one for each key; written for parts with
                             pooling */
    uint64_t hits;        /* uint32_t [n_tiles] */
    uint64_t blocks_done; /* uint32_t */
    uint64_t flag;        /* uint32_t in host memory; 0: the pool kernel that follows stores it */
    uint32_t n_tiles;
    uint32_t sequence;
};
extern const struct hps_kernel hps_embed_kernel_lookup;

/* Runs after the lookup kernel of the same lookup, with the same arrays. If all keys of a bag are
 * cached, sums their rows and stores the sum at its destination. Stores nothing for other bags. */
struct hps_embed_pool_args {
    uint64_t parts;
    uint64_t bags; /* struct hps_embed_bag [n_bags] */
    uint64_t found;
    uint64_t blocks_done;
    uint64_t flag; /* uint32_t in host memory; set to `sequence` at the end */
    uint32_t n_bags;
    uint32_t lanes; /* lanes per bag: a power of two, at most 32 */
    uint32_t sequence;
    uint32_t zero;
};
extern const struct hps_kernel hps_embed_kernel_pool;

/* Count the keys of the tiles first, first + step, first + 2 * step, ... in the sketches. */
struct hps_embed_observe_args {
    uint64_t parts;
    uint64_t tiles;
    uint64_t keys;
    uint32_t n_tiles; /* all tiles of the lookup */
    uint32_t first;
    uint32_t step;
    uint32_t zero;
};
extern const struct hps_kernel hps_embed_kernel_observe;

/* Halve all counts of a sketch. */
struct hps_embed_halve_args {
    uint64_t sketch;
    uint64_t n_words; /* words of the sketch, with 4 counts of a byte each */
};
extern const struct hps_kernel hps_embed_kernel_halve;
enum { HPS_EMBED_HALVE_WORDS_PER_THREAD = 16 };

/* Apply a slice of changes. */
struct hps_embed_apply_args {
    uint64_t descs;      /* struct hps_embed_desc [n_ranges] */
    uint64_t groups;     /* struct hps_embed_group [n_groups] */
    uint64_t entries;    /* struct hps_embed_entry [] */
    uint64_t rows;       /* the staging ring */
    uint64_t counts;     /* struct hps_embed_counts [n_ranges]; all 0 before and after */
    uint64_t counts_out; /* struct hps_embed_counts [n_ranges] in host memory: the results */
    uint64_t blocks_done;
    uint32_t n_groups;
    uint32_t n_ranges;
};
extern const struct hps_kernel hps_embed_kernel_apply;

/* All kernels, for hps_device_open. */
extern const struct hps_kernel *const hps_embed_kernels[];
extern const size_t hps_embed_n_kernels;

#endif
