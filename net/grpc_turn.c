/* SPDX-License-Identifier: Apache-2.0
 *
 * How much of one connection a turn of its loop does. Calls that are answered at once are work of
 * some microseconds or, large ones and compressed ones, of some hundred; a client may send hundreds
 * of them at once, and the other connections of the loop wait meanwhile. So beyond a millisecond
 * requests that are whole are held, as they are while the connection is full, and go on in the next
 * turn. The time is that which calls read anyhow: when they begin, and when their answers do. Loop
 * thread of the connection.
 */
#include "base/assert.h"
#include "base/clock.h"
#include "base/container.h"
#include "net/grpc_internal.h"

bool grpc_turn_is_over(struct grpc_conn *conn)
{
    struct grpc_turn *turn = &conn->turn;
    const struct hps_loop *loop = conn->grpc_loop->loop;
    uint64_t number = hps_loop_turns(loop) + 1;

    if (turn->number != number) {
        uint64_t now_us = hps_loop_now_us(loop);
        turn->number = number;
        turn->from_us = turn->seen_us > now_us ? turn->seen_us : now_us;
    }
    return turn->seen_us > turn->from_us && turn->seen_us - turn->from_us > GRPC_TURN_US;
}

/* Messages of client streams, of which the rest is fed on where it stopped. */
static void resume_stashed(struct grpc_conn *conn)
{
    struct hps_grpc_call *call = conn->calls;

    conn->turn.stashed = false;
    while (call != NULL) {
        struct hps_grpc_call *next = NULL;
        hps_grpc_call_ref(call);
        grpc_call_resume(call);
        if (call->conn == conn) {
            next = call->next;
        } else {
            conn->turn.stashed = true; /* those behind it are found anew */
        }
        hps_grpc_call_unref(call);
        call = next;
    }
}

static void on_next(void *ctx)
{
    struct grpc_conn *conn = ctx;

    HPS_DEBUG_ASSERT(hps_loop_is_mine(conn->grpc_loop->loop));
    grpc_turn_see(conn, hps_clock_us());
    grpc_conn_release_held(conn);
    if (conn->turn.stashed && !grpc_turn_is_over(conn)) {
        resume_stashed(conn);
    }
    if (conn->turn.stashed) {
        grpc_turn_resume(conn);
    }
}

void grpc_turn_init(struct grpc_conn *conn)
{
    hps_loop_later_init(&conn->turn.next, on_next, conn);
}

void grpc_turn_fini(struct grpc_conn *conn)
{
    hps_loop_later_stop(&conn->turn.next);
}

void grpc_turn_resume(struct grpc_conn *conn)
{
    hps_loop_later_set(conn->grpc_loop->loop, &conn->turn.next);
}
