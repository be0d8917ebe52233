/* SPDX-License-Identifier: Apache-2.0
 *
 * A call that carries look-ups one after the other: each message of the client is a request of its
 * own, which is answered, or told what was wrong with it, before the next one is taken in. What the
 * client sends meanwhile waits in its window. On the loop thread of the connection.
 */
#include "base/clock.h"
#include "base/heap.h"
#include "server/lookup/internal.h"

struct exchange {
    struct hps_lookup_service *service;
    const struct hps_lookup_front *front;
    struct hps_grpc_call *call;
    struct request *current;     /* NULL: the next message may come */
    bool half_closed;            /* none will */
    struct hps_loop_later later; /* an answer was given: look whether it has left */
};

/* ---- the end of one look-up ------------------------------------------------------------------ */

/* Its answer has left, or its call is over. */
static void end_current(struct exchange *exchange)
{
    struct request *request = exchange->current;

    request_turn_begin(request);
    exchange->current = NULL;
    request->exchange = NULL;
    request_close(request);
    request_turn_end(request);
}

/* The answer has left, and nobody else has the request: one that the gpu was left with goes on
 * counting against the connection until it is back, and a call counts one at a time. */
static bool is_over(const struct exchange *exchange)
{
    const struct request *request = exchange->current;

    return request != NULL && request->phase == PHASE_REPLY && request->gpu.left_version == NULL &&
           hps_grpc_call_queued(exchange->call) == 0;
}

/* Take in the next message, if the one before is over. */
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
    /* It may have been refused while it stood in line: nobody is to call it from there. */
    hps_grpc_call_discharge(exchange->call);
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

    if (exchange != NULL) { /* the call may have begun long ago */
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

    if (exchange == NULL) { /* it sent none */
        hps_grpc_call_finish(call, 0, NULL);
        return;
    }
    exchange->half_closed = true;
    go_on(exchange);
}

void hps_lookup_stream_room(struct hps_grpc_call *call)
{
    struct exchange *exchange = hps_grpc_call_user(call);
    struct request *request = exchange->current;

    request_turn_begin(request);
    request_room_charged(request);
    request_turn_end(request);
}

void hps_lookup_stream_drained(struct hps_grpc_call *call)
{
    struct exchange *exchange = hps_grpc_call_user(call);

    if (exchange != NULL) { /* not at once: it may still be sending */
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
