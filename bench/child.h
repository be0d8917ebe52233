/* SPDX-License-Identifier: Apache-2.0
 *
 * Child processes of benchmarks. They end with the driver. Main thread.
 */
#ifndef HPS_BENCH_CHILD_H
#define HPS_BENCH_CHILD_H

#include <sys/types.h>

#include "base/status.h"

struct bench_child {
    pid_t pid;
    int in; /* its stdin; closing it asks some to end */
};

enum { BENCH_CHILD_ANY_CPU = -1 };

/* Start argv[0], a path, on this CPU if there are two, and wait for its first line of output. argv
 * is NULL-terminated. UNAVAILABLE: it ended without a line. */
hps_status bench_child_start(const char *const *argv, int cpu, struct bench_child *out_child,
                             char *out_line, size_t line_size, struct hps_error *err)
    HPS_MUST_CHECK;
/* Close its stdin, send TERM, wait for its end. */
void bench_child_stop(struct bench_child *child);
/* Start it and wait for its end; INTERNAL unless it exits with 0. */
hps_status bench_child_run(const char *const *argv, struct hps_error *err) HPS_MUST_CHECK;

#endif
