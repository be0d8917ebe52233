/* SPDX-License-Identifier: Apache-2.0
 *
 * Which values of a row are NaN or Inf: rows from files and from updates are refused for one. Any
 * thread.
 */
#ifndef HPS_BASE_ROWS_FINITE_H
#define HPS_BASE_ROWS_FINITE_H

#include <stddef.h>

#include "base/dtype.h"
#include "base/types.h"

/* The first of n rows of dim values, back to back at any address, that has a NaN or Inf; n: none
 * has. *out_at, set if there is one: the first such value. Of an INT8 row dim stands for the scale
 * and dim + 1 for the bias: one of them is not finite, or the scale so large that 255 of it are
 * not. */
size_t hps_first_not_finite(enum hps_dtype dtype, const void *rows, uint32_t dim, size_t n,
                            uint32_t *out_at);

/* Whether rows stored as this type may have NaN or Inf. `nan_allowed`: `nan_policy` accepts them.
 * INT8 rows never may: a scale or bias that is not finite spoils all values of its row. */
static inline bool hps_may_be_not_finite(enum hps_dtype dtype, bool nan_allowed)
{
    return nan_allowed && !hps_dtype_is_int8(dtype);
}

/* Such a value for a message: "value 17", "scale", "bias". */
struct hps_value_name {
    char text[24];
};

struct hps_value_name hps_value_name(uint32_t dim, uint32_t at);

#endif
