/* SPDX-License-Identifier: Apache-2.0
 *
 * The reply of a server call: headers, messages, and the status with the trailers. A refused call
 * gets only headers with the status. Loop thread of the connection.
 */
#include "net/grpc_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/block.h"
#include "base/clock.h"

/* ---- the status ------------------------------------------------------------------------------ */

/* grpc-status, grpc-message and the service's trailers. Codes have the numbers 0 to 16. */
static unsigned list_trailers(struct hps_grpc_call *call, struct hps_http_field *out)
{
    static const char digits[] = "012345678910111213141516";
    unsigned n = 0;
    int code = call->reply->code;

    out[n++] = code < 10 ? HPS_HTTP_FIELD("grpc-status", digits + code, 1)
                         : HPS_HTTP_FIELD("grpc-status", digits + 10 + 2 * (code - 10), 2);
    if (call->reply->status_text.size > 0) {
        out[n++] = HPS_HTTP_FIELD("grpc-message", (const char *)call->reply->status_text.data,
                                  call->reply->status_text.size);
    }
    return n + grpc_fields_list(&call->reply->trailers, out + n, GRPC_FIELDS_MAX);
}

static unsigned list_headers(struct hps_grpc_call *call, struct hps_http_field *out)
{
    unsigned n = 0;

    out[n++] = HPS_HTTP_FIELD_LITERAL(":status", "200");
    out[n++] = HPS_HTTP_FIELD_LITERAL("content-type", "application/grpc");
    if (call->reply->offer_encodings && call->grpc_loop->limits->compression) {
        out[n++] = HPS_HTTP_FIELD_LITERAL("grpc-accept-encoding", "identity,deflate,gzip");
    } else if (call->reply->offer_encodings) {
        out[n++] = HPS_HTTP_FIELD_LITERAL("grpc-accept-encoding", "identity");
    }
    return n + grpc_fields_list(&call->reply->fields, out + n, GRPC_FIELDS_MAX / 2);
}

/* Ends a function that services call. Within on_message and on_packed the invariants are checked
 * later, after the callback. */
static void end_turn(const struct hps_grpc_call *call)
{
    if (!call->delivering) {
        HPS_DEBUG_SANE(grpc_call_sane(call));
    }
}

void hps_grpc_call_abort(struct hps_grpc_call *call)
{
    HPS_ASSERT(hps_loop_is_mine(call->loop));
    grpc_call_reset(call, HPS_HTTP2_CANCEL);
}

void grpc_call_trailers(struct hps_grpc_call *call)
{
    struct hps_http_field fields[HPS_HTTP_FIELDS_MAX];

    if (call->reply->phase != GRPC_REPLY_FINISHED) {
        return; /* no memory for its reset: the connection is being aborted */
    }
    unsigned n = list_trailers(call, fields);
    grpc_call_reply_set(call, GRPC_REPLY_STATUS);
    if (hps_http_trailers(call->stream, fields, n) != HPS_OK) {
        grpc_call_reset(call, HPS_HTTP2_INTERNAL_ERROR);
    }
}

/* Sends a reply that consists of headers only. */
static void send_status_alone(struct hps_grpc_call *call, const struct hps_http_field *fields,
                              unsigned n_fields)
{
    grpc_call_reply_set(call, GRPC_REPLY_STATUS);
    if (hps_http_respond(call->stream, fields, n_fields, true) != HPS_OK) {
        grpc_call_reset(call, HPS_HTTP2_INTERNAL_ERROR);
    }
}

/* The end of a gRPC reply for which the service has sent nothing. */
static void answer_alone(struct hps_grpc_call *call)
{
    struct hps_http_field fields[HPS_HTTP_FIELDS_MAX];
    unsigned n = list_headers(call, fields);

    n += list_trailers(call, fields + n);
    grpc_conn_see(call->conn, hps_clock_us());
    send_status_alone(call, fields, n);
}

void hps_grpc_call_finish(struct hps_grpc_call *call, int grpc_code, const char *message)
{
    HPS_ASSERT(hps_loop_is_mine(call->loop));
    HPS_ASSERT(grpc_code >= 0 && grpc_code <= 16);
    if (grpc_call_is_finished(call)) {
        return;
    }
    call->reply->code = grpc_code;
    if (message != NULL && hps_grpc_message_encode(&call->reply->status_text, message) != HPS_OK) {
        hps_buf_clear(&call->reply->status_text); /* the code is more important than the text */
    }
    if (call->reply->phase == GRPC_REPLY_OPEN) {
        grpc_call_reply_set(call, GRPC_REPLY_FINISHED);
        hps_http_finish(call->stream);
    } else if (call->home->is_http) {
        grpc_http_answer_alone(call, message);
    } else {
        answer_alone(call);
    }
    end_turn(call);
}

void hps_grpc_call_fail(struct hps_grpc_call *call, const struct hps_error *err)
{
    hps_grpc_call_finish(call, hps_status_grpc_code(err->status), err->text);
}

void grpc_call_answer_http(struct hps_grpc_call *call, const char *http_status, hps_status status)
{
    struct hps_http_field fields[] = {HPS_HTTP_FIELD(":status", http_status, strlen(http_status))};

    HPS_ASSERT(call->reply->phase == GRPC_REPLY_NONE);
    call->reply->code = hps_status_grpc_code(status);
    send_status_alone(call, fields, 1);
}

static void refuse(struct hps_grpc_call *call, hps_status status, const char *fmt, va_list args)
{
    char text[480];

    vsnprintf(text, sizeof text, fmt, args);
    hps_grpc_call_finish(call, hps_status_grpc_code(status), text);
}

void grpc_call_refuse(struct hps_grpc_call *call, hps_status status, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    refuse(call, status, fmt, args);
    va_end(args);
}

void grpc_http_refuse(struct hps_grpc_call *call, unsigned http_status, hps_status status,
                      const char *fmt, ...)
{
    va_list args;

    if (call->reply->phase == GRPC_REPLY_NONE) {
        call->reply->http_status = http_status;
        call->reply->bare = false;
    }
    va_start(args, fmt);
    refuse(call, status, fmt, args);
    va_end(args);
}

void hps_grpc_call_fail_too_large(struct hps_grpc_call *call, const struct hps_error *err)
{
    bool is_option = call->entry->method->request_bytes_max == 0;
    bool has_advice = strchr(err->text, ';') != NULL;
    struct hps_error whole;

    (void)hps_error_set(&whole, err->status, "%s%s", err->text,
                        is_option && !has_advice
                            ? "; send less in one request, or raise server.request_bytes_max"
                            : "");
    if (call->home->is_http) {
        grpc_http_refuse(call, 413, whole.status, "%s", whole.text);
    } else {
        hps_grpc_call_fail(call, &whole);
    }
}

void hps_grpc_call_answer_status(struct hps_grpc_call *call, unsigned http_status)
{
    HPS_ASSERT(hps_loop_is_mine(call->loop));
    HPS_ASSERT(http_status >= 200 && http_status <= 599);
    if (call->home->is_http && call->reply->phase == GRPC_REPLY_NONE) {
        call->reply->http_status = http_status;
        call->reply->bare = true;
    }
}

/* ---- messages -------------------------------------------------------------------------------- */

void grpc_call_reply_left(struct hps_grpc_call *call, size_t bytes)
{
    size_t left = bytes > HPS_CALL_MESSAGE_BYTES ? bytes : 0;

    if (left < call->reply->charged) {
        hps_charge_shrink(&call->charge, HPS_LIMIT_REPLIES, call->reply->charged - left);
        call->reply->charged = left;
    }
}

/* Charges `bytes` of the reply before they are queued, unless the service has charged the reply.
 * False: the call was refused, or was finished before. */
static bool charge_reply(struct hps_grpc_call *call, size_t bytes)
{
    struct hps_error err;

    if (grpc_call_is_finished(call)) {
        return false;
    }
    size_t queued = call->stream->queued + bytes;
    bool by_service = atomic_load(&call->charge.held[HPS_LIMIT_REPLIES]) > call->reply->charged;
    if (by_service || queued <= HPS_CALL_MESSAGE_BYTES || queued <= call->reply->charged) {
        return true;
    }
    size_t more = queued - call->reply->charged;
    if (hps_charge_grow(&call->charge, HPS_LIMIT_REPLIES, more, &err) != HPS_OK) {
        hps_grpc_call_fail(call, &err);
        return false;
    }
    call->reply->charged = queued;
    return true;
}

/* Queues the head of the reply. HTTP/1.1: `size` is the size of the body. False: the call has
 * failed. */
static bool open_reply(struct hps_grpc_call *call, size_t size)
{
    struct hps_http_field fields[HPS_HTTP_FIELDS_MAX];
    hps_status status;

    grpc_call_reply_set(call, GRPC_REPLY_OPEN);
    if (call->home->is_http) {
        status = grpc_http_respond(call, size, false);
    } else {
        unsigned n = list_headers(call, fields);
        grpc_conn_see(call->conn, hps_clock_us());
        status = hps_http_respond(call->stream, fields, n, false);
    }
    grpc_call_note_sent(call, status);
    return status == HPS_OK;
}

/* Begins a message of `size` bytes: charges it, and queues the head of the reply before the first
 * one. *out_prefix_size: the bytes of `prefix` that precede the message; HTTP/1.1: none. False: the
 * bytes of the message are not sent. */
static bool begin_message(struct hps_grpc_call *call, size_t size,
                          uint8_t prefix[HPS_GRPC_PREFIX_BYTES], size_t *out_prefix_size)
{
    bool is_http = call->home->is_http;

    HPS_ASSERT(hps_loop_is_mine(call->loop));
    if (!charge_reply(call, size)) {
        return false;
    }
    HPS_ASSERT(!is_http || call->reply->phase == GRPC_REPLY_NONE); /* the body is one message */
    if (call->reply->phase == GRPC_REPLY_NONE && !open_reply(call, size)) {
        return false;
    }
    if (call->stream->queued == 0) {
        call->reply->progress.at_us = hps_loop_now_us(call->loop);
    }
    hps_grpc_prefix_write(prefix, size);
    *out_prefix_size = is_http ? 0 : HPS_GRPC_PREFIX_BYTES;
    return !is_http || (size > 0 && !call->reply->head);
}

void hps_grpc_call_send(struct hps_grpc_call *call, const struct hps_slice *slices,
                        unsigned n_slices)
{
    uint8_t prefix[HPS_GRPC_PREFIX_BYTES];
    size_t prefix_size;
    size_t size = 0;

    for (unsigned i = 0; i < n_slices; i++) {
        size += slices[i].size;
    }
    if (begin_message(call, size, prefix, &prefix_size)) {
        grpc_call_note_sent(call,
                            hps_http_send(call->stream, prefix, prefix_size, slices, n_slices));
    } else {
        for (unsigned i = 0; i < n_slices; i++) {
            hps_block_unref(slices[i].block);
        }
    }
    end_turn(call);
}

void hps_grpc_call_send_copy(struct hps_grpc_call *call, const void *data, size_t size)
{
    uint8_t prefix[HPS_GRPC_PREFIX_BYTES];
    size_t prefix_size;

    if (begin_message(call, size, prefix, &prefix_size)) {
        grpc_call_note_sent(call,
                            hps_http_send_copy(call->stream, prefix, prefix_size, data, size));
    }
    end_turn(call);
}

size_t hps_grpc_call_queued(const struct hps_grpc_call *call)
{
    return call->stream != NULL ? call->stream->queued : 0;
}

/* ---- metadata -------------------------------------------------------------------------------- */

static hps_status add_field(struct grpc_fields *fields, unsigned n_max, const char *name,
                            const void *value, size_t size)
{
    size_t name_size = strlen(name);

    if (fields->n >= n_max || fields->bytes.size + name_size + size > GRPC_FIELD_BYTES_MAX) {
        return HPS_EXHAUSTED;
    }
    return grpc_fields_add(fields, name, name_size, value, size);
}

hps_status hps_grpc_call_add_trailer(struct hps_grpc_call *call, const char *name,
                                     const void *value, size_t size)
{
    return grpc_call_is_finished(call)
               ? HPS_OK
               : add_field(&call->reply->trailers, GRPC_FIELDS_MAX, name, value, size);
}

hps_status hps_grpc_call_add_header(struct hps_grpc_call *call, const char *name, const void *value,
                                    size_t size)
{
    return call->reply->phase != GRPC_REPLY_NONE
               ? HPS_OK
               : add_field(&call->reply->fields, GRPC_FIELDS_MAX / 2, name, value, size);
}
