/* SPDX-License-Identifier: Apache-2.0
 *
 * Fibers: stacks between which a thread switches in a few nanoseconds. The simulated device runs
 * each thread of a kernel on a fiber. AddressSanitizer is notified of every switch. For
 * ThreadSanitizer each fiber is a separate thread, and a switch does not order memory (see simt.c).
 *
 * Thread: only the thread that made a fiber may use it.
 */
#ifndef HPS_CACHE_DEVICE_SIM_FIBER_H
#define HPS_CACHE_DEVICE_SIM_FIBER_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#if !defined(__SANITIZE_ADDRESS__) && !defined(HPS_TSAN) && \
    (defined(__x86_64__) || defined(__aarch64__))
#define HPS_FIBER_BARE /* no sanitizer to notify: a switch only changes the stack */
#endif

struct hps_fiber;

/* Make a fiber for the stack on which the calling thread runs. The thread needs it to switch to
 * other fibers and back. NO_MEMORY */
hps_status hps_fiber_of_thread(struct hps_fiber **out_fiber) HPS_MUST_CHECK;
/* Make a fiber with a stack of its own. The first switch to it calls run(arg), which must never
 * return. A guard page below the stack turns an overflow into a crash. Fibers with different
 * `index` have different stack offsets, so that their stacks do not compete for the same cache
 * lines. NO_MEMORY */
hps_status hps_fiber_new(size_t stack_bytes, unsigned index, void (*run)(void *arg), void *arg,
                         struct hps_fiber **out_fiber) HPS_MUST_CHECK;
/* Free a fiber that is not running. No effect if NULL. */
void hps_fiber_free(struct hps_fiber *fiber);
#if defined(HPS_TSAN)
/* Like HPS_ORDER_RELEASE(address) (sanitize.h), but ThreadSanitizer attributes it to `fiber`. The
 * running fiber, `self`, calls it. */
void hps_fiber_release(const struct hps_fiber *self, const struct hps_fiber *fiber,
                       uint64_t *address);
#endif
/* Switch from the running fiber `from` to `to`. Returns when a fiber switches back to `from`. */
#if defined(HPS_FIBER_BARE)
/* Save the stack pointer in *from_sp, and switch to the stack pointer to_sp. The first member of
 * struct hps_fiber is its saved stack pointer. */
void hps_fiber_swap(void **from_sp, void *to_sp);
static inline void hps_fiber_switch(struct hps_fiber *from, struct hps_fiber *to)
{
    hps_fiber_swap((void **)from, *(void **)to);
}
#else
void hps_fiber_switch(struct hps_fiber *from, struct hps_fiber *to);
#endif

#endif
