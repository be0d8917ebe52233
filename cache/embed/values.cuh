/* SPDX-License-Identifier: Apache-2.0
 *
 * Converts rows of any type, four neighbouring values at a time. Values are loaded as stored,
 * converted to fp32 in registers, and stored in the wanted type. A row begins at a multiple of 16
 * bytes, and its memory is a multiple of 16 bytes long. So loading four values near the end of a
 * row reads no other memory.
 */
#ifndef HPS_CACHE_EMBED_VALUES_CUH
#define HPS_CACHE_EMBED_VALUES_CUH

#include "base/dtype.h"
#include "cache/embed/common.cuh"

enum { EMBED_VALUES = 4 };

/* Load 4 bytes at any address. The memory of the row must contain all aligned words that the 4
 * bytes overlap. */
HPS_DEVICE_CODE uint32_t embed_load_word(uint64_t address)
{
    uint32_t bits = (uint32_t)(address & 3) * 8;
    uint32_t low = hps_load_u32(embed_at(address & ~UINT64_C(3)));

    if (bits == 0) {
        return low;
    }
    return low >> bits | hps_load_u32(embed_at((address & ~UINT64_C(3)) + 4)) << (32 - bits);
}

/* Load values first to first + 3 of a row of dim values, in the form that embed_value reads. FP32
 * values take the whole quad, FP16 and BF16 values its first half. INT8 values take the first word;
 * the next two words are the row's scale and bias as fp32. */
HPS_DEVICE_CODE struct hps_quad embed_load_values(uint64_t row, uint32_t stored, uint32_t dim,
                                                  uint32_t first)
{
    struct hps_quad raw = {0, 0, 0, 0};

    if (stored == HPS_DTYPE_FP32) {
        return hps_load_quad(embed_at(row + (uint64_t)first * 4));
    }
    if (stored == HPS_DTYPE_FP16 || stored == HPS_DTYPE_BF16) {
        uint64_t half = hps_load_u64(embed_at(row + (uint64_t)first * 2));
        raw.x = (uint32_t)half;
        raw.y = (uint32_t)(half >> 32);
        return raw;
    }
    raw.x = hps_load_u32(embed_at(row + first));
    raw.y = embed_load_word(row + dim);
    if (stored == HPS_DTYPE_INT8_ROWWISE_F32) {
        raw.z = embed_load_word(row + dim + 4);
    } else {
        raw.z = hps_float_bits(hps_float_of_half((uint16_t)(raw.y >> 16)));
        raw.y = hps_float_bits(hps_float_of_half((uint16_t)raw.y));
    }
    return raw;
}

#if HPS_EMBED_CONVERT_AHEAD
/* embed_load_values in two steps. embed_load_ahead loads the values of n rows, and the word in
 * which the scale of each row begins. A row with address 0 is not loaded. embed_finish_values loads
 * the rest of scale and bias, from lines that the first step has brought into the cache. */
HPS_DEVICE_CODE void embed_load_ahead(struct hps_quad *raw, const uint64_t *rows, uint32_t n,
                                      uint32_t stored, uint32_t dim, uint32_t first)
{
    bool fp32 = stored == HPS_DTYPE_FP32;
    bool half = stored == HPS_DTYPE_FP16 || stored == HPS_DTYPE_BF16;

    for (uint32_t k = 0; k < n; k++) {
        raw[k].x = raw[k].y = raw[k].z = raw[k].w = 0;
        if (fp32 && rows[k] != 0) {
            raw[k] = hps_load_quad(embed_at(rows[k] + (uint64_t)first * 4));
        }
    }
    for (uint32_t k = 0; k < n; k++) {
        if (half && rows[k] != 0) {
            uint64_t values = hps_load_u64(embed_at(rows[k] + (uint64_t)first * 2));
            raw[k].x = (uint32_t)values;
            raw[k].y = (uint32_t)(values >> 32);
        }
    }
    for (uint32_t k = 0; k < n; k++) {
        if (!fp32 && !half && rows[k] != 0) {
            raw[k].x = hps_load_u32(embed_at(rows[k] + first));
            raw[k].y = hps_load_u32(embed_at((rows[k] + dim) & ~UINT64_C(3)));
        }
    }
}

/* The result of embed_load_word, if its first aligned word, `low`, is already loaded. */
HPS_DEVICE_CODE uint32_t embed_finish_word(uint64_t address, uint32_t low)
{
    uint32_t bits = (uint32_t)(address & 3) * 8;

    return bits == 0
               ? low
               : low >> bits | hps_load_u32(embed_at((address & ~UINT64_C(3)) + 4)) << (32 - bits);
}

HPS_DEVICE_CODE struct hps_quad embed_finish_values(const struct hps_quad *raw, uint64_t row,
                                                    uint32_t stored, uint32_t dim)
{
    struct hps_quad done = *raw;

    if (stored == HPS_DTYPE_INT8_ROWWISE_F32) {
        done.y = embed_finish_word(row + dim, raw->y);
        done.z = embed_load_word(row + dim + 4);
    } else if (stored == HPS_DTYPE_INT8_ROWWISE_F16) {
        uint32_t both = embed_finish_word(row + dim, raw->y);
        done.y = hps_float_bits(hps_float_of_half((uint16_t)both));
        done.z = hps_float_bits(hps_float_of_half((uint16_t)(both >> 16)));
    }
    return done;
}
#endif

/* Value i of the values that embed_load_values has loaded, as fp32; i is less than EMBED_VALUES. */
HPS_DEVICE_CODE float embed_value(const struct hps_quad *raw, uint32_t stored, uint32_t i)
{
    if (stored == HPS_DTYPE_FP32) {
        return hps_float_of_bits(i == 0 ? raw->x : i == 1 ? raw->y : i == 2 ? raw->z : raw->w);
    }
    if (stored == HPS_DTYPE_FP16 || stored == HPS_DTYPE_BF16) {
        uint32_t half = (i < 2 ? raw->x : raw->y) >> (i % 2 * 16) & 0xffff;
        return stored == HPS_DTYPE_FP16 ? hps_float_of_half((uint16_t)half)
                                        : hps_float_of_bits(half << 16);
    }
    return hps_float_add(
        hps_float_multiply((float)(raw->x >> (i * 8) & 0xff), hps_float_of_bits(raw->y)),
        hps_float_of_bits(raw->z));
}

HPS_DEVICE_CODE uint16_t embed_bf16_of_float(float value)
{
    uint32_t bits = hps_float_bits(value);

    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)(bits >> 16 | 0x40u);
    }
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/* Store the first n of four values as FP32, FP16 or BF16. `to` must be a multiple of the size of
 * one value. */
HPS_DEVICE_CODE void embed_store_values(uint64_t to, uint32_t wanted, const float *values,
                                        uint32_t n)
{
    if (wanted == HPS_DTYPE_FP32) {
        struct hps_quad quad = {hps_float_bits(values[0]), hps_float_bits(values[1]),
                                hps_float_bits(values[2]), hps_float_bits(values[3])};
        if (n == EMBED_VALUES && to % 16 == 0) {
            hps_store_quad(embed_at(to), quad);
            return;
        }
        for (uint32_t i = 0; i < EMBED_VALUES; i++) {
            if (i < n) {
                hps_store_u32(embed_at(to + (uint64_t)i * 4), hps_float_bits(values[i]));
            }
        }
        return;
    }
    uint64_t four = 0;
    for (uint32_t i = 0; i < EMBED_VALUES; i++) {
        uint64_t half = wanted == HPS_DTYPE_FP16 ? hps_half_of_float(values[i])
                                                 : embed_bf16_of_float(values[i]);
        four |= half << (i * 16);
    }
    if (n == EMBED_VALUES && to % 8 == 0) {
        hps_store_u64(embed_at(to), four);
        return;
    }
    for (uint32_t i = 0; i < EMBED_VALUES; i++) {
        if (i < n) {
            hps_store_u16(embed_at(to + (uint64_t)i * 2), (uint16_t)(four >> (i * 16)));
        }
    }
}

#endif
