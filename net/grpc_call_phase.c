/* SPDX-License-Identifier: Apache-2.0
 *
 * The phases of the request, the reply and the deadline of a server call, and the transitions that
 * are allowed. The functions that change a phase also update the queue of held calls, the timer and
 * the charge. Loop thread of the connection.
 */
#include "base/assert.h"
#include "net/grpc_internal.h"

#define TO(phase) (1u << (phase))

const unsigned grpc_request_follows[GRPC_REQUEST_PHASES] = {
    [GRPC_REQUEST_HEADERS] =
        TO(GRPC_REQUEST_OPEN) | TO(GRPC_REQUEST_DROPPED) | TO(GRPC_REQUEST_CLOSED),
    [GRPC_REQUEST_OPEN] = TO(GRPC_REQUEST_WHOLE) | TO(GRPC_REQUEST_STASHED) |
                          TO(GRPC_REQUEST_DISPATCHED) | TO(GRPC_REQUEST_DROPPED) |
                          TO(GRPC_REQUEST_CLOSED),
    [GRPC_REQUEST_WHOLE] = TO(GRPC_REQUEST_HELD) | TO(GRPC_REQUEST_DISPATCHED) |
                           TO(GRPC_REQUEST_DROPPED) | TO(GRPC_REQUEST_CLOSED),
    [GRPC_REQUEST_STASHED] =
        TO(GRPC_REQUEST_DISPATCHED) | TO(GRPC_REQUEST_DROPPED) | TO(GRPC_REQUEST_CLOSED),
    [GRPC_REQUEST_HELD] =
        TO(GRPC_REQUEST_DISPATCHED) | TO(GRPC_REQUEST_DROPPED) | TO(GRPC_REQUEST_CLOSED),
    [GRPC_REQUEST_DISPATCHED] = TO(GRPC_REQUEST_CLOSED),
    [GRPC_REQUEST_DROPPED] = TO(GRPC_REQUEST_CLOSED),
    [GRPC_REQUEST_CLOSED] = 0,
};

const unsigned grpc_reply_follows[GRPC_REPLY_PHASES] = {
    [GRPC_REPLY_NONE] =
        TO(GRPC_REPLY_OPEN) | TO(GRPC_REPLY_STATUS) | TO(GRPC_REPLY_RESET) | TO(GRPC_REPLY_CLOSED),
    [GRPC_REPLY_OPEN] = TO(GRPC_REPLY_FINISHED) | TO(GRPC_REPLY_EXPIRED) | TO(GRPC_REPLY_RESET) |
                        TO(GRPC_REPLY_CLOSED),
    [GRPC_REPLY_FINISHED] = TO(GRPC_REPLY_STATUS) | TO(GRPC_REPLY_RESET) | TO(GRPC_REPLY_CLOSED),
    [GRPC_REPLY_EXPIRED] = TO(GRPC_REPLY_RESET) | TO(GRPC_REPLY_CLOSED),
    [GRPC_REPLY_STATUS] = TO(GRPC_REPLY_RESET) | TO(GRPC_REPLY_CLOSED),
    [GRPC_REPLY_RESET] = TO(GRPC_REPLY_CLOSED),
    [GRPC_REPLY_CLOSED] = 0,
};

static const unsigned deadline_follows[GRPC_DEADLINE_PHASES] = {
    [GRPC_DEADLINE_NONE] = TO(GRPC_DEADLINE_ARMED) | TO(GRPC_DEADLINE_OVER),
    [GRPC_DEADLINE_ARMED] =
        TO(GRPC_DEADLINE_ARMED) | TO(GRPC_DEADLINE_GRACE) | TO(GRPC_DEADLINE_OVER),
    [GRPC_DEADLINE_GRACE] = TO(GRPC_DEADLINE_OVER),
    [GRPC_DEADLINE_OVER] = TO(GRPC_DEADLINE_OVER), /* a reset may follow a refusal */
};

/* ---- effects of transitions ------------------------------------------------------------------ */

void grpc_call_drop_request(struct hps_grpc_call *call)
{
    HPS_ASSERT(call->request->phase == GRPC_REQUEST_DROPPED && !call->delivering);
    hps_grpc_decoder_fini(&call->request->decoder);
    hps_buf_fini(&call->request->stash);
    call->request->stash_taken = 0;
    grpc_fields_fini(&call->headers->fields);
    grpc_call_count_less(call, 0);
}

/* ---- transitions ----------------------------------------------------------------------------- */

void grpc_call_deadline_set(struct hps_grpc_call *call, enum grpc_deadline_phase to, uint64_t at_us)
{
    HPS_ASSERT(call->deadline->phase < GRPC_DEADLINE_PHASES && to < GRPC_DEADLINE_PHASES);
    HPS_ASSERT((deadline_follows[call->deadline->phase] & TO(to)) != 0);
    call->deadline->phase = to;
    if (to == GRPC_DEADLINE_OVER) {
        hps_timer_stop(&call->deadline->timer);
    } else {
        hps_timer_set(call->loop, &call->deadline->timer, at_us);
    }
}

void grpc_call_reset(struct hps_grpc_call *call, uint32_t error)
{
    if (call->reply->phase < GRPC_REPLY_RESET) {
        grpc_call_reply_set(call, GRPC_REPLY_RESET);
        hps_http_reset(call->stream, error);
    }
}

void grpc_call_note_sent(struct hps_grpc_call *call, hps_status status)
{
    bool gone = status == HPS_CLOSED; /* the connection has closed */

    if (status == HPS_OK) {
        return;
    }
    call->reply->code = hps_status_grpc_code(gone ? HPS_CANCELLED : HPS_NO_MEMORY);
    if (gone) {
        atomic_store_explicit(&call->cancelled, true, memory_order_relaxed);
    }
    grpc_call_reset(call, HPS_HTTP2_INTERNAL_ERROR);
}

/* ---- invariants ------------------------------------------------------------------------------ */

static void request_sane(const struct hps_grpc_call *call)
{
    bool streaming = call->entry != NULL && call->entry->method->client_streaming;

    HPS_ASSERT(call->request->stash_taken == 0 ||
               call->request->stash_taken < call->request->stash.size);
    switch (call->request->phase) {
    case GRPC_REQUEST_HEADERS:
        HPS_ASSERT(call->reply->phase == GRPC_REPLY_NONE && !call->delivered);
        HPS_ASSERT(call->deadline->phase == GRPC_DEADLINE_NONE);
        HPS_ASSERT(call->request->counted == 0);
        break;
    case GRPC_REQUEST_OPEN:
        HPS_ASSERT(call->entry != NULL && (streaming || !call->delivered));
        break;
    case GRPC_REQUEST_WHOLE:
        HPS_ASSERT(!streaming && !call->delivered);
        break;
    case GRPC_REQUEST_STASHED:
        HPS_ASSERT(streaming && (call->delivering || call->request->stash.size > 0));
        break;
    case GRPC_REQUEST_HELD:
        HPS_ASSERT(!streaming && !call->delivered);
        HPS_ASSERT(!TAILQ_EMPTY(&call->conn->held));
        break;
    case GRPC_REQUEST_DISPATCHED:
        HPS_ASSERT(call->delivered);
        HPS_ASSERT(call->keep || call->delivering ||
                   call->request->counted <=
                       grpc_call_charged_bytes(call->headers->fields.bytes.capacity));
        break;
    case GRPC_REQUEST_DROPPED:
        HPS_ASSERT(grpc_call_is_finished(call));
        HPS_ASSERT(call->delivering || call->request->counted == 0);
        break;
    case GRPC_REQUEST_CLOSED:
    case GRPC_REQUEST_PHASES:
        HPS_ASSERT(grpc_call_is_closed(call));
        break;
    }
    /* The bytes of a request that is not dispatched are charged exactly. */
    if (call->request->phase > GRPC_REQUEST_HEADERS &&
        call->request->phase < GRPC_REQUEST_DISPATCHED && !call->delivering) {
        HPS_ASSERT(call->request->counted == grpc_call_charged_bytes(grpc_call_held_bytes(call)));
        HPS_ASSERT(streaming || call->request->stash.size == 0);
    }
}

void grpc_call_sane(const struct hps_grpc_call *call)
{
    const struct grpc_conn *conn = call->conn;
    bool closed = grpc_call_is_closed(call);
    bool finished = grpc_call_is_finished(call);
    bool armed = hps_timer_armed(&call->deadline->timer);

    HPS_ASSERT(atomic_load_explicit(&call->refs, memory_order_relaxed) > 0);
    HPS_ASSERT((conn == NULL) == closed && (call->stream == NULL) == closed);
    HPS_ASSERT((call->request->phase == GRPC_REQUEST_CLOSED) == closed);
    HPS_ASSERT(armed == (call->deadline->phase == GRPC_DEADLINE_ARMED ||
                         call->deadline->phase == GRPC_DEADLINE_GRACE));
    HPS_ASSERT(!armed || call->reply->phase < GRPC_REPLY_RESET);
    HPS_ASSERT(call->reply->phase != GRPC_REPLY_EXPIRED ||
               call->deadline->phase == GRPC_DEADLINE_GRACE);
    HPS_ASSERT(!finished || call->request->phase >= GRPC_REQUEST_DISPATCHED);
    HPS_ASSERT(finished || (call->reply->code == 0 && !atomic_load(&call->cancelled)));
    HPS_ASSERT(!call->delivered || call->entry != NULL);
    HPS_ASSERT(!call->delivering || call->delivered);
    request_sane(call);
    if (closed) {
        HPS_ASSERT(call->next == NULL && call->prev == NULL);
        HPS_ASSERT(call->request->unconsumed == 0);
        return;
    }
    HPS_DEBUG_ASSERT(hps_loop_is_mine(call->loop));
    HPS_ASSERT(call->prev != NULL || conn->calls == call);
    HPS_ASSERT(call->request->unconsumed == 0 || conn->withheld);
}

/* Whether the queue has as many calls as are HELD. Visits all calls of the connection. */
static bool calls_add_up(const struct grpc_conn *conn)
{
    unsigned n_held = 0;
    unsigned n_queued = 0;
    const struct hps_grpc_call *queued;

    for (const struct hps_grpc_call *call = conn->calls; call != NULL; call = call->next) {
        HPS_DEBUG_SANE(grpc_call_sane(call));
        n_held += call->request->phase == GRPC_REQUEST_HELD;
    }
    TAILQ_FOREACH (queued, &conn->held, held) {
        n_queued++;
    }
    return n_held == n_queued;
}

void grpc_conn_sane(const struct grpc_conn *conn)
{
    HPS_DEBUG_ASSERT(hps_loop_is_mine(conn->grpc_loop->loop));
    HPS_ASSERT(conn->prev != NULL || conn->grpc_loop->conns == conn);
    HPS_ASSERT(conn->calls != NULL || TAILQ_EMPTY(&conn->held));
    HPS_DEBUG_ASSERT(calls_add_up(conn));
}
