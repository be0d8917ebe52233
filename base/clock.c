/* SPDX-License-Identifier: Apache-2.0
 *
 * The clocks of the kernel, or a frozen clock for tests. Any thread.
 */
#include "base/clock.h"

#include <stdatomic.h>
#include <time.h>

#include "base/assert.h"

static _Atomic uint64_t fake_us; /* 0: use the kernel's clocks */

uint64_t hps_clock_us(void)
{
    uint64_t fake = atomic_load_explicit(&fake_us, memory_order_acquire);
    if (fake != 0) {
        return fake;
    }
    struct timespec now;
    int rc = clock_gettime(CLOCK_MONOTONIC, &now);
    HPS_ASSERT(rc == 0);
    uint64_t us = (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
    return us != 0 ? us : 1;
}

uint64_t hps_clock_wall_ms(void)
{
    uint64_t fake = atomic_load_explicit(&fake_us, memory_order_acquire);
    if (fake != 0) {
        return fake / 1000;
    }
    struct timespec now;
    int rc = clock_gettime(CLOCK_REALTIME, &now);
    HPS_ASSERT(rc == 0);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

void hps_clock_fake(uint64_t now_us)
{
    HPS_ASSERT(now_us != 0);
    atomic_store_explicit(&fake_us, now_us, memory_order_release);
}

void hps_clock_advance(uint64_t delta_us)
{
    uint64_t before = atomic_fetch_add_explicit(&fake_us, delta_us, memory_order_acq_rel);
    HPS_ASSERT(before != 0);
}

void hps_clock_real(void)
{
    atomic_store_explicit(&fake_us, 0, memory_order_release);
}
