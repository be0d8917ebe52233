/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads from three Redis masters on loopback: our store, which checks positions, compared with
 * HPS's hashes (HMGET, 16 partitions) and with plain keys (MGET, 64 tags). The peers are read by
 * hiredis, pipelined over all nodes, and again by our own client: the second shows layout and
 * checks alone, without the difference of decoders. All ways take turns. Main thread.
 */
#include <hiredis/hiredis.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "backends/redis/keys.h"
#include "backends/redis/redis.h"
#include "backends/store_bulk.h"
#include "backends/store_log.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/heap.h"
#include "base/rows/rowgen.h"
#include "bench/bench.h"
#include "bench/child.h"

enum { DIM = 128, ROW_BYTES = DIM * 4, N_ROWS = 300000, PIECE = 1000, SEED = 7 };
enum { MASTERS = 3, HPS_PARTS = 16, TAGS = 64, GROUPS_MAX = TAGS, BATCH_MAX = 100000 };
enum { ROUNDS = 15, TURN_NS = 150 * 1000 * 1000, PLAIN_KEY_MAX = 32, LINE_MAX_BYTES = 512 };
enum { PATIENCE_US = 20 * 1000 * 1000, BYTES_MAX = 1 << 30 };

static const float zeros[DIM];
static const struct hps_table table = {"t", 0, DIM, ROW_BYTES, HPS_DTYPE_FP32, N_ROWS, zeros};

enum way { OURS, HMGET_HIREDIS, MGET_HIREDIS, HMGET_CLIENT, MGET_CLIENT, N_WAYS };
static const char *const way_names[N_WAYS] = {"hpsd", "HMGET, as HPS", "MGET", "HMGET, our client",
                                              "MGET, our client"};

/* Cost of a way in one turn, per key. */
struct cost {
    double wall_ns, client_ns, servers_ns;
};

struct world {
    struct bench_child rig;
    bool rig_runs;
    char addresses[LINE_MAX_BYTES];
    clockid_t clocks[MASTERS]; /* of the servers */
    redisContext *nodes[MASTERS];
    struct hps_store *store;
    struct hps_space *space;
    hps_key *shuffled; /* [N_ROWS] all keys */
    uint32_t at;       /* the next key */
    hps_key *keys;     /* [BATCH_MAX] of a batch */
    uint32_t *slots;
    uint8_t *rows;
    /* Keys grouped by hash or tag. */
    uint32_t begins[GROUPS_MAX + 1];
    uint32_t *order; /* [BATCH_MAX] */
    uint8_t *found;  /* [BATCH_MAX] */
    struct hps_buf bytes;
    size_t bytes_at[GROUPS_MAX + 1];
};

/* ---- commands of the peers ------------------------------------------------------------------- */

static bool is_hmget(enum way way)
{
    return way == HMGET_HIREDIS || way == HMGET_CLIENT;
}

static uint32_t n_groups(enum way way)
{
    return is_hmget(way) ? HPS_PARTS : TAGS;
}

static uint32_t group_of(enum way way, hps_key key)
{
    return hps_redis_shard(0, key, n_groups(way));
}

/* The name of a hash, or of a plain key without its last 8 bytes. */
static size_t group_name(enum way way, uint32_t group, char out_name[HPS_REDIS_NAME_BYTES_MAX])
{
    return (size_t)snprintf(out_name, HPS_REDIS_NAME_BYTES_MAX,
                            is_hmget(way) ? "hps_et{hps_et.m.t/p%u}v" : "{m/t/%u}", group);
}

static uint16_t group_slot(enum way way, uint32_t group)
{
    char name[HPS_REDIS_NAME_BYTES_MAX];
    size_t size = group_name(way, group, name);
    return hps_redis_slot(name, size);
}

/* The rig gives each master the same share of the slots, in order. */
static uint32_t node_of(uint16_t slot)
{
    uint32_t node = 0;
    while (node + 1 < MASTERS && slot >= HPS_REDIS_SLOTS * (node + 1) / MASTERS) {
        node++;
    }
    return node;
}

static void sort(struct world *world, enum way way, const hps_key *keys, uint32_t n)
{
    uint32_t at[GROUPS_MAX] = {0};
    for (uint32_t i = 0; i < n; i++) {
        at[group_of(way, keys[i])]++;
    }
    world->begins[0] = 0;
    for (uint32_t g = 0; g < n_groups(way); g++) {
        world->begins[g + 1] = world->begins[g] + at[g];
        at[g] = world->begins[g];
    }
    for (uint32_t i = 0; i < n; i++) {
        world->order[at[group_of(way, keys[i])]++] = i;
    }
}

static hps_status put_plain(struct hps_buf *bytes, const char *name, size_t size, hps_key key)
{
    char plain[PLAIN_KEY_MAX];
    memcpy(plain, name, size);
    memcpy(plain + size, &key, sizeof(key));
    return hps_redis_put_arg(bytes, plain, size + sizeof(key));
}

/* The command that reads a group or, with rows, writes it. */
static hps_status put_group(struct world *world, enum way way, const hps_key *keys, uint32_t group,
                            bool writes)
{
    char name[HPS_REDIS_NAME_BYTES_MAX];
    size_t size = group_name(way, group, name);
    uint32_t begin = world->begins[group];
    uint32_t n = world->begins[group + 1] - begin;
    bool hash = is_hmget(way);
    struct hps_buf *bytes = &world->bytes;
    hps_status status = hps_redis_put_begin(bytes, (hash ? 2 : 1) + (writes ? 2 : 1) * n);
    if (status == HPS_OK) {
        status = hps_redis_put_text(bytes, hash ? (writes ? "HSET" : "HMGET")
                                                : (writes ? "MSET" : "MGET"));
    }
    if (status == HPS_OK && hash) {
        status = hps_redis_put_arg(bytes, name, size);
    }
    for (uint32_t i = begin; status == HPS_OK && i < begin + n; i++) {
        hps_key key = keys[world->order[i]];
        status =
            hash ? hps_redis_put_arg(bytes, &key, sizeof(key)) : put_plain(bytes, name, size, key);
        if (status == HPS_OK && writes) {
            const uint8_t *row = world->rows + (size_t)world->order[i] * ROW_BYTES;
            status = hps_redis_put_arg(bytes, row, ROW_BYTES);
        }
    }
    return status;
}

static hps_status put_groups(struct world *world, enum way way, const hps_key *keys, uint32_t n,
                             bool writes)
{
    hps_status status = HPS_OK;
    sort(world, way, keys, n);
    hps_buf_clear(&world->bytes);
    for (uint32_t g = 0; status == HPS_OK && g < n_groups(way); g++) {
        world->bytes_at[g] = world->bytes.size;
        if (world->begins[g + 1] > world->begins[g]) {
            status = put_group(world, way, keys, g, writes);
        }
        world->bytes_at[g + 1] = world->bytes.size;
    }
    return status;
}

/* ---- by hiredis ------------------------------------------------------------------------------ */

static bool is_empty(const struct world *world, uint32_t group)
{
    return world->bytes_at[group + 1] == world->bytes_at[group];
}

/* Copy the rows of a reply to the places of their keys. False: an unexpected reply. */
static bool take_rows(struct world *world, uint32_t group, const redisReply *reply)
{
    uint32_t begin = world->begins[group];
    uint32_t n = world->begins[group + 1] - begin;
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != n) {
        return false;
    }
    for (uint32_t i = 0; i < n; i++) {
        const redisReply *value = reply->element[i];
        if (value->type != REDIS_REPLY_STRING || value->len != ROW_BYTES) {
            return false;
        }
        memcpy(world->rows + (size_t)world->order[begin + i] * ROW_BYTES, value->str, ROW_BYTES);
    }
    return true;
}

/* Send all commands before reading a reply, so that the servers work in parallel. */
static hps_status exchange(struct world *world, enum way way, bool writes, struct hps_error *err)
{
    bool ok = true;
    for (uint32_t g = 0; g < n_groups(way); g++) {
        if (!is_empty(world, g)) {
            const char *bytes = (const char *)world->bytes.data + world->bytes_at[g];
            ok = redisAppendFormattedCommand(world->nodes[node_of(group_slot(way, g))], bytes,
                                             world->bytes_at[g + 1] - world->bytes_at[g]) ==
                     REDIS_OK &&
                 ok;
        }
    }
    for (uint32_t i = 0; i < MASTERS; i++) {
        int done = 0;
        while (ok && done == 0) {
            ok = redisBufferWrite(world->nodes[i], &done) == REDIS_OK;
        }
    }
    for (uint32_t g = 0; ok && g < n_groups(way); g++) {
        void *reply = NULL;
        if (is_empty(world, g)) {
            continue;
        }
        ok = redisGetReply(world->nodes[node_of(group_slot(way, g))], &reply) == REDIS_OK;
        ok = ok && (writes ? ((redisReply *)reply)->type != REDIS_REPLY_ERROR
                           : take_rows(world, g, reply));
        if (reply != NULL) {
            freeReplyObject(reply);
        }
    }
    return ok ? HPS_OK : hps_error_set(err, HPS_INTERNAL, "%s: unexpected reply", way_names[way]);
}

/* ---- the ways -------------------------------------------------------------------------------- */

static hps_status by_client(struct world *world, enum way way, struct hps_error *err)
{
    struct hps_redis_command commands[GROUPS_MAX] = {0};
    struct hps_redis_rows rows[GROUPS_MAX];
    uint32_t n = 0, n_keys = 0, n_found = 0;

    for (uint32_t g = 0; g < n_groups(way); g++) {
        if (is_empty(world, g)) {
            continue;
        }
        uint32_t begin = world->begins[g];
        rows[n] = (struct hps_redis_rows){.n = world->begins[g + 1] - begin,
                                          .row_bytes = ROW_BYTES,
                                          .slots = world->order + begin,
                                          .rows = world->rows,
                                          .found = world->found + begin};
        commands[n].slot = group_slot(way, g);
        commands[n].flags = HPS_REDIS_READ | HPS_REDIS_QUICK;
        commands[n].bytes = world->bytes.data + world->bytes_at[g];
        commands[n].size = world->bytes_at[g + 1] - world->bytes_at[g];
        commands[n].reply.rows = &rows[n];
        n_keys += rows[n].n;
        n++;
    }
    hps_status status = hps_redis_cluster_run(hps_redis_of(world->store), commands, n, 0);
    for (uint32_t i = 0; i < n; i++) {
        n_found += rows[i].n_found;
    }
    return status == HPS_OK && n_found == n_keys
               ? HPS_OK
               : hps_error_set(err, HPS_INTERNAL, "%s: %u of %u rows", way_names[way], n_found,
                               n_keys);
}

static hps_status by_store(struct world *world, const hps_key *keys, uint32_t n,
                           struct hps_error *err)
{
    const struct hps_call call = {0};
    struct hps_batch batch = {
        .keys = world->keys, .slots = world->slots, .rows = world->rows, .n = n};

    memcpy(world->keys, keys, n * sizeof(*keys));
    for (uint32_t i = 0; i < n; i++) {
        world->slots[i] = i;
    }
    hps_status status = world->store->ops->get(world->space, &call, &table, &batch);
    return status == HPS_OK && batch.n == 0
               ? HPS_OK
               : hps_error_set(err, HPS_INTERNAL, "hpsd: %s, %u of %u rows are missing",
                               hps_status_text(status), batch.n, n);
}

static hps_status do_lookup(struct world *world, enum way way, const hps_key *keys, uint32_t n,
                            struct hps_error *err)
{
    if (way == OURS) {
        return by_store(world, keys, n, err);
    }
    hps_status status = put_groups(world, way, keys, n, false);
    if (status != HPS_OK) {
        return hps_error_set(err, status, "%s: commands", way_names[way]);
    }
    return way == HMGET_HIREDIS || way == MGET_HIREDIS ? exchange(world, way, false, err)
                                                       : by_client(world, way, err);
}

static const hps_key *next_keys(struct world *world, uint32_t n)
{
    world->at = world->at + n > N_ROWS ? 0 : world->at;
    const hps_key *keys = world->shuffled + world->at;
    world->at += n;
    return keys;
}

/* Check that each way returns every row of a batch. */
static hps_status verify(struct world *world, enum way way, uint32_t n, struct hps_error *err)
{
    uint8_t row[ROW_BYTES];
    const hps_key *keys = next_keys(world, n);

    memset(world->rows, 0, (size_t)n * ROW_BYTES);
    hps_status status = do_lookup(world, way, keys, n, err);
    for (uint32_t i = 0; status == HPS_OK && i < n; i++) {
        hps_rowgen_row(SEED, 0, keys[i], DIM, row);
        if (memcmp(row, world->rows + (size_t)i * ROW_BYTES, ROW_BYTES) != 0) {
            status = hps_error_set(err, HPS_DATA_LOSS, "%s: a wrong row", way_names[way]);
        }
    }
    return status;
}

static uint64_t servers_ns(const struct world *world)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < MASTERS; i++) {
        sum += bench_clock_ns(world->clocks[i]);
    }
    return sum;
}

static hps_status turn(struct world *world, enum way way, uint32_t n, struct cost *out_cost,
                       struct hps_error *err)
{
    uint64_t n_keys = 0;
    uint64_t cpu_ns = bench_clock_ns(CLOCK_THREAD_CPUTIME_ID);
    uint64_t cpus_ns = servers_ns(world);
    uint64_t start_ns = bench_now_ns();
    hps_status status = HPS_OK;

    do {
        status = do_lookup(world, way, next_keys(world, n), n, err);
        n_keys += n;
    } while (status == HPS_OK && bench_now_ns() - start_ns < TURN_NS);
    double keys = (double)n_keys;
    out_cost->wall_ns = (double)(bench_now_ns() - start_ns) / keys;
    out_cost->client_ns = (double)(bench_clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu_ns) / keys;
    out_cost->servers_ns = (double)(servers_ns(world) - cpus_ns) / keys;
    return status;
}

/* ---- reports --------------------------------------------------------------------------------- */

static void report_way(const char *title, enum way way, const struct cost costs[ROUNDS])
{
    double rates[ROUNDS], clients[ROUNDS], servers[ROUNDS];

    for (int i = 0; i < ROUNDS; i++) {
        rates[i] = 1e9 / costs[i].wall_ns;
        clients[i] = costs[i].client_ns;
        servers[i] = costs[i].servers_ns;
    }
    bench_report(title, way_names[way], bench_median(rates, ROUNDS), "keys/s", BENCH_NO_TARGET, 0);
    bench_report(title, "  CPU of the client", bench_median(clients, ROUNDS), "ns/key",
                 BENCH_NO_TARGET, 0);
    bench_report(title, "  CPU of the servers", bench_median(servers, ROUNDS), "ns/key",
                 BENCH_NO_TARGET, 0);
}

static double cpu_ns(const struct cost *cost)
{
    return cost->client_ns + cost->servers_ns;
}

static void report_ratio(const char *title, enum way way, struct cost costs[N_WAYS][ROUNDS],
                         double target)
{
    double ratios[ROUNDS], cpus[ROUNDS];
    char metric[64];

    for (int i = 0; i < ROUNDS; i++) {
        ratios[i] = costs[way][i].wall_ns / costs[OURS][i].wall_ns;
        cpus[i] = cpu_ns(&costs[way][i]) / cpu_ns(&costs[OURS][i]);
    }
    (void)snprintf(metric, sizeof(metric), "hpsd / %s", way_names[way]);
    bench_report(title, metric, bench_median(ratios, ROUNDS), "ratio",
                 target > 0 ? BENCH_AT_LEAST : BENCH_NO_TARGET, target);
    bench_report(title, "  by CPU of all", bench_median(cpus, ROUNDS), "ratio", BENCH_NO_TARGET, 0);
}

static hps_status bench_size(struct world *world, uint32_t n, bool has_targets,
                             struct hps_error *err)
{
    static struct cost costs[N_WAYS][ROUNDS];
    char title[64];
    hps_status status = HPS_OK;

    (void)snprintf(title, sizeof(title), "%u keys, dim %d", n, DIM);
    for (int way = 0; status == HPS_OK && way < N_WAYS; way++) {
        status = verify(world, (enum way)way, n, err);
    }
    for (int i = 0; i < ROUNDS; i++) {
        for (int k = 0; status == HPS_OK && k < N_WAYS; k++) {
            enum way way = (enum way)((i + k) % N_WAYS);
            status = turn(world, way, n, &costs[way][i], err);
        }
    }
    if (status != HPS_OK) {
        return status;
    }
    for (int way = 0; way < N_WAYS; way++) {
        report_way(title, (enum way)way, costs[way]);
    }
    report_ratio(title, HMGET_HIREDIS, costs, has_targets ? 1.05 : 0);
    report_ratio(title, MGET_HIREDIS, costs, has_targets ? 1.2 : 0);
    report_ratio(title, HMGET_CLIENT, costs, 0);
    report_ratio(title, MGET_CLIENT, costs, 0);
    return HPS_OK;
}

/* ---- the world ------------------------------------------------------------------------------- */

static hps_status start_servers(struct world *world, struct hps_error *err)
{
    const char *const argv[] = {"/usr/bin/python3", HPS_REDIS_RIG, "run", "3", "0", NULL};
    char line[2 * LINE_MAX_BYTES];
    unsigned ports[MASTERS];
    int pids[MASTERS];

    hps_status status =
        bench_child_start(argv, BENCH_CHILD_ANY_CPU, &world->rig, line, sizeof(line), err);
    if (status != HPS_OK) {
        return status;
    }
    world->rig_runs = true;
    if (sscanf(line, "ready addresses=%511s pids=%d,%d,%d", world->addresses, &pids[0], &pids[1],
               &pids[2]) != 1 + MASTERS ||
        sscanf(world->addresses, "127.0.0.1:%u,127.0.0.1:%u,127.0.0.1:%u", &ports[0], &ports[1],
               &ports[2]) != MASTERS) {
        return hps_error_set(err, HPS_INTERNAL, "unexpected output of tests/lib/redis.py: %s",
                             line);
    }
    for (uint32_t i = 0; i < MASTERS; i++) {
        world->nodes[i] = redisConnect("127.0.0.1", (int)ports[i]);
        if (world->nodes[i] == NULL || world->nodes[i]->err != 0 ||
            clock_getcpuclockid(pids[i], &world->clocks[i]) != 0) {
            return hps_error_set(err, HPS_UNAVAILABLE, "127.0.0.1:%u: %s", ports[i],
                                 world->nodes[i] != NULL ? world->nodes[i]->errstr : "no memory");
        }
    }
    return HPS_OK;
}

static hps_status open_store(struct world *world, struct hps_error *err)
{
    static const struct hps_log_position positions[] = {
        {1, 1000, 0}, {2, 1000, 0}, {3, 1000, 0}, {4, 1000, 0}};
    const struct hps_space_id id = {"m", 1, &table, 1, 1};
    struct hps_redis_store_options options = HPS_REDIS_STORE_DEFAULT;

    options.redis.addresses = world->addresses;
    options.redis.command_timeout_us = PATIENCE_US; /* a busy machine must not count as a failure */
    options.write_timeout_us = PATIENCE_US;
    options.member = "bench";
    hps_status status = hps_redis_open(&options, &world->store, err);
    if (status == HPS_OK &&
        !hps_redis_cluster_wait(hps_redis_of(world->store), hps_clock_us() + PATIENCE_US)) {
        status = hps_error_set(err, HPS_UNAVAILABLE, "no connection to %s", world->addresses);
    }
    if (status == HPS_OK) {
        status = world->store->ops->space_open(world->store, &id, &world->space, err);
    }
    return status == HPS_OK ? world->store->ops->log->positions_set(world->space, positions, 4)
                            : status;
}

static hps_status fill(struct world *world, struct hps_error *err)
{
    const struct hps_store_ops *ops = world->store->ops;
    struct hps_store_load *load = NULL;
    hps_status status = ops->bulk->begin(world->space, N_ROWS, 0, &load, err);

    for (hps_key first = 0; status == HPS_OK && first < N_ROWS; first += PIECE) {
        for (uint32_t i = 0; i < PIECE; i++) {
            world->keys[i] = first + i;
            hps_rowgen_row(SEED, 0, first + i, DIM, world->rows + (size_t)i * ROW_BYTES);
        }
        status = ops->bulk->add(load, &table, world->keys, world->rows, PIECE, err);
        for (int k = 0; status == HPS_OK && k < 2; k++) {
            enum way way = k == 0 ? HMGET_HIREDIS : MGET_HIREDIS;
            status = put_groups(world, way, world->keys, PIECE, true);
            status = status == HPS_OK ? exchange(world, way, true, err) : status;
        }
    }
    if (status == HPS_OK) {
        status = ops->bulk->commit(load, err);
        load = status == HPS_OK ? NULL : load;
    }
    if (load != NULL) {
        ops->bulk->abort(load);
    }
    return status;
}

static bool world_alloc(struct world *world)
{
    hps_buf_init(&world->bytes, BYTES_MAX);
    world->shuffled = hps_calloc(N_ROWS, sizeof(*world->shuffled));
    world->keys = hps_calloc(BATCH_MAX, sizeof(*world->keys));
    world->slots = hps_calloc(BATCH_MAX, sizeof(*world->slots));
    world->order = hps_calloc(BATCH_MAX, sizeof(*world->order));
    world->found = hps_calloc(BATCH_MAX, 1);
    world->rows = hps_alloc((size_t)BATCH_MAX * ROW_BYTES);
    if (world->shuffled == NULL || world->keys == NULL || world->slots == NULL ||
        world->order == NULL || world->found == NULL || world->rows == NULL) {
        return false;
    }
    for (uint32_t i = 0; i < N_ROWS; i++) {
        uint32_t j = (uint32_t)(hps_mix64(i) % (i + 1));
        world->shuffled[i] = world->shuffled[j];
        world->shuffled[j] = i;
    }
    return true;
}

static void world_free(struct world *world)
{
    if (world->space != NULL) {
        world->store->ops->space_close(world->space);
    }
    if (world->store != NULL) {
        world->store->ops->close(world->store);
    }
    for (uint32_t i = 0; i < MASTERS; i++) {
        if (world->nodes[i] != NULL) {
            redisFree(world->nodes[i]);
        }
    }
    if (world->rig_runs) {
        bench_child_stop(&world->rig);
    }
    hps_buf_fini(&world->bytes);
    hps_free(world->shuffled);
    hps_free(world->keys);
    hps_free(world->slots);
    hps_free(world->order);
    hps_free(world->found);
    hps_free(world->rows);
    hps_free(world);
}

hps_status bench_redis(struct hps_error *err)
{
    static const uint32_t sizes[] = {1000, 10000, 100000};
    const char *const missing[] = {"/usr/bin/python3", HPS_REDIS_RIG, "missing", NULL};

    if (bench_child_run(missing, err) != HPS_OK) {
        bench_left_out("redis", "redis-server is not installed");
        return HPS_OK;
    }
    struct world *world = hps_calloc(1, sizeof(*world));
    if (world == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory");
    }
    hps_status status = world_alloc(world) ? start_servers(world, err)
                                           : hps_error_set(err, HPS_NO_MEMORY, "no memory");
    status = status == HPS_OK ? open_store(world, err) : status;
    status = status == HPS_OK ? fill(world, err) : status;
    for (size_t i = 0; status == HPS_OK && i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        status = bench_size(world, sizes[i], sizes[i] == 10000, err);
    }
    world_free(world);
    return status;
}
