/* SPDX-License-Identifier: Apache-2.0
 *
 * Leases, by which daemons learn of each other. The thread redis-leases renews them, counts rows
 * and sends samples of use to the servers. See docs/redis.md.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "backends/redis/internal.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/log.h"

enum { MAINTENANCE_MS = 1000 };

/* ---- leases ---------------------------------------------------------------------------------- */

hps_status redis_lease(struct redis_space *space, enum redis_lease_use use, uint64_t deadline_us,
                       int64_t *out_n, struct hps_error *err)
{
    static const char *const words[] = {
        [REDIS_LEASE_TAKE] = "take", [REDIS_LEASE_LEAVE] = "leave", [REDIS_LEASE_DROP] = "drop"};
    struct redis_batch batch;
    HPS_ASSERT(space->redis->member != NULL);
    HPS_ASSERT((size_t)use < sizeof(words) / sizeof(words[0]));
    hps_status status = redis_batch_init(&batch, 1);
    status = status == HPS_OK
                 ? hps_redis_script_begin(&batch.bytes, HPS_REDIS_LEASE, &space->leases, 1, 3)
                 : status;
    status = status == HPS_OK ? hps_redis_put_text(&batch.bytes, space->redis->member) : status;
    status =
        status == HPS_OK ? hps_redis_put_u64(&batch.bytes, space->redis->options.lease_ms) : status;
    status = status == HPS_OK ? hps_redis_put_text(&batch.bytes, words[use]) : status;
    if (status == HPS_OK) {
        redis_batch_end(&batch, space, 0, 0);
        batch.commands[0].slot = space->leases_slot;
        redis_batch_run(space->redis, &batch, HPS_REDIS_LEASE, deadline_us);
        status = redis_batch_failure(&batch, err);
    }
    if (status == HPS_OK && !hps_redis_values_i64(&batch.values[0], 0, out_n)) {
        status = HPS_IO;
    }
    redis_batch_fini(&batch);
    return status;
}

/* Caller must hold the store's lock. */
static hps_status lease_take(struct redis_space *space, bool *out_refused, struct hps_error *err)
{
    uint64_t now_us = hps_clock_us();
    int64_t n = 0;
    hps_status status =
        redis_lease(space, REDIS_LEASE_TAKE, redis_write_deadline(space->redis, NULL), &n, err);
    *out_refused = status == HPS_OK && n < 0;
    if (status == HPS_OK && n > 0) {
        space->lease_us = now_us;
    }
    return *out_refused ? HPS_UNAVAILABLE : status;
}

hps_status redis_unanswered(struct redis *redis, const struct hps_error *first,
                            struct hps_error *err)
{
    char why[HPS_REDIS_ERROR_MAX];
    HPS_ASSERT(first->status != HPS_OK);
    hps_redis_cluster_why(redis->cluster, why, sizeof(why));
    return hps_error_set(err, first->status, "%s", why[0] ? why : first->text);
}

hps_status redis_lease_take(struct redis_space *space, struct hps_error *err)
{
    bool refused = false;
    struct hps_error first = {0};
    hps_lock_acquire(&space->redis->lock);
    hps_status status = lease_take(space, &refused, &first);
    hps_lock_release(&space->redis->lock);
    if (status == HPS_OK) {
        return HPS_OK;
    }
    if (refused) {
        return hps_error_set(err, status, "another daemon is unloading the version: try again");
    }
    if (first.status == HPS_OK) {
        hps_ignore(hps_error_set(&first, status, "the leases of the version were not read: %s",
                                 hps_status_text(status)));
    }
    return redis_unanswered(space->redis, &first, err);
}

hps_status redis_put_command(struct hps_buf *bytes, const char *name,
                             const struct hps_redis_name *key, uint64_t number, bool has_number)
{
    hps_status status = hps_redis_put_begin(bytes, has_number ? 3 : 2);
    status = status == HPS_OK ? hps_redis_put_text(bytes, name) : status;
    status = status == HPS_OK ? hps_redis_put_arg(bytes, key->text, key->size) : status;
    return status == HPS_OK && has_number ? hps_redis_put_u64(bytes, number) : status;
}

/* ---- the leases thread ----------------------------------------------------------------------- */

bool redis_count_rows(struct redis_space *space, struct hps_error *err)
{
    uint32_t n_answered = 0;
    const struct redis *redis = space->redis;
    /* During a load, shards appear while they are counted. */
    bool learns = !atomic_load(&space->loading);
    struct redis_batch batch;
    hps_status status = redis_batch_init(&batch, space->n_shards * 3);
    for (uint32_t i = 0; i < space->n_shards && status == HPS_OK; i++) {
        const struct redis_shard *shard = &space->shards[i];
        status = redis_put_command(&batch.bytes, "HLEN", &shard->keys[0], 0, false);
        if (status == HPS_OK) {
            redis_batch_end(&batch, space, i, 0);
        }
        for (uint32_t k = 0; k < 2 && redis->options.ttl_ms > 0 && status == HPS_OK; k++) {
            status = redis_put_command(&batch.bytes, "PEXPIRE", &shard->keys[k],
                                       redis->options.ttl_ms, true);
            if (status == HPS_OK) {
                redis_batch_end(&batch, space, i, 0);
                hps_redis_values_init(&batch.values[batch.n - 1], 0, 0);
                batch.commands[batch.n - 1].reply.values = NULL;
            }
        }
    }
    if (status == HPS_OK) {
        redis_batch_run(space->redis, &batch, HPS_REDIS_SCRIPTS, redis_write_deadline(redis, NULL));
    }
    for (uint32_t i = 0; i < batch.n && status == HPS_OK; i++) {
        int64_t n = 0;
        if (batch.commands[i].reply.values != NULL && batch.commands[i].reply.status == HPS_OK &&
            hps_redis_values_i64(&batch.values[i], 0, &n)) {
            uint32_t shard = batch.shards[i];
            redis_shard_count(space, shard, n > 0 ? (uint64_t)n : 0, learns, batch.seen[i]);
            n_answered++;
        }
    }
    hps_ignore(redis_batch_failure(&batch, err));
    redis_batch_fini(&batch);
    return n_answered == space->n_shards;
}

/* Log missing shards of the only copy, and when they are back. */
static void log_lost(struct redis_space *space)
{
    uint32_t n = redis_shards_missing(space);
    HPS_ASSERT(n <= space->n_shards);
    hps_lock_acquire(&space->lock);
    uint32_t n_before = space->n_lost;
    space->n_lost = n;
    hps_lock_release(&space->lock);
    if (n > n_before) {
        HPS_LOG(ERROR, "redis",
                "shards lost: they had the only copy of their rows; load the version again",
                HPS_STR("model", space->model), HPS_I64("version", space->version),
                HPS_U64("shards", n), HPS_U64("of", space->n_shards));
    } else if (n == 0 && n_before > 0) {
        HPS_LOG(INFO, "redis", "shards restored: no shard of the only copy is lost any more",
                HPS_STR("model", space->model), HPS_I64("version", space->version));
    }
}

static void maintain_space(struct redis_space *space)
{
    const struct redis *redis = space->redis;
    uint64_t age_us = hps_clock_us() - space->lease_us;
    bool only_copy = redis->options.authoritative && atomic_load(&space->loaded);
    bool refused = false;
    redis_touches_flush(space);
    bool due = space->lease_us == 0 || age_us >= redis->options.lease_ms * 1000 / 3;
    bool leased = due && lease_take(space, &refused, NULL) == HPS_OK;
    if (leased || (only_copy && redis_shards_missing(space) > 0)) {
        (void)redis_count_rows(space, NULL);
    }
    if (only_copy) {
        log_lost(space);
    }
}

static void *maintenance_run(void *ctx)
{
    struct redis *redis = ctx;
    hps_lock_acquire(&redis->lock);
    while (!redis->stops) {
        for (struct redis_space *space = redis->spaces; space != NULL; space = space->next) {
            maintain_space(space);
        }
        uint64_t until_us = hps_clock_us() + MAINTENANCE_MS * 1000;
        if (!redis->stops) { /* wakes at until_us, or when a new space needs a lease */
            (void)hps_cond_wait_until(&redis->wake, &redis->lock, until_us);
        }
    }
    hps_lock_release(&redis->lock);
    return NULL;
}

hps_status redis_maintenance_start(struct redis *redis)
{
    hps_status status =
        hps_worker_start(&redis->maintenance, "redis-leases", 0, maintenance_run, redis);
    return status == HPS_OK ? HPS_OK : HPS_NO_MEMORY;
}
