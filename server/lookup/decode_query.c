/* SPDX-License-Identifier: Apache-2.0
 *
 * Decodes one TableQuery: its keys, and the bags of a pooled query. Any thread.
 */
#include "server/lookup/decode_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "offsets are read as they travel");

enum query_field {
    QUERY_TABLE = 1,
    QUERY_KEYS,
    QUERY_KEY_LIST,
    QUERY_OFFSETS,
    QUERY_POOLING,
    QUERY_WEIGHTS,
    QUERY_FIELDS
};

/* The fields of a message: of each scalar the last value. */
struct raw_query {
    uint64_t pooling;
    struct cursor bytes[QUERY_FIELDS];
    uint64_t n_listed; /* keys in key_list */
    uint32_t n_pieces; /* pieces of key_list */
};

static hps_status scan_query(const struct decoder *decoder, struct cursor in, struct raw_query *out)
{
    struct field field;
    unsigned n_fields = 0;

    while (in.at < in.end) {
        if (!field_read(&in, &field)) {
            return decode_malformed(decoder, "TableQuery");
        }
        bool piece = field.number == QUERY_KEY_LIST && field.size > 0;
        if (!piece && ++n_fields > FIELDS_MAX) {
            return decode_too_many_fields(decoder, "TableQuery");
        }
        if (field.number >= QUERY_FIELDS) {
            continue;
        }
        bool unpacked = field.number == QUERY_KEY_LIST && field.wire == WIRE_I64;
        uint32_t wire = field.number == QUERY_POOLING ? WIRE_VARINT : WIRE_LEN;
        if (field.wire != wire && !unpacked) {
            return decode_malformed(decoder, "TableQuery");
        }
        if (field.number == QUERY_POOLING) {
            out->pooling = field.value;
            continue;
        }
        if (field.number == QUERY_KEY_LIST) {
            if (field.size % sizeof(hps_key) != 0) {
                return decode_malformed(decoder, "TableQuery.key_list");
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

/* Joins the pieces of key_list. `in` is valid: it has been scanned. */
static uint8_t *join_pieces(const struct decoder *decoder, struct cursor in, uint64_t n_listed)
{
    uint8_t *keys = hps_arena_alloc(decoder->arena, n_listed * sizeof(hps_key));
    struct field field;
    size_t size = 0;

    while (keys != NULL && in.at < in.end && field_read(&in, &field)) {
        if (field.number == QUERY_KEY_LIST) {
            HPS_ASSERT(size + field.size <= n_listed * sizeof(hps_key));
            memcpy(keys + size, field.data, field.size);
            size += field.size;
        }
    }
    return keys;
}

/* ---- keys ------------------------------------------------------------------------------------ */

static hps_status check_keys(const struct decoder *decoder, const struct raw_query *raw,
                             uint32_t index)
{
    size_t size = cursor_size(&raw->bytes[QUERY_KEYS]);

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

static hps_status take_keys(const struct decoder *decoder, struct cursor in,
                            const struct raw_query *raw, const struct hps_lookup_request *request,
                            struct hps_lookup_query *out)
{
    uint32_t index = request->n_queries;
    uint64_t n_keys = raw->n_listed + cursor_size(&raw->bytes[QUERY_KEYS]) / sizeof(hps_key);

    if (request->n_keys + n_keys > decoder->limits->keys_max) {
        return HPS_RANGE;
    }
    out->n_keys = (uint32_t)n_keys;
    out->keys = n_keys == 0 ? NULL : raw->bytes[QUERY_KEYS].at;
    if (raw->n_pieces == 1) {
        out->keys = raw->bytes[QUERY_KEY_LIST].at;
    } else if (raw->n_pieces > 1) {
        out->keys = join_pieces(decoder, in, raw->n_listed);
        if (out->keys == NULL) {
            return hps_error_set(decoder->err, HPS_EXHAUSTED,
                                 "queries[%u]: no memory for %" PRIu64 " keys", index, n_keys);
        }
    }
    return HPS_OK;
}

/* ---- bags ------------------------------------------------------------------------------------ */

static uint32_t offset_at(const uint8_t *offsets, size_t i)
{
    uint32_t value;

    memcpy(&value, offsets + i * sizeof(value), sizeof(value));
    return value;
}

/* The first is 0, none is less than the one before, the last is the number of keys. */
static hps_status check_offsets(const struct decoder *decoder, uint32_t index,
                                const struct hps_lookup_query *query)
{
    uint32_t before = offset_at(query->offsets, 0);

    if (before != 0) {
        return hps_error_set(decoder->err, HPS_INVALID,
                             "queries[%u].offsets[0]: %u, but the first bag begins with key 0",
                             index, before);
    }
    for (uint32_t i = 1; i <= query->n_bags; i++) {
        uint32_t offset = offset_at(query->offsets, i);
        if (offset < before) {
            return hps_error_set(decoder->err, HPS_INVALID,
                                 "queries[%u].offsets[%u]: %u is below the one before it, %u",
                                 index, i, offset, before);
        }
        before = offset;
    }
    if (before != query->n_keys) {
        return hps_error_set(
            decoder->err, HPS_INVALID,
            "queries[%u].offsets[%u]: %u, but the last bag ends with the %u keys of the query",
            index, query->n_bags, before, query->n_keys);
    }
    return HPS_OK;
}

/* Rejects the fields of pooled queries in a query without pooling. */
static hps_status refuse_bags(const struct decoder *decoder, const struct raw_query *raw,
                              uint32_t index)
{
    bool offsets = cursor_size(&raw->bytes[QUERY_OFFSETS]) > 0;

    if (!offsets && cursor_size(&raw->bytes[QUERY_WEIGHTS]) == 0) {
        return HPS_OK;
    }
    return hps_error_set(decoder->err, HPS_INVALID, "queries[%u].%s: needs queries[%u].pooling",
                         index, offsets ? "offsets" : "weights", index);
}

static hps_status check_sizes(const struct decoder *decoder, const struct raw_query *raw,
                              const struct hps_lookup_request *request, uint32_t n_keys)
{
    uint32_t index = request->n_queries;
    size_t size = cursor_size(&raw->bytes[QUERY_OFFSETS]);
    size_t weights_size = cursor_size(&raw->bytes[QUERY_WEIGHTS]);
    uint64_t n_bags = size / sizeof(uint32_t) - (size == 0 ? 0 : 1);

    if (size == 0) {
        return hps_error_set(decoder->err, HPS_INVALID,
                             "queries[%u].offsets: got none with queries[%u].pooling, expected "
                             "where each bag begins: bags + 1 values",
                             index, index);
    }
    if (size % sizeof(uint32_t) != 0) {
        return hps_error_set(decoder->err, HPS_INVALID,
                             "queries[%u].offsets: %zu bytes are not a multiple of 4", index, size);
    }
    if (request->n_bags + n_bags > decoder->limits->keys_max) {
        return HPS_RANGE;
    }
    if (weights_size > 0 && weights_size != (size_t)n_keys * sizeof(float)) {
        return hps_error_set(decoder->err, HPS_INVALID,
                             "queries[%u].weights: got %zu bytes, expected 4 for each of %u keys",
                             index, weights_size, n_keys);
    }
    return HPS_OK;
}

static hps_status take_bags(const struct decoder *decoder, const struct raw_query *raw,
                            const struct hps_lookup_request *request, struct hps_lookup_query *out)
{
    const struct cursor *offsets = &raw->bytes[QUERY_OFFSETS];
    const struct cursor *weights = &raw->bytes[QUERY_WEIGHTS];
    uint32_t pooling = (uint32_t)raw->pooling;

    out->pooling = pooling == 0 ? HPS_POOLING_NONE : (enum hps_pooling)pooling;
    if (out->pooling == HPS_POOLING_NONE) {
        return refuse_bags(decoder, raw, request->n_queries);
    }
    hps_status status = check_sizes(decoder, raw, request, out->n_keys);
    if (status != HPS_OK) {
        return status;
    }
    out->offsets = offsets->at;
    out->n_bags = (uint32_t)(cursor_size(offsets) / sizeof(uint32_t) - 1);
    out->weights = cursor_size(weights) == 0 ? NULL : weights->at;
    return check_offsets(decoder, request->n_queries, out);
}

/* ---- the query ------------------------------------------------------------------------------- */

hps_status decode_query(const struct decoder *decoder, struct cursor in,
                        struct hps_lookup_request *request)
{
    struct raw_query raw = {0};
    struct hps_lookup_query query = {0};
    char name[48];
    hps_status status = scan_query(decoder, in, &raw);

    snprintf(name, sizeof(name), "queries[%u].pooling", request->n_queries);
    if (status == HPS_OK) {
        status = decode_check_enum(decoder, name, raw.pooling, HPS_POOLING_MEAN_BY_COUNT);
    }
    if (status == HPS_OK) {
        status = check_keys(decoder, &raw, request->n_queries);
    }
    if (status == HPS_OK) {
        status = take_keys(decoder, in, &raw, request, &query);
    }
    if (status == HPS_OK) {
        status = take_bags(decoder, &raw, request, &query);
    }
    if (status != HPS_OK) {
        return status;
    }
    query.table = (const char *)raw.bytes[QUERY_TABLE].at;
    query.table_size = cursor_size(&raw.bytes[QUERY_TABLE]);
    request->queries[request->n_queries++] = query;
    request->n_keys += query.n_keys;
    request->n_bags += query.n_bags;
    return HPS_OK;
}

void decode_count(const struct decoder *decoder, struct cursor in, struct decode_count *count)
{
    struct raw_query raw = {0};

    if (scan_query(decoder, in, &raw) == HPS_OK) {
        size_t n_offsets = cursor_size(&raw.bytes[QUERY_OFFSETS]) / sizeof(uint32_t);
        count->n_keys += raw.n_listed + cursor_size(&raw.bytes[QUERY_KEYS]) / sizeof(hps_key);
        count->n_bags += n_offsets == 0 ? 0 : n_offsets - 1;
    }
}
