/* SPDX-License-Identifier: Apache-2.0
 *
 * The persistent store: RocksDB in `<path>/hpsd`, with one column family per (model, version).
 * A load writes sorted SST files and ingests them in one call. The persistent store is the lowest
 * store, so `insert` inserts nothing (hps_store_insert_none). Calls are thread-safe
 * (backends/store.h) and may wait for the disk.
 */
#ifndef HPS_BACKENDS_ROCKSDB_ROCKSDB_H
#define HPS_BACKENDS_ROCKSDB_ROCKSDB_H

#include <stdatomic.h>

#include "backends/store_durable.h"

struct hps_pool;

struct hps_rocksdb_options {
    const char *path; /* the database is in `<path>/hpsd` */
    /* Maximum number of RocksDB's background jobs; less than 2 counts as 2. If it is not 1, four
     * times as many threads share large gets: the calling thread and up to 63 others. */
    unsigned n_threads;
    uint32_t batch_keys_max; /* keys per multi-get */
    bool read_only;
    /* Free bytes of the file system that writes must leave; 0: max(2 GiB, 5 % of the file
     * system). */
    uint64_t disk_free_min_bytes;
    uint64_t block_cache_bytes;
    /* AUTO: the store chooses when it is opened. It chooses MMAP if neither the total size of the
     * files nor load_bytes exceeds memory_bytes. Otherwise it chooses DIRECT, or BUFFERED if the
     * file system does not support direct reads. */
    enum hps_read_mode read_mode;
    /* Page cache available for the files. If the files are larger, or reads are direct, or many
     * keys had to wait for pages of mapped files, all threads share a large get. Otherwise at most
     * one thread per CPU shares it. */
    uint64_t memory_bytes;
    uint64_t load_bytes;  /* size of the tables to be loaded, only used by AUTO; 0: not known */
    uint32_t wal_sync_ms; /* interval of WAL syncs; 0: each write is synced before it returns */
    bool base_files;      /* new versions may get base files (backends/basefile/basefile.h) */
};

/* The newest and the first database format that this build reads and writes. A database with a
 * newer format is refused with NEWER_FORMAT. A database has the oldest format that can hold its
 * content, so that older builds can open it: format 1, or 2 once a version with INT8 rows was
 * created, or 3 once a version was created that may have base files. */
enum {
    HPS_ROCKSDB_FORMAT = 3,
    HPS_ROCKSDB_FORMAT_INT8 = 2,
    HPS_ROCKSDB_FORMAT_FIRST = 1,
};

/* Open the store.
 *
 * error   BUSY: another process has the store open, and one of the two opens is for writing;
 *         NEWER_FORMAT; DATA_LOSS (corrupt); PRECONDITION (not a database of hpsd); INVALID: the
 *         file system does not support direct reads, which read_mode requires, the path is too
 *         long, or root would write into a directory of another user; NOT_FOUND, PERMISSION,
 *         EXHAUSTED, NO_MEMORY, IO */
hps_status hps_rocksdb_open(const struct hps_rocksdb_options *options, struct hps_store **out_store,
                            struct hps_error *err) HPS_MUST_CHECK;
/* The threads that share large gets, for a layer above the store. NULL: no threads. */
struct hps_pool *hps_rocksdb_readers(const struct hps_store *store);
/* Bytes of files that are mapped. */
const atomic_uint_fast64_t *hps_rocksdb_mapped_bytes(const struct hps_store *store);

#endif
