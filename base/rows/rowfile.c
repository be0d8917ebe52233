/* SPDX-License-Identifier: Apache-2.0
 *
 * Streaming reader of the rows of one table. See base/rows/rowfile.h; the writer is
 * base/rows/rowwrite.c.
 */
#include "base/rows/rowfile.h"

#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/heap.h"
#include "base/rows/fileio.h"
#include "base/rows/finite.h"
#include "base/rows/npy.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files hold little-endian values");

enum { SCAN_KEYS = 32768, KEY_BYTES = 8 };

struct hps_row_reader {
    struct hps_row_desc desc;
    char *keys_path; /* NULL: the row number is the key */
    char *rows_path;
    int keys_fd;
    int rows_fd;
    uint64_t keys_offset;
    uint64_t rows_offset;
    uint64_t row; /* next one to read */
    uint32_t key_bytes;
    bool nan_allowed;
};

const char *hps_row_form_text(enum hps_row_form form)
{
    switch (form) {
    case HPS_ROW_FORM_HUGECTR:
        return "hugectr";
    case HPS_ROW_FORM_NPY:
        return "npy";
    case HPS_ROW_FORM_NPY_PAIR:
        return "npy-pair";
    default:
        return "auto";
    }
}

static bool ends_with(const char *text, const char *tail)
{
    size_t n = strlen(text);
    size_t n_tail = strlen(tail);

    return n >= n_tail && strcmp(text + n - n_tail, tail) == 0;
}

static hps_status detect_form(const char *path, const struct hps_roots *roots,
                              enum hps_row_form *out_form, struct hps_error *err)
{
    struct stat st;

    hps_status status = hps_roots_stat(roots, path, &st, err);
    if (status != HPS_OK) {
        return status;
    }
    if (S_ISDIR(st.st_mode)) {
        *out_form = HPS_ROW_FORM_HUGECTR;
    } else if (ends_with(path, ".rows.npy") || ends_with(path, ".keys.npy")) {
        *out_form = HPS_ROW_FORM_NPY_PAIR;
    } else {
        *out_form = HPS_ROW_FORM_NPY;
    }
    return HPS_OK;
}

static hps_status make_paths(struct hps_row_reader *reader, const char *path, struct hps_error *err)
{
    size_t n = strlen(path);

    switch (reader->desc.form) {
    case HPS_ROW_FORM_HUGECTR:
        reader->keys_path = hps_file_path("%s/key", path);
        reader->rows_path = hps_file_path("%s/emb_vector", path);
        break;
    case HPS_ROW_FORM_NPY:
        reader->rows_path = hps_strdup(path);
        break;
    default:
        if (!ends_with(path, ".rows.npy") && !ends_with(path, ".keys.npy")) {
            return hps_error_set(err, HPS_INVALID,
                                 "%s: expected the name of a pair, *.rows.npy or *.keys.npy", path);
        }
        HPS_ASSERT(n >= 9); /* of the ending */
        reader->keys_path = hps_file_path("%.*s.keys.npy", (int)(n - 9), path);
        reader->rows_path = hps_file_path("%.*s.rows.npy", (int)(n - 9), path);
        break;
    }
    if (reader->rows_path == NULL ||
        (reader->keys_path == NULL && reader->desc.form != HPS_ROW_FORM_NPY)) {
        return hps_error_set(err, HPS_NO_MEMORY, "%s: no memory to open it", path);
    }
    return HPS_OK;
}

/* Read and check the header of one .npy file whose size is `bytes`. */
static hps_status read_npy(int fd, const char *path, uint64_t bytes, struct hps_npy *out_npy,
                           struct hps_error *err)
{
    size_t size = HPS_NPY_HEADER_BYTES_MAX + 12;

    if (bytes < size) {
        size = (size_t)bytes;
    }
    uint8_t *head = hps_alloc(size);
    if (head == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "%s: no memory for its header", path);
    }
    hps_status status = hps_file_pread(fd, path, head, size, 0, err);
    if (status == HPS_OK) {
        status = hps_npy_parse(head, size, out_npy, err);
        if (status != HPS_OK) {
            hps_error_prefix(err, status, "%s", path);
        }
    }
    hps_free(head);
    if (status == HPS_OK && bytes != out_npy->data_offset + out_npy->data_bytes) {
        status = hps_error_set(err, HPS_INVALID,
                               "%s: %" PRIu64 " bytes, expected %" PRIu64
                               " for its shape (data begin at byte %" PRIu64 ")",
                               path, bytes, out_npy->data_offset + out_npy->data_bytes,
                               out_npy->data_offset);
    }
    return status;
}

static hps_status check_dim(const struct hps_row_reader *reader, uint64_t dim,
                            uint32_t dim_expected, struct hps_error *err)
{
    if (dim == 0 || dim > HPS_ROW_DIM_MAX) {
        return hps_error_set(err, HPS_INVALID, "%s: %" PRIu64 " values per row, expected 1 to %d",
                             reader->rows_path, dim, HPS_ROW_DIM_MAX);
    }
    if (dim_expected != 0 && dim != dim_expected) {
        return hps_error_set(err, HPS_INVALID, "%s: %" PRIu64 " values per row, expected %" PRIu32,
                             reader->rows_path, dim, dim_expected);
    }
    return HPS_OK;
}

static hps_status open_npy_rows(struct hps_row_reader *reader,
                                const struct hps_row_options *options, struct hps_error *err)
{
    struct hps_npy npy;
    uint64_t bytes = 0;

    hps_status status =
        hps_roots_open_read(options->roots, reader->rows_path, &reader->rows_fd, &bytes, err);
    if (status == HPS_OK) {
        status = read_npy(reader->rows_fd, reader->rows_path, bytes, &npy, err);
    }
    if (status != HPS_OK) {
        return status;
    }
    if (npy.n_dims != 2) {
        return hps_error_set(err, HPS_INVALID,
                             "%s: an array of 1 dimension, expected 2: [rows, dim]",
                             reader->rows_path);
    }
    if (npy.type != HPS_NPY_F4 && npy.type != HPS_NPY_F2) {
        return hps_error_set(err, HPS_INVALID,
                             "%s: rows of 64-bit integers, expected float32 or float16",
                             reader->rows_path);
    }
    status = check_dim(reader, npy.shape[1], options->dim, err);
    if (status != HPS_OK) {
        return status;
    }
    reader->rows_offset = npy.data_offset;
    reader->desc.n_rows = npy.shape[0];
    reader->desc.dim = (uint32_t)npy.shape[1];
    reader->desc.dtype = npy.type == HPS_NPY_F4 ? HPS_DTYPE_FP32 : HPS_DTYPE_FP16;
    reader->desc.bytes += bytes;
    return HPS_OK;
}

static hps_status open_npy_keys(struct hps_row_reader *reader,
                                const struct hps_row_options *options, struct hps_error *err)
{
    struct hps_npy npy;
    uint64_t bytes = 0;

    hps_status status =
        hps_roots_open_read(options->roots, reader->keys_path, &reader->keys_fd, &bytes, err);
    if (status == HPS_OK) {
        status = read_npy(reader->keys_fd, reader->keys_path, bytes, &npy, err);
    }
    if (status != HPS_OK) {
        return status;
    }
    if (npy.n_dims != 1 || (npy.type != HPS_NPY_I8 && npy.type != HPS_NPY_U8)) {
        return hps_error_set(err, HPS_INVALID,
                             "%s: expected an array of 1 dimension of int64 or uint64",
                             reader->keys_path);
    }
    if (npy.shape[0] != reader->desc.n_rows) {
        return hps_error_set(
            err, HPS_INVALID, "%s: %" PRIu64 " keys, expected %" PRIu64 " as rows in %s",
            reader->keys_path, npy.shape[0], reader->desc.n_rows, reader->rows_path);
    }
    reader->keys_offset = npy.data_offset;
    reader->desc.bytes += bytes;
    return HPS_OK;
}

static hps_status open_hugectr(struct hps_row_reader *reader, const struct hps_row_options *options,
                               struct hps_error *err)
{
    uint64_t keys_bytes = 0;
    uint64_t rows_bytes = 0;

    hps_status status =
        hps_roots_open_read(options->roots, reader->keys_path, &reader->keys_fd, &keys_bytes, err);
    if (status == HPS_OK) {
        status = hps_roots_open_read(options->roots, reader->rows_path, &reader->rows_fd,
                                     &rows_bytes, err);
    }
    if (status != HPS_OK) {
        return status;
    }
    if (keys_bytes % KEY_BYTES != 0) {
        return hps_error_set(err, HPS_INVALID,
                             "%s: %" PRIu64 " bytes, expected a multiple of 8 (int64 keys); the "
                             "last whole key ends at byte %" PRIu64,
                             reader->keys_path, keys_bytes, keys_bytes - keys_bytes % KEY_BYTES);
    }
    uint64_t n_rows = keys_bytes / KEY_BYTES;
    uint64_t dim = options->dim;
    if (dim == 0) {
        if (n_rows == 0 || rows_bytes % (n_rows * 4) != 0) {
            return hps_error_set(err, HPS_INVALID,
                                 "%s: %" PRIu64 " bytes, expected a multiple of 4 x %" PRIu64
                                 " rows (keys in %s)",
                                 reader->rows_path, rows_bytes, n_rows, reader->keys_path);
        }
        dim = rows_bytes / (n_rows * 4);
    }
    status = check_dim(reader, dim, options->dim, err);
    if (status != HPS_OK) {
        return status;
    }
    uint64_t row_bytes = dim * 4;
    if (rows_bytes % row_bytes != 0 || rows_bytes / row_bytes != n_rows) {
        return hps_error_set(err, HPS_INVALID,
                             "%s: %" PRIu64 " bytes, expected %" PRIu64 " rows x %" PRIu64
                             " values x 4 bytes (%" PRIu64 " keys in %s)",
                             reader->rows_path, rows_bytes, n_rows, dim, n_rows, reader->keys_path);
    }
    reader->desc.n_rows = n_rows;
    reader->desc.dim = (uint32_t)dim;
    reader->desc.dtype = HPS_DTYPE_FP32;
    reader->desc.bytes = keys_bytes + rows_bytes;
    return HPS_OK;
}

static hps_status open_files(struct hps_row_reader *reader, const char *path,
                             const struct hps_row_options *options, struct hps_error *err)
{
    hps_status status = make_paths(reader, path, err);

    if (status != HPS_OK) {
        return status;
    }
    switch (reader->desc.form) {
    case HPS_ROW_FORM_HUGECTR:
        return open_hugectr(reader, options, err);
    case HPS_ROW_FORM_NPY:
        status = open_npy_rows(reader, options, err);
        break;
    default:
        status = open_npy_rows(reader, options, err);
        if (status == HPS_OK) {
            status = open_npy_keys(reader, options, err);
        }
        return status;
    }
    if (status == HPS_OK && reader->key_bytes == 4 && reader->desc.n_rows > UINT64_C(1) << 32) {
        status = hps_error_set(err, HPS_INVALID,
                               "%s: %" PRIu64 " rows, expected at most 2^32 with 32-bit keys",
                               reader->rows_path, reader->desc.n_rows);
    }
    reader->desc.sorted_unique = true;
    return status;
}

hps_status hps_row_reader_open(const char *path, const struct hps_row_options *options,
                               struct hps_row_reader **out_reader, struct hps_error *err)
{
    HPS_ASSERT(options->key_bytes == 0 || options->key_bytes == 4 ||
               options->key_bytes == KEY_BYTES);
    enum hps_row_form form = options->form;
    if (form == HPS_ROW_FORM_AUTO) {
        hps_status status = detect_form(path, options->roots, &form, err);
        if (status != HPS_OK) {
            return status;
        }
    }
    struct hps_row_reader *reader = hps_calloc(1, sizeof(*reader));
    if (reader == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "%s: no memory to open it", path);
    }
    reader->keys_fd = -1;
    reader->rows_fd = -1;
    reader->desc.form = form;
    reader->key_bytes = options->key_bytes == 4 ? 4 : KEY_BYTES;
    reader->nan_allowed = options->nan_allowed;
    hps_status status = open_files(reader, path, options, err);
    if (status != HPS_OK) {
        hps_row_reader_close(reader);
        return status;
    }
    *out_reader = reader;
    return HPS_OK;
}

void hps_row_reader_close(struct hps_row_reader *reader)
{
    if (reader == NULL) {
        return;
    }
    if (reader->keys_fd >= 0) {
        close(reader->keys_fd);
    }
    if (reader->rows_fd >= 0) {
        close(reader->rows_fd);
    }
    hps_free(reader->keys_path);
    hps_free(reader->rows_path);
    hps_free(reader);
}

const struct hps_row_desc *hps_row_reader_desc(const struct hps_row_reader *reader)
{
    return &reader->desc;
}

void hps_row_reader_rewind(struct hps_row_reader *reader)
{
    reader->row = 0;
}

/* Fill keys[n] from row number `row` on. */
static hps_status read_keys(const struct hps_row_reader *reader, uint64_t row, size_t n,
                            hps_key *keys, struct hps_error *err)
{
    HPS_ASSERT(row + n <= reader->desc.n_rows);
    if (reader->keys_path == NULL) {
        for (size_t i = 0; i < n; i++) {
            keys[i] = row + i;
        }
        return HPS_OK;
    }
    hps_status status = hps_file_pread(reader->keys_fd, reader->keys_path, keys, n * KEY_BYTES,
                                       reader->keys_offset + row * KEY_BYTES, err);
    if (status == HPS_OK && reader->key_bytes == 4) {
        for (size_t i = 0; i < n; i++) {
            keys[i] = (uint32_t)keys[i];
        }
    }
    return status;
}

static hps_status check_nan(const struct hps_row_reader *reader, const uint8_t *rows,
                            const hps_key *keys, size_t n, struct hps_error *err)
{
    HPS_ASSERT(reader->desc.dim > 0 && reader->row + n <= reader->desc.n_rows);
    uint32_t dim = reader->desc.dim;
    enum hps_dtype dtype = reader->desc.dtype;
    uint32_t at = 0;
    size_t i = reader->nan_allowed ? n : hps_first_not_finite(dtype, rows, dim, n, &at);

    if (i == n) {
        return HPS_OK;
    }
    uint64_t row = reader->row + i;
    uint64_t offset = reader->rows_offset + row * hps_dtype_row_bytes(dtype, dim) +
                      hps_dtype_value_offset(dtype, dim, at);
    return hps_error_set(
        err, HPS_INVALID,
        "%s: NaN or Inf at byte %" PRIu64 ": row %" PRIu64 " (key %" PRId64 "), %s",
        reader->rows_path, offset, row, (int64_t)keys[i], hps_value_name(dim, at).text);
}

hps_status hps_row_reader_next(struct hps_row_reader *reader, size_t max_rows, hps_key *keys,
                               void *rows, size_t *out_n, struct hps_error *err)
{
    HPS_ASSERT(reader->row <= reader->desc.n_rows);
    uint64_t left = reader->desc.n_rows - reader->row;
    size_t n = left < max_rows ? (size_t)left : max_rows;
    size_t row_bytes = hps_dtype_row_bytes(reader->desc.dtype, reader->desc.dim);

    HPS_ASSERT(max_rows > 0);
    hps_status status = read_keys(reader, reader->row, n, keys, err);
    if (status == HPS_OK) {
        status = hps_file_pread(reader->rows_fd, reader->rows_path, rows, n * row_bytes,
                                reader->rows_offset + reader->row * row_bytes, err);
    }
    if (status == HPS_OK) {
        status = check_nan(reader, rows, keys, n, err);
    }
    if (status != HPS_OK) {
        return status;
    }
    reader->row += n;
    *out_n = n;
    return HPS_OK;
}

hps_status hps_row_reader_scan_keys(struct hps_row_reader *reader, struct hps_error *err)
{
    if (reader->desc.sorted_unique) {
        return HPS_OK;
    }
    hps_key *keys = hps_alloc(SCAN_KEYS * sizeof(*keys));
    if (keys == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "%s: no memory to read it", reader->keys_path);
    }
    hps_status status = HPS_OK;
    bool ascends = true;
    hps_key last = 0;
    for (uint64_t row = 0; ascends && row < reader->desc.n_rows;) {
        uint64_t left = reader->desc.n_rows - row;
        size_t n = left < SCAN_KEYS ? (size_t)left : SCAN_KEYS;

        status = read_keys(reader, row, n, keys, err);
        if (status != HPS_OK) {
            break;
        }
        ascends = row == 0 || last < keys[0];
        for (size_t i = 1; i < n && ascends; i++) {
            ascends = keys[i - 1] < keys[i];
        }
        last = keys[n - 1];
        row += n;
    }
    hps_free(keys);
    if (status == HPS_OK) {
        reader->desc.sorted_unique = ascends;
    }
    return status;
}
