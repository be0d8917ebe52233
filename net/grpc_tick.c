/* SPDX-License-Identifier: Apache-2.0
 *
 * Time limits of connections and calls. A tick of the loop checks all connections, some of them in
 * each iteration. Also the actions of a loop when memory is short. Loop thread.
 */
#include "base/assert.h"
#include "base/clock.h"
#include "base/container.h"
#include "net/grpc_internal.h"

enum {
    TICK_US_MIN = 5 * 1000,
    TICK_US_MAX = 1000 * 1000,
    CHECKS_PER_TURN = 64,                /* connections per iteration, at most */
    CHECKS_US = 100,                     /* per iteration: a connection may have many calls */
    DRAIN_NOTICE_US = 1000 * 1000,       /* for a reply to the PING, or for another request */
    AGE_GRACE_US = 5 * 60 * 1000 * 1000, /* for calls of a draining HTTP/2 connection */
};

static bool passed(uint64_t now_us, uint64_t since_us, uint64_t limit_us)
{
    return limit_us > 0 && now_us > since_us && now_us - since_us > limit_us;
}

static void check_silence(struct grpc_conn *conn, uint64_t now_us)
{
    const struct hps_grpc_limits *limits = conn->grpc_loop->limits;
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

/* Ends calls if the client neither reads the reply nor sends the rest of the request in time. */
static void check_calls(struct grpc_conn *conn, uint64_t now_us)
{
    uint64_t stall_us = conn->grpc_loop->limits->stall_timeout_us;
    uint64_t written = conn->http->written;

    if (conn->calls != NULL && written != conn->written) {
        hps_place_busy(conn->seat, now_us);
    }
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
        bool receiving = call->request->phase <= GRPC_REQUEST_WHOLE &&
                         call->request->unconsumed == 0 &&
                         (method == NULL || !method->client_streaming);
        if (framed != call->reply->progress.framed || (!sending && !receiving)) {
            call->reply->progress.framed = framed;
            call->reply->progress.at_us = now_us;
        } else if (passed(now_us, call->reply->progress.at_us, stall_us)) {
            call->reply->progress.at_us = now_us;
            grpc_call_stalled(call);
        }
    }
}

static bool is_unused(const struct grpc_conn *conn, uint64_t now_us)
{
    return conn->calls == NULL &&
           passed(now_us, conn->idle_us, conn->grpc_loop->limits->idle_timeout_us);
}

/* Whether the client has had enough time to see the announced end. HTTP/2 sends GOAWAY at once.
 * HTTP/1.1 can announce the end only in a reply, so it waits for a request until the connection is
 * idle for long, or the server drains. */
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
    const struct hps_grpc_limits *limits = conn->grpc_loop->limits;

    if (!conn->http->ready) {
        return; /* the connection limits the time of its handshake */
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

/* Checks the connections that exist when a tick begins, some of them in each iteration. */
void grpc_loop_tick(void *ctx)
{
    struct hps_grpc_loop *grpc_loop = ctx;
    uint64_t from_us = hps_clock_us();

    if (grpc_loop->tick_next == NULL) {
        grpc_loop->tick_next = grpc_loop->conns;
        grpc_notes_begin(grpc_loop, from_us);
    }
    for (unsigned n = 0; n < CHECKS_PER_TURN && grpc_loop->tick_next != NULL &&
                         hps_clock_us() - from_us <= CHECKS_US;
         n++) {
        struct grpc_conn *conn = grpc_loop->tick_next;
        grpc_loop->tick_next = conn->next;
        check_conn(conn, from_us);
    }
    if (grpc_loop->tick_next == NULL) {
        grpc_notes_complete(grpc_loop);
    }
    hps_timer_set_after(grpc_loop->loop, &grpc_loop->tick,
                        grpc_loop->tick_next != NULL ? 0 : grpc_tick_us(grpc_loop->limits));
}

static void relieve(struct hps_grpc_loop *grpc_loop, enum grpc_pressure what)
{
    uint64_t client = atomic_load(&grpc_loop->server->pressed_client[what]);

    switch (what) {
    case GRPC_NOTE_CLIENTS:
        if (grpc_loop->limits->reply_bytes_per_s_min > 0) {
            hps_timer_set_after(grpc_loop->loop, &grpc_loop->tick, 0);
        }
        break;
    case GRPC_CUT_READERS:
    case GRPC_CUT_OWN_READERS:
        grpc_paces_cut(grpc_loop, what, client);
        break;
    case GRPC_CUT_SENDERS:
    case GRPC_CUT_OWN_SENDERS:
        grpc_intakes_cut(grpc_loop, what, client);
        break;
    default:
        grpc_conns_leave(grpc_loop);
        break;
    }
}

void grpc_loop_pressed(struct hps_task *task)
{
    struct hps_grpc_loop *grpc_loop = HPS_CONTAINER_OF(task, struct hps_grpc_loop, press);
    unsigned pressed = atomic_exchange(&grpc_loop->pressed, 0);

    if (grpc_loop->phase != GRPC_LOOP_FREED) {
        for (enum grpc_pressure what = 0; what < GRPC_PRESSURES; what++) {
            if ((pressed & 1u << what) != 0) {
                relieve(grpc_loop, what);
            }
        }
    }
    grpc_loop_unref(grpc_loop);
}

uint64_t grpc_tick_us(const struct hps_grpc_limits *limits)
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
