/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files of the reader: rowfile.c finds, opens and checks the files of a table,
 * rowtensor.c the tensors in a safetensors file; rowread.c reads rows from them. A reader may be
 * used by one thread at a time.
 */
#ifndef HPS_BASE_ROWS_ROWFILE_INTERNAL_H
#define HPS_BASE_ROWS_ROWFILE_INTERNAL_H

#include "base/rows/npy.h"
#include "base/rows/rowfile.h"
#include "base/rows/safetensors.h"

enum { ROWFILE_KEY_BYTES = 8 };

/* One file of a table. */
struct rowfile_part {
    char *path;      /* NULL: the table has no such file; FILE:TENSOR in a safetensors file */
    int fd;          /* -1: not open */
    uint64_t offset; /* of the first element */
};

struct hps_row_reader {
    struct hps_row_desc desc;
    struct rowfile_part keys; /* without this file, the row number is the key */
    struct rowfile_part rows;
    struct rowfile_part scales;    /* scale and bias of each INT8 row, or only the scale */
    struct rowfile_part biases;    /* the bias of each INT8 row, if it is not in `scales` */
    enum hps_npy_type scales_type; /* of `scales` and `biases` */
    bool is_signed;                /* INT8 rows are signed in the file */
    struct hps_safetensors set;    /* the header, while the reader is opened */
    uint64_t row;                  /* next row to read */
    enum hps_npy_type keys_type;   /* of `keys` */
    uint32_t key_bytes;
    bool nan_allowed;

    /* Rows that are converted, or combined from two files, are read in pieces. */
    size_t piece_rows; /* rows per piece */
    uint8_t *piece;    /* [piece_rows] rows as in the files; INT8: first all values, then scales */
    /* [dim] buffer for one row as FP32. Set if rows are converted and neither type is FP32. Such
     * rows are first converted to FP32, then to dtype. */
    float *wide;
    hps_row_convert_fn widen;   /* file_dtype to FP32; set with `wide` */
    hps_row_convert_fn convert; /* to dtype, from FP32 if `wide` is set, else from file_dtype */
    struct hps_row_loss loss;   /* rounding error of the conversions */
};

/* ---- rowtensor.c ----------------------------------------------------------------------------- */

/* Open the file, read its header into `set`, and set the paths of all parts. Errors as
 * hps_row_reader_open. */
hps_status rowtensor_begin(struct hps_row_reader *reader, const char *path,
                           const struct hps_roots *roots, struct hps_error *err) HPS_MUST_CHECK;
/* Find the tensor that the path of a part names. INVALID: hpsd cannot read it, or it is missing. */
hps_status rowtensor_open(struct hps_row_reader *reader, struct rowfile_part *part,
                          struct hps_npy *out_npy, struct hps_error *err) HPS_MUST_CHECK;

/* ---- rowread.c ------------------------------------------------------------------------------- */

/* Prepare to read. The files must be open and desc complete. NO_MEMORY: no memory for the buffers.
 */
hps_status rowread_begin(struct hps_row_reader *reader, struct hps_error *err) HPS_MUST_CHECK;
void rowread_end(struct hps_row_reader *reader);

#endif
