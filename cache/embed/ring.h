/* SPDX-License-Identifier: Apache-2.0
 *
 * A ring buffer: pieces of memory that are released in the order in which they are taken. The
 * struct only has positions and no memory, so one ring can describe two areas of equal size, on the
 * host and on the device. One thread.
 *
 * Positions only increase. A piece at position p begins at offset p % size. It never wraps around
 * the end: bytes at the end that are too few for it are skipped.
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

/* Take a piece of `bytes` (more than 0) of the area; *out_offset is its offset. Returns false, and
 * takes no piece, if too little is free. */
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

/* Release all pieces before `position`, a value of `head` after some piece was taken. */
static inline void hps_embed_ring_give(struct hps_embed_ring *ring, uint64_t position)
{
    HPS_ASSERT(position <= ring->head);
    if (position > ring->tail) {
        ring->tail = position;
    }
}

#endif
