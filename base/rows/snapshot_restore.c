/* SPDX-License-Identifier: Apache-2.0
 *
 * Restores a database from a snapshot: see snapshot.h. The user of a service may be able to write
 * to the target directory, and root often runs the restore. So root acts as that user, and both
 * directories are used by their descriptors: no link in them is followed.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/heap.h"
#include "base/rows/crc32c.h"
#include "base/rows/dir.h"
#include "base/rows/fileio.h"
#include "base/rows/snapshot.h"
#include "base/rows/snapshot_format.h"

#define LIST_NAME   SNAPSHOT_LIST_NAME
#define FORMAT_WORD SNAPSHOT_FORMAT_WORD
#define FILE_WORD   SNAPSHOT_FILE_WORD
#define END_WORD    SNAPSHOT_END_WORD
#define DATABASE    "hpsd"
#define STAGING     "hpsd.restoring" /* renamed to hpsd at the end */

enum {
    N_LOCKS = 2,
    CRC_DIGITS = 8,
    FORMAT_PLAIN = 1 /* without checksums */
};

struct restore {
    const char *from; /* DIR */
    const char *path;
    struct hps_dir source;  /* DIR */
    struct hps_dir files;   /* DIR/hpsd */
    struct hps_dir target;  /* PATH */
    struct hps_dir staging; /* PATH/hpsd.restoring */
    bool source_trusted;    /* root owns it and no other user may write: root reads it */
    struct hps_dir_actor actor;
    char *list; /* lines with a NUL at the end */
    size_t list_size;
    long format;
    int locks[N_LOCKS];
    struct hps_snapshot_report report;
};

static hps_status no_memory(struct hps_error *err)
{
    return hps_error_set(err, HPS_NO_MEMORY, "no memory for a snapshot");
}

/* ---- the snapshot ---------------------------------------------------------------------------- */

static bool roots_alone(const struct hps_dir *dir)
{
    struct stat info;
    return fstat(dir->fd, &info) == 0 && info.st_uid == 0 &&
           (info.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

/* Open a file of DIR, relative to its descriptor. The owner of PATH may be a service that also
 * wrote DIR, so files are opened as that user. A trusted copy of root is opened as root, because
 * only root may be able to read it. */
static hps_status open_source(struct restore *restore, const struct hps_dir *dir, const char *name,
                              int *out_fd, uint64_t *out_bytes, struct hps_error *err)
{
    struct hps_error other;
    int fd = -1;
    bool as_root = restore->actor.changed && restore->source_trusted;
    if (as_root) {
        hps_dir_actor_end(&restore->actor);
    }
    hps_status status = hps_dir_open_file(dir, name, O_RDONLY, &fd, err);
    if (as_root && hps_dir_actor_begin(&restore->target, &restore->actor, &other) != HPS_OK) {
        status = status == HPS_OK ? hps_error_set(err, other.status, "%s", other.text) : status;
        if (fd >= 0) {
            close(fd);
        }
    }
    if (status == HPS_PERMISSION && restore->actor.changed && !restore->source_trusted) {
        status = hps_error_prefix(
            err, status,
            "the snapshot is read as the owner of %s, unless only root can write to its directory",
            restore->path);
    }
    if (status != HPS_OK) {
        return status;
    }
    status = hps_file_take_read(fd, name, out_bytes, err);
    if (status == HPS_OK) {
        *out_fd = fd;
    }
    return status;
}

static hps_status read_list(struct restore *restore, struct hps_error *err)
{
    uint64_t size = 0;
    int fd = -1;
    hps_status status = open_source(restore, &restore->source, LIST_NAME, &fd, &size, err);
    if (status == HPS_NOT_FOUND) {
        status = hps_error_set(err, HPS_DATA_LOSS,
                               "%s is not a snapshot, or is incomplete: it has no file \"" LIST_NAME
                               "\"",
                               restore->from);
    }
    if (status == HPS_OK && size > SNAPSHOT_LIST_BYTES_MAX) {
        status = hps_error_set(err, HPS_DATA_LOSS, "%s/" LIST_NAME " is not a list of a snapshot",
                               restore->from);
    }
    if (status == HPS_OK) {
        restore->list_size = size;
        restore->list = hps_calloc(1, size + 1);
        status = restore->list != NULL ? hps_file_pread(fd, LIST_NAME, restore->list, size, 0, err)
                                       : no_memory(err);
    }
    if (fd >= 0) {
        close(fd);
    }
    return status;
}

/* Read eight hexadecimal digits, then `end`. */
static bool read_crc(const char *text, char end, uint32_t *out_crc)
{
    char digits[CRC_DIGITS + 1] = "";
    size_t n = strspn(text, "0123456789abcdef");
    if (n != CRC_DIGITS || text[n] != end) {
        return false;
    }
    memcpy(digits, text, CRC_DIGITS);
    *out_crc = (uint32_t)strtoul(digits, NULL, 16);
    return true;
}

/* Compare the last line, the checksum of all lines before it. */
static hps_status check_list(const struct restore *restore, struct hps_error *err)
{
    enum { END_BYTES = sizeof(END_WORD) - 1 + CRC_DIGITS + 1 };
    const char *list = restore->list;
    size_t size = restore->list_size;
    uint32_t crc = 0;
    if (size <= END_BYTES || list[size - END_BYTES - 1] != '\n' ||
        strncmp(list + size - END_BYTES, END_WORD, strlen(END_WORD)) != 0 ||
        !read_crc(list + size - CRC_DIGITS - 1, '\n', &crc)) {
        return hps_error_set(err, HPS_DATA_LOSS, "%s/" LIST_NAME " is cut short, or damaged",
                             restore->from);
    }
    uint32_t there = hps_crc32c(0, list, size - END_BYTES);
    if (crc != there) {
        return hps_error_set(err, HPS_DATA_LOSS,
                             "%s/" LIST_NAME " is damaged: its lines have CRC-32C %08" PRIx32
                             ", expected %08" PRIx32,
                             restore->from, there, crc);
    }
    return HPS_OK;
}

static hps_status check_format(struct restore *restore, struct hps_error *err)
{
    const char *text = restore->list;
    if (strncmp(text, FORMAT_WORD, strlen(FORMAT_WORD)) != 0) {
        return hps_error_set(err, HPS_DATA_LOSS, "%s/" LIST_NAME " is not a list of a snapshot",
                             restore->from);
    }
    long format = strtol(text + strlen(FORMAT_WORD), NULL, 10);
    if (format < 1) {
        return hps_error_set(err, HPS_DATA_LOSS, "%s/" LIST_NAME " names no format of a snapshot",
                             restore->from);
    }
    if (format > HPS_SNAPSHOT_FORMAT) {
        return hps_error_set(err, HPS_NEWER_FORMAT,
                             "%s has format %ld, this hpsctl reads up to %d: use a newer one",
                             restore->from, format, HPS_SNAPSHOT_FORMAT);
    }
    restore->format = format;
    restore->report.verified = format > FORMAT_PLAIN;
    return restore->report.verified ? check_list(restore, err) : HPS_OK;
}

/* Open DIR and DIR/hpsd as the calling user; open_source opens the files in them. */
static hps_status open_snapshot(struct restore *restore, struct hps_error *err)
{
    hps_status status = hps_dir_open(restore->from, &restore->source, err);
    if (status == HPS_NOT_FOUND) {
        return hps_error_set(err, HPS_DATA_LOSS, "%s is not a snapshot: there is no such directory",
                             restore->from);
    }
    if (status != HPS_OK || !hps_dir_has(&restore->source, DATABASE)) {
        return status; /* the list may give a better error */
    }
    status = hps_dir_open_in(&restore->source, DATABASE, false, &restore->files, err);
    restore->source_trusted =
        status == HPS_OK && roots_alone(&restore->source) && roots_alone(&restore->files);
    return status;
}

static hps_status read_snapshot(struct restore *restore, struct hps_error *err)
{
    hps_status status = read_list(restore, err);
    if (status == HPS_OK) {
        status = check_format(restore, err);
    }
    if (status == HPS_OK && restore->files.fd < 0) {
        status = hps_error_set(err, HPS_DATA_LOSS,
                               "the snapshot is incomplete: %s has no " DATABASE, restore->from);
    }
    return status;
}

/* ---- files of the snapshot ------------------------------------------------------------------- */

/* Only .sst files and base files may be linked: nothing writes to them again. A link keeps the
 * owner of the file, so a file of another user must be copied. */
static bool may_link(int fd, const char *name)
{
    struct stat info;
    const char *dot = strrchr(name, '.');
    bool is_final = dot != NULL ? strcmp(dot, ".sst") == 0 : strncmp(name, "base-", 5) == 0;
    return is_final && fstat(fd, &info) == 0 && info.st_uid == geteuid();
}

/* Link the opened file, and no other that has replaced it under its name. */
static bool link_file(const struct restore *restore, int fd, const char *name)
{
    struct stat opened, linked;
    if (!may_link(fd, name) || linkat(restore->files.fd, name, restore->staging.fd, name, 0) != 0) {
        return false;
    }
    bool same = fstat(fd, &opened) == 0 &&
                fstatat(restore->staging.fd, name, &linked, AT_SYMLINK_NOFOLLOW) == 0 &&
                opened.st_dev == linked.st_dev && opened.st_ino == linked.st_ino;
    if (!same) {
        (void)unlinkat(restore->staging.fd, name, 0);
    }
    return same;
}

static hps_status copy_file(const struct restore *restore, int from, const char *name,
                            uint64_t size, uint32_t *out_crc, struct hps_error *err)
{
    int fd = -1;
    hps_status status =
        hps_dir_open_file(&restore->staging, name, O_WRONLY | O_CREAT | O_EXCL, &fd, err);
    if (status != HPS_OK) {
        return status;
    }
    status = hps_file_copy(from, fd, name, size, NULL, out_crc, err);
    close(fd);
    return status;
}

/* A file in the list. */
struct kept_file {
    const char *name;
    uint64_t size;
    uint32_t crc; /* unused in FORMAT_PLAIN */
};

static hps_status take_opened(const struct restore *restore, const struct kept_file *file, int fd,
                              struct hps_error *err)
{
    HPS_ASSERT(restore->format >= FORMAT_PLAIN && restore->format <= HPS_SNAPSHOT_FORMAT);
    bool plain = restore->format == FORMAT_PLAIN;
    bool linked = link_file(restore, fd, file->name);
    uint32_t crc = file->crc;
    hps_status status = HPS_OK;
    if (!linked) {
        status = copy_file(restore, fd, file->name, file->size, &crc, err);
    } else if (!plain) {
        status = hps_file_copy(fd, -1, file->name, file->size, NULL, &crc, err);
    }
    if (status == HPS_OK && !plain && crc != file->crc) {
        status = hps_error_set(err, HPS_DATA_LOSS,
                               "the snapshot is damaged: %s/%s has CRC-32C %08" PRIx32
                               ", expected %08" PRIx32,
                               restore->files.path, file->name, crc, file->crc);
    }
    return status;
}

static hps_status take_file(struct restore *restore, const struct kept_file *file,
                            struct hps_error *err)
{
    uint64_t size_there = 0;
    int fd = -1;
    hps_status status = open_source(restore, &restore->files, file->name, &fd, &size_there, err);
    if (status == HPS_NOT_FOUND || (status == HPS_OK && size_there != file->size)) {
        status = hps_error_set(err, HPS_DATA_LOSS,
                               "the snapshot is incomplete: %s/%s has %" PRIu64 " bytes, expected "
                               "%" PRIu64,
                               restore->files.path, file->name, size_there, file->size);
    }
    if (status == HPS_OK) {
        status = take_opened(restore, file, fd, err);
    }
    if (status == HPS_OK) {
        restore->report.n_files++;
        restore->report.n_bytes += file->size;
    }
    if (fd >= 0) {
        close(fd);
    }
    return status;
}

/* "BYTES CRC32C NAME", or "BYTES NAME" */
static hps_status take_line(struct restore *restore, char *line, struct hps_error *err)
{
    struct kept_file file = {0};
    char *at = NULL;
    errno = 0;
    file.size = strtoull(line, &at, 10);
    bool good = errno == 0 && at != line && at[0] == ' ';
    if (good && restore->format != FORMAT_PLAIN) {
        good = read_crc(at + 1, ' ', &file.crc);
        at += good ? 1 + CRC_DIGITS : 0;
    }
    file.name = at + 1;
    if (!good || file.name[0] == '\0' || file.name[0] == '.' || strchr(file.name, '/') != NULL) {
        return hps_error_set(err, HPS_DATA_LOSS, "%s/" LIST_NAME ": \"%.200s\" names no file",
                             restore->from, line);
    }
    return take_file(restore, &file, err);
}

static hps_status take_files(struct restore *restore, struct hps_error *err)
{
    hps_status status = HPS_OK;
    for (char *line = restore->list; *line != '\0' && status == HPS_OK;) {
        char *end = strchr(line, '\n');
        if (end == NULL) {
            return hps_error_set(err, HPS_DATA_LOSS, "%s/" LIST_NAME " is cut short",
                                 restore->from);
        }
        *end = '\0';
        if (strncmp(line, FILE_WORD, strlen(FILE_WORD)) == 0) {
            status = take_line(restore, line + strlen(FILE_WORD), err);
        }
        line = end + 1;
    }
    if (status == HPS_OK && restore->report.n_files == 0) {
        status =
            hps_error_set(err, HPS_DATA_LOSS, "%s/" LIST_NAME " names no files", restore->from);
    }
    return status;
}

/* ---- target directory ------------------------------------------------------------------------ */

/* Take a lock of a state directory or a database, as hpsd does. */
static hps_status take_lock(struct restore *restore, unsigned i, const char *name,
                            struct hps_error *err)
{
    HPS_ASSERT(i < N_LOCKS && restore->locks[i] < 0);
    hps_status status =
        hps_dir_open_file(&restore->target, name, O_RDWR | O_CREAT, &restore->locks[i], err);
    if (status == HPS_OK && flock(restore->locks[i], LOCK_EX | LOCK_NB) != 0) {
        status = hps_error_set(err, HPS_BUSY, "%s is in use by a running hpsd: stop it first",
                               restore->path);
    }
    return status;
}

/* Open PATH if it exists. From here on root acts as its owner. A new PATH will belong to root. */
static hps_status open_target(struct restore *restore, struct hps_error *err)
{
    if (access(restore->path, F_OK) != 0 && errno == ENOENT) {
        return HPS_OK;
    }
    hps_status status = hps_dir_open(restore->path, &restore->target, err);
    return status == HPS_OK ? hps_dir_actor_begin(&restore->target, &restore->actor, err) : status;
}

static hps_status make_target(struct restore *restore, struct hps_error *err)
{
    if (restore->target.fd >= 0) {
        return HPS_OK;
    }
    hps_status status = hps_dir_make_last(restore->path, &restore->target, err);
    /* Owned by root, unless another user has created it since. */
    return status == HPS_OK ? hps_dir_actor_begin(&restore->target, &restore->actor, err) : status;
}

static hps_status lock_target(struct restore *restore, struct hps_error *err)
{
    hps_status status = take_lock(restore, 0, "lock", err);
    if (status == HPS_OK) {
        status = take_lock(restore, 1, "hpsd.lock", err);
    }
    if (status == HPS_OK && hps_dir_has(&restore->target, DATABASE)) {
        status = hps_error_set(err, HPS_EXISTS,
                               "%s/" DATABASE " already exists: a restore needs a place without a "
                               "database; move it away, or give another directory",
                               restore->path);
    }
    return status;
}

/* Create the staging directory; removes what an earlier attempt left. */
static hps_status make_staging(struct restore *restore, struct hps_error *err)
{
    hps_status status = hps_dir_remove(&restore->target, STAGING, err);
    return status == HPS_OK
               ? hps_dir_open_in(&restore->target, STAGING, true, &restore->staging, err)
               : status;
}

static hps_status put_in_place(const struct restore *restore, struct hps_error *err)
{
    hps_status status = hps_dir_sync(&restore->staging, err);
    if (status == HPS_OK) {
        status = hps_dir_remove(&restore->target, "hpsd.damaged", err);
    }
    return status == HPS_OK ? hps_dir_rename(&restore->target, STAGING, DATABASE, err) : status;
}

static hps_status restore_files(struct restore *restore, struct hps_error *err)
{
    hps_status status = make_target(restore, err);
    if (status == HPS_OK) {
        status = lock_target(restore, err);
    }
    if (status != HPS_OK) {
        return status;
    }
    status = make_staging(restore, err);
    if (status == HPS_OK) {
        status = take_files(restore, err);
    }
    if (status == HPS_OK) {
        status = put_in_place(restore, err);
    }
    if (status != HPS_OK) {
        struct hps_error ignored = {0};
        hps_ignore(hps_dir_remove(&restore->target, STAGING, &ignored));
    }
    return status;
}

hps_status hps_snapshot_restore(const char *dir, const char *path,
                                struct hps_snapshot_report *out_report, struct hps_error *err)
{
    struct restore restore = {.from = dir,
                              .path = path,
                              .source.fd = -1,
                              .files.fd = -1,
                              .target.fd = -1,
                              .staging.fd = -1,
                              .locks = {-1, -1}};
    hps_status status = open_snapshot(&restore, err);
    if (status == HPS_OK) {
        status = open_target(&restore, err);
    }
    if (status == HPS_OK) {
        status = read_snapshot(&restore, err);
    }
    if (status == HPS_OK) {
        status = restore_files(&restore, err);
    }
    hps_dir_actor_end(&restore.actor);
    for (unsigned i = 0; i < N_LOCKS; i++) {
        if (restore.locks[i] >= 0) {
            close(restore.locks[i]);
        }
    }
    if (status == HPS_OK) {
        *out_report = restore.report;
    }
    hps_dir_close(&restore.source);
    hps_dir_close(&restore.files);
    hps_dir_close(&restore.staging);
    hps_dir_close(&restore.target);
    hps_free(restore.list);
    return status;
}
