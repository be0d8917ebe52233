/* SPDX-License-Identifier: Apache-2.0
 *
 * Pieces of one fixed range, in powers of two: a buddy allocator that keeps its books outside of
 * the range, so that the range may be memory that others watch over (registered with a driver,
 * poisoned while free). One thread at a time.
 */
#ifndef HPS_BASE_BUDDY_H
#define HPS_BASE_BUDDY_H

#include <stddef.h>
#include <stdint.h>

struct hps_buddy;

enum { HPS_BUDDY_PIECE_BITS_MIN = 12 };

/* Offsets below `size`, of which whole pieces of 4 KiB are used; at most 2^32 - 1 of them. NULL: no
 * memory, or nothing to use. */
struct hps_buddy *hps_buddy_new(uint64_t size);
void hps_buddy_free(struct hps_buddy *buddy); /* NULL is legal */

/* A piece of 2^bits bytes, aligned to that (from offset 0). UINT64_MAX: there is none. */
uint64_t hps_buddy_take(struct hps_buddy *buddy, unsigned bits);
void hps_buddy_give(struct hps_buddy *buddy, uint64_t offset, unsigned bits);

#endif
