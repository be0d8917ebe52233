/* SPDX-License-Identifier: Apache-2.0
 *
 * Lookups as bytes, against protobuf-c as the second opinion.
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
    assert_int_equal(request->row_layout, HPS__V1__ROW_LAYOUT__ROW_LAYOUT_CONCAT);
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

/* ---- a matrix -------------------------------------------------------------------------------- */

enum { MATRIX_TABLES = 2, MATRIX_ROWS = 2 };

/* Columns 0 to 1 are of one table, 2 to 4 of the other. */
struct matrix_reply {
    Hps__V1__TableResult tables[MATRIX_TABLES];
    Hps__V1__TableResult *results[MATRIX_TABLES];
    Hps__V1__LookupResponse message;
    float values[MATRIX_ROWS * 5 + 1];
};

static void make_matrix(struct matrix_reply *reply)
{
    hps__v1__lookup_response__init(&reply->message);
    for (size_t i = 0; i < MATRIX_ROWS * 5; i++) {
        reply->values[i] = (float)i;
    }
    for (unsigned t = 0; t < MATRIX_TABLES; t++) {
        hps__v1__table_result__init(&reply->tables[t]);
        reply->tables[t].table = text(t == 0 ? "items" : "users");
        reply->tables[t].dim = t == 0 ? 2 : 3;
        reply->tables[t].column = t == 0 ? 0 : 2;
        reply->tables[t].row_count = MATRIX_ROWS;
        reply->results[t] = &reply->tables[t];
    }
    reply->message.results = reply->results;
    reply->message.n_results = MATRIX_TABLES;
    reply->message.matrix =
        (ProtobufCBinaryData){MATRIX_ROWS * 5 * sizeof(float), (uint8_t *)reply->values};
}

/* Read all results of it. `look`: at their values, too. */
static hps_status read_matrix(const struct matrix_reply *reply, bool look)
{
    struct hps_client_lookup_reply opened;
    struct hps_client_lookup_result result;
    struct hps_error err = {0};
    struct hps_buf buf;

    hps_buf_init(&buf, 4096);
    assert_int_equal(hps_message_encode(&reply->message.base, &buf, &err), HPS_OK);
    assert_int_equal(hps_client_lookup_reply_open(buf.data, buf.size, &opened, &err), HPS_OK);
    hps_status status = HPS_OK;
    for (unsigned t = 0; t < opened.n_results && status == HPS_OK; t++) {
        status = hps_client_lookup_reply_next(&opened, &result, &err);
        for (uint32_t i = 0; look && i < result.row_count * result.dim; i++) {
            uint32_t row = i / result.dim;
            assert_true(hps_client_lookup_value(&result, row, i % result.dim) ==
                        (float)(row * 5 + result.column + i % result.dim));
        }
    }
    hps_buf_fini(&buf);
    return status;
}

static void test_reply_when_one_matrix_then_columns_are_rows_of_their_tables(void **state)
{
    struct matrix_reply reply;

    (void)state;
    make_matrix(&reply);
    assert_int_equal(read_matrix(&reply, true), HPS_OK);
    reply.message.matrix.len = 0;
    reply.tables[0].row_count = 0;
    reply.tables[1].row_count = 0;
    assert_int_equal(read_matrix(&reply, true), HPS_OK);
}

static void test_reply_when_columns_do_not_make_the_matrix_then_data_loss(void **state)
{
    struct matrix_reply reply;
    uint8_t row[8] = {0};

    (void)state;
    for (int lie = 0; lie < 9; lie++) {
        make_matrix(&reply);
        switch (lie) {
        case 0:
            reply.message.matrix.len += 4;
            break;
        case 1:
            reply.message.matrix.len -= 4;
            break;
        case 2:
            reply.tables[1].column = 3;
            break;
        case 3:
            reply.tables[1].dim = 4;
            break;
        case 4:
            reply.tables[1].dim = 2; /* a column is nobody's */
            break;
        case 5:
            reply.tables[1].row_count = 1;
            break;
        case 6:
            reply.tables[1].data_type = HPS__V1__DATA_TYPE__DATA_TYPE_FP16;
            break;
        case 7:
            reply.tables[0].rows = (ProtobufCBinaryData){sizeof(row), row};
            break;
        default:
            reply.tables[0].row_count = reply.tables[1].row_count = UINT32_MAX;
            break;
        }
        assert_int_equal(read_matrix(&reply, false), HPS_DATA_LOSS);
    }
}

/* ---- types ----------------------------------------------------------------------------------- */

static void test_reply_when_the_type_is_none_then_data_loss(void **state)
{
    static const int types[] = {6, 14, 15, -1};
    struct matrix_reply reply;

    (void)state;
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        make_matrix(&reply);
        reply.message.n_results = 1;
        reply.message.matrix.len = 0;
        reply.tables[0].row_count = 0;
        reply.tables[0].data_type = (Hps__V1__DataType)types[i];
        assert_int_equal(read_matrix(&reply, false), HPS_DATA_LOSS);
    }
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
            .dim = 1, .row_count = 1, .dtype = cases[i].dtype, .stride = 2};
        result.rows = (const uint8_t *)&cases[i].bits;
        assert_true(hps_client_lookup_value(&result, 0, 0) == cases[i].value);
    }
}

/* Of odd width, so that scale and bias of the second row are not aligned. */
static void test_value_when_int8_then_dequantised(void **state)
{
    static const float scale = 0.25F, bias = -3;
    uint8_t rows[2][3 + 8];
    float values[3];
    const struct hps_client_lookup_result result = {.dim = 3,
                                                    .row_count = 2,
                                                    .dtype = HPS_DTYPE_INT8_ROWWISE_F32,
                                                    .rows = rows[0],
                                                    .stride = sizeof(rows[0])};

    (void)state;
    for (uint8_t row = 0; row < 2; row++) {
        for (uint8_t i = 0; i < 3; i++) {
            rows[row][i] = (uint8_t)(100 * row + 10 * i);
        }
        memcpy(rows[row] + 3, &scale, 4);
        memcpy(rows[row] + 7, &bias, 4);
    }
    assert_true(hps_client_lookup_value(&result, 0, 2) == 2.0F);
    hps_client_lookup_row(&result, 1, values);
    assert_true(values[0] == 22.0F && values[1] == 24.5F && values[2] == 27.0F);
}

/* ---- what was asked for ---------------------------------------------------------------------- */

static void test_check_when_the_result_is_of_other_rows_then_data_loss(void **state)
{
    static const uint8_t states[9] = {0};
    const hps_key keys[9] = {0};
    const uint32_t offsets[] = {0, 4, 4, 9};
    const struct hps_client_lookup_query plain = {.keys = keys, .n_keys = 9};
    const struct hps_client_lookup_query bags = {
        .keys = keys, .n_keys = 9, .pooling = HPS_POOLING_SUM, .n_bags = 3, .offsets = offsets};
    struct hps_client_lookup_result result = {
        .table = {"", 0}, .dtype = HPS_DTYPE_FP32, .row_count = 2, .key_status = states};
    struct hps_error err = {0};

    (void)state;
    result.n_key_status = 2;
    assert_int_equal(hps_client_lookup_check(&plain, 7, &result, &err), HPS_OK);
    assert_int_equal(hps_client_lookup_check(&plain, 8, &result, &err), HPS_DATA_LOSS);
    assert_int_equal(hps_client_lookup_check(&bags, 1, &result, &err), HPS_DATA_LOSS);
    result.n_key_status = 5;
    assert_int_equal(hps_client_lookup_check(&bags, 1, &result, &err), HPS_OK);
    assert_int_equal(hps_client_lookup_check(&bags, 2, &result, &err), HPS_DATA_LOSS);
    result.key_status = NULL;
    assert_int_equal(hps_client_lookup_check(&bags, 0, &result, &err), HPS_OK);
    result.dtype = HPS_DTYPE_INT8_ROWWISE_F16;
    assert_int_equal(hps_client_lookup_check(&plain, 0, &result, &err), HPS_OK);
    assert_int_equal(hps_client_lookup_check(&bags, 0, &result, &err), HPS_DATA_LOSS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_encode_when_all_fields_then_protobuf_reads_them),
        cmocka_unit_test(test_encode_when_buffer_is_small_then_exhausted),
        cmocka_unit_test(test_reply_when_two_tables_then_rows_in_place),
        cmocka_unit_test(test_reply_when_bytes_are_bad_then_never_read_past),
        cmocka_unit_test(test_reply_when_rows_do_not_fit_counts_then_data_loss),
        cmocka_unit_test(test_reply_when_one_matrix_then_columns_are_rows_of_their_tables),
        cmocka_unit_test(test_reply_when_columns_do_not_make_the_matrix_then_data_loss),
        cmocka_unit_test(test_reply_when_the_type_is_none_then_data_loss),
        cmocka_unit_test(test_value_when_half_or_bfloat_then_float),
        cmocka_unit_test(test_value_when_int8_then_dequantised),
        cmocka_unit_test(test_check_when_the_result_is_of_other_rows_then_data_loss),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
