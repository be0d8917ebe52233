/* SPDX-License-Identifier: Apache-2.0
 *
 * Hit rates of the host map within a budget, beside a simulated S3-FIFO that may hold as many rows
 * as it turned out to hold. Batches as look-ups make them: ask for all keys, then insert what was
 * missing; so does the simulation. Nothing depends on time: the same build gives the same figures.
 * Main thread.
 */
#include <stdio.h>
#include <string.h>

#include "backends/host/map.h"
#include "base/hash.h"
#include "base/heap.h"
#include "bench/bench.h"
#include "bench/s3fifo.h"
#include "bench/traces.h"

enum {
    N_KEYS = BENCH_TRACE_KEYS,
    N_WARM = BENCH_TRACE_WARM,
    N_REQUESTS = BENCH_TRACE_REQUESTS,
    BATCH = 64,
    DIM = 256, /* wide rows: the budget is in bytes, and a small cache shall still be many steps */
    ROW_BYTES = DIM * 4,
    INDEX_BYTES = 24, /* of the budget for each row, roughly: the rows held are asked for */
};

#define POINTS_BELOW_S3FIFO_MAX 1.5

static const unsigned cache_percents[] = {1, 5, 10}; /* of the keys */

static const float zeros[DIM];
static const struct hps_table table = {"t", 0, DIM, ROW_BYTES, HPS_DTYPE_FP32, N_KEYS, zeros};

static double percent(uint64_t n_hit)
{
    return 100.0 * (double)n_hit / (N_REQUESTS - N_WARM);
}

/* ---- the host map ---------------------------------------------------------------------------- */

/* The map hides where a key goes behind a secret of the process; taken out of the keys, each run
 * sees the same buckets. */
static hps_key key_of(uint32_t request)
{
    return hps_mix64(request) ^ hps_hash_secret();
}

static hps_status replay(struct hps_space *space, const uint32_t *requests, uint8_t *rows,
                         uint64_t *out_n_hit)
{
    static const uint32_t first_row[BATCH]; /* all zero: every row that is inserted is the first */
    const struct hps_store_ops *ops = space->store->ops;
    struct hps_call call = {0};
    hps_key keys[BATCH];
    uint32_t slots[BATCH];
    uint64_t n_hit = 0;

    for (uint32_t i = 0; i < N_REQUESTS; i += BATCH) {
        struct hps_batch batch = {.keys = keys, .slots = slots, .rows = rows, .n = BATCH};
        struct hps_insert_report report;
        for (uint32_t j = 0; j < BATCH; j++) {
            keys[j] = key_of(requests[i + j]);
            slots[j] = j;
        }
        hps_status status = ops->get(space, &call, &table, &batch);
        if (status == HPS_OK && batch.n > 0) {
            status =
                ops->insert(space, &call, &table, keys, first_row, rows, batch.n, NULL, &report);
        }
        if (status != HPS_OK) {
            return status;
        }
        n_hit += i >= N_WARM ? BATCH - batch.n : 0;
    }
    *out_n_hit = n_hit;
    return HPS_OK;
}

static hps_status run_ours(const uint32_t *requests, uint32_t n_rows, uint8_t *rows,
                           double *out_percent, struct hps_store_usage *out_usage,
                           struct hps_error *err)
{
    struct hps_space_id id = {"m", 1, &table, 1, 0};
    struct hps_store *store = NULL;
    struct hps_space *space = NULL;
    uint64_t n_hit = 0;
    const struct hps_host_map_options options = {
        .bytes_max = (uint64_t)n_rows * (ROW_BYTES + INDEX_BYTES), .evicts = true};
    hps_status status = hps_host_map_open_with(&options, &store, err);

    if (status != HPS_OK) {
        return status;
    }
    status = store->ops->space_open(store, &id, &space, err);
    if (status == HPS_OK) {
        status = replay(space, requests, rows, &n_hit);
        if (status != HPS_OK) {
            (void)hps_error_set(err, status, "host map: %s", hps_status_text(status));
        }
        store->ops->space_usage(space, out_usage);
        store->ops->space_close(space);
    }
    store->ops->close(store);
    *out_percent = percent(n_hit);
    return status;
}

/* ---- the simulation -------------------------------------------------------------------------- */

static hps_status run_policy(const uint32_t *requests, uint32_t n_rows, double *out_percent,
                             struct hps_error *err)
{
    struct policy *policy = policy_new(N_KEYS, n_rows);
    uint32_t missing[BATCH];
    uint64_t n_hit = 0;

    if (policy == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for S3-FIFO");
    }
    for (uint32_t i = 0; i < N_REQUESTS; i += BATCH) {
        uint32_t n = 0;
        for (uint32_t j = 0; j < BATCH; j++) {
            if (!policy_touch(policy, requests[i + j])) {
                missing[n++] = requests[i + j];
            }
        }
        for (uint32_t j = 0; j < n; j++) {
            policy_insert(policy, missing[j]);
        }
        n_hit += i >= N_WARM ? BATCH - n : 0;
    }
    policy_free(policy);
    *out_percent = percent(n_hit);
    return HPS_OK;
}

static hps_status run_case(const char *name, const uint32_t *requests, unsigned cache_percent,
                           uint8_t *rows, struct hps_error *err)
{
    uint32_t n_rows = (uint32_t)((uint64_t)N_KEYS * cache_percent / 100);
    struct hps_store_usage usage = {0};
    double ours = 0, s3fifo = 0;
    hps_status status = run_ours(requests, n_rows, rows, &ours, &usage, err);

    if (status == HPS_OK && usage.n_rows == 0) {
        status = hps_error_set(err, HPS_INTERNAL, "%s: the map holds no row", name);
    }
    if (status != HPS_OK) {
        return status;
    }
    bench_report(name, "rows held", (double)usage.n_rows, "rows", BENCH_NO_TARGET, 0);
    bench_report(name, "host map", ours, "%", BENCH_NO_TARGET, 0);
    status = run_policy(requests, (uint32_t)usage.n_rows, &s3fifo, err);
    if (status != HPS_OK) {
        return status;
    }
    bench_report(name, "S3-FIFO", s3fifo, "%", BENCH_NO_TARGET, 0);
    bench_report(name, "S3-FIFO - host map", s3fifo - ours, "points", BENCH_AT_MOST,
                 POINTS_BELOW_S3FIFO_MAX);
    return HPS_OK;
}

hps_status bench_eviction(struct hps_error *err)
{
    uint32_t *requests = hps_calloc(N_REQUESTS, sizeof(*requests));
    uint8_t *rows = hps_alloc_aligned(64, (size_t)BATCH * ROW_BYTES);
    hps_status status = HPS_OK;
    char name[64];

    if (requests == NULL || rows == NULL) {
        status = hps_error_set(err, HPS_NO_MEMORY, "no memory for a trace");
        goto out;
    }
    memset(rows, 0, (size_t)BATCH * ROW_BYTES);
    for (unsigned t = 0; t < BENCH_N_TRACES; t++) {
        const char *trace = bench_trace(t, requests);
        for (size_t c = 0; c < sizeof(cache_percents) / sizeof(cache_percents[0]); c++) {
            (void)snprintf(name, sizeof(name), "%s, %u %%", trace, cache_percents[c]);
            status = run_case(name, requests, cache_percents[c], rows, err);
            if (status != HPS_OK) {
                goto out;
            }
        }
    }
out:
    hps_free_aligned(rows);
    hps_free(requests);
    return status;
}
