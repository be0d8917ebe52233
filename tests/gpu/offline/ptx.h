/* SPDX-License-Identifier: Apache-2.0
 *
 * Instructions of PTX in C. translate.py turns `shr.u32 %r1, %r2, 3` into
 * `r1 = ptx_shr_u32(r2, 3, 0)`. An instruction that is missing here does not compile; the error
 * names its line of the PTX file. Registers are unsigned integers of their width, predicates bool,
 * fp32 values their bits. Each PTX thread is a fiber of the simulated device.
 *
 * Only generated files include this.
 */
#ifndef HPS_TESTS_GPU_OFFLINE_PTX_H
#define HPS_TESTS_GPU_OFFLINE_PTX_H

#include <math.h>
#include <string.h>

#include "base/assert.h"
#include "cache/device/simt_run.h"
#include "tests/gpu/offline/watch.h"

#define PTX_INLINE static inline __attribute__((always_inline))

/* ptx_NAME(a, b, c), all of type `from`, returns `to`. */
#define PTX(name, to, from, result)                  \
    PTX_INLINE to ptx_##name(from a, from b, from c) \
    {                                                \
        (void)a, (void)b, (void)c;                   \
        return (to)(result);                         \
    }
#define PTX_WIDTHS(name, t16, t32, t64, result)   \
    PTX(name##_##t16, uint16_t, uint16_t, result) \
    PTX(name##_##t32, uint32_t, uint32_t, result) \
    PTX(name##_##t64, uint64_t, uint64_t, result)
/* The same bits, whether the operands are signed or not. */
#define PTX_INTEGER(name, result)           \
    PTX_WIDTHS(name, u16, u32, u64, result) \
    PTX_WIDTHS(name, s16, s32, s64, result)

PTX_INTEGER(add, 1u * a + b)
PTX_INTEGER(sub, 1u * a - b)
PTX_INTEGER(mul_lo, 1u * a * b)
PTX_INTEGER(mad_lo, 1u * a * b + c)
PTX_INTEGER(neg, 0u - a)
PTX_WIDTHS(and, b16, b32, b64, a &b)
PTX_WIDTHS(or, b16, b32, b64, a | b)
PTX_WIDTHS(xor, b16, b32, b64, a ^ b)
PTX_WIDTHS(not, b16, b32, b64, ~a)
PTX_WIDTHS(min, u16, u32, u64, a < b ? a : b)
PTX_WIDTHS(max, u16, u32, u64, a > b ? a : b)
PTX_WIDTHS(div, u16, u32, u64, a / b)
PTX_WIDTHS(rem, u16, u32, u64, a % b)
PTX(mul_wide_u16, uint32_t, uint16_t, 1u * a * b)
PTX(mul_wide_u32, uint64_t, uint32_t, (uint64_t)a *b)
PTX(mul_hi_u32, uint32_t, uint32_t, (uint64_t)a *b >> 32)
PTX(mul_hi_u64, uint64_t, uint64_t, (unsigned __int128)a *b >> 64)
PTX(and_pred, bool, bool, a &&b)
PTX(or_pred, bool, bool, a || b)
PTX(not_pred, bool, bool, !a)

/* A shift by the width or more gives 0. */
PTX(shl_b16, uint16_t, uint32_t, b < 16 ? a << b : 0)
PTX(shl_b32, uint32_t, uint32_t, b < 32 ? a << b : 0)
PTX(shl_b64, uint64_t, uint64_t, b < 64 ? a << b : 0)
PTX(shr_u16, uint16_t, uint32_t, b < 16 ? a >> b : 0)
PTX(shr_u32, uint32_t, uint32_t, b < 32 ? a >> b : 0)
PTX(shr_u64, uint64_t, uint64_t, b < 64 ? a >> b : 0)
PTX(shf_r_wrap_b32, uint32_t, uint32_t, ((uint64_t)b << 32 | a) >> (c & 31))
PTX(popc_b32, uint32_t, uint32_t, __builtin_popcount(a))
PTX(bfind_shiftamt_u32, uint32_t, uint32_t, a == 0 ? UINT32_MAX : (uint32_t)__builtin_clz(a))
PTX_INLINE uint32_t ptx_brev_b32(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t reversed = 0;

    (void)b, (void)c;
    for (uint32_t i = 0; i < 32; i++) {
        reversed |= (a >> i & 1) << (31 - i);
    }
    return reversed;
}
PTX_INLINE uint64_t ptx_bfi_b64(uint64_t a, uint64_t into, uint32_t at, uint32_t bits)
{
    uint64_t mask = (bits < 64 ? (UINT64_C(1) << bits) - 1 : UINT64_MAX) << at;

    return (into & ~mask) | (a << at & mask);
}

/* ---- fp32 as its bits, fp16 as its bits ------------------------------------------------------ */

PTX_INLINE float ptx_float(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}
PTX_INLINE uint32_t ptx_bits(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
}
PTX_INLINE float ptx_half(uint16_t bits)
{
    _Float16 value;

    memcpy(&value, &bits, sizeof(value));
    return (float)value;
}
PTX_INLINE uint16_t ptx_half_bits(float value)
{
    _Float16 half = (_Float16)value;
    uint16_t bits;

    memcpy(&bits, &half, sizeof(bits));
    return bits;
}
PTX(add_rn_f32, uint32_t, uint32_t, ptx_bits(ptx_float(a) + ptx_float(b)))
PTX(mul_rn_f32, uint32_t, uint32_t, ptx_bits(ptx_float(a) * ptx_float(b)))
PTX(div_rn_f32, uint32_t, uint32_t, ptx_bits(ptx_float(a) / ptx_float(b)))
PTX(sqrt_rn_f32, uint32_t, uint32_t, ptx_bits(sqrtf(ptx_float(a))))

/* ---- conversions, comparisons, choices ------------------------------------------------------- */

#define PTX_CONVERT(to, one, two)                           \
    PTX(cvt_u##to##_u##one, uint##to##_t, uint##one##_t, a) \
    PTX(cvt_u##to##_u##two, uint##to##_t, uint##two##_t, a)
PTX_CONVERT(16, 32, 64)
PTX_CONVERT(32, 16, 64)
PTX_CONVERT(64, 16, 32)
PTX(cvt_rn_f32_u32, uint32_t, uint32_t, ptx_bits((float)a))
PTX(cvt_f32_f16, uint32_t, uint16_t, ptx_bits(ptx_half(a)))
PTX(cvt_rn_f16_f32, uint16_t, uint32_t, ptx_half_bits(ptx_float(a)))

#define PTX_SET_IF(name, operator)                       \
    PTX(setp_##name##_u16, bool, uint16_t, a operator b) \
    PTX(setp_##name##_u32, bool, uint32_t, a operator b) \
    PTX(setp_##name##_u64, bool, uint64_t, a operator b) \
    PTX(setp_##name##_s16, bool, int16_t, a operator b)  \
    PTX(setp_##name##_s32, bool, int32_t, a operator b)  \
    PTX(setp_##name##_s64, bool, int64_t, a operator b)  \
    PTX(setp_##name##_b16, bool, uint16_t, a operator b) \
    PTX(setp_##name##_b32, bool, uint32_t, a operator b) \
    PTX(setp_##name##_b64, bool, uint64_t, a operator b) \
    PTX(setp_##name##_f32, bool, uint32_t, ptx_float(a) operator ptx_float(b))
PTX_SET_IF(eq, ==)
PTX_SET_IF(ne, !=)
PTX_SET_IF(lt, <)
PTX_SET_IF(le, <=)
PTX_SET_IF(gt, >)
PTX_SET_IF(ge, >=)

PTX_WIDTHS(selp, b16, b32, b64, c ? a : b)
PTX_WIDTHS(selp, u16, u32, u64, c ? a : b)
PTX_WIDTHS(selp, s16, s32, s64, c ? a : b)
PTX(selp_f32, uint32_t, uint32_t, c ? a : b)

/* ---- the warp and the block, always whole ---------------------------------------------------- */

#define ptx_shfl_sync_idx_b32(value, lane, bounds, lanes)                     \
    (HPS_ASSERT((uint32_t)(bounds) == 31 && (uint32_t)(lanes) == UINT32_MAX), \
     (uint32_t)hps_simt_shuffle(value, (uint32_t)(lane)&31, __FILE__, __LINE__))
#define ptx_vote_sync_ballot_b32(vote, lanes, none) \
    (HPS_ASSERT((uint32_t)(lanes) == UINT32_MAX), hps_simt_ballot(vote, __FILE__, __LINE__))
#define ptx_vote_sync_any_pred(vote, lanes, none) (ptx_vote_sync_ballot_b32(vote, lanes, none) != 0)
#define ptx_bar_warp_sync(lanes) \
    (HPS_ASSERT((uint32_t)(lanes) == UINT32_MAX), hps_simt_warp_barrier(__FILE__, __LINE__))
#define ptx_bar_sync(barrier) \
    (HPS_ASSERT((barrier) == 0), hps_simt_block_barrier(__FILE__, __LINE__))

/* ---- memory ---------------------------------------------------------------------------------- */

/* Every fence is the strongest one. What weaker ones allow is a matter of the litmus tests. */
#define ptx_fence() __atomic_thread_fence(__ATOMIC_SEQ_CST)

/* The host's address of an access, which faults unless it is aligned to its size. */
PTX_INLINE void *ptx_global(uint64_t address, unsigned bytes, enum watch_access access, int line)
{
    watch_note(address, bytes, access, line);
    return hps_simt_aligned((const void *)(uintptr_t)address, bytes);
}
PTX_INLINE void *ptx_shared(uint64_t address, unsigned bytes, enum watch_access access, int line)
{
    (void)access, (void)line;
    return hps_simt_aligned((const uint8_t *)hps_simt_here->shared + (uint32_t)address, bytes);
}
PTX_INLINE void *ptx_param(uint64_t address, unsigned bytes, enum watch_access access, int line)
{
    (void)access, (void)line;
    return hps_simt_aligned((const void *)(uintptr_t)address, bytes);
}

#endif
