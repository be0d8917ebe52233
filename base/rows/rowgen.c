/* SPDX-License-Identifier: Apache-2.0
 *
 * Synthetic rows. See base/rows/rowgen.h. Any thread.
 */
#include "base/rows/rowgen.h"

#include <string.h>

#include "base/assert.h"

uint16_t hps_rowgen_half(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    uint32_t sign = (bits >> 16) & 0x8000;
    uint32_t magnitude = bits & 0x7fffffff;
    uint32_t half;

    if (magnitude > 0x7f800000) {
        half = 0x7e00 | ((magnitude >> 13) & 0x1ff); /* quiet NaN with the upper payload */
    } else if (magnitude >= 0x47800000) {
        half = 0x7c00; /* 65536 and more */
    } else if (magnitude >= 0x38800000) {
        /* Normal: rebias, then round to even; a carry goes into the exponent (65520 gives Inf). */
        half = magnitude - ((127 - 15) << 23);
        half = (half + 0xfff + ((half >> 13) & 1)) >> 13;
    } else if (magnitude <= 0x33000000) {
        half = 0; /* up to 2^-25: ties to zero, or nearer to it */
    } else {
        /* Subnormal: the mantissa with its leading 1, shifted to units of 2^-24. */
        uint32_t shift = 126 - (magnitude >> 23);
        uint32_t mantissa = (magnitude & 0x7fffff) | 0x800000;
        uint32_t rest = mantissa & ((UINT32_C(1) << shift) - 1);
        uint32_t tie = UINT32_C(1) << (shift - 1);

        half = mantissa >> shift;
        if (rest > tie || (rest == tie && (half & 1) != 0)) {
            half++;
        }
    }
    return (uint16_t)(sign | half);
}

void hps_rowgen_row(uint64_t seed, uint32_t table, hps_key key, uint32_t dim, void *row)
{
    uint64_t base = hps_rowgen_base(seed, table, key);
    float *values = (float *)row;

    HPS_DEBUG_ASSERT((uintptr_t)row % sizeof(*values) == 0);
    for (uint32_t i = 0; i < dim; i++) {
        values[i] = hps_rowgen_value(base, i);
    }
}
