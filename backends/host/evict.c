/* SPDX-License-Identifier: Apache-2.0
 *
 * Eviction by probation and clock. On the thread of the table's writer.
 */
#include "backends/host/evict.h"

#include "base/assert.h"
#include "base/hash.h"
#include "base/heap.h"

enum {
    RING_SHARE = 8,   /* the ring has room for one row in so many; it is kept 4/5 full: a tenth */
    GHOST_WAYS = 4,   /* 16-bit fingerprints per set: in all as many as rows */
    HEAT_TO_STAY = 2, /* finds on probation that make a key stay, as in S3-FIFO */
    LOOKS_MAX = 256,  /* buckets or keys looked at for one victim */
    FINGERPRINT_BITS = 16,
};

void hps_host_evict_start(struct hps_host_evict *evict, uint64_t n_rows)
{
    HPS_ASSERT(!evict->on);
    evict->on = true;
    evict->n_ring_max = n_rows / RING_SHARE;
    evict->n_ghosts = n_rows / GHOST_WAYS;
    evict->ring = hps_alloc((size_t)evict->n_ring_max * sizeof(*evict->ring));
    evict->ghosts = hps_calloc((size_t)evict->n_ghosts, sizeof(*evict->ghosts));
    if (evict->ring == NULL) {
        evict->n_ring_max = 0;
    }
    if (evict->ghosts == NULL) {
        evict->n_ghosts = 0;
    }
}

void hps_host_evict_close(struct hps_host_evict *evict)
{
    hps_free(evict->ring);
    hps_free(evict->ghosts);
    *evict = (struct hps_host_evict){0};
}

/* ---- ghosts ---------------------------------------------------------------------------------- */

/* Sets go by the high bits of a hash, fingerprints by the low ones; 0 is none. */
static uint64_t fingerprint(uint64_t hash)
{
    uint64_t low = hash & UINT16_MAX;
    return low != 0 ? low : 1;
}

static void ghost_add(struct hps_host_evict *evict, uint64_t hash)
{
    if (evict->n_ghosts != 0) {
        uint64_t *set = &evict->ghosts[hps_host_home(hash, evict->n_ghosts)];
        *set = *set << FINGERPRINT_BITS | fingerprint(hash);
    }
}

/* Whether it is there; it is forgotten then. */
static bool ghost_take(struct hps_host_evict *evict, uint64_t hash)
{
    if (evict->n_ghosts == 0) {
        return false;
    }
    uint64_t *set = &evict->ghosts[hps_host_home(hash, evict->n_ghosts)];
    for (unsigned shift = 0; shift < GHOST_WAYS * FINGERPRINT_BITS; shift += FINGERPRINT_BITS) {
        if ((*set >> shift & UINT16_MAX) == fingerprint(hash)) {
            uint64_t newer = *set & ((UINT64_C(1) << shift) - 1);
            uint64_t older = shift + FINGERPRINT_BITS < 64 ? *set >> (shift + FINGERPRINT_BITS) : 0;
            *set = older << shift | newer;
            return true;
        }
    }
    return false;
}

/* ---- probation ------------------------------------------------------------------------------- */

bool hps_host_evict_probation(struct hps_host_evict *evict, uint64_t hash)
{
    return evict->on && evict->n_ring < evict->n_ring_max && !ghost_take(evict, hash);
}

void hps_host_evict_entered(struct hps_host_evict *evict, hps_key key)
{
    HPS_DEBUG_ASSERT(evict->n_ring < evict->n_ring_max);
    uint64_t at = evict->ring_head + evict->n_ring++;
    evict->ring[at < evict->n_ring_max ? at : at - evict->n_ring_max] = key;
}

static hps_key ring_pop(struct hps_host_evict *evict)
{
    HPS_DEBUG_ASSERT(evict->n_ring > 0 && evict->ring_head < evict->n_ring_max);
    hps_key key = evict->ring[evict->ring_head];
    evict->ring_head = evict->ring_head + 1 < evict->n_ring_max ? evict->ring_head + 1 : 0;
    evict->n_ring--;
    return key;
}

/* The oldest key on probation leaves it: it stays, or it is the victim. */
static bool probation_end(struct hps_host_evict *evict, const struct hps_host_index *index,
                          struct hps_host_place *out_place)
{
    hps_key key = ring_pop(evict);
    struct hps_host_place place = hps_host_index_find(index, key);
    if (place.bucket == NULL || !hps_host_is_marked(place)) {
        return false; /* erased meanwhile, perhaps inserted again */
    }
    if (hps_host_heat(place) >= HEAT_TO_STAY) {
        hps_host_heat_set(place, 0);
        hps_host_unmark(place);
        return false;
    }
    ghost_add(evict, hps_host_hash(index->seed, key));
    *out_place = place;
    return true;
}

/* ---- the clock ------------------------------------------------------------------------------- */

/* The next bucket. The hand goes by golden sections of the hashes: it comes by everywhere equally
 * often, but leaves no stretch thinned out behind it that would be crowded again before it is back.
 * Buckets behind the last home belong to that. */
static void hand_move(struct hps_host_evict *evict, const struct hps_host_buckets *now,
                      uint32_t state)
{
    bool last = hps_host_home(evict->hand, now->n_homes) == now->n_homes - 1;
    evict->slot = 0;
    if (last && hps_host_passed(state)) {
        evict->tail++;
        return;
    }
    evict->tail = 0;
    evict->hand += HPS_HASH_GOLDEN;
}

/* Look at the bucket under the hand, cool what is there, and move on. */
static bool hand_look(struct hps_host_evict *evict, const struct hps_host_index *index,
                      struct hps_host_place *out_place)
{
    const struct hps_host_buckets *now = atomic_load_explicit(&index->now, memory_order_relaxed);
    struct hps_host_bucket *bucket = hps_host_aim(now, evict->hand) + evict->tail;
    uint32_t state = hps_host_state(bucket);
    uint32_t settled = state & ~(state >> HPS_HOST_MARK_SHIFT) & HPS_HOST_LIVE_ALL;
    settled &= ~UINT32_C(0) << evict->slot;
    for (; settled != 0; settled &= settled - 1) {
        struct hps_host_place place = {bucket, (unsigned)__builtin_ctz(settled)};
        unsigned heat = hps_host_heat(place);
        if (heat == 0) {
            evict->slot = place.slot + 1; /* the rest of the bucket is next */
            *out_place = place;
            return true;
        }
        hps_host_heat_set(place, heat - 1);
    }
    if (now->n_homes != 0) {
        hand_move(evict, now, state);
    }
    return false;
}

struct hps_host_place hps_host_evict_victim(struct hps_host_evict *evict,
                                            const struct hps_host_index *index)
{
    struct hps_host_place place = {0};
    for (unsigned i = 0; i < LOOKS_MAX; i++) {
        bool found = evict->n_ring > evict->n_ring_max / 5 * 4 ? probation_end(evict, index, &place)
                                                               : hand_look(evict, index, &place);
        if (found) {
            return place;
        }
    }
    bool found = false; /* all is on probation, or hot and cooler now */
    for (unsigned i = 0; i < LOOKS_MAX && !found && evict->n_ring > 0; i++) {
        found = probation_end(evict, index, &place);
    }
    return place;
}
