/* SPDX-License-Identifier: Apache-2.0
 *
 * The redis store: opening, spaces, leases, and its keeper, a thread that renews leases, counts
 * rows and tells the server which were used. See docs/redis.md, and internal.h for threads.
 */
#include "backends/redis/redis.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "backends/redis/internal.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/log.h"
#include "base/thread.h"

enum {
    SHARDS_MAX = 4096,
    FIELDS_MAX = 1 << 17, /* commands of more trip some servers */
    DROP_STEP = 8,        /* shards that are unlinked at once */
    KEEPER_MS = 1000,
    BYTES_MAX = 1 << 30
};

static struct redis *redis_of(struct hps_store *store)
{
    return (struct redis *)(void *)store;
}

/* ---- deadlines ------------------------------------------------------------------------------- */

static uint64_t deadline(const struct hps_call *call, uint64_t timeout_us)
{
    uint64_t end_us = hps_clock_us() + timeout_us;
    bool sooner = call != NULL && call->deadline_us != 0 && call->deadline_us < end_us;
    return sooner ? call->deadline_us : end_us;
}

uint64_t redis_read_deadline(const struct redis *redis, const struct hps_call *call)
{
    return deadline(call, redis->options.redis.command_timeout_us);
}

uint64_t redis_write_deadline(const struct redis *redis, const struct hps_call *call)
{
    return deadline(call, redis->options.write_timeout_us);
}

/* ---- batches of commands --------------------------------------------------------------------- */

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
    batch->at[i + 1] = batch->bytes.size;
    batch->shards[i] = shard;
    batch->seen[i] = redis_shard_seen(space, shard);
    hps_redis_values_init(&batch->values[i], VALUES_MAX, TEXT_MAX);
    batch->commands[i] = (struct hps_redis_command){.slot = space->shards[shard].slot,
                                                    .flags = flags,
                                                    .size = batch->at[i + 1] - batch->at[i],
                                                    .reply = {.values = &batch->values[i]}};
}

/* Give the script to the servers that do not know it, and call it there again. */
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
    hps_ignore(hps_redis_cluster_run(redis->cluster, again, n, deadline_us)); /* each has its own */
    n = 0;
    for (uint32_t i = 0; i < batch->n; i++) {
        if (batch->commands[i].reply.status == HPS_NOT_FOUND) {
            batch->commands[i] = again[n + 1];
            n += 2;
        }
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

/* ---- leases ---------------------------------------------------------------------------------- */

/* What becomes of the lease of this daemon. */
enum lease_use {
    LEASE_TAKE,  /* unless another deletes the rows just now: n is -1 then */
    LEASE_LEAVE, /* it is given up */
    LEASE_DROP /* and if n is 0 the rows are this daemon's to delete: nobody takes one meanwhile */
};

/* out_n: how many daemons have one, this one included if it takes it. */
static hps_status lease(struct redis_space *space, enum lease_use use, uint64_t deadline_us,
                        int64_t *out_n)
{
    static const char *const words[] = {
        [LEASE_TAKE] = "take", [LEASE_LEAVE] = "leave", [LEASE_DROP] = "drop"};
    struct redis_batch batch;
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
        status = batch.commands[0].reply.status;
    }
    if (status == HPS_OK && !hps_redis_values_i64(&batch.values[0], 0, out_n)) {
        status = HPS_IO;
    }
    redis_batch_fini(&batch);
    return status;
}

/* With the store's lock. */
static hps_status lease_take(struct redis_space *space, bool *out_refused)
{
    uint64_t now_us = hps_clock_us();
    int64_t n = 0;
    hps_status status = lease(space, LEASE_TAKE, redis_write_deadline(space->redis, NULL), &n);
    *out_refused = status == HPS_OK && n < 0;
    if (status == HPS_OK && n > 0) {
        space->lease_us = now_us;
    }
    return *out_refused ? HPS_UNAVAILABLE : status;
}

hps_status redis_lease_take(struct redis_space *space, struct hps_error *err)
{
    bool refused = false;
    char why[HPS_REDIS_ERROR_MAX];
    pthread_mutex_lock(&space->redis->lock);
    hps_status status = lease_take(space, &refused);
    pthread_mutex_unlock(&space->redis->lock);
    if (status == HPS_OK) {
        return HPS_OK;
    }
    if (refused) {
        return hps_error_set(err, status, "another daemon is unloading it: try again");
    }
    hps_redis_cluster_why(space->redis->cluster, why, sizeof(why));
    return hps_error_set(err, status == HPS_DEADLINE ? HPS_UNAVAILABLE : status, "%s",
                         why[0] ? why : "the server of its leases does not answer");
}

static hps_status put_command(struct redis_batch *batch, const char *name,
                              const struct hps_redis_name *key, uint64_t number, bool has_number)
{
    hps_status status = hps_redis_put_begin(&batch->bytes, has_number ? 3 : 2);
    status = status == HPS_OK ? hps_redis_put_text(&batch->bytes, name) : status;
    status = status == HPS_OK ? hps_redis_put_arg(&batch->bytes, key->text, key->size) : status;
    return status == HPS_OK && has_number ? hps_redis_put_u64(&batch->bytes, number) : status;
}

/* ---- the keeper ------------------------------------------------------------------------------ */

/* Rows of each shard, also those of other daemons; and their time to live begins anew. */
bool redis_count_rows(struct redis_space *space)
{
    uint32_t n_answered = 0;
    const struct redis *redis = space->redis;
    bool learns = !atomic_load(&space->loading); /* else they come while they are counted */
    struct redis_batch batch;
    hps_status status = redis_batch_init(&batch, space->n_shards * 3);
    for (uint32_t i = 0; i < space->n_shards && status == HPS_OK; i++) {
        const struct redis_shard *shard = &space->shards[i];
        status = put_command(&batch, "HLEN", &shard->keys[0], 0, false);
        if (status == HPS_OK) {
            redis_batch_end(&batch, space, i, 0);
        }
        for (uint32_t k = 0; k < 2 && redis->options.ttl_ms > 0 && status == HPS_OK; k++) {
            status = put_command(&batch, "PEXPIRE", &shard->keys[k], redis->options.ttl_ms, true);
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
    redis_batch_fini(&batch);
    return n_answered == space->n_shards;
}

/* Tell what is missing of the only copy, and when it is back. */
static void tell_lost(struct redis_space *space)
{
    uint32_t n = redis_shards_missing(space);
    pthread_mutex_lock(&space->lock);
    uint32_t n_before = space->n_lost;
    space->n_lost = n;
    pthread_mutex_unlock(&space->lock);
    if (n > n_before) {
        HPS_LOG(ERROR, "redis", "shards of the only copy are lost: load the version again",
                HPS_STR("model", space->model), HPS_I64("version", space->version),
                HPS_U64("shards", n), HPS_U64("of", space->n_shards));
    } else if (n == 0 && n_before > 0) {
        HPS_LOG(INFO, "redis", "all shards of the only copy are there again",
                HPS_STR("model", space->model), HPS_I64("version", space->version));
    }
}

static void keep_space(struct redis_space *space)
{
    const struct redis *redis = space->redis;
    uint64_t age_us = hps_clock_us() - space->lease_us;
    bool only_copy = redis->options.authoritative && atomic_load(&space->loaded);
    bool refused = false;
    if (redis->options.layout == HPS_REDIS_LAYOUT_HPS) {
        return;
    }
    redis_touches_flush(space);
    bool due = space->lease_us == 0 || age_us >= redis->options.lease_ms * 1000 / 3;
    bool leased = due && lease_take(space, &refused) == HPS_OK;
    if (leased || (only_copy && redis_shards_missing(space) > 0)) {
        (void)redis_count_rows(space);
    }
    if (only_copy) {
        tell_lost(space);
    }
}

static void *keeper_run(void *ctx)
{
    struct redis *redis = ctx;
    pthread_mutex_lock(&redis->lock);
    while (!redis->stops) {
        struct timespec until;
        for (struct redis_space *space = redis->spaces; space != NULL; space = space->next) {
            keep_space(space);
        }
        (void)clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += KEEPER_MS / 1000;
        if (!redis->stops) { /* until then, or there is a new space, which wants a lease */
            (void)pthread_cond_timedwait(&redis->wake, &redis->lock, &until);
        }
    }
    pthread_mutex_unlock(&redis->lock);
    return NULL;
}

static hps_status keeper_start(struct redis *redis)
{
    pthread_condattr_t attr;
    if (pthread_condattr_init(&attr) != 0) {
        return HPS_NO_MEMORY;
    }
    bool made = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) == 0 &&
                pthread_cond_init(&redis->wake, &attr) == 0;
    (void)pthread_condattr_destroy(&attr);
    if (!made) {
        return HPS_NO_MEMORY;
    }
    redis->has_keeper = hps_thread_start(0, keeper_run, redis, &redis->keeper) == HPS_OK;
    if (!redis->has_keeper) {
        (void)pthread_cond_destroy(&redis->wake);
    } else {
        (void)pthread_setname_np(redis->keeper, "redis-leases");
    }
    return redis->has_keeper ? HPS_OK : HPS_NO_MEMORY;
}

/* ---- spaces ---------------------------------------------------------------------------------- */

static void space_free(struct redis_space *space)
{
    for (uint32_t i = 0; space->shards != NULL && i < space->n_shards; i++) {
        hps_redis_positions_fini(&space->shards[i].positions);
    }
    hps_redis_positions_fini(&space->at);
    (void)pthread_mutex_destroy(&space->lock);
    hps_free(space->shards);
    hps_free(space->touches);
    hps_free(space->names);
    hps_free(space->model);
    hps_free(space);
}

/* Where the next name is to be, behind the last one. */
static struct hps_redis_name name_add(struct redis_space *space, size_t *at, const char *text,
                                      size_t size)
{
    struct hps_redis_name name = {space->names + *at, size};
    memcpy(space->names + *at, text, size);
    *at += size;
    return name;
}

static void name_hpsd(struct redis_space *space, const struct hps_space_id *id)
{
    char text[HPS_REDIS_NAME_BYTES_MAX];
    uint64_t hash = hps_redis_load_hash(id, space->n_shards);
    size_t at = 0;
    for (uint32_t i = 0; i < space->n_shards; i++) {
        for (uint32_t k = 0; k < 2; k++) {
            size_t size = hps_redis_shard_name(id, hash, i, k == 1, text);
            space->shards[i].keys[k] = name_add(space, &at, text, size);
        }
        space->shards[i].slot =
            hps_redis_slot(space->shards[i].keys[0].text, space->shards[i].keys[0].size);
    }
    size_t size = hps_redis_leases_name(id, hash, text);
    space->leases = name_add(space, &at, text, size);
    space->leases_slot = hps_redis_slot(text, size);
}

static void name_hps(struct redis_space *space, const struct hps_space_id *id)
{
    char text[HPS_REDIS_NAME_BYTES_MAX];
    uint32_t n_parts = space->redis->options.n_shards;
    size_t at = 0;
    for (uint32_t i = 0; i < space->n_shards; i++) {
        size_t size =
            hps_redis_hps_name(id->model, id->tables[i / n_parts].name, i % n_parts, text);
        space->shards[i].keys[0] = name_add(space, &at, text, size);
        space->shards[i].slot = hps_redis_slot(text, size);
    }
}

static hps_status space_new(struct redis *redis, const struct hps_space_id *id,
                            struct redis_space **out_space)
{
    bool hps = redis->options.layout == HPS_REDIS_LAYOUT_HPS;
    struct redis_space *space = hps_calloc(1, sizeof(*space));
    if (space == NULL || pthread_mutex_init(&space->lock, NULL) != 0) {
        hps_free(space);
        return HPS_NO_MEMORY;
    }
    space->space.store = &redis->store;
    space->redis = redis;
    space->version = id->version;
    space->tables = id->tables;
    space->n_tables = id->n_tables;
    space->n_shards = redis->options.n_shards * (hps ? id->n_tables : 1);
    uint64_t rows_max = redis->options.rows_max;
    space->rows_max = rows_max > UINT64_MAX / (id->n_tables + 1) ? 0 : rows_max * id->n_tables;
    space->model = hps_strdup(id->model);
    space->names = hps_alloc(((size_t)space->n_shards * 2 + 1) * HPS_REDIS_NAME_BYTES_MAX);
    space->shards = hps_calloc(space->n_shards, sizeof(*space->shards));
    space->touches = hps_calloc(REDIS_TOUCHES_MAX, sizeof(*space->touches));
    if (space->model == NULL || space->names == NULL || space->shards == NULL ||
        space->touches == NULL) {
        space_free(space);
        return HPS_NO_MEMORY;
    }
    (hps ? name_hps : name_hpsd)(space, id);
    /* others evict, and servers forget: only where nothing else has the rows, a miss is a proof */
    atomic_store(&space->space.incomplete, !redis->options.authoritative || rows_max > 0);
    *out_space = space;
    return HPS_OK;
}

static hps_status space_open(struct hps_store *store, const struct hps_space_id *id,
                             struct hps_space **out_space, struct hps_error *err)
{
    struct redis *redis = redis_of(store);
    struct redis_space *space = NULL;
    hps_status status = space_new(redis, id, &space);
    if (status != HPS_OK) {
        return hps_error_set(err, status, "redis: model \"%s\" version %" PRId64 ": no memory",
                             id->model, id->version);
    }
    pthread_mutex_lock(&redis->lock);
    for (const struct redis_space *other = redis->spaces; other != NULL; other = other->next) {
        if (other->version == id->version && strcmp(other->model, id->model) == 0) {
            status = HPS_EXISTS;
        }
    }
    if (status == HPS_OK) {
        space->next = redis->spaces;
        redis->spaces = space;
        pthread_cond_signal(&redis->wake); /* for its lease */
    }
    pthread_mutex_unlock(&redis->lock);
    if (status != HPS_OK) {
        space_free(space);
        return hps_error_set(err, status, "redis: model \"%s\" version %" PRId64 " is open",
                             id->model, id->version);
    }
    *out_space = &space->space;
    return HPS_OK;
}

/* From here on the keeper does not touch it. */
static void space_forget(struct redis_space *space)
{
    struct redis *redis = space->redis;
    pthread_mutex_lock(&redis->lock);
    struct redis_space **link = &redis->spaces;
    while (*link != space) {
        link = &(*link)->next;
    }
    *link = space->next;
    pthread_mutex_unlock(&redis->lock);
}

static void space_close(struct hps_space *base)
{
    struct redis_space *space = redis_space_of(base);
    int64_t n_leases = 0;
    space_forget(space);
    if (space->lease_us != 0) { /* else it ends by itself */
        hps_ignore(lease(space, LEASE_LEAVE, redis_read_deadline(space->redis, NULL), &n_leases));
    }
    space_free(space);
}

static hps_status drop_some(struct redis_space *space, uint32_t begin, uint32_t end,
                            uint64_t deadline_us)
{
    struct redis_batch batch;
    hps_status status = redis_batch_init(&batch, 2 * (end - begin));
    for (uint32_t i = begin; i < end; i++) {
        for (uint32_t k = 0; k < 2 && status == HPS_OK; k++) {
            status = put_command(&batch, "UNLINK", &space->shards[i].keys[k], 0, false);
            if (status == HPS_OK) {
                redis_batch_end(&batch, space, i, 0);
            }
        }
    }
    if (status == HPS_OK) {
        redis_batch_run(space->redis, &batch, HPS_REDIS_SCRIPTS, deadline_us);
    }
    for (uint32_t i = 0; i < batch.n && status == HPS_OK; i++) {
        status = batch.commands[i].reply.status;
    }
    redis_batch_fini(&batch);
    return status;
}

/* A few shards at a time: the server frees them on a thread of its own, but has to be told. Each
 * time it is asked first whether they are still this daemon's to delete, which nobody changes for
 * lease_ms then; what takes longer than the deadline of both is not sent any more. */
static hps_status drop_shards(struct redis_space *space, int64_t *out_n_leases)
{
    hps_status status = HPS_OK;
    *out_n_leases = 0;
    for (uint32_t begin = 0; begin < space->n_shards && status == HPS_OK; begin += DROP_STEP) {
        uint32_t end = begin + DROP_STEP < space->n_shards ? begin + DROP_STEP : space->n_shards;
        uint64_t deadline_us = redis_write_deadline(space->redis, NULL);
        status = lease(space, LEASE_DROP, deadline_us, out_n_leases);
        if (status == HPS_OK && *out_n_leases > 0) {
            return HPS_OK;
        }
        status = status == HPS_OK ? drop_some(space, begin, end, deadline_us) : status;
    }
    return status;
}

static hps_status space_drop(struct hps_space *base, struct hps_error *err)
{
    struct redis_space *space = redis_space_of(base);
    int64_t n_leases = 0;
    space_forget(space);
    hps_status status = drop_shards(space, &n_leases);
    status = status == HPS_OK ? redis_load_tidy(space) : status;
    if (status == HPS_OK && n_leases > 0) {
        HPS_LOG(INFO, "redis", "rows stay: others use them", HPS_STR("model", space->model),
                HPS_I64("version", space->version), HPS_I64("daemons", n_leases));
    } else if (status == HPS_OK) { /* after a failure something may be on its way still */
        hps_ignore(lease(space, LEASE_LEAVE, redis_write_deadline(space->redis, NULL), &n_leases));
    }
    if (status != HPS_OK) {
        hps_error_set(err, status,
                      "redis: model \"%s\" version %" PRId64 ": its rows may still be there: %s",
                      space->model, space->version, hps_status_text(status));
    }
    space_free(space);
    return status;
}

/* What the server's allocator makes of it: four sizes to each doubling, at least 16 apart. */
static uint64_t allocated(uint64_t size)
{
    unsigned bits = size < 128 ? 6 : 63 - (unsigned)__builtin_clzll(size - 1);
    uint64_t step = (uint64_t)1 << (bits - 2);
    return (size + step - 1) / step * step;
}

static void space_usage(struct hps_space *base, struct hps_store_usage *out_usage)
{
    enum {
        FIELD_BYTES = 60,
        VALUE_HEAD_BYTES = 4
    }; /* measured: entry, field, share of the table */
    struct redis_space *space = redis_space_of(base);
    uint64_t bytes = 0;
    *out_usage = (struct hps_store_usage){0};
    for (uint32_t i = 0; i < space->n_tables; i++) {
        bytes += FIELD_BYTES + allocated(space->tables[i].row_bytes + VALUE_HEAD_BYTES);
    }
    pthread_mutex_lock(&space->lock);
    for (uint32_t i = 0; i < space->n_shards; i++) {
        out_usage->n_rows += space->shards[i].n_rows;
    }
    out_usage->n_shards_lost = space->n_lost;
    pthread_mutex_unlock(&space->lock);
    /* as if all tables had as many rows there */
    out_usage->used_bytes = space->n_tables == 0 ? 0 : out_usage->n_rows * bytes / space->n_tables;
}

/* ---- the store ------------------------------------------------------------------------------- */

static void redis_close(struct hps_store *store)
{
    struct redis *redis = redis_of(store);
    HPS_ASSERT(redis->spaces == NULL);
    if (redis->has_keeper) {
        pthread_mutex_lock(&redis->lock);
        redis->stops = true;
        pthread_cond_signal(&redis->wake);
        pthread_mutex_unlock(&redis->lock);
        int failed = pthread_join(redis->keeper, NULL);
        HPS_ASSERT(failed == 0);
        (void)pthread_cond_destroy(&redis->wake);
    }
    hps_redis_cluster_close(redis->cluster);
    (void)pthread_mutex_destroy(&redis->lock);
    hps_free(redis->member);
    hps_free(redis);
}

/* ---- what is known of it --------------------------------------------------------------------- */

static void server_tell(const struct hps_redis_node_stats *node, struct hps_store_server *out)
{
    static const char *const roles[] = {[HPS_REDIS_ENTRY] = "entry",
                                        [HPS_REDIS_MASTER] = "master",
                                        [HPS_REDIS_REPLICA] = "replica"};
    *out = (struct hps_store_server){.role = roles[node->role],
                                     .up = node->up,
                                     .n_slots = node->n_slots,
                                     .n_connections = node->n_connections,
                                     .latency_us = node->latency_us,
                                     .n_commands = node->n_commands,
                                     .n_keys = node->n_rows,
                                     .n_keys_found = node->n_rows_found,
                                     .n_bytes_sent = node->n_bytes_sent,
                                     .n_bytes_received = node->n_bytes_received,
                                     .n_errors = node->n_errors,
                                     .n_timeouts = node->n_timeouts,
                                     .n_broken = node->n_broken,
                                     .n_refused = node->n_refused};
    snprintf(out->address, sizeof(out->address), "%s", node->address);
    snprintf(out->error, sizeof(out->error), "%s", node->error);
}

static uint32_t redis_servers(struct hps_store *store, struct hps_store_server *out_servers,
                              uint32_t capacity)
{
    struct hps_redis_node_stats *nodes = hps_calloc(capacity, sizeof(*nodes));
    if (nodes == NULL) {
        return 0;
    }
    uint32_t n = hps_redis_cluster_nodes(redis_of(store)->cluster, nodes, capacity);
    for (uint32_t i = 0; i < n; i++) {
        server_tell(&nodes[i], &out_servers[i]);
    }
    hps_free(nodes);
    return n;
}

static void redis_shared_stats(struct hps_store *store, struct hps_store_shared_stats *out_stats)
{
    static const char *const kinds[] = {[HPS_REDIS_UNKNOWN] = "unknown",
                                        [HPS_REDIS_STANDALONE] = "standalone",
                                        [HPS_REDIS_CLUSTERED] = "cluster"};
    struct redis *redis = redis_of(store);
    struct hps_redis_stats stats;
    hps_redis_cluster_stats(redis->cluster, &stats);
    *out_stats = (struct hps_store_shared_stats){
        .kind = kinds[stats.kind],
        .n_slots = HPS_REDIS_SLOTS,
        .n_slots_up = stats.n_slots_up,
        .n_redirects = stats.n_moved + stats.n_ask,
        .n_rows_found = atomic_load(&redis->n_found),
        .n_rows_absent = atomic_load(&redis->n_absent),
        .n_rows_behind = atomic_load(&redis->n_behind),
        .n_rows_ahead = atomic_load(&redis->n_ahead),
        .n_rows_inserted = atomic_load(&redis->n_inserted),
        .n_rows_refused = atomic_load(&redis->n_refused),
        .n_rows_evicted = atomic_load(&redis->n_evicted),
        .n_shards_gap = atomic_load(&redis->n_gap),
        .n_shards_failed = atomic_load(&redis->n_failed),
        .n_shards_reset = atomic_load(&redis->n_reset),
    };
    snprintf(out_stats->error, sizeof(out_stats->error), "%s", stats.error);
}

static hps_status redis_renew_tls(struct hps_store *store, struct hps_error *err)
{
    return hps_redis_cluster_renew_tls(redis_of(store)->cluster, err);
}

static const struct hps_store_ops hpsd_ops = {
    .name = "redis",
    .tier = HPS_TIER_REDIS,
    .caps = HPS_STORE_BLOCKING | HPS_STORE_SHARED,
    .close = redis_close,
    .space_open = space_open,
    .space_close = space_close,
    .space_drop = space_drop,
    .space_usage = space_usage,
    .get = redis_get,
    .get_many = redis_get_many,
    .servers = redis_servers,
    .shared_stats = redis_shared_stats,
    .renew_tls = redis_renew_tls,
    .insert = redis_insert,
    .put = redis_put,
    .erase = redis_erase,
    .log_positions_set = redis_log_positions_set,
    .log_positions_get = redis_log_positions_get,
    .log_leave = redis_log_leave,
    .log_apply = redis_log_apply,
    .log_behind = redis_log_behind,
    .log_reset = redis_log_reset,
    .load_begin = redis_load_begin,
    .load_add = redis_load_add,
    .load_commit = redis_load_commit,
    .load_abort = redis_load_abort,
};

/* What it has belongs to others. */
static hps_status hps_space_drop(struct hps_space *base, struct hps_error *err)
{
    (void)err;
    space_close(base);
    return HPS_OK;
}

static const struct hps_store_ops hps_ops = {
    .name = "redis",
    .tier = HPS_TIER_REDIS,
    .caps = HPS_STORE_BLOCKING | HPS_STORE_SHARED,
    .close = redis_close,
    .space_open = space_open,
    .space_close = space_close,
    .space_drop = hps_space_drop,
    .space_usage = space_usage,
    .get = redis_get,
    .get_many = redis_get_many,
    .scan = redis_scan,
    .servers = redis_servers,
    .shared_stats = redis_shared_stats,
    .renew_tls = redis_renew_tls,
};

static hps_status check(const struct hps_redis_store_options *options, struct hps_error *err)
{
    if (options->n_shards < 1 || options->n_shards > SHARDS_MAX) {
        return hps_error_set(err, HPS_INVALID, "num_partitions is %" PRIu32 ": 1 to %d",
                             options->n_shards, SHARDS_MAX);
    }
    if (options->fields_max < 1 || options->fields_max > FIELDS_MAX) {
        return hps_error_set(err, HPS_INVALID, "max_batch_size is %" PRIu32 ": 1 to %d",
                             options->fields_max, FIELDS_MAX);
    }
    if (options->key_bytes != 4 && options->key_bytes != 8) {
        return hps_error_set(err, HPS_INVALID, "keys of %" PRIu32 " bytes: 4 or 8",
                             options->key_bytes);
    }
    if (options->target_ratio <= 0 || options->target_ratio > 1) {
        return hps_error_set(err, HPS_INVALID,
                             "overflow_resolution_target is %g: above 0, at most 1",
                             options->target_ratio);
    }
    if (options->lease_ms == 0 || options->sample_every == 0 || options->write_timeout_us == 0) {
        return hps_error_set(err, HPS_INVALID, "redis: leases, samples and writes need a number");
    }
    return HPS_OK;
}

hps_status hps_redis_open(const struct hps_redis_store_options *options,
                          struct hps_store **out_store, struct hps_error *err)
{
    hps_status status = check(options, err);
    if (status != HPS_OK) {
        return status;
    }
    struct redis *redis = hps_calloc(1, sizeof(*redis));
    if (redis == NULL || pthread_mutex_init(&redis->lock, NULL) != 0) {
        hps_free(redis);
        return hps_error_set(err, HPS_NO_MEMORY, "redis: no memory");
    }
    bool hps = options->layout == HPS_REDIS_LAYOUT_HPS;
    redis->store.ops = hps ? &hps_ops : &hpsd_ops;
    redis->options = *options;
    redis->options.member = NULL; /* these were borrowed */
    redis->options.redis.addresses = NULL;
    redis->member = hps_strdup(options->member != NULL ? options->member : "hpsd");
    status = redis->member == NULL ? hps_error_set(err, HPS_NO_MEMORY, "redis: no memory")
                                   : hps_redis_cluster_open(&options->redis, &redis->cluster, err);
    if (status == HPS_OK && keeper_start(redis) != HPS_OK) {
        status = hps_error_set(err, HPS_NO_MEMORY, "redis: no thread");
    }
    if (status != HPS_OK) {
        redis_close(&redis->store);
        return status;
    }
    *out_store = &redis->store;
    return HPS_OK;
}

struct hps_redis_cluster *hps_redis_of(struct hps_store *store)
{
    return redis_of(store)->cluster;
}
