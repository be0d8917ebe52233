/* SPDX-License-Identifier: Apache-2.0
 *
 * hpsd uses GPUs.
 */
#include "server/program.h"

hps_status hps_program_devices(const struct hps_device_driver **out_driver, struct hps_error *err)
{
    (void)err;
    *out_driver = &hps_device_cuda;
    return HPS_OK;
}
