/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernels of kernels.h for the simulated device, and their descriptions.
 */
#include "bench/gpu/kernels.cuh"

HPS_KERNEL_DEFINE_WITH_SIM(bench_kernel_gather, struct bench_gather_args, BENCH_THREADS, 0);
HPS_KERNEL_DEFINE_WITH_SIM(bench_kernel_copy, struct bench_copy_args, BENCH_THREADS, 0);
HPS_KERNEL_DEFINE_WITH_SIM(bench_kernel_random, struct bench_random_args, BENCH_THREADS, 0);
HPS_KERNEL_DEFINE_WITH_SIM(bench_kernel_fill, struct bench_fill_args, BENCH_THREADS, 0);

const struct hps_kernel *const bench_kernels[] = {
    &bench_kernel_gather,      &bench_kernel_copy,       &bench_kernel_random,
    &bench_kernel_fill,        &hps_embed_kernel_lookup, &hps_embed_kernel_pool,
    &hps_embed_kernel_observe, &hps_embed_kernel_halve,  &hps_embed_kernel_apply};
const size_t n_bench_kernels = sizeof(bench_kernels) / sizeof(bench_kernels[0]);
