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

enum { BUFFER_BYTES = 1 << 20 };

/* An array that grows, at first to the exact size. New items are zero. */
struct array {
    void *at;
    uint64_t bytes;
};

struct hps_basefile_writer {
    struct hps_basefile_store *store;
    struct hps_basefile_record record; /* n and n_rows grow */
    uint64_t n_min;                    /* of keys in the range, at the end */
    const struct hps_table *table;
    const atomic_bool *cancel;
    char name[HPS_BASEFILE_NAME_BYTES];
    int fd;
    bool finished;
    uint8_t *buffer;     /* [BUFFER_BYTES] */
    size_t used;         /* bytes in the buffer */
    uint64_t offset;     /* in the file, of the buffer */
    struct array exists; /* a bit per row */
    struct array sums;   /* a checksum per page */
};

static hps_status reserve(struct array *array, uint64_t bytes, struct hps_error *err)
{
    if (bytes <= array->bytes) {
        return HPS_OK;
    }
    uint64_t more = array->at == NULL ? bytes : bytes + bytes / 2 + 4096;
    uint8_t *grown = hps_realloc(array->at, more);
    if (grown == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "base file: no memory for checksums");
    }
    memset(grown + array->bytes, 0, more - array->bytes);
    array->at = grown;
    array->bytes = more;
    return HPS_OK;
}

hps_status hps_basefile_writer_new(struct hps_basefile_store *store, const struct hps_table *table,
                                   hps_key first, uint64_t n, const atomic_bool *cancel,
                                   struct hps_basefile_writer **out_writer, struct hps_error *err)
{
    struct hps_basefile_writer *writer = hps_calloc(1, sizeof(*writer));
    uint8_t *buffer = hps_alloc(BUFFER_BYTES);
    if (writer == NULL || buffer == NULL) {
        hps_free(writer);
        hps_free(buffer);
        return hps_error_set(err, HPS_NO_MEMORY, "base file: no memory");
    }
    writer->store = store;
    writer->n_min = n;
    writer->table = table;
    writer->cancel = cancel;
    writer->buffer = buffer;
    writer->record = (struct hps_basefile_record){.format = HPS_BASEFILE_FORMAT,
                                                  .number = atomic_fetch_add(&store->number, 1) + 1,
                                                  .first = first};
    hps_basefile_name(writer->name, writer->record.number);
    writer->fd = -1;
    hps_status status = reserve(&writer->exists, hps_basefile_words(n) * sizeof(uint64_t), err);
    if (status == HPS_OK) {
        status =
            reserve(&writer->sums, hps_basefile_pages(n, table->row_bytes) * sizeof(uint32_t), err);
    }
    if (status == HPS_OK) {
        writer->fd = openat(store->dir.fd, writer->name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
                            HPS_BASEFILE_MODE);
        status =
            writer->fd >= 0 ? HPS_OK : hps_file_error(err, errno, "cannot create", writer->name);
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
    if (writer->fd >= 0 && !writer->finished) {
        hps_basefile_base_remove(writer->store, writer->record.number);
    }
    hps_free(writer->buffer);
    hps_free(writer->exists.at);
    hps_free(writer->sums.at);
    hps_free(writer);
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* Write n bytes at the end of the file. */
static hps_status put(struct hps_basefile_writer *writer, const void *from, uint64_t n,
                      struct hps_error *err)
{
    struct hps_store *inner = writer->store->inner;
    if (writer->cancel != NULL && atomic_load(writer->cancel)) {
        return hps_error_set(err, HPS_CANCELLED, "base file: cancelled");
    }
    uint64_t bytes_free = inner->ops->durable->bytes_free(inner);
    if (bytes_free < n) {
        return hps_error_set(err, HPS_EXHAUSTED,
                             "base file %s: %" PRIu64 " bytes needed, %" PRIu64
                             " free above the kept ones (disk_free_min_bytes)",
                             writer->name, n, bytes_free);
    }
    hps_status status = hps_file_pwrite(writer->fd, writer->name, from, n, writer->offset, err);
    /* Begin to write to the disk, so that the sync at the end has little left to do. */
    (void)sync_file_range(writer->fd, (off_t)writer->offset, (off_t)n, SYNC_FILE_RANGE_WRITE);
    writer->offset += n;
    return status;
}

/* Write the buffer, which has whole pages. */
static hps_status flush(struct hps_basefile_writer *writer, struct hps_error *err)
{
    HPS_ASSERT(writer->used % HPS_BASEFILE_PAGE_BYTES == 0);
    uint64_t n_sums = writer->offset / HPS_BASEFILE_PAGE_BYTES;
    uint64_t n_pages = writer->used / HPS_BASEFILE_PAGE_BYTES;
    hps_status status = reserve(&writer->sums, (n_sums + n_pages) * sizeof(uint32_t), err);
    if (status != HPS_OK) {
        return status;
    }
    uint32_t *sums = (uint32_t *)writer->sums.at + n_sums;
    for (uint64_t i = 0; i < n_pages; i++) {
        sums[i] =
            hps_crc32c(0, writer->buffer + i * HPS_BASEFILE_PAGE_BYTES, HPS_BASEFILE_PAGE_BYTES);
    }
    status = put(writer, writer->buffer, writer->used, err);
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
    uint64_t holes = n - writer->record.n;
    writer->record.n = n;
    return append(writer, NULL, holes * writer->table->row_bytes, err);
}

bool hps_basefile_writer_takes(const struct hps_basefile_writer *writer, hps_key key)
{
    uint64_t i = key - writer->record.first;
    uint64_t n_rows = writer->record.n_rows + 1;
    return i >= writer->record.n && i < HPS_BASEFILE_NUMBER_MAX &&
           i + 1 - n_rows <= n_rows / HPS_BASEFILE_HOLE_SHARE + HPS_BASEFILE_HOLES;
}

hps_status hps_basefile_writer_add(struct hps_basefile_writer *writer, hps_key key,
                                   const uint8_t *row, struct hps_error *err)
{
    uint64_t i = key - writer->record.first;
    HPS_ASSERT(i >= writer->record.n && i < HPS_BASEFILE_NUMBER_MAX);
    hps_status status = reserve(&writer->exists, hps_basefile_words(i + 1) * sizeof(uint64_t), err);
    if (status == HPS_OK) {
        status = extend(writer, i, err);
    }
    if (status == HPS_OK) {
        status = append(writer, row, writer->table->row_bytes, err);
    }
    if (status == HPS_OK) {
        ((uint64_t *)writer->exists.at)[i / 64] |= UINT64_C(1) << i % 64;
        writer->record.n = i + 1;
        writer->record.n_rows++;
    }
    return status;
}

/* ---- the end --------------------------------------------------------------------------------- */

/* Write the last page, the bits and the checksums, and sync the file. */
static hps_status end_write(struct hps_basefile_writer *writer, struct hps_error *err)
{
    struct hps_basefile_record *record = &writer->record;
    uint64_t torn = writer->used % HPS_BASEFILE_PAGE_BYTES;
    hps_status status =
        torn != 0 ? append(writer, NULL, HPS_BASEFILE_PAGE_BYTES - torn, err) : HPS_OK;
    if (status == HPS_OK && writer->used > 0) {
        status = flush(writer, err);
    }
    uint64_t bits_bytes = hps_basefile_words(record->n) * sizeof(uint64_t);
    uint64_t sums_bytes = writer->offset / HPS_BASEFILE_PAGE_BYTES * sizeof(uint32_t);
    if (status == HPS_OK) {
        status = put(writer, writer->exists.at, bits_bytes, err);
    }
    if (status == HPS_OK) {
        status = put(writer, writer->sums.at, sums_bytes, err);
    }
    if (status != HPS_OK) {
        return status;
    }
    record->crc =
        hps_crc32c(hps_crc32c(0, writer->exists.at, bits_bytes), writer->sums.at, sums_bytes);
    return fsync(writer->fd) == 0 ? HPS_OK
                                  : hps_file_error(err, errno, "cannot sync", writer->name);
}

/* Take the array, without the memory that it does not need. */
static void *take(struct array *array, uint64_t bytes)
{
    void *at = hps_realloc(array->at, bytes);
    at = at != NULL ? at : array->at;
    *array = (struct array){0};
    return at;
}

hps_status hps_basefile_writer_finish(struct hps_basefile_writer *writer,
                                      struct hps_basefile **out_base, struct hps_error *err)
{
    struct hps_basefile_record *record = &writer->record;
    hps_status status = writer->n_min > record->n ? extend(writer, writer->n_min, err) : HPS_OK;
    if (status == HPS_OK) {
        status = end_write(writer, err);
    }
    if (status == HPS_OK) {
        status = hps_dir_sync(&writer->store->dir, err);
    }
    if (status == HPS_OK) {
        uint64_t n_pages = hps_basefile_pages(record->n, writer->table->row_bytes);
        status = hps_basefile_base_open(
            writer->store, record, writer->table,
            take(&writer->exists, hps_basefile_words(record->n) * sizeof(uint64_t)),
            take(&writer->sums, n_pages * sizeof(uint32_t)), out_base, err);
    }
    writer->finished = status == HPS_OK;
    return status;
}
