/* SPDX-License-Identifier: Apache-2.0
 *
 * The phases of an HTTP/1.1 connection: transitions, and how requests and connections end. Loop
 * thread of the connection.
 */
#include <stdarg.h>
#include <stdio.h>

#include "net/http1_server_internal.h"

enum { LINGER_US = 2 * 1000 * 1000 /* for the peer to read the response and close */ };

/* ---- phases ---------------------------------------------------------------------------------- */

#define TO(phase) (1u << (phase))

void http1_phase_set(struct http1 *http, enum http1_phase to)
{
    static const unsigned follows[HTTP1_PHASES] = {
        [HTTP1_HANDSHAKE] = TO(HTTP1_HEAD) | TO(HTTP1_FAILED) | TO(HTTP1_FREED),
        [HTTP1_HEAD] =
            TO(HTTP1_BODY) | TO(HTTP1_CALL) | TO(HTTP1_LAST) | TO(HTTP1_FAILED) | TO(HTTP1_FREED),
        [HTTP1_BODY] = TO(HTTP1_CALL) | TO(HTTP1_LAST) | TO(HTTP1_FAILED) | TO(HTTP1_FREED),
        [HTTP1_CALL] = TO(HTTP1_HEAD) | TO(HTTP1_LINGER) | TO(HTTP1_FAILED) | TO(HTTP1_FREED),
        [HTTP1_LAST] = TO(HTTP1_LINGER) | TO(HTTP1_FAILED) | TO(HTTP1_FREED),
        [HTTP1_LINGER] = TO(HTTP1_FAILED) | TO(HTTP1_FREED),
        [HTTP1_FAILED] = TO(HTTP1_FREED),
    };

    HPS_ASSERT(http->phase < HTTP1_PHASES && to < HTTP1_PHASES);
    HPS_ASSERT((follows[http->phase] & TO(to)) != 0);
    http->phase = to;
    http->base.ready = to > HTTP1_HANDSHAKE && !http1_is_dead(http);
}

/* ---- ends ------------------------------------------------------------------------------------ */

size_t http1_unwritten(const struct http1 *http)
{
    size_t size = http->out->text.size - http->out->text_at;

    for (unsigned i = http->out->at; i < http->out->n_pieces; i++) {
        size += http->out->pieces[i].size;
    }
    return size;
}

void http1_fail(struct http1 *http, hps_status status, const char *fmt, ...)
{
    va_list args;
    char text[sizeof http->why.text];

    HPS_ASSERT(http->busy > 0);
    if (http1_is_dead(http)) {
        return;
    }
    if (http->why.status == HPS_OK) {
        va_start(args, fmt);
        vsnprintf(text, sizeof text, fmt, args);
        va_end(args);
        hps_ignore(
            hps_error_set(&http->why, status, "%s: %s", hps_conn_peer(http->base.conn), text));
    }
    http1_phase_set(http, HTTP1_FAILED);
}

void http1_stream_close(struct http1 *http, uint32_t error)
{
    HPS_ASSERT(http->request->is_open && http->request->stream.queued == 0);
    http->request->is_open = false;
    http->request->responded = false;
    http->request->finished = false;
    http->base.events->on_stream_closed(http->base.ctx, &http->request->stream, error);
}

/* Lets the peer close first. To close while it still sends would reset the connection, and the
 * response could be lost. */
static void linger(struct http1 *http)
{
    if (http->in->half_closed) {
        http1_fail(http, HPS_CLOSED, "connection ended");
        return;
    }
    http1_phase_set(http, HTTP1_LINGER);
    http->in->at = 0;
    hps_buf_fini(&http->in->bytes);
    hps_timer_set_after(http->loop, &http->timer, LINGER_US);
    hps_conn_shutdown_write(http->base.conn);
}

void http1_answered(struct http1 *http)
{
    HPS_ASSERT(http1_unwritten(http) == 0);
    if (http->request->is_open) {
        http1_stream_close(http, HPS_HTTP2_NO_ERROR);
    }
    if (http1_is_dead(http)) {
        return;
    }
    if (http->phase == HTTP1_LAST || http->close) {
        linger(http);
        return;
    }
    hps_timer_stop(&http->timer);
    http1_phase_set(http, HTTP1_HEAD);
    http1_kick(http);
}
