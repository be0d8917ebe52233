/* SPDX-License-Identifier: Apache-2.0
 *
 * The index of one table of the host map: keys and row ids in buckets of one cache line each.
 * Readers on any thread, inside an epoch, compute a bucket and probe from there. All else is done
 * by the table's writer, which never blocks readers.
 *
 *     bucket   key key key key key | row row row row row | state heat
 *     state    0-4 live | 5-9 mark | 10-15 keys that passed over this bucket to a later one
 *     heat     0-9 two bits per slot: how often readers found the key, up to 3
 *
 * A live slot with a mark is on probation (evict.h). A slot with a mark that is not live held a key
 * that was erased. It is not reused for another key until all readers that may have seen the old
 * one have left. Readers write only `heat`.
 *
 * Growing and shrinking. `now` may have an older array `from`. Its keys move to `now` a few buckets
 * at a time, in order. Bucket numbers come from multiply-high, which preserves the order of hashes.
 * So both arrays are walked from front to back, and the new one takes pages as the old one returns
 * them. A key with its home in `from` at or after `moved` is in `from`; any other key is in `now`.
 * No key passes over the boundary: keys with a home before `moved` lie before it. Moved buckets of
 * `from` stay readable until their readers have left.
 */
#ifndef HPS_BACKENDS_HOST_INDEX_H
#define HPS_BACKENDS_HOST_INDEX_H

#include <stdatomic.h>

#include "backends/host/pages.h"
#include "base/epoch.h"
#include "base/status.h"
#include "base/types.h"

enum {
    HPS_HOST_BUCKET_KEYS = 5,
    HPS_HOST_BUCKET_BYTES = 64,
    HPS_HOST_LIVE_ALL = 0x1f,
    HPS_HOST_MARK_SHIFT = 5,
    HPS_HOST_PASSED_SHIFT = 10,
    HPS_HOST_PASSED_MAX = 63, /* saturates; at this value it is never decremented */
    HPS_HOST_HEAT_MAX = 3,
};

/* Aligned, since the kernels read it in one load. */
struct hps_host_bucket {
    _Alignas(HPS_HOST_BUCKET_BYTES) _Atomic(uint64_t) keys[HPS_HOST_BUCKET_KEYS];
    _Atomic(uint32_t) rows[HPS_HOST_BUCKET_KEYS];
    _Atomic(uint16_t) state;
    _Atomic(uint16_t) heat;
};
_Static_assert(sizeof(struct hps_host_bucket) == HPS_HOST_BUCKET_BYTES, "a bucket is a line");

struct hps_host_buckets {
    /* Number of buckets that keys hash to; a few more follow, for keys that pass the last one. */
    uint64_t n_homes;
    uint32_t generation;
    struct hps_host_bucket *array;
    struct hps_host_area area; /* memory of a large array; small ones are on the heap */
    size_t slack_bytes;        /* charged on top of this array until `from` is freed */
    bool huge;
    struct hps_host_buckets *next; /* in the list of arrays to be freed */
    uint64_t stamp;                /* freed when this epoch stamp has passed */
    _Atomic(struct hps_host_buckets *) from;
    _Atomic(uint64_t) moved; /* buckets of `from` that were moved to this array */
};

struct hps_host_index {
    _Atomic(struct hps_host_buckets *) now;
    struct hps_host_account *account;
    struct hps_epoch *epoch;
    uint64_t seed;
    uint64_t n_keys;
    uint64_t n_dead; /* slots of erased keys that are not reusable yet */
    /* Number of keys that it was sized for, while they have not all arrived; otherwise 0. */
    uint64_t n_foretold;
    uint32_t generation;
    struct hps_host_buckets *gone; /* replaced arrays, the oldest first */
    struct hps_host_buckets *gone_last;
    size_t given_back; /* bytes of `from` already returned to the system */
    size_t giving_to;  /* 0, or bytes to be returned once giving_stamp has passed */
    uint64_t giving_stamp;
};

/* A slot. bucket NULL: the key was not found. */
struct hps_host_place {
    struct hps_host_bucket *bucket;
    unsigned slot;
};

/* ---- readers --------------------------------------------------------------------------------- */

#define HPS_HOST_HASH_FACTOR UINT64_C(0xd6e8feb86659fd93)

static inline uint64_t hps_host_hash(uint64_t seed, hps_key key)
{
    uint64_t h = key ^ seed;
    h = (h ^ (h >> 32)) * HPS_HOST_HASH_FACTOR;
    h = (h ^ (h >> 32)) * HPS_HOST_HASH_FACTOR;
    return h ^ (h >> 32);
}

static inline uint64_t hps_host_home(uint64_t hash, uint64_t n_homes)
{
    __extension__ typedef unsigned __int128 u128;
    return (uint64_t)(((u128)hash * n_homes) >> 64);
}

/* The first bucket to probe for a key with this hash. */
static inline struct hps_host_bucket *hps_host_aim(const struct hps_host_buckets *now,
                                                   uint64_t hash)
{
    const struct hps_host_buckets *from = atomic_load_explicit(&now->from, memory_order_acquire);
    if (from != NULL) {
        uint64_t moved = atomic_load_explicit(&now->moved, memory_order_acquire);
        uint64_t home = hps_host_home(hash, from->n_homes);
        if (home >= moved) {
            return &from->array[home];
        }
    }
    return &now->array[hps_host_home(hash, now->n_homes)];
}

static inline uint32_t hps_host_state(const struct hps_host_bucket *bucket)
{
    return atomic_load_explicit(&bucket->state, memory_order_acquire);
}

static inline bool hps_host_passed(uint32_t state)
{
    return state >> HPS_HOST_PASSED_SHIFT != 0;
}

static inline uint32_t hps_host_match_one(const struct hps_host_bucket *bucket, unsigned slot,
                                          hps_key key)
{
    hps_key at = atomic_load_explicit(&bucket->keys[slot], memory_order_relaxed);
    return (uint32_t)(at == key) << slot;
}

/* Slots of a bucket that hold `key`, as bits. Some of them may not be live. */
static inline uint32_t hps_host_match(const struct hps_host_bucket *bucket, hps_key key)
{
    return hps_host_match_one(bucket, 0, key) | hps_host_match_one(bucket, 1, key) |
           hps_host_match_one(bucket, 2, key) | hps_host_match_one(bucket, 3, key) |
           hps_host_match_one(bucket, 4, key);
}
_Static_assert(HPS_HOST_BUCKET_KEYS == 5, "a term for each");

/* Find `key`, from its first bucket on. */
static inline struct hps_host_place hps_host_probe(struct hps_host_bucket *bucket, hps_key key)
{
    for (;; bucket++) {
        uint32_t state = hps_host_state(bucket);
        uint32_t match = hps_host_match(bucket, key) & state & HPS_HOST_LIVE_ALL;
        if (match != 0) {
            return (struct hps_host_place){bucket, (unsigned)__builtin_ctz(match)};
        }
        if (!hps_host_passed(state)) {
            return (struct hps_host_place){NULL, 0};
        }
    }
}

static inline uint32_t hps_host_row_of(struct hps_host_place place)
{
    return atomic_load_explicit(&place.bucket->rows[place.slot], memory_order_acquire);
}

static inline unsigned hps_host_heat(struct hps_host_place place)
{
    unsigned heat = atomic_load_explicit(&place.bucket->heat, memory_order_relaxed);
    return (heat >> (2 * place.slot)) & HPS_HOST_HEAT_MAX;
}

/* Not atomic as a whole on purpose: two concurrent updates may count as one. */
static inline void hps_host_heat_set(struct hps_host_place place, unsigned to)
{
    unsigned heat = atomic_load_explicit(&place.bucket->heat, memory_order_relaxed);
    heat &= ~((unsigned)HPS_HOST_HEAT_MAX << (2 * place.slot));
    atomic_store_explicit(&place.bucket->heat, (uint16_t)(heat | to << (2 * place.slot)),
                          memory_order_relaxed);
}

static inline void hps_host_touch(struct hps_host_place place)
{
    unsigned heat = hps_host_heat(place);
    if (heat < HPS_HOST_HEAT_MAX) {
        hps_host_heat_set(place, heat + 1);
    }
}

/* ---- the writer ------------------------------------------------------------------------------ */

/* The charge for an index of n_rows rows. */
uint64_t hps_host_index_bytes(uint64_t n_rows);

/* With space for n_rows keys. n_rows 0 needs no memory, so that a full budget does not prevent
 * opening a version. EXHAUSTED, NO_MEMORY. */
hps_status hps_host_index_open(struct hps_host_index *index, struct hps_host_account *account,
                               struct hps_epoch *epoch, uint64_t seed, uint64_t n_rows)
    HPS_MUST_CHECK;
/* No reader may be inside. No effect on a zeroed index. */
void hps_host_index_close(struct hps_host_index *index);

/* Begin to grow for n_rows keys if it is too small. It does not shrink until that many keys have
 * been added. EXHAUSTED, NO_MEMORY. */
hps_status hps_host_index_reserve(struct hps_host_index *index, uint64_t n_rows) HPS_MUST_CHECK;
/* One bounded step of pending work: move buckets to the new array, return memory. True: there are
 * more buckets to move. */
bool hps_host_index_step(struct hps_host_index *index);

/* May also be called by readers. */
struct hps_host_place hps_host_index_find(const struct hps_host_index *index, hps_key key);
/* Ensure that one more key has a slot. The index grows when 4/5 of its slots are taken; without
 * memory to grow it fills to 17/20. EXHAUSTED, NO_MEMORY: it is full. */
hps_status hps_host_index_make_room(struct hps_host_index *index) HPS_MUST_CHECK;
/* Add a key that is not in the index. A key that was erased recently gets its old slot. EXHAUSTED:
 * no free slot near its home at the end of the array. */
hps_status hps_host_index_add(struct hps_host_index *index, hps_key key, uint32_t row,
                              bool probation) HPS_MUST_CHECK;
/* Erase the key at a place. The outputs identify its slot for hps_host_index_bury. */
void hps_host_index_kill(struct hps_host_index *index, struct hps_host_place place,
                         uint32_t *out_generation, uint64_t *out_slot);
/* True if the slot is unchanged since the key with this row was killed in it. Its array may have
 * been replaced, or the key added again. */
bool hps_host_index_is_dead(const struct hps_host_index *index, uint32_t generation, uint64_t slot,
                            uint32_t row);
/* Allow reuse of a killed slot. No reader may see the key in it any more. */
void hps_host_index_bury(struct hps_host_index *index, uint32_t generation, uint64_t slot);
/* After EXHAUSTED from hps_host_index_add: begin to grow so that the key fits. EXHAUSTED,
 * NO_MEMORY: it cannot. */
hps_status hps_host_index_widen(struct hps_host_index *index) HPS_MUST_CHECK;
/* Begin to shrink by half if few slots are in use. */
void hps_host_index_fit(struct hps_host_index *index);
/* Remove all keys; readers find none from now on. hps_host_index_step returns the memory. */
void hps_host_index_clear(struct hps_host_index *index);
/* Whether memory of replaced arrays is left. */
bool hps_host_index_lingers(const struct hps_host_index *index);

static inline bool hps_host_is_marked(struct hps_host_place place)
{
    return (hps_host_state(place.bucket) >> (HPS_HOST_MARK_SHIFT + place.slot) & 1) != 0;
}
/* End the probation of a key. */
void hps_host_unmark(struct hps_host_place place);

/* Progress of a walk. Start with zeros. */
struct hps_host_cursor {
    uint32_t generation; /* of the array */
    uint64_t at;         /* the next bucket */
};
/* Call fn for the live slots of the next n_buckets buckets. If fn returns false, the walk stays at
 * that bucket. True: every key that was present throughout the walk has been visited. If the index
 * grows or shrinks, the walk restarts after that. */
bool hps_host_index_walk(const struct hps_host_index *index, struct hps_host_cursor *cursor,
                         uint32_t n_buckets, bool (*fn)(void *ctx, struct hps_host_place place),
                         void *ctx);

/* Call fn for every key, in no particular order. */
void hps_host_index_each(const struct hps_host_index *index, void (*fn)(void *ctx, hps_key key),
                         void *ctx);

#endif
