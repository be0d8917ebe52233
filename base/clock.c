/* SPDX-License-Identifier: Apache-2.0
 *
 * The clocks of the kernel, or a frozen clock for tests. Any thread.
 */
#include "base/clock.h"

#include <stdatomic.h>
#include <time.h>

#include "base/assert.h"

static _Atomic uint64_t fake_us;      /* 0: use the kernel's clocks */
static _Atomic int64_t fake_wall_us;  /* the fake wall clock less fake_us */
static _Atomic uint64_t preempted_us; /* fake_us less the fake CPU time */

/* The forward clock less hps_clock_us: the highest value of the wall clock less hps_clock_us that
 * was read. It only grows. */
static _Atomic int64_t forward_us = INT64_MIN;

static uint64_t read_us(clockid_t clock)
{
    struct timespec now;
    int rc = clock_gettime(clock, &now);
    HPS_ASSERT(rc == 0);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

uint64_t hps_clock_us(void)
{
    uint64_t fake = atomic_load_explicit(&fake_us, memory_order_acquire);
    if (fake != 0) {
        return fake;
    }
    uint64_t us = read_us(CLOCK_MONOTONIC);
    return us != 0 ? us : 1;
}

uint64_t hps_clock_cpu_us(void)
{
    uint64_t fake = atomic_load_explicit(&fake_us, memory_order_acquire);
    return fake != 0 ? fake - atomic_load_explicit(&preempted_us, memory_order_relaxed)
                     : read_us(CLOCK_THREAD_CPUTIME_ID);
}

static int64_t wall_us(void)
{
    uint64_t fake = atomic_load_explicit(&fake_us, memory_order_acquire);
    if (fake != 0) {
        return (int64_t)fake + atomic_load_explicit(&fake_wall_us, memory_order_relaxed);
    }
    return (int64_t)read_us(CLOCK_REALTIME);
}

uint64_t hps_clock_wall_ms(void)
{
    return (uint64_t)wall_us() / 1000;
}

/* Returns the forward clock in microseconds. */
static int64_t forward_read(int64_t *out_wall_us)
{
    int64_t wall = wall_us();
    int64_t now = (int64_t)hps_clock_us(); /* read last: a delay between the two adds nothing */
    int64_t offset = wall - now;
    int64_t highest = atomic_load_explicit(&forward_us, memory_order_relaxed);
    while (offset > highest &&
           !atomic_compare_exchange_weak_explicit(&forward_us, &highest, offset,
                                                  memory_order_relaxed, memory_order_relaxed)) {
    }
    *out_wall_us = wall;
    return now + (offset > highest ? offset : highest);
}

int64_t hps_clock_forward_ms(void)
{
    int64_t wall;
    return forward_read(&wall) / 1000;
}

int64_t hps_clock_wall_of(int64_t forward_ms)
{
    int64_t wall;
    int64_t ahead_ms = (forward_read(&wall) - wall) / 1000;
    return forward_ms > ahead_ms ? forward_ms - ahead_ms : 0;
}

/* now_us: 0 to use the kernel's clocks. */
static void fake_set(uint64_t now_us)
{
    atomic_store_explicit(&fake_wall_us, 0, memory_order_relaxed);
    atomic_store_explicit(&preempted_us, 0, memory_order_relaxed);
    atomic_store_explicit(&fake_us, now_us, memory_order_release);
    atomic_store_explicit(&forward_us, INT64_MIN, memory_order_relaxed);
}

void hps_clock_fake(uint64_t now_us)
{
    HPS_ASSERT(now_us != 0);
    fake_set(now_us);
}

void hps_clock_advance(uint64_t delta_us)
{
    uint64_t before = atomic_fetch_add_explicit(&fake_us, delta_us, memory_order_acq_rel);
    HPS_ASSERT(before != 0);
}

void hps_clock_preempt(uint64_t delta_us)
{
    hps_clock_advance(delta_us);
    atomic_fetch_add_explicit(&preempted_us, delta_us, memory_order_relaxed);
}

void hps_clock_wall_shift(int64_t delta_ms)
{
    HPS_ASSERT(atomic_load(&fake_us) != 0);
    atomic_fetch_add_explicit(&fake_wall_us, delta_ms * 1000, memory_order_relaxed);
}

void hps_clock_real(void)
{
    fake_set(0);
}
