/* SPDX-License-Identifier: Apache-2.0
 *
 * JSON texts with the memory of the house. One thread.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "config/json.h"
#include "tests/lib/fault_heap.h"

static hps_status load(const char *text, json_t **out_json, json_error_t *out_error)
{
    return hps_json_load(text, strlen(text), 0, out_json, out_error);
}

static void test_json_when_legal_then_its_value(void **state)
{
    json_error_t error;
    json_t *json = NULL;

    (void)state;
    assert_int_equal(load("{\"a\": [1, 2]}", &json, &error), HPS_OK);
    assert_int_equal(json_array_size(json_object_get(json, "a")), 2);
    json_decref(json);
}

static void test_json_when_illegal_then_the_error_says_why(void **state)
{
    json_error_t error;
    json_t *json = NULL;

    (void)state;
    assert_int_equal(load("{\"a\": [1, 2}", &json, &error), HPS_INVALID);
    assert_non_null(strstr(error.text, "']' expected"));
    assert_int_equal(load("{\"a\": 1, \"\\u0061\": 2}", &json, &error), HPS_INVALID);
    assert_non_null(strstr(error.text, "duplicate"));
    assert_null(json);
}

/* An object of more members than its first table holds, one allocation after the other failing. */
static void load_large(void *ctx)
{
    json_error_t error;
    json_t *json = NULL;
    hps_status status = load(ctx, &json, &error);

    assert_true(status == HPS_OK || status == HPS_NO_MEMORY);
    if (status == HPS_OK) {
        assert_int_equal(json_object_size(json), 20);
    }
    json_decref(json);
}

static void test_json_when_memory_fails_then_no_member_is_missing(void **state)
{
    char text[512] = "{";

    (void)state;
    for (unsigned i = 0; i < 20; i++) {
        size_t size = strlen(text);
        (void)snprintf(text + size, sizeof(text) - size, "%s\"key%u\": %u", i == 0 ? "" : ",", i,
                       i);
    }
    (void)snprintf(text + strlen(text), sizeof(text) - strlen(text), "}");
    assert_true(hps_fault_heap_run(load_large, text) > 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json_when_legal_then_its_value),
        cmocka_unit_test(test_json_when_illegal_then_the_error_says_why),
        cmocka_unit_test(test_json_when_memory_fails_then_no_member_is_missing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
