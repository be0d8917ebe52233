/* SPDX-License-Identifier: Apache-2.0
 *
 * The index of one table of the host map: keys and row ids in buckets of one cache line each. A
 * bucket has 5 slots, each for one key. The *home* of a key is the bucket that its hash selects. If
 * the home is full, the key is in a later bucket; it has *passed over* the buckets before that one.
 *
 * Readers on any thread, inside an epoch, compute the home and probe from there. All other calls
 * are made by the table's writer, which never blocks readers.
 *
 *     bucket   key key key key key | row row row row row | state heat
 *     state    bits 0-4: slot is live; bits 5-9: slot has a mark;
 *              bits 10-15: number of keys that passed over this bucket
 *     heat     bits 0-9, two per slot: how often readers found the key, at most 3
 *
 * A live slot with a mark has a key on probation (evict.h). A slot that has a mark but is not live
 * had a key that was erased. The writer does not use it for another key until all readers that may
 * have seen the erased key have left. Readers write only `heat`.
 *
 * Growing and shrinking. While the index changes its size, the new array `now` has a pointer `from`
 * to the old one. Keys move from the old array to the new one in bucket order, a few buckets at a
 * time. The home of a hash is the high half of hash * n_homes, which preserves the order of hashes.
 * So keys move from front to back in both arrays, and the old array returns its pages to the system
 * while the new one takes pages. A key is in `from` if its home there is at or after bucket
 * `moved`; any other key is in `now`. No key passes over this boundary: keys with a home before
 * `moved` are in buckets before it. Moved buckets of `from` stay readable until their readers have
 * left.
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
    /* Limit of a bucket's count of keys that passed over it. A count that has reached the limit no
     * longer changes. */
    HPS_HOST_PASSED_MAX = 63,
    HPS_HOST_HEAT_MAX = 3,
};

/* Aligned, because the kernels (kernel.h) read a bucket in one load. */
struct hps_host_bucket {
    _Alignas(HPS_HOST_BUCKET_BYTES) _Atomic(uint64_t) keys[HPS_HOST_BUCKET_KEYS];
    _Atomic(uint32_t) rows[HPS_HOST_BUCKET_KEYS];
    _Atomic(uint16_t) state;
    _Atomic(uint16_t) heat;
};
_Static_assert(sizeof(struct hps_host_bucket) == HPS_HOST_BUCKET_BYTES, "a bucket is a line");

struct hps_host_buckets {
    /* Number of buckets that are homes. A few more buckets follow, for keys that passed over the
     * last home. */
    uint64_t n_homes;
    uint32_t generation; /* number of this array in its index, from 1 */
    struct hps_host_bucket *array;
    struct hps_host_area area; /* memory of a large array; a small array is on the heap */
    /* Bytes charged in addition to this array, for the rest of `from`. */
    size_t slack_bytes;
    bool huge;                     /* `area` has huge pages */
    struct hps_host_buckets *next; /* next array in the list of arrays to be freed */
    uint64_t stamp;                /* a replaced array is freed once this epoch stamp has passed */
    _Atomic(struct hps_host_buckets *) from; /* the old array during a change of size, or NULL */
    _Atomic(uint64_t) moved;                 /* buckets of `from` already moved to this array */
};

struct hps_host_index {
    _Atomic(struct hps_host_buckets *) now;
    struct hps_host_account *account;
    struct hps_epoch *epoch;
    uint64_t seed;
    uint64_t n_keys;
    uint64_t n_dead; /* slots of erased keys that other keys cannot use yet */
    /* Number of keys that the index was opened or reserved for. The index does not shrink before it
     * has had that many keys; then this becomes 0. */
    uint64_t n_foretold;
    uint32_t generation;                /* of the newest array */
    struct hps_host_buckets *gone;      /* replaced arrays to be freed, the oldest first */
    struct hps_host_buckets *gone_last; /* the last one of that list */
    size_t given_back;                  /* bytes of `from` already returned to the system */
    /* The bytes of `from` before this offset are returned to the system once giving_stamp has
     * passed. 0: no bytes can be returned yet. */
    size_t giving_to;
    uint64_t giving_stamp;
};

/* A slot of the index. bucket NULL: no slot, because the key was not found. */
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

/* The first bucket to probe for a key with this hash: its home, in the old or the new array. */
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

/* Slots of a bucket that have `key`, as bits. Some of them may not be live. */
static inline uint32_t hps_host_match(const struct hps_host_bucket *bucket, hps_key key)
{
    return hps_host_match_one(bucket, 0, key) | hps_host_match_one(bucket, 1, key) |
           hps_host_match_one(bucket, 2, key) | hps_host_match_one(bucket, 3, key) |
           hps_host_match_one(bucket, 4, key);
}
_Static_assert(HPS_HOST_BUCKET_KEYS == 5, "a term for each");

/* Find `key`, starting at `bucket`, which hps_host_aim returned. */
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

/* Load and store are separate on purpose: two concurrent updates may count as one. */
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

/* Bytes that an index for n_rows keys charges to the budget. */
uint64_t hps_host_index_bytes(uint64_t n_rows);

/* Open an index with space for n_rows keys. n_rows 0 needs no memory, so that a version can be
 * opened when the budget is full. Fails with EXHAUSTED or NO_MEMORY. */
hps_status hps_host_index_open(struct hps_host_index *index, struct hps_host_account *account,
                               struct hps_epoch *epoch, uint64_t seed, uint64_t n_rows)
    HPS_MUST_CHECK;
/* No reader may use the index any more. No effect on a zeroed index. */
void hps_host_index_close(struct hps_host_index *index);

/* Begin to grow if the index is too small for n_rows keys. Until the index has had that many keys,
 * it does not shrink. Fails with EXHAUSTED or NO_MEMORY. */
hps_status hps_host_index_reserve(struct hps_host_index *index, uint64_t n_rows) HPS_MUST_CHECK;
/* Do one bounded step of pending work: move buckets to the new array, or return memory. True: there
 * are more buckets to move. */
bool hps_host_index_step(struct hps_host_index *index);

/* Find a key. May also be called by readers. */
struct hps_host_place hps_host_index_find(const struct hps_host_index *index, hps_key key);
/* Ensure that there is a slot for one more key. The index grows when 4/5 of its slots are taken. If
 * there is no memory to grow, it can be filled to 17/20. EXHAUSTED, NO_MEMORY: 17/20 of the slots
 * are taken. */
hps_status hps_host_index_ensure_capacity(struct hps_host_index *index) HPS_MUST_CHECK;
/* Add a key that is not in the index. A key that was erased recently gets its old slot. EXHAUSTED:
 * all slots from its home to the end of the array are taken. */
hps_status hps_host_index_add(struct hps_host_index *index, hps_key key, uint32_t row,
                              bool probation) HPS_MUST_CHECK;
/* Erase the key at a place. Its slot is then dead: before hps_host_index_bury, only the same key
 * can be added to it again. The outputs identify the slot for that call. */
void hps_host_index_kill(struct hps_host_index *index, struct hps_host_place place,
                         uint32_t *out_generation, uint64_t *out_slot);
/* Whether a slot is still dead. `generation` and `slot` are the outputs of hps_host_index_kill;
 * `row` is the row that the erased key had. False if the array was replaced or the key was added
 * again. */
bool hps_host_index_is_dead(const struct hps_host_index *index, uint32_t generation, uint64_t slot,
                            uint32_t row);
/* Allow other keys to use a dead slot. No reader may see the erased key any more. */
void hps_host_index_bury(struct hps_host_index *index, uint32_t generation, uint64_t slot);
/* To be called after EXHAUSTED from hps_host_index_add: begin to grow, so that the key fits.
 * EXHAUSTED, NO_MEMORY: the index cannot grow. */
hps_status hps_host_index_widen(struct hps_host_index *index) HPS_MUST_CHECK;
/* Begin to shrink by half if at most a fifth of the slots is taken. No effect on small indexes. */
void hps_host_index_fit(struct hps_host_index *index);
/* Remove all keys; readers find none from now on. hps_host_index_step returns the memory. */
void hps_host_index_clear(struct hps_host_index *index);
/* Whether any replaced array is not freed yet. */
bool hps_host_index_lingers(const struct hps_host_index *index);

/* Whether the live slot at a place has a mark: its key is on probation. */
static inline bool hps_host_is_marked(struct hps_host_place place)
{
    return (hps_host_state(place.bucket) >> (HPS_HOST_MARK_SHIFT + place.slot) & 1) != 0;
}
/* Remove the mark: end the probation of the key. */
void hps_host_unmark(struct hps_host_place place);

/* Progress of a walk over the buckets. Zero it before the walk. */
struct hps_host_cursor {
    uint32_t generation; /* of the array */
    uint64_t at;         /* the next bucket */
};
/* Call fn for the live slots of the next n_buckets buckets. If fn returns false, this call ends,
 * and the next one starts at the same bucket. Returns true when the walk is complete: fn was called
 * for every key that was present throughout the walk. If the index grows or shrinks, the walk
 * starts again when the change of size has ended. */
bool hps_host_index_walk(const struct hps_host_index *index, struct hps_host_cursor *cursor,
                         uint32_t n_buckets, bool (*fn)(void *ctx, struct hps_host_place place),
                         void *ctx);

/* Call fn for every key, in no particular order. */
void hps_host_index_each(const struct hps_host_index *index, void (*fn)(void *ctx, hps_key key),
                         void *ctx);

#endif
