/* SPDX-License-Identifier: Apache-2.0
 *
 * The primitives of simt.h for the simulated device, implemented in sim/simt.c. They run on the
 * thread of a stream; each stream has its own fibers.
 */
#ifndef HPS_CACHE_DEVICE_SIMT_RUN_H
#define HPS_CACHE_DEVICE_SIMT_RUN_H

#include "cache/device/device.h"

/* The position of the running kernel thread. */
struct hps_simt_thread {
    uint32_t thread;
    uint32_t block;
    uint32_t block_threads;
    uint32_t grid_blocks;
    void *shared;
};
extern _Thread_local const struct hps_simt_thread *hps_simt_here;

enum hps_simt_call {
    HPS_SIMT_BALLOT,
    HPS_SIMT_SHUFFLE,
    HPS_SIMT_WARP_BARRIER,
    HPS_SIMT_BLOCK_BARRIER
};
/* The votes and values of the lanes of a warp at one common call. */
struct hps_simt_meeting {
    uint32_t votes;
    uint32_t pad;
    uint64_t values[32];
};
/* One function for all calls, for speed. A processor predicts that a return goes back to the last
 * call, and each switch between lanes defeats that prediction. */
const struct hps_simt_meeting *hps_simt_meet(bool vote, uint64_t value, enum hps_simt_call call,
                                             const char *file, int line);
void hps_simt_warp_barrier(const char *file, int line);
void hps_simt_block_barrier(const char *file, int line);
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

/* Aborts on an access that is not aligned to its size, as a GPU faults on it. */
static inline void *hps_simt_aligned(const void *address, unsigned bytes)
{
    if (((uintptr_t)address & (bytes - 1)) != 0) {
        hps_simt_misaligned(address, bytes);
    }
    return (void *)(uintptr_t)address;
}

#endif
