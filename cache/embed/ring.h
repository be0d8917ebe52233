/* SPDX-License-Identifier: Apache-2.0
 *
 * Pieces of a ring of bytes, taken in order and given back in that order. No memory of its own: it
 * only counts, so that one ring can stand for the same bytes of host and device. One thread.
 *
 * Positions grow for ever; a piece lies at position % size and never wraps around the end: what is
 * left there is skipped.
 */
#ifndef HPS_CACHE_EMBED_RING_H
#define HPS_CACHE_EMBED_RING_H

#include <stdbool.h>
#include <stdint.h>

#include "base/assert.h"

struct hps_embed_ring {
    uint64_t size;
    uint64_t head; /* position behind what was taken last */
    uint64_t tail; /* what is before has been given back */
};

/* A piece of `bytes` (0 < bytes): its offset in the ring. False: no room; nothing changes. */
static inline bool hps_embed_ring_take(struct hps_embed_ring *ring, uint64_t bytes,
                                       uint64_t *out_offset)
{
    uint64_t head = ring->head, to_end = ring->size - head % ring->size;

    HPS_ASSERT(bytes > 0 && ring->tail <= head && head - ring->tail <= ring->size);
    if (bytes > ring->size) {
        return false;
    }
    if (head == ring->tail) { /* empty: begin anywhere */
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

/* All that was taken before the head was at `position` is free. */
static inline void hps_embed_ring_give(struct hps_embed_ring *ring, uint64_t position)
{
    HPS_ASSERT(position <= ring->head);
    if (position > ring->tail) {
        ring->tail = position;
    }
}

#endif
