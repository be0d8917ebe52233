/* SPDX-License-Identifier: Apache-2.0
 *
 * How rows are stored and answered: the bytes of a row of each type, and conversion between them.
 * Conversions give the same bits on every CPU: only which instructions do it differs
 * (base/row_kernel.h). Any thread.
 *
 *     FP32, FP16, BF16    [value x dim]
 *     INT8_ROWWISE_F32    [u8 x dim][scale f32][bias f32]
 *     INT8_ROWWISE_F16    [u8 x dim][scale f16][bias f16]
 *
 * All little-endian, without padding: the scale of a row of odd dim is not aligned. A value of an
 * INT8 row is u8 * scale + bias in fp32, product and sum each rounded by itself.
 */
#ifndef HPS_BASE_DTYPE_H
#define HPS_BASE_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Numbers are those of hps.v1.DataType. RAW is none that a row has: it asks for the stored one. */
enum hps_dtype {
    HPS_DTYPE_FP32 = 1,
    HPS_DTYPE_FP16 = 2,
    HPS_DTYPE_BF16 = 3,
    HPS_DTYPE_INT8_ROWWISE_F32 = 4,
    HPS_DTYPE_INT8_ROWWISE_F16 = 5,
    HPS_DTYPE_RAW = 15
};

enum { HPS_DTYPE_STORED_END = HPS_DTYPE_INT8_ROWWISE_F16 + 1 }; /* of arrays of stored types */

/* fp32 fp16 bf16 int8_rowwise_f32 int8_rowwise_f16 raw; of another number "unknown". */
const char *hps_dtype_name(enum hps_dtype dtype);
/* The type of such a name; false and *out as it was: there is none. raw is one (see is_stored). */
bool hps_dtype_parse(const char *name, size_t size, enum hps_dtype *out);

/* A row can be stored so: any number, of a peer or a file. */
static inline bool hps_dtype_is_stored(unsigned number)
{
    return number >= HPS_DTYPE_FP32 && number < HPS_DTYPE_STORED_END;
}

/* Rows can be answered so, whatever they are stored as. */
static inline bool hps_dtype_is_output(unsigned number)
{
    return number >= HPS_DTYPE_FP32 && number <= HPS_DTYPE_BF16;
}

/* Values as bytes beside one scale and one bias. */
static inline bool hps_dtype_is_int8(enum hps_dtype dtype)
{
    return dtype == HPS_DTYPE_INT8_ROWWISE_F32 || dtype == HPS_DTYPE_INT8_ROWWISE_F16;
}

/* Of a row of dim values; 0 for what is not a stored type. */
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

/* Where in its row a value begins, 0 to dim - 1; of an INT8 row dim stands for the scale and
 * dim + 1 for the bias. */
uint64_t hps_dtype_value_offset(enum hps_dtype dtype, uint64_t dim, uint64_t value);

/* ---- conversion ------------------------------------------------------------------------------ */

/* Convert one row of dim values, any alignment, no overlap. Both types are stored ones.
 *
 * To a half, values round to nearest, ties to even; what is too large becomes an infinity,
 * infinities stay, a NaN stays a NaN and becomes quiet. To INT8 the row is quantised, by the rule
 * of FBGEMM (F32: scale = (max - min) / 255, bias = min, u8 = rint((x - min) * (255 / (max - min +
 * 1e-8)))) and by that of NVE's exporters (F16: bias = half(min), scale = half((max - bias) / 255)
 * or 1 where that is 0, u8 = rint((x - bias) / scale) within 0 to 255), all in fp32; a minimum of
 * -0 is written as 0. The row must fit (hps_row_fits): of another the bytes are not defined, but
 * nothing else happens. An INT8 row is never quantised again: to_type INT8 wants another from_type,
 * or the same one, which copies. */
void hps_row_convert(void *to, enum hps_dtype to_type, const void *from, enum hps_dtype from_type,
                     uint32_t dim);

/* The same for who converts many rows of one kind: what hps_row_convert would call. Never NULL.
 * `stream`: writes past the caches where `to` and the row are whole lines of 64 bytes (to FP32,
 * FP16, BF16); behind the last row hps_row_stream_end. */
typedef void (*hps_row_convert_fn)(void *to, const void *from, uint32_t dim);
hps_row_convert_fn hps_row_converter(enum hps_dtype to_type, enum hps_dtype from_type, bool stream);
/* Other threads that are told of streamed rows see them. */
void hps_row_stream_end(void);

/* Whether a type can hold an FP32 row (any alignment); if not, *out_at is the index of a value at
 * fault. FP16, BF16: no finite value becomes an infinity. INT8: all values are finite, and so are
 * scale, bias and the largest value of the row as it would be stored. NaN and infinities do fit
 * the halves: whether they may be there at all is asked elsewhere (base/rows/finite.h). */
bool hps_row_fits(const void *row, enum hps_dtype to_type, uint32_t dim, uint32_t *out_at);

/* What conversion changed: |given - stored| over all values that are finite. Zero: none yet. */
struct hps_row_loss {
    double max;
    double sum;
    uint64_t n;
};

/* Add a row as it was given and as it is stored, each of any stored type and alignment. */
void hps_row_loss_add(struct hps_row_loss *loss, const void *given, enum hps_dtype given_type,
                      const void *stored, enum hps_dtype stored_type, uint32_t dim);

#endif
