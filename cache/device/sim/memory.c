/* SPDX-License-Identifier: Apache-2.0
 *
 * A list of allocations and registered areas; it has tens of entries. Any thread.
 */
#include "cache/device/sim/memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/heap.h"
#include "base/poison.h"

enum {
    ALIGN = 256,
    UNDEFINED_BYTE = 0xa5,
    UNDEFINED_BYTES_MAX = 1 << 20, /* of an allocation: to save time and memory */
    GUARD_BYTE = 0xc9,
    GUARD_BYTES = ALIGN, /* on each side */
};

struct hps_sim_range {
    struct hps_sim_range *next;
    void *block; /* including the guards; NULL: the caller's memory */
    uint8_t *begin;
    size_t size;
    enum hps_sim_memory_kind kind;
};

__attribute__((noreturn, cold, format(printf, 1, 2))) static void fail(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    fputs("hps: simulated device: ", stderr);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fputc('\n', stderr);
    abort();
}

static void range_add(struct hps_sim_memory *memory, struct hps_sim_range *range)
{
    range->next = memory->ranges;
    memory->ranges = range;
}

hps_status hps_sim_memory_new(struct hps_sim_memory *memory, enum hps_sim_memory_kind kind,
                              size_t size, void **out_ptr, struct hps_error *err)
{
    hps_sim_lock(&memory->lock);
    uint64_t free_bytes = memory->limit_bytes - memory->used_bytes;
    bool fits = kind != HPS_SIM_DEVICE || size <= free_bytes;
    if (fits && kind == HPS_SIM_DEVICE) {
        memory->used_bytes += size;
    }
    hps_sim_unlock(&memory->lock);
    if (!fits) {
        return hps_error_set(err, HPS_NO_MEMORY,
                             "device memory: %zu bytes are needed, %" PRIu64 " of %" PRIu64
                             " are free",
                             size, free_bytes, memory->limit_bytes);
    }
    struct hps_sim_range *range = hps_calloc(1, sizeof(*range));
    /* calloc: untouched pages take no memory. */
    uint8_t *block = size > SIZE_MAX / 2 ? NULL : hps_calloc(1, size + 2 * GUARD_BYTES + ALIGN - 1);
    if (range == NULL || block == NULL) {
        hps_free(range);
        hps_free(block);
        hps_sim_lock(&memory->lock);
        memory->used_bytes -= kind == HPS_SIM_DEVICE ? size : 0;
        hps_sim_unlock(&memory->lock);
        return hps_error_set(err, HPS_NO_MEMORY, "simulated device: %zu bytes: no memory", size);
    }
    uint8_t *begin = block + GUARD_BYTES + -(uintptr_t)block % ALIGN;
    if (kind != HPS_SIM_HOST) {
        memset(begin, UNDEFINED_BYTE, size < UNDEFINED_BYTES_MAX ? size : UNDEFINED_BYTES_MAX);
    }
    memset(begin - GUARD_BYTES, GUARD_BYTE, GUARD_BYTES);
    memset(begin + size, GUARD_BYTE, GUARD_BYTES);
    HPS_POISON(begin - GUARD_BYTES, GUARD_BYTES);
    HPS_POISON(begin + size, GUARD_BYTES);
    *range = (struct hps_sim_range){NULL, block, begin, size, kind};
    hps_sim_lock(&memory->lock);
    range_add(memory, range);
    hps_sim_unlock(&memory->lock);
    *out_ptr = begin;
    return HPS_OK;
}

hps_status hps_sim_memory_register(struct hps_sim_memory *memory, void *host, size_t size,
                                   struct hps_error *err)
{
    struct hps_sim_range *range = hps_calloc(1, sizeof(*range));
    if (range == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "simulated device: no memory");
    }
    *range = (struct hps_sim_range){NULL, NULL, host, size, HPS_SIM_REGISTERED};
    hps_sim_lock(&memory->lock);
    const struct hps_sim_range *other = memory->ranges;
    while (other != NULL &&
           (other->begin >= range->begin + size || range->begin >= other->begin + other->size)) {
        other = other->next;
    }
    if (other == NULL) {
        range_add(memory, range);
    }
    hps_sim_unlock(&memory->lock);
    if (other != NULL) {
        hps_free(range);
        return hps_error_set(err, HPS_INVALID,
                             "host memory at %p, %zu bytes: part of it is registered already", host,
                             size);
    }
    return HPS_OK;
}

static void guard_check(const struct hps_sim_range *range)
{
    const uint8_t *before = range->begin - GUARD_BYTES;
    const uint8_t *behind = range->begin + range->size;
    HPS_UNPOISON(before, GUARD_BYTES);
    HPS_UNPOISON(behind, GUARD_BYTES);
    for (size_t i = 0; i < GUARD_BYTES; i++) {
        if (behind[i] != GUARD_BYTE) {
            fail("a store past the end of an allocation of %zu bytes, at offset %zu", range->size,
                 range->size + i);
        }
        if (before[i] != GUARD_BYTE) {
            fail("a store before an allocation of %zu bytes, at offset -%zu", range->size,
                 GUARD_BYTES - i);
        }
    }
}

void hps_sim_memory_free(struct hps_sim_memory *memory, enum hps_sim_memory_kind kind, void *ptr)
{
    hps_sim_lock(&memory->lock);
    struct hps_sim_range **at = &memory->ranges;
    while (*at != NULL && ((*at)->begin != ptr || (*at)->kind != kind)) {
        at = &(*at)->next;
    }
    struct hps_sim_range *range = *at;
    if (range != NULL) {
        *at = range->next;
        memory->used_bytes -= kind == HPS_SIM_DEVICE ? range->size : 0;
    }
    hps_sim_unlock(&memory->lock);
    if (range == NULL) {
        fail("%p is freed, but is no memory of that kind", ptr);
    }
    if (kind != HPS_SIM_REGISTERED) {
        guard_check(range);
        hps_free(range->block);
    }
    hps_free(range);
}

void hps_sim_memory_check(struct hps_sim_memory *memory, const void *ptr, size_t size, bool host,
                          const char *what)
{
    const uint8_t *begin = ptr;
    hps_sim_lock(&memory->lock);
    const struct hps_sim_range *range = memory->ranges;
    while (range != NULL && (begin < range->begin || begin >= range->begin + range->size)) {
        range = range->next;
    }
    size_t left = range == NULL ? 0 : (size_t)(range->begin + range->size - begin);
    bool wrong_kind = range != NULL && host && range->kind == HPS_SIM_DEVICE;
    hps_sim_unlock(&memory->lock);
    if (range == NULL) {
        fail("%s: %p is neither memory of the device nor registered", what, ptr);
    }
    if (wrong_kind) {
        fail("%s: %p is memory of the device, not of the host", what, ptr);
    }
    if (size > left) {
        fail("%s: %zu bytes at %p, of which the last %zu lie past the end of the allocation", what,
             size, ptr, size - left);
    }
}

void hps_sim_memory_fini(struct hps_sim_memory *memory)
{
    if (memory->ranges != NULL) {
        fail("closed while %zu bytes are allocated or registered", memory->ranges->size);
    }
}
