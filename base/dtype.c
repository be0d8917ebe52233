/* SPDX-License-Identifier: Apache-2.0
 *
 * Names of types, choice of conversion functions, and conversion loss. Any thread.
 */
#include "base/dtype.h"

#include <math.h>
#include <string.h>

#include "base/assert.h"
#include "base/half.h"
#include "base/row_kernel.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

enum { BLOCK_VALUES = 256 }; /* values on the stack at a time */

/* ---- names ----------------------------------------------------------------------------------- */

static const struct {
    enum hps_dtype dtype;
    const char *name;
} names[] = {
    {HPS_DTYPE_FP32, "fp32"},
    {HPS_DTYPE_FP16, "fp16"},
    {HPS_DTYPE_BF16, "bf16"},
    {HPS_DTYPE_INT8_ROWWISE_F32, "int8_rowwise_f32"},
    {HPS_DTYPE_INT8_ROWWISE_F16, "int8_rowwise_f16"},
    {HPS_DTYPE_RAW, "raw"},
};

const char *hps_dtype_name(enum hps_dtype dtype)
{
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (names[i].dtype == dtype) {
            return names[i].name;
        }
    }
    return "unknown";
}

bool hps_dtype_parse(const char *name, size_t size, enum hps_dtype *out)
{
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strlen(names[i].name) == size && memcmp(names[i].name, name, size) == 0) {
            *out = names[i].dtype;
            return true;
        }
    }
    return false;
}

uint64_t hps_dtype_value_offset(enum hps_dtype dtype, uint64_t dim, uint64_t value)
{
    switch (dtype) {
    case HPS_DTYPE_INT8_ROWWISE_F32:
        return value <= dim ? value : dim + 4;
    case HPS_DTYPE_INT8_ROWWISE_F16:
        return value <= dim ? value : dim + 2;
    default:
        return hps_dtype_row_bytes(dtype, value);
    }
}

/* ---- conversion ------------------------------------------------------------------------------ */

#define COPY(type)                                                    \
    static void copy_##type(void *to, const void *from, uint32_t dim) \
    {                                                                 \
        memcpy(to, from, hps_dtype_row_bytes(HPS_DTYPE_##type, dim)); \
    }

COPY(FP32)
COPY(FP16) /* and BF16 */
COPY(INT8_ROWWISE_F32)
COPY(INT8_ROWWISE_F16)

static const hps_row_convert_fn copies[HPS_DTYPE_STORED_END] = {
    [HPS_DTYPE_FP32] = copy_FP32,
    [HPS_DTYPE_FP16] = copy_FP16,
    [HPS_DTYPE_BF16] = copy_FP16,
    [HPS_DTYPE_INT8_ROWWISE_F32] = copy_INT8_ROWWISE_F32,
    [HPS_DTYPE_INT8_ROWWISE_F16] = copy_INT8_ROWWISE_F16,
};

hps_row_convert_fn hps_row_converter(enum hps_dtype to_type, enum hps_dtype from_type, bool stream)
{
    HPS_ASSERT(hps_dtype_is_stored(to_type) && hps_dtype_is_stored(from_type));
    const struct hps_row_kernel *kernel = hps_row_kernel();
    hps_row_convert_fn convert = copies[to_type];
    if (to_type != from_type) {
        convert = stream && hps_dtype_is_output(to_type) ? kernel->stream[to_type][from_type]
                                                         : kernel->convert[to_type][from_type];
    }
    HPS_ASSERT(convert != NULL); /* INT8 cannot be quantised again */
    return convert;
}

void hps_row_convert(void *to, enum hps_dtype to_type, const void *from, enum hps_dtype from_type,
                     uint32_t dim)
{
    hps_row_converter(to_type, from_type, false)(to, from, dim);
}

void hps_row_stream_end(void)
{
#ifdef __x86_64__
    _mm_sfence();
#endif
}

/* ---- range and loss -------------------------------------------------------------------------- */

/* Index of the first of n values with a magnitude, as bits, in [least, least + extent); n if no
 * value has. Blocks have no early exit, so that the loop is vectorised. */
static uint32_t first_within(const uint8_t *values, uint32_t n, uint32_t least, uint32_t extent)
{
    for (uint32_t lo = 0; lo < n; lo += BLOCK_VALUES) {
        uint32_t hi = n - lo < BLOCK_VALUES ? n : lo + BLOCK_VALUES;
        uint32_t found = 0;
        for (uint32_t i = lo; i < hi; i++) {
            uint32_t bits;
            memcpy(&bits, values + (size_t)i * sizeof(bits), sizeof(bits));
            found |= (bits & 0x7fffffffU) - least < extent ? 1U : 0U;
        }
        for (uint32_t i = lo; found != 0 && i < hi; i++) {
            uint32_t bits;
            memcpy(&bits, values + (size_t)i * sizeof(bits), sizeof(bits));
            if ((bits & 0x7fffffffU) - least < extent) {
                return i;
            }
        }
    }
    return n;
}

static uint32_t index_of(const uint8_t *values, uint32_t n, float wanted)
{
    for (uint32_t i = 0; i < n; i++) {
        float value;
        memcpy(&value, values + (size_t)i * sizeof(value), sizeof(value));
        if (value == wanted) {
            return i;
        }
    }
    return 0;
}

/* For a row of finite values: whether scale, bias and the value of byte 255 are finite. */
static bool fits_int8(const uint8_t *row, enum hps_dtype to_type, uint32_t dim, uint32_t *out_at)
{
    float least, largest;

    hps_row_kernel()->range(row, dim, &least, &largest);
    float bias = least;
    if (to_type == HPS_DTYPE_INT8_ROWWISE_F16) {
        bias = hps_float_of_fp16(hps_fp16_of_float(least));
    }
    if (!isfinite(bias)) {
        *out_at = index_of(row, dim, least);
        return false;
    }
    float scale = (largest - bias) / 255.0F;
    if (to_type == HPS_DTYPE_INT8_ROWWISE_F16) {
        scale = hps_float_of_fp16(hps_fp16_of_float(scale));
    }
    if (!isfinite(scale * 255.0F + bias)) {
        *out_at = index_of(row, dim, fabsf(least) > fabsf(largest) ? least : largest);
        return false;
    }
    return true;
}

bool hps_row_fits(const void *row, enum hps_dtype to_type, uint32_t dim, uint32_t *out_at)
{
    static const struct {
        uint32_t least;
        uint32_t extent;
    } faults[HPS_DTYPE_STORED_END] = {
        [HPS_DTYPE_FP16] = {0x477ff000, 0x7f800000 - 0x477ff000}, /* from 65520 to infinity */
        [HPS_DTYPE_BF16] = {0x7f7f8000, 0x7f800000 - 0x7f7f8000},
        [HPS_DTYPE_INT8_ROWWISE_F32] = {0x7f800000, 0x800000}, /* infinity and NaNs */
        [HPS_DTYPE_INT8_ROWWISE_F16] = {0x7f800000, 0x800000},
    };
    HPS_ASSERT(hps_dtype_is_stored(to_type) && dim > 0);
    uint32_t at = first_within(row, dim, faults[to_type].least, faults[to_type].extent);
    if (at < dim) {
        *out_at = at;
        return false;
    }
    return !hps_dtype_is_int8(to_type) || fits_int8(row, to_type, dim, out_at);
}

/* Convert n values of a row, from `column` on, to fp32. */
static void widen_block(enum hps_dtype dtype, const uint8_t *row, uint32_t dim, uint32_t column,
                        uint32_t n, float *to)
{
    uint8_t part[BLOCK_VALUES + 2 * sizeof(float)]; /* an INT8 row of n values */
    const uint8_t *from = row + hps_dtype_value_offset(dtype, dim, column);

    if (hps_dtype_is_int8(dtype)) {
        memcpy(part, from, n);
        memcpy(part + n, row + dim, hps_dtype_row_bytes(dtype, 0));
        from = part;
    }
    hps_row_convert(to, HPS_DTYPE_FP32, from, dtype, n);
}

void hps_row_loss_add(struct hps_row_loss *loss, const void *given, enum hps_dtype given_type,
                      const void *stored, enum hps_dtype stored_type, uint32_t dim)
{
    float was[BLOCK_VALUES], is[BLOCK_VALUES];
    double sums[4] = {0}; /* independent, so that additions overlap */
    double max = loss->max;

    for (uint32_t column = 0; column < dim; column += BLOCK_VALUES) {
        uint32_t n = dim - column < BLOCK_VALUES ? dim - column : BLOCK_VALUES;
        widen_block(given_type, given, dim, column, n, was);
        widen_block(stored_type, stored, dim, column, n, is);
        for (uint32_t i = 0; i < n; i++) {
            double lost = fabs((double)was[i] - (double)is[i]);
            if (lost < (double)INFINITY) { /* false for a NaN */
                sums[i % 4] += lost;
                max = lost > max ? lost : max;
                loss->n++;
            }
        }
    }
    loss->max = max;
    loss->sum += sums[0] + sums[1] + sums[2] + sums[3];
}
