/* SPDX-License-Identifier: Apache-2.0
 *
 * What two versions differ in, and what of it speaks against a switch.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/heap.h"
#include "server/catalog/version_diff.h"

struct table {
    const char *name;
    uint32_t dim;
    uint64_t n_rows;
};

static struct hps_version *version_of(const struct table *tables, uint32_t n)
{
    struct hps_version *version = hps_version_new("m", 1, n);
    assert_non_null(version);
    for (uint32_t i = 0; i < n; i++) {
        version->tables[i].name = hps_strdup(tables[i].name);
        version->tables[i].dim = tables[i].dim;
        version->tables[i].dtype = HPS_DTYPE_FP32;
        version->tables[i].n_rows = tables[i].n_rows;
    }
    return version;
}

static const struct table usual[] = {{"users", 4, 100}, {"items", 8, 200000}};

/* Status of the check of `tables` after the usual ones; err: its text. */
static hps_status check(const struct table *tables, uint32_t n, double rows_loss_max,
                        struct hps_error *err)
{
    struct hps_version *before = version_of(usual, 2), *after = version_of(tables, n);
    struct hps_version_diff diff = {0};
    assert_int_equal(hps_version_diff(before, after, &diff), HPS_OK);
    hps_status status = hps_version_diff_check(&diff, rows_loss_max, err);
    hps_version_diff_free(&diff);
    hps_version_free(before);
    hps_version_free(after);
    return status;
}

static void test_diff_when_tables_differ_then_each_is_told(void **state)
{
    (void)state;
    const struct table next[] = {{"items", 16, 5}, {"extra", 2, 7}};
    struct hps_version *before = version_of(usual, 2), *after = version_of(next, 2);
    struct hps_version_diff diff = {0};
    assert_int_equal(hps_version_diff(before, after, &diff), HPS_OK);
    assert_int_equal(diff.n_tables, 3);
    assert_string_equal(diff.tables[0].table, "users");
    assert_int_equal(diff.tables[0].dim_after, 0);
    assert_int_equal(diff.tables[0].n_rows_before, 100);
    assert_string_equal(diff.tables[1].table, "items");
    assert_int_equal(diff.tables[1].dim_before, 8);
    assert_int_equal(diff.tables[1].dim_after, 16);
    assert_int_equal(diff.tables[1].n_rows_after, 5);
    assert_string_equal(diff.tables[2].table, "extra");
    assert_int_equal(diff.tables[2].dim_before, 0);
    assert_int_equal(diff.tables[2].n_rows_after, 7);
    hps_version_diff_free(&diff);
    hps_version_free(before);
    hps_version_free(after);
}

static void test_check_when_a_type_changes_then_told_and_fine(void **state)
{
    (void)state;
    struct hps_version *before = version_of(usual, 2), *after = version_of(usual, 2);
    struct hps_version_diff diff = {0};
    struct hps_error err = {0};
    after->tables[1].dtype = HPS_DTYPE_INT8_ROWWISE_F16;
    assert_int_equal(hps_version_diff(before, after, &diff), HPS_OK);
    assert_int_equal(diff.n_tables, 1);
    assert_string_equal(diff.tables[0].table, "items");
    assert_int_equal(diff.tables[0].dtype_before, HPS_DTYPE_FP32);
    assert_int_equal(diff.tables[0].dtype_after, HPS_DTYPE_INT8_ROWWISE_F16);
    assert_int_equal(hps_version_diff_check(&diff, 0, &err), HPS_OK);
    hps_version_diff_free(&diff);
    hps_version_free(before);
    hps_version_free(after);
}

static void test_check_when_nothing_much_changes_then_fine(void **state)
{
    (void)state;
    const struct table other_order[] = {{"items", 8, 200000}, {"users", 4, 100}};
    const struct table fewer[] = {{"users", 4, 50}, {"items", 8, 400000}};
    struct hps_error err = {0};
    assert_int_equal(check(other_order, 2, 0, &err), HPS_OK);
    assert_int_equal(check(fewer, 2, 0.5, &err), HPS_OK);
}

static void test_check_when_too_much_changes_then_refused_and_named(void **state)
{
    (void)state;
    const struct table gone[] = {{"users", 4, 100}};
    const struct table more[] = {{"users", 4, 100}, {"items", 8, 200000}, {"extra", 2, 7}};
    const struct table wide[] = {{"users", 5, 100}, {"items", 8, 200000}};
    const struct table lost[] = {{"users", 4, 49}, {"items", 8, 200000}};
    struct hps_error err = {0};
    assert_int_equal(check(gone, 1, 1, &err), HPS_PRECONDITION);
    assert_non_null(strstr(err.text, "\"items\" is gone"));
    assert_int_equal(check(more, 3, 1, &err), HPS_PRECONDITION);
    assert_non_null(strstr(err.text, "\"extra\" is new"));
    assert_int_equal(check(wide, 2, 1, &err), HPS_PRECONDITION);
    assert_non_null(strstr(err.text, "width 5, was 4"));
    assert_int_equal(check(lost, 2, 0.5, &err), HPS_PRECONDITION);
    assert_non_null(strstr(err.text, "49 rows, were 100"));
    assert_int_equal(check(lost, 2, 0.6, &err), HPS_OK);
    assert_int_equal(check(lost, 2, 0, &err), HPS_PRECONDITION);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_diff_when_tables_differ_then_each_is_told),
        cmocka_unit_test(test_check_when_a_type_changes_then_told_and_fine),
        cmocka_unit_test(test_check_when_nothing_much_changes_then_fine),
        cmocka_unit_test(test_check_when_too_much_changes_then_refused_and_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
