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
    {"grpc", "our gRPC server compared with a bare socket server and with grpc++", bench_grpc},
    {"switch", "pause of lookups at a version switch", bench_switch},
    {"host_map", "lookups in the host map compared with gather + index", bench_host_map},
    {"bytes", "narrow rows and sums of rows in the host map compared with fp32 and with ceilings",
     bench_bytes},
    {"writes", "writes of small rows to the host map compared with a plain map under a lock",
     bench_writes},
    {"embed_cache", "host CPU time of a batch of the embedding cache", bench_embed_cache},
    {"lookup_gpu", "CPU time of a lookup: simulated device first compared with the host map",
     bench_lookup_gpu},
    {"concurrency", "lookups in the host map during updates", bench_concurrency},
    {"rocksdb", "loads, warm reads and updates compared with RocksDB on default options",
     bench_rocksdb},
    {"ssd", "lookups in tables larger than memory compared with the disk's own random reads",
     bench_ssd},
    {"update", "updates through all tiers compared with bare write batches", bench_update},
    {"insertion", "lookups that miss: waiting, or inserting after the reply", bench_insertion},
    {"e2e", "hpsd and a client: 1 to 100,000 keys a call, host map and RocksDB, cold and warm",
     bench_e2e},
    {"request", "server CPU time of requests for many tables, with and without bags",
     bench_request},
    {"kafka", "updates through a Kafka broker during lookups: freshness, latency, largest rate",
     bench_kafka},
    {"units", "age of updates through a Kafka broker during large CONSISTENCY_UNIT lookups",
     bench_units},
    {"redis", "lookups in a Redis cluster compared with HPS's HMGET and MGET of plain keys",
     bench_redis},
    {"failover", "lookups while masters of a Redis cluster hang or are killed", bench_failover},
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
