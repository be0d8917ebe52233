/* SPDX-License-Identifier: Apache-2.0
 *
 * Request messages of a server call: they are assembled, inflated and delivered to the service. The
 * bytes that a request holds are charged. Loop thread of the connection.
 *
 * Requests wait in these cases:
 *
 * - A complete unary request waits while its connection is full.
 * - Messages of a client-streaming call wait while the client does not read the replies.
 * - Both wait while the slice of the connection is spent.
 */
#include "net/grpc_internal.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"

/* Queued reply bytes above which messages of a client-streaming call wait. */
enum { STREAMED_QUEUED_BYTES = 64 * 1024 };

/* ---- messages -------------------------------------------------------------------------------- */

static struct hps_grpc_packed pack(const struct hps_grpc_call *call, const uint8_t *data,
                                   size_t size, bool compressed)
{
    return (struct hps_grpc_packed){.data = data != NULL ? data : (const uint8_t *)"",
                                    .size = size,
                                    .size_max = call->request->decoder.size_max,
                                    .compressed = compressed,
                                    .is_http = call->home->is_http,
                                    .is_zlib = call->headers->encoding == GRPC_ZLIB};
}

/* Inflates a compressed message into call->request->plain. False: the call was refused. */
static bool inflate(struct hps_grpc_call *call, const uint8_t **data, size_t *size)
{
    const struct hps_grpc_packed packed = pack(call, *data, *size, true);
    struct hps_error err;

    hps_buf_fini(&call->request->plain);
    hps_status status =
        hps_grpc_unpack(&packed, packed.size_max, &call->request->plain, data, size, &err);
    if (status == HPS_EXHAUSTED) {
        hps_grpc_call_fail_too_large(call, &err);
    } else if (status != HPS_OK) {
        hps_grpc_call_fail(call, &err);
    }
    return status == HPS_OK;
}

/* Whether the service gets the message as it came, or it is not compressed, or could be inflated.
 * False: the call was refused. */
static bool may_deliver(struct hps_grpc_call *call, bool compressed, const uint8_t **data,
                        size_t *size)
{
    return call->entry->method->on_packed != NULL || !compressed || inflate(call, data, size);
}

static void deliver(struct hps_grpc_call *call, const uint8_t *data, size_t size, bool compressed)
{
    const struct hps_grpc_method *method = call->entry->method;
    const struct hps_grpc_packed packed = pack(call, data, size, compressed);

    HPS_ASSERT(!call->delivering && !grpc_call_is_finished(call));
    call->delivered = true;
    call->delivering = true;
    call->keep = false;
    if (method->on_packed != NULL) {
        method->on_packed(call, &packed);
    } else {
        method->on_message(call, packed.data, packed.size);
    }
    call->delivering = false;
}

/* Inflates the message only now, because a held request of a few KB may inflate to many MB. */
void grpc_call_dispatch(struct hps_grpc_call *call)
{
    const uint8_t *data = call->request->message;
    size_t size = call->request->message_size;

    hps_grpc_call_ref(call);
    if (may_deliver(call, call->request->compressed, &data, &size)) {
        grpc_call_request_set(call, GRPC_REQUEST_DISPATCHED);
        deliver(call, data, size, call->request->compressed);
    }
    if (!call->keep) {
        hps_grpc_decoder_fini(&call->request->decoder);
        hps_buf_fini(&call->request->plain);
    }
    if (!call->keep && call->conn != NULL) {
        grpc_call_count_less(call, call->headers->fields.bytes.capacity);
    } else if (call->conn != NULL) {
        grpc_conn_see(call->conn, hps_clock_us()); /* the service may have parsed it already */
    }
    HPS_DEBUG_SANE(grpc_call_sane(call));
    hps_grpc_call_unref(call);
}

/* Streaming: delivers one message. If the service keeps the message, moves its buffer out of the
 * decoder. */
static void deliver_streamed(struct hps_grpc_call *call, const uint8_t *data, size_t size,
                             bool compressed)
{
    if (call->entry->method->on_packed != NULL && call->request->kept_spare == NULL) {
        call->request->kept_spare = hps_calloc(1, sizeof *call->request->kept_spare);
        if (call->request->kept_spare == NULL) {
            grpc_call_refuse(call, HPS_NO_MEMORY, "no memory for a request message");
            return;
        }
    }
    deliver(call, data, size, compressed);
    if (call->conn != NULL) {
        grpc_conn_see(call->conn, hps_clock_us());
    }
    if (call->keep) {
        struct hps_buf *owner = &call->request->decoder.body;
        struct grpc_kept *kept = call->request->kept_spare;
        call->request->kept_spare = NULL;
        kept->body = *owner;
        call->request->kept_bytes += owner->size;
        kept->next = call->request->kept;
        call->request->kept = kept;
        hps_buf_init(owner, 0);
    }
    if (call->request->phase == GRPC_REQUEST_DROPPED) {
        grpc_call_drop_request(call); /* the service ended the call during the callback */
    }
}

static void message_complete(struct hps_grpc_call *call, const struct hps_grpc_message *message)
{
    const uint8_t *data = message->data;
    size_t size = message->size;

    if (message->compressed && call->headers->encoding == GRPC_IDENTITY) {
        grpc_call_refuse(call, HPS_INTERNAL, "a compressed message without grpc-encoding");
        return;
    }
    if (!call->entry->method->client_streaming) {
        grpc_call_request_set(call, GRPC_REQUEST_WHOLE);
        call->request->compressed = message->compressed;
        call->request->message = data;
        call->request->message_size = size;
    } else if (may_deliver(call, message->compressed, &data, &size)) {
        deliver_streamed(call, data, size, message->compressed);
    }
}

/* Whether further messages of a client-streaming call must wait: the service has paused the call,
 * the client does not read the replies, or the slice is spent. */
static bool must_wait(const struct hps_grpc_call *call)
{
    return call->entry->method->client_streaming && !grpc_call_is_finished(call) &&
           (call->request->paused || call->stream->queued > STREAMED_QUEUED_BYTES ||
            grpc_conn_is_spent(call->conn));
}

/* Returns the number of bytes that were processed. The rest must wait. */
static size_t feed(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    size_t taken = 0;

    while (taken < size && !grpc_call_is_finished(call) && !must_wait(call)) {
        struct hps_grpc_message message;
        struct hps_error err;
        bool complete;
        size_t used;

        if (call->request->phase == GRPC_REQUEST_WHOLE) {
            grpc_call_refuse(call, HPS_UNIMPLEMENTED, "%s takes one message, the client sent more",
                             call->entry->method->path);
            break;
        }
        hps_status status = hps_grpc_decoder_feed(&call->request->decoder, data + taken,
                                                  size - taken, &used, &message, &complete, &err);
        if (status == HPS_EXHAUSTED) {
            hps_grpc_call_fail_too_large(call, &err);
            break;
        }
        if (status != HPS_OK) {
            hps_grpc_call_fail(call, &err);
            break;
        }
        taken += used;
        if (complete) {
            message_complete(call, &message);
        }
    }
    return grpc_call_is_finished(call) ? size : taken;
}

void grpc_call_check_bytes(struct hps_grpc_call *call)
{
    size_t held = grpc_call_held_bytes(call);
    size_t bytes = grpc_call_charged_bytes(held);
    size_t more = bytes - call->request->counted;
    struct hps_error err;

    if (bytes <= call->request->counted) {
        grpc_call_count_less(call, held);
    } else if (hps_charge_grow(&call->charge, HPS_LIMIT_REQUESTS, more, &err) == HPS_OK) {
        call->request->counted = bytes;
    } else { /* for the requests that come next */
        grpc_press(call, GRPC_CUT_SENDERS,
                   hps_charge_short_of(&call->charge, HPS_LIMIT_REQUESTS, more));
        grpc_call_refuse(call, HPS_EXHAUSTED, "%s", err.text);
    }
}

/* Stashes the bytes that were not processed. `data` may be the stash itself. Then the processed
 * bytes stay at its start until they are as many as the rest, which is then moved to a new buffer.
 * So each byte is moved about once, however many messages wait, and the stash takes little more
 * memory than is charged. */
static hps_status put_aside(struct hps_grpc_call *call, const uint8_t *data, size_t size,
                            size_t taken)
{
    struct hps_buf *stash = &call->request->stash;
    size_t all_taken = call->request->stash_taken + taken;

    if (stash->size == 0) {
        return hps_buf_append(stash, data + taken, size - taken);
    }
    HPS_ASSERT(data == stash->data + call->request->stash_taken);
    if (all_taken < size - taken) {
        call->request->stash_taken = all_taken;
        return HPS_OK;
    }
    struct hps_buf rest;
    hps_buf_init(&rest, stash->size_max);
    hps_status status = hps_buf_append(&rest, data + taken, size - taken);
    if (status == HPS_OK) {
        hps_buf_fini(stash);
        *stash = rest;
        call->request->stash_taken = 0;
    }
    return status;
}

/* Processes `data`, stashes the rest, and returns processed bytes to the flow-control window.
 * False: the call is closed. */
static bool take_in(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    hps_grpc_call_ref(call);
    size_t taken = feed(call, data, size);
    bool gone = call->conn == NULL;
    if (!gone && !grpc_call_is_finished(call) && put_aside(call, data, size, taken) != HPS_OK) {
        grpc_call_refuse(call, HPS_NO_MEMORY, "no memory for a request message");
    } else if (!gone && taken < size && grpc_conn_is_spent(call->conn)) {
        call->conn->stashed = true;
        grpc_conn_resume(call->conn);
    }
    if (!gone && !grpc_call_is_finished(call)) {
        grpc_call_check_bytes(call);
    }
    if (!gone && grpc_call_is_finished(call)) {
        hps_http_consume(call->stream, size);
    } else if (!gone && grpc_conn_is_full(call->conn)) {
        call->request->unconsumed += taken;
        call->conn->withheld = true;
    } else if (!gone) {
        hps_http_consume(call->stream, taken);
    }
    hps_grpc_call_unref(call);
    return !gone;
}

void grpc_call_data(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    if (grpc_call_is_finished(call) || call->request->phase == GRPC_REQUEST_HEADERS) {
        hps_http_consume(call->stream, size); /* HEADERS: they were malformed, a reset is queued */
    } else if (call->request->stash.size == 0) {
        if (take_in(call, data, size) && call->request->phase != GRPC_REQUEST_WHOLE) {
            /* A WHOLE request is checked when it is dispatched or held. */
            HPS_DEBUG_SANE(grpc_call_sane(call));
        }
    } else if (hps_buf_append(&call->request->stash, data, size) != HPS_OK) {
        grpc_call_refuse(call, HPS_NO_MEMORY, "no memory for a request message");
    } else {
        grpc_call_check_bytes(call);
        HPS_DEBUG_SANE(grpc_call_sane(call));
    }
}

static void take_in_stash(struct hps_grpc_call *call)
{
    const struct hps_buf *stash = &call->request->stash; /* survives the delivery of a message */
    size_t from = call->request->stash_taken;

    if (take_in(call, stash->data + from, stash->size - from) &&
        call->request->phase == GRPC_REQUEST_STASHED && stash->size == 0) {
        grpc_call_end(call);
    }
}

void grpc_call_resume(struct hps_grpc_call *call)
{
    if (call->request->stash.size == 0 || grpc_call_is_finished(call)) {
        return;
    }
    if (!must_wait(call)) {
        take_in_stash(call);
    } else if (call->request->paused) {
        return;                                  /* hps_grpc_call_pause resumes it */
    } else if (grpc_conn_is_spent(call->conn)) { /* else it is resumed when replies are sent */
        call->conn->stashed = true;
        grpc_conn_resume(call->conn);
    }
}

void grpc_call_sent(struct hps_grpc_call *call)
{
    grpc_call_reply_left(call, call->stream->queued);
    if (call->stream->queued == 0) {
        grpc_pace_rest(&call->reply->pace);
    }
    hps_grpc_call_ref(call);
    grpc_call_resume(call);
    if (!grpc_call_is_finished(call) && call->delivered &&
        call->entry->method->on_drained != NULL && call->stream->queued <= GRPC_DRAINED_BYTES) {
        call->entry->method->on_drained(call);
    }
    HPS_DEBUG_SANE(grpc_call_sane(call));
    hps_grpc_call_unref(call);
}

void grpc_call_dispatch_or_hold(struct hps_grpc_call *call)
{
    bool full = grpc_conn_is_full(call->conn);

    if (full || !TAILQ_EMPTY(&call->conn->held) || grpc_conn_is_spent(call->conn)) {
        grpc_call_request_set(call, GRPC_REQUEST_HELD);
        if (!full) {
            grpc_conn_resume(call->conn);
        } /* else on_released or hps_grpc_call_discharge resumes it */
    } else {
        grpc_call_dispatch(call);
    }
}

void grpc_call_end(struct hps_grpc_call *call)
{
    const struct hps_grpc_method *method = call->entry != NULL ? call->entry->method : NULL;

    HPS_ASSERT(method != NULL); /* else the headers were refused */
    if (call->request->stash.size > 0) {
        grpc_call_request_set(call, GRPC_REQUEST_STASHED);
    } else if (!hps_grpc_decoder_idle(&call->request->decoder)) {
        grpc_call_refuse(call, HPS_INTERNAL, "the request ends within a message");
    } else if (method->client_streaming) {
        /* Frees the last message, unless the service keeps it, because the call may last long. */
        grpc_call_request_set(call, GRPC_REQUEST_DISPATCHED);
        call->delivered = true;
        hps_grpc_decoder_fini(&call->request->decoder);
        grpc_call_count_less(call, grpc_call_held_bytes(call));
        if (method->on_half_close != NULL) {
            hps_grpc_call_ref(call);
            method->on_half_close(call);
            HPS_DEBUG_SANE(grpc_call_sane(call));
            hps_grpc_call_unref(call);
        }
    } else if (call->request->phase == GRPC_REQUEST_WHOLE) {
        grpc_call_dispatch_or_hold(call);
    } else {
        grpc_call_refuse(call, HPS_UNIMPLEMENTED, "%s takes one message, the client sent none",
                         method->path);
    }
}
