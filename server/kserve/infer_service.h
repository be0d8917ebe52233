/* SPDX-License-Identifier: Apache-2.0
 *
 * ModelInfer and ModelStreamInfer of KServe v2: lookups with KServe's messages. The other methods
 * of the KServe service are in service.h.
 */
#ifndef HPS_SERVER_KSERVE_INFER_SERVICE_H
#define HPS_SERVER_KSERVE_INFER_SERVICE_H

#include "net/grpc.h"
#include "server/lookup/service.h"

/* Both methods over gRPC, for hps_grpc_server_add. `lookup` is borrowed for the life of the result,
 * and hps_grpc_server_add borrows a pointer to the result. */
struct hps_grpc_service hps_kserve_infer_grpc(struct hps_lookup_service *lookup);
/* The routes of ModelInfer over HTTP/1.1, for hps_grpc_server_add_http with the lookup service as
 * ctx. shape: [*out_n], static */
const struct hps_http_route *hps_kserve_infer_routes(unsigned *out_n);

#endif
