/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the two files of the reader: rowfile.c finds, opens and checks the files of a table;
 * rowread.c reads rows from them. A reader may be used by one thread at a time.
 */
#ifndef HPS_BASE_ROWS_ROWFILE_INTERNAL_H
#define HPS_BASE_ROWS_ROWFILE_INTERNAL_H

#include "base/rows/npy.h"
#include "base/rows/rowfile.h"

enum { ROWFILE_KEY_BYTES = 8 };

/* One file of a table. */
struct rowfile_part {
    char *path;      /* NULL: the table has no such file */
    int fd;          /* -1: not open */
    uint64_t offset; /* of the first element */
};

struct hps_row_reader {
    struct hps_row_desc desc;
    struct rowfile_part keys; /* without this file, the row number is the key */
    struct rowfile_part rows;
    struct rowfile_part scales;  /* scale and bias of each INT8 row */
    uint64_t row;                /* next row to read */
    enum hps_npy_type keys_type; /* of `keys` */
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

/* ---- rowread.c ------------------------------------------------------------------------------- */

/* Prepare to read. The files must be open and desc complete. NO_MEMORY: no memory for the buffers.
 */
hps_status rowread_begin(struct hps_row_reader *reader, struct hps_error *err) HPS_MUST_CHECK;
void rowread_end(struct hps_row_reader *reader);

#endif
