/* SPDX-License-Identifier: Apache-2.0
 *
 * The persistent store: opening and closing it. internal.h lists the other files. Calls block on
 * disk, so they come from worker threads; any number at a time.
 *
 * On disk: `<path>/hpsd` is the database; `<path>/hpsd.lock` restricts it to one process. The
 * default family has one record, the format. The family "catalog" has the records. Each family
 * `<model>@<version>` has one version. Its keys are table id and key, both big-endian, so key order
 * is load order. The version's own records come after all tables, under a table id that no table
 * has. So one batch writes rows and positions, and dropping the family drops both.
 *
 * RocksDB aborts the process if the disk is full when it writes its write-ahead log. So every write
 * first checks the free space, and is refused long before that.
 */
#include "backends/rocksdb/rocksdb.h"

#include "backends/rocksdb/internal.h"
#include "base/assert.h"
#include "base/heap.h"
#include "base/pool.h"

enum { BATCH_KEYS_MAX = 1 << 16 };

/* Also closes a store that is only partly open. All handles are closed before the database. */
static void rocks_close(struct hps_store *base)
{
    struct hps_rocksdb *store = (struct hps_rocksdb *)base;
    hps_rocksdb_sync_stop(store);
    hps_pool_free(store->readers);
    hps_rocksdb_dropped_close(store);
    while (store->families != NULL) {
        struct hps_rocksdb_family *family = store->families;
        HPS_ASSERT(!family->open);
        store->families = family->next;
        hps_rocksdb_family_free(family);
    }
    if (store->catalog != NULL) {
        rocksdb_column_family_handle_destroy(store->catalog);
    }
    if (store->default_family != NULL) {
        rocksdb_column_family_handle_destroy(store->default_family);
    }
    if (store->db != NULL) {
        rocksdb_close(store->db);
    }
    hps_rocksdb_options_free(store);
    hps_rocksdb_wal_fini(&store->wal);
    hps_rocksdb_health_fini(&store->health);
    hps_rocksdb_dir_close(&store->dir);
    hps_lock_fini(&store->lock);
    hps_free(store);
}

static hps_status rocks_open(struct hps_rocksdb *store, const struct hps_rocksdb_options *given,
                             struct hps_error *err)
{
    hps_status status = hps_rocksdb_dir_open(&store->dir, given->path, given->read_only,
                                             given->disk_free_min_bytes, err);
    if (status != HPS_OK) {
        return status;
    }
    hps_rocksdb_options_fill(store, given);
    status = hps_rocksdb_options_set_text(store, err);
    if (status == HPS_OK) {
        status = hps_rocksdb_database_start_behind(store, given, err);
    }
    if (status == HPS_OK) {
        status = hps_rocksdb_files_check(store, err);
    }
    if (status == HPS_OK) {
        status = hps_rocksdb_readers_start(store, given, err);
    }
    if (status == HPS_OK && !store->dir.read_only) {
        hps_rocksdb_wals_limit(store);
        hps_rocksdb_memory_keep(store);
        hps_rocksdb_dir_ballast(&store->dir);
        status = hps_rocksdb_sync_start(store, err);
    }
    return status;
}

static uint64_t rocks_bytes_free(struct hps_store *base)
{
    return hps_rocksdb_dir_free_bytes(&((const struct hps_rocksdb *)base)->dir);
}

static const struct hps_store_bulk_ops bulk_ops = {
    .begin = hps_rocksdb_load_begin,
    .add = hps_rocksdb_load_add,
    .commit = hps_rocksdb_load_commit,
    .abort = hps_rocksdb_load_abort,
};

static const struct hps_store_durable_ops durable_ops = {
    .apply = hps_rocksdb_apply,
    .space_record_scan = hps_rocksdb_space_record_scan,
    .view = hps_rocksdb_view,
    .record_put = hps_rocksdb_record_put,
    .record_delete = hps_rocksdb_record_delete,
    .record_scan = hps_rocksdb_record_scan,
    .space_list = hps_rocksdb_space_list,
    .bytes_free = rocks_bytes_free,
    .writes_refused = hps_rocksdb_writes_refused,
    .checkpoint = hps_rocksdb_checkpoint,
};

static const struct hps_store_ops rocks_ops = {
    .name = "rocksdb",
    .tier = HPS_TIER_ROCKSDB,
    .caps = HPS_STORE_DURABLE | HPS_STORE_BLOCKING | HPS_STORE_SCANS | HPS_STORE_JOINS,
    .bulk = &bulk_ops,
    .durable = &durable_ops,
    .close = rocks_close,
    .space_open = hps_rocksdb_space_open,
    .space_close = hps_rocksdb_space_close,
    .space_drop = hps_rocksdb_space_drop,
    .space_usage = hps_rocksdb_space_usage,
    .get = hps_store_get_one,
    .get_many = hps_rocksdb_get_many,
    .insert = hps_store_insert_none, /* it is the lowest store */
    .put = hps_store_put_applied,
    .erase = hps_store_erase_applied,
    .scan = hps_rocksdb_scan,
};

hps_status hps_rocksdb_open(const struct hps_rocksdb_options *options, struct hps_store **out_store,
                            struct hps_error *err)
{
    struct hps_rocksdb *store = hps_calloc(1, sizeof(*store));
    if (store == NULL) {
        return hps_rocksdb_fail_memory(err);
    }
    store->base.ops = &rocks_ops;
    store->batch_keys_max = (uint32_t)hps_rocksdb_clamp(options->batch_keys_max, 1, BATCH_KEYS_MAX);
    hps_lock_init(&store->lock, HPS_LOCK_ROCKSDB);
    hps_rocksdb_health_init(&store->health);
    hps_rocksdb_wal_init(&store->wal, options->wal_sync_ms);
    hps_status status = rocks_open(store, options, err);
    if (status != HPS_OK) {
        rocks_close(&store->base);
        return status;
    }
    *out_store = &store->base;
    return HPS_OK;
}
