/* SPDX-License-Identifier: Apache-2.0
 *
 * Row numbers with a Zipf distribution. Rank k of N has a probability proportional to 1 /
 * k^alpha, exactly. The time per draw does not depend on N (rejection-inversion; Hörmann and
 * Derflinger, "Rejection-inversion to generate variates from monotone discrete distributions",
 * 1996). Ranks are scattered over the rows, so that popular rows are not neighbours. Used by one
 * thread at a time.
 */
#ifndef HPS_CLIENT_ZIPF_H
#define HPS_CLIENT_ZIPF_H

#include <stdint.h>

#include "base/hash.h"

/* SplitMix64. */
struct hps_random {
    uint64_t state;
};

static inline uint64_t hps_random_next(struct hps_random *random)
{
    random->state += HPS_HASH_GOLDEN;
    return hps_mix64(random->state);
}

/* In [0, 1). */
static inline double hps_random_unit(struct hps_random *random)
{
    return (double)(hps_random_next(random) >> 11) * 0x1p-53;
}

struct hps_zipf {
    uint64_t n;
    double alpha;
    double heavy; /* this share of draws is rank 1, independent of alpha */
    double h_x1;
    double h_n;
    double s;
    uint64_t step; /* coprime to n */
};

/* n > 0 rows; alpha >= 0 (0: uniform); heavy in [0, 1]. */
void hps_zipf_init(struct hps_zipf *zipf, uint64_t n, double alpha, double heavy);
/* Rank, 1 to n. */
uint64_t hps_zipf_rank(const struct hps_zipf *zipf, struct hps_random *random);
/* The row of a rank: a bijection of 1 ... n onto 0 ... n - 1. */
uint64_t hps_zipf_row(const struct hps_zipf *zipf, uint64_t rank);

#endif
