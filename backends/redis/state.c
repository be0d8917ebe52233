/* SPDX-License-Identifier: Apache-2.0
 *
 * Known state of the shards of a space: the digest and positions that each had in its last reply,
 * and whether rows with that digest may be used. Any thread.
 */
#include <string.h>

#include "backends/redis/internal.h"
#include "base/assert.h"

void redis_shard_judge(const struct redis_space *space, struct redis_shard *shard)
{
    shard->readable =
        shard->known && !shard->missing && hps_redis_positions_cover(&shard->positions, &space->at);
    shard->exact = shard->readable && hps_redis_positions_within(&shard->positions, &space->at);
}

/* A readable shard is known and exists; an exact shard is readable. Caller must hold the space's
 * lock. */
static void shard_sane(const struct redis_shard *shard)
{
    HPS_ASSERT(!shard->readable || (shard->known && !shard->missing));
    HPS_ASSERT(!shard->exact || shard->readable);
    HPS_ASSERT(!shard->known || !shard->missing || shard->n_rows == 0);
}

hps_status redis_positions_put(struct redis_space *space, struct hps_buf *out_bytes)
{
    hps_buf_init(out_bytes, (size_t)HPS_REDIS_POSITION_BYTES << 20);
    hps_lock_acquire(&space->lock);
    hps_status status = hps_redis_positions_encode(&space->at, out_bytes);
    hps_lock_release(&space->lock);
    return status;
}

static bool is_there(const struct redis_shard *shard)
{
    return shard->known && !shard->missing;
}

static bool has_digest(const struct redis_shard *shard, const void *digest, size_t size)
{
    return is_there(shard) && size == REDIS_DIGEST_BYTES &&
           memcmp(shard->digest, digest, REDIS_DIGEST_BYTES) == 0;
}

/* The state of a shard in a server's reply. */
struct answer {
    const void *digest;
    size_t digest_size;                   /* 0: the shard is missing */
    struct hps_redis_positions positions; /* learn() takes them */
    bool sound;
};

static struct answer answer_of(const void *digest, size_t digest_size, const void *positions,
                               size_t positions_size)
{
    struct answer answer = {.digest = digest, .digest_size = digest_size};
    if (digest_size > 0) {
        answer.sound =
            digest_size == REDIS_DIGEST_BYTES &&
            hps_redis_positions_decode(&answer.positions, positions, positions_size) == HPS_OK;
    }
    return answer;
}

/* Record the reply by rule 2 of internal.h. True: the known state is this one or a newer one. */
static bool learn(struct redis_space *space, struct redis_shard *shard,
                  struct redis_shard_seen seen, struct answer *answer)
{
    bool missing = answer->digest_size == 0;
    if (missing ? shard->known && shard->missing
                : has_digest(shard, answer->digest, answer->digest_size)) {
        return true;
    }
    /* if the shard is not known, positions are the last known ones */
    bool comparable = answer->sound && !(shard->known && shard->missing);
    bool news = shard->seen.n_changes == seen.n_changes ||
                (comparable && hps_redis_positions_cover(&answer->positions, &shard->positions));
    if (!news) {
        return comparable && shard->known &&
               hps_redis_positions_cover(&shard->positions, &answer->positions);
    }
    shard->seen.n_changes++;
    shard->ask = REDIS_ASK_READS;
    shard->known = missing || answer->sound;
    shard->missing = missing;
    if (missing) {
        shard->seen.n_writes++;
        shard->n_rows = 0;
        hps_redis_positions_clear(&shard->positions);
    } else if (answer->sound) {
        struct hps_redis_positions old = shard->positions;
        memcpy(shard->digest, answer->digest, REDIS_DIGEST_BYTES);
        shard->positions = answer->positions;
        answer->positions = old;
    }
    redis_shard_judge(space, shard);
    shard_sane(shard);
    return shard->known;
}

bool redis_shard_learn(struct redis_space *space, uint32_t at, struct redis_shard_seen seen,
                       const void *digest, size_t digest_size, const void *positions,
                       size_t positions_size)
{
    HPS_ASSERT(at < space->n_shards);
    struct answer answer = answer_of(digest, digest_size, positions, positions_size);
    hps_lock_acquire(&space->lock);
    bool learnt = learn(space, &space->shards[at], seen, &answer);
    hps_lock_release(&space->lock);
    hps_redis_positions_fini(&answer.positions);
    return learnt;
}

bool redis_learn_values(struct redis_space *space, uint32_t at, struct redis_shard_seen seen,
                        const struct hps_redis_values *values, uint32_t first)
{
    if (first + 2 > values->n) {
        return false;
    }
    const struct hps_redis_value *digest = &values->items[first];
    const struct hps_redis_value *positions = &values->items[first + 1];
    if (digest->type == HPS_REDIS_NIL || positions->type == HPS_REDIS_NIL) {
        return redis_shard_learn(space, at, seen, NULL, 0, NULL, 0);
    }
    if (digest->type != HPS_REDIS_TEXT || positions->type != HPS_REDIS_TEXT) {
        return false;
    }
    return redis_shard_learn(space, at, seen, values->text.data + digest->at, digest->size,
                             values->text.data + positions->at, positions->size);
}

static bool has_spans(const struct redis_shard *shard, const struct hps_log_span *spans, uint32_t n)
{
    bool has = true;
    for (uint32_t i = 0; i < n && has; i++) {
        const struct hps_redis_position *position =
            hps_redis_positions_find(&shard->positions, spans[i].partition);
        has = position != NULL && position->offset >= spans[i].next;
    }
    return has;
}

void redis_shard_moved(struct redis_space *space, uint32_t at,
                       const uint8_t from[REDIS_DIGEST_BYTES],
                       const uint8_t digest[REDIS_DIGEST_BYTES], const struct hps_log_span *spans,
                       uint32_t n_spans)
{
    HPS_ASSERT(at < space->n_shards);
    struct redis_shard *shard = &space->shards[at];
    hps_status status = HPS_OK;
    hps_lock_acquire(&space->lock);
    bool same = has_digest(shard, from, REDIS_DIGEST_BYTES);
    /* A lookup may have seen it first. */
    bool known_already = has_digest(shard, digest, REDIS_DIGEST_BYTES) ||
                         (!same && is_there(shard) && has_spans(shard, spans, n_spans));
    for (uint32_t i = 0; i < n_spans && same && !known_already && status == HPS_OK; i++) {
        const struct hps_log_span *span = &spans[i];
        int64_t offset = span->next < span->start ? span->start : span->next;
        status = hps_redis_positions_raise(&shard->positions, span->partition, -1, offset);
    }
    if (!known_already) {
        shard->seen.n_changes++;
        shard->known = same && status == HPS_OK; /* otherwise its positions are unknown */
        shard->missing = false;
        memcpy(shard->digest, digest, REDIS_DIGEST_BYTES);
        redis_shard_judge(space, shard);
    }
    shard_sane(shard);
    hps_lock_release(&space->lock);
}

void redis_shard_forget(struct redis_space *space, uint32_t at, struct redis_shard_seen seen)
{
    HPS_ASSERT(at < space->n_shards);
    struct redis_shard *shard = &space->shards[at];
    hps_lock_acquire(&space->lock);
    if (shard->known && shard->seen.n_changes == seen.n_changes) {
        shard->seen.n_changes++;
        shard->known = false;
        redis_shard_judge(space, shard);
    }
    hps_lock_release(&space->lock);
}

struct redis_shard_seen redis_shard_seen(struct redis_space *space, uint32_t shard)
{
    HPS_ASSERT(shard < space->n_shards);
    hps_lock_acquire(&space->lock);
    struct redis_shard_seen seen = space->shards[shard].seen;
    hps_lock_release(&space->lock);
    return seen;
}

void redis_shard_wrote(struct redis_space *space, uint32_t shard, int64_t n_rows)
{
    HPS_ASSERT(shard < space->n_shards);
    hps_lock_acquire(&space->lock);
    space->shards[shard].seen.n_writes++;
    space->shards[shard].n_rows = n_rows > 0 ? (uint64_t)n_rows : 0;
    hps_lock_release(&space->lock);
}

void redis_shard_count(struct redis_space *space, uint32_t at, uint64_t n_fields, bool learns,
                       struct redis_shard_seen seen)
{
    enum { OF_POSITIONS = 2 };
    HPS_ASSERT(at < space->n_shards);
    struct redis_shard *shard = &space->shards[at];
    hps_lock_acquire(&space->lock);
    if (shard->seen.n_writes == seen.n_writes) {
        shard->n_rows = n_fields > OF_POSITIONS ? n_fields - OF_POSITIONS : 0;
    }
    learns = learns && shard->seen.n_changes == seen.n_changes;
    if (learns && n_fields == 0) {
        struct answer nothing = {.digest_size = 0};
        (void)learn(space, shard, seen, &nothing);
    } else if (learns && shard->missing) {
        shard->seen.n_changes++;
        shard->known = false; /* it exists again; the next lookup requests its positions */
        shard->missing = false;
        redis_shard_judge(space, shard);
    }
    hps_lock_release(&space->lock);
}

uint32_t redis_shards_missing(struct redis_space *space)
{
    uint32_t n = 0;
    hps_lock_acquire(&space->lock);
    for (uint32_t i = 0; i < space->n_shards; i++) {
        n += space->shards[i].known && space->shards[i].missing ? 1 : 0;
    }
    hps_lock_release(&space->lock);
    return n;
}

static bool is_known(struct redis_space *space, uint32_t shard)
{
    hps_lock_acquire(&space->lock);
    bool known = space->shards[shard].known;
    hps_lock_release(&space->lock);
    return known;
}

/* Rule 1 of internal.h. Rows between `begin` and the version's current positions are exact, because
 * the version has applied all of their updates. */
static void judge_rows(const struct redis_space *space, const struct hps_redis_positions *of,
                       const struct hps_redis_positions *begin, bool *out_readable, bool *out_exact)
{
    *out_readable = hps_redis_positions_cover(of, begin);
    *out_exact = *out_readable && hps_redis_positions_within(of, &space->at);
}

/* A lagging replica describes the past, so its state is not recorded. It only shows that other
 * daemons write. */
static void learn_rows(struct redis_space *space, struct redis_shard *shard,
                       struct redis_shard_seen seen, struct answer *answer)
{
    if (space->redis->options.redis.replica_reads) {
        shard->ask = REDIS_ASK_READS;
    } else {
        (void)learn(space, shard, seen, answer);
    }
}

bool redis_judge_rows(struct redis_space *space, uint32_t at, struct redis_shard_seen seen,
                      const struct hps_redis_positions *begin,
                      const struct hps_redis_values *values, bool *out_readable, bool *out_exact)
{
    HPS_ASSERT(at < space->n_shards);
    HPS_ASSERT(values->n > 0);
    struct redis_shard *shard = &space->shards[at];
    const struct hps_redis_value *digest = &values->items[0];
    const struct hps_redis_value *positions = values->n > 1 ? &values->items[1] : NULL;
    const uint8_t *text = (const uint8_t *)values->text.data;
    bool missing =
        digest->type == HPS_REDIS_NIL || (positions != NULL && positions->type == HPS_REDIS_NIL);
    bool tells = !missing && positions != NULL && digest->type == HPS_REDIS_TEXT &&
                 positions->type == HPS_REDIS_TEXT;
    struct answer answer = {.digest_size = 0};
    bool decided = true;
    *out_readable = false;
    *out_exact = false;
    if (tells) {
        answer = answer_of(text + digest->at, digest->size, text + positions->at, positions->size);
    }
    hps_lock_acquire(&space->lock);
    if (digest->type == HPS_REDIS_TEXT && has_digest(shard, text + digest->at, digest->size)) {
        judge_rows(space, &shard->positions, begin, out_readable, out_exact);
    } else if (missing || tells) {
        if (answer.sound) {
            judge_rows(space, &answer.positions, begin, out_readable, out_exact);
        }
        learn_rows(space, shard, seen, &answer);
    } else {
        decided = positions != NULL; /* a positions field of another type is malformed */
    }
    hps_lock_release(&space->lock);
    hps_redis_positions_fini(&answer.positions);
    return decided;
}

bool redis_shard_reached(struct redis_space *space, uint32_t at,
                         const uint8_t digest[REDIS_DIGEST_BYTES])
{
    struct redis_shard *shard = &space->shards[at];
    hps_lock_acquire(&space->lock);
    bool reached = has_digest(shard, digest, REDIS_DIGEST_BYTES) &&
                   (shard->exact || hps_redis_positions_within(&shard->positions, &space->at));
    hps_lock_release(&space->lock);
    return reached;
}

struct asking {
    struct redis_space *space;
    bool unknown_only;
};

static hps_status put_ask(void *ctx, struct hps_buf *bytes, uint32_t shard)
{
    const struct asking *asking = ctx;
    const struct hps_redis_name *key = &asking->space->shards[shard].keys[0];
    if (asking->unknown_only && is_known(asking->space, shard)) {
        return HPS_OK;
    }
    hps_status status = hps_redis_put_begin(bytes, 4);
    status = status == HPS_OK ? hps_redis_put_text(bytes, "HMGET") : status;
    status = status == HPS_OK ? hps_redis_put_arg(bytes, key->text, key->size) : status;
    status = status == HPS_OK ? hps_redis_put_text(bytes, "g") : status;
    return status == HPS_OK ? hps_redis_put_text(bytes, "p") : status;
}

uint32_t redis_shards_ask(struct redis_space *space, bool unknown_only, uint64_t deadline_us,
                          struct hps_error *err)
{
    struct redis_batch batch;
    uint32_t n_unanswered = 0;
    struct asking asking = {.space = space, .unknown_only = unknown_only};
    if (redis_shards_call(space, HPS_REDIS_SCRIPTS, put_ask, &asking, deadline_us, &batch) !=
        HPS_OK) {
        redis_batch_fini(&batch);
        return space->n_shards;
    }
    for (uint32_t i = 0; i < batch.n; i++) {
        bool learnt =
            batch.commands[i].reply.status == HPS_OK && batch.values[i].n == 3 &&
            redis_learn_values(space, batch.shards[i], batch.seen[i], &batch.values[i], 1);
        if (!learnt) {
            redis_shard_forget(space, batch.shards[i], batch.seen[i]);
            n_unanswered++;
        }
    }
    hps_ignore(redis_batch_failure(&batch, err));
    redis_batch_fini(&batch);
    return n_unanswered;
}
