/* SPDX-License-Identifier: Apache-2.0
 *
 * Search for NaN and Inf in rows; rows from files and updates are rejected for them. Any thread.
 */
#ifndef HPS_BASE_ROWS_FINITE_H
#define HPS_BASE_ROWS_FINITE_H

#include <stddef.h>

#include "base/dtype.h"
#include "base/types.h"

/* Index of the first of n rows (dim values each, packed, any alignment) with a NaN or Inf; n if no
 * row has one. Then *out_at is the first such value. In an INT8 row it is dim for the scale and dim
 * + 1 for the bias. If only scale * 255 + bias is not finite, it is dim. */
size_t hps_first_not_finite(enum hps_dtype dtype, const void *rows, uint32_t dim, size_t n,
                            uint32_t *out_at);

/* Whether rows of this type may have NaN or Inf. `nan_allowed`: `nan_policy` accepts them. INT8
 * rows never may: a scale or bias that is not finite spoils all values of its row. */
static inline bool hps_may_be_not_finite(enum hps_dtype dtype, bool nan_allowed)
{
    return nan_allowed && !hps_dtype_is_int8(dtype);
}

/* Name of such a value in messages: "value 17", "scale", "bias". */
struct hps_value_name {
    char text[24];
};

struct hps_value_name hps_value_name(uint32_t dim, uint32_t at);

#endif
