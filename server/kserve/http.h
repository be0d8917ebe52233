/* SPDX-License-Identifier: Apache-2.0
 *
 * The methods of op.h over HTTP/1.1. Requests are in paths and bodies; replies are JSON in Triton's
 * form. Loop thread of the connection.
 */
#ifndef HPS_SERVER_KSERVE_HTTP_H
#define HPS_SERVER_KSERVE_HTTP_H

#include "net/grpc.h"
#include "server/kserve/op.h"

/* The part of a reply that is sent. */
enum kserve_form {
    KSERVE_FORM_MESSAGE, /* the whole message, as one object */
    KSERVE_FORM_CONFIG,  /* the value of its only field */
    KSERVE_FORM_LIST,    /* the items of its only field, as an array */
    KSERVE_FORM_READY,   /* 200 or 400, by its only field; with an error if a model is not ready */
    KSERVE_FORM_NOTHING  /* 200 without a body */
};

struct kserve_route {
    const char *verb;
    const char *pattern; /* the first "{}" is a model, the second a version */
    const char *method;  /* "ModelMetadata" */
    enum kserve_form form;
};

/* All routes. */
const struct kserve_route *kserve_routes(size_t *out_n);
const struct kserve_route *kserve_route_of(const struct hps_grpc_call *call);

/* Makes op->request for op->method, in its arena, from the path and the body. The body may be
 * empty.
 *
 * error   INVALID: the body; EXHAUSTED */
hps_status kserve_op_read_http(struct hps_unary *op, const ProtobufCMessageDescriptor *type,
                               const uint8_t *body, size_t size) HPS_MUST_CHECK;
/* Sends op->reply and finishes the call. */
void kserve_op_answer_http(struct hps_unary *op);

#endif
