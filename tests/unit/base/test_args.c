/* SPDX-License-Identifier: Apache-2.0
 *
 * Command lines, of a program with verbs and of one without.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "base/args.h"

static struct {
    bool flag;
    const char *name;
    const char *pair[2];
    uint64_t count;
    int64_t number;
    uint64_t timeout_us;
    uint64_t bytes;
    const char *output, *type;
    struct hps_arg_list list;
    int64_t version;
} got;

#define LONG_CHOICES "float32|float16|bfloat16|int8_rowwise_float32|int8_rowwise_float16"

static const struct hps_arg args[] = {
    {"flag", 'f', HPS_ARG_FLAG, NULL, &got.flag, "a flag"},
    {"name", 0, HPS_ARG_TEXT, "NAME", &got.name,
     "a text whose help is so long that it has to be wrapped into a second line of the same "
     "column"},
    {"pair", 0, HPS_ARG_PAIR, "OLD NEW", got.pair, "two texts"},
    {"count", 'n', HPS_ARG_U64, "N", &got.count, "a count"},
    {"number", 0, HPS_ARG_I64, "N", &got.number, "a number"},
    {"timeout", 0, HPS_ARG_US, "SECONDS", &got.timeout_us, "a time"},
    {"bytes", 0, HPS_ARG_BYTES, "BYTES", &got.bytes, "a size"},
    {"property", 'X', HPS_ARG_LIST, "NAME=VALUE", &got.list, "many"},
    {"output", 'o', HPS_ARG_CHOICE, "table|json", &got.output, "a word"},
    {"type", 0, HPS_ARG_CHOICE, LONG_CHOICES, &got.type, "a word of many"},
    HPS_ARGS_END,
};

static const struct hps_program plain = {
    .self =
        {.name = "plain", .words = "[WORD...]", .summary = "Try", .args = args, .n_words_max = 9},
    .exit_codes = "0 ok",
};

static const struct hps_program wordless = {
    .self = {.name = "wordless", .words = "", .summary = "Try", .args = args},
};

static const struct hps_arg load_args[] = {
    {"version", 0, HPS_ARG_I64, "N", &got.version, "of what is loaded"},
    HPS_ARGS_END,
};
static const struct hps_command load = {.name = "load",
                                        .words = "MODEL --from DIR\nMODEL --config FILE",
                                        .summary = "Load something",
                                        .args = load_args,
                                        .n_words_min = 1,
                                        .n_words_max = 1,
                                        .example = "verbs load m --from d"};
static const struct hps_command ping = {.name = "ping", .words = "", .summary = "Ask"};
static const struct hps_command slowlog = {.name = "slowlog",
                                           .words = "get|reset",
                                           .choices = "get|reset",
                                           .summary = "Look",
                                           .n_words_min = 1,
                                           .n_words_max = 1};
static const struct hps_command *const verbs[] = {&load, &ping, &slowlog, NULL};
static const struct hps_program with_verbs = {
    .self = {.name = "verbs", .words = "VERB [WORD...]", .summary = "Do it", .args = args},
    .verbs = verbs,
    .exit_codes = "0 ok",
    .parts = "part 7\n",
};

enum { WORDS_MAX = 160, WORD_BYTES = 48, HELP_BYTES = 1 << 14 };

/* Words of one command line, behind the program's name; in memory that the parser may change. */
static hps_status read_line(const struct hps_program *program, const char *const *words,
                            struct hps_args *out_args, struct hps_error *err)
{
    static char copies[WORDS_MAX][WORD_BYTES];
    static char *argv[WORDS_MAX];
    int argc = 1;

    memset(&got, 0, sizeof(got));
    argv[0] = copies[0];
    for (; *words != NULL; words++, argc++) {
        assert_true(argc < WORDS_MAX && strlen(*words) < WORD_BYTES);
        argv[argc] = copies[argc];
        memcpy(copies[argc], *words, strlen(*words) + 1);
    }
    return hps_args_read(program, argc, argv, out_args, err);
}

#define LINE(...) ((const char *const[]){__VA_ARGS__, NULL})

static void test_read_when_every_form_then_values(void **state)
{
    struct hps_error err = {0};
    struct hps_args line;

    (void)state;
    assert_int_equal(
        read_line(&plain,
                  LINE("--name=a=b", "--count", "7", "word", "-ojson", "-f", "--number", "-12",
                       "--timeout=250ms", "--bytes", "1.5GiB", "--pair", "old", "new"),
                  &line, &err),
        HPS_OK);
    assert_int_equal(line.ask, HPS_ARGS_RUN);
    assert_int_equal(line.n_words, 1);
    assert_string_equal(line.words[0], "word");
    assert_string_equal(got.name, "a=b");
    assert_int_equal(got.count, 7);
    assert_string_equal(got.output, "json");
    assert_true(got.flag);
    assert_int_equal(got.number, -12);
    assert_int_equal(got.timeout_us, 250000);
    assert_int_equal(got.bytes, UINT64_C(1610612736));
    assert_string_equal(got.pair[0], "old");
    assert_string_equal(got.pair[1], "new");
}

static void test_read_when_words_are_mixed_then_moved_to_front(void **state)
{
    struct hps_error err = {0};
    struct hps_args line;

    (void)state;
    assert_int_equal(read_line(&plain, LINE("--flag", "a", "-5", "-", "--", "--name"), &line, &err),
                     HPS_OK);
    assert_int_equal(line.n_words, 4);
    assert_string_equal(line.words[0], "a");
    assert_string_equal(line.words[1], "-5");
    assert_string_equal(line.words[2], "-");
    assert_string_equal(line.words[3], "--name");
    assert_null(got.name);
}

static void test_read_when_wrong_then_what_was_given_and_what_is_expected(void **state)
{
    static const struct {
        const struct hps_program *program;
        const char *words[4];
        const char *text;
    } cases[] = {
        {&plain, {"--nam", "x"}, "--nam: unknown option (did you mean --name?)"},
        {&plain, {"--nam=x"}, "--nam: unknown option (did you mean --name?)"},
        {&plain, {"--hepl"}, "--hepl: unknown option (did you mean --help?)"},
        {&plain, {"--zzzzzz"}, "--zzzzzz: unknown option"},
        {&plain, {"-x"}, "-x: unknown option"},
        {&plain, {"--count"}, "--count: got no value, expected N"},
        {&plain, {"--pair", "old"}, "--pair: got no value, expected OLD NEW"},
        {&plain, {"--count", "x7"}, "--count \"x7\": expected a whole number from 0"},
        {&plain, {"--count", "-7"}, "--count \"-7\": expected a whole number from 0"},
        {&plain, {"--count=18446744073709551616"}, "--count \"18446744073709551616\": expected a"},
        {&plain, {"--flag=1"}, "--flag \"1\": expected no value"},
        {&plain, {"--help=1"}, "--help \"1\": expected no value"},
        {&plain, {"-o", "jsn"}, "--output \"jsn\": expected table|json (did you mean json?)"},
        {&plain, {"-o", ""}, "--output \"\": expected table|json"},
        {&plain, {"--timeout", "5 weeks"}, "--timeout \"5 weeks\": expected seconds, or 250ms"},
        {&plain, {"--timeout", "-1"}, "--timeout \"-1\": expected seconds"},
        {&plain, {"--bytes", "1GX"}, "--bytes \"1GX\": expected bytes, or 64MiB"},
        {&wordless, {"stray"}, "stray: expected options alone"},
        {&with_verbs, {"-f"}, "no verb: expected VERB [WORD...]"},
        {&with_verbs, {"laod", "m"}, "laod: unknown verb (did you mean load?)"},
        {&with_verbs, {"help", "pong"}, "pong: unknown verb (did you mean ping?)"},
        {&with_verbs, {"load"}, "load: expected MODEL --from DIR or MODEL --config FILE"},
        {&with_verbs, {"load", "a", "b"}, "load a b: expected MODEL"},
        {&with_verbs, {"ping", "a"}, "ping a: expected options alone"},
        {&with_verbs, {"slowlog"}, "slowlog: expected get|reset"},
        {&with_verbs, {"slowlog", "gte"}, "slowlog gte: expected get|reset (did you mean get?)"},
        {&with_verbs, {"ping", "--versio"}, "--versio: unknown option (did you mean --version?)"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct hps_error err = {0};
        struct hps_args line;
        assert_int_equal(read_line(cases[i].program, cases[i].words, &line, &err), HPS_INVALID);
        if (strncmp(err.text, cases[i].text, strlen(cases[i].text)) != 0) {
            fail_msg("\"%s\" does not begin with \"%s\"", err.text, cases[i].text);
        }
        assert_null(strchr(err.text, '\n'));
    }
}

static void test_read_when_a_verb_is_named_then_its_options_and_words(void **state)
{
    struct hps_error err = {0};
    struct hps_args line;

    (void)state;
    assert_int_equal(
        read_line(&with_verbs, LINE("-f", "load", "--version", "3", "m", "--count=2"), &line, &err),
        HPS_OK);
    assert_ptr_equal(line.verb, &load);
    assert_int_equal(line.verb_index, 0);
    assert_int_equal(line.n_words, 1);
    assert_string_equal(line.words[0], "m");
    assert_true(got.flag);
    assert_int_equal(got.version, 3); /* the verb's, not the program's */
    assert_int_equal(got.count, 2);
    assert_int_equal(read_line(&with_verbs, LINE("ping"), &line, &err), HPS_OK);
    assert_ptr_equal(line.verb, &ping);
    assert_int_equal(line.verb_index, 1);
    assert_int_equal(read_line(&with_verbs, LINE("slowlog", "reset"), &line, &err), HPS_OK);
    assert_int_equal(line.choice, 1);
}

static void test_read_when_help_is_asked_for_then_in_every_spelling(void **state)
{
    static const struct {
        const struct hps_program *program;
        const char *words[4];
        enum hps_args_ask ask;
        const struct hps_command *verb;
    } cases[] = {
        {&plain, {"-h"}, HPS_ARGS_HELP, NULL},
        {&plain, {"help"}, HPS_ARGS_HELP, NULL},
        {&plain, {"word", "--help"}, HPS_ARGS_HELP, NULL},
        {&plain, {"word", "help"}, HPS_ARGS_RUN, NULL},
        {&wordless, {"--help", "--nonsense"}, HPS_ARGS_HELP, NULL},
        {&wordless, {"--version"}, HPS_ARGS_VERSION, NULL},
        {&with_verbs, {"--help"}, HPS_ARGS_HELP, NULL},
        {&with_verbs, {"help"}, HPS_ARGS_HELP, NULL},
        {&with_verbs, {"help", "load"}, HPS_ARGS_HELP, &load},
        {&with_verbs, {"--help", "ping"}, HPS_ARGS_HELP, &ping},
        {&with_verbs, {"load", "--help"}, HPS_ARGS_HELP, &load},
        {&with_verbs, {"load", "-h"}, HPS_ARGS_HELP, &load},
        {&with_verbs, {"load", "help"}, HPS_ARGS_RUN, &load}, /* a model of this name */
        {&with_verbs, {"--version"}, HPS_ARGS_VERSION, NULL},
        {&with_verbs, {"ping", "--version"}, HPS_ARGS_VERSION, &ping},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct hps_error err = {0};
        struct hps_args line;
        assert_int_equal(read_line(cases[i].program, cases[i].words, &line, &err), HPS_OK);
        assert_int_equal(line.ask, cases[i].ask);
        assert_ptr_equal(line.verb, cases[i].verb);
    }
}

static void test_read_when_a_list_then_every_value_up_to_its_end(void **state)
{
    struct hps_error err = {0};
    struct hps_args line;
    const char *many[2 * HPS_ARG_LIST_MAX + 3];

    (void)state;
    assert_int_equal(
        read_line(&plain, LINE("-Xa=1", "--property", "b=2", "--property=c"), &line, &err), HPS_OK);
    assert_int_equal(got.list.n, 3);
    assert_string_equal(got.list.items[0], "a=1");
    assert_string_equal(got.list.items[1], "b=2");
    assert_string_equal(got.list.items[2], "c");
    for (size_t i = 0; i < 2 * HPS_ARG_LIST_MAX + 2; i++) {
        many[i] = i % 2 == 0 ? "-X" : "a=b";
    }
    many[2 * HPS_ARG_LIST_MAX + 2] = NULL;
    assert_int_equal(read_line(&plain, many, &line, &err), HPS_INVALID);
    assert_non_null(strstr(err.text, "--property \"a=b\": expected at most 64"));
}

/* ---- help ------------------------------------------------------------------------------------ */

static char printed[HELP_BYTES];

static const char *help_of(const struct hps_program *program, const struct hps_command *verb)
{
    FILE *out = fmemopen(printed, sizeof(printed), "w");

    assert_non_null(out);
    hps_args_help(program, verb, out);
    assert_int_equal(fclose(out), 0);
    return printed;
}

static void assert_has(const char *text, const char *part)
{
    if (strstr(text, part) == NULL) {
        fail_msg("no \"%s\" in:\n%s", part, text);
    }
}

static void test_help_when_of_a_program_then_verbs_and_wrapped_options(void **state)
{
    (void)state;
    const char *text = help_of(&with_verbs, NULL);
    assert_has(text, "usage: verbs VERB [WORD...] [option...]\n\nDo it\n");
    assert_has(
        text,
        "\nverbs (for details: verbs help VERB):\n  load     Load something\n  ping     Ask\n");
    assert_has(text, "\noptions of every verb:\n  -f, --flag ");
    assert_has(text, "\n  -n, --count N ");
    assert_has(text,
               "      --name NAME            a text whose help is so long that it has to be\n"
               "                             wrapped into a second line of the same column\n");
    assert_has(text,
               "      --type " LONG_CHOICES "\n                             a word of many\n");
    assert_has(text, "  -h, --help                 print this and exit\n");
    assert_has(text, "\nexit codes:\n  0 ok\n");
    for (const char *line = text; *line != '\0'; line += strcspn(line, "\n") + 1) {
        assert_true(strcspn(line, "\n") <= 80);
    }
}

static void test_help_when_of_a_verb_then_each_way_to_use_it_and_an_example(void **state)
{
    (void)state;
    const char *text = help_of(&with_verbs, &load);
    assert_has(text, "usage: verbs load MODEL --from DIR [option...]\n"
                     "       verbs load MODEL --config FILE [option...]\n\nLoad something\n");
    assert_has(text,
               "\noptions:\n      --version N  of what is loaded\n\noptions of every verb:\n");
    assert_has(text, "\nexample:\n  verbs load m --from d\n");
    assert_null(strstr(text, "ping"));
}

static void test_version_when_printed_then_name_and_parts(void **state)
{
    FILE *out = fmemopen(printed, sizeof(printed), "w");

    (void)state;
    assert_non_null(out);
    hps_args_version(&with_verbs, out);
    assert_int_equal(fclose(out), 0);
    assert_true(strncmp(printed, "verbs ", 6) == 0);
    assert_has(printed, ")\npart 7\n");
}

/* ---- values ---------------------------------------------------------------------------------- */

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
    assert_true(hps_args_key("9223372036854775808", &u));
    assert_true(u == UINT64_C(1) << 63);
    assert_true(hps_args_key("-1", &u));
    assert_true(u == UINT64_MAX);
    assert_false(hps_args_key("1x", &u));
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

static void test_ranges_when_one_does_not_hold_then_it_is_named(void **state)
{
    const struct hps_arg_range good[] = {{"keys", 1, 1, 5}, {"threads", 64, 1, 64}};
    const struct hps_arg_range bad[] = {{"keys", 5, 1, 5}, {"threads", 65, 1, 64}};
    struct hps_error err = {0};

    (void)state;
    assert_int_equal(hps_args_ranges(good, 2, &err), HPS_OK);
    assert_int_equal(hps_args_ranges(bad, 2, &err), HPS_INVALID);
    assert_string_equal(err.text, "--threads 65: expected 1 to 64");
}

static void test_choice_when_one_of_the_words_then_its_place(void **state)
{
    uint32_t index = 9;

    (void)state;
    assert_true(hps_args_choice("table|json", "table", &index));
    assert_int_equal(index, 0);
    assert_true(hps_args_choice("table|json", "json", &index));
    assert_int_equal(index, 1);
    assert_false(hps_args_choice("table|json", "jso", &index));
    assert_false(hps_args_choice("table|json", "", &index));
    assert_int_equal(index, 1);
}

static void test_hint_when_near_then_that_word(void **state)
{
    static const char *const words[] = {"ping", "status", "models", "tables", "log-level", NULL};
    char hint[HPS_ARGS_HINT_BYTES];

    (void)state;
    assert_string_equal(hps_args_hint("pong", words, "", hint), " (did you mean ping?)");
    assert_string_equal(hps_args_hint("stauts", words, "--", hint), " (did you mean --status?)");
    assert_string_equal(hps_args_hint("log", words, "", hint), " (did you mean log-level?)");
    assert_string_equal(hps_args_hint("frobnicate", words, "", hint), "");
    assert_string_equal(hps_args_hint("", words, "", hint), "");
    assert_string_equal(hps_args_hint_choice("pause", "resume|paus", hint),
                        " (did you mean paus?)");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_read_when_every_form_then_values),
        cmocka_unit_test(test_read_when_words_are_mixed_then_moved_to_front),
        cmocka_unit_test(test_read_when_wrong_then_what_was_given_and_what_is_expected),
        cmocka_unit_test(test_read_when_a_verb_is_named_then_its_options_and_words),
        cmocka_unit_test(test_read_when_help_is_asked_for_then_in_every_spelling),
        cmocka_unit_test(test_read_when_a_list_then_every_value_up_to_its_end),
        cmocka_unit_test(test_help_when_of_a_program_then_verbs_and_wrapped_options),
        cmocka_unit_test(test_help_when_of_a_verb_then_each_way_to_use_it_and_an_example),
        cmocka_unit_test(test_version_when_printed_then_name_and_parts),
        cmocka_unit_test(test_numbers_when_at_the_edges_then_exact),
        cmocka_unit_test(test_ranges_when_one_does_not_hold_then_it_is_named),
        cmocka_unit_test(test_choice_when_one_of_the_words_then_its_place),
        cmocka_unit_test(test_hint_when_near_then_that_word),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
