/* SPDX-License-Identifier: Apache-2.0
 *
 * References to connections, and draining. When memory is short, one loop posts a task to all
 * loops, and each loop then acts on its own connections (grpc_tick.c). Any loop thread.
 */
#include "base/assert.h"
#include "base/heap.h"
#include "net/grpc_internal.h"

enum { PRESS_US = 40 * 1000 };

/* ---- pressure -------------------------------------------------------------------------------- */

void grpc_loop_tell(struct hps_grpc_loop *grpc_loop, enum grpc_pressure what)
{
    if (atomic_fetch_or(&grpc_loop->pressed, 1u << what) == 0) {
        atomic_fetch_add_explicit(&grpc_loop->refs, 1, memory_order_relaxed);
        hps_loop_post(grpc_loop->loop, &grpc_loop->press);
    }
}

/* client: only its connections; 0: all connections */
static void press(struct hps_grpc_loop *grpc_loop, enum grpc_pressure what, uint64_t client)
{
    struct hps_grpc_server *server = grpc_loop->server;
    uint64_t now_us = hps_loop_now_us(grpc_loop->loop);
    uint64_t last_us = atomic_load(&server->pressed_us[what]);

    HPS_ASSERT(hps_loop_is_mine(grpc_loop->loop));
    if (now_us < last_us + PRESS_US ||
        !atomic_compare_exchange_strong(&server->pressed_us[what], &last_us, now_us)) {
        return;
    }
    atomic_store(&server->pressed_client[what], client);
    for (struct hps_grpc_loop *at = server->loops; at != NULL; at = at->next) {
        grpc_loop_tell(at, what);
    }
}

void grpc_press(struct hps_grpc_call *call, enum grpc_pressure what, enum hps_limit_scope scope)
{
    HPS_ASSERT(what == GRPC_CUT_READERS || what == GRPC_CUT_SENDERS);
    if (scope == HPS_SCOPE_ALL) {
        press(call->grpc_loop, what, 0);
    } else if (scope == HPS_SCOPE_ADDRESS || scope == HPS_SCOPE_IDENTITY) {
        press(call->grpc_loop,
              what == GRPC_CUT_READERS ? GRPC_CUT_OWN_READERS : GRPC_CUT_OWN_SENDERS,
              call->home->client);
    }
}

void hps_grpc_readers_watch(struct hps_grpc_call *call)
{
    press(call->grpc_loop, GRPC_NOTE_CLIENTS, 0);
}

void hps_grpc_readers_cut(struct hps_grpc_call *call, enum hps_limit_scope scope)
{
    grpc_press(call, GRPC_CUT_READERS, scope);
}

/* ---- references ------------------------------------------------------------------------------ */

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

/* ---- connections ----------------------------------------------------------------------------- */

bool grpc_conn_is_full(const struct grpc_conn *conn)
{
    return (conn->account != NULL && hps_account_is_full(conn->account)) ||
           conn->http->queued > conn->grpc_loop->limits->connection_reply_bytes_max;
}

void grpc_conn_drain(struct grpc_conn *conn, uint64_t now_us)
{
    /* HTTP/1.1: a connection may wait long for its next request, and another drain follows. */
    if (conn->drain_us == 0 || conn->is_http) {
        conn->drain_us = now_us;
        hps_http_drain(conn->http);
    }
}
