/* SPDX-License-Identifier: Apache-2.0
 *
 * A ring buffer: pieces of memory that are released in the order in which they are taken. The
 * struct only has positions and no memory, so one ring can describe two areas of equal size, on the
 * host and on the device. Only one thread may use a ring.
 *
 * Positions only increase. A piece at position p begins at offset p % size. No piece wraps around
 * the end of the area. If too few bytes are left before the end, they are skipped.
 */
#ifndef HPS_CACHE_EMBED_RING_H
#define HPS_CACHE_EMBED_RING_H

#include <stdbool.h>
#include <stdint.h>

#include "base/assert.h"

struct hps_embed_ring {
    uint64_t size; /* size of the area in bytes */
    uint64_t head; /* position after the last piece taken */
    uint64_t tail; /* position up to which pieces have been released */
};

/* Take a piece of `bytes` (more than 0) of the area; *out_offset is the offset of the piece.
 * Returns false, and takes no piece, if the free memory is too small. */
static inline bool hps_embed_ring_take(struct hps_embed_ring *ring, uint64_t bytes,
                                       uint64_t *out_offset)
{
    uint64_t head = ring->head, to_end = ring->size - head % ring->size;

    HPS_ASSERT(bytes > 0 && ring->tail <= head && head - ring->tail <= ring->size);
    if (bytes > ring->size) {
        return false;
    }
    if (head == ring->tail) { /* empty: continue at the start */
        head += head % ring->size == 0 ? 0 : to_end;
        ring->tail = head;
    } else if (bytes > to_end) {
        head += to_end;
    }
    if (head + bytes - ring->tail > ring->size) {
        return false;
    }
    ring->head = head + bytes;
    *out_offset = head % ring->size;
    return true;
}

/* Release all pieces before `position`, which is the start of a piece or an earlier value of
 * `head`. */
static inline void hps_embed_ring_give(struct hps_embed_ring *ring, uint64_t position)
{
    HPS_ASSERT(position <= ring->head);
    if (position > ring->tail) {
        ring->tail = position;
    }
}

#endif
