/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files of an HTTP/2 connection (http2.h):
 *
 *     http2.c          creation, events and end of a session
 *     http2_phase.c    the phases of connections and streams: transitions and invariants
 *     http2_stream.c   streams: begin, header blocks, end
 *     http2_request.c  checks of request fields, where nghttp2 does not check them
 *     http2_receive.c  receiving
 *     http2_send.c     sending
 *
 * No other file uses nghttp2. Loop thread of the connection; the count of queued bytes is read by
 * any thread.
 */
#ifndef HPS_NET_HTTP2_INTERNAL_H
#define HPS_NET_HTTP2_INTERNAL_H

#include <nghttp2/nghttp2.h>
#include <stdatomic.h>

#include "base/assert.h"
#include "net/conn.h"
#include "net/http2.h"
#include "net/http2_filter.h"
#include "net/loop.h"

/* A larger read is evicted from the L2 cache before it is parsed. */
enum { HTTP2_READ_BYTES = 64 * 1024 };

struct http2_batch;   /* what one writev gets */
struct http2_piece;   /* some bytes of a message */
struct http2_message; /* queued as a whole, framed in order */

/* Number of events in the minute that began at since_us. */
struct http2_rate {
    uint64_t since_us;
    unsigned n;
};

struct hps_http2_shared {
    struct hps_loop *loop;
    struct http2_batch *batches; /* free list */
    atomic_size_t queued;        /* message bytes of all connections */
    unsigned n_users;            /* the owner and each connection */
    uint8_t read[HTTP2_READ_BYTES];
};

/* Our side of a stream. For the peer's side see `peer_ended`. */
enum http2_send_phase {
    HTTP2_SEND_HEADERS,  /* server: the header block of the response has not been sent */
    HTTP2_SEND_OPEN,     /* nghttp2 reads body bytes as windows and socket allow */
    HTTP2_SEND_DEFERRED, /* nothing is queued: nghttp2 does not read until it is resumed */
    HTTP2_SEND_FINISHED, /* no more will be queued; queued bytes and trailers are still sent */
    HTTP2_SEND_ENDED,    /* END_STREAM has been framed */
    HTTP2_SEND_PHASES,
};

/* State of a request on a Unix socket. */
struct http2_request {
    uint64_t body_left; /* of content-length */
    uint8_t seen;       /* SEEN_ bits of http2_request.c */
};

struct hps_http2_stream {
    struct hps_http_stream base;
    struct hps_http2 *h2;
    struct hps_http2_stream *next, *prev;
    struct hps_http2_stream *sent_next; /* list h2->sent */
    struct http2_message *head, *tail;  /* queued; part of the first may be framed */
    size_t unconsumed;                  /* received bytes that were not consumed yet */
    uint64_t opened;                    /* like in.opened of the connection */
    struct http2_request request;       /* if h2->checks_requests */
    size_t header_bytes;                /* of the current block */
    unsigned n_fields;                  /* of the current block */
    int32_t id;
    enum http2_send_phase send; /* only http2_stream_send_set changes it */
    bool peer_ended;
    bool in_sent;
};

/* The life of a connection up to its end. Independent of it are `blocked` (the socket accepts no
 * more bytes) and the frames that the peer has sent (`peer_spoke`, `peer_goaway`). */
enum http2_phase {
    HTTP2_HANDSHAKE, /* connect or TLS handshake; frames wait */
    HTTP2_ABANDONED, /* aborted before the handshake finished: fails in its next turn */
    HTTP2_OPEN,      /* from here to ABORTING frames may be sent */
    HTTP2_DRAINING,  /* the end is announced; the peer may still open streams until it knows */
    HTTP2_GOAWAY,    /* server: our final GOAWAY is queued; new streams are refused */
    HTTP2_ABORTING,  /* a last GOAWAY is sent if the peer reads; no more is parsed */
    HTTP2_FAILED,    /* ended; on_closed is due. Freed when no callback is running */
    HTTP2_FREED,     /* ended; the owner knows. Freed when no callback is running */
    HTTP2_PHASES,
};

struct hps_http2 {
    struct hps_http base;
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
    enum http2_phase phase;        /* only http2_phase_set changes it */
    unsigned busy;                 /* depth of enter; nothing is freed while > 0 */
    bool checks_requests;          /* server on a Unix socket: nghttp2 does not check */
    bool released;                 /* on_released is due */
    bool peer_spoke;
    bool peer_goaway;
    bool heard; /* hps_conn_heard, after the connection was freed */
    struct {
        struct http2_batch *batch;                             /* being written; NULL: none */
        struct http2_piece *unreleased_head, *unreleased_tail; /* framed, in order of release_at */
        uint64_t position;                                     /* bytes ever added to batches */
        uint64_t bodies;                                       /* body bytes in `position` */
        uint64_t heads;   /* other bytes in `position`, before this batch */
        uint64_t n_turns; /* turns of writing so far */
    } out;
    struct {
        size_t work;             /* of this turn: its bytes, and the cost of each read and frame */
        int32_t frame_id;        /* stream of the current DATA frame */
        size_t frame_left;       /* of that frame */
        const uint8_t *data_end; /* end of the last bytes that nghttp2 reported as data */
        bool in_data;            /* the last read ended within that frame */
        struct hps_http2_filter filter;
        struct http2_rate tiny, pings, controls;
        uint64_t opened;         /* out.n_turns + 1 when the window was last opened */
        uint64_t opened_streams; /* the same for all streams, by SETTINGS */
    } in;
    struct hps_error why; /* of the end; the first cause */
};

/* ---- http2_phase.c --------------------------------------------------------------------------- */

/* Changes the phase of the connection; asserts that `to` may follow. */
void http2_phase_set(struct hps_http2 *h2, enum http2_phase to);

extern const unsigned http2_send_follows[HTTP2_SEND_PHASES]; /* bit p: phase p may follow */

/* Changes the phase of our side of the stream; asserts that `to` may follow. */
static inline void http2_stream_send_set(struct hps_http2_stream *stream, enum http2_send_phase to)
{
    HPS_ASSERT(stream->send < HTTP2_SEND_PHASES && to < HTTP2_SEND_PHASES);
    HPS_ASSERT((http2_send_follows[stream->send] & 1u << to) != 0);
    stream->send = to;
}

/* Asserts that phase, queues and byte counts of a connection agree: at the end of each of its
 * turns, in debug and sanitizer builds. */
void http2_sane(const struct hps_http2 *h2);
/* The same for a stream: at the end of each call and frame that touched it. */
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

/* Whether received bytes are parsed. */
static inline bool http2_takes_in(const struct hps_http2 *h2)
{
    return h2->phase >= HTTP2_OPEN && h2->phase <= HTTP2_GOAWAY;
}

/* ---- http2.c --------------------------------------------------------------------------------- */

/* The connection has ended. Call it between enter and leave, which do the rest. `why` is copied,
 * unless an abort has set one. */
void http2_fail(struct hps_http2 *h2, const struct hps_error *why);

/* There may be something to send or to end: runs in the next turn of the loop. */
static inline void http2_kick(struct hps_http2 *h2)
{
    if (!http2_is_dead(h2)) {
        hps_loop_later_set(h2->shared->loop, &h2->later);
    }
}

/* ---- http2_stream.c -------------------------------------------------------------------------- */

/* The stream with this id; NULL: closed, or it was never opened here. */
static inline struct hps_http2_stream *http2_stream_of(struct hps_http2 *h2, int32_t id)
{
    return nghttp2_session_get_stream_user_data(h2->session, id);
}

/* A stream in the list of its connection, without an id. The connection owns it until
 * http2_stream_close. NULL: no memory. */
struct hps_http2_stream *http2_stream_new(struct hps_http2 *h2);
/* Drops the stream's queued messages, calls on_stream_closed and frees the stream. */
void http2_stream_close(struct hps_http2_stream *stream, uint32_t error);
/* Sets the callback for closed streams. */
void http2_stream_callbacks_set(nghttp2_session_callbacks *callbacks);

/* ---- http2_request.c ------------------------------------------------------------------------- */

/* Checks a field of the head or the trailers. Name and value are NUL-terminated. False: not
 * allowed. */
bool http2_request_field(struct http2_request *request, const uint8_t *name, size_t name_size,
                         const uint8_t *value, size_t value_size);
/* The head or the trailers are complete. `end`: they end the request. False: malformed. */
bool http2_request_head(struct http2_request *request, bool end);
/* `size` bytes of the body came. False: more than content-length. */
bool http2_request_data(struct http2_request *request, size_t size);
/* The request has ended. False: less than content-length. */
bool http2_request_end(const struct http2_request *request);

/* ---- http2_receive.c ------------------------------------------------------------------------- */

/* Reads until the socket is empty or this turn's share is used up. Fails the connection if it has
 * ended. Between enter and leave. */
void http2_read_in(struct hps_http2 *h2);
/* Sets the callbacks for received frames. */
void http2_receive_callbacks_set(nghttp2_session_callbacks *callbacks);

/* ---- http2_send.c ---------------------------------------------------------------------------- */

/* Writes until the socket is full (base.blocked), all is written or this turn's share is used up.
 * Then calls http2_tell_sent. Between enter and leave. */
void http2_write_out(struct hps_http2 *h2);
/* Calls on_sent and on_released if they are due. */
void http2_tell_sent(struct hps_http2 *h2);
/* Bytes of the batch that are not in the kernel. */
size_t http2_batch_left(const struct hps_http2 *h2);
/* Position in the output of the connection at which the first unreleased piece ends; UINT64_MAX:
 * there are no unreleased pieces. */
uint64_t http2_unreleased_from(const struct hps_http2 *h2);
/* Drops the stream's queued messages. Pieces that a batch points into stay until they are
 * written. */
void http2_drop_messages(struct hps_http2_stream *stream);
/* Releases every piece that the kernel has: those up to `position` in the output of the
 * connection. */
void http2_release_written(struct hps_http2 *h2, uint64_t position);
/* Returns a batch to the free list of the loop. Its bytes no longer count.
 *
 * owner   takes batch
 */
void http2_batch_give(struct hps_http2_shared *shared, struct http2_batch *batch);
void http2_batches_free(struct hps_http2_shared *shared); /* the free ones */
/* The source from which nghttp2 reads the stream's body. It refers to the stream until that is
 * closed. */
nghttp2_data_provider http2_body(struct hps_http2_stream *stream);
/* Sets the callbacks that frame bodies and that report sent frames. */
void http2_send_callbacks_set(nghttp2_session_callbacks *callbacks);

#endif
