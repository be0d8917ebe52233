/* SPDX-License-Identifier: Apache-2.0
 *
 * Authorization. The guard decides about each call, and decides again after its rules have changed.
 * Loop thread of the connection.
 */
#include "base/assert.h"
#include "base/clock.h"
#include "net/grpc_internal.h"

/* The identity of the client, created if necessary. NULL: no memory. */
static void *visitor_of(struct grpc_conn *conn)
{
    const struct hps_grpc_guard *guard = &conn->grpc_loop->server->guard;

    if (conn->visitor == NULL) {
        conn->visitor = guard->visitor_new(guard->ctx, conn->http->conn, conn->listener_mask);
    }
    return conn->visitor;
}

static uint32_t roles_of(const struct hps_grpc_call *call)
{
    return call->entry != NULL ? call->entry->method->roles : 0;
}

static hps_status enter(struct hps_grpc_call *call, struct hps_error *err)
{
    const struct hps_grpc_guard *guard = &call->grpc_loop->server->guard;

    HPS_ASSERT(call->grant == NULL);
    if (guard->enter == NULL || (call->entry != NULL && call->entry->method->open)) {
        return HPS_OK;
    }
    void *visitor = visitor_of(call->conn);
    if (visitor == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for the call");
    }
    hps_status status = guard->enter(visitor, call, roles_of(call), &call->grant, err);
    call->release_grant = guard->release;
    return status;
}

hps_status grpc_guard_enter(struct hps_grpc_call *call, struct hps_error *err)
{
    hps_status status = enter(call, err);

    grpc_conn_judged(call->conn, status);
    return status;
}

/* Ends a call that is no longer allowed, and drains its connection. If reply bytes are queued, the
 * stream is reset; otherwise the client gets a status. The drain begins first, so that an HTTP/1.1
 * reply has "Connection: close". */
static void end_call(struct hps_grpc_call *call, hps_status status, const struct hps_error *err)
{
    grpc_conn_drain(call->conn, hps_clock_us());
    if (!grpc_call_is_finished(call) && call->stream->queued == 0) {
        atomic_store_explicit(&call->cancelled, true, memory_order_relaxed);
        grpc_call_refuse(call, status, "%s", err->text);
        HPS_DEBUG_SANE(grpc_call_sane(call));
    } else if (call->reply->phase < GRPC_REPLY_RESET) {
        grpc_call_stalled(call);
    }
}

hps_status grpc_guard_again(struct grpc_conn *conn, struct hps_error *err)
{
    const struct hps_grpc_guard *guard = &conn->grpc_loop->server->guard;

    if (guard->enter == NULL) {
        return HPS_OK;
    }
    void *visitor = visitor_of(conn);
    if (visitor == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for the connection");
    }
    hps_status status = guard->visitor_again(visitor, conn->http->conn, err);
    if (status != HPS_OK) {
        return status;
    }
    struct hps_grpc_call *next = NULL;
    for (struct hps_grpc_call *call = conn->calls; call != NULL; call = next) {
        struct hps_error why;
        next = call->next;
        if (call->grant == NULL) {
            continue; /* it was refused, or its method is open to all clients */
        }
        status = guard->again(visitor, call, call->grant, roles_of(call), &why);
        if (status != HPS_OK) {
            end_call(call, status, &why);
        }
    }
    return HPS_OK;
}
