/* SPDX-License-Identifier: Apache-2.0
 *
 * What the simulated device tells ThreadSanitizer and AddressSanitizer: which work is ordered
 * before which, and on which stack a thread runs. Nothing in other builds.
 *
 * The files of the simulator itself (fiber.c, simt.c, device.c) are not instrumented, so that
 * their own locks and queues order nothing in ThreadSanitizer's eyes. Only what is said here does.
 */
#ifndef HPS_CACHE_DEVICE_SIM_SANITIZE_H
#define HPS_CACHE_DEVICE_SIM_SANITIZE_H

#if defined(HPS_TSAN)
#include <sanitizer/tsan_interface.h>
/* What the caller did before HPS_ORDER_RELEASE(x) is before what follows a HPS_ORDER_ACQUIRE(x). */
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
