/* SPDX-License-Identifier: Apache-2.0
 *
 * Replies to a lookup that is done: one message, or a stream with few messages queued at a time. If
 * it takes long to encode the message, a worker does it. On the loop thread, except on_worker.
 */
#include <inttypes.h>

#include "server/lookup/internal.h"

#include "base/clock.h"

enum {
    STREAM_QUEUED_LOW = 2 * HPS_STREAM_MESSAGE_BYTES_MAX,
    ENCODE_HERE_NS_MAX = 50 * 1000 /* on the loop thread; a worker encodes what takes longer */
};

static void count_answer(struct request *request)
{
    const struct hps_lookup *lookup = &request->lookup;
    struct hps_slow_request *slow = &request->slow;

    for (uint32_t i = 0; i < lookup->n_parts; i++) {
        slow->n_unique += lookup->parts[i].n_unique;
        slow->n_defaulted += lookup->parts[i].n_defaulted;
        slow->n_unknown += lookup->parts[i].n_unknown;
    }
}

static void finish_ok(struct request *request)
{
    request->call.code = 0;
    hps_grpc_call_finish(request->call.grpc, 0, NULL);
}

/* The client does not wait for the rest. The call has ended, or its deadline ends it shortly, so no
 * error is needed. Reads the clock, because encoding a message takes a while. */
static bool is_late(const struct request *request)
{
    uint64_t deadline_us = request->lookup.deadline_us;

    return hps_grpc_call_cancelled(request->call.grpc) ||
           (deadline_us != 0 && hps_clock_us() >= deadline_us);
}

/* Sends messages of the stream until enough is queued; on_drained continues. */
static void send_messages(struct request *request)
{
    while (!request->call.closed && request->call.code < 0 && !is_late(request) &&
           hps_grpc_call_queued(request->call.grpc) < STREAM_QUEUED_LOW) {
        if (hps_stream_done(request->reply.stream)) {
            finish_ok(request);
            return;
        }
        struct hps_encoded encoded;
        hps_status status = hps_stream_next(request->reply.stream, &encoded);
        if (status != HPS_OK) {
            struct hps_error err;
            hps_error_set(&err, status, "no memory for a message of the stream");
            request_fail(request, &err);
            return;
        }
        hps_grpc_call_send(request->call.grpc, encoded.slices, encoded.n_slices);
    }
}

/* Sending may call on_drained, which must not send out of order. */
void request_pump(struct request *request)
{
    HPS_ASSERT(request->n_turns > 0 && request->reply.stream != NULL);
    if (!request->reply.pumping) {
        request->reply.pumping = true;
        send_messages(request);
        request->reply.pumping = false;
    }
}

/* ---- one message ----------------------------------------------------------------------------- */

/* Encodes the reply into request->reply.message. Loop or worker thread. */
static hps_status encode(struct request *request, const struct hps_encode_explain *explain,
                         struct hps_error *err)
{
    hps_status status = request->front->encode(
        request->asked, &request->lookup, explain, request->lookup.block,
        request->service->parts.blocks, request->arena, &request->reply.message, err);

    if (status != HPS_OK && err->status == HPS_OK) {
        hps_error_set(err, status, "no memory to encode %" PRIu64 " keys", request->lookup.n_keys);
    }
    return status;
}

static hps_status send_message(struct request *request, struct hps_error *err)
{
    struct hps_encoded *message = &request->reply.message;
    const struct hps_lookup_front *front = request->front;
    hps_status status =
        front->add_headers != NULL ? front->add_headers(request->call.grpc, message) : HPS_OK;

    if (status != HPS_OK) {
        hps_encoded_release(message);
        return hps_error_set(err, status, "no memory for the headers of the reply");
    }
    hps_grpc_call_send(request->call.grpc, message->slices, message->n_slices);
    return HPS_OK;
}

/* The reply is encoded, or *err says why not. */
static void answer(struct request *request, struct hps_error *err)
{
    hps_status status = err->status;

    request->phase = PHASE_REPLY; /* before the call is finished, which may end it at once */
    if (status == HPS_OK && !request->call.streaming) {
        status = send_message(request, err);
    }
    request_unpin(request);
    request->reply.encoded = true;
    hps_stages_enter(&request->stages, HPS_STAGE_SEND);
    if (status != HPS_OK) {
        request_fail(request, err);
    } else if (request->call.streaming) {
        request_pump(request);
    } else {
        request_give_work(request);
        if (request->exchange != NULL) {
            request->call.code = 0;
            exchange_sent(request->exchange);
        } else {
            finish_ok(request);
        }
    }
}

/* ---- on a worker ----------------------------------------------------------------------------- */

static void on_encoded(struct hps_task *task)
{
    struct request *request = HPS_CONTAINER_OF(task, struct request, task);

    request_turn_begin(request);
    HPS_ASSERT(request->phase == PHASE_ENCODE);
    if (!request->call.closed) {
        request_arrive(request);
        answer(request, &request->err);
    } else {
        if (request->err.status == HPS_OK) {
            hps_encoded_release(&request->reply.message);
        }
        request->pool = NULL;
        request->phase = PHASE_ENDED;
    }
    request_turn_end(request);
}

/* Worker thread. */
static void on_worker(struct hps_task *task)
{
    struct request *request = HPS_CONTAINER_OF(task, struct request, task);

    hps_stages_enter(&request->stages, HPS_STAGE_ENCODE);
    request->err.status = HPS_OK;
    if (hps_grpc_call_cancelled(request->call.grpc)) {
        hps_error_set(&request->err, HPS_CANCELLED, "the call ended before its reply");
    } else {
        hps_ignore(encode(request, NULL, &request->err));
    }
    request->task.run = on_encoded;
    hps_stages_enter(&request->stages, HPS_STAGE_LOOP);
    request_to_loop(request, &request->task);
}

static void to_worker(struct request *request, uint64_t cost)
{
    struct hps_pool *workers = request->service->parts.workers;

    if (request_post(request, workers, cost, on_worker) == HPS_OK) {
        request->pool = workers;
        request->phase = PHASE_ENCODE;
    } else {
        request_reject(request, HPS_REJECT_WORKERS, &request->err);
    }
}

/* ---- the reply ------------------------------------------------------------------------------- */

void request_reply(struct request *request)
{
    const struct hps_lookup_front *front = request->front;
    struct hps_lookup *lookup = &request->lookup;
    struct hps_error err = {0};

    HPS_ASSERT(request->phase == PHASE_LOOP);
    HPS_ASSERT(!request->call.closed);
    hps_stages_enter(&request->stages, HPS_STAGE_ENCODE);
    request_name_work(request);
    count_answer(request);
    hps_lookup_release(lookup);
    uint64_t cost = front->encode_cost != NULL ? front->encode_cost(request->asked, lookup) : 0;
    if (cost > ENCODE_HERE_NS_MAX) {
        to_worker(request, cost);
        return;
    }
    const struct hps_encode_explain *explain = request_explain(request);
    if (!request->call.streaming) {
        hps_ignore(encode(request, explain, &err));
    } else if (hps_stream_new(lookup, explain, lookup->block, request->service->parts.blocks,
                              request->arena, &request->reply.stream) != HPS_OK) {
        hps_error_set(&err, HPS_EXHAUSTED, "no memory to encode %" PRIu64 " keys", lookup->n_keys);
    }
    answer(request, &err);
}
