/* SPDX-License-Identifier: Apache-2.0
 *
 * Epoch-based reclamation. A reader claims a free slot, preferably the one that its thread used
 * last, and announces the epoch in it. Any thread.
 *
 * Why it is safe. The thread that retires unlinks the object, increments `now` from E (the stamp),
 * and then scans the slots. A reader announces an epoch, loads `now`, and then follows links. All
 * of these are seq_cst. If the reader's load comes first, the scan sees its announcement (<= E: not
 * passed). Otherwise the reader loads the incremented value and so sees the unlink. A reader leaves
 * with a release store, which the scan acquires before the memory is reused. There are no fences,
 * because ThreadSanitizer does not model them.
 */
#include "base/epoch.h"

#include <sched.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stddef.h>

#include "base/assert.h"
#include "base/heap.h"

enum { CHUNK_SLOTS = 64, CACHE_LINE = 64 };

struct hps_epoch_slot {
    alignas(CACHE_LINE) _Atomic uint64_t announced; /* 0: free */
};

struct chunk {
    struct hps_epoch_slot slots[CHUNK_SLOTS];
    _Atomic(struct chunk *) next; /* set once */
};

struct hps_epoch {
    alignas(CACHE_LINE) _Atomic uint64_t now;
    alignas(CACHE_LINE) _Atomic uint64_t safe; /* every stamp <= safe has passed */
    struct chunk first;
};

static unsigned thread_slot(void)
{
    static atomic_uint next_thread;
    static _Thread_local unsigned mine; /* 1 + index of the thread */
    if (mine == 0) {
        mine = 1 + atomic_fetch_add_explicit(&next_thread, 1, memory_order_relaxed) % CHUNK_SLOTS;
    }
    return mine - 1;
}

static void chunk_init(struct chunk *chunk)
{
    for (unsigned i = 0; i < CHUNK_SLOTS; i++) {
        atomic_init(&chunk->slots[i].announced, 0);
    }
    atomic_init(&chunk->next, NULL);
}

struct hps_epoch *hps_epoch_new(void)
{
    struct hps_epoch *epoch = hps_alloc_aligned(CACHE_LINE, sizeof(*epoch));
    if (epoch == NULL) {
        return NULL;
    }
    atomic_init(&epoch->now, 1);
    atomic_init(&epoch->safe, 0);
    chunk_init(&epoch->first);
    return epoch;
}

void hps_epoch_free(struct hps_epoch *epoch)
{
    if (epoch == NULL) {
        return;
    }
    struct chunk *chunk = &epoch->first;
    while (chunk != NULL) {
        for (unsigned i = 0; i < CHUNK_SLOTS; i++) {
            HPS_ASSERT(atomic_load(&chunk->slots[i].announced) == 0);
        }
        struct chunk *next = atomic_load(&chunk->next);
        if (chunk != &epoch->first) {
            hps_free_aligned(chunk);
        }
        chunk = next;
    }
    hps_free_aligned(epoch);
}

static struct hps_epoch_slot *chunk_claim(struct chunk *chunk, uint64_t now)
{
    unsigned start = thread_slot();
    for (unsigned i = 0; i < CHUNK_SLOTS; i++) {
        struct hps_epoch_slot *slot = &chunk->slots[(start + i) % CHUNK_SLOTS];
        uint64_t expected = 0;
        if (atomic_load_explicit(&slot->announced, memory_order_relaxed) == 0 &&
            atomic_compare_exchange_strong(&slot->announced, &expected, now)) {
            return slot;
        }
    }
    return NULL;
}

/* The next chunk, created if needed; NULL: no memory. */
static struct chunk *chunk_next(struct chunk *chunk)
{
    struct chunk *next = atomic_load(&chunk->next);
    if (next != NULL) {
        return next;
    }
    next = hps_alloc_aligned(CACHE_LINE, sizeof(*next));
    if (next == NULL) {
        return NULL;
    }
    chunk_init(next);
    struct chunk *other = NULL;
    if (!atomic_compare_exchange_strong(&chunk->next, &other, next)) {
        hps_free_aligned(next);
        return other;
    }
    return next;
}

struct hps_epoch_slot *hps_epoch_enter(struct hps_epoch *epoch)
{
    struct chunk *chunk = &epoch->first;
    for (;;) {
        struct hps_epoch_slot *slot = chunk_claim(chunk, atomic_load(&epoch->now));
        if (slot != NULL) {
            (void)atomic_load(&epoch->now); /* the load in the proof above */
            return slot;
        }
        chunk = chunk_next(chunk);
        if (chunk == NULL) {
            /* All slots are taken and there is no memory for more. Readers leave soon. */
            sched_yield();
            chunk = &epoch->first;
        }
    }
}

void hps_epoch_leave(struct hps_epoch *epoch, struct hps_epoch_slot *slot)
{
    (void)epoch;
    HPS_DEBUG_ASSERT(atomic_load(&slot->announced) != 0);
    atomic_store_explicit(&slot->announced, 0, memory_order_release);
}

uint64_t hps_epoch_retire(struct hps_epoch *epoch)
{
    return atomic_fetch_add(&epoch->now, 1);
}

bool hps_epoch_passed(struct hps_epoch *epoch, uint64_t stamp)
{
    uint64_t safe = atomic_load_explicit(&epoch->safe, memory_order_acquire);
    if (stamp <= safe) {
        return true;
    }
    uint64_t oldest = atomic_load(&epoch->now);
    HPS_ASSERT(stamp != 0 && stamp < oldest); /* made by hps_epoch_retire */
    for (struct chunk *chunk = &epoch->first; chunk != NULL; chunk = atomic_load(&chunk->next)) {
        for (unsigned i = 0; i < CHUNK_SLOTS; i++) {
            uint64_t announced = atomic_load(&chunk->slots[i].announced);
            if (announced != 0 && announced < oldest) {
                oldest = announced;
            }
        }
    }
    /* A reader in a chunk that was added after the scan passed has seen the unlink. */
    while (safe < oldest - 1 && !atomic_compare_exchange_weak(&epoch->safe, &safe, oldest - 1)) {
    }
    HPS_ASSERT(atomic_load(&epoch->safe) >= oldest - 1);
    return stamp < oldest;
}
