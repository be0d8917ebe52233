/* SPDX-License-Identifier: Apache-2.0
 *
 * The only difference between hpsd and hpsd-sim: the devices that they use. Main thread.
 */
#ifndef HPS_SERVER_PROGRAM_H
#define HPS_SERVER_PROGRAM_H

#include "cache/device/device.h"

/* GPUs in hpsd (program.c), simulated devices in hpsd-sim (tests/sim/program.c). Main thread,
 * called once.
 * error   INVALID: the environment variables of the simulator are wrong */
hps_status hps_program_devices(const struct hps_device_driver **out_driver, struct hps_error *err)
    HPS_MUST_CHECK;

#endif
