/* SPDX-License-Identifier: Apache-2.0
 *
 * Keys in flight, in hash chains over sharded locks. All links are in the memory of the lookups.
 * Lock order: shard, then caller; no other lock is taken under them. Any thread that runs a lookup.
 */
#include "cache/version/flight.h"

#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/heap.h"
#include "base/lock.h"

enum { SHARDS = 16, CHAINS = 128, LINE_BYTES = 64 };

struct shard {
    _Alignas(LINE_BYTES) struct hps_lock lock;
    struct hps_flight_key *chains[CHAINS];
};

struct hps_flight {
    struct shard shards[SHARDS];
};

struct hps_flight *hps_flight_new(void)
{
    struct hps_flight *flight = hps_alloc_aligned(LINE_BYTES, sizeof(*flight));

    if (flight == NULL) {
        return NULL;
    }
    memset(flight, 0, sizeof(*flight));
    for (unsigned i = 0; i < SHARDS; i++) {
        hps_lock_init(&flight->shards[i].lock, HPS_LOCK_FLIGHT);
    }
    return flight;
}

void hps_flight_free(struct hps_flight *flight)
{
    if (flight == NULL) {
        return;
    }
    for (unsigned i = 0; i < SHARDS; i++) {
        for (unsigned c = 0; c < CHAINS; c++) {
            HPS_ASSERT(flight->shards[i].chains[c] == NULL);
        }
        hps_lock_fini(&flight->shards[i].lock);
    }
    hps_free_aligned(flight);
}

/* ---- callers --------------------------------------------------------------------------------- */

void hps_flight_caller_begin(struct hps_flight_caller *caller)
{
    hps_lock_init(&caller->lock, HPS_LOCK_FLIGHT_CALLER);
    hps_cond_init(&caller->changed);
    caller->n_waiting = 0;
    caller->n_promoted = 0;
}

void hps_flight_caller_end(struct hps_flight_caller *caller)
{
    /* The thread that changed the last key may still hold the lock. */
    hps_lock_acquire(&caller->lock);
    HPS_ASSERT(caller->n_waiting == 0);
    hps_lock_release(&caller->lock);
    hps_cond_fini(&caller->changed);
    hps_lock_fini(&caller->lock);
}

static bool caller_has_news(const struct hps_flight_caller *caller)
{
    return caller->n_waiting == 0 || caller->n_promoted > 0;
}

bool hps_flight_wait(struct hps_flight_caller *caller, uint32_t max_us)
{
    uint64_t until_us = hps_clock_us() + max_us;

    hps_lock_acquire(&caller->lock);
    while (!caller_has_news(caller) &&
           hps_cond_wait_until(&caller->changed, &caller->lock, until_us)) {
    }
    bool news = caller_has_news(caller);
    hps_lock_release(&caller->lock);
    return news;
}

void hps_flight_take_promoted(struct hps_flight_caller *caller, uint32_t n)
{
    hps_lock_acquire(&caller->lock);
    HPS_ASSERT(caller->n_promoted >= n);
    caller->n_promoted -= n;
    hps_lock_release(&caller->lock);
}

/* A waiting key gets its new state. After this, only its lookup touches it. */
static void change(struct hps_flight_key *key, enum hps_flight_state state)
{
    struct hps_flight_caller *caller = key->caller;

    hps_lock_acquire(&caller->lock);
    atomic_store_explicit(&key->state, (uint8_t)state, memory_order_release);
    caller->n_waiting--;
    caller->n_promoted += state == HPS_FLIGHT_LEADS ? 1 : 0;
    if (caller_has_news(caller)) {
        hps_cond_signal(&caller->changed);
    }
    hps_lock_release(&caller->lock);
}

/* ---- chains, under the lock of their shard --------------------------------------------------- */

static struct shard *shard_of(struct hps_flight *flight, uint32_t table_id, hps_key key,
                              struct hps_flight_key ***out_chain)
{
    uint64_t hash = hps_mix64(key ^ hps_hash_secret() ^ table_id * HPS_HASH_GOLDEN);
    struct shard *shard = &flight->shards[hash % SHARDS];

    *out_chain = &shard->chains[hash / SHARDS % CHAINS];
    return shard;
}

/* The link to the leader of the key, or to the NULL at the end of the chain. */
static struct hps_flight_key **find_leader(struct hps_flight_key **link, uint32_t table_id,
                                           hps_key key)
{
    while (*link != NULL && ((*link)->key != key || (*link)->table_id != table_id)) {
        link = &(*link)->next;
    }
    return link;
}

static void wait_for(struct hps_flight_key *leader, struct hps_flight_key *key)
{
    key->next = NULL;
    if (leader->waiting == NULL) {
        leader->waiting = key;
    } else {
        leader->last->next = key;
    }
    leader->last = key;
    hps_lock_acquire(&key->caller->lock);
    key->caller->n_waiting++;
    hps_lock_release(&key->caller->lock);
}

enum hps_flight_state hps_flight_join(struct hps_flight *flight, struct hps_flight_caller *caller,
                                      const struct hps_stamps *stamps, struct hps_flight_key *key)
{
    struct hps_flight_key **chain;
    struct shard *shard = shard_of(flight, key->table_id, key->key, &chain);
    enum hps_flight_state state = HPS_FLIGHT_ALONE;

    key->caller = caller;
    key->waiting = NULL;
    key->last = NULL;
    hps_lock_acquire(&shard->lock);
    struct hps_flight_key *leader = *find_leader(chain, key->table_id, key->key);
    if (leader == NULL) {
        state = HPS_FLIGHT_LEADS;
        key->next = *chain;
        *chain = key;
    } else if (hps_stamp_unchanged(stamps, key->table_id, key->key, leader->since)) {
        HPS_ASSERT(leader->row_bytes == key->row_bytes);
        state = HPS_FLIGHT_WAITS;
        wait_for(leader, key);
    }
    atomic_store_explicit(&key->state, (uint8_t)state, memory_order_relaxed);
    hps_lock_release(&shard->lock);
    return state;
}

void hps_flight_land(struct hps_flight *flight, const struct hps_flight_caller *caller,
                     uint32_t table_id, hps_key key, const uint8_t *row, uint8_t tier)
{
    struct hps_flight_key **chain;
    struct shard *shard = shard_of(flight, table_id, key, &chain);

    hps_lock_acquire(&shard->lock);
    struct hps_flight_key **link = find_leader(chain, table_id, key);
    struct hps_flight_key *leader = *link;
    if (leader != NULL && leader->caller == caller) {
        *link = leader->next;
        for (struct hps_flight_key *each = leader->waiting, *next; each != NULL; each = next) {
            next = each->next;
            if (row != NULL) {
                memcpy(each->row, row, each->row_bytes);
                each->tier = tier;
            }
            change(each, row != NULL ? HPS_FLIGHT_FOUND : HPS_FLIGHT_ABSENT);
        }
        atomic_store_explicit(&leader->state, HPS_FLIGHT_ALONE, memory_order_relaxed);
    }
    hps_lock_release(&shard->lock);
}

/* The first waiting key replaces the leader and takes over the other waiting keys. */
static void pass_on(struct hps_flight_key **link)
{
    struct hps_flight_key *leader = *link;
    struct hps_flight_key *heir = leader->waiting;

    if (heir == NULL) {
        *link = leader->next;
        return;
    }
    heir->waiting = heir->next;
    heir->last = heir->next == NULL ? NULL : leader->last;
    heir->next = leader->next;
    *link = heir;
    change(heir, HPS_FLIGHT_LEADS);
}

static void stop_waiting(struct hps_flight_key *leader, struct hps_flight_key *key)
{
    struct hps_flight_key *before = NULL;

    for (struct hps_flight_key *each = leader->waiting; each != key; each = each->next) {
        before = each;
    }
    if (before == NULL) {
        leader->waiting = key->next;
    } else {
        before->next = key->next;
    }
    if (leader->last == key) {
        leader->last = before;
    }
    hps_lock_acquire(&key->caller->lock);
    key->caller->n_waiting--;
    hps_lock_release(&key->caller->lock);
}

void hps_flight_leave(struct hps_flight *flight, struct hps_flight_key *key)
{
    unsigned state = atomic_load_explicit(&key->state, memory_order_acquire);
    struct hps_flight_key **chain;

    if (state != HPS_FLIGHT_LEADS && state != HPS_FLIGHT_WAITS) {
        return;
    }
    struct shard *shard = shard_of(flight, key->table_id, key->key, &chain);
    hps_lock_acquire(&shard->lock);
    state = atomic_load_explicit(&key->state, memory_order_acquire);
    struct hps_flight_key **link = find_leader(chain, key->table_id, key->key);
    if (state == HPS_FLIGHT_LEADS) {
        HPS_ASSERT(*link == key);
        pass_on(link);
    } else if (state == HPS_FLIGHT_WAITS) {
        HPS_ASSERT(*link != NULL);
        stop_waiting(*link, key);
    }
    if (state == HPS_FLIGHT_LEADS || state == HPS_FLIGHT_WAITS) {
        atomic_store_explicit(&key->state, HPS_FLIGHT_ALONE, memory_order_relaxed);
    }
    hps_lock_release(&shard->lock);
}
