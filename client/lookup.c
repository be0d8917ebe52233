/* SPDX-License-Identifier: Apache-2.0
 *
 * Encodes LookupRequest and reads LookupResponse. Any thread.
 */
#include "client/lookup.h"

#include <string.h>

#include "base/assert.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "keys, bags and rows travel as they are");

static size_t text_size(const char *text)
{
    return text == NULL ? 0 : strlen(text);
}

/* A bytes field of a query. */
struct query_bytes {
    uint32_t number;
    const void *data;
    size_t size;
};

static hps_status encode_query(const struct hps_client_lookup_query *query, struct hps_buf *buf)
{
    HPS_ASSERT(query->keys != NULL || query->n_keys == 0);
    bool pooled = query->pooling > HPS_POOLING_NONE;
    HPS_ASSERT(pooled == (query->offsets != NULL));
    HPS_ASSERT(pooled || query->weights == NULL);
    const struct query_bytes fields[] = {
        {1, query->table, text_size(query->table)},
        {2, query->keys, query->n_keys * sizeof(hps_key)},
        {4, query->offsets, pooled ? (query->n_bags + 1) * sizeof(uint32_t) : 0},
        {6, query->weights, query->weights == NULL ? 0 : query->n_keys * sizeof(float)},
    };
    const size_t n_fields = sizeof(fields) / sizeof(fields[0]);
    size_t size = pooled ? 1 + hps_wire_varint_size(query->pooling) : 0;

    for (size_t i = 0; i < n_fields; i++) {
        size += fields[i].size == 0 ? 0 : hps_wire_field_size(fields[i].size);
    }
    hps_status status = hps_wire_put_head(buf, 3, size);
    if (status == HPS_OK && pooled) {
        status = hps_wire_put_uint(buf, 5, query->pooling);
    }
    for (size_t i = 0; i < n_fields && status == HPS_OK; i++) {
        status = hps_wire_put_bytes(buf, fields[i].number, fields[i].data, fields[i].size);
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
    if (status == HPS_OK) {
        status = hps_wire_put_uint(buf, 12, lookup->row_layout);
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
        } else if (field.number == 15 && bytes && field.size > 0) {
            reply.matrix = field.data;
            reply.matrix_bytes = field.size;
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
    case 10:
        result->column = value;
        break;
    default:
        break; /* field of a later version */
    }
}

static bool read_result(const struct hps_wire_field *message,
                        struct hps_client_lookup_result *result)
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
            result->n_key_status = field.size;
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

static hps_status broken_result(const struct hps_client_lookup_result *result, const char *what,
                                struct hps_error *err)
{
    return hps_error_set(err, HPS_DATA_LOSS, "table \"%.*s\", %u rows of %u values of type %d: %s",
                         (int)(result->table.size > 120 ? 120 : result->table.size),
                         result->table.data, result->row_count, result->dim, (int)result->dtype,
                         what);
}

/* Places rows that the result contains. */
static hps_status place_rows(struct hps_client_lookup_result *result, struct hps_error *err)
{
    uint64_t row_bytes = hps_dtype_row_bytes(result->dtype, result->dim);
    bool fit = row_bytes == 0 || result->row_count == 0
                   ? result->rows_bytes == 0
                   : result->rows_bytes % row_bytes == 0 &&
                         result->rows_bytes / row_bytes == result->row_count;

    if (!fit) {
        return broken_result(result, "the size of its rows does not match", err);
    }
    result->stride = (size_t)row_bytes;
    return HPS_OK;
}

/* Places rows that are columns of the matrix. The columns of all results must fill it. */
static hps_status place_columns(struct hps_client_lookup_reply *reply,
                                struct hps_client_lookup_result *result, struct hps_error *err)
{
    if (reply->n_given == 0) {
        reply->matrix_rows = result->row_count;
        reply->matrix_dtype = result->dtype;
    }
    if (result->rows_bytes > 0 || result->row_count != reply->matrix_rows ||
        result->dtype != reply->matrix_dtype || hps_dtype_is_int8(result->dtype) ||
        result->column != reply->matrix_columns) {
        return broken_result(result, "not the next columns of the matrix", err);
    }
    uint64_t stride = result->row_count == 0 ? 0 : reply->matrix_bytes / result->row_count;
    uint64_t begin = hps_dtype_row_bytes(result->dtype, result->column);
    uint64_t end = begin + hps_dtype_row_bytes(result->dtype, result->dim);
    bool last = reply->n_given + 1 == reply->n_results;
    if (stride * result->row_count != reply->matrix_bytes || end > stride ||
        (last && end != stride)) {
        return broken_result(result, "its columns do not fit the bytes of the matrix", err);
    }
    reply->matrix_columns += result->dim;
    result->rows = reply->matrix + begin;
    result->stride = (size_t)stride;
    result->rows_bytes = (size_t)((end - begin) * result->row_count);
    return HPS_OK;
}

hps_status hps_client_lookup_reply_next(struct hps_client_lookup_reply *reply,
                                        struct hps_client_lookup_result *out_result,
                                        struct hps_error *err)
{
    struct hps_client_lookup_result result = {.table = {"", 0}, .dtype = HPS_DTYPE_FP32};
    struct hps_wire_field field;

    do {
        if (!hps_wire_next(&reply->cursor, &field)) {
            return hps_error_set(err, HPS_NOT_FOUND, "the reply has no further table");
        }
    } while (field.number != 4 || field.type != HPS_WIRE_BYTES);
    if (!read_result(&field, &result)) {
        return hps_error_set(err, HPS_DATA_LOSS, "a TableResult of %zu bytes is malformed",
                             field.size);
    }
    if (!hps_dtype_is_stored((unsigned)result.dtype)) {
        return broken_result(&result, "unknown type of rows", err);
    }
    hps_status status =
        reply->matrix == NULL ? place_rows(&result, err) : place_columns(reply, &result, err);
    if (status == HPS_OK) {
        reply->n_given++;
        *out_result = result;
    }
    return status;
}

hps_status hps_client_lookup_check(const struct hps_client_lookup_query *query, size_t row,
                                   const struct hps_client_lookup_result *result,
                                   struct hps_error *err)
{
    size_t n_rows = hps_client_lookup_rows(query);

    HPS_ASSERT(row <= n_rows);
    if (result->row_count > n_rows - row) {
        return broken_result(result, "more rows than requested", err);
    }
    size_t n_keys = hps_client_lookup_first_key(query, row + result->row_count) -
                    hps_client_lookup_first_key(query, row);
    if (result->key_status != NULL && result->n_key_status != n_keys) {
        return broken_result(result, "the number of key states does not match the keys", err);
    }
    if (query->offsets != NULL && hps_dtype_is_int8(result->dtype)) {
        return broken_result(result, "pooled rows cannot have this type", err);
    }
    return HPS_OK;
}

float hps_client_lookup_value(const struct hps_client_lookup_result *result, uint32_t row,
                              uint32_t i)
{
    HPS_DEBUG_ASSERT(row < result->row_count && i < result->dim);
    const uint8_t *from = result->rows + (size_t)row * result->stride;
    size_t value_bytes = (size_t)hps_dtype_row_bytes(result->dtype, 1);
    uint8_t one[16]; /* a row with one value; INT8: the value, scale and bias */
    float value;

    HPS_ASSERT(value_bytes <= sizeof(one));
    if (hps_dtype_is_int8(result->dtype)) {
        one[0] = from[i];
        memcpy(one + 1, from + result->dim, value_bytes - 1);
    } else {
        memcpy(one, from + (size_t)i * value_bytes, value_bytes);
    }
    hps_row_convert(&value, HPS_DTYPE_FP32, one, result->dtype, 1);
    return value;
}

void hps_client_lookup_row(const struct hps_client_lookup_result *result, uint32_t row, float *out)
{
    HPS_DEBUG_ASSERT(row < result->row_count);
    hps_row_convert(out, HPS_DTYPE_FP32, result->rows + (size_t)row * result->stride, result->dtype,
                    result->dim);
}
