/* SPDX-License-Identifier: Apache-2.0
 *
 * Fibers: stacks that a thread switches between, in a few nanoseconds. The simulated device runs
 * each thread of a kernel on one. AddressSanitizer is notified of every switch; to ThreadSanitizer
 * each fiber is a thread of its own, and a switch orders nothing (simt.c says what does).
 *
 * Thread: a fiber belongs to the thread that made it.
 */
#ifndef HPS_CACHE_DEVICE_SIM_FIBER_H
#define HPS_CACHE_DEVICE_SIM_FIBER_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#if !defined(__SANITIZE_ADDRESS__) && !defined(HPS_TSAN) && \
    (defined(__x86_64__) || defined(__aarch64__))
#define HPS_FIBER_BARE /* a switch is nothing but a change of stacks */
#endif

struct hps_fiber;

/* A fiber that stands for the calling thread itself, to switch away from and back to. */
hps_status hps_fiber_of_thread(struct hps_fiber **out_fiber) HPS_MUST_CHECK;
/* The first switch to it calls run(arg), which must never return. Below the stack lies a page that
 * must not be touched: an overflow is a crash, not a corruption. `index` shifts where the stack
 * begins, so that the stacks of many fibers do not compete for the same lines of the cache. */
hps_status hps_fiber_new(size_t stack_bytes, unsigned index, void (*run)(void *arg), void *arg,
                         struct hps_fiber **out_fiber) HPS_MUST_CHECK;
/* Not the one that runs. NULL is legal. */
void hps_fiber_free(struct hps_fiber *fiber);
#if defined(HPS_TSAN)
/* Say HPS_ORDER_RELEASE(address) for `fiber`, which does not run: `self` does. */
void hps_fiber_release(const struct hps_fiber *self, const struct hps_fiber *fiber,
                       uint64_t *address);
#endif
/* Leave `from`, which runs, for `to`; returns when somebody switches to `from`. */
#if defined(HPS_FIBER_BARE)
/* A fiber begins with its saved stack pointer. */
void hps_fiber_swap(void **from_sp, void *to_sp);
static inline void hps_fiber_switch(struct hps_fiber *from, struct hps_fiber *to)
{
    hps_fiber_swap((void **)from, *(void **)to);
}
#else
void hps_fiber_switch(struct hps_fiber *from, struct hps_fiber *to);
#endif

#endif
