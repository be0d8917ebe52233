/* SPDX-License-Identifier: Apache-2.0
 *
 * Synthetic rows: fixed values, so that files and answers stay comparable for ever.
 */
#include "base/rows/rowgen.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/dtype.h"

static void test_row_when_known_inputs_then_the_values_of_numpy(void **state)
{
    (void)state;
    /* tests/lib/hpsgen.py: rows(1, 3, [0, 12345, -1], 4) times 2^23 */
    static const hps_key keys[3] = {0, 12345, UINT64_MAX};
    static const float expected[3][4] = {
        {-4028175.0f, -2243167.0f, -1266179.0f, -3128211.0f},
        {-6617157.0f, 7344813.0f, -1293066.0f, -2741398.0f},
        {-501263.0f, 3773087.0f, 2433815.0f, -2215662.0f},
    };
    for (size_t k = 0; k < 3; k++) {
        float row[4];
        hps_rowgen_row(1, 3, keys[k], 4, row);
        for (size_t i = 0; i < 4; i++) {
            assert_true(row[i] * 0x1p23f == expected[k][i]);
        }
    }
    assert_true(hps_rowgen_key(5, 0) == 5);
    assert_true(hps_rowgen_key(0, 1) == UINT64_C(0xe220a8397b1dcdaf));
    assert_true(hps_rowgen_key(1, 1) == UINT64_C(0x910a2dec89025cc1));
}

static void test_row_when_other_seed_table_or_key_then_other_values(void **state)
{
    (void)state;
    float a[8];
    float b[8];
    hps_rowgen_row(1, 0, 0, 8, a);
    hps_rowgen_row(2, 0, 0, 8, b);
    assert_memory_not_equal(a, b, sizeof(a));
    hps_rowgen_row(1, 1, 0, 8, b);
    assert_memory_not_equal(a, b, sizeof(a));
    hps_rowgen_row(1, 0, 1, 8, b);
    assert_memory_not_equal(a, b, sizeof(a));
}

static void test_values_when_many_then_in_range_and_spread(void **state)
{
    (void)state;
    double sum = 0;
    for (hps_key key = 0; key < 10000; key++) {
        uint64_t base = hps_rowgen_base(1, 0, key);
        for (uint32_t i = 0; i < 4; i++) {
            float value = hps_rowgen_value(base, i);
            assert_true(value >= -1.0f && value < 1.0f);
            sum += value;
        }
    }
    assert_true(fabs(sum / 40000) < 0.02);
}

/* The value of 16 float16 bits. */
static double half_value(uint16_t half)
{
    int exponent = (half >> 10) & 0x1f;
    int mantissa = half & 0x3ff;
    double magnitude = exponent == 0 ? ldexp(mantissa, -24) : ldexp(mantissa + 1024, exponent - 25);

    return (half & 0x8000) != 0 ? -magnitude : magnitude;
}

static void test_half_when_every_finite_half_then_back_to_itself(void **state)
{
    (void)state;
    for (uint32_t half = 0; half < 0x10000; half++) {
        if ((half & 0x7c00) != 0x7c00) {
            assert_int_equal(hps_rowgen_half((float)half_value((uint16_t)half)), half);
        }
    }
}

static void test_half_when_between_two_then_nearest_and_ties_to_even(void **state)
{
    (void)state;
    for (uint16_t half = 0; half < 0x7bff; half++) {
        double low = half_value(half);
        double high = half_value((uint16_t)(half + 1));
        float middle = (float)((low + high) / 2); /* exact: float32 has 13 bits more */
        uint16_t even = (half & 1) == 0 ? half : (uint16_t)(half + 1);
        assert_int_equal(hps_rowgen_half(middle), even);
        assert_int_equal(hps_rowgen_half(nextafterf(middle, 0.0f)), half);
        assert_int_equal(hps_rowgen_half(nextafterf(middle, 1e9f)), half + 1);
        assert_int_equal(hps_rowgen_half(-middle), even | 0x8000);
    }
    assert_int_equal(hps_rowgen_half(65519.0f), 0x7bff);
    assert_int_equal(hps_rowgen_half(65520.0f), 0x7c00);
    assert_int_equal(hps_rowgen_half(1e30f), 0x7c00);
    assert_int_equal(hps_rowgen_half(-INFINITY), 0xfc00);
    assert_true((hps_rowgen_half(NAN) & 0x7fff) > 0x7c00);
    assert_int_equal(hps_rowgen_half(-0.0f), 0x8000);
}

/* Two roundings that were written apart: hps-gen's files are of the one, checks of the other. */
static void test_row_when_converted_to_fp16_then_the_rounded_values(void **state)
{
    (void)state;
    float wide[33];
    uint16_t narrow[33];
    hps_rowgen_row(9, 2, 77, 33, wide);
    hps_row_convert(narrow, HPS_DTYPE_FP16, wide, HPS_DTYPE_FP32, 33);
    for (size_t i = 0; i < 33; i++) {
        assert_int_equal(narrow[i], hps_rowgen_half(wide[i]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_row_when_known_inputs_then_the_values_of_numpy),
        cmocka_unit_test(test_row_when_other_seed_table_or_key_then_other_values),
        cmocka_unit_test(test_values_when_many_then_in_range_and_spread),
        cmocka_unit_test(test_half_when_every_finite_half_then_back_to_itself),
        cmocka_unit_test(test_half_when_between_two_then_nearest_and_ties_to_even),
        cmocka_unit_test(test_row_when_converted_to_fp16_then_the_rounded_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
