/* SPDX-License-Identifier: Apache-2.0
 *
 * External merge sort of (key, row) pairs within a memory budget. The order is ascending by key as
 * an unsigned integer (the order of big-endian bytes). Of several pairs with the same key, only the
 * last one added is returned; the other pairs are dropped and counted. If the pairs do not fit the
 * budget, sorted runs are spilled to an unlinked temporary file. A separate thread spills while
 * more rows are added.
 *
 * A sort may be used by one thread at a time; hps_rowsort_progress_get by any thread. The order of
 * calls is:
 *
 *   hps_rowsort_add, any number of times, or hps_rowsort_take once
 *   hps_rowsort_finish
 *   hps_rowsort_next, until it returns 0 rows
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
    size_t memory_bytes;  /* hard limit; at least the minimum above, and enough for 16 pairs */
    uint64_t n_rows_hint; /* expected number of rows, to allocate less memory; 0: unknown */
    const char *dir;      /* directory of the spill file, used only if runs are spilled; copied */
    uint64_t disk_free_bytes_min; /* spills that would leave less free space fail */
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

/* Create a sort. INVALID: memory_bytes is too small; NO_MEMORY. */
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
 * owner   `reader` must stay open until the sort is freed. Its rows must have row_bytes bytes
 * error   those of hps_row_reader_next and hps_rowsort_add
 */
hps_status hps_rowsort_take(struct hps_rowsort *sort, struct hps_row_reader *reader,
                            struct hps_error *err) HPS_MUST_CHECK;
/* End the input. Sorts the rows if all are in memory. Otherwise merges spilled runs until
 * hps_rowsort_next can merge the rest in one pass. Errors as hps_rowsort_add. */
hps_status hps_rowsort_finish(struct hps_rowsort *sort, struct hps_error *err) HPS_MUST_CHECK;
/* Get the next pairs in strictly ascending order, at most max_rows (> 0). *out_n is their number; 0
 * after the last pair. Errors as hps_rowsort_add.
 *
 * shape   keys[max_rows]; rows[max_rows][row_bytes]
 */
hps_status hps_rowsort_next(struct hps_rowsort *sort, size_t max_rows, hps_key *keys, void *rows,
                            size_t *out_n, struct hps_error *err) HPS_MUST_CHECK;
void hps_rowsort_progress_get(const struct hps_rowsort *sort,
                              struct hps_rowsort_progress *out_progress);

#endif
