/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies of the store in its current state, by RocksDB's checkpoints. Blocks on disk. Any thread;
 * lookups and writes continue.
 */
#include <unistd.h>

#include "backends/rocksdb/internal.h"
#include "base/heap.h"

static uint64_t families_property(struct hps_rocksdb *store, const char *name)
{
    uint64_t sum = 0;
    hps_lock_acquire(&store->lock);
    for (const struct hps_rocksdb_family *f = store->families; f != NULL; f = f->next) {
        uint64_t value = 0;
        if (rocksdb_property_int_cf(store->db, f->handle, name, &value) == 0) {
            sum += value;
        }
    }
    hps_lock_release(&store->lock);
    return sum;
}

hps_status hps_rocksdb_checkpoint(struct hps_store *base, const char *dir, struct hps_error *err)
{
    struct hps_rocksdb *store = (struct hps_rocksdb *)base;
    char *text = NULL;
    if (store->dir.read_only) {
        return hps_rocksdb_fail_read_only(store, err);
    }
    hps_status status = hps_rocksdb_dir_guard_copy(
        &store->dir, dir, families_property(store, "rocksdb.total-sst-files-size"),
        families_property(store, "rocksdb.cur-size-all-mem-tables"), err);
    char *path = hps_rocksdb_dir_join(dir, "hpsd");
    if (status == HPS_OK && path == NULL) {
        status = hps_rocksdb_fail_memory(err);
    }
    if (status == HPS_OK && access(path, F_OK) == 0) {
        status = hps_error_set(err, HPS_EXISTS, "rocksdb: %s already exists", path);
    }
    if (status == HPS_OK) {
        rocksdb_checkpoint_t *checkpoint = rocksdb_checkpoint_object_create(store->db, &text);
        if (text == NULL) {
            rocksdb_checkpoint_create(checkpoint, path, 0, &text);
            rocksdb_checkpoint_object_destroy(checkpoint);
        }
        if (text != NULL) {
            status = hps_rocksdb_fail_text(text, err, "cannot make a checkpoint");
        }
    }
    hps_free(path);
    return status;
}
