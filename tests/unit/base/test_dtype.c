/* SPDX-License-Identifier: Apache-2.0
 *
 * Types of rows: names, sizes, values that fit, and losses. test_row_kernel.c tests conversions
 * bit by bit.
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

static const enum hps_dtype stored[] = {HPS_DTYPE_FP32, HPS_DTYPE_FP16, HPS_DTYPE_BF16,
                                        HPS_DTYPE_INT8_ROWWISE_F32, HPS_DTYPE_INT8_ROWWISE_F16};
enum { N_STORED = sizeof(stored) / sizeof(stored[0]) };

static float float_of(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

static void test_dtype_when_named_then_the_name_is_read_back(void **state)
{
    (void)state;
    enum hps_dtype got;
    for (unsigned number = 0; number < 20; number++) {
        const char *name = hps_dtype_name((enum hps_dtype)number);
        got = HPS_DTYPE_RAW;
        assert_int_equal(hps_dtype_parse(name, strlen(name), &got),
                         hps_dtype_is_stored(number) || number == HPS_DTYPE_RAW);
        assert_int_equal(got, hps_dtype_is_stored(number) ? number : HPS_DTYPE_RAW);
    }
    assert_string_equal(hps_dtype_name(HPS_DTYPE_INT8_ROWWISE_F16), "int8_rowwise_f16");
    assert_string_equal(hps_dtype_name((enum hps_dtype)6), "unknown");
    assert_false(hps_dtype_parse("fp3", 3, &got));
    assert_false(hps_dtype_parse("fp321", 5, &got));
    assert_false(hps_dtype_parse("", 0, &got));
}

static void test_dtype_when_a_row_is_measured_then_scale_and_bias_count(void **state)
{
    (void)state;
    assert_int_equal(hps_dtype_row_bytes(HPS_DTYPE_FP32, 7), 28);
    assert_int_equal(hps_dtype_row_bytes(HPS_DTYPE_FP16, 7), 14);
    assert_int_equal(hps_dtype_row_bytes(HPS_DTYPE_BF16, 7), 14);
    assert_int_equal(hps_dtype_row_bytes(HPS_DTYPE_INT8_ROWWISE_F32, 7), 15);
    assert_int_equal(hps_dtype_row_bytes(HPS_DTYPE_INT8_ROWWISE_F16, 7), 11);
    assert_int_equal(hps_dtype_row_bytes(HPS_DTYPE_RAW, 7), 0);
    assert_int_equal(hps_dtype_row_bytes((enum hps_dtype)0, 7), 0);
    assert_true(hps_dtype_row_bytes(HPS_DTYPE_FP32, UINT32_MAX) == 4 * (uint64_t)UINT32_MAX);
    assert_int_equal(hps_dtype_value_offset(HPS_DTYPE_FP32, 7, 3), 12);
    assert_int_equal(hps_dtype_value_offset(HPS_DTYPE_BF16, 7, 3), 6);
    assert_int_equal(hps_dtype_value_offset(HPS_DTYPE_INT8_ROWWISE_F32, 7, 3), 3);
    assert_int_equal(hps_dtype_value_offset(HPS_DTYPE_INT8_ROWWISE_F32, 7, 7), 7);
    assert_int_equal(hps_dtype_value_offset(HPS_DTYPE_INT8_ROWWISE_F32, 7, 8), 11);
    assert_int_equal(hps_dtype_value_offset(HPS_DTYPE_INT8_ROWWISE_F16, 7, 8), 9);
}

static void test_dtype_when_equal_then_the_row_is_copied(void **state)
{
    (void)state;
    for (unsigned t = 0; t < N_STORED; t++) {
        uint8_t row[60], copy[60];
        size_t bytes = hps_dtype_row_bytes(stored[t], 13);
        for (size_t i = 0; i < sizeof(row); i++) {
            row[i] = (uint8_t)(i * 37 + 1);
            copy[i] = 0;
        }
        hps_row_convert(copy, stored[t], row, stored[t], 13);
        assert_memory_equal(copy, row, bytes);
        assert_int_equal(copy[bytes], 0);
        assert_ptr_equal(hps_row_converter(stored[t], stored[t], true),
                         hps_row_converter(stored[t], stored[t], false));
    }
}

static void test_dtype_when_converted_then_by_the_converter_for_many_rows(void **state)
{
    (void)state;
    static const float row[3] = {-1, 0.25F, 1};
    for (unsigned t = 1; t < N_STORED; t++) {
        uint8_t one[16] = {0}, other[16] = {0};
        float back[3];
        hps_row_convert(one, stored[t], row, HPS_DTYPE_FP32, 3);
        hps_row_converter(stored[t], HPS_DTYPE_FP32, true)(other, row, 3);
        hps_row_stream_end();
        assert_memory_equal(one, other, sizeof(one));
        hps_row_convert(back, HPS_DTYPE_FP32, one, stored[t], 3);
        for (unsigned i = 0; i < 3; i++) {
            assert_true(fabsf(back[i] - row[i]) <= 0.005F);
        }
    }
}

/* ---- values that fit ------------------------------------------------------------------------- */

enum { DIM = 600, AT = 413 };

static void check_fits(enum hps_dtype type, float value, float other, bool fits)
{
    uint8_t row[DIM * sizeof(float) + 1]; /* starts at an odd address */
    uint32_t at = 9999;

    for (uint32_t i = 0; i < DIM; i++) {
        memcpy(row + 1 + i * sizeof(float), i == AT ? &value : &other, sizeof(float));
    }
    assert_int_equal(hps_row_fits(row + 1, type, DIM, &at), fits);
    assert_int_equal(at, fits ? 9999 : AT);
}

static void test_row_when_a_half_would_be_infinite_then_it_does_not_fit(void **state)
{
    (void)state;
    float bf16_beyond = float_of(0x7f7f8000); /* half-way to 2^128 */
    check_fits(HPS_DTYPE_FP32, INFINITY, 0, true);
    check_fits(HPS_DTYPE_FP16, 65504, 0, true);
    check_fits(HPS_DTYPE_FP16, -65519.996F, 0, true);
    check_fits(HPS_DTYPE_FP16, 65520, 0, false);
    check_fits(HPS_DTYPE_FP16, -3e38F, 0, false);
    check_fits(HPS_DTYPE_FP16, INFINITY, 0, true); /* checked elsewhere */
    check_fits(HPS_DTYPE_FP16, NAN, 0, true);
    check_fits(HPS_DTYPE_BF16, nextafterf(bf16_beyond, 0), 0, true);
    check_fits(HPS_DTYPE_BF16, bf16_beyond, 0, false);
    check_fits(HPS_DTYPE_BF16, -INFINITY, 0, true);
}

static void test_row_when_int8_cannot_hold_it_then_it_does_not_fit(void **state)
{
    (void)state;
    float most = float_of(0x7f7fffff);
    for (unsigned t = 3; t < N_STORED; t++) {
        check_fits(stored[t], 1, 0, true);
        check_fits(stored[t], 1, 1, true);
        check_fits(stored[t], float_of(1), 0, true);
        check_fits(stored[t], NAN, 0, false);
        check_fits(stored[t], -INFINITY, 0, false);
    }
    check_fits(HPS_DTYPE_INT8_ROWWISE_F32, most / 2, -most / 4, true);
    check_fits(HPS_DTYPE_INT8_ROWWISE_F32, most, -most / 2, false); /* the range is infinite */
    check_fits(HPS_DTYPE_INT8_ROWWISE_F16, -65504, 0, true);
    check_fits(HPS_DTYPE_INT8_ROWWISE_F16, -65520, 0, false);
    check_fits(HPS_DTYPE_INT8_ROWWISE_F16, 65504 * 255.0F, 0, true);
}

static void test_row_when_the_scale_would_be_infinite_then_its_largest_value_is_reported(
    void **state)
{
    (void)state;
    const float row[4] = {0, 1, 65520 * 255.0F, 2};
    uint32_t at = 9999;
    assert_false(hps_row_fits(row, HPS_DTYPE_INT8_ROWWISE_F16, 4, &at));
    assert_int_equal(at, 2);
    assert_true(hps_row_fits(row, HPS_DTYPE_INT8_ROWWISE_F32, 4, &at));
}

/* Values that fit stay finite when they are stored and read back. */
static void test_row_when_it_fits_then_no_value_becomes_infinite(void **state)
{
    (void)state;
    uint64_t seed = 3;
    unsigned n_fit[N_STORED] = {0};
    for (unsigned turn = 0; turn < 4000; turn++) {
        float row[9], back[9];
        uint8_t bytes[48];
        uint32_t at;
        for (unsigned i = 0; i < 9; i++) {
            uint32_t bits = (uint32_t)hps_mix64(++seed);
            uint32_t exponent = turn % 2 == 0 ? 254 - bits % 3 : 127 + bits % 25;
            row[i] = float_of((bits & 0x807fffffU) | exponent << 23);
        }
        for (unsigned t = 1; t < N_STORED; t++) {
            if (hps_row_fits(row, stored[t], 9, &at)) {
                n_fit[t]++;
                hps_row_convert(bytes, stored[t], row, HPS_DTYPE_FP32, 9);
                hps_row_convert(back, HPS_DTYPE_FP32, bytes, stored[t], 9);
                for (unsigned i = 0; i < 9; i++) {
                    assert_true(isfinite(back[i]));
                }
            } else {
                assert_in_range(at, 0, 8);
            }
        }
    }
    for (unsigned t = 1; t < N_STORED; t++) {
        assert_in_range(n_fit[t], 1, 3999);
    }
}

/* ---- losses ---------------------------------------------------------------------------------- */

static void test_loss_when_rows_are_added_then_largest_and_mean_are_known(void **state)
{
    (void)state;
    enum { N = 700 };
    static float given[N], back[N];
    static uint8_t bytes[N * 4];
    for (unsigned t = 0; t < N_STORED; t++) {
        struct hps_row_loss loss = {0};
        double max = 0, sum = 0;
        uint64_t seed = 11;
        for (unsigned turn = 0; turn < 3; turn++) {
            for (unsigned i = 0; i < N; i++) {
                given[i] = (float)(int32_t)hps_mix64(++seed) / (float)(turn + 1);
            }
            hps_row_convert(bytes, stored[t], given, HPS_DTYPE_FP32, N);
            if (stored[t] == HPS_DTYPE_FP16 || stored[t] == HPS_DTYPE_INT8_ROWWISE_F16) {
                for (unsigned i = 0; i < N; i++) {
                    given[i] /= 1e6F; /* values that fit */
                }
                hps_row_convert(bytes, stored[t], given, HPS_DTYPE_FP32, N);
            }
            hps_row_convert(back, HPS_DTYPE_FP32, bytes, stored[t], N);
            for (unsigned i = 0; i < N; i++) {
                double lost = fabs((double)given[i] - (double)back[i]);
                max = lost > max ? lost : max;
                sum += lost;
            }
            hps_row_loss_add(&loss, given, HPS_DTYPE_FP32, bytes, stored[t], N);
        }
        assert_int_equal(loss.n, 3 * N);
        assert_true(loss.max == max);
        assert_true(fabs(loss.sum - sum) <= 1e-9 * sum);
        assert_true((loss.max > 0) == (stored[t] != HPS_DTYPE_FP32));
    }
}

static void test_loss_when_values_are_not_finite_then_they_are_left_out(void **state)
{
    (void)state;
    const float given[4] = {1, NAN, INFINITY, 2};
    const uint16_t bf16[4] = {0x3f80, 0x7fc0, 0x7f80, 0x4010}; /* 1 NaN Inf 2.25 */
    struct hps_row_loss loss = {0};
    hps_row_loss_add(&loss, given, HPS_DTYPE_FP32, bf16, HPS_DTYPE_BF16, 4);
    assert_int_equal(loss.n, 2);
    assert_true(loss.max == 0.25 && loss.sum == 0.25);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dtype_when_named_then_the_name_is_read_back),
        cmocka_unit_test(test_dtype_when_a_row_is_measured_then_scale_and_bias_count),
        cmocka_unit_test(test_dtype_when_equal_then_the_row_is_copied),
        cmocka_unit_test(test_dtype_when_converted_then_by_the_converter_for_many_rows),
        cmocka_unit_test(test_row_when_a_half_would_be_infinite_then_it_does_not_fit),
        cmocka_unit_test(test_row_when_int8_cannot_hold_it_then_it_does_not_fit),
        cmocka_unit_test(
            test_row_when_the_scale_would_be_infinite_then_its_largest_value_is_reported),
        cmocka_unit_test(test_row_when_it_fits_then_no_value_becomes_infinite),
        cmocka_unit_test(test_loss_when_rows_are_added_then_largest_and_mean_are_known),
        cmocka_unit_test(test_loss_when_values_are_not_finite_then_they_are_left_out),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
