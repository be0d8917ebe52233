/* SPDX-License-Identifier: Apache-2.0
 *
 * Annotations for ThreadSanitizer and AddressSanitizer: which work is ordered before which, and
 * which stack a thread uses. Empty in other builds.
 *
 * The files of the simulator (fiber.c, simt.c, device.c) are not instrumented. So ThreadSanitizer
 * sees no order from their locks and queues, but only from the annotations here.
 */
#ifndef HPS_CACHE_DEVICE_SIM_SANITIZE_H
#define HPS_CACHE_DEVICE_SIM_SANITIZE_H

#if defined(HPS_TSAN)
#include <sanitizer/tsan_interface.h>
/* Everything before HPS_ORDER_RELEASE(x) happens before what follows HPS_ORDER_ACQUIRE(x). */
#define HPS_ORDER_RELEASE(address) __tsan_release(address)
#define HPS_ORDER_ACQUIRE(address) __tsan_acquire(address)
#else
#define HPS_ORDER_RELEASE(address) ((void)(address))
#define HPS_ORDER_ACQUIRE(address) ((void)(address))
#endif

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

#endif
