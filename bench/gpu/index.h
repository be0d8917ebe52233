/* SPDX-License-Identifier: Apache-2.0
 *
 * Lookups on the device without the cache: ranges filled by a kernel, batches of keys in device
 * memory, and the launches that answer a batch.
 *
 * Thread: main.
 */
#ifndef HPS_BENCH_GPU_INDEX_H
#define HPS_BENCH_GPU_INDEX_H

#include "bench/gpu/rig.h"
#include "cache/embed/cache.h"

/* A range of one table, filled by a kernel. */
struct bench_index {
    struct hps_embed_desc desc;
    uint32_t table;
    uint32_t row_bytes;
    uint64_t n_rows;
    uint64_t n_slots;     /* of sets */
    double spilled_share; /* of the rows */
};
/* Size of a range of n_rows rows. */
uint64_t bench_index_bytes(uint32_t row_bytes, uint64_t n_rows);
/* Rows so that the range takes about `bytes`. */
uint64_t bench_index_rows(uint32_t row_bytes, uint64_t bytes);
/* A range for n_rows rows with n_filled of them in it. memory: bench_index_bytes of it. */
void bench_index_open(struct bench_rig *rig, struct bench_index *index, uint32_t table,
                      uint32_t row_bytes, uint64_t n_rows, uint64_t n_filled, hps_devptr memory);

enum { BENCH_BATCHES = 2 };

struct bench_batch_spec {
    uint32_t n_parts;
    uint32_t n_keys;                     /* of each part; a multiple of 32, and of `bag` */
    double alpha;                        /* of Zipf's law; 0: uniform */
    uint32_t unknown_percent;            /* of the keys: the index does not have them */
    bool mapped;                         /* keys stay in host memory, where the kernel reads them */
    const struct hps_embed_shape *shape; /* stored, dim, wanted and pooling count; NULL: rows as
                                            they are stored. Borrowed as long as the batches */
    uint32_t bag;                        /* keys of each bag, with a pooling */
};

/* Batches of the same shape and of different keys: rows lie packed, one part after the other. */
struct bench_batches {
    struct bench_batch_spec spec;
    const struct bench_index *indices; /* [n_parts] */
    uint32_t n_tiles;
    uint32_t n_out;     /* rows or bags of each part */
    uint32_t out_bytes; /* of one */
    hps_devptr parts, tiles, bags, found, hits, blocks_done, flag, out;
    hps_devptr keys[BENCH_BATCHES];
    hps_devptr ids[BENCH_BATCHES]; /* uint64_t [n_keys]: slots at random, for a gather */
    uint64_t *keys_host[BENCH_BATCHES];
    const uint32_t *flag_host;
    uint32_t sequence;
    uint32_t last;         /* the batch that was given last */
    uint32_t observe_step; /* 8: one of 8 tiles is counted */
};
void bench_batches_open(struct bench_rig *rig, struct bench_batches *batches,
                        const struct bench_index *indices, const struct bench_batch_spec *spec);
/* Compare a sample of the rows or bags of the last batch with the expected ones, and fail if one
 * differs. Its lookup has ended. Returns the share of keys that hit. */
double bench_batches_check(struct bench_rig *rig, const struct bench_batches *batches);
/* What one piece of each of the following moves. index_bytes: of a key. */
struct bench_moved bench_batches_moved(const struct bench_batches *batches, double hit_share,
                                       double index_bytes);

/* For struct bench_work, the batches as its argument; batch i. */
hps_status bench_batches_give(struct bench_rig *rig, void *batches, uint32_t i);
/* A launch for each part, without flags, on the streams in turn; n_streams 0: on the rig's. */
hps_status bench_batches_give_parts(struct bench_rig *rig, const struct bench_batches *batches,
                                    uint32_t i, struct hps_stream_q *const *streams,
                                    uint32_t n_streams);
/* As many rows of the first part by slot, without a search; and with the loads of their sets. */
hps_status bench_batches_give_gather(struct bench_rig *rig, void *batches, uint32_t i);
hps_status bench_batches_give_gather_sets(struct bench_rig *rig, void *batches, uint32_t i);
/* Count keys. */
hps_status bench_batches_give_observe(struct bench_rig *rig, void *batches, uint32_t i);

#endif
