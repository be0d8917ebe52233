/* SPDX-License-Identifier: Apache-2.0
 *
 * What must hold of the embedding cache on a device of any kind: run by the unit tests on the
 * simulated one, and on a GPU by the device run, where there is no test library.
 *
 * Thread: the caller's; nobody else uses the device meanwhile.
 */
#ifndef HPS_TESTS_GPU_EMBED_CHECKS_H
#define HPS_TESTS_GPU_EMBED_CHECKS_H

#include "cache/device/device.h"

/* Whether it holds; what differed in `err`. The device was opened with hps_embed_kernels. */
struct embed_check {
    const char *name;
    bool (*run)(struct hps_device *device, struct hps_error *err);
};
extern const struct embed_check embed_checks[];
extern const size_t n_embed_checks;

#endif
