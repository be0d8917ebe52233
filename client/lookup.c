/* SPDX-License-Identifier: Apache-2.0
 *
 * Encoder of LookupRequest and reader of LookupResponse. Any thread.
 */
#include "client/lookup.h"

#include <math.h>
#include <string.h>

#include "base/assert.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "keys and rows travel as they are");

static size_t text_size(const char *text)
{
    return text == NULL ? 0 : strlen(text);
}

static hps_status encode_query(const struct hps_client_lookup_query *query, struct hps_buf *buf)
{
    HPS_ASSERT(query->keys != NULL || query->n_keys == 0);
    size_t table_size = text_size(query->table);
    size_t keys_size = query->n_keys * sizeof(hps_key);
    size_t size = (table_size == 0 ? 0 : hps_wire_field_size(table_size)) +
                  (keys_size == 0 ? 0 : hps_wire_field_size(keys_size));
    hps_status status = hps_wire_put_head(buf, 3, size);

    if (status == HPS_OK) {
        status = hps_wire_put_text(buf, 1, query->table);
    }
    if (status == HPS_OK) {
        status = hps_wire_put_bytes(buf, 2, query->keys, keys_size);
    }
    return status;
}

hps_status hps_client_lookup_encode(const struct hps_client_lookup *lookup, struct hps_buf *buf)
{
    HPS_ASSERT(lookup->queries != NULL || lookup->n_queries == 0);
    const struct {
        uint32_t number;
        uint64_t value;
    } scalars[] = {
        {2, (uint64_t)lookup->version},  {4, lookup->miss_policy}, {5, lookup->max_wait_us},
        {6, lookup->unknown_key_policy}, {7, lookup->output_type}, {8, lookup->explain ? 1 : 0},
    };
    hps_status status = hps_wire_put_text(buf, 1, lookup->model);

    for (size_t i = 0; i < sizeof(scalars) / sizeof(scalars[0]) && status == HPS_OK; i++) {
        status = hps_wire_put_uint(buf, scalars[i].number, scalars[i].value);
    }
    if (status == HPS_OK) {
        status = hps_wire_put_text(buf, 9, lookup->request_id);
    }
    if (status == HPS_OK) {
        status = hps_wire_put_uint(buf, 11, lookup->consistency);
    }
    for (size_t i = 0; i < lookup->n_queries && status == HPS_OK; i++) {
        status = encode_query(&lookup->queries[i], buf);
    }
    return status;
}

/* ---- reply ----------------------------------------------------------------------------------- */

static struct hps_client_lookup_text text_of(const struct hps_wire_field *field)
{
    return (struct hps_client_lookup_text){(const char *)field->data, field->size};
}

hps_status hps_client_lookup_reply_open(const uint8_t *data, size_t size,
                                        struct hps_client_lookup_reply *out_reply,
                                        struct hps_error *err)
{
    HPS_ASSERT(data != NULL || size == 0);
    struct hps_client_lookup_reply reply = {
        .model = {"", 0}, .label = {"", 0}, .cursor = {data, size, 0}};
    struct hps_wire_reader reader = {data, size, 0};
    struct hps_wire_field field;

    while (hps_wire_next(&reader, &field)) {
        bool bytes = field.type == HPS_WIRE_BYTES;
        if (field.number == 1 && bytes) {
            reply.model = text_of(&field);
        } else if (field.number == 2) {
            reply.version = (int64_t)field.value;
        } else if (field.number == 3 && bytes) {
            reply.label = text_of(&field);
        } else if (field.number == 4 && bytes) {
            reply.n_results++;
        } else if (field.number == 5) {
            reply.update_sequence = field.value;
        }
    }
    if (hps_wire_broken(&reader)) {
        return hps_error_set(err, HPS_DATA_LOSS, "a reply of %zu bytes is not a LookupResponse",
                             size);
    }
    *out_reply = reply;
    return HPS_OK;
}

static bool read_tier(const struct hps_wire_field *tier, struct hps_client_lookup_result *result)
{
    HPS_ASSERT(result->n_tiers <= HPS_TIER_COUNT);
    struct hps_wire_reader reader = {tier->data, tier->size, 0};
    struct hps_client_lookup_tier out = {{"", 0}, 0};
    struct hps_wire_field field;

    while (hps_wire_next(&reader, &field)) {
        if (field.number == 1 && field.type == HPS_WIRE_BYTES) {
            out.name = text_of(&field);
        } else if (field.number == 2) {
            out.found_keys = (uint32_t)field.value;
        }
    }
    if (hps_wire_broken(&reader)) {
        return false;
    }
    if (result->n_tiers < HPS_TIER_COUNT) {
        result->tiers[result->n_tiers++] = out;
    }
    return true;
}

static void read_count(const struct hps_wire_field *field, struct hps_client_lookup_result *result)
{
    uint32_t value = (uint32_t)field->value;

    switch (field->number) {
    case 2:
        result->dim = value;
        break;
    case 3:
        result->dtype = value == 0 ? HPS_DTYPE_FP32 : (enum hps_dtype)value;
        break;
    case 4:
        result->row_count = value;
        break;
    case 5:
        result->unique_key_count = value;
        break;
    case 6:
        result->defaulted_key_count = value;
        break;
    case 7:
        result->unknown_key_count = value;
        break;
    default:
        break; /* of a later version */
    }
}

static bool read_result(const struct hps_wire_field *message,
                        struct hps_client_lookup_result *result, size_t *out_n_status)
{
    struct hps_wire_reader reader = {message->data, message->size, 0};
    struct hps_wire_field field;

    while (hps_wire_next(&reader, &field)) {
        if (field.type == HPS_WIRE_VARINT) {
            read_count(&field, result);
        } else if (field.type != HPS_WIRE_BYTES) {
            continue;
        } else if (field.number == 1) {
            result->table = text_of(&field);
        } else if (field.number == 8 && field.size > 0) {
            result->key_status = field.data;
            *out_n_status = field.size;
        } else if (field.number == 9) {
            if (!read_tier(&field, result)) {
                return false;
            }
        } else if (field.number == 15) {
            result->rows = field.data;
            result->rows_bytes = field.size;
        }
    }
    return !hps_wire_broken(&reader);
}

hps_status hps_client_lookup_reply_next(struct hps_client_lookup_reply *reply,
                                        struct hps_client_lookup_result *out_result,
                                        struct hps_error *err)
{
    struct hps_client_lookup_result result = {.table = {"", 0}, .dtype = HPS_DTYPE_FP32};
    struct hps_wire_field field;
    size_t n_status = 0;

    do {
        if (!hps_wire_next(&reply->cursor, &field)) {
            return hps_error_set(err, HPS_NOT_FOUND, "the reply has no further table");
        }
    } while (field.number != 4 || field.type != HPS_WIRE_BYTES);
    if (!read_result(&field, &result, &n_status)) {
        return hps_error_set(err, HPS_DATA_LOSS, "a TableResult of %zu bytes is broken",
                             field.size);
    }
    uint64_t row_bytes = hps_dtype_row_bytes(result.dtype, result.dim);
    bool rows_fit = row_bytes == 0 ? result.rows_bytes == 0
                                   : result.rows_bytes % row_bytes == 0 &&
                                         result.rows_bytes / row_bytes == result.row_count;
    if (!rows_fit || (result.key_status != NULL && n_status != result.row_count)) {
        return hps_error_set(
            err, HPS_DATA_LOSS,
            "table \"%.*s\": %u rows of %u values do not fit %zu bytes of rows and "
            "%zu key states",
            (int)(result.table.size > 120 ? 120 : result.table.size), result.table.data,
            result.row_count, result.dim, result.rows_bytes, n_status);
    }
    *out_result = result;
    return HPS_OK;
}

float hps_client_lookup_half(uint16_t half)
{
    int exponent = half >> 10 & 0x1f;
    float fraction = (float)(half & 0x3ff);
    float value = exponent == 0x1f ? (fraction == 0.0F ? INFINITY : NAN)
                  : exponent == 0  ? ldexpf(fraction, -24)
                                   : ldexpf(1024.0F + fraction, exponent - 25);

    return (half & 0x8000) != 0 ? -value : value;
}

float hps_client_lookup_value(const struct hps_client_lookup_result *result, uint32_t row,
                              uint32_t i)
{
    HPS_DEBUG_ASSERT(row < result->row_count && i < result->dim);
    size_t at = (size_t)row * result->dim + i;
    uint32_t bits = 0;
    uint16_t half;
    float value;

    if (result->dtype == HPS_DTYPE_FP32) {
        memcpy(&value, result->rows + at * 4, 4);
        return value;
    }
    memcpy(&half, result->rows + at * 2, 2);
    if (result->dtype == HPS_DTYPE_FP16) {
        return hps_client_lookup_half(half);
    }
    bits = (uint32_t)half << 16;
    memcpy(&value, &bits, 4);
    return value;
}
