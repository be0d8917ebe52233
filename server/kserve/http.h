/* SPDX-License-Identifier: Apache-2.0
 *
 * The methods of op.h over HTTP/1.1: where their requests are in paths and bodies, and their
 * answers as JSON in Triton's form. Loop thread of the connection.
 */
#ifndef HPS_SERVER_KSERVE_HTTP_H
#define HPS_SERVER_KSERVE_HTTP_H

#include "net/grpc.h"
#include "server/kserve/op.h"

/* What of an answer is sent. */
enum kserve_form {
    KSERVE_FORM_MESSAGE, /* all of it, as one object */
    KSERVE_FORM_CONFIG,  /* what its only field has */
    KSERVE_FORM_LIST,    /* the items of its only field, as an array */
    KSERVE_FORM_READY,   /* whether its only field is true: 200 or 400, and no body */
    KSERVE_FORM_NOTHING  /* that it is there: 200, and no body */
};

struct kserve_route {
    const char *verb;
    const char *pattern;   /* of its "{}" the first is a model, the second a version */
    const char *method;    /* "ModelMetadata" */
    enum kserve_form form; /* of what is built */
};

/* All of them. */
const struct kserve_route *kserve_routes(size_t *out_n);
const struct kserve_route *kserve_route_of(const struct hps_grpc_call *call);

/* Make the request of op->method, in its arena, from the path and the body, which may be empty.
 *
 * error   INVALID: the body; EXHAUSTED
 */
hps_status kserve_op_read_http(struct hps_unary *op, const ProtobufCMessageDescriptor *type,
                               const uint8_t *body, size_t size) HPS_MUST_CHECK;
/* Send op->reply, and finish the call. */
void kserve_op_answer_http(struct hps_unary *op);

#endif
