/* SPDX-License-Identifier: Apache-2.0
 *
 * Fixed-width rows in one reserved area. On the thread of the table's writer.
 */
#include "backends/host/rows.h"

#include <string.h>

#include "base/assert.h"

enum {
    /* Rows below this width are packed as tightly as the free list permits ... */
    NARROW_BYTES = 256,
    NARROW_ALIGN = 4,
    ROW_ALIGN = 16, /* ... wider rows lose little by alignment */
    /* A table uses small pages up to this many slabs, and huge pages after that. The last huge
     * page is mostly empty, and charged step by step; with a thousand tables that would waste
     * gigabytes. */
    SMALL_SLABS = 8,
    SORT_ROWS = 32,          /* free rows checked in one step of shrinking ... */
    DISCARD_BYTES = 4 << 20, /* ... and bytes returned to the system in one step */
};

/* A process has 2^47 bytes of address space, which a thousand tables with a large budget could
 * exhaust. The first 2^45 bytes are given out freely. After that a table gets space for
 * RESERVE_TIMES the rows it expects, and at least RESERVE_LEAST_BYTES. */
#define RESERVE_FREELY_BYTES (UINT64_C(1) << 45)
#define RESERVE_LEAST_BYTES  (UINT64_C(1) << 30)
enum { RESERVE_TIMES = 4 };

static uint32_t stride_of(uint32_t row_bytes)
{
    uint32_t align = row_bytes < NARROW_BYTES ? NARROW_ALIGN : ROW_ALIGN;
    return (row_bytes + align - 1) & ~(align - 1);
}

static uint32_t step_shift_of(uint32_t stride)
{
    return stride < HPS_HOST_STEP_BYTES ? 31 - (uint32_t)__builtin_clz(HPS_HOST_STEP_BYTES / stride)
                                        : 0;
}

uint64_t hps_host_rows_bytes(uint32_t row_bytes, uint32_t extra_bytes, uint64_t n_rows)
{
    uint32_t stride = stride_of(row_bytes);
    uint64_t n_step = UINT64_C(1) << step_shift_of(stride);
    uint64_t n_steps = n_rows / n_step + (n_rows % n_step != 0);
    uint64_t bytes;
    return __builtin_mul_overflow(n_steps, n_step * (stride + extra_bytes), &bytes) ? UINT64_MAX
                                                                                    : bytes;
}

/* Number of steps of rows to reserve address space for. */
static uint64_t steps_to_reserve(const struct hps_host_budget *budget, uint32_t step_shift,
                                 uint64_t step_bytes, uint64_t n_rows)
{
    uint64_t n_max = HPS_HOST_ROW_NONE >> step_shift;
    uint64_t n_all = budget->bytes_max / step_bytes + 1;
    n_all = n_all < n_max ? n_all : n_max;
    uint64_t reserved = atomic_load_explicit(&budget->reserved_bytes, memory_order_relaxed);
    if (reserved < RESERVE_FREELY_BYTES &&
        n_all <= (RESERVE_FREELY_BYTES - reserved) / step_bytes) {
        return n_all;
    }
    uint64_t n_least = RESERVE_LEAST_BYTES / step_bytes + 1;
    uint64_t n_few = ((n_rows < HPS_HOST_ROW_NONE ? n_rows : HPS_HOST_ROW_NONE) >> step_shift) + 1;
    n_few = n_few * RESERVE_TIMES > n_least ? n_few * RESERVE_TIMES : n_least;
    return n_few < n_all ? n_few : n_all;
}

hps_status hps_host_rows_open(struct hps_host_rows *rows, struct hps_host_account *account,
                              uint32_t row_bytes, uint32_t extra_bytes, uint64_t n_rows)
{
    uint32_t stride = stride_of(row_bytes);
    *rows = (struct hps_host_rows){.account = account,
                                   .row_bytes = row_bytes,
                                   .stride = stride,
                                   .extra_bytes = extra_bytes,
                                   .step_shift = step_shift_of(stride),
                                   .free = {.head = HPS_HOST_ROW_NONE},
                                   .mixed = {.head = HPS_HOST_ROW_NONE},
                                   .out = {.head = HPS_HOST_ROW_NONE},
                                   .limit = HPS_HOST_ROW_NONE};
    uint64_t n_step = UINT64_C(1) << rows->step_shift;
    uint64_t n_steps = steps_to_reserve(account->budget, rows->step_shift, n_step * stride, n_rows);
    /* the system may permit less, for example by a process limit */
    while (!hps_host_area_reserve(&rows->area, (size_t)(n_steps * n_step * stride))) {
        n_steps /= 2;
        if (n_steps == 0) {
            return HPS_NO_MEMORY;
        }
    }
    rows->n_max = n_steps * n_step;
    atomic_fetch_add_explicit(&account->budget->reserved_bytes, rows->area.bytes,
                              memory_order_relaxed);
    (void)hps_host_area_advise(&rows->area, account->budget, false);
    return HPS_OK;
}

static void huge_set(struct hps_host_rows *rows, uint64_t bytes)
{
    atomic_fetch_add_explicit(&rows->account->huge_bytes, bytes - rows->huge_bytes,
                              memory_order_relaxed); /* may wrap around, and wraps back later */
    rows->huge_bytes = bytes;
}

void hps_host_rows_close(struct hps_host_rows *rows)
{
    if (rows->account != NULL) {
        hps_host_discharge(rows->account, rows->n_paid * (rows->stride + rows->extra_bytes));
        huge_set(rows, 0);
        atomic_fetch_sub_explicit(&rows->account->budget->reserved_bytes, rows->area.bytes,
                                  memory_order_relaxed);
        hps_host_area_free(&rows->area);
    }
}

static uint64_t slabs_of(const struct hps_host_rows *rows, uint64_t n_rows)
{
    return (n_rows * rows->stride + HPS_HOST_HUGE_BYTES - 1) / HPS_HOST_HUGE_BYTES;
}

/* End of the memory that is paid for. With huge pages the last one counts whole. */
static size_t paid_end(const struct hps_host_rows *rows)
{
    size_t bytes = (size_t)rows->n_paid * rows->stride;
    size_t slabs = (size_t)slabs_of(rows, rows->n_paid) * HPS_HOST_HUGE_BYTES;
    slabs = slabs < rows->area.bytes ? slabs : rows->area.bytes;
    return rows->huge ? slabs : bytes;
}

/* The area grows into its n_slabs-th slab, which uses a huge page. Each such slab also merges one
 * of the small-page slabs, which spreads the work. */
static void slab_begin(struct hps_host_rows *rows, uint64_t n_slabs)
{
    uint64_t n_huge = n_slabs - SMALL_SLABS;
    if (!rows->huge) {
        rows->huge = hps_host_area_advise(&rows->area, rows->account->budget, true);
    }
    if (rows->huge && n_huge <= SMALL_SLABS) {
        hps_host_area_collapse(&rows->area, (size_t)(n_huge - 1) * HPS_HOST_HUGE_BYTES);
    }
}

/* Invariants between two calls of the writer. */
static void rows_sane(const struct hps_host_rows *rows)
{
    HPS_DEBUG_ASSERT(rows->n_used <= rows->n_paid);
    HPS_DEBUG_ASSERT(rows->n_paid <= rows->n_max);
    HPS_DEBUG_ASSERT(rows->free.n + rows->mixed.n + rows->out.n <= rows->n_used);
    HPS_DEBUG_ASSERT((rows->free.n == 0) == (rows->free.head == HPS_HOST_ROW_NONE));
    HPS_DEBUG_ASSERT((rows->out.n == 0) == (rows->out.head == HPS_HOST_ROW_NONE));
    HPS_DEBUG_ASSERT(rows->limit != HPS_HOST_ROW_NONE || rows->mixed.n + rows->out.n == 0);
}

hps_status hps_host_rows_grow(struct hps_host_rows *rows)
{
    uint64_t n_step = UINT64_C(1) << rows->step_shift;
    uint64_t bytes = n_step * (rows->stride + rows->extra_bytes);
    if (rows->n_paid + n_step > rows->n_max || !hps_host_charge(rows->account, bytes)) {
        return HPS_EXHAUSTED;
    }
    uint64_t n_slabs = slabs_of(rows, rows->n_paid + n_step);
    size_t slab_end = (size_t)n_slabs * HPS_HOST_HUGE_BYTES;
    slab_end = slab_end < rows->area.bytes ? slab_end : rows->area.bytes;
    if (!hps_host_area_commit(&rows->area, slab_end)) {
        hps_host_discharge(rows->account, bytes);
        return HPS_NO_MEMORY;
    }
    if (n_slabs > SMALL_SLABS && n_slabs > slabs_of(rows, rows->n_paid)) {
        slab_begin(rows, n_slabs);
    }
    if (rows->huge) {
        huge_set(rows, slab_end);
    }
    rows->n_paid += n_step;
    rows_sane(rows);
    return HPS_OK;
}

/* ---- free rows ------------------------------------------------------------------------------- */

static void list_push(const struct hps_host_rows *rows, struct hps_host_free_rows *list,
                      uint32_t row)
{
    memcpy(hps_host_row_at(rows, row), &list->head, sizeof(list->head));
    list->last = list->n == 0 ? row : list->last;
    list->head = row;
    list->n++;
}

static uint32_t list_pop(const struct hps_host_rows *rows, struct hps_host_free_rows *list)
{
    uint32_t row = list->head;
    HPS_DEBUG_ASSERT(list->n > 0 && row < rows->n_used);
    memcpy(&list->head, hps_host_row_at(rows, row), sizeof(list->head));
    list->n--;
    return row;
}

/* Prepend all rows of `more` to `list`. */
static void list_join(const struct hps_host_rows *rows, struct hps_host_free_rows *list,
                      struct hps_host_free_rows *more)
{
    if (more->n != 0) {
        memcpy(hps_host_row_at(rows, more->last), &list->head, sizeof(list->head));
        list->last = list->n == 0 ? more->last : list->last;
        list->head = more->head;
        list->n += more->n;
        *more = (struct hps_host_free_rows){.head = HPS_HOST_ROW_NONE};
    }
}

/* Sort some of the free rows into those below and above the limit. */
static void mixed_sort(struct hps_host_rows *rows)
{
    for (unsigned i = 0; i < SORT_ROWS && rows->mixed.n != 0; i++) {
        uint32_t row = list_pop(rows, &rows->mixed);
        list_push(rows, row < rows->limit ? &rows->free : &rows->out, row);
    }
}

uint32_t hps_host_rows_take(struct hps_host_rows *rows)
{
    if (rows->free.n == 0) {
        mixed_sort(rows);
    }
    if (rows->free.n != 0) {
        return list_pop(rows, &rows->free);
    }
    bool fresh = rows->n_used < rows->n_paid && rows->n_used < rows->limit;
    if (!fresh && rows->mixed.n != 0) {
        return list_pop(rows, &rows->mixed);
    }
    if (!fresh && rows->out.n != 0) { /* no other row is free, so it stays in use */
        return list_pop(rows, &rows->out);
    }
    HPS_ASSERT(rows->n_used < rows->n_paid);
    return (uint32_t)rows->n_used++;
}

void hps_host_rows_give(struct hps_host_rows *rows, uint32_t row)
{
    HPS_DEBUG_ASSERT(row < rows->n_used);
    list_push(rows, row < rows->limit ? &rows->free : &rows->out, row);
    rows_sane(rows);
}

/* ---- returning memory ------------------------------------------------------------------------ */

bool hps_host_rows_shrink_begin(struct hps_host_rows *rows, uint64_t n_keep)
{
    uint64_t n_step = UINT64_C(1) << rows->step_shift;
    uint64_t limit = (n_keep + n_step - 1) >> rows->step_shift << rows->step_shift;
    HPS_ASSERT(rows->limit == HPS_HOST_ROW_NONE);
    if (limit >= rows->n_paid) {
        return false;
    }
    rows->limit = (uint32_t)limit;
    list_join(rows, &rows->mixed, &rows->free);
    rows_sane(rows);
    return true;
}

void hps_host_rows_shrink_cancel(struct hps_host_rows *rows)
{
    list_join(rows, &rows->free, &rows->mixed);
    list_join(rows, &rows->free, &rows->out);
    rows->limit = HPS_HOST_ROW_NONE;
    rows_sane(rows);
}

/* Cut the area. No row at or above the limit is in use. */
static void truncate_to_limit(struct hps_host_rows *rows)
{
    uint64_t n = rows->limit;
    HPS_ASSERT(n < rows->n_paid && rows->mixed.n == 0);
    hps_host_discharge(rows->account, (rows->n_paid - n) * (rows->stride + rows->extra_bytes));
    rows->n_paid = n;
    rows->n_used = rows->n_used < n ? rows->n_used : n;
    rows->out = (struct hps_host_free_rows){.head = HPS_HOST_ROW_NONE};
    rows->limit = HPS_HOST_ROW_NONE;
    if (rows->huge && slabs_of(rows, n) > SMALL_SLABS) {
        huge_set(rows, paid_end(rows));
    } else if (rows->huge) {
        huge_set(rows, 0);
        rows->huge = false;
        (void)hps_host_area_advise(&rows->area, rows->account->budget, false);
    }
    rows->stale_end = rows->area.committed;
    rows_sane(rows);
}

bool hps_host_rows_discard(struct hps_host_rows *rows)
{
    size_t end = hps_host_pages_round(paid_end(rows));
    if (rows->stale_end > end) {
        size_t from = rows->stale_end - end > DISCARD_BYTES ? rows->stale_end - DISCARD_BYTES : end;
        hps_host_area_discard(&rows->area, from, rows->stale_end);
        rows->stale_end = from;
    }
    return rows->stale_end > end;
}

bool hps_host_rows_shrink_step(struct hps_host_rows *rows)
{
    HPS_ASSERT(rows->limit != HPS_HOST_ROW_NONE);
    mixed_sort(rows);
    uint64_t n_beyond = rows->n_used > rows->limit ? rows->n_used - rows->limit : 0;
    if (rows->mixed.n != 0 || rows->out.n != n_beyond) {
        return false;
    }
    truncate_to_limit(rows);
    return true;
}

void hps_host_rows_clear(struct hps_host_rows *rows)
{
    const struct hps_host_free_rows none = {.head = HPS_HOST_ROW_NONE};
    hps_host_discharge(rows->account, rows->n_paid * (rows->stride + rows->extra_bytes));
    hps_host_area_discard(&rows->area, 0, rows->area.committed);
    huge_set(rows, 0);
    rows->huge = false;
    (void)hps_host_area_advise(&rows->area, rows->account->budget, false);
    rows->n_used = 0;
    rows->n_paid = 0;
    rows->stale_end = 0;
    rows->free = none;
    rows->mixed = none;
    rows->out = none;
    rows->limit = HPS_HOST_ROW_NONE;
    rows_sane(rows);
}
