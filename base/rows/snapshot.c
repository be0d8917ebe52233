/* SPDX-License-Identifier: Apache-2.0
 *
 * Creates the files of a snapshot: see snapshot.h. snapshot_restore.c restores one.
 */
#include "base/rows/snapshot.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/heap.h"
#include "base/rows/crc32c.h"
#include "base/rows/dir.h"
#include "base/rows/fileio.h"
#include "base/rows/snapshot_format.h"

static hps_status no_memory(struct hps_error *err)
{
    return hps_error_set(err, HPS_NO_MEMORY, "no memory for a snapshot");
}

static hps_status refuse_entry(void *ctx, const struct hps_dir *dir, const char *name,
                               struct hps_error *err)
{
    (void)ctx;
    return hps_error_set(err, HPS_EXISTS, "%s is not empty: it has \"%.200s\"", dir->path, name);
}

hps_status hps_snapshot_begin(const char *path, struct hps_error *err)
{
    struct hps_dir dir = {.fd = -1};
    if (mkdir(path, 0750) != 0 && errno != EEXIST) {
        return hps_file_error(err, errno, "cannot make", path);
    }
    hps_status status = hps_dir_open(path, &dir, err);
    if (status == HPS_OK) {
        status = hps_dir_each(&dir, refuse_entry, NULL, err);
    }
    hps_dir_close(&dir);
    return status;
}

struct listing {
    const atomic_bool *cancel;
    struct hps_buf text;
    struct hps_snapshot_report report;
};

/* Add a file, with its present size and checksum, to the list. */
static hps_status list_entry(void *ctx, const struct hps_dir *dir, const char *name,
                             struct hps_error *err)
{
    struct listing *listing = ctx;
    uint64_t bytes = 0;
    uint32_t crc = 0;
    int fd = -1;
    hps_status status = hps_dir_open_file(dir, name, O_RDONLY, &fd, err);
    if (status == HPS_OK) {
        status = hps_file_take_read(fd, name, &bytes, err);
    }
    if (status != HPS_OK) {
        return hps_error_prefix(err, status, "%.200s of a snapshot", name);
    }
    status = hps_file_copy(fd, -1, name, bytes, listing->cancel, &crc, err);
    close(fd);
    if (status != HPS_OK) {
        return status;
    }
    listing->report.n_files++;
    listing->report.n_bytes += bytes;
    return hps_buf_printf(&listing->text, SNAPSHOT_FILE_WORD "%" PRIu64 " %08" PRIx32 " %s\n",
                          bytes, crc, name) == HPS_OK
               ? HPS_OK
               : no_memory(err);
}

static hps_status list_end(struct hps_buf *text, struct hps_error *err)
{
    uint32_t crc = hps_crc32c(0, text->data, text->size);
    return hps_buf_printf(text, SNAPSHOT_END_WORD "%08" PRIx32 "\n", crc) == HPS_OK
               ? HPS_OK
               : no_memory(err);
}

static hps_status list_files(struct listing *listing, const struct hps_dir *files,
                             const char *version, uint64_t unix_ms, struct hps_error *err)
{
    hps_status status =
        hps_buf_printf(&listing->text, SNAPSHOT_FORMAT_WORD "%d\nhpsd %s\ncreated %" PRIu64 "\n",
                       HPS_SNAPSHOT_FORMAT, version, unix_ms) == HPS_OK
            ? hps_dir_each(files, list_entry, listing, err)
            : no_memory(err);
    return status == HPS_OK ? list_end(&listing->text, err) : status;
}

hps_status hps_snapshot_finish(const char *path, const char *version, uint64_t unix_ms,
                               const atomic_bool *cancel, struct hps_snapshot_report *out_report,
                               struct hps_error *err)
{
    char *list = hps_file_path("%s/" SNAPSHOT_LIST_NAME, path);
    struct hps_dir dir = {.fd = -1}, files = {.fd = -1};
    struct listing listing = {.cancel = cancel, .report = {.verified = true}};
    hps_buf_init(&listing.text, SNAPSHOT_LIST_BYTES_MAX);
    hps_status status = list != NULL ? hps_dir_open(path, &dir, err) : no_memory(err);
    if (status == HPS_OK) {
        status = hps_dir_open_in(&dir, "hpsd", false, &files, err);
    }
    if (status == HPS_OK) {
        status = list_files(&listing, &files, version, unix_ms, err);
    }
    if (status == HPS_OK) {
        status = hps_file_replace(list, listing.text.data, listing.text.size, err);
    }
    if (status == HPS_OK) {
        status = hps_file_sync_parent(path, err);
    }
    if (status == HPS_OK) {
        *out_report = listing.report;
    }
    hps_dir_close(&files);
    hps_dir_close(&dir);
    hps_buf_fini(&listing.text);
    hps_free(list);
    return status;
}
