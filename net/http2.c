/* SPDX-License-Identifier: Apache-2.0
 *
 * See http2.h. The only file that knows nghttp2. Loop thread of the connection.
 *
 * Sending: a message is a list of pieces (block, bytes). nghttp2 asks how much of a stream may go
 * (read callback) and then for the frame (send callback), which puts its header into the scratch
 * and pointers to the pieces into one iovec batch. A piece whose last byte is in a batch moves to
 * the `unreleased` list with the stream position at which the kernel has it; the same happens to a
 * piece that is half framed when its stream is reset. So a block is released exactly when the
 * kernel has its bytes, whatever became of the call.
 *
 * Receiving: through one buffer of the loop, but while a DATA frame is under way straight to where
 * the owner of its stream wants it (on_room). nghttp2 is handed the bytes where they are.
 */
#include "net/http2.h"

#include <limits.h>
#include <nghttp2/nghttp2.h>
#include <string.h>

#include "base/assert.h"
#include "base/block.h"
#include "base/clock.h"
#include "base/heap.h"
#include "net/grpc.h"
#include "net/http2_filter.h"

enum {
    READ_BYTES = 64 * 1024, /* larger reads fall out of the L2 cache before they are parsed */
    READ_TURN_BYTES = 1024 * 1024,
    DIRECT_BYTES_MIN = 16 * 1024, /* of a frame still to come, to be read to where they belong */
    BEHIND_BYTES = 4 * 1024,      /* read with it: the head of the next frame, and little else */
    FRAME_BYTES = 256 * 1024,
    BATCH_BYTES = 1024 * 1024, /* per writev: 256 KB is 30 % slower, 4 MB 25 % */
    TURN_BYTES = 1024 * 1024,  /* per connection and loop turn, so that small calls get through */
    IOV_MAX_BATCH = 512,
    PIECES_PER_FRAME = 64,
    COPY_BYTES = 256, /* a piece up to this is cheaper copied than as an iovec of its own */
    SCRATCH_BYTES = 64 * 1024,
    CONTROL_BYTES_MAX = 17 * 1024, /* one buffer that nghttp2 hands out */
    SCRATCH_SPARE = CONTROL_BYTES_MAX + 16 + PIECES_PER_FRAME * COPY_BYTES,
};

/* What a peer may do in a minute beyond which it is not a client but an attack. */
enum {
    TINY_DATA_BYTES = 16,
    TINY_DATA_MAX = 10000,
    PING_IDLE_MAX = 200,
    PING_MAX = 20000,
    CONTROL_MAX = 10000,
    ANSWERS_MAX = 10000, /* frames that wait to be sent, bodies aside: it asks and does not read */
    RATE_WINDOW_US = 60 * 1000 * 1000,
};

struct message;

struct piece {
    struct piece *next; /* in unreleased */
    struct message *message;
    struct hps_block *block; /* NULL: bytes of the message itself */
    const uint8_t *data;
    size_t size;
    size_t framed;
    uint64_t release_at; /* position of the connection's output */
};

struct message {
    struct message *next;
    struct hps_http2_stream *stream; /* NULL once that is gone */
    unsigned n_pieces;
    unsigned n_held; /* not yet released */
    unsigned at;     /* first one not wholly framed */
    struct piece pieces[];
};

struct batch {
    struct batch *next; /* in the shared free list */
    unsigned n_iov;
    unsigned at;
    size_t size; /* bytes left to write */
    size_t scratch_used;
    struct iovec iov[IOV_MAX_BATCH];
    uint8_t scratch[SCRATCH_BYTES];
};

struct rate {
    uint64_t since_us;
    unsigned n;
};

struct hps_http2_shared {
    struct hps_loop *loop;
    struct batch *batches;
    atomic_size_t queued;
    unsigned n_users; /* the owner and each connection */
    uint8_t read[READ_BYTES];
};

struct hps_http2_stream {
    struct hps_http2 *h2;
    struct hps_http2_stream *next, *prev;
    struct hps_http2_stream *sent_next;
    void *user;
    struct message *head, *tail;
    size_t queued;
    size_t unconsumed; /* came, window not yet given back */
    uint64_t framed;
    size_t header_bytes;
    unsigned n_fields;
    int32_t id;
    bool finished;
    bool deferred;
    bool peer_ended;
    bool in_sent;
};

struct hps_http2 {
    struct hps_http2_shared *shared;
    struct hps_conn *conn;
    nghttp2_session *session;
    struct hps_http2_options options;
    const struct hps_http2_events *events;
    void *ctx;
    struct hps_loop_later later;
    struct hps_http2_stream *streams;
    unsigned n_streams;
    struct hps_http2_stream *sent; /* on_sent is due */
    struct batch *batch;
    struct piece *unreleased_head, *unreleased_tail;
    size_t queued;
    uint64_t position; /* bytes ever put into batches */
    uint64_t written;
    uint64_t read_us;
    int32_t frame_id; /* stream of the DATA frame that is being read */
    size_t frame_left;
    const uint8_t *data_end; /* behind the last bytes that nghttp2 called data */
    bool in_data;            /* what was read last ended within that frame */
    struct hps_http2_filter filter;
    struct rate tiny, pings, controls;
    struct hps_error why;
    unsigned busy;
    bool ready;
    bool peer_spoke;
    bool blocked;
    bool aborting;
    bool draining;
    bool goaway;
    bool dead;
    bool notify;
    bool destroying;
    bool released; /* on_released is due */
};

/* ---- shared ---------------------------------------------------------------------------------- */

struct hps_http2_shared *hps_http2_shared_new(struct hps_loop *loop)
{
    struct hps_http2_shared *shared = hps_calloc(1, sizeof *shared);

    if (shared != NULL) {
        shared->loop = loop;
        shared->n_users = 1;
        atomic_init(&shared->queued, 0);
    }
    return shared;
}

void hps_http2_shared_free(struct hps_http2_shared *shared)
{
    if (shared == NULL || --shared->n_users > 0) {
        return; /* a connection that was freed within its own callback is about to let go */
    }
    while (shared->batches != NULL) {
        struct batch *batch = shared->batches;
        shared->batches = batch->next;
        hps_free(batch);
    }
    hps_free(shared);
}

size_t hps_http2_shared_queued(const struct hps_http2_shared *shared)
{
    return atomic_load_explicit(&shared->queued, memory_order_relaxed);
}

static struct batch *batch_take(struct hps_http2_shared *shared)
{
    struct batch *batch = shared->batches;

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

static void batch_give(struct hps_http2_shared *shared, struct batch *batch)
{
    batch->next = shared->batches;
    shared->batches = batch;
}

static bool batch_full(const struct batch *batch)
{
    return batch->size >= BATCH_BYTES || batch->n_iov + PIECES_PER_FRAME + 2 > IOV_MAX_BATCH ||
           batch->scratch_used + SCRATCH_SPARE > SCRATCH_BYTES;
}

static void batch_add(struct batch *batch, const void *data, size_t size)
{
    HPS_DEBUG_ASSERT(batch->n_iov < IOV_MAX_BATCH);
    batch->iov[batch->n_iov++] =
        (struct iovec){.iov_base = (void *)(uintptr_t)data, .iov_len = size};
    batch->size += size;
}

static void batch_copy(struct batch *batch, const void *data, size_t size)
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

/* ---- life ------------------------------------------------------------------------------------ */

static void *mem_alloc(size_t size, void *ctx)
{
    (void)ctx;
    return hps_alloc(size);
}

static void mem_free(void *ptr, void *ctx)
{
    (void)ctx;
    hps_free(ptr);
}

static void *mem_calloc(size_t count, size_t size, void *ctx)
{
    (void)ctx;
    return hps_calloc(count, size);
}

static void *mem_realloc(void *ptr, size_t size, void *ctx)
{
    (void)ctx;
    return hps_realloc(ptr, size);
}

static void count_queued(struct hps_http2 *h2, size_t size, bool more)
{
    if (more) {
        h2->queued += size;
        atomic_fetch_add_explicit(&h2->shared->queued, size, memory_order_relaxed);
    } else {
        h2->queued -= size;
        atomic_fetch_sub_explicit(&h2->shared->queued, size, memory_order_relaxed);
    }
}

static void release_piece(struct hps_http2 *h2, struct piece *piece)
{
    struct message *message = piece->message;
    struct hps_http2_stream *stream = message->stream;

    count_queued(h2, piece->size, false);
    h2->released = true;
    if (stream != NULL) {
        stream->queued -= piece->size;
        if (!stream->in_sent && h2->events->on_sent != NULL) {
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

static void unreleased_add(struct hps_http2 *h2, struct piece *piece)
{
    piece->release_at = h2->position;
    piece->next = NULL;
    if (h2->unreleased_tail != NULL) {
        h2->unreleased_tail->next = piece;
    } else {
        h2->unreleased_head = piece;
    }
    h2->unreleased_tail = piece;
}

/* Let go of every piece whose bytes the kernel has. */
static void release_written(struct hps_http2 *h2, uint64_t position)
{
    while (h2->unreleased_head != NULL && h2->unreleased_head->release_at <= position) {
        struct piece *piece = h2->unreleased_head;
        h2->unreleased_head = piece->next;
        if (h2->unreleased_head == NULL) {
            h2->unreleased_tail = NULL;
        }
        release_piece(h2, piece);
    }
}

/* What the stream has queued goes; pieces that a batch points into stay until they are written. */
static void drop_messages(struct hps_http2_stream *stream)
{
    struct hps_http2 *h2 = stream->h2;

    for (struct piece *piece = h2->unreleased_head; piece != NULL; piece = piece->next) {
        if (piece->message->stream == stream) {
            piece->message->stream = NULL;
        }
    }
    while (stream->head != NULL) {
        struct message *message = stream->head;
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
    stream->queued = 0;
    release_written(h2, h2->written);
}

static void close_stream(struct hps_http2_stream *stream, uint32_t error)
{
    struct hps_http2 *h2 = stream->h2;

    drop_messages(stream);
    if (stream->unconsumed > 0 && !h2->destroying) {
        /* Else the connection's window would shrink for ever. Only memory can fail: next time. */
        (void)nghttp2_session_consume_connection(h2->session, stream->unconsumed);
    }
    for (struct hps_http2_stream **at = &h2->sent; *at != NULL; at = &(*at)->sent_next) {
        if (*at == stream) {
            *at = stream->sent_next;
            break;
        }
    }
    if (stream->prev != NULL) {
        stream->prev->next = stream->next;
    } else {
        h2->streams = stream->next;
    }
    if (stream->next != NULL) {
        stream->next->prev = stream->prev;
    }
    h2->n_streams--;
    if (h2->events->on_stream_closed != NULL) {
        h2->events->on_stream_closed(h2->ctx, stream, error);
    }
    hps_free(stream);
}

static void destroy(struct hps_http2 *h2)
{
    h2->destroying = true;
    hps_loop_later_stop(&h2->later);
    hps_conn_free(h2->conn);
    h2->conn = NULL;
    if (h2->batch != NULL) {
        batch_give(h2->shared, h2->batch);
        h2->batch = NULL;
    }
    release_written(h2, UINT64_MAX);
    h2->written = h2->position;
    while (h2->streams != NULL) {
        close_stream(h2->streams, HPS_HTTP2_LOST);
    }
    release_written(h2, UINT64_MAX);
    nghttp2_session_del(h2->session);
    if (h2->notify) {
        h2->events->on_closed(h2->ctx, &h2->why);
    }
    hps_http2_shared_free(h2->shared);
    hps_free(h2);
}

static void enter(struct hps_http2 *h2)
{
    h2->busy++;
}

static void leave(struct hps_http2 *h2)
{
    HPS_ASSERT(h2->busy > 0);
    if (--h2->busy == 0 && h2->dead && !h2->destroying) {
        destroy(h2);
    }
}

/* The connection is over; called between enter and leave, which do the rest. */
static void fail(struct hps_http2 *h2, const struct hps_error *why)
{
    HPS_ASSERT(h2->busy > 0);
    if (!h2->dead) {
        h2->dead = true;
        h2->notify = true;
        if (!h2->aborting) {
            h2->why = *why;
        }
    }
}

void hps_http2_free(struct hps_http2 *h2)
{
    if (h2 == NULL) {
        return;
    }
    h2->notify = false;
    if (!h2->dead) {
        h2->dead = true;
        if (h2->busy == 0) {
            destroy(h2);
        }
    }
}

static void kick(struct hps_http2 *h2)
{
    if (!h2->dead) {
        hps_loop_later_set(h2->shared->loop, &h2->later);
    }
}

void hps_http2_abort(struct hps_http2 *h2, uint32_t error, const char *why)
{
    if (h2->dead || h2->aborting) {
        return;
    }
    (void)nghttp2_session_terminate_session(h2->session, error); /* closing is what counts */
    hps_error_set(&h2->why, HPS_CLOSED, "%s: %s", hps_conn_peer(h2->conn), why);
    h2->aborting = true;
    kick(h2);
}

/* ---- what nghttp2 tells ---------------------------------------------------------------------- */

static struct hps_http2_stream *stream_of(struct hps_http2 *h2, int32_t id)
{
    return nghttp2_session_get_stream_user_data(h2->session, id);
}

static struct hps_http2_stream *stream_new(struct hps_http2 *h2)
{
    struct hps_http2_stream *stream = hps_calloc(1, sizeof *stream);

    if (stream != NULL) {
        stream->h2 = h2;
        stream->next = h2->streams;
        if (h2->streams != NULL) {
            h2->streams->prev = stream;
        }
        h2->streams = stream;
        h2->n_streams++;
    }
    return stream;
}

static bool rate_passed(struct rate *rate, uint64_t now_us, unsigned max)
{
    if (now_us - rate->since_us > RATE_WINDOW_US) {
        rate->since_us = now_us;
        rate->n = 0;
    }
    return ++rate->n > max;
}

/* Frames that cost us and bring nothing: a client never sends many. */
static void check_flood(struct hps_http2 *h2, const nghttp2_frame *frame)
{
    bool ack = (frame->hd.flags & NGHTTP2_FLAG_ACK) != 0;

    switch (frame->hd.type) {
    case NGHTTP2_DATA:
        if (frame->hd.length < TINY_DATA_BYTES &&
            (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) == 0 &&
            rate_passed(&h2->tiny, h2->read_us, TINY_DATA_MAX)) {
            hps_http2_abort(h2, HPS_HTTP2_ENHANCE_YOUR_CALM, "too many tiny DATA frames");
        }
        break;
    case NGHTTP2_PING:
        if (!ack &&
            rate_passed(&h2->pings, h2->read_us, h2->n_streams == 0 ? PING_IDLE_MAX : PING_MAX)) {
            hps_http2_abort(h2, HPS_HTTP2_ENHANCE_YOUR_CALM, "too_many_pings");
        }
        break;
    case NGHTTP2_SETTINGS:
    case NGHTTP2_PRIORITY:
        if (!ack && rate_passed(&h2->controls, h2->read_us, CONTROL_MAX)) {
            hps_http2_abort(h2, HPS_HTTP2_ENHANCE_YOUR_CALM, "too many control frames");
        }
        break;
    default:
        break;
    }
}

static int cb_begin_headers(nghttp2_session *session, const nghttp2_frame *frame, void *ctx)
{
    struct hps_http2 *h2 = ctx;
    struct hps_http2_stream *stream = stream_of(h2, frame->hd.stream_id);

    if (stream != NULL) {
        stream->header_bytes = 0;
        stream->n_fields = 0;
        return 0;
    }
    if (!h2->options.server || frame->headers.cat != NGHTTP2_HCAT_REQUEST) {
        return 0;
    }
    stream = stream_new(h2);
    if (stream == NULL) {
        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    }
    stream->id = frame->hd.stream_id;
    (void)nghttp2_session_set_stream_user_data(session, stream->id, stream); /* it is open */
    h2->events->on_stream(h2->ctx, stream);
    return h2->dead ? NGHTTP2_ERR_CALLBACK_FAILURE : 0;
}

static int cb_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name,
                     size_t name_size, const uint8_t *value, size_t value_size, uint8_t flags,
                     void *ctx)
{
    struct hps_http2 *h2 = ctx;
    struct hps_http2_stream *stream = stream_of(h2, frame->hd.stream_id);

    (void)session;
    (void)flags;
    if (stream == NULL) {
        return 0;
    }
    /* The peer may ignore our SETTINGS_MAX_HEADER_LIST_SIZE: one 16 KB frame of indexed fields can
     * mean 48 MB of headers. */
    stream->header_bytes += name_size + value_size + 32;
    stream->n_fields++;
    if (stream->header_bytes > h2->options.header_bytes_max ||
        stream->n_fields > h2->options.header_fields_max) {
        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    }
    if (h2->events->on_header != NULL) {
        h2->events->on_header(h2->ctx, stream, (const char *)name, name_size, (const char *)value,
                              value_size);
    }
    return h2->dead ? NGHTTP2_ERR_CALLBACK_FAILURE : 0;
}

static int cb_begin_frame(nghttp2_session *session, const nghttp2_frame_hd *head, void *ctx)
{
    struct hps_http2 *h2 = ctx;
    bool plain = head->type == NGHTTP2_DATA && (head->flags & NGHTTP2_FLAG_PADDED) == 0;

    (void)session;
    h2->frame_id = head->stream_id;
    h2->frame_left = plain ? head->length : 0;
    return 0;
}

static int cb_data(nghttp2_session *session, uint8_t flags, int32_t id, const uint8_t *data,
                   size_t size, void *ctx)
{
    struct hps_http2 *h2 = ctx;
    struct hps_http2_stream *stream = stream_of(h2, id);

    (void)flags;
    h2->frame_left -= size < h2->frame_left ? size : h2->frame_left;
    h2->data_end = data + size;
    if (stream == NULL || h2->events->on_data == NULL) {
        (void)nghttp2_session_consume(session, id, size); /* only memory can fail: next time */
        return 0;
    }
    stream->unconsumed += size;
    h2->events->on_data(h2->ctx, stream, data, size);
    return h2->dead ? NGHTTP2_ERR_CALLBACK_FAILURE : 0;
}

static void on_goaway(struct hps_http2 *h2)
{
    h2->goaway = true;
    if (h2->events->on_goaway != NULL) {
        h2->events->on_goaway(h2->ctx);
    }
}

static int cb_frame_recv(nghttp2_session *session, const nghttp2_frame *frame, void *ctx)
{
    struct hps_http2 *h2 = ctx;
    struct hps_http2_stream *stream;

    (void)session;
    check_flood(h2, frame);
    switch (frame->hd.type) {
    case NGHTTP2_HEADERS:
        stream = stream_of(h2, frame->hd.stream_id);
        if (stream != NULL && h2->events->on_headers != NULL) {
            h2->events->on_headers(h2->ctx, stream);
        }
        break;
    case NGHTTP2_PING:
        if ((frame->hd.flags & NGHTTP2_FLAG_ACK) != 0 && h2->draining) {
            hps_http2_drain_now(h2);
        }
        return 0;
    case NGHTTP2_GOAWAY:
        on_goaway(h2);
        return h2->dead ? NGHTTP2_ERR_CALLBACK_FAILURE : 0;
    case NGHTTP2_DATA:
        break;
    case NGHTTP2_SETTINGS:
        h2->peer_spoke = true;
        return 0;
    default:
        return 0;
    }
    if ((frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0 && !h2->dead) {
        stream = stream_of(h2, frame->hd.stream_id);
        if (stream != NULL) {
            stream->peer_ended = true;
            if (h2->events->on_end != NULL) {
                h2->events->on_end(h2->ctx, stream);
            }
        }
    }
    return h2->dead ? NGHTTP2_ERR_CALLBACK_FAILURE : 0;
}

/* An answer that is complete before the request: tell the client to stop, but only now, since a
 * reset submitted earlier would overtake the trailers. */
static int cb_frame_send(nghttp2_session *session, const nghttp2_frame *frame, void *ctx)
{
    struct hps_http2 *h2 = ctx;

    if (h2->options.server && (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0 &&
        (frame->hd.type == NGHTTP2_HEADERS || frame->hd.type == NGHTTP2_DATA)) {
        struct hps_http2_stream *stream = stream_of(h2, frame->hd.stream_id);
        if (stream != NULL && !stream->peer_ended) {
            (void)nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, stream->id,
                                            HPS_HTTP2_NO_ERROR); /* a courtesy */
        }
    }
    return 0;
}

static int cb_stream_close(nghttp2_session *session, int32_t id, uint32_t error, void *ctx)
{
    struct hps_http2 *h2 = ctx;
    struct hps_http2_stream *stream = stream_of(h2, id);

    (void)session;
    if (stream != NULL) {
        close_stream(stream, error);
        kick(h2);
    }
    return h2->dead ? NGHTTP2_ERR_CALLBACK_FAILURE : 0;
}

/* ---- what nghttp2 asks ----------------------------------------------------------------------- */

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

/* How many of the queued bytes go into a frame of at most `length`; all: nothing is left behind it.
 */
static size_t frame_size(const struct hps_http2_stream *stream, size_t length, bool *out_all)
{
    size_t size = 0;
    unsigned n_pieces = 0;

    for (const struct message *message = stream->head; message != NULL; message = message->next) {
        for (unsigned i = message->at; i < message->n_pieces; i++) {
            const struct piece *piece = &message->pieces[i];
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
    if (size == 0 && !stream->finished) {
        stream->deferred = true;
        return NGHTTP2_ERR_DEFERRED;
    }
    *flags |= NGHTTP2_DATA_FLAG_NO_COPY;
    if (all && stream->finished) {
        *flags |= NGHTTP2_DATA_FLAG_EOF;
        if (h2->events->on_trailers != NULL) {
            *flags |= NGHTTP2_DATA_FLAG_NO_END_STREAM;
            h2->events->on_trailers(h2->ctx, stream);
        }
    }
    return (ssize_t)size;
}

/* Point the batch at the next `length` bytes of the stream. */
static void frame_pieces(struct hps_http2_stream *stream, size_t length)
{
    struct hps_http2 *h2 = stream->h2;
    struct batch *batch = h2->batch;

    while (length > 0) {
        struct message *message = stream->head;
        HPS_ASSERT(message != NULL);
        struct piece *piece = &message->pieces[message->at];
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
        stream->framed += size;
        h2->position += size;
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
    batch_copy(h2->batch, head, 9);
    h2->position += 9;
    frame_pieces(source->ptr, length);
    return batch_full(h2->batch) ? NGHTTP2_ERR_PAUSE : 0;
}

/* ---- writing --------------------------------------------------------------------------------- */

static bool fill_batch(struct hps_http2 *h2)
{
    if (h2->batch == NULL) {
        h2->batch = batch_take(h2->shared);
        if (h2->batch == NULL) {
            struct hps_error why;
            hps_error_set(&why, HPS_NO_MEMORY, "%s: no memory to send", hps_conn_peer(h2->conn));
            fail(h2, &why);
            return false;
        }
    }
    while (!batch_full(h2->batch)) {
        const uint8_t *data;
        ssize_t size = nghttp2_session_mem_send(h2->session, &data);
        if (size < 0 || size > CONTROL_BYTES_MAX) {
            struct hps_error why;
            hps_error_set(&why, HPS_INTERNAL, "%s: %s", hps_conn_peer(h2->conn),
                          size < 0 ? nghttp2_strerror((int)size) : "control frame too large");
            fail(h2, &why);
            return false;
        }
        if (size == 0) {
            break;
        }
        batch_copy(h2->batch, data, (size_t)size);
        h2->position += (size_t)size;
    }
    if (h2->batch->size > 0) {
        return true;
    }
    batch_give(h2->shared, h2->batch);
    h2->batch = NULL;
    return false;
}

static void batch_advance(struct hps_http2 *h2, size_t size)
{
    struct batch *batch = h2->batch;

    h2->written += size;
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

static void tell_sent(struct hps_http2 *h2)
{
    while (h2->sent != NULL) {
        struct hps_http2_stream *stream = h2->sent;
        h2->sent = stream->sent_next;
        stream->in_sent = false;
        if (!h2->dead) {
            h2->events->on_sent(h2->ctx, stream);
        }
    }
    if (h2->released && !h2->dead) {
        h2->released = false;
        if (h2->events->on_released != NULL) {
            h2->events->on_released(h2->ctx);
        }
    }
}

/* Write until the socket is full, nothing is left or this turn's share is used up. */
static void write_out(struct hps_http2 *h2)
{
    size_t share = 0;

    h2->blocked = false;
    while (!h2->dead) {
        if ((h2->batch == NULL || h2->batch->size == 0) && !fill_batch(h2)) {
            break;
        }
        struct batch *batch = h2->batch;
        size_t size;
        hps_status status = hps_conn_writev(h2->conn, batch->iov + batch->at,
                                            (int)(batch->n_iov - batch->at), &size);
        if (status == HPS_AGAIN) {
            h2->blocked = true;
            break;
        }
        if (status != HPS_OK) {
            struct hps_error why;
            hps_error_set(&why, HPS_CLOSED, "%s: connection lost while writing",
                          hps_conn_peer(h2->conn));
            fail(h2, &why);
            break;
        }
        batch_advance(h2, size);
        release_written(h2, h2->written);
        tell_sent(h2);
        share += size;
        if (share >= TURN_BYTES) {
            kick(h2);
            break;
        }
    }
    tell_sent(h2); /* streams may have closed while the last batch was filled */
}

/* Is anything left to be said or heard? */
static void check_end(struct hps_http2 *h2)
{
    bool pending = h2->batch != NULL && h2->batch->size > 0;
    struct hps_error why;

    if (h2->dead) {
        return;
    }
    if (h2->draining && !h2->options.server && h2->n_streams == 0 && !h2->aborting) {
        hps_http2_abort(h2, HPS_HTTP2_NO_ERROR, "no longer needed");
        return;
    }
    if (h2->aborting && (h2->blocked || !pending)) {
        fail(h2, &h2->why);
    } else if (!pending && nghttp2_session_want_read(h2->session) == 0 &&
               nghttp2_session_want_write(h2->session) == 0) {
        hps_error_set(&why, HPS_CLOSED, "%s: connection ended", hps_conn_peer(h2->conn));
        fail(h2, &why);
    } else {
        unsigned events = HPS_LOOP_READ | (h2->blocked ? HPS_LOOP_WRITE : 0u);
        if (hps_conn_want(h2->conn, events) != HPS_OK) {
            hps_error_set(&why, HPS_NO_MEMORY, "%s: cannot watch the socket",
                          hps_conn_peer(h2->conn));
            fail(h2, &why);
        }
    }
}

/* ---- the socket ------------------------------------------------------------------------------ */

static void shake_hands(struct hps_http2 *h2)
{
    struct hps_error why;
    hps_status status = hps_conn_handshake(h2->conn, &why);

    if (status == HPS_AGAIN) {
        return;
    }
    if (status != HPS_OK) {
        fail(h2, &why);
        return;
    }
    h2->ready = true;
    h2->read_us = hps_loop_now_us(h2->shared->loop);
    if (h2->events->on_ready != NULL) {
        h2->events->on_ready(h2->ctx);
    }
    kick(h2);
}

static void on_later(void *ctx)
{
    struct hps_http2 *h2 = ctx;

    enter(h2);
    if (!h2->ready) {
        if (h2->aborting) {
            fail(h2, &h2->why);
        } else {
            shake_hands(h2);
        }
    } else {
        if (!h2->blocked) {
            write_out(h2);
        }
        check_end(h2);
    }
    leave(h2);
}

/* Each of the peer's frames may ask for one of ours (a refused stream, an acknowledgement), and it
 * need not read them. */
static void check_answers(struct hps_http2 *h2)
{
    size_t n_max = ANSWERS_MAX + (size_t)h2->options.streams_max;

    if (!h2->dead && nghttp2_session_get_outbound_queue_size(h2->session) > n_max) {
        hps_http2_abort(h2, HPS_HTTP2_ENHANCE_YOUR_CALM, "too many answers wait to be sent");
    }
}

/* A run that nghttp2 is to see. */
static void take_in_run(struct hps_http2 *h2, const uint8_t *data, size_t size)
{
    h2->data_end = NULL;
    ssize_t used = nghttp2_session_mem_recv(h2->session, data, size);
    h2->in_data = h2->data_end == data + size;
    if (used < 0 && !h2->dead) {
        (void)nghttp2_session_terminate_session(h2->session, used == NGHTTP2_ERR_FLOODED
                                                                 ? HPS_HTTP2_ENHANCE_YOUR_CALM
                                                                 : 0x1); /* PROTOCOL_ERROR */
        hps_error_set(&h2->why, HPS_CLOSED, "%s: %s", hps_conn_peer(h2->conn),
                      nghttp2_strerror((int)used));
        h2->aborting = true;
    }
    check_answers(h2);
}

static void take_in(struct hps_http2 *h2, const uint8_t *data, size_t size)
{
    const uint8_t *run;
    size_t run_bytes;

    if (!h2->options.server) {
        take_in_run(h2, data, size);
        return;
    }
    while (!h2->dead && !h2->aborting &&
           hps_http2_filter_next(&h2->filter, &data, &size, &run, &run_bytes)) {
        if (run_bytes > 0) {
            take_in_run(h2, run, run_bytes);
        }
    }
    for (; h2->filter.n_dropped > 0; h2->filter.n_dropped--) {
        if (!h2->dead && rate_passed(&h2->controls, h2->read_us, CONTROL_MAX)) {
            hps_http2_abort(h2, HPS_HTTP2_ENHANCE_YOUR_CALM, "too many control frames");
        }
    }
}

/* Where the rest of the DATA frame that is under way may go, or NULL. Only when nghttp2 has called
 * the last byte that it got data of this frame: then the next frame_left bytes are, too. */
static uint8_t *direct_room(struct hps_http2 *h2, size_t *out_room)
{
    struct hps_http2_stream *stream;

    if (h2->events->on_room == NULL || !h2->in_data || h2->frame_left < DIRECT_BYTES_MIN) {
        return NULL;
    }
    stream = stream_of(h2, h2->frame_id);
    return stream == NULL ? NULL : h2->events->on_room(h2->ctx, stream, h2->frame_left, out_room);
}

/* One read. out_more: the socket may have more. */
static hps_status read_once(struct hps_http2 *h2, size_t *out_size, bool *out_more)
{
    struct iovec iov[2];
    int n_iov = 0;
    size_t room = 0, size;
    uint8_t *direct = direct_room(h2, &room);
    size_t buffer_bytes = direct == NULL ? READ_BYTES : BEHIND_BYTES;

    if (direct != NULL) {
        iov[n_iov++] = (struct iovec){.iov_base = direct, .iov_len = room};
    }
    iov[n_iov++] = (struct iovec){.iov_base = h2->shared->read, .iov_len = buffer_bytes};
    hps_status status = hps_conn_readv(h2->conn, iov, n_iov, &size);
    if (status != HPS_OK) {
        return status;
    }
    size_t in_place = size < room ? size : room;
    if (in_place > 0) {
        take_in(h2, direct, in_place);
    }
    if (size > in_place && !h2->dead && !h2->aborting) {
        take_in(h2, h2->shared->read, size - in_place);
    }
    *out_size = size;
    *out_more = size == room + buffer_bytes || hps_conn_is_tls(h2->conn);
    return HPS_OK;
}

static void read_in(struct hps_http2 *h2)
{
    struct hps_error why;
    size_t share = 0;
    bool more = true;

    h2->read_us = hps_loop_now_us(h2->shared->loop);
    while (more && !h2->dead && !h2->aborting && share < READ_TURN_BYTES) {
        size_t size;
        hps_status status = read_once(h2, &size, &more);
        if (status == HPS_AGAIN) {
            break;
        }
        if (status != HPS_OK) {
            hps_error_set(&why, HPS_CLOSED, "%s: %s", hps_conn_peer(h2->conn),
                          status == HPS_CLOSED ? "peer closed the connection" : "connection lost");
            fail(h2, &why);
            return;
        }
        share += size;
    }
    tell_sent(h2);
    kick(h2);
}

static void on_ready(void *ctx, unsigned events)
{
    struct hps_http2 *h2 = ctx;

    enter(h2);
    if (!h2->ready) {
        shake_hands(h2);
    } else {
        if ((events & HPS_LOOP_WRITE) != 0 && !h2->dead) {
            write_out(h2);
            check_end(h2);
        }
        if ((events & HPS_LOOP_READ) != 0 && !h2->dead) {
            read_in(h2);
        }
    }
    leave(h2);
}

/* ---- making one ------------------------------------------------------------------------------ */

static nghttp2_session_callbacks *make_callbacks(void)
{
    nghttp2_session_callbacks *callbacks;

    if (nghttp2_session_callbacks_new(&callbacks) != 0) {
        return NULL;
    }
    nghttp2_session_callbacks_set_on_begin_frame_callback(callbacks, cb_begin_frame);
    nghttp2_session_callbacks_set_on_begin_headers_callback(callbacks, cb_begin_headers);
    nghttp2_session_callbacks_set_on_header_callback(callbacks, cb_header);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, cb_data);
    nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, cb_frame_recv);
    nghttp2_session_callbacks_set_on_frame_send_callback(callbacks, cb_frame_send);
    nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, cb_stream_close);
    nghttp2_session_callbacks_set_data_source_read_length_callback(callbacks, cb_read_length);
    nghttp2_session_callbacks_set_send_data_callback(callbacks, cb_send_data);
    return callbacks;
}

static hps_status make_session(struct hps_http2 *h2)
{
    nghttp2_mem mem = {NULL, mem_alloc, mem_free, mem_calloc, mem_realloc};
    nghttp2_session_callbacks *callbacks = make_callbacks();
    nghttp2_option *option = NULL;
    int rc = NGHTTP2_ERR_NOMEM;

    if (callbacks == NULL || nghttp2_option_new(&option) != 0) {
        goto out;
    }
    nghttp2_option_set_no_auto_window_update(option, 1);
    nghttp2_option_set_no_closed_streams(option, 1);
    nghttp2_option_set_max_settings(option, 32);
    nghttp2_option_set_max_outbound_ack(option, 1000);
    nghttp2_option_set_max_continuations(option, 8);
    /* The library's 1,000 and 33 a second cut off honest clients that cancel a batch. */
    nghttp2_option_set_stream_reset_rate_limit(option, 10000, 1000);
    rc = h2->options.server
             ? nghttp2_session_server_new3(&h2->session, callbacks, h2, option, &mem)
             : nghttp2_session_client_new3(&h2->session, callbacks, h2, option, &mem);
out:
    nghttp2_option_del(option);
    nghttp2_session_callbacks_del(callbacks);
    return rc == 0 ? HPS_OK : HPS_NO_MEMORY;
}

static hps_status submit_settings(struct hps_http2 *h2)
{
    const struct hps_http2_options *o = &h2->options;
    nghttp2_settings_entry server[] = {
        {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, o->streams_max},
        {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, o->window_bytes},
        {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, (uint32_t)o->header_bytes_max},
        {NGHTTP2_SETTINGS_MAX_FRAME_SIZE, o->frame_bytes_max},
    };
    nghttp2_settings_entry client[] = {
        {NGHTTP2_SETTINGS_ENABLE_PUSH, 0},
        {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, o->window_bytes},
        {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, (uint32_t)o->header_bytes_max},
        {NGHTTP2_SETTINGS_MAX_FRAME_SIZE, o->frame_bytes_max},
    };

    if (nghttp2_submit_settings(h2->session, NGHTTP2_FLAG_NONE, o->server ? server : client, 4) !=
            0 ||
        nghttp2_session_set_local_window_size(h2->session, NGHTTP2_FLAG_NONE, 0,
                                              (int32_t)o->connection_window_bytes) != 0) {
        return HPS_NO_MEMORY;
    }
    return HPS_OK;
}

hps_status hps_http2_new(struct hps_http2_shared *shared, struct hps_conn *conn,
                         const struct hps_http2_options *options,
                         const struct hps_http2_events *events, void *ctx,
                         struct hps_http2 **out_h2, struct hps_error *err)
{
    struct hps_http2 *h2 = hps_calloc(1, sizeof *h2);

    HPS_ASSERT(options->window_bytes <= INT32_MAX && options->connection_window_bytes <= INT32_MAX);
    if (h2 == NULL) {
        goto fail_conn;
    }
    h2->shared = shared;
    h2->conn = conn;
    h2->options = *options;
    hps_http2_filter_init(&h2->filter);
    h2->events = events;
    h2->ctx = ctx;
    h2->read_us = hps_clock_us();
    hps_loop_later_init(&h2->later, on_later, h2);
    if (make_session(h2) != HPS_OK) {
        goto fail_h2;
    }
    if (submit_settings(h2) != HPS_OK ||
        hps_conn_attach(conn, shared->loop, options->handshake_timeout_us, on_ready, h2) !=
            HPS_OK) {
        goto fail_session;
    }
    shared->n_users++;
    kick(h2);
    *out_h2 = h2;
    return HPS_OK;

fail_session:
    nghttp2_session_del(h2->session);
fail_h2:
    hps_free(h2);
fail_conn:
    hps_error_set(err, HPS_NO_MEMORY, "%s: no memory for a connection", hps_conn_peer(conn));
    hps_conn_free(conn);
    return HPS_NO_MEMORY;
}

/* ---- the connection -------------------------------------------------------------------------- */

void hps_http2_drain(struct hps_http2 *h2)
{
    if (h2->dead || h2->draining) {
        return;
    }
    h2->draining = true;
    if (h2->options.server) {
        /* Without memory the final GOAWAY of hps_http2_drain_now still comes. */
        (void)nghttp2_submit_shutdown_notice(h2->session);
        (void)nghttp2_submit_ping(h2->session, NGHTTP2_FLAG_NONE, NULL);
    }
    kick(h2);
}

void hps_http2_drain_now(struct hps_http2 *h2)
{
    if (h2->dead || h2->goaway || h2->aborting) {
        return;
    }
    h2->draining = true;
    h2->goaway = true;
    if (nghttp2_submit_goaway(h2->session, NGHTTP2_FLAG_NONE,
                              nghttp2_session_get_last_proc_stream_id(h2->session),
                              NGHTTP2_NO_ERROR, NULL, 0) != 0) {
        hps_http2_abort(h2, HPS_HTTP2_INTERNAL_ERROR, "no memory");
    }
    kick(h2);
}

void hps_http2_ping(struct hps_http2 *h2)
{
    if (!h2->dead) {
        (void)nghttp2_submit_ping(h2->session, NGHTTP2_FLAG_NONE, NULL); /* the next one will do */
        kick(h2);
    }
}

const struct hps_conn *hps_http2_conn(const struct hps_http2 *h2)
{
    return h2->conn;
}

bool hps_http2_is_ready(const struct hps_http2 *h2)
{
    return h2->ready && !h2->dead;
}

bool hps_http2_peer_spoke(const struct hps_http2 *h2)
{
    return h2->peer_spoke;
}

bool hps_http2_can_request(const struct hps_http2 *h2)
{
    return !h2->dead && !h2->aborting && !h2->goaway && !h2->draining &&
           nghttp2_session_check_request_allowed(h2->session) != 0;
}

unsigned hps_http2_streams(const struct hps_http2 *h2)
{
    return h2->n_streams;
}

size_t hps_http2_queued(const struct hps_http2 *h2)
{
    return h2->queued;
}

uint64_t hps_http2_written(const struct hps_http2 *h2)
{
    return h2->written;
}

bool hps_http2_blocked(const struct hps_http2 *h2)
{
    return h2->blocked;
}

uint64_t hps_http2_read_us(const struct hps_http2 *h2)
{
    return h2->read_us;
}

/* ---- streams --------------------------------------------------------------------------------- */

static void make_fields(nghttp2_nv *out, const struct hps_http2_field *fields, unsigned n_fields)
{
    static const char timeout[] = "grpc-timeout";

    HPS_ASSERT(n_fields <= HPS_HTTP2_FIELDS_MAX);
    for (unsigned i = 0; i < n_fields; i++) {
        /* Always another value: it would only push useful entries out of the peer's table. */
        bool volatile_value = fields[i].name_size == sizeof timeout - 1 &&
                              memcmp(fields[i].name, timeout, sizeof timeout - 1) == 0;
        out[i] = (nghttp2_nv){
            .name = (uint8_t *)(uintptr_t)fields[i].name,
            .value = (uint8_t *)(uintptr_t)fields[i].value,
            .namelen = fields[i].name_size,
            .valuelen = fields[i].value_size,
            .flags = volatile_value ? NGHTTP2_NV_FLAG_NO_INDEX : NGHTTP2_NV_FLAG_NONE,
        };
    }
}

hps_status hps_http2_request(struct hps_http2 *h2, const struct hps_http2_field *fields,
                             unsigned n_fields, void *user, struct hps_http2_stream **out_stream)
{
    nghttp2_nv nv[HPS_HTTP2_FIELDS_MAX];

    if (!hps_http2_can_request(h2)) {
        return HPS_UNAVAILABLE;
    }
    struct hps_http2_stream *stream = stream_new(h2);
    if (stream == NULL) {
        return HPS_NO_MEMORY;
    }
    stream->user = user;
    make_fields(nv, fields, n_fields);
    nghttp2_data_provider body = {.source = {.ptr = stream}, .read_callback = cb_read};
    int32_t id = nghttp2_submit_request(h2->session, NULL, nv, n_fields, &body, stream);
    if (id < 0) {
        h2->streams = stream->next;
        if (h2->streams != NULL) {
            h2->streams->prev = NULL;
        }
        h2->n_streams--;
        hps_free(stream);
        return id == NGHTTP2_ERR_NOMEM ? HPS_NO_MEMORY : HPS_UNAVAILABLE;
    }
    stream->id = id;
    kick(h2);
    *out_stream = stream;
    return HPS_OK;
}

hps_status hps_http2_respond(struct hps_http2_stream *stream, const struct hps_http2_field *fields,
                             unsigned n_fields, bool end)
{
    struct hps_http2 *h2 = stream->h2;
    nghttp2_nv nv[HPS_HTTP2_FIELDS_MAX];
    nghttp2_data_provider body = {.source = {.ptr = stream}, .read_callback = cb_read};

    if (h2->dead) {
        return HPS_CLOSED;
    }
    make_fields(nv, fields, n_fields);
    if (nghttp2_submit_response(h2->session, stream->id, nv, n_fields, end ? NULL : &body) != 0) {
        return HPS_NO_MEMORY;
    }
    kick(h2);
    return HPS_OK;
}

hps_status hps_http2_trailers(struct hps_http2_stream *stream, const struct hps_http2_field *fields,
                              unsigned n_fields)
{
    struct hps_http2 *h2 = stream->h2;
    nghttp2_nv nv[HPS_HTTP2_FIELDS_MAX];

    if (h2->dead) {
        return HPS_CLOSED;
    }
    make_fields(nv, fields, n_fields);
    return nghttp2_submit_trailer(h2->session, stream->id, nv, n_fields) == 0 ? HPS_OK
                                                                              : HPS_NO_MEMORY;
}

/* A message with room for its pieces and `inline_size` bytes behind them. */
static struct message *message_new(struct hps_http2_stream *stream, unsigned n_pieces,
                                   size_t inline_size, uint8_t **out_inline)
{
    struct message *message =
        hps_alloc(sizeof *message + n_pieces * sizeof message->pieces[0] + inline_size);

    if (message != NULL) {
        *message = (struct message){.stream = stream};
        *out_inline = (uint8_t *)&message->pieces[n_pieces];
    }
    return message;
}

static void message_add(struct message *message, struct hps_block *block, const uint8_t *data,
                        size_t size)
{
    message->pieces[message->n_pieces++] =
        (struct piece){.message = message, .block = block, .data = data, .size = size};
    message->n_held++;
}

static void message_queue(struct message *message)
{
    struct hps_http2_stream *stream = message->stream;

    for (unsigned i = 0; i < message->n_pieces; i++) {
        stream->queued += message->pieces[i].size;
        count_queued(stream->h2, message->pieces[i].size, true);
    }
    if (stream->tail != NULL) {
        stream->tail->next = message;
    } else {
        stream->head = message;
    }
    stream->tail = message;
    if (stream->deferred) {
        stream->deferred = false;
        (void)nghttp2_session_resume_data(stream->h2->session,
                                          stream->id); /* gone: it is closing */
    }
    kick(stream->h2);
}

hps_status hps_http2_send(struct hps_http2_stream *stream, const void *prefix, size_t prefix_size,
                          const struct hps_slice *slices, unsigned n_slices)
{
    hps_status status = HPS_CLOSED;
    uint8_t *bytes;

    HPS_ASSERT(prefix_size > 0 && prefix_size <= 16);
    HPS_ASSERT(!stream->finished);
    if (!stream->h2->dead) {
        struct message *message = message_new(stream, n_slices + 1, prefix_size, &bytes);
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

hps_status hps_http2_send_copy(struct hps_http2_stream *stream, const void *prefix,
                               size_t prefix_size, const void *data, size_t size)
{
    uint8_t *bytes;

    HPS_ASSERT(prefix_size + size > 0);
    HPS_ASSERT(!stream->finished);
    if (stream->h2->dead) {
        return HPS_CLOSED;
    }
    struct message *message = message_new(stream, 1, prefix_size + size, &bytes);
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

void hps_http2_finish(struct hps_http2_stream *stream)
{
    struct hps_http2 *h2 = stream->h2;

    stream->finished = true;
    if (h2->dead) {
        return;
    }
    if (stream->deferred) {
        stream->deferred = false;
        (void)nghttp2_session_resume_data(h2->session, stream->id); /* gone: it is closing */
    }
    kick(h2);
}

void hps_http2_reset(struct hps_http2_stream *stream, uint32_t error)
{
    struct hps_http2 *h2 = stream->h2;

    if (h2->dead) {
        return;
    }
    if (nghttp2_submit_rst_stream(h2->session, NGHTTP2_FLAG_NONE, stream->id, error) != 0) {
        hps_http2_abort(h2, HPS_HTTP2_INTERNAL_ERROR, "no memory");
    }
    kick(h2);
}

void hps_http2_consume(struct hps_http2_stream *stream, size_t size)
{
    struct hps_http2 *h2 = stream->h2;

    if (h2->dead || size == 0) {
        return;
    }
    HPS_ASSERT(size <= stream->unconsumed);
    stream->unconsumed -= size;
    if (nghttp2_session_consume(h2->session, stream->id, size) != 0) {
        hps_http2_abort(h2, HPS_HTTP2_INTERNAL_ERROR, "no memory");
    }
    kick(h2);
}

void *hps_http2_user(const struct hps_http2_stream *stream)
{
    return stream->user;
}

void hps_http2_set_user(struct hps_http2_stream *stream, void *user)
{
    stream->user = user;
}

size_t hps_http2_stream_queued(const struct hps_http2_stream *stream)
{
    return stream->queued;
}

uint64_t hps_http2_stream_framed(const struct hps_http2_stream *stream)
{
    return stream->framed;
}
