/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernels of the embedding cache for the simulated device. hpsd has their descriptions and, for
 * CUDA, their code, but not these bodies.
 */
#include "cache/embed/kernels.cuh"
#include "base/assert.h"
#include "cache/device/sim/run.h"
#include "cache/embed/pool.cuh"

static const struct {
    const struct hps_kernel *kernel;
    hps_sim_body body;
} bodies[] = {{&hps_embed_kernel_lookup, hps_embed_kernel_lookup_sim},
              {&hps_embed_kernel_pool, hps_embed_kernel_pool_sim},
              {&hps_embed_kernel_observe, hps_embed_kernel_observe_sim},
              {&hps_embed_kernel_halve, hps_embed_kernel_halve_sim},
              {&hps_embed_kernel_apply, hps_embed_kernel_apply_sim}};

hps_sim_body hps_sim_body_of(const struct hps_kernel *kernel)
{
    hps_sim_body body = kernel->sim;
    for (unsigned i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++) {
        body = bodies[i].kernel == kernel ? bodies[i].body : body;
    }
    HPS_ASSERT(body != NULL);
    return body;
}
