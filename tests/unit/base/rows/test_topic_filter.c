/* SPDX-License-Identifier: Apache-2.0 */
#include "base/rows/topic_filter.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void test_topic_when_it_is_not_the_models_then_no_filter_lets_it_through(void **state)
{
    (void)state;
    struct hps_topic_filters *filters = NULL;
    struct hps_error err = {0};
    const char *all = ".*";
    const char *others[] = {"",           "hps_et.",     "hps_et.dlrm.", "hps_et.dlrm2.items",
                            "hps_et.dlr", "hps_etdlrm.", "dlrm.items",   "hps_et.wide.dlrm",
                            "hps_et",     "dlrm"};
    for (uint32_t n = 0; n < 2; n++) {
        assert_int_equal(hps_topic_filters_new(&all, n, &filters, &err), HPS_OK);
        for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
            assert_false(hps_topic_filters_match(filters, others[i], "dlrm"));
        }
        assert_true(hps_topic_filters_match(filters, "hps_et.dlrm.items", "dlrm"));
        assert_true(hps_topic_filters_match(filters, "hps_et.dlrm", "dlrm"));
        hps_topic_filters_free(filters);
    }
}

/* Does the one filter let the topic of that model through? */
static bool passes(const char *filter, const char *topic, const char *model)
{
    struct hps_topic_filters *filters = NULL;
    struct hps_error err = {0};
    assert_int_equal(hps_topic_filters_new(&filter, 1, &filters, &err), HPS_OK);
    bool pass = hps_topic_filters_match(filters, topic, model);
    hps_topic_filters_free(filters);
    return pass;
}

static void test_filter_when_it_is_hps_default_then_every_topic_passes(void **state)
{
    (void)state;
    assert_true(passes("^hps_.+$", "hps_et.dlrm.items", "dlrm"));
    assert_true(passes("^hps_.+$", "hps_et.dlrm", "dlrm"));
}

static void test_filter_when_it_worked_in_hps_then_it_works(void **state)
{
    (void)state;
    assert_true(passes(".+", "hps_et.dlrm.items", "dlrm"));
    assert_true(passes("dlrm", "hps_et.dlrm.items", "dlrm"));
    assert_true(passes("dl.*", "hps_et.dlrm.items", "dlrm"));
    assert_false(passes("dlrm", "hps_et.dlrm2.items", "dlrm2"));
    assert_false(passes("lrm", "hps_et.dlrm.items", "dlrm"));
    assert_false(passes("items", "hps_et.dlrm.items", "dlrm"));
    assert_true(passes("[]*]*d(l|r)+m{1}\\*?", "hps_et.dlrm.items", "dlrm"));
    assert_true(passes("[[:alpha:]|*]+", "hps_et.dlrm.items", "dlrm"));
    assert_true(passes("[^[.].]|+]\\w+", "hps_et.dlrm.items", "dlrm"));
}

static void test_filter_when_it_has_alternatives_then_each_is_anchored(void **state)
{
    (void)state;
    assert_true(passes("wide|dlrm", "hps_et.dlrm.items", "dlrm"));
    assert_false(passes("wide|dlrm", "hps_et.dlrm2.items", "dlrm2"));
    assert_false(passes("wide|dlrm", "hps_et.mywide.items", "mywide"));
    assert_true(passes("hps_et\\.dlrm\\.items", "hps_et.dlrm.items", "dlrm"));
    assert_false(passes("hps_et\\.dlrm\\.items", "hps_et.dlrm.users", "dlrm"));
}

static void test_filters_when_there_are_several_then_one_is_enough_and_none_is_all(void **state)
{
    (void)state;
    struct hps_topic_filters *filters = NULL;
    struct hps_error err = {0};
    const char *two[] = {"a", "b"};
    assert_int_equal(hps_topic_filters_new(two, 2, &filters, &err), HPS_OK);
    assert_true(hps_topic_filters_match(filters, "hps_et.b.t", "b"));
    assert_false(hps_topic_filters_match(filters, "hps_et.c.t", "c"));
    hps_topic_filters_free(filters);
    assert_int_equal(hps_topic_filters_new(NULL, 0, &filters, &err), HPS_OK);
    assert_true(hps_topic_filters_match(filters, "hps_et.c.t", "c"));
    hps_topic_filters_free(filters);
}

static void test_filter_when_it_is_malformed_then_the_error_names_it(void **state)
{
    (void)state;
    const char *wrong[] = {"a(",  "a)(b", "[z",      "a{2", "*",        "a|*",
                           "(+)", "^?a",  "[*]|{2}", "",    "dlrm\\d+", "[[:alpha:]|]|+"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct hps_topic_filters *filters = NULL;
        struct hps_error err = {0};
        const char *both[] = {"fine", wrong[i]};
        assert_int_equal(hps_topic_filters_new(both, 2, &filters, &err), HPS_INVALID);
        assert_non_null(strstr(err.text, wrong[i]));
        assert_null(filters);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_topic_when_it_is_not_the_models_then_no_filter_lets_it_through),
        cmocka_unit_test(test_filter_when_it_is_hps_default_then_every_topic_passes),
        cmocka_unit_test(test_filter_when_it_worked_in_hps_then_it_works),
        cmocka_unit_test(test_filter_when_it_has_alternatives_then_each_is_anchored),
        cmocka_unit_test(test_filters_when_there_are_several_then_one_is_enough_and_none_is_all),
        cmocka_unit_test(test_filter_when_it_is_malformed_then_the_error_names_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
