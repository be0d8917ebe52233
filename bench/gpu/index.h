/* SPDX-License-Identifier: Apache-2.0
 *
 * Look-ups given to the device by hand, without the cache around them: ranges that a kernel has
 * filled, batches of keys that lie ready, and one launch that a look-up is.
 *
 * Thread: main.
 */
#ifndef HPS_BENCH_GPU_INDEX_H
#define HPS_BENCH_GPU_INDEX_H

#include "bench/gpu/rig.h"

/* A range of one table, all of whose rows were put in. */
struct bench_index {
    struct hps_embed_desc desc;
    uint32_t table;
    uint32_t row_bytes;
    uint64_t n_rows;
    uint64_t n_slots;
    double resident_share;
};
/* What a range of n_rows rows takes. */
uint64_t bench_index_bytes(uint32_t row_bytes, uint64_t n_rows);
/* Rows so that the range takes about `bytes`. */
uint64_t bench_index_rows(uint32_t row_bytes, uint64_t bytes);
/* memory: bench_index_bytes of it. */
void bench_index_open(struct bench_rig *rig, struct bench_index *index, uint32_t table,
                      uint32_t row_bytes, uint64_t n_rows, hps_devptr memory);

enum { BENCH_PARTS_MAX = 32, BENCH_BATCHES = 2 };

/* Batches of the same shape and of different keys: n_keys of each of n_parts tables, rows packed
 * one part after the other. */
struct bench_batches {
    const struct bench_index *indices; /* [n_parts] */
    uint32_t n_parts;
    uint32_t n_keys; /* of each part; a multiple of 32 */
    uint32_t n_tiles;
    uint32_t first_part; /* where the launch begins, and how many parts it takes */
    uint32_t launch_parts;
    hps_devptr parts, tiles, hits, blocks_done, flag, out;
    hps_devptr keys[BENCH_BATCHES];
    hps_devptr
        slots[BENCH_BATCHES]; /* uint32_t [n_keys]: rows at random, to be gathered directly */
    const uint32_t *flag_host;
    uint32_t sequence;
};
/* alpha: of Zipf's law, 0 uniform. unknown_percent: of keys that are not there. mapped: keys stay
 * in the host's memory, where the kernel reads them. */
void bench_batches_open(struct bench_rig *rig, struct bench_batches *batches,
                        const struct bench_index *indices, uint32_t n_parts, uint32_t n_keys,
                        double alpha, uint32_t unknown_percent, bool mapped);
/* Share of keys that the last launch found. */
double bench_batches_hit_share(struct bench_rig *rig, const struct bench_batches *batches);
/* For struct bench_work: launch batch i, the parts that it is set to. */
hps_status bench_batches_give(struct bench_rig *rig, void *batches, uint32_t i);
/* The same rows without a search: of the first part, by slot. */
hps_status bench_batches_give_direct(struct bench_rig *rig, void *batches, uint32_t i);

#endif
