/* SPDX-License-Identifier: Apache-2.0
 *
 * External merge sort of (key, row) pairs within a memory budget: ascending by key as an unsigned
 * integer (the order of big-endian bytes), the last added of equal keys wins and the others are
 * counted. Sorted runs are spilled to one unlinked temporary file, by a thread of the sort while
 * more rows come in. One thread at a time, except hps_rowsort_progress_get: any thread.
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
    size_t memory_bytes;          /* never exceeded; at least the minimum above and 16 rows */
    uint64_t n_rows_hint;         /* 0: unknown; fewer rows than fit need less memory */
    const char *dir;              /* where runs are spilled; needed only when they are; copied */
    uint64_t disk_free_bytes_min; /* spilling fails EXHAUSTED rather than leave less than this */
    const atomic_bool *cancel;    /* may be NULL; once true every call returns CANCELLED */
};

struct hps_rowsort_progress {
    uint64_t n_rows_in;
    uint64_t n_rows_out;
    uint64_t n_duplicates;  /* rows that a later one replaced; final after the last next */
    uint64_t n_runs;        /* spilled so far, those of merge passes included */
    uint64_t bytes_spilled; /* written to disk so far */
};

struct hps_rowsort;

/* error   INVALID: budget below the minimum; NO_MEMORY */
hps_status hps_rowsort_new(const struct hps_rowsort_options *options, struct hps_rowsort **out_sort,
                           struct hps_error *err) HPS_MUST_CHECK;
void hps_rowsort_free(struct hps_rowsort *sort); /* NULL is legal; removes everything spilled */
/* Copy n pairs in. shape keys[n]; rows[n * row_bytes]. error EXHAUSTED: disk full or too little
 * free; IO; CANCELLED; the sort is then done with. */
hps_status hps_rowsort_add(struct hps_rowsort *sort, const hps_key *keys, const void *rows,
                           size_t n, struct hps_error *err) HPS_MUST_CHECK;
/* Read a whole table in. Where its keys ascend strictly already (a .npy; or found by reading the
 * keys alone) nothing is copied or spilled: hps_rowsort_next then reads the files itself.
 *
 * owner   `reader` must stay open until the sort is freed; its dim and dtype must give row_bytes
 */
hps_status hps_rowsort_take(struct hps_rowsort *sort, struct hps_row_reader *reader,
                            struct hps_error *err) HPS_MUST_CHECK;
/* End of input: sort what is in memory, merge spilled runs until one pass is left. */
hps_status hps_rowsort_finish(struct hps_rowsort *sort, struct hps_error *err) HPS_MUST_CHECK;
/* Up to max_rows (> 0) next pairs, strictly ascending; 0 is the end. shape as hps_rowsort_add. */
hps_status hps_rowsort_next(struct hps_rowsort *sort, size_t max_rows, hps_key *keys, void *rows,
                            size_t *out_n, struct hps_error *err) HPS_MUST_CHECK;
void hps_rowsort_progress_get(const struct hps_rowsort *sort,
                              struct hps_rowsort_progress *out_progress);

#endif
