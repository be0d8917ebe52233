/* SPDX-License-Identifier: Apache-2.0
 *
 * The begin and the end of a server call. A call ends with its stream, at its deadline, or when its
 * client makes no progress. Loop thread of the connection.
 */
#include "net/grpc_internal.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"

enum {
    DEADLINE_GRACE_US = 50 * 1000,
    UNPAID_MAX = 16, /* open calls of a connection without a charge; else the stream is reset */
};

static void set_grace(struct hps_grpc_call *call)
{
    grpc_call_deadline_set(call, GRPC_DEADLINE_GRACE,
                           hps_loop_now_us(call->loop) + DEADLINE_GRACE_US);
}

/* A reply that is being sent is reset a short time after the deadline. Then the client detects its
 * own timeout first. An earlier reset would look to the client like a cancelled call. */
static void on_deadline(void *ctx)
{
    struct hps_grpc_call *call = ctx;
    bool under_way = call->reply->phase == GRPC_REPLY_OPEN && call->stream->queued > 0;

    if (call->deadline->phase == GRPC_DEADLINE_GRACE) {
        grpc_call_reset(call, HPS_HTTP2_CANCEL);
    } else if (grpc_call_is_finished(call)) {
        set_grace(call);
    } else {
        atomic_store_explicit(&call->cancelled, true, memory_order_relaxed);
        if (under_way) {
            call->reply->code = hps_status_grpc_code(HPS_DEADLINE);
            set_grace(call);
            grpc_call_reply_set(call, GRPC_REPLY_EXPIRED);
        } else {
            grpc_call_deadline_set(call, GRPC_DEADLINE_OVER, 0);
            hps_grpc_call_finish(call, hps_status_grpc_code(HPS_DEADLINE), "deadline exceeded");
        }
    }
    HPS_DEBUG_SANE(grpc_call_sane(call));
}

static bool is_unpaid(const struct hps_grpc_call *call)
{
    return call->charge.connection == NULL && call->home->account != NULL;
}

hps_status grpc_call_pay(struct hps_grpc_call *call, struct hps_error *err)
{
    if (!is_unpaid(call)) {
        return HPS_OK;
    }
    hps_status status = hps_charge_open(&call->charge, call->home->account, err);
    call->home->n_unpaid -= status == HPS_OK;
    return status;
}

struct hps_grpc_call *grpc_call_new(struct grpc_conn *conn, struct hps_http_stream *stream)
{
    struct hps_grpc_call *call =
        hps_calloc(1, sizeof *call + sizeof *call->headers + sizeof *call->request +
                          sizeof *call->reply + sizeof *call->deadline);
    struct hps_error err;

    HPS_DEBUG_ASSERT(hps_loop_is_mine(conn->grpc_loop->loop));
    if (call == NULL) {
        return NULL;
    }
    if (hps_charge_open(&call->charge, conn->account, &err) != HPS_OK &&
        ++conn->n_unpaid > UNPAID_MAX) {
        conn->n_unpaid--;
        hps_free(call);
        return NULL;
    }
    call->headers = (struct grpc_headers *)(call + 1);
    call->request = (struct grpc_request *)(call->headers + 1);
    call->reply = (struct grpc_reply *)(call->request + 1);
    call->deadline = (struct grpc_deadline *)(call->reply + 1);
    atomic_init(&call->refs, 1);
    atomic_init(&call->cancelled, false);
    call->conn = conn;
    call->home = conn;
    atomic_fetch_add_explicit(&conn->refs, 1, memory_order_relaxed);
    call->stream = stream;
    call->grpc_loop = conn->grpc_loop;
    call->loop = conn->grpc_loop->loop;
    call->start_us = hps_clock_us();
    call->reply->progress.at_us = call->start_us;
    grpc_conn_see(conn, call->start_us);
    hps_timer_init(&call->deadline->timer, on_deadline, call);
    grpc_fields_init(&call->headers->fields);
    grpc_fields_init(&call->reply->fields);
    grpc_fields_init(&call->reply->trailers);
    hps_grpc_decoder_init(&call->request->decoder, 0, false);
    hps_buf_init(&call->request->plain, 0);
    hps_buf_init(&call->request->stash, 2 * GRPC_WINDOW_BYTES); /* at most half is delivered */
    hps_buf_init(&call->reply->status_text, 4096);
    call->next = conn->calls;
    if (conn->calls != NULL) {
        conn->calls->prev = call;
    }
    conn->calls = call;
    return call;
}

static void unlink_from_conn(struct hps_grpc_call *call)
{
    struct grpc_conn *conn = call->conn;

    if (call->prev != NULL) {
        call->prev->next = call->next;
    } else {
        HPS_ASSERT(conn->calls == call);
        conn->calls = call->next;
    }
    if (call->next != NULL) {
        call->next->prev = call->prev;
    }
    call->next = NULL;
    call->prev = NULL;
    conn->n_unpaid -= is_unpaid(call);
    if (conn->calls == NULL) {
        conn->idle_us = hps_clock_us();
        hps_place_idle(conn->seat, conn->idle_us);
    }
}

void grpc_call_closed(struct hps_grpc_call *call, uint32_t error)
{
    const struct hps_grpc_observer *observer = &call->grpc_loop->server->observer;
    bool finished = grpc_call_is_finished(call);

    if (!finished || (call->reply->code == 0 && error != HPS_HTTP2_NO_ERROR)) {
        call->reply->code = hps_status_grpc_code(HPS_CANCELLED);
    }
    if (!finished || error != HPS_HTTP2_NO_ERROR) {
        atomic_store_explicit(&call->cancelled, true, memory_order_relaxed);
    }
    grpc_call_reply_set(call, GRPC_REPLY_CLOSED);
    unlink_from_conn(call);
    grpc_call_reply_left(call, 0);
    call->request->unconsumed = 0; /* the end of the stream returns them to the window */
    call->stream = NULL;
    call->conn = NULL;
    HPS_DEBUG_SANE(grpc_call_sane(call));
    const struct hps_grpc_method *method = call->entry != NULL ? call->entry->method : NULL;
    if (call->delivered && method->on_close != NULL) {
        method->on_close(call);
    } else if (!call->delivered && method != NULL && method->on_undelivered != NULL) {
        method->on_undelivered(call, call->reply->code);
    }
    if (observer->on_call_end != NULL) {
        observer->on_call_end(observer->ctx, call, call->reply->code,
                              hps_clock_us() - call->start_us);
    }
    hps_grpc_call_unref(call);
}

void grpc_call_stalled(struct hps_grpc_call *call)
{
    if (call->home->is_http &&
        call->reply->phase == GRPC_REPLY_NONE) { /* a complete reply can be sent */
        atomic_store_explicit(&call->cancelled, true, memory_order_relaxed);
        grpc_http_refuse(call, 408, HPS_CANCELLED, "the request did not come in time");
        return;
    }
    if (!grpc_call_is_finished(call)) {
        call->reply->code = hps_status_grpc_code(HPS_CANCELLED);
    }
    atomic_store_explicit(&call->cancelled, true, memory_order_relaxed);
    grpc_call_reset(call, HPS_HTTP2_CANCEL);
    HPS_DEBUG_SANE(grpc_call_sane(call));
}
