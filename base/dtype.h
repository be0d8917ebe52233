/* SPDX-License-Identifier: Apache-2.0
 *
 * The types of a row's values, and conversion between them. Any thread.
 */
#ifndef HPS_BASE_DTYPE_H
#define HPS_BASE_DTYPE_H

#include <stdint.h>

/* How values are stored or answered. Numbers are those of hps.v1.DataType. */
enum hps_dtype { HPS_DTYPE_FP32 = 1, HPS_DTYPE_FP16 = 2, HPS_DTYPE_BF16 = 3 };

/* Of one value. */
static inline uint32_t hps_dtype_bytes(enum hps_dtype dtype)
{
    return dtype == HPS_DTYPE_FP32 ? 4 : 2;
}

/* Convert n values. `to` and `from` may overlap as rows that change their width in place do: `to`
 * at or behind `from` when widening, at or before it otherwise. Narrowing rounds to nearest, ties
 * to even; infinities stay, a NaN stays a NaN. */
void hps_dtype_convert(void *to, enum hps_dtype to_type, const void *from, enum hps_dtype from_type,
                       uint32_t n);

#endif
