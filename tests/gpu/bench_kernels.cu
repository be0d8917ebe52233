/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernels of bench_kernels.h for CUDA.
 */
#include "tests/gpu/bench_kernels.cuh"
