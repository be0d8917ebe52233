/* SPDX-License-Identifier: Apache-2.0
 *
 * The functions and macros with which kernels are written. A kernel is a .cuh file in the common
 * subset of C11 and CUDA C++ that uses this file. It is compiled twice: by nvcc for a GPU, and by
 * the C compiler for the simulated device, where each thread of a block is a fiber (sim/simt.c).
 *
 *     struct add_args { const uint32_t *from; uint32_t *to; uint32_t n; };
 *
 *     HPS_KERNEL(hps_add, struct add_args, args, 256, 4)
 *     {
 *         for (uint32_t i = hps_grid_thread(); i < args->n; i += hps_grid_threads()) {
 *             hps_atomic_add_u32(&args->to[i], hps_load_u32(&args->from[i]), HPS_RELAXED);
 *         }
 *     }
 *
 * Four files take part in a kernel such as hps_add. kernels.cuh has the source above. kernels.cu
 * includes kernels.cuh for nvcc, and sim/kernels.c includes it for the simulated device. kernels.c
 * has `HPS_KERNEL_DEFINE(hps_add, struct add_args, 256, 0);`.
 *
 * A *lane* is one of the 32 threads of a warp. Rules for kernel source, so that it works on a GPU
 * and on the simulated device:
 * - No templates, overloads or classes. Structs have an explicit layout (no padding, types of
 *   fixed width).
 * - All 32 lanes of a warp must make each call of hps_ballot, hps_any, hps_shuffle_* and
 *   hps_warp_barrier, all at the same place in the source. All threads of a block must make each
 *   call of hps_block_barrier, also at the same place. So no thread may return while other threads
 *   of its warp or block still make such calls. If a kernel breaks this rule, a GPU may hang, and
 *   the simulator ends the process with a message.
 * - Ballots and shuffles do not order memory. A barrier orders the memory accesses of its threads.
 *   An atomic orders the accesses of its thread as its argument `order` says. The start and the end
 *   of a launch order the accesses of all threads.
 * - Blocks run in any order. Some may begin only after others have ended.
 * - No thread may write to memory during a launch in which hps_load_* reads it. Addresses must be
 *   aligned to the size of the access.
 * - HPS_SHARED declares shared memory, once per kernel. Its initial contents are undefined.
 */
#ifndef HPS_CACHE_DEVICE_SIMT_H
#define HPS_CACHE_DEVICE_SIMT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HPS_WARP = 32 };

#if defined(__CUDACC__)

#define HPS_DEVICE_CODE static __device__ __forceinline__

/* 16 bytes, aligned to 16, moved by one instruction. */
struct __align__(16) hps_quad
{
    uint32_t x, y, z, w;
};

/* Declares a kernel; its body follows in braces. args: the name of the pointer to the kernel's
 * argument. threads: threads per block. min_blocks: the least number of blocks that must fit on a
 * multiprocessor at the same time; the compiler limits the registers per thread accordingly. */
#define HPS_KERNEL(kernel, args_type, args, threads, min_blocks)                 \
    static __device__ __forceinline__ void kernel##_body(const args_type *args); \
    static __global__ void __launch_bounds__(threads, min_blocks)                \
        kernel##_entry(const __grid_constant__ args_type kernel_args)            \
    {                                                                            \
        kernel##_body(&kernel_args);                                             \
    }                                                                            \
    extern "C" const void *kernel##_cuda(void)                                   \
    {                                                                            \
        return (const void *)kernel##_entry;                                     \
    }                                                                            \
    static __device__ __forceinline__ void kernel##_body(const args_type *args)

/* Defines `name` as a pointer to the shared memory of the block (hps_kernel.shared_size). */
#define HPS_SHARED(type, name)                                         \
    extern __shared__ __align__(16) unsigned char hps_shared_memory[]; \
    type *name = (type *)hps_shared_memory

/* ---- indices of a thread --------------------------------------------------------------------- */

HPS_DEVICE_CODE uint32_t hps_thread(void)
{
    return threadIdx.x;
}
HPS_DEVICE_CODE uint32_t hps_block(void)
{
    return blockIdx.x;
}
HPS_DEVICE_CODE uint32_t hps_block_threads(void)
{
    return blockDim.x;
}
HPS_DEVICE_CODE uint32_t hps_grid_blocks(void)
{
    return gridDim.x;
}

/* ---- the warp and the block ------------------------------------------------------------------ */

/* hps_ballot: bit i of the result is the vote of lane i. hps_any: whether any lane votes true.
 * hps_shuffle_*: the value that lane number `lane` has passed. */
HPS_DEVICE_CODE uint32_t hps_ballot(bool vote)
{
    return __ballot_sync(0xffffffffu, vote);
}
HPS_DEVICE_CODE bool hps_any(bool vote)
{
    return __any_sync(0xffffffffu, vote) != 0;
}
HPS_DEVICE_CODE uint32_t hps_shuffle_u32(uint32_t value, uint32_t lane)
{
    return __shfl_sync(0xffffffffu, value, (int)lane);
}
HPS_DEVICE_CODE uint64_t hps_shuffle_u64(uint64_t value, uint32_t lane)
{
    return __shfl_sync(0xffffffffu, (unsigned long long)value, (int)lane);
}
HPS_DEVICE_CODE void hps_warp_barrier(void)
{
    __syncwarp();
}
HPS_DEVICE_CODE void hps_block_barrier(void)
{
    __syncthreads();
}

/* ---- memory ---------------------------------------------------------------------------------- */

HPS_DEVICE_CODE uint32_t hps_load_u32(const void *from)
{
    return __ldg((const unsigned *)from);
}
HPS_DEVICE_CODE uint64_t hps_load_u64(const void *from)
{
    return __ldg((const unsigned long long *)from);
}
HPS_DEVICE_CODE struct hps_quad hps_load_quad(const void *from)
{
    uint4 value = __ldg((const uint4 *)from);
    struct hps_quad quad = {value.x, value.y, value.z, value.w};
    return quad;
}
/* Like hps_load_quad, with a hint to the second-level cache: evict the line last
 * (hps_load_quad_kept) or first (hps_load_quad_once). */
#define HPS_LOAD_QUAD_HINTED(name, policy)                                       \
    HPS_DEVICE_CODE struct hps_quad name(const void *from)                       \
    {                                                                            \
        struct hps_quad quad;                                                    \
        uint64_t hint;                                                           \
        asm("createpolicy.fractional.L2::" policy ".b64 %0, 1.0;" : "=l"(hint)); \
        asm("ld.global.nc.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"     \
            : "=r"(quad.x), "=r"(quad.y), "=r"(quad.z), "=r"(quad.w)             \
            : "l"(__cvta_generic_to_global(from)), "l"(hint));                   \
        return quad;                                                             \
    }
HPS_LOAD_QUAD_HINTED(hps_load_quad_kept, "evict_last")
HPS_LOAD_QUAD_HINTED(hps_load_quad_once, "evict_first")
HPS_DEVICE_CODE void hps_store_u16(void *to, uint16_t value)
{
    __stcs((unsigned short *)to, value);
}
HPS_DEVICE_CODE void hps_store_u32(void *to, uint32_t value)
{
    __stcs((unsigned *)to, value);
}
HPS_DEVICE_CODE void hps_store_u64(void *to, uint64_t value)
{
    __stcs((unsigned long long *)to, value);
}
HPS_DEVICE_CODE void hps_store_quad(void *to, struct hps_quad value)
{
    __stcs((uint4 *)to, make_uint4(value.x, value.y, value.z, value.w));
}
/* Like hps_store_quad. The other stores tell the second-level cache to evict the line first; this
 * one does not. */
HPS_DEVICE_CODE void hps_store_quad_kept(void *to, struct hps_quad value)
{
    __stwb((uint4 *)to, make_uint4(value.x, value.y, value.z, value.w));
}

/* ---- atomics --------------------------------------------------------------------------------- */

#define HPS_RELAXED __NV_ATOMIC_RELAXED
#define HPS_ACQUIRE __NV_ATOMIC_ACQUIRE
#define HPS_RELEASE __NV_ATOMIC_RELEASE
#define HPS_ACQ_REL __NV_ATOMIC_ACQ_REL

#define hps_atomic_load_u32(from, order) \
    __nv_atomic_load_n((uint32_t *)(from), order, __NV_THREAD_SCOPE_DEVICE)
#define hps_atomic_load_u64(from, order) \
    __nv_atomic_load_n((uint64_t *)(from), order, __NV_THREAD_SCOPE_DEVICE)
#define hps_atomic_store_u32(to, value, order) \
    __nv_atomic_store_n((uint32_t *)(to), (uint32_t)(value), order, __NV_THREAD_SCOPE_DEVICE)
#define hps_atomic_store_u64(to, value, order) \
    __nv_atomic_store_n((uint64_t *)(to), (uint64_t)(value), order, __NV_THREAD_SCOPE_DEVICE)
#define hps_atomic_add_u32(to, value, order) \
    __nv_atomic_fetch_add((uint32_t *)(to), (uint32_t)(value), order, __NV_THREAD_SCOPE_DEVICE)
#define hps_atomic_add_u64(to, value, order) \
    __nv_atomic_fetch_add((uint64_t *)(to), (uint64_t)(value), order, __NV_THREAD_SCOPE_DEVICE)
#define hps_atomic_or_u32(to, value, order) \
    __nv_atomic_fetch_or((uint32_t *)(to), (uint32_t)(value), order, __NV_THREAD_SCOPE_DEVICE)
#define hps_atomic_exchange_u32(to, value, order) \
    __nv_atomic_exchange_n((uint32_t *)(to), (uint32_t)(value), order, __NV_THREAD_SCOPE_DEVICE)
#define hps_atomic_cas_u32(to, expected, value, order)                                          \
    __nv_atomic_compare_exchange_n((uint32_t *)(to), expected, (uint32_t)(value), false, order, \
                                   HPS_RELAXED, __NV_THREAD_SCOPE_DEVICE)
#define hps_atomic_cas_u64(to, expected, value, order)                                          \
    __nv_atomic_compare_exchange_n((uint64_t *)(to), expected, (uint64_t)(value), false, order, \
                                   HPS_RELAXED, __NV_THREAD_SCOPE_DEVICE)
/* Relaxed atomic access to a byte. */
HPS_DEVICE_CODE uint8_t hps_atomic_load_u8(const uint8_t *from)
{
    return *(const volatile uint8_t *)from;
}
HPS_DEVICE_CODE void hps_atomic_store_u8(uint8_t *to, uint8_t value)
{
    *(volatile uint8_t *)to = value;
}

HPS_DEVICE_CODE void hps_fence_system(void)
{
    __threadfence_system();
}
HPS_DEVICE_CODE void hps_flag_raise(uint32_t *flag, uint32_t value)
{
    __threadfence_system();
    __nv_atomic_store_n(flag, value, __NV_ATOMIC_RELEASE, __NV_THREAD_SCOPE_SYSTEM);
}
HPS_DEVICE_CODE void hps_fence_acquire(const uint32_t *ticket)
{
    (void)ticket;
    __nv_atomic_thread_fence(__NV_ATOMIC_ACQ_REL, __NV_THREAD_SCOPE_DEVICE);
}
HPS_DEVICE_CODE void hps_flag_raise_acquire(uint32_t *flag, uint32_t value, const uint32_t *ticket)
{
    (void)ticket;
    __nv_atomic_thread_fence(__NV_ATOMIC_ACQ_REL, __NV_THREAD_SCOPE_SYSTEM);
    __nv_atomic_store_n(flag, value, __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_SYSTEM);
}

/* ---- arithmetic ------------------------------------------------------------------------------ */

HPS_DEVICE_CODE uint64_t hps_mul_high_u64(uint64_t a, uint64_t b)
{
    return __umul64hi(a, b);
}
HPS_DEVICE_CODE uint32_t hps_count_bits(uint32_t bits)
{
    return (uint32_t)__popc((int)bits);
}
/* The index of the lowest set bit; bits must not be 0. */
HPS_DEVICE_CODE uint32_t hps_first_bit(uint32_t bits)
{
    return (uint32_t)__ffs((int)bits) - 1;
}

/* fp32 arithmetic with the same results as on the host: each result is rounded to nearest, ties to
 * even. A product and a sum are never fused, whatever the compiler options. If a result is a NaN,
 * the bits may differ from the host's NaN. */
HPS_DEVICE_CODE float hps_float_of_bits(uint32_t bits)
{
    return __uint_as_float(bits);
}
HPS_DEVICE_CODE uint32_t hps_float_bits(float value)
{
    return __float_as_uint(value);
}
HPS_DEVICE_CODE float hps_float_add(float a, float b)
{
    return __fadd_rn(a, b);
}
HPS_DEVICE_CODE float hps_float_multiply(float a, float b)
{
    return __fmul_rn(a, b);
}
HPS_DEVICE_CODE float hps_float_divide(float a, float b)
{
    return __fdiv_rn(a, b);
}
HPS_DEVICE_CODE float hps_float_root(float value)
{
    return __fsqrt_rn(value);
}
HPS_DEVICE_CODE float hps_float_of_half(uint16_t half)
{
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
    return value;
}
HPS_DEVICE_CODE uint16_t hps_half_of_float(float value)
{
    uint16_t half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
    return half;
}

#else /* the simulated device */

#include <math.h>
#include <string.h>

#include "base/dtype.h"
#include "cache/device/device.h"
#include "cache/device/simt_run.h"

#define HPS_DEVICE_CODE static inline __attribute__((unused))

struct hps_quad {
    uint32_t x, y, z, w;
} __attribute__((aligned(16), may_alias));

#define HPS_KERNEL(kernel, args_type, args, threads, min_blocks) \
    static void kernel##_body(const args_type *args);            \
    static void kernel##_sim(const void *args)                   \
    {                                                            \
        kernel##_body((const args_type *)args);                  \
    }                                                            \
    static void kernel##_body(const args_type *args)

/* Defines a kernel of a test, in place of HPS_KERNEL_DEFINE. Use it in a .c file that includes the
 * kernel's .cuh file, because the simulated device runs the body in that file. */
#define HPS_KERNEL_DEFINE_WITH_SIM(kernel, args_type, threads, shared_bytes) \
    HPS_KERNEL_DEFINE_AS(kernel, args_type, threads, shared_bytes, kernel##_sim)

#define HPS_SHARED(type, name) type *name = (type *)hps_simt_here->shared

/* ---- indices of a thread --------------------------------------------------------------------- */

HPS_DEVICE_CODE uint32_t hps_thread(void)
{
    return hps_simt_here->thread;
}
HPS_DEVICE_CODE uint32_t hps_block(void)
{
    return hps_simt_here->block;
}
HPS_DEVICE_CODE uint32_t hps_block_threads(void)
{
    return hps_simt_here->block_threads;
}
HPS_DEVICE_CODE uint32_t hps_grid_blocks(void)
{
    return hps_simt_here->grid_blocks;
}

/* ---- the warp and the block ------------------------------------------------------------------ */

#define HPS_SITE         __FILE__, __LINE__
#define hps_ballot(vote) hps_simt_ballot((vote), HPS_SITE)
#define hps_any(vote)    (hps_simt_ballot((vote), HPS_SITE) != 0)
#define hps_shuffle_u32(value, lane) \
    ((uint32_t)hps_simt_shuffle((uint32_t)(value), (lane), HPS_SITE))
#define hps_shuffle_u64(value, lane) hps_simt_shuffle((value), (lane), HPS_SITE)
#define hps_warp_barrier()           hps_simt_warp_barrier(HPS_SITE)
#define hps_block_barrier()          hps_simt_block_barrier(HPS_SITE)

/* ---- memory ---------------------------------------------------------------------------------- */

typedef uint16_t __attribute__((may_alias)) hps_simt_u16;
typedef uint32_t __attribute__((may_alias)) hps_simt_u32;
typedef uint64_t __attribute__((may_alias)) hps_simt_u64;

HPS_DEVICE_CODE uint32_t hps_load_u32(const void *from)
{
    return *(const hps_simt_u32 *)hps_simt_aligned(from, 4);
}
HPS_DEVICE_CODE uint64_t hps_load_u64(const void *from)
{
    return *(const hps_simt_u64 *)hps_simt_aligned(from, 8);
}
HPS_DEVICE_CODE struct hps_quad hps_load_quad(const void *from)
{
    return *(const struct hps_quad *)hps_simt_aligned(from, 16);
}
#define hps_load_quad_kept           hps_load_quad
#define hps_load_quad_once           hps_load_quad
#define hps_store_quad_kept          hps_store_quad
HPS_DEVICE_CODE void hps_store_u16(void *to, uint16_t value)
{
    *(hps_simt_u16 *)hps_simt_aligned(to, 2) = value;
}
HPS_DEVICE_CODE void hps_store_u32(void *to, uint32_t value)
{
    *(hps_simt_u32 *)hps_simt_aligned(to, 4) = value;
}
HPS_DEVICE_CODE void hps_store_u64(void *to, uint64_t value)
{
    *(hps_simt_u64 *)hps_simt_aligned(to, 8) = value;
}
HPS_DEVICE_CODE void hps_store_quad(void *to, struct hps_quad value)
{
    *(struct hps_quad *)hps_simt_aligned(to, 16) = value;
}

/* ---- atomics --------------------------------------------------------------------------------- */

#define HPS_RELAXED __ATOMIC_RELAXED
#define HPS_ACQUIRE __ATOMIC_ACQUIRE
#define HPS_RELEASE __ATOMIC_RELEASE
#define HPS_ACQ_REL __ATOMIC_ACQ_REL

#define hps_atomic_load_u32(from, order)       __atomic_load_n((const uint32_t *)(from), order)
#define hps_atomic_load_u64(from, order)       __atomic_load_n((const uint64_t *)(from), order)
#define hps_atomic_store_u32(to, value, order) __atomic_store_n((uint32_t *)(to), (value), order)
#define hps_atomic_store_u64(to, value, order) __atomic_store_n((uint64_t *)(to), (value), order)
#define hps_atomic_add_u32(to, value, order)   __atomic_fetch_add((uint32_t *)(to), (value), order)
#define hps_atomic_add_u64(to, value, order)   __atomic_fetch_add((uint64_t *)(to), (value), order)
#define hps_atomic_or_u32(to, value, order)    __atomic_fetch_or((uint32_t *)(to), (value), order)
#define hps_atomic_exchange_u32(to, value, order) \
    __atomic_exchange_n((uint32_t *)(to), (value), order)
/* If *to is equal to *expected, set *to to `value` and return true. Otherwise set *expected to *to
 * and return false. */
#define hps_atomic_cas_u32(to, expected, value, order)                               \
    __atomic_compare_exchange_n((uint32_t *)(to), (expected), (value), false, order, \
                                __ATOMIC_RELAXED)
#define hps_atomic_cas_u64(to, expected, value, order)                               \
    __atomic_compare_exchange_n((uint64_t *)(to), (expected), (value), false, order, \
                                __ATOMIC_RELAXED)
HPS_DEVICE_CODE uint8_t hps_atomic_load_u8(const uint8_t *from)
{
    return __atomic_load_n(from, __ATOMIC_RELAXED);
}
HPS_DEVICE_CODE void hps_atomic_store_u8(uint8_t *to, uint8_t value)
{
    __atomic_store_n(to, value, __ATOMIC_RELAXED);
}

/* Order the writes of this thread for the host. If the host sees a write that the thread made after
 * this call, it also sees all writes that the thread made before the call. */
HPS_DEVICE_CODE void hps_fence_system(void)
{
#if !defined(HPS_TSAN)
    /* ThreadSanitizer does not support fences; the release store of the flag suffices for it. */
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}
/* Store a value to a flag in host memory. Once the host reads the value by hps_flag_load, the host
 * sees everything that the thread did before this call. */
HPS_DEVICE_CODE void hps_flag_raise(uint32_t *flag, uint32_t value)
{
    hps_fence_system();
    __atomic_store_n(flag, value, __ATOMIC_RELEASE);
}
/* Make visible to this thread the writes that other threads made before releasing atomic operations
 * on *ticket. This thread must already have read, by a relaxed or releasing atomic operation on
 * *ticket, the value of those operations or a later one. Threads that pass a later barrier with
 * this thread also see these writes. On the simulated device this function is an acquiring load,
 * because ThreadSanitizer does not support fences. */
HPS_DEVICE_CODE void hps_fence_acquire(const uint32_t *ticket)
{
    (void)__atomic_load_n(ticket, __ATOMIC_ACQUIRE);
}
/* hps_fence_acquire, then hps_flag_raise. A GPU needs only one fence for both. */
HPS_DEVICE_CODE void hps_flag_raise_acquire(uint32_t *flag, uint32_t value, const uint32_t *ticket)
{
    hps_fence_acquire(ticket);
    hps_flag_raise(flag, value);
}

/* ---- arithmetic ------------------------------------------------------------------------------ */

HPS_DEVICE_CODE uint64_t hps_mul_high_u64(uint64_t a, uint64_t b)
{
    return (uint64_t)(((unsigned __int128)a * b) >> 64);
}
HPS_DEVICE_CODE uint32_t hps_count_bits(uint32_t bits)
{
    return (uint32_t)__builtin_popcount(bits);
}
HPS_DEVICE_CODE uint32_t hps_first_bit(uint32_t bits)
{
    return (uint32_t)__builtin_ctz(bits);
}

HPS_DEVICE_CODE float hps_float_of_bits(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}
HPS_DEVICE_CODE uint32_t hps_float_bits(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
}
HPS_DEVICE_CODE float hps_float_add(float a, float b)
{
    return a + b;
}
HPS_DEVICE_CODE float hps_float_multiply(float a, float b)
{
    return a * b;
}
HPS_DEVICE_CODE float hps_float_divide(float a, float b)
{
    return a / b;
}
HPS_DEVICE_CODE float hps_float_root(float value)
{
    return sqrtf(value);
}
HPS_DEVICE_CODE float hps_float_of_half(uint16_t half)
{
    float value;

    hps_row_convert(&value, HPS_DTYPE_FP32, &half, HPS_DTYPE_FP16, 1);
    return value;
}
HPS_DEVICE_CODE uint16_t hps_half_of_float(float value)
{
    uint16_t half;

    hps_row_convert(&half, HPS_DTYPE_FP16, &value, HPS_DTYPE_FP32, 1);
    return half;
}

#endif

/* Index of the thread in its warp. */
HPS_DEVICE_CODE uint32_t hps_lane(void)
{
    return hps_thread() % HPS_WARP;
}
/* Index of the thread's warp in its block. */
HPS_DEVICE_CODE uint32_t hps_warp(void)
{
    return hps_thread() / HPS_WARP;
}
/* Index of the thread in the launch, and the number of threads of the launch. */
HPS_DEVICE_CODE uint32_t hps_grid_thread(void)
{
    return hps_block() * hps_block_threads() + hps_thread();
}
HPS_DEVICE_CODE uint32_t hps_grid_threads(void)
{
    return hps_grid_blocks() * hps_block_threads();
}
/* Index of the thread's warp in the launch, and the number of warps of the launch. */
HPS_DEVICE_CODE uint32_t hps_grid_warp(void)
{
    return hps_grid_thread() / HPS_WARP;
}
HPS_DEVICE_CODE uint32_t hps_grid_warps(void)
{
    return hps_grid_threads() / HPS_WARP;
}

#endif
