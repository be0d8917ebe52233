/* SPDX-License-Identifier: Apache-2.0
 *
 * The rows of one table of the host map: an area of fixed-width rows with 32-bit ids. The area is
 * charged to the budget in *steps* of about 64 KiB of rows. Only the table's writer calls the
 * functions of this file, with two exceptions: readers call hps_host_row_at, and any thread may
 * call hps_host_rows_bytes.
 *
 * Shrinking returns the end of the area to the system. It begins with a limit, which is a row id.
 * Free rows at or above the limit are kept in a separate list. The writer moves used rows at or
 * above the limit to free rows below it (hps_host_rows_leaves). When no row at or above the limit
 * is in use, the area is cut at the limit.
 */
#ifndef HPS_BACKENDS_HOST_ROWS_H
#define HPS_BACKENDS_HOST_ROWS_H

#include "backends/host/pages.h"
#include "base/status.h"

#define HPS_HOST_ROW_NONE UINT32_MAX

enum { HPS_HOST_STEP_BYTES = 64 << 10 }; /* about the bytes of a step, unless a row is wider */

/* A list linked through the first bytes of free rows. */
struct hps_host_free_rows {
    uint32_t head;
    uint32_t last;
    uint64_t n;
};

struct hps_host_rows {
    struct hps_host_account *account;
    struct hps_host_area area;
    uint32_t row_bytes;
    /* row_bytes, rounded up: to a multiple of 4 if row_bytes is below 256, else to a multiple of
     * 16. */
    uint32_t stride;
    uint32_t extra_bytes; /* also charged for each row, for data of the row outside the area */
    uint32_t step_shift;  /* log2 of the rows per step */
    uint64_t n_max;       /* number of row ids that the area has space for */
    uint64_t n_used;      /* row ids below this have been in use, and may be free again */
    uint64_t n_paid;      /* row ids below this are charged to the budget */
    uint64_t huge_bytes;  /* this area's part of account->huge_bytes */
    /* The pages from the end of the charged rows to this byte offset of the area must still be
     * returned to the system. */
    size_t stale_end;
    bool huge;                      /* the area has huge pages */
    struct hps_host_free_rows free; /* free rows below the limit */
    /* While shrinking: the first row id to be returned. HPS_HOST_ROW_NONE: not shrinking. */
    uint32_t limit;
    struct hps_host_free_rows mixed; /* free rows not yet compared with the limit */
    struct hps_host_free_rows out;   /* free rows at or above the limit */
};

/* Bytes charged to the budget for n_rows rows; UINT64_MAX if the number does not fit 64 bits. */
uint64_t hps_host_rows_bytes(uint32_t row_bytes, uint32_t extra_bytes, uint64_t n_rows);

/* Reserve address space for all rows that fit the budget. If the tables of the store have reserved
 * much already, reserve only space for a few times n_rows. NO_MEMORY: no address space. */
hps_status hps_host_rows_open(struct hps_host_rows *rows, struct hps_host_account *account,
                              uint32_t row_bytes, uint32_t extra_bytes, uint64_t n_rows)
    HPS_MUST_CHECK;
void hps_host_rows_close(struct hps_host_rows *rows);

/* Number of rows that can be taken without another charge. */
static inline uint64_t hps_host_rows_ready(const struct hps_host_rows *rows)
{
    return rows->free.n + rows->mixed.n + rows->out.n + (rows->n_paid - rows->n_used);
}

/* Whether this row is at or above the limit, so that it must move or be freed to shrink the
 * area. */
static inline bool hps_host_rows_leaves(const struct hps_host_rows *rows, uint32_t row)
{
    return row >= rows->limit;
}

/* Number of rows below the limit that are known to be free. */
static inline uint64_t hps_host_rows_below(const struct hps_host_rows *rows)
{
    return rows->free.n;
}

static inline bool hps_host_rows_shrinking(const struct hps_host_rows *rows)
{
    return rows->limit != HPS_HOST_ROW_NONE;
}

/* Charge one more step. Fails with EXHAUSTED or NO_MEMORY. */
hps_status hps_host_rows_grow(struct hps_host_rows *rows) HPS_MUST_CHECK;
/* Return the id of a free row, which the caller may write. hps_host_rows_ready must not be 0. */
uint32_t hps_host_rows_take(struct hps_host_rows *rows);
/* Free a row that no reader can see any more. */
void hps_host_rows_give(struct hps_host_rows *rows, uint32_t row);
/* Begin to shrink to n_keep rows, rounded up to a step. The area must not be shrinking already.
 * False: there is nothing to return. From now on, hps_host_rows_take prefers rows below the
 * limit. */
bool hps_host_rows_shrink_begin(struct hps_host_rows *rows, uint64_t n_keep);
/* One bounded step of shrinking. True: shrinking has ended; the rows at or above the limit are no
 * longer charged. hps_host_rows_discard returns their pages. */
bool hps_host_rows_shrink_step(struct hps_host_rows *rows);
/* Return to the system a bounded amount of memory that is no longer charged to the budget. True:
 * there is more to return. */
bool hps_host_rows_discard(struct hps_host_rows *rows);
/* Stop shrinking and keep the memory. */
void hps_host_rows_shrink_cancel(struct hps_host_rows *rows);
/* Return all memory. No row may be in use, and no reader may still see a row. */
void hps_host_rows_clear(struct hps_host_rows *rows);

static inline uint8_t *hps_host_row_at(const struct hps_host_rows *rows, uint32_t row)
{
    return rows->area.start + (size_t)row * rows->stride;
}

#endif
