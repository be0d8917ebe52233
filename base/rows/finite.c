/* SPDX-License-Identifier: Apache-2.0
 *
 * A value whose exponent is all ones is NaN or Inf. Rows are looked through in blocks, without an
 * early exit inside one, so that it is vectorised. Any thread.
 */
#include "base/rows/finite.h"

#include <stdbool.h>
#include <string.h>

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
    if (dtype == HPS_DTYPE_FP32) {
        return bad_fp32(data, n);
    }
    return bad_half(data, n, dtype == HPS_DTYPE_FP16 ? FP16_EXPONENT : BF16_EXPONENT);
}

size_t hps_first_not_finite(enum hps_dtype dtype, const void *values, size_t n)
{
    const uint8_t *data = values;
    size_t bytes = hps_dtype_bytes(dtype);
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
