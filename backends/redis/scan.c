/* SPDX-License-Identifier: Apache-2.0
 *
 * All rows of a table that HPS has written, hash by hash, with HSCAN. A cursor means something to
 * the process that gave it, and to no other: where a slot has moved, a master failed over or a
 * server started again, going on with it would leave rows out. So all answers about a hash must
 * come by one connection; else it is read again from its beginning, and rows come twice. Memory is
 * that of one answer. Any thread.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "backends/redis/internal.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/log.h"

enum {
    TRIES_MAX = 10,
    PATIENCE_CONNECTS = 40, /* how long servers may be away, in times that a connection may take */
    ANSWER_BYTES = 4 << 20, /* about, of one HSCAN */
    BATCH_BYTES = 1 << 20,
    ANSWER_BYTES_MAX = 512 << 20, /* a hash may have more than was asked for at one place */
    VALUES_MAX = 16 << 20,
    CURSOR_BYTES = 24, /* 20 digits */
    /* A server answers for as many of its buckets as it is asked for rows, and has a few for each
     * row, also where many rows were deleted or the table of buckets grows. */
    ANSWERS_PER_ROWS = 64,
    ANSWERS_MORE = 1000
};

struct scan {
    struct redis_space *space;
    const struct hps_table *table;
    hps_rows_fn fn;
    void *ctx;
    struct hps_error *err;
    uint32_t n_asked; /* rows per HSCAN */
    struct hps_buf bytes;
    struct hps_redis_values values;
    struct hps_redis_command command;
    hps_key *keys; /* [n_max] */
    uint8_t *rows; /* [n_max][row_bytes] */
    uint32_t n;
    uint32_t n_max;
};

/* One hash, which is a partition of HPS's. */
struct hash {
    uint32_t shard;
    struct hps_redis_name name;
    uint16_t slot;
    char cursor[CURSOR_BYTES];
    uint64_t n_seen;
    uint64_t n_least; /* rows that there have been at any time */
};

static hps_status fail(const struct scan *scan, hps_status status, const struct hash *hash,
                       const char *why)
{
    return hps_error_set(scan->err, status, "redis: table '%s', %.*s: %s", scan->table->name,
                         (int)hash->name.size, hash->name.text, why);
}

static hps_status no_memory(const struct scan *scan)
{
    return hps_error_set(scan->err, HPS_NO_MEMORY, "redis: table '%s': no memory to read it",
                         scan->table->name);
}

/* ---- asking ---------------------------------------------------------------------------------- */

/* Run the command that was put. Servers that fail over, or are away for a moment, are waited for.
 */
static hps_status ask(struct scan *scan, const struct hash *hash)
{
    const struct redis *redis = scan->space->redis;
    const struct hps_redis_reply *reply = &scan->command.reply;
    uint64_t patience_us = PATIENCE_CONNECTS * redis->options.redis.connect_timeout_us;
    for (unsigned try = 1;; try++) {
        scan->command = (struct hps_redis_command){.slot = hash->slot,
                                                   .bytes = scan->bytes.data,
                                                   .size = scan->bytes.size,
                                                   .reply = {.values = &scan->values}};
        if (hps_redis_cluster_run(redis->cluster, &scan->command, 1,
                                  redis_write_deadline(redis, NULL)) == HPS_OK) {
            return HPS_OK;
        }
        bool away = reply->status == HPS_UNAVAILABLE || reply->status == HPS_DEADLINE;
        if (!away || try == TRIES_MAX ||
            !hps_redis_cluster_wait(redis->cluster, hps_clock_us() + patience_us)) {
            bool unusable = away || reply->status == HPS_PERMISSION;
            return fail(scan, unusable ? HPS_UNAVAILABLE : reply->status, hash,
                        reply->error[0] ? reply->error : hps_status_text(reply->status));
        }
    }
}

static hps_status put(struct scan *scan, const struct hash *hash, const char *name, uint32_t n_args)
{
    hps_buf_clear(&scan->bytes);
    hps_status status = hps_redis_put_begin(&scan->bytes, n_args);
    status = status == HPS_OK ? hps_redis_put_text(&scan->bytes, name) : status;
    return status == HPS_OK ? hps_redis_put_arg(&scan->bytes, hash->name.text, hash->name.size)
                            : status;
}

/* How many rows it has; 0: it is not there. */
static hps_status ask_size(struct scan *scan, const struct hash *hash, uint64_t *out_n)
{
    if (put(scan, hash, "HLEN", 2) != HPS_OK) {
        return no_memory(scan);
    }
    hps_status status = ask(scan, hash);
    if (status == HPS_OK &&
        (scan->values.n != 1 || !hps_redis_values_u64(&scan->values, 0, out_n))) {
        status = fail(scan, HPS_IO, hash, "no answer to HLEN");
    }
    return status;
}

static hps_status ask_rows(struct scan *scan, const struct hash *hash)
{
    hps_status status = put(scan, hash, "HSCAN", 5);
    status = status == HPS_OK ? hps_redis_put_text(&scan->bytes, hash->cursor) : status;
    status = status == HPS_OK ? hps_redis_put_text(&scan->bytes, "COUNT") : status;
    status = status == HPS_OK ? hps_redis_put_u64(&scan->bytes, scan->n_asked) : status;
    return status == HPS_OK ? ask(scan, hash) : no_memory(scan);
}

/* ---- rows ------------------------------------------------------------------------------------ */

static hps_status flush(struct scan *scan)
{
    uint32_t n = scan->n;
    HPS_ASSERT(n <= scan->n_max);
    scan->n = 0;
    return n == 0 ? HPS_OK : scan->fn(scan->ctx, scan->keys, scan->rows, n);
}

static hps_status take_row(struct scan *scan, const struct hash *hash,
                           const struct hps_redis_value *field, const struct hps_redis_value *row)
{
    const struct hps_redis_store_options *options = &scan->space->redis->options;
    const struct hps_table *table = scan->table;
    const uint8_t *text = scan->values.text.data;
    hps_key key = 0;
    char why[160];
    if (field->type != HPS_REDIS_TEXT || row->type != HPS_REDIS_TEXT) {
        return fail(scan, HPS_IO, hash, "no answer to HSCAN");
    }
    if (field->size != options->key_bytes) {
        snprintf(why, sizeof(why),
                 "a key of %" PRIu32 " bytes, expected %" PRIu32 ", as supportlonglong says",
                 field->size, options->key_bytes);
        return fail(scan, HPS_INVALID, hash, why);
    }
    memcpy(&key, text + field->at, field->size);
    if (redis_shard_of(scan->space, table, key) != hash->shard) {
        snprintf(why, sizeof(why),
                 "key %" PRIu64 " is not one of its: HPS has written it with another "
                 "num_partitions than %" PRIu32,
                 key, options->n_shards);
        return fail(scan, HPS_INVALID, hash, why);
    }
    if (row->size != table->row_bytes) {
        snprintf(why, sizeof(why),
                 "the row of key %" PRIu64 " has %" PRIu32 " bytes, expected %" PRIu32
                 " (width %" PRIu32 ")",
                 key, row->size, table->row_bytes, table->dim);
        return fail(scan, HPS_INVALID, hash, why);
    }
    scan->keys[scan->n] = key;
    memcpy(scan->rows + (size_t)scan->n * table->row_bytes, text + row->at, row->size);
    scan->n++;
    return scan->n == scan->n_max ? flush(scan) : HPS_OK;
}

/* The answer to an HSCAN: the next cursor, and an array of fields and rows in turn. */
static hps_status take_rows(struct scan *scan, struct hash *hash)
{
    enum { OUTER, CURSOR, INNER, FIRST };
    const struct hps_redis_values *values = &scan->values;
    const struct hps_redis_value *items = values->items;
    bool whole = values->n >= FIRST && items[OUTER].type == HPS_REDIS_ARRAY &&
                 items[CURSOR].type == HPS_REDIS_TEXT && items[CURSOR].size < CURSOR_BYTES &&
                 items[INNER].type == HPS_REDIS_ARRAY && items[INNER].size % 2 == 0 &&
                 values->n == FIRST + items[INNER].size;
    if (!whole) {
        return fail(scan, HPS_IO, hash, "no answer to HSCAN");
    }
    memcpy(hash->cursor, hps_redis_values_text(values, CURSOR), items[CURSOR].size + 1);
    hps_status status = HPS_OK;
    for (uint32_t i = FIRST; i < values->n && status == HPS_OK; i += 2) {
        status = take_row(scan, hash, &items[i], &items[i + 1]);
    }
    hash->n_seen += items[INNER].size / 2;
    return status == HPS_OK ? flush(scan) : status;
}

/* Of a hash with so many rows. A cursor that goes on for longer will never end. */
static uint64_t answers_max(const struct scan *scan, uint64_t n_rows)
{
    HPS_ASSERT(scan->n_asked > 0);
    return n_rows / scan->n_asked * ANSWERS_PER_ROWS + ANSWERS_MORE;
}

/* Read it from its beginning. *out_why NULL: that was all of it, else why it was not. */
static hps_status read_once(struct scan *scan, struct hash *hash, const char **out_why)
{
    uint64_t n = 0;
    *out_why = NULL;
    hash->n_seen = 0;
    memcpy(hash->cursor, "0", sizeof("0"));
    hps_status status = ask_size(scan, hash, &n);
    uint64_t connection = scan->command.connection;
    hash->n_least = n > hash->n_least ? n : hash->n_least;
    uint64_t n_left = answers_max(scan, n);
    while (status == HPS_OK && n > 0) {
        if (n_left-- == 0) {
            return fail(scan, HPS_IO, hash,
                        "HSCAN does not end: far more answers than it has rows; the server is "
                        "broken, or is none");
        }
        status = ask_rows(scan, hash);
        if (status == HPS_OK && scan->command.connection != connection) {
            *out_why = "the shard moved to another node, or the connection was lost";
            return HPS_OK;
        }
        status = status == HPS_OK ? take_rows(scan, hash) : status;
        if (strcmp(hash->cursor, "0") == 0) {
            break;
        }
    }
    if (hash->n_seen < hash->n_least) {
        *out_why = "rows were deleted during the scan";
    }
    return status;
}

static hps_status read_hash(struct scan *scan, struct hash *hash)
{
    const char *why = NULL;
    for (unsigned try = 0; try < TRIES_MAX; try++) {
        hps_status status = read_once(scan, hash, &why);
        if (status != HPS_OK || why == NULL) {
            return status;
        }
        HPS_LOG(
            INFO, "redis",
            "scan of a shard restarted: the shard changed or its Redis node failed during the scan",
            HPS_STR("table", scan->table->name),
            HPS_U64("partition", hash->shard % scan->space->redis->options.n_shards),
            HPS_STR("reason", why), HPS_U64("rows", hash->n_seen));
    }
    return fail(scan, HPS_DATA_LOSS, hash, why);
}

/* ---- the table ------------------------------------------------------------------------------- */

/* A multiple of num_partitions looks like it, but for the hashes beyond. */
static hps_status check_parts(struct scan *scan)
{
    uint32_t n_parts = scan->space->redis->options.n_shards;
    hps_status status = HPS_OK;
    for (uint32_t part = n_parts; part < 2 * n_parts && status == HPS_OK; part++) {
        char text[HPS_REDIS_NAME_BYTES_MAX];
        size_t size = hps_redis_hps_name(scan->space->model, scan->table->name, part, text);
        const struct hash hash = {.name = {text, size}, .slot = hps_redis_slot(text, size)};
        uint64_t n = 0;
        status = ask_size(scan, &hash, &n);
        if (status == HPS_OK && n > 0) {
            char why[80];
            snprintf(why, sizeof(why), "the shard is beyond num_partitions, %" PRIu32, n_parts);
            status = fail(scan, HPS_INVALID, &hash, why);
        }
    }
    return status;
}

static hps_status read_table(struct scan *scan)
{
    uint32_t n_parts = scan->space->redis->options.n_shards;
    uint32_t n_empty = 0;
    hps_status status = check_parts(scan);
    for (uint32_t part = 0; part < n_parts && status == HPS_OK; part++) {
        uint32_t shard = scan->table->id * n_parts + part;
        HPS_ASSERT(shard < scan->space->n_shards);
        struct hash hash = {.shard = shard,
                            .name = scan->space->shards[shard].keys[0],
                            .slot = scan->space->shards[shard].slot};
        status = read_hash(scan, &hash);
        n_empty += hash.n_least == 0 ? 1 : 0;
    }
    if (status == HPS_OK && n_empty > 0) {
        HPS_LOG(WARN, "redis", "shards empty: HPS has written no row of the table to them",
                HPS_STR("table", scan->table->name), HPS_U64("empty", n_empty),
                HPS_U64("partitions", n_parts));
    }
    return status;
}

hps_status redis_scan(struct hps_space *base, const struct hps_table *table, hps_rows_fn fn,
                      void *ctx, struct hps_error *err)
{
    struct redis_space *space = redis_space_of(base);
    HPS_ASSERT(space->redis->options.layout == HPS_REDIS_LAYOUT_HPS);
    uint32_t fields_max = space->redis->options.fields_max;
    struct scan scan = {.space = space, .table = table, .fn = fn, .ctx = ctx, .err = err};
    scan.n_asked = ANSWER_BYTES / table->row_bytes + 1;
    scan.n_asked = scan.n_asked < fields_max ? scan.n_asked : fields_max;
    scan.n_max = BATCH_BYTES / table->row_bytes + 1;
    hps_buf_init(&scan.bytes, 1 << 20);
    hps_redis_values_init(&scan.values, VALUES_MAX, ANSWER_BYTES_MAX);
    scan.keys = hps_alloc(scan.n_max * sizeof(*scan.keys));
    scan.rows = hps_alloc((size_t)scan.n_max * table->row_bytes);
    hps_status status =
        scan.keys == NULL || scan.rows == NULL ? no_memory(&scan) : read_table(&scan);
    hps_buf_fini(&scan.bytes);
    hps_redis_values_fini(&scan.values);
    hps_free(scan.keys);
    hps_free(scan.rows);
    return status;
}
