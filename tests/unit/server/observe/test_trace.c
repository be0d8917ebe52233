/* SPDX-License-Identifier: Apache-2.0
 *
 * traceparent: the examples of the specification, and what it says is not to be used.
 */
// clang-format off
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>
// clang-format on

#include <string.h>

#include "server/observe/trace.h"

#define TRACE  "4bf92f3577b34da6a3ce929d0e0e4736"
#define PARENT "00f067aa0ba902b7"

static void test_trace_when_the_header_is_right_then_its_trace_id(void **state)
{
    (void)state;
    static const char *const headers[] = {
        "00-" TRACE "-" PARENT "-01", "00-" TRACE "-" PARENT "-00", "cc-" TRACE "-" PARENT "-01",
        "cc-" TRACE "-" PARENT "-01-what-comes-later"};
    for (size_t i = 0; i < sizeof(headers) / sizeof(headers[0]); i++) {
        char id[HPS_TRACE_ID_CHARS + 1];
        assert_true(hps_trace_id(headers[i], strlen(headers[i]), id));
        assert_string_equal(id, TRACE);
    }
}

static void test_trace_when_the_header_is_wrong_then_none(void **state)
{
    (void)state;
    static const char *const headers[] = {
        "",
        "00-" TRACE "-" PARENT "-0",
        "00-" TRACE "-" PARENT "-01-more",
        "cc-" TRACE "-" PARENT "-01.more",
        "ff-" TRACE "-" PARENT "-01",
        "0-" TRACE "-" PARENT "-001",
        "00-00000000000000000000000000000000-" PARENT "-01",
        "00-" TRACE "-0000000000000000-01",
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-" PARENT "-01",
        "00_" TRACE "-" PARENT "-01",
        "00-" TRACE "_" PARENT "-01",
        "00-" TRACE "-" PARENT "_01",
        "00-" TRACE "-" PARENT "-0g",
    };
    char id[HPS_TRACE_ID_CHARS + 1] = "x";
    assert_false(hps_trace_id(NULL, 0, id));
    assert_string_equal(id, "");
    for (size_t i = 0; i < sizeof(headers) / sizeof(headers[0]); i++) {
        id[0] = 'x';
        assert_false(hps_trace_id(headers[i], strlen(headers[i]), id));
        assert_string_equal(id, "");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_trace_when_the_header_is_right_then_its_trace_id),
        cmocka_unit_test(test_trace_when_the_header_is_wrong_then_none),
    };
    return cmocka_run_group_tests_name("trace", tests, NULL, NULL);
}
