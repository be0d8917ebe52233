/* SPDX-License-Identifier: Apache-2.0
 *
 * Buddy allocator: pieces of one fixed range, in powers of two. Its state is kept outside the
 * range, so the range may be registered with a driver or poisoned while free. One thread at a time.
 */
#ifndef HPS_BASE_BUDDY_H
#define HPS_BASE_BUDDY_H

#include <stddef.h>
#include <stdint.h>

struct hps_buddy;

enum { HPS_BUDDY_PIECE_BITS_MIN = 12 };

/* Manages offsets below `size`, in whole pieces of 4 KiB. NULL: no memory, or `size` has no whole
 * piece or 2^32 - 1 or more. */
struct hps_buddy *hps_buddy_new(uint64_t size);
void hps_buddy_free(struct hps_buddy *buddy); /* no effect if NULL */

/* The offset of a piece of 2^bits bytes, a multiple of its size. UINT64_MAX: no such piece is free.
 */
uint64_t hps_buddy_take(struct hps_buddy *buddy, unsigned bits);
void hps_buddy_give(struct hps_buddy *buddy, uint64_t offset, unsigned bits);

#endif
