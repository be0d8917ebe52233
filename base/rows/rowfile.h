/* SPDX-License-Identifier: Apache-2.0
 *
 * Files of one embedding table: streaming reader and writer of four forms.
 *
 *   HUGECTR   T/key         int64 LE, no header         T/emb_vector  float32 LE, row i <-> key i
 *   NPY       T.npy         [rows, dim], the row number is the key
 *   NPY_PAIR  T.keys.npy    int64, uint64, int32 or     T.rows.npy  [rows, dim]
 *                           uint32 [rows]
 *   SAFETENSORS  F.safetensors:TENSOR, a tensor [rows, dim]; the tensor TENSOR.keys has the keys;
 *             without it, the row number is the key
 *
 * Types of rows in a .npy:
 *
 *   float32, float16
 *   bfloat16  if the header of the file has this name
 *   uint16    bits of bfloat16. Accepted if the manifest gives the type bf16, or if it gives no
 *             type and row_dtype is BF16
 *   <V2       two untyped bytes, as ml_dtypes saves its bfloat16; same as uint16
 *   uint8     bytes of INT8 rows. Their scales and biases are in T.scale_bias.npy, [rows, 2]. If
 *             that file is float32, the rows are INT8_ROWWISE_F32; if float16, INT8_ROWWISE_F16
 *
 * Types of rows in a safetensors file: F32, F16, BF16, U8 and I8. The path of U8 and I8 rows names
 * the tensors of their scales and biases: F.safetensors:TENSOR:SCALE:BIAS, F32 or F16, [rows] or
 * [rows, 1]; without them, they are TENSOR.scale and TENSOR.bias. I8 rows become U8 rows with
 * float32 scales, by adding 128 to the values and subtracting 128 * scale from the bias. Without
 * TENSOR, the file must have exactly one table.
 *
 * The reader can convert rows to another type than that of the files, except INT8 rows. INT8 rows
 * are quantised already, and a second conversion would add a second rounding error.
 *
 * Files are read with pread and never mapped. So a file that is truncated during a read causes an
 * error, not a SIGBUS. A reader or writer may be used by one thread at a time.
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
    HPS_ROW_FORM_AUTO, /* HUGECTR if a directory, SAFETENSORS if F.safetensors, NPY_PAIR if
                        *.rows.npy or *.keys.npy, else NPY */
    HPS_ROW_FORM_HUGECTR,
    HPS_ROW_FORM_NPY,
    HPS_ROW_FORM_NPY_PAIR,
    HPS_ROW_FORM_SAFETENSORS
};

/* "hugectr", "npy", "npy-pair", "safetensors", "auto". */
const char *hps_row_form_text(enum hps_row_form form);

struct hps_row_options {
    enum hps_row_form form;
    uint32_t dim;       /* expected number of values per row; 0: as in the files */
    uint32_t key_bytes; /* 8 or 0: all 64 bits; 4: only the low 32 bits (`supportlonglong` false) */
    /* False: a read fails if a value is NaN or Inf, or if its conversion to row_dtype gives Inf.
     * The error names the row. INT8 rows must be finite in any case. */
    bool nan_allowed;
    /* Type of the rows in the files, from the manifest; 0: unknown. uint16 and <V2 rows can be read
     * only if this is BF16, or if this is 0 and row_dtype is BF16. */
    enum hps_dtype dtype;
    enum hps_dtype row_dtype;      /* type to convert rows to; 0: no conversion */
    const struct hps_roots *roots; /* files must be below these; used by the open; NULL: any path */
};

struct hps_row_desc {
    enum hps_row_form form;
    uint64_t n_rows;
    uint32_t dim;
    enum hps_dtype dtype;      /* type of the rows that the reader returns */
    enum hps_dtype file_dtype; /* type of the rows in the files */
    bool sorted_unique;        /* keys are known to be strictly ascending, as unsigned integers */
};

struct hps_row_reader;

/* Open the files of one table and check headers and sizes.
 *
 * path    the directory, the .npy file, either file of a pair, or F.safetensors:TENSOR; copied
 * error   NOT_FOUND, PERMISSION, IO, NO_MEMORY; INVALID: bad content (the text names file, byte
 *         offset and the expected content), or INT8 rows and another row_dtype
 */
hps_status hps_row_reader_open(const char *path, const struct hps_row_options *options,
                               struct hps_row_reader **out_reader, struct hps_error *err)
    HPS_MUST_CHECK;
void hps_row_reader_close(struct hps_row_reader *reader); /* no effect if NULL */
const struct hps_row_desc *hps_row_reader_desc(const struct hps_row_reader *reader);
/* Read the next rows, at most max_rows. *out_n is their number; 0: the end.
 *
 * shape   keys[max_rows]; rows[max_rows] of desc's dtype and dim, any alignment
 * error   DATA_LOSS: a file is shorter than at the open; INVALID: NaN or Inf, or a value that does
 *         not fit row_dtype; IO. The reader is unusable after an error.
 */
hps_status hps_row_reader_next(struct hps_row_reader *reader, size_t max_rows, hps_key *keys,
                               void *rows, size_t *out_n, struct hps_error *err) HPS_MUST_CHECK;
/* Read all keys, but no rows, and set sorted_unique of the desc to whether the keys are strictly
 * ascending. Stops at the first key out of order. Does not affect which rows the next
 * hps_row_reader_next returns. */
hps_status hps_row_reader_scan_keys(struct hps_row_reader *reader, struct hps_error *err)
    HPS_MUST_CHECK;
/* Go back to the first row. */
void hps_row_reader_rewind(struct hps_row_reader *reader);
/* The rounding error of all conversions since the open or the last rewind. Its n is 0 if rows are
 * not converted. */
const struct hps_row_loss *hps_row_reader_loss(const struct hps_row_reader *reader);

/* The path T.scale_bias.npy for the path T.npy or T.rows.npy. The caller frees it (hps_free). NULL:
 * no memory. */
char *hps_row_scale_bias_path(const char *rows_path);

struct hps_row_writer_options {
    enum hps_row_form form; /* not AUTO */
    uint32_t dim;
    enum hps_dtype dtype; /* of appended rows; HUGECTR supports only FP32 */
};

struct hps_row_writer;

/* Create a table. The rows are written to temporary files in the same directory;
 * hps_row_writer_close renames them to their final names.
 *
 * path    the directory, the .npy file, T.rows.npy of a pair, or T.safetensors, which gets the
 *         tensors T and T.keys; copied. For INT8 rows the writer also creates T.scale_bias.npy, or
 *         the tensors T.scale and T.bias.
 * error   INVALID: the dim is out of range, or the form cannot store the type; EXISTS: the
 *         directory of a HUGECTR table exists; EXHAUSTED: the disk is full; IO; NO_MEMORY
 */
hps_status hps_row_writer_open(const char *path, const struct hps_row_writer_options *options,
                               struct hps_row_writer **out_writer, struct hps_error *err)
    HPS_MUST_CHECK;
/* Append n rows. INVALID: the form is NPY and a key is not the number of its row; EXHAUSTED: the
 * disk is full; IO. */
hps_status hps_row_writer_append(struct hps_row_writer *writer, const hps_key *keys,
                                 const void *rows, size_t n, struct hps_error *err) HPS_MUST_CHECK;
/* Write buffered rows, sync the files and rename them to their final names. Frees the writer, also
 * on error. After an error no temporary files are left. */
hps_status hps_row_writer_close(struct hps_row_writer *writer, struct hps_error *err)
    HPS_MUST_CHECK;
/* Remove the temporary files and free the writer. No effect if NULL. */
void hps_row_writer_abort(struct hps_row_writer *writer);

#endif
