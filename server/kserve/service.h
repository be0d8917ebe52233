/* SPDX-License-Identifier: Apache-2.0
 *
 * The methods of inference.GRPCInferenceService except ModelInfer and ModelStreamInfer: metadata of
 * server and models, configuration, statistics, and Triton's repository methods, which load and
 * unload models of the catalog. They are served over gRPC, and over HTTP/1.1 with JSON. Calls run
 * on the loop thread of their connection. Workers build larger replies, and the admin pool does
 * loads and unloads.
 */
#ifndef HPS_SERVER_KSERVE_SERVICE_H
#define HPS_SERVER_KSERVE_SERVICE_H

#include "server/catalog/catalog.h"
#include "server/catalog/readiness.h"
#include "server/rpc/unary.h"

struct hps_kserve_parts { /* copied; its pointers are borrowed */
    struct hps_models *models;
    struct hps_catalog *catalog;
    struct hps_readiness *readiness;
    struct hps_audit *audit;
    struct hps_pool *workers;
    struct hps_pool *admin_pool; /* for work that may block */
};

/* The caller frees the service with hps_unary_service_free. NULL: out of memory. */
struct hps_unary_service *hps_kserve_service_new(const struct hps_kserve_parts *parts);
/* The HTTP/1.1 routes of the methods, for hps_grpc_server_add_http with `service` as ctx. NULL: out
 * of memory.
 *
 * shape   [*out_n]
 * owner   the caller, hps_free */
struct hps_http_route *hps_kserve_service_routes(const struct hps_unary_service *service,
                                                 unsigned *out_n);

#endif
