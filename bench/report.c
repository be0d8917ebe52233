/* SPDX-License-Identifier: Apache-2.0
 *
 * Report results as lines of the table and of the JSON file; clocks and medians. Main thread.
 */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/bench.h"

enum { UNITS_PER_S_NS = 1000000000 };

static const char *current = "";
static FILE *json;
static unsigned n_left_out;

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

static int remove_one(const char *path, const struct stat *info, int flag, struct FTW *ftw)
{
    (void)info;
    (void)flag;
    (void)ftw;
    return remove(path);
}

void bench_remove(const char *dir)
{
    (void)nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static int chill_one(const char *path, const struct stat *info, int flag, struct FTW *ftw)
{
    (void)info;
    (void)ftw;
    int fd = flag == FTW_F ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        (void)fdatasync(fd); /* pages that wait to be written stay */
        (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        close(fd);
    }
    return 0;
}

void bench_chill(const char *dir)
{
    (void)nftw(dir, chill_one, 16, FTW_PHYS);
}

hps_status bench_open(const char *name, const char *path, struct hps_error *err)
{
    current = name;
    json = fopen(path, "a");
    return json != NULL ? HPS_OK : hps_error_set(err, HPS_IO, "%s: %s", path, strerror(errno));
}

hps_status bench_close(hps_status status, struct hps_error *err)
{
    bool failed = ferror(json) != 0;

    failed = fclose(json) != 0 || failed;
    json = NULL;
    return status == HPS_OK && failed
               ? hps_error_set(err, HPS_IO, "%s: the results could not be written", current)
               : status;
}

void bench_print_head(void)
{
    printf("%-11s %-34s %-24s %12s %-8s %s\n", "BENCH", "CASE", "METRIC", "VALUE", "UNIT",
           "TARGET");
}

/* Number of decimals that shows four digits. */
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
    printf("%-11s %-34s %-24s %12.*f %-8s %s\n", current, name_of_case, metric, decimals(value),
           value, unit, text);
    (void)fflush(stdout);
    if (json == NULL) {
        return;
    }
    (void)fprintf(json,
                  "{\"bench\":\"%s\",\"case\":\"%s\",\"metric\":\"%s\",\"value\":%.6g,"
                  "\"unit\":\"%s\"",
                  current, name_of_case, metric, value, unit);
    if (kind != BENCH_NO_TARGET) {
        (void)fprintf(json, ",\"target\":%g,\"met\":%s", target, met ? "true" : "false");
    }
    (void)fprintf(json, "}\n");
    (void)fflush(json); /* keep the results of a benchmark that is killed */
}

void bench_left_out(const char *what, const char *why)
{
    n_left_out++;
    printf("%-11s %-34s LEFT OUT: %s\n", current, what, why);
    (void)fflush(stdout);
    if (json != NULL) {
        (void)fprintf(json, "{\"bench\":\"%s\",\"case\":\"%s\",\"left_out\":\"%s\"}\n", current,
                      what, why);
        (void)fflush(json);
    }
}

unsigned bench_n_left_out(void)
{
    return n_left_out;
}
