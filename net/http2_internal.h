/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files of an HTTP/2 connection (http2.h):
 *
 *     http2.c          creation, events and end of a session
 *     http2_phase.c    the phases of connections and streams, and how a connection ends
 *     http2_stream.c   streams: begin, header blocks, end
 *     http2_request.c  checks of request fields, where nghttp2 does not check them
 *     http2_receive.c  receiving
 *     http2_send.c     sending
 *
 * No other file uses nghttp2. Everything runs on the loop thread of the connection. Any thread may
 * read the count of queued bytes.
 */
#ifndef HPS_NET_HTTP2_INTERNAL_H
#define HPS_NET_HTTP2_INTERNAL_H

#include <nghttp2/nghttp2.h>
#include <stdatomic.h>
#include <sys/queue.h>

#include "base/assert.h"
#include "base/container.h"
#include "net/conn.h"
#include "net/http2.h"
#include "net/http2_filter.h"
#include "net/loop.h"

/* Size of a read. The bytes of a larger read would leave the L2 cache before they are parsed. */
enum {
    HTTP2_READ_BYTES = 64 * 1024,
    HTTP2_READ_BYTES_SHARED = 8 * 1024, /* while other clients wait */
};

/* Event of its item, beside those of the socket. */
enum { HTTP2_KICK = 4 };

struct hps_http2;        /* a connection */
struct hps_http2_stream; /* freed after on_stream_closed */
struct http2_batch;      /* frames that can be passed to writev */
struct http2_piece;      /* consecutive bytes of a message, in one block */
struct http2_message;    /* bytes queued by one send; messages are framed in order */

/* Number of events in the minute that began at since_us. */
struct http2_rate {
    uint64_t since_us;
    unsigned n;
};

struct hps_http2_shared {
    struct hps_loop *loop;
    struct http2_batch *batches;    /* list of unused batches */
    atomic_size_t queued;           /* message bytes not yet in the kernel, of all connections */
    unsigned n_users;               /* references: one of the owner, one of each connection */
    uint8_t read[HTTP2_READ_BYTES]; /* receive buffer */
};

/* State of the sending side of a stream. The receiving side has only `peer_ended`. */
enum http2_send_phase {
    HTTP2_SEND_HEADERS,  /* server: the header block of the response has not been sent */
    HTTP2_SEND_OPEN,     /* nghttp2 reads body bytes as windows and socket allow */
    HTTP2_SEND_DEFERRED, /* nothing is queued: nghttp2 does not read until it is resumed */
    HTTP2_SEND_FINISHED, /* no more will be queued; queued bytes and trailers are still sent */
    HTTP2_SEND_ENDED,    /* END_STREAM has been framed */
    HTTP2_SEND_PHASES,
};

/* State of the checks of http2_request.c, for a request on a Unix socket. */
struct http2_request {
    uint64_t body_left; /* bytes of content-length that have not arrived */
    uint8_t seen;       /* SEEN_ bits of http2_request.c */
};

struct hps_http2_stream {
    struct hps_http_stream base;
    struct hps_http2 *h2;
    LIST_ENTRY(hps_http2_stream) link;  /* of the list h2->streams */
    struct hps_http2_stream *sent_next; /* link of the list h2->sent */
    struct http2_message *head, *tail;  /* queued messages; the first may be framed in part */
    size_t unconsumed;                  /* body bytes of on_data not yet consumed */
    /* out.n_turns + 1 when the peer last enlarged the window of the stream. Until the next
     * http2_write_out, the stream still counts as limited (hps_http_stream_is_limited). */
    uint64_t opened;
    struct http2_request request; /* used only if h2->checks_requests */
    size_t header_bytes;          /* size of the current header block so far */
    unsigned n_fields;            /* fields of the current header block so far */
    int32_t id;
    enum http2_send_phase send; /* only http2_stream_send_set changes it */
    bool peer_ended;            /* the peer has sent END_STREAM */
    bool in_sent;               /* the stream is in the list h2->sent */
};

/* The phases of a connection. `blocked` (the socket accepts no more bytes), `peer_spoke` and
 * `peer_goaway` (frames that the peer has sent) do not depend on the phase. Frames may be sent in
 * the phases from HTTP2_OPEN to HTTP2_ABORTING. */
enum http2_phase {
    HTTP2_HANDSHAKE, /* the connect or the TLS handshake is not finished */
    HTTP2_ABANDONED, /* aborted before the handshake finished; settle fails the connection */
    HTTP2_OPEN,      /* in normal use */
    HTTP2_DRAINING,  /* hps_http_drain was called; the peer may still open streams */
    HTTP2_GOAWAY,    /* server: the final GOAWAY is queued; new streams are refused */
    HTTP2_ABORTING,  /* a last GOAWAY is sent if the peer reads; received bytes are not parsed */
    HTTP2_FAILED,    /* ended; on_closed must be called. Freed when no callback is running */
    HTTP2_FREED,     /* the owner called hps_http_free. Freed when no callback is running */
    HTTP2_PHASES,
};

struct http2_out {
    struct http2_batch *batch; /* frames that are being written; may be NULL */
    /* Framed pieces that the kernel does not have yet, in the order of their ends. */
    STAILQ_HEAD(, http2_piece) unreleased;
    uint64_t position; /* bytes ever added to batches */
    uint64_t bodies;   /* body bytes in `position` */
    uint64_t heads;    /* other bytes in `position`, without those of `batch` */
    uint64_t n_turns;  /* calls of http2_write_out so far */
};

struct http2_in {
    size_t work;             /* cost of this http2_read_in: its bytes, reads and frames */
    int32_t frame_id;        /* stream of the current DATA frame */
    size_t frame_left;       /* bytes of that frame that have not arrived */
    const uint8_t *data_end; /* end of the last bytes that nghttp2 reported as data */
    bool in_data;            /* the last read ended within the current DATA frame */
    struct hps_http2_filter filter;
    /* Rates of tiny DATA frames, of PING frames, and of all control frames. */
    struct http2_rate tiny, pings, controls;
    /* As `opened` of struct hps_http2_stream, for the window of the connection. */
    uint64_t opened;
    /* As `opened`, for SETTINGS frames, which change the windows of all streams. */
    uint64_t opened_streams;
    struct hps_http2_stream *last; /* result of the last http2_stream_of; NULL: closed */
    bool peer_spoke;               /* the peer's SETTINGS have arrived */
    bool peer_goaway;              /* the peer's GOAWAY has arrived */
};

struct hps_http2 {
    struct hps_http base;
    struct hps_http2_shared *shared;
    nghttp2_session *session;
    struct hps_http2_options options;
    struct hps_run_item item; /* its work: events of the socket, and HTTP2_KICK */
    LIST_HEAD(, hps_http2_stream) streams;
    unsigned n_streams;
    struct hps_http2_stream *sent; /* streams for which on_sent must be called */
    enum http2_phase phase;        /* only http2_phase_set changes it */
    unsigned busy;         /* depth of enter() (see http2_fail); nothing is freed while > 0 */
    bool checks_requests;  /* server on a Unix socket: http2_request.c checks requests */
    bool released;         /* on_released must be called */
    struct http2_out *out; /* these two are in the allocation of the connection */
    struct http2_in *in;
    struct hps_error why; /* first cause of the connection's end */
};

static inline struct hps_http2 *http2_of(const struct hps_http *http)
{
    return HPS_CONTAINER_OF(http, struct hps_http2, base);
}

static inline struct hps_http2_stream *http2_stream_at(const struct hps_http_stream *stream)
{
    return HPS_CONTAINER_OF(stream, struct hps_http2_stream, base);
}

/* ---- http2_phase.c --------------------------------------------------------------------------- */

/* Changes the phase of the connection; asserts that `to` may follow. */
void http2_phase_set(struct hps_http2 *h2, enum http2_phase to);

extern const unsigned http2_send_follows[HTTP2_SEND_PHASES]; /* [phase] bit p: phase p may follow */

/* Changes the phase of the sending side of the stream; asserts that `to` may follow. */
static inline void http2_stream_send_set(struct hps_http2_stream *stream, enum http2_send_phase to)
{
    HPS_ASSERT(stream->send < HTTP2_SEND_PHASES && to < HTTP2_SEND_PHASES);
    HPS_ASSERT((http2_send_follows[stream->send] & 1u << to) != 0);
    stream->send = to;
}

/* Asserts that phase, queue and byte counts of a stream agree. Called after each function and frame
 * that changed the stream. */
void http2_stream_sane(const struct hps_http2_stream *stream);

/* Whether the connection has ended: nothing is sent or parsed any more. */
static inline bool http2_is_dead(const struct hps_http2 *h2)
{
    return h2->phase >= HTTP2_FAILED;
}

/* Whether the connection is being aborted. */
static inline bool http2_is_aborting(const struct hps_http2 *h2)
{
    return h2->phase == HTTP2_ABORTING || h2->phase == HTTP2_ABANDONED;
}

/* Whether received bytes are parsed in the current phase. */
static inline bool http2_takes_in(const struct hps_http2 *h2)
{
    return h2->phase >= HTTP2_OPEN && h2->phase <= HTTP2_GOAWAY;
}

/* Marks the connection as ended because of `why`, which is copied. After http2_abort, the cause
 * of the abort is kept. Each callback of the loop runs between enter() and leave() of http2.c, and
 * so must this call. The outermost leave() calls on_closed and frees the connection. */
void http2_fail(struct hps_http2 *h2, const struct hps_error *why);
/* See hps_http_abort and hps_http_drain_now. */
void http2_abort(struct hps_http *http, uint32_t error, const char *why);
void http2_drain_now(struct hps_http *http);

/* ---- http2.c --------------------------------------------------------------------------------- */

/* Asserts that phase, queues and byte counts of a connection agree. Debug and sanitizer builds call
 * it each time `busy` becomes 0. */
void http2_sane(const struct hps_http2 *h2);

/* Makes the loop call settle of http2.c, in this turn if there is time. It sends bytes, or ends the
 * connection if that is due. No effect on a connection that has ended. */
static inline void http2_kick(struct hps_http2 *h2)
{
    if (!http2_is_dead(h2)) {
        hps_run_add(&h2->item, HTTP2_KICK);
    }
}

/* ---- http2_stream.c -------------------------------------------------------------------------- */

/* The stream with this id. NULL: the stream is closed, or the connection never had one with this
 * id. Remembers the last one, because nghttp2 makes several callbacks for each frame. */
static inline struct hps_http2_stream *http2_stream_of(struct hps_http2 *h2, int32_t id)
{
    if (h2->in->last == NULL || h2->in->last->id != id) {
        h2->in->last = nghttp2_session_get_stream_user_data(h2->session, id);
    }
    return h2->in->last;
}

/* Creates a stream in the list of its connection; the caller must set its id. The connection owns
 * it until http2_stream_close. NULL: no memory. */
struct hps_http2_stream *http2_stream_new(struct hps_http2 *h2);
/* Drops the stream's queued messages, calls on_stream_closed and frees the stream. */
void http2_stream_close(struct hps_http2_stream *stream, uint32_t error);
/* Sets the callback for closed streams. */
void http2_stream_callbacks_set(nghttp2_session_callbacks *callbacks);
/* See the functions hps_http_* of the same names. */
hps_status http2_respond(struct hps_http_stream *base, const struct hps_http_field *fields,
                         unsigned n_fields, bool end);
hps_status http2_trailers(struct hps_http_stream *base, const struct hps_http_field *fields,
                          unsigned n_fields);
void http2_reset(struct hps_http_stream *base, uint32_t error);

/* ---- http2_request.c ------------------------------------------------------------------------- */

/* Checks a field of the head or the trailers. Name and value are NUL-terminated. False: the field
 * is not allowed there. */
bool http2_request_field(struct http2_request *request, const uint8_t *name, size_t name_size,
                         const uint8_t *value, size_t value_size);
/* Checks a complete head or complete trailers. `end`: no body or trailers follow. False:
 * malformed. */
bool http2_request_head(struct http2_request *request, bool end);
/* Counts `size` received bytes of the body. False: the body exceeds content-length. */
bool http2_request_data(struct http2_request *request, size_t size);
/* Checks a request that has ended. False: the body is shorter than content-length. */
bool http2_request_end(const struct http2_request *request);

/* ---- http2_receive.c ------------------------------------------------------------------------- */

/* Reads until the socket is empty or the connection has used its share of this turn of the loop.
 * Fails the connection if the peer has ended it. Must run between enter() and leave(). */
void http2_read_in(struct hps_http2 *h2);
/* Sets the callbacks for received frames. */
void http2_receive_callbacks_set(nghttp2_session_callbacks *callbacks);
void http2_consume(struct hps_http_stream *base, size_t size); /* see hps_http_consume */

/* ---- http2_send.c ---------------------------------------------------------------------------- */

/* Writes until the socket is full (base.blocked is then set), all bytes are written, or the
 * connection has used its share of this turn of the loop. Then calls http2_tell_sent. Must run
 * between enter() and leave(). */
void http2_write_out(struct hps_http2 *h2);
/* Calls on_sent for the streams in h2->sent, and on_released if h2->released is set. */
void http2_tell_sent(struct hps_http2 *h2);
/* Bytes of the current batch that are not in the kernel yet. */
size_t http2_batch_left(const struct hps_http2 *h2);
/* The release_at of the first unreleased piece: the position in the output of the connection at
 * which it ends. UINT64_MAX: there are no unreleased pieces. */
uint64_t http2_unreleased_from(const struct hps_http2 *h2);
/* Drops the stream's queued messages. Pieces with bytes in a batch stay until these bytes are
 * written. */
void http2_drop_messages(struct hps_http2_stream *stream);
/* Releases the pieces that the kernel has completely: they end at or before `position` in the
 * output of the connection. */
void http2_release_written(struct hps_http2 *h2, uint64_t position);
/* Returns a batch to the list of unused batches. Bytes still in it will not be written.
 *
 * owner   takes batch
 */
void http2_batch_give(struct hps_http2_shared *shared, struct http2_batch *batch);
void http2_batches_free(struct hps_http2_shared *shared); /* frees the unused batches */
/* The source from which nghttp2 reads the body of the stream. It points to the stream and is valid
 * until the stream is closed. */
nghttp2_data_provider http2_body(struct hps_http2_stream *stream);
/* Sets the callbacks that frame bodies and that report sent frames. */
void http2_send_callbacks_set(nghttp2_session_callbacks *callbacks);
/* See the functions hps_http_* of the same names. */
hps_status http2_send(struct hps_http_stream *base, const void *prefix, size_t prefix_size,
                      const struct hps_slice *slices, unsigned n_slices);
hps_status http2_send_copy(struct hps_http_stream *base, const void *prefix, size_t prefix_size,
                           const void *data, size_t size);
void http2_finish(struct hps_http_stream *base);

#endif
