/* SPDX-License-Identifier: Apache-2.0
 *
 * Streaming writer of the rows of one table. Files grow under hidden temporary names and are
 * renamed when complete, so a reader never sees a partial file. See base/rows/rowfile.h.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/buf.h"
#include "base/heap.h"
#include "base/rows/fileio.h"
#include "base/rows/npy.h"
#include "base/rows/rowfile.h"
#include "base/rows/safetensors.h"

/* TENSORS_HEAD_BYTES: length and header of a safetensors file, padded by spaces. */
enum { BUFFER_BYTES = 1 << 20, KEY_BYTES = 8, TENSORS_HEAD_BYTES = 2048, TENSORS_NAME_MAX = 200 };

/* One growing file. Small writes are buffered, large ones are direct. */
struct sink {
    char *path;       /* path while it is written */
    char *path_final; /* final path; NULL: the directory is renamed instead */
    int fd;
    uint8_t *buffer;
    size_t used;
    uint64_t bytes;
};

struct hps_row_writer {
    struct hps_row_writer_options options;
    size_t row_bytes;
    uint64_t n_rows;
    char *path;
    char *dir_temp;   /* HUGECTR only */
    struct sink keys; /* not for NPY */
    struct sink rows;
    struct sink scales; /* of INT8 rows */
    struct sink biases; /* SAFETENSORS only; for other forms, `scales` has the biases */
};

static bool is_split(const struct hps_row_writer *writer)
{
    return hps_dtype_is_int8(writer->options.dtype);
}

static hps_status sink_open(struct sink *sink, char *path, char *path_final, struct hps_error *err)
{
    HPS_ASSERT(sink->fd < 0 && sink->buffer == NULL); /* not open yet */
    sink->path = path;
    sink->path_final = path_final;
    sink->buffer = hps_alloc(BUFFER_BYTES);
    if (path == NULL || sink->buffer == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory to write rows");
    }
    sink->fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (sink->fd < 0) {
        return hps_file_error(err, errno, "cannot create", path);
    }
    return HPS_OK;
}

static hps_status sink_flush(struct sink *sink, struct hps_error *err)
{
    HPS_ASSERT(sink->used <= BUFFER_BYTES);
    hps_status status =
        hps_file_pwrite(sink->fd, sink->path, sink->buffer, sink->used, sink->bytes, err);

    if (status == HPS_OK) {
        sink->bytes += sink->used;
        sink->used = 0;
    }
    return status;
}

static hps_status sink_append(struct sink *sink, const void *data, size_t size,
                              struct hps_error *err)
{
    bool direct = size > BUFFER_BYTES / 2;

    if (direct || size > BUFFER_BYTES - sink->used) {
        hps_status status = sink_flush(sink, err);
        if (status != HPS_OK) {
            return status;
        }
    }
    if (direct) {
        hps_status status = hps_file_pwrite(sink->fd, sink->path, data, size, sink->bytes, err);
        if (status == HPS_OK) {
            sink->bytes += size;
        }
        return status;
    }
    HPS_ASSERT(size <= BUFFER_BYTES - sink->used);
    memcpy(sink->buffer + sink->used, data, size);
    sink->used += size;
    return HPS_OK;
}

/* Flush and sync; `header` (may be NULL) replaces the first bytes. */
static hps_status sink_finish(struct sink *sink, const struct hps_npy *header,
                              struct hps_error *err)
{
    uint8_t bytes[HPS_NPY_HEADER_BYTES];

    hps_status status = sink_flush(sink, err);
    if (status == HPS_OK && header != NULL) {
        hps_npy_format(header, bytes);
        status = hps_file_pwrite(sink->fd, sink->path, bytes, sizeof(bytes), 0, err);
    }
    if (status == HPS_OK && fsync(sink->fd) != 0) {
        status = hps_file_error(err, errno, "cannot sync", sink->path);
    }
    HPS_ASSERT(status != HPS_OK || sink->used == 0);
    int fd = sink->fd;
    sink->fd = -1;
    if (close(fd) != 0 && status == HPS_OK) {
        status = hps_file_error(err, errno, "cannot close", sink->path);
    }
    return status;
}

static hps_status sink_rename(struct sink *sink, struct hps_error *err)
{
    HPS_ASSERT(sink->fd < 0 && sink->path != NULL && sink->path_final != NULL);
    if (rename(sink->path, sink->path_final) != 0) {
        return hps_file_error(err, errno, "cannot rename to", sink->path_final);
    }
    hps_free(sink->path);
    sink->path = NULL; /* nothing left to remove */
    return HPS_OK;
}

static void sink_fini(struct sink *sink)
{
    if (sink->fd >= 0) {
        close(sink->fd);
    }
    if (sink->path != NULL) {
        (void)unlink(sink->path); /* it may not exist yet */
    }
    hps_free(sink->path);
    hps_free(sink->path_final);
    hps_free(sink->buffer);
}

/* Open a .npy and reserve space for its header, which is written once the number of rows is known.
 */
static hps_status sink_open_npy(struct sink *sink, char *path_final, struct hps_error *err)
{
    static const uint8_t blank[HPS_NPY_HEADER_BYTES];

    char *path = path_final == NULL ? NULL : hps_file_temp_name(path_final);
    hps_status status = sink_open(sink, path, path_final, err);
    return status == HPS_OK ? sink_append(sink, blank, sizeof(blank), err) : status;
}

/* Open the files of rows: one, or two for INT8 rows. */
static hps_status open_rows(struct hps_row_writer *writer, struct hps_error *err)
{
    hps_status status = sink_open_npy(&writer->rows, hps_strdup(writer->path), err);

    if (status == HPS_OK && is_split(writer)) {
        status = sink_open_npy(&writer->scales, hps_row_scale_bias_path(writer->path), err);
    }
    return status;
}

static hps_status open_hugectr(struct hps_row_writer *writer, struct hps_error *err)
{
    struct stat st;

    if (lstat(writer->path, &st) == 0) {
        return hps_error_set(err, HPS_EXISTS, "%s: exists already", writer->path);
    }
    char *dir = hps_file_temp_name(writer->path);
    if (dir == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory to write %s", writer->path);
    }
    if (mkdir(dir, 0777) != 0) {
        hps_status status = hps_file_error(err, errno, "cannot create", dir);
        hps_free(dir);
        return status;
    }
    writer->dir_temp = dir;
    hps_status status = sink_open(&writer->keys, hps_file_path("%s/key", dir), NULL, err);
    if (status == HPS_OK) {
        status = sink_open(&writer->rows, hps_file_path("%s/emb_vector", dir), NULL, err);
    }
    return status;
}

static hps_status open_pair(struct hps_row_writer *writer, struct hps_error *err)
{
    static const char tail[] = ".rows.npy";
    size_t n = strlen(writer->path);

    if (n <= sizeof(tail) - 1 || strcmp(writer->path + n - (sizeof(tail) - 1), tail) != 0) {
        return hps_error_set(err, HPS_INVALID, "%s: expected a name that ends in %s", writer->path,
                             tail);
    }
    char *keys = hps_file_path("%.*s.keys.npy", (int)(n - (sizeof(tail) - 1)), writer->path);
    hps_status status = sink_open_npy(&writer->keys, keys, err);
    return status == HPS_OK ? open_rows(writer, err) : status;
}

/* Rows are written behind the space for the header. Keys, scales and biases are written to files
 * without a final name, and appended at the end. */
static hps_status open_tensors(struct hps_row_writer *writer, struct hps_error *err)
{
    static const uint8_t blank[TENSORS_HEAD_BYTES];
    struct sink *beside[] = {&writer->keys, &writer->scales, &writer->biases};
    const char *slash = strrchr(writer->path, '/');
    const char *name = slash != NULL ? slash + 1 : writer->path;

    if (!hps_safetensors_is_path(name) || strlen(name) > TENSORS_NAME_MAX ||
        strpbrk(name, "\"\\:") != NULL) {
        return hps_error_set(err, HPS_INVALID,
                             "%s: expected a short name that ends in .safetensors", writer->path);
    }
    hps_status status =
        sink_open(&writer->rows, hps_file_temp_name(writer->path), hps_strdup(writer->path), err);
    if (status == HPS_OK && writer->rows.path_final == NULL) {
        status = hps_error_set(err, HPS_NO_MEMORY, "no memory to write %s", writer->path);
    }
    if (status == HPS_OK) {
        status = sink_append(&writer->rows, blank, sizeof(blank), err);
    }
    for (size_t i = 0; i < (is_split(writer) ? 3 : 1) && status == HPS_OK; i++) {
        status = sink_open(beside[i], hps_file_temp_name(writer->path), NULL, err);
    }
    return status;
}

hps_status hps_row_writer_open(const char *path, const struct hps_row_writer_options *options,
                               struct hps_row_writer **out_writer, struct hps_error *err)
{
    HPS_ASSERT(options->form != HPS_ROW_FORM_AUTO);
    if (options->dim == 0 || options->dim > HPS_ROW_DIM_MAX) {
        return hps_error_set(err, HPS_INVALID, "%s: %" PRIu32 " values per row, expected 1 to %d",
                             path, options->dim, HPS_ROW_DIM_MAX);
    }
    if (!hps_dtype_is_stored(options->dtype) ||
        (options->dtype != HPS_DTYPE_FP32 && options->form == HPS_ROW_FORM_HUGECTR)) {
        return hps_error_set(err, HPS_INVALID, "%s: rows of %s cannot be written as %s", path,
                             hps_dtype_name(options->dtype), hps_row_form_text(options->form));
    }
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') {
        n--;
    }
    struct hps_row_writer *writer = hps_calloc(1, sizeof(*writer));
    if (writer == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory to write %s", path);
    }
    writer->options = *options;
    writer->row_bytes = (size_t)hps_dtype_row_bytes(options->dtype, options->dim);
    writer->keys.fd = -1;
    writer->rows.fd = -1;
    writer->scales.fd = -1;
    writer->biases.fd = -1;
    writer->path = hps_strndup(path, n);
    hps_status status;
    if (writer->path == NULL) {
        status = hps_error_set(err, HPS_NO_MEMORY, "no memory to write %s", path);
    } else if (options->form == HPS_ROW_FORM_HUGECTR) {
        status = open_hugectr(writer, err);
    } else if (options->form == HPS_ROW_FORM_NPY) {
        status = open_rows(writer, err);
    } else if (options->form == HPS_ROW_FORM_SAFETENSORS) {
        status = open_tensors(writer, err);
    } else {
        status = open_pair(writer, err);
    }
    if (status != HPS_OK) {
        hps_row_writer_abort(writer);
        return status;
    }
    *out_writer = writer;
    return HPS_OK;
}

static hps_status append_rows(struct hps_row_writer *writer, const uint8_t *rows, size_t n,
                              struct hps_error *err)
{
    size_t dim = writer->options.dim;
    hps_status status = HPS_OK;

    if (!is_split(writer)) {
        return sink_append(&writer->rows, rows, n * writer->row_bytes, err);
    }
    for (size_t i = 0; status == HPS_OK && i < n; i++) {
        const uint8_t *row = rows + i * writer->row_bytes;

        status = sink_append(&writer->rows, row, dim, err);
        size_t width = writer->row_bytes - dim;
        if (status == HPS_OK && writer->biases.fd >= 0) {
            width /= 2;
            status = sink_append(&writer->biases, row + dim + width, width, err);
        }
        if (status == HPS_OK) {
            status = sink_append(&writer->scales, row + dim, width, err);
        }
    }
    return status;
}

hps_status hps_row_writer_append(struct hps_row_writer *writer, const hps_key *keys,
                                 const void *rows, size_t n, struct hps_error *err)
{
    hps_status status = HPS_OK;

    if (writer->options.form == HPS_ROW_FORM_NPY) {
        for (size_t i = 0; i < n; i++) {
            if (keys[i] != writer->n_rows + i) {
                return hps_error_set(err, HPS_INVALID,
                                     "%s: key %" PRIu64 " cannot be row %" PRIu64
                                     ": in this form the row number is the key",
                                     writer->path, keys[i], writer->n_rows + i);
            }
        }
    } else {
        status = sink_append(&writer->keys, keys, n * KEY_BYTES, err);
    }
    if (status == HPS_OK) {
        status = append_rows(writer, rows, n, err);
    }
    if (status == HPS_OK) {
        writer->n_rows += n;
    }
    return status;
}

static enum hps_npy_type npy_type(enum hps_dtype dtype)
{
    switch (dtype) {
    case HPS_DTYPE_FP32:
        return HPS_NPY_F4;
    case HPS_DTYPE_FP16:
        return HPS_NPY_F2;
    case HPS_DTYPE_BF16:
        return HPS_NPY_U2;
    default:
        HPS_ASSERT(hps_dtype_is_int8(dtype));
        return HPS_NPY_U1;
    }
}

/* Append one file to another. */
static hps_status sink_append_sink(struct sink *to, struct sink *from, struct hps_error *err)
{
    hps_status status = sink_flush(from, err);

    for (uint64_t at = 0; status == HPS_OK && at < from->bytes;) {
        uint64_t left = from->bytes - at;
        size_t n = left < BUFFER_BYTES / 2 ? (size_t)left : BUFFER_BYTES / 2;
        status = hps_file_pread(from->fd, from->path, from->buffer, n, at, err);
        if (status == HPS_OK) {
            status = sink_append(to, from->buffer, n, err);
        }
        at += n;
    }
    return status;
}

/* Append the description of a tensor, and copy its data, which begin at offset *at. */
static hps_status add_tensor(struct hps_row_writer *writer, struct hps_buf *head, const char *tail,
                             const char *type, struct sink *from, uint64_t row_bytes, uint64_t *at,
                             struct hps_error *err)
{
    const char *slash = strrchr(writer->path, '/');
    const char *name = slash != NULL ? slash + 1 : writer->path;
    uint64_t end = *at + writer->n_rows * row_bytes;

    hps_buf_putf(head, "%s\"%.*s%s\":{\"dtype\":\"%s\",\"shape\":[%" PRIu64,
                 head->size == 0 ? "{" : ",", (int)(strlen(name) - strlen(".safetensors")), name,
                 tail, type, writer->n_rows);
    if (from == &writer->rows) {
        hps_buf_putf(head, ",%" PRIu32, writer->options.dim);
    }
    hps_buf_putf(head, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", *at, end);
    *at = end;
    return from == &writer->rows ? HPS_OK : sink_append_sink(&writer->rows, from, err);
}

static hps_status finish_tensors(struct hps_row_writer *writer, struct hps_error *err)
{
    static const char *const types[] = {[HPS_DTYPE_FP32] = "F32",
                                        [HPS_DTYPE_FP16] = "F16",
                                        [HPS_DTYPE_BF16] = "BF16",
                                        [HPS_DTYPE_INT8_ROWWISE_F32] = "U8",
                                        [HPS_DTYPE_INT8_ROWWISE_F16] = "U8"};
    enum hps_dtype dtype = writer->options.dtype;
    const char *of_scales = dtype == HPS_DTYPE_INT8_ROWWISE_F32 ? "F32" : "F16";
    size_t width = (writer->row_bytes - writer->options.dim) / 2; /* of scales, if is_split */
    size_t row_bytes = is_split(writer) ? writer->options.dim : writer->row_bytes;
    char file_head[TENSORS_HEAD_BYTES];
    struct hps_buf head;
    uint64_t at = 0, size = TENSORS_HEAD_BYTES - sizeof(uint64_t);

    hps_buf_init(&head, TENSORS_HEAD_BYTES);
    hps_status status =
        add_tensor(writer, &head, "", types[dtype], &writer->rows, row_bytes, &at, err);
    if (status == HPS_OK) {
        status = add_tensor(writer, &head, ".keys", "I64", &writer->keys, KEY_BYTES, &at, err);
    }
    if (status == HPS_OK && is_split(writer)) {
        status = add_tensor(writer, &head, ".scale", of_scales, &writer->scales, width, &at, err);
    }
    if (status == HPS_OK && is_split(writer)) {
        status = add_tensor(writer, &head, ".bias", of_scales, &writer->biases, width, &at, err);
    }
    hps_buf_put(&head, "}");
    if (status == HPS_OK && head.status != HPS_OK) {
        status = hps_error_set(err, head.status, "no memory to write %s", writer->path);
    }
    if (status == HPS_OK) {
        HPS_ASSERT(head.size <= size);
        memset(file_head, ' ', sizeof(file_head));
        memcpy(file_head, &size, sizeof(size));
        memcpy(file_head + sizeof(size), head.data, head.size);
        status = sink_flush(&writer->rows, err); /* also the space for the header */
    }
    if (status == HPS_OK) {
        status = hps_file_pwrite(writer->rows.fd, writer->rows.path, file_head, sizeof(file_head),
                                 0, err);
    }
    hps_buf_fini(&head);
    return status == HPS_OK ? sink_finish(&writer->rows, NULL, err) : status;
}

static hps_status finish_files(struct hps_row_writer *writer, struct hps_error *err)
{
    const struct hps_row_writer_options *options = &writer->options;
    bool is_f32 = options->dtype == HPS_DTYPE_INT8_ROWWISE_F32;
    struct hps_npy rows = {
        .type = npy_type(options->dtype), .n_dims = 2, .shape = {writer->n_rows, options->dim}};
    struct hps_npy scales = {
        .type = is_f32 ? HPS_NPY_F4 : HPS_NPY_F2, .n_dims = 2, .shape = {writer->n_rows, 2}};
    struct hps_npy keys = {.type = HPS_NPY_I8, .n_dims = 1, .shape = {writer->n_rows, 0}};
    bool is_npy = options->form != HPS_ROW_FORM_HUGECTR;

    hps_status status = sink_finish(&writer->rows, is_npy ? &rows : NULL, err);
    if (status == HPS_OK && is_split(writer)) {
        status = sink_finish(&writer->scales, &scales, err);
    }
    if (status == HPS_OK && options->form != HPS_ROW_FORM_NPY) {
        status = sink_finish(&writer->keys, is_npy ? &keys : NULL, err);
    }
    return status;
}

/* Rename keys and scales first: without rows they are an error to a reader. New keys or scales with
 * old rows of the same number would be silently wrong, so the old rows file is removed before
 * either. */
static hps_status rename_files(struct hps_row_writer *writer, struct hps_error *err)
{
    struct sink *beside[] = {&writer->keys, &writer->scales};
    hps_status status = HPS_OK;

    for (size_t i = 0; i < sizeof(beside) / sizeof(beside[0]) && status == HPS_OK; i++) {
        if (beside[i]->path_final == NULL) {
            continue;
        }
        if (unlink(writer->rows.path_final) != 0 && errno != ENOENT) {
            return hps_file_error(err, errno, "cannot replace", writer->rows.path_final);
        }
        status = sink_rename(beside[i], err);
    }
    return status == HPS_OK ? sink_rename(&writer->rows, err) : status;
}

static hps_status rename_dir(struct hps_row_writer *writer, struct hps_error *err)
{
    hps_status status = hps_file_sync_parent(writer->rows.path, err);

    if (status != HPS_OK) {
        return status;
    }
    if (rename(writer->dir_temp, writer->path) != 0) {
        return hps_file_error(err, errno, "cannot rename to", writer->path);
    }
    hps_free(writer->rows.path);
    hps_free(writer->keys.path);
    hps_free(writer->dir_temp);
    writer->rows.path = NULL;
    writer->keys.path = NULL;
    writer->dir_temp = NULL;
    return HPS_OK;
}

hps_status hps_row_writer_close(struct hps_row_writer *writer, struct hps_error *err)
{
    hps_status status = writer->options.form == HPS_ROW_FORM_SAFETENSORS
                            ? finish_tensors(writer, err)
                            : finish_files(writer, err);

    if (status == HPS_OK) {
        bool is_dir = writer->options.form == HPS_ROW_FORM_HUGECTR;
        status = is_dir ? rename_dir(writer, err) : rename_files(writer, err);
    }
    if (status == HPS_OK) {
        status = hps_file_sync_parent(writer->path, err);
    }
    hps_row_writer_abort(writer); /* removes files that were not renamed */
    return status;
}

void hps_row_writer_abort(struct hps_row_writer *writer)
{
    if (writer == NULL) {
        return;
    }
    sink_fini(&writer->keys);
    sink_fini(&writer->rows);
    sink_fini(&writer->scales);
    sink_fini(&writer->biases);
    if (writer->dir_temp != NULL) {
        (void)rmdir(writer->dir_temp);
        hps_free(writer->dir_temp);
    }
    hps_free(writer->path);
    hps_free(writer);
}
