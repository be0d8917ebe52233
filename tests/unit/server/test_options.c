/* SPDX-License-Identifier: Apache-2.0
 *
 * The command line of hpsd, and its state directory.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "server/options.h"
#include "server/state_dir.h"
#include "tests/lib/tmpdir.h"

static hps_status parse(struct hps_options *options, struct hps_error *err, const char *const *args)
{
    char *argv[16] = {(char *)"hpsd"};
    int argc = 1;
    while (*args != NULL) {
        argv[argc++] = (char *)*args++;
    }
    return hps_options_parse(argc, argv, options, err);
}

#define ARGS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void test_parse_when_both_spellings_then_same(void **state)
{
    (void)state;
    struct hps_options options;
    struct hps_error err;
    assert_int_equal(
        parse(&options, &err, ARGS("--config=a.json", "--listen", "x:1", "--listen=y:2")), HPS_OK);
    assert_string_equal(options.config_file, "a.json");
    assert_int_equal(options.flags.n_listen, 2);
    assert_string_equal(options.flags.listen[1], "y:2");
    assert_int_equal(
        parse(&options, &err, ARGS("--table", "a=b.npy", "--state-dir", "d", "--check")), HPS_OK);
    assert_int_equal(options.tables.n, 1);
    assert_string_equal(options.tables.items[0], "a=b.npy");
    assert_true(options.flags.check);
    assert_null(options.flags.listen); /* nothing of the command line before */
    assert_int_equal(options.args.ask, HPS_ARGS_RUN);
}

static void test_parse_when_wrong_then_error_names_it(void **state)
{
    (void)state;
    static const struct {
        const char *args[4];
        const char *expected;
    } cases[] = {
        {{"--confg", "x"}, "--confg: unknown option (did you mean --config?)"},
        {{"--tabel=a=b"}, "--tabel: unknown option (did you mean --table?)"},
        {{"--colour"}, "--colour: unknown option"},
        {{"stray"}, "stray: expected options alone"},
        {{"--config"}, "--config: got no value, expected FILE"},
        {{"--check=1"}, "--check \"1\": expected no value"},
        {{"--config=a", "--table=x=y"}, "--config and --table: expected one of them"},
        {{"--check"}, "no configuration: expected --config FILE or --table NAME=PATH"},
        {{"--"}, "no configuration"},
        {{"--config=a", "--export=d"}, "--export: removed; load the model files"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct hps_options options;
        struct hps_error err = {0};
        assert_int_equal(parse(&options, &err, cases[i].args), HPS_INVALID);
        if (strstr(err.text, cases[i].expected) != err.text) {
            fail_msg("\"%s\" does not begin with \"%s\"", err.text, cases[i].expected);
        }
    }
}

static void test_parse_when_help_or_version_is_asked_for_then_nothing_else_is_needed(void **state)
{
    (void)state;
    struct hps_options options;
    struct hps_error err;
    assert_int_equal(parse(&options, &err, ARGS("-h")), HPS_OK);
    assert_int_equal(options.args.ask, HPS_ARGS_HELP);
    assert_int_equal(parse(&options, &err, ARGS("--check", "--version")), HPS_OK);
    assert_int_equal(options.args.ask, HPS_ARGS_VERSION);
}

static void test_state_dir_when_open_twice_then_busy(void **state)
{
    (void)state;
    struct hps_tmpdir dir;
    struct hps_state_dir first, second;
    struct hps_error err;
    hps_tmpdir_open(&dir);
    const char *path = hps_tmpdir_join(&dir, "a/b");
    assert_int_equal(hps_state_dir_open(path, &first, &err), HPS_OK);
    assert_int_equal(hps_state_dir_open(path, &second, &err), HPS_BUSY);
    assert_non_null(strstr(err.text, "pid"));
    hps_state_dir_close(&first);
    assert_int_equal(hps_state_dir_open(path, &second, &err), HPS_OK);
    hps_state_dir_close(&second);
    hps_tmpdir_write(&dir, "file", "x", 1);
    assert_int_not_equal(hps_state_dir_open(hps_tmpdir_join(&dir, "file/x"), &first, &err), HPS_OK);
    hps_tmpdir_close(&dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse_when_both_spellings_then_same),
        cmocka_unit_test(test_parse_when_wrong_then_error_names_it),
        cmocka_unit_test(test_parse_when_help_or_version_is_asked_for_then_nothing_else_is_needed),
        cmocka_unit_test(test_state_dir_when_open_twice_then_busy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
