/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows one value at a time, on any CPU. Any thread.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/half.h"
#include "base/row_kernel.h"

#define TARGET
#define INLINE static inline __attribute__((always_inline))

enum { WIDTH = 1 };

typedef float vec;
struct tail {
    char none; /* a vector of one value has no tail */
};

INLINE struct tail tail_of(uint32_t n)
{
    (void)n;
    return (struct tail){0};
}

INLINE vec v_all(float value)
{
    return value;
}

INLINE vec v_add(vec a, vec b)
{
    return a + b;
}

INLINE vec v_sub(vec a, vec b)
{
    return a - b;
}

INLINE vec v_mul(vec a, vec b)
{
    return a * b;
}

INLINE vec v_div(vec a, vec b)
{
    return a / b;
}

INLINE vec v_min(vec a, vec b)
{
    return a < b ? a : b;
}

INLINE vec v_max(vec a, vec b)
{
    return a > b ? a : b;
}

INLINE float float_of_fp16(uint16_t half)
{
    return hps_float_of_fp16(half);
}

INLINE vec v_load(enum hps_dtype type, const uint8_t *from)
{
    uint16_t half;
    float value;

    switch (type) {
    case HPS_DTYPE_FP32:
        memcpy(&value, from, sizeof(value));
        return value;
    case HPS_DTYPE_FP16:
        memcpy(&half, from, sizeof(half));
        return hps_float_of_fp16(half);
    case HPS_DTYPE_BF16:
        memcpy(&half, from, sizeof(half));
        return hps_float_of_bf16(half);
    default:
        return (float)*from;
    }
}

INLINE vec v_load_tail(enum hps_dtype type, const uint8_t *from, struct tail tail)
{
    (void)tail;
    return v_load(type, from);
}

INLINE void v_store(enum hps_dtype type, uint8_t *to, vec v)
{
    if (type == HPS_DTYPE_FP32) {
        memcpy(to, &v, sizeof(v));
        return;
    }
    uint16_t half = type == HPS_DTYPE_FP16 ? hps_fp16_of_float(v) : hps_bf16_of_float(v);
    memcpy(to, &half, sizeof(half));
}

INLINE void v_store_tail(enum hps_dtype type, uint8_t *to, vec v, struct tail tail)
{
    (void)tail;
    v_store(type, to, v);
}

INLINE void v_stream(enum hps_dtype type, uint8_t *to, vec v)
{
    v_store(type, to, v);
}

INLINE void v_store_u8(uint8_t *to, vec v)
{
    *to = (uint8_t)(v + 0x1.8p23F - 0x1.8p23F); /* rounds: the sum has no bits below 1 */
}

INLINE float v_least(vec v)
{
    return v;
}

INLINE float v_largest(vec v)
{
    return v;
}

#include "base/row_kernel_body.h"

static bool runs_everywhere(void)
{
    return true;
}

ROW_KERNEL(hps_row_kernel_scalar, "scalar", runs_everywhere);
