/* SPDX-License-Identifier: Apache-2.0
 *
 * See traces.h.
 */
#include "bench/traces.h"

#include "client/zipf.h"

enum {
    DRIFT_EVERY = 1000, /* requests after which the ranks move by one key */
    SCAN_PERCENT = 20,
};

enum motion { STEADY, DRIFTING, ABRUPT, SCANNED };

static const struct {
    const char *name;
    double alpha;
    enum motion motion;
} traces[BENCH_N_TRACES] = {
    {"zipf 0.8", 0.8, STEADY},           {"zipf 0.99", 0.99, STEADY},
    {"zipf 1.05", 1.05, STEADY},         {"zipf 0.99 drifting", 0.99, DRIFTING},
    {"zipf 0.99 changed", 0.99, ABRUPT}, {"zipf 0.99, 20 % scan", 0.99, SCANNED},
};

const char *bench_trace(unsigned t, uint32_t *requests)
{
    enum motion motion = traces[t].motion;
    struct hps_random random = {t + 1};
    struct hps_zipf zipf;
    uint32_t scan_at = 0;

    hps_zipf_init(&zipf, BENCH_TRACE_KEYS, traces[t].alpha, 0);
    for (uint32_t i = 0; i < BENCH_TRACE_REQUESTS; i++) {
        uint64_t shift = motion == DRIFTING ? i / DRIFT_EVERY : 0;
        if (motion == ABRUPT &&
            i >= BENCH_TRACE_WARM + (BENCH_TRACE_REQUESTS - BENCH_TRACE_WARM) / 2) {
            shift = BENCH_TRACE_KEYS / 2;
        }
        if (motion == SCANNED && hps_random_next(&random) % 100 < SCAN_PERCENT) {
            requests[i] = scan_at++ % BENCH_TRACE_KEYS;
        } else {
            uint64_t rank = hps_zipf_rank(&zipf, &random) - 1;
            requests[i] = (uint32_t)hps_zipf_row(&zipf, (rank + shift) % BENCH_TRACE_KEYS + 1);
        }
    }
    return traces[t].name;
}
