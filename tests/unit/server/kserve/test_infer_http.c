/* SPDX-License-Identifier: Apache-2.0
 *
 * Bodies of infer requests. Bodies of stock clients are accepted; wrong sizes, duplicate names
 * and unsupported features are refused by name. One thread.
 */
#include "tests/lib/fault_heap.h"
#include "tests/unit/server/kserve/kserve_test.h"

static const struct hps_decode_limits LIMITS = {
    .tables_max = 4, .keys_max = 10, .request_id_max = 16};

static struct kserve_infer got;

static hps_status read_body(const void *text, size_t size, size_t json_size)
{
    struct kserve_text at = in_block(text, size);

    got = (struct kserve_infer){.model = {"m", 1}, .model_version = {"7", 1}};
    return kserve_infer_http((const uint8_t *)at.at, at.size, json_size, &LIMITS, arena, &got,
                             &err);
}

static hps_status read_json(const char *json)
{
    return read_body(json, strlen(json), SIZE_MAX);
}

/* JSON followed by raw bytes. */
static hps_status read_mixed(const char *json, const void *raw, size_t raw_size)
{
    char text[4096];
    size_t size = strlen(json);

    assert_true(size + raw_size <= sizeof(text));
    memcpy(text, json, size);
    memcpy(text + size, raw, raw_size);
    return read_body(text, size + raw_size, size);
}

static void assert_refused(const char *json, const char *says)
{
    assert_int_equal(read_json(json), HPS_INVALID);
    assert_says(says);
    assert_int_equal(got.n_inputs, 0); /* the result is empty */
}

static const uint8_t RAW[40] = {1, 0, 0,   0,   0,   0,   0,   0,   2,   0,   0, 0, 0, 0,
                                0, 0, 255, 255, 255, 255, 255, 255, 255, 255, 4, 0, 0, 0,
                                0, 0, 0,   0,   1,   0,   0,   0,   3,   0,   0, 0};

static void test_body_when_a_stock_client_sends_raw_tensors_then_they_are_not_copied(void **state)
{
    static const char json[] =
        "{\"id\":\"r-1\",\"inputs\":[{\"name\":\"KEYS\",\"shape\":[1,4],\"datatype\":\"INT64\","
        "\"parameters\":{\"binary_data_size\":32}},{\"name\":\"NUMKEYS\",\"shape\":[1,2],"
        "\"datatype\":\"INT32\",\"parameters\":{\"binary_data_size\":8}}],"
        "\"outputs\":[{\"name\":\"OUTPUT0\",\"parameters\":{\"binary_data\":true}}]}";

    (void)state;
    assert_int_equal(read_mixed(json, RAW, sizeof(RAW)), HPS_OK);
    assert_text(got.model, "m");
    assert_text(got.model_version, "7");
    assert_text(got.id, "r-1");
    assert_int_equal(got.n_inputs, 2);
    assert_text(got.inputs[0].name, "KEYS");
    assert_int_equal(got.inputs[0].datatype, KSERVE_INT64);
    assert_int_equal(got.inputs[0].n_dims, 2);
    assert_int_equal(got.inputs[0].shape[0], 1);
    assert_int_equal(got.inputs[0].shape[1], 4);
    assert_ptr_equal(got.inputs[0].data, body + sizeof(json) - 1); /* not copied */
    assert_int_equal(got.inputs[0].size, 32);
    assert_text(got.inputs[1].name, "NUMKEYS");
    assert_int_equal(got.inputs[1].datatype, KSERVE_INT32);
    assert_ptr_equal(got.inputs[1].data, body + sizeof(json) - 1 + 32);
    assert_int_equal(got.n_outputs, 1);
    assert_text(got.outputs[0].name, "OUTPUT0");
    assert_true(got.outputs[0].binary);
    assert_false(got.binary);
    assert_int_equal(got.wait_us_max, -1);
}

static void test_body_when_json_and_raw_are_mixed_then_raw_ones_follow_in_their_order(void **state)
{
    static const char json[] =
        "{\"inputs\":["
        "{\"name\":\"a\",\"shape\":[1],\"datatype\":\"INT64\",\"parameters\":{\"binary_data_size\":"
        "8}},"
        "{\"name\":\"b\",\"shape\":[2],\"datatype\":\"INT64\",\"data\":[5,-6]},"
        "{\"name\":\"c\",\"shape\":[0],\"datatype\":\"FP32\",\"parameters\":{\"binary_data_size\":"
        "0}},"
        "{\"data\":[[1],[0.5]],\"name\":\"d\",\"shape\":[2,1],\"datatype\":\"FP32\"},"
        "{\"name\":\"e\",\"shape\":[2],\"datatype\":\"INT32\",\"parameters\":{\"binary_data_size\":"
        "8}}"
        "],\"parameters\":{\"binary_data_output\":true}}";

    (void)state;
    assert_int_equal(read_mixed(json, RAW, 16), HPS_OK);
    assert_int_equal(got.n_inputs, 5);
    assert_ptr_equal(got.inputs[0].data, body + sizeof(json) - 1);
    assert_memory_equal(got.inputs[1].data, ((int64_t[]){5, -6}), 16);
    assert_int_equal(got.inputs[2].size, 0);
    assert_null(got.inputs[2].data);
    assert_memory_equal(got.inputs[3].data, ((float[]){1, 0.5F}), 8);
    assert_ptr_equal(got.inputs[4].data, body + sizeof(json) - 1 + 8);
    assert_true(got.binary);
    assert_int_equal(got.n_outputs, 0);
}

static void test_body_when_it_has_parameters_then_they_are_used(void **state)
{
    (void)state;
    assert_int_equal(
        read_json("{\"inputs\":[],\"parameters\":{\"timeout\":1500,\"hps_miss_policy\":\"wait\","
                  "\"hps_max_wait_us\":20,\"hps_output_type\":\"FP16\",\"hps_pooling\":\"sum\","
                  "\"sequence_id\":\"x\",\"priority\":1,\"mine\":[1,{}],"
                  "\"triton_enable_empty_final_response\":true},\"unknown\":{\"a\":[1,2]}}"),
        HPS_OK);
    assert_int_equal(got.timeout_us, 1500);
    assert_text(got.miss_policy, "wait");
    assert_int_equal(got.wait_us_max, 20);
    assert_text(got.output_type, "FP16");
    assert_text(got.pooling, "sum");
    assert_refused("{\"inputs\":[],\"parameters\":{\"timeout\":1.5}}",
                   "'timeout' is not an integer");
    assert_refused("{\"inputs\":[],\"parameters\":{\"hps_x\":1}}", "'hps_x' is unknown");
    assert_refused("{\"inputs\":[],\"parameters\":{\"triton_x\":1}}", "reserved");
    assert_refused("{\"inputs\":[],\"parameters\":{\"binary_data_output\":1}}",
                   "parameters.binary_data_output: expected true or false");
    assert_refused("{\"inputs\":[],\"parameters\":[]}", "parameters: expected an object");
}

static void test_body_when_optional_members_are_null_then_like_missing_ones(void **state)
{
    (void)state;
    assert_int_equal(read_json("{\"id\":null,\"parameters\":null,\"outputs\":null,\"inputs\":[{"
                               "\"name\":\"a\",\"shape\":[1],\"datatype\":\"INT64\","
                               "\"data\":[5],\"parameters\":null}]}"),
                     HPS_OK);
    assert_int_equal(got.id.size, 0);
    assert_int_equal(got.n_outputs, 0);
    assert_int_equal(got.n_inputs, 1);
    assert_int_equal(read_json("{\"inputs\":[],\"outputs\":[{\"name\":\"a\","
                               "\"parameters\":null}]}"),
                     HPS_OK);
    assert_int_equal(got.n_outputs, 1);
}

static void test_body_when_outputs_have_no_parameters_then_the_requests_apply(void **state)
{
    (void)state;
    assert_int_equal(
        read_json("{\"inputs\":[],\"outputs\":[{\"name\":\"a\"},{\"name\":\"b\",\"parameters\":"
                  "{\"binary_data\":false}}],\"parameters\":{\"binary_data_output\":true}}"),
        HPS_OK);
    assert_true(got.outputs[0].binary);
    assert_false(got.outputs[1].binary);
    assert_int_equal(read_json("{\"inputs\":[],\"outputs\":[{\"name\":\"a\"}]}"), HPS_OK);
    assert_false(got.outputs[0].binary);
}

/* ---- wrong sizes ----------------------------------------------------------------------------- */

#define KEYS(shape, size)                                                         \
    "{\"inputs\":[{\"name\":\"KEYS\",\"shape\":" shape ",\"datatype\":\"INT64\"," \
    "\"parameters\":{\"binary_data_size\":" size "}}]}"

static void assert_mixed_refused(const char *json, size_t raw_size, const char *says)
{
    assert_int_equal(read_mixed(json, RAW, raw_size), HPS_INVALID);
    assert_says(says);
}

static void test_body_when_sizes_do_not_add_up_then_refused_by_name(void **state)
{
    (void)state;
    assert_int_equal(read_mixed(KEYS("[2]", "16"), RAW, 16), HPS_OK);
    assert_mixed_refused(KEYS("[2]", "16"), 15,
                         "input 'KEYS': binary_data_size: 16, but of the 15 bytes after the JSON "
                         "only 15 are left");
    assert_mixed_refused(KEYS("[2]", "16"), 17,
                         "1 of the 17 bytes after the JSON belong to no input");
    assert_mixed_refused(KEYS("[2]", "8"), 8, "got 8 bytes, but 2 values of INT64 have");
    assert_mixed_refused(KEYS("[2]", "-16"), 16, "binary_data_size: expected an integer of 0");
    assert_mixed_refused(KEYS("[2]", "16.0"), 16, "binary_data_size: expected an integer of 0");
    assert_mixed_refused(KEYS("[2]", "\"16\""), 16, "binary_data_size: expected an integer of 0");
    assert_mixed_refused(KEYS("[2]", "9223372036854775807"), 16, "only 16 are left");
    assert_mixed_refused(KEYS("[2]", "18446744073709551616"), 16, "too big integer");
    assert_mixed_refused(KEYS("[2305843009213693952]", "0"), 0, "shape[0] is 2305843009213693952");
    assert_mixed_refused(KEYS("[2147483647,2147483647]", "16"), 16, "values or more");
    assert_mixed_refused(KEYS("[-1]", "16"), 16, "shape[0] is -1");
    assert_mixed_refused(KEYS("[\"2\"]", "16"), 16, "shape[0]: wrong type");
    assert_mixed_refused(KEYS("[2.0]", "16"), 16, "shape[0]: wrong type");
    assert_mixed_refused(KEYS("2", "16"), 16, "shape: wrong type");
    assert_mixed_refused(KEYS("[1,1,1,1,1,1,1,1,2]", "16"), 16, "shape: 9 dimensions, limit is 8");
    assert_refused(KEYS("[2]", "16"), "input 'KEYS': binary_data_size: 16, but without the header "
                                      "Inference-Header-Content-Length the whole body");
}

static void test_body_when_the_header_has_a_wrong_size_then_refused(void **state)
{
    static const char json[] = "{\"inputs\":[]}";

    (void)state;
    assert_int_equal(read_body(json, sizeof(json) - 1, sizeof(json) - 1), HPS_OK);
    assert_int_equal(read_body(json, sizeof(json) - 1, sizeof(json)), HPS_INVALID);
    assert_says("Inference-Header-Content-Length: 14, but the body has 13 bytes");
    assert_int_equal(read_body(json, sizeof(json) - 1, SIZE_MAX - 1), HPS_INVALID);
    assert_int_equal(read_body(json, sizeof(json) - 1, 0), HPS_INVALID);
    assert_says("Inference-Header-Content-Length: 0 is for models with one input");
    assert_int_equal(read_body(json, sizeof(json) - 1, 12), HPS_INVALID);
    assert_says("Inference-Header-Content-Length: 12: inputs: the JSON of the request: an object");
    assert_int_equal(read_body(json, 0, SIZE_MAX), HPS_INVALID);
    assert_says("the body is empty");
}

/* ---- malformed requests ---------------------------------------------------------------------- */

#define INPUT(rest) "{\"inputs\":[{\"name\":\"a\"," rest "}]}"

static void test_body_when_a_member_is_missing_or_wrong_then_it_is_named(void **state)
{
    (void)state;
    assert_refused("[]", "expected an object");
    assert_refused("nonsense", "the JSON of the request:");
    assert_refused("{\"inputs\":[]} x", "1 bytes follow it; where tensors follow, the header");
    assert_refused("{\"inputs\":[{},{\"data\":[1,2],\"shape\":[1,2.]}]}",
                   "inputs[1].shape[1]: the JSON of the request: invalid token");
    assert_refused("{}", "inputs: missing, expected an array");
    assert_refused("{\"inputs\":{}}", "inputs: wrong type");
    assert_refused("{\"inputs\":[1]}", "inputs[0]: expected an object");
    assert_refused("{\"inputs\":[{}]}", "inputs[0].name: missing, expected a string");
    assert_refused("{\"inputs\":[{\"name\":1}]}", "inputs[0].name: wrong type");
    assert_refused("{\"inputs\":[{\"name\":\"a\",\"parameters\":1}]}",
                   "inputs[0].parameters: expected an object");
    assert_refused(INPUT("\"shape\":[0]"), "input 'a': datatype: missing");
    assert_refused(INPUT("\"datatype\":\"INT64\""), "input 'a': shape: missing");
    assert_refused(INPUT("\"datatype\":\"BYTES\""), "input 'a': datatype: 'BYTES', expected INT64");
    assert_refused(INPUT("\"datatype\":3"), "input 'a': datatype: wrong type");
    assert_refused(INPUT("\"datatype\":\"INT64\",\"shape\":[1]"),
                   "input 'a': neither data nor parameters.binary_data_size");
    assert_refused(INPUT("\"datatype\":\"INT64\",\"shape\":[1],\"data\":[1],"
                         "\"parameters\":{\"binary_data_size\":8}"),
                   "input 'a': both data and parameters.binary_data_size");
    assert_refused(INPUT("\"datatype\":\"INT64\",\"shape\":[1],\"data\":1"),
                   "input 'a': data: wrong type, expected an array");
    assert_refused(INPUT("\"datatype\":\"INT64\",\"shape\":[1],\"data\":null"),
                   "input 'a': data: wrong type, expected an array");
    assert_refused(INPUT("\"datatype\":\"INT64\",\"shape\":[2],\"data\":[1]"),
                   "input 'a': data has 1 values, its shape has 2");
    assert_refused("{\"inputs\":[],\"outputs\":{}}", "outputs: wrong type");
    assert_refused("{\"inputs\":[],\"outputs\":[{}]}", "outputs[0].name: missing");
    assert_refused("{\"inputs\":[],\"outputs\":[{\"name\":\"a\",\"parameters\":{\"binary_data\":"
                   "1}}]}",
                   "outputs[0].parameters.binary_data: expected true or false");
    assert_refused("{\"inputs\":[],\"id\":1}", "id: wrong type");
    assert_refused("{\"inputs\":null}", "inputs: wrong type");
    assert_refused("{\"inputs\":[],\"id\":\"0123456789abcdefg\"}", "id: 17 bytes, limit is 16");
    assert_refused("{\"inputs\":[],\"id\":\"\\u0000\"}", "the JSON of the request: \\u0000");
}

static void test_body_when_a_member_is_duplicate_then_refused(void **state)
{
    (void)state;
    assert_refused("{\"inputs\":[],\"inputs\":[]}", "duplicate object key");
    assert_refused("{\"inputs\":[{\"name\":\"a\",\"shape\":[1],\"datatype\":\"INT64\",\"data\":[1],"
                   "\"d\\u0061ta\":[2]}]}",
                   "duplicate object key");
    assert_refused("{\"inputs\":["
                   "{\"name\":\"a\",\"shape\":[0],\"datatype\":\"INT64\",\"data\":[]},"
                   "{\"name\":\"a\",\"shape\":[0],\"datatype\":\"INT64\",\"data\":[]}]}",
                   "got input 'a' twice");
    assert_refused("{\"inputs\":[],\"outputs\":[{\"name\":\"x\"},{\"name\":\"x\"}]}",
                   "got output 'x' twice");
}

static void test_body_when_it_requests_an_unsupported_feature_then_unimplemented(void **state)
{
    (void)state;
    assert_int_equal(read_json("{\"inputs\":[{\"name\":\"a\",\"parameters\":"
                               "{\"shared_memory_region\":\"r\",\"shared_memory_byte_size\":8}}]}"),
                     HPS_UNIMPLEMENTED);
    assert_says("shared memory is not supported");
    assert_int_equal(read_json("{\"inputs\":[],\"outputs\":[{\"name\":\"a\",\"parameters\":"
                               "{\"shared_memory_region\":\"r\"}}]}"),
                     HPS_UNIMPLEMENTED);
    assert_int_equal(read_json("{\"inputs\":[],\"outputs\":[{\"name\":\"a\",\"parameters\":"
                               "{\"classification\":3}}]}"),
                     HPS_UNIMPLEMENTED);
    assert_says("classification");
}

static void test_body_when_limits_are_exceeded_then_refused(void **state)
{
    char text[8192] = "{\"inputs\":[],\"parameters\":{";
    size_t size = strlen(text);

    (void)state;
    for (unsigned i = 0; i < KSERVE_PARAMETERS_MAX + 1; i++) {
        size +=
            (size_t)snprintf(text + size, sizeof(text) - size, "%s\"p%u\":1", i == 0 ? "" : ",", i);
    }
    (void)snprintf(text + size, sizeof(text) - size, "}}");
    assert_refused(text, "parameters: 65 of them, limit is 64");
    size = (size_t)snprintf(text, sizeof(text), "{\"inputs\":[],\"outputs\":[{}");
    for (unsigned i = 0; i < 20; i++) {
        size += (size_t)snprintf(text + size, sizeof(text) - size, ",{\"name\":\"o%u\"}", i);
    }
    (void)snprintf(text + size, sizeof(text) - size, "]}");
    assert_refused(text, "more than 20 outputs");
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void read_and_forget(void *ctx)
{
    struct hps_arena *own = hps_arena_new(256, 1 << 16);
    struct kserve_infer infer = {0};
    struct hps_error error;
    const char *json = ctx;

    if (own == NULL) {
        return;
    }
    hps_status status = kserve_infer_http((const uint8_t *)json, strlen(json), SIZE_MAX, &LIMITS,
                                          own, &infer, &error);
    assert_true(status == HPS_OK || status == HPS_NO_MEMORY || status == HPS_EXHAUSTED);
    if (status == HPS_OK) {
        assert_int_equal(infer.n_inputs, 2);
        assert_text(infer.inputs[1].name, "b");
        assert_int_equal(infer.inputs[1].size, 800);
    }
    hps_arena_free(own);
}

static void test_body_when_memory_fails_then_no_leak_and_no_partial_result(void **state)
{
    char text[4096] = "{\"id\":\"x\",\"parameters\":{\"hps_pooling\":\"sum\"},\"inputs\":["
                      "{\"name\":\"a\",\"shape\":[1],\"datatype\":\"INT64\",\"data\":[1]},"
                      "{\"name\":\"b\",\"shape\":[100],\"datatype\":\"INT64\",\"data\":[0";
    size_t size = strlen(text);

    (void)state;
    for (unsigned i = 1; i < 100; i++) {
        size += (size_t)snprintf(text + size, sizeof(text) - size, ",%u", i);
    }
    (void)snprintf(text + size, sizeof(text) - size, "]}],\"outputs\":[{\"name\":\"o\"}]}");
    assert_true(hps_fault_heap_run(read_and_forget, text) > 20);
}

int main(void)
{
#define BODY_TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
    const struct CMUnitTest tests[] = {
        BODY_TEST(test_body_when_a_stock_client_sends_raw_tensors_then_they_are_not_copied),
        BODY_TEST(test_body_when_json_and_raw_are_mixed_then_raw_ones_follow_in_their_order),
        BODY_TEST(test_body_when_it_has_parameters_then_they_are_used),
        BODY_TEST(test_body_when_optional_members_are_null_then_like_missing_ones),
        BODY_TEST(test_body_when_outputs_have_no_parameters_then_the_requests_apply),
        BODY_TEST(test_body_when_sizes_do_not_add_up_then_refused_by_name),
        BODY_TEST(test_body_when_the_header_has_a_wrong_size_then_refused),
        BODY_TEST(test_body_when_a_member_is_missing_or_wrong_then_it_is_named),
        BODY_TEST(test_body_when_a_member_is_duplicate_then_refused),
        BODY_TEST(test_body_when_it_requests_an_unsupported_feature_then_unimplemented),
        BODY_TEST(test_body_when_limits_are_exceeded_then_refused),
        BODY_TEST(test_body_when_memory_fails_then_no_leak_and_no_partial_result),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
