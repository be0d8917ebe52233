/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads the rows of one table: checks them, combines the two files of INT8 rows, and converts them.
 * See base/rows/rowfile.h.
 */
#include <inttypes.h>
#include <string.h>

#include "base/assert.h"
#include "base/half.h"
#include "base/heap.h"
#include "base/rows/fileio.h"
#include "base/rows/finite.h"
#include "base/rows/rowfile_internal.h"

enum { SCAN_KEYS = 32768, PIECE_BYTES = 256 << 10 };

static uint64_t file_row_bytes(const struct hps_row_reader *reader)
{
    return hps_dtype_row_bytes(reader->desc.file_dtype, reader->desc.dim);
}

static bool converts(const struct hps_row_reader *reader)
{
    return reader->convert != NULL;
}

hps_status rowread_begin(struct hps_row_reader *reader, struct hps_error *err)
{
    const struct hps_row_desc *desc = &reader->desc;
    bool is_split = reader->scales.path != NULL;

    HPS_ASSERT(!is_split || desc->dtype == desc->file_dtype);
    if (desc->dtype == desc->file_dtype && !is_split) {
        return HPS_OK;
    }
    size_t row_bytes = (size_t)file_row_bytes(reader);
    reader->piece_rows = PIECE_BYTES / row_bytes + 1;
    reader->piece = hps_alloc(reader->piece_rows * row_bytes);
    bool good = reader->piece != NULL;
    if (desc->dtype != desc->file_dtype) {
        bool by_way = desc->dtype != HPS_DTYPE_FP32 && desc->file_dtype != HPS_DTYPE_FP32;
        reader->convert =
            hps_row_converter(desc->dtype, by_way ? HPS_DTYPE_FP32 : desc->file_dtype, false);
        if (by_way) {
            reader->widen = hps_row_converter(HPS_DTYPE_FP32, desc->file_dtype, false);
            reader->wide = hps_alloc(desc->dim * sizeof(*reader->wide));
            good = good && reader->wide != NULL;
        }
    }
    return good ? HPS_OK
                : hps_error_set(err, HPS_NO_MEMORY, "%s: no memory to read it", reader->rows.path);
}

void rowread_end(struct hps_row_reader *reader)
{
    hps_free(reader->piece);
    hps_free(reader->wide);
}

void hps_row_reader_rewind(struct hps_row_reader *reader)
{
    reader->row = 0;
    reader->loss = (struct hps_row_loss){0};
}

const struct hps_row_loss *hps_row_reader_loss(const struct hps_row_reader *reader)
{
    return &reader->loss;
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* Fill keys[n] from row number `row` on. */
static hps_status read_keys(const struct hps_row_reader *reader, uint64_t row, size_t n,
                            hps_key *keys, struct hps_error *err)
{
    HPS_ASSERT(row + n <= reader->desc.n_rows);
    if (reader->keys.path == NULL) {
        for (size_t i = 0; i < n; i++) {
            keys[i] = row + i;
        }
        return HPS_OK;
    }
    uint64_t key_bytes = hps_npy_type_bytes(reader->keys_type);
    hps_status status = hps_file_pread(reader->keys.fd, reader->keys.path, keys, n * key_bytes,
                                       reader->keys.offset + row * key_bytes, err);
    if (status == HPS_OK) {
        hps_npy_widen_keys(reader->keys_type, keys, n);
    }
    if (status == HPS_OK && reader->key_bytes == 4) {
        hps_keys_narrow(keys, n);
    }
    return status;
}

hps_status hps_row_reader_scan_keys(struct hps_row_reader *reader, struct hps_error *err)
{
    if (reader->desc.sorted_unique) {
        return HPS_OK;
    }
    hps_key *keys = hps_alloc(SCAN_KEYS * sizeof(*keys));
    if (keys == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "%s: no memory to read it", reader->keys.path);
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

/* ---- rows ------------------------------------------------------------------------------------ */

/* Shift signed values by 128, and the bias so that value * scale + bias stays the same. */
static void make_unsigned(uint8_t *values, size_t dim, float scale, float *bias)
{
    for (size_t i = 0; i < dim; i++) {
        values[i] ^= 0x80;
    }
    *bias -= 128 * scale;
}

/* Read the scales and biases of n INT8 rows from two arrays. The values are in `piece`. */
static hps_status read_split(struct hps_row_reader *reader, uint64_t row, size_t n, uint8_t *rows,
                             struct hps_error *err)
{
    size_t row_bytes = (size_t)file_row_bytes(reader);
    size_t dim = reader->desc.dim;
    size_t width = hps_npy_type_bytes(reader->scales_type);
    uint8_t *scales = reader->piece + n * dim;
    uint8_t *biases = scales + n * width;

    hps_status status = hps_file_pread(reader->scales.fd, reader->scales.path, scales, n * width,
                                       reader->scales.offset + row * width, err);
    if (status == HPS_OK) {
        status = hps_file_pread(reader->biases.fd, reader->biases.path, biases, n * width,
                                reader->biases.offset + row * width, err);
    }
    for (size_t i = 0; status == HPS_OK && i < n; i++) {
        uint8_t *to = rows + i * row_bytes;
        memcpy(to, reader->piece + i * dim, dim);
        if (!reader->is_signed) {
            memcpy(to + dim, scales + i * width, width);
            memcpy(to + dim + width, biases + i * width, width);
            continue;
        }
        float pair[2];
        HPS_ASSERT(row_bytes == dim + sizeof(pair));
        if (width == sizeof(float)) {
            memcpy(&pair[0], scales + i * width, width);
            memcpy(&pair[1], biases + i * width, width);
        } else {
            uint16_t half[2];
            memcpy(&half[0], scales + i * width, width);
            memcpy(&half[1], biases + i * width, width);
            pair[0] = hps_float_of_fp16(half[0]);
            pair[1] = hps_float_of_fp16(half[1]);
        }
        make_unsigned(to, dim, pair[0], &pair[1]);
        memcpy(to + dim, pair, sizeof(pair));
    }
    return status;
}

/* Read n rows as the files have them, from row number `row` on. INT8 rows are in several arrays. */
static hps_status read_stored(struct hps_row_reader *reader, uint64_t row, size_t n, uint8_t *rows,
                              struct hps_error *err)
{
    size_t row_bytes = (size_t)file_row_bytes(reader);
    size_t dim = reader->desc.dim;
    size_t scale_bytes = row_bytes - dim;

    if (reader->scales.path == NULL) {
        return hps_file_pread(reader->rows.fd, reader->rows.path, rows, n * row_bytes,
                              reader->rows.offset + row * row_bytes, err);
    }
    HPS_ASSERT(n <= reader->piece_rows);
    uint8_t *scales = reader->piece + n * dim;
    hps_status status = hps_file_pread(reader->rows.fd, reader->rows.path, reader->piece, n * dim,
                                       reader->rows.offset + row * dim, err);
    if (status == HPS_OK && reader->biases.path != NULL) {
        return read_split(reader, row, n, rows, err);
    }
    if (status == HPS_OK) {
        status = hps_file_pread(reader->scales.fd, reader->scales.path, scales, n * scale_bytes,
                                reader->scales.offset + row * scale_bytes, err);
    }
    for (size_t i = 0; status == HPS_OK && i < n; i++) {
        memcpy(rows + i * row_bytes, reader->piece + i * dim, dim);
        memcpy(rows + i * row_bytes + dim, scales + i * scale_bytes, scale_bytes);
    }
    return status;
}

/* "NaN or Inf at byte 4711: row 3 (key 12), value 1". `at`: as from hps_first_not_finite */
static hps_status refuse_not_finite(const struct hps_row_reader *reader, uint64_t row, hps_key key,
                                    uint32_t at, struct hps_error *err)
{
    const struct hps_value_name name = hps_value_name(reader->desc.dim, at);
    uint32_t dim = reader->desc.dim;
    bool is_split = reader->scales.path != NULL;
    bool is_scale = is_split && at >= dim;
    bool has_biases = reader->biases.path != NULL;
    const struct rowfile_part *part = !is_scale                ? &reader->rows
                                      : has_biases && at > dim ? &reader->biases
                                                               : &reader->scales;
    uint64_t row_bytes = !is_split     ? file_row_bytes(reader)
                         : !is_scale   ? dim
                         : !has_biases ? file_row_bytes(reader) - dim
                                       : hps_npy_type_bytes(reader->scales_type);
    uint64_t offset = part->offset + row * row_bytes;
    if (!is_scale || !has_biases) {
        offset += hps_dtype_value_offset(reader->desc.file_dtype, dim, at) - (is_scale ? dim : 0);
    }

    return hps_error_set(err, HPS_INVALID,
                         "%s: NaN or Inf at byte %" PRIu64 ": row %" PRIu64 " (key %" PRId64
                         "), %s",
                         part->path, offset, row, (int64_t)key, name.text);
}

static hps_status check_finite(const struct hps_row_reader *reader, uint64_t row, size_t n,
                               const hps_key *keys, const uint8_t *rows, struct hps_error *err)
{
    uint32_t at = 0;

    if (hps_may_be_not_finite(reader->desc.file_dtype, reader->nan_allowed)) {
        return HPS_OK;
    }
    size_t i = hps_first_not_finite(reader->desc.file_dtype, rows, reader->desc.dim, n, &at);
    return i == n ? HPS_OK : refuse_not_finite(reader, row + i, keys[i], at, err);
}

/* Check that the dtype can hold FP32 rows. FP16 and BF16 may have infinities if NaNs are allowed;
 * INT8 rows never may. */
static hps_status check_fits(const struct hps_row_reader *reader, uint64_t row, hps_key key,
                             const uint8_t *values, struct hps_error *err)
{
    enum hps_dtype dtype = reader->desc.dtype;
    uint32_t at = 0;
    float value;

    if (dtype == HPS_DTYPE_FP32 || hps_may_be_not_finite(dtype, reader->nan_allowed) ||
        hps_row_fits(values, dtype, reader->desc.dim, &at)) {
        return HPS_OK;
    }
    memcpy(&value, values + (size_t)at * sizeof(value), sizeof(value));
    return hps_error_set(
        err, HPS_INVALID,
        "%s: %g in row %" PRIu64 " (key %" PRId64 "), value %" PRIu32
        ", does not fit %s; choose a row_dtype that can hold it, or change the row",
        reader->rows.path, (double)value, row, (int64_t)key, at, hps_dtype_name(dtype));
}

/* Convert n rows of `piece`; the first is row number `row`. */
static hps_status convert_rows(struct hps_row_reader *reader, uint64_t row, size_t n,
                               const hps_key *keys, uint8_t *rows, struct hps_error *err)
{
    const struct hps_row_desc *desc = &reader->desc;
    size_t from_bytes = (size_t)file_row_bytes(reader);
    size_t to_bytes = (size_t)hps_dtype_row_bytes(desc->dtype, desc->dim);

    for (size_t i = 0; i < n; i++) {
        const uint8_t *given = reader->piece + i * from_bytes;
        const uint8_t *values = given;
        if (reader->wide != NULL) {
            reader->widen(reader->wide, given, desc->dim);
            values = (const uint8_t *)reader->wide;
        }
        hps_status status = check_fits(reader, row + i, keys[i], values, err);
        if (status != HPS_OK) {
            return status;
        }
        uint8_t *to = rows + i * to_bytes;
        reader->convert(to, values, desc->dim);
        hps_row_loss_add(&reader->loss, given, desc->file_dtype, to, desc->dtype, desc->dim);
    }
    return HPS_OK;
}

/* Read the next n rows of the files, as desc says. */
static hps_status read_rows(struct hps_row_reader *reader, size_t n, const hps_key *keys,
                            uint8_t *rows, struct hps_error *err)
{
    size_t row_bytes = (size_t)hps_dtype_row_bytes(reader->desc.dtype, reader->desc.dim);
    size_t step = reader->piece != NULL ? reader->piece_rows : n;
    hps_status status = HPS_OK;

    for (size_t at = 0; status == HPS_OK && at < n; at += step) {
        size_t m = n - at < step ? n - at : step;
        uint64_t row = reader->row + at;
        uint8_t *to = rows + at * row_bytes;
        uint8_t *stored = converts(reader) ? reader->piece : to;

        status = read_stored(reader, row, m, stored, err);
        if (status == HPS_OK) {
            status = check_finite(reader, row, m, keys + at, stored, err);
        }
        if (status == HPS_OK && converts(reader)) {
            status = convert_rows(reader, row, m, keys + at, to, err);
        }
    }
    return status;
}

hps_status hps_row_reader_next(struct hps_row_reader *reader, size_t max_rows, hps_key *keys,
                               void *rows, size_t *out_n, struct hps_error *err)
{
    HPS_ASSERT(reader->row <= reader->desc.n_rows);
    uint64_t left = reader->desc.n_rows - reader->row;
    size_t n = left < max_rows ? (size_t)left : max_rows;

    HPS_ASSERT(max_rows > 0);
    hps_status status = read_keys(reader, reader->row, n, keys, err);
    if (status == HPS_OK) {
        status = read_rows(reader, n, keys, rows, err);
    }
    if (status != HPS_OK) {
        return status;
    }
    reader->row += n;
    *out_n = n;
    return HPS_OK;
}
