/* SPDX-License-Identifier: Apache-2.0
 *
 * Every kernel for CUDA, so that nvcc makes one PTX file of them.
 */
#include "bench/gpu/kernels.cuh"
#include "cache/embed/kernels.cuh"
#include "cache/embed/pool.cuh"
#include "tests/gpu/check_kernels.cuh"
