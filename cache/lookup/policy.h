/* SPDX-License-Identifier: Apache-2.0
 *
 * The insertion policy: of one table of one look-up, whether the rows that miss are waited for or
 * answered with the default row and inserted behind.
 *
 *     hit rate = hits / (hits + misses), of unique keys; a key proven to be in no tier is a hit
 *     below the threshold: wait for the true rows; at or above it: do not
 *
 * Any thread.
 */
#ifndef HPS_CACHE_LOOKUP_POLICY_H
#define HPS_CACHE_LOOKUP_POLICY_H

#include <stdint.h>

/* Hits that it takes beside n_missed misses, both of unique keys, for a hit rate of at least
 * `threshold`: whoever counts hits may stop there. UINT64_MAX: no number of hits does; so it is for
 * every threshold of 1 or more while something misses. */
uint64_t hps_policy_hits_min(double threshold, uint32_t n_missed);

#endif
