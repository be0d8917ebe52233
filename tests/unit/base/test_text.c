/* SPDX-License-Identifier: Apache-2.0
 *
 * What of a text from outside is shown as it is, and what as an escape.
 */
#include "base/text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static const char *plain(const char *text)
{
    static char out[512];
    (void)hps_text_plain(text, strlen(text), out, sizeof(out));
    return out;
}

static void test_plain_when_text_acts_on_a_terminal_then_escaped(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"plain: 'a' \\ \"b\" ~", "plain: 'a' \\ \"b\" ~"},
        {"\xc3\xa9t\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80",
         "\xc3\xa9t\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80"},
        {"\x1b[2J\r\n\t\x7f", "\\u001b[2J\\u000d\\u000a\\u0009\\u007f"},
        {"\xc2\x9b"
         "31m",
         "\\u009b31m"},                                   /* CSI in one character */
        {"dlrm\xe2\x80\xaemrld", "dlrm\\u202emrld"},      /* right-to-left override */
        {"\xe2\x81\xa6x\xe2\x81\xa9", "\\u2066x\\u2069"}, /* isolates */
        {"\xd8\x9c\xe2\x80\x8f", "\\u061c\\u200f"},       /* marks */
        {"a\xe2\x80\xa8"
         "b",
         "a\\u2028b"}, /* line separator */
        {"ads\xe2\x80\x8b", "ads\\u200b"},
        {"\xf3\xa0\x81\x81", "\\udb40\\udc41"}, /* a tag: a pair, as JSON has it */
        {"\xff\xc0\xaf", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_string_equal(plain(cases[i][0]), cases[i][1]);
        assert_int_equal(hps_text_is_plain(cases[i][0], strlen(cases[i][0])),
                         strcmp(cases[i][0], cases[i][1]) == 0);
        assert_true(hps_text_is_plain(cases[i][1], strlen(cases[i][1])));
    }
}

static void test_plain_when_nul_is_inside_then_escaped(void **state)
{
    (void)state;
    char out[32];
    assert_int_equal(hps_text_plain("a\0b", 3, out, sizeof(out)), 8);
    assert_string_equal(out, "a\\u0000b");
}

static void test_plain_when_room_ends_then_cut_between_characters(void **state)
{
    (void)state;
    char out[16];
    assert_int_equal(hps_text_plain("abc\x1b"
                                    "d",
                                    5, out, 9),
                     3); /* the escape takes 6 */
    assert_string_equal(out, "abc");
    assert_int_equal(hps_text_plain("abc\x1b"
                                    "d",
                                    5, out, 10),
                     9);
    assert_int_equal(hps_text_plain("a\xe2\x82\xac", 4, out, 4), 1);
    assert_int_equal(hps_text_plain("", 0, out, 1), 0);
    assert_string_equal(out, "");
}

static void test_plain_when_growth_is_allowed_for_then_nothing_is_cut(void **state)
{
    (void)state;
    char out[HPS_TEXT_GROWTH * 8 + 1];
    assert_int_equal(hps_text_plain("\1\1\1\1\1\1\1\1", 8, out, sizeof(out)), sizeof(out) - 1);
    assert_int_equal(hps_text_plain("\xf3\xa0\x81\x81\xf3\xa0\x81\x81", 8, out, sizeof(out)), 24);
    assert_int_equal(hps_text_plain("\xff\xff\xff\xff\xff\xff\xff\xff", 8, out, sizeof(out)), 24);
}

static void test_is_when_bytes_are_the_text_then_only_they_are(void **state)
{
    (void)state;
    assert_true(hps_text_is("ab", "abc", 2));
    assert_true(hps_text_is("", NULL, 0));
    assert_false(hps_text_is("ab", "abc", 3));
    assert_false(hps_text_is("ab", "ab\0", 3));
}

static void test_brokers_when_one_is_none_then_named(void **state)
{
    (void)state;
    static const char *const good[] = {"h", "h:1", "10.0.0.1:9092, k:65535;l",
                                       "[::1]:9092 [fe80::1]",
                                       "SASL_SSL://l:3,SSL://m,plaintext://[::1]:1"};
    static const char *const bad[][2] = {
        {"", "none"},
        {" ,;", "none"},
        {"http://h:9092", "\"http://h:9092\""},
        {"h:9,k:", "\"k:\""},
        {"::1", "\"::1\""},
        {"h:p:q", "\"h:p:q\""},
        {"h:0", "\"h:0\""},
        {"h:65536", "\"h:65536\""},
        {"h:000001", "\"h:000001\""},
        {"[::1]:9092x", "\"[::1]:9092x\""},
        {"[::1", "\"[::1\""},
        {"[]:1", "\"[]:1\""},
        {"SSL://", "\"SSL://\""},
        {"h/k:1", "\"h/k:1\""},
        {"h:1,SSL://u:hunter@h:1", "got '@' in an address"},
    };
    struct hps_error err;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        assert_int_equal(hps_text_brokers_check(good[i], &err), HPS_OK);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(hps_text_brokers_check(bad[i][0], &err), HPS_INVALID);
        assert_non_null(strstr(err.text, bad[i][1]));
        assert_non_null(strstr(err.text, "expected HOST:PORT"));
        assert_null(strstr(err.text, "hunter"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain_when_text_acts_on_a_terminal_then_escaped),
        cmocka_unit_test(test_plain_when_nul_is_inside_then_escaped),
        cmocka_unit_test(test_plain_when_room_ends_then_cut_between_characters),
        cmocka_unit_test(test_plain_when_growth_is_allowed_for_then_nothing_is_cut),
        cmocka_unit_test(test_brokers_when_one_is_none_then_named),
        cmocka_unit_test(test_is_when_bytes_are_the_text_then_only_they_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
