/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files of an HTTP/1.1 connection (http1_server.h):
 *
 *     http1_server.c          creation, events, end, and the table of functions
 *     http1_server_receive.c  receiving
 *     http1_server_send.c     sending
 *
 * Loop thread of the connection; the count of queued bytes is read by any thread.
 */
#ifndef HPS_NET_HTTP1_SERVER_INTERNAL_H
#define HPS_NET_HTTP1_SERVER_INTERNAL_H

#include "base/assert.h"
#include "base/buf.h"
#include "net/http1_server.h"

enum {
    HTTP1_HEAD_BYTES_MAX = 16 * 1024,
    HTTP1_HEAD_FIELDS_MAX = 64,
    /* Received bytes that are not parsed yet: a head, and bytes that a client sends ahead. */
    HTTP1_IN_BYTES_MAX = 20 * 1024,
};

enum http1_phase {
    HTTP1_HANDSHAKE, /* TLS */
    HTTP1_HEAD,      /* waiting for a head, or reading one */
    HTTP1_BODY,      /* part of the request's body is missing */
    HTTP1_CALL,      /* the request is complete, the kernel does not have the whole response */
    HTTP1_LAST,      /* the last response is being sent, no more is parsed */
    HTTP1_LINGER,    /* the kernel has it; waiting for the peer to close */
    HTTP1_FAILED,    /* ended; on_closed is due. Freed when no callback is running */
    HTTP1_FREED,     /* ended; the owner knows. Freed when no callback is running */
    HTTP1_PHASES,
};

enum http1_chunk_phase {
    HTTP1_CHUNK_NONE, /* the body has a length */
    HTTP1_CHUNK_SIZE, /* the line that begins a chunk */
    HTTP1_CHUNK_DATA,
    HTTP1_CHUNK_END,     /* CR LF after the data */
    HTTP1_CHUNK_TRAILER, /* fields, which are dropped, and an empty line */
};

/* Bytes of a block to be sent. */
struct http1_piece {
    struct hps_block *block;
    const uint8_t *data;
    size_t size;
};

struct http1 {
    struct hps_http base;
    struct hps_http_stream stream; /* valid while has_stream */
    struct hps_loop *loop;
    struct hps_conn *conn;
    atomic_size_t *queued; /* of all connections */
    struct hps_loop_later later;
    struct hps_timer timer; /* of LINGER; else polls a peer that has ended its side */
    enum http1_phase phase; /* only http1_phase_set changes it */
    unsigned busy;          /* depth of enter; nothing is freed while > 0 */
    bool aborting;          /* fails in the next turn with `why` */
    bool has_stream;
    bool responded;   /* the head of the response is in out.text */
    bool finished;    /* and its body is queued completely */
    bool keep_alive;  /* the client keeps the connection after the current request */
    bool draining;    /* we do not: the next response says so */
    bool ending;      /* nor do we wait for another request */
    bool close;       /* after this response, which says so */
    bool half_closed; /* the peer has ended its side */
    bool heard;       /* hps_conn_heard, after the connection was freed */
    unsigned minor;   /* HTTP/1.`minor` of the current request */
    uint32_t error;   /* for on_stream_closed when the connection fails */
    struct {
        struct hps_buf bytes; /* not parsed from `at` on */
        size_t at;
        size_t scanned;     /* searched for the end of the head, from `at` */
        uint64_t body_left; /* of the body, or of the chunk */
        enum http1_chunk_phase chunk;
        size_t trailer_bytes;
        size_t work;    /* bytes read in this turn, with a minimum per read */
        size_t dropped; /* in LINGER */
    } in;
    struct {
        struct hps_buf text; /* heads, then a copied body */
        size_t text_at;      /* bytes of it that the kernel has */
        size_t heads;        /* bytes of it before the body */
        struct http1_piece *pieces;
        unsigned n_pieces;
        unsigned at;     /* the first one that the kernel does not have completely */
        uint64_t bodies; /* bytes of bodies written so far */
    } out;
    struct hps_error why; /* of the end; the first cause */
};

/* ---- http1_server.c -------------------------------------------------------------------------- */

void http1_phase_set(struct http1 *http, enum http1_phase to);

static inline bool http1_is_dead(const struct http1 *http)
{
    return http->phase >= HTTP1_FAILED;
}

/* Whether received bytes are parsed. */
static inline bool http1_takes_in(const struct http1 *http)
{
    return !http->aborting && (http->phase == HTTP1_HEAD || http->phase == HTTP1_BODY);
}

/* The connection has ended. Call it between enter and leave, which do the rest. The text becomes
 * `why` unless that is set. */
void http1_fail(struct http1 *http, hps_status status, const char *fmt, ...) HPS_PRINTF(3, 4);

/* There may be something to send, parse or end: runs in the next turn of the loop. */
static inline void http1_kick(struct http1 *http)
{
    if (!http1_is_dead(http)) {
        hps_loop_later_set(http->loop, &http->later);
    }
}

/* The stream has ended: calls on_stream_closed. */
void http1_stream_close(struct http1 *http, uint32_t error);
/* The response is written and the request has ended. */
void http1_answered(struct http1 *http);
/* Asserts the invariants of a connection: at the end of each of its turns, in debug and sanitizer
 * builds. */
void http1_sane(const struct http1 *http);

/* ---- http1_server_receive.c ------------------------------------------------------------------ */

/* Reads until the socket is empty or this turn's share is used up. Fails the connection if it has
 * ended. Between enter and leave. */
void http1_read_in(struct http1 *http);
/* Parses the received bytes, depending on the phase. Between enter and leave. */
void http1_take_in(struct http1 *http);

static inline size_t http1_waiting(const struct http1 *http)
{
    return http->in.bytes.size - http->in.at;
}

/* ---- http1_server_send.c --------------------------------------------------------------------- */

/* Writes until the socket is full (base.blocked), all is written or this turn's share is used up.
 * Between enter and leave. */
void http1_write_out(struct http1 *http);
/* Bytes to be written. */
size_t http1_unwritten(const struct http1 *http);
/* Drops the bytes to be written, which then no longer count. */
void http1_drop_out(struct http1 *http);
/* Sends "100 Continue" to a client that waits for it. */
void http1_continue(struct http1 *http);
/* Answers a malformed request and ends the connection. Its stream, if it had one, is closed
 * already. */
void http1_refuse(struct http1 *http, unsigned status, const char *why);
hps_status http1_respond(struct hps_http_stream *stream, const struct hps_http_field *fields,
                         unsigned n_fields, bool end);
hps_status http1_send(struct hps_http_stream *stream, const void *prefix, size_t prefix_size,
                      const struct hps_slice *slices, unsigned n_slices);
hps_status http1_send_copy(struct hps_http_stream *stream, const void *prefix, size_t prefix_size,
                           const void *data, size_t size);

#endif
