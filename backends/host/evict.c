/* SPDX-License-Identifier: Apache-2.0
 *
 * Eviction with probation and a clock. All functions run on the thread of the table's writer.
 */
#include "backends/host/evict.h"

#include "base/assert.h"
#include "base/hash.h"
#include "base/heap.h"

enum {
    /* The ring has space for 1/8 of the rows and is kept 4/5 full: a tenth of the rows. */
    RING_SHARE = 8,
    GHOST_WAYS = 4,   /* 16-bit fingerprints per set; in total as many as rows */
    HEAT_TO_STAY = 2, /* hits on probation after which a key stays, as in S3-FIFO */
    LOOKS_MAX = 256,  /* buckets or keys checked for one victim */
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

/* The high bits of a hash select the set, the low bits are the fingerprint. 0 means none. */
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

/* True if the fingerprint is there; it is then removed. */
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

/* End the probation of the oldest key: it stays, or is the victim. */
static bool probation_end(struct hps_host_evict *evict, const struct hps_host_index *index,
                          struct hps_host_place *out_place)
{
    hps_key key = ring_pop(evict);
    struct hps_host_place place = hps_host_index_find(index, key);
    if (place.bucket == NULL || !hps_host_is_marked(place)) {
        return false; /* erased since, and perhaps added again */
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

/* Move to the next bucket. The hand advances by golden sections of the hash range. It visits all
 * buckets equally often, and leaves no emptied stretch behind that would fill up again before its
 * return. Buckets after the last home are visited with it. */
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

/* Check the bucket under the hand, lower the heat of its keys, and move on. */
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
            evict->slot = place.slot + 1; /* continue with the rest of the bucket */
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
    bool found = false; /* all keys are on probation, or were hot */
    for (unsigned i = 0; i < LOOKS_MAX && !found && evict->n_ring > 0; i++) {
        found = probation_end(evict, index, &place);
    }
    return place;
}
