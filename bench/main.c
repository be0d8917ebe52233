/* SPDX-License-Identifier: Apache-2.0
 *
 * hps-benchmarks [NAME...]: run benchmarks (all by default), print a table, write
 * build/bench/NAME.jsonl. Ratios within one run are what counts; figures are of this machine. Main
 * thread.
 */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "bench/bench.h"

enum { EXIT_FAILED = 1, EXIT_USAGE = 2, UNITS_PER_S_NS = 1000000000 };

static const struct bench benches[] = {
    {"grpc", "our gRPC server against a raw socket server and C++ grpc", bench_grpc},
    {"switch", "what look-ups notice of a version switch", bench_switch},
    {"host_map", "look-ups in the host map against gather + index", bench_host_map},
    {"maps", "look-ups in the host map against hash maps of C++", bench_maps},
    {"eviction", "hit rates within a budget against S3-FIFO, SIEVE, LRU, W-TinyLFU",
     bench_eviction},
    {"embed_cache", "hit rates of the embedding cache's policy, and what a batch costs the host",
     bench_embed_cache},
    {"concurrency", "look-ups in the host map beside updates of it", bench_concurrency},
    {"rocksdb", "loads, warm reads and updates against RocksDB as it comes", bench_rocksdb},
    {"update", "updates through all tiers against bare write batches", bench_update},
    {"insertion", "look-ups that miss: waited for, or inserted behind", bench_insertion},
    {"e2e", "hpsd and a client: 1 to 100,000 keys a call, both tiers, cold and warm", bench_e2e},
    {NULL, NULL, NULL},
};

static const struct bench *current;
static FILE *json;

uint64_t bench_clock_ns(clockid_t clock)
{
    struct timespec now;

    if (clock_gettime(clock, &now) != 0) {
        return 0;
    }
    return (uint64_t)now.tv_sec * UNITS_PER_S_NS + (uint64_t)now.tv_nsec;
}

uint64_t bench_now_ns(void)
{
    return bench_clock_ns(CLOCK_MONOTONIC);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

double bench_median(double *values, size_t n)
{
    if (n == 0) {
        return 0;
    }
    qsort(values, n, sizeof(*values), compare);
    return n % 2 != 0 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

void bench_bind(unsigned cpu)
{
    cpu_set_t set;

    if (sysconf(_SC_NPROCESSORS_ONLN) >= 2) {
        CPU_ZERO(&set);
        CPU_SET(cpu % 2, &set);
        (void)sched_setaffinity(0, sizeof(set), &set);
    }
}

/* So many that four digits show. */
static int decimals(double value)
{
    int n = 0;

    value = value < 0 ? -value : value;
    for (; value != 0 && value < 1000 && n < 6; value *= 10) {
        n++;
    }
    return n;
}

void bench_report(const char *name_of_case, const char *metric, double value, const char *unit,
                  enum bench_target kind, double target)
{
    bool met = kind == BENCH_AT_LEAST ? value >= target : value <= target;
    char text[48] = "";

    if (kind != BENCH_NO_TARGET) {
        (void)snprintf(text, sizeof(text), "%s %g %s", kind == BENCH_AT_LEAST ? ">=" : "<=", target,
                       met ? "met" : "MISSED");
    }
    printf("%-11s %-34s %-24s %12.*f %-8s %s\n", current->name, name_of_case, metric,
           decimals(value), value, unit, text);
    (void)fflush(stdout);
    if (json == NULL) {
        return;
    }
    (void)fprintf(json,
                  "{\"bench\":\"%s\",\"case\":\"%s\",\"metric\":\"%s\",\"value\":%.6g,"
                  "\"unit\":\"%s\"",
                  current->name, name_of_case, metric, value, unit);
    if (kind != BENCH_NO_TARGET) {
        (void)fprintf(json, ",\"target\":%g,\"met\":%s", target, met ? "true" : "false");
    }
    (void)fprintf(json, "}\n");
}

static bool run_one(const struct bench *bench)
{
    struct hps_error err = {0};
    char path[256];

    (void)snprintf(path, sizeof(path), "%s/%s.jsonl", HPS_BENCH_DIR, bench->name);
    current = bench;
    json = fopen(path, "w");
    if (json == NULL) {
        (void)fprintf(stderr, "hps-benchmarks: %s: %s\n", path, strerror(errno));
        return false;
    }
    hps_status status = bench->run(&err);
    if (fclose(json) != 0 && status == HPS_OK) {
        status = hps_error_set(&err, HPS_IO, "%s: %s", path, strerror(errno));
    }
    json = NULL;
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
    printf("%-11s %-34s %-24s %12s %-8s %s\n", "BENCH", "CASE", "METRIC", "VALUE", "UNIT",
           "TARGET");
    if (argc <= 1) {
        for (const struct bench *bench = benches; bench->name != NULL; bench++) {
            ok = run_one(bench) && ok;
        }
    }
    for (int i = 1; i < argc; i++) {
        ok = run_one(find(argv[i])) && ok;
    }
    return ok ? 0 : EXIT_FAILED;
}
