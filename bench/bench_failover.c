/* SPDX-License-Identifier: Apache-2.0
 *
 * Lookups during fail-overs of a Redis cluster: three masters with a replica each, hpsd with
 * RocksDB and without a host map, and hps-bench, which compares every row. They share all cores.
 * Each master in turn hangs (SIGSTOP, which lookups detect by a timeout) or is killed. Its replica
 * takes over after the node timeout of 1.5 s. Latency counts from the time at which a call was due.
 * Main thread.
 */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "bench/bench_e2e.h"

enum { MASTERS = 3, NODES = 2 * MASTERS, LINE_MAX_BYTES = 2048, N_ROWS = 1 << 17, DIM = 128 };
enum { COMMAND_TIMEOUT_MS = 20, WHOLE_TRIES = 30 };
#define LIMIT_MS (1.2 * COMMAND_TIMEOUT_MS)

struct world {
    struct bench_child rig;
    bool rig_runs;
    char addresses[256];
    int pids[NODES]; /* masters first, then their replicas in the same order */
    struct e2e_hpsd hpsd;
};

struct seen {
    uint64_t n_calls;
    double p50_ms, p99_ms, max_ms;
    bool all_from_redis;
};

static uint64_t number_in(const char *line, const char *name)
{
    const char *at = strstr(line, name);
    return at == NULL ? 0 : strtoull(at + strlen(name), NULL, 10);
}

/* 200 calls a second of 256 keys each, every row compared. */
static hps_status do_lookup(const struct world *world, const char *seconds, struct seen *out_seen,
                            struct hps_error *err)
{
    const char *const argv[] = {HPS_BIN_DIR "/hps-bench",
                                "--addr",
                                world->hpsd.address,
                                "--admin",
                                world->hpsd.admin,
                                "--model",
                                "m",
                                "--rate",
                                "200",
                                "--keys",
                                "256",
                                "--duration",
                                seconds,
                                "--verify",
                                "--quiet",
                                "--output",
                                "json",
                                NULL};
    struct bench_child child;
    char line[LINE_MAX_BYTES];
    hps_status status =
        bench_child_start(argv, BENCH_CHILD_ANY_CPU, &child, line, sizeof(line), err);
    if (status != HPS_OK) {
        return status;
    }
    bench_child_stop(&child);
    *out_seen = (struct seen){.n_calls = number_in(line, "\"requests\":"),
                              .p50_ms = (double)number_in(line, "\"p50\":") / 1e3,
                              .p99_ms = (double)number_in(line, "\"p99\":") / 1e3,
                              .max_ms = (double)number_in(line, "\"max\":") / 1e3,
                              .all_from_redis = strstr(line, "rocksdb") == NULL};
    bool right = strstr(line, "\"rows_wrong\":0,") != NULL &&
                 number_in(line, "\"rows_checked\":") > 0 &&
                 strstr(line, "\"first_error\":\"\"") != NULL;
    return right ? HPS_OK
                 : hps_error_set(err, HPS_INTERNAL, "unexpected output of hps-bench: %s", line);
}

/* Wait until all running nodes agree on the cluster and all rows come from Redis again. */
static hps_status wait_whole(const struct world *world, struct hps_error *err)
{
    struct seen seen = {0};
    hps_status status = HPS_OK;
    for (int i = 0; i < WHOLE_TRIES && status == HPS_OK && !seen.all_from_redis; i++) {
        status = do_lookup(world, "1", &seen, err);
    }
    return status != HPS_OK || seen.all_from_redis
               ? status
               : hps_error_set(err, HPS_DEADLINE, "the Redis cluster did not recover");
}

static void report(const char *name, const struct seen *seen, bool has_target)
{
    bench_report(name, "lookups of 256 keys", (double)seen->n_calls, "calls", BENCH_NO_TARGET, 0);
    bench_report(name, "p50", seen->p50_ms, "ms", BENCH_NO_TARGET, 0);
    bench_report(name, "p99", seen->p99_ms, "ms", has_target ? BENCH_AT_MOST : BENCH_NO_TARGET,
                 LIMIT_MS);
    bench_report(name, "longest", seen->max_ms, "ms", BENCH_NO_TARGET, 0);
}

static hps_status run_failovers(struct world *world, struct hps_error *err)
{
    char name[64];
    struct seen seen;
    hps_status status = wait_whole(world, err);
    if (status == HPS_OK) {
        status = do_lookup(world, "4", &seen, err);
    }
    if (status == HPS_OK) {
        report("no failure", &seen, false);
    }
    for (int i = 0; i < MASTERS && status == HPS_OK; i++) {
        (void)kill(world->pids[i], SIGSTOP);
        status = do_lookup(world, "4", &seen, err);
        (void)kill(world->pids[i], SIGCONT);
        (void)snprintf(name, sizeof(name), "master %d hangs", i);
        if (status == HPS_OK) {
            report(name, &seen, true);
            status = wait_whole(world, err);
        }
    }
    /* Their replicas are masters now. */
    for (int i = MASTERS; i < NODES && status == HPS_OK; i++) {
        (void)kill(world->pids[i], SIGKILL);
        status = do_lookup(world, "4", &seen, err);
        (void)snprintf(name, sizeof(name), "master %d is killed", i);
        if (status == HPS_OK) {
            report(name, &seen, true);
            status = wait_whole(world, err);
        }
    }
    return status;
}

static hps_status open_world(struct world *world, struct hps_error *err)
{
    const char *const argv[] = {"/usr/bin/python3", HPS_REDIS_RIG, "run", "3", "1", NULL};
    char line[LINE_MAX_BYTES];
    int *pids = world->pids;
    hps_status status =
        bench_child_start(argv, BENCH_CHILD_ANY_CPU, &world->rig, line, sizeof(line), err);
    if (status != HPS_OK) {
        return status;
    }
    world->rig_runs = true;
    if (sscanf(line, "ready addresses=%255s pids=%d,%d,%d,%d,%d,%d", world->addresses, &pids[0],
               &pids[1], &pids[2], &pids[3], &pids[4], &pids[5]) != 1 + NODES) {
        return hps_error_set(err, HPS_INTERNAL, "unexpected output of tests/lib/redis.py: %s",
                             line);
    }
    world->hpsd = (struct e2e_hpsd){.redis = world->addresses, .n_rows = N_ROWS, .dim = DIM};
    status = e2e_hpsd_make(&world->hpsd, err);
    return status == HPS_OK ? e2e_hpsd_start(&world->hpsd, err) : status;
}

hps_status bench_failover(struct hps_error *err)
{
    const char *const missing[] = {"/usr/bin/python3", HPS_REDIS_RIG, "missing", NULL};
    if (bench_child_run(missing, err) != HPS_OK) {
        bench_left_out("failover", "redis-server is not installed");
        return HPS_OK;
    }
    struct world world = {0};
    hps_status status = open_world(&world, err);
    if (status == HPS_OK) {
        status = run_failovers(&world, err);
    }
    e2e_hpsd_remove(&world.hpsd);
    if (world.rig_runs) {
        bench_child_stop(&world.rig);
    }
    return status;
}
