/* SPDX-License-Identifier: Apache-2.0
 *
 * The arithmetic of the miss policy HPS_MISS_THRESHOLD: does a lookup wait for the missing rows of
 * a table, or does it answer with the default row and insert the missing rows afterwards?
 *
 *     hit rate = hits / (hits + misses), of unique keys; a key proven to be in no tier is a hit
 *     below the threshold: wait for the true rows; at or above it: do not wait
 *
 * Thread-safe.
 */
#ifndef HPS_CACHE_LOOKUP_POLICY_H
#define HPS_CACHE_LOOKUP_POLICY_H

#include <stdint.h>

/* Returns the least number of hits for which the hit rate reaches `threshold`, if there are
 * n_missed misses. Hits and misses are unique keys. A caller that counts hits may stop at this
 * number. Returns UINT64_MAX if no number of hits reaches the threshold. This is so for thresholds
 * of 1 or more, unless n_missed is 0. */
uint64_t hps_policy_hits_min(double threshold, uint32_t n_missed);

#endif
