/* SPDX-License-Identifier: Apache-2.0
 *
 * Bulk loads. Rows go into separate hashes next to the shards, which lookups do not read. The
 * commit renames them to the shards. If another daemon has loaded the same rows first, its rows are
 * used. One thread per load.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "backends/redis/internal.h"
#include "base/assert.h"
#include "base/heap.h"
#include "base/log.h"

enum { FLUSH_BYTES = 4 << 20 };

struct hps_store_load {
    struct redis_space *space;
    struct hps_redis_name *names; /* [n_shards] keys of the loaded hashes */
    char *text;
    uint64_t *n_rows;  /* [n_shards] rows added so far */
    uint32_t table_id; /* of the last row, like `key` */
    hps_key key;
    bool any;
};

static void load_free(struct hps_store_load *load)
{
    atomic_store(&load->space->loading, false);
    hps_free(load->names);
    hps_free(load->text);
    hps_free(load->n_rows);
    hps_free(load);
}

static hps_status load_new(struct redis_space *space, struct hps_store_load **out_load)
{
    struct hps_store_load *load = hps_calloc(1, sizeof(*load));
    size_t size_max = HPS_REDIS_NAME_BYTES_MAX + strlen(space->redis->member) + 8;
    if (load == NULL) {
        return HPS_NO_MEMORY;
    }
    load->space = space;
    load->names = hps_calloc(space->n_shards, sizeof(*load->names));
    load->text = hps_alloc(space->n_shards * size_max);
    load->n_rows = hps_calloc(space->n_shards, sizeof(*load->n_rows));
    if (load->names == NULL || load->text == NULL || load->n_rows == NULL) {
        hps_free(load->names);
        hps_free(load->text);
        hps_free(load->n_rows);
        hps_free(load);
        return HPS_NO_MEMORY;
    }
    for (uint32_t i = 0; i < space->n_shards; i++) {
        const struct hps_redis_name *key = &space->shards[i].keys[0];
        char *text = load->text + i * size_max;
        int size = snprintf(text, size_max, "%.*s:load:%s", (int)key->size, key->text,
                            space->redis->member);
        HPS_ASSERT(size > 0 && (size_t)size < size_max);
        load->names[i] = (struct hps_redis_name){text, (size_t)size};
    }
    *out_load = load;
    return HPS_OK;
}

/* Run the commands; returns the first failure. */
static hps_status run(struct redis_space *space, struct redis_batch *batch, struct hps_error *err)
{
    redis_batch_run(space->redis, batch, HPS_REDIS_SCRIPTS,
                    redis_write_deadline(space->redis, NULL));
    return redis_batch_failure(batch, err);
}

static hps_status no_memory(struct hps_error *err)
{
    return hps_error_set(err, HPS_NO_MEMORY, "no memory for commands");
}

static hps_status put_unlink(void *ctx, struct hps_buf *bytes, uint32_t shard)
{
    const struct hps_store_load *load = ctx;
    return redis_put_command(bytes, "UNLINK", &load->names[shard], 0, false);
}

static hps_status unlink_all(struct hps_store_load *load, struct hps_error *err)
{
    struct redis_space *space = load->space;
    struct redis_batch batch;
    hps_status status = redis_shards_call(space, HPS_REDIS_SCRIPTS, put_unlink, load,
                                          redis_write_deadline(space->redis, NULL), &batch);
    status = status == HPS_OK ? redis_batch_failure(&batch, err) : no_memory(err);
    redis_batch_fini(&batch);
    return status;
}

/* PRECONDITION if the version is loaded already. With the only copy, a load that was interrupted
 * between two shards is continued. */
static hps_status check_empty(struct redis_space *space, struct hps_error *err)
{
    uint32_t n_there = 0;
    uint64_t n_rows = 0;
    struct hps_error first = {0};
    hps_ignore(hps_error_set(&first, HPS_UNAVAILABLE, "not all Redis nodes of the version answer"));
    if (redis_shards_ask(space, false, redis_write_deadline(space->redis, NULL), &first) > 0 ||
        !redis_count_rows(space, &first)) {
        return redis_unanswered(space->redis, &first, err);
    }
    hps_lock_acquire(&space->lock);
    for (uint32_t i = 0; i < space->n_shards; i++) {
        n_there += space->shards[i].missing ? 0 : 1;
        n_rows += space->shards[i].n_rows;
    }
    hps_lock_release(&space->lock);
    bool whole = space->redis->options.authoritative ? n_there == space->n_shards : n_rows > 0;
    if (whole) {
        atomic_store(&space->loaded, true);
    }
    return whole ? hps_error_set(err, HPS_PRECONDITION, "Redis has rows of the version already")
                 : HPS_OK;
}

/* Warn about servers that may evict rows of the only copy. A server that denies INFO is skipped. */
static void warn_evicting(struct redis_space *space)
{
    static const char *const words[] = {"INFO", "memory"};
    uint16_t slots[HPS_REDIS_NODES_MAX];
    uint32_t n = 0;
    struct redis_batch batch;
    hps_redis_cluster_masters(space->redis->cluster, slots, HPS_REDIS_NODES_MAX, &n);
    hps_status status = redis_batch_init(&batch, n);
    for (uint32_t i = 0; i < n && status == HPS_OK; i++) {
        status = hps_redis_put_command(&batch.bytes, 2, words);
        if (status == HPS_OK) {
            redis_batch_end(&batch, space, 0, 0);
            batch.commands[i].slot = slots[i];
        }
    }
    if (status == HPS_OK) {
        hps_ignore(run(space, &batch, NULL));
    }
    for (uint32_t i = 0; i < batch.n && status == HPS_OK; i++) {
        const char *text = batch.commands[i].reply.status == HPS_OK && batch.values[i].n == 1
                               ? hps_redis_values_text(&batch.values[i], 0)
                               : "";
        if (strstr(text, "maxmemory_policy:") && !strstr(text, "maxmemory_policy:noeviction") &&
            !strstr(text, "maxmemory:0\r")) {
            HPS_LOG(WARN, "redis",
                    "rows at risk: Redis has the only copy of them, and its maxmemory-policy "
                    "allows eviction; set maxmemory-policy noeviction",
                    HPS_U64("slot", slots[i]), HPS_STR("model", space->model));
        }
    }
    redis_batch_fini(&batch);
}

hps_status redis_load_begin(struct hps_space *base, uint64_t rows_expected, uint64_t bytes_expected,
                            struct hps_store_load **out_load, struct hps_error *err)
{
    struct redis_space *space = redis_space_of(base);
    struct hps_store_load *load = NULL;
    (void)rows_expected;
    (void)bytes_expected; /* the server's maxmemory is not known */
    if (atomic_exchange(&space->loading, true)) {
        return hps_error_set(err, HPS_PRECONDITION, "redis: another load is in progress");
    }
    if (space->redis->options.authoritative) {
        warn_evicting(space);
    }
    hps_status status = redis_lease_take(space, err); /* before looking for existing shards */
    status = status == HPS_OK ? check_empty(space, err) : status;
    if (status == HPS_OK && load_new(space, &load) != HPS_OK) {
        status = no_memory(err);
    }
    if (status == HPS_OK) {
        status = unlink_all(load, err); /* leftovers of an interrupted load */
    }
    if (status == HPS_OK) {
        *out_load = load;
        return HPS_OK;
    }
    if (load != NULL) {
        load_free(load);
    }
    atomic_store(&space->loading, false);
    return hps_error_prefix(err, status, "redis: model \"%s\" version %" PRId64 " cannot be loaded",
                            space->model, space->version);
}

/* Some rows of one table, with their shards. */
struct piece {
    const struct hps_table *table;
    const hps_key *keys;    /* [n] */
    const uint8_t *rows;    /* [n] */
    const uint32_t *shards; /* [n] */
    uint32_t n;
};

/* Put the next `n` rows of the shard, from *at on, as one command. */
static hps_status put_some(const struct hps_store_load *load, struct redis_batch *batch,
                           const struct piece *piece, uint32_t shard, uint32_t n, uint32_t *at)
{
    const struct hps_redis_name *name = &load->names[shard];
    size_t row_bytes = piece->table->row_bytes;
    hps_status status = hps_redis_put_begin(&batch->bytes, 2 + 2 * n);
    status = status == HPS_OK ? hps_redis_put_text(&batch->bytes, "HSET") : status;
    status = status == HPS_OK ? hps_redis_put_arg(&batch->bytes, name->text, name->size) : status;
    while (n > 0 && status == HPS_OK) {
        uint8_t field[HPS_REDIS_FIELD_BYTES];
        uint32_t i = (*at)++;
        HPS_DEBUG_ASSERT(i < piece->n);
        if (piece->shards[i] != shard) {
            continue;
        }
        n--;
        hps_redis_field(piece->table->id, piece->keys[i], field);
        status = hps_redis_put_arg(&batch->bytes, field, sizeof(field));
        if (status == HPS_OK) {
            status = hps_redis_put_arg(&batch->bytes, piece->rows + i * row_bytes, row_bytes);
        }
    }
    if (status == HPS_OK) {
        redis_batch_end(batch, load->space, shard, 0);
    }
    return status;
}

static hps_status put_rows(const struct hps_store_load *load, struct redis_batch *batch,
                           const struct piece *piece, uint32_t shard)
{
    uint32_t fields_max = load->space->redis->options.fields_max;
    uint32_t n_left = 0;
    uint32_t at = 0;
    hps_status status = HPS_OK;
    for (uint32_t i = 0; i < piece->n; i++) {
        n_left += piece->shards[i] == shard;
    }
    while (n_left > 0 && status == HPS_OK) {
        uint32_t n = n_left < fields_max ? n_left : fields_max;
        status = put_some(load, batch, piece, shard, n, &at);
        load->n_rows[shard] += n;
        n_left -= n;
    }
    return status;
}

static hps_status add_piece(const struct hps_store_load *load, const struct piece *piece,
                            struct hps_error *err)
{
    struct redis_space *space = load->space;
    struct redis_batch batch;
    hps_status status =
        redis_batch_init(&batch, space->n_shards + piece->n / space->redis->options.fields_max);
    for (uint32_t i = 0; i < space->n_shards && status == HPS_OK; i++) {
        status = put_rows(load, &batch, piece, i);
    }
    status = status == HPS_OK ? run(space, &batch, err) : no_memory(err);
    redis_batch_fini(&batch);
    return status;
}

static hps_status check_order(struct hps_store_load *load, const struct hps_table *table,
                              const hps_key *keys, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        bool behind = load->any && (table->id < load->table_id ||
                                    (table->id == load->table_id && keys[i] <= load->key));
        if (behind) {
            return HPS_INVALID;
        }
        load->any = true;
        load->table_id = table->id;
        load->key = keys[i];
    }
    return HPS_OK;
}

hps_status redis_load_add(struct hps_store_load *load, const struct hps_table *table,
                          const hps_key *keys, const uint8_t *rows, uint32_t n,
                          struct hps_error *err)
{
    struct redis_space *space = load->space;
    HPS_ASSERT(atomic_load(&space->loading));
    HPS_ASSERT(table->id < space->n_tables);
    uint32_t step = FLUSH_BYTES / (table->row_bytes + HPS_REDIS_FIELD_BYTES) + 1;
    hps_status status = check_order(load, table, keys, n);
    if (status != HPS_OK) {
        return hps_error_set(err, status, "table '%s': keys are not in ascending order",
                             table->name);
    }
    uint32_t *shards = hps_alloc((n < step ? n : step) * sizeof(*shards));
    status = shards == NULL ? no_memory(err) : HPS_OK;
    for (uint32_t begin = 0; begin < n && status == HPS_OK; begin += step) {
        const struct piece piece = {.table = table,
                                    .keys = keys + begin,
                                    .rows = rows + (size_t)begin * table->row_bytes,
                                    .shards = shards,
                                    .n = n - begin < step ? n - begin : step};
        for (uint32_t i = 0; i < piece.n; i++) {
            shards[i] = hps_redis_shard(table->id, piece.keys[i], space->n_shards);
        }
        status = add_piece(load, &piece, err);
    }
    hps_free(shards);
    return status == HPS_OK
               ? HPS_OK
               : hps_error_prefix(err, status, "redis: table '%s' cannot be loaded", table->name);
}

struct committing {
    const struct hps_store_load *load;
    struct hps_buf positions;
};

/* A shard without rows may be replaced by the load. Not if it is the only copy: another load has
 * created it, and updates may have emptied it. */
static hps_status put_commit(void *ctx, struct hps_buf *bytes, uint32_t shard)
{
    const struct committing *committing = ctx;
    const struct hps_store_load *load = committing->load;
    const struct hps_buf *positions = &committing->positions;
    const struct hps_redis_name keys[2] = {load->space->shards[shard].keys[0], load->names[shard]};
    bool only_copy = load->space->redis->options.authoritative;
    hps_status status = hps_redis_script_begin(bytes, HPS_REDIS_COMMIT, keys, 2, 3);
    status = status == HPS_OK ? hps_redis_put_arg(bytes, positions->data, positions->size) : status;
    status = status == HPS_OK ? hps_redis_put_u64(bytes, only_copy ? 0 : 2) : status;
    return status == HPS_OK ? hps_redis_put_u64(bytes, load->n_rows[shard]) : status;
}

/* True if a fail-over has lost acknowledged rows of the load. */
static bool has_lost(const struct redis_batch *batch)
{
    int64_t outcome = 0;
    bool lost = false;
    for (uint32_t i = 0; i < batch->n; i++) {
        lost = lost || !hps_redis_values_i64(&batch->values[i], 0, &outcome) || outcome < 0;
    }
    return lost;
}

hps_status redis_load_commit(struct hps_store_load *load, struct hps_error *err)
{
    struct redis_space *space = load->space;
    struct redis_batch batch = {0};
    struct committing committing = {.load = load};
    hps_status status = redis_positions_put(space, &committing.positions);
    if (status == HPS_OK) {
        status = redis_shards_call(space, HPS_REDIS_COMMIT, put_commit, &committing,
                                   redis_write_deadline(space->redis, NULL), &batch);
    }
    HPS_ASSERT(status != HPS_OK || batch.n == space->n_shards);
    status = status == HPS_OK ? redis_batch_failure(&batch, err) : no_memory(err);
    if (status == HPS_OK && has_lost(&batch)) {
        status = hps_error_set(err, HPS_UNAVAILABLE,
                               "a Redis node lost rows of the load: load the version again");
    }
    redis_batch_fini(&batch);
    hps_buf_fini(&committing.positions);
    if (status != HPS_OK) {
        return hps_error_prefix(err, status,
                                "redis: model \"%s\" version %" PRId64 " cannot be loaded",
                                space->model, space->version);
    }
    for (uint32_t i = 0; i < space->n_shards; i++) {
        redis_shard_wrote(space, i, (int64_t)load->n_rows[i]);
    }
    hps_ignore(unlink_all(load, NULL)); /* leftovers remain where another daemon was first */
    (void)redis_shards_ask(space, false, redis_write_deadline(space->redis, NULL), NULL);
    (void)redis_count_rows(space, NULL);
    while (redis_evict(space, redis_write_deadline(space->redis, NULL)) > 0) {
        /* while shards have too many rows and answer */
    }
    load_free(load);
    atomic_store(&space->loaded, true);
    return HPS_OK;
}

hps_status redis_load_tidy(struct redis_space *space, struct hps_error *err)
{
    struct hps_store_load *load = NULL;
    hps_status status = load_new(space, &load);
    if (status == HPS_OK) {
        status = unlink_all(load, err);
        load_free(load);
    }
    return status;
}

void redis_load_abort(struct hps_store_load *load)
{
    hps_ignore(unlink_all(load, NULL)); /* if it fails, the next load deletes them */
    load_free(load);
}
