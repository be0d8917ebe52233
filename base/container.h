/* SPDX-License-Identifier: Apache-2.0
 *
 * From a member to the struct that it is part of: for tasks, waiters and the like, which whoever
 * calls back knows only by their own type. Any thread.
 */
#ifndef HPS_BASE_CONTAINER_H
#define HPS_BASE_CONTAINER_H

#include <stddef.h>

/* The `type` whose `member` (which may be a member of a member) ptr points to. A ptr that is not of
 * the member's type does not compile. */
#define HPS_CONTAINER_OF(ptr, type, member) \
    ((type *)(void *)((char *)(1 ? (ptr) : &((type *)NULL)->member) - offsetof(type, member)))

#endif
