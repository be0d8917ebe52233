/* SPDX-License-Identifier: Apache-2.0
 *
 * The functions that simt.h uses on the simulated device, implemented in sim/simt.c. A kernel runs
 * on the thread of its stream, with a fiber for each thread of a block. The arguments `file` and
 * `line` say where the kernel makes the call, for messages.
 */
#ifndef HPS_CACHE_DEVICE_SIMT_RUN_H
#define HPS_CACHE_DEVICE_SIMT_RUN_H

#include "cache/device/device.h"

/* The kernel thread that is running. */
struct hps_simt_thread {
    uint32_t thread;        /* index in its block */
    uint32_t block;         /* index of its block in the launch */
    uint32_t block_threads; /* threads per block */
    uint32_t grid_blocks;   /* blocks of the launch */
    void *shared;           /* shared memory of its block */
};
extern _Thread_local const struct hps_simt_thread *hps_simt_here;

enum hps_simt_call {
    HPS_SIMT_BALLOT,
    HPS_SIMT_SHUFFLE,
    HPS_SIMT_WARP_BARRIER,
    HPS_SIMT_BLOCK_BARRIER
};
/* What the lanes of a warp have passed to one ballot, shuffle or barrier. */
struct hps_simt_meeting {
    uint32_t votes; /* bit i: the vote of lane i */
    uint32_t pad;
    uint64_t values[32]; /* the value of each lane */
};
/* Wait until all lanes of the warp have made the same call. Ends the process with a message if they
 * make different calls. For speed, ballots, shuffles and warp barriers share this one function. A
 * switch between lanes makes the CPU mispredict the next returns, unless all lanes switch at the
 * same place in the code. */
const struct hps_simt_meeting *hps_simt_meet(bool vote, uint64_t value, enum hps_simt_call call,
                                             const char *file, int line);
void hps_simt_warp_barrier(const char *file, int line);
void hps_simt_block_barrier(const char *file, int line);
/* These two end the process with a message. hps_simt_misaligned: the address of an access of
 * `bytes` bytes is not aligned. hps_simt_far_lane: `lane` is greater than 31. */
void hps_simt_misaligned(const void *address, unsigned bytes) __attribute__((noreturn, cold));
void hps_simt_far_lane(uint32_t lane, const char *file, int line) __attribute__((noreturn, cold));

static inline uint32_t hps_simt_ballot(bool vote, const char *file, int line)
{
    return hps_simt_meet(vote, 0, HPS_SIMT_BALLOT, file, line)->votes;
}

static inline uint64_t hps_simt_shuffle(uint64_t value, uint32_t lane, const char *file, int line)
{
    if (lane >= 32) {
        hps_simt_far_lane(lane, file, line);
    }
    return hps_simt_meet(false, value, HPS_SIMT_SHUFFLE, file, line)->values[lane];
}

/* Returns `address`. Ends the process if it is not a multiple of `bytes`, the size of the access; a
 * GPU would report an error. */
static inline void *hps_simt_aligned(const void *address, unsigned bytes)
{
    if (((uintptr_t)address & (bytes - 1)) != 0) {
        hps_simt_misaligned(address, bytes);
    }
    return (void *)(uintptr_t)address;
}

#endif
