/* SPDX-License-Identifier: Apache-2.0
 *
 * Compares every kernel that this CPU supports with a slow model, bit by bit: odd widths,
 * unaligned rows, NaN, infinities, denormals, ties. The model computes each operation in double
 * precision and rounds once. For two fp32 values this is the fp32 result, and no compiler can
 * contract it. If arithmetic gives a NaN, its bits are not compared.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/hash.h"
#include "base/row_kernel.h"
#include "base/row_sum.h"

enum { DIM_MAX = 300, ROW_BYTES_MAX = DIM_MAX * 4 + 8, N_ROWS = 70, GUARD = 64 };

static const uint32_t dims[] = {1,  2,  3,  5,  7,  8,  9,   13,  15,  16,  17,  24,  31,  32,
                                33, 47, 48, 63, 64, 65, 100, 127, 128, 129, 192, 255, 256, DIM_MAX};
enum { N_DIMS = sizeof(dims) / sizeof(dims[0]) };

static const enum hps_dtype stored[] = {HPS_DTYPE_FP32, HPS_DTYPE_FP16, HPS_DTYPE_BF16,
                                        HPS_DTYPE_INT8_ROWWISE_F32, HPS_DTYPE_INT8_ROWWISE_F16};
enum { N_STORED = sizeof(stored) / sizeof(stored[0]), N_OUTPUTS = 3 };

static uint64_t seed = 7;

static uint32_t bits_of(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static float float_of(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* ---- the model ------------------------------------------------------------------------------- */

static float add(float a, float b)
{
    return (float)((double)a + (double)b);
}

static float subtract(float a, float b)
{
    return (float)((double)a - (double)b);
}

static float multiply(float a, float b)
{
    return (float)((double)a * (double)b);
}

static float quotient(float a, float b)
{
    return (float)((double)a / (double)b);
}

static uint16_t model_fp16(float value)
{
    _Float16 half = (_Float16)value;
    uint16_t bits;

    if (isnan(value)) { /* a quiet NaN with a shortened fraction */
        return (uint16_t)(bits_of(value) >> 16 & 0x8000u) |
               (uint16_t)(0x7e00u | (bits_of(value) >> 13 & 0x3ffu));
    }
    memcpy(&bits, &half, sizeof(bits));
    return bits;
}

/* The nearest value with 8 significant bits; in a tie, the even one. */
static uint16_t model_bf16(float value)
{
    uint32_t below = bits_of(value) & 0xffff0000u;

    if (isnan(value)) {
        return (uint16_t)(below >> 16 | 0x40u);
    }
    if (isinf(value)) {
        return (uint16_t)(below >> 16);
    }
    uint32_t above = below + 0x10000u;
    double beyond =
        isinf(float_of(above)) ? copysign(ldexp(1, 128), (double)value) : (double)float_of(above);
    double down = fabs((double)value - (double)float_of(below));
    double up = fabs(beyond - (double)value);
    if (down == up) {
        return (uint16_t)((below >> 16 & 1) == 0 ? below >> 16 : above >> 16);
    }
    return (uint16_t)((down < up ? below : above) >> 16);
}

static float model_of_half(uint16_t half)
{
    _Float16 value;

    if ((half & 0x7c00u) == 0x7c00u && (half & 0x3ffu) != 0) {
        return float_of((uint32_t)(half & 0x8000u) << 16 | 0x7fc00000u |
                        (uint32_t)(half & 0x3ffu) << 13);
    }
    memcpy(&value, &half, sizeof(value));
    return (float)value;
}

/* One value of a stored row as fp32. */
static float model_value(enum hps_dtype type, const uint8_t *row, uint32_t dim, uint32_t i)
{
    const uint8_t *at = row + hps_dtype_value_offset(type, dim, i);
    uint16_t halves[2];
    float floats[2];

    switch (type) {
    case HPS_DTYPE_FP32:
        memcpy(floats, at, sizeof(float));
        return floats[0];
    case HPS_DTYPE_FP16:
        memcpy(halves, at, sizeof(uint16_t));
        return model_of_half(halves[0]);
    case HPS_DTYPE_BF16:
        memcpy(halves, at, sizeof(uint16_t));
        return float_of((uint32_t)halves[0] << 16);
    case HPS_DTYPE_INT8_ROWWISE_F32:
        memcpy(floats, row + dim, sizeof(floats));
        break;
    default:
        memcpy(halves, row + dim, sizeof(halves));
        floats[0] = model_of_half(halves[0]);
        floats[1] = model_of_half(halves[1]);
        break;
    }
    return add(multiply((float)*at, floats[0]), floats[1]);
}

static void model_store(enum hps_dtype type, uint8_t *row, uint32_t i, float value)
{
    if (type == HPS_DTYPE_FP32) {
        memcpy(row + (size_t)i * 4, &value, 4);
        return;
    }
    uint16_t half = type == HPS_DTYPE_FP16 ? model_fp16(value) : model_bf16(value);
    memcpy(row + (size_t)i * 2, &half, 2);
}

/* ---- rows ------------------------------------------------------------------------------------ */

static uint64_t next(void)
{
    return hps_mix64(++seed);
}

/* Typical values of tables; or any bits, including NaN and infinities. */
static float some_value(bool wild)
{
    if (wild) {
        return float_of((uint32_t)next());
    }
    return (float)((double)(int64_t)next() / 0x1p63 * ldexp(1, (int)(next() % 8) - 6));
}

static void some_row(enum hps_dtype type, uint8_t *row, uint32_t dim, bool wild)
{
    if (!hps_dtype_is_int8(type)) {
        for (uint32_t i = 0; i < dim; i++) {
            model_store(type, row, i, some_value(wild));
        }
        return;
    }
    for (uint32_t i = 0; i < dim; i++) {
        row[i] = (uint8_t)next();
    }
    for (uint32_t i = 0; i < 2; i++) {
        float value = some_value(wild);
        if (type == HPS_DTYPE_INT8_ROWWISE_F32) {
            memcpy(row + dim + i * sizeof(float), &value, sizeof(value));
        } else {
            uint16_t half = model_fp16(value);
            memcpy(row + dim + i * sizeof(half), &half, sizeof(half));
        }
    }
}

/* ---- comparison ------------------------------------------------------------------------------ */

static bool is_nan_of(enum hps_dtype type, const uint8_t *at)
{
    return isnan(model_value(type, at, 1, 0)) != 0;
}

static void check_same(const char *kernel, enum hps_dtype type, uint32_t dim, const uint8_t *got,
                       const uint8_t *expected, bool any_nan)
{
    size_t bytes = hps_dtype_row_bytes(type, 1);

    for (uint32_t i = 0; i < dim; i++) {
        const uint8_t *a = got + i * bytes;
        const uint8_t *b = expected + i * bytes;
        if (memcmp(a, b, bytes) != 0 && !(any_nan && is_nan_of(type, a) && is_nan_of(type, b))) {
            fail_msg("%s: %s, dim %u, value %u: %.9g (first byte %02x), expected %.9g (%02x)",
                     kernel, hps_dtype_name(type), dim, i, (double)model_value(type, a, 1, 0), a[0],
                     (double)model_value(type, b, 1, 0), b[0]);
        }
    }
}

/* ---- conversions ----------------------------------------------------------------------------- */

struct guarded {
    _Alignas(64) uint8_t bytes[GUARD + ROW_BYTES_MAX + GUARD];
};

/* The row has the expected bytes, and no byte before or after it was written. */
static void check_conversion(const struct hps_row_kernel *kernel, hps_row_convert_fn convert,
                             enum hps_dtype to_type, enum hps_dtype from_type, const uint8_t *from,
                             uint32_t dim, size_t shift)
{
    struct guarded got;
    uint8_t expected[ROW_BYTES_MAX];
    size_t row_bytes = hps_dtype_row_bytes(to_type, dim);

    for (uint32_t i = 0; i < dim; i++) {
        model_store(to_type, expected, i, model_value(from_type, from, dim, i));
    }
    memset(got.bytes, 0xa5, sizeof(got.bytes));
    convert(got.bytes + GUARD + shift, from, dim);
    hps_row_stream_end();
    check_same(kernel->name, to_type, dim, got.bytes + GUARD + shift, expected,
               hps_dtype_is_int8(from_type));
    for (size_t i = 0; i < sizeof(got.bytes); i++) {
        if (i < GUARD + shift || i >= GUARD + shift + row_bytes) {
            assert_int_equal(got.bytes[i], 0xa5);
        }
    }
}

static void check_conversions(const struct hps_row_kernel *kernel, enum hps_dtype to_type,
                              enum hps_dtype from_type)
{
    hps_row_convert_fn convert = kernel->convert[to_type][from_type];
    hps_row_convert_fn stream = kernel->stream[to_type][from_type];
    uint8_t row[ROW_BYTES_MAX + 3];

    for (unsigned d = 0; d < N_DIMS; d++) {
        for (unsigned turn = 0; turn < 6; turn++) {
            uint8_t *from = row + turn % 4;
            some_row(from_type, from, dims[d], turn % 2 != 0);
            check_conversion(kernel, convert, to_type, from_type, from, dims[d], turn);
            check_conversion(kernel, stream, to_type, from_type, from, dims[d], 0);
            check_conversion(kernel, stream, to_type, from_type, from, dims[d], 2);
        }
    }
}

static void test_kernels_when_rows_are_converted_then_same_bits_as_the_model(void **state)
{
    (void)state;
    unsigned n_kernels;
    const struct hps_row_kernel *const *kernels = hps_row_kernels(&n_kernels);
    for (unsigned k = 0; k < n_kernels; k++) {
        for (unsigned pair = 0; kernels[k]->runs() && pair < N_OUTPUTS * N_STORED; pair++) {
            enum hps_dtype to_type = stored[pair / N_STORED];
            enum hps_dtype from_type = stored[pair % N_STORED];
            if (to_type == from_type) {
                assert_null(kernels[k]->convert[to_type][from_type]);
            } else {
                check_conversions(kernels[k], to_type, from_type);
            }
        }
    }
}

/* Rows of n values of a type, each 64 of them converted and compared with the model. */
static void check_values(enum hps_dtype to_type, enum hps_dtype from_type, const void *values,
                         uint32_t n)
{
    unsigned n_kernels;
    const struct hps_row_kernel *const *kernels = hps_row_kernels(&n_kernels);
    const uint8_t *from = values;
    size_t bytes = hps_dtype_row_bytes(from_type, 1);

    for (unsigned k = 0; k < n_kernels; k++) {
        for (uint32_t i = 0; kernels[k]->runs() && i < n; i += 64) {
            uint32_t dim = n - i < 64 ? n - i : 64;
            check_conversion(kernels[k], kernels[k]->convert[to_type][from_type], to_type,
                             from_type, from + i * bytes, dim, 0);
        }
    }
}

static void test_kernels_when_every_half_is_converted_then_exactly(void **state)
{
    (void)state;
    static uint16_t halves[UINT16_MAX + 1];
    static float floats[UINT16_MAX + 1];
    for (uint32_t i = 0; i <= UINT16_MAX; i++) {
        halves[i] = (uint16_t)i;
    }
    check_values(HPS_DTYPE_FP32, HPS_DTYPE_FP16, halves, UINT16_MAX + 1);
    check_values(HPS_DTYPE_FP32, HPS_DTYPE_BF16, halves, UINT16_MAX + 1);
    check_values(HPS_DTYPE_BF16, HPS_DTYPE_FP16, halves, UINT16_MAX + 1);
    check_values(HPS_DTYPE_FP16, HPS_DTYPE_BF16, halves, UINT16_MAX + 1);
    for (unsigned type = 0; type < 2; type++) { /* and back */
        enum hps_dtype half = type == 0 ? HPS_DTYPE_FP16 : HPS_DTYPE_BF16;
        for (uint32_t i = 0; i <= UINT16_MAX; i++) {
            floats[i] = model_value(half, (const uint8_t *)&halves[i], 1, 0);
        }
        check_values(half, HPS_DTYPE_FP32, floats, UINT16_MAX + 1);
    }
}

/* Half-way cases and their neighbours, of every exponent. */
static void test_kernels_when_fp32_narrows_then_rounded_to_nearest_even(void **state)
{
    (void)state;
    static const uint32_t fractions[] = {0,        1,        0xfff,    0x1000,   0x1001,  0x1fff,
                                         0x2000,   0x3000,   0x7fff,   0x8000,   0x8001,  0x18000,
                                         0x7fffff, 0x7fefff, 0x7ff000, 0x400000, 0x3fffff};
    enum { N_FRACTIONS = sizeof(fractions) / sizeof(fractions[0]) };
    static float values[512 * N_FRACTIONS];
    for (uint32_t high = 0; high < 512; high++) {
        for (unsigned i = 0; i < N_FRACTIONS; i++) {
            values[high * N_FRACTIONS + i] = float_of(high << 23 | fractions[i]);
        }
    }
    check_values(HPS_DTYPE_FP16, HPS_DTYPE_FP32, values, 512 * N_FRACTIONS);
    check_values(HPS_DTYPE_BF16, HPS_DTYPE_FP32, values, 512 * N_FRACTIONS);
}

/* ---- quantisation ---------------------------------------------------------------------------- */

/* FBGEMM's FloatToFused8BitRowwiseQuantizedSBFloat, step by step. */
static void model_int8_f32(uint8_t *to, const float *x, uint32_t dim)
{
    float least = x[0], largest = x[0];
    for (uint32_t i = 1; i < dim; i++) {
        least = x[i] < least ? x[i] : least;
        largest = x[i] > largest ? x[i] : largest;
    }
    least = least == 0 ? 0 : least; /* not -0 */
    largest = largest == 0 ? 0 : largest;
    float range = subtract(largest, least);
    float scale = quotient(range, 255);
    float inverse = quotient(255, add(range, 1e-8F));
    for (uint32_t i = 0; i < dim; i++) {
        to[i] = (uint8_t)lrintf(multiply(subtract(x[i], least), inverse));
    }
    memcpy(to + dim, &scale, sizeof(scale));
    memcpy(to + dim + 4, &least, sizeof(least));
}

/* The offset is rounded first, and the range is computed from the rounded offset. */
static void model_int8_f16(uint8_t *to, const float *x, uint32_t dim)
{
    float least = x[0], largest = x[0];
    for (uint32_t i = 1; i < dim; i++) {
        least = x[i] < least ? x[i] : least;
        largest = x[i] > largest ? x[i] : largest;
    }
    uint16_t offset = model_fp16(least == 0 ? 0 : least);
    float from = model_of_half(offset);
    uint16_t scale = model_fp16(quotient(subtract(largest, from), 255));
    if (model_of_half(scale) == 0) {
        scale = model_fp16(1);
    }
    for (uint32_t i = 0; i < dim; i++) {
        float q = rintf(quotient(subtract(x[i], from), model_of_half(scale)));
        to[i] = (uint8_t)(q < 0 ? 0 : q > 255 ? 255 : q);
    }
    memcpy(to + dim, &scale, sizeof(scale));
    memcpy(to + dim + 2, &offset, sizeof(offset));
}

static void check_quantised(const float *values, uint32_t dim)
{
    unsigned n_kernels;
    const struct hps_row_kernel *const *kernels = hps_row_kernels(&n_kernels);

    for (unsigned type = 0; type < N_OUTPUTS; type++) {
        uint8_t from[ROW_BYTES_MAX + 1];
        float given[DIM_MAX]; /* values of that type */
        for (uint32_t i = 0; i < dim; i++) {
            model_store(stored[type], from + 1, i, values[i]);
            given[i] = model_value(stored[type], from + 1, dim, i);
        }
        for (unsigned k = 0; k < n_kernels; k++) {
            uint8_t got[ROW_BYTES_MAX + 1], expected[ROW_BYTES_MAX];
            if (!kernels[k]->runs()) {
                continue;
            }
            memset(got, 0xa5, sizeof(got));
            model_int8_f32(expected, given, dim);
            kernels[k]->convert[HPS_DTYPE_INT8_ROWWISE_F32][stored[type]](got, from + 1, dim);
            assert_memory_equal(got, expected, dim + 8);
            assert_int_equal(got[dim + 8], 0xa5);
            memset(got, 0xa5, sizeof(got));
            model_int8_f16(expected, given, dim);
            kernels[k]->convert[HPS_DTYPE_INT8_ROWWISE_F16][stored[type]](got, from + 1, dim);
            assert_memory_equal(got, expected, dim + 4);
            assert_int_equal(got[dim + 4], 0xa5);
        }
    }
}

static void test_kernels_when_rows_are_quantised_then_same_bits_as_the_model(void **state)
{
    (void)state;
    float values[DIM_MAX];
    for (unsigned d = 0; d < N_DIMS; d++) {
        for (unsigned turn = 0; turn < 12; turn++) {
            for (uint32_t i = 0; i < dims[d]; i++) {
                values[i] = some_value(false);
            }
            if (turn == 1) { /* no negative values, zeros of both signs */
                for (uint32_t i = 0; i < dims[d]; i++) {
                    values[i] = i % 3 == 0 ? -0.0F : i % 3 == 1 ? 0.0F : fabsf(values[i]);
                }
            } else if (turn == 2) { /* half steps: the least is 0, the largest 255 */
                for (uint32_t i = 0; i < dims[d]; i++) {
                    values[i] = i == 0 ? 0 : i == 1 ? 255 : (float)(i % 255) + 0.5F;
                }
            } else if (turn == 3) { /* one value */
                for (uint32_t i = 0; i < dims[d]; i++) {
                    values[i] = 0.3F;
                }
            } else if (turn == 4) { /* denormals: the scale is 0 or denormal */
                for (uint32_t i = 0; i < dims[d]; i++) {
                    values[i] = float_of(i * 1021);
                }
            } else if (turn == 5) { /* near the limits of scale and bias */
                values[0] = 65280;  /* also a bf16 value */
                values[dims[d] - 1] = -65280;
            }
            check_quantised(values, dims[d]);
        }
    }
}

static void test_kernels_when_a_row_is_quantised_then_no_value_moves_by_more_than_a_step(
    void **state)
{
    (void)state;
    unsigned n_kernels;
    const struct hps_row_kernel *const *kernels = hps_row_kernels(&n_kernels);
    float values[DIM_MAX];
    uint8_t row[DIM_MAX + 8];
    for (unsigned turn = 0; turn < 50; turn++) {
        for (uint32_t i = 0; i < 128; i++) {
            values[i] = some_value(false);
        }
        const struct hps_row_kernel *kernel = kernels[n_kernels - 1];
        for (unsigned type = 3; type < N_STORED; type++) {
            kernel->convert[stored[type]][HPS_DTYPE_FP32](row, values, 128);
            float step = model_value(stored[type], row, 128, 0);
            uint8_t q = row[0];
            row[0] = (uint8_t)(q == 0 ? 1 : q - 1);
            step = fabsf(step - model_value(stored[type], row, 128, 0));
            row[0] = q;
            for (uint32_t i = 0; i < 128; i++) {
                float lost = fabsf(values[i] - model_value(stored[type], row, 128, i));
                assert_true(lost <= 0.5F * step * (type == 3 ? 1.001F : 1.6F));
            }
        }
    }
}

/* ---- sums ------------------------------------------------------------------------------------ */

struct bag {
    uint8_t rows[N_ROWS][ROW_BYTES_MAX + 3];
    uint8_t weights[N_ROWS * 4 + 1]; /* from an odd address on */
    const uint8_t *at[N_ROWS];
    uint32_t n;
};

static void bag_fill(struct bag *bag, enum hps_dtype type, uint32_t dim, bool wild)
{
    for (uint32_t i = 0; i < N_ROWS; i++) {
        float weight = some_value(wild);
        bag->at[i] = bag->rows[i] + i % 4;
        some_row(type, bag->rows[i] + i % 4, dim, wild);
        memcpy(bag->weights + 1 + i * sizeof(weight), &weight, sizeof(weight));
    }
}

/* The sum in fp32, step by step, and in double precision as a reference. */
static void model_sum(const struct bag *bag, enum hps_dtype type, uint32_t dim, bool weighted,
                      float *sum, double *exact, double *magnitude)
{
    for (uint32_t d = 0; d < dim; d++) {
        exact[d] = (double)sum[d];
        magnitude[d] = fabs((double)sum[d]);
        for (uint32_t i = 0; i < bag->n; i++) {
            float weight = 1;
            float value = model_value(type, bag->at[i], dim, d);
            if (weighted) {
                memcpy(&weight, bag->weights + 1 + i * sizeof(weight), sizeof(weight));
            }
            sum[d] = add(sum[d], multiply(weight, value));
            exact[d] += (double)weight * (double)value;
            magnitude[d] += fabs((double)weight * (double)value);
        }
    }
}

static void check_sum(const struct hps_row_kernel *kernel, const struct bag *bag,
                      enum hps_dtype type, uint32_t dim, bool weighted, bool wild)
{
    float expected[DIM_MAX] = {0}, got[DIM_MAX + 1];
    double exact[DIM_MAX], magnitude[DIM_MAX];

    for (uint32_t d = 0; d < dim; d++) {
        expected[d] = got[d] = d % 3 == 0 ? 0 : some_value(false);
    }
    got[dim] = 77;
    model_sum(bag, type, dim, weighted, expected, exact, magnitude);
    kernel->sum[type](got, dim, bag->at, weighted ? bag->weights + 1 : NULL, bag->n,
                      N_ROWS - bag->n);
    check_same(kernel->name, HPS_DTYPE_FP32, dim, (const uint8_t *)got, (const uint8_t *)expected,
               true);
    assert_true(got[dim] == 77);
    for (uint32_t d = 0; !wild && d < dim; d++) {
        assert_true(fabs((double)got[d] - exact[d]) <= 0x1p-23 * bag->n * magnitude[d]);
    }
}

static void test_kernels_when_rows_are_summed_then_same_bits_as_one_after_the_other(void **state)
{
    (void)state;
    static const uint32_t counts[] = {0, 1, 2, 31, N_ROWS};
    static struct bag bag;
    unsigned n_kernels;
    const struct hps_row_kernel *const *kernels = hps_row_kernels(&n_kernels);
    for (unsigned type = 0; type < N_STORED; type++) {
        for (unsigned d = 0; d < N_DIMS; d++) {
            for (unsigned turn = 0; turn < 4; turn++) {
                bool wild = turn >= 2;
                bag_fill(&bag, stored[type], dims[d], wild);
                bag.n = counts[(d + turn) % (sizeof(counts) / sizeof(counts[0]))];
                for (unsigned k = 0; k < n_kernels; k++) {
                    if (kernels[k]->runs()) {
                        check_sum(kernels[k], &bag, stored[type], dims[d], turn % 2 == 0, wild);
                    }
                }
            }
        }
    }
}

static void test_kernels_when_a_sum_is_divided_then_by_division(void **state)
{
    (void)state;
    unsigned n_kernels;
    const struct hps_row_kernel *const *kernels = hps_row_kernels(&n_kernels);
    for (unsigned turn = 0; turn < 3 * N_DIMS * N_OUTPUTS; turn++) {
        enum hps_dtype type = stored[turn % N_OUTPUTS];
        uint32_t dim = dims[turn / N_OUTPUTS % N_DIMS];
        bool wild = turn / N_OUTPUTS / N_DIMS == 2;
        float sum[DIM_MAX];
        float by = some_value(wild);
        uint8_t expected[ROW_BYTES_MAX], got[ROW_BYTES_MAX + 1];
        for (uint32_t i = 0; i < dim; i++) {
            sum[i] = some_value(wild);
            model_store(type, expected, i, quotient(sum[i], by));
        }
        for (unsigned k = 0; k < n_kernels; k++) {
            if (kernels[k]->runs()) {
                memset(got, 0xa5, sizeof(got));
                kernels[k]->divide[type](got, sum, by, dim);
                check_same(kernels[k]->name, type, dim, got, expected, true);
                assert_int_equal(got[hps_dtype_row_bytes(type, dim)], 0xa5);
            }
        }
    }
}

static void test_kernels_when_selected_then_the_first_supported_one_is_used(void **state)
{
    (void)state;
    unsigned n_kernels;
    const struct hps_row_kernel *const *kernels = hps_row_kernels(&n_kernels);
    unsigned first = 0;
    while (!kernels[first]->runs()) {
        first++;
    }
    assert_ptr_equal(hps_row_kernel(), kernels[first]);
    assert_string_equal(kernels[n_kernels - 1]->name, "scalar");
    assert_true(kernels[n_kernels - 1]->runs());
    for (unsigned k = 0; k < n_kernels; k++) {
        print_message("%s: %s\n", kernels[k]->name,
                      kernels[k]->runs() ? "tested" : "does not run on this CPU, not tested");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kernels_when_selected_then_the_first_supported_one_is_used),
        cmocka_unit_test(test_kernels_when_rows_are_converted_then_same_bits_as_the_model),
        cmocka_unit_test(test_kernels_when_every_half_is_converted_then_exactly),
        cmocka_unit_test(test_kernels_when_fp32_narrows_then_rounded_to_nearest_even),
        cmocka_unit_test(test_kernels_when_rows_are_quantised_then_same_bits_as_the_model),
        cmocka_unit_test(
            test_kernels_when_a_row_is_quantised_then_no_value_moves_by_more_than_a_step),
        cmocka_unit_test(test_kernels_when_rows_are_summed_then_same_bits_as_one_after_the_other),
        cmocka_unit_test(test_kernels_when_a_sum_is_divided_then_by_division),
    };

    return cmocka_run_group_tests_name("row_kernel", tests, NULL, NULL);
}
