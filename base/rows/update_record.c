/* SPDX-License-Identifier: Apache-2.0
 *
 * Encoding and decoding of update records, their partitions and topics. Any thread.
 */
#include "base/rows/update_record.h"

#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/hash.h"
#include "base/rows/modeldir.h"
#include "base/rows/rowfile.h"

static const char magic_hctr[4] = {'H', 'C', 'T', 'R'};
static const char magic_packed[4] = {'H', 'P', 'S', '1'};
static const char topic_prefix[] = "hps_et.";

uint64_t hps_update_record_hash(const void *key, size_t key_size, const void *value,
                                size_t value_size)
{
    uint64_t hash = hps_hash_bytes(key, key_size, key == NULL ? 1 : 2);
    return hps_hash_bytes(value, value_size, hash ^ (value == NULL ? 1 : 2));
}

const char *hps_update_reject_text(enum hps_update_reject reject)
{
    switch (reject) {
#define REJECT_TEXT(name, label)   \
    case HPS_UPDATE_REJECT_##name: \
        return label;
        HPS_UPDATE_REJECT_LIST(REJECT_TEXT)
#undef REJECT_TEXT
    }
    return "unknown";
}

const char *hps_update_form_text(enum hps_update_form form)
{
    switch (form) {
    case HPS_UPDATE_HCTR:
        return "hctr";
    case HPS_UPDATE_KEYED:
        return "keyed";
    case HPS_UPDATE_PACKED:
        return "packed";
    }
    return "unknown";
}

/* ---- integers -------------------------------------------------------------------------------- */

static uint32_t read_u32(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 |
           (uint32_t)bytes[3] << 24;
}

static uint64_t read_u64(const uint8_t *bytes)
{
    return read_u32(bytes) | (uint64_t)read_u32(bytes + 4) << 32;
}

static void write_u32(uint8_t *bytes, uint32_t value)
{
    for (unsigned i = 0; i < 4; i++) {
        bytes[i] = (uint8_t)(value >> (8 * i));
    }
}

void hps_update_u64_encode(uint64_t value, uint8_t out_bytes[HPS_UPDATE_KEY_BYTES])
{
    write_u32(out_bytes, (uint32_t)value);
    write_u32(out_bytes + 4, (uint32_t)(value >> 32));
}

bool hps_update_header_decode(const void *data, size_t size, uint64_t *out_value)
{
    if (data == NULL || size != sizeof(uint64_t)) {
        return false;
    }
    *out_value = read_u64(data);
    return true;
}

/* ---- decode ---------------------------------------------------------------------------------- */

static hps_status reject(struct hps_update_record *record, enum hps_update_reject why)
{
    record->reject = why;
    return HPS_INVALID;
}

/* Whether rows may have this size; sets their type: float32, or for keyed records the stored type
 * of the table. */
static bool width_fits(struct hps_update_record *record, size_t row_bytes,
                       const struct hps_update_shape *shape)
{
    bool keyed = record->form == HPS_UPDATE_KEYED;
    record->dtype = keyed && shape->dim == 0 ? 0 : HPS_DTYPE_FP32;
    if (shape->dim == 0) {
        return row_bytes != 0 &&
               row_bytes <= hps_dtype_row_bytes(HPS_DTYPE_FP32, HPS_ROW_DIM_MAX) &&
               (keyed || row_bytes % sizeof(float) == 0);
    }
    if (row_bytes == hps_dtype_row_bytes(HPS_DTYPE_FP32, shape->dim)) {
        return true;
    }
    record->dtype = shape->dtype;
    return keyed && shape->dtype != 0 && row_bytes == hps_dtype_row_bytes(shape->dtype, shape->dim);
}

static hps_status reject_width(struct hps_update_record *record, size_t row_bytes,
                               const struct hps_update_shape *shape, struct hps_error *err)
{
    const char *form = hps_update_form_text(record->form);
    size_t wide = (size_t)hps_dtype_row_bytes(HPS_DTYPE_FP32, shape->dim);
    if (shape->dim == 0) {
        hps_error_set(err, HPS_INVALID, "%s row of %zu bytes, expected 1 to %d values%s", form,
                      row_bytes, HPS_ROW_DIM_MAX,
                      record->form == HPS_UPDATE_HCTR ? " of float32" : "");
    } else if (record->form == HPS_UPDATE_HCTR || shape->dtype == 0 ||
               shape->dtype == HPS_DTYPE_FP32) {
        hps_error_set(err, HPS_INVALID, "%s row of %zu bytes, expected %zu: %u values of float32",
                      form, row_bytes, wide, shape->dim);
    } else {
        hps_error_set(err, HPS_INVALID,
                      "%s row of %zu bytes, expected %zu or %zu: %u values as fp32 or %s", form,
                      row_bytes, wide, (size_t)hps_dtype_row_bytes(shape->dtype, shape->dim),
                      shape->dim, hps_dtype_name(shape->dtype));
    }
    return reject(record, HPS_UPDATE_REJECT_WIDTH);
}

static hps_status decode_keyed(struct hps_update_record *record, const uint8_t *key,
                               const uint8_t *value, size_t value_size,
                               const struct hps_update_shape *shape, struct hps_error *err)
{
    record->form = HPS_UPDATE_KEYED;
    if (value != NULL && !width_fits(record, value_size, shape)) {
        return reject_width(record, value_size, shape, err);
    }
    record->n = 1;
    record->key = read_u64(key);
    record->key_bytes = HPS_UPDATE_KEY_BYTES;
    record->row_bytes = (uint32_t)value_size;
    record->body = value;
    record->body_size = value_size;
    return HPS_OK;
}

static hps_status decode_hctr(struct hps_update_record *record, const uint8_t *value,
                              size_t value_size, const struct hps_update_shape *shape,
                              struct hps_error *err)
{
    uint32_t row_bytes = read_u32(value + 4);
    size_t body_size = value_size - HPS_UPDATE_HEAD_BYTES;

    record->form = HPS_UPDATE_HCTR;
    if (body_size > 0 && !width_fits(record, row_bytes, shape)) {
        return reject_width(record, row_bytes, shape, err);
    }
    size_t pair_bytes = (size_t)shape->key_bytes + row_bytes;
    if (body_size % pair_bytes != 0) {
        hps_error_set(err, HPS_INVALID,
                      "hctr record of %zu bytes ends within pair %zu of %zu bytes (keys of %u)",
                      value_size, body_size / pair_bytes, pair_bytes, shape->key_bytes);
        return reject(record, HPS_UPDATE_REJECT_TRUNCATED);
    }
    record->n = (uint32_t)(body_size / pair_bytes);
    record->key_bytes = shape->key_bytes;
    record->row_bytes = row_bytes;
    record->body = value + HPS_UPDATE_HEAD_BYTES;
    record->body_size = body_size;
    return HPS_OK;
}

static hps_status decode_packed(struct hps_update_record *record, const uint8_t *value,
                                size_t value_size, struct hps_error *err)
{
    uint32_t version = read_u32(value + 4);

    record->form = HPS_UPDATE_PACKED;
    if (version != HPS_UPDATE_PACKED_VERSION) {
        hps_error_set(err, HPS_INVALID, "packed record of format %u, expected %d", version,
                      HPS_UPDATE_PACKED_VERSION);
        return reject(record, HPS_UPDATE_REJECT_NEWER_FORMAT);
    }
    record->body = value + HPS_UPDATE_HEAD_BYTES;
    record->body_size = value_size - HPS_UPDATE_HEAD_BYTES;
    return HPS_OK;
}

hps_status hps_update_record_decode(const void *key, size_t key_size, const void *value,
                                    size_t value_size, const struct hps_update_shape *shape,
                                    struct hps_update_record *out_record, struct hps_error *err)
{
    struct hps_update_record *record = out_record;
    const uint8_t *bytes = value;

    HPS_ASSERT(shape->key_bytes == 4 || shape->key_bytes == 8);
    HPS_ASSERT(shape->dtype == 0 || hps_dtype_is_stored((unsigned)shape->dtype));
    HPS_ASSERT(key != NULL || key_size == 0);
    HPS_ASSERT(value != NULL || value_size == 0);
    *record = (struct hps_update_record){0};
    if (value_size > HPS_UPDATE_RECORD_BYTES_MAX) {
        hps_error_set(err, HPS_INVALID, "value of %zu bytes, at most %d", value_size,
                      HPS_UPDATE_RECORD_BYTES_MAX);
        return reject(record, HPS_UPDATE_REJECT_TOO_LARGE);
    }
    if (key_size == HPS_UPDATE_KEY_BYTES) {
        return decode_keyed(record, key, bytes, value_size, shape, err);
    }
    if (key_size != 0 || value == NULL) {
        hps_error_set(err, HPS_INVALID, "key of %zu bytes%s, expected %d%s", key_size,
                      value == NULL ? " with a null value" : "", HPS_UPDATE_KEY_BYTES,
                      value == NULL ? "" : ", or none before HCTR or HPS1");
        return reject(record, HPS_UPDATE_REJECT_KEY);
    }
    if (value_size < HPS_UPDATE_HEAD_BYTES) {
        hps_error_set(err, HPS_INVALID, "value of %zu bytes without a key, expected at least %d",
                      value_size, HPS_UPDATE_HEAD_BYTES);
        return reject(record, HPS_UPDATE_REJECT_TRUNCATED);
    }
    if (memcmp(bytes, magic_hctr, sizeof(magic_hctr)) == 0) {
        return decode_hctr(record, bytes, value_size, shape, err);
    }
    if (memcmp(bytes, magic_packed, sizeof(magic_packed)) == 0) {
        return decode_packed(record, bytes, value_size, err);
    }
    hps_error_set(err, HPS_INVALID,
                  "value begins with %02x %02x %02x %02x, expected HCTR or HPS1 where there is no "
                  "key",
                  bytes[0], bytes[1], bytes[2], bytes[3]);
    return reject(record, HPS_UPDATE_REJECT_MAGIC);
}

void hps_update_record_copy(const struct hps_update_record *record, hps_key *out_keys,
                            uint8_t *out_rows)
{
    const uint8_t *at = record->body;

    HPS_ASSERT(record->reject == HPS_UPDATE_REJECT_NONE);
    if (record->form == HPS_UPDATE_KEYED) {
        out_keys[0] = record->key;
        if (out_rows != NULL && at != NULL) {
            memcpy(out_rows, at, record->row_bytes);
        }
        return;
    }
    HPS_ASSERT(record->form == HPS_UPDATE_HCTR);
    for (uint32_t i = 0; i < record->n; i++) {
        out_keys[i] = record->key_bytes == 8 ? read_u64(at) : read_u32(at);
        at += record->key_bytes;
        if (out_rows != NULL) {
            memcpy(out_rows + (size_t)i * record->row_bytes, at, record->row_bytes);
        }
        at += record->row_bytes;
    }
}

/* ---- encode ---------------------------------------------------------------------------------- */

void hps_update_hctr_encode(const hps_key *keys, const void *rows, size_t n, uint32_t key_bytes,
                            uint32_t row_bytes, uint8_t *out_bytes)
{
    const uint8_t *row = rows;
    uint8_t *at = out_bytes + HPS_UPDATE_HEAD_BYTES;

    HPS_ASSERT(key_bytes == 4 || key_bytes == 8);
    memcpy(out_bytes, magic_hctr, sizeof(magic_hctr));
    write_u32(out_bytes + 4, row_bytes);
    for (size_t i = 0; i < n; i++) {
        if (key_bytes == 8) {
            hps_update_u64_encode(keys[i], at);
        } else {
            HPS_ASSERT(keys[i] <= UINT32_MAX);
            write_u32(at, (uint32_t)keys[i]);
        }
        memcpy(at + key_bytes, row, row_bytes);
        at += (size_t)key_bytes + row_bytes;
        row += row_bytes;
    }
}

void hps_update_packed_head(uint8_t out_bytes[HPS_UPDATE_HEAD_BYTES])
{
    memcpy(out_bytes, magic_packed, sizeof(magic_packed));
    write_u32(out_bytes + 4, HPS_UPDATE_PACKED_VERSION);
}

/* murmur2 of the key's 8 bytes as Kafka's Java client computes it
 * (org.apache.kafka.common.utils.Utils.murmur2), with the sign bit cleared. */
uint32_t hps_update_partition(hps_key key, uint32_t n_partitions)
{
    const uint32_t m = 0x5bd1e995;
    uint32_t h = 0x9747b28c ^ HPS_UPDATE_KEY_BYTES;

    HPS_ASSERT(n_partitions > 0);
    for (unsigned shift = 0; shift < 64; shift += 32) {
        uint32_t k = (uint32_t)(key >> shift) * m;
        k = (k ^ (k >> 24)) * m;
        h = (h * m) ^ k;
    }
    h = (h ^ (h >> 13)) * m;
    h ^= h >> 15;
    return (h & 0x7fffffff) % n_partitions;
}

/* ---- topics ---------------------------------------------------------------------------------- */

_Static_assert(sizeof("hps_et..") + 2 * HPS_MODEL_NAME_BYTES_MAX == HPS_UPDATE_TOPIC_BYTES_MAX,
               "the longest topic fits, and is within the 249 bytes that Kafka allows");

void hps_update_topic_format(const char *model, const char *table,
                             char out_topic[HPS_UPDATE_TOPIC_BYTES_MAX])
{
    int size = snprintf(out_topic, HPS_UPDATE_TOPIC_BYTES_MAX, "%s%s%s%s", topic_prefix, model,
                        table != NULL ? "." : "", table != NULL ? table : "");

    HPS_ASSERT(size > 0);
    HPS_ASSERT(size < HPS_UPDATE_TOPIC_BYTES_MAX);
}

static bool copy_name(const char *text, size_t size, char out_name[HPS_MODEL_NAME_BYTES_MAX + 1])
{
    if (size > HPS_MODEL_NAME_BYTES_MAX) {
        return false;
    }
    memcpy(out_name, text, size);
    out_name[size] = '\0';
    return hps_model_name_valid(out_name);
}

bool hps_update_topic_parse(const char *topic, struct hps_update_topic *out_topic)
{
    struct hps_update_topic found = {0};

    if (strncmp(topic, topic_prefix, sizeof(topic_prefix) - 1) != 0) {
        return false;
    }
    const char *model = topic + sizeof(topic_prefix) - 1;
    const char *dot = strchr(model, '.');
    size_t model_size = dot != NULL ? (size_t)(dot - model) : strlen(model);
    if (!copy_name(model, model_size, found.model) ||
        (dot != NULL && !copy_name(dot + 1, strlen(dot + 1), found.table))) {
        return false;
    }
    *out_topic = found;
    return true;
}
