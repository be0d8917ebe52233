/* SPDX-License-Identifier: Apache-2.0
 *
 * Status texts, gRPC codes and error messages. One thread.
 */
#include "base/status.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void test_text_of_every_status_is_its_own(void **state)
{
    (void)state;
    static const hps_status all[] = {
#define STATUS(name, number, text, grpc) HPS_##name,
        HPS_STATUS_LIST(STATUS)
#undef STATUS
    };
    size_t n = sizeof(all) / sizeof(all[0]);
    for (size_t i = 0; i < n; i++) {
        for (size_t j = i + 1; j < n; j++) {
            assert_int_not_equal(all[i], all[j]);
            assert_string_not_equal(hps_status_text(all[i]), hps_status_text(all[j]));
        }
    }
}

static void test_text_when_unknown_then_unknown_error(void **state)
{
    (void)state;
    assert_string_equal(hps_status_text((hps_status)-99), "unknown error");
    assert_string_equal(hps_status_text((hps_status)7), "unknown error");
    assert_string_equal(hps_status_text(HPS_OK), "ok");
}

static void test_grpc_code_when_any_status_then_legal(void **state)
{
    (void)state;
    for (int i = -40; i <= 10; i++) {
        int code = hps_status_grpc_code((hps_status)i);
        assert_in_range(code, 0, 16);
        if (i <= 0 && i >= -16) {
            assert_int_equal(code, -i); /* the first seventeen are gRPC's own */
        } else {
            assert_int_not_equal(code, 0);
        }
    }
    assert_int_equal(hps_status_grpc_code(HPS_NO_MEMORY), 8);
    assert_int_equal(hps_status_grpc_code(HPS_AGAIN), 14);
}

static void test_error_set_when_given_then_text_and_status(void **state)
{
    (void)state;
    struct hps_error err = {0};
    assert_int_equal(hps_error_set(&err, HPS_RANGE, "dim: %d is over %d", 9, 8), HPS_RANGE);
    assert_int_equal(err.status, HPS_RANGE);
    assert_string_equal(err.text, "dim: 9 is over 8");
}

static void test_error_set_when_null_then_status_only(void **state)
{
    (void)state;
    assert_int_equal(hps_error_set(NULL, HPS_IO, "%s", "x"), HPS_IO);
    assert_int_equal(hps_error_prefix(NULL, HPS_IO, "%s", "x"), HPS_IO);
}

static void test_error_set_when_long_then_cut(void **state)
{
    (void)state;
    struct hps_error err = {0};
    assert_int_equal(hps_error_set(&err, HPS_INVALID, "%0600d", 1), HPS_INVALID);
    assert_int_equal(strlen(err.text), sizeof(err.text) - 1);
}

static void test_error_when_a_name_would_act_on_a_terminal_then_escaped(void **state)
{
    (void)state;
    struct hps_error err = {0};
    hps_ignore(hps_error_set(&err, HPS_INVALID, "model '%s'", "\x1b[2Ja\xe2\x80\xae\nb\xff"));
    assert_string_equal(err.text, "model '\\u001b[2Ja\\u202e\\u000ab\xef\xbf\xbd'");
    hps_ignore(hps_error_prefix(&err, HPS_INVALID, "\a%s", "f"));
    assert_string_equal(err.text, "\\u0007f: model '\\u001b[2Ja\\u202e\\u000ab\xef\xbf\xbd'");
}

static void test_error_prefix_when_set_then_before_text(void **state)
{
    (void)state;
    struct hps_error err = {0};
    assert_int_equal(hps_error_set(&err, HPS_INVALID, "bad"), HPS_INVALID);
    assert_int_equal(hps_error_prefix(&err, HPS_INVALID, "models[%d]", 3), HPS_INVALID);
    assert_string_equal(err.text, "models[3]: bad");
}

static void test_error_prefix_when_no_room_then_cut_inside(void **state)
{
    (void)state;
    struct hps_error err;
    for (int width = 470; width <= 490; width++) {
        memset(&err, 0, sizeof(err));
        assert_int_equal(hps_error_set(&err, HPS_IO, "%0400d", 7), HPS_IO);
        assert_int_equal(hps_error_prefix(&err, HPS_IO, "%0*d", width, 5), HPS_IO);
        size_t length = strnlen(err.text, sizeof(err.text));
        assert_in_range(length, 470, sizeof(err.text) - 1);
        assert_int_equal(err.text[469], width == 470 ? '5' : '0');
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text_of_every_status_is_its_own),
        cmocka_unit_test(test_text_when_unknown_then_unknown_error),
        cmocka_unit_test(test_grpc_code_when_any_status_then_legal),
        cmocka_unit_test(test_error_set_when_given_then_text_and_status),
        cmocka_unit_test(test_error_set_when_null_then_status_only),
        cmocka_unit_test(test_error_set_when_long_then_cut),
        cmocka_unit_test(test_error_when_a_name_would_act_on_a_terminal_then_escaped),
        cmocka_unit_test(test_error_prefix_when_set_then_before_text),
        cmocka_unit_test(test_error_prefix_when_no_room_then_cut_inside),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
