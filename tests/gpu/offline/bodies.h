/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernels that translate.py made of nvcc's PTX: its C file defines both.
 */
#ifndef HPS_TESTS_GPU_OFFLINE_BODIES_H
#define HPS_TESTS_GPU_OFFLINE_BODIES_H

#include <stddef.h>

#include "cache/device/sim/run.h"

struct offline_body {
    const char *kernel;
    hps_sim_body run;
};
extern const struct offline_body offline_bodies[];
extern const size_t n_offline_bodies;

#endif
