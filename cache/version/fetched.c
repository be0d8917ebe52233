/* SPDX-License-Identifier: Apache-2.0
 *
 * One word per place: the key's hash with a count in its low byte. A new key replaces another key
 * in its place. Two concurrent notes may count as one. Thread-safe.
 */
#include "cache/version/fetched.h"

#include <stdatomic.h>

#include "base/hash.h"
#include "base/heap.h"
#include "base/lock.h"

#define COUNT_MASK UINT64_C(0xff)

struct hps_fetched {
    _Atomic uint64_t *_Atomic places; /* [HPS_FETCHED_KEYS]; NULL: no row was ever noted */
    struct hps_lock growing;
};

struct hps_fetched *hps_fetched_new(void)
{
    struct hps_fetched *fetched = hps_alloc(sizeof(*fetched));

    if (fetched != NULL) {
        atomic_init(&fetched->places, NULL);
        hps_lock_init(&fetched->growing, HPS_LOCK_FETCHED);
    }
    return fetched;
}

void hps_fetched_free(struct hps_fetched *fetched)
{
    if (fetched != NULL) {
        hps_lock_fini(&fetched->growing);
        hps_free((void *)atomic_load(&fetched->places));
        hps_free(fetched);
    }
}

static uint64_t hash_of(uint32_t table_id, hps_key key)
{
    return hps_mix64(key ^ hps_hash_secret() ^ table_id * HPS_HASH_GOLDEN);
}

static uint32_t place_of(uint64_t hash)
{
    return (uint32_t)(hash >> 8) % HPS_FETCHED_KEYS;
}

/* NULL: no memory. */
static _Atomic uint64_t *places_of(struct hps_fetched *fetched)
{
    _Atomic uint64_t *places = atomic_load_explicit(&fetched->places, memory_order_acquire);

    if (places != NULL) {
        return places;
    }
    hps_lock_acquire(&fetched->growing);
    places = atomic_load_explicit(&fetched->places, memory_order_relaxed);
    if (places == NULL) {
        places = hps_calloc(HPS_FETCHED_KEYS, sizeof(*places));
        atomic_store_explicit(&fetched->places, places, memory_order_release);
    }
    hps_lock_release(&fetched->growing);
    return places;
}

void hps_fetched_note(struct hps_fetched *fetched, uint32_t table_id, const hps_key *keys,
                      uint32_t n)
{
    _Atomic uint64_t *places = n > 0 ? places_of(fetched) : NULL;

    for (uint32_t i = 0; i < n && places != NULL; i++) {
        uint64_t hash = hash_of(table_id, keys[i]);
        _Atomic uint64_t *place = &places[place_of(hash)];
        uint64_t word = atomic_load_explicit(place, memory_order_relaxed);

        if ((word ^ hash) > COUNT_MASK) { /* free, or of another key */
            word = hash & ~COUNT_MASK;
        }
        if ((word & COUNT_MASK) < HPS_FETCHED_OFTEN) {
            atomic_store_explicit(place, word + 1, memory_order_relaxed);
        }
    }
}

void hps_fetched_forget(struct hps_fetched *fetched, uint32_t table_id, const hps_key *keys,
                        uint32_t n)
{
    _Atomic uint64_t *places = atomic_load_explicit(&fetched->places, memory_order_acquire);

    for (uint32_t i = 0; i < n && places != NULL; i++) {
        uint64_t hash = hash_of(table_id, keys[i]);
        _Atomic uint64_t *place = &places[place_of(hash)];

        if ((atomic_load_explicit(place, memory_order_relaxed) ^ hash) <= COUNT_MASK) {
            atomic_store_explicit(place, 0, memory_order_relaxed);
        }
    }
}

bool hps_fetched_often(const struct hps_fetched *fetched, uint32_t table_id, hps_key key)
{
    _Atomic uint64_t *places = atomic_load_explicit(&fetched->places, memory_order_acquire);
    uint64_t hash = hash_of(table_id, key);

    if (places == NULL) {
        return false;
    }
    uint64_t word = atomic_load_explicit(&places[place_of(hash)], memory_order_relaxed);
    return (word ^ hash) <= COUNT_MASK && (word & COUNT_MASK) >= HPS_FETCHED_OFTEN;
}
