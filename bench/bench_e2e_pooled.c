/* SPDX-License-Identifier: Apache-2.0
 *
 * CPU time of client and server for bags over gRPC: the server returns each row, or pools the rows
 * of each bag. hpsd answers from its host map over a Unix socket. Calls of both kinds take turns
 * with the same keys. Then server CPU time per key of small requests: two daemons take turns, one
 * stores the rows without an index, the other one has an index. Main thread.
 */
#include <stdio.h>

#include "base/heap.h"
#include "bench/bench.h"
#include "bench/bench_e2e.h"
#include "bench/bench_reply.h"
#include "client/lookup.h"
#include "client/zipf.h"

enum {
    ROUNDS = 5,
    CALLS = 4, /* of each kind in a round */
    N_TABLES = 26,
    N_BAGS = 128, /* of each table */
    BAG_KEYS = 32,
    N_KEYS = N_BAGS * BAG_KEYS,
    SMALL_ROUNDS = 15,
    SMALL_CALLS = 64,
    SMALL_BAGS = 2,
    CALLS_MAX = SMALL_CALLS,
    N_ROWS = 1 << 20, /* 512 MiB */
    DIM = 128,
    REQUEST_BYTES_MAX = 4 << 20
};

/* CPU time of one call of a kind, in us. */
struct cost {
    double client_us[ROUNDS];
    double server_us[ROUNDS];
};

struct load {
    struct e2e_hpsd *hpsd;
    struct hps_random random;
    struct hps_zipf zipf;
    hps_key *keys;                      /* [N_TABLES][n_bags * BAG_KEYS] */
    uint32_t offsets[N_BAGS + 1];       /* of every table */
    struct hps_buf requests[CALLS_MAX]; /* of the current kind */
    unsigned n_calls, n_bags;
    struct hps_client_lookup_query queries[N_TABLES];
    bool pooled;
};

/* One table serves as 26 tables. */
static hps_status draw_request(struct load *load, struct hps_buf *request)
{
    uint32_t n_keys = load->n_bags * BAG_KEYS;

    for (uint32_t t = 0; t < N_TABLES; t++) {
        hps_key *keys = load->keys + (size_t)t * n_keys;
        for (uint32_t i = 0; i < n_keys; i++) {
            keys[i] = hps_zipf_row(&load->zipf, hps_zipf_rank(&load->zipf, &load->random));
        }
        load->queries[t] =
            (struct hps_client_lookup_query){.table = "feature_0", .keys = keys, .n_keys = n_keys};
        if (load->pooled) {
            load->queries[t].pooling = HPS_POOLING_SUM;
            load->queries[t].n_bags = load->n_bags;
            load->queries[t].offsets = load->offsets;
        }
    }
    const struct hps_client_lookup lookup = {
        .model = "m", .queries = load->queries, .n_queries = N_TABLES};
    hps_buf_clear(request);
    return hps_client_lookup_encode(&lookup, request);
}

/* Check that the reply has all rows. */
static hps_status on_reply(void *ctx, const uint8_t *data, size_t size, struct hps_error *err)
{
    const struct load *load = ctx;
    struct hps_wire_reader reply = {data, size, 0};
    struct bench_reply_result result;

    for (uint32_t t = 0; t < N_TABLES; t++) {
        if (!bench_reply_next(&reply, &result) || result.n_unknown > 0 ||
            result.n_rows != (load->pooled ? load->n_bags : load->n_bags * BAG_KEYS)) {
            return hps_error_set(err, HPS_DATA_LOSS, "the reply lacks rows");
        }
    }
    return HPS_OK;
}

/* The calls of one kind in one round. */
static hps_status run_round(struct load *load, bool pooled, uint64_t seed, double *out_client_us,
                            double *out_server_us, struct hps_error *err)
{
    double before_us = 0, after_us = 0;
    hps_status status = HPS_OK;

    load->pooled = pooled;
    load->random.state = seed; /* the same keys for both kinds */
    for (unsigned i = 0; i < load->n_calls && status == HPS_OK; i++) {
        status = draw_request(load, &load->requests[i]);
    }
    if (status != HPS_OK) {
        return hps_error_set(err, status, "a request: %s", hps_status_text(status));
    }
    status = e2e_hpsd_cpu_us(load->hpsd, &before_us, err);
    uint64_t begin_ns = bench_clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    for (unsigned i = 0; i < load->n_calls && status == HPS_OK; i++) {
        status =
            hps_client_stream(load->hpsd->client, HPS_CLIENT_LOOKUP_PATH, load->requests[i].data,
                              load->requests[i].size, 0, on_reply, load, NULL, err);
    }
    uint64_t end_ns = bench_clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    if (status == HPS_OK) {
        status = e2e_hpsd_cpu_us(load->hpsd, &after_us, err);
    }
    *out_client_us = (double)(end_ns - begin_ns) / 1e3 / load->n_calls;
    *out_server_us = (after_us - before_us) / load->n_calls;
    return status;
}

static void report(const char *keys_are, struct cost *plain, struct cost *pooled, double target)
{
    double ratios[ROUNDS];
    char name[64];

    for (unsigned i = 0; i < ROUNDS; i++) {
        ratios[i] = (plain->client_us[i] + plain->server_us[i]) /
                    (pooled->client_us[i] + pooled->server_us[i]);
    }
    (void)snprintf(name, sizeof(name), "%d x %d bags of %d, %s", N_TABLES, N_BAGS, BAG_KEYS,
                   keys_are);
    bench_report(name, "unpooled/pooled, CPU", bench_median(ratios, ROUNDS), "ratio",
                 BENCH_AT_LEAST, target);
    bench_report(name, "unpooled, server", bench_median(plain->server_us, ROUNDS), "us",
                 BENCH_NO_TARGET, 0);
    bench_report(name, "unpooled, client", bench_median(plain->client_us, ROUNDS), "us",
                 BENCH_NO_TARGET, 0);
    bench_report(name, "pooled, server", bench_median(pooled->server_us, ROUNDS), "us",
                 BENCH_NO_TARGET, 0);
    bench_report(name, "pooled, client", bench_median(pooled->client_us, ROUNDS), "us",
                 BENCH_NO_TARGET, 0);
}

static hps_status run_keys(struct load *load, const char *keys_are, double alpha, double target,
                           struct hps_error *err)
{
    struct cost plain, pooled;
    double ignored;
    hps_status status = HPS_OK;

    hps_zipf_init(&load->zipf, N_ROWS, alpha, 0);
    for (int warm = 0; warm < 2 && status == HPS_OK; warm++) {
        status = run_round(load, warm == 1, 1, &ignored, &ignored, err);
    }
    for (unsigned i = 0; i < ROUNDS && status == HPS_OK; i++) {
        status = run_round(load, false, i, &plain.client_us[i], &plain.server_us[i], err);
        if (status == HPS_OK) {
            status = run_round(load, true, i, &pooled.client_us[i], &pooled.server_us[i], err);
        }
    }
    if (status == HPS_OK) {
        report(keys_are, &plain, &pooled, target);
    }
    return status;
}

/* ---- small requests -------------------------------------------------------------------------- */

enum { DENSE, INDEXED, SIDES };

static hps_status run_small(struct load *load, struct e2e_hpsd *hpsds, struct hps_error *err)
{
    double us[SIDES][SMALL_ROUNDS + 1], ratios[SMALL_ROUNDS], ignored;
    hps_status status = HPS_OK;
    char name[64];

    hps_zipf_init(&load->zipf, N_ROWS, 0, 0);
    load->n_calls = SMALL_CALLS;
    load->n_bags = SMALL_BAGS;
    for (unsigned i = 0; i <= SMALL_ROUNDS;
         i++) { /* the last one overwrites the first, a warm-up */
        for (unsigned side = 0; side < SIDES && status == HPS_OK; side++) {
            load->hpsd = &hpsds[side];
            status = run_round(load, true, i, &ignored, &us[side][i % SMALL_ROUNDS], err);
        }
    }
    if (status != HPS_OK) {
        return status;
    }
    for (unsigned i = 0; i < SMALL_ROUNDS; i++) {
        ratios[i] = us[DENSE][i] / us[INDEXED][i];
    }
    double n_keys = N_TABLES * SMALL_BAGS * BAG_KEYS;
    (void)snprintf(name, sizeof(name), "%d x %d bags of %d, uniform", N_TABLES, SMALL_BAGS,
                   BAG_KEYS);
    bench_report(name, "server, dense/indexed, CPU", bench_median(ratios, SMALL_ROUNDS), "ratio",
                 BENCH_AT_MOST, 0.8);
    bench_report(name, "server, dense", 1e3 * bench_median(us[DENSE], SMALL_ROUNDS) / n_keys,
                 "ns/key", BENCH_NO_TARGET, 0);
    bench_report(name, "server, indexed", 1e3 * bench_median(us[INDEXED], SMALL_ROUNDS) / n_keys,
                 "ns/key", BENCH_NO_TARGET, 0);
    return HPS_OK;
}

static struct load *load_new(struct e2e_hpsd *hpsd)
{
    struct load *load = hps_calloc(1, sizeof(*load));

    if (load == NULL) {
        return NULL;
    }
    *load = (struct load){.hpsd = hpsd, .n_calls = CALLS, .n_bags = N_BAGS};
    load->keys = hps_calloc((size_t)N_TABLES * N_KEYS, sizeof(*load->keys));
    for (unsigned i = 0; i < CALLS_MAX; i++) {
        hps_buf_init(&load->requests[i], REQUEST_BYTES_MAX);
    }
    for (uint32_t i = 0; i <= N_BAGS; i++) {
        load->offsets[i] = i * BAG_KEYS;
    }
    return load;
}

static void load_free(struct load *load)
{
    for (unsigned i = 0; load != NULL && i < CALLS_MAX; i++) {
        hps_buf_fini(&load->requests[i]);
    }
    hps_free(load != NULL ? load->keys : NULL);
    hps_free(load);
}

hps_status bench_e2e_pooled(struct hps_error *err)
{
    struct e2e_hpsd hpsds[SIDES] = {
        [DENSE] = {.with_host_map = true, .n_rows = N_ROWS, .dim = DIM},
        [INDEXED] = {.with_host_map = true, .n_rows = N_ROWS, .dim = DIM, .indexed = true}};
    struct load *load = load_new(&hpsds[DENSE]);
    hps_status status = load != NULL && load->keys != NULL
                            ? HPS_OK
                            : hps_error_set(err, HPS_NO_MEMORY, "no memory for keys");

    for (unsigned side = 0; side < SIDES && status == HPS_OK; side++) {
        status = e2e_hpsd_make(&hpsds[side], err);
        if (status == HPS_OK) {
            status = e2e_hpsd_start(&hpsds[side], err);
        }
    }
    if (status == HPS_OK) {
        status = run_keys(load, "uniform", 0, 3, err);
    }
    if (status == HPS_OK) {
        status = run_keys(load, "Zipf 0.99", 0.99, 4, err);
    }
    if (status == HPS_OK) {
        status = run_small(load, hpsds, err);
    }
    load_free(load);
    for (unsigned side = 0; side < SIDES; side++) {
        e2e_hpsd_remove(&hpsds[side]);
    }
    return status;
}
