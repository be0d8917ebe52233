/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs launches of kernels on the simulated device. Each stream has one struct hps_simt, for the
 * stream's thread only.
 */
#ifndef HPS_CACHE_DEVICE_SIM_RUN_H
#define HPS_CACHE_DEVICE_SIM_RUN_H

#include "cache/device/device.h"

struct hps_simt;

/* Make the struct of a stream. Call it on the stream's thread. seed: determines the random order in
 * which blocks and lanes run; 0: blocks and lanes run in order. NO_MEMORY */
hps_status hps_simt_new(uint64_t seed, struct hps_simt **out_simt) HPS_MUST_CHECK;
void hps_simt_free(struct hps_simt *simt);
/* Run all blocks of a launch, one after another. args: [kernel->args_size] aligned to 16 bytes.
 * NO_MEMORY: some blocks were not run. */
hps_status hps_simt_run(struct hps_simt *simt, const struct hps_kernel *kernel, uint32_t n_blocks,
                        const void *args) HPS_MUST_CHECK;

/* The body of a kernel for the simulated device, called once for each thread of a block. */
typedef void (*hps_sim_body)(const void *args);
/* The body of this kernel (kernels.c). Asserts that it has one. */
hps_sim_body hps_sim_body_of(const struct hps_kernel *kernel);

#endif
