/* SPDX-License-Identifier: Apache-2.0
 *
 * What there is, for errors of clients that asked for something else: whoever misspelt a name sees
 * the right one. Any thread that has the call.
 */
#ifndef HPS_SERVER_LOOKUP_KNOWN_H
#define HPS_SERVER_LOOKUP_KNOWN_H

#include "cache/version/models.h"
#include "server/access/access.h"

/* Add to the text of `err` which models there are of those for which the call has the role. */
void hps_known_models(struct hps_models *models, const struct hps_grpc_call *call,
                      enum hps_access_role role, struct hps_error *err);
/* ... which tables the version has, in the model's order. */
void hps_known_tables(const struct hps_version *version, struct hps_error *err);

#endif
