/* SPDX-License-Identifier: Apache-2.0
 *
 * Series of RPCs by method and code. A series is created when its code first occurs. Any thread.
 */
#include "server/observe/rpc_metrics.h"

#include <string.h>

#include "base/assert.h"
#include "base/heap.h"

enum { METHODS_MAX = 128 };

struct method_series {
    const char *path;
    _Atomic(struct hps_metric *) by_code[HPS_RPC_CODES];
    struct hps_metric *duration;
};

struct hps_rpc_metrics {
    struct hps_metrics *metrics;
    struct method_series methods[METHODS_MAX]; /* the first is "unknown" */
    uint8_t by_path[METHODS_MAX];              /* [n_methods] indexes of methods, sorted by path */
    unsigned n_methods;
};

_Static_assert(METHODS_MAX <= UINT8_MAX + 1, "by_path has their indexes");

static const char *label_of(const struct method_series *series)
{
    return series->path[0] == '/' ? series->path + 1 : series->path;
}

/* The index of the method in by_path, or where it would be inserted. */
static unsigned place_of(const struct hps_rpc_metrics *rpc, const char *path)
{
    unsigned from = 0;
    unsigned to = rpc->n_methods;

    while (from < to) {
        unsigned middle = (from + to) / 2;
        if (strcmp(rpc->methods[rpc->by_path[middle]].path, path) < 0) {
            from = middle + 1;
        } else {
            to = middle;
        }
    }
    return from;
}

static bool stands_at(const struct hps_rpc_metrics *rpc, unsigned place, const char *path)
{
    return place < rpc->n_methods && strcmp(rpc->methods[rpc->by_path[place]].path, path) == 0;
}

static void add_method(struct hps_rpc_metrics *rpc, const char *path)
{
    unsigned place = place_of(rpc, path);

    HPS_ASSERT(rpc->n_methods < METHODS_MAX);
    memmove(rpc->by_path + place + 1, rpc->by_path + place, rpc->n_methods - place);
    rpc->by_path[place] = (uint8_t)rpc->n_methods;
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
        const char *pattern = routes[i].pattern;
        if (stands_at(rpc, place_of(rpc, pattern), pattern)) {
            continue;
        }
        if (rpc->n_methods == METHODS_MAX) {
            return HPS_EXHAUSTED;
        }
        add_method(rpc, pattern);
    }
    return HPS_OK;
}

void hps_rpc_metrics_end(void *ctx, struct hps_grpc_call *call, int grpc_code, uint64_t duration_us)
{
    struct hps_rpc_metrics *rpc = ctx;
    HPS_ASSERT(rpc->n_methods > 0);
    const char *path = hps_grpc_call_path(call);
    unsigned place = path != NULL ? place_of(rpc, path) : rpc->n_methods;
    bool known = path != NULL && stands_at(rpc, place, path);
    struct method_series *series = &rpc->methods[known ? rpc->by_path[place] : 0];
    unsigned code = grpc_code >= 0 && grpc_code < HPS_RPC_CODES ? (unsigned)grpc_code : 2;
    struct hps_metric *count = atomic_load(&series->by_code[code]);
    if (count == NULL) {
        count = hps_server_metric(rpc->metrics, HPS_M_RPC_REQUESTS, label_of(series),
                                  hps_rpc_code_name(code), NULL, NULL);
        atomic_store(&series->by_code[code], count);
    }
    hps_metric_add(count, 1);
    hps_metric_observe_us(series->duration, duration_us);
}
