/* SPDX-License-Identifier: Apache-2.0
 *
 * Search for NaN and Inf in rows. Rows from files and updates that have such values are rejected,
 * unless `nan_policy` accepts them. Any thread.
 */
#ifndef HPS_BASE_ROWS_FINITE_H
#define HPS_BASE_ROWS_FINITE_H

#include <stddef.h>

#include "base/dtype.h"
#include "base/types.h"

/* Index of the first of n rows (dim values each, packed, any alignment) that has a NaN or Inf. In
 * this case *out_at is the index of the first such value. For an INT8 row it is dim for the scale
 * and dim + 1 for the bias; if only scale * 255 + bias is not finite, it is dim. Returns n if all
 * values are finite. */
size_t hps_first_not_finite(enum hps_dtype dtype, const void *rows, uint32_t dim, size_t n,
                            uint32_t *out_at);

/* Whether rows of this type may have NaN or Inf. nan_allowed: `nan_policy` accepts them. INT8 rows
 * must not have them, because a scale or bias that is not finite affects all values of its row. */
static inline bool hps_may_be_not_finite(enum hps_dtype dtype, bool nan_allowed)
{
    return nan_allowed && !hps_dtype_is_int8(dtype);
}

struct hps_value_name {
    char text[24];
};

/* Name of the value with index `at` of a row, for messages: "value 17", "scale" (dim), "bias" (dim
 * + 1). */
struct hps_value_name hps_value_name(uint32_t dim, uint32_t at);

#endif
