/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels that use every primitive of cache/device/simt.h, to be compared with a scalar model on
 * every kind of device.
 */
#ifndef HPS_TESTS_GPU_CHECK_KERNELS_H
#define HPS_TESTS_GPU_CHECK_KERNELS_H

#include <stdint.h>

enum {
    CHECK_THREADS = 128,
    CHECK_WARPS = CHECK_THREADS / 32,
};

/* One word of each per thread of the launch: n = blocks * CHECK_THREADS. */
struct check_warp_args {
    const uint32_t *input;
    uint32_t *ballots;     /* of odd inputs */
    uint32_t *any;         /* whether one of the warp's is a multiple of 61 */
    uint32_t *shuffled;    /* input of the lane that one's own input names */
    uint64_t *shuffled_64; /* of the next lane: input << 32 | lane */
    uint32_t *where;       /* [n][6]: block, thread, lane, warp, grid warp, grid thread */
    uint32_t rounds;       /* repeat, so that lanes run ahead of each other */
    uint32_t pad;
};

/* sums[block]: of the block's inputs, through shared memory; rotated[i]: the input of the thread 33
 * further on, in the same block. */
struct check_block_args {
    const uint32_t *input;
    uint64_t *sums;
    uint32_t *rotated;
    uint32_t rounds;
    uint32_t pad;
};

struct check_block_shared {
    uint64_t partial[CHECK_WARPS];
    uint32_t values[CHECK_THREADS];
    uint32_t warp_values[CHECK_THREADS];
};

/* Copies: n quads, and as words and double words. */
struct check_memory_args {
    const void *from;
    void *quads;
    uint32_t *words;
    uint64_t *doubles;
    uint32_t n;
    uint32_t pad;
};

/* Every thread adds, swaps and so on once; the last block to end raises the flag. */
struct check_atomic_args {
    uint32_t *words;   /* [8]: sum, or, exchanged sum, compare-and-swap sum, tickets, high halves'
                          sum,   bits' sum, unused */
    uint64_t *doubles; /* [2]: sum, compare-and-swap sum */
    uint8_t *bytes;    /* [256] */
    uint64_t *rows;    /* [blocks] written plainly by each block, summed by the last */
    uint64_t *total;   /* of them */
    uint32_t *flag;    /* mapped memory of the host */
    uint32_t flag_value;
    uint32_t pad;
};

extern const struct hps_kernel check_warp;
extern const struct hps_kernel check_block;
extern const struct hps_kernel check_memory;
extern const struct hps_kernel check_atomic;

#endif
