/* SPDX-License-Identifier: Apache-2.0
 *
 * The row functions that base/dtype.h and base/row_sum.h call, once for each instruction set:
 * AVX-512, AVX2 with F16C, and scalar. All give the same bits, except the bits of a NaN that is the
 * result of a product, sum or quotient. Any thread.
 */
#ifndef HPS_BASE_ROW_KERNEL_H
#define HPS_BASE_ROW_KERNEL_H

#include "base/dtype.h"

enum { HPS_DTYPE_OUTPUT_END = HPS_DTYPE_BF16 + 1 }; /* size of arrays by output type */

/* Same arguments as hps_row_sum_add_ahead, without the type. There is one function for each type of
 * rows. */
typedef void (*hps_row_sum_fn)(float *sum, uint32_t dim, const uint8_t *const *rows,
                               const uint8_t *weights_le, uint32_t n, uint32_t n_ahead);
/* to[d] = sum[d] / by. There is one function for each type of `to`. */
typedef void (*hps_row_divide_fn)(void *to, const float *sum, float by, uint32_t dim);

struct hps_row_kernel {
    const char *name;
    bool (*runs)(void); /* whether this CPU supports the kernel */
    /* [type of `to`][type of `from`]; NULL if both types are the same or both are INT8. Conversions
     * to INT8 quantise. */
    hps_row_convert_fn convert[HPS_DTYPE_STORED_END][HPS_DTYPE_STORED_END];
    /* Like `convert`, for hps_row_converter with `stream`. */
    hps_row_convert_fn stream[HPS_DTYPE_OUTPUT_END][HPS_DTYPE_STORED_END];
    hps_row_sum_fn sum[HPS_DTYPE_STORED_END];       /* [type of the rows] */
    hps_row_divide_fn divide[HPS_DTYPE_OUTPUT_END]; /* [type of `to`] */
    /* Smallest and largest of dim > 0 FP32 values, none of which may be a NaN. */
    void (*range)(const void *row, uint32_t dim, float *out_least, float *out_largest);
};

extern const struct hps_row_kernel hps_row_kernel_scalar;
#ifdef __x86_64__
extern const struct hps_row_kernel hps_row_kernel_avx2;
extern const struct hps_row_kernel hps_row_kernel_avx512;
/* Whether this CPU has F16C. Needed because clang's __builtin_cpu_supports does not accept
 * "f16c". */
bool hps_row_cpu_f16c(void);
#endif

/* All kernels of this build, best first; the last one runs on every CPU. */
const struct hps_row_kernel *const *hps_row_kernels(unsigned *out_n);
/* The best kernel that this CPU supports. */
const struct hps_row_kernel *hps_row_kernel(void);

#endif
