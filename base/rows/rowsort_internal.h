/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the two files of the sort: rowsort.c (input, and writing runs to disk) and
 * rowsort_merge.c (merging runs). rowsort.h explains which threads may call. A *record* is a key
 * and its row in the spill file; a *run* is a sorted sequence of records.
 */
#ifndef HPS_BASE_ROWS_ROWSORT_INTERNAL_H
#define HPS_BASE_ROWS_ROWSORT_INTERNAL_H

#include <stdatomic.h>

#include "base/rows/rowsort.h"
#include "base/worker.h"

enum {
    ROWSORT_KEY_BYTES = 8,
    ROWSORT_TAKE_BYTES_MAX = 8 << 20, /* of one read; small, so that a cancel has effect soon */
    ROWSORT_ALIGN = 64
};

/* A key and the index of its row. Only entries are sorted; the rows do not move. */
struct entry {
    hps_key key;
    uint64_t slot; /* index of a row; during a merge, index of a run */
};

struct run {
    uint64_t offset; /* of its first byte in the spill file */
    uint64_t n_rows;
    hps_key key_last;
};

/* Progress of reading one run during a merge. */
struct cursor {
    uint64_t offset; /* in the spill file: next byte to read into the buffer */
    uint64_t end;    /* in the spill file: end of the run */
    uint8_t *buffer;
    size_t at;   /* offset in the buffer of the next record */
    size_t have; /* number of bytes in the buffer */
};

/* Rows in order of arrival, and one entry for each row. */
struct area {
    struct entry *entries; /* [n] of [capacity] */
    struct entry *scratch; /* [capacity] second buffer of the radix sort */
    uint8_t *rows;
    size_t n;
    bool ascending; /* the keys arrived in strictly ascending order */
};

/* In INPUT, rows are added. The later phases return rows: DIRECT from `reader`, MEMORY from one
 * area, MERGE from runs. After an error the phase is FAILED. */
enum phase { PHASE_INPUT, PHASE_DIRECT, PHASE_MEMORY, PHASE_MERGE, PHASE_FAILED };

/* Destination of records: separate arrays of the caller for keys and rows, or one buffer in which
 * each row follows its key. */
struct target {
    uint8_t *keys;
    uint8_t *rows;
    size_t key_stride;
    size_t row_stride;
};

/* One sort. All phases share one block of memory, the arena. */
struct hps_rowsort {
    struct hps_rowsort_options options;
    char *dir;
    size_t row_bytes;
    size_t record_bytes;
    enum phase phase;
    uint8_t *arena;
    size_t arena_bytes;

    struct area areas[2]; /* PHASE_INPUT: while one is spilled, the other one is filled */
    unsigned n_areas;
    struct area *in;    /* the area that is being filled */
    uint8_t *out;       /* [out_records] buffer for records of a run */
    size_t out_records; /* capacity of `out` */
    size_t capacity;    /* of an area, in rows */
    size_t next_entry;  /* PHASE_MEMORY: next entry to return */

    /* While the thread of `spiller` spills an area, it owns the file, the runs and `out`. */
    struct hps_worker spiller;
    struct area *spilled; /* the area that `spiller` spills */
    hps_status spill_status;
    struct hps_error spill_error;

    int fd; /* of the spill file; -1: nothing was spilled */
    uint64_t file_bytes;
    struct run *runs; /* [n_runs] of [runs_max] */
    size_t runs_max;
    size_t n_runs;

    /* PHASE_MERGE, and merge passes before it. */
    struct cursor *cursors;
    struct entry *heap; /* [n_heap] the next key of each run */
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

/* The buffer `out` as a target. */
struct target rowsort_out_target(const struct hps_rowsort *sort);
/* Open a spill file without a name, so that a crash leaves no file. */
hps_status rowsort_open_spill(const struct hps_rowsort *sort, int *out_fd, struct hps_error *err);
/* Append the first n records of `out` to the file, which has *file_bytes bytes. */
hps_status rowsort_write_out(struct hps_rowsort *sort, int fd, uint64_t *file_bytes, size_t n,
                             struct hps_error *err);

/* ---- rowsort_merge.c ------------------------------------------------------------------------- */

/* Number of runs that one pass can merge. *out_buffer_records is the capacity, in records, of the
 * buffer that each of these runs then has. */
size_t rowsort_fan_in(const struct hps_rowsort *sort, size_t *out_buffer_records);
/* Begin to merge runs[first .. first + k). All rows must have been spilled, because the merge uses
 * the arena for its buffers. */
hps_status rowsort_merge_begin(struct hps_rowsort *sort, size_t first, size_t k,
                               size_t buffer_records, struct hps_error *err);
/* Write the next records of the merge to `target`, at most max_records. Of several records with the
 * same key, writes only the one in the last run, which was added last. */
hps_status rowsort_merge_next(struct hps_rowsort *sort, size_t max_records,
                              const struct target *target, size_t *out_n, struct hps_error *err);
/* Run one merge pass: merge groups of runs into fewer and longer runs in a new file. */
hps_status rowsort_merge_runs(struct hps_rowsort *sort, struct hps_error *err);

#endif
