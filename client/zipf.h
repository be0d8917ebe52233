/* SPDX-License-Identifier: Apache-2.0
 *
 * Random row numbers with a Zipf distribution: rank k of N has a probability exactly proportional
 * to 1 / k^alpha. The time per draw does not depend on N (rejection-inversion; Hörmann and
 * Derflinger, "Rejection-inversion to generate variates from monotone discrete distributions",
 * 1996). Ranks are scattered over the rows, so that popular rows are not neighbours. Used by one
 * thread at a time.
 */
#ifndef HPS_CLIENT_ZIPF_H
#define HPS_CLIENT_ZIPF_H

#include <stdint.h>

#include "base/hash.h"

/* The random generator SplitMix64. Any state is a valid seed. */
struct hps_random {
    uint64_t state;
};

static inline uint64_t hps_random_next(struct hps_random *random)
{
    random->state += HPS_HASH_GOLDEN;
    return hps_mix64(random->state);
}

/* A random number in [0, 1). */
static inline double hps_random_unit(struct hps_random *random)
{
    return (double)(hps_random_next(random) >> 11) * 0x1p-53;
}

struct hps_zipf {
    uint64_t n; /* number of rows */
    double alpha;
    double heavy;     /* share of draws that are uniform over the ranks 1 to n_heavy */
    uint64_t n_heavy; /* 1 to n; hps_zipf_init sets 1 */
    /* h_x1, h_n and s: constants of the rejection-inversion. */
    double h_x1;
    double h_n;
    double s;
    uint64_t step; /* coprime to n; scatters the ranks */
};

/* Initialises a distribution over n > 0 rows. `alpha` is >= 0, where 0 is the uniform distribution;
 * `heavy` is 0 to 1. */
void hps_zipf_init(struct hps_zipf *zipf, uint64_t n, double alpha, double heavy);
/* Draws a rank, 1 to n. Rank 1 is the most frequent one. */
uint64_t hps_zipf_rank(const struct hps_zipf *zipf, struct hps_random *random);
/* The row of a rank. Each rank from 1 to n has its own row from 0 to n - 1. */
uint64_t hps_zipf_row(const struct hps_zipf *zipf, uint64_t rank);

#endif
