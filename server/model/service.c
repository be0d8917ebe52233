/* SPDX-License-Identifier: Apache-2.0
 *
 * The methods of server/model/service.h. Workers build the replies.
 */
#include "server/model/service.h"

#include "base/assert.h"
#include "server/access/access.h"
#include "server/lookup/known.h"
#include "server/model/describe.h"
#include "server/rpc/message.h"

static void get_model(struct hps_unary *op)
{
    const struct hps_model_service_parts *parts = op->parts;
    const Hps__V1__GetModelRequest *request = (const Hps__V1__GetModelRequest *)op->request;
    Hps__V1__GetModelResponse *reply = hps_unary_alloc(op, 1, sizeof(*reply));
    if (reply == NULL) {
        return;
    }
    if (request->model[0] == '\0') {
        hps_ignore(hps_error_set(&op->error, HPS_INVALID, "model: empty"));
        return;
    }
    hps_status status =
        hps_model_describe(parts->models, parts->updater, request, op->arena, reply, &op->error);
    if (status == HPS_NOT_FOUND && request->version == 0) {
        hps_known_models(parts->models, op->call, HPS_ROLE_READ, &op->error);
    }
    op->reply = &reply->base;
}

static const struct hps_unary_method methods[] = {
    {.path = "/hps.v1.ParameterServer/GetModel",
     .request = &hps__v1__get_model_request__descriptor,
     .work = get_model,
     .place = HPS_UNARY_WORKER,
     .scope = HPS_UNARY_MODEL,
     .roles = HPS_ROLE_READ},
};

struct hps_unary_service *hps_model_service_new(const struct hps_model_service_parts *parts)
{
    HPS_ASSERT(parts->models != NULL);
    const struct hps_unary_options options = {.name = "hps.v1.ParameterServer",
                                              .methods = methods,
                                              .n_methods = sizeof(methods) / sizeof(methods[0]),
                                              .parts = parts,
                                              .parts_bytes = sizeof(*parts),
                                              .workers = parts->workers,
                                              .op_bytes = sizeof(struct hps_unary),
                                              .arena_bytes_max = HPS_MESSAGE_BYTES_MAX};
    return hps_unary_service_new(&options);
}
