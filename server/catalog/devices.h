/* SPDX-License-Identifier: Apache-2.0
 *
 * The GPUs of the daemon: one gpu tier for each device that a model with an embedding cache names.
 * If a device cannot be used, the daemon continues without it or does not start, as
 * `server.on_device_loss` says.
 *
 * Opened and closed on the main thread; other calls on any thread.
 */
#ifndef HPS_SERVER_CATALOG_DEVICES_H
#define HPS_SERVER_CATALOG_DEVICES_H

#include "cache/gpu/tier.h"
#include "config/config.h"

struct hps_devices;

/* A device as views show it. */
struct hps_device_view {
    const char *node; /* device number as text: label of tier_up */
    const char *name;
    struct hps_gpu_tier *tier;
    bool there; /* the machine has GPUs */
    bool up;    /* the device was opened and is not lost */
    uint64_t used_bytes, capacity_bytes;
};

/* Open the devices. out_devices: NULL if no model has an embedding cache. Devices that cannot be
 * used are logged. `blocks` gets its slab, so no block may have been taken from it.
 * error   UNAVAILABLE: a device cannot be used, with on_device_loss `exit`; NO_MEMORY */
hps_status hps_devices_open(const struct hps_config *config, const struct hps_device_driver *driver,
                            struct hps_block_pool *blocks, struct hps_devices **out_devices,
                            struct hps_error *err) HPS_MUST_CHECK;
/* Wait until all pending lookups are answered. Call it before the loops that receive the answers
 * are freed, and start no lookup afterwards. `devices` may be NULL, here and in the calls below
 * except hps_devices_view. */
void hps_devices_drain(struct hps_devices *devices);
/* All spaces must be closed. */
void hps_devices_close(struct hps_devices *devices);
/* Number of devices in the model's list; 0 without an embedding cache. `model` may be NULL, here
 * and in the next two calls. */
unsigned hps_devices_of_count(const struct hps_config_model *model);
/* The tier of the i-th device of the list. NULL: it cannot be used, or is in the list before. */
struct hps_gpu_tier *hps_devices_of(const struct hps_devices *devices,
                                    const struct hps_config_model *model, unsigned i);
/* Whether a device of the model can be used. */
bool hps_devices_any_of(const struct hps_devices *devices, const struct hps_config_model *model);
unsigned hps_devices_count(const struct hps_devices *devices);
void hps_devices_view(const struct hps_devices *devices, unsigned i,
                      struct hps_device_view *out_view);
/* Number of devices that were lost since the last call. Main thread. */
unsigned hps_devices_take_lost(struct hps_devices *devices);

/* How many rows of each table are cached. shape: out_shares[n_tables] */
void hps_devices_shares(const struct hps_config_model *model, const struct hps_table *tables,
                        uint32_t n_tables, struct hps_gpu_share *out_shares);

#endif
