/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by all benchmarks: the list of benchmarks, reports, clocks, medians. Main thread.
 */
#ifndef HPS_BENCH_BENCH_H
#define HPS_BENCH_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "base/status.h"

struct bench {
    const char *name;
    const char *summary;
    hps_status (*run)(struct hps_error *err);
};

/* Reports are of the benchmark `name` from now on, and are appended to the file as they come. */
hps_status bench_open(const char *name, const char *path, struct hps_error *err) HPS_MUST_CHECK;
/* status: of the benchmark, which the caller gets back unless the file could not be written. */
hps_status bench_close(hps_status status, struct hps_error *err) HPS_MUST_CHECK;
void bench_print_head(void);

enum bench_target { BENCH_NO_TARGET, BENCH_AT_LEAST, BENCH_AT_MOST };

/* One line of the table and of the JSON file. `target` counts unless `kind` is BENCH_NO_TARGET. */
void bench_report(const char *name_of_case, const char *metric, double value, const char *unit,
                  enum bench_target kind, double target);

/* One line of the table and of the JSON file for a peer, or a benchmark, that is missing here. The
 * driver then exits with 77. Both texts go into JSON as they are. */
void bench_left_out(const char *what, const char *why);
unsigned bench_n_left_out(void);

uint64_t bench_now_ns(void);
uint64_t bench_clock_ns(clockid_t clock);
/* Middle of n values (sorted in place); 0 of none. */
double bench_median(double *values, size_t n);
/* Bind the calling thread to one of the first two CPUs where there are two; best effort. */
void bench_bind(unsigned cpu);

hps_status bench_grpc(struct hps_error *err);
hps_status bench_switch(struct hps_error *err);
hps_status bench_host_map(struct hps_error *err);
hps_status bench_bytes(struct hps_error *err);
hps_status bench_writes(struct hps_error *err);
hps_status bench_rocksdb(struct hps_error *err);
hps_status bench_update(struct hps_error *err);
hps_status bench_embed_cache(struct hps_error *err);
hps_status bench_lookup_gpu(struct hps_error *err);
hps_status bench_concurrency(struct hps_error *err);
hps_status bench_insertion(struct hps_error *err);
hps_status bench_e2e(struct hps_error *err);
hps_status bench_kafka(struct hps_error *err);
hps_status bench_units(struct hps_error *err);
hps_status bench_redis(struct hps_error *err);
hps_status bench_failover(struct hps_error *err);

/* Rows a second of a bare loop of RocksDB's write batches with its log: n rows of 512 bytes. */
hps_status bench_write_batches(uint64_t n, double *out_rows_per_s, struct hps_error *err)
    HPS_MUST_CHECK;

#endif
