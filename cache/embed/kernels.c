/* SPDX-License-Identifier: Apache-2.0
 *
 * The descriptions of the embedding cache's kernels.
 */
#include "cache/embed/kernels.h"

HPS_KERNEL_DEFINE(hps_embed_kernel_lookup, struct hps_embed_lookup_args,
                  HPS_EMBED_LOOKUP_BLOCK_THREADS, 0);
HPS_KERNEL_DEFINE(hps_embed_kernel_pool, struct hps_embed_pool_args, HPS_EMBED_BLOCK_THREADS, 0);
HPS_KERNEL_DEFINE(hps_embed_kernel_observe, struct hps_embed_observe_args, HPS_EMBED_BLOCK_THREADS,
                  0);
HPS_KERNEL_DEFINE(hps_embed_kernel_halve, struct hps_embed_halve_args, HPS_EMBED_BLOCK_THREADS, 0);
HPS_KERNEL_DEFINE(hps_embed_kernel_apply, struct hps_embed_apply_args, HPS_EMBED_BLOCK_THREADS, 0);

const struct hps_kernel *const hps_embed_kernels[] = {
    &hps_embed_kernel_lookup, &hps_embed_kernel_pool, &hps_embed_kernel_observe,
    &hps_embed_kernel_halve, &hps_embed_kernel_apply};
const size_t hps_embed_n_kernels = sizeof(hps_embed_kernels) / sizeof(hps_embed_kernels[0]);
