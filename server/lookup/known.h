/* SPDX-License-Identifier: Apache-2.0
 *
 * Adds the names that do exist to an error about an unknown name, so that a client sees the right
 * spelling. Any thread that holds a reference to the call.
 */
#ifndef HPS_SERVER_LOOKUP_KNOWN_H
#define HPS_SERVER_LOOKUP_KNOWN_H

#include "cache/version/models.h"
#include "server/access/access.h"

/* Appends to the text of `err` the names of the models for which the caller has the role. */
void hps_known_models(struct hps_models *models, const struct hps_grpc_call *call,
                      enum hps_access_role role, struct hps_error *err);
/* Appends to the text of `err` the names of the version's tables, in the model's order. */
void hps_known_tables(const struct hps_version *version, struct hps_error *err);

#endif
