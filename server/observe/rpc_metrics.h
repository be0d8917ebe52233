/* SPDX-License-Identifier: Apache-2.0
 *
 * Counts RPCs in rpc_requests_total and rpc_duration_seconds. Pointers to the series of each method
 * are kept, so that a call need not search for the series. Any thread, unless stated otherwise.
 */
#ifndef HPS_SERVER_OBSERVE_RPC_METRICS_H
#define HPS_SERVER_OBSERVE_RPC_METRICS_H

#include "net/grpc.h"
#include "server/observe/metrics.h"

struct hps_rpc_metrics;

/* `metrics` is borrowed until hps_rpc_metrics_free. NULL: out of memory. */
struct hps_rpc_metrics *hps_rpc_metrics_new(struct hps_metrics *metrics);
void hps_rpc_metrics_free(struct hps_rpc_metrics *rpc);
/* Add the methods of a service, whose paths are borrowed. Call it before the first RPC.
 * error   EXHAUSTED: too many methods */
hps_status hps_rpc_metrics_add(struct hps_rpc_metrics *rpc, const struct hps_grpc_service *service)
    HPS_MUST_CHECK;
/* As hps_rpc_metrics_add, for HTTP/1.1 routes. Each pattern counts as one method; routes that
 * differ only in the verb count together. */
hps_status hps_rpc_metrics_add_http(struct hps_rpc_metrics *rpc,
                                    const struct hps_http_route *routes, unsigned n_routes)
    HPS_MUST_CHECK;
/* Count an RPC that has ended. For struct hps_grpc_observer; rpc: the struct hps_rpc_metrics. Paths
 * that were not added count as method "unknown". */
void hps_rpc_metrics_end(void *rpc, struct hps_grpc_call *call, int grpc_code,
                         uint64_t duration_us);

#endif
