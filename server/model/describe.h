/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes the reply to GetModel. Any thread that may wait for a lock.
 */
#ifndef HPS_SERVER_MODEL_DESCRIBE_H
#define HPS_SERVER_MODEL_DESCRIBE_H

#include "base/arena.h"
#include "cache/version/models.h"
#include "hps/v1/lookup.pb-c.h"
#include "server/update/updates.h"

/* Fills `reply` with the requested version of the model, or with all versions if the request names
 * none. updater: NULL if versions take no updates.
 *
 * owner   the pointers in `reply` point into the arena
 * error   NOT_FOUND: no such model or version; UNAVAILABLE: no version can serve yet, because the
 *         model is loading or its load failed; EXHAUSTED: the arena is full */
hps_status hps_model_describe(struct hps_models *models, struct hps_updater *updater,
                              const Hps__V1__GetModelRequest *request, struct hps_arena *arena,
                              Hps__V1__GetModelResponse *reply, struct hps_error *err)
    HPS_MUST_CHECK;

#endif
