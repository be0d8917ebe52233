/* SPDX-License-Identifier: Apache-2.0
 *
 * hps.v1.ParameterServer/WaitForUpdates. A worker checks a call and begins its wait, which then
 * holds no thread: the stream of the version shows it each new view (hps_updater_wait).
 */
#ifndef HPS_SERVER_MODEL_WAIT_SERVICE_H
#define HPS_SERVER_MODEL_WAIT_SERVICE_H

#include "server/model/service.h"

/* NULL: no memory. Before it is freed: hps_updater_waits_close. */
struct hps_unary_service *hps_wait_service_new(const struct hps_model_service_parts *parts);

#endif
