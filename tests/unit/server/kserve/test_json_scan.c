/* SPDX-License-Identifier: Apache-2.0
 *
 * The JSON of a request, cut into its head and the values of its tensors. One thread.
 */
#include "server/kserve/json_scan.h"
#include "tests/unit/server/kserve/kserve_test.h"

static const struct hps_decode_limits LIMITS = {.tables_max = 2}; /* 14 inputs and outputs */

static struct kserve_json json;

static hps_status scan_bytes(const void *text, size_t size)
{
    kserve_json_fini(&json);
    return kserve_json_scan(in_block(text, size), &LIMITS, &json, &err);
}

static hps_status scan(const char *text)
{
    return scan_bytes(text, strlen(text));
}

static int fini(void **state)
{
    kserve_json_fini(&json);
    return teardown(state);
}

static void assert_head(const char *expected)
{
    assert_text((struct kserve_text){(const char *)json.head.data, json.head.size}, expected);
}

static void assert_data(size_t n, size_t i, uint64_t input, const char *expected)
{
    size_t n_data;
    const struct kserve_json_data *data = kserve_json_data(&json, &n_data);

    assert_int_equal(n_data, n);
    assert_int_equal(data[i].input, input);
    assert_text(data[i].text, expected);
}

static void test_scan_when_there_is_data_then_it_is_not_in_the_head(void **state)
{
    (void)state;
    assert_int_equal(scan("{\"inputs\":[{\"data\":[1, [2\n]],\"name\":\"a\"},{\"name\":\"b\"},"
                          "{\"shape\":[3],\"data\" : [ ]}],\"id\":\"x\"}"),
                     HPS_OK);
    assert_head(" {\"inputs\":[{\"data\":null,\"name\":\"a\"},{\"name\":\"b\"},"
                "{\"shape\":[3],\"data\" : null}],\"id\":\"x\"}");
    assert_data(2, 0, 0, "[1, [2\n]]");
    assert_data(2, 1, 2, "[ ]");
}

static void test_scan_when_a_key_is_escaped_then_it_is_the_same_key(void **state)
{
    (void)state;
    assert_int_equal(scan("{\"\\u0069nput\\u0073\":[{\"d\\u0061\\u0074\\u0061\":[1]}]}"), HPS_OK);
    assert_data(1, 0, 0, "[1]");
    assert_int_equal(scan("{\"inputs\":[{\"dat\\u006A\":[1],\"dat\\u00\":[1],\"data\\u0061\":[1],"
                          "\"dat\":[1],\"\":[1],\"dat\\u006g\":[1]}]}"),
                     HPS_OK);
    assert_int_equal(json.data.size, 0);
}

static void test_scan_when_data_is_of_something_else_then_it_stays(void **state)
{
    static const char *const texts[] = {
        " {\"data\":[1]}",
        " [{\"data\":[1]}]",
        " {\"outputs\":[{\"data\":[1]}]}",
        " {\"inputs\":{\"data\":[1]}}",
        " {\"inputs\":[[{\"data\":[1]}]]}",
        " {\"inputs\":[{\"parameters\":{\"data\":[1]}}]}",
        " {\"inputs\":[{\"data\":\"[1]\"}]}",
        " {\"inputs\":[{\"data\":{\"data\":[1]}}]}",
        " {\"a\":{\"inputs\":[{\"data\":[1]}]}}",
        " {\"inputs\":[\"data\",[1]]}",
    };

    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        assert_int_equal(scan(texts[i] + 1), HPS_OK);
        assert_int_equal(json.data.size, 0);
        assert_head(texts[i]);
    }
}

static void test_scan_when_text_has_brackets_in_strings_then_they_close_nothing(void **state)
{
    (void)state;
    assert_int_equal(scan("{\"inputs\":[{\"data\":[\"]\", \"\\\"]\", 1]}],\"a\":\"}]\\\\\"}"),
                     HPS_OK);
    assert_data(1, 0, 0, "[\"]\", \"\\\"]\", 1]");
    assert_head(" {\"inputs\":[{\"data\":null}],\"a\":\"}]\\\\\"}");
}

static void test_scan_when_text_is_no_json_then_it_becomes_none(void **state)
{
    (void)state;
    assert_int_equal(scan("1  2"), HPS_OK);
    assert_head(" 1 2"); /* not 12 */
    assert_int_equal(scan("{\"a\" \"b\", tru\x01 ,,}"), HPS_OK);
    assert_head(" {\"a\" \"b\", tru\x01 ,,}");
    assert_int_equal(scan("{} \n"), HPS_OK);
    assert_int_equal(scan("{} \x03\x01"), HPS_INVALID);
    assert_says("ends, but 2 bytes follow it; where tensors follow, the header "
                "Inference-Header-Content-Length is");
    assert_int_equal(scan_bytes("a\0b", 3), HPS_OK);
    assert_int_equal(json.head.size, 4);
    assert_int_equal(scan("]"), HPS_INVALID);
    assert_says("']' closes nothing");
    assert_int_equal(scan("{]"), HPS_INVALID);
    assert_int_equal(scan("[[1]"), HPS_INVALID);
    assert_says("an array that is not closed");
    assert_int_equal(scan("{\"inputs\":[0, {\"shape\":[1, 2"), HPS_INVALID);
    assert_says("inputs[1].shape[1]: the JSON of the request: an array that is not closed");
    assert_int_equal(scan("{\"a\":{}"), HPS_INVALID);
    assert_says("an object that is not closed");
    assert_int_equal(scan("[\"a"), HPS_INVALID);
    assert_int_equal(scan("[\"a\\"), HPS_INVALID);
    assert_says("a string that is not closed");
    assert_int_equal(scan("{\"inputs\":[{\"data\":[[1]"), HPS_INVALID);
    assert_says("\"data\" that is not closed");
    assert_int_equal(scan("{\"inputs\":[{\"data\":[\"]"), HPS_INVALID);
    assert_int_equal(scan(""), HPS_OK);
    assert_head(" ");
}

/* `before`, n times `repeated` with commas, `behind`. */
static hps_status scan_repeated(const char *before, size_t n, const char *repeated,
                                const char *behind)
{
    struct hps_buf text;

    hps_buf_init(&text, 1 << 24);
    assert_int_equal(hps_buf_append(&text, before, strlen(before)), HPS_OK);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(hps_buf_printf(&text, i == 0 ? "%s" : ",%s", repeated), HPS_OK);
    }
    assert_int_equal(hps_buf_append(&text, behind, strlen(behind)), HPS_OK);
    hps_status status = scan_bytes(text.data, text.size);
    hps_buf_fini(&text);
    return status;
}

static void test_scan_when_a_limit_is_passed_then_refused_before_memory_is_taken(void **state)
{
    (void)state;
    assert_int_equal(scan_repeated("{\"inputs\":[", 14, "{}", "]}"), HPS_OK);
    assert_int_equal(scan_repeated("{\"inputs\":[", 15, "{}", "]}"), HPS_INVALID);
    assert_says("more than 14 inputs");
    assert_int_equal(scan_repeated("{\"outputs\":[", 1000000, "{\"name\":\"a\"}", "]}"),
                     HPS_INVALID);
    assert_says("more than 14 outputs");
    assert_true(json.head.capacity < 1024);
    assert_int_equal(scan_repeated("{\"mine\":[", 1024 + 24 * 14 - 2, "1", "]}"), HPS_OK);
    assert_int_equal(scan_repeated("{\"mine\":[", 1024 + 24 * 14 - 1, "1", "]}"), HPS_INVALID);
    assert_says("more than 1360 values outside of tensors");
    assert_int_equal(scan("[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]"), HPS_OK);
    assert_int_equal(scan("[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]"), HPS_INVALID);
    assert_says("nested more than 16 deep");
    assert_int_equal(scan_repeated("[\"", KSERVE_JSON_HEAD_BYTES_MAX / 2 - 2, "a", "\"]"), HPS_OK);
    assert_int_equal(scan_repeated("[\"", KSERVE_JSON_HEAD_BYTES_MAX / 2, "a", "\"]"), HPS_INVALID);
    assert_says("more than 1048576 bytes without the values of tensors");
}

static void test_scan_when_values_are_many_then_no_limit_of_the_head_holds_for_them(void **state)
{
    (void)state;
    assert_int_equal(scan_repeated("{\"inputs\":[{\"data\":[", 2000000, "1", "]}]}"), HPS_OK);
    assert_true(json.head.size < 100);
}

int main(void)
{
#define SCAN_TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, fini)
    const struct CMUnitTest tests[] = {
        SCAN_TEST(test_scan_when_there_is_data_then_it_is_not_in_the_head),
        SCAN_TEST(test_scan_when_a_key_is_escaped_then_it_is_the_same_key),
        SCAN_TEST(test_scan_when_data_is_of_something_else_then_it_stays),
        SCAN_TEST(test_scan_when_text_has_brackets_in_strings_then_they_close_nothing),
        SCAN_TEST(test_scan_when_text_is_no_json_then_it_becomes_none),
        SCAN_TEST(test_scan_when_a_limit_is_passed_then_refused_before_memory_is_taken),
        SCAN_TEST(test_scan_when_values_are_many_then_no_limit_of_the_head_holds_for_them),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
