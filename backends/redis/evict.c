/* SPDX-License-Identifier: Apache-2.0
 *
 * Shards with too many rows: recording samples of use, and eviction. A script evicts a few rows at
 * a time, so that no server is blocked for long. Any thread.
 */
#include <string.h>

#include "backends/redis/internal.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"

enum { EVICT_STEP = 500 };

static bool uses(const struct redis *redis)
{
    return redis->options.evict != HPS_REDIS_EVICT_RANDOM;
}

struct evicting {
    struct redis_space *space;
    uint8_t *going;  /* [n_shards] whether to evict more */
    uint64_t target; /* rows that a shard may keep */
};

static hps_status put_evict(void *ctx, struct hps_buf *bytes, uint32_t shard)
{
    static const char *const how[] = {"random", "used", "oldest"};
    const struct evicting *evicting = ctx;
    const struct redis_space *space = evicting->space;
    const struct redis *redis = space->redis;
    HPS_ASSERT((size_t)redis->options.evict < sizeof(how) / sizeof(how[0]));
    if (evicting->going[shard] == 0) {
        return HPS_OK;
    }
    hps_status status = hps_redis_script_begin(bytes, HPS_REDIS_EVICT, space->shards[shard].keys,
                                               uses(redis) ? 2 : 1, 3);
    status = status == HPS_OK ? hps_redis_put_u64(bytes, evicting->target) : status;
    status = status == HPS_OK ? hps_redis_put_u64(bytes, EVICT_STEP) : status;
    return status == HPS_OK ? hps_redis_put_text(bytes, how[redis->options.evict]) : status;
}

/* One step for every shard that is `going`. A shard stops when it is at the target or does not
 * answer. */
static uint64_t step(struct evicting *evicting, uint64_t deadline_us, uint32_t *out_n_going)
{
    struct redis_space *space = evicting->space;
    uint8_t *going = evicting->going;
    uint64_t target = evicting->target;
    struct redis_batch batch;
    uint64_t n_evicted = 0;
    *out_n_going = 0;
    hps_status status =
        redis_shards_call(space, HPS_REDIS_EVICT, put_evict, evicting, deadline_us, &batch);
    for (uint32_t i = 0; i < batch.n && status == HPS_OK; i++) {
        uint32_t shard = batch.shards[i];
        int64_t n = 0;
        int64_t over = 0;
        bool answered = batch.commands[i].reply.status == HPS_OK && batch.values[i].n == 3 &&
                        hps_redis_values_i64(&batch.values[i], 1, &n) &&
                        hps_redis_values_i64(&batch.values[i], 2, &over);
        going[shard] = answered && over > 0 && n > 0;
        *out_n_going += going[shard];
        n_evicted += (uint64_t)n;
        if (answered) {
            redis_shard_wrote(space, shard, (int64_t)target + (over > 0 ? over : 0));
        }
    }
    redis_batch_fini(&batch);
    return n_evicted;
}

uint64_t redis_evict(struct redis_space *space, uint64_t deadline_us)
{
    struct redis *redis = space->redis;
    uint64_t target = (uint64_t)((double)space->rows_max * redis->options.target_ratio + 0.5);
    uint64_t n_evicted = 0;
    uint32_t n_going = 0;
    HPS_ASSERT(target <= space->rows_max);
    uint8_t *going = space->rows_max == 0 ? NULL : hps_calloc(space->n_shards, 1);
    if (going == NULL) {
        return 0; /* retried at the next call */
    }
    hps_lock_acquire(&space->lock);
    for (uint32_t i = 0; i < space->n_shards; i++) {
        going[i] = space->shards[i].n_rows > space->rows_max;
        n_going += going[i];
    }
    hps_lock_release(&space->lock);
    struct evicting evicting = {.space = space, .going = going, .target = target};
    while (n_going > 0 && hps_clock_us() < deadline_us) {
        n_evicted += step(&evicting, deadline_us, &n_going);
    }
    hps_free(going);
    atomic_fetch_add_explicit(&redis->n_evicted, n_evicted, memory_order_relaxed);
    return n_evicted;
}

/* ---- use ------------------------------------------------------------------------------------- */

void redis_touch(struct redis_space *space, uint32_t shard,
                 const uint8_t field[HPS_REDIS_FIELD_BYTES])
{
    HPS_ASSERT(shard < space->n_shards);
    hps_lock_acquire(&space->lock);
    if (space->n_touches < REDIS_TOUCHES_MAX) { /* otherwise this sample is lost */
        struct redis_touch *touch = &space->touches[space->n_touches++];
        touch->shard = shard;
        memcpy(touch->field, field, sizeof(touch->field));
    }
    hps_lock_release(&space->lock);
}

struct touching {
    struct redis_space *space;
    const struct redis_touch *touches; /* [n] */
    uint32_t n;
};

static hps_status put_touches(void *ctx, struct hps_buf *bytes, uint32_t shard)
{
    const struct touching *touching = ctx;
    const struct redis_space *space = touching->space;
    const struct redis_touch *touches = touching->touches;
    uint32_t n = touching->n;
    uint32_t n_fields = 0;
    for (uint32_t i = 0; i < n; i++) {
        n_fields += touches[i].shard == shard ? 1 : 0;
    }
    if (n_fields == 0) {
        return HPS_OK;
    }
    bool used = space->redis->options.evict == HPS_REDIS_EVICT_USED;
    hps_status status =
        hps_redis_script_begin(bytes, HPS_REDIS_TOUCH, space->shards[shard].keys, 2, 1 + n_fields);
    status = status == HPS_OK ? hps_redis_put_text(bytes, used ? "used" : "oldest") : status;
    for (uint32_t i = 0; i < n && status == HPS_OK; i++) {
        if (touches[i].shard == shard) {
            status = hps_redis_put_arg(bytes, touches[i].field, sizeof(touches[i].field));
        }
    }
    return status;
}

void redis_touches_flush(struct redis_space *space)
{
    struct redis_touch *touches = hps_alloc(REDIS_TOUCHES_MAX * sizeof(*touches));
    struct redis_batch batch;
    if (touches == NULL) {
        return;
    }
    hps_lock_acquire(&space->lock);
    uint32_t n = space->n_touches;
    HPS_ASSERT(n <= REDIS_TOUCHES_MAX);
    memcpy(touches, space->touches, n * sizeof(*touches));
    space->n_touches = 0;
    hps_lock_release(&space->lock);
    if (n > 0) { /* lost samples do not matter */
        struct touching touching = {.space = space, .touches = touches, .n = n};
        hps_ignore(redis_shards_call(space, HPS_REDIS_TOUCH, put_touches, &touching,
                                     redis_write_deadline(space->redis, NULL), &batch));
        redis_batch_fini(&batch);
    }
    hps_free(touches);
}
