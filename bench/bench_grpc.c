/* SPDX-License-Identifier: Apache-2.0
 *
 * Our gRPC server compared with a bare socket server and with libgrpc++'s callback server: one
 * connection, server on one core, client on the other, servers in turns. Also small calls that
 * share a connection with large replies.
 */
#include <stdio.h>
#include <string.h>

#include "base/heap.h"
#include "bench/bench.h"
#include "bench/bench_grpc.h"
#include "client/client.h"
#include "client/hist.h"
#include "client/lookup.h"
#include "net/loop.h"

enum { ROUNDS = 5, SERVERS = 3, OURS = 0, RAW = 1, CPP = 2, TURN_US = 10000, N_BULK = 2 };
#define ROUND_NS UINT64_C(400000000)
#define MIXED_NS UINT64_C(2000000000)

static const struct {
    const char *name;
    unsigned kind;
    bool gather;
    unsigned n;
    double raw_min; /* targets; 0: none */
    double cpp_min;
} cases[] = {
    {"64 B, 1 in flight", 0, false, 1, 0, 0},
    {"64 B, 32 in flight", 0, false, 32, 0.45, 2},
    {"512 KB, 4 in flight", 1, false, 4, 0.60, 4.5},
    {"13.6 MB, 2 in flight", 2, false, 2, 0, 4.5},
    {"13.6 MB gathered, 2 in flight", 2, true, 2, 0.85, 0},
};

static const char *const server_names[SERVERS] = {"hpsd", "bare", "grpc++"};

/* One server's rounds of a case. */
struct rounds {
    double rate[ROUNDS];
    double p50_us[ROUNDS];
    double cpu_us[ROUNDS]; /* of the server, per call */
    double client_cpu_us[ROUNDS];
};

static hps_status run_round(size_t c, const struct bench_server *server, bool raw, int round,
                            struct rounds *rounds, struct hps_error *err)
{
    const struct bench_load load = {cases[c].kind, cases[c].gather, cases[c].n, ROUND_NS};
    struct bench_result result = {0};
    uint64_t cpu_ns = bench_clock_ns(server->cpu_clock);
    hps_status status = raw ? bench_load_raw(server->address, &load, &result, err)
                            : bench_load_grpc(server->address, &load, &result, err);

    if (status != HPS_OK) {
        return status;
    }
    cpu_ns = bench_clock_ns(server->cpu_clock) - cpu_ns;
    rounds->rate[round] = cases[c].kind == 0 ? result.calls_per_s : result.bytes_per_s / 1e9;
    rounds->p50_us[round] = result.p50_us;
    rounds->cpu_us[round] = (double)cpu_ns / 1e3 / (double)result.n_calls;
    rounds->client_cpu_us[round] = result.cpu_us;
    return HPS_OK;
}

static void report_server(size_t c, const char *server, const struct rounds *rounds)
{
    struct rounds sorted = *rounds;
    char metric[32];

    bench_report(cases[c].name, server, bench_median(sorted.rate, ROUNDS),
                 cases[c].kind == 0 ? "calls/s" : "GB/s", BENCH_NO_TARGET, 0);
    (void)snprintf(metric, sizeof(metric), "%s p50", server);
    bench_report(cases[c].name, metric, bench_median(sorted.p50_us, ROUNDS), "us", BENCH_NO_TARGET,
                 0);
    (void)snprintf(metric, sizeof(metric), "%s CPU a call", server);
    bench_report(cases[c].name, metric, bench_median(sorted.cpu_us, ROUNDS), "us", BENCH_NO_TARGET,
                 0);
    (void)snprintf(metric, sizeof(metric), "%s client's CPU", server);
    bench_report(cases[c].name, metric, bench_median(sorted.client_cpu_us, ROUNDS), "us",
                 BENCH_NO_TARGET, 0);
}

/* Our server compared with another, round by round. */
static void report_ratios(size_t c, unsigned s, const struct rounds *ours,
                          const struct rounds *other)
{
    double target = s == RAW ? cases[c].raw_min : cases[c].cpp_min;
    double rate[ROUNDS], cpu[ROUNDS];
    char metric[32];

    for (int round = 0; round < ROUNDS; round++) {
        rate[round] = ours->rate[round] / other->rate[round];
        cpu[round] = other->cpu_us[round] / ours->cpu_us[round];
    }
    (void)snprintf(metric, sizeof(metric), "hpsd/%s", server_names[s]);
    bench_report(cases[c].name, metric, bench_median(rate, ROUNDS), "ratio",
                 target > 0 ? BENCH_AT_LEAST : BENCH_NO_TARGET, target);
    (void)snprintf(metric, sizeof(metric), "CPU %s/hpsd", server_names[s]);
    bench_report(cases[c].name, metric, bench_median(cpu, ROUNDS), "ratio", BENCH_NO_TARGET, 0);
}

static hps_status run_case(size_t c, const struct bench_server *servers, unsigned n_servers,
                           struct hps_error *err)
{
    struct rounds rounds[SERVERS];

    for (int round = 0; round < ROUNDS; round++) {
        for (unsigned s = 0; s < n_servers; s++) {
            hps_status status = run_round(c, &servers[s], s == RAW, round, &rounds[s], err);
            if (status != HPS_OK) {
                return status;
            }
        }
    }
    for (unsigned s = 0; s < n_servers; s++) {
        report_server(c, server_names[s], &rounds[s]);
    }
    for (unsigned s = 1; s < n_servers; s++) {
        report_ratios(c, s, &rounds[OURS], &rounds[s]);
    }
    return HPS_OK;
}

/* ---- small and large replies on one connection ----------------------------------------------- */

struct mixed {
    struct hps_client *client;
    uint64_t end_ns;
    uint64_t bulk_bytes;
    struct hps_hist *small_ns;
    unsigned n_under_way;
    bool failed;
};

struct mixed_call {
    struct mixed *mixed;
    bool small;
    uint64_t start_ns;
};

static void mixed_start(struct mixed_call *call);

static void mixed_message(void *ctx, const uint8_t *data, size_t size)
{
    struct mixed_call *call = ctx;

    (void)data;
    call->mixed->bulk_bytes += call->small ? 0 : size;
}

static void mixed_done(void *ctx, int grpc_code, const char *message)
{
    struct mixed_call *call = ctx;
    struct mixed *mixed = call->mixed;
    uint64_t now_ns = bench_now_ns();

    (void)message;
    mixed->n_under_way--;
    mixed->failed = mixed->failed || grpc_code != 0;
    if (call->small) {
        hps_hist_add(mixed->small_ns, now_ns - call->start_ns);
    }
    if (now_ns < mixed->end_ns && !mixed->failed) {
        mixed_start(call);
    }
}

static void mixed_start(struct mixed_call *call)
{
    static const struct hps_grpc_client_events events = {.on_message = mixed_message,
                                                         .on_done = mixed_done};
    uint8_t request[4];
    size_t size = reply_request(call->small ? 0 : 2, false, request);

    call->start_ns = bench_now_ns();
    if (hps_grpc_client_start(hps_client_channel(call->mixed->client), HPS_CLIENT_LOOKUP_PATH,
                              request, size, 0, &events, call, NULL) == HPS_OK) {
        call->mixed->n_under_way++;
    } else {
        call->mixed->failed = true;
    }
}

static hps_status run_mixed(const struct bench_server *server, struct hps_error *err)
{
    struct hps_client_options options = {.address = server->address};
    struct mixed mixed = {.small_ns = hps_calloc(1, sizeof(*mixed.small_ns))};
    struct mixed_call calls[N_BULK + 1] = {0};
    hps_status status =
        mixed.small_ns == NULL ? HPS_NO_MEMORY : hps_client_open(&options, &mixed.client, err);

    if (status != HPS_OK) {
        hps_free(mixed.small_ns);
        return status;
    }
    uint64_t start_ns = bench_now_ns();
    mixed.end_ns = start_ns + MIXED_NS;
    for (unsigned i = 0; i <= N_BULK; i++) {
        calls[i].mixed = &mixed;
        calls[i].small = i == N_BULK;
        mixed_start(&calls[i]);
    }
    while (mixed.n_under_way > 0) {
        hps_loop_turn(hps_client_loop(mixed.client), TURN_US);
    }
    double seconds = (double)(bench_now_ns() - start_ns) / 1e9;
    static const char name[] = "64 B with 2 of 13.6 MB";
    bench_report(name, "p50", (double)hps_hist_quantile(mixed.small_ns, 0.5) / 1e3, "us",
                 BENCH_AT_MOST, 1000);
    bench_report(name, "p99", (double)hps_hist_quantile(mixed.small_ns, 0.99) / 1e3, "us",
                 BENCH_NO_TARGET, 0);
    bench_report(name, "large", (double)mixed.bulk_bytes / seconds / 1e9, "GB/s", BENCH_NO_TARGET,
                 0);
    hps_client_close(mixed.client);
    hps_free(mixed.small_ns);
    return mixed.failed ? hps_error_set(err, HPS_UNAVAILABLE, "a call failed") : HPS_OK;
}

hps_status bench_grpc(struct hps_error *err)
{
    struct bench_server servers[SERVERS] = {0};
    unsigned n_servers = 0;
    hps_status status = bench_server_grpc(&servers[OURS], err);

    if (status == HPS_OK) {
        n_servers = 1;
        status = bench_server_raw(&servers[RAW], err);
    }
    if (status == HPS_OK) {
        n_servers = 2;
        status = bench_server_cpp(&servers[CPP], err);
        n_servers += status == HPS_OK;
    }
    if (status == HPS_NOT_FOUND) {
        bench_left_out("grpc++", "libgrpc++ was not installed at the build: ./dev packages bench");
        status = HPS_OK;
    }
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]) && status == HPS_OK; c++) {
        status = run_case(c, servers, n_servers, err);
    }
    if (status == HPS_OK) {
        status = run_mixed(&servers[OURS], err);
    }
    for (unsigned s = 0; s < n_servers; s++) {
        servers[s].stop(servers[s].impl);
    }
    return status;
}
