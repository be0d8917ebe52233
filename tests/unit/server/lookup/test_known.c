/* SPDX-License-Identifier: Apache-2.0
 *
 * Names appended to an error text, as many as fit. test_model.py tests names of models, which
 * depend on the client.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/heap.h"
#include "server/lookup/known.h"

/* A version with tables "PREFIX0", "PREFIX1", ... The place before the last one has no table. */
static struct hps_version *version_of(const char *prefix, uint32_t n)
{
    char name[200];
    uint32_t places[64];
    struct hps_version *version = hps_version_new("m", 1, n);
    assert_non_null(version);
    for (uint32_t i = 0; i < n; i++) {
        snprintf(name, sizeof(name), "%s%u", prefix, i);
        version->tables[i].name = hps_strdup(name);
        places[i] = i + 1 == n ? n : n - 2 - i; /* not the order of the tables */
    }
    assert_int_equal(hps_version_set_places(version, places, n + 1), HPS_OK);
    return version;
}

static void test_tables_when_all_names_fit_then_all_in_the_order_of_the_model(void **state)
{
    (void)state;
    struct hps_error err;
    struct hps_version *version = version_of("t", 4);
    hps_ignore(hps_error_set(&err, HPS_NOT_FOUND, "no such table"));
    hps_known_tables(version, &err);
    assert_int_equal(err.status, HPS_NOT_FOUND);
    assert_string_equal(err.text, "no such table; its tables: t2, t1, t0, t3");
    hps_version_free(version);
}

static void test_tables_when_not_all_names_fit_then_the_first_ones(void **state)
{
    (void)state;
    struct hps_error err;
    struct hps_version *version =
        version_of("a_name_that_is_rather_long_for_a_table_and_still_allowed_", 40);
    hps_ignore(hps_error_set(&err, HPS_NOT_FOUND, "no such table"));
    hps_known_tables(version, &err);
    assert_non_null(strstr(err.text, "allowed_38, a_name"));
    assert_string_equal(err.text + strlen(err.text) - 5, ", ...");
    assert_true(strlen(err.text) < 300);
    hps_version_free(version);
}

static void test_tables_when_the_version_has_none_then_no_text_is_added(void **state)
{
    (void)state;
    struct hps_error err;
    struct hps_version *version = hps_version_new("m", 1, 0);
    assert_non_null(version);
    hps_ignore(hps_error_set(&err, HPS_NOT_FOUND, "no such table"));
    hps_known_tables(version, &err);
    assert_string_equal(err.text, "no such table");
    hps_version_free(version);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tables_when_all_names_fit_then_all_in_the_order_of_the_model),
        cmocka_unit_test(test_tables_when_not_all_names_fit_then_the_first_ones),
        cmocka_unit_test(test_tables_when_the_version_has_none_then_no_text_is_added),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
