/* SPDX-License-Identifier: Apache-2.0
 *
 * Selects the devices of the program. hpsd and hpsd-sim differ only in their devices. Main thread.
 */
#ifndef HPS_SERVER_PROGRAM_H
#define HPS_SERVER_PROGRAM_H

#include "cache/device/device.h"

/* The driver of the devices: of GPUs in hpsd (program.c), of simulated devices in hpsd-sim
 * (tests/sim/program.c). Call it once.
 * error   INVALID: the environment variables of the simulator are wrong */
hps_status hps_program_devices(const struct hps_device_driver **out_driver, struct hps_error *err)
    HPS_MUST_CHECK;

#endif
