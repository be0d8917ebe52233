/* SPDX-License-Identifier: Apache-2.0
 *
 * A set is one cache line with a sequence number, which is odd while a writer changes the set. A
 * reader that sees the number change treats the key as not found. Writers of a set exclude each
 * other by one of LOCKS locks. Thread-safe.
 */
#include "cache/version/absent.h"

#include <stdatomic.h>
#include <string.h>

#include "base/hash.h"
#include "base/heap.h"
#include "base/lock.h"

enum { WAYS = 4, SETS = 16384, LOCKS = 64, LINE_BYTES = 64 };

struct set {
    _Alignas(LINE_BYTES) _Atomic uint32_t sequence;
    uint32_t hand;                 /* the way to replace next; under the lock */
    _Atomic uint32_t tables[WAYS]; /* table id + 1; 0: empty */
    _Atomic hps_key keys[WAYS];
};

_Static_assert(sizeof(struct set) == LINE_BYTES, "a look reads one line");

struct part_lock {
    _Alignas(LINE_BYTES) struct hps_lock lock;
};

struct hps_absent {
    struct set *_Atomic sets; /* [SETS]; NULL: no key was ever added */
    struct hps_lock growing;
    struct part_lock locks[LOCKS];
};

struct hps_absent *hps_absent_new(void)
{
    struct hps_absent *absent = hps_alloc_aligned(LINE_BYTES, sizeof(*absent));

    if (absent == NULL) {
        return NULL;
    }
    atomic_init(&absent->sets, NULL);
    hps_lock_init(&absent->growing, HPS_LOCK_ABSENT_SETS);
    for (unsigned i = 0; i < LOCKS; i++) {
        hps_lock_init(&absent->locks[i].lock, HPS_LOCK_ABSENT);
    }
    return absent;
}

void hps_absent_free(struct hps_absent *absent)
{
    if (absent == NULL) {
        return;
    }
    for (unsigned i = 0; i < LOCKS; i++) {
        hps_lock_fini(&absent->locks[i].lock);
    }
    hps_lock_fini(&absent->growing);
    hps_free_aligned(atomic_load(&absent->sets));
    hps_free_aligned(absent);
}

static uint32_t set_index(uint32_t table_id, hps_key key)
{
    uint64_t hash = hps_mix64(key ^ hps_hash_secret() ^ table_id * HPS_HASH_GOLDEN);

    return (uint32_t)(hash % SETS);
}

/* The sets, allocated at the first call. NULL: no memory. */
static struct set *sets_of(struct hps_absent *absent)
{
    struct set *sets = atomic_load_explicit(&absent->sets, memory_order_acquire);

    if (sets != NULL) {
        return sets;
    }
    hps_lock_acquire(&absent->growing);
    sets = atomic_load_explicit(&absent->sets, memory_order_relaxed);
    if (sets == NULL) {
        sets = hps_alloc_aligned(LINE_BYTES, SETS * sizeof(*sets));
        if (sets != NULL) {
            memset((void *)sets, 0, SETS * sizeof(*sets));
            atomic_store_explicit(&absent->sets, sets, memory_order_release);
        }
    }
    hps_lock_release(&absent->growing);
    return sets;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Loads acquire and stores release. So a reader that sees a part of a change also sees the sequence
 * number that was stored before it. */
bool hps_absent_has(const struct hps_absent *absent, uint32_t table_id, hps_key key)
{
    struct set *sets = atomic_load_explicit(&absent->sets, memory_order_acquire);
    bool has = false;

    if (sets == NULL) {
        return false;
    }
    struct set *set = &sets[set_index(table_id, key)];
    uint32_t before = atomic_load_explicit(&set->sequence, memory_order_acquire);
    for (unsigned way = 0; way < WAYS; way++) {
        hps_key kept = atomic_load_explicit(&set->keys[way], memory_order_acquire);
        uint32_t table = atomic_load_explicit(&set->tables[way], memory_order_acquire);

        has = has || (kept == key && table == table_id + 1);
    }
    uint32_t after = atomic_load_explicit(&set->sequence, memory_order_relaxed);
    return has && before == after && before % 2 == 0;
}

/* ---- writing, under the lock of the set ------------------------------------------------------ */

static unsigned way_of(const struct set *set, uint32_t table, hps_key key)
{
    unsigned way = 0;

    while (way < WAYS && (atomic_load_explicit(&set->tables[way], memory_order_relaxed) != table ||
                          atomic_load_explicit(&set->keys[way], memory_order_relaxed) != key)) {
        way++;
    }
    return way;
}

static void write_way(struct set *set, unsigned way, uint32_t table, hps_key key)
{
    uint32_t sequence = atomic_load_explicit(&set->sequence, memory_order_relaxed);

    atomic_store_explicit(&set->sequence, sequence + 1, memory_order_relaxed);
    atomic_store_explicit(&set->tables[way], table, memory_order_release);
    atomic_store_explicit(&set->keys[way], key, memory_order_release);
    atomic_store_explicit(&set->sequence, sequence + 2, memory_order_release);
}

static void set_add(struct set *set, uint32_t table, hps_key key)
{
    if (way_of(set, table, key) < WAYS) {
        return;
    }
    unsigned way = 0;
    while (way < WAYS && atomic_load_explicit(&set->tables[way], memory_order_relaxed) != 0) {
        way++;
    }
    if (way == WAYS) {
        way = set->hand;
        set->hand = (way + 1) % WAYS;
    }
    write_way(set, way, table, key);
}

void hps_absent_add(struct hps_absent *absent, uint32_t table_id, const hps_key *keys, uint32_t n,
                    const struct hps_insert_guard *guard)
{
    struct set *sets = n > 0 ? sets_of(absent) : NULL;

    for (uint32_t i = 0; i < n && sets != NULL; i++) {
        uint32_t index = set_index(table_id, keys[i]);
        struct hps_lock *lock = &absent->locks[index % LOCKS].lock;

        hps_lock_acquire(lock);
        if (guard == NULL || guard->fresh(guard->ctx, i)) {
            set_add(&sets[index], table_id + 1, keys[i]);
        }
        hps_lock_release(lock);
    }
}

void hps_absent_remove(struct hps_absent *absent, uint32_t table_id, const hps_key *keys,
                       uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t index = set_index(table_id, keys[i]);
        struct hps_lock *lock = &absent->locks[index % LOCKS].lock;

        hps_lock_acquire(lock);
        struct set *sets = atomic_load_explicit(&absent->sets, memory_order_acquire);
        unsigned way = sets == NULL ? WAYS : way_of(&sets[index], table_id + 1, keys[i]);
        if (way < WAYS) {
            write_way(&sets[index], way, 0, 0);
        }
        hps_lock_release(lock);
    }
}
