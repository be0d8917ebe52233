/* SPDX-License-Identifier: Apache-2.0
 *
 * The memory of a simulated device, and the host memory it may reach. An address as kernels see it
 * is that of the process. Before and behind each allocation lie guard bytes: AddressSanitizer
 * reports who touches them, in other builds they are looked at when it is freed.
 *
 * Thread: any.
 */
#ifndef HPS_CACHE_DEVICE_SIM_MEMORY_H
#define HPS_CACHE_DEVICE_SIM_MEMORY_H

#include <stdbool.h>

#include "cache/device/device.h"
#include "cache/device/sim/lock.h"

enum hps_sim_memory_kind {
    HPS_SIM_DEVICE,    /* counted against the limit; contents undefined */
    HPS_SIM_HOST,      /* ours; zeroed */
    HPS_SIM_REGISTERED /* the caller's */
};

struct hps_sim_memory {
    struct hps_sim_lock lock;
    struct hps_sim_range *ranges;
    uint64_t limit_bytes;
    uint64_t used_bytes;
};

hps_status hps_sim_memory_new(struct hps_sim_memory *memory, enum hps_sim_memory_kind kind,
                              size_t size, void **out_ptr, struct hps_error *err) HPS_MUST_CHECK;
/* INVALID: part of it is known already. */
hps_status hps_sim_memory_register(struct hps_sim_memory *memory, void *host, size_t size,
                                   struct hps_error *err) HPS_MUST_CHECK;
/* Ends the process unless ptr is where something of that kind begins, whose guard is whole. */
void hps_sim_memory_free(struct hps_sim_memory *memory, enum hps_sim_memory_kind kind, void *ptr);
/* Ends the process, naming `what`, unless all of it lies in one known piece; of the host, if so
 * asked. */
void hps_sim_memory_check(struct hps_sim_memory *memory, const void *ptr, size_t size, bool host,
                          const char *what);
/* Nothing is left: else ends the process. */
void hps_sim_memory_fini(struct hps_sim_memory *memory);

#endif
