/* SPDX-License-Identifier: Apache-2.0
 *
 * grpc.health.v1: SERVING while the server is ready, for "" (the server) and for each of its
 * services by name; NOT_SERVING otherwise, also while it drains. The status: any thread; calls: the
 * loop thread of their connection.
 */
#ifndef HPS_SERVER_RPC_HEALTH_H
#define HPS_SERVER_RPC_HEALTH_H

#include "net/grpc.h"

struct hps_health_service;

/* names: the services that may be asked for, borrowed. NULL: no memory. */
struct hps_health_service *hps_health_service_new(const char *const *names, unsigned n_names);
void hps_health_service_free(struct hps_health_service *service); /* no call may be left */
const struct hps_grpc_service *hps_health_service_grpc(const struct hps_health_service *service);
/* Set the status, and tell watchers if it is a change. Any thread. */
void hps_health_service_set(struct hps_health_service *service, bool serving);
bool hps_health_service_get(const struct hps_health_service *service);
/* End every Watch with UNAVAILABLE, and those that begin later: the server drains. Any thread. */
void hps_health_service_close(struct hps_health_service *service);

#endif
