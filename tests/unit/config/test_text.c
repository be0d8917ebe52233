/* SPDX-License-Identifier: Apache-2.0
 *
 * Comments and positions in a configuration file.
 */
#include "tests/unit/config/config_test.h"

#include "config/text.h"

static struct hps_text open_text(const char *text)
{
    struct hps_text source = {0};
    struct hps_error err = {0};
    assert_int_equal(hps_text_init(&source, "f", text, strlen(text), &err), HPS_OK);
    return source;
}

static void test_comments_when_blanked_then_nothing_moves(void **state)
{
    (void)state;
    struct hps_text source = open_text("{// one\n\"a/*b*/\": \"//c\", /* two\n lines */ \"d\": 1}");
    assert_string_equal(source.text, "{      \n\"a/*b*/\": \"//c\",       \n          \"d\": 1}");
    hps_text_fini(&source);
}

static void test_comments_when_quote_is_escaped_then_string_goes_on(void **state)
{
    (void)state;
    struct hps_text source = open_text("\"a\\\"//b\"//c");
    assert_string_equal(source.text, "\"a\\\"//b\"   ");
    hps_text_fini(&source);
}

static void test_comments_when_slash_star_slash_then_still_open(void **state)
{
    (void)state;
    struct hps_text source = {0};
    struct hps_error err = {0};
    assert_int_equal(hps_text_init(&source, "f", "\n\n/*/", 5, &err), HPS_INVALID);
    assert_string_equal(err.text, "f:3: the comment that begins here is not closed");
    assert_null(source.text);
}

static void test_text_when_empty_or_only_a_slash_then_kept(void **state)
{
    (void)state;
    struct hps_text source = open_text("");
    assert_int_equal(source.size, 0);
    hps_text_fini(&source);
    source = open_text("/");
    assert_string_equal(source.text, "/");
    hps_text_fini(&source);
    source = open_text("\xEF\xBB\xBF{}");
    assert_string_equal(source.text, "   {}");
    hps_text_fini(&source);
}

static void test_locate_when_nested_then_line_and_spelling(void **state)
{
    (void)state;
    struct hps_text source = open_text(
        "{\"x\": [\"]}\", {\"y\": 1}],\n \"a\": [1,\n {\"b\" :\n  -2.5e3 , \"c\": \"q\\\"r\"}]\n}");
    struct hps_text_path a = {.key = "a"};
    struct hps_text_path second = {.parent = &a, .index = 1};
    struct hps_text_path b = {.parent = &second, .key = "b"};
    struct hps_text_path c = {.parent = &second, .key = "c"};
    struct hps_text_path absent = {.parent = &second, .key = "absent"};
    char text[40];
    assert_int_equal(hps_text_line(&source, hps_text_locate(&source, &a)), 2);
    assert_int_equal(hps_text_line(&source, hps_text_locate(&source, &second)), 3);
    assert_int_equal(hps_text_line(&source, hps_text_locate(&source, &b)), 4);
    assert_int_equal(hps_text_locate(&source, &absent), hps_text_locate(&source, &second));
    hps_text_spelling(&source, &b, text, sizeof(text));
    assert_string_equal(text, "-2.5e3");
    hps_text_spelling(&source, &c, text, sizeof(text));
    assert_string_equal(text, "\"q\\\"r\"");
    hps_text_path_print(&b, text, sizeof(text));
    assert_string_equal(text, "a[1].b");
    hps_text_spelling(&source, &a, text, 10);
    assert_string_equal(text, "[1,  {...");
    hps_text_fini(&source);
}

static void test_path_at_when_offset_is_inside_then_path_of_it(void **state)
{
    (void)state;
    const char *json = "{\"a\": {\"b\": [1, 2, {\"c\": 3";
    struct hps_text source = open_text(json);
    char path[64];
    hps_text_path_at(&source, strlen(json), path, sizeof(path));
    assert_string_equal(path, "a.b[2].c");
    hps_text_path_at(&source, 0, path, sizeof(path));
    assert_string_equal(path, "");
    hps_text_path_at(&source, SIZE_MAX, path, 4);
    assert_string_equal(path, "a.b");
    hps_text_fini(&source);
}

static void test_path_at_when_deep_then_cut(void **state)
{
    (void)state;
    struct hps_text source = open_text("[[[[[[[[[[[[[[[[[[[[1,2");
    char path[64];
    hps_text_path_at(&source, source.size, path, sizeof(path));
    assert_string_equal(path, "[0][0][0][0][0][0][0][0]");
    hps_text_fini(&source);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comments_when_blanked_then_nothing_moves),
        cmocka_unit_test(test_comments_when_quote_is_escaped_then_string_goes_on),
        cmocka_unit_test(test_comments_when_slash_star_slash_then_still_open),
        cmocka_unit_test(test_text_when_empty_or_only_a_slash_then_kept),
        cmocka_unit_test(test_locate_when_nested_then_line_and_spelling),
        cmocka_unit_test(test_path_at_when_offset_is_inside_then_path_of_it),
        cmocka_unit_test(test_path_at_when_deep_then_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
