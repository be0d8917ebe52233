/* SPDX-License-Identifier: Apache-2.0
 *
 * The life of one server call: it begins with its stream, has a deadline, and is freed after its
 * stream has closed, when nobody refers to it; and what a service may ask it meanwhile. What the
 * client says is in grpc_call_headers.c and grpc_call_receive.c, the answer in grpc_call_send.c.
 * Loop thread of the connection, but for references and the cancel flag.
 */
#include "net/grpc_internal.h"

#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"

enum {
    DEADLINE_GRACE_US = 50 * 1000,
    UNPAID_MAX = 16, /* calls of a connection without a charge; further streams are reset */
};

/* ---- life ------------------------------------------------------------------------------------ */

static void set_grace(struct hps_grpc_call *call)
{
    grpc_call_deadline_set(call, GRPC_DEADLINE_GRACE,
                           hps_loop_now_us(call->loop) + DEADLINE_GRACE_US);
}

/* A reply that is under way is reset a moment after its deadline, so that the client sees its
 * own time-out first: an earlier reset would read as "cancelled". */
static void on_deadline(void *ctx)
{
    struct hps_grpc_call *call = ctx;
    bool under_way = call->reply.phase == GRPC_REPLY_OPEN && call->stream->queued > 0;

    if (call->deadline.phase == GRPC_DEADLINE_GRACE) {
        grpc_call_reset(call, HPS_HTTP2_CANCEL);
    } else if (grpc_call_is_finished(call)) {
        set_grace(call);
    } else {
        atomic_store_explicit(&call->cancelled, true, memory_order_relaxed);
        if (under_way) {
            call->reply.code = hps_status_grpc_code(HPS_DEADLINE);
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
    struct hps_grpc_call *call = hps_calloc(1, sizeof *call);
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
    atomic_init(&call->refs, 1);
    atomic_init(&call->cancelled, false);
    call->conn = conn;
    call->home = conn;
    atomic_fetch_add_explicit(&conn->refs, 1, memory_order_relaxed);
    call->stream = stream;
    call->is_http = conn->is_http;
    call->grpc_loop = conn->grpc_loop;
    call->loop = conn->grpc_loop->loop;
    call->start_us = hps_clock_us();
    call->progress.at_us = call->start_us;
    grpc_conn_see(conn, call->start_us);
    hps_timer_init(&call->deadline.timer, on_deadline, call);
    grpc_fields_init(&call->headers.fields);
    grpc_fields_init(&call->reply.fields);
    grpc_fields_init(&call->reply.trailers);
    hps_grpc_decoder_init(&call->request.decoder, 0, false);
    hps_buf_init(&call->request.plain, 0);
    hps_buf_init(&call->request.stash, 2 * GRPC_WINDOW_BYTES); /* half of it delivered */
    hps_buf_init(&call->reply.status_text, 4096);
    call->client = conn->client;
    memcpy(call->peer, conn->peer, sizeof call->peer);
    call->next = conn->calls;
    if (conn->calls != NULL) {
        conn->calls->prev = call;
    }
    conn->calls = call;
    return call;
}

void hps_grpc_call_ref(struct hps_grpc_call *call)
{
    unsigned refs = atomic_fetch_add_explicit(&call->refs, 1, memory_order_relaxed);
    HPS_ASSERT(refs > 0);
}

static void free_kept(struct hps_grpc_call *call)
{
    while (call->request.kept != NULL) {
        struct grpc_kept *kept = call->request.kept;
        call->request.kept = kept->next;
        hps_buf_fini(&kept->body);
        hps_free(kept);
    }
    call->request.kept_bytes = 0;
}

void hps_grpc_call_unref(struct hps_grpc_call *call)
{
    unsigned refs = atomic_fetch_sub_explicit(&call->refs, 1, memory_order_acq_rel);

    HPS_ASSERT(refs > 0);
    if (refs > 1) {
        return;
    }
    HPS_ASSERT(grpc_call_is_closed(call)); /* until then its stream has a reference */
    HPS_ASSERT(!hps_timer_armed(&call->deadline.timer));
    hps_charge_close(&call->charge);
    grpc_conn_unref(call->home);
    free_kept(call);
    if (call->grant != NULL) {
        call->release_grant(call->grant);
    }
    hps_free(call->request.kept_spare);
    grpc_fields_fini(&call->headers.fields);
    grpc_fields_fini(&call->reply.fields);
    grpc_fields_fini(&call->reply.trailers);
    hps_grpc_decoder_fini(&call->request.decoder);
    hps_buf_fini(&call->request.plain);
    hps_buf_fini(&call->request.stash);
    hps_buf_fini(&call->reply.status_text);
    hps_free(call);
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

    if (!finished || (call->reply.code == 0 && error != HPS_HTTP2_NO_ERROR)) {
        call->reply.code = hps_status_grpc_code(HPS_CANCELLED);
    }
    if (!finished || error != HPS_HTTP2_NO_ERROR) {
        atomic_store_explicit(&call->cancelled, true, memory_order_relaxed);
    }
    grpc_call_reply_set(call, GRPC_REPLY_CLOSED);
    unlink_from_conn(call);
    grpc_call_reply_left(call, 0);
    call->request.unconsumed = 0; /* goes back with the stream */
    call->stream = NULL;
    call->conn = NULL;
    HPS_DEBUG_SANE(grpc_call_sane(call));
    const struct hps_grpc_method *method = call->entry != NULL ? call->entry->method : NULL;
    if (call->delivered && method->on_close != NULL) {
        method->on_close(call);
    } else if (!call->delivered && method != NULL && method->on_undelivered != NULL) {
        method->on_undelivered(call, call->reply.code);
    }
    if (observer->on_call_end != NULL) {
        observer->on_call_end(observer->ctx, call, call->reply.code,
                              hps_clock_us() - call->start_us);
    }
    hps_grpc_call_unref(call);
}

void grpc_call_stalled(struct hps_grpc_call *call)
{
    if (call->is_http && call->reply.phase == GRPC_REPLY_NONE) { /* a whole answer can be sent */
        atomic_store_explicit(&call->cancelled, true, memory_order_relaxed);
        grpc_http_refuse(call, 408, HPS_CANCELLED, "the request did not come in time");
        return;
    }
    if (!grpc_call_is_finished(call)) {
        call->reply.code = hps_status_grpc_code(HPS_CANCELLED);
    }
    atomic_store_explicit(&call->cancelled, true, memory_order_relaxed);
    grpc_call_reset(call, HPS_HTTP2_CANCEL);
    HPS_DEBUG_SANE(grpc_call_sane(call));
}

/* ---- what a service asks --------------------------------------------------------------------- */

void *hps_grpc_call_ctx(const struct hps_grpc_call *call)
{
    return call->entry != NULL ? call->entry->ctx : NULL;
}

struct hps_loop *hps_grpc_call_loop(const struct hps_grpc_call *call)
{
    return call->loop;
}

const char *hps_grpc_call_path(const struct hps_grpc_call *call)
{
    if (call->entry != NULL) {
        return call->entry->method->path;
    }
    const char *path = grpc_fields_get(&call->headers.fields, ":path", NULL);
    return path != NULL ? path : "";
}

const char *hps_grpc_call_peer(const struct hps_grpc_call *call)
{
    return call->peer;
}

const struct hps_conn *hps_grpc_call_conn(const struct hps_grpc_call *call)
{
    HPS_ASSERT(call->conn != NULL && hps_loop_is_mine(call->loop));
    return hps_http_conn(call->conn->http);
}

struct hps_charge *hps_grpc_call_charge(struct hps_grpc_call *call)
{
    return &call->charge;
}

void hps_grpc_call_discharge(struct hps_grpc_call *call, uint64_t bytes)
{
    struct grpc_conn *conn = call->home;

    HPS_ASSERT(hps_loop_is_mine(call->loop));
    if (bytes > 0) {
        hps_charge_shrink(&call->charge, HPS_LIMIT_REPLIES, bytes);
    }
    /* Also after a wait without memory, which others waited for. Not at once: the service may be
     * ending a call, or all calls of the connection. */
    if (conn->http != NULL && (conn->held_head != NULL || conn->withheld)) {
        grpc_conn_resume(conn);
    }
}

uint64_t hps_grpc_call_client(const struct hps_grpc_call *call)
{
    return call->client;
}

const void *hps_grpc_call_grant(const struct hps_grpc_call *call)
{
    return call->grant;
}

uint64_t hps_grpc_call_start_us(const struct hps_grpc_call *call)
{
    return call->start_us;
}

uint64_t hps_grpc_call_deadline_us(const struct hps_grpc_call *call)
{
    return call->deadline.at_us;
}

void hps_grpc_call_deadline_limit(struct hps_grpc_call *call, uint64_t at_us)
{
    bool may_be_set = call->deadline.phase == GRPC_DEADLINE_NONE ||
                      (call->deadline.phase == GRPC_DEADLINE_ARMED && at_us < call->deadline.at_us);

    HPS_ASSERT(hps_loop_is_mine(call->loop));
    if (may_be_set && !grpc_call_is_finished(call)) {
        call->deadline.at_us = at_us;
        grpc_call_deadline_set(call, GRPC_DEADLINE_ARMED, at_us);
    }
}

bool hps_grpc_call_is_http(const struct hps_grpc_call *call)
{
    return call->is_http;
}

const char *hps_grpc_call_segment(const struct hps_grpc_call *call, unsigned i, size_t *out_size)
{
    const char name[] = {':', (char)('0' + i), '\0'};

    HPS_ASSERT(i < HPS_HTTP_SEGMENTS_MAX);
    return grpc_fields_get(&call->headers.fields, name, out_size);
}

const char *hps_grpc_call_header(const struct hps_grpc_call *call, const char *name,
                                 size_t *out_size)
{
    HPS_ASSERT(grpc_server_keeps(call->grpc_loop->server, name, strlen(name)));
    return grpc_fields_get(&call->headers.fields, name, out_size);
}

void *hps_grpc_call_user(const struct hps_grpc_call *call)
{
    return call->user;
}

void hps_grpc_call_set_user(struct hps_grpc_call *call, void *user)
{
    call->user = user;
}

void hps_grpc_call_keep_message(struct hps_grpc_call *call)
{
    HPS_ASSERT(call->delivering);
    call->keep = true;
}

void hps_grpc_call_drop_message(struct hps_grpc_call *call)
{
    HPS_ASSERT(hps_loop_is_mine(call->loop));
    HPS_ASSERT(call->keep && call->entry->method->on_packed != NULL);
    call->keep = false;
    if (call->entry->method->client_streaming) {
        free_kept(call);
    } else {
        hps_grpc_decoder_fini(&call->request.decoder);
    }
    grpc_call_count_less(call, grpc_call_held_bytes(call));
    HPS_DEBUG_SANE(grpc_call_sane(call));
}

void hps_grpc_call_pause(struct hps_grpc_call *call, bool paused)
{
    HPS_ASSERT(hps_loop_is_mine(call->loop));
    HPS_ASSERT(call->entry->method->client_streaming);
    call->request.paused = paused;
    /* Not at once: who goes on may be answering within the delivery of the message before. */
    if (!paused && call->conn != NULL && call->request.stash.size > 0) {
        call->conn->stashed = true;
        grpc_conn_resume(call->conn);
    }
}

bool hps_grpc_call_cancelled(const struct hps_grpc_call *call)
{
    return atomic_load_explicit(&call->cancelled, memory_order_relaxed);
}
