/* SPDX-License-Identifier: Apache-2.0
 *
 * The directory of the persistent store: whose it is, the lock of its one process, the free space
 * of its disk. Plain files; RocksDB is not used here. All calls after the open: any thread.
 *
 * On disk: `<dir>/hpsd` is the database, `<dir>/hpsd.lock` the lock, `<dir>/hpsd.ballast` room that
 * is given back when others have filled the disk, so that versions can be unloaded all the same.
 */
#ifndef HPS_BACKENDS_ROCKSDB_DIR_H
#define HPS_BACKENDS_ROCKSDB_DIR_H

#include <stdbool.h>
#include <stdint.h>

#include "base/lock.h"
#include "base/rows/dir.h"
#include "base/status.h"

enum { HPS_ROCKSDB_PATH_BYTES_MAX = 3900 }; /* leaves room for names below it within PATH_MAX */

/* Bytes of the ballast, and what is left free for the few small writes that must go on. */
enum { HPS_ROCKSDB_BALLAST_BYTES = 8 << 20, HPS_ROCKSDB_FLOOR_BYTES = 64 << 10 };

struct hps_rocksdb_dir {
    struct hps_dir at; /* what is not the database, by name: no link is followed */
    char *dir;
    char *path; /* of the database */
    bool read_only;
    int lock_fd;
    uint64_t disk_free_min_bytes;
    struct hps_lock lock; /* the ballast */
    bool ballast;
};

enum hps_rocksdb_dir_state {
    HPS_ROCKSDB_DIR_ABSENT,
    HPS_ROCKSDB_DIR_EMPTY,
    HPS_ROCKSDB_DIR_DATABASE,
    HPS_ROCKSDB_DIR_OTHER, /* not empty, and no database */
};

/* Make `dir` (unless read_only), take its lock, look at its disk. disk_free_min_bytes 0: max(2 GiB,
 * 5 % of the file system). out_dir is to be closed on failure too. error BUSY: another process has
 * it; INVALID: the path is too long, or root would write in a directory of another user;
 * PERMISSION, EXHAUSTED, IO, NO_MEMORY */
hps_status hps_rocksdb_dir_open(struct hps_rocksdb_dir *out_dir, const char *dir, bool read_only,
                                uint64_t disk_free_min_bytes, struct hps_error *err) HPS_MUST_CHECK;
void hps_rocksdb_dir_close(struct hps_rocksdb_dir *dir);
/* What lies at dir->path. */
hps_status hps_rocksdb_dir_look(const struct hps_rocksdb_dir *dir,
                                enum hps_rocksdb_dir_state *out_state, struct hps_error *err)
    HPS_MUST_CHECK;
/* Is there a database below `dir`, as far as names of files tell? Opens and locks nothing. */
bool hps_rocksdb_dir_has_database(const char *dir);
/* Remove what a crash left in the database: files of loads that it cut short, and of options that
 * RocksDB was about to rename. Before the database is opened. */
hps_status hps_rocksdb_dir_remove_leftovers(const struct hps_rocksdb_dir *dir,
                                            struct hps_error *err) HPS_MUST_CHECK;
/* Of the files in the database whose names end in `suffix`. */
struct hps_rocksdb_dir_files {
    uint64_t n;
    uint64_t bytes;
    uint64_t newest; /* the highest number that begins a name */
};
hps_status hps_rocksdb_dir_files(const struct hps_rocksdb_dir *dir, const char *suffix,
                                 struct hps_rocksdb_dir_files *out_files, struct hps_error *err)
    HPS_MUST_CHECK;
/* Can files of the database be read past the page cache? It must be there. */
bool hps_rocksdb_dir_direct_works(const struct hps_rocksdb_dir *dir);

/* Bytes that may be used before the guard is touched. */
uint64_t hps_rocksdb_dir_free_bytes(const struct hps_rocksdb_dir *dir);
/* EXHAUSTED, with needed and available bytes: writing so much would leave less than the guard. */
hps_status hps_rocksdb_dir_guard(const struct hps_rocksdb_dir *dir, uint64_t bytes,
                                 struct hps_error *err) HPS_MUST_CHECK;
/* The same with a quarter of the guard, for what is small and ends a load. */
hps_status hps_rocksdb_dir_guard_small(const struct hps_rocksdb_dir *dir, uint64_t bytes,
                                       struct hps_error *err) HPS_MUST_CHECK;
/* The same for what must go on while there is any room, since it gives room back or keeps the
 * catalog true: the ballast is removed first. */
hps_status hps_rocksdb_dir_guard_vital(struct hps_rocksdb_dir *dir, uint64_t bytes,
                                       struct hps_error *err) HPS_MUST_CHECK;
/* Make `to` if it is not there, and compare: bytes_new will be written into the database, and
 * bytes_all copied to `to` unless it is on the same file system, where links do. */
hps_status hps_rocksdb_dir_guard_copy(const struct hps_rocksdb_dir *dir, const char *to,
                                      uint64_t bytes_all, uint64_t bytes_new, struct hps_error *err)
    HPS_MUST_CHECK;
/* Make the ballast if it is missing and twice its size is free above half of the guard. So an
 * unload succeeds on a disk that was nearly full when the store was opened, and the other half is
 * left for memory that RocksDB still writes out. */
void hps_rocksdb_dir_ballast(struct hps_rocksdb_dir *dir);

/* "<dir>/<name>"; owner: the caller (hps_free). NULL: no memory. */
char *hps_rocksdb_dir_join(const char *dir, const char *name);
/* A path that is not there is no error. */
hps_status hps_rocksdb_dir_remove_tree(const char *path, struct hps_error *err) HPS_MUST_CHECK;
hps_status hps_rocksdb_dir_sync(const char *path, struct hps_error *err) HPS_MUST_CHECK;
/* "rocksdb: <what> <path>: <text of errno>". */
hps_status hps_rocksdb_dir_fail(struct hps_error *err, const char *what, const char *path);

#endif
