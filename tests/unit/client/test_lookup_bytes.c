/* SPDX-License-Identifier: Apache-2.0
 *
 * Look-ups as bytes, against protobuf-c as the second opinion.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "base/heap.h"
#include "client/lookup.h"
#include "client/message.h"
#include "hps/v1/lookup.pb-c.h"

static char *text(const char *constant)
{
    return (char *)(uintptr_t)constant;
}

static void test_encode_when_all_fields_then_protobuf_reads_them(void **state)
{
    const hps_key keys[] = {1, (hps_key)-5, UINT64_C(1) << 63};
    const struct hps_client_lookup_query queries[] = {
        {"items", keys, 3}, {NULL, keys, 1}, {"", NULL, 0}};
    const struct hps_client_lookup lookup = {
        .model = "dlrm",
        .version = 7,
        .queries = queries,
        .n_queries = 3,
        .miss_policy = 2,
        .max_wait_us = 300,
        .unknown_key_policy = 3,
        .output_type = 2,
        .explain = true,
        .request_id = "r-1",
        .consistency = 2,
    };
    struct hps_error err = {0};
    ProtobufCMessage *message = NULL;
    struct hps_buf buf;

    (void)state;
    hps_buf_init(&buf, 4096);
    assert_int_equal(hps_client_lookup_encode(&lookup, &buf), HPS_OK);
    assert_int_equal(hps_message_decode(&hps__v1__lookup_request__descriptor, buf.data, buf.size,
                                        &message, &err),
                     HPS_OK);
    const Hps__V1__LookupRequest *request = (const Hps__V1__LookupRequest *)message;
    assert_string_equal(request->model, "dlrm");
    assert_int_equal(request->version, 7);
    assert_int_equal(request->miss_policy, 2);
    assert_int_equal(request->max_wait_us, 300);
    assert_int_equal(request->unknown_key_policy, 3);
    assert_int_equal(request->output_type, 2);
    assert_true(request->explain);
    assert_string_equal(request->request_id, "r-1");
    assert_int_equal(request->consistency, HPS__V1__CONSISTENCY__CONSISTENCY_UNIT);
    assert_int_equal(request->n_queries, 3);
    assert_string_equal(request->queries[0]->table, "items");
    assert_int_equal(request->queries[0]->keys.len, sizeof(keys));
    assert_memory_equal(request->queries[0]->keys.data, keys, sizeof(keys));
    assert_string_equal(request->queries[1]->table, "");
    assert_int_equal(request->queries[1]->keys.len, sizeof(keys[0]));
    assert_int_equal(request->queries[2]->keys.len, 0);
    hps_message_free(message);
    hps_buf_fini(&buf);
}

static void test_encode_when_buffer_is_small_then_exhausted(void **state)
{
    const hps_key keys[64] = {0};
    const struct hps_client_lookup_query query = {"items", keys, 64};
    const struct hps_client_lookup lookup = {.model = "m", .queries = &query, .n_queries = 1};
    struct hps_buf buf;

    (void)state;
    hps_buf_init(&buf, 100);
    assert_int_equal(hps_client_lookup_encode(&lookup, &buf), HPS_EXHAUSTED);
    hps_buf_fini(&buf);
}

/* A reply of two tables: fp32 [2][3] with states and tiers, and fp16 [1][2]. */
static void make_reply(struct hps_buf *buf)
{
    static float rows[6] = {1.5F, -2, 3, 4, 5, 6};
    static uint16_t halves[2] = {0x3C00, 0xC000};
    static uint8_t states[2] = {HPS_KEY_FOUND, HPS_KEY_UNKNOWN};
    Hps__V1__TierCount tier = HPS__V1__TIER_COUNT__INIT;
    Hps__V1__TierCount *tiers[] = {&tier};
    Hps__V1__TableResult first = HPS__V1__TABLE_RESULT__INIT, second = HPS__V1__TABLE_RESULT__INIT;
    Hps__V1__TableResult *results[] = {&first, &second};
    Hps__V1__LookupResponse reply = HPS__V1__LOOKUP_RESPONSE__INIT;
    struct hps_error err = {0};

    tier.tier = text("host");
    tier.found_keys = 1;
    first.table = text("items");
    first.dim = 3;
    first.data_type = HPS__V1__DATA_TYPE__DATA_TYPE_FP32;
    first.row_count = 2;
    first.unique_key_count = 2;
    first.unknown_key_count = 1;
    first.key_status = (ProtobufCBinaryData){sizeof(states), states};
    first.tier_counts = tiers;
    first.n_tier_counts = 1;
    first.rows = (ProtobufCBinaryData){sizeof(rows), (uint8_t *)rows};
    second.table = text("users");
    second.dim = 2;
    second.data_type = HPS__V1__DATA_TYPE__DATA_TYPE_FP16;
    second.row_count = 1;
    second.rows = (ProtobufCBinaryData){sizeof(halves), (uint8_t *)halves};
    reply.model = text("dlrm");
    reply.version = 3;
    reply.label = text("nightly");
    reply.update_sequence = 9;
    reply.results = results;
    reply.n_results = 2;
    hps_buf_init(buf, 4096);
    assert_int_equal(hps_message_encode(&reply.base, buf, &err), HPS_OK);
}

static void test_reply_when_two_tables_then_rows_in_place(void **state)
{
    struct hps_client_lookup_reply reply;
    struct hps_client_lookup_result result;
    struct hps_error err = {0};
    struct hps_buf buf;

    (void)state;
    make_reply(&buf);
    assert_int_equal(hps_client_lookup_reply_open(buf.data, buf.size, &reply, &err), HPS_OK);
    assert_int_equal(reply.version, 3);
    assert_int_equal(reply.update_sequence, 9);
    assert_int_equal(reply.n_results, 2);
    assert_int_equal(reply.label.size, 7);
    assert_int_equal(hps_client_lookup_reply_next(&reply, &result, &err), HPS_OK);
    assert_int_equal(result.table.size, 5);
    assert_memory_equal(result.table.data, "items", 5);
    assert_in_range((uintptr_t)result.rows, (uintptr_t)buf.data, (uintptr_t)(buf.data + buf.size));
    assert_true(hps_client_lookup_value(&result, 0, 0) == 1.5F);
    assert_true(hps_client_lookup_value(&result, 1, 2) == 6.0F);
    assert_int_equal(hps_client_lookup_key_status(&result, 1), HPS_KEY_UNKNOWN);
    assert_int_equal(result.n_tiers, 1);
    assert_int_equal(result.tiers[0].found_keys, 1);
    assert_int_equal(hps_client_lookup_reply_next(&reply, &result, &err), HPS_OK);
    assert_int_equal(result.dtype, HPS_DTYPE_FP16);
    assert_true(hps_client_lookup_value(&result, 0, 0) == 1.0F);
    assert_true(hps_client_lookup_value(&result, 0, 1) == -2.0F);
    assert_int_equal(hps_client_lookup_key_status(&result, 0), HPS_KEY_FOUND);
    assert_int_equal(hps_client_lookup_reply_next(&reply, &result, &err), HPS_NOT_FOUND);
    hps_buf_fini(&buf);
}

/* Cut anywhere, and with any byte changed, a reply is refused or read within its bytes (ASan
 * looks). */
static void test_reply_when_bytes_are_bad_then_never_read_past(void **state)
{
    struct hps_client_lookup_reply reply;
    struct hps_client_lookup_result result;
    struct hps_error err = {0};
    struct hps_buf buf;

    (void)state;
    make_reply(&buf);
    for (size_t size = 0; size < buf.size; size++) {
        uint8_t *cut = hps_alloc(size);
        assert_non_null(cut);
        memcpy(cut, buf.data, size);
        if (hps_client_lookup_reply_open(cut, size, &reply, &err) == HPS_OK) {
            while (hps_client_lookup_reply_next(&reply, &result, &err) == HPS_OK) {
                assert_true(result.rows_bytes <= size);
            }
        }
        hps_free(cut);
    }
    for (size_t at = 0; at < buf.size; at++) {
        uint8_t kept = buf.data[at];
        for (unsigned value = 0; value < 256; value++) {
            buf.data[at] = (uint8_t)value;
            if (hps_client_lookup_reply_open(buf.data, buf.size, &reply, &err) == HPS_OK) {
                while (hps_client_lookup_reply_next(&reply, &result, &err) == HPS_OK) {
                    assert_true(result.rows_bytes <= buf.size);
                }
            }
        }
        buf.data[at] = kept;
    }
    hps_buf_fini(&buf);
}

static void test_reply_when_rows_do_not_fit_counts_then_data_loss(void **state)
{
    Hps__V1__TableResult table = HPS__V1__TABLE_RESULT__INIT;
    Hps__V1__TableResult *results[] = {&table};
    Hps__V1__LookupResponse message = HPS__V1__LOOKUP_RESPONSE__INIT;
    uint8_t rows[12] = {0};
    struct hps_client_lookup_reply reply;
    struct hps_client_lookup_result result;
    struct hps_error err = {0};
    struct hps_buf buf;

    (void)state;
    table.table = text("items");
    table.dim = 2;
    table.row_count = 2;
    table.rows = (ProtobufCBinaryData){sizeof(rows), rows};
    message.results = results;
    message.n_results = 1;
    hps_buf_init(&buf, 4096);
    assert_int_equal(hps_message_encode(&message.base, &buf, &err), HPS_OK);
    assert_int_equal(hps_client_lookup_reply_open(buf.data, buf.size, &reply, &err), HPS_OK);
    assert_int_equal(hps_client_lookup_reply_next(&reply, &result, &err), HPS_DATA_LOSS);
    assert_non_null(strstr(err.text, "items"));
    hps_buf_fini(&buf);
}

static void test_value_when_half_or_bfloat_then_float(void **state)
{
    static const struct {
        enum hps_dtype dtype;
        uint16_t bits;
        float value;
    } cases[] = {
        {HPS_DTYPE_FP16, 0x0000, 0.0F},     {HPS_DTYPE_FP16, 0x3555, 0.333251953125F},
        {HPS_DTYPE_FP16, 0x0001, 0x1p-24F}, {HPS_DTYPE_FP16, 0x03FF, 0x1.ff8p-15F},
        {HPS_DTYPE_FP16, 0x7BFF, 65504.0F}, {HPS_DTYPE_FP16, 0xFC00, -INFINITY},
        {HPS_DTYPE_BF16, 0x3FC0, 1.5F},     {HPS_DTYPE_BF16, 0xC000, -2.0F},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct hps_client_lookup_result result = {
            .dim = 1, .row_count = 1, .dtype = cases[i].dtype};
        result.rows = (const uint8_t *)&cases[i].bits;
        assert_true(hps_client_lookup_value(&result, 0, 0) == cases[i].value);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_encode_when_all_fields_then_protobuf_reads_them),
        cmocka_unit_test(test_encode_when_buffer_is_small_then_exhausted),
        cmocka_unit_test(test_reply_when_two_tables_then_rows_in_place),
        cmocka_unit_test(test_reply_when_bytes_are_bad_then_never_read_past),
        cmocka_unit_test(test_reply_when_rows_do_not_fit_counts_then_data_loss),
        cmocka_unit_test(test_value_when_half_or_bfloat_then_float),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
