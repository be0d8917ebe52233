/* SPDX-License-Identifier: Apache-2.0
 *
 * What the answers of a connection take in memory. Bytes that are queued are only the last part of
 * that: from the moment at which a service asks for memory for an answer, that memory is charged to
 * the connection, and it is until the service has given it back, even if the client or the whole
 * connection has gone meanwhile. Who finds no room beside the others stands in line. Loop thread of
 * the connection.
 */
#include "net/grpc_internal.h"

#include "base/assert.h"
#include "base/clock.h"

#define TO(phase) (1u << (phase))

enum { SMALL_HELD_BYTES = 64 * 1024 }; /* stands in line however much others hold there */

static const unsigned charge_follows[GRPC_CHARGE_PHASES] = {
    [GRPC_CHARGE_NONE] = TO(GRPC_CHARGE_WAITING) | TO(GRPC_CHARGE_COUNTED),
    [GRPC_CHARGE_WAITING] = TO(GRPC_CHARGE_COUNTED) | TO(GRPC_CHARGE_OVER) | TO(GRPC_CHARGE_NONE),
    [GRPC_CHARGE_COUNTED] = TO(GRPC_CHARGE_OVER) | TO(GRPC_CHARGE_NONE),
    [GRPC_CHARGE_OVER] = 0,
};

static void phase_set(struct hps_grpc_call *call, enum grpc_charge_phase to)
{
    HPS_ASSERT(call->charge.phase < GRPC_CHARGE_PHASES && to < GRPC_CHARGE_PHASES);
    HPS_ASSERT((charge_follows[call->charge.phase] & TO(to)) != 0);
    call->charge.phase = to;
}

/* ---- what counts ----------------------------------------------------------------------------- */

static bool fits(const struct grpc_conn *conn, size_t bytes)
{
    size_t bytes_max = conn->grpc_loop->limits.connection_reply_bytes_max;
    size_t counted = conn->charges.bytes;

    return counted == 0 || (counted <= bytes_max && bytes <= bytes_max - counted);
}

static void count(struct grpc_conn *conn, struct hps_grpc_call *call)
{
    phase_set(call, GRPC_CHARGE_COUNTED);
    call->charge.conn = conn;
    conn->refs++;
    conn->charges.bytes += call->charge.bytes;
}

bool grpc_charges_full(const struct grpc_conn *conn)
{
    return conn->charges.first != NULL ||
           conn->charges.bytes >= conn->grpc_loop->limits.connection_reply_bytes_max;
}

/* ---- the line -------------------------------------------------------------------------------- */

/* Requests that are whole stand here with what was made of them, which may be far more than what
 * came: many may have been under way to workers before the first of them asked. */
static bool may_stand(const struct grpc_conn *conn, size_t held)
{
    const struct hps_grpc_limits *limits = &conn->grpc_loop->limits;
    size_t all = atomic_load_explicit(&conn->grpc_loop->server->line_bytes, memory_order_relaxed);
    size_t all_max = limits->request_bytes_all_max;
    size_t mine = conn->charges.line_bytes;
    size_t mine_max = limits->connection_reply_bytes_max;

    if (mine > 0 && (mine > mine_max || held > mine_max - mine)) {
        return false;
    }
    return all_max == 0 || held <= SMALL_HELD_BYTES || all == 0 ||
           (all <= all_max && held <= all_max - all);
}

static void enqueue(struct grpc_conn *conn, struct hps_grpc_call *call, size_t held)
{
    HPS_ASSERT(call->charge.next == NULL);
    phase_set(call, GRPC_CHARGE_WAITING);
    call->charge.held = held;
    conn->charges.line_bytes += held;
    atomic_fetch_add_explicit(&conn->grpc_loop->server->line_bytes, held, memory_order_relaxed);
    if (conn->charges.last != NULL) {
        conn->charges.last->charge.next = call;
    } else {
        conn->charges.first = call;
    }
    conn->charges.last = call;
}

static void dequeue(struct grpc_conn *conn, struct hps_grpc_call *call)
{
    struct hps_grpc_call *before = NULL;
    struct hps_grpc_call **at = &conn->charges.first;

    while (*at != call) {
        HPS_ASSERT(*at != NULL); /* who is WAITING stands in line */
        before = *at;
        at = &before->charge.next;
    }
    *at = call->charge.next;
    if (conn->charges.last == call) {
        conn->charges.last = before;
    }
    call->charge.next = NULL;
}

/* What it held while it stood there counts no more. */
static void forget_held(struct grpc_conn *conn, struct hps_grpc_call *call)
{
    size_t held = call->charge.held;

    HPS_ASSERT(conn->charges.line_bytes >= held);
    conn->charges.line_bytes -= held;
    atomic_fetch_sub_explicit(&conn->grpc_loop->server->line_bytes, held, memory_order_relaxed);
    call->charge.held = 0;
}

void grpc_charges_release(struct grpc_conn *conn)
{
    struct hps_grpc_call *call;

    while ((call = conn->charges.first) != NULL && fits(conn, call->charge.bytes) &&
           !grpc_conn_is_spent(conn)) {
        dequeue(conn, call);
        forget_held(conn, call);
        count(conn, call);
        hps_grpc_call_ref(call);
        call->entry->method->on_room(call);
        HPS_DEBUG_SANE(grpc_call_sane(call));
        hps_grpc_call_unref(call);
        grpc_conn_see(conn, hps_clock_us());
    }
    if (call != NULL && fits(conn, call->charge.bytes)) {
        grpc_conn_resume(conn);
    }
}

/* Not at once: who gives memory back may be ending a call, or all calls of the connection. */
static void release_later(struct grpc_conn *conn)
{
    if (conn->charges.first != NULL || conn->held_head != NULL || conn->withheld) {
        grpc_conn_resume(conn);
    }
}

/* ---- a connection ---------------------------------------------------------------------------- */

void grpc_charges_fini(struct grpc_conn *conn)
{
    HPS_ASSERT(conn->charges.first == NULL); /* each call left the line when it ended */
    HPS_ASSERT(conn->charges.line_bytes == 0);
}

/* ---- a call ---------------------------------------------------------------------------------- */

void grpc_charge_give_up(struct hps_grpc_call *call)
{
    struct grpc_conn *conn = call->conn;

    if (call->charge.phase == GRPC_CHARGE_WAITING) {
        dequeue(conn, call);
        phase_set(call, GRPC_CHARGE_OVER);
        release_later(conn);
    }
    /* Until it is closed its service does not know, and has what it held. */
    if (call->charge.held > 0 && grpc_call_is_closed(call)) {
        forget_held(conn, call);
    }
}

hps_status hps_grpc_call_charge(struct hps_grpc_call *call, size_t bytes, size_t held)
{
    struct grpc_conn *conn = call->conn;

    HPS_ASSERT(hps_loop_is_mine(call->loop));
    HPS_ASSERT(conn != NULL && !grpc_call_is_finished(call));
    HPS_ASSERT(call->entry->method->on_room != NULL && bytes > 0);
    if (conn->charges.first == NULL && fits(conn, bytes)) {
        call->charge.bytes = bytes;
        count(conn, call);
        return HPS_OK;
    }
    if (!may_stand(conn, held)) {
        return HPS_EXHAUSTED;
    }
    call->charge.bytes = bytes;
    enqueue(conn, call, held);
    return HPS_AGAIN;
}

/* The call may be charged again if it has further messages. */
static enum grpc_charge_phase phase_behind(const struct hps_grpc_call *call)
{
    return call->entry->method->client_streaming && !grpc_call_is_finished(call) ? GRPC_CHARGE_NONE
                                                                                 : GRPC_CHARGE_OVER;
}

void hps_grpc_call_discharge(struct hps_grpc_call *call)
{
    struct grpc_conn *conn = call->charge.conn;

    HPS_ASSERT(hps_loop_is_mine(call->loop));
    if (call->charge.phase == GRPC_CHARGE_WAITING) {
        HPS_ASSERT(phase_behind(call) == GRPC_CHARGE_NONE); /* else it left the line at its end */
        dequeue(call->conn, call);
        forget_held(call->conn, call);
        phase_set(call, GRPC_CHARGE_NONE);
        release_later(call->conn);
        return;
    }
    if (call->charge.phase != GRPC_CHARGE_COUNTED) {
        return;
    }
    HPS_ASSERT(conn != NULL && conn->charges.bytes >= call->charge.bytes);
    phase_set(call, phase_behind(call));
    call->charge.conn = NULL;
    conn->charges.bytes -= call->charge.bytes;
    if (conn->http != NULL) {
        release_later(conn);
    }
    grpc_conn_unref(conn);
}

void grpc_charge_sane(const struct hps_grpc_call *call)
{
    const struct hps_grpc_call *next = call->charge.next;

    HPS_ASSERT((call->charge.conn != NULL) == (call->charge.phase == GRPC_CHARGE_COUNTED));
    HPS_ASSERT(next == NULL || call->charge.phase == GRPC_CHARGE_WAITING);
    HPS_ASSERT(call->charge.held == 0 || call->charge.phase == GRPC_CHARGE_WAITING ||
               (call->charge.phase == GRPC_CHARGE_OVER && !grpc_call_is_closed(call)));
    HPS_ASSERT(next == NULL || next->charge.phase == GRPC_CHARGE_WAITING);
    switch (call->charge.phase) {
    case GRPC_CHARGE_WAITING:
        HPS_ASSERT(call->conn != NULL && call->conn->charges.first != NULL);
        HPS_ASSERT(next != NULL || call->conn->charges.last == call);
        break;
    case GRPC_CHARGE_COUNTED:
        HPS_ASSERT(call->charge.bytes > 0);
        HPS_ASSERT(call->charge.bytes <= call->charge.conn->charges.bytes);
        HPS_ASSERT(call->conn == NULL || call->conn == call->charge.conn);
        break;
    case GRPC_CHARGE_NONE:
    case GRPC_CHARGE_OVER:
    case GRPC_CHARGE_PHASES:
        break;
    }
}
