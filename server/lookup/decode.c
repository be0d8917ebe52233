/* SPDX-License-Identifier: Apache-2.0
 *
 * The bounded decoder of LookupRequest. Protobuf's rules: the last of a scalar wins, repeated
 * fields may come in pieces, unknown fields are skipped, but not any number of them; a known field
 * of the wrong wire type is malformed. Any thread.
 */
#include "server/lookup/decode.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"

enum wire { WIRE_VARINT = 0, WIRE_I64 = 1, WIRE_LEN = 2, WIRE_I32 = 5 };

struct cursor {
    const uint8_t *at;
    const uint8_t *end;
};

struct field {
    uint32_t number;
    uint32_t wire;
    uint64_t value;      /* WIRE_VARINT */
    const uint8_t *data; /* the others */
    size_t size;
};

/* Field numbers of LookupRequest and TableQuery. */
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
    REQUEST_FIELDS
};

enum query_field {
    QUERY_TABLE = 1,
    QUERY_KEYS,
    QUERY_KEY_LIST,
    QUERY_OFFSETS,
    QUERY_POOLING,
    QUERY_WEIGHTS,
    QUERY_FIELDS
};

/* Last numbers of the enums of lookup.proto. */
enum { MISS_POLICY_LAST = 4, UNKNOWN_KEY_POLICY_LAST = 3, DATA_TYPE_LAST = 3, POOLING_LAST = 4 };
/* What a message may have beside its queries, or pieces of its keys: each scalar once or twice, and
 * what newer clients add. */
enum { FIELDS_MAX = 64 };
enum { CONSISTENCY_LAST = 2, POOLING_NONE = 1, CONSISTENCY_UNIT = 2 };

/* What was seen of a message: the last value of each scalar. */
struct raw_request {
    uint64_t value[REQUEST_FIELDS];
    struct cursor bytes[REQUEST_FIELDS];
    uint32_t n_queries;
};

struct raw_query {
    uint64_t pooling;
    struct cursor bytes[QUERY_FIELDS];
    uint64_t n_listed; /* keys in key_list */
    uint32_t n_pieces; /* that it came in */
};

struct decoder {
    const struct hps_decode_limits *limits;
    struct hps_arena *arena;
    struct hps_error *err;
};

static bool read_varint(struct cursor *in, unsigned bytes_max, uint64_t *out_value)
{
    uint64_t value = 0;

    for (unsigned i = 0; i < bytes_max && in->at < in->end; i++) {
        uint8_t byte = *in->at++;

        if (i == 9 && byte > 1) {
            return false;
        }
        value |= (uint64_t)(byte & 0x7f) << (7 * i);
        if ((byte & 0x80) == 0) {
            *out_value = value;
            return true;
        }
    }
    return false;
}

/* Read the field at the cursor. False: malformed. */
static bool read_field(struct cursor *in, struct field *out)
{
    uint64_t tag;
    uint64_t size;

    if (!read_varint(in, 5, &tag) || tag > UINT32_MAX || tag >> 3 == 0) {
        return false;
    }
    out->number = (uint32_t)(tag >> 3);
    out->wire = (uint32_t)(tag & 7);
    out->value = 0;
    switch (out->wire) {
    case WIRE_VARINT:
        out->data = in->at;
        out->size = 0;
        return read_varint(in, 10, &out->value);
    case WIRE_I64:
        size = 8;
        break;
    case WIRE_I32:
        size = 4;
        break;
    case WIRE_LEN:
        if (!read_varint(in, 5, &size)) {
            return false;
        }
        break;
    default:
        return false;
    }
    if (size > (uint64_t)(in->end - in->at)) {
        return false;
    }
    out->data = in->at;
    out->size = (size_t)size;
    in->at += size;
    return true;
}

static size_t cursor_size(const struct cursor *in)
{
    return (size_t)(in->end - in->at);
}

static struct cursor field_bytes(const struct field *field)
{
    HPS_ASSERT(field->data != NULL || field->size == 0);
    return (struct cursor){.at = field->data, .end = field->data + field->size};
}

static hps_status too_many_fields(const struct decoder *decoder, const char *message)
{
    return hps_error_set(decoder->err, HPS_INVALID,
                         "%s: more than %d fields that are unknown, empty or set again", message,
                         FIELDS_MAX);
}

static hps_status malformed(const struct decoder *decoder, const char *message)
{
    return hps_error_set(decoder->err, HPS_INVALID, "malformed %s", message);
}

static hps_status not_built(const struct decoder *decoder, const char *field, uint64_t value)
{
    return hps_error_set(decoder->err, HPS_UNIMPLEMENTED,
                         "%s: %" PRIu64 " is not supported by this server", field, value);
}

static hps_status check_enum(const struct decoder *decoder, const char *field, uint64_t value,
                             uint32_t last)
{
    if ((uint32_t)value > last) {
        return hps_error_set(decoder->err, HPS_INVALID, "%s: %" PRId32 " is not one of 0 to %u",
                             field, (int32_t)(uint32_t)value, last);
    }
    return HPS_OK;
}

/* ---- queries --------------------------------------------------------------------------------- */

static hps_status scan_query(const struct decoder *decoder, struct cursor in, struct raw_query *out)
{
    struct field field;
    unsigned n_fields = 0;

    while (in.at < in.end) {
        if (!read_field(&in, &field)) {
            return malformed(decoder, "TableQuery");
        }
        bool piece = field.number == QUERY_KEY_LIST && field.size > 0;
        if (!piece && ++n_fields > FIELDS_MAX) {
            return too_many_fields(decoder, "TableQuery");
        }
        if (field.number >= QUERY_FIELDS) {
            continue;
        }
        bool unpacked = field.number == QUERY_KEY_LIST && field.wire == WIRE_I64;
        uint32_t wire = field.number == QUERY_POOLING ? WIRE_VARINT : WIRE_LEN;
        if (field.wire != wire && !unpacked) {
            return malformed(decoder, "TableQuery");
        }
        if (field.number == QUERY_POOLING) {
            out->pooling = field.value;
            continue;
        }
        if (field.number == QUERY_KEY_LIST) {
            if (field.size % sizeof(hps_key) != 0) {
                return malformed(decoder, "TableQuery.key_list");
            }
            if (field.size == 0) {
                continue;
            }
            out->n_listed += field.size / sizeof(hps_key);
            out->n_pieces++;
        }
        out->bytes[field.number] = field_bytes(&field);
    }
    return HPS_OK;
}

/* Keys of key_list that came in pieces, put together. `in` has been scanned. */
static uint8_t *join_pieces(const struct decoder *decoder, struct cursor in, uint64_t n_listed)
{
    uint8_t *keys = hps_arena_alloc(decoder->arena, n_listed * sizeof(hps_key));
    struct field field;
    size_t size = 0;

    while (keys != NULL && in.at < in.end && read_field(&in, &field)) {
        if (field.number == QUERY_KEY_LIST) {
            HPS_ASSERT(size + field.size <= n_listed * sizeof(hps_key));
            memcpy(keys + size, field.data, field.size);
            size += field.size;
        }
    }
    return keys;
}

static hps_status check_query(const struct decoder *decoder, const struct raw_query *raw,
                              uint32_t index)
{
    char name[48];
    static const struct {
        uint32_t field;
        const char *name;
    } absent[] = {{QUERY_OFFSETS, "offsets"}, {QUERY_WEIGHTS, "weights"}};
    size_t size = cursor_size(&raw->bytes[QUERY_KEYS]);

    snprintf(name, sizeof(name), "queries[%u].pooling", index);
    hps_status status = check_enum(decoder, name, raw->pooling, POOLING_LAST);
    if (status != HPS_OK) {
        return status;
    }
    if ((uint32_t)raw->pooling > POOLING_NONE) {
        return not_built(decoder, name, (uint32_t)raw->pooling);
    }
    for (unsigned i = 0; i < sizeof(absent) / sizeof(absent[0]); i++) {
        if (cursor_size(&raw->bytes[absent[i].field]) > 0) {
            return hps_error_set(decoder->err, HPS_UNIMPLEMENTED,
                                 "queries[%u].%s: not supported by this server", index,
                                 absent[i].name);
        }
    }
    if (size % sizeof(hps_key) != 0) {
        return hps_error_set(decoder->err, HPS_INVALID,
                             "queries[%u].keys: %zu bytes are not a multiple of 8", index, size);
    }
    if (size > 0 && raw->n_listed > 0) {
        return hps_error_set(decoder->err, HPS_INVALID,
                             "queries[%u]: both keys (%zu) and key_list (%" PRIu64 ") are set",
                             index, size / sizeof(hps_key), raw->n_listed);
    }
    return HPS_OK;
}

/* n_keys_before: of the queries before this one. */
static hps_status decode_query(const struct decoder *decoder, struct cursor in, uint32_t index,
                               uint64_t n_keys_before, struct hps_lookup_query *out)
{
    struct raw_query raw = {0};
    hps_status status = scan_query(decoder, in, &raw);

    if (status == HPS_OK) {
        status = check_query(decoder, &raw, index);
    }
    if (status != HPS_OK) {
        return status;
    }
    uint64_t n_keys = raw.n_listed + cursor_size(&raw.bytes[QUERY_KEYS]) / sizeof(hps_key);
    if (n_keys_before + n_keys > decoder->limits->keys_max) {
        return hps_error_set(decoder->err, HPS_INVALID,
                             "queries[%u]: %" PRIu64 " keys make %" PRIu64
                             " in the request, limit is %u",
                             index, n_keys, n_keys_before + n_keys, decoder->limits->keys_max);
    }
    out->table = (const char *)raw.bytes[QUERY_TABLE].at;
    out->table_size = cursor_size(&raw.bytes[QUERY_TABLE]);
    out->n_keys = (uint32_t)n_keys;
    out->keys = n_keys == 0 ? NULL : raw.bytes[QUERY_KEYS].at;
    if (raw.n_pieces == 1) {
        out->keys = raw.bytes[QUERY_KEY_LIST].at;
    } else if (raw.n_pieces > 1) {
        out->keys = join_pieces(decoder, in, raw.n_listed);
        if (out->keys == NULL) {
            return hps_error_set(decoder->err, HPS_EXHAUSTED,
                                 "queries[%u]: no memory for %" PRIu64 " keys", index, n_keys);
        }
    }
    return HPS_OK;
}

static hps_status decode_queries(const struct decoder *decoder, struct cursor in,
                                 struct hps_lookup_request *request)
{
    struct field field;
    uint32_t index = 0;

    if (request->n_queries == 0) {
        return HPS_OK;
    }
    request->queries =
        hps_arena_calloc(decoder->arena, request->n_queries, sizeof(*request->queries));
    if (request->queries == NULL) {
        return hps_error_set(decoder->err, HPS_EXHAUSTED, "queries: no memory for %u",
                             request->n_queries);
    }
    while (in.at < in.end && read_field(&in, &field)) {
        if (field.number != REQUEST_QUERIES) {
            continue;
        }
        HPS_ASSERT(index < request->n_queries); /* it was scanned */
        hps_status status = decode_query(decoder, field_bytes(&field), index, request->n_keys,
                                         &request->queries[index]);
        if (status != HPS_OK) {
            return status;
        }
        request->n_keys += request->queries[index].n_keys;
        index++;
    }
    return HPS_OK;
}

/* ---- the request ----------------------------------------------------------------------------- */

static hps_status scan_request(const struct decoder *decoder, struct cursor in,
                               struct raw_request *out)
{
    struct field field;
    unsigned n_fields = 0;

    while (in.at < in.end) {
        if (!read_field(&in, &field)) {
            return malformed(decoder, "LookupRequest");
        }
        if (field.number != REQUEST_QUERIES && ++n_fields > FIELDS_MAX) {
            return too_many_fields(decoder, "LookupRequest");
        }
        if (field.number >= REQUEST_FIELDS) {
            continue;
        }
        bool bytes = field.number == REQUEST_MODEL || field.number == REQUEST_QUERIES ||
                     field.number == REQUEST_REQUEST_ID;
        if (field.wire != (bytes ? WIRE_LEN : WIRE_VARINT)) {
            return malformed(decoder, "LookupRequest");
        }
        if (field.number == REQUEST_QUERIES) {
            if (out->n_queries == decoder->limits->tables_max) {
                return hps_error_set(decoder->err, HPS_INVALID,
                                     "queries: more than %u, which is the limit",
                                     decoder->limits->tables_max);
            }
            out->n_queries++;
            continue;
        }
        out->value[field.number] = field.value;
        out->bytes[field.number] = field_bytes(&field);
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
        {REQUEST_OUTPUT_TYPE, DATA_TYPE_LAST, "output_type"},
        {REQUEST_CONSISTENCY, CONSISTENCY_LAST, "consistency"},
    };

    for (unsigned i = 0; i < sizeof(enums) / sizeof(enums[0]); i++) {
        hps_status status =
            check_enum(decoder, enums[i].name, raw->value[enums[i].field], enums[i].last);
        if (status != HPS_OK) {
            return status;
        }
    }
    return HPS_OK;
}

static hps_status check_request(const struct decoder *decoder, const struct raw_request *raw)
{
    size_t id_size = cursor_size(&raw->bytes[REQUEST_REQUEST_ID]);
    hps_status status = check_enums(decoder, raw);

    if (status != HPS_OK) {
        return status;
    }
    if ((int64_t)raw->value[REQUEST_VERSION] < 0) {
        return hps_error_set(decoder->err, HPS_INVALID, "version: %" PRId64 " is below 0",
                             (int64_t)raw->value[REQUEST_VERSION]);
    }
    if (id_size > decoder->limits->request_id_max) {
        return hps_error_set(decoder->err, HPS_INVALID, "request_id: %zu bytes, limit is %u",
                             id_size, decoder->limits->request_id_max);
    }
    return HPS_OK;
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
        .n_queries = raw.n_queries,
        .miss_policy = (enum hps_miss_policy)(uint32_t)raw.value[REQUEST_MISS_POLICY],
        .max_wait_us = (uint32_t)raw.value[REQUEST_MAX_WAIT_US],
        .max_staleness_ms = (uint32_t)raw.value[REQUEST_MAX_STALENESS_MS],
        .unit = (uint32_t)raw.value[REQUEST_CONSISTENCY] == CONSISTENCY_UNIT,
        .unknown_policy = (enum hps_unknown_policy)(uint32_t)raw.value[REQUEST_UNKNOWN_KEY_POLICY],
        .output = output == 0 ? HPS_DTYPE_FP32 : (enum hps_dtype)output,
        .explain = raw.value[REQUEST_EXPLAIN] != 0,
        .request_id_size = cursor_size(&raw.bytes[REQUEST_REQUEST_ID]),
    };
    if (request.request_id_size > 0) {
        request.request_id = (const char *)raw.bytes[REQUEST_REQUEST_ID].at;
    }
    status = decode_queries(&decoder, in, &request);
    if (status == HPS_OK) {
        HPS_ASSERT(request.n_keys <= limits->keys_max);
        HPS_ASSERT(request.n_queries <= limits->tables_max);
        *out_request = request;
    }
    return status;
}
