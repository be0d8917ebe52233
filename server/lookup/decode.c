/* SPDX-License-Identifier: Apache-2.0
 *
 * The bounded decoder of LookupRequest. It follows protobuf: the last value of a scalar counts,
 * repeated fields may come in pieces, unknown fields are skipped. But it limits their number, and
 * rejects a known field of the wrong wire type. Any thread.
 */
#include "server/lookup/decode_internal.h"

#include <inttypes.h>

/* Field numbers of LookupRequest. */
enum request_field {
    REQUEST_MODEL = 1,
    REQUEST_VERSION,
    REQUEST_QUERIES,
    REQUEST_MISS_POLICY,
    REQUEST_MAX_WAIT_US,
    REQUEST_UNKNOWN_KEY_POLICY,
    REQUEST_OUTPUT_TYPE,
    REQUEST_EXPLAIN,
    REQUEST_REQUEST_ID,
    REQUEST_MAX_STALENESS_MS,
    REQUEST_CONSISTENCY,
    REQUEST_ROW_LAYOUT,
    REQUEST_LABEL,
    REQUEST_FIELDS
};

/* Last numbers of the enums of lookup.proto. */
enum { MISS_POLICY_LAST = 4, UNKNOWN_KEY_POLICY_LAST = 3, CONSISTENCY_LAST = 2, LAYOUT_LAST = 2 };
enum { CONSISTENCY_UNIT = 2, ROW_LAYOUT_CONCAT = 2 };

/* The fields of a message: of each scalar the last value. */
struct raw_request {
    uint64_t value[REQUEST_FIELDS];
    struct cursor bytes[REQUEST_FIELDS];
    uint32_t n_queries;
};

/* Sets the error for too many keys or bags. `in` is valid: it has been scanned. */
static hps_status refuse_many(const struct decoder *decoder, struct cursor in)
{
    struct decode_count count = {0};
    uint32_t max = decoder->limits->keys_max;
    struct field field;

    while (in.at < in.end && field_read(&in, &field)) {
        if (field.number == REQUEST_QUERIES) {
            decode_count(decoder, field_bytes(&field), &count);
        }
    }
    bool keys = count.n_keys > max;
    uint64_t n = keys ? count.n_keys : count.n_bags;
    return hps_error_set(decoder->err, HPS_INVALID,
                         "queries: %" PRIu64
                         " %s, limit is %u; request fewer, or set server.keys_max to %" PRIu64,
                         n, keys ? "keys" : "bags", max, n);
}

static hps_status decode_queries(const struct decoder *decoder, struct cursor in,
                                 uint32_t n_queries, struct hps_lookup_request *request)
{
    struct field field;

    const struct cursor whole = in;

    if (n_queries == 0) {
        return HPS_OK;
    }
    request->queries = hps_arena_calloc(decoder->arena, n_queries, sizeof(*request->queries));
    if (request->queries == NULL) {
        return hps_error_set(decoder->err, HPS_EXHAUSTED, "queries: no memory for %u", n_queries);
    }
    while (in.at < in.end && field_read(&in, &field)) {
        if (field.number != REQUEST_QUERIES) {
            continue;
        }
        HPS_ASSERT(request->n_queries < n_queries); /* scan_request counted them */
        hps_status status = decode_query(decoder, field_bytes(&field), request);
        if (status != HPS_OK) {
            return status == HPS_RANGE ? refuse_many(decoder, whole) : status;
        }
    }
    return HPS_OK;
}

static hps_status scan_request(const struct decoder *decoder, struct cursor in,
                               struct raw_request *out)
{
    struct field field;
    unsigned n_fields = 0;

    while (in.at < in.end) {
        if (!field_read(&in, &field)) {
            return decode_malformed(decoder, "LookupRequest");
        }
        if (field.number != REQUEST_QUERIES && ++n_fields > FIELDS_MAX) {
            return decode_too_many_fields(decoder, "LookupRequest");
        }
        if (field.number >= REQUEST_FIELDS) {
            continue;
        }
        bool bytes = field.number == REQUEST_MODEL || field.number == REQUEST_QUERIES ||
                     field.number == REQUEST_REQUEST_ID || field.number == REQUEST_LABEL;
        if (field.wire != (bytes ? WIRE_LEN : WIRE_VARINT)) {
            return decode_malformed(decoder, "LookupRequest");
        }
        if (field.number == REQUEST_QUERIES) {
            out->n_queries++; /* a message has fewer than 2^31 bytes */
            continue;
        }
        out->value[field.number] = field.value;
        out->bytes[field.number] = field_bytes(&field);
    }
    if (out->n_queries > decoder->limits->tables_max) {
        return hps_error_set(
            decoder->err, HPS_INVALID,
            "queries: %u, limit is %u; request fewer tables, or set server.tables_max to %u",
            out->n_queries, decoder->limits->tables_max, out->n_queries);
    }
    return HPS_OK;
}

static hps_status check_enums(const struct decoder *decoder, const struct raw_request *raw)
{
    static const struct {
        uint32_t field;
        uint32_t last;
        const char *name;
    } enums[] = {
        {REQUEST_MISS_POLICY, MISS_POLICY_LAST, "miss_policy"},
        {REQUEST_UNKNOWN_KEY_POLICY, UNKNOWN_KEY_POLICY_LAST, "unknown_key_policy"},
        {REQUEST_CONSISTENCY, CONSISTENCY_LAST, "consistency"},
        {REQUEST_ROW_LAYOUT, LAYOUT_LAST, "row_layout"},
    };

    for (unsigned i = 0; i < sizeof(enums) / sizeof(enums[0]); i++) {
        hps_status status =
            decode_check_enum(decoder, enums[i].name, raw->value[enums[i].field], enums[i].last);
        if (status != HPS_OK) {
            return status;
        }
    }
    return HPS_OK;
}

/* Rows are returned as FP32, FP16 or BF16 values, or as stored (RAW), never quantised. */
static hps_status check_output(const struct decoder *decoder, const struct raw_request *raw)
{
    uint32_t number = (uint32_t)raw->value[REQUEST_OUTPUT_TYPE];

    if (number == 0 || hps_dtype_is_output(number) || number == HPS_DTYPE_RAW) {
        return HPS_OK;
    }
    if (hps_dtype_is_stored(number)) {
        return hps_error_set(
            decoder->err, HPS_INVALID,
            "output_type: %u (%s) is available only as RAW, which is the type that is stored",
            number, hps_dtype_name((enum hps_dtype)number));
    }
    return hps_error_set(decoder->err, HPS_INVALID,
                         "output_type: %" PRId32 " is not FP32, FP16, BF16 or RAW (0 to 3, or 15)",
                         (int32_t)number);
}

static hps_status check_request(const struct decoder *decoder, const struct raw_request *raw)
{
    size_t id_size = cursor_size(&raw->bytes[REQUEST_REQUEST_ID]);
    hps_status status = check_enums(decoder, raw);

    if (status == HPS_OK) {
        status = check_output(decoder, raw);
    }
    if (status != HPS_OK) {
        return status;
    }
    if ((int64_t)raw->value[REQUEST_VERSION] < 0) {
        return hps_error_set(decoder->err, HPS_INVALID, "version: %" PRId64 " is below 0",
                             (int64_t)raw->value[REQUEST_VERSION]);
    }
    if (cursor_size(&raw->bytes[REQUEST_LABEL]) > 0 && raw->value[REQUEST_VERSION] != 0) {
        return hps_error_set(decoder->err, HPS_INVALID,
                             "label: got it together with version %" PRId64
                             ", expected only one of them",
                             (int64_t)raw->value[REQUEST_VERSION]);
    }
    if (id_size > decoder->limits->request_id_max) {
        return hps_error_set(decoder->err, HPS_INVALID, "request_id: %zu bytes, limit is %u",
                             id_size, decoder->limits->request_id_max);
    }
    return HPS_OK;
}

/* ---- fields that do not go together ---------------------------------------------------------- */

static uint32_t n_rows_of(const struct hps_lookup_query *query)
{
    return query->pooling == HPS_POOLING_NONE ? query->n_keys : query->n_bags;
}

static hps_status check_concat(const struct decoder *decoder,
                               const struct hps_lookup_request *request)
{
    if (request->output == HPS_DTYPE_RAW) {
        return hps_error_set(decoder->err, HPS_INVALID,
                             "row_layout: CONCAT and output_type RAW exclude each other");
    }
    for (uint32_t i = 1; i < request->n_queries; i++) {
        const struct hps_lookup_query *first = &request->queries[0];
        const struct hps_lookup_query *query = &request->queries[i];
        if (n_rows_of(query) != n_rows_of(first)) {
            return hps_error_set(
                decoder->err, HPS_INVALID,
                "queries[%u]: %u %s, but queries[0] has %u %s: with row_layout "
                "CONCAT every query has as many rows",
                i, n_rows_of(query), query->pooling == HPS_POOLING_NONE ? "keys" : "bags",
                n_rows_of(first), first->pooling == HPS_POOLING_NONE ? "keys" : "bags");
        }
    }
    return HPS_OK;
}

static hps_status check_together(const struct decoder *decoder,
                                 const struct hps_lookup_request *request)
{
    for (uint32_t i = 0; request->output == HPS_DTYPE_RAW && i < request->n_queries; i++) {
        if (request->queries[i].pooling != HPS_POOLING_NONE) {
            return hps_error_set(decoder->err, HPS_INVALID,
                                 "queries[%u].pooling: it and output_type RAW exclude each other",
                                 i);
        }
    }
    return request->concat ? check_concat(decoder, request) : HPS_OK;
}

hps_status hps_decode_lookup(const uint8_t *data, size_t size,
                             const struct hps_decode_limits *limits, struct hps_arena *arena,
                             struct hps_lookup_request *out_request, struct hps_error *err)
{
    struct decoder decoder = {.limits = limits, .arena = arena, .err = err};
    struct cursor in = {.at = data, .end = size == 0 ? data : data + size};
    struct raw_request raw = {0};
    hps_status status = scan_request(&decoder, in, &raw);

    if (status == HPS_OK) {
        status = check_request(&decoder, &raw);
    }
    if (status != HPS_OK) {
        return status;
    }
    uint32_t output = (uint32_t)raw.value[REQUEST_OUTPUT_TYPE];
    struct hps_lookup_request request = {
        .model = (const char *)raw.bytes[REQUEST_MODEL].at,
        .model_size = cursor_size(&raw.bytes[REQUEST_MODEL]),
        .version = (int64_t)raw.value[REQUEST_VERSION],
        .label = (const char *)raw.bytes[REQUEST_LABEL].at,
        .label_size = cursor_size(&raw.bytes[REQUEST_LABEL]),
        .miss_policy = (enum hps_miss_policy)(uint32_t)raw.value[REQUEST_MISS_POLICY],
        .max_wait_us = (uint32_t)raw.value[REQUEST_MAX_WAIT_US],
        .max_staleness_ms = (uint32_t)raw.value[REQUEST_MAX_STALENESS_MS],
        .unit = (uint32_t)raw.value[REQUEST_CONSISTENCY] == CONSISTENCY_UNIT,
        .unknown_policy = (enum hps_unknown_policy)(uint32_t)raw.value[REQUEST_UNKNOWN_KEY_POLICY],
        .output = output == 0 ? HPS_DTYPE_FP32 : (enum hps_dtype)output,
        .concat = (uint32_t)raw.value[REQUEST_ROW_LAYOUT] == ROW_LAYOUT_CONCAT,
        .explain = raw.value[REQUEST_EXPLAIN] != 0,
        .request_id_size = cursor_size(&raw.bytes[REQUEST_REQUEST_ID]),
    };
    if (request.request_id_size > 0) {
        request.request_id = (const char *)raw.bytes[REQUEST_REQUEST_ID].at;
    }
    status = decode_queries(&decoder, in, raw.n_queries, &request);
    if (status == HPS_OK) {
        status = check_together(&decoder, &request);
    }
    if (status == HPS_OK) {
        HPS_ASSERT(request.n_keys <= limits->keys_max);
        HPS_ASSERT(request.n_queries <= limits->tables_max);
        *out_request = request;
    }
    return status;
}
