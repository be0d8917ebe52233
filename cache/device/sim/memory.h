/* SPDX-License-Identifier: Apache-2.0
 *
 * The memory of a simulated device, and the host memory that it may access. Device memory is memory
 * of the process, so a device address is a normal address. Each allocation has guard bytes on both
 * sides. AddressSanitizer reports accesses to them; in all builds they are checked when the
 * allocation is freed. "Aborts" means: ends the process with a message.
 *
 * Thread: any.
 */
#ifndef HPS_CACHE_DEVICE_SIM_MEMORY_H
#define HPS_CACHE_DEVICE_SIM_MEMORY_H

#include <stdbool.h>

#include "cache/device/device.h"
#include "cache/device/sim/lock.h"

enum hps_sim_memory_kind {
    HPS_SIM_DEVICE,    /* device memory; counts towards limit_bytes; contents undefined */
    HPS_SIM_HOST,      /* host memory that hps_sim_memory_new allocates; zeroed */
    HPS_SIM_REGISTERED /* host memory of the caller (hps_sim_memory_register) */
};

struct hps_sim_memory {
    struct hps_sim_lock lock;
    struct hps_sim_range *ranges; /* list of allocations and registered areas */
    uint64_t limit_bytes;         /* size of the device memory */
    uint64_t used_bytes;          /* allocated device memory */
};

/* Allocate memory of the kind HPS_SIM_DEVICE or HPS_SIM_HOST. NO_MEMORY */
hps_status hps_sim_memory_new(struct hps_sim_memory *memory, enum hps_sim_memory_kind kind,
                              size_t size, void **out_ptr, struct hps_error *err) HPS_MUST_CHECK;
/* Register host memory of the caller. INVALID: `memory` already has an allocation or registered
 * area that overlaps it; NO_MEMORY. */
hps_status hps_sim_memory_register(struct hps_sim_memory *memory, void *host, size_t size,
                                   struct hps_error *err) HPS_MUST_CHECK;
/* Free an allocation, or end a registration. Aborts if no allocation or registered area of this
 * kind begins at ptr, or if the guard bytes of the allocation have changed. */
void hps_sim_memory_free(struct hps_sim_memory *memory, enum hps_sim_memory_kind kind, void *ptr);
/* Aborts if the `size` bytes at ptr are not all within one allocation or registered area, or if
 * `host` is true and they are device memory. what: the name of the operation, for the message. */
void hps_sim_memory_check(struct hps_sim_memory *memory, const void *ptr, size_t size, bool host,
                          const char *what);
/* Aborts if anything is still allocated or registered. */
void hps_sim_memory_fini(struct hps_sim_memory *memory);

#endif
