/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds, opens and checks the files of one table for a reader. See base/rows/rowfile.h. Rows are
 * read in base/rows/rowread.c; the writer is base/rows/rowwrite.c.
 */
#include "base/rows/rowfile.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/heap.h"
#include "base/rows/fileio.h"
#include "base/rows/npy.h"
#include "base/rows/rowfile_internal.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files hold little-endian values");

enum { KEY_BYTES = ROWFILE_KEY_BYTES };

const char *hps_row_form_text(enum hps_row_form form)
{
    switch (form) {
    case HPS_ROW_FORM_HUGECTR:
        return "hugectr";
    case HPS_ROW_FORM_NPY:
        return "npy";
    case HPS_ROW_FORM_NPY_PAIR:
        return "npy-pair";
    case HPS_ROW_FORM_SAFETENSORS:
        return "safetensors";
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

char *hps_row_scale_bias_path(const char *rows_path)
{
    static const char *const tails[] = {".rows.npy", ".npy"};
    size_t n = strlen(rows_path);

    for (size_t i = 0; i < sizeof(tails) / sizeof(tails[0]); i++) {
        if (ends_with(rows_path, tails[i])) {
            n -= strlen(tails[i]);
            break;
        }
    }
    return hps_file_path("%.*s.scale_bias.npy", (int)n, rows_path);
}

static hps_status detect_form(const char *path, const struct hps_roots *roots,
                              enum hps_row_form *out_form, struct hps_error *err)
{
    struct stat st;

    if (hps_safetensors_is_path(path)) {
        *out_form = HPS_ROW_FORM_SAFETENSORS;
        return HPS_OK;
    }
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

static hps_status make_paths(struct hps_row_reader *reader, const char *path,
                             const struct hps_roots *roots, struct hps_error *err)
{
    size_t n = strlen(path);

    switch (reader->desc.form) {
    case HPS_ROW_FORM_SAFETENSORS:
        return rowtensor_begin(reader, path, roots, err);
    case HPS_ROW_FORM_HUGECTR:
        reader->keys.path = hps_file_path("%s/key", path);
        reader->rows.path = hps_file_path("%s/emb_vector", path);
        break;
    case HPS_ROW_FORM_NPY:
        reader->rows.path = hps_strdup(path);
        break;
    default:
        if (!ends_with(path, ".rows.npy") && !ends_with(path, ".keys.npy")) {
            return hps_error_set(err, HPS_INVALID,
                                 "%s: expected the name of a pair, *.rows.npy or *.keys.npy", path);
        }
        HPS_ASSERT(n >= 9); /* length of the ending */
        reader->keys.path = hps_file_path("%.*s.keys.npy", (int)(n - 9), path);
        reader->rows.path = hps_file_path("%.*s.rows.npy", (int)(n - 9), path);
        break;
    }
    if (reader->rows.path == NULL ||
        (reader->keys.path == NULL && reader->desc.form != HPS_ROW_FORM_NPY)) {
        return hps_error_set(err, HPS_NO_MEMORY, "%s: no memory to open it", path);
    }
    return HPS_OK;
}

/* Open one file of the table. */
static hps_status open_part(struct rowfile_part *part, const struct hps_row_options *options,
                            uint64_t *out_bytes, struct hps_error *err)
{
    HPS_ASSERT(part->path != NULL && part->fd < 0);
    return hps_roots_open_read(options->roots, part->path, &part->fd, out_bytes, err);
}

/* The same for a .npy or a tensor; reads and checks its header. */
static hps_status open_npy(struct hps_row_reader *reader, struct rowfile_part *part,
                           const struct hps_row_options *options, struct hps_npy *out_npy,
                           struct hps_error *err)
{
    size_t size = HPS_NPY_HEADER_BYTES_MAX + 12;
    uint64_t bytes = 0;

    if (reader->set.head != NULL) {
        return rowtensor_open(reader, part, out_npy, err);
    }
    hps_status status = open_part(part, options, &bytes, err);
    if (status != HPS_OK) {
        return status;
    }
    if (bytes < size) {
        size = (size_t)bytes;
    }
    uint8_t *head = hps_alloc(size);
    if (head == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "%s: no memory for its header", part->path);
    }
    status = hps_file_pread(part->fd, part->path, head, size, 0, err);
    if (status == HPS_OK) {
        status = hps_npy_parse(head, size, out_npy, err);
        if (status != HPS_OK) {
            hps_error_prefix(err, status, "%s", part->path);
        }
    }
    hps_free(head);
    if (status == HPS_OK && bytes != out_npy->data_offset + out_npy->data_bytes) {
        status = hps_error_set(err, HPS_INVALID,
                               "%s: %" PRIu64 " bytes, expected %" PRIu64
                               " for its shape (data begin at byte %" PRIu64 ")",
                               part->path, bytes, out_npy->data_offset + out_npy->data_bytes,
                               out_npy->data_offset);
    }
    if (status == HPS_OK) {
        part->offset = out_npy->data_offset;
    }
    return status;
}

static hps_status check_dim(const struct hps_row_reader *reader, uint64_t dim,
                            uint32_t dim_expected, struct hps_error *err)
{
    if (dim == 0 || dim > HPS_ROW_DIM_MAX) {
        return hps_error_set(err, HPS_INVALID, "%s: %" PRIu64 " values per row, expected 1 to %d",
                             reader->rows.path, dim, HPS_ROW_DIM_MAX);
    }
    if (dim_expected != 0 && dim != dim_expected) {
        return hps_error_set(err, HPS_INVALID, "%s: %" PRIu64 " values per row, expected %" PRIu32,
                             reader->rows.path, dim, dim_expected);
    }
    return HPS_OK;
}

/* uint16 and two bytes without a type are bfloat16 only where the options say so. */
static bool means_bf16(const struct hps_row_options *options)
{
    return options->dtype == HPS_DTYPE_BF16 ||
           (options->dtype == 0 && options->row_dtype == HPS_DTYPE_BF16);
}

/* Check the type and shape of scales or biases: [rows, width]. */
static hps_status check_scales(const struct hps_row_reader *reader, const struct rowfile_part *part,
                               const struct hps_npy *npy, uint32_t width, struct hps_error *err)
{
    uint64_t columns = npy->n_dims == 2 ? npy->shape[1] : 1;

    if (columns != width || (npy->type != HPS_NPY_F4 && npy->type != HPS_NPY_F2)) {
        return hps_error_set(err, HPS_INVALID,
                             width == 2 ? "%s: expected an array [rows, 2] of float32 or float16: "
                                          "the scale and the bias of each row"
                                        : "%s: expected a tensor [rows] of F32 or F16",
                             part->path);
    }
    if (npy->shape[0] != reader->desc.n_rows) {
        return hps_error_set(err, HPS_INVALID,
                             "%s: scales of %" PRIu64 " rows, expected %" PRIu64 " as in %s",
                             part->path, npy->shape[0], reader->desc.n_rows, reader->rows.path);
    }
    return HPS_OK;
}

/* Open the scales and biases of INT8 rows; their type decides the type of the rows. */
static hps_status open_scales(struct hps_row_reader *reader, const struct hps_row_options *options,
                              struct hps_error *err)
{
    struct hps_npy npy, bias;
    bool is_split = reader->biases.path != NULL;

    if (reader->scales.path == NULL) {
        reader->scales.path = hps_row_scale_bias_path(reader->rows.path);
    }
    if (reader->scales.path == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "%s: no memory to open it", reader->rows.path);
    }
    hps_status status = open_npy(reader, &reader->scales, options, &npy, err);
    if (status == HPS_OK && is_split) {
        status = open_npy(reader, &reader->biases, options, &bias, err);
    }
    if (status != HPS_OK) {
        return hps_error_prefix(err, status, "rows of uint8 need their scales and biases");
    }
    status = check_scales(reader, &reader->scales, &npy, is_split ? 1 : 2, err);
    if (status == HPS_OK && is_split) {
        status = check_scales(reader, &reader->biases, &bias, 1, err);
    }
    if (status == HPS_OK && is_split && bias.type != npy.type) {
        status = hps_error_set(err, HPS_INVALID, "%s: expected the type of %s", reader->biases.path,
                               reader->scales.path);
    }
    reader->scales_type = npy.type;
    reader->desc.file_dtype = npy.type == HPS_NPY_F4 || reader->is_signed
                                  ? HPS_DTYPE_INT8_ROWWISE_F32
                                  : HPS_DTYPE_INT8_ROWWISE_F16;
    return status;
}

/* Set desc's file_dtype from the type of the array of rows. */
static hps_status take_type(struct hps_row_reader *reader, const struct hps_row_options *options,
                            enum hps_npy_type type, struct hps_error *err)
{
    switch (type) {
    case HPS_NPY_F4:
        reader->desc.file_dtype = HPS_DTYPE_FP32;
        return HPS_OK;
    case HPS_NPY_F2:
        reader->desc.file_dtype = HPS_DTYPE_FP16;
        return HPS_OK;
    case HPS_NPY_I1:
        if (reader->desc.form != HPS_ROW_FORM_SAFETENSORS) {
            return hps_error_set(
                err, HPS_INVALID,
                "%s: rows of int8, expected uint8 (value * scale + bias), float32, "
                "float16 or bfloat16",
                reader->rows.path);
        }
        reader->is_signed = true;
        return open_scales(reader, options, err);
    case HPS_NPY_U1:
        return open_scales(reader, options, err);
    case HPS_NPY_BF16:
        reader->desc.file_dtype = HPS_DTYPE_BF16;
        return HPS_OK;
    case HPS_NPY_U2:
    case HPS_NPY_V2:
        if (means_bf16(options)) {
            reader->desc.file_dtype = HPS_DTYPE_BF16;
            return HPS_OK;
        }
        return hps_error_set(err, HPS_INVALID,
                             "%s: rows of %s, which are bf16 only where manifest.json says "
                             "\"dtype\": \"bf16\" or row_dtype is bf16; expected that, or float32, "
                             "float16 or uint8",
                             reader->rows.path,
                             type == HPS_NPY_U2 ? "uint16" : "two bytes without a type (<V2)");
    default:
        return hps_error_set(err, HPS_INVALID,
                             "%s: rows of %u-bit integers, expected float32, float16, uint8 or "
                             "uint16 or <V2 (bf16)",
                             reader->rows.path, 8 * hps_npy_type_bytes(type));
    }
}

static hps_status open_npy_rows(struct hps_row_reader *reader,
                                const struct hps_row_options *options, struct hps_error *err)
{
    struct hps_npy npy;

    hps_status status = open_npy(reader, &reader->rows, options, &npy, err);
    if (status != HPS_OK) {
        return status;
    }
    if (npy.n_dims != 2) {
        return hps_error_set(err, HPS_INVALID,
                             "%s: an array of 1 dimension, expected 2: [rows, dim]",
                             reader->rows.path);
    }
    reader->desc.n_rows = npy.shape[0];
    status = take_type(reader, options, npy.type, err);
    if (status == HPS_OK) {
        status = check_dim(reader, npy.shape[1], options->dim, err);
    }
    if (status == HPS_OK) {
        reader->desc.dim = (uint32_t)npy.shape[1];
    }
    return status;
}

static hps_status open_npy_keys(struct hps_row_reader *reader,
                                const struct hps_row_options *options, struct hps_error *err)
{
    struct hps_npy npy;

    hps_status status = open_npy(reader, &reader->keys, options, &npy, err);
    if (status != HPS_OK) {
        return status;
    }
    if (!hps_npy_is_keys(&npy)) {
        return hps_error_set(err, HPS_INVALID,
                             "%s: expected an array of 1 dimension of int64, uint64, int32 or "
                             "uint32",
                             reader->keys.path);
    }
    reader->keys_type = npy.type;
    if (npy.shape[0] != reader->desc.n_rows) {
        return hps_error_set(
            err, HPS_INVALID, "%s: %" PRIu64 " keys, expected %" PRIu64 " as rows in %s",
            reader->keys.path, npy.shape[0], reader->desc.n_rows, reader->rows.path);
    }
    return HPS_OK;
}

/* Whether the sizes fit keys of 4 bytes. Without a known width (dim 0) only an odd number of keys
 * shows it. */
static bool has_narrow_keys(uint64_t keys_bytes, uint64_t rows_bytes, uint64_t dim)
{
    uint64_t n = keys_bytes / 4;
    if (n == 0 || keys_bytes % 4 != 0) {
        return false;
    }
    return dim != 0 ? rows_bytes / (4 * dim) == n && rows_bytes % (4 * dim) == 0
                    : n % 2 != 0 && rows_bytes % (4 * n) == 0;
}

/* With a known width, an even number of keys of 4 bytes can also be int64 keys of rows that are
 * twice as wide. */
static hps_status refuse_narrow_keys(const struct hps_row_reader *reader, uint64_t keys_bytes,
                                     uint64_t dim, struct hps_error *err)
{
    char other[128] = "";
    if (dim != 0 && keys_bytes % KEY_BYTES == 0) {
        (void)snprintf(other, sizeof(other),
                       "; or the keys are int64, and the rows have %" PRIu64
                       " values, expected %" PRIu64,
                       2 * dim, dim);
    }
    return hps_error_set(err, HPS_INVALID,
                         "%s: %" PRIu64 " bytes look like %" PRIu64
                         " keys of 4 bytes, expected int64 keys; write them as numpy.int64, also "
                         "where supportlonglong is false%s",
                         reader->keys.path, keys_bytes, keys_bytes / 4, other);
}

static hps_status open_hugectr(struct hps_row_reader *reader, const struct hps_row_options *options,
                               struct hps_error *err)
{
    uint64_t keys_bytes = 0;
    uint64_t rows_bytes = 0;

    hps_status status = open_part(&reader->keys, options, &keys_bytes, err);
    if (status == HPS_OK) {
        status = open_part(&reader->rows, options, &rows_bytes, err);
    }
    if (status != HPS_OK) {
        return status;
    }
    if (has_narrow_keys(keys_bytes, rows_bytes, options->dim)) {
        return refuse_narrow_keys(reader, keys_bytes, options->dim, err);
    }
    if (keys_bytes % KEY_BYTES != 0) {
        return hps_error_set(err, HPS_INVALID,
                             "%s: %" PRIu64 " bytes, expected a multiple of 8 (int64 keys); the "
                             "last whole key ends at byte %" PRIu64,
                             reader->keys.path, keys_bytes, keys_bytes - keys_bytes % KEY_BYTES);
    }
    uint64_t n_rows = keys_bytes / KEY_BYTES;
    uint64_t dim = options->dim;
    if (dim == 0) {
        if (n_rows == 0 || rows_bytes % (n_rows * 4) != 0) {
            return hps_error_set(err, HPS_INVALID,
                                 "%s: %" PRIu64 " bytes, expected a multiple of 4 x %" PRIu64
                                 " rows (keys in %s)",
                                 reader->rows.path, rows_bytes, n_rows, reader->keys.path);
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
                             reader->rows.path, rows_bytes, n_rows, dim, n_rows, reader->keys.path);
    }
    reader->desc.n_rows = n_rows;
    reader->desc.dim = (uint32_t)dim;
    reader->desc.file_dtype = HPS_DTYPE_FP32;
    return HPS_OK;
}

static hps_status open_files(struct hps_row_reader *reader, const char *path,
                             const struct hps_row_options *options, struct hps_error *err)
{
    hps_status status = make_paths(reader, path, options->roots, err);

    if (status != HPS_OK) {
        return status;
    }
    if (reader->desc.form == HPS_ROW_FORM_HUGECTR) {
        return open_hugectr(reader, options, err);
    }
    status = open_npy_rows(reader, options, err);
    if (reader->keys.path != NULL) {
        return status == HPS_OK ? open_npy_keys(reader, options, err) : status;
    }
    if (status == HPS_OK && reader->key_bytes == 4 && reader->desc.n_rows > UINT64_C(1) << 32) {
        status = hps_error_set(err, HPS_INVALID,
                               "%s: %" PRIu64 " rows, expected at most 2^32 with 32-bit keys",
                               reader->rows.path, reader->desc.n_rows);
    }
    reader->desc.sorted_unique = true;
    return status;
}

/* Set the type to read rows as. A second quantisation would add an error to the first. */
static hps_status take_row_dtype(struct hps_row_reader *reader, enum hps_dtype wanted,
                                 struct hps_error *err)
{
    enum hps_dtype given = reader->desc.file_dtype;

    HPS_ASSERT(wanted == 0 || hps_dtype_is_stored(wanted));
    if (wanted != 0 && wanted != given && hps_dtype_is_int8(given)) {
        return hps_error_set(err, HPS_INVALID,
                             "%s: rows are already quantised as %s, but row_dtype is %s; expected "
                             "no row_dtype, or %s, or files that are not quantised",
                             reader->rows.path, hps_dtype_name(given), hps_dtype_name(wanted),
                             hps_dtype_name(given));
    }
    reader->desc.dtype = wanted != 0 ? wanted : given;
    return HPS_OK;
}

static void close_part(struct rowfile_part *part)
{
    if (part->fd >= 0) {
        close(part->fd);
    }
    hps_free(part->path);
    *part = (struct rowfile_part){.fd = -1};
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
    reader->keys.fd = -1;
    reader->rows.fd = -1;
    reader->scales.fd = -1;
    reader->biases.fd = -1;
    reader->desc.form = form;
    reader->keys_type = HPS_NPY_I8;
    reader->key_bytes = options->key_bytes == 4 ? 4 : KEY_BYTES;
    reader->nan_allowed = options->nan_allowed;
    hps_status status = open_files(reader, path, options, err);
    hps_safetensors_close(&reader->set);
    if (status == HPS_OK && !hps_dtype_is_int8(reader->desc.file_dtype)) {
        close_part(&reader->scales); /* paths of tensors that only INT8 rows need */
        close_part(&reader->biases);
    }
    if (status == HPS_OK) {
        status = take_row_dtype(reader, options->row_dtype, err);
    }
    if (status == HPS_OK) {
        status = rowread_begin(reader, err);
    }
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
    rowread_end(reader);
    close_part(&reader->keys);
    close_part(&reader->rows);
    close_part(&reader->scales);
    close_part(&reader->biases);
    hps_free(reader);
}

const struct hps_row_desc *hps_row_reader_desc(const struct hps_row_reader *reader)
{
    return &reader->desc;
}
