/* SPDX-License-Identifier: Apache-2.0
 *
 * A sub-table of optional store calls (backends/store.h), for stores that keep rows on disk. Such a
 * store applies updates atomically and keeps a small number of small records (catalog, positions of
 * updates). It lists the spaces on disk and reports the free space.
 */
#ifndef HPS_BACKENDS_STORE_DURABLE_H
#define HPS_BACKENDS_STORE_DURABLE_H

#include "backends/store.h"

/* A record to write or delete. */
struct hps_record {
    const void *key; /* at most HPS_RECORD_KEY_BYTES_MAX */
    size_t key_size;
    const void *value; /* NULL: delete the record */
    size_t value_size;
};

enum { HPS_RECORD_KEY_BYTES_MAX = 1024 };

/* This bit is set in the id of a hidden table. The other bits are the id of the table to which
 * the hidden table belongs. The hidden table has the row version of each key, a number that orders
 * the updates of the key (cache/update/versions.c). get and apply treat a hidden table like any
 * other table. Only the lowest store has hidden tables, so no rows are inserted into them. A scan
 * of a table does not return rows of its hidden table. */
#define HPS_TABLE_HIDDEN (UINT32_C(1) << 31)

/* Receives one record of a scan. Any status but OK ends the scan, which returns this status. */
typedef hps_status (*hps_record_fn)(void *ctx, const void *key, size_t key_size, const void *value,
                                    size_t value_size);
/* Receives one space from space_list. Any status but OK ends space_list, which returns this
 * status. */
typedef hps_status (*hps_space_fn)(void *ctx, const char *model, int64_t version);

/* What `view` calls. A status that is not OK ends the view, which returns this status. */
struct hps_view {
    const struct hps_table *tables;
    uint32_t n_tables;
    void *ctx;
    hps_record_fn record;
    hps_status (*begin)(void *ctx,
                        const struct hps_table *table); /* before the rows of the table */
    hps_status (*rows)(void *ctx, const struct hps_table *table, const hps_key *keys,
                       const uint8_t *rows, uint32_t n);
};

/* How rows are read from disk. */
enum hps_read_mode {
    HPS_READ_AUTO,     /* the store chooses */
    HPS_READ_MMAP,     /* files are mapped; an unreadable disk sector ends the process */
    HPS_READ_DIRECT,   /* with O_DIRECT, bypassing the page cache, many reads at once */
    HPS_READ_BUFFERED, /* through the page cache, never mapped */
};

/* How rows are laid out on disk. */
enum {
    HPS_DISK_BLOCK_BYTES = 4096,   /* one disk read per row; 1 KB blocks were no faster */
    HPS_DISK_ENTRY_BYTES = 24,     /* per row for key and block overhead, rounded up */
    HPS_DISK_BLOCK_END_BYTES = 32, /* after the rows of a block */
    HPS_DISK_ALIGN_SHARE = 8,      /* aligned blocks take at most this part of the bytes more */
};

/* Whether blocks of such rows nearly fill pages, so that aligned blocks take little more space. A
 * load aligns these blocks. A row then needs one page of the disk instead of two. */
static inline bool hps_disk_aligned(uint32_t row_bytes)
{
    uint32_t bytes = row_bytes + HPS_DISK_ENTRY_BYTES;
    uint32_t n = (HPS_DISK_BLOCK_BYTES - HPS_DISK_BLOCK_END_BYTES) / bytes;
    return n * bytes * (HPS_DISK_ALIGN_SHARE + 1) >= HPS_DISK_BLOCK_BYTES * HPS_DISK_ALIGN_SHARE;
}

/* Estimated bytes of the loaded rows of a table on disk. */
static inline uint64_t hps_disk_table_bytes(uint64_t n_rows, uint32_t row_bytes)
{
    uint64_t bytes = n_rows * ((uint64_t)row_bytes + HPS_DISK_ENTRY_BYTES);
    return bytes + (hps_disk_aligned(row_bytes) ? bytes / HPS_DISK_ALIGN_SHARE : 0);
}

/* Bytes of a base file (backends/basefile/basefile.h) with n keys in its range. */
static inline uint64_t hps_disk_base_bytes(uint64_t n, uint32_t row_bytes)
{
    uint64_t n_pages = (n * row_bytes + HPS_DISK_BLOCK_BYTES - 1) / HPS_DISK_BLOCK_BYTES;
    return n_pages * (HPS_DISK_BLOCK_BYTES + sizeof(uint32_t)) + (n + 63) / 64 * sizeof(uint64_t);
}

struct hps_store_durable_ops {
    /* Apply all writes and records to the space, or none of them, even if the process crashes.
     * After the call returned OK, a crash of the process loses nothing. A power cut loses the
     * writes since the last sync.
     *
     * The records belong to the space; positions of updates are one example. Loads and scans of
     * rows do not see the records. Dropping the space deletes them. A record replaces an earlier
     * record with the same key.
     *
     * shape   writes[n_writes]; records[n_records]; both numbers may be 0
     * error   EXHAUSTED: less than the minimum free space would be left; nothing was written */
    hps_status (*apply)(struct hps_space *space, const struct hps_call *call,
                        const struct hps_write *writes, uint32_t n_writes,
                        const struct hps_record *records, uint32_t n_records,
                        struct hps_error *err);
    /* Pass the records that `apply` wrote to this space to `fn`, in byte order of their keys. */
    hps_status (*space_record_scan)(struct hps_space *space, hps_record_fn fn, void *ctx,
                                    struct hps_error *err);

    /* Write or delete a record of the store. OK: the change is on disk. */
    hps_status (*record_put)(struct hps_store *store, const void *key, size_t key_size,
                             const void *value, size_t value_size, struct hps_error *err);
    hps_status (*record_delete)(struct hps_store *store, const void *key, size_t key_size,
                                struct hps_error *err);
    /* Pass the records of the store with keys that begin with `prefix` ("": all) to `fn`, in byte
     * order of their keys. Other records are not read, so damage to them does not matter. */
    hps_status (*record_scan)(struct hps_store *store, const char *prefix, hps_record_fn fn,
                              void *ctx, struct hps_error *err);

    /* Pass every space on disk to `fn`, open or not. */
    hps_status (*space_list)(struct hps_store *store, hps_space_fn fn, void *ctx,
                             struct hps_error *err);
    /* Return how many bytes loads and updates may still use before the minimum free space is
     * reached. */
    uint64_t (*bytes_free)(struct hps_store *store);
    /* Return why the store refuses writes now, as static text for messages. NULL: the store accepts
     * writes. */
    const char *(*writes_refused)(struct hps_store *store);
    /* Copy the current state of the store to `<dir>/hpsd`, with hard links if `dir` is on the same
     * file system. The copy is a store with `dir` as its path. Data in memory is written out first.
     * Writes and loads continue. The call may block.
     * error   EXISTS: `<dir>/hpsd` exists; EXHAUSTED: the disk of the store or of `dir` is full;
     *         PRECONDITION: the store is read-only; UNIMPLEMENTED: the store has no data on disk;
     *         IO */
    hps_status (*checkpoint)(struct hps_store *store, const char *dir, struct hps_error *err);

    /* Pass the records of the space, then all rows of each table in ascending order of keys, as
     * they were at one moment. Writes continue. NULL: the store cannot do this. Errors as scan;
     * EXHAUSTED: the store takes writes, but its disk has no more than the minimum free space. */
    hps_status (*view)(struct hps_space *space, const struct hps_view *view, struct hps_error *err);
};

#endif
