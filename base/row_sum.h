/* SPDX-License-Identifier: Apache-2.0
 *
 * Sums of rows, for bags of keys. The kernels of all CPUs (base/row_kernel.h) give the same bits as
 * a scalar fp32 loop over the rows in order. Each product, sum and quotient is rounded separately.
 * Only the bits of a NaN may differ. Any thread.
 */
#ifndef HPS_BASE_ROW_SUM_H
#define HPS_BASE_ROW_SUM_H

#include "base/dtype.h"

/* The numbers are the same as in hps.v1.Pooling. In the formulas, w are the weights of a bag (1 if
 * it has no weights) and x its rows. */
enum hps_pooling {
    HPS_POOLING_NONE = 1,          /* no bags: each key has its own row in the reply */
    HPS_POOLING_SUM = 2,           /* sum of w * x */
    HPS_POOLING_MEAN = 3,          /* SUM / sum of w; 0 if the divisor is 0 */
    HPS_POOLING_SQRTN = 4,         /* SUM / sqrt(sum of w * w); 0 if the divisor is 0 */
    HPS_POOLING_MEAN_BY_COUNT = 5, /* SUM / number of keys; 0 if there are no keys */
};

/* The name: none, sum, mean, sqrtn or mean_by_count; "unknown" for other numbers. */
const char *hps_pooling_name(enum hps_pooling pooling);
/* The pooling with this name. False: no pooling has this name; *out is unchanged. */
bool hps_pooling_parse(const char *name, size_t size, enum hps_pooling *out);

/* sum[d] = sum[d] + w[i] * x[i][d], for i = 0 to n - 1 in this order.
 *
 * shape   sum[dim] fp32, aligned as floats; zero it before the first rows of a bag
 *         rows[n] stored rows, any alignment
 *         weights_le[n] fp32, little-endian, any alignment; NULL: all are 1
 */
void hps_row_sum_add(float *sum, enum hps_dtype dtype, uint32_t dim, const uint8_t *const *rows,
                     const uint8_t *weights_le, uint32_t n);

/* Like hps_row_sum_add, with prefetching, for callers that add many bags of scattered rows. rows[n]
 * to rows[n + n_ahead - 1] are rows that the next calls will add. While row i is added, row i +
 * HPS_ROW_SUM_AHEAD is prefetched if it is one of the n + n_ahead rows. */
enum { HPS_ROW_SUM_AHEAD = 32 }; /* measured: 12 and 64 are slower at dim 16 */
void hps_row_sum_add_ahead(float *sum, enum hps_dtype dtype, uint32_t dim,
                           const uint8_t *const *rows, const uint8_t *weights_le, uint32_t n,
                           uint32_t n_ahead);

/* Number of keys and sums of weights of a bag, from which its divisor is computed. Zero it before
 * the first key of a bag. */
struct hps_bag_weights {
    uint32_t n;    /* number of keys */
    float sum;     /* sum of weights, in order of the keys */
    float squares; /* sum of squared weights, in order of the keys */
};

/* Add the weights of the next n keys of the bag; weights_le NULL: n weights of 1. */
void hps_bag_weights_add(struct hps_bag_weights *bag, const uint8_t *weights_le, uint32_t n);

/* Write the pooled row of a bag as FP32, FP16 or BF16: `sum`, divided as `pooling` requires. `to`
 * may have any alignment, and may be `sum` itself if the type is FP32. The row of an empty bag is
 * all 0. */
void hps_row_sum_end(void *to, enum hps_dtype to_type, const float *sum, uint32_t dim,
                     enum hps_pooling pooling, const struct hps_bag_weights *bag);

#endif
