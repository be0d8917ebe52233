/* SPDX-License-Identifier: Apache-2.0
 *
 * The wire format is read byte by byte, so that it may be cut anywhere, except for fields of bytes,
 * which are copied or skipped as a whole. Rows go where they belong as soon as their size is known.
 * Everything is checked again when a result and the reply are complete. One thread at a time.
 */
#include "client/intake.h"

#include <inttypes.h>
#include <string.h>

#include "base/assert.h"
#include "base/dtype.h"
#include "base/heap.h"
#include "client/wire.h"

/* Fields of LookupResponse and TableResult in proto/hps/v1/lookup.proto. */
enum {
    REPLY_VERSION = 2,
    REPLY_LABEL = 3,
    REPLY_RESULTS = 4,
    REPLY_UPDATE_SEQUENCE = 5,
    REPLY_EVENT_TIME = 6,
    REPLY_MATRIX = 15,
    RESULT_DIM = 2,
    RESULT_DATA_TYPE = 3,
    RESULT_ROW_COUNT = 4,
    RESULT_UNIQUE = 5,
    RESULT_DEFAULTED = 6,
    RESULT_UNKNOWN = 7,
    RESULT_KEY_STATUS = 8,
    RESULT_TIERS = 9,
    RESULT_COLUMN = 10,
    RESULT_ROWS = 15,
};

/* Fewer bytes are not worth a read of their own. Rows of several tables are then received at once,
 * with the heads between them. Feeding moves them to where they belong, while they are in the
 * cache. */
enum { ROOM_BYTES_MIN = 64 * 1024 };

static size_t query_rows(const struct hpsd_query *query)
{
    return query->offsets == NULL ? query->n_keys : query->n_bags;
}

static size_t first_key(const struct hpsd_query *query, size_t row)
{
    return query->offsets == NULL ? row : query->offsets[row];
}

static hps_status malformed(struct hps_error *err)
{
    return hps_error_set(err, HPS_DATA_LOSS, "the reply is not a LookupResponse");
}

static hps_status broken(const struct hps_intake *intake, size_t query, const char *what,
                         struct hps_error *err)
{
    const char *table = intake->queries[query].table;

    return hps_error_set(err, HPS_DATA_LOSS, "the reply is wrong: queries[%zu]%s%.120s: %s", query,
                         table == NULL ? "" : ", table ", table == NULL ? "" : table, what);
}

/* ---- results --------------------------------------------------------------------------------- */

static void begin_part(struct hps_intake *intake)
{
    intake->part = (struct hps_intake_part){.query = intake->query, .dtype = HPS_DTYPE_FP32};
    if (intake->concat) {
        intake->part.query = intake->n_message_results;
    }
}

static hps_status check_part(const struct hps_intake *intake, const struct hps_intake_part *part,
                             struct hps_error *err)
{
    const struct hpsd_query *query = &intake->queries[part->query];
    const struct hpsd_result *result = &intake->results[part->query];
    bool is_first = intake->row == 0;

    if (part->dtype > UINT8_MAX || !hps_dtype_is_stored((unsigned)part->dtype) ||
        part->dim > UINT32_MAX || (query->offsets != NULL && part->dtype > HPS_DTYPE_BF16)) {
        return broken(intake, part->query, "unknown type of rows", err);
    }
    if (intake->dtype != 0 && part->dtype != intake->dtype) {
        return broken(intake, part->query, "not the requested type of values", err);
    }
    if (part->n_rows > query_rows(query) - intake->row) {
        return broken(intake, part->query, "more rows than requested", err);
    }
    if (!is_first && (result->dim != part->dim || (uint64_t)result->dtype != part->dtype)) {
        return broken(intake, part->query, "rows of two types", err);
    }
    uint64_t row_bytes = hps_dtype_row_bytes((enum hps_dtype)part->dtype, (uint32_t)part->dim);
    if (part->rows_bytes != (intake->concat ? 0 : row_bytes * part->n_rows)) {
        return broken(intake, part->query, "the size of its rows does not match", err);
    }
    size_t n_keys =
        first_key(query, intake->row + (size_t)part->n_rows) - first_key(query, intake->row);
    if (part->n_status != 0 && part->n_status != n_keys) {
        return broken(intake, part->query, "the number of key states does not match the keys", err);
    }
    return HPS_OK;
}

static void take_part(struct hps_intake *intake, const struct hps_intake_part *part)
{
    const struct hpsd_query *query = &intake->queries[part->query];
    struct hpsd_result *result = &intake->results[part->query];
    size_t begin = first_key(query, intake->row);
    size_t end = first_key(query, intake->row + (size_t)part->n_rows);

    if (query->key_status != NULL && part->n_status == 0) {
        memset(query->key_status + begin, HPSD_KEY_FOUND, end - begin);
    }
    result->dim = (uint32_t)part->dim;
    result->dtype = (enum hpsd_dtype)part->dtype;
    result->n_rows += (size_t)part->n_rows;
    result->n_unique += (uint32_t)part->n_unique;
    result->n_defaulted += (uint32_t)part->n_defaulted;
    result->n_unknown += (uint32_t)part->n_unknown;
}

/* The result that was coming is complete. */
static hps_status finish_part(struct hps_intake *intake, struct hps_error *err)
{
    const struct hps_intake_part *part = &intake->part;

    intake->depth = HPS_INTAKE_MESSAGE;
    hps_status status = check_part(intake, part, err);
    if (status != HPS_OK) {
        return status;
    }
    take_part(intake, part);
    intake->n_message_results++;
    if (intake->concat) { /* the rows are in the matrix */
        uint64_t column = intake->message_columns;
        intake->message_columns += part->dim;
        return part->column == column ? HPS_OK
                                      : broken(intake, part->query, "not the next columns", err);
    }
    intake->row += (size_t)part->n_rows;
    if (intake->row == query_rows(&intake->queries[part->query])) {
        intake->query++;
        intake->row = 0;
        intake->query_rows_used = 0;
    } else if (!intake->stream) {
        return broken(intake, part->query, "fewer rows than requested", err);
    }
    return HPS_OK;
}

/* Adds to the counts of a result what one tier has found. False: malformed. */
static bool take_tier(struct hps_intake *intake)
{
    struct hpsd_result *result = &intake->results[intake->part.query];
    struct hps_wire_reader reader = {intake->scratch, intake->n_scratch, 0};
    struct hps_wire_field field;
    struct hpsd_tier tier = {0};
    uint32_t at = 0;

    while (hps_wire_next(&reader, &field)) {
        if (field.number == 1 && field.type == HPS_WIRE_BYTES) {
            size_t size = field.size < sizeof(tier.name) ? field.size : sizeof(tier.name) - 1;
            memcpy(tier.name, field.data, size);
        } else if (field.number == 2) {
            tier.found_keys = (uint32_t)field.value;
        }
    }
    while (at < result->n_tiers && strcmp(result->tiers[at].name, tier.name) != 0) {
        at++;
    }
    if (at < result->n_tiers) {
        result->tiers[at].found_keys += tier.found_keys;
    } else if (at < HPSD_TIERS_MAX) {
        result->tiers[result->n_tiers++] = tier;
    }
    return !hps_wire_broken(&reader);
}

/* ---- fields of bytes ------------------------------------------------------------------------- */

static hps_status place_rows(struct hps_intake *intake, uint64_t size, struct hps_error *err)
{
    size_t index = intake->concat ? 0 : intake->part.query;
    const struct hpsd_query *query = &intake->queries[index];
    bool own = !intake->concat && query->rows != NULL;
    size_t *used = own ? &intake->query_rows_used : &intake->rows_used;
    size_t left = (own ? query->rows_size : intake->rows_size) - *used;

    if (size > left) {
        return hps_error_set(err, HPS_RANGE,
                             "the rows of queries[%zu] do not fit: they have %" PRIu64
                             " bytes, and %zu of the %zu bytes of memory are left",
                             index, size, left, left + *used);
    }
    intake->to = (own ? (uint8_t *)query->rows : intake->rows) + *used;
    intake->to_end = intake->to + left;
    *used += (size_t)size;
    return HPS_OK;
}

static hps_status place_status(struct hps_intake *intake, uint64_t size, struct hps_error *err)
{
    const struct hpsd_query *query = &intake->queries[intake->part.query];
    size_t begin = first_key(query, intake->row);

    if (intake->part.n_status != 0 || size > query->n_keys - begin) {
        return broken(intake, intake->part.query,
                      "the number of key states does not match the keys", err);
    }
    intake->part.n_status = size;
    intake->to = query->key_status == NULL ? NULL : query->key_status + begin;
    return HPS_OK;
}

static void place_scratch(struct hps_intake *intake, uint64_t size)
{
    intake->n_scratch = 0;
    if (size <= sizeof(intake->scratch)) {
        intake->n_scratch = (size_t)size;
        intake->to = intake->scratch;
    }
}

/* A field of `size` bytes begins. */
static hps_status begin_bytes(struct hps_intake *intake, uint64_t size, struct hps_error *err)
{
    uint64_t number = intake->tag >> 3;
    hps_status status = HPS_OK;

    if (size > intake->left[intake->depth]) {
        return malformed(err);
    }
    intake->left[intake->depth] -= size;
    intake->bytes_left = size;
    intake->to = NULL;
    intake->to_end = NULL;
    intake->step = HPS_INTAKE_BYTES;
    if (intake->depth == HPS_INTAKE_RESULT) {
        if (number == RESULT_ROWS) {
            if (intake->part.rows_bytes != 0) {
                return broken(intake, intake->part.query, "two fields with rows", err);
            }
            intake->part.rows_bytes = size;
            status = intake->concat && size > 0 ? malformed(err) : place_rows(intake, size, err);
        } else if (number == RESULT_KEY_STATUS) {
            status = place_status(intake, size, err);
        } else if (number == RESULT_TIERS) {
            place_scratch(intake, size);
        }
    } else if (number == REPLY_RESULTS) {
        size_t at = intake->concat ? intake->n_message_results : intake->query;
        if (at >= intake->n_queries) {
            return hps_error_set(err, HPS_DATA_LOSS, "the reply has more rows than requested");
        }
        intake->depth = HPS_INTAKE_RESULT;
        intake->left[HPS_INTAKE_RESULT] = size;
        intake->step = HPS_INTAKE_TAG;
        begin_part(intake);
    } else if (number == REPLY_LABEL) {
        place_scratch(intake, size);
    } else if (number == REPLY_MATRIX && size > 0) {
        if (!intake->concat || intake->message_matrix_bytes != 0) {
            return malformed(err);
        }
        intake->message_matrix_bytes = size;
        status = place_rows(intake, size, err);
    }
    return status;
}

/* The field is complete. */
static hps_status end_bytes(struct hps_intake *intake, struct hps_error *err)
{
    uint64_t number = intake->tag >> 3;

    intake->step = HPS_INTAKE_TAG;
    if (intake->to == NULL || intake->n_scratch == 0) {
        return HPS_OK;
    }
    if (intake->depth == HPS_INTAKE_RESULT && number == RESULT_TIERS) {
        return take_tier(intake) ? HPS_OK : malformed(err);
    }
    if (intake->depth == HPS_INTAKE_MESSAGE && number == REPLY_LABEL) {
        char *label = intake->reply.label;
        size_t size = intake->n_scratch < sizeof(intake->reply.label)
                          ? intake->n_scratch
                          : sizeof(intake->reply.label) - 1;
        memcpy(label, intake->scratch, size);
        label[size] = '\0';
    }
    return HPS_OK;
}

/* ---- other fields ---------------------------------------------------------------------------- */

static void take_number(struct hps_intake *intake)
{
    struct hps_intake_part *part = &intake->part;
    uint64_t value = intake->value;
    uint64_t number = intake->tag >> 3;

    if (intake->depth == HPS_INTAKE_MESSAGE) {
        if (number == REPLY_VERSION) {
            intake->reply.version = (int64_t)value;
        } else if (number == REPLY_UPDATE_SEQUENCE) {
            intake->reply.update_sequence = value;
        } else if (number == REPLY_EVENT_TIME) {
            intake->reply.event_time_unix_ms = (int64_t)value;
        }
        return;
    }
    switch (number) {
    case RESULT_DIM:
        part->dim = value;
        break;
    case RESULT_DATA_TYPE:
        part->dtype = value == 0 ? HPS_DTYPE_FP32 : value;
        break;
    case RESULT_ROW_COUNT:
        part->n_rows = value;
        break;
    case RESULT_UNIQUE:
        part->n_unique = value;
        break;
    case RESULT_DEFAULTED:
        part->n_defaulted = value;
        break;
    case RESULT_UNKNOWN:
        part->n_unknown = value;
        break;
    case RESULT_COLUMN:
        part->column = value;
        break;
    default:
        break; /* field of a later version */
    }
}

/* A varint is complete. */
static hps_status take_varint(struct hps_intake *intake, struct hps_error *err)
{
    switch (intake->step) {
    case HPS_INTAKE_TAG:
        intake->tag = intake->value;
        switch (intake->tag & 7) {
        case HPS_WIRE_VARINT:
            intake->step = HPS_INTAKE_VARINT;
            return HPS_OK;
        case HPS_WIRE_BYTES:
            intake->step = HPS_INTAKE_SIZE;
            return HPS_OK;
        case HPS_WIRE_I64:
        case HPS_WIRE_I32: /* fields of a later version: skipped */
            intake->bytes_left = (intake->tag & 7) == HPS_WIRE_I64 ? 8 : 4;
            intake->to = NULL;
            intake->step = HPS_INTAKE_BYTES;
            if (intake->bytes_left > intake->left[intake->depth]) {
                return malformed(err);
            }
            intake->left[intake->depth] -= intake->bytes_left;
            return HPS_OK;
        default:
            return malformed(err);
        }
    case HPS_INTAKE_VARINT:
        take_number(intake);
        intake->step = HPS_INTAKE_TAG;
        return HPS_OK;
    case HPS_INTAKE_SIZE:
        return begin_bytes(intake, intake->value, err);
    case HPS_INTAKE_BYTES:
        break;
    }
    return malformed(err);
}

/* The next byte of a varint. */
static hps_status take_byte(struct hps_intake *intake, uint8_t byte, struct hps_error *err)
{
    if (intake->left[intake->depth] == 0 || intake->shift > 63) {
        return malformed(err);
    }
    intake->left[intake->depth]--;
    intake->value |= (uint64_t)(byte & 0x7f) << intake->shift;
    if (byte & 0x80) {
        intake->shift += 7;
        return HPS_OK;
    }
    hps_status status = take_varint(intake, err);
    intake->value = 0;
    intake->shift = 0;
    return status;
}

/* Takes bytes of the current field. Returns how many. */
static size_t take_bytes(struct hps_intake *intake, const uint8_t *data, size_t size)
{
    size_t n = size < intake->bytes_left ? size : (size_t)intake->bytes_left;

    if (intake->to != NULL && n > 0) {
        if (intake->to != data) {
            memmove(intake->to, data, n); /* hps_intake_room makes them overlap */
        }
        intake->to += n;
    }
    intake->bytes_left -= n;
    return n;
}

hps_status hps_intake_feed(struct hps_intake *intake, const uint8_t *data, size_t size,
                           struct hps_error *err)
{
    hps_status status = HPS_OK;

    while (status == HPS_OK) {
        if (intake->step == HPS_INTAKE_BYTES) {
            size_t n = take_bytes(intake, data, size);
            data += n;
            size -= n;
            if (intake->bytes_left > 0) {
                return HPS_OK;
            }
            status = end_bytes(intake, err);
        } else if (intake->step == HPS_INTAKE_TAG && intake->shift == 0 &&
                   intake->depth == HPS_INTAKE_RESULT && intake->left[HPS_INTAKE_RESULT] == 0) {
            status = finish_part(intake, err);
        } else if (size > 0) {
            size--;
            status = take_byte(intake, *data++, err);
        } else {
            return HPS_OK;
        }
    }
    return status;
}

uint8_t *hps_intake_room(const struct hps_intake *intake, size_t size, size_t *out_room)
{
    size_t left = (size_t)intake->bytes_left;

    if (intake->step != HPS_INTAKE_BYTES || intake->to == NULL || intake->to_end == NULL) {
        return NULL;
    }
    if (left < size && left < ROOM_BYTES_MIN) {
        left = (size_t)(intake->to_end - intake->to);
    }
    size = size < left ? size : left;
    if (size < ROOM_BYTES_MIN) {
        return NULL;
    }
    *out_room = size;
    return intake->to;
}

/* ---- messages -------------------------------------------------------------------------------- */

void hps_intake_init(struct hps_intake *intake, const struct hpsd_lookup *lookup,
                     const struct hpsd_query *queries, struct hpsd_result *results)
{
    *intake = (struct hps_intake){
        .queries = queries,
        .n_queries = lookup->n_queries,
        .results = results,
        .rows = lookup->rows,
        .rows_size = lookup->rows_size,
        .owned = lookup->rows == NULL,
        .concat = lookup->concat,
        .stream = lookup->stream,
        .dtype = lookup->output_type == 0          ? HPS_DTYPE_FP32
                 : lookup->output_type == HPSD_RAW ? 0
                                                   : (unsigned)lookup->output_type,
    };
    hps_intake_reset(intake);
}

void hps_intake_fini(struct hps_intake *intake)
{
    if (intake->owned) {
        hps_free(intake->rows);
        intake->rows = NULL;
        intake->rows_size = 0;
    }
}

void hps_intake_reset(struct hps_intake *intake)
{
    intake->query = intake->row = 0;
    intake->rows_used = intake->query_rows_used = 0;
    intake->n_messages = 0;
    intake->n_message_results = 0;
    intake->message_matrix_bytes = 0;
    intake->message_columns = 0;
    intake->reply = (struct hpsd_reply){0};
    intake->depth = HPS_INTAKE_MESSAGE;
    intake->step = HPS_INTAKE_TAG;
    intake->left[0] = intake->left[1] = 0;
    intake->value = 0;
    intake->shift = 0;
    for (size_t i = 0; i < intake->n_queries; i++) {
        struct hpsd_result *result = &intake->results[i];
        memset(result, 0, offsetof(struct hpsd_result, tiers)); /* tiers: [n_tiers] */
    }
}

/* The last message is complete. */
static hps_status finish_message(struct hps_intake *intake, struct hps_error *err)
{
    if (intake->left[HPS_INTAKE_MESSAGE] != 0 || intake->depth != HPS_INTAKE_MESSAGE ||
        intake->step != HPS_INTAKE_TAG || intake->shift != 0) {
        return malformed(err);
    }
    if (!intake->concat || intake->n_messages == 0 || intake->n_queries == 0) {
        return HPS_OK;
    }
    uint64_t row_bytes = 0;
    size_t n_rows = intake->results[0].n_rows;
    if (intake->n_message_results != intake->n_queries) {
        return hps_error_set(err, HPS_DATA_LOSS, "expected one result for each table in the reply");
    }
    for (size_t i = 0; i < intake->n_queries; i++) {
        const struct hpsd_result *result = &intake->results[i];
        if (result->n_rows != n_rows || result->dtype != intake->results[0].dtype ||
            result->dtype > HPSD_BF16) {
            return broken(intake, i, "not columns of the matrix", err);
        }
        row_bytes += hpsd_row_bytes(result->dtype, result->dim);
    }
    if (intake->message_columns > UINT32_MAX || intake->rows_used != row_bytes * n_rows) {
        return hps_error_set(err, HPS_DATA_LOSS, "the columns do not fit the bytes of the matrix");
    }
    intake->row = n_rows;
    return HPS_OK;
}

/* Makes the memory of the library large enough for the rows of a message of `size` bytes. */
static hps_status make_room(struct hps_intake *intake, size_t size, struct hps_error *err)
{
    bool wanted = intake->concat;

    for (size_t i = 0; i < intake->n_queries && !wanted; i++) {
        wanted = intake->queries[i].rows == NULL && intake->queries[i].n_keys > 0;
        wanted = wanted || (intake->queries[i].rows == NULL && intake->queries[i].n_bags > 0);
    }
    if (!intake->owned || !wanted || intake->rows_size - intake->rows_used >= size) {
        return HPS_OK;
    }
    size_t want = intake->rows_used + size;
    want = want < 2 * intake->rows_size ? 2 * intake->rows_size : want;
    uint8_t *rows = hps_realloc(intake->rows, want);
    if (rows == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for %zu bytes of rows", want);
    }
    intake->rows = rows;
    intake->rows_size = want;
    return HPS_OK;
}

hps_status hps_intake_begin(struct hps_intake *intake, size_t size, struct hps_error *err)
{
    hps_status status = finish_message(intake, err);

    if (status == HPS_OK && intake->n_messages > 0 && !intake->stream) {
        status = hps_error_set(err, HPS_DATA_LOSS, "the server sent two replies to one call");
    }
    if (status == HPS_OK) {
        status = make_room(intake, size, err);
    }
    if (status != HPS_OK) {
        return status;
    }
    intake->n_messages++;
    intake->n_message_results = 0;
    intake->message_matrix_bytes = 0;
    intake->message_columns = 0;
    intake->left[HPS_INTAKE_MESSAGE] = size;
    intake->reply.bytes += size;
    return HPS_OK;
}

/* Sets where the rows of each result are. */
static void place_results(struct hps_intake *intake)
{
    size_t column_bytes = 0;
    size_t stride = 0;
    uint8_t *rows = intake->rows;

    for (size_t i = 0; i < intake->n_queries && intake->concat; i++) {
        stride += hpsd_row_bytes(intake->results[i].dtype, intake->results[i].dim);
    }
    for (size_t i = 0; i < intake->n_queries; i++) {
        struct hpsd_result *result = &intake->results[i];
        size_t row_bytes = hpsd_row_bytes(result->dtype, result->dim);
        result->stride = intake->concat ? stride : row_bytes;
        if (result->n_rows == 0 || row_bytes == 0) {
            result->rows = NULL;
        } else if (intake->concat) {
            result->rows = rows + column_bytes;
            column_bytes += row_bytes;
        } else if (intake->queries[i].rows != NULL) {
            result->rows = intake->queries[i].rows;
        } else {
            result->rows = rows;
            rows += row_bytes * result->n_rows;
        }
    }
}

hps_status hps_intake_end(struct hps_intake *intake, struct hpsd_reply *out_reply,
                          struct hps_error *err)
{
    hps_status status = finish_message(intake, err);

    if (status != HPS_OK) {
        return status;
    }
    if (intake->n_messages == 0) {
        return hps_error_set(err, HPS_INTERNAL, "the server sent no reply");
    }
    bool complete = intake->concat
                        ? intake->n_queries == 0 || intake->row == query_rows(&intake->queries[0])
                        : intake->query == intake->n_queries;
    if (!complete) {
        return hps_error_set(err, HPS_DATA_LOSS, "the reply has fewer rows than requested");
    }
    place_results(intake);
    *out_reply = intake->reply;
    if (intake->owned && intake->rows_used == 0) {
        hps_intake_fini(intake);
    } else if (intake->owned) {
        out_reply->memory = intake->rows;
        intake->rows = NULL;
        intake->rows_size = 0;
    }
    return HPS_OK;
}
