/* SPDX-License-Identifier: Apache-2.0
 *
 * From the address of a member to the struct that contains it, for callbacks that get only the
 * member (a task, a waiter). Any thread.
 */
#ifndef HPS_BASE_CONTAINER_H
#define HPS_BASE_CONTAINER_H

#include <stddef.h>

/* The `type` that contains the `member` (which may be nested) at ptr. A ptr of another type does
 * not compile. */
#define HPS_CONTAINER_OF(ptr, type, member) \
    ((type *)(void *)((char *)(1 ? (ptr) : &((type *)NULL)->member) - offsetof(type, member)))

#endif
