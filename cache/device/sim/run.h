/* SPDX-License-Identifier: Apache-2.0
 *
 * How a stream of the simulated device runs a launch. The stream's thread.
 */
#ifndef HPS_CACHE_DEVICE_SIM_RUN_H
#define HPS_CACHE_DEVICE_SIM_RUN_H

#include "cache/device/device.h"

struct hps_simt;

/* On the thread that will run launches. seed: of the order in which blocks and lanes go. */
hps_status hps_simt_new(uint64_t seed, struct hps_simt **out_simt) HPS_MUST_CHECK;
void hps_simt_free(struct hps_simt *simt);
/* All blocks, one after another, in any order. args: of kernel->args_size, aligned to 16.
 * NO_MEMORY: not all of it was run. */
hps_status hps_simt_run(struct hps_simt *simt, const struct hps_kernel *kernel, uint32_t n_blocks,
                        const void *args) HPS_MUST_CHECK;

/* What each thread of a kernel runs. kernels.c */
typedef void (*hps_sim_body)(const void *args);
hps_sim_body hps_sim_body_of(const struct hps_kernel *kernel);

#endif
