/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels that the embedding cache is measured beside, and one that fills an index without staging
 * every row.
 */
#ifndef HPS_BENCH_GPU_KERNELS_H
#define HPS_BENCH_GPU_KERNELS_H

#include "cache/embed/kernels.h"

enum { BENCH_THREADS = 256 };

/* Row ids[i] of `rows` to out + i * row_bytes: a look-up that need not search. */
struct bench_gather_args {
    uint64_t rows;
    uint64_t ids; /* uint32_t [n] */
    uint64_t out;
    uint32_t n;
    uint32_t row_bytes; /* a multiple of 16 */
    uint32_t lanes;     /* that copy one row: a power of two, 32 at most */
    uint32_t zero;
};
extern const struct hps_kernel bench_kernel_gather;

struct bench_copy_args {
    uint64_t from;
    uint64_t to;
    uint64_t n_quads;
};
extern const struct hps_kernel bench_kernel_copy;

/* Key i of a table of the benchmarks. */
HPS_HASH_ANYWHERE static inline uint64_t bench_key(uint32_t table, uint64_t i)
{
    return hps_mix64(i ^ (uint64_t)table << 48);
}

/* Puts keys 0 to n - 1 of a table into an empty index, each where it finds a way. */
struct bench_fill_args {
    struct hps_embed_desc desc;
    uint64_t n;
    uint64_t n_placed; /* uint64_t */
    uint32_t table;
    uint32_t zero;
};
extern const struct hps_kernel bench_kernel_fill;

extern const struct hps_kernel *const bench_kernels[]; /* those of the cache, too */
extern const size_t n_bench_kernels;

#endif
