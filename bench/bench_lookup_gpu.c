/* SPDX-License-Identifier: Apache-2.0
 *
 * CPU time of the thread that makes a lookup on the daemon's path: plan, submit to the device, take
 * its answer, ask the lower tiers. The device is simulated by other threads, and waiting for
 * it is not counted. Compared are a device that has all rows, a device that has 95 % of them, and a
 * host map with all rows; in turns. Main thread.
 */
#include <sched.h>
#include <stdio.h>

#include "backends/host/map.h"
#include "backends/store_limits.h"
#include "base/container.h"
#include "base/hash.h"
#include "base/heap.h"
#include "bench/bench.h"
#include "cache/device/sim/sim.h"
#include "cache/lookup/lookup.h"

enum {
    DIM = 32,
    ROW_BYTES = DIM * 4,
    N_ROWS = 32768,
    KEYS = 16384,     /* of a lookup */
    N_HOT = KEYS / 2, /* distinct rows: each is looked up about twice */
    MISSED_IN = 20,   /* with some misses: one row in MISSED_IN is not on the device */
    ROUNDS = 15,      /* the first ones only warm up */
    ROUNDS_COLD = 2,
    SLAB_BYTES = 32 << 20,
    HOST_BYTES = 64 << 20
};

enum side { SIDE_ALL, SIDE_SOME, SIDE_HOST, N_SIDES };

static const char *const names[N_SIDES] = {"device first, all cached", "device first, 95 % cached",
                                           "host map"};

struct bench_lookup {
    struct hps_store *host;
    struct hps_version *version;
    struct hps_block_pool *blocks;
    struct hps_gpu_tier *tier;
    struct hps_arena *arena;
    struct hps_lookup_part part;
    struct hps_lookup lookup;
    atomic_bool answered;
    hps_key keys[KEYS];
    double ns[N_SIDES][ROUNDS];
};

static void on_answered(struct hps_lookup *lookup)
{
    struct bench_lookup *bench = HPS_CONTAINER_OF(lookup, struct bench_lookup, lookup);

    atomic_store(&bench->answered, true);
}

/* ---- the world ------------------------------------------------------------------------------- */

static hps_status open_version(struct bench_lookup *bench, struct hps_error *err)
{
    const struct hps_host_map_options host = {.bytes_max = HOST_BYTES};
    struct hps_version *version = bench->version = hps_version_new("m", 1, 1);

    if (version == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for a version");
    }
    version->tables[0] = (struct hps_table){.name = hps_strdup("t"),
                                            .dim = DIM,
                                            .row_bytes = ROW_BYTES,
                                            .dtype = HPS_DTYPE_FP32,
                                            .n_rows = N_ROWS,
                                            .default_row = hps_calloc(1, ROW_BYTES)};
    hps_version_pin(version);
    const struct hps_space_id id = {"m", 1, version->tables, 1, 0};
    hps_status status = hps_host_map_open_with(&host, &bench->host, err);
    if (status == HPS_OK) {
        status = bench->host->ops->space_open(bench->host, &id, &version->tiers[0], err);
    }
    if (status == HPS_OK) {
        version->n_tiers = 1;
        bench->host->ops->limits->space_active(version->tiers[0], true);
    }
    return status;
}

static hps_status open_gpu(struct bench_lookup *bench, struct hps_error *err)
{
    const struct hps_gpu_share share = {N_ROWS, N_ROWS};
    const struct hps_sim_driver sim = hps_sim_driver((struct hps_device_sim_config){0});
    struct hps_gpu_tier_options options = {.driver = &sim.driver,
                                           .cache = {.arena_bytes = 32 << 20}};

    bench->blocks = options.blocks = hps_block_pool_new(0);
    bench->arena = hps_arena_new(1 << 20, 1 << 26);
    if (bench->arena == NULL || bench->blocks == NULL ||
        hps_block_pool_slab_add(bench->blocks, SLAB_BYTES) != HPS_OK) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for rows");
    }
    hps_status status = hps_gpu_tier_open(&options, &bench->tier, err);
    if (status == HPS_OK) {
        const struct hps_gpu_space_options space = {.model = "m",
                                                    .number = 1,
                                                    .tables = bench->version->tables,
                                                    .shares = &share,
                                                    .n_tables = 1};
        status = hps_gpu_space_open(bench->tier, &space, &bench->version->gpu, err);
    }
    return status;
}

static void close_all(struct bench_lookup *bench)
{
    struct hps_version *version = bench->version;

    if (version != NULL && version->gpu != NULL) {
        hps_gpu_space_close(version->gpu);
    }
    hps_gpu_tier_close(bench->tier);
    if (version != NULL && version->n_tiers > 0) {
        bench->host->ops->space_close(version->tiers[0]);
    }
    if (version != NULL) {
        hps_version_unpin(version);
    }
    hps_version_free(version);
    if (bench->host != NULL) {
        bench->host->ops->close(bench->host);
    }
    hps_arena_free(bench->arena);
    if (bench->blocks != NULL) {
        hps_block_pool_free(bench->blocks);
    }
}

/* Rows of all keys below N_HOT. Higher keys miss on the device in SIDE_SOME. */
static hps_status fill(struct bench_lookup *bench, struct hps_error *err)
{
    struct hps_space *space = bench->version->tiers[0];
    const struct hps_call call = {0};
    uint8_t row[ROW_BYTES] = {1};
    const uint32_t slot = 0;
    hps_status status = HPS_OK;

    hps_gpu_space_active(bench->version->gpu, true);
    for (hps_key key = 0; key < N_ROWS && status == HPS_OK; key++) {
        const struct hps_gpu_insertion insertion = {
            .n = 1, .keys = &key, .slots = &slot, .rows = row, .wanted = true};
        struct hps_insert_report report = {.n_inserted = 1};
        status = space->store->ops->put(space, &call, &bench->version->tables[0], &key, row, 1);
        while (status == HPS_OK && key < N_ROWS / 2) {
            hps_gpu_insert(bench->version->gpu, &insertion, &report);
            if (report.n_inserted == 1) {
                break;
            }
            (void)sched_yield(); /* its queue is full */
        }
    }
    return status == HPS_OK ? HPS_OK : hps_error_set(err, status, "rows could not be inserted");
}

/* ---- lookups --------------------------------------------------------------------------------- */

static void make_keys(struct bench_lookup *bench, enum side side, uint32_t round)
{
    for (uint32_t i = 0; i < KEYS; i++) {
        uint64_t random = hps_mix64((uint64_t)round * KEYS + i);
        bool missed = side == SIDE_SOME && (random >> 32) % MISSED_IN == 0;
        bench->keys[i] = random % N_HOT + (missed ? N_ROWS / 2 : 0);
    }
}

static hps_status do_lookup(struct bench_lookup *bench, enum side side, uint64_t *out_ns,
                            struct hps_error *err)
{
    struct hps_lookup *lookup = &bench->lookup;
    bool done = false;

    hps_arena_reset(bench->arena);
    bench->part = (struct hps_lookup_part){
        .table = &bench->version->tables[0], .keys = (const uint8_t *)bench->keys, .n_keys = KEYS};
    *lookup =
        (struct hps_lookup){.version = bench->version,
                            .arena = bench->arena,
                            .parts = &bench->part,
                            .n_parts = 1,
                            .miss_policy = HPS_MISS_EXACT,
                            .path = side == SIDE_HOST ? HPS_LOOKUP_PATH_HOST : HPS_LOOKUP_PATH_GPU,
                            .blocks = bench->blocks,
                            .gpu_done = on_answered};
    atomic_store(&bench->answered, false);
    uint64_t before = bench_clock_ns(CLOCK_THREAD_CPUTIME_ID);
    hps_status status = hps_lookup_plan(lookup, err);
    if (status == HPS_OK) {
        status = hps_lookup_take_block(lookup);
    }
    bool asked = status == HPS_OK && hps_lookup_ask_gpu(lookup);
    uint64_t asked_ns = bench_clock_ns(CLOCK_THREAD_CPUTIME_ID) - before;
    while (asked && !atomic_load(&bench->answered)) {
        (void)sched_yield();
    }
    before = bench_clock_ns(CLOCK_THREAD_CPUTIME_ID);
    if (status == HPS_OK) {
        status = hps_lookup_run_memory(lookup, &done, err);
    }
    *out_ns = asked_ns + bench_clock_ns(CLOCK_THREAD_CPUTIME_ID) - before;
    hps_block_unref(lookup->block);
    return status;
}

static hps_status check(const struct bench_lookup *bench, enum side side, struct hps_error *err)
{
    uint32_t n = bench->part.walk.reports[HPS_TIER_GPU].n_found;
    bool right = side == SIDE_HOST  ? n == 0
                 : side == SIDE_ALL ? n > KEYS * 9 / 10
                                    : n > KEYS * 8 / 10 && n < KEYS;

    return right ? HPS_OK
                 : hps_error_set(err, HPS_INVALID, "%s: the device had %u of %u keys", names[side],
                                 n, (unsigned)KEYS);
}

static hps_status run(struct bench_lookup *bench, struct hps_error *err)
{
    hps_status status = HPS_OK;

    for (uint32_t round = 0; round < ROUNDS + ROUNDS_COLD && status == HPS_OK; round++) {
        for (enum side side = SIDE_ALL; side < N_SIDES && status == HPS_OK; side++) {
            uint64_t ns = 0;
            make_keys(bench, side, round);
            status = do_lookup(bench, side, &ns, err);
            if (status == HPS_OK) {
                status = check(bench, side, err);
            }
            if (round >= ROUNDS_COLD) {
                bench->ns[side][round - ROUNDS_COLD] = (double)ns / KEYS;
            }
        }
    }
    return status;
}

static void report(struct bench_lookup *bench)
{
    double ns[N_SIDES];

    for (enum side side = SIDE_ALL; side < N_SIDES; side++) {
        ns[side] = bench_median(bench->ns[side], ROUNDS);
        bench_report(names[side], "CPU of the lookup's thread", ns[side], "ns/key", BENCH_NO_TARGET,
                     0);
    }
    bench_report(names[SIDE_ALL], "host map / device first", ns[SIDE_HOST] / ns[SIDE_ALL], "x",
                 BENCH_AT_LEAST, 5);
    bench_report(names[SIDE_SOME], "host map / device first", ns[SIDE_HOST] / ns[SIDE_SOME], "x",
                 BENCH_NO_TARGET, 0);
}

hps_status bench_lookup_gpu(struct hps_error *err)
{
    struct bench_lookup *bench = hps_calloc(1, sizeof(*bench));

    if (bench == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for keys");
    }
    hps_status status = open_version(bench, err);
    if (status == HPS_OK) {
        status = open_gpu(bench, err);
    }
    if (status == HPS_OK) {
        status = fill(bench, err);
    }
    if (status == HPS_OK) {
        status = run(bench, err);
    }
    if (status == HPS_OK) {
        report(bench);
    }
    close_all(bench);
    hps_free(bench);
    return status;
}
