/* SPDX-License-Identifier: Apache-2.0
 *
 * Lookups in which a fifth of the keys always miss. Compared are: waiting for RocksDB; default rows
 * at once, with insertions afterwards; and lookups that find all keys in memory. The ways take
 * turns. Insertion jobs run at the same time as the lookups. HPS was seen to drop from 12,422 to
 * 217 requests/s, because its insertions hold the buffers of its lookups.
 */
#include <sched.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>

#include "backends/host/map.h"
#include "backends/rocksdb/rocksdb.h"
#include "backends/store_bulk.h"
#include "backends/store_limits.h"
#include "base/hash.h"
#include "base/heap.h"
#include "base/rows/rowgen.h"
#include "bench/bench.h"
#include "cache/lookup/lookup.h"
#include "cache/lookup/policy.h"

enum {
    DIM = 32,
    ROW_BYTES = DIM * 4,
    N_ROWS = 1 << 20,
    N_HOT = 1 << 16, /* hot keys */
    KEYS = 2048,     /* of a lookup */
    REQUESTS = 150,  /* of a round */
    ROUNDS = 7,
    LOAD_ROWS = 1024,
    HOST_BYTES = 40 << 20, /* a quarter of the rows */
    QUEUE_ROWS = 1 << 18,
    IO_THREADS = 2
};

struct holder {
    struct hps_task task; /* first */
    sem_t go_on;
};

struct world {
    char dir[64];
    struct hps_store *stores[2];
    struct hps_version *version;
    struct hps_pool *io;
    struct hps_insertion *insertion;
    struct hps_arena *arena;
    struct holder holders[IO_THREADS];
    uint64_t random;
    hps_key keys[KEYS];
    _Alignas(64) uint8_t rows[KEYS * ROW_BYTES];
};

/* ---- the world ------------------------------------------------------------------------------- */

static hps_status load_rows(struct world *world, struct hps_error *err)
{
    struct hps_space *space = world->version->tiers[1];
    const struct hps_store_ops *ops = space->store->ops;
    struct hps_store_load *load = NULL;
    hps_key keys[LOAD_ROWS];
    hps_status status = ops->bulk->begin(space, N_ROWS, (uint64_t)N_ROWS * ROW_BYTES, &load, err);

    for (uint32_t at = 0; at < N_ROWS && status == HPS_OK; at += LOAD_ROWS) {
        for (uint32_t i = 0; i < LOAD_ROWS; i++) {
            keys[i] = at + i;
            hps_rowgen_row(1, 0, keys[i], DIM, world->rows + i * ROW_BYTES);
        }
        status =
            ops->bulk->add(load, &world->version->tables[0], keys, world->rows, LOAD_ROWS, err);
    }
    if (status == HPS_OK) {
        status = ops->bulk->commit(load, err);
    }
    if (status != HPS_OK && load != NULL) {
        ops->bulk->abort(load);
    }
    return status;
}

static hps_status open_version(struct world *world, struct hps_error *err)
{
    struct hps_version *version = world->version = hps_version_new("m", 1, 1);
    if (version == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for a version");
    }
    version->tables[0] = (struct hps_table){.name = hps_strdup("t"),
                                            .dim = DIM,
                                            .row_bytes = ROW_BYTES,
                                            .dtype = HPS_DTYPE_FP32,
                                            .n_rows = N_ROWS,
                                            .default_row = hps_calloc(1, ROW_BYTES)};
    version->cache_tier = HPS_TIER_HOST;
    version->miss_policy = HPS_MISS_THRESHOLD;
    hps_version_pin(version);
    const struct hps_space_id id = {"m", 1, version->tables, 1, 0};
    for (uint32_t i = 0; i < 2; i++) {
        hps_status status =
            world->stores[i]->ops->space_open(world->stores[i], &id, &version->tiers[i], err);
        if (status != HPS_OK) {
            return status;
        }
        version->n_tiers++;
    }
    world->stores[0]->ops->limits->space_active(version->tiers[0], true);
    return load_rows(world, err);
}

static hps_status open_queue(struct world *world, struct hps_error *err)
{
    hps_status status = hps_pool_new("io", IO_THREADS, 64, &world->io);
    const struct hps_insertion_options options = {
        .io = world->io, .rows_max = QUEUE_ROWS, .jobs_max = 1};

    world->arena = hps_arena_new(1 << 20, 1 << 26);
    if (status == HPS_OK && world->arena != NULL) {
        status = hps_insertion_new(&options, &world->insertion);
    }
    return status == HPS_OK && world->arena != NULL
               ? HPS_OK
               : hps_error_set(err, HPS_NO_MEMORY, "no memory for a queue");
}

static hps_status open_world(struct world *world, struct hps_error *err)
{
    (void)snprintf(world->dir, sizeof(world->dir), "/var/tmp/hps-bench-XXXXXX");
    if (mkdtemp(world->dir) == NULL) {
        return hps_error_set(err, HPS_IO, "no directory %s", world->dir);
    }
    const struct hps_rocksdb_options disk = {.path = world->dir,
                                             .n_threads = 2,
                                             .batch_keys_max = 65536,
                                             .disk_free_min_bytes = 256 << 20,
                                             .block_cache_bytes = 8 << 20,
                                             .wal_sync_ms = 1000};
    const struct hps_host_map_options host = {.bytes_max = HOST_BYTES, .evicts = true};
    hps_status status = hps_host_map_open_with(&host, &world->stores[0], err);
    if (status == HPS_OK) {
        status = hps_rocksdb_open(&disk, &world->stores[1], err);
    }
    if (status == HPS_OK) {
        status = open_version(world, err);
    }
    return status == HPS_OK ? open_queue(world, err) : status;
}

static void close_world(struct world *world)
{
    hps_insertion_stop(world->insertion);
    hps_pool_free(world->io);
    hps_insertion_free(world->insertion);
    hps_arena_free(world->arena);
    for (uint32_t i = 0; world->version != NULL && i < world->version->n_tiers; i++) {
        world->stores[i]->ops->space_close(world->version->tiers[i]);
    }
    if (world->version != NULL) {
        hps_version_unpin(world->version);
    }
    hps_version_free(world->version);
    for (uint32_t i = 0; i < 2; i++) {
        if (world->stores[i] != NULL) {
            world->stores[i]->ops->close(world->stores[i]);
        }
    }
    bench_remove(world->dir);
}

/* ---- lookups --------------------------------------------------------------------------------- */

/* cold_in: one key in cold_in is drawn from the whole table, other keys are hot; 0: all hot */
static void make_keys(struct world *world, uint32_t cold_in)
{
    for (uint32_t i = 0; i < KEYS; i++) {
        uint64_t random = hps_mix64(world->random++);
        bool cold = cold_in != 0 && i % cold_in == 0;
        world->keys[i] = cold ? random % N_ROWS : random % N_HOT;
    }
}

static hps_status do_lookup(struct world *world, uint32_t *out_n_defaulted, struct hps_error *err)
{
    struct hps_lookup_part part = {
        .table = &world->version->tables[0], .keys = (const uint8_t *)world->keys, .n_keys = KEYS};
    struct hps_lookup lookup = {.version = world->version,
                                .arena = world->arena,
                                .parts = &part,
                                .n_parts = 1,
                                .insertion = world->insertion};
    bool done = false;

    hps_arena_reset(world->arena);
    hps_status status = hps_lookup_plan(&lookup, err);
    lookup.rows = world->rows;
    if (status == HPS_OK) {
        status = hps_lookup_run_memory(&lookup, &done, err);
    }
    if (status == HPS_OK && !done) {
        status = hps_lookup_run_rest(&lookup, err);
    }
    *out_n_defaulted += part.n_defaulted;
    return status;
}

struct way {
    const char *metric;
    uint32_t cold_in;
    double threshold;
};

static const struct way WAYS[] = {{"all in memory", 0, 1.0},
                                  {"a fifth cold, waiting", 5, 1.0},
                                  {"a fifth cold, inserted later", 5, 0.5}};
enum { N_WAYS = sizeof(WAYS) / sizeof(WAYS[0]) };

/* Lookups per second, without the time to make keys. */
static hps_status run_round(struct world *world, const struct way *way, double *out_per_s,
                            double *out_defaulted, struct hps_error *err)
{
    uint32_t n_defaulted = 0;
    uint64_t ns = 0;

    world->version->hit_rate_threshold = way->threshold;
    for (unsigned i = 0; i < REQUESTS; i++) {
        make_keys(world, way->cold_in);
        uint64_t start_ns = bench_now_ns();
        hps_status status = do_lookup(world, &n_defaulted, err);
        ns += bench_now_ns() - start_ns;
        if (status != HPS_OK) {
            return status;
        }
    }
    *out_per_s = REQUESTS * 1e9 / (double)ns;
    *out_defaulted = 100.0 * n_defaulted / ((double)REQUESTS * KEYS);
    return HPS_OK;
}

static hps_status run_rounds(struct world *world, struct hps_error *err)
{
    static const char title[] = "lookups of 2048 x 128 B";
    double per_s[N_WAYS][ROUNDS], defaulted[N_WAYS][ROUNDS], ratios[ROUNDS];

    for (int i = -3; i < ROUNDS; i++) { /* the first rounds fill the host map */
        int at = i < 0 ? 0 : i;
        for (unsigned w = 0; w < N_WAYS; w++) {
            hps_status status = run_round(world, &WAYS[w], &per_s[w][at], &defaulted[w][at], err);
            if (status != HPS_OK) {
                return status;
            }
            while (hps_insertion_rows(world->insertion) > 0) {
                sched_yield(); /* finish pending insertions before the next way */
            }
        }
        ratios[at] = per_s[2][at] / per_s[1][at];
    }
    for (unsigned w = 0; w < N_WAYS; w++) {
        bench_report(title, WAYS[w].metric, bench_median(per_s[w], ROUNDS), "lookups/s",
                     BENCH_NO_TARGET, 0);
    }
    bench_report(title, "default rows if inserted later", bench_median(defaulted[2], ROUNDS),
                 "% of keys", BENCH_NO_TARGET, 0);
    bench_report(title, "inserted later / waiting", bench_median(ratios, ROUNDS), "ratio",
                 BENCH_AT_LEAST, 1.0);
    return HPS_OK;
}

/* ---- adding and the threshold ---------------------------------------------------------------- */

static void hold(struct hps_task *task)
{
    struct holder *holder = (struct holder *)task;

    sem_wait(&holder->go_on);
}

/* Enqueue new keys, pending keys and keys beyond the capacity, while no thread takes a job. */
static void bench_add(struct world *world)
{
    static const char *const metrics[] = {"new keys", "pending keys", "keys beyond the capacity"};
    enum { SLICES = QUEUE_ROWS / KEYS };
    struct hps_version *version = world->version;

    for (unsigned i = 0; i < IO_THREADS; i++) {
        world->holders[i].task.run = hold;
        sem_init(&world->holders[i].go_on, 0, 0);
        hps_ignore(hps_pool_post(world->io, &world->holders[i].task));
    }
    for (unsigned round = 0; round < 3; round++) {
        uint64_t ns = 0;
        for (uint32_t slice = 0; slice < SLICES; slice++) {
            for (uint32_t i = 0; i < KEYS; i++) {
                world->keys[i] = N_ROWS + slice * KEYS + i + (round == 2 ? QUEUE_ROWS : 0);
            }
            uint64_t start_ns = bench_now_ns();
            hps_insertion_add(world->insertion, version, &version->tables[0], world->keys, KEYS);
            ns += bench_now_ns() - start_ns;
        }
        bench_report("keys queued, 2048 at a time", metrics[round],
                     (double)ns / (SLICES * (double)KEYS), "ns/key", BENCH_NO_TARGET, 0);
    }
    hps_insertion_stop(world->insertion);
    for (unsigned i = 0; i < IO_THREADS; i++) {
        sem_post(&world->holders[i].go_on);
    }
}

static void bench_policy(void)
{
    enum { CALLS = 1000000 };
    uint64_t sum = 0;
    uint64_t start_ns = bench_now_ns();

    for (uint32_t i = 0; i < CALLS; i++) {
        sum += hps_policy_hits_min(0.9, 1 + i % KEYS);
    }
    bench_report("hit rate", sum == 0 ? "" : "hits required",
                 (double)(bench_now_ns() - start_ns) / CALLS, "ns/part", BENCH_NO_TARGET, 0);
}

hps_status bench_insertion(struct hps_error *err)
{
    struct world *world = hps_alloc_aligned(64, sizeof(*world));
    if (world == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for a lookup");
    }
    *world = (struct world){.random = 1};
    hps_status status = open_world(world, err);
    if (status == HPS_OK) {
        status = run_rounds(world, err);
    }
    if (status == HPS_OK) {
        bench_add(world);
        bench_policy();
    }
    close_world(world);
    hps_free_aligned(world);
    return status;
}
