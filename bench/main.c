/* SPDX-License-Identifier: Apache-2.0
 *
 * hps-benchmarks [NAME...]: run the named benchmarks, or all, print a table and write
 * build/bench/NAME.jsonl. Compare ratios within one run; absolute figures depend on the machine.
 * Exit code 77: all benchmarks passed, but a peer or a benchmark is missing, as the table says.
 * Main thread.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench/bench.h"

enum { EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_LEFT_OUT = 77 };

static const struct bench benches[] = {
    {"grpc", "our gRPC server against a raw socket server and C++ grpc", bench_grpc},
    {"switch", "what look-ups notice of a version switch", bench_switch},
    {"host_map", "look-ups in the host map against gather + index", bench_host_map},
    {"bytes", "narrow rows and sums of rows in the host map against fp32 and against ceilings",
     bench_bytes},
    {"writes", "writes of small rows to the host map against a plain map under a lock",
     bench_writes},
    {"embed_cache", "what a batch of the embedding cache costs the host", bench_embed_cache},
    {"lookup_gpu", "what a look-up costs its thread, device first, beside the host map",
     bench_lookup_gpu},
    {"concurrency", "look-ups in the host map beside updates of it", bench_concurrency},
    {"rocksdb", "loads, warm reads and updates against RocksDB as it comes", bench_rocksdb},
    {"update", "updates through all tiers against bare write batches", bench_update},
    {"insertion", "look-ups that miss: waited for, or inserted behind", bench_insertion},
    {"e2e", "hpsd and a client: 1 to 100,000 keys a call, both tiers, cold and warm", bench_e2e},
    {"kafka", "updates through a Kafka broker beside look-ups: freshness, latency, largest rate",
     bench_kafka},
    {"units", "updates through a Kafka broker beside large look-ups of units: how old they get",
     bench_units},
    {"redis", "look-ups in a Redis cluster against HPS's HMGET and MGET of plain keys",
     bench_redis},
    {"failover", "look-ups while masters of a Redis cluster hang or are killed", bench_failover},
    {NULL, NULL, NULL},
};

static bool run_one(const struct bench *bench)
{
    struct hps_error err = {0};
    char path[256];

    (void)snprintf(path, sizeof(path), "%s/%s.jsonl", HPS_BENCH_DIR, bench->name);
    (void)unlink(path);
    hps_status status = bench_open(bench->name, path, &err);
    if (status == HPS_OK) {
        status = bench->run(&err);
        status = bench_close(status, &err);
    }
    if (status != HPS_OK) {
        (void)fprintf(stderr, "hps-benchmarks: %s: %s\n", bench->name, err.text);
    }
    return status == HPS_OK;
}

static const struct bench *find(const char *name)
{
    for (const struct bench *bench = benches; bench->name != NULL; bench++) {
        if (strcmp(bench->name, name) == 0) {
            return bench;
        }
    }
    return NULL;
}

int main(int argc, char **argv)
{
    bool ok = true;

    (void)signal(SIGPIPE, SIG_IGN);
    for (int i = 1; i < argc; i++) {
        if (find(argv[i]) == NULL) {
            (void)fprintf(stderr, "usage: hps-benchmarks [NAME...]\n");
            for (const struct bench *bench = benches; bench->name != NULL; bench++) {
                (void)fprintf(stderr, "  %-10s %s\n", bench->name, bench->summary);
            }
            return EXIT_USAGE;
        }
    }
    if (mkdir(HPS_BENCH_DIR, 0777) != 0 && errno != EEXIST) {
        (void)fprintf(stderr, "hps-benchmarks: %s: %s\n", HPS_BENCH_DIR, strerror(errno));
        return EXIT_FAILED;
    }
    bench_print_head();
    if (argc <= 1) {
        for (const struct bench *bench = benches; bench->name != NULL; bench++) {
            ok = run_one(bench) && ok;
        }
    }
    for (int i = 1; i < argc; i++) {
        ok = run_one(find(argv[i])) && ok;
    }
    if (!ok) {
        return EXIT_FAILED;
    }
    return bench_n_left_out() == 0 ? 0 : EXIT_LEFT_OUT;
}
