/* SPDX-License-Identifier: Apache-2.0
 *
 * The rows of one embedding table in files: streaming reader and writer of the three forms.
 *
 *   HUGECTR   T/key         int64 LE, no header         T/emb_vector  float32 LE, row i <-> key i
 *   NPY       T.npy         [rows, dim], the row number is the key
 *   NPY_PAIR  T.keys.npy    int64, uint64, int32 or     T.rows.npy  [rows, dim]
 *                           uint32 [rows]
 *
 * The rows of a .npy are
 *
 *   float32, float16
 *   uint16    the bits of bfloat16, where a manifest or row_dtype says that they are
 *   <V2       two bytes without a type: the same; ml_dtypes saves its bfloat16 so
 *   uint8     the bytes of INT8 rows; T.scale_bias.npy, float32 or float16 [rows, 2], has their
 *             scales and biases, and tells INT8_ROWWISE_F32 from INT8_ROWWISE_F16
 *
 * Rows may be read as another type than that of the files: they are converted as they are read.
 * INT8 rows are not: they have been quantised, and a second time would add a second error.
 *
 * Files are read with pread, never mapped, so a file cut short under us is an error and no SIGBUS.
 * A reader or writer is used by one thread at a time.
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
    HPS_ROW_FORM_AUTO, /* a directory is HUGECTR, *.rows.npy and *.keys.npy a pair, else NPY */
    HPS_ROW_FORM_HUGECTR,
    HPS_ROW_FORM_NPY,
    HPS_ROW_FORM_NPY_PAIR
};

/* "hugectr", "npy", "npy-pair", "auto". */
const char *hps_row_form_text(enum hps_row_form form);

struct hps_row_options {
    enum hps_row_form form;
    uint32_t dim;         /* values per row that the caller expects; 0: whatever the files say */
    uint32_t key_bytes;   /* 8 (or 0); 4 keeps the low 32 bits (`supportlonglong` false) */
    bool nan_allowed;     /* otherwise a NaN or Inf fails the read and names its row, and so does a
                             value that is too large for row_dtype and would become one */
    enum hps_dtype dtype; /* of the files, where somebody has said it; 0: nobody has. Only uint16
                             and <V2 rows need it, as BF16, or row_dtype BF16 */
    enum hps_dtype row_dtype;      /* that rows are read as; 0: that of the files */
    const struct hps_roots *roots; /* that the files must be below, for the open alone; NULL: any */
};

struct hps_row_desc {
    enum hps_row_form form;
    uint64_t n_rows;
    uint32_t dim;
    enum hps_dtype dtype;      /* of the rows as they are read */
    enum hps_dtype file_dtype; /* of those of the files */
    uint64_t bytes;            /* of all files read */
    bool sorted_unique;        /* keys are known to ascend strictly, as unsigned integers */
};

struct hps_row_reader;

/* Open the files of one table and check headers and sizes.
 *
 * path    the directory, the .npy file, or either file of a pair; copied
 * error   NOT_FOUND, PERMISSION, IO, NO_MEMORY; INVALID: the text names file, byte offset and what
 *         was expected there; also INT8 rows that are to be read as another type
 */
hps_status hps_row_reader_open(const char *path, const struct hps_row_options *options,
                               struct hps_row_reader **out_reader, struct hps_error *err)
    HPS_MUST_CHECK;
void hps_row_reader_close(struct hps_row_reader *reader); /* NULL is legal */
const struct hps_row_desc *hps_row_reader_desc(const struct hps_row_reader *reader);
/* Read up to max_rows further rows; 0 rows is the end.
 *
 * shape   keys[max_rows]; rows[max_rows] of desc's dtype and dim, any alignment
 * error   DATA_LOSS: shorter than at open; INVALID: NaN or Inf, or a value that does not fit the
 *         dtype; IO. The reader is then done with.
 */
hps_status hps_row_reader_next(struct hps_row_reader *reader, size_t max_rows, hps_key *keys,
                               void *rows, size_t *out_n, struct hps_error *err) HPS_MUST_CHECK;
/* Read all keys once, without rows, and set desc's sorted_unique if they ascend strictly. Does not
 * move the reader. Stops at the first key out of order. */
hps_status hps_row_reader_scan_keys(struct hps_row_reader *reader, struct hps_error *err)
    HPS_MUST_CHECK;
void hps_row_reader_rewind(struct hps_row_reader *reader);
/* What conversion has changed in the rows read since the open or the last rewind; n 0: nothing is
 * converted. */
const struct hps_row_loss *hps_row_reader_loss(const struct hps_row_reader *reader);

/* The file beside rows of uint8: T.scale_bias.npy of T.npy or T.rows.npy. NULL: no memory. owner:
 * the caller (hps_free) */
char *hps_row_scale_bias_path(const char *rows_path);

struct hps_row_writer_options {
    enum hps_row_form form; /* not AUTO */
    uint32_t dim;
    enum hps_dtype dtype; /* of the rows that are appended; HUGECTR knows only FP32 */
};

struct hps_row_writer;

/* Begin files beside their final names; nothing is visible under `path` before close.
 *
 * path    the directory, the .npy file, or T.rows.npy of a pair; copied. INT8 rows get
 *         T.scale_bias.npy beside them.
 * error   INVALID; EXISTS: the directory of a HUGECTR table is there; EXHAUSTED: disk full; IO
 */
hps_status hps_row_writer_open(const char *path, const struct hps_row_writer_options *options,
                               struct hps_row_writer **out_writer, struct hps_error *err)
    HPS_MUST_CHECK;
/* Append n rows. INVALID for NPY when keys are not the row numbers; EXHAUSTED: disk full; IO. */
hps_status hps_row_writer_append(struct hps_row_writer *writer, const hps_key *keys,
                                 const void *rows, size_t n, struct hps_error *err) HPS_MUST_CHECK;
/* Write what is left, fsync, rename into place and free the writer, whatever the result; on an
 * error nothing is left behind. */
hps_status hps_row_writer_close(struct hps_row_writer *writer, struct hps_error *err)
    HPS_MUST_CHECK;
void hps_row_writer_abort(struct hps_row_writer *writer); /* leave nothing; NULL is legal */

#endif
