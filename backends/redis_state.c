/* SPDX-License-Identifier: Apache-2.0
 *
 * What the store knows of the shards of a space: the digest of the positions that each had when it
 * last answered, and whether rows that come with that digest may be used. Any thread.
 */
#include <string.h>

#include "backends/redis_store.h"
#include "base/assert.h"

void redis_shard_judge(const struct redis_space *space, struct redis_shard *shard)
{
    shard->readable =
        shard->known && !shard->missing && hps_redis_positions_cover(&shard->positions, &space->at);
    shard->exact = shard->readable && hps_redis_positions_within(&shard->positions, &space->at);
}

static void learn(struct redis_space *space, struct redis_shard *shard, const void *digest,
                  size_t digest_size, const void *positions, size_t positions_size)
{
    bool same = shard->known && !shard->missing && digest_size == REDIS_DIGEST_BYTES &&
                memcmp(shard->digest, digest, REDIS_DIGEST_BYTES) == 0;
    if (same) {
        return;
    }
    shard->seen.n_changes++;
    shard->known = false;
    shard->missing = false;
    shard->ask = REDIS_ASK_READS;
    if (digest_size == 0) {
        shard->known = true;
        shard->missing = true;
        shard->seen.n_writes++;
        shard->n_rows = 0;
        hps_redis_positions_clear(&shard->positions);
    } else if (digest_size == REDIS_DIGEST_BYTES) {
        memcpy(shard->digest, digest, REDIS_DIGEST_BYTES);
        shard->known =
            hps_redis_positions_decode(&shard->positions, positions, positions_size) == HPS_OK;
    }
    redis_shard_judge(space, shard);
}

void redis_shard_learn(struct redis_space *space, uint32_t at, const void *digest,
                       size_t digest_size, const void *positions, size_t positions_size,
                       bool *out_readable, bool *out_exact)
{
    HPS_ASSERT(at < space->n_shards);
    struct redis_shard *shard = &space->shards[at];
    pthread_mutex_lock(&space->lock);
    learn(space, shard, digest, digest_size, positions, positions_size);
    *out_readable = shard->readable;
    *out_exact = shard->exact;
    pthread_mutex_unlock(&space->lock);
}

void redis_shard_forget(struct redis_space *space, uint32_t shard)
{
    pthread_mutex_lock(&space->lock);
    space->shards[shard].seen.n_changes++;
    space->shards[shard].known = false;
    redis_shard_judge(space, &space->shards[shard]);
    pthread_mutex_unlock(&space->lock);
}

struct redis_shard_seen redis_shard_seen(struct redis_space *space, uint32_t shard)
{
    pthread_mutex_lock(&space->lock);
    struct redis_shard_seen seen = space->shards[shard].seen;
    pthread_mutex_unlock(&space->lock);
    return seen;
}

void redis_shard_wrote(struct redis_space *space, uint32_t shard, int64_t n_rows)
{
    pthread_mutex_lock(&space->lock);
    space->shards[shard].seen.n_writes++;
    space->shards[shard].n_rows = n_rows > 0 ? (uint64_t)n_rows : 0;
    pthread_mutex_unlock(&space->lock);
}

void redis_shard_count(struct redis_space *space, uint32_t at, uint64_t n_fields, bool learns,
                       struct redis_shard_seen seen)
{
    enum { OF_POSITIONS = 2 };
    struct redis_shard *shard = &space->shards[at];
    pthread_mutex_lock(&space->lock);
    if (shard->seen.n_writes == seen.n_writes) {
        shard->n_rows = n_fields > OF_POSITIONS ? n_fields - OF_POSITIONS : 0;
    }
    learns = learns && shard->seen.n_changes == seen.n_changes;
    if (learns && n_fields == 0) {
        learn(space, shard, NULL, 0, NULL, 0);
    } else if (learns && shard->missing) {
        shard->seen.n_changes++;
        shard->known = false; /* it is back: the next look-up asks of which positions */
        shard->missing = false;
        redis_shard_judge(space, shard);
    }
    pthread_mutex_unlock(&space->lock);
}

uint32_t redis_shards_missing(struct redis_space *space)
{
    uint32_t n = 0;
    pthread_mutex_lock(&space->lock);
    for (uint32_t i = 0; i < space->n_shards; i++) {
        n += space->shards[i].known && space->shards[i].missing ? 1 : 0;
    }
    pthread_mutex_unlock(&space->lock);
    return n;
}

static bool is_known(struct redis_space *space, uint32_t shard)
{
    pthread_mutex_lock(&space->lock);
    bool known = space->shards[shard].known;
    pthread_mutex_unlock(&space->lock);
    return known;
}

/* A replica that lags says what was; what is known of its master is of more use. */
static void judge_replica(struct redis_space *space, uint32_t at, const void *positions,
                          size_t positions_size, bool *out_readable, bool *out_exact)
{
    struct redis_shard replica = {.known = true};
    pthread_mutex_lock(&space->lock);
    replica.known =
        hps_redis_positions_decode(&replica.positions, positions, positions_size) == HPS_OK;
    redis_shard_judge(space, &replica);
    space->shards[at].ask = REDIS_ASK_READS;
    pthread_mutex_unlock(&space->lock);
    hps_redis_positions_fini(&replica.positions);
    *out_readable = replica.readable;
    *out_exact = replica.exact;
}

bool redis_learn_read(struct redis_space *space, uint32_t shard,
                      const struct hps_redis_values *values, bool *out_readable, bool *out_exact)
{
    const struct hps_redis_value *positions = &values->items[1];
    if (!space->redis->options.redis.replica_reads || !is_known(space, shard)) {
        return redis_learn_values(space, shard, values, 0, out_readable, out_exact);
    }
    if (values->n < 2 || positions->type != HPS_REDIS_TEXT) {
        return false;
    }
    judge_replica(space, shard, values->text.data + positions->at, positions->size, out_readable,
                  out_exact);
    return true;
}

bool redis_learn_values(struct redis_space *space, uint32_t shard,
                        const struct hps_redis_values *values, uint32_t at, bool *out_readable,
                        bool *out_exact)
{
    if (at + 2 > values->n) {
        return false;
    }
    const struct hps_redis_value *digest = &values->items[at];
    const struct hps_redis_value *positions = &values->items[at + 1];
    if (digest->type == HPS_REDIS_NIL || positions->type == HPS_REDIS_NIL) {
        redis_shard_learn(space, shard, NULL, 0, NULL, 0, out_readable, out_exact);
        return true;
    }
    if (digest->type != HPS_REDIS_TEXT || positions->type != HPS_REDIS_TEXT) {
        return false;
    }
    redis_shard_learn(space, shard, values->text.data + digest->at, digest->size,
                      values->text.data + positions->at, positions->size, out_readable, out_exact);
    return true;
}

static hps_status put_ask(struct redis_batch *batch, const struct redis_shard *shard)
{
    hps_status status = hps_redis_put_begin(&batch->bytes, 4);
    status = status == HPS_OK ? hps_redis_put_text(&batch->bytes, "HMGET") : status;
    status = status == HPS_OK
                 ? hps_redis_put_arg(&batch->bytes, shard->keys[0].text, shard->keys[0].size)
                 : status;
    status = status == HPS_OK ? hps_redis_put_text(&batch->bytes, "g") : status;
    return status == HPS_OK ? hps_redis_put_text(&batch->bytes, "p") : status;
}

uint32_t redis_shards_ask(struct redis_space *space, bool unknown_only, uint64_t deadline_us)
{
    struct redis_batch batch;
    uint32_t n_silent = 0;
    hps_status status = redis_batch_init(&batch, space->n_shards);
    for (uint32_t i = 0; i < space->n_shards && status == HPS_OK; i++) {
        if (unknown_only && is_known(space, i)) {
            continue;
        }
        status = put_ask(&batch, &space->shards[i]);
        if (status == HPS_OK) {
            redis_batch_end(&batch, space, i, 0);
        }
    }
    if (status != HPS_OK) {
        redis_batch_fini(&batch);
        return space->n_shards;
    }
    redis_batch_run(space->redis, &batch, HPS_REDIS_SCRIPTS, deadline_us);
    for (uint32_t i = 0; i < batch.n; i++) {
        bool readable = false;
        bool exact = false;
        bool learnt =
            batch.commands[i].reply.status == HPS_OK && batch.values[i].n == 3 &&
            redis_learn_values(space, batch.shards[i], &batch.values[i], 1, &readable, &exact);
        if (!learnt) {
            redis_shard_forget(space, batch.shards[i]);
            n_silent++;
        }
    }
    redis_batch_fini(&batch);
    return n_silent;
}
