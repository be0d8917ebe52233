/* SPDX-License-Identifier: Apache-2.0
 *
 * Simulated devices, for tests. They are in a separate library, which hpsd-sim and test programs
 * link and hpsd does not. A *piece of work* is a copy, a fill or a launch. A *step* of a stream is
 * a piece of work, a record of an event, or a wait for an event.
 */
#ifndef HPS_CACHE_DEVICE_SIM_SIM_H
#define HPS_CACHE_DEVICE_SIM_SIM_H

#include "cache/device/device.h"

struct hps_device_sim_config {
    /* Seed of random delays, and of the random order in which blocks and lanes run. 0: blocks and
     * lanes run in order. */
    uint64_t seed;
    uint32_t delay_us_max; /* longest delay before each step of a stream; 0: no delays */
    uint64_t memory_bytes; /* device memory; 0: 256 MiB */
    uint64_t fail_at; /* the device is lost instead of doing the piece of work with this number,
                         counted from 1; 0: never */
    uint64_t hang_at; /* the driver hangs (hps_device_sim_driver_hang) at the piece of work with
                         this number, counted from 1; 0: never */
    /* stall_us_max of the driver (struct hps_device_driver). 0: 60 s, because a busy CPU may delay
     * the device. */
    uint64_t stall_us;
};

struct hps_sim_driver {
    struct hps_device_driver driver; /* pass its address to hps_device_open */
    struct hps_device_sim_config config;
};

/* A driver of at most 8 simulated devices with this configuration. */
struct hps_sim_driver hps_sim_driver(struct hps_device_sim_config config);

/* Parse a configuration: settings NAME=VALUE separated by commas, or "" for the defaults. The names
 * are seed, delay_us, memory, fail, hang and stall_us, for the fields of struct
 * hps_device_sim_config. name: where `text` comes from, for the error. INVALID: `err` names the
 * wrong setting. */
hps_status hps_sim_config_parse(const char *name, const char *text,
                                struct hps_device_sim_config *out_config, struct hps_error *err)
    HPS_MUST_CHECK;

/* ---- faults that tests inject ---------------------------------------------------------------- */

/* Make the device fail. It is lost when it would do the n-th piece of work from now on, and does
 * not do this piece. n = 0: the device is lost at once. Any thread. */
void hps_device_sim_fail(struct hps_device *device, uint64_t n);
/* From a call with `held` true until a call with `held` false, no stream begins a step, so that
 * work stays in flight. Any thread. */
void hps_device_sim_hold(struct hps_device *device, bool held);
/* From a call with `hung` true until a call with `hung` false, a copy, fill or launch that has
 * begun does not end. It may still write to memory after the device is lost. Any thread. */
void hps_device_sim_hang(struct hps_device *device, bool hung);
/* From a call with `hung` true until a call with `hung` false, calls of the driver do not return if
 * they queue work, wait for or check an event, free memory or a stream, unregister memory, or close
 * the device. Any thread. */
void hps_device_sim_driver_hang(struct hps_device *device, bool hung);
/* The address of device memory in this process. */
void *hps_device_sim_host(struct hps_device *device, hps_devptr ptr);

#endif
