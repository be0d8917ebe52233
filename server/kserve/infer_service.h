/* SPDX-License-Identifier: Apache-2.0
 *
 * ModelInfer and ModelStreamInfer of KServe v2: the lookups of server/lookup in KServe's messages.
 * The other methods of the service are in service.h.
 */
#ifndef HPS_SERVER_KSERVE_INFER_SERVICE_H
#define HPS_SERVER_KSERVE_INFER_SERVICE_H

#include "net/grpc.h"
#include "server/lookup/service.h"

/* The methods over gRPC, for hps_grpc_server_add, which borrows the result. `lookup` is borrowed
 * for the life of the result. */
struct hps_grpc_service hps_kserve_infer_grpc(struct hps_lookup_service *lookup);
/* The routes over HTTP/1.1, for hps_grpc_server_add_http with `lookup` as ctx. */
const struct hps_http_route *hps_kserve_infer_routes(unsigned *out_n);

#endif
