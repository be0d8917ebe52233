/* SPDX-License-Identifier: Apache-2.0
 *
 * rpc_requests_total and rpc_duration_seconds: the series of every method, looked up once. Any
 * thread.
 */
#ifndef HPS_SERVER_OBSERVE_RPC_METRICS_H
#define HPS_SERVER_OBSERVE_RPC_METRICS_H

#include "net/grpc.h"
#include "server/observe/metrics.h"

struct hps_rpc_metrics;

struct hps_rpc_metrics *hps_rpc_metrics_new(struct hps_metrics *metrics); /* NULL: out of memory */
void hps_rpc_metrics_free(struct hps_rpc_metrics *rpc);
/* Add the methods of a service, before any call. EXHAUSTED: too many methods. */
hps_status hps_rpc_metrics_add(struct hps_rpc_metrics *rpc, const struct hps_grpc_service *service)
    HPS_MUST_CHECK;
/* As hps_rpc_metrics_add, for HTTP/1.1 routes: each pattern is a method, for all its verbs. */
hps_status hps_rpc_metrics_add_http(struct hps_rpc_metrics *rpc,
                                    const struct hps_http_route *routes, unsigned n_routes)
    HPS_MUST_CHECK;
/* For struct hps_grpc_observer. Unknown paths count as method "unknown". */
void hps_rpc_metrics_end(void *rpc, struct hps_grpc_call *call, int grpc_code,
                         uint64_t duration_us);

#endif
