/* SPDX-License-Identifier: Apache-2.0
 *
 * What the two halves of the reader share: rowfile.c (files are found, opened and checked) and
 * rowread.c (rows come out of them). One thread at a time.
 */
#ifndef HPS_BASE_ROWS_ROWFILE_INTERNAL_H
#define HPS_BASE_ROWS_ROWFILE_INTERNAL_H

#include "base/rows/npy.h"
#include "base/rows/rowfile.h"

enum { ROWFILE_KEY_BYTES = 8 };

/* One of the files of a table. */
struct rowfile_part {
    char *path;      /* NULL: the table has no such file */
    int fd;          /* -1: not open */
    uint64_t offset; /* of the first element */
};

struct hps_row_reader {
    struct hps_row_desc desc;
    struct rowfile_part keys; /* none: the row number is the key */
    struct rowfile_part rows;
    struct rowfile_part scales;  /* of INT8 rows: scale and bias of each */
    uint64_t row;                /* next one to read */
    enum hps_npy_type keys_type; /* of `keys` */
    uint32_t key_bytes;
    bool nan_allowed;

    /* Where rows do not go straight to their place. */
    size_t piece_rows; /* at most so many at once */
    uint8_t *piece;    /* [piece_rows] as the files have them; of INT8: values, then scales */
    float *wide;       /* [dim] of halves that become another type, FP32 on the way */
    hps_row_convert_fn widen;   /* file_dtype to FP32 */
    hps_row_convert_fn convert; /* to dtype, from FP32 if there is `wide`, else from file_dtype */
    struct hps_row_loss loss;
};

/* ---- rowread.c ------------------------------------------------------------------------------- */

/* The files are open, desc says all of them: get ready to read. NO_MEMORY */
hps_status rowread_begin(struct hps_row_reader *reader, struct hps_error *err) HPS_MUST_CHECK;
void rowread_end(struct hps_row_reader *reader);

#endif
