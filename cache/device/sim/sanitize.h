/* SPDX-License-Identifier: Apache-2.0
 *
 * Annotations for ThreadSanitizer and AddressSanitizer: which memory accesses are ordered, and
 * which stack a thread uses. They have no effect in other builds.
 *
 * The files of the simulator (fiber.c, simt.c, device.c) are compiled without ThreadSanitizer. So
 * ThreadSanitizer learns about order only from these annotations, and not from the locks and queues
 * of the simulator.
 */
#ifndef HPS_CACHE_DEVICE_SIM_SANITIZE_H
#define HPS_CACHE_DEVICE_SIM_SANITIZE_H

#if defined(HPS_TSAN)
#include <sanitizer/tsan_interface.h>
/* For ThreadSanitizer, all accesses of a thread before HPS_ORDER_RELEASE(x) happen before the
 * accesses of a thread after a later HPS_ORDER_ACQUIRE(x). */
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
