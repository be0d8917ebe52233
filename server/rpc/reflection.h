/* SPDX-License-Identifier: Apache-2.0
 *
 * grpc.reflection.v1 and v1alpha, which have the same messages. They send the names and descriptors
 * of services to clients that lack the .proto files. RPCs are handled on the loop thread of their
 * connection.
 */
#ifndef HPS_SERVER_RPC_REFLECTION_H
#define HPS_SERVER_RPC_REFLECTION_H

#include "net/grpc.h"

struct hps_reflection_service;

/* names: the names of the services to list; borrowed. NULL: out of memory, or the descriptors that
 * are built into the program cannot be read. */
struct hps_reflection_service *hps_reflection_service_new(const char *const *names,
                                                          unsigned n_names);
void hps_reflection_service_free(struct hps_reflection_service *service);
/* The service, for hps_grpc_server_add. alpha: 0 for v1, 1 for v1alpha */
const struct hps_grpc_service *hps_reflection_service_grpc(
    const struct hps_reflection_service *service, unsigned alpha);

#endif
