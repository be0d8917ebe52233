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
    const char *node;          /* device number as text, as in the label `node` of tier_up */
    const char *name;          /* name of the GPU, or why the device is not open */
    struct hps_gpu_tier *tier; /* NULL: the device could not be opened */
    bool there;                /* the machine has at least one GPU */
    bool up;                   /* the device was opened and is not lost */
    /* used_bytes: device memory that embedding caches use. capacity_bytes: device memory that is
     * reserved for them. Both are 0 without a tier. */
    uint64_t used_bytes, capacity_bytes;
};

/* Open the devices that models with an embedding cache name. If no model has one, *out_devices is
 * NULL. Devices that cannot be used are logged. Adds a slab for results of lookups to the pool
 * `blocks` (hps_block_pool_slab_add), from which no block may have been taken before. `driver` is
 * borrowed until hps_devices_close.
 * error   UNAVAILABLE: a device cannot be used, and on_device_loss is `exit`; NO_MEMORY */
hps_status hps_devices_open(const struct hps_config *config, const struct hps_device_driver *driver,
                            struct hps_block_pool *blocks, struct hps_devices **out_devices,
                            struct hps_error *err) HPS_MUST_CHECK;
/* In all calls below except hps_devices_view, `devices` may be NULL, which means that there are no
 * devices. */

/* Wait until the devices have answered all pending lookups. Call it before you free the loops that
 * receive the answers. No lookup may start afterwards. */
void hps_devices_drain(struct hps_devices *devices);
/* Close the devices and free `devices`. All spaces must be closed. */
void hps_devices_close(struct hps_devices *devices);
/* Number of devices in the model's deployed_device_list; 1 (device 0) if the list is empty. 0: the
 * model has no embedding cache, or `model` is NULL. */
unsigned hps_devices_of_count(const struct hps_config_model *model);
/* The tier of the i-th device of the model's deployed_device_list, counted from 0. The device may
 * be lost. NULL: the list is shorter, the device could not be opened, or an earlier item of the
 * list names the same device. */
struct hps_gpu_tier *hps_devices_of(const struct hps_devices *devices,
                                    const struct hps_config_model *model, unsigned i);
/* Whether at least one device of the model was opened; it may be lost. `model` may be NULL. */
bool hps_devices_any_of(const struct hps_devices *devices, const struct hps_config_model *model);
/* Number of different devices that the configuration names. */
unsigned hps_devices_count(const struct hps_devices *devices);
/* Describe device i, where i < hps_devices_count. */
void hps_devices_view(const struct hps_devices *devices, unsigned i,
                      struct hps_device_view *out_view);
/* Number of devices that were lost since the last call. Main thread. */
unsigned hps_devices_take_lost(struct hps_devices *devices);

/* Compute how many rows of each table a device of the model caches. shape: out_shares[n_tables] */
void hps_devices_shares(const struct hps_config_model *model, const struct hps_table *tables,
                        uint32_t n_tables, struct hps_gpu_share *out_shares);

#endif
