/* SPDX-License-Identifier: Apache-2.0
 *
 * Sends on a session. A message is a list of pieces (block, bytes). nghttp2 asks how much of a
 * stream may be sent (read callback), then for the frame (send callback). The frame's header goes
 * to the scratch, and pointers to the pieces go into one iovec batch. A piece whose last byte is in
 * a batch moves to the `unreleased` list, with the position of the output at which the kernel has
 * it. The same happens to a partly framed piece if its stream is reset. So a block is released
 * exactly when the kernel has its bytes, however its call ended. Loop thread of the connection.
 */
#include "net/http2_internal.h"

#include <string.h>

#include "base/assert.h"
#include "base/block.h"
#include "base/clock.h"
#include "base/heap.h"
#include "net/grpc.h"

enum {
    FRAME_BYTES = 256 * 1024,
    BATCH_BYTES = 1024 * 1024, /* per writev: 256 KB is 30 % slower, 4 MB 25 % */
    BATCH_BYTES_BUSY = 256 * 1024,
    TURN_BYTES = 1024 * 1024, /* per connection and slice, so that small calls get through */
    IOV_MAX_BATCH = 512,
    PIECES_PER_FRAME = 64,
    COPY_BYTES = 256, /* a piece up to this is cheaper to copy than to give an iovec */
    SCRATCH_BYTES = 64 * 1024,
    CONTROL_BYTES_MAX = 17 * 1024, /* largest buffer of nghttp2 */
    SCRATCH_SPARE = CONTROL_BYTES_MAX + 16 + PIECES_PER_FRAME * COPY_BYTES,
};

/* Bytes of a message; pieces are sent in order. */
struct http2_piece {
    STAILQ_ENTRY(http2_piece) link; /* of the unreleased pieces */
    struct http2_message *message;
    struct hps_block *block; /* NULL: bytes of the message itself */
    const uint8_t *data;
    size_t size;
    size_t framed;
    uint64_t release_at; /* position in the output of the connection */
};

struct http2_message {
    struct http2_message *next;
    struct hps_http2_stream *stream; /* NULL: closed */
    unsigned n_pieces;
    unsigned n_held; /* not yet released */
    unsigned at;     /* first one that is not completely framed */
    struct http2_piece pieces[];
};

struct http2_batch {
    struct http2_batch *next; /* free list */
    unsigned n_iov;
    unsigned at;
    size_t size; /* bytes left to write */
    size_t scratch_used;
    struct iovec iov[IOV_MAX_BATCH];
    uint8_t scratch[SCRATCH_BYTES];
};

/* ---- batches --------------------------------------------------------------------------------- */

void http2_batches_free(struct hps_http2_shared *shared)
{
    while (shared->batches != NULL) {
        struct http2_batch *batch = shared->batches;
        shared->batches = batch->next;
        hps_free(batch);
    }
}

static struct http2_batch *batch_take(struct hps_http2_shared *shared)
{
    struct http2_batch *batch = shared->batches;

    if (batch != NULL) {
        shared->batches = batch->next;
    } else {
        batch = hps_alloc(sizeof *batch);
    }
    if (batch != NULL) {
        batch->n_iov = 0;
        batch->at = 0;
        batch->size = 0;
        batch->scratch_used = 0;
    }
    return batch;
}

void http2_batch_give(struct hps_http2_shared *shared, struct http2_batch *batch)
{
    batch->next = shared->batches;
    shared->batches = batch;
}

static bool batch_full(const struct hps_http2 *h2)
{
    const struct http2_batch *batch = h2->out->batch;
    size_t most = hps_run_is_busy(h2->item.run) ? BATCH_BYTES_BUSY : BATCH_BYTES;

    return batch->size >= most || batch->n_iov + PIECES_PER_FRAME + 2 > IOV_MAX_BATCH ||
           batch->scratch_used + SCRATCH_SPARE > SCRATCH_BYTES;
}

static void batch_add(struct http2_batch *batch, const void *data, size_t size)
{
    HPS_DEBUG_ASSERT(batch->n_iov < IOV_MAX_BATCH);
    batch->iov[batch->n_iov++] =
        (struct iovec){.iov_base = (void *)(uintptr_t)data, .iov_len = size};
    batch->size += size;
}

static void batch_copy(struct http2_batch *batch, const void *data, size_t size)
{
    uint8_t *to = batch->scratch + batch->scratch_used;

    HPS_ASSERT(size <= SCRATCH_BYTES - batch->scratch_used);
    memcpy(to, data, size);
    batch->scratch_used += size;
    if (batch->n_iov > 0) {
        struct iovec *last = &batch->iov[batch->n_iov - 1];
        if ((uint8_t *)last->iov_base + last->iov_len == to) {
            last->iov_len += size;
            batch->size += size;
            return;
        }
    }
    batch_add(batch, to, size);
}

/* ---- pieces ---------------------------------------------------------------------------------- */

static void count_queued(struct hps_http2 *h2, size_t size, bool more)
{
    if (more) {
        h2->base.queued += size;
        atomic_fetch_add_explicit(&h2->shared->queued, size, memory_order_relaxed);
    } else {
        h2->base.queued -= size;
        atomic_fetch_sub_explicit(&h2->shared->queued, size, memory_order_relaxed);
    }
}

static void release_piece(struct hps_http2 *h2, struct http2_piece *piece)
{
    struct http2_message *message = piece->message;
    struct hps_http2_stream *stream = message->stream;

    HPS_ASSERT(message->n_held > 0 && piece->size <= h2->base.queued);
    HPS_ASSERT(stream == NULL || piece->size <= stream->base.queued);
    count_queued(h2, piece->size, false);
    h2->released = true;
    if (stream != NULL) {
        stream->base.queued -= piece->size;
        if (!stream->in_sent && h2->base.events->on_sent != NULL) {
            stream->in_sent = true;
            stream->sent_next = h2->sent;
            h2->sent = stream;
        }
    }
    hps_block_unref(piece->block);
    if (--message->n_held == 0) {
        hps_free(message);
    }
}

static void unreleased_add(struct hps_http2 *h2, struct http2_piece *piece)
{
    piece->release_at = h2->out->position;
    STAILQ_INSERT_TAIL(&h2->out->unreleased, piece, link);
}

void http2_release_written(struct hps_http2 *h2, uint64_t position)
{
    struct http2_piece *piece;

    while ((piece = STAILQ_FIRST(&h2->out->unreleased)) != NULL && piece->release_at <= position) {
        STAILQ_REMOVE_HEAD(&h2->out->unreleased, link);
        release_piece(h2, piece);
    }
}

void http2_drop_messages(struct hps_http2_stream *stream)
{
    struct hps_http2 *h2 = stream->h2;
    struct http2_piece *piece;

    STAILQ_FOREACH (piece, &h2->out->unreleased, link) {
        if (piece->message->stream == stream) {
            piece->message->stream = NULL;
        }
    }
    while (stream->head != NULL) {
        struct http2_message *message = stream->head;
        stream->head = message->next;
        message->stream = NULL;
        unsigned n_pieces = message->n_pieces;
        for (unsigned i = message->at; i < n_pieces; i++) {
            if (message->pieces[i].framed > 0) {
                unreleased_add(h2, &message->pieces[i]);
            } else {
                release_piece(h2, &message->pieces[i]);
            }
        }
    }
    stream->tail = NULL;
    stream->base.queued = 0;
    http2_release_written(h2, h2->base.written);
}

/* ---- callbacks of nghttp2 -------------------------------------------------------------------- */

static ssize_t cb_read_length(nghttp2_session *session, uint8_t type, int32_t id,
                              int32_t session_window, int32_t stream_window,
                              uint32_t frame_bytes_max, void *ctx)
{
    ssize_t size = FRAME_BYTES;

    (void)session;
    (void)type;
    (void)id;
    (void)ctx;
    if (size > session_window) {
        size = session_window;
    }
    if (size > stream_window) {
        size = stream_window;
    }
    if ((size_t)size > frame_bytes_max) {
        size = (ssize_t)frame_bytes_max;
    }
    return size;
}

/* The number of queued bytes that go into a frame of at most `length`. *out_all: these are all. */
static size_t frame_size(const struct hps_http2_stream *stream, size_t length, bool *out_all)
{
    size_t size = 0;
    unsigned n_pieces = 0;

    for (const struct http2_message *message = stream->head; message != NULL;
         message = message->next) {
        for (unsigned i = message->at; i < message->n_pieces; i++) {
            const struct http2_piece *piece = &message->pieces[i];
            size_t left = piece->size - piece->framed;
            if (n_pieces == PIECES_PER_FRAME || left > length - size) {
                *out_all = false;
                return n_pieces == PIECES_PER_FRAME ? size : length;
            }
            size += left;
            n_pieces++;
        }
    }
    *out_all = true;
    return size;
}

static ssize_t cb_read(nghttp2_session *session, int32_t id, uint8_t *buf, size_t length,
                       uint32_t *flags, nghttp2_data_source *source, void *ctx)
{
    struct hps_http2 *h2 = ctx;
    struct hps_http2_stream *stream = source->ptr;
    bool all = false;
    size_t size = frame_size(stream, length, &all);

    (void)session;
    (void)id;
    (void)buf;
    if (size == 0 && stream->send < HTTP2_SEND_FINISHED) {
        if (stream->send == HTTP2_SEND_OPEN) {
            http2_stream_send_set(stream, HTTP2_SEND_DEFERRED);
        }
        return NGHTTP2_ERR_DEFERRED;
    }
    *flags |= NGHTTP2_DATA_FLAG_NO_COPY;
    if (all && stream->send == HTTP2_SEND_FINISHED) {
        *flags |= NGHTTP2_DATA_FLAG_EOF;
        if (h2->base.events->on_trailers != NULL) {
            *flags |= NGHTTP2_DATA_FLAG_NO_END_STREAM;
            h2->base.events->on_trailers(h2->base.ctx, &stream->base);
        }
    }
    return (ssize_t)size;
}

/* Adds the next `length` bytes of the stream to the batch. */
static void frame_pieces(struct hps_http2_stream *stream, size_t length)
{
    struct hps_http2 *h2 = stream->h2;
    struct http2_batch *batch = h2->out->batch;

    while (length > 0) {
        struct http2_message *message = stream->head;
        HPS_ASSERT(message != NULL);
        struct http2_piece *piece = &message->pieces[message->at];
        size_t size = piece->size - piece->framed;
        if (size > length) {
            size = length;
        }
        if (size <= COPY_BYTES) {
            batch_copy(batch, piece->data + piece->framed, size);
        } else {
            batch_add(batch, piece->data + piece->framed, size);
        }
        piece->framed += size;
        stream->base.framed += size;
        h2->out->bodies += size;
        h2->out->position += size;
        length -= size;
        if (piece->framed == piece->size) {
            if (++message->at == message->n_pieces) {
                stream->head = message->next;
                if (stream->head == NULL) {
                    stream->tail = NULL;
                }
            }
            unreleased_add(h2, piece);
        }
    }
}

static int cb_send_data(nghttp2_session *session, nghttp2_frame *frame, const uint8_t *head,
                        size_t length, nghttp2_data_source *source, void *ctx)
{
    struct hps_http2 *h2 = ctx;

    (void)session;
    HPS_ASSERT(frame->data.padlen == 0);
    batch_copy(h2->out->batch, head, 9);
    h2->out->position += 9;
    frame_pieces(source->ptr, length);
    return batch_full(h2) ? NGHTTP2_ERR_PAUSE : 0;
}

/* A response that is complete before its request: tells the client to stop. A reset that was
 * submitted earlier would overtake the trailers. */
static int cb_frame_send(nghttp2_session *session, const nghttp2_frame *frame, void *ctx)
{
    struct hps_http2 *h2 = ctx;
    bool may_end = frame->hd.type == NGHTTP2_HEADERS || frame->hd.type == NGHTTP2_DATA;

    if (!may_end || (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) == 0) {
        return 0;
    }
    struct hps_http2_stream *stream = http2_stream_of(h2, frame->hd.stream_id);
    if (stream == NULL) {
        return 0;
    }
    http2_stream_send_set(stream, HTTP2_SEND_ENDED);
    if (h2->options.server && !stream->peer_ended) {
        (void)nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, stream->id,
                                        HPS_HTTP2_NO_ERROR); /* optional */
    }
    return 0;
}

void http2_send_callbacks_set(nghttp2_session_callbacks *callbacks)
{
    nghttp2_session_callbacks_set_on_frame_send_callback(callbacks, cb_frame_send);
    nghttp2_session_callbacks_set_data_source_read_length_callback(callbacks, cb_read_length);
    nghttp2_session_callbacks_set_send_data_callback(callbacks, cb_send_data);
}

nghttp2_data_provider http2_body(struct hps_http2_stream *stream)
{
    return (nghttp2_data_provider){.source = {.ptr = stream}, .read_callback = cb_read};
}

/* ---- writing --------------------------------------------------------------------------------- */

static bool fill_batch(struct hps_http2 *h2)
{
    if (h2->out->batch == NULL) {
        h2->out->batch = batch_take(h2->shared);
        if (h2->out->batch == NULL) {
            struct hps_error why;
            hps_error_set(&why, HPS_NO_MEMORY, "%s: no memory to send",
                          hps_conn_peer(h2->base.conn));
            http2_fail(h2, &why);
            return false;
        }
    }
    h2->out->heads = h2->out->position - h2->out->bodies; /* all of this is written */
    while (!batch_full(h2)) {
        const uint8_t *data;
        ssize_t size = nghttp2_session_mem_send(h2->session, &data);
        if (size < 0 || size > CONTROL_BYTES_MAX) {
            struct hps_error why;
            hps_error_set(&why, HPS_INTERNAL, "%s: %s", hps_conn_peer(h2->base.conn),
                          size < 0 ? nghttp2_strerror((int)size) : "control frame too large");
            http2_fail(h2, &why);
            return false;
        }
        if (size == 0) {
            break;
        }
        batch_copy(h2->out->batch, data, (size_t)size);
        h2->out->position += (size_t)size;
    }
    if (h2->out->batch->size > 0) {
        return true;
    }
    http2_batch_give(h2->shared, h2->out->batch);
    h2->out->batch = NULL;
    return false;
}

static void batch_advance(struct hps_http2 *h2, size_t size)
{
    struct http2_batch *batch = h2->out->batch;

    HPS_ASSERT(size > 0 && size <= batch->size);
    h2->base.written += size;
    batch->size -= size;
    if (batch->size == 0) {
        batch->n_iov = 0;
        batch->at = 0;
        batch->scratch_used = 0;
        return;
    }
    while (size >= batch->iov[batch->at].iov_len) {
        size -= batch->iov[batch->at].iov_len;
        batch->at++;
    }
    struct iovec *iov = &batch->iov[batch->at];
    iov->iov_base = (uint8_t *)iov->iov_base + size;
    iov->iov_len -= size;
}

void http2_tell_sent(struct hps_http2 *h2)
{
    while (h2->sent != NULL) {
        struct hps_http2_stream *stream = h2->sent;
        h2->sent = stream->sent_next;
        stream->in_sent = false;
        if (!http2_is_dead(h2)) {
            h2->base.events->on_sent(h2->base.ctx, &stream->base);
        }
    }
    if (h2->released && !http2_is_dead(h2)) {
        h2->released = false;
        if (h2->base.events->on_released != NULL) {
            h2->base.events->on_released(h2->base.ctx);
        }
    }
}

void http2_write_out(struct hps_http2 *h2)
{
    size_t share = 0;

    HPS_ASSERT(h2->busy > 0 && h2->phase >= HTTP2_OPEN);
    h2->base.blocked = false;
    h2->out->n_turns++;
    while (!http2_is_dead(h2)) {
        if ((h2->out->batch == NULL || h2->out->batch->size == 0) && !fill_batch(h2)) {
            break;
        }
        struct http2_batch *batch = h2->out->batch;
        size_t size;
        hps_status status = hps_conn_writev(h2->base.conn, batch->iov + batch->at,
                                            (int)(batch->n_iov - batch->at), &size);
        if (status == HPS_AGAIN) {
            h2->base.blocked = true;
            break;
        }
        if (status != HPS_OK) {
            struct hps_error why;
            hps_error_set(&why, HPS_CLOSED, "%s: connection lost while writing",
                          hps_conn_peer(h2->base.conn));
            http2_fail(h2, &why);
            break;
        }
        batch_advance(h2, size);
        http2_release_written(h2, h2->base.written);
        http2_tell_sent(h2);
        share += size;
        hps_run_see(h2->item.run, hps_clock_us());
        if (share >= TURN_BYTES || hps_run_is_spent(h2->item.run)) {
            http2_kick(h2);
            break;
        }
    }
    http2_tell_sent(h2); /* streams may have closed while the batch was filled */
}

size_t http2_batch_left(const struct hps_http2 *h2)
{
    return h2->out->batch != NULL ? h2->out->batch->size : 0;
}

uint64_t http2_unreleased_from(const struct hps_http2 *h2)
{
    const struct http2_piece *first = STAILQ_FIRST(&h2->out->unreleased);

    return first != NULL ? first->release_at : UINT64_MAX;
}

/* ---- messages -------------------------------------------------------------------------------- */

/* A message with space for its pieces, followed by `inline_size` bytes. */
static struct http2_message *message_new(struct hps_http2_stream *stream, unsigned n_pieces,
                                         size_t inline_size, uint8_t **out_inline)
{
    struct http2_message *message =
        hps_alloc(sizeof *message + n_pieces * sizeof message->pieces[0] + inline_size);

    if (message != NULL) {
        *message = (struct http2_message){.stream = stream};
        *out_inline = (uint8_t *)&message->pieces[n_pieces];
    }
    return message;
}

static void message_add(struct http2_message *message, struct hps_block *block, const uint8_t *data,
                        size_t size)
{
    message->pieces[message->n_pieces++] =
        (struct http2_piece){.message = message, .block = block, .data = data, .size = size};
    message->n_held++;
}

static void message_queue(struct http2_message *message)
{
    struct hps_http2_stream *stream = message->stream;

    for (unsigned i = 0; i < message->n_pieces; i++) {
        stream->base.queued += message->pieces[i].size;
        count_queued(stream->h2, message->pieces[i].size, true);
    }
    if (stream->tail != NULL) {
        stream->tail->next = message;
    } else {
        stream->head = message;
    }
    stream->tail = message;
    if (stream->send == HTTP2_SEND_DEFERRED) {
        http2_stream_send_set(stream, HTTP2_SEND_OPEN);
        (void)nghttp2_session_resume_data(stream->h2->session,
                                          stream->id); /* fails if it is closing */
    }
    http2_kick(stream->h2);
    HPS_DEBUG_SANE(http2_stream_sane(stream));
}

hps_status http2_send(struct hps_http_stream *base, const void *prefix, size_t prefix_size,
                      const struct hps_slice *slices, unsigned n_slices)
{
    struct hps_http2_stream *stream = http2_stream_at(base);
    hps_status status = HPS_CLOSED;
    uint8_t *bytes;

    HPS_ASSERT(prefix_size > 0 && prefix_size <= 16);
    HPS_ASSERT(stream->send < HTTP2_SEND_FINISHED);
    if (!http2_is_dead(stream->h2)) {
        struct http2_message *message = message_new(stream, n_slices + 1, prefix_size, &bytes);
        if (message != NULL) {
            memcpy(bytes, prefix, prefix_size);
            message_add(message, NULL, bytes, prefix_size);
            for (unsigned i = 0; i < n_slices; i++) {
                if (slices[i].size > 0) {
                    message_add(message, slices[i].block, slices[i].data, slices[i].size);
                } else {
                    hps_block_unref(slices[i].block);
                }
            }
            message_queue(message);
            return HPS_OK;
        }
        status = HPS_NO_MEMORY;
    }
    for (unsigned i = 0; i < n_slices; i++) {
        hps_block_unref(slices[i].block);
    }
    return status;
}

hps_status http2_send_copy(struct hps_http_stream *base, const void *prefix, size_t prefix_size,
                           const void *data, size_t size)
{
    struct hps_http2_stream *stream = http2_stream_at(base);
    uint8_t *bytes;

    HPS_ASSERT(prefix_size + size > 0);
    HPS_ASSERT(stream->send < HTTP2_SEND_FINISHED);
    if (http2_is_dead(stream->h2)) {
        return HPS_CLOSED;
    }
    struct http2_message *message = message_new(stream, 1, prefix_size + size, &bytes);
    if (message == NULL) {
        return HPS_NO_MEMORY;
    }
    memcpy(bytes, prefix, prefix_size);
    if (size > 0) {
        memcpy(bytes + prefix_size, data, size);
    }
    message_add(message, NULL, bytes, prefix_size + size);
    message_queue(message);
    return HPS_OK;
}

void http2_finish(struct hps_http_stream *base)
{
    struct hps_http2_stream *stream = http2_stream_at(base);
    struct hps_http2 *h2 = stream->h2;
    bool deferred = stream->send == HTTP2_SEND_DEFERRED;

    HPS_ASSERT(stream->send != HTTP2_SEND_HEADERS);
    http2_stream_send_set(stream, HTTP2_SEND_FINISHED);
    if (http2_is_dead(h2)) {
        return;
    }
    if (deferred) {
        (void)nghttp2_session_resume_data(h2->session, stream->id); /* fails if it is closing */
    }
    http2_kick(h2);
}
