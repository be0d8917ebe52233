/* SPDX-License-Identifier: Apache-2.0
 *
 * Data types of rows: the bytes of a row of each type, and conversion between them. Conversions
 * give the same bits on every CPU; only the instructions differ (base/row_kernel.h). Any thread.
 *
 *     FP32, FP16, BF16    [value x dim]
 *     INT8_ROWWISE_F32    [u8 x dim][scale f32][bias f32]
 *     INT8_ROWWISE_F16    [u8 x dim][scale f16][bias f16]
 *
 * All values are little-endian without padding, so the scale of an INT8 row may be unaligned. A
 * value of an INT8 row is u8 * scale + bias in fp32; the product and the sum are rounded
 * separately.
 */
#ifndef HPS_BASE_DTYPE_H
#define HPS_BASE_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The numbers are the same as in hps.v1.DataType. RAW is not a type of rows: a request with RAW
 * gets rows in the stored type of each table. */
enum hps_dtype {
    HPS_DTYPE_FP32 = 1,
    HPS_DTYPE_FP16 = 2,
    HPS_DTYPE_BF16 = 3,
    HPS_DTYPE_INT8_ROWWISE_F32 = 4,
    HPS_DTYPE_INT8_ROWWISE_F16 = 5,
    HPS_DTYPE_RAW = 15
};

/* Number of elements of an array that is indexed by stored type. */
enum { HPS_DTYPE_STORED_END = HPS_DTYPE_INT8_ROWWISE_F16 + 1 };

/* The name: fp32, fp16, bf16, int8_rowwise_f32, int8_rowwise_f16 or raw; "unknown" for other
 * numbers. */
const char *hps_dtype_name(enum hps_dtype dtype);
/* The type with this name, raw included. False: no type has this name; *out is unchanged. */
bool hps_dtype_parse(const char *name, size_t size, enum hps_dtype *out);

/* Whether rows can be stored as this type. Accepts any number, also from a peer or a file. */
static inline bool hps_dtype_is_stored(unsigned number)
{
    return number >= HPS_DTYPE_FP32 && number < HPS_DTYPE_STORED_END;
}

/* Whether replies can have rows of this type. Rows of every stored type can be converted to it. */
static inline bool hps_dtype_is_output(unsigned number)
{
    return number >= HPS_DTYPE_FP32 && number <= HPS_DTYPE_BF16;
}

/* Whether rows of this type have one byte for each value, and one scale and bias for the row. */
static inline bool hps_dtype_is_int8(enum hps_dtype dtype)
{
    return dtype == HPS_DTYPE_INT8_ROWWISE_F32 || dtype == HPS_DTYPE_INT8_ROWWISE_F16;
}

/* Bytes of a row of dim values; 0 if the type cannot be stored. */
static inline uint64_t hps_dtype_row_bytes(enum hps_dtype dtype, uint64_t dim)
{
    switch (dtype) {
    case HPS_DTYPE_FP32:
        return dim * 4;
    case HPS_DTYPE_FP16:
    case HPS_DTYPE_BF16:
        return dim * 2;
    case HPS_DTYPE_INT8_ROWWISE_F32:
        return dim + 8;
    case HPS_DTYPE_INT8_ROWWISE_F16:
        return dim + 4;
    default:
        return 0;
    }
}

/* Byte offset in its row of the value with index `value`, 0 to dim - 1. In an INT8 row, index dim
 * is the scale and dim + 1 is the bias. */
uint64_t hps_dtype_value_offset(enum hps_dtype dtype, uint64_t dim, uint64_t value);

/* ---- conversion ------------------------------------------------------------------------------ */

/* Convert one row of dim values. Both types are stored types. Source and destination may have any
 * alignment and must not overlap.
 *
 * To FP16 and BF16: values round to nearest, ties to even. Values that are too large become an
 * infinity, infinities stay, and a NaN becomes a quiet NaN.
 *
 * To INT8 the row is quantised in fp32; a minimum of -0 is written as 0:
 *
 *   F32, as in FBGEMM: scale = (max - min) / 255, bias = min,
 *     u8 = rint((x - min) * (255 / (max - min + 1e-8)))
 *
 *   F16, as in NVE's exporters: bias = half(min),
 *     scale = half((max - bias) / 255), or 1 if that is 0,
 *     u8 = rint((x - bias) / scale), limited to 0 to 255
 *
 * If a row does not fit INT8 (hps_row_fits), the result is undefined. INT8 rows are never quantised
 * again: if both types are INT8, they must be the same, and the row is copied.
 */
void hps_row_convert(void *to, enum hps_dtype to_type, const void *from, enum hps_dtype from_type,
                     uint32_t dim);

/* Return the conversion function for two types, for callers that convert many rows. Never NULL.
 * With `stream`, conversions to FP32, FP16 and BF16 bypass the CPU caches if the destination is
 * aligned to 64 bytes and its size is a multiple of 64. After the last row that is converted with
 * `stream`, the caller must call hps_row_stream_end. */
typedef void (*hps_row_convert_fn)(void *to, const void *from, uint32_t dim);
hps_row_convert_fn hps_row_converter(enum hps_dtype to_type, enum hps_dtype from_type, bool stream);
/* Order the rows that this thread has streamed before its later writes. A thread that sees such a
 * later write, for example a flag that the rows are complete, then also sees the rows. */
void hps_row_stream_end(void);

/* Whether an FP32 row (any alignment) can be converted to a type. False: *out_at is the index of a
 * value that does not fit. A row fits FP16 and BF16 if no finite value becomes an infinity; NaN and
 * infinities fit (base/rows/finite.h checks whether they are allowed). A row fits INT8 if all its
 * values are finite, and so are the scale, the bias and the largest value of the quantised row. */
bool hps_row_fits(const void *row, enum hps_dtype to_type, uint32_t dim, uint32_t *out_at);

/* The rounding error of conversions: |given - stored| over all finite values. Zero it before the
 * first row. */
struct hps_row_loss {
    double max;
    double sum;
    uint64_t n; /* number of values */
};

/* Add the rounding error of one row. `given` is the row before the conversion, `stored` the row
 * after it. Both may have any stored type and alignment. */
void hps_row_loss_add(struct hps_row_loss *loss, const void *given, enum hps_dtype given_type,
                      const void *stored, enum hps_dtype stored_type, uint32_t dim);

#endif
