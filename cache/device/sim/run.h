/* SPDX-License-Identifier: Apache-2.0
 *
 * Running launches in a stream of the simulated device. On the stream's thread.
 */
#ifndef HPS_CACHE_DEVICE_SIM_RUN_H
#define HPS_CACHE_DEVICE_SIM_RUN_H

#include "cache/device/device.h"

struct hps_simt;

/* On the thread that will run launches. seed: of the order of blocks and lanes; 0: in order. */
hps_status hps_simt_new(uint64_t seed, struct hps_simt **out_simt) HPS_MUST_CHECK;
void hps_simt_free(struct hps_simt *simt);
/* Run all blocks, one after another, in an order that depends on the seed. args: of
 * kernel->args_size, aligned to 16. NO_MEMORY: some blocks were not run. */
hps_status hps_simt_run(struct hps_simt *simt, const struct hps_kernel *kernel, uint32_t n_blocks,
                        const void *args) HPS_MUST_CHECK;

/* The body of a kernel for the simulated device, run once per thread. kernels.c */
typedef void (*hps_sim_body)(const void *args);
hps_sim_body hps_sim_body_of(const struct hps_kernel *kernel);

#endif
