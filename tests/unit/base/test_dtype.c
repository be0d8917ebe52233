/* SPDX-License-Identifier: Apache-2.0
 *
 * Conversions of values, against the compiler's own.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/dtype.h"
#include "base/hash.h"

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

static void test_dtype_when_fp16_then_every_value_widens_exactly(void **state)
{
    (void)state;
    for (uint32_t half = 0; half <= UINT16_MAX; half++) {
        uint16_t from = (uint16_t)half;
        _Float16 reference;
        float to;

        memcpy(&reference, &from, sizeof(from));
        hps_dtype_convert(&to, HPS_DTYPE_FP32, &from, HPS_DTYPE_FP16, 1);
        if (isnan((float)reference)) {
            assert_true(isnan(to));
        } else {
            assert_int_equal(bits_of(to), bits_of((float)reference));
        }
    }
}

static void check_narrowing_fp16(uint32_t bits)
{
    float from = float_of(bits);
    _Float16 reference = (_Float16)from;
    uint16_t expected;
    uint16_t to;

    memcpy(&expected, &reference, sizeof(expected));
    hps_dtype_convert(&to, HPS_DTYPE_FP16, &from, HPS_DTYPE_FP32, 1);
    if (isnan(from)) {
        assert_true((to & 0x7c00) == 0x7c00 && (to & 0x3ff) != 0);
    } else {
        assert_int_equal(to, expected);
    }
}

/* The nearer of the two neighbours with 8 bits of significand, the even one in a tie. */
static uint16_t reference_bf16(uint32_t bits)
{
    double value = (double)float_of(bits);
    uint32_t below = bits & 0xffff0000u;
    uint32_t above = below + 0x10000u;
    double above_value =
        isinf(float_of(above)) ? copysign(ldexp(1, 128), value) : (double)float_of(above);
    double down = fabs(value - (double)float_of(below));
    double up = fabs(above_value - value);

    if (down == up) {
        return (uint16_t)((below >> 16 & 1) == 0 ? below >> 16 : above >> 16);
    }
    return (uint16_t)((down < up ? below : above) >> 16);
}

static void check_narrowing_bf16(uint32_t bits)
{
    float from = float_of(bits);
    uint16_t to;

    hps_dtype_convert(&to, HPS_DTYPE_BF16, &from, HPS_DTYPE_FP32, 1);
    if (isnan(from)) {
        assert_true(isnan(float_of((uint32_t)to << 16)));
    } else if (isinf(from)) {
        assert_int_equal(to, bits >> 16);
    } else {
        assert_int_equal(to, reference_bf16(bits));
    }
}

static void test_dtype_when_fp32_narrows_then_nearest_even(void **state)
{
    (void)state;
    uint64_t seed = 99;
    for (uint32_t exponent = 0; exponent < 256; exponent++) {
        static const uint32_t fractions[] = {0,        1,        0xfff,    0x1000,   0x1001,
                                             0x7fff,   0x8000,   0x8001,   0x18000,  0x7fffff,
                                             0x7fefff, 0x7ff000, 0x400000, 0x3fffff, 0x3000};
        for (unsigned i = 0; i < sizeof(fractions) / sizeof(fractions[0]); i++) {
            for (uint32_t sign = 0; sign < 2; sign++) {
                check_narrowing_fp16(sign << 31 | exponent << 23 | fractions[i]);
                check_narrowing_bf16(sign << 31 | exponent << 23 | fractions[i]);
            }
        }
    }
    for (unsigned i = 0; i < 300000; i++) {
        uint32_t bits = (uint32_t)hps_mix64(++seed);
        check_narrowing_fp16(bits);
        check_narrowing_bf16(bits);
    }
}

static void test_dtype_when_bf16_then_it_widens_by_shifting(void **state)
{
    (void)state;
    uint16_t from[3] = {0x3f80, 0xff80, 0x0001};
    uint32_t to[3];

    hps_dtype_convert(to, HPS_DTYPE_FP32, from, HPS_DTYPE_BF16, 3);
    assert_int_equal(to[0], 0x3f800000);
    assert_int_equal(to[1], 0xff800000);
    assert_int_equal(to[2], 0x00010000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dtype_when_fp16_then_every_value_widens_exactly),
        cmocka_unit_test(test_dtype_when_fp32_narrows_then_nearest_even),
        cmocka_unit_test(test_dtype_when_bf16_then_it_widens_by_shifting),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
