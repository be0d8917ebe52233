/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows in vectors of 16 values, with AVX-512 and its masks for lanes of 8 and 16 bits, which every
 * CPU with AVX-512 has had since 2017. No FMA: products are rounded. Any thread.
 */
#ifdef __x86_64__
#include <immintrin.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/row_kernel.h"

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx2,f16c,bmi")))
#define INLINE TARGET static inline __attribute__((always_inline))

enum { WIDTH = 16 };

typedef __m512 vec;
struct tail {
    __mmask16 mask;
};

INLINE struct tail tail_of(uint32_t n)
{
    return (struct tail){(__mmask16)((1U << n) - 1)};
}

INLINE vec v_all(float value)
{
    return _mm512_set1_ps(value);
}

INLINE vec v_add(vec a, vec b)
{
    return _mm512_add_ps(a, b);
}

INLINE vec v_sub(vec a, vec b)
{
    return _mm512_sub_ps(a, b);
}

INLINE vec v_mul(vec a, vec b)
{
    return _mm512_mul_ps(a, b);
}

INLINE vec v_div(vec a, vec b)
{
    return _mm512_div_ps(a, b);
}

INLINE vec v_min(vec a, vec b)
{
    return _mm512_min_ps(a, b);
}

INLINE vec v_max(vec a, vec b)
{
    return _mm512_max_ps(a, b);
}

INLINE float float_of_fp16(uint16_t half)
{
    return _cvtsh_ss(half);
}

/* Values of a stored type, as fp32. */
INLINE vec floats_of(enum hps_dtype type, __m256i halves)
{
    return type == HPS_DTYPE_FP16
               ? _mm512_cvtph_ps(halves)
               : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

INLINE vec floats_of_u8(__m128i bytes)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes));
}

INLINE vec v_load(enum hps_dtype type, const uint8_t *from)
{
    const void *at = from;

    switch (type) {
    case HPS_DTYPE_FP32:
        return _mm512_loadu_ps(at);
    case HPS_DTYPE_FP16:
    case HPS_DTYPE_BF16:
        return floats_of(type, _mm256_loadu_si256(at));
    default:
        return floats_of_u8(_mm_loadu_si128(at));
    }
}

INLINE vec v_load_tail(enum hps_dtype type, const uint8_t *from, struct tail tail)
{
    switch (type) {
    case HPS_DTYPE_FP32:
        return _mm512_maskz_loadu_ps(tail.mask, from);
    case HPS_DTYPE_FP16:
    case HPS_DTYPE_BF16:
        return floats_of(type, _mm256_maskz_loadu_epi16(tail.mask, from));
    default:
        return floats_of_u8(_mm_maskz_loadu_epi8(tail.mask, from));
    }
}

INLINE __m256i bf16_of(vec v)
{
    __m512i bits = _mm512_castps_si512(v);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    __m512i made = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));

    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(made, 16));
}

INLINE __m256i narrow(enum hps_dtype type, vec v)
{
    return type == HPS_DTYPE_FP16 ? _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT) : bf16_of(v);
}

INLINE void v_store(enum hps_dtype type, uint8_t *to, vec v)
{
    if (type == HPS_DTYPE_FP32) {
        _mm512_storeu_ps(to, v);
    } else {
        _mm256_storeu_si256((__m256i_u *)(void *)to, narrow(type, v));
    }
}

INLINE void v_store_tail(enum hps_dtype type, uint8_t *to, vec v, struct tail tail)
{
    if (type == HPS_DTYPE_FP32) {
        _mm512_mask_storeu_ps(to, tail.mask, v);
    } else {
        _mm256_mask_storeu_epi16(to, tail.mask, narrow(type, v));
    }
}

INLINE void v_stream(enum hps_dtype type, uint8_t *to, vec v)
{
    if (type == HPS_DTYPE_FP32) {
        _mm512_stream_ps((float *)(void *)to, v);
    } else {
        _mm256_stream_si256((__m256i *)(void *)to, narrow(type, v));
    }
}

INLINE void v_store_u8(uint8_t *to, vec v)
{
    _mm_storeu_si128((__m128i_u *)(void *)to, _mm512_cvtusepi32_epi8(_mm512_cvtps_epi32(v)));
}

INLINE float v_least(vec v)
{
    return _mm512_reduce_min_ps(v);
}

INLINE float v_largest(vec v)
{
    return _mm512_reduce_max_ps(v);
}

#include "base/row_kernel_body.h"

static bool runs_avx512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx2") &&
           __builtin_cpu_supports("bmi") && hps_row_cpu_f16c();
}

ROW_KERNEL(hps_row_kernel_avx512, "avx512", runs_avx512);

#else
typedef int not_x86; /* a C file must not be empty */
#endif
