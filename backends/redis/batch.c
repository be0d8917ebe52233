/* SPDX-License-Identifier: Apache-2.0
 *
 * Batches of commands, each sent to the server of its shard, run together. Any thread; a batch
 * belongs to one caller.
 */
#include <string.h>

#include "backends/redis/internal.h"
#include "base/assert.h"
#include "base/heap.h"

enum { BYTES_MAX = 1 << 30 };

hps_status redis_batch_init(struct redis_batch *batch, uint32_t capacity)
{
    *batch = (struct redis_batch){.capacity = capacity};
    hps_buf_init(&batch->bytes, BYTES_MAX);
    batch->commands = hps_calloc(capacity, sizeof(*batch->commands));
    batch->values = hps_calloc(capacity, sizeof(*batch->values));
    batch->shards = hps_calloc(capacity, sizeof(*batch->shards));
    batch->seen = hps_calloc(capacity, sizeof(*batch->seen));
    batch->at = hps_calloc((size_t)capacity + 1, sizeof(*batch->at));
    bool whole = batch->commands != NULL && batch->values != NULL && batch->shards != NULL &&
                 batch->seen != NULL && batch->at != NULL;
    return whole ? HPS_OK : HPS_NO_MEMORY;
}

void redis_batch_clear(struct redis_batch *batch)
{
    for (uint32_t i = 0; i < batch->n; i++) {
        hps_redis_values_fini(&batch->values[i]);
    }
    hps_buf_clear(&batch->bytes);
    batch->n = 0;
}

void redis_batch_fini(struct redis_batch *batch)
{
    redis_batch_clear(batch);
    hps_buf_fini(&batch->bytes);
    hps_free(batch->commands);
    hps_free(batch->values);
    hps_free(batch->shards);
    hps_free(batch->seen);
    hps_free(batch->at);
}

void redis_batch_end(struct redis_batch *batch, struct redis_space *space, uint32_t shard,
                     uint8_t flags)
{
    enum { VALUES_MAX = 64, TEXT_MAX = 1 << 20 };
    HPS_ASSERT(batch->n < batch->capacity);
    HPS_ASSERT(shard < space->n_shards);
    uint32_t i = batch->n++;
    HPS_ASSERT(batch->bytes.size > batch->at[i]);
    batch->at[i + 1] = batch->bytes.size;
    batch->shards[i] = shard;
    batch->seen[i] = redis_shard_seen(space, shard);
    hps_redis_values_init(&batch->values[i], VALUES_MAX, TEXT_MAX);
    batch->commands[i] = (struct hps_redis_command){.slot = space->shards[shard].slot,
                                                    .flags = flags,
                                                    .size = batch->at[i + 1] - batch->at[i],
                                                    .reply = {.values = &batch->values[i]}};
}

/* Load the script on the servers that lack it, and call it there again. */
static void run_again(struct redis *redis, struct redis_batch *batch, enum hps_redis_script script,
                      uint32_t n_again, uint64_t deadline_us)
{
    struct hps_buf text;
    struct hps_redis_command *again = hps_calloc((size_t)n_again * 2, sizeof(*again));
    uint32_t n = 0;
    hps_buf_init(&text, BYTES_MAX);
    if (again == NULL || hps_redis_script_load(&text, script) != HPS_OK) {
        goto out;
    }
    for (uint32_t i = 0; i < batch->n; i++) {
        if (batch->commands[i].reply.status != HPS_NOT_FOUND) {
            continue;
        }
        again[n++] = (struct hps_redis_command){
            .slot = batch->commands[i].slot, .bytes = text.data, .size = text.size};
        struct hps_redis_command *command = &again[n++];
        *command = batch->commands[i];
        command->reply =
            (struct hps_redis_reply){.values = command->reply.values, .rows = command->reply.rows};
    }
    /* Each command has its own status. */
    hps_ignore(hps_redis_cluster_run(redis->cluster, again, n, deadline_us));
    HPS_ASSERT(n == 2 * n_again);
    n = 0;
    for (uint32_t i = 0; i < batch->n; i++) {
        struct hps_redis_reply *reply = &batch->commands[i].reply;
        if (reply->status != HPS_NOT_FOUND) {
            continue;
        }
        batch->commands[i] = again[n + 1];
        const struct hps_redis_reply *load = &again[n].reply;
        /* The failed load is the cause. */
        if (reply->status == HPS_NOT_FOUND && load->status != HPS_OK) {
            reply->status = load->status;
            memcpy(reply->error, load->error, sizeof(reply->error));
        }
        n += 2;
    }
out:
    hps_buf_fini(&text);
    hps_free(again);
}

void redis_batch_run(struct redis *redis, struct redis_batch *batch, enum hps_redis_script script,
                     uint64_t deadline_us)
{
    uint32_t n_again = 0;
    if (batch->n == 0) {
        return;
    }
    HPS_ASSERT(batch->at[batch->n] == batch->bytes.size);
    for (uint32_t i = 0; i < batch->n; i++) {
        batch->commands[i].bytes = batch->bytes.data + batch->at[i];
    }
    hps_ignore(hps_redis_cluster_run(redis->cluster, batch->commands, batch->n, deadline_us));
    for (uint32_t i = 0; i < batch->n; i++) {
        n_again += batch->commands[i].reply.status == HPS_NOT_FOUND ? 1 : 0;
    }
    if (n_again > 0 && script != HPS_REDIS_SCRIPTS) {
        run_again(redis, batch, script, n_again, deadline_us);
    }
}

hps_status redis_batch_failure(const struct redis_batch *batch, struct hps_error *err)
{
    for (uint32_t i = 0; i < batch->n; i++) {
        const struct hps_redis_reply *reply = &batch->commands[i].reply;
        if (reply->status != HPS_OK) {
            bool away = reply->status == HPS_DEADLINE || reply->status == HPS_PERMISSION;
            return hps_error_set(err, away ? HPS_UNAVAILABLE : reply->status, "%s",
                                 reply->error[0] ? reply->error : hps_status_text(reply->status));
        }
    }
    return HPS_OK;
}

hps_status redis_shards_call(struct redis_space *space, enum hps_redis_script script,
                             redis_shard_put_fn *put, void *ctx, uint64_t deadline_us,
                             struct redis_batch *out_batch)
{
    struct redis_batch *batch = out_batch;
    hps_status status = redis_batch_init(batch, space->n_shards);
    for (uint32_t i = 0; i < space->n_shards && status == HPS_OK; i++) {
        status = put(ctx, &batch->bytes, i);
        if (status == HPS_OK && batch->bytes.size > batch->at[batch->n]) {
            redis_batch_end(batch, space, i, 0);
        }
    }
    if (status != HPS_OK) {
        redis_batch_clear(batch);
        return status;
    }
    redis_batch_run(space->redis, batch, script, deadline_us);
    return HPS_OK;
}
