/* SPDX-License-Identifier: Apache-2.0
 *
 * Single values of rows. Pure functions.
 */
#include "tools/rows.h"

#include <string.h>

#include "base/assert.h"

float rows_value(const struct hpsd_result *result, size_t row, uint32_t i)
{
    HPS_DEBUG_ASSERT(row < result->n_rows && i < result->dim);
    enum hps_dtype dtype = (enum hps_dtype)result->dtype;
    const uint8_t *from = (const uint8_t *)result->rows + row * result->stride;
    size_t value_bytes = (size_t)hps_dtype_row_bytes(dtype, 1);
    uint8_t one[16]; /* a row with one value; INT8: the value, scale and bias */
    float value;

    HPS_ASSERT(value_bytes <= sizeof(one));
    if (hps_dtype_is_int8(dtype)) {
        one[0] = from[i];
        memcpy(one + 1, from + result->dim, value_bytes - 1);
    } else {
        memcpy(one, from + (size_t)i * value_bytes, value_bytes);
    }
    hps_row_convert(&value, HPS_DTYPE_FP32, one, dtype, 1);
    return value;
}
