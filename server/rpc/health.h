/* SPDX-License-Identifier: Apache-2.0
 *
 * grpc.health.v1. The status is SERVING while the server is ready. Otherwise, and during a drain,
 * it is NOT_SERVING. It is the same for the server (the empty service name) and for each service.
 * RPCs are handled on the loop thread of their connection.
 */
#ifndef HPS_SERVER_RPC_HEALTH_H
#define HPS_SERVER_RPC_HEALTH_H

#include "net/grpc.h"

struct hps_health_service;

/* names: the names of the services that clients may query; borrowed. NULL: out of memory. */
struct hps_health_service *hps_health_service_new(const char *const *names, unsigned n_names);
void hps_health_service_free(struct hps_health_service *service); /* no call may be open */
const struct hps_grpc_service *hps_health_service_grpc(const struct hps_health_service *service);
/* Set the status. If it changes, clients with a Watch call are notified. Any thread. */
void hps_health_service_set(struct hps_health_service *service, bool serving);
/* Whether the status is SERVING. Any thread. */
bool hps_health_service_get(const struct hps_health_service *service);
/* For a drain: end every Watch call, now open or later, with UNAVAILABLE. Any thread. */
void hps_health_service_close(struct hps_health_service *service);

#endif
