/* SPDX-License-Identifier: Apache-2.0
 *
 * The phases of an HTTP/2 connection and of our side of a stream: transitions, the invariants of a
 * stream, and how a connection ends. The other files of net/http2* change a phase only by these
 * functions. Loop thread of the connection.
 */
#include "net/http2_internal.h"

#include "base/assert.h"

#define TO(phase) (1u << (phase))

static const unsigned phase_follows[HTTP2_PHASES] = {
    [HTTP2_HANDSHAKE] = TO(HTTP2_ABANDONED) | TO(HTTP2_OPEN) | TO(HTTP2_FAILED) | TO(HTTP2_FREED),
    [HTTP2_ABANDONED] = TO(HTTP2_FAILED) | TO(HTTP2_FREED),
    [HTTP2_OPEN] = TO(HTTP2_DRAINING) | TO(HTTP2_GOAWAY) | TO(HTTP2_ABORTING) | TO(HTTP2_FAILED) |
                   TO(HTTP2_FREED),
    [HTTP2_DRAINING] = TO(HTTP2_GOAWAY) | TO(HTTP2_ABORTING) | TO(HTTP2_FAILED) | TO(HTTP2_FREED),
    [HTTP2_GOAWAY] = TO(HTTP2_ABORTING) | TO(HTTP2_FAILED) | TO(HTTP2_FREED),
    [HTTP2_ABORTING] = TO(HTTP2_FAILED) | TO(HTTP2_FREED),
    [HTTP2_FAILED] = TO(HTTP2_FREED), /* by its owner, in a callback or on_closed */
    [HTTP2_FREED] = 0,
};

const unsigned http2_send_follows[HTTP2_SEND_PHASES] = {
    [HTTP2_SEND_HEADERS] = TO(HTTP2_SEND_OPEN) | TO(HTTP2_SEND_FINISHED),
    [HTTP2_SEND_OPEN] = TO(HTTP2_SEND_DEFERRED) | TO(HTTP2_SEND_FINISHED),
    [HTTP2_SEND_DEFERRED] = TO(HTTP2_SEND_OPEN) | TO(HTTP2_SEND_FINISHED),
    [HTTP2_SEND_FINISHED] = TO(HTTP2_SEND_ENDED),
    [HTTP2_SEND_ENDED] = 0,
};

void http2_phase_set(struct hps_http2 *h2, enum http2_phase to)
{
    HPS_ASSERT(hps_loop_is_mine(h2->shared->loop));
    HPS_ASSERT(h2->phase < HTTP2_PHASES && to < HTTP2_PHASES);
    HPS_ASSERT((phase_follows[h2->phase] & TO(to)) != 0);
    HPS_ASSERT(to != HTTP2_GOAWAY || h2->options.server);
    h2->phase = to;
    h2->base.ready = to >= HTTP2_OPEN && !http2_is_dead(h2);
}

void http2_stream_sane(const struct hps_http2_stream *stream)
{
    const struct hps_http2 *h2 = stream->h2;

    HPS_ASSERT(stream->send < HTTP2_SEND_PHASES);
    HPS_ASSERT(h2->options.server || stream->send != HTTP2_SEND_HEADERS);
    HPS_ASSERT(*stream->link.le_prev == stream);
    HPS_ASSERT((stream->head == NULL) == (stream->tail == NULL));
    HPS_ASSERT(stream->head == NULL || stream->base.queued > 0);
    HPS_ASSERT(stream->base.queued <= h2->base.queued);
    switch (stream->send) {
    case HTTP2_SEND_HEADERS:
        HPS_ASSERT(stream->base.framed == 0);
        break;
    case HTTP2_SEND_DEFERRED:
    case HTTP2_SEND_ENDED:
        HPS_ASSERT(stream->head == NULL);
        break;
    case HTTP2_SEND_OPEN:
    case HTTP2_SEND_FINISHED:
    case HTTP2_SEND_PHASES:
        break;
    }
}

/* ---- the end of a connection ----------------------------------------------------------------- */

void http2_fail(struct hps_http2 *h2, const struct hps_error *why)
{
    HPS_ASSERT(h2->busy > 0);
    if (http2_is_dead(h2)) {
        return;
    }
    if (!http2_is_aborting(h2)) {
        h2->why = *why;
    }
    http2_phase_set(h2, HTTP2_FAILED);
}

/* The status of an abort: the peer, this side or neither is the cause. */
static hps_status abort_status(uint32_t error)
{
    if (error == HPS_HTTP2_NO_ERROR) {
        return HPS_CLOSED;
    }
    return error == HPS_HTTP2_INTERNAL_ERROR ? HPS_NO_MEMORY : HPS_INVALID;
}

void http2_abort(struct hps_http *http, uint32_t error, const char *why)
{
    struct hps_http2 *h2 = http2_of(http);

    if (http2_is_dead(h2) || http2_is_aborting(h2)) {
        return;
    }
    (void)nghttp2_session_terminate_session(h2->session, error); /* closing is the point */
    hps_error_set(&h2->why, abort_status(error), "%s: %s", hps_conn_peer(h2->base.conn), why);
    http2_phase_set(h2, h2->phase == HTTP2_HANDSHAKE ? HTTP2_ABANDONED : HTTP2_ABORTING);
    http2_kick(h2);
}

void http2_drain_now(struct hps_http *http)
{
    struct hps_http2 *h2 = http2_of(http);

    HPS_ASSERT(h2->options.server && h2->phase != HTTP2_HANDSHAKE);
    if (h2->phase != HTTP2_OPEN && h2->phase != HTTP2_DRAINING) {
        return;
    }
    http2_phase_set(h2, HTTP2_GOAWAY);
    if (nghttp2_submit_goaway(h2->session, NGHTTP2_FLAG_NONE,
                              nghttp2_session_get_last_proc_stream_id(h2->session),
                              NGHTTP2_NO_ERROR, NULL, 0) != 0) {
        http2_abort(&h2->base, HPS_HTTP2_INTERNAL_ERROR, "no memory");
    }
    http2_kick(h2);
}

bool hps_http2_can_request(const struct hps_http *http)
{
    const struct hps_http2 *h2 = http2_of(http);

    return (h2->phase == HTTP2_HANDSHAKE || h2->phase == HTTP2_OPEN) && !h2->in->peer_goaway &&
           nghttp2_session_check_request_allowed(h2->session) != 0;
}
