/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the two halves of the sort: rowsort.c (input, and runs written to disk) and
 * rowsort_merge.c (merge of runs). Threads: see rowsort.h.
 */
#ifndef HPS_BASE_ROWS_ROWSORT_INTERNAL_H
#define HPS_BASE_ROWS_ROWSORT_INTERNAL_H

#include <stdatomic.h>

#include "base/rows/rowsort.h"
#include "base/worker.h"

enum {
    ROWSORT_KEY_BYTES = 8,
    ROWSORT_TAKE_BYTES_MAX = 8 << 20, /* per read; bounds the delay of a cancel */
    ROWSORT_ALIGN = 64
};

struct entry {
    hps_key key;
    uint64_t slot; /* index of a row, or of a run during a merge */
};

struct run {
    uint64_t offset; /* bytes */
    uint64_t n_rows;
    hps_key key_last;
};

struct cursor {
    uint64_t offset; /* offset in the file of the next byte to read */
    uint64_t end;
    uint8_t *buffer;
    size_t at;
    size_t have;
};

/* Unsorted rows, and the entries to sort them. */
struct area {
    struct entry *entries;
    struct entry *scratch;
    uint8_t *rows;
    size_t n;
    bool ascending; /* entries are strictly ascending already */
};

enum phase { PHASE_INPUT, PHASE_DIRECT, PHASE_MEMORY, PHASE_MERGE, PHASE_FAILED };

/* Destination of records: two arrays of the caller for keys and rows, or interleaved for a run. */
struct target {
    uint8_t *keys;
    uint8_t *rows;
    size_t key_stride;
    size_t row_stride;
};

/* One sort. Its phases follow one another and reuse the same memory; so this is one struct with
 * many fields. */
struct hps_rowsort {
    struct hps_rowsort_options options;
    char *dir;
    size_t row_bytes;
    size_t record_bytes;
    enum phase phase;
    uint8_t *arena;
    size_t arena_bytes;

    struct area areas[2];
    unsigned n_areas;
    struct area *in; /* being filled */
    uint8_t *out;
    size_t out_records;
    size_t capacity;   /* of an area */
    size_t next_entry; /* PHASE_MEMORY */

    /* While the thread spills, it owns the file, the runs and `out`. */
    struct hps_worker spiller;
    struct area *spilled; /* area that the thread spills */
    hps_status spill_status;
    struct hps_error spill_error;

    int fd; /* -1: nothing spilled */
    uint64_t file_bytes;
    struct run *runs;
    size_t runs_max;
    size_t n_runs;

    struct cursor *cursors;
    struct entry *heap;
    size_t n_heap;
    size_t buffer_bytes; /* of each cursor */

    struct hps_row_reader *reader; /* PHASE_DIRECT */

    atomic_uint_fast64_t n_rows_in;
    atomic_uint_fast64_t n_rows_out;
    atomic_uint_fast64_t n_duplicates;
    atomic_uint_fast64_t n_runs_written;
    atomic_uint_fast64_t bytes_spilled;
};

static inline void rowsort_count(atomic_uint_fast64_t *counter, uint64_t n)
{
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

static inline size_t rowsort_round_up(size_t n)
{
    return (n + ROWSORT_ALIGN - 1) & ~(size_t)(ROWSORT_ALIGN - 1);
}

static inline size_t rowsort_clamp(size_t n, size_t low, size_t high)
{
    return n < low ? low : n > high ? high : n;
}

/* ---- rowsort.c ------------------------------------------------------------------------------- */

/* The target for records in `out`. */
struct target rowsort_out_target(const struct hps_rowsort *sort);
/* Open an unlinked file, which cannot be left behind. */
hps_status rowsort_open_spill(const struct hps_rowsort *sort, int *out_fd, struct hps_error *err);
/* Append n records of `out` to the file. */
hps_status rowsort_write_out(struct hps_rowsort *sort, int fd, uint64_t *file_bytes, size_t n,
                             struct hps_error *err);

/* ---- rowsort_merge.c ------------------------------------------------------------------------- */

/* Preferred number of records per buffer of a run, and how many runs can be merged at once. */
size_t rowsort_fan_in(const struct hps_rowsort *sort, size_t *out_buffer_records);
/* Begin to merge runs[first .. first + k). The arena must hold no rows. */
hps_status rowsort_merge_begin(struct hps_rowsort *sort, size_t first, size_t k,
                               size_t buffer_records, struct hps_error *err);
/* Write up to max_records records, each key once. Equal keys arrive oldest first; the last one
 * stays. */
hps_status rowsort_merge_next(struct hps_rowsort *sort, size_t max_records,
                              const struct target *target, size_t *out_n, struct hps_error *err);
/* One merge pass: fewer and longer runs, in a new file. */
hps_status rowsort_merge_runs(struct hps_rowsort *sort, struct hps_error *err);

#endif
