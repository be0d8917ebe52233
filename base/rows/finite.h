/* SPDX-License-Identifier: Apache-2.0
 *
 * Search for NaN and Inf in rows. A row of a file or an update is rejected if it has such a value.
 * The option `nan_policy` can accept such values, except in INT8 rows. Any thread.
 */
#ifndef HPS_BASE_ROWS_FINITE_H
#define HPS_BASE_ROWS_FINITE_H

#include <stddef.h>

#include "base/dtype.h"
#include "base/types.h"

/* Index of the first row that has a NaN or Inf, of n rows (dim values each, packed, any alignment).
 * Returns n if all values are finite. Otherwise *out_at is the index of the row's first such value.
 * In an INT8 row, index dim is the scale and dim + 1 is the bias. If both are finite but scale *
 * 255 + bias is not, *out_at is dim. */
size_t hps_first_not_finite(enum hps_dtype dtype, const void *rows, uint32_t dim, size_t n,
                            uint32_t *out_at);

/* Whether rows of this type may have NaN or Inf. nan_allowed: `nan_policy` accepts such values.
 * INT8 rows never may, because a scale or bias that is not finite affects all values of its row. */
static inline bool hps_may_be_not_finite(enum hps_dtype dtype, bool nan_allowed)
{
    return nan_allowed && !hps_dtype_is_int8(dtype);
}

struct hps_value_name {
    char text[24];
};

/* Name, for messages, of the value with index `at` in a row: "value 17", "scale" (index dim) or
 * "bias" (index dim + 1). */
struct hps_value_name hps_value_name(uint32_t dim, uint32_t at);

#endif
