/* SPDX-License-Identifier: Apache-2.0
 *
 * The directory of the persistent store. This file checks its owner, its lock and the free space of
 * its disk. Either one process opens the directory for writing, or several open it for reading.
 * This file does not use RocksDB. Calls are thread-safe once the directory is open.
 *
 * On disk: `<dir>/hpsd` is the database and `<dir>/hpsd.lock` the lock. `<dir>/hpsd.ballast`
 * reserves disk space. hpsd deletes it when other programs have filled the disk, so that versions
 * can still be unloaded.
 */
#ifndef HPS_BACKENDS_ROCKSDB_DIR_H
#define HPS_BACKENDS_ROCKSDB_DIR_H

#include <stdbool.h>
#include <stdint.h>

#include "base/lock.h"
#include "base/rows/dir.h"
#include "base/status.h"

/* Limit of `dir`: with a file name, it must fit PATH_MAX. */
enum { HPS_ROCKSDB_PATH_BYTES_MAX = 3900 };

enum {
    HPS_ROCKSDB_BALLAST_BYTES = 8 << 20, /* size of the ballast */
    HPS_ROCKSDB_FLOOR_BYTES = 64 << 10   /* free bytes that even vital writes must leave */
};

struct hps_rocksdb_dir {
    struct hps_dir at; /* `dir`, for access to its files by name without following links */
    char *dir;         /* `<dir>` above */
    char *path;        /* of the database */
    bool read_only;
    int lock_fd;
    uint64_t disk_free_min_bytes; /* the minimum free space that the guard functions below check */
    struct hps_lock lock;         /* protects `ballast` and its file */
    bool ballast;                 /* the ballast exists */
};

/* The kind of content at dir->path. */
enum hps_rocksdb_dir_state {
    HPS_ROCKSDB_DIR_ABSENT,
    HPS_ROCKSDB_DIR_EMPTY,
    HPS_ROCKSDB_DIR_DATABASE,
    HPS_ROCKSDB_DIR_OTHER, /* files, but no database */
};

/* Create `dir` if it does not exist (but not its parent, and not if read_only), take its lock, and
 * determine the minimum free space. disk_free_min_bytes 0: max(2 GiB, 5 % of the file system). The
 * caller must close *out_dir, also on failure.
 * error   BUSY: another process has the lock; INVALID: the path is too long, or root would write
 *         into a directory of another user; NOT_FOUND, PERMISSION, EXHAUSTED, IO, NO_MEMORY */
hps_status hps_rocksdb_dir_open(struct hps_rocksdb_dir *out_dir, const char *dir, bool read_only,
                                uint64_t disk_free_min_bytes, struct hps_error *err) HPS_MUST_CHECK;
void hps_rocksdb_dir_close(struct hps_rocksdb_dir *dir);
/* Find out what kind of content is at dir->path. */
hps_status hps_rocksdb_dir_look(const struct hps_rocksdb_dir *dir,
                                enum hps_rocksdb_dir_state *out_state, struct hps_error *err)
    HPS_MUST_CHECK;
/* Whether `<dir>/hpsd` has the file names of a database. Opens no file and takes no lock. */
bool hps_rocksdb_dir_has_database(const char *dir);
/* Remove leftovers of a crash from the database: files of interrupted loads, and option files that
 * RocksDB had not renamed yet. To be called before the database is opened. */
hps_status hps_rocksdb_dir_remove_leftovers(const struct hps_rocksdb_dir *dir,
                                            struct hps_error *err) HPS_MUST_CHECK;
/* A set of files of the database. */
struct hps_rocksdb_dir_files {
    uint64_t n;
    uint64_t bytes;
    uint64_t newest; /* the highest number at the start of a file name */
};
/* Count the files whose names end with `suffix`. */
hps_status hps_rocksdb_dir_files(const struct hps_rocksdb_dir *dir, const char *suffix,
                                 struct hps_rocksdb_dir_files *out_files, struct hps_error *err)
    HPS_MUST_CHECK;
/* Whether the file system supports reads that bypass the page cache (O_DIRECT). The database must
 * exist. */
bool hps_rocksdb_dir_direct_works(const struct hps_rocksdb_dir *dir);

/* Bytes that may be written before the minimum free space is reached. 0 if read-only. */
uint64_t hps_rocksdb_dir_free_bytes(const struct hps_rocksdb_dir *dir);
/* Check that a write of `bytes` leaves the minimum free space. EXHAUSTED: less would be left; the
 * text has the needed and the available bytes. */
hps_status hps_rocksdb_dir_guard(const struct hps_rocksdb_dir *dir, uint64_t bytes,
                                 struct hps_error *err) HPS_MUST_CHECK;
/* Same as hps_rocksdb_dir_guard, but the write must leave only a quarter of the minimum. For small
 * writes, such as the end of a load. */
hps_status hps_rocksdb_dir_guard_small(const struct hps_rocksdb_dir *dir, uint64_t bytes,
                                       struct hps_error *err) HPS_MUST_CHECK;
/* Same as hps_rocksdb_dir_guard, but the write must leave only HPS_ROCKSDB_FLOOR_BYTES. For writes
 * that free space or keep the catalog correct. If little space is left, the call deletes the
 * ballast first. */
hps_status hps_rocksdb_dir_guard_vital(struct hps_rocksdb_dir *dir, uint64_t bytes,
                                       struct hps_error *err) HPS_MUST_CHECK;
/* Create the directory `to` if it does not exist, and check that there is space for a checkpoint in
 * it. A checkpoint first writes bytes_new from memory to the database. Then it copies bytes_all +
 * bytes_new to `to`, or makes hard links if `to` is on the same file system. */
hps_status hps_rocksdb_dir_guard_copy(const struct hps_rocksdb_dir *dir, const char *to,
                                      uint64_t bytes_all, uint64_t bytes_new, struct hps_error *err)
    HPS_MUST_CHECK;
/* Create the ballast if it is missing and the free space is at least half of the minimum plus twice
 * the size of the ballast. So a disk whose free space is already below the minimum can still get a
 * ballast. The half of the minimum that stays free is for memtables that RocksDB has not written
 * yet. */
void hps_rocksdb_dir_ballast(struct hps_rocksdb_dir *dir);

/* Returns "<dir>/<name>", which the caller frees (hps_free), or NULL if there is no memory. */
char *hps_rocksdb_dir_join(const char *dir, const char *name);
/* Remove a file or directory with everything in it. A missing path is no error. */
hps_status hps_rocksdb_dir_remove_tree(const char *path, struct hps_error *err) HPS_MUST_CHECK;
/* fsync the directory `path`. */
hps_status hps_rocksdb_dir_sync(const char *path, struct hps_error *err) HPS_MUST_CHECK;
/* Set `err` to "rocksdb: <what> <path>: <text of errno>". Returns EXHAUSTED if errno is ENOSPC,
 * otherwise IO. */
hps_status hps_rocksdb_dir_fail(struct hps_error *err, const char *what, const char *path);

#endif
