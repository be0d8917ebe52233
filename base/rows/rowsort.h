/* SPDX-License-Identifier: Apache-2.0
 *
 * External merge sort of (key, row) pairs within a memory budget. The order is ascending by key as
 * an unsigned integer (the order of big-endian bytes). Of several pairs with the same key, the last
 * one added stays; the other pairs are dropped and counted. If the pairs do not fit the budget,
 * sorted runs are spilled to an unlinked temporary file. The sort does this on a thread of its own
 * while more rows are added. One thread at a time uses a sort; hps_rowsort_progress_get: any
 * thread. The calls are:
 *
 *   hps_rowsort_add ...    or once    hps_rowsort_take(reader)
 *   hps_rowsort_finish
 *   hps_rowsort_next ... until 0 rows
 */
#ifndef HPS_BASE_ROWS_ROWSORT_H
#define HPS_BASE_ROWS_ROWSORT_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/rows/rowfile.h"
#include "base/status.h"
#include "base/types.h"

enum { HPS_ROWSORT_MEMORY_BYTES_MIN = 1 << 20 };

struct hps_rowsort_options {
    uint32_t row_bytes;
    size_t memory_bytes;  /* never exceeded; at least the minimum above and space for 16 rows */
    uint64_t n_rows_hint; /* expected number of rows; 0: unknown. If small, less memory is used */
    const char *dir;      /* directory of the spill file, used only if runs are spilled; copied */
    uint64_t disk_free_bytes_min; /* a spill that would leave less disk space fails: EXHAUSTED */
    /* May be NULL. Once it is true, calls that read, spill or return rows return CANCELLED. */
    const atomic_bool *cancel;
};

struct hps_rowsort_progress {
    uint64_t n_rows_in;  /* rows added so far */
    uint64_t n_rows_out; /* rows returned so far */
    /* Rows dropped because a later row has the same key; final after the last hps_rowsort_next. */
    uint64_t n_duplicates;
    uint64_t n_runs;        /* runs written to disk so far, merge passes included */
    uint64_t bytes_spilled; /* bytes written to disk so far */
};

struct hps_rowsort;

/* Create a sort. INVALID: memory_bytes is below the minimum; NO_MEMORY */
hps_status hps_rowsort_new(const struct hps_rowsort_options *options, struct hps_rowsort **out_sort,
                           struct hps_error *err) HPS_MUST_CHECK;
void hps_rowsort_free(struct hps_rowsort *sort); /* removes the spill file; no effect if NULL */
/* Add copies of n pairs.
 *
 * shape   keys[n]; rows[n][row_bytes]
 * error   EXHAUSTED: the disk is full, or less than disk_free_bytes_min would be free; IO;
 *         CANCELLED. The sort is unusable after an error
 */
hps_status hps_rowsort_add(struct hps_rowsort *sort, const hps_key *keys, const void *rows,
                           size_t n, struct hps_error *err) HPS_MUST_CHECK;
/* Add all rows of a table. If its keys are strictly ascending, which this call checks, nothing is
 * copied or spilled; hps_rowsort_next reads the files instead.
 *
 * owner   `reader` must stay open until the sort is freed; its dim and dtype must give row_bytes
 */
hps_status hps_rowsort_take(struct hps_rowsort *sort, struct hps_row_reader *reader,
                            struct hps_error *err) HPS_MUST_CHECK;
/* End the input: sort the rows in memory, or merge spilled runs until hps_rowsort_next can merge
 * the rest in one pass. */
hps_status hps_rowsort_finish(struct hps_rowsort *sort, struct hps_error *err) HPS_MUST_CHECK;
/* Get the next pairs in strictly ascending order, at most max_rows (> 0). *out_n is their number;
 * 0: the end.
 *
 * shape   keys[max_rows]; rows[max_rows][row_bytes]
 */
hps_status hps_rowsort_next(struct hps_rowsort *sort, size_t max_rows, hps_key *keys, void *rows,
                            size_t *out_n, struct hps_error *err) HPS_MUST_CHECK;
void hps_rowsort_progress_get(const struct hps_rowsort *sort,
                              struct hps_rowsort_progress *out_progress);

#endif
