/* SPDX-License-Identifier: Apache-2.0
 *
 * External merge sort of (key, row) pairs within a memory budget. The order is ascending by key as
 * an unsigned integer (the order of big-endian bytes). Of equal keys the last added wins; the
 * others are counted. Sorted runs are spilled to one unlinked temporary file, by a thread of the
 * sort while more rows are added. One thread at a time; hps_rowsort_progress_get: any thread.
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
    uint64_t n_rows_hint; /* 0: unknown; if fewer rows than fit, less memory is used */
    const char *dir;      /* directory of the spill file, used only if runs are spilled; copied */
    uint64_t disk_free_bytes_min; /* spills fail with EXHAUSTED rather than leave less */
    const atomic_bool *cancel;    /* may be NULL; once true every call returns CANCELLED */
};

struct hps_rowsort_progress {
    uint64_t n_rows_in;
    uint64_t n_rows_out;
    uint64_t n_duplicates; /* rows replaced by a later one; final after the last hps_rowsort_next */
    uint64_t n_runs;       /* spilled so far, merge passes included */
    uint64_t bytes_spilled; /* written to disk so far */
};

struct hps_rowsort;

/* error   INVALID: the budget is below the minimum; NO_MEMORY */
hps_status hps_rowsort_new(const struct hps_rowsort_options *options, struct hps_rowsort **out_sort,
                           struct hps_error *err) HPS_MUST_CHECK;
void hps_rowsort_free(struct hps_rowsort *sort); /* removes the spill file; no effect if NULL */
/* Add copies of n pairs. shape keys[n]; rows[n * row_bytes]. error EXHAUSTED: disk full or too
 * little free; IO; CANCELLED. The sort is unusable after an error. */
hps_status hps_rowsort_add(struct hps_rowsort *sort, const hps_key *keys, const void *rows,
                           size_t n, struct hps_error *err) HPS_MUST_CHECK;
/* Add a whole table. If its keys are strictly ascending (a .npy, or found by a scan of the keys),
 * nothing is copied or spilled; hps_rowsort_next then reads the files itself.
 *
 * owner   `reader` must stay open until the sort is freed; its dim and dtype must give row_bytes
 */
hps_status hps_rowsort_take(struct hps_rowsort *sort, struct hps_row_reader *reader,
                            struct hps_error *err) HPS_MUST_CHECK;
/* End of input: sort the rows in memory, or merge runs until one pass is left. */
hps_status hps_rowsort_finish(struct hps_rowsort *sort, struct hps_error *err) HPS_MUST_CHECK;
/* Up to max_rows (> 0) next pairs, strictly ascending; 0: the end. shape as in hps_rowsort_add. */
hps_status hps_rowsort_next(struct hps_rowsort *sort, size_t max_rows, hps_key *keys, void *rows,
                            size_t *out_n, struct hps_error *err) HPS_MUST_CHECK;
void hps_rowsort_progress_get(const struct hps_rowsort *sort,
                              struct hps_rowsort_progress *out_progress);

#endif
