/* SPDX-License-Identifier: Apache-2.0
 *
 * The persistent store: RocksDB in `<path>/hpsd`, one column family per (model, version), loads as
 * sorted SST files that are ingested in one call. Threads: as backends/store.h says; calls may wait
 * for the disk.
 */
#ifndef HPS_BACKENDS_ROCKSDB_ROCKSDB_H
#define HPS_BACKENDS_ROCKSDB_ROCKSDB_H

#include "backends/store.h"

/* How rows are read from disk. */
enum hps_rocksdb_read_mode {
    HPS_ROCKSDB_READ_AUTO,   /* MMAP if the files and those to be loaded fit memory_bytes, else
                              * DIRECT; chosen when the store is opened */
    HPS_ROCKSDB_READ_MMAP,   /* no copy in the kernel; a sector that cannot be read ends the process
                              */
    HPS_ROCKSDB_READ_DIRECT, /* past the page cache, by many threads */
    HPS_ROCKSDB_READ_BUFFERED, /* through the page cache */
};

struct hps_rocksdb_options {
    const char *path;        /* the database is made in `<path>/hpsd` */
    unsigned n_threads;      /* background jobs; readers that help with one large get */
    uint32_t batch_keys_max; /* keys per multi-get and rows per write batch */
    bool read_only;
    uint64_t disk_free_min_bytes; /* writes stop below it; 0 = max(2 GiB, 5 % of the file system) */
    uint64_t block_cache_bytes;
    enum hps_rocksdb_read_mode read_mode;
    uint64_t memory_bytes; /* of page cache for the files: beyond it reads wait for the disk, and
                            * more threads share a large one */
    uint64_t load_bytes;   /* that the configured tables will take, for AUTO; 0: not known */
    uint32_t wal_sync_ms;  /* writes reach the disk within it; 0 = before they return */
};

/* The newest database format that this build reads and writes; a newer one is refused with
 * NEWER_FORMAT. A database is of the oldest that holds what is in it, so that an older build can be
 * gone back to as long as it could read all: 1 until a version with INT8 rows is made, then 2. */
enum { HPS_ROCKSDB_FORMAT = 2, HPS_ROCKSDB_FORMAT_FIRST = 1 };

/* BUSY: another process has it open. NEWER_FORMAT, DATA_LOSS (corrupt), PRECONDITION (not ours),
 * IO. */
hps_status hps_rocksdb_open(const struct hps_rocksdb_options *options, struct hps_store **out_store,
                            struct hps_error *err) HPS_MUST_CHECK;

#endif
