/* SPDX-License-Identifier: Apache-2.0
 *
 * Simulated devices, for tests: a library of its own, linked by hpsd-sim and the programs of tests,
 * and never by hpsd.
 */
#ifndef HPS_CACHE_DEVICE_SIM_SIM_H
#define HPS_CACHE_DEVICE_SIM_SIM_H

#include "cache/device/device.h"

/* What a simulated device is like. Zeroes: the defaults. */
struct hps_device_sim_config {
    uint64_t seed;         /* of the delays and of the order of blocks; 0: blocks in order */
    uint32_t delay_us_max; /* before each step of a stream; 0: none */
    uint64_t memory_bytes; /* 0: 256 MiB */
    uint64_t fail_at;      /* the piece of work of this number, from 1, is not done and the device
                              lost; 0: none */
    uint64_t hang_at;      /* before this one the driver hangs: no call returns; 0: never */
    uint64_t stall_us;     /* without progress for so long it counts as lost; 0: a minute, as it has
                              no time while the processors are busy */
};

struct hps_sim_driver {
    struct hps_device_driver driver; /* for hps_device_open */
    struct hps_device_sim_config config;
};

/* A driver of simulated devices that are all like that, 8 at most. */
struct hps_sim_driver hps_sim_driver(struct hps_device_sim_config config);

/* The configuration that a text gives: "", or NAME=VALUE split by commas, of fail, hang, delay_us,
 * seed, memory and stall_us, each the field of that name. INVALID: what is odd is named, with
 * `name`, that of the text. */
hps_status hps_sim_config_parse(const char *name, const char *text,
                                struct hps_device_sim_config *out_config, struct hps_error *err)
    HPS_MUST_CHECK;

/* ---- what a test does to a device ------------------------------------------------------------ */

/* The n-th piece of work from now on (copy, fill or launch) is not done and the device lost; 0: at
 * once. Any thread. */
void hps_device_sim_fail(struct hps_device *device, uint64_t n);
/* While held, no stream begins another step: what is given to it stays under way. Any thread. */
void hps_device_sim_hold(struct hps_device *device, bool held);
/* While it hangs, no piece of work that begins comes to its end, not even when the device is lost:
 * it may still write. Any thread. */
void hps_device_sim_hang(struct hps_device *device, bool hung);
/* While the driver hangs no call of it returns. Any thread. */
void hps_device_sim_driver_hang(struct hps_device *device, bool hung);
/* The address of device memory in this process: for tests. */
void *hps_device_sim_host(struct hps_device *device, hps_devptr ptr);

#endif
