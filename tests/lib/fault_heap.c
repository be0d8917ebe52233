/* SPDX-License-Identifier: Apache-2.0
 *
 * The failing heap of the tests. It stands where libc's heap stands, so it is the one file of the
 * tests that calls malloc.
 */
#include "tests/lib/fault_heap.h"

#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/heap.h"

static atomic_size_t attempts;
static atomic_size_t live;
static atomic_size_t live_bytes;
static size_t fail_at;

static _Thread_local bool starving;

static bool fails_now(void)
{
    return atomic_fetch_add(&attempts, 1) + 1 == fail_at || starving;
}

static void *count_live(void *ptr)
{
    if (ptr != NULL) {
        atomic_fetch_add(&live, 1);
        atomic_fetch_add(&live_bytes, malloc_usable_size(ptr));
    }
    return ptr;
}

static void *fault_alloc(void *ctx, size_t size)
{
    (void)ctx;
    return count_live(fails_now() ? NULL : malloc(size));
}

static void *fault_calloc(void *ctx, size_t size)
{
    (void)ctx;
    return count_live(fails_now() ? NULL : calloc(1, size));
}

static void *fault_realloc(void *ctx, void *ptr, size_t size)
{
    (void)ctx;
    size_t before = malloc_usable_size(ptr);
    void *moved = fails_now() ? NULL : realloc(ptr, size);
    if (moved != NULL) {
        atomic_fetch_add(&live, ptr == NULL ? 1 : 0);
        atomic_fetch_add(&live_bytes, malloc_usable_size(moved) - before);
    }
    return moved;
}

static void fault_free(void *ctx, void *ptr)
{
    (void)ctx;
    atomic_fetch_sub(&live, 1);
    atomic_fetch_sub(&live_bytes, malloc_usable_size(ptr));
    free(ptr);
}

static const struct hps_heap fault_heap = {NULL, fault_alloc, fault_calloc, fault_realloc,
                                           fault_free};

void hps_fault_heap_install(size_t which)
{
    atomic_store(&attempts, 0);
    atomic_store(&live, 0);
    atomic_store(&live_bytes, 0);
    fail_at = which;
    hps_heap_set(&fault_heap);
}

void hps_fault_heap_starve(bool starves)
{
    starving = starves;
}

void hps_fault_heap_remove(void)
{
    hps_heap_set(NULL);
}

size_t hps_fault_heap_allocations(void)
{
    return atomic_load(&attempts);
}

size_t hps_fault_heap_live(void)
{
    return atomic_load(&live);
}

size_t hps_fault_heap_live_bytes(void)
{
    return atomic_load(&live_bytes);
}

static size_t run_once(void (*scenario)(void *ctx), void *ctx, size_t which)
{
    hps_fault_heap_install(which);
    scenario(ctx);
    hps_fault_heap_remove();
    if (hps_fault_heap_live() != 0) {
        fail_msg("%zu blocks leaked when allocation %zu failed", hps_fault_heap_live(), which);
    }
    return hps_fault_heap_allocations();
}

size_t hps_fault_heap_run(void (*scenario)(void *ctx), void *ctx)
{
    size_t n = run_once(scenario, ctx, 0);
    size_t step = n > HPS_FAULT_HEAP_MANY ? HPS_FAULT_HEAP_STEP : 1;
    for (size_t i = 1; i <= n; i += step) {
        run_once(scenario, ctx, i);
    }
    return n;
}
