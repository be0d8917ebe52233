/* SPDX-License-Identifier: Apache-2.0
 *
 * Writing rows, and with apply also records of a space. Each batch of RocksDB is in key order
 * (write_order.h), and is written whole or not at all. Blocks on disk. Thread-safe.
 */
#include <inttypes.h>
#include <string.h>

#include "backends/rocksdb/internal.h"
#include "backends/rocksdb/write_order.h"
#include "base/assert.h"
#include "base/clock.h"

enum { RECORD_ENTRY_BYTES = 64 };

#define APPLY_BYTES_MAX (UINT64_C(1) << 30) /* RocksDB limits a batch to 4 GiB */

/* ---- one batch ------------------------------------------------------------------------------- */

struct batch {
    rocksdb_writebatch_t *writes;
    rocksdb_column_family_handle_t *family;
};

static void batch_add_row(void *ctx, const struct hps_table *table, hps_key row_key,
                          const uint8_t *row)
{
    const struct batch *batch = ctx;
    char key[HPS_ROCKSDB_KEY_BYTES];
    HPS_ASSERT(table->id != HPS_ROCKSDB_RECORD_TABLE);
    hps_rocksdb_key_encode(key, table->id, row_key);
    if (row != NULL) {
        rocksdb_writebatch_put_cf(batch->writes, batch->family, key, HPS_ROCKSDB_KEY_BYTES,
                                  (const char *)row, table->row_bytes);
    } else {
        rocksdb_writebatch_delete_cf(batch->writes, batch->family, key, HPS_ROCKSDB_KEY_BYTES);
    }
}

/* On failure frees `batch`. NO_MEMORY */
static hps_status batch_add(rocksdb_writebatch_t *batch, struct hps_space *space,
                            const struct hps_write *writes, uint32_t n_writes)
{
    struct batch to = {batch, hps_rocksdb_handle(space)};
    hps_status status = hps_write_order(writes, n_writes, batch_add_row, &to);
    if (status != HPS_OK) {
        rocksdb_writebatch_destroy(batch);
    }
    return status;
}

/* Write and free `batch`. *out_text: RocksDB's error, or NULL if it was written. */
static void batch_write(struct hps_rocksdb *store, rocksdb_writebatch_t *batch, char **out_text)
{
    *out_text = NULL;
    uint64_t begun = hps_rocksdb_write_begin(store);
    rocksdb_write(store->db, store->write, batch, out_text);
    hps_rocksdb_write_end(store, begun, *out_text);
    rocksdb_writebatch_destroy(batch);
    if (*out_text == NULL && store->wal.sync_ms != 0) {
        atomic_store(&store->wal.dirty, true);
    }
}

static uint64_t batch_bytes(uint32_t n, uint64_t row_bytes)
{
    return n * (row_bytes + HPS_DISK_ENTRY_BYTES);
}

/* ---- apply ----------------------------------------------------------------------------------- */

/* Check the size of an apply against the limit of a batch and the free space. */
static hps_status apply_check(struct hps_rocksdb *store, const struct hps_call *call,
                              const struct hps_write *writes, uint32_t n_writes,
                              const struct hps_record *records, uint32_t n_records,
                              struct hps_error *err)
{
    if (store->dir.read_only) {
        return hps_rocksdb_fail_read_only(store, err);
    }
    if (call->deadline_us != 0 && hps_clock_us() >= call->deadline_us) {
        return hps_error_set(err, HPS_DEADLINE, "rocksdb: no time left to write the batch");
    }
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < n_writes; i++) {
        bytes += batch_bytes(writes[i].n, writes[i].rows != NULL ? writes[i].table->row_bytes : 0);
    }
    for (uint32_t i = 0; i < n_records; i++) {
        HPS_ASSERT(records[i].key_size <= HPS_RECORD_KEY_BYTES_MAX);
        bytes += RECORD_ENTRY_BYTES + records[i].key_size + records[i].value_size;
    }
    if (bytes > APPLY_BYTES_MAX) {
        return hps_error_set(err, HPS_INVALID,
                             "rocksdb: got a batch of %" PRIu64 " bytes, expected at most %" PRIu64,
                             bytes, APPLY_BYTES_MAX);
    }
    hps_status status = hps_rocksdb_dir_guard(&store->dir, 2 * bytes, err);
    return status == HPS_OK ? hps_rocksdb_wal_check(store, err) : status;
}

static void batch_add_record(rocksdb_writebatch_t *batch, struct hps_space *space,
                             const struct hps_record *record)
{
    char key[HPS_ROCKSDB_RECORD_PREFIX_BYTES + HPS_RECORD_KEY_BYTES_MAX];
    uint32_t prefix = HPS_ROCKSDB_RECORD_TABLE;
    memcpy(key, &prefix, sizeof(prefix));
    memcpy(key + HPS_ROCKSDB_RECORD_PREFIX_BYTES, record->key, record->key_size);
    size_t size = HPS_ROCKSDB_RECORD_PREFIX_BYTES + record->key_size;
    if (record->value != NULL) {
        rocksdb_writebatch_put_cf(batch, hps_rocksdb_handle(space), key, size, record->value,
                                  record->value_size);
    } else {
        rocksdb_writebatch_delete_cf(batch, hps_rocksdb_handle(space), key, size);
    }
}

hps_status hps_rocksdb_apply(struct hps_space *space, const struct hps_call *call,
                             const struct hps_write *writes, uint32_t n_writes,
                             const struct hps_record *records, uint32_t n_records,
                             struct hps_error *err)
{
    struct hps_rocksdb *store = hps_rocksdb_of(space);
    hps_status status = apply_check(store, call, writes, n_writes, records, n_records, err);
    /* Even an empty batch would take disk space. */
    if (status != HPS_OK || n_writes + n_records == 0) {
        return status;
    }
    char *text = NULL;
    rocksdb_writebatch_t *batch = rocksdb_writebatch_create();
    if (batch_add(batch, space, writes, n_writes) != HPS_OK) {
        return hps_rocksdb_fail_memory(err);
    }
    for (uint32_t i = 0; i < n_records; i++) {
        batch_add_record(batch, space, &records[i]);
    }
    batch_write(store, batch, &text);
    return text == NULL ? HPS_OK : hps_rocksdb_fail_text(text, err, "cannot apply the batch");
}
