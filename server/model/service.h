/* SPDX-License-Identifier: Apache-2.0
 *
 * hps.v1.ParameterServer/GetModel, beside the look-ups: what of a model can be asked for, and how
 * far the updates of its versions are. Calls: the loop thread of their connection; answers are put
 * together by workers.
 */
#ifndef HPS_SERVER_MODEL_SERVICE_H
#define HPS_SERVER_MODEL_SERVICE_H

#include "base/pool.h"
#include "cache/version/models.h"
#include "net/grpc.h"
#include "server/update/updates.h"

struct hps_model_service_parts { /* all borrowed for the life of the service */
    struct hps_models *models;
    struct hps_updater *updater; /* NULL: versions take no updates */
    struct hps_pool *workers;
};

struct hps_model_service;

/* NULL: no memory. */
struct hps_model_service *hps_model_service_new(const struct hps_model_service_parts *parts);
/* Loops drained, workers stopped. NULL is legal. */
void hps_model_service_free(struct hps_model_service *service);
/* For hps_grpc_server_add. */
const struct hps_grpc_service *hps_model_service_grpc(const struct hps_model_service *service);

#endif
