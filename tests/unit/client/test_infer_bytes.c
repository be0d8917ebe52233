/* SPDX-License-Identifier: Apache-2.0
 *
 * Infer requests as bytes, against protobuf-c as the second opinion.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "client/infer.h"
#include "client/message.h"
#include "inference/grpc_service.pb-c.h"

static const hps_key keys[] = {1, (hps_key)-5, UINT64_C(1) << 63};
static const struct hps_client_lookup_query queries[] = {
    {.keys = keys, .n_keys = 2}, {.n_keys = 0}, {.keys = keys + 2, .n_keys = 1}};
static const uint32_t counts[] = {2, 0, 1};

static const char *parameter_of(const Inference__ModelInferRequest *request, const char *name)
{
    for (size_t i = 0; i < request->n_parameters; i++) {
        if (strcmp(request->parameters[i]->key, name) == 0) {
            return request->parameters[i]->value->string_param;
        }
    }
    return NULL;
}

static void test_encode_when_all_is_given_then_protobuf_reads_it(void **state)
{
    const struct hps_client_infer infer = {.model = "dlrm",
                                           .queries = queries,
                                           .n_queries = 3,
                                           .output = HPS_DTYPE_BF16,
                                           .miss_policy = "memory-only",
                                           .max_wait_us = 300};
    struct hps_error err = {0};
    ProtobufCMessage *message = NULL;
    struct hps_buf buf;

    (void)state;
    hps_buf_init(&buf, 4096);
    assert_int_equal(hps_client_infer_encode(&infer, &buf), HPS_OK);
    assert_int_equal(hps_message_decode(&inference__model_infer_request__descriptor, buf.data,
                                        buf.size, &message, &err),
                     HPS_OK);
    const Inference__ModelInferRequest *request = (const Inference__ModelInferRequest *)message;
    assert_string_equal(request->model_name, "dlrm");
    assert_int_equal(request->n_parameters, 3);
    assert_string_equal(parameter_of(request, "hps_output_type"), "BF16");
    assert_string_equal(parameter_of(request, "hps_miss_policy"), "memory_only");
    assert_int_equal(request->parameters[2]->value->int64_param, 300);
    assert_int_equal(request->n_inputs, 2);
    assert_string_equal(request->inputs[0]->name, "KEYS");
    assert_string_equal(request->inputs[0]->datatype, "INT64");
    assert_int_equal(request->inputs[0]->n_shape, 1);
    assert_int_equal(request->inputs[0]->shape[0], 3);
    assert_string_equal(request->inputs[1]->name, "NUMKEYS");
    assert_string_equal(request->inputs[1]->datatype, "INT32");
    assert_int_equal(request->inputs[1]->shape[0], 3);
    assert_int_equal(request->n_raw_input_contents, 2);
    assert_int_equal(request->raw_input_contents[0].len, sizeof(keys));
    assert_memory_equal(request->raw_input_contents[0].data, keys, sizeof(keys));
    assert_int_equal(request->raw_input_contents[1].len, sizeof(counts));
    assert_memory_equal(request->raw_input_contents[1].data, counts, sizeof(counts));
    hps_message_free(message);
    hps_buf_fini(&buf);
}

static void test_encode_when_nothing_is_given_then_no_parameters(void **state)
{
    const struct hps_client_infer infer = {.model = "m",
                                           .queries = queries,
                                           .n_queries = 1,
                                           .output = HPS_DTYPE_FP32,
                                           .miss_policy = "table"};
    struct hps_error err = {0};
    ProtobufCMessage *message = NULL;
    struct hps_buf buf;

    (void)state;
    hps_buf_init(&buf, 4096);
    assert_int_equal(hps_client_infer_encode(&infer, &buf), HPS_OK);
    assert_int_equal(hps_message_decode(&inference__model_infer_request__descriptor, buf.data,
                                        buf.size, &message, &err),
                     HPS_OK);
    assert_int_equal(((const Inference__ModelInferRequest *)message)->n_parameters, 0);
    hps_message_free(message);
    hps_buf_fini(&buf);
}

static void test_encode_when_there_is_no_room_then_exhausted(void **state)
{
    const struct hps_client_infer infer = {
        .model = "m", .queries = queries, .n_queries = 3, .output = HPS_DTYPE_FP32};

    (void)state;
    for (size_t room = 1; room < 80; room++) {
        struct hps_buf buf;
        hps_buf_init(&buf, room);
        assert_int_equal(hps_client_infer_encode(&infer, &buf), HPS_EXHAUSTED);
        hps_buf_clear(&buf);
        assert_int_equal(hps_client_infer_encode_http(&infer, &buf), HPS_EXHAUSTED);
        hps_buf_fini(&buf);
    }
}

static void test_http_when_encoded_then_tensors_are_behind_the_json(void **state)
{
    const struct hps_client_infer infer = {.model = "dlrm",
                                           .queries = queries,
                                           .n_queries = 3,
                                           .output = HPS_DTYPE_FP16,
                                           .miss_policy = "wait",
                                           .max_wait_us = 7};
    static const char json[] =
        "{\"parameters\":{\"binary_data_output\":true,\"hps_output_type\":\"FP16\","
        "\"hps_miss_policy\":\"wait\",\"hps_max_wait_us\":7},\"inputs\":["
        "{\"name\":\"KEYS\",\"datatype\":\"INT64\",\"shape\":[3],\"parameters\":{\"binary_data_"
        "size\":24}},"
        "{\"name\":\"NUMKEYS\",\"datatype\":\"INT32\",\"shape\":[3],\"parameters\":{\"binary_data_"
        "size\":12}}]}";
    char head[256];
    struct hps_buf buf;

    (void)state;
    hps_buf_init(&buf, 4096);
    assert_int_equal(hps_client_infer_encode_http(&infer, &buf), HPS_OK);
    int n = snprintf(head, sizeof(head),
                     "POST /v2/models/dlrm/infer HTTP/1.1\r\nHost: hpsd\r\n"
                     "Inference-Header-Content-Length: %zu\r\nContent-Length: %zu\r\n\r\n",
                     strlen(json), strlen(json) + sizeof(keys) + sizeof(counts));
    size_t at = (size_t)n;
    assert_int_equal(buf.size, at + strlen(json) + sizeof(keys) + sizeof(counts));
    assert_memory_equal(buf.data, head, at);
    assert_memory_equal(buf.data + at, json, strlen(json));
    assert_memory_equal(buf.data + at + strlen(json), keys, sizeof(keys));
    assert_memory_equal(buf.data + at + strlen(json) + sizeof(keys), counts, sizeof(counts));
    hps_buf_fini(&buf);
}

/* ---- answers --------------------------------------------------------------------------------- */

static size_t pack(const char *name, const char *datatype, size_t n_raw, uint8_t *out)
{
    Inference__ModelInferResponse reply = INFERENCE__MODEL_INFER_RESPONSE__INIT;
    Inference__ModelInferResponse__InferOutputTensor output =
        INFERENCE__MODEL_INFER_RESPONSE__INFER_OUTPUT_TENSOR__INIT;
    Inference__ModelInferResponse__InferOutputTensor *outputs[] = {&output};
    uint8_t bytes[] = "12345678";
    ProtobufCBinaryData raw[] = {{8, bytes}, {8, bytes}};

    output.name = (char *)(uintptr_t)name;
    output.datatype = (char *)(uintptr_t)datatype;
    reply.outputs = outputs;
    reply.n_outputs = 1;
    reply.raw_output_contents = raw;
    reply.n_raw_output_contents = n_raw;
    return inference__model_infer_response__pack(&reply, out);
}

static void test_rows_when_there_then_found_where_they_lie(void **state)
{
    uint8_t bytes[256];
    struct hps_client_infer_rows rows = {0};
    struct hps_error err = {0};
    size_t size = pack("OUTPUT0", "FP32", 1, bytes);

    (void)state;
    assert_int_equal(hps_client_infer_rows(bytes, size, HPS_DTYPE_FP32, &rows, &err), HPS_OK);
    assert_int_equal(rows.size, 8);
    assert_memory_equal(rows.data, "12345678", 8);
    assert_true(rows.data > bytes && rows.data + rows.size <= bytes + size);
}

static void test_rows_when_it_is_another_message_then_data_loss(void **state)
{
    const struct {
        const char *name, *datatype;
        size_t n_raw;
    } wrong[] = {{"OUTPUT1", "FP32", 1},
                 {"OUTPUT0", "FP16", 1},
                 {"OUTPUT0", "FP32", 0},
                 {"OUTPUT0", "FP32", 2},
                 {"", "", 1}};
    uint8_t bytes[256];
    struct hps_client_infer_rows rows = {0};

    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct hps_error err = {0};
        size_t size = pack(wrong[i].name, wrong[i].datatype, wrong[i].n_raw, bytes);
        assert_int_equal(hps_client_infer_rows(bytes, size, HPS_DTYPE_FP32, &rows, &err),
                         HPS_DATA_LOSS);
    }
    size_t whole = pack("OUTPUT0", "FP32", 1, bytes);
    for (size_t size = 0; size < whole; size++) {
        struct hps_error err = {0};
        assert_int_equal(hps_client_infer_rows(bytes, size, HPS_DTYPE_FP32, &rows, &err),
                         HPS_DATA_LOSS);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_encode_when_all_is_given_then_protobuf_reads_it),
        cmocka_unit_test(test_encode_when_nothing_is_given_then_no_parameters),
        cmocka_unit_test(test_encode_when_there_is_no_room_then_exhausted),
        cmocka_unit_test(test_http_when_encoded_then_tensors_are_behind_the_json),
        cmocka_unit_test(test_rows_when_there_then_found_where_they_lie),
        cmocka_unit_test(test_rows_when_it_is_another_message_then_data_loss),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
