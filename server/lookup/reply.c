/* SPDX-License-Identifier: Apache-2.0
 *
 * Replies to a lookup that is done: one message, or a stream with few messages queued at a time. On
 * the loop thread.
 */
#include <inttypes.h>

#include "server/lookup/internal.h"

#include "base/clock.h"

enum { STREAM_QUEUED_LOW = 2 * HPS_STREAM_MESSAGE_BYTES_MAX };

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

static hps_status send_whole(struct request *request, const struct hps_encode_explain *explain,
                             struct hps_error *err)
{
    struct hps_encoded encoded;
    hps_status status = request->front->encode(
        request->call.grpc, request->asked, &request->lookup, explain, request->lookup.block,
        request->service->parts.blocks, request->arena, &encoded, err);

    if (status == HPS_OK) {
        hps_grpc_call_send(request->call.grpc, encoded.slices, encoded.n_slices);
    }
    return status;
}

void request_reply(struct request *request)
{
    hps_status status;
    struct hps_error err = {0};

    HPS_ASSERT(request->phase == PHASE_LOOP);
    HPS_ASSERT(!request->call.closed);
    request->phase = PHASE_REPLY; /* before the call is finished, which may end it at once */
    hps_stages_enter(&request->stages, HPS_STAGE_ENCODE);
    request_name_work(request);
    count_answer(request);
    hps_lookup_release(&request->lookup);
    const struct hps_encode_explain *explain = request_explain(request);
    if (request->call.streaming) {
        status =
            hps_stream_new(&request->lookup, explain, request->lookup.block,
                           request->service->parts.blocks, request->arena, &request->reply.stream);
    } else {
        status = send_whole(request, explain, &err);
    }
    request_unpin(request);
    request->reply.encoded = true;
    hps_stages_enter(&request->stages, HPS_STAGE_SEND);
    if (status != HPS_OK) {
        if (err.status == HPS_OK) {
            hps_error_set(&err, status, "no memory to encode %" PRIu64 " keys",
                          request->lookup.n_keys);
        }
        request_fail(request, &err);
    } else if (request->call.streaming) {
        request_pump(request);
    } else if (request->exchange != NULL) {
        request->call.code = 0;
        exchange_sent(request->exchange);
    } else {
        finish_ok(request);
    }
}
