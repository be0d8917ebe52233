/* SPDX-License-Identifier: Apache-2.0
 *
 * The rows of one table of the host map: an area of fixed-width rows, named by 32-bit ids and
 * charged to the budget step by step. All but hps_host_row_at belongs to the table's writer.
 *
 * Memory is given back from the end: a limit is set, free rows from it on are put aside, the writer
 * moves the others below it (hps_host_rows_leaves), and when none is in use there the area is cut.
 */
#ifndef HPS_BACKENDS_HOST_ROWS_H
#define HPS_BACKENDS_HOST_ROWS_H

#include "backends/host/pages.h"
#include "base/status.h"

#define HPS_HOST_ROW_NONE UINT32_MAX

/* A list through the first bytes of free rows. */
struct hps_host_free_rows {
    uint32_t head;
    uint32_t last;
    uint64_t n;
};

struct hps_host_rows {
    struct hps_host_account *account;
    struct hps_host_area area;
    uint32_t row_bytes;
    uint32_t stride;      /* row_bytes rounded up to 16, or to 4 if they are below 256 */
    uint32_t extra_bytes; /* charged per row beside it, for what else a row needs */
    uint32_t step_shift;  /* log2 of the rows that are charged at once */
    uint64_t n_max;       /* row ids that the area has room for */
    uint64_t n_used;      /* row ids given out so far */
    uint64_t n_paid;      /* row ids charged to the budget */
    uint64_t huge_bytes;  /* of the area, as counted in the account */
    size_t stale_end;     /* bytes up to which there may be pages that are not paid any more */
    bool huge;            /* the area has huge pages */
    struct hps_host_free_rows free;
    /* While memory is given back; HPS_HOST_ROW_NONE: it is not. */
    uint32_t limit;
    struct hps_host_free_rows mixed; /* free, on either side of the limit */
    struct hps_host_free_rows out;   /* free, from the limit on */
};

/* What n_rows rows will be charged; UINT64_MAX if it does not fit 64 bits. */
uint64_t hps_host_rows_bytes(uint32_t row_bytes, uint32_t extra_bytes, uint64_t n_rows);

/* With address space for all rows that fit the budget, or, where many tables share a large
 * one, for several times the n_rows expected. NO_MEMORY: there is none. */
hps_status hps_host_rows_open(struct hps_host_rows *rows, struct hps_host_account *account,
                              uint32_t row_bytes, uint32_t extra_bytes, uint64_t n_rows)
    HPS_MUST_CHECK;
void hps_host_rows_close(struct hps_host_rows *rows);

/* Rows that can be taken without another charge. */
static inline uint64_t hps_host_rows_ready(const struct hps_host_rows *rows)
{
    return rows->free.n + rows->mixed.n + rows->out.n + (rows->n_paid - rows->n_used);
}

/* While memory is given back: whether a row has to go. */
static inline bool hps_host_rows_leaves(const struct hps_host_rows *rows, uint32_t row)
{
    return row >= rows->limit;
}

/* ... and how many rows are known to be ready for those that have to. */
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
/* A row to write; one must be ready. */
uint32_t hps_host_rows_take(struct hps_host_rows *rows);
/* Give a row back that no reader can have any more. */
void hps_host_rows_give(struct hps_host_rows *rows, uint32_t row);
/* Begin to give back what is not needed for n_keep rows; not while it is given back already. False:
 * there is nothing. Rows are taken from below the limit as long as there are some. */
bool hps_host_rows_shrink_begin(struct hps_host_rows *rows, uint64_t n_keep);
/* One bounded step. True: all rows from the limit on were free, and the budget has them back. */
bool hps_host_rows_shrink_step(struct hps_host_rows *rows);
/* Give the system some of the memory that is not charged to the budget any more, a bounded amount.
 * True: there is more. */
bool hps_host_rows_discard(struct hps_host_rows *rows);
/* Nothing is given back. */
void hps_host_rows_shrink_cancel(struct hps_host_rows *rows);
/* Give all memory back: no row is in use, and no reader inside. */
void hps_host_rows_clear(struct hps_host_rows *rows);

static inline uint8_t *hps_host_row_at(const struct hps_host_rows *rows, uint32_t row)
{
    return rows->area.start + (size_t)row * rows->stride;
}

#endif
