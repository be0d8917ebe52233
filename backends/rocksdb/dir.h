/* SPDX-License-Identifier: Apache-2.0
 *
 * The directory of the persistent store: its owner, the lock of its single process, the free space
 * of its disk. Plain files; RocksDB is not used here. After the open, calls are thread-safe.
 *
 * On disk: `<dir>/hpsd` is the database and `<dir>/hpsd.lock` the lock. `<dir>/hpsd.ballast` is a
 * reserve. It is deleted when other programs have filled the disk, so that versions can still be
 * unloaded.
 */
#ifndef HPS_BACKENDS_ROCKSDB_DIR_H
#define HPS_BACKENDS_ROCKSDB_DIR_H

#include <stdbool.h>
#include <stdint.h>

#include "base/lock.h"
#include "base/rows/dir.h"
#include "base/status.h"

enum { HPS_ROCKSDB_PATH_BYTES_MAX = 3900 }; /* leaves space for file names within PATH_MAX */

/* Size of the ballast, and free bytes that even vital writes leave. */
enum { HPS_ROCKSDB_BALLAST_BYTES = 8 << 20, HPS_ROCKSDB_FLOOR_BYTES = 64 << 10 };

struct hps_rocksdb_dir {
    struct hps_dir at; /* for files outside the database, by name; links are not followed */
    char *dir;
    char *path; /* of the database */
    bool read_only;
    int lock_fd;
    uint64_t disk_free_min_bytes;
    struct hps_lock lock; /* protects the ballast */
    bool ballast;
};

enum hps_rocksdb_dir_state {
    HPS_ROCKSDB_DIR_ABSENT,
    HPS_ROCKSDB_DIR_EMPTY,
    HPS_ROCKSDB_DIR_DATABASE,
    HPS_ROCKSDB_DIR_OTHER, /* not empty, but no database */
};

/* Create `dir` (unless read_only), take its lock, read the size of its disk. disk_free_min_bytes 0:
 * max(2 GiB, 5 % of the file system). out_dir must be closed, also on failure.
 * error   BUSY: another process has the lock; INVALID: the path is too long, or root would write
 *         into a directory of another user; PERMISSION, EXHAUSTED, IO, NO_MEMORY */
hps_status hps_rocksdb_dir_open(struct hps_rocksdb_dir *out_dir, const char *dir, bool read_only,
                                uint64_t disk_free_min_bytes, struct hps_error *err) HPS_MUST_CHECK;
void hps_rocksdb_dir_close(struct hps_rocksdb_dir *dir);
/* Find out what dir->path contains. */
hps_status hps_rocksdb_dir_look(const struct hps_rocksdb_dir *dir,
                                enum hps_rocksdb_dir_state *out_state, struct hps_error *err)
    HPS_MUST_CHECK;
/* Whether `dir` seems to contain a database, by file names only. Opens and locks nothing. */
bool hps_rocksdb_dir_has_database(const char *dir);
/* Remove leftovers of a crash from the database: files of interrupted loads, and option files that
 * RocksDB had not renamed yet. Call before the database is opened. */
hps_status hps_rocksdb_dir_remove_leftovers(const struct hps_rocksdb_dir *dir,
                                            struct hps_error *err) HPS_MUST_CHECK;
/* Files in the database with names that end in `suffix`. */
struct hps_rocksdb_dir_files {
    uint64_t n;
    uint64_t bytes;
    uint64_t newest; /* the highest number at the start of a name */
};
hps_status hps_rocksdb_dir_files(const struct hps_rocksdb_dir *dir, const char *suffix,
                                 struct hps_rocksdb_dir_files *out_files, struct hps_error *err)
    HPS_MUST_CHECK;
/* Whether files of the database can be read past the page cache. The database must exist. */
bool hps_rocksdb_dir_direct_works(const struct hps_rocksdb_dir *dir);

/* Bytes that may be used before the minimum free space is reached. */
uint64_t hps_rocksdb_dir_free_bytes(const struct hps_rocksdb_dir *dir);
/* Check that a write of this size leaves the minimum free space. EXHAUSTED: it does not; the text
 * has needed and available bytes. */
hps_status hps_rocksdb_dir_guard(const struct hps_rocksdb_dir *dir, uint64_t bytes,
                                 struct hps_error *err) HPS_MUST_CHECK;
/* Same, with a quarter of the minimum. For small writes, such as the end of a load. */
hps_status hps_rocksdb_dir_guard_small(const struct hps_rocksdb_dir *dir, uint64_t bytes,
                                       struct hps_error *err) HPS_MUST_CHECK;
/* Same, with no minimum but HPS_ROCKSDB_FLOOR_BYTES. For writes that free space or keep the catalog
 * correct. Deletes the ballast first if space is short. */
hps_status hps_rocksdb_dir_guard_vital(struct hps_rocksdb_dir *dir, uint64_t bytes,
                                       struct hps_error *err) HPS_MUST_CHECK;
/* Create `to` if needed, and check the free space. bytes_new will be written to the database.
 * bytes_all and bytes_new are copied to `to`, unless it is on the same file system, where links are
 * used. */
hps_status hps_rocksdb_dir_guard_copy(const struct hps_rocksdb_dir *dir, const char *to,
                                      uint64_t bytes_all, uint64_t bytes_new, struct hps_error *err)
    HPS_MUST_CHECK;
/* Create the ballast if it is missing, and twice its size is free above half of the minimum. So an
 * unload succeeds on a disk that was nearly full at the open. The other half remains for memory
 * that RocksDB still writes out. */
void hps_rocksdb_dir_ballast(struct hps_rocksdb_dir *dir);

/* "<dir>/<name>"; the caller frees it (hps_free). NULL: no memory. */
char *hps_rocksdb_dir_join(const char *dir, const char *name);
/* OK if the path does not exist. */
hps_status hps_rocksdb_dir_remove_tree(const char *path, struct hps_error *err) HPS_MUST_CHECK;
hps_status hps_rocksdb_dir_sync(const char *path, struct hps_error *err) HPS_MUST_CHECK;
/* Sets `err` to "rocksdb: <what> <path>: <text of errno>". EXHAUSTED for ENOSPC, otherwise IO. */
hps_status hps_rocksdb_dir_fail(struct hps_error *err, const char *what, const char *path);

#endif
