/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks of embed_checks.h: rows that are not answered as they are stored. Each as hps_row_convert
 * gives it or, of a bag, as hps_row_sum_add and hps_row_sum_end do, bit by bit.
 */
#ifndef HPS_TESTS_GPU_SHAPE_CHECKS_H
#define HPS_TESTS_GPU_SHAPE_CHECKS_H

#include "cache/device/device.h"

/* Every stored type, wanted type, pooling, width: in host memory, stored there by the kernel or
 * gathered and copied out, and in device memory. */
bool shape_check_mapped(struct hps_device *device, struct hps_error *err);
bool shape_check_gathered(struct hps_device *device, struct hps_error *err);
bool shape_check_on_device(struct hps_device *device, struct hps_error *err);
/* Bags of as many keys as a batch takes, of one key, of none, and more of those than keys. */
bool shape_check_sizes(struct hps_device *device, struct hps_error *err);
/* Sums beside updates of their rows: each is of the rows that were staged last before it. */
bool shape_check_updates(struct hps_device *device, struct hps_error *err);

#endif
