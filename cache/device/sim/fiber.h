/* SPDX-License-Identifier: Apache-2.0
 *
 * Fibers: stacks between which a thread switches in a few nanoseconds. The simulated device runs
 * each thread of a kernel on one. AddressSanitizer is notified of every switch. For ThreadSanitizer
 * each fiber is a separate thread, and a switch orders nothing (see simt.c).
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
#define HPS_FIBER_BARE /* a switch only changes the stack */
#endif

struct hps_fiber;

/* A fiber for the calling thread itself, to switch away from and back to. */
hps_status hps_fiber_of_thread(struct hps_fiber **out_fiber) HPS_MUST_CHECK;
/* The first switch to the fiber calls run(arg), which must never return. A guard page below the
 * stack turns an overflow into a crash. `index` shifts the start of the stack, so that the stacks
 * of many fibers do not compete for the same cache lines. */
hps_status hps_fiber_new(size_t stack_bytes, unsigned index, void (*run)(void *arg), void *arg,
                         struct hps_fiber **out_fiber) HPS_MUST_CHECK;
/* Not for the running fiber. No effect if NULL. */
void hps_fiber_free(struct hps_fiber *fiber);
#if defined(HPS_TSAN)
/* HPS_ORDER_RELEASE(address) on behalf of `fiber`, while `self` runs. */
void hps_fiber_release(const struct hps_fiber *self, const struct hps_fiber *fiber,
                       uint64_t *address);
#endif
/* Switch from the running fiber `from` to `to`. Returns when a fiber switches to `from`. */
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
