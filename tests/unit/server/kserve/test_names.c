/* SPDX-License-Identifier: Apache-2.0
 *
 * Names of models in their two views, and texts that mean a version.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <string.h>
#include <cmocka.h>

#include "server/kserve/names.h"

static void test_tables_when_the_name_ends_so_then_the_model_is_what_is_before(void **state)
{
    static const struct {
        const char *name;
        bool by_table;
        size_t size;
    } cases[] = {{"dlrm.tables", true, 4}, {"dlrm", false, 4},          {"", false, 0},
                 {".tables", false, 7},    {"tables", false, 6},        {"m.tablesx", false, 9},
                 {"m.Tables", false, 8},   {"m.tables.tables", true, 8}};
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct kserve_text model = {cases[i].name, strlen(cases[i].name)};
        assert_int_equal(kserve_take_tables(&model), cases[i].by_table);
        assert_int_equal(model.size, cases[i].size);
        assert_ptr_equal(model.at, cases[i].name);
    }
    struct kserve_text none = {NULL, 0};
    assert_false(kserve_take_tables(&none));
}

static void test_version_when_digits_then_a_number_else_a_label_or_nothing(void **state)
{
    static const struct {
        const char *text;
        int64_t number;
        bool is_label;
    } cases[] = {{"", 0, false},       {"1", 1, false},
                 {"007", 7, false},    {"9223372036854775807", INT64_MAX, false},
                 {"nightly", 0, true}, {"1.5", 0, true},
                 {"-", 0, true},       {"-x", 0, true},
                 {"0", 0, true},       {"00", 0, true},
                 {" 1", 0, true},      {"1\n", 0, true}};
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct kserve_text text = {cases[i].text, strlen(cases[i].text)};
        struct kserve_version version;
        assert_int_equal(kserve_version_read(text, &version, NULL), HPS_OK);
        assert_int_equal(version.number, cases[i].number);
        assert_int_equal(version.label.size, cases[i].is_label ? text.size : 0);
    }
}

static void test_version_when_no_version_has_the_number_then_invalid(void **state)
{
    static const char *const texts[] = {"-1", "-0", "9223372036854775808",
                                        "99999999999999999999999999"};
    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        const struct kserve_text text = {texts[i], strlen(texts[i])};
        struct kserve_version version;
        struct hps_error err;
        assert_int_equal(kserve_version_read(text, &version, &err), HPS_INVALID);
        assert_non_null(strstr(err.text, "model_version"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tables_when_the_name_ends_so_then_the_model_is_what_is_before),
        cmocka_unit_test(test_version_when_digits_then_a_number_else_a_label_or_nothing),
        cmocka_unit_test(test_version_when_no_version_has_the_number_then_invalid),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
