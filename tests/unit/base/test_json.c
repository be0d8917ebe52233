/* SPDX-License-Identifier: Apache-2.0
 *
 * JSON texts and numbers: whatever the bytes, what comes out is JSON that says the same.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/half.h"
#include "base/json.h"

static void expect_text(const char *bytes, size_t size, const char *wanted)
{
    struct hps_buf buf;
    hps_buf_init(&buf, 256);
    hps_json_text(&buf, bytes, size);
    assert_int_equal(buf.status, HPS_OK);
    assert_int_equal(buf.size, strlen(wanted));
    assert_memory_equal(buf.data, wanted, buf.size);
    hps_buf_fini(&buf);
}

static void test_text_when_it_has_anything_then_quoted_and_escaped(void **state)
{
    (void)state;
    expect_text("", 0, "\"\"");
    expect_text("plain \xc3\xa9", 8, "\"plain \xc3\xa9\"");
    expect_text("a\"b\\c", 5, "\"a\\\"b\\\\c\"");
    expect_text("\n\x1b\0x", 4, "\"\\u000a\\u001b\\u0000x\"");
    expect_text("\xff\xc3", 2, "\"\xEF\xBF\xBD\xEF\xBF\xBD\"");
}

static void test_text_when_the_buffer_is_full_then_exhausted(void **state)
{
    struct hps_buf buf;
    (void)state;
    for (size_t capacity = 0; capacity < 5; capacity++) {
        hps_buf_init(&buf, capacity);
        hps_json_text(&buf, "abc", 3);
        assert_int_equal(buf.status, HPS_EXHAUSTED);
        hps_buf_fini(&buf);
    }
}

static void test_float_when_read_back_then_the_same(void **state)
{
    char text[HPS_JSON_FLOAT_BYTES];
    (void)state;
    for (uint64_t bits = 0; bits <= UINT32_MAX; bits += 10007) {
        float value = hps_float_of_bits((uint32_t)bits);
        if (isfinite(value)) {
            size_t size = hps_json_float_text(value, text);
            assert_int_equal(size, strlen(text));
            assert_true(hps_bits_of_float(strtof(text, NULL)) == bits);
        }
    }
    assert_int_equal(hps_json_float_text(-0.0F, text), 4);
    assert_string_equal(text, "-0.0");
    assert_int_equal(hps_json_float_text(-1.17549435e-38F, text), HPS_JSON_FLOAT_BYTES - 1);
}

static void test_float_when_json_has_no_such_number_then_null(void **state)
{
    static const float values[] = {NAN, INFINITY, -INFINITY};
    (void)state;
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        struct hps_buf buf;
        hps_buf_init(&buf, 64);
        hps_json_float(&buf, values[i]);
        assert_int_equal(buf.status, HPS_OK);
        assert_int_equal(buf.size, 4);
        assert_memory_equal(buf.data, "null", 4);
        hps_buf_fini(&buf);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text_when_it_has_anything_then_quoted_and_escaped),
        cmocka_unit_test(test_text_when_the_buffer_is_full_then_exhausted),
        cmocka_unit_test(test_float_when_read_back_then_the_same),
        cmocka_unit_test(test_float_when_json_has_no_such_number_then_null),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
