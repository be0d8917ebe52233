/* SPDX-License-Identifier: Apache-2.0
 *
 * A place means the same table in every version of a model.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/heap.h"
#include "server/load/source.h"
#include "server/load/table_order.h"

/* names: ends with NULL */
static struct hps_version *version_of(const char *const *names)
{
    uint32_t n = 0;
    while (names[n] != NULL) {
        n++;
    }
    struct hps_version *version = hps_version_new("m", 1, n);
    assert_non_null(version);
    for (uint32_t i = 0; i < n; i++) {
        version->tables[i].name = hps_strdup(names[i]);
    }
    return version;
}

#define VERSION(...) version_of((const char *const[]){__VA_ARGS__, NULL})

static const char *at(const struct hps_version *version, uint32_t place)
{
    uint32_t table = hps_version_table_at(version, place);
    return table == UINT32_MAX ? "" : version->tables[table].name;
}

static void test_apply_when_a_version_has_other_tables_then_places_stay(void **state)
{
    (void)state;
    struct hps_table_order order = {0};
    struct hps_version *first = VERSION("users", "items");
    struct hps_version *second = VERSION("extra", "items", "users");
    struct hps_version *third = VERSION("items", "last");
    assert_int_equal(hps_table_order_apply(&order, first), HPS_OK);
    assert_int_equal(hps_table_order_apply(&order, second), HPS_OK);
    assert_int_equal(hps_table_order_apply(&order, third), HPS_OK);
    assert_string_equal(at(first, 0), "users");
    assert_string_equal(at(first, 1), "items");
    assert_int_equal(first->n_places, 2);
    assert_string_equal(at(second, 0), "users");
    assert_string_equal(at(second, 1), "items");
    assert_string_equal(at(second, 2), "extra");
    assert_string_equal(at(third, 0), "");
    assert_string_equal(at(third, 1), "items");
    assert_string_equal(at(third, 2), "");
    assert_string_equal(at(third, 3), "last");
    assert_string_equal(at(third, 4), "");
    assert_int_equal(third->places[0], 1);
    hps_version_free(first);
    hps_version_free(second);
    hps_version_free(third);
    hps_table_order_free(&order);
}

static void test_add_when_there_are_many_then_each_is_found_once(void **state)
{
    (void)state;
    enum { N = 500 };
    struct hps_table_order order = {0}, copy = {0};
    char name[16];
    for (int round = 0; round < 2; round++) {
        for (uint32_t i = 0; i < N; i++) {
            snprintf(name, sizeof(name), "t%u", i * 7919 % N);
            assert_int_equal(hps_table_order_add(&order, name), HPS_OK);
        }
    }
    assert_int_equal(order.n, N);
    assert_int_equal(hps_table_order_copy(&order, &copy), HPS_OK);
    for (uint32_t i = 0; i < N; i++) {
        snprintf(name, sizeof(name), "t%u", i * 7919 % N);
        assert_int_equal(hps_table_order_find(&order, name), i);
        assert_int_equal(hps_table_order_find(&copy, name), i);
    }
    assert_int_equal(hps_table_order_find(&order, "t"), UINT32_MAX);
    hps_table_order_free(&order);
    hps_table_order_free(&copy);
}

static void test_sort_when_some_have_no_place_then_they_come_last_as_they_were(void **state)
{
    (void)state;
    static char z[] = "z", a[] = "a", y[] = "y", b[] = "b";
    struct hps_source_table tables[4] = {0};
    struct hps_source source = {.tables = tables, .n_tables = 4};
    struct hps_table_order order = {0};
    char *names[] = {z, a, y, b};
    for (int i = 0; i < 4; i++) {
        tables[i].files.name = names[i];
    }
    assert_int_equal(hps_table_order_add(&order, "b"), HPS_OK);
    assert_int_equal(hps_table_order_add(&order, "gone"), HPS_OK);
    assert_int_equal(hps_table_order_add(&order, "a"), HPS_OK);
    hps_source_sort(&source, &order);
    assert_string_equal(tables[0].files.name, "b");
    assert_string_equal(tables[1].files.name, "a");
    assert_string_equal(tables[2].files.name, "z");
    assert_string_equal(tables[3].files.name, "y");
    hps_table_order_free(&order);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_apply_when_a_version_has_other_tables_then_places_stay),
        cmocka_unit_test(test_add_when_there_are_many_then_each_is_found_once),
        cmocka_unit_test(test_sort_when_some_have_no_place_then_they_come_last_as_they_were),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
