/* SPDX-License-Identifier: Apache-2.0
 *
 * References to a server call, and the functions that services call. Loop thread of the connection,
 * except for references and the cancel flag.
 */
#include "net/grpc_internal.h"

#include <string.h>

#include "base/assert.h"
#include "base/heap.h"

/* ---- references ------------------------------------------------------------------------------ */

void hps_grpc_call_ref(struct hps_grpc_call *call)
{
    unsigned refs = atomic_fetch_add_explicit(&call->refs, 1, memory_order_relaxed);
    HPS_ASSERT(refs > 0);
}

static void free_kept(struct hps_grpc_call *call)
{
    while (call->request->kept != NULL) {
        struct grpc_kept *kept = call->request->kept;
        call->request->kept = kept->next;
        hps_buf_fini(&kept->body);
        hps_free(kept);
    }
    call->request->kept_bytes = 0;
}

void hps_grpc_call_unref(struct hps_grpc_call *call)
{
    unsigned refs = atomic_fetch_sub_explicit(&call->refs, 1, memory_order_acq_rel);

    HPS_ASSERT(refs > 0);
    if (refs > 1) {
        return;
    }
    HPS_ASSERT(grpc_call_is_closed(call)); /* the stream has a reference until then */
    HPS_ASSERT(!hps_timer_armed(&call->deadline->timer));
    hps_charge_close(&call->charge);
    grpc_conn_unref(call->home);
    free_kept(call);
    if (call->grant != NULL) {
        call->release_grant(call->grant);
    }
    hps_free(call->request->kept_spare);
    grpc_fields_fini(&call->headers->fields);
    grpc_fields_fini(&call->reply->fields);
    grpc_fields_fini(&call->reply->trailers);
    hps_grpc_decoder_fini(&call->request->decoder);
    hps_buf_fini(&call->request->plain);
    hps_buf_fini(&call->request->stash);
    hps_buf_fini(&call->reply->status_text);
    hps_free(call);
}

/* ---- functions for services ------------------------------------------------------------------ */

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
    const char *path = grpc_fields_get(&call->headers->fields, ":path", NULL);
    return path != NULL ? path : "";
}

const char *hps_grpc_call_peer(const struct hps_grpc_call *call)
{
    return call->home->peer;
}

const struct hps_conn *hps_grpc_call_conn(const struct hps_grpc_call *call)
{
    HPS_ASSERT(call->conn != NULL && hps_loop_is_mine(call->loop));
    return call->conn->http->conn;
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
    /* `bytes` is 0 after a wait in vain, while which other calls of the connection waited too. They
     * continue in another slice, because the service may be ending a call, or all calls of the
     * connection. */
    if (conn->http != NULL && (!TAILQ_EMPTY(&conn->held) || conn->withheld)) {
        grpc_conn_resume(conn);
    }
}

uint64_t hps_grpc_call_client(const struct hps_grpc_call *call)
{
    return call->home->client;
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
    return call->deadline->at_us;
}

void hps_grpc_call_deadline_limit(struct hps_grpc_call *call, uint64_t at_us)
{
    bool may_be_set =
        call->deadline->phase == GRPC_DEADLINE_NONE ||
        (call->deadline->phase == GRPC_DEADLINE_ARMED && at_us < call->deadline->at_us);

    HPS_ASSERT(hps_loop_is_mine(call->loop));
    if (may_be_set && !grpc_call_is_finished(call)) {
        call->deadline->at_us = at_us;
        grpc_call_deadline_set(call, GRPC_DEADLINE_ARMED, at_us);
    }
}

bool hps_grpc_call_is_http(const struct hps_grpc_call *call)
{
    return call->home->is_http;
}

const char *hps_grpc_call_segment(const struct hps_grpc_call *call, unsigned i, size_t *out_size)
{
    const char name[] = {':', (char)('0' + i), '\0'};

    HPS_ASSERT(i < HPS_HTTP_SEGMENTS_MAX);
    return grpc_fields_get(&call->headers->fields, name, out_size);
}

const char *hps_grpc_call_header(const struct hps_grpc_call *call, const char *name,
                                 size_t *out_size)
{
    HPS_ASSERT(grpc_server_keeps(call->grpc_loop->server, name, strlen(name)));
    return grpc_fields_get(&call->headers->fields, name, out_size);
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
    HPS_ASSERT(call->delivering && call->entry->method->on_packed != NULL);
    call->keep = true;
}

void hps_grpc_call_drop_message(struct hps_grpc_call *call)
{
    HPS_ASSERT(hps_loop_is_mine(call->loop));
    HPS_ASSERT(call->keep);
    call->keep = false;
    if (call->entry->method->client_streaming) {
        free_kept(call);
    } else {
        hps_grpc_decoder_fini(&call->request->decoder);
    }
    grpc_call_count_less(call, grpc_call_held_bytes(call));
    HPS_DEBUG_SANE(grpc_call_sane(call));
}

void hps_grpc_call_pause(struct hps_grpc_call *call, bool paused)
{
    HPS_ASSERT(hps_loop_is_mine(call->loop));
    HPS_ASSERT(call->entry->method->client_streaming);
    call->request->paused = paused;
    /* In another slice, because the caller may be within on_message or on_packed of the previous
     * message. */
    if (!paused && call->conn != NULL && call->request->stash.size > 0) {
        call->conn->stashed = true;
        grpc_conn_resume(call->conn);
    }
}

bool hps_grpc_call_cancelled(const struct hps_grpc_call *call)
{
    return atomic_load_explicit(&call->cancelled, memory_order_relaxed);
}
