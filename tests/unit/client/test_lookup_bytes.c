/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests as bytes, against protobuf-c as the second opinion.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "client/lookup.h"
#include "client/message.h"
#include "hps/v1/lookup.pb-c.h"

static void test_encode_when_all_fields_then_protobuf_reads_them(void **state)
{
    const hps_key keys[] = {1, (hps_key)-5, UINT64_C(1) << 63};
    const uint32_t offsets[] = {0, 2, 2, 3};
    const float weights[] = {0.5F, -1, 2};
    const struct hps_client_lookup_query queries[] = {
        {.table = "items", .keys = keys, .n_keys = 3},
        {.keys = keys, .n_keys = 1},
        {.table = ""},
        {.table = "clicks",
         .keys = keys,
         .n_keys = 3,
         .pooling = HPS_POOLING_MEAN_BY_COUNT,
         .n_bags = 3,
         .offsets = offsets,
         .weights = weights},
        {.pooling = HPS_POOLING_SUM, .offsets = offsets}, /* of no bags */
    };
    const struct hps_client_lookup lookup = {
        .model = "dlrm",
        .version = 7,
        .queries = queries,
        .n_queries = 5,
        .miss_policy = 2,
        .max_wait_us = 300,
        .unknown_key_policy = 3,
        .output_type = 2,
        .explain = true,
        .request_id = "r-1",
        .consistency = 2,
        .row_layout = HPS_CLIENT_LOOKUP_CONCAT,
        .max_staleness_ms = 40,
        .label = "nightly",
    };
    ProtobufCMessage *message = NULL;
    struct hps_buf buf;

    (void)state;
    hps_buf_init(&buf, 4096);
    assert_int_equal(hps_client_lookup_encode(&lookup, &buf), HPS_OK);
    assert_int_equal(hps_message_decode(&hps__v1__lookup_request__descriptor, buf.data, buf.size,
                                        &message, NULL),
                     HPS_OK);
    const Hps__V1__LookupRequest *request = (const Hps__V1__LookupRequest *)message;
    assert_string_equal(request->model, "dlrm");
    assert_int_equal(request->version, 7);
    assert_true(request->miss_policy == 2 && request->max_wait_us == 300);
    assert_int_equal(request->unknown_key_policy, 3);
    assert_int_equal(request->output_type, 2);
    assert_true(request->explain);
    assert_string_equal(request->request_id, "r-1");
    assert_int_equal(request->consistency, HPS__V1__CONSISTENCY__CONSISTENCY_UNIT);
    assert_int_equal(request->row_layout, HPS__V1__ROW_LAYOUT__ROW_LAYOUT_CONCAT);
    assert_true(request->max_staleness_ms == 40 && strcmp(request->label, "nightly") == 0);
    assert_int_equal(request->n_queries, 5);
    assert_string_equal(request->queries[0]->table, "items");
    assert_int_equal(request->queries[0]->keys.len, sizeof(keys));
    assert_memory_equal(request->queries[0]->keys.data, keys, sizeof(keys));
    assert_string_equal(request->queries[1]->table, "");
    assert_int_equal(request->queries[1]->keys.len, sizeof(keys[0]));
    assert_int_equal(request->queries[2]->keys.len, 0);
    assert_int_equal(request->queries[2]->pooling, 0);
    assert_string_equal(request->queries[3]->table, "clicks");
    assert_int_equal(request->queries[3]->pooling, HPS__V1__POOLING__POOLING_MEAN_BY_COUNT);
    assert_int_equal(request->queries[3]->offsets.len, sizeof(offsets));
    assert_memory_equal(request->queries[3]->offsets.data, offsets, sizeof(offsets));
    assert_int_equal(request->queries[3]->weights.len, sizeof(weights));
    assert_memory_equal(request->queries[3]->weights.data, weights, sizeof(weights));
    assert_int_equal(request->queries[4]->offsets.len, 4);
    assert_int_equal(request->queries[4]->weights.len, 0);
    hps_message_free(message);
    hps_buf_fini(&buf);
}

static void test_encode_when_buffer_is_small_then_exhausted(void **state)
{
    const hps_key keys[64] = {0};
    const struct hps_client_lookup_query query = {.table = "items", .keys = keys, .n_keys = 64};
    const struct hps_client_lookup lookup = {.model = "m", .queries = &query, .n_queries = 1};
    struct hps_buf buf;

    (void)state;
    hps_buf_init(&buf, 100);
    assert_int_equal(hps_client_lookup_encode(&lookup, &buf), HPS_EXHAUSTED);
    hps_buf_fini(&buf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_encode_when_all_fields_then_protobuf_reads_them),
        cmocka_unit_test(test_encode_when_buffer_is_small_then_exhausted),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
