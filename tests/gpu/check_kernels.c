/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernels of check_kernels.h for the simulated device, and their descriptions.
 */
#include "tests/gpu/check_kernels.cuh"
#include "cache/device/device.h"

HPS_KERNEL_DEFINE_WITH_SIM(check_warp, struct check_warp_args, CHECK_THREADS, 0);
HPS_KERNEL_DEFINE_WITH_SIM(check_block, struct check_block_args, CHECK_THREADS,
                           sizeof(struct check_block_shared));
HPS_KERNEL_DEFINE_WITH_SIM(check_memory, struct check_memory_args, CHECK_THREADS, 0);
HPS_KERNEL_DEFINE_WITH_SIM(check_atomic, struct check_atomic_args, CHECK_THREADS, sizeof(uint32_t));
