/* SPDX-License-Identifier: Apache-2.0
 *
 * Complete reads and writes of plain files. See base/rows/fileio.h. Any thread.
 */
#include "base/rows/fileio.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/heap.h"
#include "base/rows/crc32c.h"

/* The kernel moves at most 0x7ffff000 bytes in one call. */
enum { CALL_BYTES_MAX = 1 << 30, PIECE_BYTES = 1 << 20 };

hps_status hps_file_status(int error_number)
{
    switch (error_number) {
    case ENOENT:
    case ENOTDIR:
        return HPS_NOT_FOUND;
    case EACCES:
    case EPERM:
    case EROFS:
        return HPS_PERMISSION;
    case EEXIST:
    case ENOTEMPTY:
        return HPS_EXISTS;
    case ENOMEM:
        return HPS_NO_MEMORY;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EMFILE:
    case ENFILE:
        return HPS_EXHAUSTED;
    default:
        return HPS_IO;
    }
}

hps_status hps_file_error(struct hps_error *err, int error_number, const char *what,
                          const char *path)
{
    char text[128];

    HPS_ASSERT(error_number > 0 && path != NULL);
    /* The GNU variant may return a static string and leave `text` unchanged. */
    const char *reason = strerror_r(error_number, text, sizeof(text));
    return hps_error_set(err, hps_file_status(error_number), "%s %s: %s", what, path, reason);
}

hps_status hps_file_take_read(int fd, const char *path, uint64_t *out_bytes, struct hps_error *err)
{
    struct stat st;
    hps_status status = HPS_OK;

    HPS_ASSERT(fd >= 0);
    if (fstat(fd, &st) != 0) {
        status = hps_file_error(err, errno, "cannot stat", path);
    } else if (!S_ISREG(st.st_mode)) {
        status = hps_error_set(err, HPS_INVALID, "%s: not a regular file", path);
    }
    if (status != HPS_OK) {
        close(fd);
        return status;
    }
    /* Advice only: a failure affects speed alone. */
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    *out_bytes = (uint64_t)st.st_size;
    return HPS_OK;
}

hps_status hps_file_open_read(const char *path, int *out_fd, uint64_t *out_bytes,
                              struct hps_error *err)
{
    int fd = open(path, HPS_FILE_READ_FLAGS);
    if (fd < 0) {
        return hps_file_error(err, errno, "cannot open", path);
    }
    hps_status status = hps_file_take_read(fd, path, out_bytes, err);
    if (status == HPS_OK) {
        *out_fd = fd;
    }
    return status;
}

hps_status hps_file_pread(int fd, const char *path, void *data, size_t size, uint64_t offset,
                          struct hps_error *err)
{
    uint8_t *bytes = (uint8_t *)data;
    size_t done = 0;

    HPS_ASSERT(fd >= 0);
    while (done < size) {
        size_t n = size - done < CALL_BYTES_MAX ? size - done : CALL_BYTES_MAX;
        ssize_t got = pread(fd, bytes + done, n, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return hps_file_error(err, errno, "cannot read", path);
        }
        if (got == 0) {
            return hps_error_set(err, HPS_DATA_LOSS,
                                 "%s: ends at byte %" PRIu64 ", expected %zu more bytes", path,
                                 offset + done, size - done);
        }
        done += (size_t)got;
    }
    return HPS_OK;
}

hps_status hps_file_pwrite(int fd, const char *path, const void *data, size_t size, uint64_t offset,
                           struct hps_error *err)
{
    const uint8_t *bytes = (const uint8_t *)data;
    size_t done = 0;

    HPS_ASSERT(fd >= 0);
    while (done < size) {
        size_t n = size - done < CALL_BYTES_MAX ? size - done : CALL_BYTES_MAX;
        ssize_t put = pwrite(fd, bytes + done, n, (off_t)(offset + done));
        if (put < 0 && errno == EINTR) {
            continue;
        }
        if (put <= 0) {
            return hps_file_error(err, put < 0 ? errno : EIO, "cannot write", path);
        }
        done += (size_t)put;
    }
    return HPS_OK;
}

hps_status hps_file_copy(int from, int to, const char *path, uint64_t bytes,
                         const atomic_bool *cancel, uint32_t *out_crc, struct hps_error *err)
{
    uint8_t *piece = hps_alloc(PIECE_BYTES);
    uint32_t crc = 0;
    hps_status status =
        piece != NULL ? HPS_OK : hps_error_set(err, HPS_NO_MEMORY, "%s: no memory to read", path);
    for (uint64_t at = 0; at < bytes && status == HPS_OK;) {
        size_t n = bytes - at < PIECE_BYTES ? (size_t)(bytes - at) : PIECE_BYTES;
        if (cancel != NULL && atomic_load_explicit(cancel, memory_order_relaxed)) {
            status = hps_error_set(err, HPS_CANCELLED, "%s: cancelled", path);
            break;
        }
        status = hps_file_pread(from, path, piece, n, at, err);
        if (status == HPS_OK && to >= 0) {
            status = hps_file_pwrite(to, path, piece, n, at, err);
        }
        crc = status == HPS_OK ? hps_crc32c(crc, piece, n) : 0;
        at += n;
    }
    if (status == HPS_OK && to >= 0 && fsync(to) != 0) {
        status = hps_file_error(err, errno, "cannot sync", path);
    }
    hps_free(piece);
    if (status == HPS_OK) {
        *out_crc = crc;
    }
    return status;
}

/* Length of the directory part of `path` with its last slash; 0 without a slash. */
static size_t parent_size(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash == NULL ? 0 : (size_t)(slash - path) + 1;
}

hps_status hps_file_sync_parent(const char *path, struct hps_error *err)
{
    size_t n = parent_size(path);
    char *dir = n == 0 ? hps_strdup(".") : hps_strndup(path, n);

    if (dir == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "cannot sync the directory of %s", path);
    }
    hps_status status = HPS_OK;
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fsync(fd) != 0) {
        status = hps_file_error(err, errno, "cannot sync", dir);
    }
    if (fd >= 0) {
        close(fd);
    }
    hps_free(dir);
    return status;
}

char *hps_file_path(const char *fmt, ...)
{
    va_list args;
    va_list again;

    va_start(args, fmt);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    char *path = n < 0 ? NULL : hps_alloc((size_t)n + 1);
    if (path != NULL) {
        (void)vsnprintf(path, (size_t)n + 1, fmt, again);
    }
    va_end(again);
    return path;
}

char *hps_file_temp_name(const char *path)
{
    static atomic_uint counter;
    size_t n = parent_size(path);

    return hps_file_path("%.*s.%s.tmp-%ld-%u", (int)n, path, path + n, (long)getpid(),
                         atomic_fetch_add(&counter, 1));
}

hps_status hps_file_replace(const char *path, const void *data, size_t size, struct hps_error *err)
{
    char *temp = hps_file_temp_name(path);

    if (temp == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "cannot write %s", path);
    }
    hps_status status = HPS_OK;
    int fd = open(temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) {
        status = hps_file_error(err, errno, "cannot create", temp);
        hps_free(temp);
        return status;
    }
    status = hps_file_pwrite(fd, temp, data, size, 0, err);
    if (status == HPS_OK && fsync(fd) != 0) {
        status = hps_file_error(err, errno, "cannot sync", temp);
    }
    if (close(fd) != 0 && status == HPS_OK) {
        status = hps_file_error(err, errno, "cannot close", temp);
    }
    if (status == HPS_OK && rename(temp, path) != 0) {
        status = hps_file_error(err, errno, "cannot rename to", path);
    }
    if (status != HPS_OK) {
        (void)unlink(temp);
    } else {
        status = hps_file_sync_parent(path, err);
    }
    hps_free(temp);
    return status;
}
