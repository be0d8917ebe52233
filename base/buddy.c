/* SPDX-License-Identifier: Apache-2.0
 *
 * Buddy allocator. Free pieces are in one list per size. One byte per 4 KiB gives the size of the
 * free piece that begins there. Threads: see the header.
 */
#include "base/buddy.h"

#include <string.h>

#include "base/assert.h"
#include "base/heap.h"

enum { N_ORDERS = 33, NOT_FREE = 0xff };

#define NONE UINT32_MAX

struct hps_buddy {
    uint32_t n_pages;
    uint32_t first[N_ORDERS]; /* free pieces of 2^order pages */
    uint8_t *order;           /* [n_pages] order of the free piece that begins there, or NOT_FREE */
    struct link {
        uint32_t next;
        uint32_t previous;
    } * links; /* [n_pages] of free pieces */
};

static void list_add(struct hps_buddy *buddy, uint32_t page, unsigned order)
{
    uint32_t next = buddy->first[order];

    HPS_ASSERT(order < N_ORDERS && buddy->order[page] == NOT_FREE);
    HPS_ASSERT(page % (UINT64_C(1) << order) == 0); /* pieces are aligned to their size */
    buddy->links[page] = (struct link){.next = next, .previous = NONE};
    if (next != NONE) {
        buddy->links[next].previous = page;
    }
    buddy->first[order] = page;
    buddy->order[page] = (uint8_t)order;
}

static void list_remove(struct hps_buddy *buddy, uint32_t page)
{
    struct link link = buddy->links[page];

    HPS_ASSERT(page < buddy->n_pages && buddy->order[page] != NOT_FREE);
    if (link.previous != NONE) {
        buddy->links[link.previous].next = link.next;
    } else {
        buddy->first[buddy->order[page]] = link.next;
    }
    if (link.next != NONE) {
        buddy->links[link.next].previous = link.previous;
    }
    buddy->order[page] = NOT_FREE;
}

/* Free the whole range, as the largest aligned pieces. */
static void free_all(struct hps_buddy *buddy)
{
    for (uint64_t page = 0; page < buddy->n_pages;) {
        unsigned order = page == 0 ? 32 : (unsigned)__builtin_ctzll(page);

        while (page + (UINT64_C(1) << order) > buddy->n_pages) {
            order--;
        }
        list_add(buddy, (uint32_t)page, order);
        page += UINT64_C(1) << order;
    }
}

struct hps_buddy *hps_buddy_new(uint64_t size)
{
    uint64_t n_pages = size >> HPS_BUDDY_PIECE_BITS_MIN;
    struct hps_buddy *buddy;

    if (n_pages == 0 || n_pages >= NONE) {
        return NULL;
    }
    buddy = hps_calloc(1, sizeof(*buddy));
    if (buddy == NULL) {
        return NULL;
    }
    buddy->n_pages = (uint32_t)n_pages;
    buddy->order = hps_alloc(n_pages);
    buddy->links = hps_alloc(n_pages * sizeof(*buddy->links));
    if (buddy->order == NULL || buddy->links == NULL) {
        hps_buddy_free(buddy);
        return NULL;
    }
    memset(buddy->order, NOT_FREE, n_pages);
    for (unsigned i = 0; i < N_ORDERS; i++) {
        buddy->first[i] = NONE;
    }
    free_all(buddy);
    return buddy;
}

void hps_buddy_free(struct hps_buddy *buddy)
{
    if (buddy != NULL) {
        hps_free(buddy->order);
        hps_free(buddy->links);
        hps_free(buddy);
    }
}

uint64_t hps_buddy_take(struct hps_buddy *buddy, unsigned bits)
{
    unsigned wanted = bits < HPS_BUDDY_PIECE_BITS_MIN ? 0 : bits - HPS_BUDDY_PIECE_BITS_MIN;
    unsigned order = wanted;

    while (order < N_ORDERS && buddy->first[order] == NONE) {
        order++;
    }
    if (order >= N_ORDERS) {
        return UINT64_MAX;
    }
    uint32_t page = buddy->first[order];
    list_remove(buddy, page);
    while (order > wanted) { /* take the lower half, free the upper one */
        order--;
        list_add(buddy, page + (UINT32_C(1) << order), order);
    }
    return (uint64_t)page << HPS_BUDDY_PIECE_BITS_MIN;
}

void hps_buddy_give(struct hps_buddy *buddy, uint64_t offset, unsigned bits)
{
    unsigned order = bits < HPS_BUDDY_PIECE_BITS_MIN ? 0 : bits - HPS_BUDDY_PIECE_BITS_MIN;
    uint64_t page = offset >> HPS_BUDDY_PIECE_BITS_MIN;

    HPS_ASSERT(order < N_ORDERS - 1 && page + (UINT64_C(1) << order) <= buddy->n_pages);
    HPS_ASSERT(buddy->order[page] == NOT_FREE);
    for (; order < N_ORDERS - 1; order++) {
        uint64_t other = page ^ UINT64_C(1) << order;

        if (other >= buddy->n_pages || buddy->order[other] != order) {
            break;
        }
        list_remove(buddy, (uint32_t)other);
        page &= ~(UINT64_C(1) << order);
    }
    list_add(buddy, (uint32_t)page, order);
}
