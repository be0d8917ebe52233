/* SPDX-License-Identifier: Apache-2.0
 *
 * Arithmetic of the hit rate: see policy.h. Thread-safe.
 */
#include "cache/lookup/policy.h"

#include <stdbool.h>

#include "base/assert.h"

/* More keys than one lookup can have; up to here counts are exact as doubles. */
#define HITS_MAX (UINT64_C(1) << 33)

/* A quotient, since rounding makes `hits >= threshold * keys` wrong at the boundary: 7 of 25 keys
 * are 0.28, but 0.28 * 25 is more than 7. */
static bool reaches(double threshold, uint64_t n_hits, uint64_t n_missed)
{
    return (double)n_hits / (double)(n_hits + n_missed) >= threshold;
}

uint64_t hps_policy_hits_min(double threshold, uint32_t n_missed)
{
    if (n_missed == 0) {
        return 0;
    }
    if (!(threshold < 1.0)) {
        return UINT64_MAX;
    }
    double estimate = threshold > 0 ? threshold * n_missed / (1.0 - threshold) : 0;
    if (estimate >= (double)HITS_MAX) {
        return UINT64_MAX;
    }
    uint64_t n_hits = (uint64_t)estimate;
    while (n_hits > 0 && reaches(threshold, n_hits - 1, n_missed)) {
        n_hits--;
    }
    while (!reaches(threshold, n_hits, n_missed)) {
        n_hits++;
    }
    HPS_ASSERT(n_hits <= HITS_MAX);
    return n_hits;
}
