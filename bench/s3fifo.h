/* SPDX-License-Identifier: Apache-2.0
 *
 * An eviction policy in simulation, to judge the host map's by: which keys would be in a cache of
 * `capacity` rows? S3-FIFO: a small queue that keys must be hit in twice before they get to the
 * main one, and the memory of those that were not (Yang et al., "FIFO queues are all you need for
 * cache eviction", SOSP 2023). It holds no rows, and neighbours are found by indexing with the key,
 * so keys are 0 to n_keys - 1. Used by one thread at a time.
 */
#ifndef HPS_BENCH_S3FIFO_H
#define HPS_BENCH_S3FIFO_H

#include <stdbool.h>
#include <stdint.h>

struct policy;

/* 0 < capacity. NULL: no memory. */
struct policy *policy_new(uint32_t n_keys, uint32_t capacity);
void policy_free(struct policy *policy); /* NULL is legal */
/* A request: is the key there? If it is not, it is inserted, then or later. */
bool policy_touch(struct policy *policy, uint32_t key);
void policy_insert(struct policy *policy, uint32_t key);    /* nothing if it is there */
bool policy_has(const struct policy *policy, uint32_t key); /* no request: changes nothing */
uint32_t policy_count(const struct policy *policy);

#endif
