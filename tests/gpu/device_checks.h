/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks for a device of any kind. The unit tests run them on the simulated device, and the
 * device run on a GPU, where there is no test library.
 *
 * Thread: the caller's. No other thread may use the device.
 */
#ifndef HPS_TESTS_GPU_DEVICE_CHECKS_H
#define HPS_TESTS_GPU_DEVICE_CHECKS_H

#include "cache/device/device.h"

extern const struct hps_kernel *const device_check_kernels[];
extern const size_t n_device_check_kernels;

/* `run` returns whether the check passed, and the difference in `err`. The device must have been
 * opened with device_check_kernels. */
struct device_check {
    const char *name;
    bool (*run)(struct hps_device *device, struct hps_error *err);
};
extern const struct device_check device_checks[];
extern const size_t n_device_checks;

#endif
