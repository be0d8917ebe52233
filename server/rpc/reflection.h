/* SPDX-License-Identifier: Apache-2.0
 *
 * grpc.reflection.v1 and v1alpha (the same messages): services and descriptors for clients without
 * the .proto files. Calls: the loop thread of their connection.
 */
#ifndef HPS_SERVER_RPC_REFLECTION_H
#define HPS_SERVER_RPC_REFLECTION_H

#include "net/grpc.h"

struct hps_reflection_service;

/* names: the services to list, borrowed. NULL: out of memory, or unreadable descriptors. */
struct hps_reflection_service *hps_reflection_service_new(const char *const *names,
                                                          unsigned n_names);
void hps_reflection_service_free(struct hps_reflection_service *service);
/* The service of v1 (alpha: 0) or v1alpha (1). */
const struct hps_grpc_service *hps_reflection_service_grpc(
    const struct hps_reflection_service *service, unsigned alpha);

#endif
