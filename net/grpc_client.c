/* SPDX-License-Identifier: Apache-2.0
 *
 * The client side of gRPC: a channel is one connection at a time, made when it is needed and made
 * anew after it was lost or sent away by GOAWAY. Loop thread of the channel.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "net/grpc.h"
#include "net/grpc_frame.h"
#include "net/http2.h"

enum {
    WINDOW_BYTES = 16 * 1024 * 1024,
    CONNECTION_WINDOW_BYTES = 64 * 1024 * 1024,
    FRAME_BYTES_MAX = 1024 * 1024,
    HEADER_BYTES_MAX = 64 * 1024,
    HEADER_FIELDS_MAX = 128,
    SPARES_MAX = 16,                     /* reply buffers kept for the next replies, */
    SPARE_BYTES_MAX = 128 * 1024 * 1024, /* of this size together */
    MESSAGE_BYTES_MAX = 4096,
    AGAIN_BYTES_MAX = 256 * 1024, /* requests up to this are kept for a server that refuses them */
};

#define FIELD(n, v, size)   ((struct hps_http2_field){(n), sizeof(n) - 1, (v), (size)})
#define FIELD_LITERAL(n, v) FIELD(n, v, sizeof(v) - 1)

struct client_conn {
    struct client_conn *next, *prev;
    struct hps_grpc_channel *channel;
    struct hps_http2 *h2;
};

/* The life of a call. Its deadline's timer is armed, if it has one, until DONE. */
enum client_phase {
    CLIENT_NEW,      /* being made */
    CLIENT_WAITING,  /* for a connection; path and request are kept */
    CLIENT_SENT,     /* on its stream; no header of the answer has come */
    CLIENT_ANSWERED, /* the answer's headers have begun to come */
    CLIENT_DONE,     /* the caller is being told; freed then */
    CLIENT_PHASES,
};

struct hps_grpc_client_call {
    struct hps_grpc_client_call *next, *prev;
    struct hps_grpc_channel *channel;
    enum client_phase phase;         /* changed by call_phase_set alone */
    uint64_t number;                 /* in the order in which the channel's calls were made */
    struct hps_http2_stream *stream; /* SENT and ANSWERED */
    const struct hps_grpc_client_events *events;
    void *ctx;
    uint64_t deadline_us;
    struct hps_timer deadline;
    struct hps_grpc_decoder decoder;
    unsigned http_status;
    int code; /* -1: not told */
    bool grpc_type;
    struct hps_buf text; /* decoded grpc-message */
    char *path;          /* while it waits, and while it may have to be sent again */
    struct hps_buf request;
    bool again; /* was refused once */
};

struct hps_grpc_channel {
    struct hps_loop *loop;
    struct hps_http2_shared *shared;
    struct client_conn *current;        /* takes new calls */
    struct client_conn *conns;          /* all, those being drained too */
    struct hps_grpc_client_call *calls; /* newest first */
    uint64_t n_made;                    /* calls, ever */
    struct hps_loop_later retry;        /* waiting calls want a connection */
    struct hps_buf spares[SPARES_MAX];  /* [n_spares], the last one given back on top */
    unsigned n_spares;
    size_t spare_bytes;
    char *address;
    char *authority;
    char *authorization;
    struct hps_tls *tls;
    size_t reply_bytes_max;
    uint64_t connect_timeout_us;
    unsigned busy;
    bool freed;
};

/* ---- phases ---------------------------------------------------------------------------------- */

static void call_phase_set(struct hps_grpc_client_call *call, enum client_phase to)
{
    static const unsigned follows[CLIENT_PHASES] = {
        [CLIENT_NEW] = 1u << CLIENT_WAITING | 1u << CLIENT_SENT,
        [CLIENT_WAITING] = 1u << CLIENT_SENT | 1u << CLIENT_DONE,
        [CLIENT_SENT] = 1u << CLIENT_WAITING | 1u << CLIENT_ANSWERED | 1u << CLIENT_DONE,
        [CLIENT_ANSWERED] = 1u << CLIENT_DONE,
    };

    HPS_ASSERT(call->phase < CLIENT_PHASES && to < CLIENT_PHASES);
    HPS_ASSERT((follows[call->phase] & 1u << to) != 0);
    call->phase = to;
}

static void call_sane(const struct hps_grpc_client_call *call)
{
    bool on_stream = call->phase == CLIENT_SENT || call->phase == CLIENT_ANSWERED;

    HPS_ASSERT(call->phase == CLIENT_WAITING || on_stream);
    HPS_ASSERT((call->stream != NULL) == on_stream);
    HPS_ASSERT(!on_stream || hps_http2_user(call->stream) == call);
    HPS_ASSERT(call->phase != CLIENT_WAITING || call->path != NULL);
    HPS_ASSERT(call->phase == CLIENT_ANSWERED || (call->http_status == 0 && call->code < 0));
    HPS_ASSERT(hps_timer_armed(&call->deadline) == (call->deadline_us != 0));
    HPS_ASSERT(call->prev != NULL || call->channel->calls == call);
    HPS_ASSERT(call->number < call->channel->n_made);
}

/* Who waits will be started: by a connection that is being made, or by a retry. */
static bool waiting_will_start(const struct hps_grpc_channel *channel)
{
    bool connecting = channel->current != NULL && !hps_http2_is_ready(channel->current->h2);
    bool any = false;

    for (const struct hps_grpc_client_call *call = channel->calls; call; call = call->next) {
        call_sane(call);
        any = any || call->phase == CLIENT_WAITING;
    }
    return !any || connecting || hps_loop_later_is_set(&channel->retry);
}

static bool is_ours(const struct hps_grpc_channel *channel, const struct client_conn *conn)
{
    const struct client_conn *at = channel->conns;

    while (at != NULL && at != conn) {
        at = at->next;
    }
    return at != NULL;
}

static void channel_sane(const struct hps_grpc_channel *channel)
{
    HPS_ASSERT(hps_loop_is_mine(channel->loop));
    HPS_ASSERT(channel->busy > 0 && channel->n_spares <= SPARES_MAX);
    HPS_ASSERT((channel->n_spares == 0) == (channel->spare_bytes == 0));
    HPS_ASSERT(channel->spare_bytes <= SPARE_BYTES_MAX);
    if (channel->freed) {
        HPS_ASSERT(channel->calls == NULL && !hps_loop_later_is_set(&channel->retry));
        return;
    }
    HPS_DEBUG_ASSERT(channel->current == NULL || is_ours(channel, channel->current));
    HPS_DEBUG_ASSERT(waiting_will_start(channel));
}

/* ---- calls ----------------------------------------------------------------------------------- */

static void channel_enter(struct hps_grpc_channel *channel)
{
    channel->busy++;
}

static void channel_leave(struct hps_grpc_channel *channel)
{
    if (--channel->busy > 0 || !channel->freed) {
        return;
    }
    while (channel->n_spares > 0) {
        hps_buf_fini(&channel->spares[--channel->n_spares]);
    }
    hps_http2_shared_free(channel->shared);
    hps_free(channel->address);
    hps_free(channel->authority);
    hps_free(channel->authorization);
    hps_free(channel);
}

/* The next reply may use the buffer of this one: its pages are there already. */
static void keep_spare(struct hps_grpc_channel *channel, struct hps_buf *body)
{
    if (body->data == NULL || channel->n_spares == SPARES_MAX ||
        body->capacity > SPARE_BYTES_MAX - channel->spare_bytes) {
        hps_buf_fini(body);
        return;
    }
    channel->spares[channel->n_spares++] = *body;
    channel->spare_bytes += body->capacity;
    hps_buf_init(body, 0);
}

static void take_spare(struct hps_grpc_channel *channel, struct hps_buf *body)
{
    if (body->data == NULL && channel->n_spares > 0) {
        size_t size_max = body->size_max;
        *body = channel->spares[--channel->n_spares];
        body->size_max = size_max;
        hps_buf_clear(body);
        channel->spare_bytes -= body->capacity;
    }
}

/* Tell the caller, once, and free. The stream, if any, is no longer ours. */
static void call_done(struct hps_grpc_client_call *call, int code, const char *message)
{
    struct hps_grpc_channel *channel = call->channel;

    call_phase_set(call, CLIENT_DONE);
    hps_timer_stop(&call->deadline);
    if (call->stream != NULL) {
        hps_http2_set_user(call->stream, NULL);
        call->stream = NULL;
    }
    if (call->prev != NULL) {
        call->prev->next = call->next;
    } else {
        channel->calls = call->next;
    }
    if (call->next != NULL) {
        call->next->prev = call->prev;
    }
    keep_spare(channel, &call->decoder.body);
    channel_enter(channel);
    if (call->events->on_done != NULL) {
        call->events->on_done(call->ctx, code, message);
    }
    channel_leave(channel);
    hps_buf_fini(&call->request);
    hps_buf_fini(&call->text);
    hps_free(call->path);
    hps_free(call);
}

/* End a call from our side, whatever the server is doing about it. */
static void call_abort(struct hps_grpc_client_call *call, int code, const char *message)
{
    if (call->stream != NULL) {
        hps_http2_reset(call->stream, HPS_HTTP2_CANCEL);
    }
    call_done(call, code, message);
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

/* ---- a stream's events ----------------------------------------------------------------------- */

static bool is(const char *name, size_t name_size, const char *literal, size_t literal_size)
{
    return name_size == literal_size && memcmp(name, literal, literal_size) == 0;
}
#define IS(name, size, literal) is((name), (size), (literal), sizeof(literal) - 1)

static void on_header(void *ctx, struct hps_http2_stream *stream, const char *name,
                      size_t name_size, const char *value, size_t value_size)
{
    static const char type[] = "application/grpc";
    struct hps_grpc_client_call *call = hps_http2_user(stream);

    (void)ctx;
    if (call == NULL) {
        return;
    }
    if (call->phase == CLIENT_SENT) {
        call_phase_set(call, CLIENT_ANSWERED);
    }
    if (IS(name, name_size, ":status")) {
        call->http_status = (unsigned)strtoul(value, NULL, 10);
    } else if (IS(name, name_size, "content-type")) {
        call->grpc_type =
            value_size >= sizeof type - 1 && memcmp(value, type, sizeof type - 1) == 0;
    } else if (IS(name, name_size, "grpc-status")) {
        unsigned long code = strtoul(value, NULL, 10);
        call->code = value_size > 0 && code <= 16 ? (int)code : 2;
    } else if (IS(name, name_size, "grpc-message")) {
        hps_buf_clear(&call->text);
        if (hps_grpc_message_decode(&call->text, value, value_size) != HPS_OK) {
            hps_buf_clear(&call->text); /* too long or no memory: the code still comes */
        }
    }
}

/* False: the call is over, by an error or by what its callback did. */
static bool feed(struct hps_grpc_client_call *call, struct hps_http2_stream *stream,
                 const uint8_t *data, size_t size)
{
    while (size > 0) {
        struct hps_grpc_message message;
        struct hps_error err;
        bool complete;
        size_t used;
        hps_status status =
            hps_grpc_decoder_feed(&call->decoder, data, size, &used, &message, &complete, &err);
        if (status == HPS_OK && complete && message.compressed) {
            status = hps_error_set(&err, HPS_INTERNAL, "compressed reply, none was asked for");
        }
        if (status != HPS_OK) {
            call_abort(call, hps_status_grpc_code(status), err.text);
            return false;
        }
        data += used;
        size -= used;
        if (complete && call->events->on_message != NULL) {
            call->events->on_message(call->ctx, message.data, message.size);
            if (hps_http2_user(stream) != call) {
                return false;
            }
        }
    }
    return true;
}

static void on_data(void *ctx, struct hps_http2_stream *stream, const uint8_t *data, size_t size)
{
    struct client_conn *conn = ctx;
    struct hps_grpc_channel *channel = conn->channel;
    struct hps_grpc_client_call *call = hps_http2_user(stream);

    hps_http2_consume(stream, size);
    if (call == NULL || call->http_status != 200 || !call->grpc_type) {
        return;
    }
    take_spare(channel, &call->decoder.body);
    channel_enter(channel);
    if (!feed(call, stream, data, size)) {
        hps_http2_set_user(stream, NULL);
    }
    channel_sane(channel);
    channel_leave(channel);
}

/* A large reply is received where it is put together. */
static uint8_t *on_room(void *ctx, struct hps_http2_stream *stream, size_t size, size_t *out_room)
{
    struct hps_grpc_client_call *call = hps_http2_user(stream);

    (void)ctx;
    return call == NULL ? NULL : hps_grpc_decoder_room(&call->decoder, size, out_room);
}

/* The server has said that it did nothing about the call: it goes to the connection that comes
 * after this one. Without this each GOAWAY would fail the calls that crossed it. */
static bool send_again(struct hps_grpc_client_call *call)
{
    if (call->again || call->path == NULL || call->phase != CLIENT_SENT) {
        return false;
    }
    call->again = true;
    call->stream = NULL;
    call_phase_set(call, CLIENT_WAITING);
    hps_loop_later_set(call->channel->loop, &call->channel->retry);
    return true;
}

static void on_stream_closed(void *ctx, struct hps_http2_stream *stream, uint32_t error)
{
    struct hps_grpc_client_call *call = hps_http2_user(stream);
    struct client_conn *conn = ctx;
    char text[240];

    if (call == NULL) {
        return;
    }
    if (error == HPS_HTTP2_LOST) {
        const char *hint =
            call->channel->tls != NULL ? "" : ": is it another service, or does it want TLS?";
        bool spoke = hps_http2_peer_spoke(conn->h2);
        snprintf(text, sizeof text, "connection to %.100s lost%s%s", call->channel->address,
                 spoke ? "" : " before it spoke HTTP/2", spoke ? "" : hint);
        call_done(call, hps_status_grpc_code(HPS_UNAVAILABLE), text);
    } else if (call->code >= 0) {
        if (call->code == 0 && !hps_grpc_decoder_idle(&call->decoder)) {
            call_done(call, hps_status_grpc_code(HPS_INTERNAL), "the reply ends within a message");
            return;
        }
        if (hps_buf_append(&call->text, "", 1) != HPS_OK) {
            hps_buf_clear(&call->text); /* without its text the code still says enough */
        }
        call_done(call, call->code, call->text.size > 0 ? (const char *)call->text.data : "");
    } else if (error == HPS_HTTP2_CANCEL && call->deadline_us != 0 &&
               hps_clock_us() >= call->deadline_us) {
        call_done(call, hps_status_grpc_code(HPS_DEADLINE), "deadline exceeded");
    } else if (error == HPS_HTTP2_REFUSED_STREAM && send_again(call)) {
        return;
    } else if (error != HPS_HTTP2_NO_ERROR) {
        snprintf(text, sizeof text, "stream reset with HTTP/2 error %u", error);
        call_done(call, hps_grpc_code_of_reset(error), text);
    } else {
        snprintf(text, sizeof text, "reply without grpc-status, HTTP status %u", call->http_status);
        call_done(call, hps_grpc_code_of_http(call->http_status), text);
    }
}

/* ---- connections ----------------------------------------------------------------------------- */

static void conn_forget(struct client_conn *conn)
{
    struct hps_grpc_channel *channel = conn->channel;

    if (channel->current == conn) {
        channel->current = NULL;
    }
    if (conn->prev != NULL) {
        conn->prev->next = conn->next;
    } else {
        channel->conns = conn->next;
    }
    if (conn->next != NULL) {
        conn->next->prev = conn->prev;
    }
    hps_free(conn);
}

/* One that waits for a connection and was made before `number`; NULL: none. */
static struct hps_grpc_client_call *find_waiting(const struct hps_grpc_channel *channel,
                                                 uint64_t number)
{
    struct hps_grpc_client_call *call = channel->calls;

    while (call != NULL && (call->phase != CLIENT_WAITING || call->number >= number)) {
        call = call->next;
    }
    return call;
}

/* No connection can be made: everything that waits for one fails. A call that is made when one is
 * told so has a connection of its own to come: it may be made in answer to the failure. */
static void fail_waiting(struct hps_grpc_channel *channel, int code, const char *message)
{
    uint64_t number = channel->n_made;
    struct hps_grpc_client_call *call;

    channel_enter(channel);
    while ((call = find_waiting(channel, number)) != NULL) {
        call_done(call, code, message);
    }
    channel_sane(channel);
    channel_leave(channel);
}

static void start_waiting(struct hps_grpc_channel *channel);

static void on_ready(void *ctx)
{
    struct client_conn *conn = ctx;

    start_waiting(conn->channel);
}

static void on_goaway(void *ctx)
{
    struct client_conn *conn = ctx;

    if (conn->channel->current == conn) {
        conn->channel->current = NULL;
    }
    hps_http2_drain(conn->h2);
}

static void on_closed(void *ctx, const struct hps_error *why)
{
    struct client_conn *conn = ctx;
    struct hps_grpc_channel *channel = conn->channel;
    bool was_current = channel->current == conn;

    conn_forget(conn);
    if (was_current) {
        fail_waiting(channel, hps_status_grpc_code(HPS_UNAVAILABLE), why->text);
    }
}

static const struct hps_http2_events events = {
    .on_ready = on_ready,
    .on_header = on_header,
    .on_data = on_data,
    .on_room = on_room,
    .on_stream_closed = on_stream_closed,
    .on_goaway = on_goaway,
    .on_closed = on_closed,
};

static hps_status connect_now(struct hps_grpc_channel *channel, struct hps_error *err)
{
    struct hps_http2_options options = {
        .window_bytes = WINDOW_BYTES,
        .connection_window_bytes = CONNECTION_WINDOW_BYTES,
        .frame_bytes_max = FRAME_BYTES_MAX,
        .header_bytes_max = HEADER_BYTES_MAX,
        .header_fields_max = HEADER_FIELDS_MAX,
        .handshake_timeout_us = channel->connect_timeout_us,
    };
    struct client_conn *conn = hps_calloc(1, sizeof *conn);
    struct hps_conn *raw;

    if (conn == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for a connection");
    }
    conn->channel = channel;
    hps_status status = hps_conn_connect(channel->address, channel->tls, &raw, err);
    if (status == HPS_OK) {
        status = hps_http2_new(channel->shared, raw, &options, &events, conn, &conn->h2, err);
    }
    if (status != HPS_OK) {
        hps_free(conn);
        return status;
    }
    conn->next = channel->conns;
    if (conn->next != NULL) {
        conn->next->prev = conn;
    }
    channel->conns = conn;
    channel->current = conn;
    return HPS_OK;
}

/* A connection that takes no more calls is drained; the next one takes them. */
static void leave_if_spent(struct hps_grpc_channel *channel)
{
    struct client_conn *conn = channel->current;

    if (conn != NULL && hps_http2_is_ready(conn->h2) && !hps_http2_can_request(conn->h2)) {
        channel->current = NULL;
        hps_http2_drain(conn->h2);
    }
}

static void on_retry(void *ctx)
{
    struct hps_grpc_channel *channel = ctx;
    struct hps_error err;

    leave_if_spent(channel);
    if (channel->current == NULL && connect_now(channel, &err) != HPS_OK) {
        fail_waiting(channel, hps_status_grpc_code(HPS_UNAVAILABLE), err.text);
    } else if (hps_http2_is_ready(channel->current->h2)) {
        start_waiting(channel);
    }
}

/* ---- channels -------------------------------------------------------------------------------- */

static char *make_authorization(const char *token)
{
    size_t size = strlen(token) + sizeof "Bearer ";
    char *text = hps_alloc(size);

    if (text != NULL) {
        snprintf(text, size, "Bearer %s", token);
    }
    return text;
}

hps_status hps_grpc_channel_new(struct hps_loop *loop,
                                const struct hps_grpc_channel_options *options,
                                struct hps_grpc_channel **out_channel, struct hps_error *err)
{
    struct hps_grpc_channel *channel = hps_calloc(1, sizeof *channel);
    bool is_unix = strncmp(options->address, "unix:", 5) == 0;
    hps_status status;

    if (channel == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for a channel");
    }
    channel->loop = loop;
    channel->busy = 1; /* the owner */
    channel->tls = options->tls;
    channel->reply_bytes_max = options->reply_bytes_max;
    channel->connect_timeout_us = options->connect_timeout_us;
    hps_loop_later_init(&channel->retry, on_retry, channel);
    channel->shared = hps_http2_shared_new(loop);
    channel->address = hps_strdup(options->address);
    channel->authority = hps_strdup(is_unix ? "localhost" : options->address);
    if (options->bearer_token != NULL) {
        channel->authorization = make_authorization(options->bearer_token);
    }
    if (channel->shared == NULL || channel->address == NULL || channel->authority == NULL ||
        (options->bearer_token != NULL && channel->authorization == NULL)) {
        status = hps_error_set(err, HPS_NO_MEMORY, "no memory for a channel");
        goto fail;
    }
    status = connect_now(channel, err);
    if (status != HPS_OK) {
        goto fail;
    }
    *out_channel = channel;
    return HPS_OK;

fail:
    channel->freed = true;
    channel_leave(channel);
    return status;
}

void hps_grpc_channel_free(struct hps_grpc_channel *channel)
{
    if (channel == NULL || channel->freed) {
        return;
    }
    HPS_ASSERT(hps_loop_is_mine(channel->loop));
    channel->freed = true;
    hps_loop_later_stop(&channel->retry);
    while (channel->calls != NULL) {
        call_done(channel->calls, hps_status_grpc_code(HPS_CANCELLED), "the channel was closed");
    }
    while (channel->conns != NULL) {
        hps_http2_free(channel->conns->h2);
        conn_forget(channel->conns);
    }
    channel_leave(channel);
}

/* ---- making calls ---------------------------------------------------------------------------- */

static hps_status start_stream(struct hps_grpc_client_call *call, const char *path,
                               const void *request, size_t request_size)
{
    struct hps_grpc_channel *channel = call->channel;
    struct hps_http2_field fields[10];
    char timeout[HPS_GRPC_TIMEOUT_CHARS];
    uint8_t prefix[HPS_GRPC_PREFIX_BYTES];
    unsigned n = 0;

    fields[n++] = FIELD_LITERAL(":method", "POST");
    if (channel->tls != NULL) {
        fields[n++] = FIELD_LITERAL(":scheme", "https");
    } else {
        fields[n++] = FIELD_LITERAL(":scheme", "http");
    }
    fields[n++] = FIELD(":path", path, strlen(path));
    fields[n++] = FIELD(":authority", channel->authority, strlen(channel->authority));
    fields[n++] = FIELD_LITERAL("te", "trailers");
    fields[n++] = FIELD_LITERAL("content-type", "application/grpc");
    fields[n++] = FIELD_LITERAL("user-agent", "hps-c");
    if (call->deadline_us != 0) {
        uint64_t now_us = hps_clock_us();
        hps_grpc_timeout_format(call->deadline_us > now_us ? call->deadline_us - now_us : 0,
                                timeout);
        fields[n++] = FIELD("grpc-timeout", timeout, strlen(timeout));
    }
    if (channel->authorization != NULL) {
        fields[n++] =
            FIELD("authorization", channel->authorization, strlen(channel->authorization));
    }
    struct hps_http2_stream *stream;
    hps_status status = hps_http2_request(channel->current->h2, fields, n, call, &stream);
    if (status != HPS_OK) {
        return status;
    }
    hps_grpc_prefix_write(prefix, request_size);
    status = hps_http2_send_copy(stream, prefix, sizeof prefix, request, request_size);
    if (status != HPS_OK) {
        hps_http2_set_user(stream, NULL);
        hps_http2_reset(stream, HPS_HTTP2_CANCEL);
        return status;
    }
    hps_http2_finish(stream);
    call->stream = stream;
    call_phase_set(call, CLIENT_SENT);
    return HPS_OK;
}

/* Oldest first; new ones are put in front. */
static void start_waiting(struct hps_grpc_channel *channel)
{
    struct hps_grpc_client_call *call = channel->calls;

    while (call != NULL && call->next != NULL) {
        call = call->next;
    }
    for (; call != NULL; call = call->prev) {
        if (call->phase != CLIENT_WAITING) {
            continue;
        }
        if (start_stream(call, call->path, call->request.data, call->request.size) != HPS_OK) {
            break;
        }
        if (call->request.size > AGAIN_BYTES_MAX) {
            hps_buf_fini(&call->request);
            hps_free(call->path);
            call->path = NULL;
        }
    }
    if (call != NULL) {
        fail_waiting(channel, hps_status_grpc_code(HPS_UNAVAILABLE), "the request cannot be sent");
    }
}

/* Keep what a call needs until there is a connection, or until it is known that it was not refused.
 */
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
    hps_buf_init(&call->text, MESSAGE_BYTES_MAX);
    hps_buf_init(&call->request, request_size);
    leave_if_spent(channel);
    bool now = channel->current != NULL && hps_http2_is_ready(channel->current->h2);
    hps_status status = HPS_OK;
    if (!now || request_size <= AGAIN_BYTES_MAX) {
        status = remember(call, path, request, request_size);
    }
    if (status == HPS_OK && now) {
        status = start_stream(call, path, request, request_size);
    } else if (status == HPS_OK) {
        call_phase_set(call, CLIENT_WAITING);
        if (channel->current == NULL) {
            hps_loop_later_set(channel->loop, &channel->retry);
        }
    }
    if (status != HPS_OK) {
        hps_buf_fini(&call->request);
        hps_free(call->path);
        hps_free(call);
        return status;
    }
    call->next = channel->calls;
    if (call->next != NULL) {
        call->next->prev = call;
    }
    channel->calls = call;
    if (deadline_us != 0) {
        hps_timer_set(channel->loop, &call->deadline, deadline_us);
    }
    if (out_call != NULL) {
        *out_call = call;
    }
    call_sane(call);
    channel_sane(channel);
    return HPS_OK;
}
