/* SPDX-License-Identifier: Apache-2.0
 *
 * Pooled answers: if all rows of a bag are present, they are summed in place. Keys go through the
 * first pass of a lookup (kernel.h) in blocks; a block may have many bags or part of one. Where a
 * lookup would copy rows in the second pass, they are added, while later rows are prefetched. Any
 * thread. Each block has its own epoch, so that a bag of 100,000 keys does not delay writers.
 */
#include <string.h>

#include "backends/host/internal.h"
#include "base/clock.h"
#include "base/heap.h"

enum { BLOCKS_PER_LOOK = 2 }; /* between checks of deadline and cancellation */

/* Bags in progress: [bag, end) are not answered yet; the keys of `bag` before `key` were added. */
struct pool {
    const struct hps_table *table;
    const struct hps_bags *bags;
    uint32_t bag;
    uint32_t end;
    uint32_t key;
    struct hps_bag_weights weights; /* of the added keys */
    float *sum;                     /* [dim] of the added keys */
    float *before;                  /* [dim] `sum` before the last rows were added */
};

/* A block of keys and its lookup results. */
struct pool_block {
    struct hps_host_lookup lookup;
    struct hps_host_block found;
    struct hps_host_dense *dense; /* NULL: the table has no dense range */
    struct hps_host_seen seen;    /* used if there is one */
    hps_key keys[HPS_HOST_BLOCK_KEYS];
};

/* Placeholder for a missing row: it is prefetched like the rest, and never read. */
static const uint8_t absent[HPS_HOST_LINE_BYTES];

static void block_find(const struct pool *pool, const struct hps_host_table *host,
                       struct pool_block *block)
{
    uint32_t n = pool->bags->offsets[pool->end] - pool->key;
    n = n < HPS_HOST_BLOCK_KEYS ? n : HPS_HOST_BLOCK_KEYS;
    bool touched = atomic_load_explicit(&host->touched, memory_order_relaxed);
    enum hps_host_note note = HPS_HOST_NOTE_PLACE;
    block->dense = hps_host_table_dense(host);
    block->lookup = hps_host_lookup(&host->index, &host->rows);
    if (block->dense != NULL) { /* rows of a range have no place */
        note = HPS_HOST_NOTE_TOUCH;
    }
    block->lookup.note = touched ? note : HPS_HOST_NOTE_NOTHING;
    block->found.now = atomic_load_explicit(&host->index.now, memory_order_acquire);
    block->found.n = n;
    if (n > 0) { /* otherwise only empty bags are left, and there may be no keys at all */
        memcpy(block->keys, pool->bags->keys + (size_t)pool->key * sizeof(hps_key),
               n * sizeof(hps_key));
    }
    uint32_t n_fetch = n < HPS_ROW_SUM_AHEAD ? n : HPS_ROW_SUM_AHEAD;
    if (block->dense != NULL) {
        hps_host_dense_fetch(block->dense, &block->lookup, block->keys, n_fetch);
        hps_host_dense_probe(block->dense, &block->lookup, block->keys, &block->found,
                             &block->seen);
    } else {
        host->shared->kernel->probe(&block->lookup, block->keys, &block->found);
    }
    for (uint32_t i = 0; block->found.n_found < n && i < n; i++) {
        block->found.rows[i] = block->found.rows[i] != NULL ? block->found.rows[i] : absent;
    }
    for (uint32_t i = 0; block->dense == NULL && i < n_fetch; i++) {
        hps_host_row_fetch(&block->lookup, block->found.rows[i]);
    }
}

/* Whether all keys [lo, hi) of the block were found. */
static bool block_has(const struct hps_host_block *found, uint32_t lo, uint32_t hi)
{
    bool all = true;
    for (uint32_t i = lo; found->n_found < found->n && i < hi; i++) {
        all = all && found->rows[i] != absent;
    }
    return all;
}

/* Rows that are added again because one of them was being written. */
struct rows_again {
    struct pool *pool;
    const float *before; /* [dim] the sum of earlier rows of the bag */
    const uint8_t *const *rows;
    const uint8_t *weights;
    uint32_t n;
};

static void rows_again(void *ctx)
{
    struct rows_again *again = ctx;
    struct pool *pool = again->pool;
    memcpy(pool->sum, again->before, pool->table->dim * sizeof(*pool->sum));
    hps_row_sum_add(pool->sum, pool->table->dtype, pool->table->dim, again->rows, again->weights,
                    again->n);
}

/* Add the rows of keys [lo, hi) of the block to the bag. */
static void block_add(struct pool *pool, struct pool_block *block, uint32_t lo, uint32_t hi)
{
    const struct hps_host_block *found = &block->found;
    const uint8_t *weights = pool->bags->weights;
    weights = weights != NULL ? weights + (size_t)pool->key * sizeof(float) : NULL;
    for (uint32_t i = lo; block->lookup.note == HPS_HOST_NOTE_PLACE && i < hi; i++) {
        hps_host_touch((struct hps_host_place){found->buckets[i], found->places[i]});
    }
    if (block->dense != NULL) {
        memcpy(pool->before, pool->sum, pool->table->dim * sizeof(*pool->sum));
    }
    hps_row_sum_add_ahead(pool->sum, pool->table->dtype, pool->table->dim, found->rows + lo,
                          weights, hi - lo, found->n - hi);
    if (block->dense != NULL && !hps_host_dense_valid(block->dense, &block->seen, lo, hi)) {
        struct rows_again again = {pool, pool->before, found->rows + lo, weights, hi - lo};
        hps_host_dense_again(block->dense, &block->seen, lo, hi, rows_again, &again);
    }
    hps_bag_weights_add(&pool->weights, weights, hi - lo);
}

/* Start the next bag. */
static void bag_begin(struct pool *pool, uint32_t bag)
{
    pool->bag = bag;
    pool->key = pool->bags->offsets[bag];
    pool->weights = (struct hps_bag_weights){0};
    memset(pool->sum, 0, pool->table->dim * sizeof(*pool->sum));
}

static void bag_answer(struct pool *pool)
{
    const struct hps_bags *bags = pool->bags;
    const struct hps_shape *out = &bags->out;
    hps_row_sum_end(out->rows + pool->bag * out->stride, out->dtype, pool->sum, pool->table->dim,
                    bags->pooling, &pool->weights);
    bags->whole[pool->bag / 32] |= UINT32_C(1) << (pool->bag % 32);
}

/* Add the found rows of a block. A bag with a missing key is skipped; the next bag starts after it,
 * in this block or a later one. */
static void block_pool(struct pool *pool, struct pool_block *block, uint32_t lo)
{
    uint32_t hi = lo + block->found.n;
    while (pool->bag < pool->end && pool->key <= hi) {
        uint32_t bag_end = pool->bags->offsets[pool->bag + 1];
        uint32_t to = bag_end < hi ? bag_end : hi;
        HPS_DEBUG_ASSERT(pool->key <= to);
        if (!block_has(&block->found, pool->key - lo, to - lo)) {
            bag_begin(pool, pool->bag + 1);
            continue;
        }
        block_add(pool, block, pool->key - lo, to - lo);
        pool->key = to;
        if (to < bag_end) {
            return; /* the bag continues in the next block */
        }
        bag_answer(pool);
        bag_begin(pool, pool->bag + 1);
    }
}

/* Add a block of keys. */
static void pool_block(struct pool *pool, const struct hps_host_table *host)
{
    struct pool_block block;
    uint32_t lo = pool->key;
    block_find(pool, host, &block);
    block_pool(pool, &block, lo);
    if (block.dense != NULL) {
        hps_host_dense_leave(block.dense);
    }
}

static void whole_clear(const struct hps_bags *bags, uint32_t first, uint32_t n)
{
    memset(bags->whole + first / 32, 0, ((size_t)n + 31) / 32 * sizeof(*bags->whole));
}

static hps_status interrupted(const struct hps_call *call)
{
    if (call->cancelled != NULL && call->cancelled(call->cancelled_ctx)) {
        return HPS_CANCELLED;
    }
    return call->deadline_us != 0 && hps_clock_us() >= call->deadline_us ? HPS_DEADLINE : HPS_OK;
}

static hps_status pool_run(struct pool *pool, struct hps_space *space, const struct hps_call *call)
{
    struct hps_epoch *epoch = host_of(space)->shared.epoch;
    for (uint32_t i = 0; pool->bag < pool->end; i++) {
        hps_status status = i % BLOCKS_PER_LOOK == 0 ? interrupted(call) : HPS_OK;
        if (status != HPS_OK) {
            return status;
        }
        struct hps_epoch_slot *slot = hps_epoch_enter(epoch);
        pool_block(pool, host_table_of(space, pool->table));
        hps_epoch_leave(epoch, slot);
    }
    return HPS_OK;
}

hps_status host_bags(struct hps_space *space, const struct hps_call *call,
                     const struct hps_table *table, const struct hps_bags *bags, uint32_t first,
                     uint32_t n)
{
    HPS_ASSERT(first % 32 == 0);
    HPS_ASSERT(bags->pooling != HPS_POOLING_NONE);
    HPS_ASSERT(bags->out.dtype <= HPS_DTYPE_BF16);
    struct pool pool = {.table = table, .bags = bags, .end = first + n};
    size_t sum_bytes = table->dim * sizeof(*pool.sum);
    sum_bytes = (sum_bytes + HPS_HOST_LINE_BYTES - 1) & ~(size_t)(HPS_HOST_LINE_BYTES - 1);
    pool.sum = hps_alloc_aligned(HPS_HOST_LINE_BYTES, 2 * sum_bytes);
    whole_clear(bags, first, n);
    if (pool.sum == NULL) {
        return HPS_NO_MEMORY;
    }
    pool.before = pool.sum + sum_bytes / sizeof(*pool.sum);
    bag_begin(&pool, first);
    hps_status status = pool_run(&pool, space, call);
    if (status != HPS_OK) {
        whole_clear(bags, first, n);
    }
    hps_free_aligned(pool.sum);
    return status;
}
