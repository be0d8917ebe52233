/* SPDX-License-Identifier: Apache-2.0
 *
 * Conversion between a float and the bits of an FP16 or BF16 value. base/row_kernel_*.c convert
 * vectors of values, with the same results, NaNs included. Any thread.
 */
#ifndef HPS_BASE_HALF_H
#define HPS_BASE_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t hps_bits_of_float(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static inline float hps_float_of_bits(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* Exact. A NaN becomes quiet and keeps its fraction. */
static inline float hps_float_of_fp16(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t exponent = (half >> 10) & 0x1fu;
    uint32_t fraction = half & 0x3ffu;

    if (exponent == 0) { /* multiples of 2^-24 */
        return hps_float_of_bits(sign | hps_bits_of_float((float)fraction * 0x1p-24F));
    }
    if (exponent != 0x1f) {
        return hps_float_of_bits(sign | (exponent + 112) << 23 | fraction << 13);
    }
    return hps_float_of_bits(sign | 0x7f800000u | (fraction != 0 ? 0x400000u : 0) | fraction << 13);
}

/* Rounds to nearest, ties to even. Magnitudes from 65520 on become an infinity. A NaN becomes
 * quiet. */
static inline uint16_t hps_fp16_of_float(float value)
{
    uint32_t bits = hps_bits_of_float(value);
    uint32_t sign = bits >> 16 & 0x8000u;
    uint32_t magnitude = bits & 0x7fffffffu;

    if (magnitude > 0x7f800000u) {
        return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
    }
    if (magnitude >= 0x477ff000u) { /* 65520, half-way between 65504 and 65536 */
        return (uint16_t)(sign | 0x7c00u);
    }
    if (magnitude >= 0x38800000u) { /* 2^-14: normal; rounding may carry into the exponent */
        uint32_t rounded = magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u);
        return (uint16_t)(sign | rounded >> 13);
    }
    if (magnitude <= 0x33000000u) { /* 2^-25, half of the smallest subnormal: ties to zero */
        return (uint16_t)sign;
    }
    uint32_t fraction = (magnitude & 0x7fffffu) | 0x800000u;
    uint32_t shift = 126 - (magnitude >> 23); /* 14 to 24 */
    uint32_t kept = fraction >> shift;
    uint32_t rest = fraction & ((1u << shift) - 1);
    uint32_t half = 1u << (shift - 1);
    kept += rest > half || (rest == half && (kept & 1u) != 0) ? 1 : 0;
    return (uint16_t)(sign | kept);
}

/* Exact. A NaN keeps all its bits. */
static inline float hps_float_of_bf16(uint16_t half)
{
    return hps_float_of_bits((uint32_t)half << 16);
}

/* Rounds to nearest, ties to even; overflow gives an infinity. A NaN becomes quiet. */
static inline uint16_t hps_bf16_of_float(float value)
{
    uint32_t bits = hps_bits_of_float(value);

    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)(bits >> 16 | 0x40u);
    }
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

#endif
