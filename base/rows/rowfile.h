/* SPDX-License-Identifier: Apache-2.0
 *
 * Files of one embedding table: streaming reader and writer of three forms.
 *
 *   HUGECTR   T/key         int64 LE, no header         T/emb_vector  float32 LE, row i <-> key i
 *   NPY       T.npy         [rows, dim], the row number is the key
 *   NPY_PAIR  T.keys.npy    int64, uint64, int32 or     T.rows.npy  [rows, dim]
 *                           uint32 [rows]
 *
 * Types of rows in a .npy:
 *
 *   float32, float16
 *   uint16    bits of bfloat16, if a manifest or row_dtype says so
 *   <V2       two untyped bytes: the same; ml_dtypes saves its bfloat16 as such
 *   uint8     bytes of INT8 rows; T.scale_bias.npy, float32 or float16 [rows, 2], has their scales
 *             and biases; its type decides: INT8_ROWWISE_F32 or INT8_ROWWISE_F16
 *
 * Rows can be read as another type than that of the files; the reader converts them. Only INT8 rows
 * cannot: they are quantised already, and a second conversion would add a second error.
 *
 * Files are read with pread, never mapped, so a file that is truncated during a read gives an error
 * and no SIGBUS. One thread at a time uses a reader or writer.
 */
#ifndef HPS_BASE_ROWS_ROWFILE_H
#define HPS_BASE_ROWS_ROWFILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/rows/roots.h"
#include "base/status.h"
#include "base/types.h"

enum { HPS_ROW_DIM_MAX = 65536 };

enum hps_row_form {
    HPS_ROW_FORM_AUTO, /* a directory is HUGECTR, *.rows.npy and *.keys.npy are a pair, else NPY */
    HPS_ROW_FORM_HUGECTR,
    HPS_ROW_FORM_NPY,
    HPS_ROW_FORM_NPY_PAIR
};

/* "hugectr", "npy", "npy-pair", "auto". */
const char *hps_row_form_text(enum hps_row_form form);

struct hps_row_options {
    enum hps_row_form form;
    uint32_t dim;       /* expected values per row; 0: as in the files */
    uint32_t key_bytes; /* 8 (or 0); 4 keeps the low 32 bits (`supportlonglong` false) */
    bool nan_allowed;   /* false: NaN and Inf fail the read with the row named, and so does a value
                           that would become one as row_dtype */
    enum hps_dtype dtype; /* of the files, from the manifest; 0: unknown. Only uint16 and <V2 rows
                             need it (BF16), or row_dtype BF16 */
    enum hps_dtype row_dtype;      /* type to read rows as; 0: as in the files */
    const struct hps_roots *roots; /* the files must be below them, at open; NULL: any */
};

struct hps_row_desc {
    enum hps_row_form form;
    uint64_t n_rows;
    uint32_t dim;
    enum hps_dtype dtype;      /* of rows as read */
    enum hps_dtype file_dtype; /* of rows in the files */
    uint64_t bytes;            /* of all files read */
    bool sorted_unique;        /* keys are known to be strictly ascending, as unsigned integers */
};

struct hps_row_reader;

/* Open the files of one table and check headers and sizes.
 *
 * path    the directory, the .npy file, or either file of a pair; copied
 * error   NOT_FOUND, PERMISSION, IO, NO_MEMORY; INVALID: the text names file, byte offset and the
 *         expected content; also: INT8 rows with another row_dtype
 */
hps_status hps_row_reader_open(const char *path, const struct hps_row_options *options,
                               struct hps_row_reader **out_reader, struct hps_error *err)
    HPS_MUST_CHECK;
void hps_row_reader_close(struct hps_row_reader *reader); /* no effect if NULL */
const struct hps_row_desc *hps_row_reader_desc(const struct hps_row_reader *reader);
/* Read up to max_rows more rows; 0 rows: the end.
 *
 * shape   keys[max_rows]; rows[max_rows] of desc's dtype and dim, any alignment
 * error   DATA_LOSS: shorter than at open; INVALID: NaN or Inf, or a value that does not fit the
 *         dtype; IO. The reader is unusable after an error.
 */
hps_status hps_row_reader_next(struct hps_row_reader *reader, size_t max_rows, hps_key *keys,
                               void *rows, size_t *out_n, struct hps_error *err) HPS_MUST_CHECK;
/* Read all keys, without rows, and set desc's sorted_unique if they are strictly ascending. Stops
 * at the first key out of order. Does not move the reader. */
hps_status hps_row_reader_scan_keys(struct hps_row_reader *reader, struct hps_error *err)
    HPS_MUST_CHECK;
void hps_row_reader_rewind(struct hps_row_reader *reader);
/* Loss from conversion in the rows read since the open or the last rewind. n is 0 if rows are not
 * converted. */
const struct hps_row_loss *hps_row_reader_loss(const struct hps_row_reader *reader);

/* Path of the scales of uint8 rows: T.scale_bias.npy of T.npy or T.rows.npy. NULL: no memory.
 * owner: the caller (hps_free) */
char *hps_row_scale_bias_path(const char *rows_path);

struct hps_row_writer_options {
    enum hps_row_form form; /* not AUTO */
    uint32_t dim;
    enum hps_dtype dtype; /* of appended rows; HUGECTR takes only FP32 */
};

struct hps_row_writer;

/* Create temporary files next to the final names; nothing appears under `path` before close.
 *
 * path    the directory, the .npy file, or T.rows.npy of a pair; copied. INT8 rows also get
 *         T.scale_bias.npy.
 * error   INVALID; EXISTS: the directory of a HUGECTR table exists; EXHAUSTED: disk full; IO
 */
hps_status hps_row_writer_open(const char *path, const struct hps_row_writer_options *options,
                               struct hps_row_writer **out_writer, struct hps_error *err)
    HPS_MUST_CHECK;
/* Append n rows. INVALID: NPY, and keys are not the row numbers; EXHAUSTED: disk full; IO. */
hps_status hps_row_writer_append(struct hps_row_writer *writer, const hps_key *keys,
                                 const void *rows, size_t n, struct hps_error *err) HPS_MUST_CHECK;
/* Write the rest, fsync, rename into place. Frees the writer, also on error; an error leaves no
 * temporary files. */
hps_status hps_row_writer_close(struct hps_row_writer *writer, struct hps_error *err)
    HPS_MUST_CHECK;
void hps_row_writer_abort(struct hps_row_writer *writer); /* remove all files; no effect if NULL */

#endif
