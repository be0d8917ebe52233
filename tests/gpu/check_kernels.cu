// SPDX-License-Identifier: Apache-2.0
//
// The kernels of check_kernels.h for CUDA.
#include "tests/gpu/check_kernels.cuh"
