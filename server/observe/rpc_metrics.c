/* SPDX-License-Identifier: Apache-2.0
 *
 * Series of RPCs by method and code. Code series are made when a code first occurs. Any thread.
 */
#include "server/observe/rpc_metrics.h"

#include <string.h>

#include "base/assert.h"
#include "base/heap.h"

enum { CODES = 17, METHODS_MAX = 128 };

struct method_series {
    const char *path;
    _Atomic(struct hps_metric *) by_code[CODES];
    struct hps_metric *duration;
};

struct hps_rpc_metrics {
    struct hps_metrics *metrics;
    struct method_series methods[METHODS_MAX]; /* the first is "unknown" */
    unsigned n_methods;
};

static const char *const code_names[CODES] = {
    "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
    "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
    "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
    "DATA_LOSS", "UNAUTHENTICATED"};

static const char *label_of(const struct method_series *series)
{
    return series->path[0] == '/' ? series->path + 1 : series->path;
}

static void add_method(struct hps_rpc_metrics *rpc, const char *path)
{
    HPS_ASSERT(rpc->n_methods < METHODS_MAX);
    struct method_series *series = &rpc->methods[rpc->n_methods++];
    series->path = path;
    series->duration =
        hps_server_metric(rpc->metrics, HPS_M_RPC_DURATION, label_of(series), NULL, NULL, NULL);
}

struct hps_rpc_metrics *hps_rpc_metrics_new(struct hps_metrics *metrics)
{
    struct hps_rpc_metrics *rpc = hps_calloc(1, sizeof(*rpc));
    if (rpc != NULL) {
        rpc->metrics = metrics;
        add_method(rpc, "unknown");
    }
    return rpc;
}

void hps_rpc_metrics_free(struct hps_rpc_metrics *rpc)
{
    hps_free(rpc);
}

hps_status hps_rpc_metrics_add(struct hps_rpc_metrics *rpc, const struct hps_grpc_service *service)
{
    if (rpc->n_methods + service->n_methods > METHODS_MAX) {
        return HPS_EXHAUSTED;
    }
    for (unsigned i = 0; i < service->n_methods; i++) {
        add_method(rpc, service->methods[i].path);
    }
    return HPS_OK;
}

hps_status hps_rpc_metrics_add_http(struct hps_rpc_metrics *rpc,
                                    const struct hps_http_route *routes, unsigned n_routes)
{
    for (unsigned i = 0; i < n_routes; i++) {
        unsigned at = 0;
        while (at < rpc->n_methods && strcmp(rpc->methods[at].path, routes[i].pattern) != 0) {
            at++;
        }
        if (at == METHODS_MAX) {
            return HPS_EXHAUSTED;
        }
        if (at == rpc->n_methods) {
            add_method(rpc, routes[i].pattern);
        }
    }
    return HPS_OK;
}

void hps_rpc_metrics_end(void *ctx, struct hps_grpc_call *call, int grpc_code, uint64_t duration_us)
{
    struct hps_rpc_metrics *rpc = ctx;
    HPS_ASSERT(rpc->n_methods > 0);
    const char *path = hps_grpc_call_path(call);
    unsigned i = rpc->n_methods - 1;
    while (i > 0 && (path == NULL || strcmp(rpc->methods[i].path, path) != 0)) {
        i--;
    }
    struct method_series *series = &rpc->methods[i];
    unsigned code = grpc_code >= 0 && grpc_code < CODES ? (unsigned)grpc_code : 2;
    struct hps_metric *count = atomic_load(&series->by_code[code]);
    if (count == NULL) {
        count = hps_server_metric(rpc->metrics, HPS_M_RPC_REQUESTS, label_of(series),
                                  code_names[code], NULL, NULL);
        atomic_store(&series->by_code[code], count);
    }
    hps_metric_add(count, 1);
    hps_metric_observe_us(series->duration, duration_us);
}
