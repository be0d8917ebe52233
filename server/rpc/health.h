/* SPDX-License-Identifier: Apache-2.0
 *
 * grpc.health.v1: SERVING while the server is ready, for "" (the server) and for each service by
 * name; otherwise NOT_SERVING, also during a drain. Set and get: any thread. Calls: the loop thread
 * of their connection.
 */
#ifndef HPS_SERVER_RPC_HEALTH_H
#define HPS_SERVER_RPC_HEALTH_H

#include "net/grpc.h"

struct hps_health_service;

/* names: the services with a status, borrowed. NULL: out of memory. */
struct hps_health_service *hps_health_service_new(const char *const *names, unsigned n_names);
void hps_health_service_free(struct hps_health_service *service); /* no call may be open */
const struct hps_grpc_service *hps_health_service_grpc(const struct hps_health_service *service);
/* Set the status, and notify watchers of a change. Any thread. */
void hps_health_service_set(struct hps_health_service *service, bool serving);
bool hps_health_service_get(const struct hps_health_service *service);
/* The server drains: end every current and later Watch with UNAVAILABLE. Any thread. */
void hps_health_service_close(struct hps_health_service *service);

#endif
