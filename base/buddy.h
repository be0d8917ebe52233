/* SPDX-License-Identifier: Apache-2.0
 *
 * Buddy allocator: divides one fixed range into pieces with sizes that are powers of two. It
 * returns offsets and never accesses the range. So the range may be device memory, or memory that
 * AddressSanitizer poisons while it is free. An allocator may be used by one thread at a time.
 */
#ifndef HPS_BASE_BUDDY_H
#define HPS_BASE_BUDDY_H

#include <stddef.h>
#include <stdint.h>

struct hps_buddy;

enum { HPS_BUDDY_PIECE_BITS_MIN = 12 }; /* the smallest piece has 4 KiB */

/* Manage the offsets below `size`, rounded down to a multiple of 4 KiB. `size` must be at least 4
 * KiB and less than (2^32 - 1) * 4 KiB. NULL: no memory, or `size` is not in this range. */
struct hps_buddy *hps_buddy_new(uint64_t size);
void hps_buddy_free(struct hps_buddy *buddy); /* no effect if NULL */

/* Allocate a piece of 2^bits bytes, or of 4 KiB if that is larger. Returns its offset, a multiple
 * of its size. UINT64_MAX: no such piece is free. */
uint64_t hps_buddy_take(struct hps_buddy *buddy, unsigned bits);
/* Free a piece that hps_buddy_take returned for the same `bits`. */
void hps_buddy_give(struct hps_buddy *buddy, uint64_t offset, unsigned bits);

#endif
