/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of an HTTP/2 connection (http2.h) share:
 *
 *     http2.c          the session's life: made, woken, ended
 *     http2_phase.c    its phases and those of its streams: which may follow, what goes with each
 *     http2_stream.c   its streams: how they begin, their header blocks, how they end
 *     http2_request.c  the fields of a request, where nghttp2 does not check them
 *     http2_receive.c  what is received
 *     http2_send.c     what is sent
 *
 * Nobody else uses nghttp2. Loop thread of the connection, but for the count of queued bytes.
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

/* Larger reads fall out of the L2 cache before they are parsed. */
enum { HTTP2_READ_BYTES = 64 * 1024 };

struct http2_batch;   /* what the kernel is handed at once */
struct http2_piece;   /* some bytes of a message */
struct http2_message; /* queued at once, framed in order */

/* How often something happened in the minute that began at since_us. */
struct http2_rate {
    uint64_t since_us;
    unsigned n;
};

struct hps_http2_shared {
    struct hps_loop *loop;
    struct http2_batch *batches; /* free ones */
    atomic_size_t queued;        /* bytes of messages, of all connections */
    unsigned n_users;            /* the owner and each connection */
    uint8_t read[HTTP2_READ_BYTES];
};

/* Our half of a stream. What the peer may still send is in `peer_ended`. */
enum http2_send_phase {
    HTTP2_SEND_HEADERS,  /* server: the header block of the answer is still to come */
    HTTP2_SEND_OPEN,     /* nghttp2 asks for body bytes as windows and socket allow */
    HTTP2_SEND_DEFERRED, /* nothing is queued: nghttp2 does not ask until it is told to */
    HTTP2_SEND_FINISHED, /* nothing more will be queued; what is, and the trailers, still go */
    HTTP2_SEND_ENDED,    /* END_STREAM has been framed */
    HTTP2_SEND_PHASES,
};

/* What has come of a request on a Unix socket. */
struct http2_request {
    uint64_t body_left; /* of content-length */
    uint8_t seen;       /* SEEN_ of http2_request.c */
};

struct hps_http2_stream {
    struct hps_http_stream base;
    struct hps_http2 *h2;
    struct hps_http2_stream *next, *prev;
    struct hps_http2_stream *sent_next; /* in h2->sent */
    struct http2_message *head, *tail;  /* queued; the first may be framed in part */
    size_t unconsumed;                  /* came, window not yet given back */
    uint64_t opened;                    /* as in.opened of the connection */
    struct http2_request request;       /* where h2->checks_requests */
    size_t header_bytes;                /* of the block that is being read */
    unsigned n_fields;                  /* of the same */
    int32_t id;
    enum http2_send_phase send; /* changed by http2_stream_send_set alone */
    bool peer_ended;
    bool in_sent;
};

/* The life of a connection, and how far its end has come. Whether the socket takes more bytes
 * (`blocked`) and what the peer has said (`peer_spoke`, `peer_goaway`) are facts beside it. */
enum http2_phase {
    HTTP2_HANDSHAKE, /* connect and TLS are under way; frames wait */
    HTTP2_ABANDONED, /* aborted before the handshake was over: fails in its next turn */
    HTTP2_OPEN,      /* from here to ABORTING frames may be sent */
    HTTP2_DRAINING,  /* the end is announced; the peer may not have heard and open streams */
    HTTP2_GOAWAY,    /* server: our final GOAWAY is on its way; new streams are refused */
    HTTP2_ABORTING,  /* a last GOAWAY goes out as far as the peer reads; nothing is taken in */
    HTTP2_FAILED,    /* over; on_closed is due. Freed when no callback is running */
    HTTP2_FREED,     /* over, and the owner knows. Freed when no callback is running */
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
    enum http2_phase phase;        /* changed by http2_phase_set alone */
    unsigned busy;                 /* how often entered: while it is, nothing is freed */
    bool checks_requests;          /* a server's Unix socket: nghttp2 does not */
    bool released;                 /* on_released is due */
    bool peer_spoke;
    bool peer_goaway;
    bool heard; /* hps_conn_heard of the connection, once that is gone */
    struct {
        struct http2_batch *batch;                             /* being written; NULL: none */
        struct http2_piece *unreleased_head, *unreleased_tail; /* framed, by release_at */
        uint64_t position;                                     /* bytes ever put into batches */
        uint64_t bodies;                                       /* of position, bytes of bodies */
        uint64_t heads;   /* bytes that are none, ever, before this batch */
        uint64_t n_turns; /* of writing, begun */
    } out;
    struct {
        size_t work;             /* of this turn: its bytes, and what each read and frame costs */
        int32_t frame_id;        /* stream of the DATA frame that is being read */
        size_t frame_left;       /* of that frame */
        const uint8_t *data_end; /* behind the last bytes that nghttp2 called data */
        bool in_data;            /* what was read last ended within that frame */
        struct hps_http2_filter filter;
        struct http2_rate tiny, pings, controls;
        uint64_t opened;         /* out.n_turns, plus one, when the window was opened last */
        uint64_t opened_streams; /* the same of all windows of streams, by SETTINGS */
    } in;
    struct hps_error why; /* of the end: the first cause */
};

/* ---- http2_phase.c --------------------------------------------------------------------------- */

/* The connection goes on to `to`, which must be able to follow its phase. */
void http2_phase_set(struct hps_http2 *h2, enum http2_phase to);

extern const unsigned http2_send_follows[HTTP2_SEND_PHASES]; /* bit p: phase p may follow */

/* Our half of the stream goes on to `to`, which must be able to follow its phase. */
static inline void http2_stream_send_set(struct hps_http2_stream *stream, enum http2_send_phase to)
{
    HPS_ASSERT(stream->send < HTTP2_SEND_PHASES && to < HTTP2_SEND_PHASES);
    HPS_ASSERT((http2_send_follows[stream->send] & 1u << to) != 0);
    stream->send = to;
}

/* Assert that phase, queues and byte counts of a connection go together: at the end of each of its
 * turns, in debug and sanitizer builds. */
void http2_sane(const struct hps_http2 *h2);
/* The same for a stream: at the end of each call and frame that touched it. */
void http2_stream_sane(const struct hps_http2_stream *stream);

/* Over: nothing is sent or taken in any more. */
static inline bool http2_is_dead(const struct hps_http2 *h2)
{
    return h2->phase >= HTTP2_FAILED;
}

/* An abort is under way. */
static inline bool http2_is_aborting(const struct hps_http2 *h2)
{
    return h2->phase == HTTP2_ABORTING || h2->phase == HTTP2_ABANDONED;
}

/* What comes is looked at. */
static inline bool http2_takes_in(const struct hps_http2 *h2)
{
    return h2->phase >= HTTP2_OPEN && h2->phase <= HTTP2_GOAWAY;
}

/* ---- http2.c --------------------------------------------------------------------------------- */

/* The connection is over; called between enter and leave, which do the rest.
 *
 * owner   why copied, unless an abort has set one
 */
void http2_fail(struct hps_http2 *h2, const struct hps_error *why);

/* There may be something to be sent or to be ended: look in the next turn of the loop. */
static inline void http2_kick(struct hps_http2 *h2)
{
    if (!http2_is_dead(h2)) {
        hps_loop_later_set(h2->shared->loop, &h2->later);
    }
}

/* ---- http2_stream.c -------------------------------------------------------------------------- */

/* The stream of that id; NULL: closed, or never ours. */
static inline struct hps_http2_stream *http2_stream_of(struct hps_http2 *h2, int32_t id)
{
    return nghttp2_session_get_stream_user_data(h2->session, id);
}

/* A stream in the list of its connection, without an id as yet.
 *
 * owner   the connection; it goes with http2_stream_close
 * error   NULL: no memory
 */
struct hps_http2_stream *http2_stream_new(struct hps_http2 *h2);
/* What the stream has queued is dropped, on_stream_closed is called, and the stream freed.
 *
 * unit    error of RFC 9113, or HPS_HTTP2_LOST
 */
void http2_stream_close(struct hps_http2_stream *stream, uint32_t error);
/* The callback that says that a stream is closed. */
void http2_stream_callbacks_set(nghttp2_session_callbacks *callbacks);

/* ---- http2_request.c ------------------------------------------------------------------------- */

/* A field of the head or of the trailers, both of its texts NUL-terminated. False: it may not be
 * there. */
bool http2_request_field(struct http2_request *request, const uint8_t *name, size_t name_size,
                         const uint8_t *value, size_t value_size);
/* The head, or the trailers, are complete. `end`: the request ends with them. False: malformed. */
bool http2_request_head(struct http2_request *request, bool end);
/* `size` bytes of the body. False: more than content-length says. */
bool http2_request_data(struct http2_request *request, size_t size);
/* The request is over. False: less than content-length says. */
bool http2_request_end(const struct http2_request *request);

/* ---- http2_receive.c ------------------------------------------------------------------------- */

/* Read until the socket is empty or this turn's share is used up; fails the connection where it has
 * ended. Between enter and leave. */
void http2_read_in(struct hps_http2 *h2);
/* The callbacks that say what came. */
void http2_receive_callbacks_set(nghttp2_session_callbacks *callbacks);

/* ---- http2_send.c ---------------------------------------------------------------------------- */

/* Write until the socket is full (base.blocked), nothing is left or this turn's share is used up;
 * then http2_tell_sent. Between enter and leave. */
void http2_write_out(struct hps_http2 *h2);
/* Call on_sent and on_released where they are due. */
void http2_tell_sent(struct hps_http2 *h2);
/* Bytes in the batch that the kernel does not have. */
size_t http2_batch_left(const struct hps_http2 *h2);
/* Where in the connection's output the first piece ends that is not let go of; UINT64_MAX: none. */
uint64_t http2_unreleased_from(const struct hps_http2 *h2);
/* What the stream has queued goes; pieces that a batch points into stay until they are written. */
void http2_drop_messages(struct hps_http2_stream *stream);
/* Let go of every piece whose bytes the kernel has.
 *
 * unit    position in bytes of the connection's output, up to which it has them
 */
void http2_release_written(struct hps_http2 *h2, uint64_t position);
/* Back to those that the connections of a loop share; nothing in it counts any more.
 *
 * owner   takes batch
 */
void http2_batch_give(struct hps_http2_shared *shared, struct http2_batch *batch);
void http2_batches_free(struct hps_http2_shared *shared); /* those that were given back */
/* What nghttp2 is to ask for the stream's body.
 *
 * owner   the stream, which it refers to until that is closed
 */
nghttp2_data_provider http2_body(struct hps_http2_stream *stream);
/* The callbacks that ask for frames, or say that one was sent. */
void http2_send_callbacks_set(nghttp2_session_callbacks *callbacks);

#endif
