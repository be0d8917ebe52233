/* SPDX-License-Identifier: Apache-2.0
 *
 * The GPUs of the daemon: one gpu tier for each device that a model with an embedding cache names,
 * opened at the start and closed at the end. Where none can be used the daemon goes on
 * without, or does not start, as `server.on_device_loss` says.
 *
 * Made and freed on the main thread; the rest may be called on any.
 */
#ifndef HPS_SERVER_CATALOG_DEVICES_H
#define HPS_SERVER_CATALOG_DEVICES_H

#include "cache/gpu/tier.h"
#include "config/config.h"

struct hps_devices;

/* A device, and what becomes of a version there. */
struct hps_device_view {
    const char *node; /* its number as text: label of tier_up */
    const char *name;
    struct hps_gpu_tier *tier;
    bool there; /* the machine has GPUs */
    bool up;    /* this one is used, and was not lost */
    uint64_t used_bytes, capacity_bytes;
};

/* out_devices: NULL when no model wants an embedding cache. That none, or one, cannot be used is
 * logged here. `blocks` gets its slab: no block may have been taken from it.
 * error   UNAVAILABLE: a device cannot be used, with on_device_loss `exit`; NO_MEMORY */
hps_status hps_devices_open(const struct hps_config *config, const struct hps_device_driver *driver,
                            struct hps_block_pool *blocks, struct hps_devices **out_devices,
                            struct hps_error *err) HPS_MUST_CHECK;
/* Wait until all that look-ups asked has been answered, before the loops go that get the answers.
 * Nobody asks any more. NULL is legal, here and in the next ones. */
void hps_devices_drain(struct hps_devices *devices);
/* Every space is closed. */
void hps_devices_close(struct hps_devices *devices);
/* Devices that a model's list names; 0 of one without an embedding cache. model: NULL is legal,
 * here and below */
unsigned hps_devices_of_count(const struct hps_config_model *model);
/* The tier of the i-th of them; NULL: it cannot be used, or came before in the list. */
struct hps_gpu_tier *hps_devices_of(const struct hps_devices *devices,
                                    const struct hps_config_model *model, unsigned i);
/* Whether any can be used. */
bool hps_devices_any_of(const struct hps_devices *devices, const struct hps_config_model *model);
unsigned hps_devices_count(const struct hps_devices *devices);
void hps_devices_view(const struct hps_devices *devices, unsigned i,
                      struct hps_device_view *out_view);
/* Devices that were lost since the last call. Main thread. */
unsigned hps_devices_take_lost(struct hps_devices *devices);

/* How much of a version's tables is cached. out_shares: [n_tables] */
void hps_devices_shares(const struct hps_config_model *model, const struct hps_table *tables,
                        uint32_t n_tables, struct hps_gpu_share *out_shares);

#endif
