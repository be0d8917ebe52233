/* SPDX-License-Identifier: Apache-2.0
 *
 * The server connections of a loop, of either version of HTTP: their methods, limits, age and end.
 * The method table is immutable once connections come; everything else runs on the loop thread.
 */
#include "net/grpc_internal.h"

#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/container.h"
#include "base/heap.h"
#include "base/log.h"
#include "net/http1_server.h"

enum {
    CONNECTION_WINDOW_BYTES = 8 * 1024 * 1024,
    FRAME_BYTES_MAX = 16 * 1024, /* requests are small; more only widens what one frame can do */
    TICK_US_MIN = 5 * 1000,
    TICK_US_MAX = 1000 * 1000,
    RECHECKS_PER_TURN = 16,
    DRAIN_NOTICE_US = 1000 * 1000, /* for a client that does not answer the PING, or asks nothing */
    AGE_GRACE_US = 5 * 60 * 1000 * 1000, /* calls of an aged connection may still take this long */
};

/* ---- methods --------------------------------------------------------------------------------- */

struct hps_grpc_server *hps_grpc_server_new(const struct hps_grpc_limits *limits,
                                            const struct hps_grpc_observer *observer)
{
    struct hps_grpc_server *server = hps_calloc(1, sizeof *server);

    HPS_ASSERT(limits->request_bytes_max > 0 && limits->streams_max > 0);
    if (server != NULL) {
        server->limits = *limits;
        atomic_init(&server->watched_us, 0);
        atomic_init(&server->search.under_way, false);
        atomic_init(&server->search.ended_us, 0);
        if (observer != NULL) {
            server->observer = *observer;
        }
    }
    return server;
}

hps_status hps_grpc_server_add(struct hps_grpc_server *server,
                               const struct hps_grpc_service *service, uint32_t listener_mask)
{
    unsigned n = server->n_entries + service->n_methods;
    struct grpc_entry *entries = hps_realloc(server->entries, n * sizeof *entries);

    if (entries == NULL) {
        return HPS_NO_MEMORY;
    }
    server->entries = entries;
    for (unsigned i = 0; i < service->n_methods; i++) {
        const struct hps_grpc_method *method = &service->methods[i];
        HPS_ASSERT(method->path[0] == '/');
        HPS_ASSERT((method->on_message == NULL) == (method->on_packed != NULL));
        entries[server->n_entries++] = (struct grpc_entry){.ctx = service->ctx,
                                                           .method = method,
                                                           .path_size = strlen(method->path),
                                                           .listener_mask = listener_mask};
    }
    return HPS_OK;
}

void hps_grpc_server_guard_set(struct hps_grpc_server *server, const struct hps_grpc_guard *guard)
{
    HPS_ASSERT(guard->visitor_new != NULL && guard->visitor_free != NULL);
    HPS_ASSERT(guard->visitor_again != NULL && guard->enter != NULL);
    HPS_ASSERT(guard->again != NULL && guard->release != NULL);
    server->guard = *guard;
}

void hps_grpc_server_keep(struct hps_grpc_server *server, const char *const *names)
{
    server->kept_names = names;
}

bool grpc_server_keeps(const struct hps_grpc_server *server, const char *name, size_t name_size)
{
    for (const char *const *at = server->kept_names; at != NULL && *at != NULL; at++) {
        if (strlen(*at) == name_size && memcmp(*at, name, name_size) == 0) {
            return true;
        }
    }
    return false;
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

const struct grpc_entry *grpc_server_find(const struct hps_grpc_server *server, const char *path,
                                          size_t path_size, uint32_t listener_mask)
{
    for (unsigned i = 0; i < server->n_entries; i++) {
        const struct grpc_entry *entry = &server->entries[i];
        if (entry->path_size == path_size && (entry->listener_mask & listener_mask) != 0 &&
            memcmp(entry->method->path, path, path_size) == 0) {
            return entry;
        }
    }
    return NULL;
}

/* ---- back-pressure --------------------------------------------------------------------------- */

bool grpc_conn_is_full(const struct grpc_conn *conn)
{
    return (conn->account != NULL && hps_account_is_full(conn->account)) ||
           conn->http->queued > conn->grpc_loop->limits.connection_reply_bytes_max;
}

void grpc_conn_release_held(struct grpc_conn *conn)
{
    while (conn->held_head != NULL && !grpc_conn_is_full(conn) && !grpc_turn_is_over(conn)) {
        grpc_call_dispatch(conn->held_head);
        grpc_turn_see(conn, hps_clock_us());
    }
    if (conn->held_head != NULL && !grpc_conn_is_full(conn)) {
        grpc_turn_resume(conn);
    }
    if (conn->withheld && !grpc_conn_is_full(conn)) {
        conn->withheld = false;
        for (struct hps_grpc_call *call = conn->calls; call != NULL; call = call->next) {
            hps_http_consume(call->stream, call->request.unconsumed);
            call->request.unconsumed = 0;
        }
    }
    HPS_DEBUG_SANE(grpc_conn_sane(conn));
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
    if (call != NULL) {
        grpc_call_data(call, data, size);
    } else {
        hps_http_consume(stream, size);
    }
}

static uint8_t *on_room(void *ctx, struct hps_http_stream *stream, size_t size, size_t *out_room)
{
    struct hps_grpc_call *call = stream->user;

    (void)ctx;
    return call != NULL && call->is_http ? grpc_http_room(call, size, out_room) : NULL;
}

static void on_end(void *ctx, struct hps_http_stream *stream)
{
    struct hps_grpc_call *call = stream->user;

    (void)ctx;
    if (call != NULL) {
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
    grpc_conn_release_held(conn);
}

/* Those that are left are looked at in grpc_conn_release_held and each tick, not once for each that
 * ends. */
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

void grpc_loop_unref(struct hps_grpc_loop *grpc_loop)
{
    if (atomic_fetch_sub_explicit(&grpc_loop->refs, 1, memory_order_acq_rel) == 1) {
        hps_free(grpc_loop);
    }
}

void grpc_conn_unref(struct grpc_conn *conn)
{
    unsigned refs = atomic_fetch_sub_explicit(&conn->refs, 1, memory_order_acq_rel);

    HPS_ASSERT(refs > 0);
    if (refs == 1) {
        hps_account_unref(conn->account);
        hps_free(conn);
    }
}

static void conn_gone(struct grpc_conn *conn)
{
    struct hps_grpc_loop *grpc_loop = conn->grpc_loop;
    const struct hps_grpc_observer *observer = &grpc_loop->server->observer;

    HPS_ASSERT(conn->calls == NULL && conn->held_head == NULL);
    grpc_turn_fini(conn);
    if (conn->prev != NULL) {
        conn->prev->next = conn->next;
    } else {
        grpc_loop->conns = conn->next;
    }
    if (conn->next != NULL) {
        conn->next->prev = conn->prev;
    }
    atomic_fetch_sub_explicit(&grpc_loop->n_conns, 1, memory_order_relaxed);
    if (observer->on_connection != NULL) {
        observer->on_connection(observer->ctx, conn->is_http, -1);
    }
    if (conn->visitor != NULL) {
        grpc_loop->server->guard.visitor_free(conn->visitor);
    }
    hps_peer_slot_free(conn->seat);
    conn->seat = NULL;
    hps_loop_later_stop(&conn->later);
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
    struct hps_grpc_loop *grpc_loop;
    struct hps_conn *conn;
    struct grpc_conn *made; /* all of its memory, so that nothing is missing later */
};

static uint64_t jittered(struct hps_grpc_loop *grpc_loop, uint64_t us)
{
    uint64_t x = grpc_loop->jitter;

    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    grpc_loop->jitter = x;
    uint64_t range_us = (uint64_t)((double)us * grpc_loop->limits.age_jitter);
    return us - range_us + (range_us > 0 ? x % (2 * range_us) : 0);
}

static hps_status open_http(struct hps_grpc_loop *grpc_loop, struct hps_conn *raw,
                            struct grpc_conn *conn, struct hps_error *err)
{
    const struct hps_grpc_limits *limits = &grpc_loop->limits;
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
               : hps_http2_serve(grpc_loop->shared, raw, &options, &events, conn, &conn->http, err);
}

static void on_later(void *ctx)
{
    grpc_conn_release_held(ctx);
}

static void open_conn(struct hps_grpc_loop *grpc_loop, struct hps_conn *raw, struct grpc_conn *conn)
{
    const struct hps_grpc_limits *limits = &grpc_loop->limits;
    const struct hps_grpc_observer *observer = &grpc_loop->server->observer;
    struct hps_error err;
    uint64_t now_us = hps_clock_us();

    atomic_init(&conn->refs, 1);
    conn->grpc_loop = grpc_loop;
    hps_loop_later_init(&conn->later, on_later, conn);
    grpc_turn_init(conn);
    conn->idle_us = now_us;
    conn->written_us = now_us;
    conn->age_end_us =
        limits->age_max_us > 0 ? now_us + jittered(grpc_loop, limits->age_max_us) : 0;
    conn->client = hps_conn_client(raw);
    strncpy(conn->peer, hps_conn_peer(raw), sizeof conn->peer - 1);
    conn->seat = hps_conn_slot_take(raw);
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
        hps_peer_slot_free(conn->seat);
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
    grpc_conn_leave(conn, now_us); /* it may have been asked to already */
}

static void adopt(struct hps_task *task)
{
    struct adoption *adoption = HPS_CONTAINER_OF(task, struct adoption, task);
    struct hps_grpc_loop *grpc_loop = adoption->grpc_loop;

    if (grpc_loop->phase != GRPC_LOOP_SERVING) {
        hps_conn_free(adoption->conn);
        hps_free(adoption->made);
    } else {
        open_conn(grpc_loop, adoption->conn, adoption->made);
    }
    hps_free(adoption);
    grpc_loop_unref(grpc_loop);
}

static void adopt_as(struct hps_grpc_loop *grpc_loop, struct hps_conn *conn, uint32_t listener_mask,
                     bool is_http)
{
    struct adoption *adoption = hps_calloc(1, sizeof *adoption);
    struct grpc_conn *made = hps_calloc(1, sizeof *made);

    if (adoption == NULL || made == NULL) {
        goto fail;
    }
    made->listener_mask = listener_mask;
    made->is_http = is_http;
    *adoption = (struct adoption){
        .task = {.run = adopt}, .grpc_loop = grpc_loop, .conn = conn, .made = made};
    atomic_fetch_add_explicit(&grpc_loop->refs, 1, memory_order_relaxed);
    grpc_seat_watch(grpc_loop, hps_conn_slot(conn));
    hps_loop_post(grpc_loop->loop, &adoption->task);
    return;

fail:
    HPS_LOG(WARN, "grpc", "connection refused: it could not be set up",
            HPS_STR("peer", hps_conn_peer(conn)), HPS_STR("reason", "no memory"));
    hps_free(made);
    hps_free(adoption);
    hps_conn_free(conn);
}

void hps_grpc_loop_adopt(struct hps_grpc_loop *grpc_loop, struct hps_conn *conn,
                         uint32_t listener_mask)
{
    adopt_as(grpc_loop, conn, listener_mask, false);
}

void hps_grpc_loop_adopt_http(struct hps_grpc_loop *grpc_loop, struct hps_conn *conn,
                              uint32_t listener_mask)
{
    adopt_as(grpc_loop, conn, listener_mask, true);
}

/* ---- time ------------------------------------------------------------------------------------ */

void grpc_conn_drain(struct grpc_conn *conn, uint64_t now_us)
{
    if (conn->drain_us == 0 || conn->is_http) { /* HTTP/1.1 may wait since long: another reason */
        conn->drain_us = now_us;
        hps_http_drain(conn->http);
    }
}

static bool passed(uint64_t now_us, uint64_t since_us, uint64_t limit_us)
{
    return limit_us > 0 && now_us > since_us && now_us - since_us > limit_us;
}

static void check_silence(struct grpc_conn *conn, uint64_t now_us)
{
    const struct hps_grpc_limits *limits = &conn->grpc_loop->limits;
    uint64_t read_us = conn->http->read_us;

    if (conn->http->ops->ping == NULL) {
        return;
    }
    if (conn->ping_us != 0 && read_us >= conn->ping_us) {
        conn->ping_us = 0;
    }
    if (conn->ping_us == 0) {
        if (passed(now_us, read_us, limits->keepalive_us)) {
            conn->ping_us = now_us;
            conn->http->ops->ping(conn->http);
        }
    } else if (passed(now_us, conn->ping_us, limits->keepalive_timeout_us)) {
        hps_http_abort(conn->http, HPS_HTTP2_NO_ERROR, "keepalive PING not answered");
    }
}

/* Calls whose peer neither takes the reply nor sends the rest of the request. */
static void check_calls(struct grpc_conn *conn, uint64_t now_us)
{
    uint64_t stall_us = conn->grpc_loop->limits.stall_timeout_us;
    uint64_t written = conn->http->written;

    if (written != conn->written || !conn->http->blocked) {
        conn->written = written;
        conn->written_us = now_us;
    } else if (passed(now_us, conn->written_us, stall_us)) {
        hps_http_abort(conn->http, HPS_HTTP2_NO_ERROR, "the peer does not read");
        return;
    }
    if (!grpc_paces_check(conn, now_us)) {
        return;
    }
    grpc_intakes_check(conn, now_us);
    for (struct hps_grpc_call *call = conn->calls; call != NULL; call = call->next) {
        const struct hps_grpc_method *method = call->entry != NULL ? call->entry->method : NULL;
        uint64_t framed = call->stream->framed;
        bool sending = call->stream->queued > 0;
        bool receiving = call->request.phase <= GRPC_REQUEST_WHOLE &&
                         call->request.unconsumed == 0 &&
                         (method == NULL || !method->client_streaming);
        if (framed != call->progress.framed || (!sending && !receiving)) {
            call->progress.framed = framed;
            call->progress.at_us = now_us;
        } else if (passed(now_us, call->progress.at_us, stall_us)) {
            call->progress.at_us = now_us;
            grpc_call_stalled(call);
        }
    }
}

static bool is_unused(const struct grpc_conn *conn, uint64_t now_us)
{
    return conn->calls == NULL &&
           passed(now_us, conn->idle_us, conn->grpc_loop->limits.idle_timeout_us);
}

/* HTTP/2 has announced the end. HTTP/1.1 can do so only in an answer: it waits for a request until
 * nobody uses the connection, or the server itself ends. */
static bool notice_is_over(const struct grpc_conn *conn, uint64_t now_us)
{
    uint64_t since_us = conn->drain_us;

    if (conn->is_http) {
        since_us = conn->idle_us > since_us ? conn->idle_us : since_us;
        if (conn->calls != NULL || conn->grpc_loop->phase == GRPC_LOOP_SERVING) {
            return is_unused(conn, now_us);
        }
    }
    return passed(now_us, since_us, DRAIN_NOTICE_US);
}

static void check_conn(struct grpc_conn *conn, uint64_t now_us)
{
    const struct hps_grpc_limits *limits = &conn->grpc_loop->limits;

    if (!hps_http_is_ready(conn->http)) {
        return; /* the connection itself watches its handshake */
    }
    if (!conn->had_request && passed(now_us, conn->idle_us, limits->handshake_timeout_us)) {
        conn->late = true;
        hps_http_abort(conn->http, HPS_HTTP2_NO_ERROR, "no request in time");
        return;
    }
    if (conn->http->head_us != 0 &&
        passed(now_us, conn->http->head_us, limits->handshake_timeout_us)) {
        hps_http_abort(conn->http, HPS_HTTP2_NO_ERROR,
                       "the head of a request did not come in time");
        return;
    }
    if (conn->drain_us == 0 &&
        ((conn->age_end_us != 0 && now_us > conn->age_end_us) || is_unused(conn, now_us))) {
        grpc_conn_drain(conn, now_us);
    }
    if (conn->drain_us != 0) {
        if (notice_is_over(conn, now_us)) {
            hps_http_drain_now(conn->http);
        }
        if ((!conn->is_http && passed(now_us, conn->drain_us, AGE_GRACE_US)) ||
            grpc_conn_must_go(conn, now_us)) {
            hps_http_abort(conn->http, HPS_HTTP2_NO_ERROR, "calls outlived the drain");
            return;
        }
    }
    check_silence(conn, now_us);
    check_calls(conn, now_us);
    HPS_DEBUG_SANE(grpc_conn_sane(conn));
}

static void on_tick(void *ctx)
{
    struct hps_grpc_loop *grpc_loop = ctx;
    uint64_t now_us = hps_clock_us();

    grpc_intakes_tick(grpc_loop, now_us);
    /* Nothing here closes a connection at once, so that the list does not change. */
    for (struct grpc_conn *conn = grpc_loop->conns; conn != NULL; conn = conn->next) {
        check_conn(conn, now_us);
    }
    hps_timer_set_after(grpc_loop->loop, &grpc_loop->tick, grpc_loop->tick_us);
}

static uint64_t tick_of(const struct hps_grpc_limits *limits)
{
    const uint64_t times[] = {limits->handshake_timeout_us, limits->stall_timeout_us,
                              limits->idle_timeout_us,      limits->age_max_us,
                              limits->keepalive_us,         limits->keepalive_timeout_us};
    uint64_t tick_us = TICK_US_MAX;

    for (unsigned i = 0; i < sizeof times / sizeof *times; i++) {
        if (times[i] > 0 && times[i] / 8 < tick_us) {
            tick_us = times[i] / 8;
        }
    }
    return tick_us < TICK_US_MIN ? TICK_US_MIN : tick_us;
}

/* ---- rules that change ----------------------------------------------------------------------- */

static void recheck_conn(struct grpc_conn *conn)
{
    struct hps_error err;

    conn->rechecked = conn->grpc_loop->changes;
    /* If it is not ready its first call is judged by the new rules, and so is its certificate. */
    if (hps_http_is_ready(conn->http) && grpc_guard_again(conn, &err) != HPS_OK) {
        hps_http_abort(conn->http, HPS_HTTP2_NO_ERROR, err.text);
    }
}

/* Checking a certificate takes some 100 us: a few of them in each turn. */
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

    HPS_ASSERT(grpc_loop->conns == NULL); /* nor are new ones taken */
    loop_phase_set(grpc_loop, GRPC_LOOP_DRAINED);
    grpc_loop->drain_done(grpc_loop->drain_ctx);
}

hps_status hps_grpc_loop_new(struct hps_grpc_server *server, struct hps_loop *loop,
                             struct hps_grpc_loop **out_grpc_loop)
{
    struct hps_grpc_loop *grpc_loop = hps_calloc(1, sizeof *grpc_loop);

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
    grpc_loop->limits = server->limits;
    grpc_loop->tick_us = tick_of(&grpc_loop->limits);
    grpc_loop->jitter = hps_clock_us() ^ (uint64_t)(uintptr_t)grpc_loop ^ 0x9e3779b97f4a7c15u;
    grpc_paces_init(grpc_loop);
    atomic_init(&grpc_loop->refs, 1);
    atomic_init(&grpc_loop->n_conns, 0);
    atomic_init(&grpc_loop->http_queued, 0);
    atomic_init(&grpc_loop->leave_posted, false);
    hps_loop_later_init(&grpc_loop->drained, on_drained, grpc_loop);
    hps_loop_later_init(&grpc_loop->recheck, on_recheck, grpc_loop);
    hps_timer_init(&grpc_loop->tick, on_tick, grpc_loop);
    hps_timer_set_after(loop, &grpc_loop->tick, grpc_loop->tick_us);
    *out_grpc_loop = grpc_loop;
    return HPS_OK;
}

void hps_grpc_loop_limits_set(struct hps_grpc_loop *grpc_loop, const struct hps_grpc_limits *limits)
{
    HPS_ASSERT(hps_loop_is_mine(grpc_loop->loop));
    HPS_ASSERT(limits->request_bytes_max > 0 && limits->streams_max > 0);
    grpc_loop->limits = *limits;
    grpc_loop->tick_us = tick_of(limits);
    hps_timer_set_after(grpc_loop->loop, &grpc_loop->tick, grpc_loop->tick_us);
}

void hps_grpc_loop_drain(struct hps_grpc_loop *grpc_loop, void (*done)(void *ctx), void *ctx)
{
    uint64_t now_us = hps_clock_us();

    HPS_ASSERT(done != NULL);
    loop_phase_set(grpc_loop, GRPC_LOOP_DRAINING);
    grpc_loop->drain_done = done;
    grpc_loop->drain_ctx = ctx;
    for (struct grpc_conn *conn = grpc_loop->conns; conn != NULL; conn = conn->next) {
        if (hps_http_is_ready(conn->http)) {
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
    loop_phase_set(grpc_loop, GRPC_LOOP_FREED);
    grpc_paces_fini(grpc_loop);
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
