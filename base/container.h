/* SPDX-License-Identifier: Apache-2.0
 *
 * Computes the address of a struct from the address of one of its members. Callbacks that get only
 * the member (a task, a waiter) use it. Any thread.
 */
#ifndef HPS_BASE_CONTAINER_H
#define HPS_BASE_CONTAINER_H

#include <stddef.h>

/* The struct `type` whose `member` is at ptr. `member` may be nested (a.b). If ptr has another type
 * than the member, the code does not compile. */
#define HPS_CONTAINER_OF(ptr, type, member) \
    ((type *)(void *)((char *)(1 ? (ptr) : &((type *)NULL)->member) - offsetof(type, member)))

#endif
