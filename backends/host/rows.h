/* SPDX-License-Identifier: Apache-2.0
 *
 * The rows of one table of the host map: an area of fixed-width rows with 32-bit ids, charged to
 * the budget in steps. Used by the table's writer only, except hps_host_row_at.
 *
 * Memory is returned from the end of the area. A limit is set, and free rows at or above it are set
 * aside. The writer moves used rows below it (hps_host_rows_leaves). When no row above the limit is
 * in use, the area is cut.
 */
#ifndef HPS_BACKENDS_HOST_ROWS_H
#define HPS_BACKENDS_HOST_ROWS_H

#include "backends/host/pages.h"
#include "base/status.h"

#define HPS_HOST_ROW_NONE UINT32_MAX

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
    uint32_t stride;      /* row_bytes rounded up to 16, or to 4 if below 256 */
    uint32_t extra_bytes; /* charged per row in addition, for other data of the row */
    uint32_t step_shift;  /* log2 of the rows charged per step */
    uint64_t n_max;       /* row ids that the area has space for */
    uint64_t n_used;      /* row ids handed out so far */
    uint64_t n_paid;      /* row ids charged to the budget */
    uint64_t huge_bytes;  /* of the area, as counted in the account */
    /* End of pages that are no longer paid for but not yet returned to the system. */
    size_t stale_end;
    bool huge; /* the area has huge pages */
    struct hps_host_free_rows free;
    /* While shrinking: the first row id to be returned. HPS_HOST_ROW_NONE: not shrinking. */
    uint32_t limit;
    struct hps_host_free_rows mixed; /* free, above or below the limit */
    struct hps_host_free_rows out;   /* free, at or above the limit */
};

/* The charge for n_rows rows; UINT64_MAX if it does not fit 64 bits. */
uint64_t hps_host_rows_bytes(uint32_t row_bytes, uint32_t extra_bytes, uint64_t n_rows);

/* Reserve address space for all rows that fit the budget. If many tables share a large budget,
 * reserve space for several times n_rows. NO_MEMORY: no address space. */
hps_status hps_host_rows_open(struct hps_host_rows *rows, struct hps_host_account *account,
                              uint32_t row_bytes, uint32_t extra_bytes, uint64_t n_rows)
    HPS_MUST_CHECK;
void hps_host_rows_close(struct hps_host_rows *rows);

/* Rows that can be taken without another charge. */
static inline uint64_t hps_host_rows_ready(const struct hps_host_rows *rows)
{
    return rows->free.n + rows->mixed.n + rows->out.n + (rows->n_paid - rows->n_used);
}

/* Whether this row must move or be freed to shrink the area. */
static inline bool hps_host_rows_leaves(const struct hps_host_rows *rows, uint32_t row)
{
    return row >= rows->limit;
}

/* Rows below the limit that are known to be free. */
static inline uint64_t hps_host_rows_below(const struct hps_host_rows *rows)
{
    return rows->free.n;
}

static inline bool hps_host_rows_shrinking(const struct hps_host_rows *rows)
{
    return rows->limit != HPS_HOST_ROW_NONE;
}

/* Charge one more step. EXHAUSTED or NO_MEMORY. */
hps_status hps_host_rows_grow(struct hps_host_rows *rows) HPS_MUST_CHECK;
/* Take a row to write. hps_host_rows_ready must not be 0. */
uint32_t hps_host_rows_take(struct hps_host_rows *rows);
/* Return a row that no reader can see any more. */
void hps_host_rows_give(struct hps_host_rows *rows, uint32_t row);
/* Begin to return memory that n_keep rows do not need. Must not be shrinking already. False:
 * nothing to return. Rows below the limit are taken first. */
bool hps_host_rows_shrink_begin(struct hps_host_rows *rows, uint64_t n_keep);
/* One bounded step of shrinking. True: all rows at or above the limit were free, and their bytes
 * are back in the budget. */
bool hps_host_rows_shrink_step(struct hps_host_rows *rows);
/* Return some of the memory that is no longer charged to the system, a bounded amount. True: there
 * is more. */
bool hps_host_rows_discard(struct hps_host_rows *rows);
/* Stop shrinking. */
void hps_host_rows_shrink_cancel(struct hps_host_rows *rows);
/* Return all memory. No row may be in use, and no reader inside. */
void hps_host_rows_clear(struct hps_host_rows *rows);

static inline uint8_t *hps_host_row_at(const struct hps_host_rows *rows, uint32_t row)
{
    return rows->area.start + (size_t)row * rows->stride;
}

#endif
