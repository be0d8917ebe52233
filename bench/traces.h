/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests that caches are judged by: popular keys that stay, drift, change all at once, or are
 * asked for between scans. The same in every run. Main thread.
 */
#ifndef HPS_BENCH_TRACES_H
#define HPS_BENCH_TRACES_H

#include <stdint.h>

enum {
    BENCH_TRACE_KEYS = 1 << 18,
    BENCH_TRACE_WARM = 2 * BENCH_TRACE_KEYS,      /* requests that fill the cache */
    BENCH_TRACE_REQUESTS = 12 * BENCH_TRACE_KEYS, /* those included */
    BENCH_N_TRACES = 6,
};

/* Make trace t: [BENCH_TRACE_REQUESTS] keys below BENCH_TRACE_KEYS. Returns its name. */
const char *bench_trace(unsigned t, uint32_t *requests);

#endif
