/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulated device's side of simt.h: what the primitives call, and how a stream runs a launch.
 *
 * Thread: that of the stream; each stream has its own fibers.
 */
#ifndef HPS_CACHE_SIMT_RUN_H
#define HPS_CACHE_SIMT_RUN_H

#include "cache/device.h"

/* ---- for kernels, through simt.h ------------------------------------------------------------- */

/* The thread of the kernel that runs. */
struct hps_simt_thread {
    uint32_t thread;
    uint32_t block;
    uint32_t block_threads;
    uint32_t grid_blocks;
    void *shared;
};
extern _Thread_local const struct hps_simt_thread *hps_simt_here;

uint32_t hps_simt_ballot(bool vote, const char *file, int line);
uint64_t hps_simt_shuffle(uint64_t value, uint32_t lane, const char *file, int line);
void hps_simt_warp_barrier(const char *file, int line);
void hps_simt_block_barrier(const char *file, int line);
void hps_simt_misaligned(const void *address, unsigned bytes) __attribute__((noreturn, cold));

/* A GPU faults on an access that is not aligned to its size. */
static inline void *hps_simt_aligned(const void *address, unsigned bytes)
{
    if (((uintptr_t)address & (bytes - 1)) != 0) {
        hps_simt_misaligned(address, bytes);
    }
    return (void *)(uintptr_t)address;
}

/* ---- for streams ----------------------------------------------------------------------------- */

struct hps_simt;

/* On the thread that will run launches. seed: of the order in which blocks and lanes go. */
hps_status hps_simt_new(uint64_t seed, struct hps_simt **out_simt) HPS_MUST_CHECK;
void hps_simt_free(struct hps_simt *simt);
/* All blocks, one after another, in any order. args: of kernel->args_size, aligned to 16.
 * NO_MEMORY: not all of it was run. */
hps_status hps_simt_run(struct hps_simt *simt, const struct hps_kernel *kernel, uint32_t n_blocks,
                        const void *args) HPS_MUST_CHECK;

#endif
