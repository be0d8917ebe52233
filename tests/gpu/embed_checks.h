/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks of the embedding cache on a device of any kind. The unit tests run them on the
 * simulated device, and the device run on a GPU, where there is no test library.
 *
 * Thread: the caller's. No other thread may use the device.
 */
#ifndef HPS_TESTS_GPU_EMBED_CHECKS_H
#define HPS_TESTS_GPU_EMBED_CHECKS_H

#include "cache/device/device.h"

/* `run` returns whether the check passed, and the difference in `err`. The device must have been
 * opened with hps_embed_kernels. */
struct embed_check {
    const char *name;
    bool (*run)(struct hps_device *device, struct hps_error *err);
};
extern const struct embed_check embed_checks[];
extern const size_t n_embed_checks;

#endif
