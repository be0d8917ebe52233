/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernels of the embedding cache for CUDA.
 */
#include "cache/embed/kernels.cuh"
#include "cache/embed/pool.cuh"
