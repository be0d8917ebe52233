/* SPDX-License-Identifier: Apache-2.0
 *
 * Conversion between types of values, by integer arithmetic alone: the same bits on every machine.
 */
#include "base/dtype.h"

#include <stddef.h>
#include <string.h>

static uint32_t fp32_of_fp16(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t exponent = (half >> 10) & 0x1fu;
    uint32_t fraction = half & 0x3ffu;

    if (exponent == 0x1f) {
        return sign | 0x7f800000u | fraction << 13;
    }
    if (exponent != 0) {
        return sign | (exponent + 112) << 23 | fraction << 13;
    }
    if (fraction == 0) {
        return sign;
    }
    uint32_t shift = (uint32_t)__builtin_clz(fraction) - 21; /* to put the leading 1 at bit 10 */
    return sign | (113 - shift) << 23 | ((fraction << shift) & 0x3ffu) << 13;
}

static uint16_t fp16_of_fp32(uint32_t bits)
{
    uint32_t sign = bits >> 16 & 0x8000u;
    uint32_t magnitude = bits & 0x7fffffffu;

    if (magnitude > 0x7f800000u) {
        return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
    }
    if (magnitude >= 0x477ff000u) { /* half-way past 65504 */
        return (uint16_t)(sign | 0x7c00u);
    }
    if (magnitude >= 0x38800000u) { /* 2^-14: normal; a carry of the rounding moves the exponent */
        uint32_t rounded = magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u);
        return (uint16_t)(sign | rounded >> 13);
    }
    if (magnitude <= 0x33000000u) { /* 2^-25, half of the least one: ties to zero */
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

static uint16_t bf16_of_fp32(uint32_t bits)
{
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)(bits >> 16 | 0x40u);
    }
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

static uint32_t load_fp32(const uint8_t *from, enum hps_dtype type)
{
    uint16_t half;
    uint32_t bits;

    if (type == HPS_DTYPE_FP32) {
        memcpy(&bits, from, sizeof(bits));
        return bits;
    }
    memcpy(&half, from, sizeof(half));
    return type == HPS_DTYPE_FP16 ? fp32_of_fp16(half) : (uint32_t)half << 16;
}

static void store_fp32(uint8_t *to, enum hps_dtype type, uint32_t bits)
{
    if (type == HPS_DTYPE_FP32) {
        memcpy(to, &bits, sizeof(bits));
        return;
    }
    uint16_t half = type == HPS_DTYPE_FP16 ? fp16_of_fp32(bits) : bf16_of_fp32(bits);
    memcpy(to, &half, sizeof(half));
}

void hps_dtype_convert(void *to, enum hps_dtype to_type, const void *from, enum hps_dtype from_type,
                       uint32_t n)
{
    uint32_t to_bytes = hps_dtype_bytes(to_type);
    uint32_t from_bytes = hps_dtype_bytes(from_type);
    uint8_t *out = to;
    const uint8_t *in = from;

    if (to_type == from_type) {
        memmove(to, from, (size_t)n * to_bytes);
        return;
    }
    if (to_bytes > from_bytes) { /* backwards, so that no value is overwritten before it is read */
        for (size_t i = n; i-- > 0;) {
            store_fp32(out + i * to_bytes, to_type, load_fp32(in + i * from_bytes, from_type));
        }
        return;
    }
    for (size_t i = 0; i < n; i++) {
        store_fp32(out + i * to_bytes, to_type, load_fp32(in + i * from_bytes, from_type));
    }
}
