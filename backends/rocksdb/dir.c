/* SPDX-License-Identifier: Apache-2.0
 *
 * Files, lock and free space of the persistent store's directory. See the header for threads.
 */
#include "backends/rocksdb/dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/heap.h"
#include "base/lock.h"

#define GIB     (UINT64_C(1) << 30)
#define BALLAST "hpsd.ballast"
#define LOCK    "hpsd.lock"

/* ---- files ----------------------------------------------------------------------------------- */

hps_status hps_rocksdb_dir_fail(struct hps_error *err, const char *what, const char *path)
{
    hps_status status = errno == ENOSPC ? HPS_EXHAUSTED : HPS_IO;
    return hps_error_set(err, status, "rocksdb: %s %s: %s", what, path, strerror(errno));
}

static hps_status fail_memory(struct hps_error *err)
{
    return hps_error_set(err, HPS_NO_MEMORY, "rocksdb: out of memory");
}

char *hps_rocksdb_dir_join(const char *dir, const char *name)
{
    size_t size = strlen(dir) + strlen(name) + 2;
    char *path = hps_alloc(size);
    if (path != NULL) {
        (void)snprintf(path, size, "%s/%s", dir, name);
    }
    return path;
}

hps_status hps_rocksdb_dir_remove_tree(const char *path, struct hps_error *err)
{
    struct hps_dir above = {.fd = -1};
    const char *slash = strrchr(path, '/');
    HPS_ASSERT(slash != NULL && slash[1] != '\0');
    char *parent = hps_strndup(path, (size_t)(slash - path) + 1);
    if (parent == NULL) {
        return fail_memory(err);
    }
    struct hps_error why;
    hps_status status = hps_dir_open(parent, &above, &why);
    if (status == HPS_OK) {
        status = hps_dir_remove(&above, slash + 1, &why);
    }
    hps_dir_close(&above);
    hps_free(parent);
    return status == HPS_OK || status == HPS_NOT_FOUND
               ? HPS_OK
               : hps_error_set(err, status, "rocksdb: %s", why.text);
}

hps_status hps_rocksdb_dir_sync(const char *path, struct hps_error *err)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return hps_rocksdb_dir_fail(err, "cannot open", path);
    }
    hps_status status = fsync(fd) == 0 ? HPS_OK : hps_rocksdb_dir_fail(err, "cannot sync", path);
    close(fd);
    return status;
}

/* Call fn for every entry but "." and "..". Any status but OK ends it and is returned. */
static hps_status each_entry(const char *path,
                             hps_status (*fn)(void *ctx, int dir_fd, const char *name,
                                              struct hps_error *err),
                             void *ctx, struct hps_error *err)
{
    DIR *dir = opendir(path);
    if (dir == NULL) {
        return hps_rocksdb_dir_fail(err, "cannot open", path);
    }
    hps_status status = HPS_OK;
    for (const struct dirent *entry = readdir(dir); entry != NULL && status == HPS_OK;
         entry = readdir(dir)) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            status = fn(ctx, dirfd(dir), entry->d_name, err);
        }
    }
    closedir(dir);
    return status;
}

static hps_status look_entry(void *ctx, int dir_fd, const char *name, struct hps_error *err)
{
    (void)dir_fd;
    (void)err;
    enum hps_rocksdb_dir_state *state = ctx;
    if (strcmp(name, "CURRENT") == 0) {
        *state = HPS_ROCKSDB_DIR_DATABASE;
    } else if (*state == HPS_ROCKSDB_DIR_EMPTY) {
        *state = HPS_ROCKSDB_DIR_OTHER;
    }
    return HPS_OK;
}

hps_status hps_rocksdb_dir_look(const struct hps_rocksdb_dir *dir,
                                enum hps_rocksdb_dir_state *out_state, struct hps_error *err)
{
    enum hps_rocksdb_dir_state state = HPS_ROCKSDB_DIR_EMPTY;
    if (access(dir->path, F_OK) != 0 && errno == ENOENT) {
        *out_state = HPS_ROCKSDB_DIR_ABSENT;
        return HPS_OK;
    }
    hps_status status = each_entry(dir->path, look_entry, &state, err);
    if (status == HPS_OK) {
        *out_state = state;
    }
    return status;
}

bool hps_rocksdb_dir_has_database(const char *dir)
{
    enum hps_rocksdb_dir_state state = HPS_ROCKSDB_DIR_ABSENT;
    struct hps_error err;
    struct hps_rocksdb_dir at = {.path = hps_rocksdb_dir_join(dir, "hpsd")};
    bool known = at.path != NULL && hps_rocksdb_dir_look(&at, &state, &err) == HPS_OK;
    hps_free(at.path);
    return known && state == HPS_ROCKSDB_DIR_DATABASE;
}

/* RocksDB removes its other unfinished files after a crash, but never this one. */
static bool is_options_tmp(const char *name)
{
    const char *end = strrchr(name, '.');

    return strncmp(name, "OPTIONS-", 8) == 0 && end != NULL && strcmp(end, ".dbtmp") == 0;
}

static hps_status remove_leftover(void *ctx, int dir_fd, const char *name, struct hps_error *err)
{
    if (is_options_tmp(name)) {
        return unlinkat(dir_fd, name, 0) == 0 || errno == ENOENT
                   ? HPS_OK
                   : hps_rocksdb_dir_fail(err, "cannot remove", name);
    }
    if (strncmp(name, "load-", 5) != 0) {
        return HPS_OK;
    }
    char *load = hps_rocksdb_dir_join(ctx, name);
    hps_status status = load != NULL ? hps_rocksdb_dir_remove_tree(load, err) : fail_memory(err);
    hps_free(load);
    return status;
}

hps_status hps_rocksdb_dir_remove_leftovers(const struct hps_rocksdb_dir *dir,
                                            struct hps_error *err)
{
    return each_entry(dir->path, remove_leftover, dir->path, err);
}

struct sum {
    const char *suffix;
    struct hps_rocksdb_dir_files files;
};

static hps_status add_file(void *ctx, int dir_fd, const char *name, struct hps_error *err)
{
    (void)err;
    struct sum *sum = ctx;
    struct stat info;
    size_t size = strlen(name);
    size_t suffix_size = strlen(sum->suffix);
    if (size > suffix_size && strcmp(name + size - suffix_size, sum->suffix) == 0 &&
        fstatat(dir_fd, name, &info, 0) == 0) {
        sum->files.n++;
        sum->files.bytes += (uint64_t)info.st_size;
        uint64_t number = strtoull(name, NULL, 10);
        sum->files.newest = number > sum->files.newest ? number : sum->files.newest;
    }
    return HPS_OK;
}

hps_status hps_rocksdb_dir_files(const struct hps_rocksdb_dir *dir, const char *suffix,
                                 struct hps_rocksdb_dir_files *out_files, struct hps_error *err)
{
    struct sum sum = {.suffix = suffix};
    hps_status status = each_entry(dir->path, add_file, &sum, err);
    if (status == HPS_OK) {
        *out_files = sum.files;
    }
    return status;
}

bool hps_rocksdb_dir_direct_works(const struct hps_rocksdb_dir *dir)
{
    char *current = hps_rocksdb_dir_join(dir->path, "CURRENT");
    int fd = current != NULL ? open(current, O_RDONLY | O_DIRECT | O_CLOEXEC) : -1;
    hps_free(current);
    if (fd >= 0) {
        close(fd);
    }
    return fd >= 0;
}

/* ---- free space ------------------------------------------------------------------------------ */

/* Free bytes of the disk above `reserve`. */
static uint64_t free_above(const struct hps_rocksdb_dir *dir, uint64_t reserve)
{
    struct statvfs fs;
    if (statvfs(dir->dir, &fs) != 0) {
        return 0;
    }
    uint64_t bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
    return bytes > reserve ? bytes - reserve : 0;
}

uint64_t hps_rocksdb_dir_free_bytes(const struct hps_rocksdb_dir *dir)
{
    return dir->read_only ? 0 : free_above(dir, dir->disk_free_min_bytes);
}

static hps_status guard(const struct hps_rocksdb_dir *dir, uint64_t bytes, uint64_t reserve,
                        struct hps_error *err)
{
    uint64_t bytes_free = free_above(dir, reserve);
    if (bytes > bytes_free) {
        return hps_error_set(err, HPS_EXHAUSTED,
                             "rocksdb: %s: %" PRIu64 " bytes needed, %" PRIu64
                             " free above the %" PRIu64 " kept (disk_free_min_bytes)",
                             dir->path, bytes, bytes_free, reserve);
    }
    return HPS_OK;
}

hps_status hps_rocksdb_dir_guard(const struct hps_rocksdb_dir *dir, uint64_t bytes,
                                 struct hps_error *err)
{
    return guard(dir, bytes, dir->disk_free_min_bytes, err);
}

hps_status hps_rocksdb_dir_guard_small(const struct hps_rocksdb_dir *dir, uint64_t bytes,
                                       struct hps_error *err)
{
    return guard(dir, bytes + HPS_ROCKSDB_FLOOR_BYTES, dir->disk_free_min_bytes / 4, err);
}

static void ballast_release(struct hps_rocksdb_dir *dir)
{
    hps_lock_acquire(&dir->lock);
    if (dir->ballast) {
        dir->ballast = unlinkat(dir->at.fd, BALLAST, 0) != 0;
    }
    hps_lock_release(&dir->lock);
}

hps_status hps_rocksdb_dir_guard_vital(struct hps_rocksdb_dir *dir, uint64_t bytes,
                                       struct hps_error *err)
{
    HPS_ASSERT(!dir->read_only);
    if (free_above(dir, 0) < bytes + HPS_ROCKSDB_BALLAST_BYTES) {
        ballast_release(dir);
    }
    return guard(dir, bytes + HPS_ROCKSDB_FLOOR_BYTES, 0, err);
}

void hps_rocksdb_dir_ballast(struct hps_rocksdb_dir *dir)
{
    HPS_ASSERT(!dir->read_only);
    hps_lock_acquire(&dir->lock);
    uint64_t bytes_free = free_above(dir, dir->disk_free_min_bytes / 2);
    if (!dir->ballast && bytes_free >= 2 * HPS_ROCKSDB_BALLAST_BYTES) {
        struct hps_error ignored;
        int fd = -1;
        dir->ballast =
            hps_dir_open_file(&dir->at, BALLAST, O_WRONLY | O_CREAT, &fd, &ignored) == HPS_OK &&
            fallocate(fd, 0, 0, HPS_ROCKSDB_BALLAST_BYTES) == 0;
        if (fd >= 0) {
            close(fd);
        }
        if (fd >= 0 && !dir->ballast) {
            /* A ballast without allocated space is useless. */
            (void)unlinkat(dir->at.fd, BALLAST, 0);
        }
    }
    hps_lock_release(&dir->lock);
}

hps_status hps_rocksdb_dir_guard_copy(const struct hps_rocksdb_dir *dir, const char *to,
                                      uint64_t bytes_all, uint64_t bytes_new, struct hps_error *err)
{
    struct stat from_info;
    struct stat to_info;
    struct statvfs fs;
    if (mkdir(to, 0750) != 0 && errno != EEXIST) {
        return hps_rocksdb_dir_fail(err, "cannot create", to);
    }
    if (stat(dir->dir, &from_info) != 0 || stat(to, &to_info) != 0 || statvfs(to, &fs) != 0) {
        return hps_rocksdb_dir_fail(err, "cannot stat", to);
    }
    uint64_t bytes_free = (uint64_t)fs.f_bavail * fs.f_frsize;
    uint64_t needed = bytes_all + bytes_new + HPS_ROCKSDB_FLOOR_BYTES;
    if (from_info.st_dev != to_info.st_dev && needed > bytes_free) {
        return hps_error_set(err, HPS_EXHAUSTED,
                             "rocksdb: %s: %" PRIu64 " bytes needed, %" PRIu64 " free", to, needed,
                             bytes_free);
    }
    return hps_rocksdb_dir_guard(dir, bytes_new, err);
}

static hps_status disk_free_min(struct hps_rocksdb_dir *dir, uint64_t configured,
                                struct hps_error *err)
{
    struct statvfs fs;
    if (statvfs(dir->dir, &fs) != 0) {
        return hps_rocksdb_dir_fail(err, "cannot read the free space of", dir->dir);
    }
    uint64_t twentieth = (uint64_t)fs.f_blocks * fs.f_frsize / 20;
    uint64_t automatic = twentieth > 2 * GIB ? twentieth : 2 * GIB;
    dir->disk_free_min_bytes = configured != 0 ? configured : automatic;
    return HPS_OK;
}

/* ---- open ------------------------------------------------------------------------------------ */

/* One writing process, or any number of reading ones. The kernel releases the lock when a process
 * ends. */
static hps_status take_lock(struct hps_rocksdb_dir *dir, struct hps_error *err)
{
    int flags = dir->read_only ? O_RDONLY : O_RDWR | O_CREAT;
    int fd = -1;
    struct hps_error why;
    hps_status status = hps_dir_open_file(&dir->at, LOCK, flags, &fd, &why);
    if (status == HPS_NOT_FOUND && dir->read_only) {
        return HPS_OK;
    }
    if (status != HPS_OK) {
        return hps_error_set(err, status, "rocksdb: %s", why.text);
    }
    if (flock(fd, (dir->read_only ? LOCK_SH : LOCK_EX) | LOCK_NB) != 0) {
        status = errno != EWOULDBLOCK
                     ? hps_rocksdb_dir_fail(err, "cannot lock", dir->dir)
                     : hps_error_set(err, HPS_BUSY,
                                     "rocksdb: %s/" LOCK " is locked by another process", dir->dir);
        close(fd);
        fd = -1;
    }
    dir->lock_fd = fd;
    return status;
}

/* Does not create the parent, so that a disk that is not mounted does not look like an empty
 * one. */
static hps_status open_at(struct hps_rocksdb_dir *dir, struct hps_error *err)
{
    hps_status status = dir->read_only ? hps_dir_open(dir->dir, &dir->at, err)
                                       : hps_dir_make_last(dir->dir, &dir->at, err);
    if (status == HPS_OK && !dir->read_only) {
        status = hps_dir_check_owner(&dir->at, "persistent_db.path", err);
    }
    return status == HPS_OK ? HPS_OK : hps_error_prefix(err, status, "rocksdb");
}

hps_status hps_rocksdb_dir_open(struct hps_rocksdb_dir *out_dir, const char *dir, bool read_only,
                                uint64_t disk_free_min_bytes, struct hps_error *err)
{
    *out_dir = (struct hps_rocksdb_dir){.at.fd = -1, .read_only = read_only, .lock_fd = -1};
    hps_lock_init(&out_dir->lock, HPS_LOCK_ROCKSDB_BALLAST);
    if (strlen(dir) > HPS_ROCKSDB_PATH_BYTES_MAX) {
        return hps_error_set(err, HPS_INVALID,
                             "rocksdb: persistent_db.path has %zu bytes, limit is %d", strlen(dir),
                             HPS_ROCKSDB_PATH_BYTES_MAX);
    }
    out_dir->dir = hps_strdup(dir);
    out_dir->path = hps_rocksdb_dir_join(dir, "hpsd");
    if (out_dir->dir == NULL || out_dir->path == NULL) {
        return fail_memory(err);
    }
    hps_status status = open_at(out_dir, err);
    if (status == HPS_OK) {
        status = disk_free_min(out_dir, disk_free_min_bytes, err);
    }
    if (status == HPS_OK) {
        status = take_lock(out_dir, err);
    }
    struct stat info;
    out_dir->ballast = !read_only && status == HPS_OK &&
                       fstatat(out_dir->at.fd, BALLAST, &info, AT_SYMLINK_NOFOLLOW) == 0 &&
                       S_ISREG(info.st_mode) && info.st_size >= HPS_ROCKSDB_BALLAST_BYTES;
    return status;
}

void hps_rocksdb_dir_close(struct hps_rocksdb_dir *dir)
{
    if (dir->lock_fd >= 0) {
        close(dir->lock_fd);
    }
    hps_lock_fini(&dir->lock);
    hps_dir_close(&dir->at);
    hps_free(dir->dir);
    hps_free(dir->path);
}
