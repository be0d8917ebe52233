/* SPDX-License-Identifier: Apache-2.0
 *
 * Simulated devices for tests: a separate library, linked by hpsd-sim and by test programs, and
 * never by hpsd.
 */
#ifndef HPS_CACHE_DEVICE_SIM_SIM_H
#define HPS_CACHE_DEVICE_SIM_SIM_H

#include "cache/device/device.h"

/* Zeroes: the defaults. */
struct hps_device_sim_config {
    uint64_t seed;         /* of the delays and of the order of blocks; 0: blocks in order */
    uint32_t delay_us_max; /* before each step of a stream; 0: none */
    uint64_t memory_bytes; /* 0: 256 MiB */
    uint64_t fail_at; /* this piece of work, counted from 1, is not done, and the device is lost; 0:
                         none */
    uint64_t hang_at; /* from this piece of work on the driver hangs: no call returns; 0: never */
    uint64_t stall_us; /* lost after so long without progress; 0: 60 s, as a busy CPU delays it */
};

struct hps_sim_driver {
    struct hps_device_driver driver; /* for hps_device_open */
    struct hps_device_sim_config config;
};

/* A driver of at most 8 simulated devices with this configuration. */
struct hps_sim_driver hps_sim_driver(struct hps_device_sim_config config);

/* Parse a configuration: "", or NAME=VALUE separated by commas. Names: fail, hang, delay_us, seed,
 * memory, stall_us, for the field of that name. INVALID: the text names the setting that is wrong,
 * and `name`, the source of the text. */
hps_status hps_sim_config_parse(const char *name, const char *text,
                                struct hps_device_sim_config *out_config, struct hps_error *err)
    HPS_MUST_CHECK;

/* ---- faults that tests inject ---------------------------------------------------------------- */

/* The n-th piece of work from now on (copy, fill or launch) is not done, and the device is lost; 0:
 * at once. Any thread. */
void hps_device_sim_fail(struct hps_device *device, uint64_t n);
/* While held, no stream begins a step, so its work stays in flight. Any thread. */
void hps_device_sim_hold(struct hps_device *device, bool held);
/* While hung, a piece of work that has begun does not end, even if the device is lost: it may still
 * write. Any thread. */
void hps_device_sim_hang(struct hps_device *device, bool hung);
/* While the driver hangs, no call of it returns. Any thread. */
void hps_device_sim_driver_hang(struct hps_device *device, bool hung);
/* The address of device memory in this process. */
void *hps_device_sim_host(struct hps_device *device, hps_devptr ptr);

#endif
