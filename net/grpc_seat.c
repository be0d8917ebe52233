/* SPDX-License-Identifier: Apache-2.0
 *
 * Places of connections (net/places.h): closes displaced connections, and records clients that fail
 * to send a request or to authenticate. Also the accounts of connections. Loop thread, except
 * on_leave.
 */
#include "net/grpc_internal.h"

#include <stdio.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "net/addr.h"

enum {
    LEAVE_GRACE_US = 2 * 1000 * 1000, /* time for the calls of a displaced connection */
    UNKNOWN_MAX = 16,                 /* unauthenticated calls in a row */
};

/* ---- accounts ------------------------------------------------------------------------------- */

hps_status grpc_seat_account(const struct hps_grpc_server *server, const struct hps_conn *raw,
                             uint32_t listener_mask, struct hps_account **out_account)
{
    char host[GRPC_PEER_BYTES];
    char name[GRPC_PEER_BYTES + 16];
    uid_t uid;

    *out_account = NULL;
    if (server->accounts == NULL) {
        return HPS_OK;
    }
    if (hps_conn_peer_uid(raw, &uid)) {
        (void)snprintf(name, sizeof name, "user:%lu", (unsigned long)uid);
    } else {
        (void)snprintf(name, sizeof name, "address:%s",
                       hps_addr_host(hps_conn_peer(raw), host, sizeof host));
    }
    struct hps_account *address = hps_account_get(server->accounts, name);
    if (address != NULL) {
        *out_account =
            hps_account_connection(address, (listener_mask & server->operator_mask) != 0);
    }
    return *out_account != NULL ? HPS_OK : HPS_NO_MEMORY;
}

/* ---- displaced connections ------------------------------------------------------------------- */

/* Runs on the thread that admits another connection, under the lock of the places. */
static void on_leave(void *ctx)
{
    grpc_loop_tell(ctx, GRPC_GIVE_WAY);
}

void grpc_seat_watch(struct hps_grpc_loop *grpc_loop, struct hps_place *seat)
{
    if (seat != NULL) {
        hps_place_on_leave(seat, on_leave, grpc_loop);
    }
}

void grpc_conn_leave(struct grpc_conn *conn, uint64_t now_us)
{
    if (conn->leaving || conn->seat == NULL || !hps_place_is_leaving(conn->seat)) {
        return;
    }
    conn->leaving = true;
    if (conn->calls != NULL && conn->http->ready && !hps_place_leaves_at_once(conn->seat)) {
        grpc_conn_drain(conn, now_us);
    } else {
        hps_http_abort(conn->http, HPS_HTTP2_NO_ERROR, "it gives way to another connection");
    }
}

void grpc_conns_leave(struct hps_grpc_loop *grpc_loop)
{
    uint64_t now_us = hps_clock_us();

    for (struct grpc_conn *conn = grpc_loop->conns; conn != NULL; conn = conn->next) {
        grpc_conn_leave(conn, now_us);
    }
}

bool grpc_conn_must_go(const struct grpc_conn *conn, uint64_t now_us)
{
    HPS_ASSERT(conn->drain_us != 0);
    return conn->leaving && now_us > conn->drain_us + LEAVE_GRACE_US;
}

/* ---- connections without a request ----------------------------------------------------------- */

const char *hps_grpc_no_start_name(enum hps_grpc_no_start how)
{
    static const char *const names[HPS_GRPC_NO_STARTS] = {
        [HPS_GRPC_TIMEOUT] = "timeout",
        [HPS_GRPC_CERTIFICATE] = "certificate",
        [HPS_GRPC_PROTOCOL] = "protocol",
        [HPS_GRPC_LEFT] = "left",
    };

    HPS_ASSERT(how < HPS_GRPC_NO_STARTS);
    return names[how];
}

static enum hps_grpc_no_start how_it_ended(const struct grpc_conn *conn,
                                           const struct hps_error *why)
{
    if (conn->late || why->status == HPS_DEADLINE) {
        return HPS_GRPC_TIMEOUT;
    }
    if (why->status == HPS_UNAUTHENTICATED) {
        return HPS_GRPC_CERTIFICATE;
    }
    return why->status == HPS_CLOSED ? HPS_GRPC_LEFT : HPS_GRPC_PROTOCOL;
}

/* Whether the client caused the failure. A client that has completed the handshake may have
 * connected in advance. A port probe that sends nothing costs nothing. */
static bool is_to_blame(const struct grpc_conn *conn, enum hps_grpc_no_start how)
{
    return how == HPS_GRPC_TIMEOUT ? !hps_http_peer_spoke(conn->http)
                                   : hps_http_received(conn->http);
}

void grpc_conn_no_start(struct grpc_conn *conn, const struct hps_error *why)
{
    const struct hps_grpc_observer *observer = &conn->grpc_loop->server->observer;

    if (conn->leaving || conn->drain_us != 0 || conn->grpc_loop->phase != GRPC_LOOP_SERVING ||
        why->status == HPS_NO_MEMORY || why->status == HPS_EXHAUSTED) {
        return; /* the server ended it */
    }
    enum hps_grpc_no_start how = how_it_ended(conn, why);
    if (observer->on_no_start != NULL) {
        observer->on_no_start(observer->ctx, conn->peer, how);
    }
    if (!is_to_blame(conn, how)) {
        return;
    }
    uint64_t n = hps_place_failed(conn->seat, hps_clock_us());
    if (n > 0 && how != HPS_GRPC_LEFT) {
        HPS_LOG(WARN, "grpc",
                "connection failed: it ended before its first request; see error, and whether the "
                "peer is a client of this server at all",
                HPS_STR("peer", conn->peer), HPS_STR("reason", hps_grpc_no_start_name(how)),
                HPS_STR("error", why->text), HPS_U64("failures", n));
    }
}

/* ---- unauthenticated clients ----------------------------------------------------------------- */

void grpc_conn_judged(struct grpc_conn *conn, hps_status status)
{
    if (status != HPS_UNAUTHENTICATED) {
        conn->n_unknown = 0;
        return;
    }
    uint64_t now_us = hps_clock_us();
    (void)hps_place_failed(conn->seat, now_us); /* the guard has logged it */
    if (++conn->n_unknown == UNKNOWN_MAX) {
        grpc_conn_drain(conn, now_us);
        hps_http_drain_now(conn->http);
    }
}
