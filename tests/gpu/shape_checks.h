/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks of embed_checks.h: converted and pooled rows. The results must equal hps_row_convert
 * or, for a bag, hps_row_sum_add and hps_row_sum_end, bit by bit.
 */
#ifndef HPS_TESTS_GPU_SHAPE_CHECKS_H
#define HPS_TESTS_GPU_SHAPE_CHECKS_H

#include "cache/device/device.h"

/* Every stored type, requested type, pooling and width: in host memory, stored there by the
 * kernel or gathered and copied out, and in device memory. */
bool shape_check_mapped(struct hps_device *device, struct hps_error *err);
bool shape_check_gathered(struct hps_device *device, struct hps_error *err);
bool shape_check_on_device(struct hps_device *device, struct hps_error *err);
/* Bags with as many keys as a batch takes, with one key, without keys, and more empty bags than
 * keys. */
bool shape_check_sizes(struct hps_device *device, struct hps_error *err);
/* Sums during updates of their rows: each uses the rows that were staged last before it. */
bool shape_check_updates(struct hps_device *device, struct hps_error *err);

#endif
