/* SPDX-License-Identifier: Apache-2.0
 *
 * hps.v1.ParameterServer/WaitForUpdates. A call is unpacked on the loop thread of its connection,
 * checked and begun by a worker, and then holds no thread: the stream of its version shows it what
 * there is (hps_updater_wait). Its loop answers it.
 */
#ifndef HPS_SERVER_MODEL_WAIT_SERVICE_H
#define HPS_SERVER_MODEL_WAIT_SERVICE_H

#include "server/model/service.h"

struct hps_wait_service;

/* NULL: no memory. */
struct hps_wait_service *hps_wait_service_new(const struct hps_model_service_parts *parts);
/* Loops drained, workers stopped. NULL is legal. */
void hps_wait_service_free(struct hps_wait_service *service);
/* For hps_grpc_server_add. */
const struct hps_grpc_service *hps_wait_service_grpc(const struct hps_wait_service *service);

#endif
