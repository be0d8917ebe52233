/* SPDX-License-Identifier: Apache-2.0
 *
 * Eviction policies in simulation, to judge the host map's by: which keys would be in a cache of
 * `capacity` rows? They hold no rows, and neighbours are found by indexing with the key, so keys
 * are 0 to n_keys - 1. Used by one thread at a time.
 */
#ifndef HPS_BENCH_POLICIES_H
#define HPS_BENCH_POLICIES_H

#include <stdbool.h>
#include <stdint.h>

struct policy;

/* A cache is asked for a key; if it does not have it, the key is inserted, then or later. */
struct policy_kind {
    const char *name;
    bool (*touch)(struct policy *policy, uint32_t key);  /* is it there? */
    void (*insert)(struct policy *policy, uint32_t key); /* it is not there */
};

/* Least recently used goes. */
extern const struct policy_kind policy_lru;
/* One queue; a hand passes over keys that were hit (Zhang et al., "SIEVE is simpler than LRU",
 * NSDI 2024). */
extern const struct policy_kind policy_sieve;
/* A small queue that keys must be hit in twice before they get to the main one, and the memory of
 * those that were not (Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023).
 */
extern const struct policy_kind policy_s3fifo;
/* A window, then a segmented LRU that admits whom a sketch of past requests has seen more often
 * (Einziger, Friedman, Manes, "TinyLFU", 2017). */
extern const struct policy_kind policy_wtinylfu;

/* What the embedding cache on a device does, key by key: 8-way sets; a newcomer takes an empty way,
 * or that of the key that a sketch of past requests has seen least, if it has seen the newcomer
 * more often. Capacity: a multiple of 8, 16 or more. */
extern const struct policy_kind policy_sets;
/* The same, with one request in 8 counted. */
extern const struct policy_kind policy_sets_sampled;
enum { POLICY_SETS_SEED = 42 }; /* of where keys go, as in the cache's configuration */

/* 0 < capacity. NULL: no memory. */
struct policy *policy_new(const struct policy_kind *kind, uint32_t n_keys, uint32_t capacity);
void policy_free(struct policy *policy); /* NULL is legal */
bool policy_touch(struct policy *policy, uint32_t key);
void policy_insert(struct policy *policy, uint32_t key);    /* nothing if it is there */
bool policy_has(const struct policy *policy, uint32_t key); /* no request: changes nothing */
uint32_t policy_count(const struct policy *policy);

#endif
