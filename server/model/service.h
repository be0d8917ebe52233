/* SPDX-License-Identifier: Apache-2.0
 *
 * The methods of hps.v1.ParameterServer other than lookups. GetModel describes a model's tables and
 * how far the updates of its versions are. A model may have thousands of tables: workers build the
 * replies.
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
/* WaitForUpdates: a worker checks a call and begins its wait, which then holds no thread: the
 * version's update stream shows it each new view (hps_updater_wait). Call hps_updater_waits_close
 * before freeing the service. NULL: no memory. */
struct hps_unary_service *hps_wait_service_new(const struct hps_model_service_parts *parts);

#endif
