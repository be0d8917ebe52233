/* SPDX-License-Identifier: Apache-2.0
 *
 * Records. The store's own records are the catalog. The records of a space are written with its
 * rows (write.c) and read here. Blocks on disk. Thread-safe.
 */
#include <string.h>

#include "backends/rocksdb/internal.h"
#include "base/assert.h"

/* value NULL: delete the record. */
static hps_status record_write(struct hps_rocksdb *store, const void *key, size_t key_size,
                               const void *value, size_t value_size, struct hps_error *err)
{
    if (store->dir.read_only) {
        return hps_rocksdb_fail_read_only(store, err);
    }
    hps_status status = hps_rocksdb_dir_guard_vital(&store->dir, key_size + value_size, err);
    if (status == HPS_OK) {
        status = hps_rocksdb_wal_check(store, err);
    }
    if (status != HPS_OK) {
        return status;
    }
    char *text = NULL;
    uint64_t begun = hps_rocksdb_write_begin(store);
    if (value != NULL) {
        rocksdb_put_cf(store->db, store->write_synced, store->catalog, key, key_size, value,
                       value_size, &text);
    } else {
        rocksdb_delete_cf(store->db, store->write_synced, store->catalog, key, key_size, &text);
    }
    hps_rocksdb_write_end(store, begun, text);
    return text == NULL ? HPS_OK : hps_rocksdb_fail_text(text, err, "cannot write a record");
}

hps_status hps_rocksdb_record_put(struct hps_store *base, const void *key, size_t key_size,
                                  const void *value, size_t value_size, struct hps_error *err)
{
    HPS_ASSERT(value != NULL || value_size == 0);
    return record_write((struct hps_rocksdb *)base, key, key_size, value != NULL ? value : "",
                        value_size, err);
}

hps_status hps_rocksdb_record_delete(struct hps_store *base, const void *key, size_t key_size,
                                     struct hps_error *err)
{
    return record_write((struct hps_rocksdb *)base, key, key_size, NULL, 0, err);
}

/* Pass records to fn, from the position of `iter` while keys begin with `prefix`. The first
 * n_hidden bytes of each key are left out. Frees `iter`. */
static hps_status scan_records(rocksdb_iterator_t *iter, const char *prefix, size_t n_hidden,
                               hps_record_fn fn, void *ctx, struct hps_error *err)
{
    size_t prefix_size = strlen(prefix);
    hps_status status = HPS_OK;
    for (; status == HPS_OK && rocksdb_iter_valid(iter); rocksdb_iter_next(iter)) {
        size_t key_size = 0;
        size_t value_size = 0;
        const char *key = rocksdb_iter_key(iter, &key_size);
        if (key_size < prefix_size || memcmp(key, prefix, prefix_size) != 0) {
            break;
        }
        const char *value = rocksdb_iter_value(iter, &value_size);
        status = fn(ctx, key + n_hidden, key_size - n_hidden, value, value_size);
    }
    char *text = NULL;
    rocksdb_iter_get_error(iter, &text);
    if (text != NULL) {
        status = hps_rocksdb_fail_text(text, err, "cannot read the records");
    }
    rocksdb_iter_destroy(iter);
    return status;
}

hps_status hps_rocksdb_record_scan(struct hps_store *base, const char *prefix, hps_record_fn fn,
                                   void *ctx, struct hps_error *err)
{
    struct hps_rocksdb *store = (struct hps_rocksdb *)base;
    rocksdb_iterator_t *iter = rocksdb_create_iterator_cf(store->db, store->read, store->catalog);
    rocksdb_iter_seek(iter, prefix, strlen(prefix));
    return scan_records(iter, prefix, 0, fn, ctx, err);
}

hps_status hps_rocksdb_space_records(struct hps_space *space, const rocksdb_readoptions_t *options,
                                     hps_record_fn fn, void *ctx, struct hps_error *err)
{
    struct hps_rocksdb *store = hps_rocksdb_of(space);
    uint32_t prefix = HPS_ROCKSDB_RECORD_TABLE;
    rocksdb_iterator_t *iter =
        rocksdb_create_iterator_cf(store->db, options, hps_rocksdb_handle(space));
    rocksdb_iter_seek(iter, (const char *)&prefix, HPS_ROCKSDB_RECORD_PREFIX_BYTES);
    return scan_records(iter, "", HPS_ROCKSDB_RECORD_PREFIX_BYTES, fn, ctx, err);
}

hps_status hps_rocksdb_space_record_scan(struct hps_space *space, hps_record_fn fn, void *ctx,
                                         struct hps_error *err)
{
    return hps_rocksdb_space_records(space, hps_rocksdb_of(space)->read, fn, ctx, err);
}
