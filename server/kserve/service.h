/* SPDX-License-Identifier: Apache-2.0
 *
 * inference.GRPCInferenceService without ModelInfer: server and model metadata, configuration,
 * statistics, and Triton's repository for the loads and unloads of the catalog. Over gRPC, and over
 * HTTP/1.1 as JSON. Calls run on the loop thread of their connection; workers build larger replies,
 * and the admin pool does loads and unloads.
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

/* Returns NULL if there is no memory. */
struct hps_unary_service *hps_kserve_service_new(const struct hps_kserve_parts *parts);
/* The same methods as routes of HTTP/1.1, for hps_grpc_server_add_http with `service` as ctx.
 *
 * owner   the caller, hps_free; NULL: no memory */
struct hps_http_route *hps_kserve_service_routes(const struct hps_unary_service *service,
                                                 unsigned *out_n);

#endif
