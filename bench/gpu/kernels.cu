/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernels of kernels.h for CUDA.
 */
#include "bench/gpu/kernels.cuh"
