/* SPDX-License-Identifier: Apache-2.0
 *
 * The row functions behind base/dtype.h and base/row_sum.h, once for each kind of vectors: AVX-512,
 * AVX2 with F16C, and scalar. All give the same bits, except the bits of a NaN that a product, sum
 * or quotient makes. Any thread.
 */
#ifndef HPS_BASE_ROW_KERNEL_H
#define HPS_BASE_ROW_KERNEL_H

#include "base/dtype.h"

enum { HPS_DTYPE_OUTPUT_END = HPS_DTYPE_BF16 + 1 }; /* FP32, FP16, BF16: the types of replies */

/* Arguments as of hps_row_sum_add_ahead; rows are of the type of the function. */
typedef void (*hps_row_sum_fn)(float *sum, uint32_t dim, const uint8_t *const *rows,
                               const uint8_t *weights_le, uint32_t n, uint32_t n_ahead);
/* to[d] = sum[d] / by, in the type of the function. */
typedef void (*hps_row_divide_fn)(void *to, const float *sum, float by, uint32_t dim);

struct hps_row_kernel {
    const char *name;
    bool (*runs)(void); /* whether this CPU supports it */
    /* [to][from]; NULL if both are the same, and from INT8 to INT8. To INT8: quantises. */
    hps_row_convert_fn convert[HPS_DTYPE_STORED_END][HPS_DTYPE_STORED_END];
    /* The same, but writes past the caches if `to` and the row are whole lines. */
    hps_row_convert_fn stream[HPS_DTYPE_OUTPUT_END][HPS_DTYPE_STORED_END];
    hps_row_sum_fn sum[HPS_DTYPE_STORED_END];       /* [type of the rows] */
    hps_row_divide_fn divide[HPS_DTYPE_OUTPUT_END]; /* [to] */
    /* Smallest and largest of dim > 0 values of FP32, none of them a NaN. */
    void (*range)(const void *row, uint32_t dim, float *out_least, float *out_largest);
};

extern const struct hps_row_kernel hps_row_kernel_scalar;
#ifdef __x86_64__
extern const struct hps_row_kernel hps_row_kernel_avx2;
extern const struct hps_row_kernel hps_row_kernel_avx512;
/* Whether this CPU has F16C: clang's __builtin_cpu_supports does not know "f16c". */
bool hps_row_cpu_f16c(void);
#endif

/* All kernels of this build, best first; the last one runs on every CPU. */
const struct hps_row_kernel *const *hps_row_kernels(unsigned *out_n);
/* The best kernel that this CPU supports. */
const struct hps_row_kernel *hps_row_kernel(void);

#endif
