/* SPDX-License-Identifier: Apache-2.0
 *
 * Records of the catalog, encoded as messages of proto/hps/v1/catalog.proto.
 */
#include "server/load/records.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "backends/store_durable.h"
#include "base/assert.h"
#include "base/heap.h"
#include "base/rows/modeldir.h"
#include "hps/v1/catalog.pb-c.h"

/* A load id is 16 hex digits; other builds may use longer ones. */
enum { RECORD_KEY_BYTES_MAX = 192, LOAD_ID_BYTES_MAX = 32 };
#define VERSION_PREFIX "version/"
#define MODEL_PREFIX   "model/"
#define UNUSED_PREFIX  "unused/"

static size_t version_key(char *key, const char *model, int64_t number)
{
    int size = snprintf(key, RECORD_KEY_BYTES_MAX, VERSION_PREFIX "%s/%" PRId64, model, number);
    HPS_ASSERT(size > 0);
    HPS_ASSERT(size < RECORD_KEY_BYTES_MAX); /* model names are bounded */
    return (size_t)size;
}

/* The key contains the load id, because two versions of one number may have different rows. */
static size_t unused_key(char *key, const struct hps_version *version)
{
    HPS_ASSERT(version->load_id != NULL);
    int size = snprintf(key, RECORD_KEY_BYTES_MAX, UNUSED_PREFIX "%s/%" PRId64 "/%s",
                        version->model, version->number, version->load_id);
    HPS_ASSERT(size > 0 && size < RECORD_KEY_BYTES_MAX);
    return (size_t)size;
}

static size_t model_key(char *key, const char *model)
{
    return (size_t)snprintf(key, RECORD_KEY_BYTES_MAX, MODEL_PREFIX "%s", model);
}

static hps_status put_message(struct hps_store *store, const char *key, size_t key_size,
                              const ProtobufCMessage *message, struct hps_error *err)
{
    size_t size = protobuf_c_message_get_packed_size(message);
    uint8_t *bytes = hps_alloc(size);
    if (bytes == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for a catalog record");
    }
    size_t packed = protobuf_c_message_pack(message, bytes);
    HPS_ASSERT(packed == size);
    hps_status status = store->ops->durable->record_put(store, key, key_size, bytes, size, err);
    hps_free(bytes);
    return status;
}

static hps_status put_version(struct hps_store *store, const char *key, size_t key_size,
                              const struct hps_version *version, struct hps_error *err)
{
    Hps__V1__VersionRecord record = HPS__V1__VERSION_RECORD__INIT;
    size_t n = version->n_tables;
    Hps__V1__TableRecord *tables = hps_calloc(n, sizeof(*tables));
    Hps__V1__TableRecord **pointers = hps_calloc(n, sizeof(*pointers));
    hps_status status = HPS_NO_MEMORY;
    if (tables == NULL || pointers == NULL) {
        hps_ignore(hps_error_set(err, status, "no memory for a catalog record"));
        goto out;
    }
    for (size_t i = 0; i < n; i++) {
        const struct hps_table *table = &version->tables[i];
        hps__v1__table_record__init(&tables[i]);
        tables[i].table = (char *)table->name;
        tables[i].dim = table->dim;
        tables[i].data_type = (uint32_t)table->dtype;
        tables[i].row_count = table->n_rows;
        tables[i].default_row.data = (uint8_t *)table->default_row;
        tables[i].default_row.len = table->row_bytes;
        pointers[i] = &tables[i];
    }
    record.model = version->model;
    record.version = version->number;
    record.label = version->label;
    record.lineage = version->lineage;
    record.source = version->source;
    record.source_fingerprint = version->fingerprint;
    record.load_id = version->load_id;
    record.loaded_unix_ms = version->loaded_unix_ms;
    record.duplicate_key_count = version->duplicate_keys;
    record.config = version->config != NULL ? version->config : record.config;
    record.configured = version->configured != NULL ? version->configured : record.configured;
    record.key_bytes = version->key_bytes;
    record.n_tables = n;
    record.tables = pointers;
    status = put_message(store, key, key_size, &record.base, err);
out:
    hps_free(tables);
    hps_free(pointers);
    return status;
}

hps_status hps_records_put_version(struct hps_store *store, const struct hps_version *version,
                                   struct hps_error *err)
{
    char key[RECORD_KEY_BYTES_MAX];
    size_t size = version_key(key, version->model, version->number);
    return put_version(store, key, size, version, err);
}

hps_status hps_records_put_unused(struct hps_store *store, const struct hps_version *version,
                                  struct hps_error *err)
{
    char key[RECORD_KEY_BYTES_MAX];
    return put_version(store, key, unused_key(key, version), version, err);
}

hps_status hps_records_delete_unused(struct hps_store *store, const struct hps_version *version,
                                     struct hps_error *err)
{
    char key[RECORD_KEY_BYTES_MAX];
    return store->ops->durable->record_delete(store, key, unused_key(key, version), err);
}

hps_status hps_records_delete_version(struct hps_store *store, const char *model, int64_t number,
                                      struct hps_error *err)
{
    char key[RECORD_KEY_BYTES_MAX];
    return store->ops->durable->record_delete(store, key, version_key(key, model, number), err);
}

hps_status hps_records_put_model(struct hps_store *store, const struct hps_model_record *record,
                                 struct hps_error *err)
{
    Hps__V1__ModelRecord message = HPS__V1__MODEL_RECORD__INIT;
    message.model = (char *)record->model;
    message.active_version = record->active;
    message.previous_version = record->previous;
    message.switch_count = record->n_switches;
    message.tables = (char **)record->tables;
    message.n_tables = record->n_tables;
    message.past_versions = (int64_t *)record->past;
    message.n_past_versions = record->n_past;
    char key[RECORD_KEY_BYTES_MAX];
    return put_message(store, key, model_key(key, record->model), &message.base, err);
}

hps_status hps_records_delete_model(struct hps_store *store, const char *model,
                                    struct hps_error *err)
{
    char key[RECORD_KEY_BYTES_MAX];
    return store->ops->durable->record_delete(store, key, model_key(key, model), err);
}

/* ---- reading --------------------------------------------------------------------------------- */

static bool table_from(const Hps__V1__TableRecord *record, uint32_t id, struct hps_table *table)
{
    enum hps_dtype dtype = (enum hps_dtype)record->data_type;
    if (!hps_dtype_is_stored(record->data_type) || record->dim == 0 ||
        record->default_row.len != hps_dtype_row_bytes(dtype, record->dim)) {
        return false;
    }
    void *row = hps_alloc(record->default_row.len);
    table->name = hps_strdup(record->table);
    table->default_row = row;
    if (row == NULL || table->name == NULL) {
        return false;
    }
    memcpy(row, record->default_row.data, record->default_row.len);
    table->id = id;
    table->dim = record->dim;
    table->dtype = dtype;
    table->row_bytes = (uint32_t)record->default_row.len;
    table->n_rows = record->row_count;
    return true;
}

/* The names of a valid record are short enough for a key. */
static bool names_fit(const char *model, const char *load_id)
{
    return strlen(model) <= HPS_MODEL_NAME_BYTES_MAX && strlen(load_id) <= LOAD_ID_BYTES_MAX;
}

/* A copy, or NULL for an empty text. Clears *good if out of memory. */
static char *optional_text(const char *text, bool *good)
{
    char *copy = text[0] != '\0' ? hps_strdup(text) : NULL;
    *good = *good && (copy != NULL || text[0] == '\0');
    return copy;
}

static struct hps_version *version_from(const Hps__V1__VersionRecord *record)
{
    if (!names_fit(record->model, record->load_id)) {
        return NULL;
    }
    struct hps_version *version =
        hps_version_new(record->model, record->version, (uint32_t)record->n_tables);
    if (version == NULL) {
        return NULL;
    }
    version->label = hps_strdup(record->label);
    version->lineage = hps_strdup(record->lineage);
    version->source = hps_strdup(record->source);
    version->fingerprint = hps_strdup(record->source_fingerprint);
    version->load_id = hps_strdup(record->load_id);
    version->key_bytes = record->key_bytes;
    version->loaded_unix_ms = record->loaded_unix_ms;
    version->duplicate_keys = record->duplicate_key_count;
    bool good = version->label != NULL && version->lineage != NULL && version->source != NULL &&
                version->fingerprint != NULL && version->load_id != NULL;
    version->config = optional_text(record->config, &good);
    version->configured = optional_text(record->configured, &good);
    for (uint32_t i = 0; good && i < version->n_tables; i++) {
        good = table_from(record->tables[i], i, &version->tables[i]);
    }
    if (!good) {
        hps_version_free(version);
        return NULL;
    }
    return version;
}

struct scan {
    const struct hps_records_reader *reader;
    struct hps_error *err;
};

static hps_status read_version(struct scan *scan, size_t size, const uint8_t *value)
{
    Hps__V1__VersionRecord *record = hps__v1__version_record__unpack(NULL, size, value);
    if (record == NULL) {
        return HPS_DATA_LOSS;
    }
    struct hps_version *version = version_from(record);
    hps__v1__version_record__free_unpacked(record, NULL);
    if (version == NULL) {
        return HPS_DATA_LOSS;
    }
    return scan->reader->version(scan->reader->ctx, version, scan->err);
}

static hps_status read_model(struct scan *scan, size_t size, const uint8_t *value)
{
    Hps__V1__ModelRecord *record = hps__v1__model_record__unpack(NULL, size, value);
    if (record == NULL) {
        return HPS_DATA_LOSS;
    }
    if (!names_fit(record->model, "")) {
        hps__v1__model_record__free_unpacked(record, NULL);
        return HPS_DATA_LOSS;
    }
    const struct hps_model_record model = {.model = record->model,
                                           .active = record->active_version,
                                           .previous = record->previous_version,
                                           .n_switches = record->switch_count,
                                           .tables = (const char *const *)record->tables,
                                           .n_tables = (uint32_t)record->n_tables,
                                           .past = record->past_versions,
                                           .n_past = (uint32_t)record->n_past_versions};
    hps_status status = scan->reader->model(scan->reader->ctx, &model);
    hps__v1__model_record__free_unpacked(record, NULL);
    if (status != HPS_OK) {
        return hps_error_set(scan->err, status, "no memory for the catalog");
    }
    return HPS_OK;
}

static hps_status read_record(void *ctx, const void *key, size_t key_size, const void *value,
                              size_t value_size)
{
    struct scan *scan = ctx;
    hps_status status = HPS_OK;
    if (((const char *)key)[0] == VERSION_PREFIX[0]) {
        status = read_version(scan, value_size, value);
    } else {
        status = read_model(scan, value_size, value);
    }
    if (status == HPS_DATA_LOSS) {
        return hps_error_set(scan->err, status,
                             "catalog record \"%.*s\" (%zu bytes) cannot be read", (int)key_size,
                             (const char *)key, value_size);
    }
    return status;
}

/* An unreadable record is skipped: its rows only take space. */
static hps_status read_unused(void *ctx, const void *key, size_t key_size, const void *value,
                              size_t value_size)
{
    struct hps_unused_list *list = ctx;
    HPS_ASSERT(list->n <= HPS_UNUSED_MAX);
    (void)key;
    (void)key_size;
    Hps__V1__VersionRecord *record = hps__v1__version_record__unpack(NULL, value_size, value);
    if (record == NULL || list->n == HPS_UNUSED_MAX) {
        hps__v1__version_record__free_unpacked(record, NULL);
        return HPS_OK;
    }
    struct hps_version *version = version_from(record);
    hps__v1__version_record__free_unpacked(record, NULL);
    if (version != NULL) {
        list->versions[list->n++] = version;
    }
    return HPS_OK;
}

hps_status hps_records_read_unused(struct hps_store *store, struct hps_unused_list *out_list,
                                   struct hps_error *err)
{
    out_list->n = 0;
    return store->ops->durable->record_scan(store, UNUSED_PREFIX, read_unused, out_list, err);
}

hps_status hps_records_read(struct hps_store *store, const struct hps_records_reader *reader,
                            struct hps_error *err)
{
    struct scan scan = {reader, err};
    hps_status status =
        store->ops->durable->record_scan(store, VERSION_PREFIX, read_record, &scan, err);
    if (status == HPS_OK) {
        status = store->ops->durable->record_scan(store, MODEL_PREFIX, read_record, &scan, err);
    }
    return status;
}
