/* SPDX-License-Identifier: Apache-2.0
 *
 * The calls of a gRPC client. A call is sent when the channel has a connection, and ends exactly
 * once. Loop thread of the channel.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "net/grpc_client_internal.h"

enum { MESSAGE_BYTES_MAX = 4096 };

/* ---- the end of a call ----------------------------------------------------------------------- */

void grpc_client_done(struct hps_grpc_client_call *call, int code, const char *message)
{
    struct hps_grpc_channel *channel = call->channel;

    grpc_client_phase_set(call, CLIENT_DONE);
    hps_timer_stop(&call->deadline);
    if (call->stream != NULL) {
        call->stream->user = NULL;
        call->stream = NULL;
    }
    TAILQ_REMOVE(&channel->calls, call, link);
    grpc_channel_keep_spare(channel, &call->decoder.body);
    grpc_channel_enter(channel);
    if (call->events->on_done != NULL) {
        call->events->on_done(call->ctx, code, message);
    }
    grpc_channel_leave(channel);
    hps_buf_fini(&call->request);
    hps_buf_fini(&call->text);
    hps_free(call->path);
    hps_free(call);
}

/* Ends a call at once, and resets its stream if it has one. */
static void call_abort(struct hps_grpc_client_call *call, int code, const char *message)
{
    if (call->stream != NULL) {
        hps_http_reset(call->stream, HPS_HTTP2_CANCEL);
    }
    grpc_client_done(call, code, message);
}

static void on_deadline(void *ctx)
{
    call_abort(ctx, hps_status_grpc_code(HPS_DEADLINE), "deadline exceeded");
}

void hps_grpc_client_cancel(struct hps_grpc_client_call *call)
{
    HPS_ASSERT(hps_loop_is_mine(call->channel->loop));
    call_abort(call, hps_status_grpc_code(HPS_CANCELLED), "cancelled by the caller");
}

/* ---- events of a stream ---------------------------------------------------------------------- */

void grpc_client_header(void *ctx, struct hps_http_stream *stream, const char *name,
                        size_t name_size, const char *value, size_t value_size)
{
    static const char type[] = "application/grpc";
    struct hps_grpc_client_call *call = stream->user;

    (void)ctx;
    if (call == NULL) {
        return;
    }
    if (call->phase == CLIENT_SENT) {
        grpc_client_phase_set(call, CLIENT_ANSWERED);
    }
    if (HPS_HTTP_IS(name, name_size, ":status")) {
        call->http_status = (unsigned)strtoul(value, NULL, 10);
    } else if (HPS_HTTP_IS(name, name_size, "content-type")) {
        call->grpc_type =
            value_size >= sizeof type - 1 && memcmp(value, type, sizeof type - 1) == 0;
    } else if (HPS_HTTP_IS(name, name_size, "grpc-status")) {
        unsigned long code = strtoul(value, NULL, 10);
        call->code = value_size > 0 && code <= 16 ? (int)code : 2;
    } else if (HPS_HTTP_IS(name, name_size, "grpc-message")) {
        hps_buf_clear(&call->text);
        if (hps_grpc_message_decode(&call->text, value, value_size) != HPS_OK) {
            hps_buf_clear(&call->text); /* too long, or no memory: only the code is reported */
        }
    }
}

/* Passes on bytes of a message as they come. False: the call has ended. */
static bool pass_on(struct hps_grpc_client_call *call, struct hps_http_stream *stream,
                    const struct hps_grpc_message *piece)
{
    if (call->decoder.n_prefix < HPS_GRPC_PREFIX_BYTES) {
        return true; /* the size of the message is not complete */
    }
    if (!call->in_message) {
        call->in_message = true;
        call->events->on_begin(call->ctx, call->decoder.size);
    }
    if (piece->size > 0 && stream->user == call) {
        call->events->on_piece(call->ctx, piece->data, piece->size);
    }
    if (stream->user != call) {
        return false;
    }
    call->in_message = !hps_grpc_decoder_idle(&call->decoder);
    return true;
}

/* False: the call has ended, because of an error or in a callback. */
static bool feed(struct hps_grpc_client_call *call, struct hps_http_stream *stream,
                 const uint8_t *data, size_t size)
{
    while (size > 0) {
        struct hps_grpc_message message;
        struct hps_error err;
        bool complete;
        size_t used;
        hps_status status =
            hps_grpc_decoder_feed(&call->decoder, data, size, &used, &message, &complete, &err);
        if (status == HPS_OK && message.compressed && (complete || call->decoder.pass)) {
            status = hps_error_set(&err, HPS_INTERNAL, "compressed reply, none was asked for");
        }
        if (status != HPS_OK) {
            call_abort(call, hps_status_grpc_code(status), err.text);
            return false;
        }
        data += used;
        size -= used;
        if (call->decoder.pass) {
            if (!pass_on(call, stream, &message)) {
                return false;
            }
        } else if (complete && call->events->on_message != NULL) {
            call->events->on_message(call->ctx, message.data, message.size);
            if (stream->user != call) {
                return false;
            }
        }
    }
    return true;
}

void grpc_client_data(void *ctx, struct hps_http_stream *stream, const uint8_t *data, size_t size)
{
    struct client_conn *conn = ctx;
    struct hps_grpc_channel *channel = conn->channel;
    struct hps_grpc_client_call *call = stream->user;

    hps_http_consume(stream, size);
    if (call == NULL || call->http_status != 200 || !call->grpc_type) {
        return;
    }
    if (!call->decoder.pass) {
        grpc_channel_take_spare(channel, &call->decoder.body);
    }
    grpc_channel_enter(channel);
    if (!feed(call, stream, data, size)) {
        stream->user = NULL;
    }
    HPS_DEBUG_SANE(grpc_channel_sane(channel));
    grpc_channel_leave(channel);
}

/* A large reply is received into the buffer in which it is assembled. */
uint8_t *grpc_client_room(void *ctx, struct hps_http_stream *stream, size_t size, size_t *out_room)
{
    struct hps_grpc_client_call *call = stream->user;

    (void)ctx;
    if (call == NULL || !call->decoder.pass) {
        return call == NULL ? NULL : hps_grpc_decoder_room(&call->decoder, size, out_room);
    }
    size_t left = hps_grpc_decoder_left(&call->decoder);
    size = size < left ? size : left;
    return size == 0 ? NULL : call->events->on_room(call->ctx, size, out_room);
}

/* The server refused the call without processing it, for example after GOAWAY. Sends the call
 * again, once, on the next connection. */
static bool send_again(struct hps_grpc_client_call *call)
{
    if (call->again || call->path == NULL || call->phase != CLIENT_SENT) {
        return false;
    }
    call->again = true;
    call->stream = NULL;
    grpc_client_phase_set(call, CLIENT_WAITING);
    grpc_channel_retry(call->channel);
    return true;
}

void grpc_client_stream_closed(void *ctx, struct hps_http_stream *stream, uint32_t error)
{
    struct hps_grpc_client_call *call = stream->user;
    struct client_conn *conn = ctx;
    char text[240];

    if (call == NULL) {
        return;
    }
    if (error == HPS_HTTP2_LOST) {
        const char *hint =
            call->channel->tls != NULL ? "" : ": check that it is hpsd, and whether it needs TLS";
        bool spoke = hps_http_peer_spoke(conn->http);
        snprintf(text, sizeof text, "connection to %.100s lost%s%s", call->channel->address,
                 spoke ? "" : " before it spoke HTTP/2", spoke ? "" : hint);
        grpc_client_done(call, hps_status_grpc_code(HPS_UNAVAILABLE), text);
    } else if (call->code >= 0) {
        if (call->code == 0 && !hps_grpc_decoder_idle(&call->decoder)) {
            grpc_client_done(call, hps_status_grpc_code(HPS_INTERNAL),
                             "the reply ends within a message");
            return;
        }
        if (hps_buf_append(&call->text, "", 1) != HPS_OK) {
            hps_buf_clear(&call->text); /* the code is reported without a text */
        }
        grpc_client_done(call, call->code,
                         call->text.size > 0 ? (const char *)call->text.data : "");
    } else if (error == HPS_HTTP2_CANCEL && call->deadline_us != 0 &&
               hps_clock_us() >= call->deadline_us) {
        grpc_client_done(call, hps_status_grpc_code(HPS_DEADLINE), "deadline exceeded");
    } else if (error == HPS_HTTP2_REFUSED_STREAM && send_again(call)) {
        return;
    } else if (error != HPS_HTTP2_NO_ERROR) {
        snprintf(text, sizeof text, "stream reset with HTTP/2 error %u", error);
        grpc_client_done(call, hps_grpc_code_of_reset(error), text);
    } else {
        snprintf(text, sizeof text, "reply without grpc-status, HTTP status %u", call->http_status);
        grpc_client_done(call, hps_grpc_code_of_http(call->http_status), text);
    }
}

/* ---- starting calls -------------------------------------------------------------------------- */

static hps_status start_stream(struct hps_grpc_client_call *call, const char *path,
                               const void *request, size_t request_size)
{
    struct hps_grpc_channel *channel = call->channel;
    struct hps_http_field fields[10];
    char timeout[HPS_GRPC_TIMEOUT_CHARS];
    uint8_t prefix[HPS_GRPC_PREFIX_BYTES];
    unsigned n = 0;

    fields[n++] = HPS_HTTP_FIELD_LITERAL(":method", "POST");
    if (channel->tls != NULL) {
        fields[n++] = HPS_HTTP_FIELD_LITERAL(":scheme", "https");
    } else {
        fields[n++] = HPS_HTTP_FIELD_LITERAL(":scheme", "http");
    }
    fields[n++] = HPS_HTTP_FIELD(":path", path, strlen(path));
    fields[n++] = HPS_HTTP_FIELD(":authority", channel->authority, strlen(channel->authority));
    fields[n++] = HPS_HTTP_FIELD_LITERAL("te", "trailers");
    fields[n++] = HPS_HTTP_FIELD_LITERAL("content-type", "application/grpc");
    fields[n++] = HPS_HTTP_FIELD_LITERAL("user-agent", "hps-c");
    if (call->deadline_us != 0) {
        uint64_t now_us = hps_clock_us();
        hps_grpc_timeout_format(call->deadline_us > now_us ? call->deadline_us - now_us : 0,
                                timeout);
        fields[n++] = HPS_HTTP_FIELD("grpc-timeout", timeout, strlen(timeout));
    }
    if (channel->authorization != NULL) {
        fields[n++] =
            HPS_HTTP_FIELD("authorization", channel->authorization, strlen(channel->authorization));
    }
    struct hps_http_stream *stream;
    hps_status status = hps_http2_request(channel->current->http, fields, n, call, &stream);
    if (status != HPS_OK) {
        return status;
    }
    hps_grpc_prefix_write(prefix, request_size);
    status = hps_http_send_copy(stream, prefix, sizeof prefix, request, request_size);
    if (status != HPS_OK) {
        stream->user = NULL;
        hps_http_reset(stream, HPS_HTTP2_CANCEL);
        return status;
    }
    hps_http_finish(stream);
    call->stream = stream;
    grpc_client_phase_set(call, CLIENT_SENT);
    return HPS_OK;
}

hps_status grpc_client_send_waiting(struct hps_grpc_client_call *call)
{
    HPS_ASSERT(call->phase == CLIENT_WAITING);
    hps_status status = start_stream(call, call->path, call->request.data, call->request.size);
    if (status == HPS_OK && call->request.size > GRPC_AGAIN_BYTES_MAX) {
        hps_buf_fini(&call->request);
        hps_free(call->path);
        call->path = NULL;
    }
    return status;
}

/* Copies the path and the request, for a call that waits for a connection or may be refused. */
static hps_status remember(struct hps_grpc_client_call *call, const char *path, const void *request,
                           size_t request_size)
{
    call->path = hps_strdup(path);
    if (call->path == NULL) {
        return HPS_NO_MEMORY;
    }
    return request_size > 0 ? hps_buf_append(&call->request, request, request_size) : HPS_OK;
}

hps_status hps_grpc_client_start(struct hps_grpc_channel *channel, const char *path,
                                 const void *request, size_t request_size, uint64_t deadline_us,
                                 const struct hps_grpc_client_events *client_events, void *ctx,
                                 struct hps_grpc_client_call **out_call)
{
    HPS_ASSERT(hps_loop_is_mine(channel->loop));
    HPS_ASSERT(request_size <= UINT32_MAX);
    if (channel->freed) {
        return HPS_CLOSED;
    }
    struct hps_grpc_client_call *call = hps_calloc(1, sizeof *call);
    if (call == NULL) {
        return HPS_NO_MEMORY;
    }
    call->channel = channel;
    call->events = client_events;
    call->ctx = ctx;
    call->deadline_us = deadline_us;
    call->code = -1;
    call->number = channel->n_made++;
    hps_timer_init(&call->deadline, on_deadline, call);
    hps_grpc_decoder_init(&call->decoder, channel->reply_bytes_max, true);
    call->decoder.pass = client_events->on_piece != NULL;
    hps_buf_init(&call->text, MESSAGE_BYTES_MAX);
    hps_buf_init(&call->request, request_size);
    bool now = grpc_channel_is_ready(channel);
    hps_status status = HPS_OK;
    if (!now || request_size <= GRPC_AGAIN_BYTES_MAX) {
        status = remember(call, path, request, request_size);
    }
    if (status == HPS_OK && now) {
        status = start_stream(call, path, request, request_size);
    } else if (status == HPS_OK) {
        grpc_client_phase_set(call, CLIENT_WAITING);
        if (channel->current == NULL) {
            grpc_channel_retry(channel);
        }
    }
    if (status != HPS_OK) {
        hps_buf_fini(&call->request);
        hps_free(call->path);
        hps_free(call);
        return status;
    }
    TAILQ_INSERT_TAIL(&channel->calls, call, link);
    if (deadline_us != 0) {
        hps_timer_set(channel->loop, &call->deadline, deadline_us);
    }
    if (out_call != NULL) {
        *out_call = call;
    }
    HPS_DEBUG_SANE(grpc_client_sane(call));
    HPS_DEBUG_SANE(grpc_channel_sane(channel));
    return HPS_OK;
}
