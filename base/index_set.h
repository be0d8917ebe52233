/* SPDX-License-Identifier: Apache-2.0
 *
 * A set of numbered items, by open addressing with linear probing: for what is made, asked and
 * forgotten at once, as the keys of a batch. The set keeps numbers alone; the caller has the items,
 * hashes and compares them. Nothing is removed. Used by one thread at a time.
 */
#ifndef HPS_BASE_INDEX_SET_H
#define HPS_BASE_INDEX_SET_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/assert.h"

struct hps_index_set {
    uint32_t *places; /* [mask + 1] 0: free; else the number of an item, plus one */
    uint64_t mask;
};

/* How many places to have for n_items, so that at most half of them are taken: a power of two. */
static inline uint64_t hps_index_set_places(uint64_t n_items)
{
    uint64_t n_places = 16;

    while (n_places < 2 * n_items) {
        n_places *= 2;
    }
    return n_places;
}

/* Empty, over memory of the caller's that lives as long as the set. */
static inline void hps_index_set_init(struct hps_index_set *set, uint32_t *places,
                                      uint64_t n_places)
{
    HPS_ASSERT(n_places > 0 && (n_places & (n_places - 1)) == 0);
    memset(places, 0, n_places * sizeof(*places));
    *set = (struct hps_index_set){.places = places, .mask = n_places - 1};
}

/* The place of the item that is(ctx, item) says yes to, of those with this hash; or the free place
 * where it belongs, which the caller fills with the item's number plus one. Inline, and so is `is`
 * when it is static: as fast as a loop written out. */
static inline __attribute__((always_inline)) uint32_t *hps_index_set_find(
    const struct hps_index_set *set, uint64_t hash, bool (*is)(const void *ctx, uint32_t item),
    const void *ctx)
{
    uint64_t at = hash & set->mask;

    while (set->places[at] != 0 && !is(ctx, set->places[at] - 1)) {
        at = (at + 1) & set->mask;
    }
    return &set->places[at];
}

#endif
