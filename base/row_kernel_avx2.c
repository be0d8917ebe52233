/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows in vectors of 8 values, with AVX2 and F16C. No FMA: products are rounded. Any thread.
 */
#ifdef __x86_64__
#include <immintrin.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/row_kernel.h"

#define TARGET __attribute__((target("avx2,f16c,bmi")))
#define INLINE TARGET static inline __attribute__((always_inline))

enum { WIDTH = 8 };

typedef __m256 vec;
struct tail {
    __m256i mask; /* all bits of the lanes in use */
    uint32_t n;
};

INLINE struct tail tail_of(uint32_t n)
{
    __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);

    return (struct tail){_mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), lanes), n};
}

INLINE vec v_all(float value)
{
    return _mm256_set1_ps(value);
}

INLINE vec v_add(vec a, vec b)
{
    return _mm256_add_ps(a, b);
}

INLINE vec v_sub(vec a, vec b)
{
    return _mm256_sub_ps(a, b);
}

INLINE vec v_mul(vec a, vec b)
{
    return _mm256_mul_ps(a, b);
}

INLINE vec v_div(vec a, vec b)
{
    return _mm256_div_ps(a, b);
}

INLINE vec v_min(vec a, vec b)
{
    return _mm256_min_ps(a, b);
}

INLINE vec v_max(vec a, vec b)
{
    return _mm256_max_ps(a, b);
}

INLINE float float_of_fp16(uint16_t half)
{
    return _cvtsh_ss(half);
}

INLINE vec floats_of_bf16(__m128i halves)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

INLINE vec v_load(enum hps_dtype type, const uint8_t *from)
{
    const void *at = from;

    switch (type) {
    case HPS_DTYPE_FP32:
        return _mm256_loadu_ps(at);
    case HPS_DTYPE_FP16:
        return _mm256_cvtph_ps(_mm_loadu_si128(at));
    case HPS_DTYPE_BF16:
        return floats_of_bf16(_mm_loadu_si128(at));
    default:
        return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(at)));
    }
}

/* AVX2 has masks only for lanes of 32 bits. */
INLINE vec v_load_tail(enum hps_dtype type, const uint8_t *from, struct tail tail)
{
    uint8_t lanes[16] = {0};

    switch (type) {
    case HPS_DTYPE_FP32:
        return _mm256_maskload_ps((const float *)(const void *)from, tail.mask);
    case HPS_DTYPE_FP16:
    case HPS_DTYPE_BF16:
        memcpy(lanes, from, (size_t)tail.n * sizeof(uint16_t));
        break;
    default:
        memcpy(lanes, from, tail.n);
        break;
    }
    return v_load(type, lanes);
}

/* The lower halves of 8 lanes of 32 bits, each at most 0xffff. */
INLINE __m128i halves_of(__m256i lanes)
{
    __m256i packed = _mm256_packus_epi32(lanes, lanes); /* within each 128 bits */

    return _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
}

INLINE __m128i bf16_of(vec v)
{
    __m256i bits = _mm256_castps_si256(v);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));

    return halves_of(_mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16));
}

INLINE __m128i narrow(enum hps_dtype type, vec v)
{
    return type == HPS_DTYPE_FP16 ? _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT) : bf16_of(v);
}

INLINE void v_store(enum hps_dtype type, uint8_t *to, vec v)
{
    if (type == HPS_DTYPE_FP32) {
        _mm256_storeu_ps((float *)(void *)to, v);
    } else {
        _mm_storeu_si128((__m128i_u *)(void *)to, narrow(type, v));
    }
}

INLINE void v_store_tail(enum hps_dtype type, uint8_t *to, vec v, struct tail tail)
{
    if (type == HPS_DTYPE_FP32) {
        _mm256_maskstore_ps((float *)(void *)to, tail.mask, v);
    } else {
        uint8_t lanes[16];
        _mm_storeu_si128((__m128i_u *)(void *)lanes, narrow(type, v));
        memcpy(to, lanes, (size_t)tail.n * sizeof(uint16_t));
    }
}

INLINE void v_stream(enum hps_dtype type, uint8_t *to, vec v)
{
    if (type == HPS_DTYPE_FP32) {
        _mm256_stream_ps((float *)(void *)to, v);
    } else {
        _mm_stream_si128((__m128i *)(void *)to, narrow(type, v));
    }
}

INLINE void v_store_u8(uint8_t *to, vec v)
{
    __m128i halves = halves_of(_mm256_cvtps_epi32(v));

    _mm_storel_epi64((__m128i_u *)(void *)to, _mm_packus_epi16(halves, halves));
}

INLINE float v_least(vec v)
{
    __m128 four = _mm_min_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    __m128 two = _mm_min_ps(four, _mm_movehl_ps(four, four));

    return _mm_cvtss_f32(_mm_min_ss(two, _mm_shuffle_ps(two, two, 1)));
}

INLINE float v_largest(vec v)
{
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));

    return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

#include "base/row_kernel_body.h"

static bool runs_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && hps_row_cpu_f16c();
}

ROW_KERNEL(hps_row_kernel_avx2, "avx2", runs_avx2);

#else
typedef int not_x86; /* a C file must not be empty */
#endif
