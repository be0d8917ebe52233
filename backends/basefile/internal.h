/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files of the persistent store with base files. basefile.h has the design.
 *
 *     base.c    a base: opening it, the checksums of its pages, its bits
 *     writer.c  writing a base
 *     read.c    rows of bases by key
 *     rows.c    lookups and writes
 *     walk.c    rows in key order: scans and views
 *     load.c    loads
 *     merge.c   merges
 *     space.c   spaces, and their records
 *     store.c   the store: opening, closing, leftover files, checkpoints
 */
#ifndef HPS_BACKENDS_BASEFILE_INTERNAL_H
#define HPS_BACKENDS_BASEFILE_INTERNAL_H

#include <inttypes.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>

#include "backends/basefile/basefile.h"
#include "backends/store_bulk.h"
#include "backends/store_durable.h"
#include "base/lock.h"
#include "base/rows/dir.h"
#include "base/worker.h"

enum {
    HPS_BASEFILE_PAGE_BYTES = HPS_DISK_BLOCK_BYTES,
    HPS_BASEFILE_FORMAT = 1,
    HPS_BASEFILE_HOLES = 64,      /* holes permitted in any base */
    HPS_BASEFILE_HOLE_SHARE = 50, /* one more hole for this many rows */
    HPS_BASEFILE_NAME_BYTES = 32,
    HPS_BASEFILE_MODE = 0644, /* less the umask, as RocksDB's files */
};

/* This bit is set in the id of the hidden table that has the marks of a table. */
#define HPS_BASEFILE_MARKS      (UINT32_C(1) << 30)
#define HPS_BASEFILE_NUMBER_MAX (UINT64_C(1) << 40) /* numbers in the range of a base */
#define HPS_BASEFILE_RECORDS    "version-base/"     /* keys of the store's records */
#define HPS_BASEFILE_PREFIX     "base-"             /* of the names of files */

/* Which base a table has, on disk. All integers of records and files are little-endian. */
struct hps_basefile_record {
    uint32_t format;
    uint32_t crc;    /* of the bits and the checksums at the end of the file */
    uint64_t number; /* of the file; 0: the table has no base */
    uint64_t first;  /* smallest key */
    uint64_t n;      /* keys in the range */
    uint64_t n_rows; /* rows that exist */
};

/* What reads through the page cache have found out about a page. */
enum { HPS_BASEFILE_UNKNOWN, HPS_BASEFILE_GOOD, HPS_BASEFILE_DAMAGED };

/* An open base, and the changes of its table since it was written. Row i has the key first + i. */
struct hps_basefile {
    struct hps_basefile_store *store;
    struct hps_basefile_record record;
    const struct hps_table *table; /* of the space */
    char name[HPS_BASEFILE_NAME_BYTES];
    uint64_t n_pages;
    int fd;
    int fd_direct;           /* -1: the file system does not support O_DIRECT */
    const uint8_t *map;      /* [n_pages] pages; NULL: not mapped */
    uint64_t *exists;        /* a bit per row, as the base was written */
    uint32_t *sums;          /* [n_pages] */
    _Atomic(uint8_t) *pages; /* [n_pages] */
    atomic_uint n_damaged;
    _Atomic(uint64_t) *changed; /* a bit per row: the inner store has the row, or it is deleted */
    _Atomic(uint64_t) n_changed;
    uint64_t merge_after_us;   /* no merge before; under the store's lock */
    _Atomic(uint64_t) *recent; /* rows that changed since a merge began; NULL: no merge. Under the
                                  space's lock `writes` */
};

struct hps_basefile_space {
    struct hps_space base;
    struct hps_space *inner;
    char key[160];    /* of its record: HPS_BASEFILE_RECORDS "<model>@<version>" */
    const char *name; /* "<model>@<version>", for messages */
    const struct hps_table *tables;
    uint32_t n_tables;
    struct hps_basefile_record *records;   /* [n_tables] as on disk. Under the lock `names` */
    bool recorded;                         /* the record may be on disk. Under the lock `names` */
    struct hps_table *marks;               /* [n_tables] the hidden tables */
    _Atomic(struct hps_basefile *) *bases; /* [n_tables] NULL: no base. See hps_basefile_enter */
    atomic_bool any;                       /* a table has a base */
    atomic_bool cancel;                    /* base-merge must leave the space */
    struct hps_lock writes;                /* one writer at a time; bits follow the inner store */
    atomic_uint epoch;                     /* number of merges that have replaced a base */
    atomic_uint n_calls[2];                /* calls that began in an even and in an odd epoch */
    struct hps_basefile *old;              /* replaced, but calls may use it. base-merge */
    struct hps_basefile_space *next;       /* under the store's lock */
};

struct hps_basefile_store {
    struct hps_store base;
    struct hps_store *inner;
    struct hps_store_ops ops;
    struct hps_basefile_options options; /* without `path` */
    struct hps_dir dir;                  /* of the database, which also has the bases */
    atomic_uint_fast64_t number;         /* of the newest base */
    _Atomic(uint64_t) bytes;             /* of all bases, which a merge does not change */
    struct hps_lock names;               /* held while records change, and during a checkpoint */
    struct hps_lock lock;                /* protects the next fields */
    struct hps_cond wake;                /* signals changes of them */
    struct hps_basefile_ring *rings;     /* not in use */
    unsigned n_rings_left;               /* to be made or tried; 0: no io_uring */
    struct hps_basefile_space *spaces;
    struct hps_basefile_space *merging; /* of base-merge */
    bool closing;
    struct hps_worker merger;
};

static const struct hps_call hps_basefile_no_limit = {0};

static inline struct hps_basefile_store *hps_basefile_of(const struct hps_space *space)
{
    return (struct hps_basefile_store *)space->store;
}

/* Write the name of a file to `name`, which has HPS_BASEFILE_NAME_BYTES. */
static inline void hps_basefile_name(char *name, uint64_t number)
{
    (void)snprintf(name, HPS_BASEFILE_NAME_BYTES, HPS_BASEFILE_PREFIX "%" PRIu64, number);
}

static inline uint64_t hps_basefile_words(uint64_t n_bits)
{
    return (n_bits + 63) / 64;
}

static inline bool hps_basefile_bit(const _Atomic(uint64_t) *bits, uint64_t i)
{
    return (atomic_load_explicit(&bits[i / 64], memory_order_acquire) >> (i % 64) & 1) != 0;
}

static inline bool hps_basefile_exists(const struct hps_basefile *base, uint64_t i)
{
    return (base->exists[i / 64] >> (i % 64) & 1) != 0;
}

static inline bool hps_basefile_covers(const struct hps_basefile *base, hps_key key)
{
    return key - base->record.first < base->record.n;
}

static inline uint64_t hps_basefile_pages(uint64_t n, uint32_t row_bytes)
{
    return (n * row_bytes + HPS_BASEFILE_PAGE_BYTES - 1) / HPS_BASEFILE_PAGE_BYTES;
}

static inline uint64_t hps_basefile_bytes(const struct hps_basefile *base)
{
    return hps_disk_base_bytes(base->record.n, base->table->row_bytes);
}

/* ---- base.c ---------------------------------------------------------------------------------- */

/* Make a base that is not open. n_max: most keys in its range. DATA_LOSS: impossible record;
 * NO_MEMORY */
hps_status hps_basefile_base_new(struct hps_basefile_store *store,
                                 const struct hps_basefile_record *record,
                                 const struct hps_table *table, uint64_t n_max,
                                 struct hps_basefile **out_base, struct hps_error *err)
    HPS_MUST_CHECK;
/* Open the file. No row has changed. If the file is missing or does not fit the record, all its
 * pages count as damaged. written: `exists` and `sums` are set, else they are read. NO_MEMORY, IO,
 * PERMISSION */
hps_status hps_basefile_base_open(struct hps_basefile *base, bool written, struct hps_error *err)
    HPS_MUST_CHECK;
void hps_basefile_base_close(struct hps_basefile *base); /* no effect if NULL */
/* Remove the file of a base, finished or not. A missing file is no error. */
void hps_basefile_base_remove(struct hps_basefile_store *store, uint64_t number);
/* Whether page number `page`, read to `data`, has the right checksum. If not, it is logged and
 * counted, once. */
bool hps_basefile_page_check(struct hps_basefile *base, uint64_t page, const uint8_t *data);
/* Note that the inner store has a write of a key of the range. One writer at a time. */
void hps_basefile_change(struct hps_basefile *base, hps_key key);

/* ---- writer.c -------------------------------------------------------------------------------- */

struct hps_basefile_writer;

/* Begin to write a base. n_max: most keys in its range. `cancel` ends it; NULL: nothing does. */
hps_status hps_basefile_writer_new(struct hps_basefile_store *store, const struct hps_table *table,
                                   hps_key first, uint64_t n_max, const atomic_bool *cancel,
                                   struct hps_basefile_writer **out_writer, struct hps_error *err)
    HPS_MUST_CHECK;
/* Whether the base may have `key` as its next row: the holes do not become too many. Keys must
 * ascend. */
bool hps_basefile_writer_takes(const struct hps_basefile_writer *writer, hps_key key);
/* Add the next row. EXHAUSTED: the disk has no more than the minimum free space; CANCELLED;
 * NO_MEMORY, IO */
hps_status hps_basefile_writer_add(struct hps_basefile_writer *writer, hps_key key,
                                   const uint8_t *row, struct hps_error *err) HPS_MUST_CHECK;
/* Write all to disk, sync the file and its directory, and open it. n_min: least keys in its range.
 * Errors as hps_basefile_writer_add and hps_basefile_base_open. */
hps_status hps_basefile_writer_finish(struct hps_basefile_writer *writer, uint64_t n_min,
                                      struct hps_basefile **out_base, struct hps_error *err)
    HPS_MUST_CHECK;
/* Free it. Unless hps_basefile_writer_finish succeeded, remove the file. No effect if NULL. */
void hps_basefile_writer_free(struct hps_basefile_writer *writer);

/* ---- read.c ---------------------------------------------------------------------------------- */

/* Keys of one base to be read. All exist in it. */
struct hps_basefile_want {
    struct hps_basefile *base;
    struct hps_batch batch;
    uint8_t *found; /* [batch.n] used by the read */
};

/* Probe io_uring. False: the kernel does not permit it. */
bool hps_basefile_rings_open(struct hps_basefile_store *store);
void hps_basefile_rings_close(struct hps_basefile_store *store);
/* Read n pages, in the mode in which bases are read now. to: aligned to a page. IO */
hps_status hps_basefile_pages_read(const struct hps_basefile *base, uint64_t page, uint64_t n,
                                   uint8_t *to, struct hps_error *err) HPS_MUST_CHECK;
/* Read the rows of all wants. DATA_LOSS: a page is damaged, its keys are not found; DEADLINE;
 * NO_MEMORY, IO */
hps_status hps_basefile_read(struct hps_basefile_store *store, const struct hps_call *call,
                             struct hps_basefile_want *wants, uint32_t n_wants) HPS_MUST_CHECK;

/* ---- spaces ---------------------------------------------------------------------------------- */

/* A call that uses bases begins with `enter` and ends with `leave`, which gets the result of
 * `enter`. Bases that the call sees are closed, and their changed rows leave the inner store, only
 * after its end. */
unsigned hps_basefile_enter(struct hps_basefile_space *space);
void hps_basefile_leave(struct hps_basefile_space *space, unsigned epoch);

/* Returns the base of a table, or NULL. The caller must have entered the space or hold `writes`. */
static inline struct hps_basefile *hps_basefile_base_of(const struct hps_basefile_space *space,
                                                        const struct hps_table *table)
{
    return table->id < space->n_tables ? atomic_load(&space->bases[table->id]) : NULL;
}

/* Give a table its first base. */
void hps_basefile_install(struct hps_basefile_space *space, struct hps_basefile *base);

/* The entries of one record, or of all records: an entry per table. */
struct hps_basefile_records {
    const char *key;                /* of the space; NULL: of all */
    struct hps_basefile_record *at; /* [n] the caller frees it */
    size_t n;
    struct hps_error *err;
};

/* Read them from disk. DATA_LOSS, NEWER_FORMAT, NO_MEMORY */
hps_status hps_basefile_records_read(struct hps_store *inner, struct hps_basefile_records *records)
    HPS_MUST_CHECK;
/* Write the record of the space, synced; delete it if no table has a base. Caller must hold
 * `names`. */
hps_status hps_basefile_records_write(struct hps_basefile_space *space, struct hps_error *err)
    HPS_MUST_CHECK;

/* ---- calls of the store ---------------------------------------------------------------------- */

extern const struct hps_store_bulk_ops hps_basefile_bulk_ops; /* load.c */

hps_status hps_basefile_space_open(struct hps_store *base, const struct hps_space_id *id,
                                   struct hps_space **out_space, struct hps_error *err);
void hps_basefile_space_close(struct hps_space *base);
hps_status hps_basefile_space_drop(struct hps_space *base, struct hps_error *err);
void hps_basefile_space_usage(struct hps_space *base, struct hps_store_usage *out_usage);

hps_status hps_basefile_get_many(struct hps_space *space, const struct hps_call *call,
                                 struct hps_part_batch *parts, uint32_t n_parts);
hps_status hps_basefile_apply(struct hps_space *space, const struct hps_call *call,
                              const struct hps_write *writes, uint32_t n_writes,
                              const struct hps_record *records, uint32_t n_records,
                              struct hps_error *err);

hps_status hps_basefile_scan(struct hps_space *space, const struct hps_table *table, hps_rows_fn fn,
                             void *ctx, struct hps_error *err);
hps_status hps_basefile_view(struct hps_space *space, const struct hps_view *view,
                             struct hps_error *err);

/* ---- merge.c --------------------------------------------------------------------------------- */

/* Merge the changed rows of a table into a new base, which replaces *out_old. base-merge, or a
 * test. */
hps_status hps_basefile_merge_begin(struct hps_basefile_space *space, uint32_t table,
                                    struct hps_basefile **out_old, struct hps_error *err)
    HPS_MUST_CHECK;
/* All calls that may use the replaced base have ended: delete the merged rows from the inner store,
 * unless the space is being closed, and remove the base. No effect if NULL. */
void hps_basefile_merge_end(struct hps_basefile_space *space, struct hps_basefile *old);
/* Whether enough rows have changed for a merge. */
bool hps_basefile_merge_due(const struct hps_basefile *base);
void *hps_basefile_merger_run(void *store);
void hps_basefile_merger_wake(struct hps_basefile_store *store);

#endif
