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

enum { DEADLINE_GRACE_US = 50 * 1000 };

/* ---- life ------------------------------------------------------------------------------------ */

/* A reply that is under way is reset a moment after its deadline, so that the client's own clock
 * speaks first: a reset before it would read as "cancelled". */
static void on_deadline(void *ctx)
{
    struct hps_grpc_call *call = ctx;
    bool under_way = call->responded && hps_http2_stream_queued(call->stream) > 0;

    if (!call->finished) {
        atomic_store_explicit(&call->cancelled, true, memory_order_relaxed);
        if (!under_way) {
            hps_grpc_call_finish(call, hps_status_grpc_code(HPS_DEADLINE), "deadline exceeded");
            return;
        }
        call->finished = true;
        call->code = hps_status_grpc_code(HPS_DEADLINE);
    }
    if (!call->deadline_passed) {
        call->deadline_passed = true;
        hps_timer_set_after(call->loop, &call->deadline, DEADLINE_GRACE_US);
    } else if (call->responded) {
        hps_http2_reset(call->stream, HPS_HTTP2_CANCEL);
    }
}

struct hps_grpc_call *grpc_call_new(struct grpc_conn *conn, struct hps_http2_stream *stream)
{
    struct hps_grpc_call *call = hps_calloc(1, sizeof *call);

    if (call == NULL) {
        return NULL;
    }
    atomic_init(&call->refs, 1);
    atomic_init(&call->cancelled, false);
    call->conn = conn;
    call->stream = stream;
    call->grpc_loop = conn->grpc_loop;
    call->loop = conn->grpc_loop->loop;
    call->start_us = hps_clock_us();
    call->progress_us = call->start_us;
    call->authorized = !conn->has_token;
    hps_timer_init(&call->deadline, on_deadline, call);
    grpc_fields_init(&call->request_fields);
    grpc_fields_init(&call->response_fields);
    grpc_fields_init(&call->trailer_fields);
    hps_grpc_decoder_init(&call->decoder, 0, false);
    hps_buf_init(&call->plain, 0);
    hps_buf_init(&call->stash, GRPC_WINDOW_BYTES);
    hps_buf_init(&call->status_text, 4096);
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

void hps_grpc_call_unref(struct hps_grpc_call *call)
{
    unsigned refs = atomic_fetch_sub_explicit(&call->refs, 1, memory_order_acq_rel);

    HPS_ASSERT(refs > 0);
    if (refs > 1) {
        return;
    }
    while (call->kept != NULL) {
        struct grpc_kept *kept = call->kept;
        call->kept = kept->next;
        hps_buf_fini(&kept->body);
        hps_free(kept);
    }
    hps_free(call->kept_spare);
    grpc_fields_fini(&call->request_fields);
    grpc_fields_fini(&call->response_fields);
    grpc_fields_fini(&call->trailer_fields);
    hps_grpc_decoder_fini(&call->decoder);
    hps_buf_fini(&call->plain);
    hps_buf_fini(&call->stash);
    hps_buf_fini(&call->status_text);
    hps_free(call);
}

void grpc_call_closed(struct hps_grpc_call *call, uint32_t error)
{
    struct grpc_conn *conn = call->conn;
    const struct hps_grpc_observer *observer = &call->grpc_loop->server->observer;

    if (!call->finished || (call->code == 0 && error != HPS_HTTP2_NO_ERROR)) {
        call->code = hps_status_grpc_code(HPS_CANCELLED);
    }
    if (!call->finished || error != HPS_HTTP2_NO_ERROR) {
        atomic_store_explicit(&call->cancelled, true, memory_order_relaxed);
    }
    call->finished = true;
    hps_timer_stop(&call->deadline);
    grpc_call_unhold(call);
    grpc_call_count_bytes(call, 0);
    call->stream = NULL;
    call->conn = NULL;
    if (call->prev != NULL) {
        call->prev->next = call->next;
    } else {
        conn->calls = call->next;
    }
    if (call->next != NULL) {
        call->next->prev = call->prev;
    }
    if (conn->calls == NULL) {
        conn->idle_us = hps_clock_us();
    }
    if (call->delivered && call->entry->method->on_close != NULL) {
        call->entry->method->on_close(call);
    }
    if (observer->on_call_end != NULL) {
        observer->on_call_end(observer->ctx, call, call->code, hps_clock_us() - call->start_us);
    }
    hps_grpc_call_unref(call);
}

void grpc_call_stalled(struct hps_grpc_call *call)
{
    if (!call->finished) {
        call->finished = true;
        call->code = hps_status_grpc_code(HPS_CANCELLED);
    }
    atomic_store_explicit(&call->cancelled, true, memory_order_relaxed);
    hps_http2_reset(call->stream, HPS_HTTP2_CANCEL);
}

/* ---- what a service asks --------------------------------------------------------------------- */

void *hps_grpc_call_ctx(const struct hps_grpc_call *call)
{
    return call->entry != NULL ? call->entry->service->ctx : NULL;
}

struct hps_loop *hps_grpc_call_loop(const struct hps_grpc_call *call)
{
    return call->loop;
}

struct hps_grpc_loop *hps_grpc_call_grpc_loop(const struct hps_grpc_call *call)
{
    return call->grpc_loop;
}

const char *hps_grpc_call_path(const struct hps_grpc_call *call)
{
    if (call->entry != NULL) {
        return call->entry->method->path;
    }
    const char *path = grpc_fields_get(&call->request_fields, ":path", NULL);
    return path != NULL ? path : "";
}

const char *hps_grpc_call_peer(const struct hps_grpc_call *call)
{
    return call->peer;
}

uint64_t hps_grpc_call_client(const struct hps_grpc_call *call)
{
    return call->client;
}

uint64_t hps_grpc_call_start_us(const struct hps_grpc_call *call)
{
    return call->start_us;
}

uint64_t hps_grpc_call_deadline_us(const struct hps_grpc_call *call)
{
    return call->deadline_us;
}

const char *hps_grpc_call_header(const struct hps_grpc_call *call, const char *name,
                                 size_t *out_size)
{
    return grpc_fields_get(&call->request_fields, name, out_size);
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
    call->keep = true;
}

bool hps_grpc_call_cancelled(const struct hps_grpc_call *call)
{
    return atomic_load_explicit(&call->cancelled, memory_order_relaxed);
}
