/* SPDX-License-Identifier: Apache-2.0
 *
 * Lookups from the client library to hpsd in its own process over a Unix socket, 1 to 100,000 keys
 * a call. Two daemons take turns: one answers from the host map, the other has RocksDB alone. One
 * call in flight measures latency, four measure throughput. Two cold cases follow: RocksDB with an
 * empty page cache, and a host map right after a restart. Keys are uniform. bench_e2e_request.c has
 * requests of many tables. Main thread.
 */
#include "bench/bench_e2e.h"

#include <stdio.h>
#include <string.h>

#include "base/heap.h"
#include "bench/bench.h"
#include "bench/bench_reply.h"
#include "client/hist.h"
#include "client/lookup.h"
#include "client/zipf.h"
#include "net/loop.h"

enum {
    ROUNDS = 3,
    N_SIZES = 6,
    KEYS_MAX = 100000,
    UNDER_WAY = 4, /* calls in flight for throughput */
    TURN_US = 10000,
    COLD_KEYS = 1000, /* a call */
    COLD_CALLS = 32,
    HOST = 0,
    ROCKSDB = 1,
    N_TIERS = 2,
};
#define ROUND_NS   UINT64_C(200000000)
#define RESTART_NS UINT64_C(1000000000)

static const uint32_t sizes[N_SIZES] = {1, 10, 100, 1000, 10000, KEYS_MAX};
static const char *const tier_names[N_TIERS] = {"host", "rocksdb"};

struct load {
    struct hps_client *client;
    uint32_t n_keys;
    uint64_t end_ns;
    uint64_t n_calls_max; /* 0: until end_ns */
    struct hps_random *random;
    hps_key *keys; /* [KEYS_MAX] */
    struct hps_buf request;
    struct hps_hist ns;
    uint64_t n_started, n_done, bytes;
    uint64_t n_found, n_from_host; /* unique keys */
    unsigned n_under_way;
    hps_status status;
    struct hps_error err;
};

struct call {
    struct load *load;
    uint64_t start_ns;
};

/* One measurement. */
struct result {
    double keys_per_s, bytes_per_s, p50_us, p99_us;
    double host_share; /* of the keys */
    double n_keys;
};

/* ---- calls ----------------------------------------------------------------------------------- */

static void start_call(struct call *call);

static void fail(struct load *load, hps_status status, const char *text)
{
    if (load->status == HPS_OK) {
        load->status = hps_error_set(&load->err, status, "%s", text);
    }
}

static void on_message(void *ctx, const uint8_t *data, size_t size)
{
    struct load *load = ((struct call *)ctx)->load;
    struct hps_wire_reader reply = {data, size, 0};
    struct bench_reply_result result;

    if (!bench_reply_next(&reply, &result) || result.n_rows != load->n_keys ||
        result.n_unknown != 0 || result.rows_bytes != (size_t)load->n_keys * E2E_ROW_BYTES) {
        fail(load, HPS_DATA_LOSS, "the reply lacks rows");
        return;
    }
    load->n_from_host += result.n_from_host;
    load->n_found += result.n_found;
    load->bytes += size;
}

static void on_done(void *ctx, int grpc_code, const char *message)
{
    struct call *call = ctx;
    struct load *load = call->load;
    uint64_t now_ns = bench_now_ns();

    load->n_under_way--;
    load->n_done++;
    hps_hist_add(&load->ns, now_ns - call->start_ns);
    if (grpc_code != 0) {
        fail(load, hps_status_of_grpc(grpc_code), message);
    } else if (load->n_calls_max == 0 ? now_ns < load->end_ns
                                      : load->n_started < load->n_calls_max) {
        start_call(call);
    }
}

static void start_call(struct call *call)
{
    static const struct hps_grpc_client_events events = {.on_message = on_message,
                                                         .on_done = on_done};
    struct load *load = call->load;
    struct hps_client_lookup_query query = {.keys = load->keys, .n_keys = load->n_keys};
    struct hps_client_lookup lookup = {.model = "m", .queries = &query, .n_queries = 1};

    for (uint32_t i = 0; i < load->n_keys; i++) {
        load->keys[i] = hps_random_next(load->random) % E2E_ROWS;
    }
    hps_buf_clear(&load->request);
    hps_status status = hps_client_lookup_encode(&lookup, &load->request);
    call->start_ns = bench_now_ns();
    if (status == HPS_OK) {
        status =
            hps_grpc_client_start(hps_client_channel(load->client), HPS_CLIENT_LOOKUP_PATH,
                                  load->request.data, load->request.size, 0, &events, call, NULL);
    }
    if (status != HPS_OK) {
        fail(load, status, hps_status_text(status));
        return;
    }
    load->n_started++;
    load->n_under_way++;
}

/* Keep `n` calls in flight until `ns` have passed or, if n_calls_max > 0, for that many calls. */
static hps_status run_load(struct hps_client *client, struct hps_random *random, uint32_t n_keys,
                           unsigned n, uint64_t ns, uint64_t n_calls_max, struct result *out_result,
                           struct hps_error *err)
{
    struct load *load = hps_calloc(1, sizeof(*load));
    struct call calls[UNDER_WAY];

    if (load == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory");
    }
    load->client = client;
    load->random = random;
    load->n_keys = n_keys;
    load->n_calls_max = n_calls_max;
    load->keys = hps_calloc(KEYS_MAX, sizeof(*load->keys));
    hps_buf_init(&load->request, (size_t)KEYS_MAX * 16);
    uint64_t start_ns = bench_now_ns();
    load->end_ns = start_ns + ns;
    for (unsigned i = 0; i < n && load->keys != NULL; i++) {
        calls[i].load = load;
        start_call(&calls[i]);
    }
    while (load->n_under_way > 0) {
        hps_loop_turn(hps_client_loop(client), TURN_US);
    }
    double seconds = (double)(bench_now_ns() - start_ns) / 1e9;
    *out_result = (struct result){
        .keys_per_s = (double)load->n_done * n_keys / seconds,
        .n_keys = (double)load->n_done * n_keys,
        .bytes_per_s = (double)load->bytes / seconds,
        .p50_us = (double)hps_hist_quantile(&load->ns, 0.5) / 1e3,
        .p99_us = (double)hps_hist_quantile(&load->ns, 0.99) / 1e3,
        .host_share = load->n_found == 0 ? 0 : (double)load->n_from_host / (double)load->n_found,
    };
    hps_status status = load->keys == NULL ? HPS_NO_MEMORY : load->status;
    if (status != HPS_OK) {
        (void)hps_error_set(err, status, "lookups of %u keys: %s", n_keys, load->err.text);
    }
    hps_buf_fini(&load->request);
    hps_free(load->keys);
    hps_free(load);
    return status;
}

/* ---- warm ------------------------------------------------------------------------------------ */

struct warm {
    double keys_per_s[N_TIERS][ROUNDS];
    double bytes_per_s[N_TIERS][ROUNDS];
    double p50_us[N_TIERS][ROUNDS];
    double p99_us[N_TIERS][ROUNDS];
    double disk_bytes[N_TIERS][ROUNDS]; /* read per key: shows whether it was warm */
};

static void report_warm(uint32_t n_keys, struct warm *warm)
{
    char name[64];
    double ratios[ROUNDS];

    for (unsigned round = 0; round < ROUNDS; round++) {
        ratios[round] = warm->keys_per_s[HOST][round] / warm->keys_per_s[ROCKSDB][round];
    }
    (void)snprintf(name, sizeof(name), "%u keys a call", n_keys);
    bench_report(name, "host/rocksdb, warm", bench_median(ratios, ROUNDS), "ratio", BENCH_NO_TARGET,
                 0);
    for (unsigned t = 0; t < N_TIERS; t++) {
        (void)snprintf(name, sizeof(name), "%u keys a call, %s warm", n_keys, tier_names[t]);
        bench_report(name, "rate", bench_median(warm->keys_per_s[t], ROUNDS), "keys/s",
                     BENCH_NO_TARGET, 0);
        bench_report(name, "bytes", bench_median(warm->bytes_per_s[t], ROUNDS) / 1e9, "GB/s",
                     BENCH_NO_TARGET, 0);
        bench_report(name, "p50", bench_median(warm->p50_us[t], ROUNDS), "us", BENCH_NO_TARGET, 0);
        bench_report(name, "p99", bench_median(warm->p99_us[t], ROUNDS), "us", BENCH_NO_TARGET, 0);
    }
}

/* A round of one tier. */
static hps_status run_warm_round(struct e2e_hpsd *hpsd, unsigned t, struct hps_random *random,
                                 uint32_t n_keys, unsigned round, struct warm *warm,
                                 struct hps_error *err)
{
    struct result one, many;

    e2e_hpsd_warm(hpsd);
    double disk_bytes = e2e_hpsd_disk_bytes(hpsd);
    hps_status status = run_load(hpsd->client, random, n_keys, 1, ROUND_NS, 0, &one, err);
    if (status == HPS_OK) {
        status = run_load(hpsd->client, random, n_keys, UNDER_WAY, ROUND_NS, 0, &many, err);
    }
    if (status != HPS_OK) {
        return status;
    }
    if (many.host_share != (t == HOST ? 1 : 0)) {
        return hps_error_set(err, HPS_INTERNAL, "%s answered %g of the keys from memory",
                             tier_names[t], many.host_share);
    }
    disk_bytes = e2e_hpsd_disk_bytes(hpsd) - disk_bytes;
    warm->disk_bytes[t][round] = disk_bytes / (one.n_keys + many.n_keys);
    warm->keys_per_s[t][round] = many.keys_per_s;
    warm->bytes_per_s[t][round] = many.bytes_per_s;
    warm->p50_us[t][round] = one.p50_us;
    warm->p99_us[t][round] = one.p99_us;
    return HPS_OK;
}

static hps_status run_warm(struct e2e_hpsd *hpsds, struct hps_random *random, uint32_t n_keys,
                           struct hps_error *err)
{
    struct warm warm;

    for (unsigned round = 0; round < ROUNDS; round++) {
        for (unsigned t = 0; t < N_TIERS; t++) {
            hps_status status = run_warm_round(&hpsds[t], t, random, n_keys, round, &warm, err);
            if (status != HPS_OK) {
                return status;
            }
        }
    }
    report_warm(n_keys, &warm);
    return HPS_OK;
}

/* ---- cold ------------------------------------------------------------------------------------ */

/* After a restart with an empty page cache; only the start itself has read from the database. */
static hps_status run_cold(struct e2e_hpsd *hpsd, struct hps_random *random, struct hps_error *err)
{
    static const char name[] = "1000 keys a call, rocksdb cold";
    struct result result;

    e2e_hpsd_stop(hpsd);
    e2e_hpsd_chill(hpsd);
    hps_status status = e2e_hpsd_start(hpsd, err);
    if (status != HPS_OK) {
        return status;
    }
    e2e_hpsd_chill(hpsd);
    double before = e2e_hpsd_disk_bytes(hpsd);
    status = run_load(hpsd->client, random, COLD_KEYS, 1, 0, COLD_CALLS, &result, err);
    if (status == HPS_OK) {
        double bytes = e2e_hpsd_disk_bytes(hpsd) - before;
        bench_report(name, "rate", result.keys_per_s, "keys/s", BENCH_NO_TARGET, 0);
        bench_report(name, "p50", result.p50_us, "us", BENCH_NO_TARGET, 0);
        bench_report(name, "p99", result.p99_us, "us", BENCH_NO_TARGET, 0);
        bench_report(name, "read from disk", bytes / (COLD_KEYS * COLD_CALLS), "B/key",
                     BENCH_NO_TARGET, 0);
    }
    return status;
}

/* The first second after a restart, while the host map is filled from RocksDB. */
static hps_status run_restarted(struct e2e_hpsd *hpsd, struct hps_random *random,
                                struct hps_error *err)
{
    static const char name[] = "1000 keys a call, host restarted";
    struct result result;

    e2e_hpsd_stop(hpsd);
    hps_status status = e2e_hpsd_start(hpsd, err);
    if (status == HPS_OK) {
        status = run_load(hpsd->client, random, COLD_KEYS, 1, RESTART_NS, 0, &result, err);
    }
    if (status == HPS_OK) {
        bench_report(name, "rate", result.keys_per_s, "keys/s", BENCH_NO_TARGET, 0);
        bench_report(name, "p50", result.p50_us, "us", BENCH_NO_TARGET, 0);
        bench_report(name, "p99", result.p99_us, "us", BENCH_NO_TARGET, 0);
        bench_report(name, "from memory", 100 * result.host_share, "%", BENCH_NO_TARGET, 0);
    }
    return status;
}

hps_status bench_e2e(struct hps_error *err)
{
    struct e2e_hpsd hpsds[N_TIERS] = {0};
    struct hps_random random = {1};
    hps_status status = HPS_OK;

    for (unsigned t = 0; t < N_TIERS && status == HPS_OK; t++) {
        hpsds[t] =
            (struct e2e_hpsd){.with_host_map = t == HOST, .n_rows = E2E_ROWS, .dim = E2E_DIM};
        status = e2e_hpsd_make(&hpsds[t], err);
        if (status == HPS_OK) {
            status = e2e_hpsd_start(&hpsds[t], err);
        }
    }
    if (status == HPS_OK) {
        status = run_cold(&hpsds[ROCKSDB], &random, err);
    }
    for (unsigned i = 0; i < N_SIZES && status == HPS_OK; i++) {
        status = run_warm(hpsds, &random, sizes[i], err);
    }
    if (status == HPS_OK) {
        status = run_restarted(&hpsds[HOST], &random, err);
    }
    for (unsigned t = 0; t < N_TIERS; t++) {
        e2e_hpsd_remove(&hpsds[t]);
    }
    return status;
}
