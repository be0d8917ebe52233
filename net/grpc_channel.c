/* SPDX-License-Identifier: Apache-2.0
 *
 * A channel of the gRPC client. It has one connection that takes calls. It connects again, for the
 * next call, after the connection was lost or the server sent GOAWAY. grpc_client.c has its calls.
 * Loop thread of the channel.
 */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/heap.h"
#include "net/grpc_client_internal.h"

enum {
    WINDOW_BYTES = 16 * 1024 * 1024,
    CONNECTION_WINDOW_BYTES = 64 * 1024 * 1024,
    FRAME_BYTES_MAX = 1024 * 1024,
    HEADER_BYTES_MAX = 64 * 1024,
    HEADER_FIELDS_MAX = 128,
};

/* ---- waiting calls --------------------------------------------------------------------------- */

/* A call that waits for a connection and was created before `number`; NULL: no such call. */
static struct hps_grpc_client_call *find_waiting(const struct hps_grpc_channel *channel,
                                                 uint64_t number)
{
    struct hps_grpc_client_call *call;

    TAILQ_FOREACH (call, &channel->calls, link) {
        if (call->phase == CLIENT_WAITING && call->number < number) {
            break;
        }
    }
    return call;
}

/* The connection failed: ends all calls that wait for it. Calls that on_done starts get another
 * connection. */
static void fail_waiting(struct hps_grpc_channel *channel, int code, const char *message)
{
    uint64_t number = channel->n_made;
    struct hps_grpc_client_call *call;

    grpc_channel_enter(channel);
    while ((call = find_waiting(channel, number)) != NULL) {
        grpc_client_done(call, code, message);
    }
    HPS_DEBUG_SANE(grpc_channel_sane(channel));
    grpc_channel_leave(channel);
}

/* Sends the waiting calls, oldest first. */
static void start_waiting(struct hps_grpc_channel *channel)
{
    struct hps_grpc_client_call *call;

    TAILQ_FOREACH (call, &channel->calls, link) {
        if (call->phase == CLIENT_WAITING && grpc_client_send_waiting(call) != HPS_OK) {
            break;
        }
    }
    if (call != NULL) {
        fail_waiting(channel, hps_status_grpc_code(HPS_UNAVAILABLE), "the request cannot be sent");
    }
}

/* ---- connections ----------------------------------------------------------------------------- */

static void conn_forget(struct client_conn *conn)
{
    struct hps_grpc_channel *channel = conn->channel;

    if (channel->current == conn) {
        channel->current = NULL;
    }
    LIST_REMOVE(conn, link);
    hps_timer_stop(&conn->speak);
    hps_free(conn);
}

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
    hps_http_drain(conn->http);
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

/* Until the connection is ready, connect_timeout_us holds. */
static void on_speak_timeout(void *ctx)
{
    struct client_conn *conn = ctx;

    if (conn->http->ready && !hps_http_peer_spoke(conn->http)) {
        if (conn->channel->current == conn) {
            conn->channel->current = NULL;
        }
        hps_http_abort(conn->http, HPS_HTTP2_NO_ERROR, "the server does not answer");
    }
}

static const struct hps_http_events events = {
    .on_ready = on_ready,
    .on_header = grpc_client_header,
    .on_data = grpc_client_data,
    .on_buffer = grpc_client_room,
    .on_stream_closed = grpc_client_stream_closed,
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
    hps_timer_init(&conn->speak, on_speak_timeout, conn);
    hps_status status = hps_conn_connect(channel->address, channel->tls, &raw, err);
    if (status == HPS_OK) {
        status = hps_http2_new(channel->shared, raw, &options, &events, conn, &conn->http, err);
    }
    if (status != HPS_OK) {
        hps_free(conn);
        return status;
    }
    LIST_INSERT_HEAD(&channel->conns, conn, link);
    channel->current = conn;
    if (channel->speak_timeout_us > 0) {
        hps_timer_set_after(channel->loop, &conn->speak, channel->speak_timeout_us);
    }
    return HPS_OK;
}

static void on_retry(void *ctx)
{
    struct hps_grpc_channel *channel = ctx;
    struct hps_error err;

    grpc_channel_leave_spent(channel);
    if (channel->current == NULL && connect_now(channel, &err) != HPS_OK) {
        fail_waiting(channel, hps_status_grpc_code(HPS_UNAVAILABLE), err.text);
    } else if (channel->current->http->ready) {
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
    TAILQ_INIT(&channel->calls);
    channel->tls = options->tls;
    channel->reply_bytes_max = options->reply_bytes_max;
    channel->connect_timeout_us = options->connect_timeout_us;
    channel->speak_timeout_us = options->speak_timeout_us;
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
    grpc_channel_leave(channel);
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
    while (!TAILQ_EMPTY(&channel->calls)) {
        grpc_client_done(TAILQ_FIRST(&channel->calls), hps_status_grpc_code(HPS_CANCELLED),
                         "the channel was closed");
    }
    while (!LIST_EMPTY(&channel->conns)) {
        hps_http_free(LIST_FIRST(&channel->conns)->http);
        conn_forget(LIST_FIRST(&channel->conns));
    }
    grpc_channel_leave(channel);
}
