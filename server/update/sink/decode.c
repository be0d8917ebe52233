/* SPDX-License-Identifier: Apache-2.0
 *
 * Decodes records into parts: see decode.h. Two buffers hold the keys and the rows of all records,
 * in order. Consecutive records of one table share a part. If a record is bad, its keys and rows
 * are removed again. Thread `update`.
 */
#include "server/update/sink/decode.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "base/assert.h"
#include "base/buf.h"
#include "base/dtype.h"
#include "base/heap.h"
#include "base/rows/finite.h"
#include "base/text.h"
#include "hps/v1/update.pb-c.h"
#include "server/rpc/message.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "keys are copied without conversion");

enum {
    UNPACK_BYTES_FIRST = 64 * 1024,
    UNPACK_BYTES_MAX = 1 << 30, /* a record of 128 MiB grows if it has many small entries */
    ROWS_ALIGN = 8              /* of the rows of a part */
};

struct hps_update_decoder {
    const struct hps_version *version;
    const atomic_bool *nan_allowed;
    uint32_t key_bytes;
    struct hps_buf parts; /* struct hps_update_part, without pointers: the other buffers move */
    struct hps_buf keys, rows;
    struct hps_buf versions; /* a row version for each key, if the version compares them */
    struct hps_buf pairs;    /* the keys and rows of one record, aligned */
    struct hps_arena *arena;
    /* Of the current add; err and outcome are NULL between two. */
    const struct hps_consumer_ops *ops;
    const struct hps_consumer_record *from;
    uint64_t row_version;
    uint32_t source;
    struct hps_error *err;
    struct hps_update_outcome *outcome;
};

/* The sizes of the buffers before a record. */
struct mark {
    size_t keys, rows, parts;
    uint32_t last_n; /* of the last part, which the record may grow */
};

/* ---- parts ----------------------------------------------------------------------------------- */

/* NULL: there are no parts. */
static struct hps_update_part *last_part(struct hps_update_decoder *decoder)
{
    struct hps_update_part *parts = (struct hps_update_part *)(void *)decoder->parts.data;
    size_t n = decoder->parts.size / sizeof(*parts);
    return n > 0 ? &parts[n - 1] : NULL;
}

static size_t align_rows(size_t size)
{
    return (size + ROWS_ALIGN - 1) & ~(size_t)(ROWS_ALIGN - 1);
}

static struct mark mark(struct hps_update_decoder *decoder)
{
    const struct hps_update_part *last = last_part(decoder);
    return (struct mark){decoder->keys.size, decoder->rows.size, decoder->parts.size,
                         last != NULL ? last->n : 0};
}

/* Remove the keys, rows and parts that were added since the mark. */
static void cut(struct hps_update_decoder *decoder, const struct mark *mark)
{
    HPS_ASSERT(mark->keys <= decoder->keys.size && mark->rows <= decoder->rows.size);
    HPS_ASSERT(mark->parts <= decoder->parts.size);
    decoder->keys.size = mark->keys;
    decoder->versions.size = decoder->version->row_versions ? mark->keys : 0;
    decoder->rows.size = mark->rows;
    decoder->parts.size = mark->parts;
    if (mark->parts > 0) {
        last_part(decoder)->n = mark->last_n;
    }
}

static hps_status no_memory(struct hps_update_decoder *decoder)
{
    return hps_error_set(decoder->err, HPS_NO_MEMORY, "no memory for a batch of updates");
}

/* The record is bad. */
#define BAD(decoder, label, ...) \
    ((decoder)->outcome->bad = (label), hps_error_set((decoder)->err, HPS_INVALID, __VA_ARGS__))

/* Add the row version of n keys. */
static bool add_versions(struct hps_update_decoder *decoder, uint32_t n)
{
    bool added = true;
    for (uint32_t i = 0; i < n && added && decoder->version->row_versions; i++) {
        added =
            hps_buf_append(&decoder->versions, &decoder->row_version, sizeof(uint64_t)) == HPS_OK;
    }
    return added;
}

/* Reserve memory for n keys of a table, and for their rows: in the last part or in a new one. */
static hps_status room(struct hps_update_decoder *decoder, uint32_t table_id, bool deletes,
                       uint32_t n, hps_key **out_keys, uint8_t **out_rows)
{
    uint32_t row_bytes = deletes ? 0 : decoder->version->tables[table_id].row_bytes;
    HPS_ASSERT(n > 0 && table_id < decoder->version->n_tables);
    HPS_ASSERT(decoder->outcome != NULL && decoder->err != NULL);
    struct hps_update_part *last = last_part(decoder);
    if (!add_versions(decoder, n) ||
        hps_buf_reserve(&decoder->keys, n * sizeof(hps_key)) != HPS_OK ||
        hps_buf_reserve(&decoder->rows, ROWS_ALIGN + (size_t)n * row_bytes) != HPS_OK) {
        return no_memory(decoder);
    }
    if (last == NULL || last->table_id != table_id || last->row_bytes != row_bytes ||
        last->source != decoder->source) {
        const struct hps_update_part part = {
            .table_id = table_id, .row_bytes = row_bytes, .source = decoder->source};
        if (hps_buf_append(&decoder->parts, &part, sizeof(part)) != HPS_OK) {
            return no_memory(decoder);
        }
        last = last_part(decoder);
        decoder->rows.size = align_rows(decoder->rows.size);
    }
    *out_keys = (hps_key *)(void *)(decoder->keys.data + decoder->keys.size);
    *out_rows = decoder->rows.data + decoder->rows.size;
    decoder->keys.size += n * sizeof(hps_key);
    decoder->rows.size += (size_t)n * row_bytes;
    last->n += n;
    decoder->outcome->n_keys += n;
    return HPS_OK;
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* The row of a key has a value that the version does not take. */
static hps_status bad_value(struct hps_update_decoder *decoder, const struct hps_table *table,
                            hps_key key, uint32_t at, const char *what)
{
    return BAD(decoder, HPS_UPDATE_BAD_NOT_FINITE,
               "table '%s': %s in the row of key %" PRId64 ", %s", table->name, what, (int64_t)key,
               hps_value_name(table->dim, at).text);
}

static hps_status check_finite(struct hps_update_decoder *decoder, const struct hps_table *table,
                               enum hps_dtype dtype, const hps_key *keys, const uint8_t *rows,
                               uint32_t n)
{
    uint32_t at = 0;
    size_t bad = hps_may_be_not_finite(dtype, atomic_load(decoder->nan_allowed))
                     ? n
                     : hps_first_not_finite(dtype, rows, table->dim, n, &at);
    return bad == n ? HPS_OK : bad_value(decoder, table, keys[bad], at, "NaN or Inf");
}

/* Convert rows from FP32 to the type of the table. A half can hold NaN and Inf, if they are
 * allowed. In an INT8 row, one such value would damage all values. */
static hps_status convert_rows(struct hps_update_decoder *decoder, const struct hps_table *table,
                               const hps_key *keys, const uint8_t *from, uint32_t n, uint8_t *to)
{
    HPS_ASSERT(table->dtype != HPS_DTYPE_FP32);
    hps_row_convert_fn convert = hps_row_converter(table->dtype, HPS_DTYPE_FP32, false);
    size_t from_bytes = (size_t)hps_dtype_row_bytes(HPS_DTYPE_FP32, table->dim);
    bool any = hps_may_be_not_finite(table->dtype, atomic_load(decoder->nan_allowed));
    hps_status status = check_finite(decoder, table, HPS_DTYPE_FP32, keys, from, n);
    for (uint32_t i = 0; i < n && status == HPS_OK; i++) {
        uint32_t at;
        if (!any && !hps_row_fits(from, table->dtype, table->dim, &at)) {
            char what[64];
            (void)snprintf(what, sizeof(what), "a value that %s cannot hold",
                           hps_dtype_name(table->dtype));
            return bad_value(decoder, table, keys[i], at, what);
        }
        convert(to, from, table->dim);
        from += from_bytes;
        to += table->row_bytes;
    }
    return status;
}

static hps_status add_deletes(struct hps_update_decoder *decoder, uint32_t table_id,
                              const void *keys, uint32_t n)
{
    hps_key *to;
    uint8_t *none;
    if (n == 0) {
        return HPS_OK;
    }
    hps_status status = room(decoder, table_id, true, n, &to, &none);
    if (status == HPS_OK) {
        memcpy(to, keys, n * sizeof(hps_key));
    }
    return status;
}

/* ---- the forms ------------------------------------------------------------------------------- */

/* Rows of type `dtype`: the type of the table, or FP32. */
static hps_status add_rows(struct hps_update_decoder *decoder, uint32_t table_id,
                           enum hps_dtype dtype, const void *from_keys, const uint8_t *from,
                           uint32_t n)
{
    const struct hps_table *table = &decoder->version->tables[table_id];
    hps_key *keys;
    uint8_t *rows;
    if (n == 0) {
        return HPS_OK;
    }
    hps_status status = room(decoder, table_id, false, n, &keys, &rows);
    if (status != HPS_OK) {
        return status;
    }
    memcpy(keys, from_keys, n * sizeof(hps_key));
    if (dtype != table->dtype) {
        return convert_rows(decoder, table, keys, from, n, rows);
    }
    memcpy(rows, from, (size_t)n * table->row_bytes);
    return check_finite(decoder, table, dtype, keys, rows, n);
}

/* HCTR and KEYED: rows of the table that the topic names. A record without rows carries only
 * times. */
static hps_status add_plain(struct hps_update_decoder *decoder, uint32_t table_id,
                            const struct hps_update_record *record)
{
    size_t keys_size = record->n * sizeof(hps_key);
    if (hps_update_record_deletes(record)) {
        return add_deletes(decoder, table_id, &record->key, 1);
    }
    if (hps_buf_reserve(&decoder->pairs, keys_size + (size_t)record->n * record->row_bytes) !=
        HPS_OK) {
        return no_memory(decoder);
    }
    uint8_t *rows = decoder->pairs.data + keys_size;
    hps_update_record_copy(record, (hps_key *)(void *)decoder->pairs.data, rows);
    return add_rows(decoder, table_id, record->dtype, decoder->pairs.data, rows, record->n);
}

/* The table that an entry of a packed record is for. */
static hps_status packed_table(struct hps_update_decoder *decoder,
                               const struct hps_update_route *route, const char *name,
                               uint32_t *out_table_id)
{
    const struct hps_version *version = decoder->version;
    if (name[0] == '\0' && route->whole_model) {
        return BAD(decoder, HPS_UPDATE_BAD_TABLE,
                   "table: missing, on the topic of the whole model");
    }
    uint32_t table_id =
        name[0] == '\0' ? route->table_id : hps_version_table(version, name, strlen(name));
    if (table_id == HPS_UPDATE_TABLE_NONE || (!route->whole_model && table_id != route->table_id)) {
        return BAD(decoder, HPS_UPDATE_BAD_TABLE, "table '%.130s': %s", name,
                   table_id == HPS_UPDATE_TABLE_NONE ? "the model has no table of that name"
                                                     : "the topic is of another table");
    }
    *out_table_id = table_id;
    return HPS_OK;
}

static hps_status check_packed(struct hps_update_decoder *decoder, uint32_t table_id,
                               const Hps__V1__TableUpdate *update, enum hps_dtype dtype)
{
    const struct hps_table *table = &decoder->version->tables[table_id];
    if (dtype != HPS_DTYPE_FP32 && dtype != table->dtype) {
        return BAD(decoder, HPS_UPDATE_BAD_DTYPE,
                   "table '%s': rows of data_type %d (%s), expected fp32%s%s", table->name,
                   (int)dtype, hps_dtype_name(dtype), table->dtype == HPS_DTYPE_FP32 ? "" : " or ",
                   table->dtype == HPS_DTYPE_FP32 ? "" : hps_dtype_name(table->dtype));
    }
    if (update->keys.len % sizeof(hps_key) != 0 || update->deletes.len % sizeof(hps_key) != 0) {
        return BAD(decoder, HPS_UPDATE_BAD_PAYLOAD,
                   "table '%s': %zu bytes of keys and %zu of deletes, expected multiples of 8",
                   table->name, update->keys.len, update->deletes.len);
    }
    if (update->dim != 0 && update->dim != table->dim) {
        return BAD(decoder, hps_update_reject_text(HPS_UPDATE_REJECT_WIDTH),
                   "table '%s': dim %" PRIu32 ", expected %" PRIu32, table->name, update->dim,
                   table->dim);
    }
    size_t n = update->keys.len / sizeof(hps_key);
    size_t expected = n * (size_t)hps_dtype_row_bytes(dtype, table->dim);
    if (update->rows.len != expected) {
        return BAD(decoder, hps_update_reject_text(HPS_UPDATE_REJECT_WIDTH),
                   "table '%s': %zu bytes of rows for %zu keys, expected %zu: %" PRIu32
                   " values as %s",
                   table->name, update->rows.len, n, expected, table->dim, hps_dtype_name(dtype));
    }
    return HPS_OK;
}

static hps_status add_table(struct hps_update_decoder *decoder,
                            const struct hps_update_route *route,
                            const Hps__V1__TableUpdate *update)
{
    uint32_t table_id = HPS_UPDATE_TABLE_NONE;
    enum hps_dtype dtype =
        update->data_type == 0 ? HPS_DTYPE_FP32 : (enum hps_dtype)update->data_type;
    hps_status status = packed_table(decoder, route, update->table, &table_id);
    if (status == HPS_OK) {
        status = check_packed(decoder, table_id, update, dtype);
    }
    if (status == HPS_OK) {
        status = add_rows(decoder, table_id, dtype, update->keys.data, update->rows.data,
                          (uint32_t)(update->keys.len / sizeof(hps_key)));
    }
    return status == HPS_OK ? add_deletes(decoder, table_id, update->deletes.data,
                                          (uint32_t)(update->deletes.len / sizeof(hps_key)))
                            : status;
}

/* ---- one record ------------------------------------------------------------------------------ */

static bool is_for_other(const struct hps_update_decoder *decoder, bool follows)
{
    int64_t named = decoder->outcome->version;
    return named != 0 ? named != decoder->version->number : !follows;
}

static hps_status add_packed(struct hps_update_decoder *decoder,
                             const struct hps_update_route *route,
                             const struct hps_update_record *record, bool follows)
{
    ProtobufCMessage *message = NULL;
    hps_arena_reset(decoder->arena);
    hps_status status = hps_message_read(&hps__v1__update_batch__descriptor, decoder->arena,
                                         record->body, record->body_size, &message);
    if (status == HPS_EXHAUSTED && hps_arena_used(decoder->arena) < UNPACK_BYTES_MAX / 2) {
        return no_memory(decoder);
    }
    if (status != HPS_OK) {
        return BAD(decoder, HPS_UPDATE_BAD_PAYLOAD, "%zu bytes are no UpdateBatch",
                   record->body_size);
    }
    const Hps__V1__UpdateBatch *batch = (const Hps__V1__UpdateBatch *)message;
    if (batch->version < 0) {
        return BAD(decoder, HPS_UPDATE_BAD_PAYLOAD, "version: %" PRId64 " is below 0",
                   batch->version);
    }
    decoder->outcome->event_time_ms = batch->event_time_unix_ms > 0 ? batch->event_time_unix_ms : 0;
    decoder->outcome->version = batch->version != 0 ? batch->version : decoder->outcome->version;
    decoder->outcome->for_other = is_for_other(decoder, follows);
    size_t n = decoder->outcome->for_other ? 0 : batch->n_tables;
    for (size_t i = 0; i < n && status == HPS_OK; i++) {
        status = add_table(decoder, route, batch->tables[i]);
    }
    return status;
}

/* A header of the current record. False: it is missing. */
static bool header(const struct hps_update_decoder *decoder, const char *name,
                   const void **out_value, size_t *out_size)
{
    return decoder->ops->header(decoder->from, name, out_value, out_size);
}

static hps_status read_header(struct hps_update_decoder *decoder)
{
    const void *value = NULL;
    size_t size = 0;
    uint64_t version = 0;
    if (!header(decoder, HPS_UPDATE_HEADER_VERSION, &value, &size)) {
        return HPS_OK;
    }
    if (!hps_update_header_decode(value, size, &version) || version == 0 || version > INT64_MAX) {
        return BAD(decoder, HPS_UPDATE_BAD_HEADER,
                   "header " HPS_UPDATE_HEADER_VERSION ": %zu bytes, expected an int64 above 0",
                   size);
    }
    decoder->outcome->version = (int64_t)version;
    return HPS_OK;
}

static hps_status read_row_version(struct hps_update_decoder *decoder)
{
    const void *value = NULL;
    size_t size = 0;
    if (!decoder->version->row_versions) {
        return HPS_OK;
    }
    bool has = header(decoder, HPS_UPDATE_HEADER_ROW_VERSION, &value, &size);
    if (!hps_update_header_decode(value, size, &decoder->row_version)) {
        return BAD(decoder, HPS_UPDATE_BAD_HEADER,
                   "header " HPS_UPDATE_HEADER_ROW_VERSION
                   ": %s, and the model compares row versions",
                   has ? "not of 8 bytes" : "missing");
    }
    return HPS_OK;
}

/* The width of a row determines its type. A header distinguishes types of the same width. */
static hps_status check_dtype(struct hps_update_decoder *decoder,
                              const struct hps_update_record *record)
{
    const void *name = NULL;
    size_t size = 0;
    const char *expected = hps_dtype_name(record->dtype);
    if (hps_update_record_deletes(record) ||
        !header(decoder, HPS_UPDATE_HEADER_DTYPE, &name, &size) ||
        (size == strlen(expected) && memcmp(name, expected, size) == 0)) {
        return HPS_OK;
    }
    return BAD(decoder, HPS_UPDATE_BAD_DTYPE,
               "header " HPS_UPDATE_HEADER_DTYPE ": '%.*s', but a row of %" PRIu32
               " bytes is %s in this table",
               (int)(size < 32 ? size : 32), size > 0 ? (const char *)name : "", record->row_bytes,
               expected);
}

static hps_status add(struct hps_update_decoder *decoder, const struct hps_update_route *route,
                      bool follows)
{
    const struct hps_consumer_record *from = decoder->from;
    const struct hps_version *version = decoder->version;
    bool known = route->table_id != HPS_UPDATE_TABLE_NONE;
    const struct hps_table *table = known ? &version->tables[route->table_id] : NULL;
    const struct hps_update_shape shape = {.key_bytes = decoder->key_bytes,
                                           .dim = known ? table->dim : 0,
                                           .dtype = known ? table->dtype : 0};
    struct hps_update_record record = {0};
    hps_status status = read_header(decoder);
    if (status != HPS_OK) {
        return status;
    }
    if (is_for_other(decoder, follows) && decoder->outcome->version != 0) {
        decoder->outcome->for_other = true; /* its rows have the shape of another version */
        return HPS_OK;
    }
    status = read_row_version(decoder);
    if (status != HPS_OK) {
        return status;
    }
    status = hps_update_record_decode(from->key, from->key_size, from->value, from->value_size,
                                      &shape, &record, decoder->err);
    decoder->outcome->form = record.form;
    if (status != HPS_OK) {
        decoder->outcome->bad = hps_update_reject_text(record.reject);
        return HPS_INVALID;
    }
    if (record.form == HPS_UPDATE_PACKED) {
        return add_packed(decoder, route, &record, follows);
    }
    decoder->outcome->for_other = is_for_other(decoder, follows);
    if (!known) {
        return BAD(decoder, HPS_UPDATE_BAD_TABLE,
                   "a %s record on a topic without a table of the model",
                   hps_update_form_text(record.form));
    }
    status = decoder->outcome->for_other ? HPS_OK : check_dtype(decoder, &record);
    return status != HPS_OK || decoder->outcome->for_other
               ? status
               : add_plain(decoder, route->table_id, &record);
}

hps_status hps_update_decoder_add(struct hps_update_decoder *decoder,
                                  const struct hps_update_route *route,
                                  const struct hps_consumer_ops *ops,
                                  const struct hps_consumer_record *record, bool follows,
                                  struct hps_update_outcome *out_outcome, struct hps_error *err)
{
    struct hps_update_outcome outcome = {0};
    struct mark before = mark(decoder);
    HPS_ASSERT(decoder->outcome == NULL && decoder->err == NULL);
    decoder->err = err;
    decoder->outcome = &outcome;
    decoder->ops = ops;
    decoder->from = record;
    decoder->source = route->source;
    hps_status status = add(decoder, route, follows);
    decoder->outcome = NULL;
    decoder->err = NULL;
    if (status != HPS_OK) {
        cut(decoder, &before);
        outcome.n_keys = 0;
    } else if (decoder->key_bytes == 4 && outcome.n_keys > 0) { /* of every form */
        HPS_ASSERT(outcome.n_keys == (decoder->keys.size - before.keys) / sizeof(hps_key));
        hps_keys_narrow((hps_key *)(void *)(decoder->keys.data + before.keys), outcome.n_keys);
    }
    if (status != HPS_OK && status != HPS_INVALID) {
        return status;
    }
    *out_outcome = outcome;
    return HPS_OK;
}

/* ---- the batch ------------------------------------------------------------------------------- */

struct hps_update_decoder *hps_update_decoder_new(const struct hps_version *version,
                                                  uint32_t key_bytes,
                                                  const atomic_bool *nan_allowed)
{
    struct hps_update_decoder *decoder = hps_calloc(1, sizeof(*decoder));
    if (decoder == NULL) {
        return NULL;
    }
    HPS_ASSERT(version != NULL && nan_allowed != NULL && (key_bytes == 8 || key_bytes == 4));
    decoder->version = version;
    decoder->key_bytes = key_bytes;
    decoder->nan_allowed = nan_allowed;
    hps_buf_init(&decoder->parts, SIZE_MAX / 2);
    hps_buf_init(&decoder->keys, SIZE_MAX / 2);
    hps_buf_init(&decoder->rows, SIZE_MAX / 2);
    hps_buf_init(&decoder->versions, SIZE_MAX / 2);
    hps_buf_init(&decoder->pairs, SIZE_MAX / 2);
    decoder->arena = hps_arena_new(UNPACK_BYTES_FIRST, UNPACK_BYTES_MAX);
    if (decoder->arena == NULL) {
        hps_update_decoder_free(decoder);
        return NULL;
    }
    return decoder;
}

void hps_update_decoder_free(struct hps_update_decoder *decoder)
{
    if (decoder == NULL) {
        return;
    }
    hps_buf_fini(&decoder->parts);
    hps_buf_fini(&decoder->keys);
    hps_buf_fini(&decoder->rows);
    hps_buf_fini(&decoder->versions);
    hps_buf_fini(&decoder->pairs);
    hps_arena_free(decoder->arena);
    hps_free(decoder);
}

uint64_t hps_update_decoder_keys(const struct hps_update_decoder *decoder)
{
    return decoder->keys.size / sizeof(hps_key);
}

uint64_t hps_update_decoder_bytes(const struct hps_update_decoder *decoder)
{
    return (uint64_t)decoder->keys.size + decoder->rows.size;
}

const struct hps_update_part *hps_update_decoder_parts(struct hps_update_decoder *decoder,
                                                       uint32_t *out_n_parts)
{
    struct hps_update_part *parts = (struct hps_update_part *)(void *)decoder->parts.data;
    const hps_key *keys = (const hps_key *)(const void *)decoder->keys.data;
    const uint64_t *versions = (const uint64_t *)(const void *)decoder->versions.data;
    size_t n_keys = 0, rows_size = 0;
    HPS_ASSERT(decoder->outcome == NULL);
    *out_n_parts = (uint32_t)(decoder->parts.size / sizeof(*parts));
    for (uint32_t i = 0; i < *out_n_parts; i++) {
        struct hps_update_part *part = &parts[i];
        rows_size = align_rows(rows_size);
        part->keys = keys + n_keys;
        part->rows = part->row_bytes == 0 ? NULL : decoder->rows.data + rows_size;
        part->row_versions = decoder->version->row_versions ? versions + n_keys : NULL;
        n_keys += part->n;
        rows_size += (size_t)part->n * part->row_bytes;
    }
    HPS_ASSERT(n_keys * sizeof(hps_key) == decoder->keys.size);
    return parts;
}

void hps_update_decoder_clear(struct hps_update_decoder *decoder)
{
    HPS_ASSERT(decoder->outcome == NULL);
    cut(decoder, &(struct mark){0});
}
