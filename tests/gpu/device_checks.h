/* SPDX-License-Identifier: Apache-2.0
 *
 * What must hold on a device of any kind: run by the unit tests on the simulated one, and on a GPU
 * by the device run, where there is no test library.
 *
 * Thread: the caller's; nobody else uses the device meanwhile.
 */
#ifndef HPS_TESTS_GPU_DEVICE_CHECKS_H
#define HPS_TESTS_GPU_DEVICE_CHECKS_H

#include "cache/device/device.h"

extern const struct hps_kernel *const device_check_kernels[];
extern const size_t n_device_check_kernels;

/* Whether it holds; what differed in `err`. The device was opened with device_check_kernels. */
struct device_check {
    const char *name;
    bool (*run)(struct hps_device *device, struct hps_error *err);
};
extern const struct device_check device_checks[];
extern const size_t n_device_checks;

#endif
