/* SPDX-License-Identifier: Apache-2.0
 *
 * The memory of a simulated device, and the host memory it may access. A device address is an
 * address of the process. Each allocation has guard bytes on both sides. AddressSanitizer reports
 * accesses to them; in other builds they are checked when the allocation is freed.
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
    HPS_SIM_HOST,      /* allocated here; zeroed */
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
/* INVALID: part of it is registered already. */
hps_status hps_sim_memory_register(struct hps_sim_memory *memory, void *host, size_t size,
                                   struct hps_error *err) HPS_MUST_CHECK;
/* Aborts unless an allocation of that kind begins at ptr and its guard bytes are intact. */
void hps_sim_memory_free(struct hps_sim_memory *memory, enum hps_sim_memory_kind kind, void *ptr);
/* Aborts, naming `what`, unless the bytes are within one allocation or registered area. host: it
 * must be host memory. */
void hps_sim_memory_check(struct hps_sim_memory *memory, const void *ptr, size_t size, bool host,
                          const char *what);
/* Aborts if anything is still allocated or registered. */
void hps_sim_memory_fini(struct hps_sim_memory *memory);

#endif
