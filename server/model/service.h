/* SPDX-License-Identifier: Apache-2.0
 *
 * hps.v1.ParameterServer/GetModel, beside the look-ups: what of a model can be asked for, and how
 * far the updates of its versions are. A model may have thousands of tables: workers put the
 * answers together.
 */
#ifndef HPS_SERVER_MODEL_SERVICE_H
#define HPS_SERVER_MODEL_SERVICE_H

#include "cache/version/models.h"
#include "server/rpc/unary.h"
#include "server/update/updates.h"

struct hps_model_service_parts { /* copied; what they point to is borrowed */
    struct hps_models *models;
    struct hps_updater *updater; /* NULL: versions take no updates */
    struct hps_pool *workers;
};

/* NULL: no memory. */
struct hps_unary_service *hps_model_service_new(const struct hps_model_service_parts *parts);

#endif
