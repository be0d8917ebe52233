/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels that serve as peers of the embedding cache, and kernels that fill memory and an index
 * without staging every row.
 */
#ifndef HPS_BENCH_GPU_KERNELS_H
#define HPS_BENCH_GPU_KERNELS_H

#include "cache/embed/kernels.h"

enum {
#if defined(HPS_TSAN) || defined(__SANITIZE_ADDRESS__)
    BENCH_THREADS = 64, /* a simulated thread is slow there */
#else
    BENCH_THREADS = 256,
#endif
};

/* Key i of a table of the benchmarks. */
HPS_HASH_ANYWHERE static inline uint64_t bench_key(uint32_t table, uint64_t i)
{
    return hps_mix64(i ^ (uint64_t)table << 48);
}

/* Bytes 8 i to 8 i + 7 of the row of a key: random, but neither infinite nor NaN as fp32, fp16 or
 * bf16. */
HPS_HASH_ANYWHERE static inline uint64_t bench_word(uint64_t key, uint64_t i)
{
    return hps_mix64(key + i * HPS_HASH_GOLDEN) & UINT64_C(0xBFFFBFFFBFFFBFFF);
}

/* Row ids[i] of `rows` to out + i * row_bytes. With `sets` it also loads the set of that row, and
 * waits for it before it loads the row: the loads of a lookup without hashing and searching. */
struct bench_gather_args {
    uint64_t rows;
    uint64_t sets; /* 0: none */
    uint64_t ids;  /* uint64_t [n] */
    uint64_t out;
    uint32_t n;
    uint32_t row_stride;
    uint32_t row_bytes; /* a multiple of 16 */
    uint32_t lanes;     /* that copy one row: a power of two, 32 at most */
};
extern const struct hps_kernel bench_kernel_gather;

struct bench_copy_args {
    uint64_t from;
    uint64_t to;
    uint64_t n_quads;
};
extern const struct hps_kernel bench_kernel_copy;

/* Random data: the words of bench_word(seed, i). */
struct bench_random_args {
    uint64_t to;
    uint64_t n_quads;
    uint64_t seed;
};
extern const struct hps_kernel bench_kernel_random;

/* Puts keys 0 to n - 1 of a table and their rows into an empty index, each into the first free way
 * of its set, else of its spill. */
struct bench_fill_args {
    struct hps_embed_desc desc;
    uint64_t n;
    uint64_t n_spilled; /* uint64_t; the number of keys put into spills is added */
    uint32_t table;
    uint32_t zero;
};
extern const struct hps_kernel bench_kernel_fill;

extern const struct hps_kernel *const bench_kernels[]; /* with the kernels of the cache */
extern const size_t n_bench_kernels;

#endif
