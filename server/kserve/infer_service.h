/* SPDX-License-Identifier: Apache-2.0
 *
 * ModelInfer and ModelStreamInfer of KServe v2: the look-ups of server/lookup, in other bytes.
 * What else the service has is in service.h.
 */
#ifndef HPS_SERVER_KSERVE_INFER_SERVICE_H
#define HPS_SERVER_KSERVE_INFER_SERVICE_H

#include "net/grpc.h"
#include "server/lookup/service.h"

/* The methods over gRPC, for hps_grpc_server_add, which borrows what is returned; `lookup` is
 * borrowed for its life. */
struct hps_grpc_service hps_kserve_infer_grpc(struct hps_lookup_service *lookup);
/* Its routes over HTTP/1.1 are added to the server. NO_MEMORY */
hps_status hps_kserve_infer_http(struct hps_grpc_server *server, struct hps_lookup_service *lookup,
                                 uint32_t listener_mask) HPS_MUST_CHECK;

#endif
