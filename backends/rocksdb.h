/* SPDX-License-Identifier: Apache-2.0
 *
 * The persistent store: RocksDB in `<path>/hpsd`, one column family per (model, version), loads as
 * sorted SST files that are ingested in one call.
 */
#ifndef HPS_BACKENDS_ROCKSDB_H
#define HPS_BACKENDS_ROCKSDB_H

#include "backends/store.h"

struct hps_rocksdb_options {
    const char *path;        /* the database is made in `<path>/hpsd` */
    unsigned n_threads;      /* background jobs */
    uint32_t batch_keys_max; /* keys per multi-get and rows per write batch */
    bool read_only;
    uint64_t disk_free_min_bytes; /* writes stop below it; 0 = max(2 GiB, 5 % of the file system) */
    uint64_t block_cache_bytes;
};

/* The database format this build writes; a newer one is refused with NEWER_FORMAT. */
enum { HPS_ROCKSDB_FORMAT = 1 };

/* BUSY: another process has it open. NEWER_FORMAT, DATA_LOSS (corrupt), PRECONDITION (not ours),
 * IO. */
hps_status hps_rocksdb_open(const struct hps_rocksdb_options *options, struct hps_store **out_store,
                            struct hps_error *err) HPS_MUST_CHECK;

#endif
