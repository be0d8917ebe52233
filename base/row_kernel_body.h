/* SPDX-License-Identifier: Apache-2.0
 *
 * The functions of one struct hps_row_kernel, on vectors of fp32. Each row_kernel_*.c includes this
 * file once, after it has defined:
 *
 *     TARGET                    function attribute that selects the instruction set
 *     INLINE                    function attribute that inlines a function into its callers
 *     WIDTH                     number of fp32 values in a vector
 *     vec                       a vector
 *     struct tail               which lanes of a vector are used for the last columns of a row
 *     tail_of(n)                the first n lanes, 0 < n < WIDTH
 *     v_all(x)                  a vector of WIDTH times x
 *     v_add v_sub v_mul v_div v_min v_max
 *                               v_min and v_max return the second operand if the first is a NaN
 *     v_load(type, from)        load values as fp32, any alignment; of INT8: u8, not yet scaled
 *     v_load_tail(type, from, tail)          v_load for the lanes of `tail`; 0 in the other lanes
 *     v_store(type, to, v), v_store_tail(type, to, v, tail)    store as FP32, FP16, BF16
 *     v_stream(type, to, v)     v_store that bypasses the caches; `to` is aligned to the vector
 *     v_store_u8(to, v)         values from 0 to 255, rounded to nearest, ties to even
 *     v_least(v), v_largest(v)  smallest and largest value of the vector
 *     float_of_fp16(half)       as hps_float_of_fp16
 *
 * Types are compile-time constants in all calls, so that no branch on a type remains.
 */
#include <string.h>

#include "base/half.h"
#include "base/row_kernel.h"
#include "base/row_sum.h"

#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

enum { LINE_BYTES = 64, SUM_VECTORS = 8 /* vectors of a sum that are kept in registers */ };

_Static_assert(LINE_BYTES % WIDTH == 0, "a row of whole lines has no tail");

/* ---- values of a stored row ------------------------------------------------------------------ */

struct affine {
    vec scale;
    vec bias;
};

INLINE bool is_int8(enum hps_dtype type)
{
    return type == HPS_DTYPE_INT8_ROWWISE_F32 || type == HPS_DTYPE_INT8_ROWWISE_F16;
}

INLINE uint32_t value_bytes(enum hps_dtype type)
{
    return type == HPS_DTYPE_FP32 ? 4 : is_int8(type) ? 1 : 2;
}

/* Scale and bias of an INT8 row. For other types both are 0 and are not used. */
INLINE struct affine affine_of(enum hps_dtype type, const uint8_t *row, uint32_t dim)
{
    float scale = 0, bias = 0;

    if (type == HPS_DTYPE_INT8_ROWWISE_F32) {
        memcpy(&scale, row + dim, sizeof(scale));
        memcpy(&bias, row + dim + sizeof(scale), sizeof(bias));
    } else if (type == HPS_DTYPE_INT8_ROWWISE_F16) {
        uint16_t halves[2];
        memcpy(halves, row + dim, sizeof(halves));
        scale = float_of_fp16(halves[0]);
        bias = float_of_fp16(halves[1]);
    }
    return (struct affine){v_all(scale), v_all(bias)};
}

INLINE vec affine_values(enum hps_dtype type, vec values, const struct affine *affine)
{
    return is_int8(type) ? v_add(v_mul(values, affine->scale), affine->bias) : values;
}

INLINE vec row_values(enum hps_dtype type, const uint8_t *row, uint32_t column,
                      const struct affine *affine)
{
    return affine_values(type, v_load(type, row + (size_t)column * value_bytes(type)), affine);
}

INLINE vec row_values_tail(enum hps_dtype type, const uint8_t *row, uint32_t column,
                           const struct affine *affine, struct tail tail)
{
    return affine_values(type, v_load_tail(type, row + (size_t)column * value_bytes(type), tail),
                         affine);
}

/* ---- conversion ------------------------------------------------------------------------------ */

INLINE bool whole_lines(enum hps_dtype type, const void *to, uint32_t dim)
{
    return (uintptr_t)to % LINE_BYTES == 0 && (size_t)dim * value_bytes(type) % LINE_BYTES == 0;
}

INLINE void convert(enum hps_dtype to_type, void *to_row, enum hps_dtype from_type,
                    const void *from_row, uint32_t dim)
{
    const uint8_t *from = from_row;
    uint8_t *to = to_row;
    struct affine affine = affine_of(from_type, from, dim);
    uint32_t i = 0;

    for (; dim - i >= WIDTH; i += WIDTH) {
        v_store(to_type, to + (size_t)i * value_bytes(to_type),
                row_values(from_type, from, i, &affine));
    }
    if (i < dim) {
        struct tail tail = tail_of(dim - i);
        v_store_tail(to_type, to + (size_t)i * value_bytes(to_type),
                     row_values_tail(from_type, from, i, &affine, tail), tail);
    }
}

INLINE void stream(enum hps_dtype to_type, void *to_row, enum hps_dtype from_type,
                   const void *from_row, uint32_t dim)
{
    if (!whole_lines(to_type, to_row, dim)) {
        convert(to_type, to_row, from_type, from_row, dim);
        return;
    }
    const uint8_t *from = from_row;
    uint8_t *to = to_row;
    struct affine affine = affine_of(from_type, from, dim);
    for (uint32_t i = 0; i < dim; i += WIDTH) {
        v_stream(to_type, to + (size_t)i * value_bytes(to_type),
                 row_values(from_type, from, i, &affine));
    }
}

#define CONVERT(to_type, from_type)                                                                \
    TARGET static void convert_##to_type##_of_##from_type(void *to, const void *from,              \
                                                          uint32_t dim)                            \
    {                                                                                              \
        convert(HPS_DTYPE_##to_type, to, HPS_DTYPE_##from_type, from, dim);                        \
    }                                                                                              \
    TARGET static void stream_##to_type##_of_##from_type(void *to, const void *from, uint32_t dim) \
    {                                                                                              \
        stream(HPS_DTYPE_##to_type, to, HPS_DTYPE_##from_type, from, dim);                         \
    }

CONVERT(FP32, FP16)
CONVERT(FP32, BF16)
CONVERT(FP32, INT8_ROWWISE_F32)
CONVERT(FP32, INT8_ROWWISE_F16)
CONVERT(FP16, FP32)
CONVERT(FP16, BF16)
CONVERT(FP16, INT8_ROWWISE_F32)
CONVERT(FP16, INT8_ROWWISE_F16)
CONVERT(BF16, FP32)
CONVERT(BF16, FP16)
CONVERT(BF16, INT8_ROWWISE_F32)
CONVERT(BF16, INT8_ROWWISE_F16)

/* ---- quantisation ---------------------------------------------------------------------------- */

/* One value of a row of FP32, FP16 or BF16. */
INLINE float value_at(enum hps_dtype type, const uint8_t *row, uint32_t column)
{
    const uint8_t *at = row + (size_t)column * value_bytes(type);
    uint16_t half;
    float value;

    if (type == HPS_DTYPE_FP32) {
        memcpy(&value, at, sizeof(value));
        return value;
    }
    memcpy(&half, at, sizeof(half));
    return type == HPS_DTYPE_FP16 ? hps_float_of_fp16(half) : hps_float_of_bf16(half);
}

/* Smallest and largest value of a row. -0 becomes 0; otherwise the width of the vectors would
 * decide which of the two is the minimum. */
INLINE void range_of(enum hps_dtype type, const uint8_t *row, uint32_t dim, float *out_least,
                     float *out_largest)
{
    float least = value_at(type, row, 0);
    float largest = least;
    uint32_t i = 0;

    if (dim >= WIDTH) {
        vec low = v_load(type, row);
        vec high = low;
        for (i = WIDTH; dim - i >= WIDTH; i += WIDTH) {
            vec values = v_load(type, row + (size_t)i * value_bytes(type));
            low = v_min(low, values);
            high = v_max(high, values);
        }
        least = v_least(low);
        largest = v_largest(high);
    }
    for (; i < dim; i++) {
        float value = value_at(type, row, i);
        least = value < least ? value : least;
        largest = value > largest ? value : largest;
    }
    *out_least = least + 0.0F;
    *out_largest = largest + 0.0F;
}

TARGET static void range(const void *row, uint32_t dim, float *out_least, float *out_largest)
{
    range_of(HPS_DTYPE_FP32, row, dim, out_least, out_largest);
}

struct rule {
    float bias;
    float factor;
    bool divides; /* true: divide by `factor`; false: multiply by it */
};

INLINE uint8_t quantised(const struct rule *rule, float value)
{
    float steps = value - rule->bias;

    steps = rule->divides ? steps / rule->factor : steps * rule->factor;
    steps = steps > 0 ? steps : 0;
    steps = steps < 255 ? steps : 255;
    return (uint8_t)(steps + 0x1.8p23F - 0x1.8p23F); /* rounds: the sum has no bits below 1 */
}

INLINE void quantise_values(enum hps_dtype type, uint8_t *to, const uint8_t *from, uint32_t dim,
                            const struct rule *rule)
{
    vec bias = v_all(rule->bias);
    vec factor = v_all(rule->factor);
    uint32_t i = 0;

    for (; dim - i >= WIDTH; i += WIDTH) {
        vec steps = v_sub(v_load(type, from + (size_t)i * value_bytes(type)), bias);
        steps = rule->divides ? v_div(steps, factor) : v_mul(steps, factor);
        v_store_u8(to + i, v_min(v_max(steps, v_all(0)), v_all(255)));
    }
    for (; i < dim; i++) {
        to[i] = quantised(rule, value_at(type, from, i));
    }
}

INLINE void quantise_f32(enum hps_dtype type, uint8_t *to, const uint8_t *from, uint32_t dim)
{
    float least, largest;

    range_of(type, from, dim, &least, &largest);
    float extent = largest - least;
    float scale = extent / 255.0F;
    const struct rule rule = {.bias = least, .factor = 255.0F / (extent + 1e-8F)};
    quantise_values(type, to, from, dim, &rule);
    memcpy(to + dim, &scale, sizeof(scale));
    memcpy(to + dim + sizeof(scale), &least, sizeof(least));
}

INLINE void quantise_f16(enum hps_dtype type, uint8_t *to, const uint8_t *from, uint32_t dim)
{
    float least, largest;

    range_of(type, from, dim, &least, &largest);
    uint16_t bias = hps_fp16_of_float(least);
    uint16_t scale = hps_fp16_of_float((largest - hps_float_of_fp16(bias)) / 255.0F);
    if ((scale & 0x7fffU) == 0) {
        scale = hps_fp16_of_float(1);
    }
    const struct rule rule = {
        .bias = hps_float_of_fp16(bias), .factor = hps_float_of_fp16(scale), .divides = true};
    quantise_values(type, to, from, dim, &rule);
    memcpy(to + dim, &scale, sizeof(scale));
    memcpy(to + dim + sizeof(scale), &bias, sizeof(bias));
}

#define QUANTISE(from_type)                                                                  \
    TARGET static void quantise_f32_of_##from_type(void *to, const void *from, uint32_t dim) \
    {                                                                                        \
        quantise_f32(HPS_DTYPE_##from_type, to, from, dim);                                  \
    }                                                                                        \
    TARGET static void quantise_f16_of_##from_type(void *to, const void *from, uint32_t dim) \
    {                                                                                        \
        quantise_f16(HPS_DTYPE_##from_type, to, from, dim);                                  \
    }

QUANTISE(FP32)
QUANTISE(FP16)
QUANTISE(BF16)

/* ---- sums ------------------------------------------------------------------------------------ */

/* Prefetch a row into the L2 cache, which allows more misses in flight than the L1 cache. */
INLINE void row_fetch(enum hps_dtype type, const uint8_t *row, uint32_t dim)
{
    uint32_t row_bytes = (uint32_t)hps_dtype_row_bytes(type, dim);

    for (uint32_t at = 0; at < row_bytes; at += LINE_BYTES) {
        __builtin_prefetch(row + at, 0, 2);
    }
    if (row_bytes % LINE_BYTES != 0) {
        __builtin_prefetch(row + row_bytes - 1, 0, 2);
    }
}

/* Prefetch the cache line of a row where the vector at `column` begins, if no earlier vector begins
 * in that line; and the last line, with the last vector. All but `row` are compile-time constants.
 */
INLINE void vector_fetch(enum hps_dtype type, const uint8_t *row, uint32_t column, uint32_t dim)
{
    uint32_t row_bytes = (uint32_t)hps_dtype_row_bytes(type, dim);
    uint32_t at = column * value_bytes(type);

    if (at % LINE_BYTES == 0) {
        __builtin_prefetch(row + at, 0, 2);
    }
    if (column + WIDTH == dim && row_bytes % LINE_BYTES != 0) {
        __builtin_prefetch(row + row_bytes - 1, 0, 2);
    }
}

/* The arguments of a sum. n is the number of rows to add. n_fetch is the length of `rows`: the n
 * rows, then rows of later sums that may be prefetched. */
struct sum {
    float *sum;
    const uint8_t *const *rows;
    const uint8_t *weights_le;
    uint32_t dim;
    uint32_t n;
    uint32_t n_fetch;
};

INLINE vec weight_at(const struct sum *sum, uint32_t i)
{
    float weight = 1;

    if (sum->weights_le != NULL) {
        memcpy(&weight, sum->weights_le + (size_t)i * sizeof(weight), sizeof(weight));
    }
    return v_all(weight);
}

/* For each row in order, add n_vectors * WIDTH columns, beginning at `column`, to the sum, and
 * prefetch later rows. n_vectors is a compile-time constant. If `width` is not 0, it is dim, and a
 * compile-time constant, too. Then each call prefetches its columns: with one prefetch between two
 * loads, more misses are in flight than with a burst for the row. If it is 0, the call for column 0
 * prefetches the rows. weighted: there are weights; a compile-time constant */
INLINE void sum_vectors(enum hps_dtype type, const struct sum *sum, uint32_t column,
                        uint32_t n_vectors, uint32_t width, bool weighted)
{
    uint8_t *to = (uint8_t *)(void *)(sum->sum + column);
    vec acc[SUM_VECTORS];

    UNROLL for (uint32_t v = 0; v < n_vectors; v++)
    {
        acc[v] = v_load(HPS_DTYPE_FP32, to + v * WIDTH * sizeof(float));
    }
    for (uint32_t i = 0; i < sum->n; i++) {
        const uint8_t *row = sum->rows[i];
        const uint8_t *ahead =
            sum->rows[i + HPS_ROW_SUM_AHEAD < sum->n_fetch ? i + HPS_ROW_SUM_AHEAD : i];
        if (width == 0 && column == 0) {
            row_fetch(type, ahead, sum->dim);
        }
        struct affine affine = affine_of(type, row, sum->dim);
        vec weight = weight_at(sum, i);
        UNROLL for (uint32_t v = 0; v < n_vectors; v++)
        {
            if (width != 0) {
                vector_fetch(type, ahead, column + v * WIDTH, width);
            }
            vec values = row_values(type, row, column + v * WIDTH, &affine);
            acc[v] = v_add(acc[v], weighted ? v_mul(weight, values) : values);
        }
    }
    UNROLL for (uint32_t v = 0; v < n_vectors; v++)
    {
        v_store(HPS_DTYPE_FP32, to + v * WIDTH * sizeof(float), acc[v]);
    }
}

/* Add the columns after the last complete vector. */
INLINE void sum_tail(enum hps_dtype type, const struct sum *sum, uint32_t column)
{
    struct tail tail = tail_of(sum->dim - column);
    uint8_t *to = (uint8_t *)(void *)(sum->sum + column);
    vec acc = v_load_tail(HPS_DTYPE_FP32, to, tail);

    for (uint32_t i = 0; i < sum->n; i++) {
        const uint8_t *row = sum->rows[i];
        if (column == 0 && i + HPS_ROW_SUM_AHEAD < sum->n_fetch) {
            row_fetch(type, sum->rows[i + HPS_ROW_SUM_AHEAD], sum->dim);
        }
        struct affine affine = affine_of(type, row, sum->dim);
        vec values = row_values_tail(type, row, column, &affine, tail);
        acc = v_add(acc, v_mul(weight_at(sum, i), values));
    }
    v_store_tail(HPS_DTYPE_FP32, to, acc, tail);
}

/* Add all columns, in several passes over the rows. Each pass adds as many columns as fit into
 * registers. */
INLINE void sum_passes(enum hps_dtype type, const struct sum *sum)
{
    uint32_t column = 0;

    for (; sum->dim - column >= 8 * WIDTH; column += 8 * WIDTH) {
        sum_vectors(type, sum, column, 8, 0, true);
    }
    if (sum->dim - column >= 4 * WIDTH) {
        sum_vectors(type, sum, column, 4, 0, true);
        column += 4 * WIDTH;
    }
    if (sum->dim - column >= 2 * WIDTH) {
        sum_vectors(type, sum, column, 2, 0, true);
        column += 2 * WIDTH;
    }
    if (sum->dim - column >= WIDTH) {
        sum_vectors(type, sum, column, 1, 0, true);
        column += WIDTH;
    }
    if (column < sum->dim) {
        sum_tail(type, sum, column);
    }
}

/* Add all columns of rows with a common dim, for which the compiler unrolls the loops over columns.
 * Returns false for other values of dim. */
INLINE bool sum_common(enum hps_dtype type, const struct sum *sum, bool weighted)
{
    switch (sum->dim) {
    case WIDTH:
        sum_vectors(type, sum, 0, 1, WIDTH, weighted);
        return true;
    case 2 * WIDTH:
        sum_vectors(type, sum, 0, 2, 2 * WIDTH, weighted);
        return true;
    case 4 * WIDTH:
        sum_vectors(type, sum, 0, 4, 4 * WIDTH, weighted);
        return true;
    case 8 * WIDTH:
        sum_vectors(type, sum, 0, 8, 8 * WIDTH, weighted);
        return true;
    case 16 * WIDTH:
        sum_vectors(type, sum, 0, 8, 16 * WIDTH, weighted);
        sum_vectors(type, sum, 8 * WIDTH, 8, 16 * WIDTH, weighted);
        return true;
    default:
        return false;
    }
}

/* Add all columns of all rows. Values are not multiplied by weights of 1. */
INLINE void sum_rows(enum hps_dtype type, const struct sum *sum)
{
    bool done =
        sum->weights_le != NULL ? sum_common(type, sum, true) : sum_common(type, sum, false);

    if (!done) {
        sum_passes(type, sum);
    }
}

#define SUM(type)                                                                          \
    TARGET static void sum_##type(float *sum, uint32_t dim, const uint8_t *const *rows,    \
                                  const uint8_t *weights_le, uint32_t n, uint32_t n_ahead) \
    {                                                                                      \
        const struct sum of = {sum, rows, weights_le, dim, n, n + n_ahead};                \
        sum_rows(HPS_DTYPE_##type, &of);                                                   \
    }

SUM(FP32)
SUM(FP16)
SUM(BF16)
SUM(INT8_ROWWISE_F32)
SUM(INT8_ROWWISE_F16)

INLINE void divide(enum hps_dtype type, uint8_t *to, const float *sum, float by, uint32_t dim)
{
    const uint8_t *from = (const uint8_t *)(const void *)sum;
    vec divisor = v_all(by);
    uint32_t i = 0;

    for (; dim - i >= WIDTH; i += WIDTH) {
        vec values = v_load(HPS_DTYPE_FP32, from + (size_t)i * sizeof(float));
        v_store(type, to + (size_t)i * value_bytes(type), v_div(values, divisor));
    }
    if (i < dim) {
        struct tail tail = tail_of(dim - i);
        vec values = v_load_tail(HPS_DTYPE_FP32, from + (size_t)i * sizeof(float), tail);
        v_store_tail(type, to + (size_t)i * value_bytes(type), v_div(values, divisor), tail);
    }
}

#define DIVIDE(type)                                                                     \
    TARGET static void divide_##type(void *to, const float *sum, float by, uint32_t dim) \
    {                                                                                    \
        divide(HPS_DTYPE_##type, to, sum, by, dim);                                      \
    }

DIVIDE(FP32)
DIVIDE(FP16)
DIVIDE(BF16)

/* ---- the kernel ------------------------------------------------------------------------------ */

#define OF(made, to_type, from_type) \
    [HPS_DTYPE_##to_type][HPS_DTYPE_##from_type] = made##_##to_type##_of_##from_type
#define OF_OUTPUTS(made)                                                                          \
    OF(made, FP32, FP16), OF(made, FP32, BF16), OF(made, FP32, INT8_ROWWISE_F32),                 \
        OF(made, FP32, INT8_ROWWISE_F16), OF(made, FP16, FP32), OF(made, FP16, BF16),             \
        OF(made, FP16, INT8_ROWWISE_F32), OF(made, FP16, INT8_ROWWISE_F16), OF(made, BF16, FP32), \
        OF(made, BF16, FP16), OF(made, BF16, INT8_ROWWISE_F32), OF(made, BF16, INT8_ROWWISE_F16)
#define OF_INT8(type, made)                      \
    [type] = {[HPS_DTYPE_FP32] = made##_of_FP32, \
              [HPS_DTYPE_FP16] = made##_of_FP16, \
              [HPS_DTYPE_BF16] = made##_of_BF16}

#define ROW_KERNEL(kernel, kernel_name, kernel_runs)                                        \
    const struct hps_row_kernel kernel = {                                                  \
        .name = kernel_name,                                                                \
        .runs = kernel_runs,                                                                \
        .convert = {OF_OUTPUTS(convert), OF_INT8(HPS_DTYPE_INT8_ROWWISE_F32, quantise_f32), \
                    OF_INT8(HPS_DTYPE_INT8_ROWWISE_F16, quantise_f16)},                     \
        .stream = {OF_OUTPUTS(stream)},                                                     \
        .sum = {[HPS_DTYPE_FP32] = sum_FP32,                                                \
                [HPS_DTYPE_FP16] = sum_FP16,                                                \
                [HPS_DTYPE_BF16] = sum_BF16,                                                \
                [HPS_DTYPE_INT8_ROWWISE_F32] = sum_INT8_ROWWISE_F32,                        \
                [HPS_DTYPE_INT8_ROWWISE_F16] = sum_INT8_ROWWISE_F16},                       \
        .divide = {[HPS_DTYPE_FP32] = divide_FP32,                                          \
                   [HPS_DTYPE_FP16] = divide_FP16,                                          \
                   [HPS_DTYPE_BF16] = divide_BF16},                                         \
        .range = range,                                                                     \
    }
