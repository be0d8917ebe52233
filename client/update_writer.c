/* SPDX-License-Identifier: Apache-2.0
 *
 * Gathers rows by table and partition into lots, and writes each lot as one record. Runs on the
 * calling thread.
 */
#include "client/update_writer.h"

#include <inttypes.h>
#include <string.h>

#include "base/assert.h"
#include "base/heap.h"
#include "base/rows/finite.h"
#include "base/rows/modeldir.h"
#include "client/wire.h"

enum {
    TABLES_MAX = HPS_MODEL_TABLES_MAX,
    GATHERED_BYTES_MAX = 64 << 20, /* of one table, over all its partitions */
    BATCH_BYTES_MIN = 1 << 10,
    /* Upper bounds of a packed record without keys and rows: once, and per entry. */
    PACKED_BYTES = HPS_UPDATE_HEAD_BYTES + 16,
    ENTRY_BYTES = HPS_MODEL_NAME_BYTES_MAX + 64
};

struct table {
    char name[HPS_UPDATE_NAME_BYTES];
    uint32_t dim;         /* 0: no rows yet */
    enum hps_dtype given; /* type of the given rows */
    enum hps_dtype sent;  /* type in records */
    uint32_t topic;
    uint32_t n_partitions;
    struct lot *lots; /* [n_partitions]; KEYED: NULL, with units: the writer's one */
    size_t lot_bytes_max;
};

/* Rows of one table, then deletes. */
struct entry {
    const struct table *table;
    struct hps_buf keys;
    struct hps_buf rows; /* as sent */
    struct hps_buf deletes;
};

/* The content of one record. */
struct lot {
    struct entry *entries; /* [capacity]; entries from n on keep their memory for reuse */
    size_t n;
    size_t capacity;
    size_t bytes;
    uint64_t n_rows;
    uint64_t n_deletes;
    uint32_t partition;
    const struct table *table; /* gives the topic; NULL if the lot is empty */
};

struct hps_update_writer {
    struct hps_update_writer_options options;
    struct hps_update_sink sink;
    char model[HPS_UPDATE_NAME_BYTES];
    struct table *tables[TABLES_MAX];
    size_t n_tables;
    struct lot unit;
    struct hps_buf record;
    struct hps_buf wide; /* one row as FP32 */
    struct hps_buf row;  /* the row as sent */
    struct hps_update_written written;
};

/* ---- life ------------------------------------------------------------------------------------ */

hps_status hps_update_writer_new(const struct hps_update_writer_options *options,
                                 const struct hps_update_sink *sink,
                                 struct hps_update_writer **out_writer, struct hps_error *err)
{
    HPS_ASSERT(hps_model_name_valid(options->model));
    HPS_ASSERT(!options->units || options->form == HPS_UPDATE_PACKED);
    HPS_ASSERT(options->row_dtype == 0 || hps_dtype_is_stored((unsigned)options->row_dtype));
    HPS_ASSERT(options->form != HPS_UPDATE_HCTR || options->key_bytes == 4 ||
               options->key_bytes == 8);
    struct hps_update_writer *writer = hps_calloc(1, sizeof(*writer));

    if (writer == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "out of memory");
    }
    writer->options = *options;
    writer->sink = *sink;
    memcpy(writer->model, options->model, strlen(options->model) + 1);
    writer->options.model = writer->model;
    if (writer->options.batch_bytes < BATCH_BYTES_MIN) {
        writer->options.batch_bytes = BATCH_BYTES_MIN;
    }
    hps_buf_init(&writer->record, (size_t)HPS_UPDATE_RECORD_BYTES_MAX + PACKED_BYTES);
    hps_buf_init(&writer->wide, HPS_ROW_DIM_MAX * sizeof(float));
    hps_buf_init(&writer->row, HPS_ROW_DIM_MAX * sizeof(float));
    *out_writer = writer;
    return HPS_OK;
}

static void lot_free(struct lot *lot)
{
    HPS_ASSERT(lot->n <= lot->capacity);
    for (size_t i = 0; i < lot->capacity; i++) {
        hps_buf_fini(&lot->entries[i].keys);
        hps_buf_fini(&lot->entries[i].rows);
        hps_buf_fini(&lot->entries[i].deletes);
    }
    hps_free(lot->entries);
}

void hps_update_writer_free(struct hps_update_writer *writer)
{
    if (writer == NULL) {
        return;
    }
    for (size_t t = 0; t < writer->n_tables; t++) {
        struct table *table = writer->tables[t];
        for (uint32_t i = 0; table->lots != NULL && i < table->n_partitions; i++) {
            lot_free(&table->lots[i]);
        }
        hps_free(table->lots);
        hps_free(table);
    }
    lot_free(&writer->unit);
    hps_buf_fini(&writer->record);
    hps_buf_fini(&writer->wide);
    hps_buf_fini(&writer->row);
    hps_free(writer);
}

/* ---- tables ---------------------------------------------------------------------------------- */

static hps_status table_open(struct hps_update_writer *writer, struct table *table,
                             struct hps_error *err)
{
    char topic[HPS_UPDATE_TOPIC_BYTES_MAX];
    bool packed = writer->options.form == HPS_UPDATE_PACKED;

    hps_update_topic_format(writer->model, packed ? NULL : table->name, topic);
    hps_status status =
        writer->sink.topic(writer->sink.ctx, topic, &table->topic, &table->n_partitions, err);
    if (status != HPS_OK) {
        return status;
    }
    HPS_ASSERT(table->n_partitions > 0);
    if (writer->options.units) {
        return table->n_partitions == 1
                   ? HPS_OK
                   : hps_error_set(err, HPS_PRECONDITION,
                                   "topic %s has %u partitions: units need a topic with one "
                                   "partition, which keeps all records in order",
                                   topic, table->n_partitions);
    }
    if (writer->options.form == HPS_UPDATE_KEYED) {
        return HPS_OK;
    }
    size_t share = GATHERED_BYTES_MAX / table->n_partitions;
    table->lot_bytes_max =
        writer->options.batch_bytes < share ? writer->options.batch_bytes : share;
    table->lots = hps_calloc(table->n_partitions, sizeof(*table->lots));
    if (table->lots == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "out of memory");
    }
    for (uint32_t i = 0; i < table->n_partitions; i++) {
        table->lots[i].partition = i;
    }
    return HPS_OK;
}

static hps_status table_find(struct hps_update_writer *writer, const char *name,
                             struct table **out_table, struct hps_error *err)
{
    for (size_t t = 0; t < writer->n_tables; t++) {
        if (strcmp(writer->tables[t]->name, name) == 0) {
            *out_table = writer->tables[t];
            return HPS_OK;
        }
    }
    if (!hps_model_name_valid(name)) {
        return hps_error_set(err, HPS_INVALID,
                             "table \"%.130s\": expected 1 to %d letters, digits, '_' or '-'", name,
                             HPS_MODEL_NAME_BYTES_MAX);
    }
    if (writer->n_tables == TABLES_MAX) {
        return hps_error_set(err, HPS_INVALID, "more than %d tables", TABLES_MAX);
    }
    struct table *table = hps_calloc(1, sizeof(*table));
    if (table == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "out of memory");
    }
    memcpy(table->name, name, strlen(name) + 1);
    hps_status status = table_open(writer, table, err);
    if (status != HPS_OK) {
        hps_free(table);
        return status;
    }
    writer->tables[writer->n_tables++] = table;
    *out_table = table;
    return HPS_OK;
}

/* ---- records --------------------------------------------------------------------------------- */

/* sent: the type of the rows in the record. */
static hps_status send_record(struct hps_update_writer *writer, struct hps_producer_record *record,
                              enum hps_dtype sent, struct hps_error *err)
{
    HPS_ASSERT(record->n_headers == 0);
    HPS_ASSERT(record->partition >= 0);
    uint8_t version[HPS_UPDATE_KEY_BYTES];
    uint8_t row_version[HPS_UPDATE_KEY_BYTES];
    struct hps_producer_header headers[3];
    bool packed = writer->options.form == HPS_UPDATE_PACKED; /* a batch has its own version field */

    record->headers = headers;
    if (writer->options.version != 0 && !packed) {
        hps_update_u64_encode((uint64_t)writer->options.version, version);
        headers[record->n_headers++] =
            (struct hps_producer_header){HPS_UPDATE_HEADER_VERSION, version, sizeof(version)};
    }
    if (writer->options.row_version_given && !packed) {
        hps_update_u64_encode(writer->options.row_version, row_version);
        headers[record->n_headers++] = (struct hps_producer_header){
            HPS_UPDATE_HEADER_ROW_VERSION, row_version, sizeof(row_version)};
    }
    if (sent != HPS_DTYPE_FP32 && record->value != NULL && !packed) {
        const char *name = hps_dtype_name(sent);
        headers[record->n_headers++] =
            (struct hps_producer_header){HPS_UPDATE_HEADER_DTYPE, name, strlen(name)};
    }
    hps_status status = writer->sink.send(writer->sink.ctx, record, err);
    if (status == HPS_OK) {
        writer->written.n_rows += record->key != NULL && record->value != NULL;
        writer->written.n_deletes += record->key != NULL && record->value == NULL;
        writer->written.n_records++;
        writer->written.bytes += record->key_size + record->value_size;
    }
    return status;
}

static hps_status send_keyed(struct hps_update_writer *writer, const struct table *table,
                             hps_key key, const void *row, size_t row_bytes, struct hps_error *err)
{
    HPS_ASSERT(writer->options.form == HPS_UPDATE_KEYED);
    uint8_t bytes[HPS_UPDATE_KEY_BYTES];

    hps_update_u64_encode(key, bytes);
    struct hps_producer_record record = {
        .topic = table->topic,
        .partition = (int32_t)hps_update_partition(key, table->n_partitions),
        .key = bytes,
        .key_size = sizeof(bytes),
        .value = row,
        .value_size = row_bytes,
    };
    return send_record(writer, &record, table->sent, err);
}

static hps_status encode_hctr(struct hps_update_writer *writer, const struct lot *lot)
{
    const struct entry *entry = &lot->entries[0];
    uint32_t row_bytes = (uint32_t)hps_dtype_row_bytes(entry->table->sent, entry->table->dim);
    size_t n = entry->keys.size / sizeof(hps_key);
    size_t bytes = hps_update_hctr_bytes(n, writer->options.key_bytes, row_bytes);

    HPS_ASSERT(lot->n == 1);
    hps_status status = hps_buf_reserve(&writer->record, bytes);
    if (status != HPS_OK) {
        return status;
    }
    hps_update_hctr_encode((const hps_key *)(const void *)entry->keys.data, entry->rows.data, n,
                           writer->options.key_bytes, row_bytes, writer->record.data);
    writer->record.size = bytes;
    return HPS_OK;
}

/* A TableUpdate as field 3 of the batch; fields as in proto/hps/v1/update.proto. */
static hps_status encode_entry(struct hps_buf *buf, const struct entry *entry)
{
    const struct table *table = entry->table;
    bool rows = entry->keys.size > 0;
    size_t size = hps_wire_field_size(strlen(table->name));

    size += rows ? hps_wire_field_size(entry->keys.size) : 0;
    size += rows ? 1 + hps_wire_varint_size((uint64_t)table->sent) : 0;
    size += rows ? 1 + hps_wire_varint_size(table->dim) : 0;
    size += entry->deletes.size > 0 ? hps_wire_field_size(entry->deletes.size) : 0;
    size += rows ? hps_wire_field_size(entry->rows.size) : 0;

    hps_status status = hps_wire_put_head(buf, 3, size);
    size_t begin = buf->size;
    if (status == HPS_OK) {
        status = hps_wire_put_text(buf, 1, table->name);
    }
    if (status == HPS_OK && rows) {
        status = hps_wire_put_bytes(buf, 2, entry->keys.data, entry->keys.size);
    }
    if (status == HPS_OK && rows) {
        status = hps_wire_put_uint(buf, 3, (uint64_t)table->sent);
    }
    if (status == HPS_OK && rows) {
        status = hps_wire_put_uint(buf, 4, table->dim);
    }
    if (status == HPS_OK) {
        status = hps_wire_put_bytes(buf, 5, entry->deletes.data, entry->deletes.size);
    }
    if (status == HPS_OK && rows) {
        status = hps_wire_put_bytes(buf, 15, entry->rows.data, entry->rows.size);
    }
    HPS_ASSERT(status != HPS_OK || buf->size == begin + size);
    return status;
}

static hps_status encode_packed(struct hps_update_writer *writer, const struct lot *lot)
{
    HPS_ASSERT(writer->options.form == HPS_UPDATE_PACKED && lot->n > 0);
    uint8_t head[HPS_UPDATE_HEAD_BYTES];

    hps_update_packed_head(head);
    hps_status status = hps_buf_append(&writer->record, head, sizeof(head));
    if (status == HPS_OK) {
        status = hps_wire_put_uint(&writer->record, 1, (uint64_t)writer->options.version);
    }
    for (size_t i = 0; i < lot->n && status == HPS_OK; i++) {
        status = encode_entry(&writer->record, &lot->entries[i]);
    }
    return status;
}

static hps_status lot_send(struct hps_update_writer *writer, struct lot *lot, struct hps_error *err)
{
    HPS_ASSERT((lot->n == 0) == (lot->table == NULL));
    if (lot->n == 0) {
        return HPS_OK;
    }
    hps_buf_clear(&writer->record);
    hps_status status = writer->options.form == HPS_UPDATE_HCTR ? encode_hctr(writer, lot)
                                                                : encode_packed(writer, lot);
    if (status != HPS_OK) {
        return hps_error_set(err, status, "a record of %zu bytes: %s", lot->bytes,
                             hps_status_text(status));
    }
    struct hps_producer_record record = {
        .topic = lot->table->topic,
        .partition = (int32_t)lot->partition,
        .value = writer->record.data,
        .value_size = writer->record.size,
    };
    status = send_record(writer, &record, HPS_DTYPE_FP32, err); /* HCTR; a batch names its types */
    if (status == HPS_OK) {
        writer->written.n_rows += lot->n_rows;
        writer->written.n_deletes += lot->n_deletes;
        lot->n = 0;
        lot->bytes = 0;
        lot->n_rows = 0;
        lot->n_deletes = 0;
        lot->table = NULL;
    }
    return status;
}

/* ---- lots ------------------------------------------------------------------------------------ */

static struct entry *lot_entry_new(struct lot *lot, const struct table *table)
{
    HPS_ASSERT(lot->n <= lot->capacity);
    if (lot->n == lot->capacity) {
        size_t capacity = lot->capacity == 0 ? 1 : 2 * lot->capacity;
        struct entry *entries = hps_realloc(lot->entries, capacity * sizeof(*entries));
        if (entries == NULL) {
            return NULL;
        }
        for (size_t i = lot->capacity; i < capacity; i++) {
            hps_buf_init(&entries[i].keys, HPS_UPDATE_RECORD_BYTES_MAX);
            hps_buf_init(&entries[i].rows, HPS_UPDATE_RECORD_BYTES_MAX);
            hps_buf_init(&entries[i].deletes, HPS_UPDATE_RECORD_BYTES_MAX);
        }
        lot->entries = entries;
        lot->capacity = capacity;
    }
    struct entry *entry = &lot->entries[lot->n++];
    lot->table = table;
    entry->table = table;
    hps_buf_clear(&entry->keys);
    hps_buf_clear(&entry->rows);
    hps_buf_clear(&entry->deletes);
    lot->bytes += ENTRY_BYTES;
    return entry;
}

/* Adds a key and its row (NULL: a delete). On failure adds neither. */
static hps_status entry_add(struct entry *entry, hps_key key, const void *row, size_t row_bytes)
{
    struct hps_buf *keys = row != NULL ? &entry->keys : &entry->deletes;
    hps_status status = hps_buf_reserve(keys, sizeof(key));

    if (status == HPS_OK && row != NULL) {
        status = hps_buf_append(&entry->rows, row, row_bytes);
    }
    return status == HPS_OK ? hps_buf_append(keys, &key, sizeof(key)) : status;
}

/* Adds one row (NULL: a delete) to the lot of its key. */
static hps_status lot_add(struct hps_update_writer *writer, struct table *table, hps_key key,
                          const void *row, size_t row_bytes, struct hps_error *err)
{
    HPS_ASSERT(writer->options.units || table->lots != NULL);
    HPS_ASSERT((row == NULL) == (row_bytes == 0));
    struct lot *lot = writer->options.units
                          ? &writer->unit
                          : &table->lots[hps_update_partition(key, table->n_partitions)];
    size_t bytes = sizeof(key) + row_bytes;

    if (writer->options.units &&
        PACKED_BYTES + lot->bytes + ENTRY_BYTES + bytes > HPS_UPDATE_RECORD_BYTES_MAX) {
        return hps_error_set(err, HPS_EXHAUSTED, "a unit has more than %d bytes",
                             HPS_UPDATE_RECORD_BYTES_MAX);
    }
    if (!writer->options.units && lot->n > 0 &&
        PACKED_BYTES + lot->bytes + ENTRY_BYTES + bytes > table->lot_bytes_max) {
        hps_status status = lot_send(writer, lot, err);
        if (status != HPS_OK) {
            return status;
        }
    }
    struct entry *entry = lot->n > 0 ? &lot->entries[lot->n - 1] : NULL;
    /* Deletes of an entry apply after its rows, so a row after a delete needs a new entry. */
    if (entry == NULL || entry->table != table || (row != NULL && entry->deletes.size > 0)) {
        entry = lot_entry_new(lot, table);
    }
    hps_status status = entry == NULL ? HPS_NO_MEMORY : entry_add(entry, key, row, row_bytes);
    if (status != HPS_OK) {
        return hps_error_set(err, status, "%s", hps_status_text(status));
    }
    lot->bytes += bytes;
    lot->n_rows += row != NULL;
    lot->n_deletes += row == NULL;
    return HPS_OK;
}

/* ---- rows ------------------------------------------------------------------------------------ */

hps_status hps_update_writer_sends(const struct hps_update_writer_options *options,
                                   enum hps_dtype given, enum hps_dtype *out_sent,
                                   struct hps_error *err)
{
    HPS_ASSERT(hps_dtype_is_stored((unsigned)given));
    enum hps_dtype sent = options->row_dtype != 0    ? options->row_dtype
                          : hps_dtype_is_int8(given) ? given
                                                     : HPS_DTYPE_FP32;
    if (options->form == HPS_UPDATE_HCTR && sent != HPS_DTYPE_FP32) {
        return hps_error_set(
            err, HPS_INVALID,
            "rows as %s: hctr records have only float32; use keyed or packed records",
            hps_dtype_name(sent));
    }
    if (hps_dtype_is_int8(given) && hps_dtype_is_int8(sent) && given != sent) {
        return hps_error_set(err, HPS_INVALID,
                             "rows of %s are already quantised and cannot be converted to %s",
                             hps_dtype_name(given), hps_dtype_name(sent));
    }
    *out_sent = sent;
    return HPS_OK;
}

/* The row as sent; it is in `row` or in a buffer of the writer. */
static hps_status row_as_sent(struct hps_update_writer *writer, const struct table *table,
                              hps_key key, const void *row, const void **out_sent,
                              struct hps_error *err)
{
    HPS_ASSERT(table->dim > 0);
    uint32_t at;

    *out_sent = row;
    if (table->given == table->sent) {
        return HPS_OK;
    }
    hps_buf_clear(&writer->wide);
    hps_buf_clear(&writer->row);
    if (hps_buf_reserve(&writer->wide, table->dim * sizeof(float)) != HPS_OK ||
        hps_buf_reserve(&writer->row, (size_t)hps_dtype_row_bytes(table->sent, table->dim)) !=
            HPS_OK) {
        return hps_error_set(err, HPS_NO_MEMORY, "out of memory");
    }
    hps_row_convert(writer->wide.data, HPS_DTYPE_FP32, row, table->given, table->dim);
    *out_sent = writer->wide.data;
    if (table->sent == HPS_DTYPE_FP32) {
        return HPS_OK;
    }
    if (!hps_may_be_not_finite(table->sent, writer->options.nan_allowed) &&
        !hps_row_fits(writer->wide.data, table->sent, table->dim, &at)) {
        return hps_error_set(err, HPS_INVALID,
                             "table %s, key %" PRId64 ": %s cannot hold value %u of the row",
                             table->name, (int64_t)key, hps_dtype_name(table->sent), at);
    }
    hps_row_convert(writer->row.data, table->sent, writer->wide.data, HPS_DTYPE_FP32, table->dim);
    *out_sent = writer->row.data;
    return HPS_OK;
}

static hps_status table_shape(struct hps_update_writer *writer, struct table *table, uint32_t dim,
                              enum hps_dtype dtype, struct hps_error *err)
{
    HPS_ASSERT(dim > 0);
    HPS_ASSERT(dim <= HPS_ROW_DIM_MAX);
    if (table->dim == 0) {
        hps_status status = hps_update_writer_sends(&writer->options, dtype, &table->sent, err);
        if (status != HPS_OK) {
            return hps_error_prefix(err, status, "table %s", table->name);
        }
        table->dim = dim;
        table->given = dtype;
    }
    if (table->dim != dim || table->given != dtype) {
        return hps_error_set(
            err, HPS_INVALID,
            "table %s: got a row of %u values as %s, expected %u as %s, like the rows before",
            table->name, dim, hps_dtype_name(dtype), table->dim, hps_dtype_name(table->given));
    }
    return HPS_OK;
}

hps_status hps_update_writer_rows(struct hps_update_writer *writer, const char *name, uint32_t dim,
                                  enum hps_dtype dtype, const hps_key *keys, const void *rows,
                                  size_t n, struct hps_error *err)
{
    const uint8_t *row = rows;
    struct table *table;

    hps_status status = table_find(writer, name, &table, err);
    if (status == HPS_OK) {
        status = table_shape(writer, table, dim, dtype, err);
    }
    if (status != HPS_OK) {
        return status;
    }
    enum hps_update_form form = writer->options.form;
    size_t sent_bytes = (size_t)hps_dtype_row_bytes(table->sent, dim);
    for (size_t i = 0; i < n && status == HPS_OK; i++) {
        const void *sent;
        status = row_as_sent(writer, table, keys[i], row, &sent, err);
        if (status != HPS_OK) {
            break;
        }
        if (form == HPS_UPDATE_HCTR && writer->options.key_bytes == 4 && keys[i] > UINT32_MAX) {
            status =
                hps_error_set(err, HPS_INVALID, "table %s: key %" PRId64 " has more than 4 bytes",
                              name, (int64_t)keys[i]);
        } else if (form == HPS_UPDATE_KEYED) {
            status = send_keyed(writer, table, keys[i], sent, sent_bytes, err);
        } else {
            status = lot_add(writer, table, keys[i], sent, sent_bytes, err);
        }
        row += hps_dtype_row_bytes(dtype, dim);
    }
    return status;
}

hps_status hps_update_writer_deletes(struct hps_update_writer *writer, const char *name,
                                     const hps_key *keys, size_t n, struct hps_error *err)
{
    struct table *table;

    if (writer->options.form == HPS_UPDATE_HCTR) {
        return hps_error_set(
            err, HPS_INVALID,
            "hctr records cannot delete keys (table %s); use keyed or packed records", name);
    }
    hps_status status = table_find(writer, name, &table, err);
    for (size_t i = 0; i < n && status == HPS_OK; i++) {
        status = writer->options.form == HPS_UPDATE_KEYED
                     ? send_keyed(writer, table, keys[i], NULL, 0, err)
                     : lot_add(writer, table, keys[i], NULL, 0, err);
    }
    return status;
}

hps_status hps_update_writer_flush(struct hps_update_writer *writer, struct hps_error *err)
{
    hps_status status = lot_send(writer, &writer->unit, err);

    for (size_t t = 0; t < writer->n_tables; t++) {
        struct table *table = writer->tables[t];
        for (uint32_t i = 0; table->lots != NULL && i < table->n_partitions; i++) {
            if (status == HPS_OK) {
                status = lot_send(writer, &table->lots[i], err);
            }
        }
    }
    return status;
}

const struct hps_update_written *hps_update_writer_written(const struct hps_update_writer *writer)
{
    return &writer->written;
}
