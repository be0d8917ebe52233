/* SPDX-License-Identifier: Apache-2.0
 *
 * Sums of rows: what a bag of keys comes to. Kernels for each CPU (base/row_kernel.h) give the same
 * bits as one value after the other would in fp32, each product, sum and quotient rounded by
 * itself; of a NaN only that it is one. Any thread.
 */
#ifndef HPS_BASE_ROW_SUM_H
#define HPS_BASE_ROW_SUM_H

#include "base/dtype.h"

/* Numbers are those of hps.v1.Pooling. w: the weights of a bag, 1 if it has none; x: its rows. */
enum hps_pooling {
    HPS_POOLING_NONE = 1,          /* rows of keys, no bags */
    HPS_POOLING_SUM = 2,           /* sum of w * x */
    HPS_POOLING_MEAN = 3,          /* that / sum of w; 0 where that is 0 */
    HPS_POOLING_SQRTN = 4,         /* that / square root of the sum of w * w; 0 where that is 0 */
    HPS_POOLING_MEAN_BY_COUNT = 5, /* that / number of keys; 0 for none */
};

/* sum none mean sqrtn mean_by_count; of another number "unknown". */
const char *hps_pooling_name(enum hps_pooling pooling);
/* The pooling of such a name; false and *out as it was: there is none. */
bool hps_pooling_parse(const char *name, size_t size, enum hps_pooling *out);

/* sum[d] = sum[d] + w[i] * x[i][d], for i = 0 to n - 1 in this order.
 *
 * shape   sum[dim] fp32, aligned as floats, zero before a bag's first rows; rows[n]: stored rows,
 *         any alignment; weights_le[n] fp32, little-endian, any alignment; NULL: all are 1 */
void hps_row_sum_add(float *sum, enum hps_dtype dtype, uint32_t dim, const uint8_t *const *rows,
                     const uint8_t *weights_le, uint32_t n);

/* The same for who adds bags one after the other whose rows lie far apart: rows[n] to
 * rows[n + n_ahead - 1] are those of the next calls, and while row i is added, row
 * i + HPS_ROW_SUM_AHEAD is fetched, if it is one of them all. */
enum { HPS_ROW_SUM_AHEAD = 32 }; /* 12 and 64 measured slower at dim 16 */
void hps_row_sum_add_ahead(float *sum, enum hps_dtype dtype, uint32_t dim,
                           const uint8_t *const *rows, const uint8_t *weights_le, uint32_t n,
                           uint32_t n_ahead);

/* What the sum of a bag is divided by. Zero: an empty bag. */
struct hps_bag_weights {
    uint32_t n;    /* keys */
    float sum;     /* of weights, added in the order of the keys */
    float squares; /* of weights, likewise */
};

/* Add those of the next n keys; NULL: n times 1. */
void hps_bag_weights_add(struct hps_bag_weights *bag, const uint8_t *weights_le, uint32_t n);

/* Write what the bag comes to: its sum, divided as the pooling says, of type FP32, FP16 or BF16.
 * `to`: any alignment; may be `sum` itself if FP32. An empty bag is all 0. */
void hps_row_sum_end(void *to, enum hps_dtype to_type, const float *sum, uint32_t dim,
                     enum hps_pooling pooling, const struct hps_bag_weights *bag);

#endif
