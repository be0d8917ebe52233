/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of an HTTP/1.1 connection (http1_server.h) share:
 *
 *     http1_server.c          its life: made, woken, ended, and what the server of calls asks
 *     http1_server_receive.c  what is received
 *     http1_server_send.c     what is sent
 *
 * Loop thread of the connection, but for the count of queued bytes.
 */
#ifndef HPS_NET_HTTP1_SERVER_INTERNAL_H
#define HPS_NET_HTTP1_SERVER_INTERNAL_H

#include "base/assert.h"
#include "base/buf.h"
#include "net/http1_server.h"

enum {
    HTTP1_HEAD_BYTES_MAX = 16 * 1024,
    HTTP1_HEAD_FIELDS_MAX = 64,
    /* Bytes that have come and wait: a head, and what a client sends ahead meanwhile. */
    HTTP1_IN_BYTES_MAX = 20 * 1024,
};

enum http1_phase {
    HTTP1_HANDSHAKE, /* TLS */
    HTTP1_HEAD,      /* a head is awaited, or read */
    HTTP1_BODY,      /* the request has a body, of which something is missing */
    HTTP1_CALL,      /* the request is whole, its answer is not with the kernel */
    HTTP1_LAST,      /* the last answer is being sent, nothing more is taken in */
    HTTP1_LINGER,    /* it is with the kernel; the peer is to close first */
    HTTP1_FAILED,    /* over; on_closed is due. Freed when no callback is running */
    HTTP1_FREED,     /* over, and the owner knows. Freed when no callback is running */
    HTTP1_PHASES,
};

enum http1_chunk_phase {
    HTTP1_CHUNK_NONE, /* the body has a length */
    HTTP1_CHUNK_SIZE, /* the line that begins a chunk */
    HTTP1_CHUNK_DATA,
    HTTP1_CHUNK_END,     /* CR LF behind the data */
    HTTP1_CHUNK_TRAILER, /* fields, which are thrown away, and an empty line */
};

/* Bytes of a block that are being sent. */
struct http1_piece {
    struct hps_block *block;
    const uint8_t *data;
    size_t size;
};

struct http1 {
    struct hps_http base;
    struct hps_http_stream stream; /* while has_stream */
    struct hps_loop *loop;
    struct hps_conn *conn;
    atomic_size_t *queued; /* of all connections */
    struct hps_loop_later later;
    struct hps_timer timer; /* of LINGER; and of a peer that has ended its side, looked at */
    enum http1_phase phase; /* changed by http1_phase_set alone */
    unsigned busy;          /* how often entered: while it is, nothing is freed */
    bool aborting;          /* it fails in the next turn, for `why` */
    bool has_stream;
    bool responded;   /* the head of the answer is in out.text */
    bool finished;    /* and all of its body is queued */
    bool keep_alive;  /* the client wants that, of the request that is under way */
    bool draining;    /* we do not: the next answer says so */
    bool ending;      /* nor do we wait for a next request */
    bool close;       /* after this answer, which says so */
    bool half_closed; /* the peer sends no more */
    bool heard;       /* hps_conn_heard of the connection, once that is gone */
    unsigned minor;   /* HTTP/1.`minor` of that request */
    uint32_t error;   /* of the stream's end, when the connection fails */
    struct {
        struct hps_buf bytes; /* from `at` on they wait to be looked at */
        size_t at;
        size_t scanned;     /* of them, searched for the end of the head */
        uint64_t body_left; /* of the body, or of the chunk */
        enum http1_chunk_phase chunk;
        size_t trailer_bytes;
        size_t work;    /* of this turn */
        size_t dropped; /* in LINGER */
    } in;
    struct {
        struct hps_buf text; /* heads, and a body that was copied behind them */
        size_t text_at;      /* of it, in the kernel */
        size_t heads;        /* of it, bytes that are no body */
        struct http1_piece *pieces;
        unsigned n_pieces;
        unsigned at;     /* first one that is not wholly in the kernel */
        uint64_t bodies; /* bytes of bodies ever written */
    } out;
    struct hps_error why; /* of the end: the first cause */
};

/* ---- http1_server.c -------------------------------------------------------------------------- */

void http1_phase_set(struct http1 *http, enum http1_phase to);

static inline bool http1_is_dead(const struct http1 *http)
{
    return http->phase >= HTTP1_FAILED;
}

/* What comes is looked at. */
static inline bool http1_takes_in(const struct http1 *http)
{
    return !http->aborting && (http->phase == HTTP1_HEAD || http->phase == HTTP1_BODY);
}

/* The connection is over; called between enter and leave, which do the rest.
 *
 * owner   fmt: of `why`, unless there is one already
 */
void http1_fail(struct http1 *http, hps_status status, const char *fmt, ...) HPS_PRINTF(3, 4);

/* There may be something to be sent, taken in or ended: look in the next turn of the loop. */
static inline void http1_kick(struct http1 *http)
{
    if (!http1_is_dead(http)) {
        hps_loop_later_set(http->loop, &http->later);
    }
}

/* The stream is over, and the server of calls is told. */
void http1_stream_close(struct http1 *http, uint32_t error);
/* The answer, and with it the request, is over. */
void http1_answered(struct http1 *http);
/* Assert that what is said of a connection goes together: at the end of each of its turns, in debug
 * and sanitizer builds. */
void http1_sane(const struct http1 *http);

/* ---- http1_server_receive.c ------------------------------------------------------------------ */

/* Read until the socket is empty or this turn's share is used up; fails the connection where it has
 * ended. Between enter and leave. */
void http1_read_in(struct http1 *http);
/* Look at what has come, as far as it may be looked at. Between enter and leave. */
void http1_take_in(struct http1 *http);

static inline size_t http1_waiting(const struct http1 *http)
{
    return http->in.bytes.size - http->in.at;
}

/* ---- http1_server_send.c --------------------------------------------------------------------- */

/* Write until the socket is full (base.blocked), nothing is left or this turn's share is used up.
 * Between enter and leave. */
void http1_write_out(struct http1 *http);
/* Bytes that wait to be written. */
size_t http1_unwritten(const struct http1 *http);
/* What waits to be written goes; nothing of it counts any more. */
void http1_drop_out(struct http1 *http);
/* Say that the body may come, to a client that waits for that. */
void http1_continue(struct http1 *http);
/* What came is no request: say so, and end the connection, of which the stream is gone. */
void http1_refuse(struct http1 *http, unsigned status, const char *why);
hps_status http1_respond(struct hps_http_stream *stream, const struct hps_http_field *fields,
                         unsigned n_fields, bool end);
hps_status http1_send(struct hps_http_stream *stream, const void *prefix, size_t prefix_size,
                      const struct hps_slice *slices, unsigned n_slices);
hps_status http1_send_copy(struct hps_http_stream *stream, const void *prefix, size_t prefix_size,
                           const void *data, size_t size);

#endif
