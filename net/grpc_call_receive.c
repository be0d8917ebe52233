/* SPDX-License-Identifier: Apache-2.0
 *
 * The messages of a server call: put together, inflated and delivered to the service. What is under
 * way is counted; a client that asks on without reading the answers waits, and so does a whole
 * request while the bytes of other replies are still to go. Loop thread of the connection.
 */
#include "net/grpc_internal.h"

#include "base/assert.h"
#include "base/heap.h"
#include "net/gzip.h"

enum {
    SMALL_REQUEST_BYTES = 64 * 1024,   /* goes on however much others have sent */
    STREAMED_QUEUED_BYTES = 64 * 1024, /* answers beyond which a client's messages wait */
};

/* ---- what waits, and what it takes ----------------------------------------------------------- */

void grpc_call_count_bytes(struct hps_grpc_call *call, size_t held)
{
    atomic_fetch_add_explicit(&call->grpc_loop->server->request_bytes, held - call->counted,
                              memory_order_relaxed);
    call->conn->request_bytes += held - call->counted;
    call->counted = held;
}

void grpc_call_unhold(struct hps_grpc_call *call)
{
    struct grpc_conn *conn = call->conn;
    struct hps_grpc_call *last = NULL;

    if (!call->held) {
        return;
    }
    call->held = false;
    for (struct hps_grpc_call **at = &conn->held_head; *at != NULL; at = &(*at)->held_next) {
        if (*at == call) {
            *at = call->held_next;
            if (conn->held_tail == call) {
                conn->held_tail = last;
            }
            return;
        }
        last = *at;
    }
}

/* ---- messages -------------------------------------------------------------------------------- */

static void deliver(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    call->delivered = true;
    call->entry->method->on_message(call, data != NULL ? data : (const uint8_t *)"", size);
}

/* The plain bytes of a message that came compressed, in call->plain. False: refused. */
static bool inflate(struct hps_grpc_call *call, const uint8_t **data, size_t *size)
{
    struct hps_error err;

    hps_buf_fini(&call->plain);
    hps_buf_init(&call->plain, call->decoder.size_max);
    hps_status status = hps_gzip_inflate(*data, *size, &call->plain, &err);
    if (status == HPS_EXHAUSTED) {
        grpc_call_refuse(call, status, "message of more than %zu bytes when inflated, the limit",
                         call->decoder.size_max);
    } else if (status != HPS_OK) {
        grpc_call_refuse(call, status == HPS_NO_MEMORY ? status : HPS_INTERNAL, "gzip: %s",
                         err.text);
    }
    *data = call->plain.data;
    *size = call->plain.size;
    return status == HPS_OK;
}

/* Inflated only now: a few KB that wait may be many MB. */
void grpc_call_dispatch(struct hps_grpc_call *call)
{
    const uint8_t *data = call->message;
    size_t size = call->message_size;

    hps_grpc_call_ref(call);
    grpc_call_count_bytes(call, 0);
    if (!call->compressed || inflate(call, &data, &size)) {
        deliver(call, data, size);
    }
    if (!call->keep) {
        hps_grpc_decoder_fini(&call->decoder);
        hps_buf_fini(&call->plain);
    }
    hps_grpc_call_unref(call);
}

/* Streaming: one message now. What the service wants to keep is moved out of the decoder's way. */
static void deliver_streamed(struct hps_grpc_call *call, struct hps_buf *owner, const uint8_t *data,
                             size_t size)
{
    if (call->kept_spare == NULL) {
        call->kept_spare = hps_calloc(1, sizeof *call->kept_spare);
        if (call->kept_spare == NULL) {
            grpc_call_refuse(call, HPS_NO_MEMORY, "no memory for a request message");
            return;
        }
    }
    call->keep = false;
    deliver(call, data, size);
    if (call->keep) {
        struct grpc_kept *kept = call->kept_spare;
        call->kept_spare = NULL;
        kept->body = *owner;
        kept->next = call->kept;
        call->kept = kept;
        hps_buf_init(owner, 0);
    }
}

static void message_complete(struct hps_grpc_call *call, const struct hps_grpc_message *message)
{
    const uint8_t *data = message->data;
    size_t size = message->size;

    if (message->compressed && call->encoding != GRPC_GZIP) {
        grpc_call_refuse(call, HPS_INTERNAL, "a compressed message without grpc-encoding");
        return;
    }
    if (!call->entry->method->client_streaming) {
        call->got_message = true;
        call->compressed = message->compressed;
        call->message = data;
        call->message_size = size;
    } else if (!message->compressed) {
        deliver_streamed(call, &call->decoder.body, data, size);
    } else if (inflate(call, &data, &size)) {
        deliver_streamed(call, &call->plain, data, size);
    }
}

/* A client that asks on while it does not read the answers has to wait with its messages. */
static bool must_wait(const struct hps_grpc_call *call)
{
    return call->entry->method->client_streaming && !call->finished &&
           hps_http2_stream_queued(call->stream) > STREAMED_QUEUED_BYTES;
}

/* Returns how much was taken; the rest must wait. */
static size_t feed(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    size_t taken = 0;

    while (taken < size && !call->finished && !must_wait(call)) {
        struct hps_grpc_message message;
        struct hps_error err;
        bool complete;
        size_t used;

        if (call->got_message) {
            grpc_call_refuse(call, HPS_UNIMPLEMENTED, "%s takes one message, the client sent more",
                             call->entry->method->path);
            break;
        }
        hps_status status = hps_grpc_decoder_feed(&call->decoder, data + taken, size - taken, &used,
                                                  &message, &complete, &err);
        if (status != HPS_OK) {
            hps_grpc_call_fail(call, &err);
            break;
        }
        taken += used;
        if (complete) {
            message_complete(call, &message);
        }
    }
    return call->finished ? size : taken;
}

/* What it takes to put the request together, and whether that is too much. */
static void check_request_bytes(struct hps_grpc_call *call)
{
    const struct hps_grpc_limits *limits = &call->grpc_loop->limits;
    size_t all_max = limits->request_bytes_all_max;

    grpc_call_count_bytes(call, hps_grpc_decoder_held(&call->decoder) + call->stash.size);
    size_t all =
        atomic_load_explicit(&call->grpc_loop->server->request_bytes, memory_order_relaxed);
    if (call->conn->request_bytes / 8 > limits->request_bytes_max) {
        grpc_call_refuse(call, HPS_EXHAUSTED, "requests of %zu bytes under way on one connection",
                         call->conn->request_bytes);
    } else if (all_max > 0 && all > all_max && call->counted > SMALL_REQUEST_BYTES) {
        grpc_call_refuse(call, HPS_EXHAUSTED, "requests of %zu bytes under way, the limit is %zu",
                         all, all_max);
    }
}

/* Feed `data`, put aside what must wait, give window back for the rest. False: the call is gone. */
static bool take_in(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    hps_grpc_call_ref(call);
    size_t taken = feed(call, data, size);
    bool gone = call->conn == NULL;
    if (!gone && taken < size &&
        hps_buf_append(&call->stash, data + taken, size - taken) != HPS_OK) {
        grpc_call_refuse(call, HPS_NO_MEMORY, "no memory for a request message");
    }
    if (!gone && !call->finished) {
        check_request_bytes(call);
    }
    if (!gone && call->finished) {
        hps_grpc_decoder_fini(&call->decoder);
        hps_buf_fini(&call->stash);
        grpc_call_count_bytes(call, 0);
        hps_http2_consume(call->stream, size);
    } else if (!gone && grpc_conn_is_full(call->conn)) {
        call->unconsumed += taken;
        call->conn->withheld = true;
    } else if (!gone) {
        hps_http2_consume(call->stream, taken);
    }
    hps_grpc_call_unref(call);
    return !gone;
}

void grpc_call_data(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    call->progress_us = hps_loop_now_us(call->loop);
    if (call->finished) {
        hps_grpc_decoder_fini(&call->decoder);
        hps_http2_consume(call->stream, size);
    } else if (call->stash.size == 0) {
        (void)take_in(call, data, size);
    } else if (hps_buf_append(&call->stash, data, size) != HPS_OK) {
        grpc_call_refuse(call, HPS_NO_MEMORY, "no memory for a request message");
    } else {
        check_request_bytes(call);
    }
}

static void take_in_stash(struct hps_grpc_call *call)
{
    struct hps_buf stash = call->stash;

    hps_buf_init(&call->stash, GRPC_WINDOW_BYTES);
    if (take_in(call, stash.data, stash.size) && call->ended && call->stash.size == 0) {
        grpc_call_end(call);
    }
    hps_buf_fini(&stash);
}

void grpc_call_resume(struct hps_grpc_call *call)
{
    if (call->stash.size > 0 && !call->finished && !must_wait(call)) {
        take_in_stash(call);
    }
}

void grpc_call_end(struct hps_grpc_call *call)
{
    struct grpc_conn *conn = call->conn;

    call->ended = true;
    if (call->finished || call->stash.size > 0) {
        return;
    }
    if (!hps_grpc_decoder_idle(&call->decoder)) {
        grpc_call_refuse(call, HPS_INTERNAL, "the request ends within a message");
        return;
    }
    if (call->entry->method->client_streaming) {
        call->delivered = true;
        if (call->entry->method->on_half_close != NULL) {
            call->entry->method->on_half_close(call);
        }
        return;
    }
    if (!call->got_message) {
        grpc_call_refuse(call, HPS_UNIMPLEMENTED, "%s takes one message, the client sent none",
                         call->entry->method->path);
        return;
    }
    if (!grpc_conn_is_full(conn) && conn->held_head == NULL) {
        grpc_call_dispatch(call);
        return;
    }
    call->held = true;
    call->held_next = NULL;
    if (conn->held_tail != NULL) {
        conn->held_tail->held_next = call;
    } else {
        conn->held_head = call;
    }
    conn->held_tail = call;
}
