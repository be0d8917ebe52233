/* SPDX-License-Identifier: Apache-2.0
 *
 * A writer puts a new row next to the old one and publishes its id. The old row is reused once
 * every reader has left. So a published row never changes, no reader sees half a row, and readers
 * and writers do not wait for each other. Rows of a dense range are written in place (dense.h). Any
 * thread, one writer at a time.
 */
#include "backends/host/table.h"

#include <sched.h>
#include <string.h>

#include "base/assert.h"
#include "base/heap.h"
#include "base/lock.h"

enum {
    LIMBO_USUAL = 256,          /* entries that may wait before each call pops some */
    LIMBO_POPS = 4,             /* popped per call */
    SPARE_SHARE = 512,          /* one row in this many is kept as a spare for replacements ... */
    SPARE_SHARE_EVICTING = 256, /* ... in a table that evicts, where rows change all the time */
    SPARE_MAX = 4096,
    /* Rows that may wait for readers in a small table: one batch of updates. */
    WAIT_BYTES = 16 << 20,
    WALK_BUCKETS = 4,     /* checked per call for rows to be moved */
    EXCESS_STEPS = 4,     /* minimum of unneeded rows before they are returned ... */
    EXCESS_SHARE = 4,     /* ... and minimum share of all rows */
    RESERVE_STEPS = 1024, /* of a growth, before the lock is released */
    VICTIM_TRIES = 8,
    GIVE_WAY_EVERY = 256, /* failures to grow; the search covers all tables */
    DRAIN_ROWS = 2,       /* evicted for each added row, from rows_max down to rows_target */
    WRITE_AHEAD = 16,     /* keys between prefetch and use of a bucket */
    /* A dense range has ended when it has refused FAR_LEAST keys, plus one for every FAR_SHARE
     * expected rows that it lacks. Lookups and updates ahead of a refill add fewer keys. */
    FAR_LEAST = 1024,
    FAR_SHARE = 16,
};

static uint64_t spare_for(const struct hps_host_shared *shared, uint64_t n_rows)
{
    uint64_t n = n_rows / (shared->evicts ? SPARE_SHARE_EVICTING : SPARE_SHARE);
    return n < SPARE_MAX ? 1 + n : SPARE_MAX;
}

static uint32_t extra_bytes(const struct hps_host_shared *shared)
{
    return shared->evicts ? HPS_HOST_EVICT_ROW_BYTES : 0;
}

uint64_t hps_host_table_bytes(const struct hps_host_shared *shared, uint32_t row_bytes,
                              uint64_t n_rows)
{
    uint64_t n_all = n_rows == 0 ? 0 : n_rows + spare_for(shared, n_rows);
    uint64_t rows = hps_host_rows_bytes(row_bytes, extra_bytes(shared), n_all);
    uint64_t bytes;
    return __builtin_add_overflow(rows, hps_host_index_bytes(n_rows), &bytes) ? UINT64_MAX : bytes;
}

hps_status hps_host_table_new(struct hps_host_shared *shared, uint32_t row_bytes, uint64_t n_rows,
                              atomic_bool *incomplete, struct hps_host_table **out_table)
{
    struct hps_host_table *table = hps_calloc(1, sizeof(*table));
    if (table == NULL) {
        return HPS_NO_MEMORY;
    }
    table->shared = shared;
    table->incomplete = incomplete;
    hps_lock_init(&table->lock, HPS_LOCK_HOST_TABLE);
    hps_host_account_init(&table->account, &shared->budget);
    hps_status status = hps_host_limbo_open(&table->limbo, shared->epoch);
    if (status == HPS_OK) {
        status = hps_host_rows_open(&table->rows, &table->account, row_bytes, extra_bytes(shared),
                                    n_rows);
    }
    if (status == HPS_OK) {
        status =
            hps_host_index_open(&table->index, &table->account, shared->epoch, shared->seed, 0);
    }
    if (status != HPS_OK) {
        hps_host_table_free(table);
        return status;
    }
    *out_table = table;
    return HPS_OK;
}

void hps_host_table_free(struct hps_host_table *table)
{
    if (table != NULL) {
        hps_host_dense_free(hps_host_table_dense(table));
        hps_host_dense_free(table->dense_cleared);
        hps_host_index_close(&table->index);
        hps_host_rows_close(&table->rows);
        hps_host_limbo_close(&table->limbo);
        hps_host_evict_close(&table->evict);
        hps_lock_fini(&table->lock);
        hps_free(table);
    }
}

/* ---- data that readers may still see --------------------------------------------------------- */

static bool limbo_pop(struct hps_host_table *table)
{
    struct hps_host_gone gone;
    if (!hps_host_limbo_pop(&table->limbo, &gone)) {
        return false;
    }
    /* The row identifies the erasure, since the key may have been added and erased again. */
    if (gone.generation != 0 &&
        hps_host_index_is_dead(&table->index, gone.generation, gone.slot, gone.row)) {
        hps_host_index_bury(&table->index, gone.generation, gone.slot);
    }
    hps_host_rows_give(&table->rows, gone.row);
    return true;
}

static void limbo_empty(struct hps_host_table *table)
{
    hps_host_limbo_seal(&table->limbo);
    while (limbo_pop(table)) {
    }
}

static void retire(struct hps_host_table *table, const struct hps_host_gone *gone)
{
    while (!hps_host_limbo_push(&table->limbo, gone)) {
        /* No memory for an entry. Only in this case a writer waits. Readers leave after a block of
         * keys. */
        limbo_empty(table);
        sched_yield();
    }
}

/* Limit of rows that wait for readers: the number of rows of the table, and at least one batch. A
 * reader that stays long must not make a small table large. */
static uint64_t wait_max(const struct hps_host_table *table)
{
    uint64_t n = WAIT_BYTES / (table->rows.stride + HPS_HOST_GONE_BYTES) + 1;
    return n > table->index.n_keys ? n : table->index.n_keys;
}

static uint32_t row_write(struct hps_host_table *table, const uint8_t *data)
{
    uint32_t row = hps_host_rows_take(&table->rows);
    memcpy(hps_host_row_at(&table->rows, row), data, table->rows.row_bytes);
    return row;
}

static void row_publish(struct hps_host_table *table, struct hps_host_place place,
                        const uint8_t *data)
{
    struct hps_host_gone old = {.row = hps_host_row_of(place)};
    atomic_store_explicit(&place.bucket->rows[place.slot], row_write(table, data),
                          memory_order_release);
    retire(table, &old);
}

/* ---- returning memory ------------------------------------------------------------------------ */

/* Move a row below the limit. False: no row is free there now. */
static bool row_move(void *ctx, struct hps_host_place place)
{
    struct hps_host_table *table = ctx;
    uint32_t row = hps_host_row_of(place);
    if (!hps_host_rows_leaves(&table->rows, row)) {
        return true;
    }
    if (hps_host_rows_below(&table->rows) == 0 || table->limbo.n >= wait_max(table)) {
        return false;
    }
    row_publish(table, place, hps_host_row_at(&table->rows, row));
    return true;
}

/* Begin to shrink if more rows are ready than needed. A table that evicts and has been full keeps
 * all of its memory. */
static void shrink_begin(struct hps_host_table *table)
{
    uint64_t n_keep = table->index.n_keys + spare_for(table->shared, table->index.n_keys);
    uint64_t n_ready = hps_host_rows_ready(&table->rows);
    uint64_t n_least = (uint64_t)EXCESS_STEPS << table->rows.step_shift;
    if (!table->evict.on && n_ready >= n_least && n_ready >= n_keep / EXCESS_SHARE &&
        n_ready >= table->limbo.n) {
        n_keep += table->limbo.n + n_keep / (2 * EXCESS_SHARE) + n_least / 2;
        table->moved = (struct hps_host_cursor){0};
        (void)hps_host_rows_shrink_begin(&table->rows, n_keep);
    }
}

/* One bounded step of returning memory that rows and index no longer need. */
static void shrink(struct hps_host_table *table)
{
    struct hps_host_rows *rows = &table->rows;
    hps_host_index_fit(&table->index);
    (void)hps_host_rows_discard(rows);
    if (!hps_host_rows_shrinking(rows)) {
        shrink_begin(table);
    } else if (table->index.n_keys + spare_for(table->shared, table->index.n_keys) > rows->limit) {
        hps_host_rows_shrink_cancel(rows); /* the table has grown since */
    } else if (!hps_host_rows_shrink_step(rows) &&
               hps_host_index_walk(&table->index, &table->moved, WALK_BUCKETS, row_move, table)) {
        /* Walk again: writers may have added rows during the walk. */
        table->moved = (struct hps_host_cursor){0};
        hps_host_limbo_seal(&table->limbo);
    }
}

/* A bounded part of the pending background work, done in each call. */
static void work(struct hps_host_table *table)
{
    uint64_t n_few = table->evict.on ? spare_for(table->shared, table->index.n_keys) / 2 : 0;
    (void)hps_host_index_step(&table->index);
    shrink(table);
    if (hps_host_rows_ready(&table->rows) < n_few) {
        hps_host_limbo_seal(&table->limbo); /* so that rows are free before they are needed */
    } else if (table->limbo.n <= LIMBO_USUAL && !hps_host_rows_shrinking(&table->rows)) {
        return;
    }
    for (unsigned i = 0; i < LIMBO_POPS && limbo_pop(table); i++) {
    }
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* The budget refused memory. True: a table with a lower claim has freed some; try again. */
static bool way_given(struct hps_host_table *table)
{
    struct hps_host_shared *shared = table->shared;
    if (shared->give_way == NULL || !atomic_load(&table->active) || !table->account.starved) {
        return false;
    }
    if (table->n_refused % GIVE_WAY_EVERY != 0) {
        table->n_refused++;
        return false;
    }
    enum hps_host_way way = shared->give_way(shared, table);
    table->n_refused += way == HPS_HOST_WAY_NONE ? 1 : 0;
    table->awaits = way == HPS_HOST_WAY_SOON;
    return way == HPS_HOST_WAY_GIVEN;
}

/* Grow by a step of rows, if needed with memory of another table. */
static hps_status rows_grow(struct hps_host_table *table)
{
    hps_status status = hps_host_rows_grow(&table->rows);
    return status == HPS_EXHAUSTED && way_given(table) ? hps_host_rows_grow(&table->rows) : status;
}

/* Ensure that a row can be taken while n_keep others remain, including those in limbo, so that a
 * full table can still replace rows. EXHAUSTED: the budget is used up, or readers still hold as
 * many old rows as permitted. Does not wait for them. */
static hps_status row_ready(struct hps_host_table *table, uint64_t n_keep)
{
    struct hps_host_rows *rows = &table->rows;
    while (hps_host_rows_ready(rows) + table->limbo.n < n_keep + 1) {
        hps_status status = rows_grow(table);
        if (status != HPS_OK) {
            return status;
        }
    }
    if (hps_host_rows_ready(rows) == 0) {
        limbo_empty(table);
    }
    if (hps_host_rows_ready(rows) == 0 && table->limbo.n < wait_max(table)) {
        return hps_host_rows_grow(rows);
    }
    return hps_host_rows_ready(rows) != 0 ? HPS_OK : HPS_EXHAUSTED;
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* The dense range if it has a place for the key, else NULL. */
static struct hps_host_dense *dense_of(const struct hps_host_table *table, hps_key key)
{
    struct hps_host_dense *dense = hps_host_table_dense(table);
    return dense != NULL && hps_host_dense_covers(dense, key) ? dense : NULL;
}

static void key_remove(struct hps_host_table *table, struct hps_host_place place)
{
    struct hps_host_gone gone = {.row = hps_host_row_of(place)};
    hps_host_index_kill(&table->index, place, &gone.generation, &gone.slot);
    atomic_fetch_sub_explicit(&table->n_rows, 1, memory_order_relaxed);
    retire(table, &gone);
}

/* From now on a miss proves nothing. Set before the key is removed. */
static void lose(struct hps_host_table *table)
{
    if (!atomic_load_explicit(table->incomplete, memory_order_relaxed)) {
        atomic_store(table->incomplete, true);
    }
}

/* Evict one key. False: none was found. */
static bool evict_one(struct hps_host_table *table, uint32_t *n_evicted)
{
    if (!table->evict.on) {
        hps_host_evict_start(&table->evict, table->rows.n_paid);
        atomic_store_explicit(&table->touched, true, memory_order_relaxed);
    }
    for (unsigned i = 0; i < VICTIM_TRIES && table->index.n_keys > 0; i++) {
        struct hps_host_place place = hps_host_evict_victim(&table->evict, &table->index);
        if (place.bucket != NULL) {
            lose(table);
            key_remove(table, place);
            (*n_evicted)++;
            atomic_fetch_add_explicit(&table->n_evicted, 1, memory_order_relaxed);
            if (table->shared->lossy) {
                atomic_fetch_add_explicit(&table->n_dropped, 1, memory_order_relaxed);
            }
            return true;
        }
    }
    return false;
}

static hps_status row_replace(struct hps_host_table *table, struct hps_host_place place,
                              const uint8_t *data)
{
    hps_status status = row_ready(table, 0);
    if (status != HPS_OK) {
        /* Drop the row rather than keep an old one. */
        if (table->shared->evicts && !table->shared->lossy) {
            lose(table);
            key_remove(table, place);
        }
        return status;
    }
    row_publish(table, place, data);
    return HPS_OK;
}

static hps_status ensure_index_capacity(struct hps_host_table *table)
{
    hps_status status = hps_host_index_ensure_capacity(&table->index);
    if (status != HPS_OK) {
        limbo_empty(table); /* frees slots of erased keys */
        status = hps_host_index_ensure_capacity(&table->index);
    }
    if (status == HPS_EXHAUSTED && way_given(table)) {
        status = hps_host_index_ensure_capacity(&table->index);
    }
    return status;
}

/* Make space for one more key, in the index and for its row. On failure, `awaits` says whether
 * there will be space once readers have left. */
static hps_status ensure_capacity(struct hps_host_table *table)
{
    table->awaits = false;
    hps_status status = ensure_index_capacity(table);
    if (status != HPS_OK) {
        table->awaits = table->awaits || table->index.n_dead != 0;
        return status;
    }
    uint64_t n_keep = spare_for(table->shared, table->index.n_keys + 1);
    status = row_ready(table, n_keep);
    table->awaits = table->awaits || hps_host_rows_ready(&table->rows) + table->limbo.n > n_keep;
    return status;
}

/* At rows_max: gradually evict down to rows_target. */
static void drain(struct hps_host_table *table, uint32_t *n_evicted)
{
    const struct hps_host_shared *shared = table->shared;
    table->draining = table->draining || table->index.n_keys >= shared->rows_max;
    for (unsigned i = 0; i < DRAIN_ROWS && table->draining; i++) {
        if (table->index.n_keys < shared->rows_target || !evict_one(table, n_evicted)) {
            table->draining = false;
        }
    }
}

static hps_status row_add(struct hps_host_table *table, hps_key key, const uint8_t *data)
{
    uint64_t hash = hps_host_hash(table->index.seed, key);
    HPS_DEBUG_ASSERT(hps_host_index_find(&table->index, key).bucket == NULL);
    HPS_DEBUG_ASSERT(!table->clearing);
    bool probation = hps_host_evict_probation(&table->evict, hash);
    uint32_t row = row_write(table, data);
    hps_status status = hps_host_index_add(&table->index, key, row, probation);
    if (status == HPS_EXHAUSTED && hps_host_index_widen(&table->index) == HPS_OK) {
        status = hps_host_index_add(&table->index, key, row, probation);
    }
    if (status != HPS_OK) {
        hps_host_rows_give(&table->rows, row); /* no reader has seen it */
        return status;
    }
    if (probation) {
        hps_host_evict_entered(&table->evict, key);
    }
    atomic_fetch_add_explicit(&table->n_rows, 1, memory_order_relaxed);
    HPS_DEBUG_ASSERT(hps_host_table_rows(table) >= table->index.n_keys);
    return HPS_OK;
}

/* ---- the dense range ------------------------------------------------------------------------- */

static void dense_put(struct hps_host_table *table, struct hps_host_dense *dense, hps_key key,
                      const uint8_t *data)
{
    if (hps_host_dense_put(dense, key, data)) {
        atomic_fetch_add_explicit(&table->n_rows, 1, memory_order_relaxed);
    }
}

/* Grow the range to `key`. The rows that the index has of the new part move into the range. False:
 * there is no memory. */
static bool dense_grow(struct hps_host_table *table, struct hps_host_dense *dense, hps_key key)
{
    uint64_t n = atomic_load_explicit(&dense->n, memory_order_relaxed);
    uint64_t n_new;
    if (hps_host_dense_grow(dense, key, &n_new) != HPS_OK) {
        return false;
    }
    for (uint64_t number = n; table->index.n_keys > 0 && number < n_new; number++) {
        struct hps_host_place place = hps_host_index_find(&table->index, dense->first + number);
        if (place.bucket != NULL) {
            dense_put(table, dense, dense->first + number,
                      hps_host_row_at(&table->rows, hps_host_row_of(place)));
        }
    }
    hps_host_dense_publish(dense, n_new);
    dense->n_far = 0;
    for (uint64_t number = n; table->index.n_keys > 0 && number < n_new; number++) {
        struct hps_host_place place = hps_host_index_find(&table->index, dense->first + number);
        if (place.bucket != NULL) {
            key_remove(table, place);
        }
    }
    return true;
}

/* The dense range, if it covers the key or can grow to it, else NULL. */
static struct hps_host_dense *dense_for(struct hps_host_table *table, hps_key key)
{
    struct hps_host_dense *dense = hps_host_table_dense(table);
    if (dense == NULL || hps_host_dense_covers(dense, key)) {
        return dense;
    }
    if (hps_host_dense_wants(dense, key)) {
        return dense_grow(table, dense, key) ? dense : NULL;
    }
    uint64_t n_rows = hps_host_dense_rows(dense);
    uint64_t n_left = dense->n_expected > n_rows ? dense->n_expected - n_rows : 0;
    dense->n_far++;
    if (n_left > 0 && dense->n_far >= FAR_LEAST + n_left / FAR_SHARE) {
        dense->n_expected = 0; /* reserve once */
        /* The index gets the other rows. It grows in steps if there is no memory now. */
        hps_ignore(hps_host_index_reserve(&table->index, n_left));
    }
    return NULL;
}

bool hps_host_table_has(struct hps_host_table *table, hps_key key)
{
    const struct hps_host_dense *dense = dense_for(table, key);
    return dense != NULL ? hps_host_dense_has(dense, key)
                         : hps_host_index_find(&table->index, key).bucket != NULL;
}

hps_status hps_host_table_put(struct hps_host_table *table, hps_key key, const uint8_t *data)
{
    work(table);
    struct hps_host_dense *dense = dense_for(table, key);
    if (dense != NULL) {
        dense_put(table, dense, key, data);
        return HPS_OK;
    }
    struct hps_host_place place = hps_host_index_find(&table->index, key);
    if (place.bucket != NULL) {
        return row_replace(table, place, data);
    }
    uint32_t n_evicted = 0;
    if (table->shared->lossy) {
        drain(table, &n_evicted);
    }
    bool full = table->clearing ||
                (!table->shared->lossy && table->index.n_keys >= table->shared->rows_max);
    hps_status status = full ? HPS_EXHAUSTED : ensure_capacity(table);
    if (status == HPS_OK) {
        status = row_add(table, key, data);
    }
    if (status != HPS_OK) {
        lose(table); /* the stores below may have it */
    }
    return status;
}

hps_status hps_host_table_insert(struct hps_host_table *table, hps_key key, const uint8_t *data,
                                 uint32_t *n_evicted)
{
    work(table);
    if (table->clearing && !hps_host_table_clear_end(table)) {
        return HPS_EXHAUSTED;
    }
    struct hps_host_dense *dense = dense_for(table, key);
    if (dense != NULL) {
        dense_put(table, dense, key, data);
        return HPS_OK;
    }
    if (table->shared->evicts) {
        drain(table, n_evicted);
    }
    hps_status status = ensure_capacity(table);
    bool pushes_out = table->shared->evicts && !table->shared->lossy;
    if (status != HPS_OK && pushes_out && !table->awaits && evict_one(table, n_evicted)) {
        status = ensure_capacity(table);
    }
    return status == HPS_OK ? row_add(table, key, data) : status;
}

void hps_host_table_erase(struct hps_host_table *table, hps_key key)
{
    work(table);
    struct hps_host_dense *dense = dense_of(table, key);
    if (dense != NULL) {
        if (hps_host_dense_erase(dense, key)) {
            atomic_fetch_sub_explicit(&table->n_rows, 1, memory_order_relaxed);
        }
        return;
    }
    struct hps_host_place place = hps_host_index_find(&table->index, key);
    if (place.bucket != NULL) {
        key_remove(table, place);
    }
}

void hps_host_table_fetch(const struct hps_host_table *table, const hps_key *keys, uint32_t n,
                          uint32_t i)
{
    const struct hps_host_buckets *now =
        atomic_load_explicit(&table->index.now, memory_order_relaxed);
    uint32_t at = i == 0 ? 0 : i + WRITE_AHEAD;
    for (; at <= i + WRITE_AHEAD && at < n; at++) {
        const struct hps_host_dense *dense = dense_of(table, keys[at]);
        if (dense != NULL) {
            uint64_t number = keys[at] - dense->first;
            __builtin_prefetch(hps_host_dense_group(dense, number), 1, 3);
            __builtin_prefetch(hps_host_row_at(&dense->rows, (uint32_t)number), 1, 3);
            continue;
        }
        uint64_t hash = hps_host_hash(table->index.seed, keys[at]);
        __builtin_prefetch(hps_host_aim(now, hash), 1, 3);
    }
}

/* ---- whole tables ---------------------------------------------------------------------------- */

void hps_host_table_clear(struct hps_host_table *table)
{
    HPS_ASSERT(!table->clearing);
    HPS_ASSERT(table->dense_cleared == NULL);
    lose(table);
    table->dense_cleared = hps_host_table_dense(table);
    atomic_store_explicit(&table->dense, NULL, memory_order_release);
    hps_host_index_clear(&table->index);
    uint64_t n_rows = atomic_exchange_explicit(&table->n_rows, 0, memory_order_relaxed);
    atomic_fetch_add_explicit(&table->n_evicted, n_rows, memory_order_relaxed);
    table->clearing = true;
    table->clearing_stamp = hps_epoch_retire(table->shared->epoch);
}

bool hps_host_table_clear_end(struct hps_host_table *table)
{
    HPS_ASSERT(table->clearing);
    HPS_ASSERT(table->index.n_keys == 0);
    if (!hps_epoch_passed(table->shared->epoch, table->clearing_stamp)) {
        return false;
    }
    limbo_empty(table);
    if (table->limbo.n != 0) {
        return false;
    }
    (void)hps_host_index_step(&table->index);
    hps_host_dense_free(table->dense_cleared);
    table->dense_cleared = NULL;
    hps_host_rows_clear(&table->rows);
    hps_host_evict_close(&table->evict);
    atomic_store_explicit(&table->touched, false, memory_order_relaxed);
    table->draining = false;
    table->clearing = false;
    return true;
}

static hps_status index_reserve(struct hps_host_table *table, uint64_t n_rows)
{
    bool more = true;
    bool begun = false;
    hps_status status = HPS_OK;
    while (status == HPS_OK && (more || !begun)) {
        hps_lock_acquire(&table->lock);
        for (unsigned i = 0; i < RESERVE_STEPS && more; i++) {
            more = hps_host_index_step(&table->index);
        }
        if (!more && !begun) {
            status = hps_host_index_reserve(&table->index, n_rows);
            begun = true;
            more = true;
        }
        hps_lock_release(&table->lock);
    }
    return status;
}

/* Begin a dense range. True: the table has one now. */
static bool dense_begin(struct hps_host_table *table, uint64_t n_rows, hps_key first, bool tight)
{
    hps_lock_acquire(&table->lock);
    struct hps_host_dense *dense = hps_host_table_dense(table);
    if (dense == NULL && !table->clearing &&
        hps_host_dense_new(&table->account, table->rows.row_bytes, first, n_rows, tight, &dense) ==
            HPS_OK) {
        atomic_store_explicit(&table->dense, dense, memory_order_release);
    }
    hps_lock_release(&table->lock);
    return dense != NULL;
}

hps_status hps_host_table_prepare(struct hps_host_table *table, uint64_t n_rows,
                                  const hps_key *keys, uint32_t n, bool tight)
{
    uint64_t saved = hps_host_index_bytes(n_rows);
    bool pays = !tight || saved >= hps_host_dense_extra(table->rows.row_bytes, true);
    bool dense = table->shared->dense && pays && hps_host_dense_promising(keys, n) &&
                 dense_begin(table, n_rows, keys[0], tight);
    return dense ? HPS_OK : index_reserve(table, n_rows);
}

void hps_host_table_get(const struct hps_host_table *table, const struct hps_host_out *out,
                        struct hps_batch *batch, uint32_t lo, uint32_t hi)
{
    HPS_DEBUG_ASSERT(lo <= hi && hi <= batch->n);
    bool touched = atomic_load_explicit(&table->touched, memory_order_relaxed);
    struct hps_host_lookup lookup = hps_host_lookup(&table->index, &table->rows);
    lookup.note = touched ? HPS_HOST_NOTE_TOUCH : HPS_HOST_NOTE_NOTHING;
    lookup.out = *out;
    struct hps_host_dense *dense = hps_host_table_dense(table);
    if (dense != NULL) {
        hps_host_dense_run(dense, &lookup, table->shared->kernel, batch, lo, hi);
        return;
    }
    hps_host_lookup_run(&lookup, table->shared->kernel, batch, lo, hi);
}
