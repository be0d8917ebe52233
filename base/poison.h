/* SPDX-License-Identifier: Apache-2.0
 *
 * Marks free bytes of pooled memory for AddressSanitizer. AddressSanitizer then reports memory that
 * is used after an arena was reset, or a block released. No effect in builds without it.
 */
#ifndef HPS_BASE_POISON_H
#define HPS_BASE_POISON_H

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define HPS_POISON(ptr, size)   __asan_poison_memory_region((ptr), (size))
#define HPS_UNPOISON(ptr, size) __asan_unpoison_memory_region((ptr), (size))
#else
#define HPS_POISON(ptr, size)   ((void)(ptr), (void)(size))
#define HPS_UNPOISON(ptr, size) ((void)(ptr), (void)(size))
#endif

#endif
