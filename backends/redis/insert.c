/* SPDX-License-Identifier: Apache-2.0
 *
 * Insertions: rows found in a lower tier go into shards that are at the version's positions, and
 * only for keys without a row. One script call per shard. Any thread.
 */
#include <string.h>

#include "backends/redis/internal.h"
#include "base/assert.h"
#include "base/heap.h"

struct inserting {
    struct redis_space *space;
    const struct hps_table *table;
    const hps_key *keys;
    const uint32_t *slots;
    const uint8_t *rows;
    uint32_t n;
    uint32_t *shards; /* [n] UINT32_MAX: the row is stale */
    uint32_t *order;  /* [n] by shard */
    uint32_t *ends;   /* [n_shards] end of the shard in `order` */
    bool *exact;      /* [n_shards] whether the shard is at the version's positions */
    uint8_t (*digests)[REDIS_DIGEST_BYTES];
};

static hps_status inserting_alloc(struct inserting *inserting)
{
    uint32_t n_shards = inserting->space->n_shards;
    inserting->shards = hps_alloc(inserting->n * 2 * sizeof(uint32_t));
    inserting->ends = hps_calloc(n_shards, sizeof(*inserting->ends));
    inserting->exact = hps_calloc(n_shards, sizeof(*inserting->exact));
    inserting->digests = hps_calloc(n_shards, sizeof(*inserting->digests));
    if (inserting->shards == NULL || inserting->ends == NULL || inserting->exact == NULL ||
        inserting->digests == NULL) {
        return HPS_NO_MEMORY;
    }
    inserting->order = inserting->shards + inserting->n;
    return HPS_OK;
}

static void inserting_free(struct inserting *inserting)
{
    hps_free(inserting->shards);
    hps_free(inserting->ends);
    hps_free(inserting->exact);
    hps_free(inserting->digests);
}

/* Copy the digests of shards that are at the version's positions. Call this before the guard. */
static void take_exact(struct inserting *inserting)
{
    struct redis_space *space = inserting->space;
    hps_lock_acquire(&space->lock);
    for (uint32_t i = 0; i < space->n_shards; i++) {
        inserting->exact[i] = space->shards[i].exact;
        memcpy(inserting->digests[i], space->shards[i].digest, REDIS_DIGEST_BYTES);
    }
    hps_lock_release(&space->lock);
}

/* Sort the rows that may be inserted by shard. Returns the number of stale rows. */
static uint32_t sort_fresh(struct inserting *inserting, const struct hps_insert_guard *guard)
{
    const struct redis_space *space = inserting->space;
    uint32_t n_stale = 0;
    for (uint32_t i = 0; i < inserting->n; i++) {
        uint32_t shard = hps_redis_shard(inserting->table->id, inserting->keys[i], space->n_shards);
        HPS_DEBUG_ASSERT(shard < space->n_shards);
        bool fresh = inserting->exact[shard] && (guard == NULL || guard->fresh(guard->ctx, i));
        inserting->shards[i] = fresh ? shard : UINT32_MAX;
        inserting->ends[shard] += fresh ? 1 : 0;
        n_stale += fresh ? 0 : 1;
    }
    uint32_t at = 0;
    for (uint32_t s = 0; s < space->n_shards; s++) {
        uint32_t n = inserting->ends[s];
        inserting->ends[s] = at;
        at += n;
    }
    HPS_ASSERT(at + n_stale == inserting->n);
    for (uint32_t i = 0; i < inserting->n; i++) {
        if (inserting->shards[i] != UINT32_MAX) {
            inserting->order[inserting->ends[inserting->shards[i]]++] = i;
        }
    }
    return n_stale;
}

static hps_status put_insert(struct redis_batch *batch, const struct inserting *inserting,
                             uint32_t shard, uint32_t begin, uint32_t n)
{
    size_t row_bytes = inserting->table->row_bytes;
    hps_status status = hps_redis_script_begin(&batch->bytes, HPS_REDIS_INSERT,
                                               inserting->space->shards[shard].keys, 1, 1 + 2 * n);
    status = status == HPS_OK
                 ? hps_redis_put_arg(&batch->bytes, inserting->digests[shard], REDIS_DIGEST_BYTES)
                 : status;
    for (uint32_t i = begin; i < begin + n && status == HPS_OK; i++) {
        uint32_t key = inserting->order[i];
        status = redis_put_field(&batch->bytes, inserting->table, inserting->keys[key]);
        if (status == HPS_OK) {
            const uint8_t *row = inserting->rows + inserting->slots[key] * row_bytes;
            status = hps_redis_put_arg(&batch->bytes, row, row_bytes);
        }
    }
    if (status == HPS_OK) {
        redis_batch_end(batch, inserting->space, shard, 0);
    }
    return status;
}

/* Take the script's reply for n rows: inserted rows, or -1 if the digest differs, and rows of the
 * shard. More than n inserted rows is a malformed reply. */
static bool take_inserted(struct redis_space *space, uint32_t shard, struct redis_shard_seen seen,
                          uint32_t n, const struct hps_redis_reply *reply,
                          struct hps_insert_report *report)
{
    int64_t n_inserted = 0;
    int64_t n_rows = 0;
    if (reply->status == HPS_EXHAUSTED) {
        report->n_no_capacity += n;
        return true;
    }
    if (reply->status != HPS_OK || reply->values->n != 3 ||
        !hps_redis_values_i64(reply->values, 1, &n_inserted) || n_inserted > (int64_t)n ||
        !hps_redis_values_i64(reply->values, 2, &n_rows)) {
        return false;
    }
    if (n_inserted < 0) {
        report->n_stale += n;
        redis_shard_forget(space, shard, seen);
        return true;
    }
    report->n_inserted += (uint32_t)n_inserted;
    redis_shard_wrote(space, shard, n_rows);
    return true;
}

static hps_status run_inserts(struct inserting *inserting, uint64_t deadline_us,
                              struct hps_insert_report *report)
{
    struct redis_space *space = inserting->space;
    uint32_t fields_max = space->redis->options.fields_max;
    struct redis_batch batch;
    uint32_t n_answered = 0;
    uint32_t begin = 0;
    hps_status status = redis_batch_init(&batch, space->n_shards + inserting->n / fields_max);
    uint32_t *counts = hps_calloc(batch.capacity, sizeof(*counts));
    status = counts == NULL ? HPS_NO_MEMORY : status;
    for (uint32_t s = 0; s < space->n_shards && status == HPS_OK; s++) {
        while (begin < inserting->ends[s] && status == HPS_OK) {
            uint32_t n = inserting->ends[s] - begin;
            n = n < fields_max ? n : fields_max;
            status = put_insert(&batch, inserting, s, begin, n);
            begin += n;
            if (status == HPS_OK) {
                counts[batch.n - 1] = n;
            }
        }
    }
    if (status == HPS_OK) {
        HPS_ASSERT(begin == inserting->ends[space->n_shards - 1]);
        redis_batch_run(space->redis, &batch, HPS_REDIS_INSERT, deadline_us);
    }
    for (uint32_t i = 0; i < batch.n && status == HPS_OK; i++) {
        bool answered = take_inserted(space, batch.shards[i], batch.seen[i], counts[i],
                                      &batch.commands[i].reply, report);
        n_answered += answered ? 1 : 0;
        report->n_failed += answered ? 0 : counts[i];
    }
    status = status == HPS_OK && batch.n > 0 && n_answered == 0 ? HPS_UNAVAILABLE : status;
    hps_free(counts);
    redis_batch_fini(&batch);
    return status;
}

hps_status redis_insert(struct hps_space *base, const struct hps_call *call,
                        const struct hps_table *table, const hps_key *keys, const uint32_t *slots,
                        const uint8_t *rows, uint32_t n, const struct hps_insert_guard *guard,
                        struct hps_insert_report *out_report)
{
    struct redis_space *space = redis_space_of(base);
    struct redis *redis = space->redis;
    uint64_t deadline_us = redis_write_deadline(redis, call);
    struct inserting inserting = {
        .space = space, .table = table, .keys = keys, .slots = slots, .rows = rows, .n = n};
    *out_report = (struct hps_insert_report){0};
    if (n == 0) {
        return HPS_OK;
    }
    if (atomic_load(&space->left)) {
        out_report->n_stale = n;
        return HPS_OK;
    }
    hps_status status = inserting_alloc(&inserting);
    if (status == HPS_OK) {
        (void)redis_shards_ask(space, true, deadline_us, NULL);
        status = redis_make_missing(space, deadline_us);
    }
    if (status == HPS_OK) {
        take_exact(&inserting);
        out_report->n_stale = sort_fresh(&inserting, guard);
        status = run_inserts(&inserting, deadline_us, out_report);
        out_report->n_evicted = (uint32_t)redis_evict(space, deadline_us);
    }
    inserting_free(&inserting);
    atomic_fetch_add_explicit(&redis->n_inserted, out_report->n_inserted, memory_order_relaxed);
    atomic_fetch_add_explicit(&redis->n_refused, out_report->n_stale, memory_order_relaxed);
    return status;
}
