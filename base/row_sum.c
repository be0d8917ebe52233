/* SPDX-License-Identifier: Apache-2.0
 *
 * Sums of rows with the kernel of this CPU, and their divisors. Any thread.
 */
#include "base/row_sum.h"

#include <math.h>
#include <string.h>

#include "base/assert.h"
#include "base/row_kernel.h"

static const char *const names[] = {[HPS_POOLING_NONE] = "none",
                                    [HPS_POOLING_SUM] = "sum",
                                    [HPS_POOLING_MEAN] = "mean",
                                    [HPS_POOLING_SQRTN] = "sqrtn",
                                    [HPS_POOLING_MEAN_BY_COUNT] = "mean_by_count"};

enum { N_NAMES = sizeof(names) / sizeof(names[0]) };

const char *hps_pooling_name(enum hps_pooling pooling)
{
    unsigned number = pooling;

    return number >= HPS_POOLING_NONE && number < N_NAMES ? names[number] : "unknown";
}

bool hps_pooling_parse(const char *name, size_t size, enum hps_pooling *out)
{
    for (unsigned i = HPS_POOLING_NONE; i < N_NAMES; i++) {
        if (strlen(names[i]) == size && memcmp(names[i], name, size) == 0) {
            *out = (enum hps_pooling)i;
            return true;
        }
    }
    return false;
}

void hps_row_sum_add_ahead(float *sum, enum hps_dtype dtype, uint32_t dim,
                           const uint8_t *const *rows, const uint8_t *weights_le, uint32_t n,
                           uint32_t n_ahead)
{
    HPS_DEBUG_ASSERT(hps_dtype_is_stored(dtype));
    hps_row_kernel()->sum[dtype](sum, dim, rows, weights_le, n, n_ahead);
}

void hps_row_sum_add(float *sum, enum hps_dtype dtype, uint32_t dim, const uint8_t *const *rows,
                     const uint8_t *weights_le, uint32_t n)
{
    hps_row_sum_add_ahead(sum, dtype, dim, rows, weights_le, n, 0);
}

void hps_bag_weights_add(struct hps_bag_weights *bag, const uint8_t *weights_le, uint32_t n)
{
    bag->n += n;
    if (weights_le == NULL) {
        bag->sum += (float)n;
        bag->squares += (float)n;
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        float weight;
        memcpy(&weight, weights_le + (size_t)i * sizeof(weight), sizeof(weight));
        bag->sum += weight;
        bag->squares += weight * weight;
    }
}

static float divisor_of(enum hps_pooling pooling, const struct hps_bag_weights *bag)
{
    switch (pooling) {
    case HPS_POOLING_MEAN:
        return bag->sum;
    case HPS_POOLING_SQRTN:
        return sqrtf(bag->squares);
    case HPS_POOLING_MEAN_BY_COUNT:
        return (float)bag->n;
    default:
        HPS_ASSERT(pooling == HPS_POOLING_SUM);
        return 1;
    }
}

void hps_row_sum_end(void *to, enum hps_dtype to_type, const float *sum, uint32_t dim,
                     enum hps_pooling pooling, const struct hps_bag_weights *bag)
{
    HPS_ASSERT(hps_dtype_is_output(to_type));
    float by = divisor_of(pooling, bag);
    if (bag->n == 0 || by == 0) {
        memset(to, 0, hps_dtype_row_bytes(to_type, dim));
    } else if (by == 1 && to_type == HPS_DTYPE_FP32) {
        memmove(to, sum, (size_t)dim * sizeof(*sum));
    } else {
        hps_row_kernel()->divide[to_type](to, sum, by, dim);
    }
}
