/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as Kafka record. An accepted record must lie within the input. Writing the record, if
 * it has the HCTR form, or its key must give the same bytes. A rejected record must have an error
 * text. The first byte of the input selects the size of keys, the dimension, the key of the record
 * and the row type of the table.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/assert.h"
#include "base/heap.h"
#include "base/rows/update_record.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_hctr(const struct hps_update_record *record, const uint8_t *value, size_t size)
{
    size_t pair_bytes = (size_t)record->key_bytes + record->row_bytes;
    hps_key *keys = hps_alloc(record->n * sizeof(*keys));
    uint8_t *rows = hps_alloc((size_t)record->n * record->row_bytes);
    uint8_t *again = hps_alloc(size);

    HPS_ASSERT(record->body == value + HPS_UPDATE_HEAD_BYTES);
    HPS_ASSERT(HPS_UPDATE_HEAD_BYTES + record->n * pair_bytes == size);
    HPS_ASSERT(hps_update_hctr_bytes(record->n, record->key_bytes, record->row_bytes) == size);
    if (keys != NULL && rows != NULL && again != NULL) {
        hps_update_record_copy(record, keys, rows);
        hps_update_hctr_encode(keys, rows, record->n, record->key_bytes, record->row_bytes, again);
        HPS_ASSERT(memcmp(again, value, size) == 0);
    }
    hps_free(keys);
    hps_free(rows);
    hps_free(again);
}

static void check_keyed(const struct hps_update_record *record, const uint8_t *key,
                        const uint8_t *value, size_t size)
{
    uint8_t again[HPS_UPDATE_KEY_BYTES];

    HPS_ASSERT(record->n == 1);
    HPS_ASSERT(record->body == value && record->body_size == size);
    HPS_ASSERT(hps_update_record_deletes(record) == (value == NULL));
    hps_update_u64_encode(record->key, again);
    HPS_ASSERT(memcmp(again, key, sizeof(again)) == 0);
}

/* Rows are float32, or have the type of the table. */
static void check_rows(const struct hps_update_record *record, const struct hps_update_shape *shape)
{
    bool known = record->n > 0 && shape->dim != 0 && !hps_update_record_deletes(record);

    HPS_ASSERT(!known || record->dtype == HPS_DTYPE_FP32 ||
               (record->form == HPS_UPDATE_KEYED && record->dtype == shape->dtype));
    HPS_ASSERT(!known || record->row_bytes == hps_dtype_row_bytes(record->dtype, shape->dim));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const enum hps_dtype stored[] = {0, HPS_DTYPE_BF16, HPS_DTYPE_INT8_ROWWISE_F32,
                                            HPS_DTYPE_INT8_ROWWISE_F16};
    struct hps_update_record record;
    struct hps_error err = {0};

    if (size == 0) {
        return 0;
    }
    uint8_t mode = *data++;
    size--;
    const struct hps_update_shape shape = {
        .key_bytes = (mode & 1) != 0 ? 4 : 8, .dim = (mode >> 4) & 3, .dtype = stored[mode >> 6]};
    size_t key_size = (mode & 2) != 0 ? 8 : (mode & 4) != 0 ? 5 : 0;
    if (key_size > size) {
        key_size = size;
    }
    const uint8_t *key = key_size > 0 ? data : NULL;
    const uint8_t *value = data + key_size;
    size -= key_size;
    if ((mode & 8) != 0) {
        value = NULL;
        size = 0;
    }
    hps_status status = hps_update_record_decode(key, key_size, value, size, &shape, &record, &err);
    if (status != HPS_OK) {
        HPS_ASSERT(status == HPS_INVALID && err.text[0] != '\0');
        HPS_ASSERT(record.reject != HPS_UPDATE_REJECT_NONE);
        return 0;
    }
    HPS_ASSERT(record.reject == HPS_UPDATE_REJECT_NONE);
    check_rows(&record, &shape);
    if (record.form == HPS_UPDATE_HCTR) {
        check_hctr(&record, value, size);
    } else if (record.form == HPS_UPDATE_KEYED) {
        check_keyed(&record, key, value, size);
    } else {
        HPS_ASSERT(record.form == HPS_UPDATE_PACKED);
        HPS_ASSERT(record.body == value + HPS_UPDATE_HEAD_BYTES);
        HPS_ASSERT(record.body_size + HPS_UPDATE_HEAD_BYTES == size);
    }
    return 0;
}
