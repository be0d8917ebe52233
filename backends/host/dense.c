/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranges of rows without an index. See dense.h. Functions of readers: any thread.
 */
#include "backends/host/dense.h"

#include <string.h>

#include "base/assert.h"
#include "base/heap.h"

enum {
    HOLES_SHARE = 5, /* at most one number in this many may lack a row */
    AHEAD = HPS_HOST_AHEAD,
    /* The index needs about this much for a row; its buckets of 5 keys are at most 4/5 full. */
    INDEX_ROW_BYTES = HPS_HOST_BUCKET_BYTES / 4,
    /* Heads of larger ranges use huge pages from the start; the last page may be mostly empty. */
    HUGE_HEADS_BYTES = 1 << 20,
    TIGHT_BYTES = 64 << 10, /* for holes of a small tight range */
    FULL_STEP = 64,         /* groups by which a write may raise n_full, which bounds its work */
};

/* gcc's ThreadSanitizer has no fences. In its builds, readers hold the lock. */
#ifdef HPS_TSAN
static void fence(memory_order order)
{
    (void)order;
}

static void tsan_enter(struct hps_host_dense *dense)
{
    hps_lock_acquire(&dense->lock);
}

static void tsan_leave(struct hps_host_dense *dense)
{
    hps_lock_release(&dense->lock);
}
#else
static inline void fence(memory_order order)
{
    atomic_thread_fence(order);
}

static inline void tsan_enter(struct hps_host_dense *dense)
{
    (void)dense;
}

static inline void tsan_leave(struct hps_host_dense *dense)
{
    (void)dense;
}
#endif

static inline uint64_t present_bit(uint64_t number)
{
    return UINT64_C(1) << (number % HPS_HOST_GROUP_ROWS);
}

/* ---- the writer ------------------------------------------------------------------------------ */

bool hps_host_dense_promising(const hps_key *keys, uint32_t n)
{
    if (n < HPS_HOST_GROUP_ROWS) {
        return false;
    }
    n = n / 2 > HPS_HOST_GROUP_ROWS ? n / 2 : HPS_HOST_GROUP_ROWS;
    uint64_t n_holes = keys[n - 1] - keys[0] - (n - 1);
    return n_holes <= HPS_HOST_GROUP_ROWS + n / (HOLES_SHARE - 1);
}

uint64_t hps_host_dense_extra(uint32_t row_bytes, bool tight)
{
    enum { ROW_ALIGN_MAX = 16 };
    uint64_t stride = row_bytes + (uint64_t)ROW_ALIGN_MAX;
    /* The last step of each area may be mostly empty: heads, and rows of the index. */
    uint64_t steps = 2 * (uint64_t)HPS_HOST_STEP_BYTES + stride;
    uint64_t holes = tight ? (uint64_t)TIGHT_BYTES : HPS_HOST_DENSE_HOLES * stride;
    return steps + holes + HPS_HOST_GROUP_ROWS * stride;
}

hps_status hps_host_dense_new(struct hps_host_account *account, uint32_t row_bytes, hps_key first,
                              uint64_t n_expected, bool tight, struct hps_host_dense **out_dense)
{
    struct hps_host_dense *dense =
        hps_alloc_aligned(_Alignof(struct hps_host_dense), sizeof(*dense));
    if (dense == NULL) {
        return HPS_NO_MEMORY;
    }
    memset(dense, 0, sizeof(*dense));
    dense->first = first;
    dense->n_expected = n_expected;
    dense->tight = tight;
    hps_lock_init(&dense->lock, HPS_LOCK_HOST_DENSE);
    hps_status status = hps_host_rows_open(&dense->rows, account, row_bytes, 0, n_expected);
    if (status == HPS_OK) {
        status = hps_host_rows_open(&dense->heads, account, sizeof(struct hps_host_group), 0,
                                    n_expected / HPS_HOST_GROUP_ROWS + 1);
    }
    if (status != HPS_OK) {
        hps_host_dense_free(dense);
        return status;
    }
    if (n_expected / HPS_HOST_GROUP_ROWS * sizeof(struct hps_host_group) >= HUGE_HEADS_BYTES) {
        (void)hps_host_area_advise(&dense->heads.area, account->budget, true);
    }
    *out_dense = dense;
    return HPS_OK;
}

void hps_host_dense_free(struct hps_host_dense *dense)
{
    if (dense != NULL) {
        hps_host_rows_close(&dense->rows);
        hps_host_rows_close(&dense->heads);
        hps_lock_fini(&dense->lock);
        hps_free_aligned(dense);
    }
}

bool hps_host_dense_wants(const struct hps_host_dense *dense, hps_key key)
{
    uint64_t number = key - dense->first;
    uint64_t n = atomic_load_explicit(&dense->n, memory_order_relaxed);
    HPS_DEBUG_ASSERT(number >= n);
    if (number - n >= HPS_HOST_DENSE_GAP) {
        return false;
    }
    uint64_t n_rows = hps_host_dense_rows(dense);
    uint64_t n_holes = number - n_rows;
    if (dense->tight && n_holes * dense->rows.stride > n_rows * INDEX_ROW_BYTES + TIGHT_BYTES) {
        return false;
    }
    return n_holes <= HPS_HOST_DENSE_HOLES + number / HOLES_SHARE;
}

/* Return the memory that a failed growth has charged. */
static void area_trim(struct hps_host_rows *rows)
{
    if (hps_host_rows_shrink_begin(rows, rows->n_used)) {
        (void)hps_host_rows_shrink_step(rows);
    }
}

static hps_status area_grow(struct hps_host_rows *rows, uint64_t n)
{
    hps_status status = HPS_OK;
    while (status == HPS_OK && rows->n_paid < n) {
        status = hps_host_rows_grow(rows);
    }
    return status;
}

hps_status hps_host_dense_grow(struct hps_host_dense *dense, hps_key key, uint64_t *out_n)
{
    uint64_t n_groups = (key - dense->first) / HPS_HOST_GROUP_ROWS + 1;
    hps_status status = area_grow(&dense->heads, n_groups);
    if (status == HPS_OK) {
        status = area_grow(&dense->rows, n_groups * HPS_HOST_GROUP_ROWS);
    }
    if (status != HPS_OK) {
        area_trim(&dense->heads);
        area_trim(&dense->rows);
        return status;
    }
    dense->heads.n_used = n_groups;
    dense->rows.n_used = n_groups * HPS_HOST_GROUP_ROWS;
    *out_n = dense->rows.n_used;
    return HPS_OK;
}

void hps_host_dense_publish(struct hps_host_dense *dense, uint64_t n)
{
    HPS_ASSERT(n == dense->rows.n_used);
    atomic_store_explicit(&dense->n, n, memory_order_release);
}

/* Raise n_full over rows that exist. */
static void full_raise(struct hps_host_dense *dense)
{
    const uint64_t before = atomic_load_explicit(&dense->n_full, memory_order_relaxed);
    uint64_t full = before;
    for (unsigned step = 0; step < FULL_STEP && full < dense->rows.n_used; step++) {
        const struct hps_host_group *group = hps_host_dense_group(dense, full);
        uint64_t present = atomic_load_explicit(&group->present, memory_order_relaxed);
        uint64_t missing = ~present & ~(present_bit(full) - 1);
        if (missing != 0) {
            full += (uint64_t)__builtin_ctzll(missing) - full % HPS_HOST_GROUP_ROWS;
            break;
        }
        full += HPS_HOST_GROUP_ROWS - full % HPS_HOST_GROUP_ROWS;
    }
    if (full != before) {
        atomic_store_explicit(&dense->n_full, full, memory_order_release);
    }
}

bool hps_host_dense_put(struct hps_host_dense *dense, hps_key key, const uint8_t *data)
{
    uint64_t number = key - dense->first;
    HPS_ASSERT(number < dense->rows.n_used);
    struct hps_host_group *group = hps_host_dense_group(dense, number);
    hps_lock_acquire(&dense->lock);
    uint64_t writes = atomic_load_explicit(&dense->writes, memory_order_relaxed);
    uint64_t present = atomic_load_explicit(&group->present, memory_order_relaxed);
    HPS_DEBUG_ASSERT(writes % 2 == 0);
    atomic_store_explicit(&group->version, writes + 1, memory_order_relaxed);
    atomic_store_explicit(&dense->writes, writes + 1, memory_order_release);
    fence(memory_order_release);
    memcpy(hps_host_row_at(&dense->rows, (uint32_t)number), data, dense->rows.row_bytes);
    atomic_store_explicit(&group->present, present | present_bit(number), memory_order_relaxed);
    atomic_store_explicit(&dense->writes, writes + 2, memory_order_release);
    hps_lock_release(&dense->lock);
    bool is_new = (present & present_bit(number)) == 0;
    atomic_fetch_add_explicit(&dense->n_rows, is_new ? 1 : 0, memory_order_relaxed);
    full_raise(dense);
    return is_new;
}

bool hps_host_dense_erase(struct hps_host_dense *dense, hps_key key)
{
    uint64_t number = key - dense->first;
    struct hps_host_group *group = hps_host_dense_group(dense, number);
    uint64_t present = atomic_load_explicit(&group->present, memory_order_relaxed);
    bool was = (present & present_bit(number)) != 0;
    if (number < atomic_load_explicit(&dense->n_full, memory_order_relaxed)) {
        /* For later readers it also publishes the rows that other writer threads wrote. */
        atomic_store_explicit(&dense->n_full, number, memory_order_release);
    }
    /* A reader that sees the delete also sees the new n_full later. */
    atomic_store_explicit(&group->present, present & ~present_bit(number), memory_order_release);
    atomic_fetch_sub_explicit(&dense->n_rows, was ? 1 : 0, memory_order_relaxed);
    return was;
}

void hps_host_dense_each(const struct hps_host_dense *dense, void (*fn)(void *ctx, hps_key key),
                         void *ctx)
{
    uint64_t n = atomic_load_explicit(&dense->n, memory_order_relaxed);
    for (uint64_t number = 0; number < n; number++) {
        if (hps_host_dense_has(dense, dense->first + number)) {
            fn(ctx, dense->first + number);
        }
    }
}

/* ---- readers --------------------------------------------------------------------------------- */

bool hps_host_dense_has(const struct hps_host_dense *dense, hps_key key)
{
    uint64_t number = key - dense->first;
    return hps_host_group_has(hps_host_dense_group(dense, number), number);
}

/* Rows below this number exist now. A later delete of such a row is concurrent with the lookup. */
static inline uint64_t full_now(const struct hps_host_dense *dense, uint64_t n)
{
    uint64_t full = atomic_load_explicit(&dense->n_full, memory_order_acquire);
    return full < n ? full : n;
}

/* Inputs and result of the loop over keys. Copies, so that they stay in registers despite the
 * writes to block and seen. */
struct finder {
    const struct hps_host_group *groups;
    const uint8_t *rows;
    size_t stride;
    uint64_t n_full;
    uint32_t n_found;
};

static inline __attribute__((always_inline)) void number_find(struct finder *finder,
                                                              uint64_t number,
                                                              struct hps_host_block *block,
                                                              struct hps_host_seen *seen,
                                                              uint32_t i)
{
    bool has = number < finder->n_full ||
               hps_host_group_has(finder->groups + number / HPS_HOST_GROUP_ROWS, number);
    seen->numbers[i] = (uint32_t)number;
    block->rows[i] = has ? finder->rows + number * finder->stride : NULL;
    finder->n_found += has ? 1 : 0;
}

/* Find keys in the index. `outside`: indexes of keys in the block. */
static void outside_find(const struct hps_host_dense *dense, const struct hps_host_lookup *lookup,
                         const hps_key *keys, struct hps_host_block *block,
                         struct hps_host_seen *seen, struct finder *finder, const uint16_t *outside,
                         uint32_t n_outside)
{
    for (uint32_t o = 0; o < n_outside; o++) {
        uint32_t i = outside[o];
        block->buckets[i] = hps_host_aim(block->now, hps_host_hash(lookup->index->seed, keys[i]));
        __builtin_prefetch(block->buckets[i], 0, 2);
        seen->numbers[i] = HPS_HOST_ROW_NONE;
        block->rows[i] = NULL;
    }
    for (uint32_t o = 0; o < n_outside; o++) {
        uint32_t i = outside[o];
        struct hps_host_place place = hps_host_probe(block->buckets[i], keys[i]);
        if (place.bucket != NULL) {
            block->rows[i] = lookup->rows + (size_t)hps_host_row_of(place) * lookup->stride;
            finder->n_found++;
            if (lookup->note == HPS_HOST_NOTE_TOUCH) {
                hps_host_touch(place);
            }
        } else if (hps_host_dense_covers(dense, keys[i])) { /* the range has grown since */
            number_find(finder, keys[i] - dense->first, block, seen, i);
        }
    }
}

/* An even number; later writes may change the rows that are read from now on. A write that is in
 * progress counts as a later one. */
static inline uint64_t writes_now(const struct hps_host_dense *dense)
{
    return atomic_load_explicit(&dense->writes, memory_order_acquire) & ~UINT64_C(1);
}

/* Whether there was no write after `since` before this call. */
static inline bool quiet(const struct hps_host_dense *dense, uint64_t since)
{
    fence(memory_order_acquire);
    return atomic_load_explicit(&dense->writes, memory_order_relaxed) == since;
}

/* Whether no write after `since` has changed a row of keys [lo, hi) before this call. */
static bool unchanged(const struct hps_host_dense *dense, const struct hps_host_seen *seen,
                      uint64_t since, uint32_t lo, uint32_t hi)
{
    if (quiet(dense, since)) {
        return true;
    }
    bool same = true;
    for (uint32_t i = lo; i < hi; i++) {
        if (seen->numbers[i] != HPS_HOST_ROW_NONE) {
            const struct hps_host_group *group = hps_host_dense_group(dense, seen->numbers[i]);
            uint64_t version = atomic_load_explicit(&group->version, memory_order_relaxed);
            same = same && version <= since;
        }
    }
    return same;
}

void hps_host_dense_fetch(const struct hps_host_dense *dense, const struct hps_host_lookup *lookup,
                          const hps_key *keys, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (hps_host_dense_covers(dense, keys[i])) {
            hps_host_row_fetch(lookup,
                               hps_host_row_at(&dense->rows, (uint32_t)(keys[i] - dense->first)));
        }
    }
}

void hps_host_dense_probe(struct hps_host_dense *dense, const struct hps_host_lookup *lookup,
                          const hps_key *keys, struct hps_host_block *block,
                          struct hps_host_seen *seen)
{
    uint16_t outside[HPS_HOST_BLOCK_KEYS];
    uint32_t n_outside = 0;
    uint64_t n = atomic_load_explicit(&dense->n, memory_order_acquire);
    HPS_DEBUG_ASSERT(lookup->note != HPS_HOST_NOTE_PLACE);
    tsan_enter(dense);
    seen->writes = writes_now(dense);
    struct finder finder = {.groups = hps_host_dense_group(dense, 0),
                            .rows = dense->rows.area.start,
                            .stride = dense->rows.stride,
                            .n_full = full_now(dense, n)};
    const hps_key first = dense->first;
    const uint32_t n_keys = block->n;
    for (uint32_t i = 0; i < n_keys; i++) {
        uint64_t number = keys[i] - first;
        uint64_t later = i + AHEAD < n_keys ? keys[i + AHEAD] - first : number;
        if (later >= finder.n_full && later < n) {
            __builtin_prefetch(finder.groups + later / HPS_HOST_GROUP_ROWS, 0, 3);
        }
        if (number < n) {
            number_find(&finder, number, block, seen, i);
        } else {
            outside[n_outside++] = (uint16_t)i;
        }
    }
    if (n_outside > 0) {
        outside_find(dense, lookup, keys, block, seen, &finder, outside, n_outside);
    }
    block->n_found = finder.n_found;
}

bool hps_host_dense_valid(const struct hps_host_dense *dense, const struct hps_host_seen *seen,
                          uint32_t lo, uint32_t hi)
{
    return unchanged(dense, seen, seen->writes, lo, hi);
}

void hps_host_dense_again(struct hps_host_dense *dense, const struct hps_host_seen *seen,
                          uint32_t lo, uint32_t hi, void (*read)(void *ctx), void *ctx)
{
    for (unsigned try = 0; try < HPS_HOST_DENSE_TRIES; try++) {
        uint64_t since = writes_now(dense);
        read(ctx);
        if (unchanged(dense, seen, since, lo, hi)) {
            return;
        }
    }
    hps_lock_acquire(&dense->lock);
    read(ctx);
    hps_lock_release(&dense->lock);
}

void hps_host_dense_leave(struct hps_host_dense *dense)
{
    tsan_leave(dense);
}

struct row_read {
    const struct hps_host_lookup *lookup;
    uint8_t *to;
    const uint8_t *from;
};

static void row_read(void *ctx)
{
    const struct row_read *row = ctx;
    hps_host_row_read(row->lookup, row->to, row->from);
}

/* Read rows of the block again that writes have changed since the first step. */
static void rows_check(struct hps_host_dense *dense, const struct hps_host_lookup *lookup,
                       const struct hps_host_block *block, const struct hps_host_seen *seen,
                       const uint32_t *slots)
{
    if (lookup->out.stream) {
        hps_row_stream_end(); /* before a row is written again */
    }
    for (uint32_t i = 0; i < block->n; i++) {
        if (block->rows[i] != NULL && !hps_host_dense_valid(dense, seen, i, i + 1)) {
            struct row_read row = {lookup, hps_host_out_at(&lookup->out, slots[i]), block->rows[i]};
            hps_host_dense_again(dense, seen, i, i + 1, row_read, &row);
        }
    }
}

/* Look up keys [lo, hi), the last of the batch, in the range alone. If the range lacks a key,
 * returns false; keys, slots and n of the batch have not changed. */
static bool span_run(struct hps_host_dense *dense, const struct hps_host_lookup *lookup,
                     const struct hps_host_kernel *kernel, struct hps_batch *batch, uint32_t lo,
                     uint32_t hi, struct hps_host_block *block, struct hps_host_seen *seen)
{
    const uint64_t n = atomic_load_explicit(&dense->n, memory_order_acquire);
    struct hps_host_span span = {.first = dense->first,
                                 .n = n,
                                 .groups = hps_host_dense_group(dense, 0),
                                 .rows = dense->rows.area.start};
    tsan_enter(dense);
    seen->writes = writes_now(dense);
    span.n_full = full_now(dense, n);
    block->span = &span;
    block->lo = lo;
    block->n = hi - lo;
    kernel->copy(lookup, batch, block);
    bool all = batch->n == lo;
    for (; all && lo < hi && !quiet(dense, seen->writes); lo += block->n) {
        block->n = hi - lo < HPS_HOST_BLOCK_KEYS ? hi - lo : HPS_HOST_BLOCK_KEYS;
        for (uint32_t i = 0; i < block->n; i++) {
            seen->numbers[i] = (uint32_t)(batch->keys[lo + i] - span.first);
            __builtin_prefetch(hps_host_dense_group(dense, seen->numbers[i]), 0, 3);
            block->rows[i] = hps_host_row_at(&dense->rows, seen->numbers[i]);
        }
        rows_check(dense, lookup, block, seen, batch->slots + lo);
    }
    hps_host_dense_leave(dense);
    return all;
}

static void block_run(struct hps_host_dense *dense, const struct hps_host_lookup *lookup,
                      const struct hps_host_kernel *kernel, struct hps_batch *batch,
                      struct hps_host_block *block, struct hps_host_seen *seen)
{
    uint32_t slots[HPS_HOST_BLOCK_KEYS]; /* of the block, before the copy swaps them */
    memcpy(slots, batch->slots + block->lo, block->n * sizeof(*slots));
    block->span = NULL;
    hps_host_dense_probe(dense, lookup, batch->keys + block->lo, block, seen);
    kernel->copy(lookup, batch, block);
    if (!hps_host_dense_valid(dense, seen, 0, block->n)) {
        rows_check(dense, lookup, block, seen, slots);
    }
    hps_host_dense_leave(dense);
}

void hps_host_dense_run(struct hps_host_dense *dense, const struct hps_host_lookup *lookup,
                        const struct hps_host_kernel *kernel, struct hps_batch *batch, uint32_t lo,
                        uint32_t hi)
{
    struct hps_host_block block;
    struct hps_host_seen seen;
    if (hi == batch->n && span_run(dense, lookup, kernel, batch, lo, hi, &block, &seen)) {
        hi = lo;
    }
    block.now = atomic_load_explicit(&lookup->index->now, memory_order_acquire);
    while (hi > lo) {
        block.n = hi - lo < HPS_HOST_BLOCK_KEYS ? hi - lo : HPS_HOST_BLOCK_KEYS;
        hi -= block.n;
        block.lo = hi;
        block_run(dense, lookup, kernel, batch, &block, &seen);
    }
    if (lookup->out.stream) {
        hps_row_stream_end();
    }
}
