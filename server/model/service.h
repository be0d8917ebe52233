/* SPDX-License-Identifier: Apache-2.0
 *
 * The methods of hps.v1.ParameterServer other than lookups. GetModel describes the tables of a
 * model and the updates of its versions. A model may have thousands of tables, so workers build the
 * replies.
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

/* Returns NULL if there is no memory. */
struct hps_unary_service *hps_model_service_new(const struct hps_model_service_parts *parts);
/* WaitForUpdates: a worker checks a call and begins its wait. The wait holds no thread: the update
 * stream of the version passes it each new view (hps_updater_wait). Call hps_updater_waits_close
 * before you free the service. NULL: no memory. */
struct hps_unary_service *hps_wait_service_new(const struct hps_model_service_parts *parts);

#endif
