/* SPDX-License-Identifier: Apache-2.0
 *
 * NaN and Inf are found in rows of every type, wherever they are; nothing else is taken for them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/rows/finite.h"

enum { DIM = 30, N_ROWS = 100, N_VALUES = DIM * N_ROWS };

static size_t first(enum hps_dtype dtype, const void *rows, size_t n, uint32_t *out_at)
{
    *out_at = 9999;
    return hps_first_not_finite(dtype, rows, DIM, n, out_at);
}

static void check_found(enum hps_dtype dtype, uint32_t bad_bits, size_t at)
{
    uint8_t data[N_VALUES * 4 + 1];
    size_t bytes = hps_dtype_row_bytes(dtype, 1);
    uint32_t got;
    memset(data, 0x11, sizeof(data));
    assert_int_equal(first(dtype, data + 1, N_ROWS, &got), N_ROWS);
    assert_int_equal(got, 9999);
    memcpy(data + 1 + at * bytes, &bad_bits, bytes);
    assert_int_equal(first(dtype, data + 1, N_ROWS, &got), at / DIM);
    assert_int_equal(got, at % DIM);
    assert_int_equal(first(dtype, data + 1, at / DIM, &got), at / DIM);
}

static void test_values_when_one_is_nan_or_inf_then_its_row_and_index_are_found(void **state)
{
    (void)state;
    const size_t places[] = {0, 1, DIM - 1, DIM, 1023, 1024, 2999};
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        check_found(HPS_DTYPE_FP32, 0x7f800000, places[i]);
        check_found(HPS_DTYPE_FP32, 0xff800001, places[i]);
        check_found(HPS_DTYPE_FP16, 0x7c00, places[i]);
        check_found(HPS_DTYPE_FP16, 0xfe00, places[i]);
        check_found(HPS_DTYPE_BF16, 0x7f80, places[i]);
        check_found(HPS_DTYPE_BF16, 0xffc0, places[i]);
    }
}

/* Bytes of all bits set are values; scale and bias behind them are what may be bad. */
static void check_found_int8(enum hps_dtype dtype, uint32_t bad_bits, size_t row, uint32_t which)
{
    uint8_t rows[N_ROWS * (DIM + 8) + 1];
    size_t row_bytes = hps_dtype_row_bytes(dtype, DIM);
    size_t bytes = (row_bytes - DIM) / 2;
    uint32_t got;
    memset(rows, 0xff, sizeof(rows));
    for (size_t i = 0; i < N_ROWS; i++) {
        memset(rows + 1 + i * row_bytes + DIM, 0x11, 2 * bytes);
    }
    assert_int_equal(first(dtype, rows + 1, N_ROWS, &got), N_ROWS);
    assert_int_equal(got, 9999);
    memcpy(rows + 1 + row * row_bytes + DIM + which * bytes, &bad_bits, bytes);
    assert_int_equal(first(dtype, rows + 1, N_ROWS, &got), row);
    assert_int_equal(got, DIM + which);
    assert_int_equal(first(dtype, rows + 1, row, &got), row);
}

static void test_int8_rows_when_scale_or_bias_is_nan_or_inf_then_it_is_found(void **state)
{
    (void)state;
    for (size_t row = 0; row < N_ROWS; row += 33) {
        for (uint32_t which = 0; which < 2; which++) {
            check_found_int8(HPS_DTYPE_INT8_ROWWISE_F32, 0x7f800000, row, which);
            check_found_int8(HPS_DTYPE_INT8_ROWWISE_F32, 0xffc00000, row, which);
            check_found_int8(HPS_DTYPE_INT8_ROWWISE_F16, 0x7c00, row, which);
            check_found_int8(HPS_DTYPE_INT8_ROWWISE_F16, 0xfe01, row, which);
        }
    }
    check_found_int8(HPS_DTYPE_INT8_ROWWISE_F32, 0x7f000000, 5, 0); /* 255 * 2^127 */
    assert_string_equal(hps_value_name(DIM, 0).text, "value 0");
    assert_string_equal(hps_value_name(DIM, DIM - 1).text, "value 29");
    assert_string_equal(hps_value_name(DIM, DIM).text, "scale");
    assert_string_equal(hps_value_name(DIM, DIM + 1).text, "bias");
}

static void check_finite(enum hps_dtype dtype, uint32_t bits)
{
    uint32_t at;
    assert_int_equal(hps_first_not_finite(dtype, &bits, 1, 1, &at), 1);
}

static void test_values_when_largest_or_smallest_then_are_finite(void **state)
{
    (void)state;
    check_finite(HPS_DTYPE_FP32, 0x7f7fffff);
    check_finite(HPS_DTYPE_FP32, 0x80000001);
    check_finite(HPS_DTYPE_FP16, 0x7bff);
    check_finite(HPS_DTYPE_BF16, 0x7c00); /* Inf if it were fp16 */
    check_finite(HPS_DTYPE_BF16, 0x7f7f);
}

static void test_rows_when_none_then_none_is_found(void **state)
{
    (void)state;
    uint32_t at;
    assert_int_equal(first(HPS_DTYPE_FP32, "", 0, &at), 0);
    assert_int_equal(first(HPS_DTYPE_INT8_ROWWISE_F16, "", 0, &at), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values_when_one_is_nan_or_inf_then_its_row_and_index_are_found),
        cmocka_unit_test(test_int8_rows_when_scale_or_bias_is_nan_or_inf_then_it_is_found),
        cmocka_unit_test(test_values_when_largest_or_smallest_then_are_finite),
        cmocka_unit_test(test_rows_when_none_then_none_is_found),
    };
    return cmocka_run_group_tests_name("finite", tests, NULL, NULL);
}
