/* SPDX-License-Identifier: Apache-2.0
 *
 * Keys and rows of a lookup, as tools show and check them. Pure functions.
 */
#ifndef HPS_TOOLS_ROWS_H
#define HPS_TOOLS_ROWS_H

#include "base/dtype.h"
#include "base/types.h"
#include "client/hpsd.h"

/* Names of the enums of client/hpsd.h, in the order of their numbers in the protocol; miss policies
 * from 0. */
#define ROWS_MISS_POLICIES "table|exact|wait|memory-only|threshold"
#define ROWS_OUTPUT_TYPES  "fp32|fp16|bf16|raw"
#define ROWS_POOLINGS      "none|sum|mean|sqrtn|mean_by_count"
#define ROWS_LAYOUTS       "per-table|concat"

/* The index of the first key of a row. If `row` is the number of rows, this is the number of
 * keys. */
static inline size_t rows_first_key(const struct hpsd_query *query, size_t row)
{
    return query->offsets == NULL ? row : query->offsets[row];
}

static inline hps_key rows_key(const struct hpsd_query *query, size_t i)
{
    return ((const hps_key *)query->keys)[i];
}

static inline enum hps_key_status rows_key_status(const struct hpsd_query *query, size_t i)
{
    return (enum hps_key_status)query->key_status[i];
}

/* Writes all values of a row to out[dim]. A value of an INT8 row is u8 * scale + bias. */
static inline void rows_values(const struct hpsd_result *result, size_t row, float *out)
{
    hps_row_convert(out, HPS_DTYPE_FP32, (const uint8_t *)result->rows + row * result->stride,
                    (enum hps_dtype)result->dtype, result->dim);
}

/* Value i of a row. */
float rows_value(const struct hpsd_result *result, size_t row, uint32_t i);

#endif
