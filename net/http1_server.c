/* SPDX-License-Identifier: Apache-2.0
 *
 * The life of an HTTP/1.1 connection of the gRPC server (see http1_server.h).
 * http1_server_receive.c receives, http1_server_send.c sends. Loop thread of the connection.
 */
#include "net/http1_server_internal.h"

#include "base/clock.h"
#include "base/container.h"
#include "base/heap.h"

enum {
    GONE_US = 50 * 1000, /* interval at which a peer that ended its side is polled */
};

static struct http1 *http1_of(struct hps_http *http)
{
    return HPS_CONTAINER_OF(http, struct http1, base);
}

static const struct http1 *http1_of_const(const struct hps_http *http)
{
    return HPS_CONTAINER_OF(http, struct http1, base);
}

void http1_sane(const struct http1 *http)
{
    size_t body_left = 0;

    HPS_DEBUG_ASSERT(hps_loop_is_mine(http->loop));
    for (unsigned i = http->out->at; i < http->out->n_pieces; i++) {
        body_left += http->out->pieces[i].size;
    }
    if (http->out->text.size > http->out->heads) {
        size_t from = http->out->text_at > http->out->heads ? http->out->text_at : http->out->heads;
        body_left += http->out->text.size - from;
    }
    HPS_ASSERT(http->in->at <= http->in->bytes.size);
    HPS_ASSERT(http->out->text_at <= http->out->text.size);
    HPS_ASSERT(http->base.queued == body_left);
    HPS_ASSERT(!http->request->is_open || http->request->stream.queued == body_left);
    HPS_ASSERT(!http->base.blocked || http1_unwritten(http) > 0);
    HPS_ASSERT(!http->request->finished || http->request->responded);
    switch (http->phase) {
    case HTTP1_HANDSHAKE:
        HPS_ASSERT(!http->request->is_open && http->in->bytes.size == 0 &&
                   http1_unwritten(http) == 0);
        break;
    case HTTP1_HEAD:
        HPS_ASSERT(!http->request->is_open && !http->close && http1_unwritten(http) == 0);
        break;
    case HTTP1_BODY:
        HPS_ASSERT(http->request->is_open && !http->request->responded);
        break;
    case HTTP1_CALL:
        HPS_ASSERT(http->request->is_open);
        break;
    case HTTP1_LINGER:
        HPS_ASSERT(!http->request->is_open && hps_timer_armed(&http->timer));
        break;
    case HTTP1_LAST:
    case HTTP1_FAILED:
    case HTTP1_FREED:
    case HTTP1_PHASES:
        break;
    }
}

/* ---- life ------------------------------------------------------------------------------------ */

static void destroy(struct http1 *http)
{
    http->busy++; /* callbacks from now on must not destroy it again */
    hps_run_remove(&http->item);
    hps_timer_stop(&http->timer);
    http->base.received = hps_conn_received(http->base.conn);
    hps_conn_free(http->base.conn);
    http->base.conn = NULL;
    http1_drop_out(http);
    if (http->request->is_open) {
        http1_stream_close(http, http->error != HPS_HTTP2_NO_ERROR ? http->error : HPS_HTTP2_LOST);
    }
    if (http->phase == HTTP1_FAILED) {
        http->base.events->on_closed(http->base.ctx, &http->why);
    }
    hps_buf_fini(&http->in->bytes);
    hps_buf_fini(&http->out->text);
    hps_free(http);
}

static void enter(struct http1 *http)
{
    http->busy++;
}

static void leave(struct http1 *http)
{
    HPS_ASSERT(http->busy > 0);
    if (--http->busy > 0) {
        return;
    }
    if (http1_is_dead(http)) {
        destroy(http);
    } else {
        HPS_DEBUG_SANE(http1_sane(http));
    }
}

/* ---- the socket ------------------------------------------------------------------------------ */

static unsigned wanted(const struct http1 *http)
{
    unsigned events = http->base.blocked ? HPS_LOOP_WRITE : 0u;
    bool reads = http->phase == HTTP1_HEAD || http->phase == HTTP1_BODY ||
                 http->phase == HTTP1_LINGER ||
                 (http->phase == HTTP1_CALL && http1_waiting(http) < HTTP1_HEAD_BYTES_MAX);

    return reads && !http->in->half_closed ? events | HPS_LOOP_READ : events;
}

/* The end of a turn: all bytes that could be parsed and written have been. */
static void settle(struct http1 *http)
{
    if (http1_is_dead(http)) {
        return;
    }
    if (http->phase == HTTP1_HEAD && http1_waiting(http) == 0 &&
        (http->ending || http->in->half_closed)) {
        http1_fail(http, HPS_CLOSED, "connection ended");
    } else if (hps_conn_want(http->base.conn, wanted(http)) != HPS_OK) {
        http1_fail(http, HPS_NO_MEMORY, "cannot watch the socket");
    }
}

static void shake_hands(struct http1 *http)
{
    struct hps_error why;
    hps_status status = hps_conn_handshake(http->base.conn, &why);

    if (status == HPS_AGAIN) {
        return;
    }
    if (status != HPS_OK) {
        http->why = why;
        http1_fail(http, status, "%s", why.text);
        return;
    }
    http1_phase_set(http, HTTP1_HEAD);
    http->base.read_us = hps_loop_now_us(http->loop);
    settle(http);
}

static void step(struct http1 *http)
{
    if (http->aborting) {
        http1_fail(http, HPS_CLOSED, "connection ended");
    } else if (http->phase == HTTP1_HANDSHAKE) {
        shake_hands(http);
    } else {
        if (!http->base.blocked) {
            http1_write_out(http);
        }
        http1_take_in(http);
        if (http->ending && !http1_is_dead(http)) {
            http1_read_in(http); /* a request that is already there is answered */
        }
        settle(http);
    }
}

/* The socket is ready. */
static void serve(struct http1 *http, unsigned events)
{
    if (http->phase == HTTP1_HANDSHAKE) {
        if (!http->aborting) {
            shake_hands(http);
        }
    } else {
        if ((events & HPS_LOOP_WRITE) != 0) {
            http1_write_out(http);
        }
        if ((events & HPS_LOOP_READ) != 0 && !http1_is_dead(http)) {
            http1_read_in(http);
        }
        settle(http);
    }
}

/* What was read is answered in the same slice. */
static void work(struct hps_run_item *item, unsigned events)
{
    struct http1 *http = HPS_CONTAINER_OF(item, struct http1, item);

    enter(http);
    if ((events & ~(unsigned)HTTP1_KICK) != 0) {
        serve(http, events);
    }
    if (((events | hps_run_take(item, HTTP1_KICK)) & HTTP1_KICK) != 0 && !http1_is_dead(http)) {
        step(http);
    }
    leave(http);
}

static void on_ready(void *ctx, unsigned events)
{
    struct http1 *http = ctx;

    if (!http1_is_dead(http)) {
        if ((http->item.events & events) != 0) {
            hps_conn_rest(http->base.conn, events); /* it has been queued for a whole turn */
        }
        hps_run_add(&http->item, events);
    }
}

static void on_timer(void *ctx)
{
    struct http1 *http = ctx;

    enter(http);
    if (http->phase == HTTP1_LINGER) {
        http1_fail(http, HPS_CLOSED, "connection ended");
    } else if (http->in->half_closed && hps_conn_is_gone(http->base.conn)) {
        http1_fail(http, HPS_CLOSED, "peer closed the connection");
    } else if (http->in->half_closed) {
        hps_timer_set_after(http->loop, &http->timer, GONE_US);
    }
    leave(http);
}

/* ---- the table of functions ------------------------------------------------------------------ */

static void op_free(struct hps_http *base)
{
    struct http1 *http = http1_of(base);

    if (http->phase != HTTP1_FREED) {
        http1_phase_set(http, HTTP1_FREED);
        if (http->busy == 0) {
            destroy(http);
        }
    }
}

static void abort_for(struct http1 *http, uint32_t error, const char *why)
{
    if (http1_is_dead(http) || http->aborting) {
        return;
    }
    http->aborting = true;
    http->error = error;
    if (http->why.status == HPS_OK) {
        hps_ignore(hps_error_set(&http->why,
                                 error == HPS_HTTP2_INTERNAL_ERROR ? HPS_NO_MEMORY : HPS_CLOSED,
                                 "%s: %s", hps_conn_peer(http->base.conn), why));
    }
    http1_kick(http);
}

static void op_abort(struct hps_http *base, uint32_t error, const char *why)
{
    abort_for(http1_of(base), error, why);
}

static void op_drain(struct hps_http *base)
{
    struct http1 *http = http1_of(base);

    HPS_ASSERT(http->phase != HTTP1_HANDSHAKE);
    http->draining = true;
    http1_kick(http);
}

static void op_drain_now(struct hps_http *base)
{
    http1_of(base)->ending = true;
    op_drain(base);
}

static bool op_peer_spoke(const struct hps_http *base)
{
    return http1_waiting(http1_of_const(base)) == 0; /* an incomplete head is not HTTP */
}

static bool op_is_limited(const struct hps_http *base)
{
    return base->blocked;
}

static uint64_t op_written_bodies(const struct hps_http *base)
{
    return http1_of_const(base)->out->bodies;
}

static void op_finish(struct hps_http_stream *stream)
{
    struct http1 *http = http1_of(stream->http);

    HPS_ASSERT(http->request->is_open && http->request->responded);
    http->request->finished = true;
    http1_kick(http);
}

static void op_reset(struct hps_http_stream *stream, uint32_t error)
{
    abort_for(http1_of(stream->http), error, "its call was aborted");
}

/* HTTP/1.1 has no window: unread bytes stay in the socket. */
static void op_consume(struct hps_http_stream *stream, size_t size)
{
    (void)stream;
    (void)size;
}

/* Only the connection can limit it. */
static bool op_stream_is_limited(const struct hps_http_stream *stream)
{
    (void)stream;
    return false;
}

static const struct hps_http_ops ops = {
    .free = op_free,
    .abort = op_abort,
    .drain = op_drain,
    .drain_now = op_drain_now,
    .peer_spoke = op_peer_spoke,
    .is_limited = op_is_limited,
    .written_bodies = op_written_bodies,
    .respond = http1_respond,
    .send = http1_send,
    .send_copy = http1_send_copy,
    .finish = op_finish,
    .reset = op_reset,
    .consume = op_consume,
    .stream_is_limited = op_stream_is_limited,
};

hps_status hps_http1_serve(struct hps_loop *loop, atomic_size_t *queued, struct hps_conn *conn,
                           uint64_t handshake_timeout_us, const struct hps_http_events *events,
                           void *ctx, struct hps_http **out_http, struct hps_error *err)
{
    struct http1 *http =
        hps_calloc(1, sizeof *http + sizeof *http->request + sizeof *http->in + sizeof *http->out);

    HPS_ASSERT(hps_loop_is_mine(loop));
    if (http == NULL ||
        hps_conn_attach(conn, loop, handshake_timeout_us, on_ready, http) != HPS_OK) {
        hps_ignore(hps_error_set(err, HPS_NO_MEMORY, "%s: no memory for a connection",
                                 hps_conn_peer(conn)));
        hps_conn_free(conn);
        hps_free(http);
        return HPS_NO_MEMORY;
    }
    http->request = (struct http1_request *)(http + 1);
    http->in = (struct http1_in *)(http->request + 1);
    http->out = (struct http1_out *)(http->in + 1);
    http->base = (struct hps_http){
        .ops = &ops, .events = events, .ctx = ctx, .conn = conn, .read_us = hps_clock_us()};
    http->request->stream.http = &http->base;
    http->loop = loop;
    http->queued = queued;
    hps_run_item_init(&http->item, hps_loop_work(loop), hps_conn_client(conn), work);
    hps_timer_init(&http->timer, on_timer, http);
    hps_buf_init(&http->in->bytes, HTTP1_IN_BYTES_MAX);
    hps_buf_init(&http->out->text, SIZE_MAX / 2);
    http1_kick(http);
    *out_http = &http->base;
    return HPS_OK;
}
