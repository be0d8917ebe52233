/* SPDX-License-Identifier: Apache-2.0
 *
 * Writing a base: rows in the order of keys, in one sequential pass, then the bits and the
 * checksums. One thread per writer.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "backends/basefile/internal.h"
#include "base/assert.h"
#include "base/heap.h"
#include "base/rows/crc32c.h"
#include "base/rows/fileio.h"

enum {
    BUFFER_BYTES = 1 << 20,
    CACHED_BYTES = 8 << 20, /* of a file that is being written, in the page cache */
};

struct hps_basefile_writer {
    struct hps_basefile *base; /* its n and n_rows grow; NULL: finished */
    uint64_t n_max;            /* of keys in the range */
    const atomic_bool *cancel;
    int fd;
    uint8_t *buffer; /* [BUFFER_BYTES] */
    size_t used;     /* bytes in the buffer */
    uint64_t offset; /* in the file, of the buffer */
};

hps_status hps_basefile_writer_new(struct hps_basefile_store *store, const struct hps_table *table,
                                   hps_key first, uint64_t n_max, const atomic_bool *cancel,
                                   struct hps_basefile_writer **out_writer, struct hps_error *err)
{
    const struct hps_basefile_record record = {.format = HPS_BASEFILE_FORMAT,
                                               .number = atomic_fetch_add(&store->number, 1) + 1,
                                               .first = first};
    struct hps_basefile_writer *writer = hps_calloc(1, sizeof(*writer));
    if (writer == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "base file: no memory");
    }
    writer->n_max = n_max;
    writer->cancel = cancel;
    writer->fd = -1;
    writer->buffer = hps_alloc(BUFFER_BYTES);
    hps_status status =
        writer->buffer != NULL
            ? hps_basefile_base_new(store, &record, table, n_max, &writer->base, err)
            : hps_error_set(err, HPS_NO_MEMORY, "base file: no memory");
    if (status == HPS_OK) {
        writer->fd = openat(store->dir.fd, writer->base->name,
                            O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, HPS_BASEFILE_MODE);
        status = writer->fd >= 0 ? HPS_OK
                                 : hps_file_error(err, errno, "cannot create", writer->base->name);
    }
    if (status != HPS_OK) {
        hps_basefile_writer_free(writer);
        return status;
    }
    *out_writer = writer;
    return HPS_OK;
}

void hps_basefile_writer_free(struct hps_basefile_writer *writer)
{
    if (writer == NULL) {
        return;
    }
    if (writer->fd >= 0) {
        close(writer->fd);
    }
    if (writer->fd >= 0 && writer->base != NULL) {
        hps_basefile_base_remove(writer->base->store, writer->base->record.number);
    }
    hps_basefile_base_close(writer->base);
    hps_free(writer->buffer);
    hps_free(writer);
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* Wait until the file is on the disk up to `end`, and free its page cache, for files that are read.
 * Only this call reports an error of the disk, not the sync at the end. */
static hps_status uncache(const struct hps_basefile_writer *writer, uint64_t end,
                          struct hps_error *err)
{
    if (sync_file_range(writer->fd, 0, (off_t)end,
                        SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE |
                            SYNC_FILE_RANGE_WAIT_AFTER) != 0) {
        return errno == ENOSYS || errno == EINVAL || errno == ESPIPE
                   ? HPS_OK
                   : hps_file_error(err, errno, "cannot write", writer->base->name);
    }
    (void)posix_fadvise(writer->fd, 0, (off_t)end, POSIX_FADV_DONTNEED);
    return HPS_OK;
}

/* Write n bytes at the end of the file. */
static hps_status put(struct hps_basefile_writer *writer, const void *from, uint64_t n,
                      struct hps_error *err)
{
    struct hps_store *inner = writer->base->store->inner;
    if (writer->cancel != NULL && atomic_load(writer->cancel)) {
        return hps_error_set(err, HPS_CANCELLED, "base file: cancelled");
    }
    uint64_t bytes_free = inner->ops->durable->bytes_free(inner);
    if (bytes_free < n) {
        return hps_error_set(err, HPS_EXHAUSTED,
                             "base file %s: %" PRIu64 " bytes needed, %" PRIu64
                             " free above the kept ones (disk_free_min_bytes)",
                             writer->base->name, n, bytes_free);
    }
    hps_status status =
        hps_file_pwrite(writer->fd, writer->base->name, from, n, writer->offset, err);
    /* Begin to write to the disk, so that the sync at the end has little left to do. */
    (void)sync_file_range(writer->fd, (off_t)writer->offset, (off_t)n, SYNC_FILE_RANGE_WRITE);
    writer->offset += n;
    if (status == HPS_OK && writer->offset > CACHED_BYTES) {
        status = uncache(writer, writer->offset - CACHED_BYTES, err);
    }
    return status;
}

/* Write the buffer, which has whole pages. */
static hps_status flush(struct hps_basefile_writer *writer, struct hps_error *err)
{
    HPS_ASSERT(writer->used % HPS_BASEFILE_PAGE_BYTES == 0);
    uint32_t *sums = writer->base->sums + writer->offset / HPS_BASEFILE_PAGE_BYTES;
    for (size_t i = 0; i < writer->used / HPS_BASEFILE_PAGE_BYTES; i++) {
        sums[i] =
            hps_crc32c(0, writer->buffer + i * HPS_BASEFILE_PAGE_BYTES, HPS_BASEFILE_PAGE_BYTES);
    }
    hps_status status = put(writer, writer->buffer, writer->used, err);
    writer->used = 0;
    return status;
}

/* Append bytes; `from` NULL: zeros. */
static hps_status append(struct hps_basefile_writer *writer, const uint8_t *from, uint64_t size,
                         struct hps_error *err)
{
    hps_status status = HPS_OK;
    while (size > 0 && status == HPS_OK) {
        size_t part = BUFFER_BYTES - writer->used;
        part = size < part ? (size_t)size : part;
        if (from != NULL) {
            memcpy(writer->buffer + writer->used, from, part);
            from += part;
        } else {
            memset(writer->buffer + writer->used, 0, part);
        }
        writer->used += part;
        size -= part;
        status = writer->used == BUFFER_BYTES ? flush(writer, err) : HPS_OK;
    }
    return status;
}

/* Append holes, so that the range has n keys. */
static hps_status extend(struct hps_basefile_writer *writer, uint64_t n, struct hps_error *err)
{
    uint64_t holes = n - writer->base->record.n;
    writer->base->record.n = n;
    return append(writer, NULL, holes * writer->base->table->row_bytes, err);
}

bool hps_basefile_writer_takes(const struct hps_basefile_writer *writer, hps_key key)
{
    const struct hps_basefile_record *record = &writer->base->record;
    uint64_t i = key - record->first;
    uint64_t n_rows = record->n_rows + 1;
    return i >= record->n && i < writer->n_max &&
           i + 1 - n_rows <= n_rows / HPS_BASEFILE_HOLE_SHARE + HPS_BASEFILE_HOLES;
}

hps_status hps_basefile_writer_add(struct hps_basefile_writer *writer, hps_key key,
                                   const uint8_t *row, struct hps_error *err)
{
    struct hps_basefile *base = writer->base;
    uint64_t i = key - base->record.first;
    HPS_ASSERT(i >= base->record.n && i < writer->n_max);
    hps_status status = extend(writer, i, err);
    if (status == HPS_OK) {
        status = append(writer, row, base->table->row_bytes, err);
    }
    if (status == HPS_OK) {
        base->exists[i / 64] |= UINT64_C(1) << i % 64;
        base->record.n = i + 1;
        base->record.n_rows++;
    }
    return status;
}

/* ---- the end --------------------------------------------------------------------------------- */

/* Write the last page, the bits and the checksums, and sync the file. */
static hps_status end_write(struct hps_basefile_writer *writer, struct hps_error *err)
{
    struct hps_basefile *base = writer->base;
    uint64_t torn = writer->used % HPS_BASEFILE_PAGE_BYTES;
    hps_status status =
        torn != 0 ? append(writer, NULL, HPS_BASEFILE_PAGE_BYTES - torn, err) : HPS_OK;
    if (status == HPS_OK && writer->used > 0) {
        status = flush(writer, err);
    }
    uint64_t bits_bytes = hps_basefile_words(base->record.n) * sizeof(uint64_t);
    uint64_t sums_bytes = writer->offset / HPS_BASEFILE_PAGE_BYTES * sizeof(uint32_t);
    if (status == HPS_OK) {
        status = put(writer, base->exists, bits_bytes, err);
    }
    if (status == HPS_OK) {
        status = put(writer, base->sums, sums_bytes, err);
    }
    if (status != HPS_OK) {
        return status;
    }
    base->record.crc = hps_crc32c(hps_crc32c(0, base->exists, bits_bytes), base->sums, sums_bytes);
    return fsync(writer->fd) == 0 ? HPS_OK : hps_file_error(err, errno, "cannot sync", base->name);
}

hps_status hps_basefile_writer_finish(struct hps_basefile_writer *writer, uint64_t n_min,
                                      struct hps_basefile **out_base, struct hps_error *err)
{
    struct hps_basefile *base = writer->base;
    hps_status status = n_min > base->record.n ? extend(writer, n_min, err) : HPS_OK;
    if (status == HPS_OK) {
        status = end_write(writer, err);
    }
    if (status == HPS_OK) {
        status = hps_dir_sync(&base->store->dir, err);
    }
    if (status == HPS_OK) {
        status = hps_basefile_base_open(base, true, err);
    }
    if (status == HPS_OK) {
        *out_base = base;
        writer->base = NULL;
    }
    return status;
}
