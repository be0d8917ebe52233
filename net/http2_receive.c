/* SPDX-License-Identifier: Apache-2.0
 *
 * Receives on a session: reads from the socket and gives the bytes to nghttp2. Its callbacks call
 * the owner's. Reads use one buffer of the loop. Within a large DATA frame they use the buffer that
 * the owner of the stream provides (on_buffer). A peer is cut off if it sends what no client sends.
 * Loop thread of the connection.
 */
#include "net/http2_internal.h"

#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"

/* Limit of the work in a turn, in bytes of large frames. A frame adds the cost of some hundred
 * bytes of body, and a read counts as some thousand at least, even if it gets one byte. */
enum {
    READ_TURN_WORK = 1024 * 1024,
    FRAME_WORK = 256,
    READ_WORK_MIN = 4 * 1024,
};

enum {
    DIRECT_BYTES_MIN = 16 * 1024, /* least rest of a frame that is read to the owner's buffer */
    BEHIND_BYTES = 4 * 1024,      /* read with it: the head of the next frame and little more */
};

/* Limits per minute. A peer that exceeds one is an attacker, not a client. */
enum {
    TINY_DATA_BYTES = 16,
    TINY_DATA_MAX = 10000,
    PING_IDLE_MAX = 200,
    PING_MAX = 20000,
    CONTROL_MAX = 10000,
    ANSWERS_MAX = 100, /* queued frames without body, and three for each stream */
    ANSWERS_PER_STREAM = 3,
    RATE_WINDOW_US = 60 * 1000 * 1000,
    LARGE_HEADERS_MAX = 16, /* times the limit: up to this a request is answered, not reset */
};

/* ---- callbacks of nghttp2 -------------------------------------------------------------------- */

static bool rate_passed(struct http2_rate *rate, uint64_t now_us, unsigned max)
{
    if (now_us - rate->since_us > RATE_WINDOW_US) {
        rate->since_us = now_us;
        rate->n = 0;
    }
    return ++rate->n > max;
}

/* Aborts for frames that cost us work and that clients send rarely. */
static void check_flood(struct hps_http2 *h2, const nghttp2_frame *frame)
{
    bool ack = (frame->hd.flags & NGHTTP2_FLAG_ACK) != 0;

    switch (frame->hd.type) {
    case NGHTTP2_DATA:
        if (frame->hd.length < TINY_DATA_BYTES &&
            (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) == 0 &&
            rate_passed(&h2->in->tiny, h2->base.read_us, TINY_DATA_MAX)) {
            http2_abort(&h2->base, HPS_HTTP2_ENHANCE_YOUR_CALM, "too many tiny DATA frames");
        }
        break;
    case NGHTTP2_PING:
        if (!ack && rate_passed(&h2->in->pings, h2->base.read_us,
                                h2->n_streams == 0 ? PING_IDLE_MAX : PING_MAX)) {
            http2_abort(&h2->base, HPS_HTTP2_ENHANCE_YOUR_CALM, "too_many_pings");
        }
        break;
    case NGHTTP2_SETTINGS:
    case NGHTTP2_PRIORITY:
        if (!ack && rate_passed(&h2->in->controls, h2->base.read_us, CONTROL_MAX)) {
            http2_abort(&h2->base, HPS_HTTP2_ENHANCE_YOUR_CALM, "too many control frames");
        }
        break;
    default:
        break;
    }
}

static int cb_begin_headers(nghttp2_session *session, const nghttp2_frame *frame, void *ctx)
{
    struct hps_http2 *h2 = ctx;
    struct hps_http2_stream *stream = http2_stream_of(h2, frame->hd.stream_id);

    if (stream != NULL) {
        stream->header_bytes = 0;
        stream->n_fields = 0;
        return 0;
    }
    if (!h2->options.server || frame->headers.cat != NGHTTP2_HCAT_REQUEST) {
        return 0;
    }
    stream = http2_stream_new(h2);
    if (stream == NULL) {
        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    }
    stream->id = frame->hd.stream_id;
    (void)nghttp2_session_set_stream_user_data(session, stream->id, stream); /* it is open */
    h2->base.events->on_stream(h2->base.ctx, &stream->base);
    return http2_is_dead(h2) ? NGHTTP2_ERR_CALLBACK_FAILURE : 0;
}

static void log_malformed(const struct hps_http2 *h2, const char *error)
{
    if (h2->options.server) {
        HPS_LOG_BY(hps_conn_client(h2->base.conn), WARN, "grpc",
                   "request refused: its HTTP/2 is malformed; fix the client, see error",
                   HPS_STR("peer", hps_conn_peer(h2->base.conn)), HPS_STR("error", error));
    }
}

static void reset_malformed(struct hps_http2_stream *stream, const char *error)
{
    log_malformed(stream->h2, error);
    http2_reset(&stream->base, HPS_HTTP2_PROTOCOL_ERROR);
}

/* nghttp2 found an illegal field and resets the stream. Its text ends with the value, which may be
 * a token, so only the part before it is logged. */
static int cb_error(nghttp2_session *session, int error, const char *text, size_t size, void *ctx)
{
    char message[256];
    const char *value = memmem(text, size, ", value", 7);

    (void)session;
    if (error == NGHTTP2_ERR_HTTP_HEADER) {
        size = value != NULL ? (size_t)(value - text) : size;
        size = size < sizeof message - 1 ? size : sizeof message - 1;
        memcpy(message, text, size);
        message[size] = '\0';
        log_malformed(ctx, message);
    }
    return 0;
}

static int cb_invalid(nghttp2_session *session, const nghttp2_frame *frame, int error, void *ctx)
{
    (void)session;
    (void)frame;
    if (error == NGHTTP2_ERR_HTTP_MESSAGING) {
        log_malformed(ctx, "one of :method, :scheme, :path and :authority is missing, or "
                           "content-length is not the size of the body");
    }
    return 0;
}

/* Counts a field against the limits of its block; returns the result for the callback. The peer may
 * ignore our SETTINGS_MAX_HEADER_LIST_SIZE: one 16 KB frame of indexed fields can expand to 48 MB.
 * If the head of a request exceeds the limit a little, nghttp2 reads all of it, so that the owner
 * can answer. Fields beyond the limit are dropped. */
static int count_field(struct hps_http2 *h2, struct hps_http2_stream *stream, bool is_head,
                       size_t size)
{
    const struct hps_http2_options *options = &h2->options;

    stream->header_bytes += size + 32;
    stream->n_fields++;
    if (stream->header_bytes <= options->header_bytes_max &&
        stream->n_fields <= options->header_fields_max) {
        return 0;
    }
    if (options->server && !stream->base.too_large) {
        HPS_LOG_BY(hps_conn_client(h2->base.conn), WARN, "grpc",
                   "request refused: its metadata is too large; send less, see metadata_bytes_max "
                   "and metadata_fields_max",
                   HPS_STR("peer", hps_conn_peer(h2->base.conn)),
                   HPS_U64("metadata_bytes_max", options->header_bytes_max),
                   HPS_U64("metadata_fields_max", options->header_fields_max));
    }
    stream->base.too_large = true;
    return is_head && stream->header_bytes <= LARGE_HEADERS_MAX * options->header_bytes_max &&
                   stream->n_fields <= LARGE_HEADERS_MAX * options->header_fields_max
               ? 0
               : NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
}

static int cb_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name,
                     size_t name_size, const uint8_t *value, size_t value_size, uint8_t flags,
                     void *ctx)
{
    struct hps_http2 *h2 = ctx;
    struct hps_http2_stream *stream = http2_stream_of(h2, frame->hd.stream_id);

    (void)session;
    (void)flags;
    if (stream == NULL) {
        return 0;
    }
    bool is_head = frame->headers.cat == NGHTTP2_HCAT_REQUEST;
    int rc = count_field(h2, stream, is_head, name_size + value_size);
    if (rc != 0) {
        return rc;
    }
    if (h2->checks_requests &&
        !http2_request_field(&stream->request, name, name_size, value, value_size)) {
        char error[256];
        (void)snprintf(error, sizeof error, "the name or value of field %s", (const char *)name);
        reset_malformed(stream, error);
        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE; /* nghttp2 drops the rest of the block */
    }
    if (!stream->base.too_large && h2->base.events->on_header != NULL) {
        h2->base.events->on_header(h2->base.ctx, &stream->base, (const char *)name, name_size,
                                   (const char *)value, value_size);
    }
    return http2_is_dead(h2) ? NGHTTP2_ERR_CALLBACK_FAILURE : 0;
}

static int cb_begin_frame(nghttp2_session *session, const nghttp2_frame_hd *head, void *ctx)
{
    struct hps_http2 *h2 = ctx;
    bool plain = head->type == NGHTTP2_DATA && (head->flags & NGHTTP2_FLAG_PADDED) == 0;

    (void)session;
    h2->in->work += FRAME_WORK;
    h2->in->frame_id = head->stream_id;
    h2->in->frame_left = plain ? head->length : 0;
    return 0;
}

static int cb_data(nghttp2_session *session, uint8_t flags, int32_t id, const uint8_t *data,
                   size_t size, void *ctx)
{
    struct hps_http2 *h2 = ctx;
    struct hps_http2_stream *stream = http2_stream_of(h2, id);

    (void)flags;
    h2->in->frame_left -= size < h2->in->frame_left ? size : h2->in->frame_left;
    h2->in->data_end = data + size;
    if (stream == NULL || h2->base.events->on_data == NULL) {
        (void)nghttp2_session_consume(session, id, size); /* only memory can fail: next time */
        return 0;
    }
    HPS_DEBUG_ASSERT(!stream->peer_ended);
    if (h2->checks_requests && !http2_request_data(&stream->request, size)) {
        reset_malformed(stream, "the body has more bytes than content-length says");
        (void)nghttp2_session_consume(session, id, size);
        return 0;
    }
    stream->unconsumed += size;
    h2->base.events->on_data(h2->base.ctx, &stream->base, data, size);
    return http2_is_dead(h2) ? NGHTTP2_ERR_CALLBACK_FAILURE : 0;
}

static void on_goaway(struct hps_http2 *h2)
{
    h2->in->peer_goaway = true;
    if (h2->base.events->on_goaway != NULL) {
        h2->base.events->on_goaway(h2->base.ctx);
    }
}

/* The peer has opened a window, and no turn of writing has used it yet. */
static void on_window(struct hps_http2 *h2, int32_t id)
{
    struct hps_http2_stream *stream = http2_stream_of(h2, id);

    if (id == 0) {
        h2->in->opened = h2->out->n_turns + 1;
    } else if (stream != NULL) {
        stream->opened = h2->out->n_turns + 1;
    }
}

/* Whether the request is well-formed up to this received frame. */
static bool is_well_formed(struct hps_http2_stream *stream, const nghttp2_frame *frame)
{
    bool head = frame->hd.type == NGHTTP2_HEADERS;
    bool end = (head || frame->hd.type == NGHTTP2_DATA) &&
               (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0;

    return (!head || http2_request_head(&stream->request, end)) &&
           (!end || http2_request_end(&stream->request));
}

static int cb_frame_recv(nghttp2_session *session, const nghttp2_frame *frame, void *ctx)
{
    struct hps_http2 *h2 = ctx;
    struct hps_http2_stream *stream = http2_stream_of(h2, frame->hd.stream_id);

    (void)session;
    check_flood(h2, frame);
    if (stream != NULL && h2->checks_requests && !is_well_formed(stream, frame)) {
        reset_malformed(stream, "one of :method, :scheme and :path is missing, content-length is "
                                "not the size of the body, or trailers do not end it");
        return 0;
    }
    switch (frame->hd.type) {
    case NGHTTP2_HEADERS:
        if (stream != NULL && h2->base.events->on_headers != NULL) {
            h2->base.events->on_headers(h2->base.ctx, &stream->base);
        }
        break;
    case NGHTTP2_PING:
        if ((frame->hd.flags & NGHTTP2_FLAG_ACK) != 0 && h2->options.server &&
            h2->phase == HTTP2_DRAINING) {
            http2_drain_now(&h2->base);
        }
        return 0;
    case NGHTTP2_GOAWAY:
        on_goaway(h2);
        return http2_is_dead(h2) ? NGHTTP2_ERR_CALLBACK_FAILURE : 0;
    case NGHTTP2_DATA:
        break;
    case NGHTTP2_SETTINGS:
        h2->in->peer_spoke = true;
        h2->in->opened_streams = h2->out->n_turns + 1;
        return 0;
    case NGHTTP2_WINDOW_UPDATE:
        on_window(h2, frame->hd.stream_id);
        return 0;
    default:
        return 0;
    }
    if ((frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0 && !http2_is_dead(h2)) {
        stream = http2_stream_of(h2, frame->hd.stream_id);
        if (stream != NULL) {
            stream->peer_ended = true;
            if (h2->base.events->on_end != NULL) {
                h2->base.events->on_end(h2->base.ctx, &stream->base);
            }
        }
    }
    return http2_is_dead(h2) ? NGHTTP2_ERR_CALLBACK_FAILURE : 0;
}

void http2_receive_callbacks_set(nghttp2_session_callbacks *callbacks)
{
    nghttp2_session_callbacks_set_on_begin_frame_callback(callbacks, cb_begin_frame);
    nghttp2_session_callbacks_set_on_begin_headers_callback(callbacks, cb_begin_headers);
    nghttp2_session_callbacks_set_on_header_callback(callbacks, cb_header);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, cb_data);
    nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, cb_frame_recv);
    nghttp2_session_callbacks_set_on_invalid_frame_recv_callback(callbacks, cb_invalid);
    nghttp2_session_callbacks_set_error_callback2(callbacks, cb_error);
}

/* ---- reading --------------------------------------------------------------------------------- */

static bool has_many_answers(const struct hps_http2 *h2)
{
    size_t n_max = ANSWERS_MAX + ANSWERS_PER_STREAM * (size_t)h2->options.streams_max;

    return h2->options.server && http2_takes_in(h2) &&
           nghttp2_session_get_outbound_queue_size(h2->session) > n_max;
}

/* Each frame of a client may cause one of ours (a refused stream, an acknowledgement), and the
 * client may not read them. */
static void check_answers(struct hps_http2 *h2)
{
    if (has_many_answers(h2) && !h2->base.blocked) {
        http2_write_out(h2);
    }
    if (has_many_answers(h2)) {
        http2_abort(&h2->base, HPS_HTTP2_ENHANCE_YOUR_CALM, "too many replies wait to be sent");
    }
}

/* Aborts the connection after an error of nghttp2. */
static void abort_for(struct hps_http2 *h2, int error)
{
    const char *why = error == NGHTTP2_ERR_BAD_CLIENT_MAGIC
                          ? "the peer does not speak HTTP/2; expected a gRPC client, and TLS only "
                            "if server.tls is set"
                          : nghttp2_strerror(error);

    http2_abort(&h2->base,
                error == NGHTTP2_ERR_FLOODED ? HPS_HTTP2_ENHANCE_YOUR_CALM
                : error == NGHTTP2_ERR_NOMEM ? HPS_HTTP2_INTERNAL_ERROR
                                             : HPS_HTTP2_PROTOCOL_ERROR,
                why);
}

/* Gives one run of bytes to nghttp2. */
static void take_in_run(struct hps_http2 *h2, const uint8_t *data, size_t size)
{
    HPS_ASSERT(http2_takes_in(h2) && size > 0);
    h2->in->data_end = NULL;
    ssize_t used = nghttp2_session_mem_recv(h2->session, data, size);
    h2->in->in_data = h2->in->data_end == data + size;
    if (used < 0) {
        abort_for(h2, (int)used);
    }
}

static void take_in(struct hps_http2 *h2, const uint8_t *data, size_t size)
{
    const uint8_t *run;
    size_t run_bytes;

    if (!h2->options.server) {
        take_in_run(h2, data, size);
        return;
    }
    while (http2_takes_in(h2) &&
           hps_http2_filter_next(&h2->in->filter, &data, &size, &run, &run_bytes)) {
        if (run_bytes > 0) {
            take_in_run(h2, run, run_bytes);
        }
    }
    for (; h2->in->filter.n_dropped > 0; h2->in->filter.n_dropped--) {
        if (!http2_is_dead(h2) && rate_passed(&h2->in->controls, h2->base.read_us, CONTROL_MAX)) {
            http2_abort(&h2->base, HPS_HTTP2_ENHANCE_YOUR_CALM, "too many control frames");
        }
    }
}

/* The owner's buffer for the rest of the current DATA frame, or NULL. Only if nghttp2 reported the
 * last byte as data of this frame: then the next frame_left bytes are data too. */
static uint8_t *direct_buffer(struct hps_http2 *h2, size_t *out_capacity)
{
    struct hps_http2_stream *stream;

    if (h2->base.events->on_buffer == NULL || !h2->in->in_data ||
        h2->in->frame_left < DIRECT_BYTES_MIN) {
        return NULL;
    }
    stream = http2_stream_of(h2, h2->in->frame_id);
    return stream == NULL ? NULL
                          : h2->base.events->on_buffer(h2->base.ctx, &stream->base,
                                                       h2->in->frame_left, out_capacity);
}

/* One read. *out_more: the socket may have more. */
static hps_status read_once(struct hps_http2 *h2, bool *out_more)
{
    struct iovec iov[2];
    int n_iov = 0;
    size_t size_max = 0, size;
    uint8_t *direct = direct_buffer(h2, &size_max);
    size_t buffer_bytes = direct != NULL                    ? BEHIND_BYTES
                          : hps_run_is_shared(h2->item.run) ? HTTP2_READ_BYTES_SHARED
                                                            : HTTP2_READ_BYTES;

    if (direct != NULL) {
        iov[n_iov++] = (struct iovec){.iov_base = direct, .iov_len = size_max};
    }
    iov[n_iov++] = (struct iovec){.iov_base = h2->shared->read, .iov_len = buffer_bytes};
    hps_status status = hps_conn_readv(h2->base.conn, iov, n_iov, &size);
    if (status != HPS_OK) {
        return status;
    }
    HPS_ASSERT(size > 0 && size <= size_max + buffer_bytes);
    size_t in_place = size < size_max ? size : size_max;
    if (in_place > 0) {
        take_in(h2, direct, in_place);
    }
    if (size > in_place && http2_takes_in(h2)) {
        take_in(h2, h2->shared->read, size - in_place);
    }
    check_answers(h2);
    h2->in->work += size > READ_WORK_MIN ? size : READ_WORK_MIN;
    *out_more = size == size_max + buffer_bytes || hps_conn_is_tls(h2->base.conn);
    return HPS_OK;
}

void http2_read_in(struct hps_http2 *h2)
{
    struct hps_error why;
    bool more = true;
    struct hps_run *run = h2->item.run;

    HPS_ASSERT(h2->busy > 0 && h2->phase >= HTTP2_OPEN);
    h2->base.read_us = hps_loop_now_us(h2->shared->loop);
    h2->in->work = 0;
    while (more && http2_takes_in(h2) && h2->in->work < READ_TURN_WORK && !hps_run_is_spent(run)) {
        hps_status status = read_once(h2, &more);
        if (status == HPS_AGAIN) {
            break;
        }
        if (status != HPS_OK) {
            hps_error_set(&why, HPS_CLOSED, "%s: %s", hps_conn_peer(h2->base.conn),
                          status == HPS_CLOSED ? "peer closed the connection" : "connection lost");
            http2_fail(h2, &why);
            return;
        }
        hps_run_see(run, hps_clock_us());
    }
    if (more && hps_run_is_spent(run) && http2_takes_in(h2)) {
        hps_run_add(&h2->item, HPS_LOOP_READ);
    }
    http2_tell_sent(h2);
    http2_kick(h2);
}

/* ---- the window ------------------------------------------------------------------------------ */

void http2_consume(struct hps_http_stream *base, size_t size)
{
    struct hps_http2_stream *stream = http2_stream_at(base);
    struct hps_http2 *h2 = stream->h2;

    if (http2_is_dead(h2) || size == 0) {
        return;
    }
    HPS_DEBUG_ASSERT(hps_loop_is_mine(h2->shared->loop));
    HPS_ASSERT(size <= stream->unconsumed);
    stream->unconsumed -= size;
    if (nghttp2_session_consume(h2->session, stream->id, size) != 0) {
        http2_abort(&h2->base, HPS_HTTP2_INTERNAL_ERROR, "no memory");
    }
    http2_kick(h2);
}
