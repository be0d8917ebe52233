/* SPDX-License-Identifier: Apache-2.0
 *
 * RocksDB's options: of the database, reads, writes and ingestions, and how files are read. All are
 * set by the threads that open the store, and only read after that.
 */
#include "backends/rocksdb/internal.h"
#include "base/assert.h"
#include "base/log.h"

#define MIB                (UINT64_C(1) << 20)
#define WRITE_BUFFER_BYTES (256 * MIB)
#define WAL_BYTES          (256 * MIB)

/* filter: only for files written by flushes and compactions. Most rows are in ingested files at the
 * bottom level. A filter there would need memory for every row, and would help only with keys that
 * do not exist. Mapped files need no block cache. */
static void options_set_table(const struct hps_rocksdb *store, rocksdb_options_t *options,
                              bool filter)
{
    rocksdb_block_based_table_options_t *table = rocksdb_block_based_options_create();
    rocksdb_block_based_options_set_block_size(table, HPS_DISK_BLOCK_BYTES);
    rocksdb_block_based_options_set_format_version(table, 5);
    if (store->cache != NULL && store->mode != HPS_READ_MMAP) {
        rocksdb_block_based_options_set_block_cache(table, store->cache);
    } else {
        rocksdb_block_based_options_set_no_block_cache(table, 1);
    }
    if (filter) {
        rocksdb_block_based_options_set_filter_policy(table, rocksdb_filterpolicy_create_bloom(10));
    }
    rocksdb_options_set_block_based_table_factory(options, table);
    rocksdb_block_based_options_destroy(table);
}

static rocksdb_options_t *options_new(const struct hps_rocksdb *store,
                                      const struct hps_rocksdb_options *given, bool filter)
{
    rocksdb_options_t *options = rocksdb_options_create();
    options_set_table(store, options, filter);
    rocksdb_options_set_optimize_filters_for_hits(options, filter);
    rocksdb_options_set_compression(options, rocksdb_no_compression); /* floats do not compress */
    rocksdb_options_set_paranoid_checks(options, 1);
    rocksdb_options_set_max_open_files(options, -1);
    rocksdb_options_set_max_background_jobs(options,
                                            given->n_threads > 2 ? (int)given->n_threads : 2);
    /* Memory is written out in the background without a check of free space. So it is limited to a
     * part of the minimum free space. */
    uint64_t buffers =
        hps_rocksdb_clamp(store->dir.disk_free_min_bytes / 8, MIB, WRITE_BUFFER_BYTES);
    rocksdb_options_set_db_write_buffer_size(options, (size_t)buffers);
    rocksdb_options_set_write_buffer_size(options, (size_t)(buffers / 4));
    rocksdb_options_set_target_file_size_base(options, buffers / 4);
    rocksdb_options_set_max_bytes_for_level_base(options, buffers);
    rocksdb_options_set_max_total_wal_size(options, hps_rocksdb_clamp(buffers, MIB, WAL_BYTES));
    rocksdb_options_set_manifest_preallocation_size(options, 64 << 10);
    /* A crash leaves a torn tail, which is tolerated. A gap in the middle is data loss and must be
     * reported. */
    rocksdb_options_set_wal_recovery_mode(options,
                                          rocksdb_tolerate_corrupted_tail_records_recovery);
    /* RocksDB's log file gets its options at the open and nothing more. Debian 12's library aborts
     * if it writes a line to it on a full disk. */
    rocksdb_options_set_info_log_level(options, 4 /* fatal */);
    rocksdb_options_set_keep_log_file_num(options, 4);
    if (store->dir.read_only) {
        rocksdb_options_set_db_log_dir(options, HPS_ROCKSDB_NO_LOG_DIR);
    }
    return options;
}

/* Set options that only exist in text form.
 *
 * avoid_flush: data recovered from the WAL stays in memory, and memory is left to the WAL at the
 * close. So opening and closing write almost nothing, and work on a full disk.
 *
 * hint: the memory table searches for a key from the previous key of its table (the prefix of a
 * key), since batches come in key order (write_order.h). */
hps_status hps_rocksdb_options_set_text(struct hps_rocksdb *store, struct hps_error *err)
{
    char *text = NULL;
    rocksdb_options_t *options = rocksdb_options_create();
    HPS_ASSERT(store->options != NULL && store->db == NULL);
    hps_rocksdb_listener_offer(hps_rocksdb_health_event, store);
    rocksdb_get_options_from_string(store->options,
                                    "avoid_flush_during_recovery=true;"
                                    "avoid_flush_during_shutdown=true;"
                                    "memtable_insert_with_hint_prefix_extractor=fixed:4;"
                                    "listeners=" HPS_ROCKSDB_LISTENER,
                                    options, &text);
    bool listened = hps_rocksdb_listener_made();
    if (text != NULL || !listened) {
        rocksdb_options_destroy(options);
        return text != NULL ? hps_rocksdb_fail_text(text, err, "cannot set options")
                            : hps_error_set(err, HPS_INTERNAL,
                                            "rocksdb: this RocksDB release has no event listeners, "
                                            "so hpsd could not detect background errors");
    }
    rocksdb_options_destroy(store->options);
    store->options = options;
    store->sst_aligned = rocksdb_options_create();
    rocksdb_get_options_from_string(store->sst_options,
                                    "block_based_table_factory={block_align=true}",
                                    store->sst_aligned, &text);
    return text == NULL ? HPS_OK : hps_rocksdb_fail_text(text, err, "cannot set options");
}

void hps_rocksdb_options_fill(struct hps_rocksdb *store, const struct hps_rocksdb_options *given)
{
    if (given->block_cache_bytes != 0) {
        store->cache = rocksdb_cache_create_lru((size_t)given->block_cache_bytes);
    }
    store->options = options_new(store, given, true);
    store->sst_options = options_new(store, given, false);
    store->read = rocksdb_readoptions_create();
    store->read_scan = rocksdb_readoptions_create();
    rocksdb_readoptions_set_fill_cache(store->read_scan, 0);
    rocksdb_readoptions_set_readahead_size(store->read_scan, 2 * MIB);
    /* Otherwise a batch for a dropped family would stop the database, even after restarts. */
    store->write = rocksdb_writeoptions_create();
    rocksdb_writeoptions_set_ignore_missing_column_families(store->write, 1);
    rocksdb_writeoptions_set_sync(store->write, store->wal.sync_ms == 0);
    store->write_synced = rocksdb_writeoptions_create();
    rocksdb_writeoptions_set_sync(store->write_synced, 1);
    store->write_unlogged = rocksdb_writeoptions_create();
    rocksdb_writeoptions_disable_WAL(store->write_unlogged, 1);
    store->ingest = rocksdb_ingestexternalfileoptions_create();
    rocksdb_ingestexternalfileoptions_set_move_files(store->ingest, 1);
    store->env_options = rocksdb_envoptions_create();
}

void hps_rocksdb_options_free(struct hps_rocksdb *store)
{
    if (store->options == NULL) {
        return;
    }
    rocksdb_envoptions_destroy(store->env_options);
    rocksdb_ingestexternalfileoptions_destroy(store->ingest);
    rocksdb_writeoptions_destroy(store->write_unlogged);
    rocksdb_writeoptions_destroy(store->write_synced);
    rocksdb_writeoptions_destroy(store->write);
    rocksdb_readoptions_destroy(store->read_scan);
    rocksdb_readoptions_destroy(store->read);
    if (store->sst_aligned != NULL) {
        rocksdb_options_destroy(store->sst_aligned);
    }
    rocksdb_options_destroy(store->sst_options);
    rocksdb_options_destroy(store->options);
    if (store->cache != NULL) {
        rocksdb_cache_destroy(store->cache);
    }
}

/* ---- read modes ------------------------------------------------------------------------------ */

void hps_rocksdb_options_set_mode(struct hps_rocksdb *store)
{
    rocksdb_options_t *each[2] = {store->options, store->sst_options};
    HPS_ASSERT(store->mode != HPS_READ_AUTO && store->db == NULL);
    for (unsigned i = 0; i < 2; i++) {
        options_set_table(store, each[i], i == 0);
        rocksdb_options_set_allow_mmap_reads(each[i], store->mode == HPS_READ_MMAP);
        rocksdb_options_set_use_direct_reads(each[i], store->mode == HPS_READ_DIRECT);
    }
}

/* Files are mapped while they fit the page cache. Larger ones are read directly, because they would
 * only thrash that cache. */
hps_status hps_rocksdb_mode_choose(struct hps_rocksdb *store,
                                   const struct hps_rocksdb_options *given, struct hps_error *err)
{
    struct hps_rocksdb_dir_files files;
    bool direct_works = hps_rocksdb_dir_direct_works(&store->dir);
    hps_status status = hps_rocksdb_dir_files(&store->dir, ".sst", &files, err);
    if (status != HPS_OK) {
        return status;
    }
    uint64_t bytes = files.bytes > given->load_bytes ? files.bytes : given->load_bytes;
    store->mode = given->read_mode;
    store->base_files = given->base_files;
    store->memory_bytes = given->memory_bytes;
    if (store->mode == HPS_READ_AUTO) {
        store->mode = bytes <= given->memory_bytes ? HPS_READ_MMAP
                      : direct_works               ? HPS_READ_DIRECT
                                                   : HPS_READ_BUFFERED;
    }
    if (store->mode == HPS_READ_DIRECT && !direct_works) {
        return hps_error_set(err, HPS_INVALID,
                             "rocksdb: persistent_db.read_mode: got direct, which the file system "
                             "of %s does not support",
                             store->dir.path);
    }
    HPS_ASSERT(store->mode != HPS_READ_AUTO);
    static const char *const names[] = {"auto", "mmap", "direct", "buffered"};
    HPS_LOG(INFO, "rocksdb", "read mode", HPS_STR("mode", names[store->mode]),
            HPS_U64("bytes", bytes), HPS_U64("memory_bytes", given->memory_bytes));
    return HPS_OK;
}

void hps_rocksdb_mode_review(struct hps_rocksdb *store)
{
    struct hps_rocksdb_dir_files files;
    struct hps_error ignored;
    if (hps_rocksdb_dir_files(&store->dir, ".sst", &files, &ignored) != HPS_OK) {
        return;
    }
    bool bound = files.bytes > store->memory_bytes || store->mode == HPS_READ_DIRECT;
    atomic_store(&store->mapped_bytes, store->mode == HPS_READ_MMAP ? files.bytes : 0);
    bool before = atomic_exchange(&store->disk_bound, bound);
    if (bound && !before && store->mode == HPS_READ_MMAP) {
        HPS_LOG(
            WARN, "rocksdb",
            "read mode outdated: the files have outgrown the memory for them; restart hpsd with "
            "persistent_db.read_mode auto or direct",
            HPS_U64("bytes", files.bytes), HPS_U64("memory_bytes", store->memory_bytes));
    }
}
