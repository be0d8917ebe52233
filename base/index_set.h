/* SPDX-License-Identifier: Apache-2.0
 *
 * A hash set of item numbers with open addressing and linear probing. It suits short-lived sets,
 * such as the keys of a batch. The caller stores, hashes and compares the items themselves. Items
 * cannot be removed. A set may be used by one thread at a time.
 */
#ifndef HPS_BASE_INDEX_SET_H
#define HPS_BASE_INDEX_SET_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/assert.h"

struct hps_index_set {
    uint32_t *places; /* [mask + 1] 0: free; else item number + 1 */
    uint64_t mask;
};

/* Number of places that a set of n_items needs: a power of two, at least twice n_items. */
static inline uint64_t hps_index_set_places(uint64_t n_items)
{
    uint64_t n_places = 16;

    while (n_places < 2 * n_items) {
        n_places *= 2;
    }
    return n_places;
}

/* Initialize an empty set. places[n_places] is the caller's memory and must outlive the set. */
static inline void hps_index_set_init(struct hps_index_set *set, uint32_t *places,
                                      uint64_t n_places)
{
    HPS_ASSERT(n_places > 0 && (n_places & (n_places - 1)) == 0);
    memset(places, 0, n_places * sizeof(*places));
    *set = (struct hps_index_set){.places = places, .mask = n_places - 1};
}

/* Find the item for which is(ctx, item) returns true, starting at the place for `hash`. Returns the
 * item's place. If there is no such item, returns a free place; to add the item, the caller stores
 * the item number + 1 there. The compiler inlines a static `is` into the loop. */
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
