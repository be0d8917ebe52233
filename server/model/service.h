/* SPDX-License-Identifier: Apache-2.0
 *
 * The methods of hps.v1.ParameterServer other than lookups: GetModel and WaitForUpdates.
 */
#ifndef HPS_SERVER_MODEL_SERVICE_H
#define HPS_SERVER_MODEL_SERVICE_H

#include "cache/version/models.h"
#include "server/rpc/unary.h"
#include "server/update/updates.h"

struct hps_model_service_parts { /* copied; its pointers are borrowed */
    struct hps_models *models;
    struct hps_updater *updater; /* NULL: versions take no updates */
    struct hps_pool *workers;
};

/* The service of GetModel, which describes the tables of a model and the updates of its versions. A
 * model may have thousands of tables, so workers build the replies. The caller frees the service
 * with hps_unary_service_free. NULL: out of memory. */
struct hps_unary_service *hps_model_service_new(const struct hps_model_service_parts *parts);
/* The service of WaitForUpdates. A worker checks a call and begins its wait. A wait occupies no
 * thread: the update stream of the version passes each of its new views to the wait
 * (hps_updater_wait). At a drain the daemon ends all waits with hps_updater_waits_close. The caller
 * frees the service later, with hps_unary_service_free. NULL: out of memory. */
struct hps_unary_service *hps_wait_service_new(const struct hps_model_service_parts *parts);

#endif
