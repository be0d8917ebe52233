/* SPDX-License-Identifier: Apache-2.0
 *
 * A call with many requests. Each message of the client is a request, which gets a reply or an
 * error before the next message is read. Further messages wait in the flow-control window. On the
 * loop thread of the connection.
 */
#include "base/clock.h"
#include "base/heap.h"
#include "server/lookup/internal.h"

struct exchange {
    struct hps_lookup_service *service;
    const struct hps_lookup_front *front;
    struct hps_grpc_call *call;
    struct request *current;     /* NULL: ready for the next message */
    bool half_closed;            /* the client has sent its last message */
    struct hps_loop_later later; /* checks whether the reply has been sent */
};

/* ---- the end of one lookup ------------------------------------------------------------------- */

/* The reply has been sent, or the call has ended. */
static void end_current(struct exchange *exchange)
{
    struct request *request = exchange->current;

    request_turn_begin(request);
    exchange->current = NULL;
    request->exchange = NULL;
    request_close(request);
    request_turn_end(request);
}

/* The reply has been sent, and no query of the request is left at the gpu. Such a query counts
 * against the connection until it ends, and a call counts one request at a time. */
static bool is_over(const struct exchange *exchange)
{
    const struct request *request = exchange->current;

    return request != NULL && request->phase == PHASE_REPLY && request->gpu.left_version == NULL &&
           hps_grpc_call_queued(exchange->call) == 0;
}

/* Ends the current request if its reply has been sent. Without a current request, resumes reading,
 * or finishes the call after the last message. */
static void go_on(struct exchange *exchange)
{
    struct hps_grpc_call *call = exchange->call;

    if (is_over(exchange)) {
        end_current(exchange);
    }
    if (exchange->current != NULL) {
        return;
    }
    hps_grpc_call_pause(call, false);
    if (exchange->half_closed) {
        hps_grpc_call_finish(call, 0, NULL);
    }
}

static void on_later(void *ctx)
{
    go_on(ctx);
}

void exchange_sent(struct exchange *exchange)
{
    hps_loop_later_set(hps_grpc_call_loop(exchange->call), &exchange->later);
}

void exchange_tell(struct exchange *exchange, const struct request *request,
                   const struct hps_error *err)
{
    exchange->front->tell(exchange->call, request->asked, err);
    exchange_sent(exchange);
}

/* ---- callbacks of the call ------------------------------------------------------------------- */

static struct exchange *exchange_of(struct hps_lookup_service *service,
                                    const struct hps_lookup_front *front,
                                    struct hps_grpc_call *call)
{
    struct exchange *exchange = hps_grpc_call_user(call);

    if (exchange == NULL) {
        exchange = hps_calloc(1, sizeof(*exchange));
        if (exchange != NULL) {
            *exchange = (struct exchange){.service = service, .front = front, .call = call};
            hps_loop_later_init(&exchange->later, on_later, exchange);
            hps_grpc_call_set_user(call, exchange);
        }
    }
    return exchange;
}

void hps_lookup_stream_packed(struct hps_lookup_service *service,
                              const struct hps_lookup_front *front, struct hps_grpc_call *call,
                              const struct hps_grpc_packed *packed)
{
    struct exchange *exchange = exchange_of(service, front, call);
    struct request *request = NULL;
    struct hps_error err;

    if (exchange != NULL) { /* not the start of the call, which may be long ago */
        request = request_new(service, front, call, false, hps_clock_us());
    }
    if (request == NULL) {
        hps_error_set(&err, HPS_NO_MEMORY, "no memory for a request");
        hps_grpc_call_fail(call, &err);
        return;
    }
    HPS_ASSERT(exchange->current == NULL && !exchange->half_closed);
    hps_grpc_call_pause(call, true);
    exchange->current = request;
    request->exchange = exchange;
    if (front->name != NULL && !packed->compressed) {
        request->asked = front->name(packed->data, packed->size, request->arena);
    }
    request_turn_begin(request);
    if (request_take_turn(request)) {
        request_unpack(request, packed);
    }
    request_turn_end(request);
}

void hps_lookup_stream_half_close(struct hps_grpc_call *call)
{
    struct exchange *exchange = hps_grpc_call_user(call);

    if (exchange == NULL) { /* the client sent no request */
        hps_grpc_call_finish(call, 0, NULL);
        return;
    }
    exchange->half_closed = true;
    go_on(exchange);
}

void hps_lookup_stream_drained(struct hps_grpc_call *call)
{
    struct exchange *exchange = hps_grpc_call_user(call);

    if (exchange != NULL) { /* later, because this may run while a reply is being sent */
        exchange_sent(exchange);
    }
}

void hps_lookup_stream_closed(struct hps_grpc_call *call)
{
    struct exchange *exchange = hps_grpc_call_user(call);

    if (exchange == NULL) {
        return;
    }
    hps_grpc_call_set_user(call, NULL);
    hps_loop_later_stop(&exchange->later);
    if (exchange->current != NULL) {
        end_current(exchange);
    }
    hps_free(exchange);
}
