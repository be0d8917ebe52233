/* SPDX-License-Identifier: Apache-2.0
 *
 * The phases of an HTTP/2 connection and of our side of a stream: transitions and invariants. The
 * other files of net/http2* change a phase only by these functions and check the invariants at the
 * end of each turn. Loop thread of the connection.
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
}

/* Walks the lists, which may be long. */
static bool counts_add_up(const struct hps_http2 *h2)
{
    const struct hps_http2_stream *prev = NULL;
    unsigned n_streams = 0;
    unsigned n_sent = 0;
    unsigned n_in_sent = 0;
    size_t queued = 0;

    for (const struct hps_http2_stream *at = h2->streams; at != NULL; at = at->next) {
        if (at->h2 != h2 || at->prev != prev) {
            return false;
        }
        HPS_DEBUG_SANE(http2_stream_sane(at));
        prev = at;
        n_streams++;
        n_in_sent += at->in_sent;
        queued += at->base.queued;
    }
    for (const struct hps_http2_stream *at = h2->sent; at != NULL; at = at->sent_next) {
        n_sent++;
    }
    /* Bytes of closed streams in a batch count too. */
    return n_streams == h2->n_streams && n_sent == n_in_sent && queued <= h2->base.queued;
}

void http2_sane(const struct hps_http2 *h2)
{
    bool shaking = h2->phase == HTTP2_HANDSHAKE || h2->phase == HTTP2_ABANDONED;

    HPS_DEBUG_ASSERT(hps_loop_is_mine(h2->shared->loop));
    HPS_ASSERT(h2->conn != NULL && h2->session != NULL);
    HPS_ASSERT(!http2_is_dead(h2));
    /* Only the next turn ends an abort, so that must be scheduled. */
    HPS_ASSERT(!http2_is_aborting(h2) || hps_run_is_added(&h2->item));
    HPS_ASSERT(h2->options.server || h2->phase != HTTP2_GOAWAY);

    if (shaking) {
        HPS_ASSERT(h2->out.position == 0 && h2->out.batch == NULL);
        HPS_ASSERT(!h2->peer_spoke && !h2->peer_goaway);
        HPS_ASSERT(!h2->options.server || h2->n_streams == 0);
    }

    /* Every framed byte is in the batch or in the kernel. Blocks in the kernel are released. */
    HPS_ASSERT(h2->out.position - h2->base.written == http2_batch_left(h2));
    HPS_ASSERT(!h2->base.blocked || http2_batch_left(h2) > 0);
    HPS_ASSERT((h2->out.unreleased_head == NULL) == (h2->out.unreleased_tail == NULL));
    HPS_ASSERT(http2_unreleased_from(h2) > h2->base.written);

    HPS_ASSERT((h2->n_streams == 0) == (h2->streams == NULL));
    HPS_ASSERT(h2->base.queued <= hps_http2_shared_queued(h2->shared));
    HPS_ASSERT(h2->base.queued == 0 || h2->streams != NULL || h2->out.unreleased_head != NULL);
    HPS_ASSERT(h2->sent == NULL && !h2->released); /* http2_tell_sent has run */
    HPS_DEBUG_ASSERT(counts_add_up(h2));
}

void http2_stream_sane(const struct hps_http2_stream *stream)
{
    const struct hps_http2 *h2 = stream->h2;

    HPS_ASSERT(stream->send < HTTP2_SEND_PHASES);
    HPS_ASSERT(h2->options.server || stream->send != HTTP2_SEND_HEADERS);
    HPS_ASSERT(stream->prev != NULL || h2->streams == stream);
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
