/* SPDX-License-Identifier: Apache-2.0
 *
 * Rejection-inversion sampler. Used by one thread at a time.
 */
#include "client/zipf.h"

#include <math.h>

#include "base/assert.h"

/* log1p(x) / x and expm1(x) / x, also near 0. */
static double log1p_ratio(double x)
{
    return fabs(x) > 1e-8 ? log1p(x) / x : 1 - x * (0.5 - x * (1.0 / 3));
}

static double expm1_ratio(double x)
{
    return fabs(x) > 1e-8 ? expm1(x) / x : 1 + x * 0.5 * (1 + x * (1.0 / 3));
}

/* The integral of 1 / x^alpha, and its inverse. */
static double integral(double alpha, double x)
{
    double log_x = log(x);

    return expm1_ratio((1 - alpha) * log_x) * log_x;
}

static double integral_inverse(double alpha, double y)
{
    double t = y * (1 - alpha);

    t = t < -1 ? -1 : t; /* rounding near the end of the range */
    return exp(log1p_ratio(t) * y);
}

static uint64_t gcd(uint64_t a, uint64_t b)
{
    HPS_ASSERT(a > 0);
    while (b != 0) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

void hps_zipf_init(struct hps_zipf *zipf, uint64_t n, double alpha, double heavy)
{
    HPS_ASSERT(n > 0 && alpha >= 0);
    HPS_ASSERT(heavy >= 0 && heavy <= 1);
    *zipf = (struct hps_zipf){.n = n, .alpha = alpha, .heavy = heavy, .n_heavy = 1};
    zipf->step = (uint64_t)((double)n * 0.6180339887498949);
    zipf->step = zipf->step == 0 ? 1 : zipf->step;
    while (gcd(zipf->step, n) != 1) {
        zipf->step++;
    }
    if (alpha > 0) {
        zipf->h_x1 = integral(alpha, 1.5) - 1;
        zipf->h_n = integral(alpha, (double)n + 0.5);
        zipf->s = 2 - integral_inverse(alpha, integral(alpha, 2.5) - exp(-alpha * log(2)));
    }
}

static uint64_t uniform_rank(uint64_t n, struct hps_random *random)
{
    return 1 + (uint64_t)(((unsigned __int128)hps_random_next(random) * n) >> 64);
}

uint64_t hps_zipf_rank(const struct hps_zipf *zipf, struct hps_random *random)
{
    if (zipf->heavy > 0 && hps_random_unit(random) < zipf->heavy) {
        return zipf->n_heavy == 1 ? 1 : uniform_rank(zipf->n_heavy, random);
    }
    if (zipf->alpha <= 0 || zipf->n == 1) {
        return uniform_rank(zipf->n, random);
    }
    for (;;) {
        double u = zipf->h_n + hps_random_unit(random) * (zipf->h_x1 - zipf->h_n);
        double x = integral_inverse(zipf->alpha, u);
        double k = floor(x + 0.5);
        k = k < 1 ? 1 : k > (double)zipf->n ? (double)zipf->n : k;
        if (k - x <= zipf->s || u >= integral(zipf->alpha, k + 0.5) - exp(-zipf->alpha * log(k))) {
            uint64_t rank = (uint64_t)k;
            return rank > zipf->n ? zipf->n : rank;
        }
    }
}

uint64_t hps_zipf_row(const struct hps_zipf *zipf, uint64_t rank)
{
    HPS_DEBUG_ASSERT(rank >= 1 && rank <= zipf->n);
    return (uint64_t)((unsigned __int128)rank * zipf->step % zipf->n);
}
