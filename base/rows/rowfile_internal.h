/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the two halves of the reader: rowfile.c finds, opens and checks files; rowread.c reads
 * rows from them. One thread at a time.
 */
#ifndef HPS_BASE_ROWS_ROWFILE_INTERNAL_H
#define HPS_BASE_ROWS_ROWFILE_INTERNAL_H

#include "base/rows/npy.h"
#include "base/rows/rowfile.h"

enum { ROWFILE_KEY_BYTES = 8 };

/* A file of the table. */
struct rowfile_part {
    char *path;      /* NULL: the table has no such file */
    int fd;          /* -1: not open */
    uint64_t offset; /* of the first element */
};

struct hps_row_reader {
    struct hps_row_desc desc;
    struct rowfile_part keys; /* no file: the row number is the key */
    struct rowfile_part rows;
    struct rowfile_part scales;  /* scale and bias of each INT8 row */
    uint64_t row;                /* next row to read */
    enum hps_npy_type keys_type; /* of `keys` */
    uint32_t key_bytes;
    bool nan_allowed;

    /* For rows that are not read directly into the caller's array. */
    size_t piece_rows;          /* rows per piece */
    uint8_t *piece;             /* [piece_rows] as in the files; INT8: values, then scales */
    float *wide;                /* [dim] FP32 values, if FP16 or BF16 become another type */
    hps_row_convert_fn widen;   /* file_dtype to FP32 */
    hps_row_convert_fn convert; /* to dtype; from FP32 if `wide` is set, else from file_dtype */
    struct hps_row_loss loss;
};

/* ---- rowread.c ------------------------------------------------------------------------------- */

/* Prepare to read; the files are open and desc is complete. NO_MEMORY */
hps_status rowread_begin(struct hps_row_reader *reader, struct hps_error *err) HPS_MUST_CHECK;
void rowread_end(struct hps_row_reader *reader);

#endif
