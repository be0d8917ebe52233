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

enum { N_VALUES = 3000 };

static void check_found(enum hps_dtype dtype, uint32_t bad_bits, size_t at)
{
    uint8_t data[N_VALUES * 4 + 1];
    size_t bytes = hps_dtype_bytes(dtype);
    memset(data, 0x11, sizeof(data));
    assert_int_equal(hps_first_not_finite(dtype, data + 1, N_VALUES), N_VALUES);
    memcpy(data + 1 + at * bytes, &bad_bits, bytes);
    assert_int_equal(hps_first_not_finite(dtype, data + 1, N_VALUES), at);
    assert_int_equal(hps_first_not_finite(dtype, data + 1, at), at);
}

static void test_values_when_one_is_nan_or_inf_then_its_index_is_found(void **state)
{
    (void)state;
    const size_t places[] = {0, 1, 1023, 1024, 2999};
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        check_found(HPS_DTYPE_FP32, 0x7f800000, places[i]);
        check_found(HPS_DTYPE_FP32, 0xff800001, places[i]);
        check_found(HPS_DTYPE_FP16, 0x7c00, places[i]);
        check_found(HPS_DTYPE_FP16, 0xfe00, places[i]);
        check_found(HPS_DTYPE_BF16, 0x7f80, places[i]);
        check_found(HPS_DTYPE_BF16, 0xffc0, places[i]);
    }
}

static void check_finite(enum hps_dtype dtype, uint32_t bits)
{
    assert_int_equal(hps_first_not_finite(dtype, &bits, 1), 1);
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

static void test_values_when_none_then_none_is_found(void **state)
{
    (void)state;
    assert_int_equal(hps_first_not_finite(HPS_DTYPE_FP32, "", 0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values_when_one_is_nan_or_inf_then_its_index_is_found),
        cmocka_unit_test(test_values_when_largest_or_smallest_then_are_finite),
        cmocka_unit_test(test_values_when_none_then_none_is_found),
    };
    return cmocka_run_group_tests_name("finite", tests, NULL, NULL);
}
