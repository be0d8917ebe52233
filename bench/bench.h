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

/* Start the benchmark `name`: reports are appended to the file `path` at once. */
hps_status bench_open(const char *name, const char *path, struct hps_error *err) HPS_MUST_CHECK;
/* Returns `status`, the result of the benchmark, or IO if it is OK but the file is incomplete. */
hps_status bench_close(hps_status status, struct hps_error *err) HPS_MUST_CHECK;
void bench_print_head(void);

enum bench_target { BENCH_NO_TARGET, BENCH_AT_LEAST, BENCH_AT_MOST };

/* Write a result to the table and to the JSON file. BENCH_NO_TARGET: `target` has no effect. */
void bench_report(const char *name_of_case, const char *metric, double value, const char *unit,
                  enum bench_target kind, double target);

/* Report a missing peer or benchmark in both; the driver then exits with 77. The texts must need no
 * escapes in JSON. */
void bench_left_out(const char *what, const char *why);
unsigned bench_n_left_out(void);

uint64_t bench_now_ns(void);
uint64_t bench_clock_ns(clockid_t clock);
/* Median of n values, which are sorted in place; 0 if n is 0. */
double bench_median(double *values, size_t n);
/* Bind the calling thread to the first or second CPU; no effect with one CPU or on failure. */
void bench_bind(unsigned cpu);
/* Delete a directory with all files in it. */
void bench_remove(const char *dir);
/* Drop the pages of all files in a directory from the page cache. A file that cannot be read is
 * left as it is. */
void bench_chill(const char *dir);

hps_status bench_grpc(struct hps_error *err);
hps_status bench_switch(struct hps_error *err);
hps_status bench_host_map(struct hps_error *err);
hps_status bench_bytes(struct hps_error *err);
hps_status bench_writes(struct hps_error *err);
hps_status bench_rocksdb(struct hps_error *err);
hps_status bench_ssd(struct hps_error *err);
hps_status bench_update(struct hps_error *err);
hps_status bench_embed_cache(struct hps_error *err);
hps_status bench_lookup_gpu(struct hps_error *err);
hps_status bench_concurrency(struct hps_error *err);
hps_status bench_insertion(struct hps_error *err);
hps_status bench_e2e(struct hps_error *err);
hps_status bench_request(struct hps_error *err);
hps_status bench_kafka(struct hps_error *err);
hps_status bench_units(struct hps_error *err);
hps_status bench_redis(struct hps_error *err);
hps_status bench_failover(struct hps_error *err);

/* Rows a second of a loop of RocksDB write batches with its log: n rows of 512 bytes. */
hps_status bench_write_batches(uint64_t n, double *out_rows_per_s, struct hps_error *err)
    HPS_MUST_CHECK;

#endif
