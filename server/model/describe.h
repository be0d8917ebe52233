/* SPDX-License-Identifier: Apache-2.0
 *
 * The reply to GetModel. Any thread that may wait for a lock.
 */
#ifndef HPS_SERVER_MODEL_DESCRIBE_H
#define HPS_SERVER_MODEL_DESCRIBE_H

#include "base/arena.h"
#include "cache/version/models.h"
#include "hps/v1/lookup.pb-c.h"
#include "server/update/updates.h"

/* Fills `reply` with all versions of the model, or with the requested one.
 *
 * owner   the pointers of `reply` are in the arena
 * error   NOT_FOUND: no such model or version; UNAVAILABLE: the model is expected but has no
 *         version yet; EXHAUSTED: the arena is full */
hps_status hps_model_describe(struct hps_models *models, struct hps_updater *updater,
                              const Hps__V1__GetModelRequest *request, struct hps_arena *arena,
                              Hps__V1__GetModelResponse *reply, struct hps_error *err)
    HPS_MUST_CHECK;

#endif
