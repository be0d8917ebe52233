/* SPDX-License-Identifier: Apache-2.0
 *
 * The index of one table of the host map: keys and row ids in buckets of one cache line each.
 * Readers of any thread, inside an epoch, aim at a bucket and probe from there; the table's writer
 * does the rest, and never stops the readers.
 *
 *     bucket   key key key key key | row row row row row | state heat
 *     state    0-4 live | 5-9 mark | 10-15 keys that passed over this bucket to one behind it
 *     heat     0-9 two bits per slot: how often readers found the key, up to 3
 *
 * A live slot that is marked is on probation (evict.h); one that is marked but not live held a
 * key that was erased, and is not used for another one before every reader has left who may have
 * seen it. Readers write `heat` and nothing else.
 *
 * Growth, and shrinking. `now` may have an older array behind it, `from`, whose keys move over a
 * few buckets at a time, in order. Multiply-high keeps the order of hashes, so both arrays are
 * walked from front to back: the new one takes pages as the old one gives them back. Keys whose
 * home in `from` is at `moved` or behind it are in `from`, all others in `now`; `moved` is only
 * ever a bucket that no key passes over. What was moved stays readable in `from` until its readers
 * have left.
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
    HPS_HOST_PASSED_MAX = 63, /* stays there: so many are not counted back */
    HPS_HOST_HEAT_MAX = 3,
};

/* Aligned wherever it lies: the kernels read it in one load. */
struct hps_host_bucket {
    _Alignas(HPS_HOST_BUCKET_BYTES) _Atomic(uint64_t) keys[HPS_HOST_BUCKET_KEYS];
    _Atomic(uint32_t) rows[HPS_HOST_BUCKET_KEYS];
    _Atomic(uint16_t) state;
    _Atomic(uint16_t) heat;
};
_Static_assert(sizeof(struct hps_host_bucket) == HPS_HOST_BUCKET_BYTES, "a bucket is a line");

struct hps_host_buckets {
    uint64_t
        n_homes; /* buckets that keys hash to; more lie behind them, for what passes the last */
    uint32_t generation;
    struct hps_host_bucket *array;
    struct hps_host_area area; /* of a large array; a small one is on the heap */
    size_t slack_bytes;        /* charged until `from` is gone, on top of this array */
    bool huge;
    struct hps_host_buckets *next; /* of those that wait to be freed */
    uint64_t stamp;                /* freed when it has passed */
    _Atomic(struct hps_host_buckets *) from;
    _Atomic(uint64_t) moved; /* buckets of `from` that have been emptied into this array */
};

struct hps_host_index {
    _Atomic(struct hps_host_buckets *) now;
    struct hps_host_account *account;
    struct hps_epoch *epoch;
    uint64_t seed;
    uint64_t n_keys;
    uint64_t n_dead;     /* slots of erased keys */
    uint64_t n_foretold; /* keys that it was made for and that have not all come; 0: they have */
    uint32_t generation;
    struct hps_host_buckets *gone; /* replaced arrays, the oldest first */
    struct hps_host_buckets *gone_last;
    size_t given_back; /* bytes of `from` that are */
    size_t giving_to;  /* 0, or bytes that are given back when giving_stamp has passed */
    uint64_t giving_stamp;
};

/* A slot; bucket NULL: the key is not there. */
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

/* Slots of a bucket that hold `key`, as bits; some may not be live. */
static inline uint32_t hps_host_match(const struct hps_host_bucket *bucket, hps_key key)
{
    return hps_host_match_one(bucket, 0, key) | hps_host_match_one(bucket, 1, key) |
           hps_host_match_one(bucket, 2, key) | hps_host_match_one(bucket, 3, key) |
           hps_host_match_one(bucket, 4, key);
}
_Static_assert(HPS_HOST_BUCKET_KEYS == 5, "a term for each");

/* Where `key` lies, from the bucket it was aimed at on. */
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

/* Lossy on purpose: two at once may count as one. */
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

/* What an index for n_rows rows will be charged. */
uint64_t hps_host_index_bytes(uint64_t n_rows);

/* With room for n_rows keys; none cost nothing, so that a full budget keeps no version out.
 * EXHAUSTED, NO_MEMORY. */
hps_status hps_host_index_open(struct hps_host_index *index, struct hps_host_account *account,
                               struct hps_epoch *epoch, uint64_t seed, uint64_t n_rows)
    HPS_MUST_CHECK;
/* No reader is inside. Legal for a zeroed index. */
void hps_host_index_close(struct hps_host_index *index);

/* Begin to grow for n_rows keys, if it is too small; until so many have come it does not shrink.
 * EXHAUSTED, NO_MEMORY. */
hps_status hps_host_index_reserve(struct hps_host_index *index, uint64_t n_rows) HPS_MUST_CHECK;
/* One bounded step of what is to be done: move buckets on to the new array, give memory back. True:
 * there is more to move. */
bool hps_host_index_step(struct hps_host_index *index);

/* Also for readers. */
struct hps_host_place hps_host_index_find(const struct hps_host_index *index, hps_key key);
/* See to it that one more key finds a slot: at most 4/5 are taken before it grows, 17/20 when
 * there is no room for a larger one. EXHAUSTED, NO_MEMORY: it is full. */
hps_status hps_host_index_make_room(struct hps_host_index *index) HPS_MUST_CHECK;
/* Add a key that is not there, if it was erased lately in the slot that it had. EXHAUSTED: no slot
 * is left near its home: behind it there are only few buckets. */
hps_status hps_host_index_add(struct hps_host_index *index, hps_key key, uint32_t row,
                              bool probation) HPS_MUST_CHECK;
/* Erase the key at a place; the name of its slot, for hps_host_index_bury. */
void hps_host_index_kill(struct hps_host_index *index, struct hps_host_place place,
                         uint32_t *out_generation, uint64_t *out_slot);
/* Whether a slot is as it was left when the key with this row was killed in it: it may have gone
 * with its array, and the same key may have come again. */
bool hps_host_index_is_dead(const struct hps_host_index *index, uint32_t generation, uint64_t slot,
                            uint32_t row);
/* A slot that was killed may be used again: no reader can have seen the key in it any more. */
void hps_host_index_bury(struct hps_host_index *index, uint32_t generation, uint64_t slot);
/* After an EXHAUSTED of _add: begin to grow, so that it fits. EXHAUSTED, NO_MEMORY: it does not. */
hps_status hps_host_index_widen(struct hps_host_index *index) HPS_MUST_CHECK;
/* Begin to shrink by half where few slots are in use. */
void hps_host_index_fit(struct hps_host_index *index);
/* Forget all keys: readers find none from now on. Memory comes back by steps. */
void hps_host_index_clear(struct hps_host_index *index);
/* Whether it still has memory of arrays that were replaced. */
bool hps_host_index_lingers(const struct hps_host_index *index);

static inline bool hps_host_is_marked(struct hps_host_place place)
{
    return (hps_host_state(place.bucket) >> (HPS_HOST_MARK_SHIFT + place.slot) & 1) != 0;
}
/* Off probation. */
void hps_host_unmark(struct hps_host_place place);

/* How far a walk has come. Begins zeroed. */
struct hps_host_cursor {
    uint32_t generation; /* of the array */
    uint64_t at;         /* the next bucket */
};
/* Call fn for the live slots of the next n_buckets buckets; where it returns false the walk stays
 * at that bucket. True: all keys that were there since the walk began have been seen. Where the
 * index grows or shrinks it begins anew, once that has ended. */
bool hps_host_index_walk(const struct hps_host_index *index, struct hps_host_cursor *cursor,
                         uint32_t n_buckets, bool (*fn)(void *ctx, struct hps_host_place place),
                         void *ctx);

/* Every key, in no order. */
void hps_host_index_each(const struct hps_host_index *index, void (*fn)(void *ctx, hps_key key),
                         void *ctx);

#endif
