/* SPDX-License-Identifier: Apache-2.0
 *
 * The redis store: opening and closing it, its spaces, and statistics of its servers. See
 * docs/redis.md, and internal.h for threads.
 */
#include "backends/redis/redis.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "backends/redis/internal.h"
#include "backends/store_servers.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/lock.h"
#include "base/log.h"

enum {
    SHARDS_MAX = 4096,
    FIELDS_MAX = 1 << 17, /* larger commands break some servers */
    DROP_STEP = 8,        /* shards that are unlinked together */
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

/* ---- spaces ---------------------------------------------------------------------------------- */

static void space_free(struct redis_space *space)
{
    for (uint32_t i = 0; space->shards != NULL && i < space->n_shards; i++) {
        hps_redis_positions_fini(&space->shards[i].positions);
    }
    hps_redis_positions_fini(&space->at);
    hps_lock_fini(&space->lock);
    hps_free(space->shards);
    hps_free(space->touches);
    hps_free(space->names);
    hps_free(space->model);
    hps_free(space);
}

/* Append a key name to space->names. */
static struct hps_redis_name name_add(struct redis_space *space, size_t *at, const char *text,
                                      size_t size)
{
    struct hps_redis_name name = {space->names + *at, size};
    HPS_ASSERT(size <= HPS_REDIS_NAME_BYTES_MAX);
    memcpy(space->names + *at, text, size);
    *at += size;
    return name;
}

static void name_shards(struct redis_space *space, const struct hps_space_id *id)
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

static hps_status space_new(struct redis *redis, const struct hps_space_id *id,
                            struct redis_space **out_space)
{
    struct redis_space *space = hps_calloc(1, sizeof(*space));
    if (space == NULL) {
        return HPS_NO_MEMORY;
    }
    hps_lock_init(&space->lock, HPS_LOCK_REDIS_SPACE);
    space->space.store = &redis->store;
    space->redis = redis;
    space->version = id->version;
    space->tables = id->tables;
    space->n_tables = id->n_tables;
    space->n_shards = redis->options.n_shards;
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
    name_shards(space, id);
    /* A miss proves absence only if this store has the only copy, since other daemons and servers
     * may drop rows. */
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
    hps_lock_acquire(&redis->lock);
    for (const struct redis_space *other = redis->spaces; other != NULL; other = other->next) {
        if (other->version == id->version && strcmp(other->model, id->model) == 0) {
            status = HPS_EXISTS;
        }
    }
    if (status == HPS_OK) {
        space->next = redis->spaces;
        redis->spaces = space;
        hps_cond_signal(&redis->wake); /* the new space needs a lease */
    }
    hps_lock_release(&redis->lock);
    if (status != HPS_OK) {
        space_free(space);
        return hps_error_set(err, status, "redis: model \"%s\" version %" PRId64 " is open",
                             id->model, id->version);
    }
    *out_space = &space->space;
    return HPS_OK;
}

/* After this call the leases thread does not touch the space. */
static void space_forget(struct redis_space *space)
{
    struct redis *redis = space->redis;
    hps_lock_acquire(&redis->lock);
    struct redis_space **link = &redis->spaces;
    while (*link != space) {
        HPS_ASSERT(*link != NULL);
        link = &(*link)->next;
    }
    *link = space->next;
    hps_lock_release(&redis->lock);
}

static void space_close(struct hps_space *base)
{
    struct redis_space *space = redis_space_of(base);
    int64_t n_leases = 0;
    space_forget(space);
    if (space->lease_us != 0) { /* otherwise the lease expires */
        hps_ignore(redis_lease(space, REDIS_LEASE_LEAVE, redis_read_deadline(space->redis, NULL),
                               &n_leases, NULL));
    }
    space_free(space);
}

static hps_status drop_some(struct redis_space *space, uint32_t begin, uint32_t end,
                            uint64_t deadline_us, struct hps_error *err)
{
    struct redis_batch batch;
    HPS_ASSERT(begin < end && end <= space->n_shards);
    hps_status status = redis_batch_init(&batch, 2 * (end - begin));
    for (uint32_t i = begin; i < end; i++) {
        for (uint32_t k = 0; k < 2 && status == HPS_OK; k++) {
            status = redis_put_command(&batch.bytes, "UNLINK", &space->shards[i].keys[k], 0, false);
            if (status == HPS_OK) {
                redis_batch_end(&batch, space, i, 0);
            }
        }
    }
    if (status == HPS_OK) {
        redis_batch_run(space->redis, &batch, HPS_REDIS_SCRIPTS, deadline_us);
    }
    status = status == HPS_OK ? redis_batch_failure(&batch, err) : status;
    redis_batch_fini(&batch);
    return status;
}

/* Delete the shards in small groups: a command unlinks them, and the server frees them in the
 * background. Before each group, check that this daemon may still delete them, which then holds for
 * lease_ms. The check and the deletion share one deadline, after which nothing is sent. */
static hps_status drop_shards(struct redis_space *space, int64_t *out_n_leases,
                              struct hps_error *err)
{
    hps_status status = HPS_OK;
    *out_n_leases = 0;
    for (uint32_t begin = 0; begin < space->n_shards && status == HPS_OK; begin += DROP_STEP) {
        uint32_t end = begin + DROP_STEP < space->n_shards ? begin + DROP_STEP : space->n_shards;
        uint64_t deadline_us = redis_write_deadline(space->redis, NULL);
        status = redis_lease(space, REDIS_LEASE_DROP, deadline_us, out_n_leases, err);
        if (status == HPS_OK && *out_n_leases > 0) {
            return HPS_OK;
        }
        status = status == HPS_OK ? drop_some(space, begin, end, deadline_us, err) : status;
    }
    return status;
}

static hps_status space_drop(struct hps_space *base, struct hps_error *err)
{
    struct redis_space *space = redis_space_of(base);
    int64_t n_leases = 0;
    struct hps_error first = {0};
    space_forget(space);
    hps_status status = drop_shards(space, &n_leases, &first);
    status = status == HPS_OK ? redis_load_tidy(space, &first) : status;
    if (status == HPS_OK && n_leases > 0) {
        HPS_LOG(INFO, "redis", "rows kept: other daemons use the version",
                HPS_STR("model", space->model), HPS_I64("version", space->version),
                HPS_I64("daemons", n_leases));
    } else if (status == HPS_OK) { /* after a failure, commands may still be in flight */
        hps_ignore(redis_lease(space, REDIS_LEASE_LEAVE, redis_write_deadline(space->redis, NULL),
                               &n_leases, NULL));
    }
    if (status != HPS_OK) {
        hps_error_set(err, status,
                      "redis: model \"%s\" version %" PRId64 ": its rows may still be in Redis: %s",
                      space->model, space->version,
                      first.text[0] ? first.text : hps_status_text(status));
    }
    space_free(space);
    return status;
}

/* Bytes that the server's allocator uses: four size classes per doubling, at least 16 bytes
 * apart. */
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
    hps_lock_acquire(&space->lock);
    for (uint32_t i = 0; i < space->n_shards; i++) {
        out_usage->n_rows += space->shards[i].n_rows;
    }
    out_usage->n_shards_lost = space->n_lost;
    hps_lock_release(&space->lock);
    /* assumes the same number of rows in each table */
    out_usage->used_bytes = space->n_tables == 0 ? 0 : out_usage->n_rows * bytes / space->n_tables;
}

/* ---- the store ------------------------------------------------------------------------------- */

static void redis_close(struct hps_store *store)
{
    struct redis *redis = redis_of(store);
    HPS_ASSERT(redis->spaces == NULL);
    hps_worker_stop(&redis->maintenance, &redis->lock, &redis->wake, &redis->stops);
    hps_redis_cluster_close(redis->cluster);
    hps_cond_fini(&redis->wake);
    hps_lock_fini(&redis->lock);
    hps_free(redis->member);
    hps_free(redis);
}

/* ---- statistics ------------------------------------------------------------------------------ */

static void server_stats(const struct hps_redis_node_stats *node, struct hps_store_server *out)
{
    static const char *const roles[] = {[HPS_REDIS_ENTRY] = "entry",
                                        [HPS_REDIS_MASTER] = "master",
                                        [HPS_REDIS_REPLICA] = "replica"};
    HPS_ASSERT((size_t)node->role < sizeof(roles) / sizeof(roles[0]));
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
        server_stats(&nodes[i], &out_servers[i]);
    }
    hps_free(nodes);
    return n;
}

static void redis_stats(struct hps_store *store, struct hps_store_shared_stats *out_stats)
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

static const struct hps_store_servers_ops servers_ops = {
    .list = redis_servers,
    .stats = redis_stats,
    .renew_tls = redis_renew_tls,
};

static const struct hps_store_bulk_ops bulk_ops = {
    .begin = redis_load_begin,
    .add = redis_load_add,
    .commit = redis_load_commit,
    .abort = redis_load_abort,
};

static const struct hps_store_log_ops log_ops = {
    .positions_set = redis_log_positions_set,
    .positions_get = redis_log_positions_get,
    .leave = redis_log_leave,
    .apply = redis_log_apply,
    .behind = redis_log_behind,
    .reset = redis_log_reset,
};

static const struct hps_store_ops redis_ops = {
    .name = "redis",
    .tier = HPS_TIER_REDIS,
    .caps = HPS_STORE_BLOCKING | HPS_STORE_SHARED | HPS_STORE_INSERTS | HPS_STORE_JOINS,
    .bulk = &bulk_ops,
    .log = &log_ops,
    .servers = &servers_ops,
    .close = redis_close,
    .space_open = space_open,
    .space_close = space_close,
    .space_drop = space_drop,
    .space_usage = space_usage,
    .get = redis_get,
    .get_many = redis_get_many,
    .insert = redis_insert,
    .put = redis_put,
    .erase = redis_erase,
    .scan = hps_store_scan_none,
};

static hps_status check(const struct hps_redis_store_options *options, struct hps_error *err)
{
    if (options->n_shards < 1 || options->n_shards > SHARDS_MAX) {
        return hps_error_set(err, HPS_INVALID, "num_partitions is %" PRIu32 ", expected 1 to %d",
                             options->n_shards, SHARDS_MAX);
    }
    if (options->fields_max < 1 || options->fields_max > FIELDS_MAX) {
        return hps_error_set(err, HPS_INVALID, "max_batch_size is %" PRIu32 ", expected 1 to %d",
                             options->fields_max, FIELDS_MAX);
    }
    if (options->target_ratio <= 0 || options->target_ratio > 1) {
        return hps_error_set(err, HPS_INVALID,
                             "overflow_resolution_target is %g, expected above 0 and at most 1",
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
    if (redis == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "redis: no memory");
    }
    hps_lock_init(&redis->lock, HPS_LOCK_REDIS);
    hps_cond_init(&redis->wake);
    redis->store.ops = &redis_ops;
    redis->options = *options;
    redis->options.member = NULL; /* borrowed */
    redis->options.redis.addresses = NULL;
    redis->member = hps_strdup(options->member != NULL ? options->member : "hpsd");
    status = redis->member == NULL ? hps_error_set(err, HPS_NO_MEMORY, "redis: no memory")
                                   : hps_redis_cluster_open(&options->redis, &redis->cluster, err);
    if (status == HPS_OK && redis_maintenance_start(redis) != HPS_OK) {
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
