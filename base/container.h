/* SPDX-License-Identifier: Apache-2.0
 *
 * The struct that a member is embedded in, from the member's address: for callbacks, which get the
 * address of a member only (a task, a waiter). Any thread.
 */
#ifndef HPS_BASE_CONTAINER_H
#define HPS_BASE_CONTAINER_H

#include <stddef.h>

/* The `type` whose `member` (which may be a member of a member) ptr points to. A ptr that is not of
 * the member's type does not compile. */
#define HPS_CONTAINER_OF(ptr, type, member) \
    ((type *)(void *)((char *)(1 ? (ptr) : &((type *)NULL)->member) - offsetof(type, member)))

#endif
