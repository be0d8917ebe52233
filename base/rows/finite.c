/* SPDX-License-Identifier: Apache-2.0
 *
 * A value with an exponent of all ones is NaN or Inf. Blocks of a row are searched without an early
 * exit, so that the loop is vectorised. Any thread.
 */
#include "base/rows/finite.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"

enum { BLOCK_VALUES = 1024, FP16_EXPONENT = 0x7c00, BF16_EXPONENT = 0x7f80 };

static bool bad_fp32(const uint8_t *data, size_t n)
{
    uint32_t found = 0;

    for (size_t i = 0; i < n; i++) {
        uint32_t bits;

        memcpy(&bits, data + i * 4, 4);
        found |= (bits & 0x7f800000) == 0x7f800000 ? 1u : 0u;
    }
    return found != 0;
}

static bool bad_half(const uint8_t *data, size_t n, uint16_t exponent)
{
    uint16_t found = 0;

    for (size_t i = 0; i < n; i++) {
        uint16_t bits;

        memcpy(&bits, data + i * 2, 2);
        found = (uint16_t)(found | ((bits & exponent) == exponent ? 1 : 0));
    }
    return found != 0;
}

static bool bad(enum hps_dtype dtype, const uint8_t *data, size_t n)
{
    switch (dtype) {
    case HPS_DTYPE_FP32:
        return bad_fp32(data, n);
    case HPS_DTYPE_FP16:
        return bad_half(data, n, FP16_EXPONENT);
    default:
        HPS_ASSERT(dtype == HPS_DTYPE_BF16);
        return bad_half(data, n, BF16_EXPONENT);
    }
}

/* The first bad one of n values of `bytes` each, or n. */
static size_t first_bad(enum hps_dtype dtype, size_t bytes, const uint8_t *data, size_t n)
{
    size_t at = 0;

    while (at < n) {
        size_t n_block = n - at < BLOCK_VALUES ? n - at : BLOCK_VALUES;
        if (bad(dtype, data + at * bytes, n_block)) {
            break;
        }
        at += n_block;
    }
    while (at < n && !bad(dtype, data + at * bytes, 1)) {
        at++;
    }
    return at;
}

/* The values of a row are finite if scale, bias and the value of byte 255 are. */
static size_t first_bad_int8(enum hps_dtype dtype, const uint8_t *rows, uint32_t dim, size_t n,
                             uint32_t *out_at)
{
    enum hps_dtype scale_type =
        dtype == HPS_DTYPE_INT8_ROWWISE_F32 ? HPS_DTYPE_FP32 : HPS_DTYPE_FP16;
    size_t row_bytes = hps_dtype_row_bytes(dtype, dim);
    float affine[2]; /* scale, bias */

    for (size_t i = 0; i < n; i++) {
        hps_row_convert(affine, HPS_DTYPE_FP32, rows + i * row_bytes + dim, scale_type, 2);
        if (!isfinite(affine[0]) || !isfinite(affine[1]) ||
            !isfinite(255 * affine[0] + affine[1])) {
            *out_at = isfinite(affine[0]) && !isfinite(affine[1]) ? dim + 1 : dim;
            return i;
        }
    }
    return n;
}

size_t hps_first_not_finite(enum hps_dtype dtype, const void *rows, uint32_t dim, size_t n,
                            uint32_t *out_at)
{
    HPS_ASSERT(hps_dtype_is_stored(dtype) && dim > 0);
    if (hps_dtype_is_int8(dtype)) {
        return first_bad_int8(dtype, rows, dim, n, out_at);
    }
    size_t n_values = n * dim;
    size_t at = first_bad(dtype, hps_dtype_row_bytes(dtype, 1), rows, n_values);
    if (at == n_values) {
        return n;
    }
    *out_at = (uint32_t)(at % dim);
    return at / dim;
}

struct hps_value_name hps_value_name(uint32_t dim, uint32_t at)
{
    struct hps_value_name name;

    HPS_ASSERT(at < dim + 2);
    if (at < dim) {
        (void)snprintf(name.text, sizeof(name.text), "value %" PRIu32, at);
    } else {
        (void)snprintf(name.text, sizeof(name.text), "%s", at == dim ? "scale" : "bias");
    }
    return name;
}
