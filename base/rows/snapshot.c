/* SPDX-License-Identifier: Apache-2.0
 *
 * Snapshots as files: see snapshot.h.
 */
#include "base/rows/snapshot.h"

#include <dirent.h>
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
#include "base/buf.h"
#include "base/heap.h"
#include "base/rows/crc32c.h"
#include "base/rows/fileio.h"

#define LIST_NAME   "snapshot"
#define FORMAT_WORD "hpsd-snapshot "
#define FILE_WORD   "file "
#define END_WORD    "end "

enum {
    LIST_BYTES_MAX = 64 << 20,
    COPY_BYTES = 1 << 20,
    N_LOCKS = 2,
    CRC_DIGITS = 8,
    FORMAT_PLAIN = 1 /* without checksums */
};

static hps_status no_memory(struct hps_error *err)
{
    return hps_error_set(err, HPS_NO_MEMORY, "no memory for a snapshot");
}

static bool is_dots(const char *name)
{
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

/* Call fn for every entry; a status other than OK ends it. */
static hps_status each_entry(const char *path,
                             hps_status (*fn)(void *ctx, int dir_fd, const char *name,
                                              struct hps_error *err),
                             void *ctx, struct hps_error *err)
{
    hps_status status = HPS_OK;
    DIR *dir = opendir(path);
    if (dir == NULL) {
        return hps_file_error(err, errno, "cannot open", path);
    }
    for (const struct dirent *entry = readdir(dir); entry != NULL && status == HPS_OK;
         entry = readdir(dir)) {
        status = is_dots(entry->d_name) ? HPS_OK : fn(ctx, dirfd(dir), entry->d_name, err);
    }
    closedir(dir);
    return status;
}

/* ---- making one ------------------------------------------------------------------------------ */

static hps_status refuse_entry(void *ctx, int dir_fd, const char *name, struct hps_error *err)
{
    (void)dir_fd;
    return hps_error_set(err, HPS_EXISTS, "%s is not empty: it has \"%.200s\"", (const char *)ctx,
                         name);
}

hps_status hps_snapshot_begin(const char *dir, struct hps_error *err)
{
    if (mkdir(dir, 0750) != 0 && errno != EEXIST) {
        return hps_file_error(err, errno, "cannot make", dir);
    }
    return each_entry(dir, refuse_entry, (void *)(uintptr_t)dir, err);
}

struct listing {
    const char *files; /* DIR/hpsd */
    const atomic_bool *cancel;
    struct hps_buf text;
    struct hps_snapshot_report report;
};

/* What it has now is what it must have when it is restored. */
static hps_status list_file(struct listing *listing, const char *name, struct hps_error *err)
{
    uint64_t bytes = 0;
    uint32_t crc = 0;
    char *path = hps_file_path("%s/%s", listing->files, name);
    hps_status status =
        path != NULL ? hps_crc32c_file(path, listing->cancel, &crc, &bytes, err) : no_memory(err);
    hps_free(path);
    if (status != HPS_OK) {
        return status;
    }
    listing->report.n_files++;
    listing->report.n_bytes += bytes;
    return hps_buf_printf(&listing->text, FILE_WORD "%" PRIu64 " %08" PRIx32 " %s\n", bytes, crc,
                          name) == HPS_OK
               ? HPS_OK
               : no_memory(err);
}

static hps_status list_entry(void *ctx, int dir_fd, const char *name, struct hps_error *err)
{
    struct listing *listing = ctx;
    struct stat info;
    if (fstatat(dir_fd, name, &info, AT_SYMLINK_NOFOLLOW) != 0) {
        return hps_file_error(err, errno, "cannot stat", name);
    }
    if (!S_ISREG(info.st_mode)) {
        return hps_error_set(err, HPS_IO, "%.200s of a snapshot is not a file", name);
    }
    return list_file(listing, name, err);
}

static hps_status list_end(struct hps_buf *text, struct hps_error *err)
{
    uint32_t crc = hps_crc32c(0, text->data, text->size);
    return hps_buf_printf(text, END_WORD "%08" PRIx32 "\n", crc) == HPS_OK ? HPS_OK
                                                                           : no_memory(err);
}

hps_status hps_snapshot_finish(const char *dir, const char *version, uint64_t unix_ms,
                               const atomic_bool *cancel, struct hps_snapshot_report *out_report,
                               struct hps_error *err)
{
    char *files = hps_file_path("%s/hpsd", dir);
    char *list = hps_file_path("%s/" LIST_NAME, dir);
    struct listing listing = {.files = files, .cancel = cancel, .report = {.verified = true}};
    hps_buf_init(&listing.text, LIST_BYTES_MAX);
    hps_status status = files != NULL && list != NULL ? HPS_OK : no_memory(err);
    if (status == HPS_OK) {
        status = hps_buf_printf(&listing.text, FORMAT_WORD "%d\nhpsd %s\ncreated %" PRIu64 "\n",
                                HPS_SNAPSHOT_FORMAT, version, unix_ms) == HPS_OK
                     ? each_entry(files, list_entry, &listing, err)
                     : no_memory(err);
    }
    if (status == HPS_OK) {
        status = list_end(&listing.text, err);
    }
    if (status == HPS_OK) {
        status = hps_file_replace(list, listing.text.data, listing.text.size, err);
    }
    if (status == HPS_OK) {
        status = hps_file_sync_parent(dir, err);
    }
    if (status == HPS_OK) {
        *out_report = listing.report;
    }
    hps_buf_fini(&listing.text);
    hps_free(files);
    hps_free(list);
    return status;
}

/* ---- taking one ------------------------------------------------------------------------------ */

struct restore {
    const char *from; /* DIR */
    const char *path;
    char *files;   /* DIR/hpsd */
    char *staging; /* PATH/hpsd.restoring: becomes PATH/hpsd */
    char *target;  /* PATH/hpsd */
    char *list;    /* its lines; NUL behind */
    size_t list_size;
    long format;
    struct stat owner;
    int locks[N_LOCKS];
    struct hps_snapshot_report report;
};

/* Whoever restores as root restores for the user that the directory belongs to. */
static hps_status give(const struct restore *restore, int fd, const char *path,
                       struct hps_error *err)
{
    if (geteuid() == 0 && fchown(fd, restore->owner.st_uid, restore->owner.st_gid) != 0) {
        return hps_file_error(err, errno, "cannot change the owner of", path);
    }
    return HPS_OK;
}

/* The locks of a state directory and of a database, as hpsd takes them. */
static hps_status take_lock(struct restore *restore, unsigned i, const char *name,
                            struct hps_error *err)
{
    HPS_ASSERT(i < N_LOCKS && restore->locks[i] < 0);
    char *path = hps_file_path("%s/%s", restore->path, name);
    if (path == NULL) {
        return no_memory(err);
    }
    hps_status status = HPS_OK;
    restore->locks[i] = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0640);
    if (restore->locks[i] < 0) {
        status = hps_file_error(err, errno, "cannot open", path);
    } else if (flock(restore->locks[i], LOCK_EX | LOCK_NB) != 0) {
        status = hps_error_set(err, HPS_BUSY, "%s is used by an hpsd that runs: stop it first",
                               restore->path);
    } else {
        status = give(restore, restore->locks[i], path, err);
    }
    hps_free(path);
    return status;
}

static hps_status open_target(struct restore *restore, struct hps_error *err)
{
    if (mkdir(restore->path, 0750) != 0 && errno != EEXIST) {
        return hps_file_error(err, errno, "cannot make", restore->path);
    }
    if (stat(restore->path, &restore->owner) != 0) {
        return hps_file_error(err, errno, "cannot stat", restore->path);
    }
    hps_status status = take_lock(restore, 0, "lock", err);
    if (status == HPS_OK) {
        status = take_lock(restore, 1, "hpsd.lock", err);
    }
    if (status == HPS_OK && access(restore->target, F_OK) == 0) {
        status = hps_error_set(err, HPS_EXISTS,
                               "%s is there: a snapshot is restored where no database is; move it "
                               "away, or name another directory",
                               restore->target);
    }
    return status;
}

static hps_status read_list(struct restore *restore, struct hps_error *err)
{
    uint64_t size = 0;
    int fd = -1;
    char *path = hps_file_path("%s/" LIST_NAME, restore->from);
    if (path == NULL) {
        return no_memory(err);
    }
    hps_status status = hps_file_open_read(path, &fd, &size, err);
    if (status == HPS_NOT_FOUND) {
        status = hps_error_set(err, HPS_DATA_LOSS,
                               "%s is not a snapshot, or an incomplete one: there is no file "
                               "\"" LIST_NAME "\" in it",
                               restore->from);
    }
    if (status == HPS_OK && size > LIST_BYTES_MAX) {
        status = hps_error_set(err, HPS_DATA_LOSS, "%s is not a list of a snapshot", path);
    }
    if (status == HPS_OK) {
        restore->list_size = size;
        restore->list = hps_calloc(1, size + 1);
        status = restore->list != NULL ? hps_file_pread(fd, path, restore->list, size, 0, err)
                                       : no_memory(err);
    }
    if (fd >= 0) {
        close(fd);
    }
    hps_free(path);
    return status;
}

/* Eight digits of hexadecimal, then `end`. */
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

/* The last line is the checksum of those before it. */
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

/* RocksDB never writes into a file of rows again; all others it may. A link has the owner that the
 * file has: one that is given to another user must be a copy. */
static bool may_link(const struct restore *restore, int fd, const char *name)
{
    struct stat info;
    const char *dot = strrchr(name, '.');
    bool ours = geteuid() != 0 || (fstat(fd, &info) == 0 && info.st_uid == restore->owner.st_uid);
    return ours && dot != NULL && strcmp(dot, ".sst") == 0;
}

/* to: -1 to read only. out_crc: of what was read. */
static hps_status copy_bytes(int from, int to, const char *path, uint64_t size, uint32_t *out_crc,
                             struct hps_error *err)
{
    HPS_ASSERT(from >= 0 && out_crc != NULL);
    uint8_t *piece = hps_alloc(COPY_BYTES);
    uint32_t crc = 0;
    hps_status status = piece != NULL ? HPS_OK : no_memory(err);
    for (uint64_t at = 0; at < size && status == HPS_OK;) {
        size_t n = size - at < COPY_BYTES ? (size_t)(size - at) : COPY_BYTES;
        status = hps_file_pread(from, path, piece, n, at, err);
        if (status == HPS_OK) {
            crc = hps_crc32c(crc, piece, n);
            status = to < 0 ? HPS_OK : hps_file_pwrite(to, path, piece, n, at, err);
        }
        at += n;
    }
    hps_free(piece);
    *out_crc = crc;
    return status;
}

static hps_status copy_file(const struct restore *restore, int from, const char *to, uint64_t size,
                            uint32_t *out_crc, struct hps_error *err)
{
    int fd = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0640);
    if (fd < 0) {
        return hps_file_error(err, errno, "cannot make", to);
    }
    hps_status status = copy_bytes(from, fd, to, size, out_crc, err);
    if (status == HPS_OK) {
        status = give(restore, fd, to, err);
    }
    if (status == HPS_OK && fsync(fd) != 0) {
        status = hps_file_error(err, errno, "cannot sync", to);
    }
    close(fd);
    return status;
}

/* A line of the list. */
struct kept_file {
    const char *name;
    uint64_t size;
    uint32_t crc; /* not of FORMAT_PLAIN */
};

static hps_status take_opened(const struct restore *restore, const struct kept_file *file, int fd,
                              const char *from, const char *to, struct hps_error *err)
{
    HPS_ASSERT(restore->format >= FORMAT_PLAIN && restore->format <= HPS_SNAPSHOT_FORMAT);
    bool plain = restore->format == FORMAT_PLAIN;
    bool linked = may_link(restore, fd, file->name) && link(from, to) == 0;
    uint32_t crc = file->crc;
    hps_status status = HPS_OK;
    if (!linked) {
        status = copy_file(restore, fd, to, file->size, &crc, err);
    } else if (!plain) {
        status = copy_bytes(fd, -1, from, file->size, &crc, err);
    }
    if (status == HPS_OK && !plain && crc != file->crc) {
        status = hps_error_set(err, HPS_DATA_LOSS,
                               "the snapshot is damaged: %s has CRC-32C %08" PRIx32
                               ", expected %08" PRIx32,
                               from, crc, file->crc);
    }
    return status;
}

static hps_status take_file(struct restore *restore, const struct kept_file *file,
                            struct hps_error *err)
{
    uint64_t size_there = 0;
    int fd = -1;
    char *from = hps_file_path("%s/%s", restore->files, file->name);
    char *to = hps_file_path("%s/%s", restore->staging, file->name);
    hps_status status = from != NULL && to != NULL ? HPS_OK : no_memory(err);
    if (status == HPS_OK) {
        status = hps_file_open_read(from, &fd, &size_there, err);
    }
    if (status == HPS_NOT_FOUND || (status == HPS_OK && size_there != file->size)) {
        status = hps_error_set(err, HPS_DATA_LOSS,
                               "the snapshot is incomplete: %s has %" PRIu64 " bytes, expected "
                               "%" PRIu64,
                               from, size_there, file->size);
    }
    if (status == HPS_OK) {
        status = take_opened(restore, file, fd, from, to, err);
    }
    if (status == HPS_OK) {
        restore->report.n_files++;
        restore->report.n_bytes += file->size;
    }
    if (fd >= 0) {
        close(fd);
    }
    hps_free(from);
    hps_free(to);
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

static hps_status remove_entry(void *ctx, int dir_fd, const char *name, struct hps_error *err)
{
    return unlinkat(dir_fd, name, 0) == 0 ? HPS_OK
                                          : hps_file_error(err, errno, "cannot remove", ctx);
}

/* Also what an attempt before this one has left. */
static hps_status remove_staging(const struct restore *restore, struct hps_error *err)
{
    if (access(restore->staging, F_OK) != 0) {
        return HPS_OK;
    }
    hps_status status = each_entry(restore->staging, remove_entry, restore->staging, err);
    return status == HPS_OK && rmdir(restore->staging) != 0
               ? hps_file_error(err, errno, "cannot remove", restore->staging)
               : status;
}

static hps_status make_staging(const struct restore *restore, struct hps_error *err)
{
    hps_status status = remove_staging(restore, err);
    if (status != HPS_OK) {
        return status;
    }
    if (mkdir(restore->staging, 0750) != 0) {
        return hps_file_error(err, errno, "cannot make", restore->staging);
    }
    int fd = open(restore->staging, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return hps_file_error(err, errno, "cannot open", restore->staging);
    }
    status = give(restore, fd, restore->staging, err);
    close(fd);
    return status;
}

static hps_status put_in_place(const struct restore *restore, struct hps_error *err)
{
    char *damaged = hps_file_path("%s/hpsd.damaged", restore->path);
    char *inside = hps_file_path("%s/CURRENT", restore->staging);
    hps_status status = damaged != NULL && inside != NULL ? HPS_OK : no_memory(err);
    if (status == HPS_OK) {
        status = hps_file_sync_parent(inside, err);
    }
    if (status == HPS_OK && unlink(damaged) != 0 && errno != ENOENT) {
        status = hps_file_error(err, errno, "cannot remove", damaged);
    }
    if (status == HPS_OK && rename(restore->staging, restore->target) != 0) {
        status = hps_file_error(err, errno, "cannot make", restore->target);
    }
    if (status == HPS_OK) {
        status = hps_file_sync_parent(restore->target, err);
    }
    hps_free(damaged);
    hps_free(inside);
    return status;
}

static hps_status restore_files(struct restore *restore, struct hps_error *err)
{
    hps_status status = read_list(restore, err);
    if (status == HPS_OK) {
        status = check_format(restore, err);
    }
    if (status == HPS_OK) {
        status = open_target(restore, err);
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
        hps_ignore(remove_staging(restore, &ignored));
    }
    return status;
}

hps_status hps_snapshot_restore(const char *dir, const char *path,
                                struct hps_snapshot_report *out_report, struct hps_error *err)
{
    struct restore restore = {.from = dir, .path = path, .locks = {-1, -1}};
    restore.files = hps_file_path("%s/hpsd", dir);
    restore.staging = hps_file_path("%s/hpsd.restoring", path);
    restore.target = hps_file_path("%s/hpsd", path);
    hps_status status = restore.files != NULL && restore.staging != NULL && restore.target != NULL
                            ? restore_files(&restore, err)
                            : no_memory(err);
    for (unsigned i = 0; i < N_LOCKS; i++) {
        if (restore.locks[i] >= 0) {
            close(restore.locks[i]);
        }
    }
    if (status == HPS_OK) {
        *out_report = restore.report;
    }
    hps_free(restore.files);
    hps_free(restore.staging);
    hps_free(restore.target);
    hps_free(restore.list);
    return status;
}
