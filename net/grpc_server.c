/* SPDX-License-Identifier: Apache-2.0
 *
 * The server connections of a loop, for HTTP/2 and HTTP/1.1: adoption, events, draining. Loop
 * thread, except for functions of the server.
 */
#include "net/grpc_internal.h"

#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/container.h"
#include "base/hash.h"
#include "base/heap.h"
#include "base/log.h"
#include "net/http1_server.h"

enum {
    CONNECTION_WINDOW_BYTES = 8 * 1024 * 1024,
    FRAME_BYTES_MAX = 16 * 1024, /* the minimum of HTTP/2 suffices, because requests are small */
    RECHECKS_PER_TURN = 16,
};

/* ---- servers --------------------------------------------------------------------------------- */

struct hps_grpc_server *hps_grpc_server_new(const struct hps_grpc_limits *limits,
                                            const struct hps_grpc_observer *observer)
{
    struct hps_grpc_server *server = hps_calloc(1, sizeof *server);

    HPS_ASSERT(limits->request_bytes_max > 0 && limits->streams_max > 0);
    if (server != NULL) {
        server->limits = *limits;
        if (observer != NULL) {
            server->observer = *observer;
        }
    }
    return server;
}

void hps_grpc_server_guard_set(struct hps_grpc_server *server, const struct hps_grpc_guard *guard)
{
    HPS_ASSERT(guard->visitor_new != NULL && guard->visitor_free != NULL);
    HPS_ASSERT(guard->visitor_again != NULL && guard->enter != NULL);
    HPS_ASSERT(guard->again != NULL && guard->release != NULL);
    server->guard = *guard;
}

void hps_grpc_server_limits_use(struct hps_grpc_server *server, struct hps_limits *limits,
                                uint32_t operator_mask)
{
    server->accounts = limits;
    server->operator_mask = operator_mask;
}

void hps_grpc_server_free(struct hps_grpc_server *server)
{
    if (server != NULL) {
        hps_free(server->entries);
        hps_free(server->routes);
        hps_free(server);
    }
}

/* ---- flow control ---------------------------------------------------------------------------- */

/* Dispatches HELD requests, oldest first, and returns bytes to flow-control windows, while the
 * connection is not full. */
static void release_held(struct grpc_conn *conn)
{
    while (!TAILQ_EMPTY(&conn->held) && !grpc_conn_is_full(conn) && !grpc_conn_is_spent(conn)) {
        grpc_call_dispatch(TAILQ_FIRST(&conn->held));
        grpc_conn_see(conn, hps_clock_us());
    }
    if (!TAILQ_EMPTY(&conn->held) && !grpc_conn_is_full(conn)) {
        grpc_conn_resume(conn);
    }
    if (conn->withheld && !grpc_conn_is_full(conn)) {
        conn->withheld = false;
        for (struct hps_grpc_call *call = conn->calls; call != NULL; call = call->next) {
            hps_http_consume(call->stream, call->request->unconsumed);
            call->request->unconsumed = 0;
        }
    }
    HPS_DEBUG_SANE(grpc_conn_sane(conn));
}

/* Continues calls with stashed messages. */
static void resume_stashed(struct grpc_conn *conn)
{
    struct hps_grpc_call *call = conn->calls;

    conn->stashed = false;
    while (call != NULL) {
        struct hps_grpc_call *next = NULL;
        hps_grpc_call_ref(call);
        grpc_call_resume(call);
        if (call->conn == conn) {
            next = call->next;
        } else {
            conn->stashed = true; /* the call was closed; another slice resumes the rest */
        }
        hps_grpc_call_unref(call);
        call = next;
    }
}

static void go_on(struct hps_run_item *item, unsigned events)
{
    struct grpc_conn *conn = HPS_CONTAINER_OF(item, struct grpc_conn, item);

    (void)events;
    release_held(conn);
    if (conn->stashed && !grpc_conn_is_spent(conn)) {
        resume_stashed(conn);
    }
    if (conn->stashed) {
        grpc_conn_resume(conn);
    }
}

/* ---- events of a connection ------------------------------------------------------------------ */

static void on_stream(void *ctx, struct hps_http_stream *stream)
{
    struct grpc_conn *conn = ctx;
    struct hps_grpc_call *call = grpc_call_new(conn, stream);

    if (call == NULL) {
        hps_http_reset(stream, HPS_HTTP2_REFUSED_STREAM);
        return;
    }
    stream->user = call;
}

static void on_header(void *ctx, struct hps_http_stream *stream, const char *name, size_t name_size,
                      const char *value, size_t value_size)
{
    struct hps_grpc_call *call = stream->user;

    (void)ctx;
    if (call != NULL) {
        grpc_call_header(call, name, name_size, value, value_size);
    }
}

static void on_headers(void *ctx, struct hps_http_stream *stream)
{
    struct hps_grpc_call *call = stream->user;

    (void)ctx;
    if (call != NULL) {
        grpc_call_headers_done(call);
    }
}

static void on_data(void *ctx, struct hps_http_stream *stream, const uint8_t *data, size_t size)
{
    struct hps_grpc_call *call = stream->user;

    (void)ctx;
    if (call == NULL) {
        hps_http_consume(stream, size);
        return;
    }
    call->reply->progress.at_us = hps_loop_now_us(call->loop);
    call->request->received += size;
    if (call->home->is_http) {
        grpc_http_data(call, data, size);
    } else {
        grpc_call_data(call, data, size);
    }
}

static uint8_t *on_room(void *ctx, struct hps_http_stream *stream, size_t size, size_t *out_room)
{
    struct hps_grpc_call *call = stream->user;

    (void)ctx;
    return call != NULL && call->home->is_http ? grpc_http_room(call, size, out_room) : NULL;
}

static void on_end(void *ctx, struct hps_http_stream *stream)
{
    struct hps_grpc_call *call = stream->user;

    (void)ctx;
    if (call == NULL || grpc_call_is_finished(call) ||
        call->request->phase == GRPC_REQUEST_HEADERS) {
        return;
    }
    if (call->home->is_http) {
        grpc_http_end(call);
    } else {
        grpc_call_end(call);
    }
}

static void on_trailers(void *ctx, struct hps_http_stream *stream)
{
    (void)ctx;
    grpc_call_trailers(stream->user);
}

static void on_sent(void *ctx, struct hps_http_stream *stream)
{
    struct hps_grpc_call *call = stream->user;

    (void)ctx;
    if (call != NULL) {
        grpc_call_sent(call);
    }
}

static void on_released(void *ctx)
{
    struct grpc_conn *conn = ctx;

    if (conn->http->queued == 0) {
        grpc_pace_rest(&conn->pace);
    }
    release_held(conn);
}

/* Checks invariants only after the last call: a check after each call would take quadratic time.
 * release_held checks them, too. */
static void on_stream_closed(void *ctx, struct hps_http_stream *stream, uint32_t error)
{
    struct grpc_conn *conn = ctx;
    struct hps_grpc_call *call = stream->user;

    if (call != NULL) {
        grpc_call_closed(call, error);
    }
    if (conn->calls == NULL) {
        HPS_DEBUG_SANE(grpc_conn_sane(conn));
    }
}

static void loop_phase_set(struct hps_grpc_loop *grpc_loop, enum grpc_loop_phase to)
{
    static const unsigned follows[GRPC_LOOP_PHASES] = {
        [GRPC_LOOP_SERVING] = 1u << GRPC_LOOP_DRAINING | 1u << GRPC_LOOP_FREED,
        [GRPC_LOOP_DRAINING] = 1u << GRPC_LOOP_DRAINED | 1u << GRPC_LOOP_FREED,
        [GRPC_LOOP_DRAINED] = 1u << GRPC_LOOP_FREED,
    };

    HPS_ASSERT(hps_loop_is_mine(grpc_loop->loop));
    HPS_ASSERT((follows[grpc_loop->phase] & 1u << to) != 0);
    grpc_loop->phase = to;
}

static void conn_gone(struct grpc_conn *conn)
{
    struct hps_grpc_loop *grpc_loop = conn->grpc_loop;
    const struct hps_grpc_observer *observer = &grpc_loop->server->observer;

    HPS_ASSERT(conn->calls == NULL && TAILQ_EMPTY(&conn->held));
    hps_run_remove(&conn->item);
    if (conn->prev != NULL) {
        conn->prev->next = conn->next;
    } else {
        grpc_loop->conns = conn->next;
    }
    if (conn->next != NULL) {
        conn->next->prev = conn->prev;
    }
    if (grpc_loop->tick_next == conn) {
        grpc_loop->tick_next = conn->next;
        if (conn->next == NULL) {
            grpc_notes_complete(grpc_loop);
        }
    }
    for (unsigned what = 0; what < GRPC_PRESSURES; what++) {
        if (grpc_loop->cut_next[what] == conn) {
            grpc_loop->cut_next[what] = conn->next;
        }
    }
    atomic_fetch_sub_explicit(&grpc_loop->n_conns, 1, memory_order_relaxed);
    if (observer->on_connection != NULL) {
        observer->on_connection(observer->ctx, conn->is_http, -1);
    }
    if (conn->visitor != NULL) {
        grpc_loop->server->guard.visitor_free(conn->visitor);
    }
    hps_place_free(conn->seat);
    conn->seat = NULL;
    conn->http = NULL;
    grpc_conn_unref(conn);
    if (grpc_loop->phase == GRPC_LOOP_DRAINING && grpc_loop->conns == NULL) {
        hps_loop_later_set(grpc_loop->loop, &grpc_loop->drained);
    }
}

static void on_closed(void *ctx, const struct hps_error *why)
{
    struct grpc_conn *conn = ctx;

    HPS_LOG(DEBUG, "grpc", "connection closed", HPS_STR("reason", why->text));
    if (!conn->had_request) {
        grpc_conn_no_start(conn, why);
    }
    conn_gone(conn);
}

static const struct hps_http_events events = {
    .on_stream = on_stream,
    .on_header = on_header,
    .on_headers = on_headers,
    .on_data = on_data,
    .on_buffer = on_room,
    .on_end = on_end,
    .on_trailers = on_trailers,
    .on_sent = on_sent,
    .on_released = on_released,
    .on_stream_closed = on_stream_closed,
    .on_closed = on_closed,
};

/* ---- adoption -------------------------------------------------------------------------------- */

struct adoption {
    struct hps_task task;
    struct hps_run_item item;
    struct hps_grpc_loop *grpc_loop;
    struct hps_conn *conn;
    struct grpc_conn *made; /* allocated before the task is posted */
};

/* The time at which the server drains a connection; 0: never. */
static uint64_t age_end(const struct grpc_conn *conn, const struct hps_grpc_limits *limits,
                        uint64_t now_us)
{
    uint64_t us = limits->age_max_us;
    uint64_t range_us = (uint64_t)((double)us * limits->age_jitter);
    uint64_t x = hps_mix64(hps_hash_secret() ^ now_us ^ (uint64_t)(uintptr_t)conn);

    return us == 0 ? 0 : now_us + us - range_us + (range_us > 0 ? x % (2 * range_us) : 0);
}

static hps_status open_http(struct hps_grpc_loop *grpc_loop, struct hps_conn *raw,
                            struct grpc_conn *conn, struct hps_error *err)
{
    const struct hps_grpc_limits *limits = grpc_loop->limits;
    const struct hps_http2_options options = {
        .server = true,
        .streams_max = limits->streams_max,
        .window_bytes = GRPC_WINDOW_BYTES,
        .connection_window_bytes = CONNECTION_WINDOW_BYTES,
        .frame_bytes_max = FRAME_BYTES_MAX,
        .header_bytes_max = GRPC_METADATA_BYTES_MAX,
        .header_fields_max = GRPC_METADATA_FIELDS_MAX,
        .handshake_timeout_us = limits->handshake_timeout_us,
    };

    return conn->is_http
               ? hps_http1_serve(grpc_loop->loop, &grpc_loop->http_queued, raw,
                                 limits->handshake_timeout_us, &events, conn, &conn->http, err)
               : hps_http2_new(grpc_loop->shared, raw, &options, &events, conn, &conn->http, err);
}

static void open_conn(struct hps_grpc_loop *grpc_loop, struct hps_conn *raw, struct grpc_conn *conn)
{
    const struct hps_grpc_observer *observer = &grpc_loop->server->observer;
    struct hps_error err;
    uint64_t now_us = hps_clock_us();

    atomic_init(&conn->refs, 1);
    conn->grpc_loop = grpc_loop;
    TAILQ_INIT(&conn->held);
    hps_run_item_init(&conn->item, hps_loop_work(grpc_loop->loop), hps_conn_client(raw), go_on);
    conn->idle_us = now_us;
    conn->written_us = now_us;
    conn->age_end_us = age_end(conn, grpc_loop->limits, now_us);
    conn->client = hps_conn_client(raw);
    strncpy(conn->peer, hps_conn_peer(raw), sizeof conn->peer - 1);
    conn->seat = hps_conn_place_take(raw);
    hps_status status =
        grpc_seat_account(grpc_loop->server, raw, conn->listener_mask, &conn->account);
    if (status != HPS_OK) {
        hps_error_set(&err, status, "no memory");
        hps_conn_free(raw);
    } else {
        status = open_http(grpc_loop, raw, conn, &err);
    }
    if (status != HPS_OK) {
        HPS_LOG(WARN, "grpc", "connection refused: it could not be set up",
                HPS_STR("reason", err.text));
        hps_place_free(conn->seat);
        grpc_conn_unref(conn);
        return;
    }
    conn->next = grpc_loop->conns;
    if (conn->next != NULL) {
        conn->next->prev = conn;
    }
    grpc_loop->conns = conn;
    atomic_fetch_add_explicit(&grpc_loop->n_conns, 1, memory_order_relaxed);
    if (observer->on_connection != NULL) {
        observer->on_connection(observer->ctx, conn->is_http, 1);
    }
    grpc_conn_leave(conn, now_us); /* it may have been displaced before */
}

static void adopt(struct hps_run_item *item, unsigned due)
{
    struct adoption *adoption = HPS_CONTAINER_OF(item, struct adoption, item);
    struct hps_grpc_loop *grpc_loop = adoption->grpc_loop;

    (void)due;
    hps_run_remove(item);
    if (grpc_loop->phase != GRPC_LOOP_SERVING) {
        hps_conn_free(adoption->conn);
        hps_free(adoption->made);
    } else {
        open_conn(grpc_loop, adoption->conn, adoption->made);
    }
    hps_free(adoption);
    grpc_loop_unref(grpc_loop);
}

static void queue_adoption(struct hps_task *task)
{
    struct adoption *adoption = HPS_CONTAINER_OF(task, struct adoption, task);

    hps_run_item_init(&adoption->item, hps_loop_work(adoption->grpc_loop->loop),
                      hps_conn_client(adoption->conn), adopt);
    hps_run_add(&adoption->item, 1);
}

void hps_grpc_loop_adopt(struct hps_grpc_loop *grpc_loop, struct hps_conn *conn,
                         uint32_t listener_mask, bool is_http)
{
    struct adoption *adoption = hps_calloc(1, sizeof *adoption);
    struct grpc_conn *made = hps_calloc(1, sizeof *made);

    if (adoption == NULL || made == NULL) {
        goto fail;
    }
    made->listener_mask = listener_mask;
    made->is_http = is_http;
    *adoption = (struct adoption){
        .task = {.run = queue_adoption}, .grpc_loop = grpc_loop, .conn = conn, .made = made};
    atomic_fetch_add_explicit(&grpc_loop->refs, 1, memory_order_relaxed);
    grpc_seat_watch(grpc_loop, hps_conn_place(conn));
    hps_loop_post(grpc_loop->loop, &adoption->task);
    return;

fail:
    HPS_LOG(WARN, "grpc", "connection refused: it could not be set up",
            HPS_STR("peer", hps_conn_peer(conn)), HPS_STR("reason", "no memory"));
    hps_free(made);
    hps_free(adoption);
    hps_conn_free(conn);
}

/* ---- changed rules --------------------------------------------------------------------------- */

static void recheck_conn(struct grpc_conn *conn)
{
    struct hps_error err;

    conn->rechecked = conn->grpc_loop->changes;
    /* Otherwise the new rules apply to the first call, and the handshake checks the certificate. */
    if (conn->http->ready && grpc_guard_again(conn, &err) != HPS_OK) {
        hps_http_abort(conn->http, HPS_HTTP2_NO_ERROR, err.text);
    }
}

/* Checks a few connections per iteration, because checking a certificate takes about 100 us. */
static void on_recheck(void *ctx)
{
    struct hps_grpc_loop *grpc_loop = ctx;
    unsigned n = 0;

    for (struct grpc_conn *conn = grpc_loop->conns; conn != NULL; conn = conn->next) {
        if (conn->rechecked == grpc_loop->changes) {
            continue;
        }
        if (n++ == RECHECKS_PER_TURN) {
            hps_loop_later_set(grpc_loop->loop, &grpc_loop->recheck);
            return;
        }
        recheck_conn(conn);
    }
}

void hps_grpc_loop_recheck(struct hps_grpc_loop *grpc_loop)
{
    HPS_ASSERT(hps_loop_is_mine(grpc_loop->loop));
    grpc_loop->changes++;
    hps_loop_later_set(grpc_loop->loop, &grpc_loop->recheck);
}

/* ---- loops ----------------------------------------------------------------------------------- */

static void on_drained(void *ctx)
{
    struct hps_grpc_loop *grpc_loop = ctx;

    HPS_ASSERT(grpc_loop->conns == NULL); /* and new ones are closed */
    loop_phase_set(grpc_loop, GRPC_LOOP_DRAINED);
    grpc_loop->drain_done(grpc_loop->drain_ctx);
}

hps_status hps_grpc_loop_new(struct hps_grpc_server *server, struct hps_loop *loop,
                             struct hps_grpc_loop **out_grpc_loop)
{
    struct hps_grpc_loop *grpc_loop = hps_calloc(1, sizeof *grpc_loop + sizeof *grpc_loop->limits);

    if (grpc_loop == NULL) {
        return HPS_NO_MEMORY;
    }
    grpc_loop->shared = hps_http2_shared_new(loop);
    if (grpc_loop->shared == NULL) {
        hps_free(grpc_loop);
        return HPS_NO_MEMORY;
    }
    grpc_loop->server = server;
    grpc_loop->loop = loop;
    grpc_loop->limits = (struct hps_grpc_limits *)(grpc_loop + 1);
    *grpc_loop->limits = server->limits;
    grpc_loop->press.run = grpc_loop_pressed;
    grpc_loop->next = server->loops;
    server->loops = grpc_loop;
    atomic_init(&grpc_loop->refs, 1);
    atomic_init(&grpc_loop->n_conns, 0);
    atomic_init(&grpc_loop->http_queued, 0);
    hps_loop_later_init(&grpc_loop->drained, on_drained, grpc_loop);
    hps_loop_later_init(&grpc_loop->recheck, on_recheck, grpc_loop);
    hps_timer_init(&grpc_loop->tick, grpc_loop_tick, grpc_loop);
    hps_timer_set_after(loop, &grpc_loop->tick, grpc_tick_us(grpc_loop->limits));
    *out_grpc_loop = grpc_loop;
    return HPS_OK;
}

void hps_grpc_loop_limits_set(struct hps_grpc_loop *grpc_loop, const struct hps_grpc_limits *limits)
{
    HPS_ASSERT(hps_loop_is_mine(grpc_loop->loop));
    HPS_ASSERT(limits->request_bytes_max > 0 && limits->streams_max > 0);
    *grpc_loop->limits = *limits;
    hps_timer_set_after(grpc_loop->loop, &grpc_loop->tick,
                        grpc_loop->tick_next != NULL ? 0 : grpc_tick_us(limits));
}

void hps_grpc_loop_drain(struct hps_grpc_loop *grpc_loop, void (*done)(void *ctx), void *ctx)
{
    uint64_t now_us = hps_clock_us();

    HPS_ASSERT(done != NULL);
    loop_phase_set(grpc_loop, GRPC_LOOP_DRAINING);
    grpc_loop->drain_done = done;
    grpc_loop->drain_ctx = ctx;
    for (struct grpc_conn *conn = grpc_loop->conns; conn != NULL; conn = conn->next) {
        if (conn->http->ready) {
            grpc_conn_drain(conn, now_us);
        } else {
            hps_http_abort(conn->http, HPS_HTTP2_NO_ERROR, "draining");
        }
    }
    if (grpc_loop->conns == NULL) {
        hps_loop_later_set(grpc_loop->loop, &grpc_loop->drained);
    }
}

void hps_grpc_loop_free(struct hps_grpc_loop *grpc_loop)
{
    if (grpc_loop == NULL) {
        return;
    }
    struct hps_grpc_loop **at = &grpc_loop->server->loops;
    while (*at != grpc_loop) {
        at = &(*at)->next;
    }
    *at = grpc_loop->next;
    loop_phase_set(grpc_loop, GRPC_LOOP_FREED);
    hps_timer_stop(&grpc_loop->tick);
    while (grpc_loop->conns != NULL) {
        struct grpc_conn *conn = grpc_loop->conns;
        hps_http_free(conn->http);
        conn_gone(conn);
    }
    hps_loop_later_stop(&grpc_loop->drained);
    hps_loop_later_stop(&grpc_loop->recheck);
    hps_http2_shared_free(grpc_loop->shared);
    grpc_loop->shared = NULL;
    grpc_loop_unref(grpc_loop);
}

size_t hps_grpc_loop_bytes_in_flight(const struct hps_grpc_loop *grpc_loop)
{
    return hps_http2_shared_queued(grpc_loop->shared) +
           atomic_load_explicit(&grpc_loop->http_queued, memory_order_relaxed);
}

unsigned hps_grpc_loop_connections(const struct hps_grpc_loop *grpc_loop)
{
    return atomic_load_explicit(&grpc_loop->n_conns, memory_order_relaxed);
}
