/* SPDX-License-Identifier: Apache-2.0
 *
 * The methods of op.h over HTTP/1.1. A request is read from the path and the body; replies are JSON
 * in Triton's form. Loop thread of the connection, except kserve_op_read_http.
 */
#ifndef HPS_SERVER_KSERVE_HTTP_H
#define HPS_SERVER_KSERVE_HTTP_H

#include "net/grpc.h"
#include "server/kserve/op.h"

/* How the reply message of a method becomes an HTTP response. */
enum kserve_form {
    KSERVE_FORM_MESSAGE, /* the body is the whole message, as an object */
    KSERVE_FORM_CONFIG,  /* the body is the value of the message's only field */
    KSERVE_FORM_LIST,    /* the body is an array: the items of the message's only field */
    /* The message's only field is a bool: status 200 if true, else 400. The body is empty, except
     * for an error object if a model is not ready. */
    KSERVE_FORM_READY,
    KSERVE_FORM_NOTHING /* status 200 without a body */
};

struct kserve_route {
    const char *verb;
    const char *pattern; /* of the path; the first "{}" is a model, the second a version */
    const char *method;  /* name of the gRPC method, such as "ModelMetadata" */
    enum kserve_form form;
};

/* All routes. shape: [*out_n], static */
const struct kserve_route *kserve_routes(size_t *out_n);
/* The route of a call; each call has one. */
const struct kserve_route *kserve_route_of(const struct hps_grpc_call *call);

/* Makes op->request, a message of `type` in the arena of `op`, from the path and body[size]. The
 * body may be empty. After an error op->error is set. Any thread that has the call.
 *
 * error   INVALID: the body is malformed; EXHAUSTED: the arena is full */
hps_status kserve_op_read_http(struct hps_unary *op, const ProtobufCMessageDescriptor *type,
                               const uint8_t *body, size_t size) HPS_MUST_CHECK;
/* Sends op->reply in the form of the call's route, and finishes the call. */
void kserve_op_answer_http(struct hps_unary *op);

#endif
