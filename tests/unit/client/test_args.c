/* SPDX-License-Identifier: Apache-2.0
 *
 * Command lines of the tools.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "client/args.h"

static struct {
    bool flag;
    const char *name;
    uint64_t count;
    int64_t number;
    uint64_t timeout_us;
    uint64_t bytes;
    const char *output;
    struct hps_arg_list list;
} got;

static const struct hps_arg table[] = {
    {"flag", 'f', HPS_ARG_FLAG, NULL, &got.flag, "a flag"},
    {"name", 0, HPS_ARG_TEXT, "NAME", &got.name, "a text"},
    {"count", 'n', HPS_ARG_U64, "N", &got.count, "a count"},
    {"number", 0, HPS_ARG_I64, "N", &got.number, "a number"},
    {"timeout", 0, HPS_ARG_US, "SECONDS", &got.timeout_us, "a time"},
    {"bytes", 0, HPS_ARG_BYTES, "BYTES", &got.bytes, "a size"},
    {"property", 'X', HPS_ARG_LIST, "NAME=VALUE", &got.list, "many"},
    {NULL, 0, HPS_ARG_FLAG, NULL, NULL, NULL},
};
static const struct hps_arg second[] = {
    {"output", 'o', HPS_ARG_CHOICE, "table|json", &got.output, "a word"},
    {NULL, 0, HPS_ARG_FLAG, NULL, NULL, NULL},
};
static const struct hps_arg *const tables[] = {table, second};

/* Parse words (NULL-terminated) that are string constants. */
static hps_status parse(char **argv, bool stop, int *out_n, struct hps_error *err)
{
    int argc = 0;

    memset(&got, 0, sizeof(got));
    while (argv[argc] != NULL) {
        argc++;
    }
    return hps_args_parse(tables, 2, stop, argc, argv, out_n, err);
}

#define WORDS(...) ((char *[]){__VA_ARGS__, NULL})

static void test_parse_when_every_form_then_values(void **state)
{
    struct hps_error err = {0};
    int n = 0;
    char one[] = "--name=a=b", two[] = "--count", three[] = "7", four[] = "-ojson", five[] = "-f",
         six[] = "--number", seven[] = "-12", eight[] = "--timeout=250ms", nine[] = "--bytes",
         ten[] = "1.5GiB", eleven[] = "word";

    (void)state;
    assert_int_equal(parse(WORDS(one, two, three, eleven, four, five, six, seven, eight, nine, ten),
                           false, &n, &err),
                     HPS_OK);
    assert_int_equal(n, 1);
    assert_string_equal(got.name, "a=b");
    assert_int_equal(got.count, 7);
    assert_string_equal(got.output, "json");
    assert_true(got.flag);
    assert_int_equal(got.number, -12);
    assert_int_equal(got.timeout_us, 250000);
    assert_int_equal(got.bytes, UINT64_C(1610612736));
}

static void test_parse_when_words_are_mixed_then_moved_to_front(void **state)
{
    struct hps_error err = {0};
    int n = 0;
    char a[] = "a", flag[] = "--flag", minus[] = "-5", end[] = "--", last[] = "--name";
    char **argv = WORDS(flag, a, minus, end, last);

    (void)state;
    assert_int_equal(parse(argv, false, &n, &err), HPS_OK);
    assert_int_equal(n, 3);
    assert_string_equal(argv[0], "a");
    assert_string_equal(argv[1], "-5");
    assert_string_equal(argv[2], "--name");
    assert_null(got.name);
}

static void test_parse_when_told_to_stop_then_first_word_is_next(void **state)
{
    struct hps_error err = {0};
    int n = 0;
    char flag[] = "-f", verb[] = "load", other[] = "--absent";

    (void)state;
    assert_int_equal(parse(WORDS(flag, verb, other), true, &n, &err), HPS_OK);
    assert_int_equal(n, 1);
    assert_true(got.flag);
}

static void test_parse_when_wrong_then_error_names_the_option(void **state)
{
    static const struct {
        const char *words[3];
        const char *text;
    } cases[] = {
        {{"--nam", "x", NULL}, "unknown option --nam; did you mean --name?"},
        {{"--zzzzzz", NULL, NULL}, "unknown option --zzzzzz"},
        {{"--count", NULL, NULL}, "--count needs a value"},
        {{"--count", "x7", NULL}, "--count: \"x7\""},
        {{"--count", "-7", NULL}, "--count: \"-7\""},
        {{"--count=18446744073709551616", NULL, NULL}, "--count"},
        {{"--flag=1", NULL, NULL}, "--flag takes no value"},
        {{"-o", "yaml", NULL}, "\"yaml\" is not table|json"},
        {{"-o", "", NULL}, "is not table|json"},
        {{"--timeout", "5 weeks", NULL}, "--timeout"},
        {{"--timeout", "-1", NULL}, "--timeout"},
        {{"--bytes", "1GX", NULL}, "--bytes"},
        {{"-x", NULL, NULL}, "unknown option"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct hps_error err = {0};
        char copies[2][64];
        char *argv[3] = {NULL, NULL, NULL};
        int n = -1;
        for (int w = 0; w < 2 && cases[i].words[w] != NULL; w++) {
            size_t size = strlen(cases[i].words[w]);
            memcpy(copies[w], cases[i].words[w], size + 1);
            argv[w] = copies[w];
        }
        assert_int_equal(parse(argv, false, &n, &err), HPS_INVALID);
        assert_int_equal(n, -1);
        if (strstr(err.text, cases[i].text) == NULL) {
            fail_msg("\"%s\" lacks \"%s\"", err.text, cases[i].text);
        }
    }
}

static void test_numbers_when_at_the_edges_then_exact(void **state)
{
    uint64_t u = 0;
    int64_t i = 0;
    double f = 0;

    (void)state;
    assert_true(hps_args_u64("18446744073709551615", &u));
    assert_true(u == UINT64_MAX);
    assert_true(hps_args_i64("-9223372036854775808", &i));
    assert_true(i == INT64_MIN);
    assert_false(hps_args_i64("9223372036854775808", &i));
    assert_false(hps_args_i64("-", &i));
    assert_false(hps_args_u64("", &u));
    assert_false(hps_args_u64(" 1", &u));
    assert_true(hps_args_f64("1e3", &f));
    assert_false(hps_args_f64("nan", &f));
    assert_false(hps_args_f64("", &f));
    assert_true(hps_args_duration_us("2min", &u));
    assert_int_equal(u, 120000000);
    assert_false(hps_args_duration_us("1e300h", &u));
    assert_true(hps_args_bytes("2MB", &u));
    assert_int_equal(u, 2000000);
}

static void test_suggest_when_near_then_that_word(void **state)
{
    static const char *const words[] = {"ping", "status", "models", "tables", "log-level", NULL};

    (void)state;
    assert_string_equal(hps_args_suggest("pong", words), "ping");
    assert_string_equal(hps_args_suggest("stauts", words), "status");
    assert_string_equal(hps_args_suggest("log", words), "log-level");
    assert_null(hps_args_suggest("frobnicate", words));
    assert_null(hps_args_suggest("", words));
}

static void test_parse_when_a_list_then_every_value_up_to_its_end(void **state)
{
    struct hps_error err = {0};
    int n = 0;
    char one[] = "-Xa=1", two[] = "--property", three[] = "b=2", four[] = "--property=c",
         x[] = "-X";
    char *many[2 * HPS_ARG_LIST_MAX + 3];

    (void)state;
    assert_int_equal(parse(WORDS(one, two, three, four), false, &n, &err), HPS_OK);
    assert_int_equal(got.list.n, 3);
    assert_string_equal(got.list.items[0], "a=1");
    assert_string_equal(got.list.items[1], "b=2");
    assert_string_equal(got.list.items[2], "c");
    for (size_t i = 0; i < 2 * HPS_ARG_LIST_MAX + 2; i++) {
        many[i] = i % 2 == 0 ? x : three;
    }
    many[2 * HPS_ARG_LIST_MAX + 2] = NULL;
    assert_int_equal(parse(many, false, &n, &err), HPS_INVALID);
    assert_non_null(strstr(err.text, "--property"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse_when_every_form_then_values),
        cmocka_unit_test(test_parse_when_words_are_mixed_then_moved_to_front),
        cmocka_unit_test(test_parse_when_told_to_stop_then_first_word_is_next),
        cmocka_unit_test(test_parse_when_wrong_then_error_names_the_option),
        cmocka_unit_test(test_numbers_when_at_the_edges_then_exact),
        cmocka_unit_test(test_suggest_when_near_then_that_word),
        cmocka_unit_test(test_parse_when_a_list_then_every_value_up_to_its_end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
