/* SPDX-License-Identifier: Apache-2.0
 *
 * The rows of one table of the host map: an area of fixed-width rows, named by 32-bit ids and
 * charged to the budget step by step. All but hps_host_row_at belongs to the table's writer.
 */
#ifndef HPS_BACKENDS_HOST_ROWS_H
#define HPS_BACKENDS_HOST_ROWS_H

#include "backends/host_pages.h"
#include "base/status.h"

#define HPS_HOST_ROW_NONE UINT32_MAX

struct hps_host_rows {
    struct hps_host_account *account;
    struct hps_host_area area;
    uint32_t row_bytes;
    uint32_t stride;      /* row_bytes rounded up to 16; 64 would cost narrow rows up to 4 x */
    uint32_t extra_bytes; /* charged per row beside it, for what else a row needs */
    uint32_t step_shift;  /* log2 of the rows that are charged at once */
    uint64_t n_max;       /* row ids that the area has room for */
    uint64_t n_used;      /* row ids given out so far */
    uint64_t n_paid;      /* row ids charged to the budget */
    uint64_t n_free;      /* on the free list */
    uint64_t huge_bytes;  /* of the area, as counted in the account */
    bool huge;            /* the area has huge pages */
    uint32_t free_row;    /* list through the first bytes of free rows */
};

/* What n_rows rows will be charged; UINT64_MAX if it does not fit 64 bits. */
uint64_t hps_host_rows_bytes(uint32_t row_bytes, uint32_t extra_bytes, uint64_t n_rows);

/* With address space for all rows that the budget could pay, or, where many tables share a large
 * one, for several times the n_rows expected. NO_MEMORY: there is none. */
hps_status hps_host_rows_open(struct hps_host_rows *rows, struct hps_host_account *account,
                              uint32_t row_bytes, uint32_t extra_bytes, uint64_t n_rows)
    HPS_MUST_CHECK;
void hps_host_rows_close(struct hps_host_rows *rows);

/* Rows that can be taken without another charge. */
static inline uint64_t hps_host_rows_ready(const struct hps_host_rows *rows)
{
    return rows->n_free + (rows->n_paid - rows->n_used);
}

/* Charge one more step. EXHAUSTED or NO_MEMORY. */
hps_status hps_host_rows_grow(struct hps_host_rows *rows) HPS_MUST_CHECK;
/* A row to write; one must be ready. */
uint32_t hps_host_rows_take(struct hps_host_rows *rows);
/* Give a row back that no reader can have any more. */
void hps_host_rows_give(struct hps_host_rows *rows, uint32_t row);
/* Give all memory back: no row is in use, and no reader inside. */
void hps_host_rows_clear(struct hps_host_rows *rows);

static inline uint8_t *hps_host_row_at(const struct hps_host_rows *rows, uint32_t row)
{
    return rows->area.start + (size_t)row * rows->stride;
}

#endif
