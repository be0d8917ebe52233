/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files of an HTTP/1.1 connection (http1_server.h):
 *
 *     http1_server.c          creation, events, and the table of functions
 *     http1_server_phase.c    phases, and how requests and connections end
 *     http1_server_receive.c  receiving
 *     http1_server_send.c     sending
 *
 * Everything runs on the loop thread of the connection. Any thread may read the count of queued
 * bytes.
 */
#ifndef HPS_NET_HTTP1_SERVER_INTERNAL_H
#define HPS_NET_HTTP1_SERVER_INTERNAL_H

#include "base/assert.h"
#include "base/buf.h"
#include "net/http1_server.h"

enum {
    HTTP1_HEAD_BYTES_MAX = 16 * 1024,
    HTTP1_HEAD_FIELDS_MAX = 64,
    /* Limit of received bytes that are not parsed yet: a head, and bytes that the client sends
     * ahead. */
    HTTP1_IN_BYTES_MAX = 20 * 1024,
};

/* Event of its item, beside those of the socket. */
enum { HTTP1_KICK = 4 };

enum http1_phase {
    HTTP1_HANDSHAKE, /* the TLS handshake is not finished */
    HTTP1_HEAD,      /* waiting for a head, or reading one */
    HTTP1_BODY,      /* part of the request's body is missing */
    HTTP1_CALL,      /* the request is complete; part of the response is not in the kernel */
    HTTP1_LAST,      /* the last response is being sent, and no further request is parsed */
    HTTP1_LINGER,    /* the kernel has the last response; waits until the peer closes */
    HTTP1_FAILED,    /* ended; on_closed must be called. Freed when no callback is running */
    HTTP1_FREED,     /* the owner called hps_http_free. Freed when no callback is running */
    HTTP1_PHASES,
};

enum http1_chunk_phase {
    HTTP1_CHUNK_NONE,    /* the body has a Content-Length */
    HTTP1_CHUNK_SIZE,    /* expecting the line that begins a chunk */
    HTTP1_CHUNK_DATA,    /* expecting data of a chunk */
    HTTP1_CHUNK_END,     /* expecting the CR LF after the data */
    HTTP1_CHUNK_TRAILER, /* expecting trailer fields (dropped) or the empty line after them */
};

/* Bytes of a block to be sent. */
struct http1_piece {
    struct hps_block *block;
    const uint8_t *data;
    size_t size;
};

/* The current request. */
struct http1_request {
    struct hps_http_stream stream; /* valid while is_open */
    bool is_open;
    bool responded;  /* the head of the response was put into out->text */
    bool finished;   /* the body of the response is queued completely */
    bool keep_alive; /* the client keeps the connection after it */
    unsigned minor;  /* the x of HTTP/1.x */
};

struct http1_in {
    struct hps_buf bytes; /* received; the bytes before `at` are parsed */
    size_t at;
    size_t scanned;     /* bytes after `at` that were searched for the end of the head */
    uint64_t body_left; /* missing bytes of the body, or of the current chunk */
    enum http1_chunk_phase chunk;
    size_t trailer_bytes;
    size_t work;      /* bytes read by this call of http1_read_in; small reads count more */
    size_t dropped;   /* bytes dropped in LINGER */
    bool half_closed; /* the peer has ended its side */
};

struct http1_out {
    struct hps_buf text; /* response heads, then the bytes of http1_send_copy */
    size_t text_at;      /* bytes of `text` that the kernel has */
    size_t heads;        /* bytes of `text` that are response heads */
    struct http1_piece *pieces;
    unsigned n_pieces;
    unsigned at;     /* index of the first piece that the kernel does not have completely */
    uint64_t bodies; /* body bytes ever written */
};

struct http1 {
    struct hps_http base;
    struct hps_loop *loop;
    atomic_size_t *queued;    /* body bytes that wait to be sent, on all connections */
    struct hps_run_item item; /* its work: events of the socket, and HTTP1_KICK */
    /* In LINGER: ends this phase. In other phases: the next check whether a peer that has
     * half-closed has disconnected. */
    struct hps_timer timer;
    enum http1_phase phase; /* only http1_phase_set changes it */
    unsigned busy;          /* depth of enter() (see http1_fail); nothing is freed while > 0 */
    bool aborting;          /* `step` fails the connection with `why` */
    bool draining;          /* the next response has "Connection: close" */
    bool ending;            /* close as soon as no request is pending */
    bool close;             /* close after the current response, which has "Connection: close" */
    uint32_t error;         /* code for on_stream_closed if the connection fails */
    struct http1_request *request; /* these three are in the allocation of the connection */
    struct http1_in *in;
    struct http1_out *out;
    struct hps_error why; /* first cause of the connection's end */
};

/* ---- http1_server_phase.c -------------------------------------------------------------------- */

void http1_phase_set(struct http1 *http, enum http1_phase to);

static inline bool http1_is_dead(const struct http1 *http)
{
    return http->phase >= HTTP1_FAILED;
}

/* Whether received bytes are parsed in the current state. */
static inline bool http1_takes_in(const struct http1 *http)
{
    return !http->aborting && (http->phase == HTTP1_HEAD || http->phase == HTTP1_BODY);
}

/* Marks the connection as ended. Sets http->why to `status` and the text, unless it is set already.
 * Each callback of the loop runs between enter() and leave() of http1_server.c, and so must this
 * call. The outermost leave() calls on_closed and frees the connection. */
void http1_fail(struct http1 *http, hps_status status, const char *fmt, ...) HPS_PRINTF(3, 4);

/* Makes the loop call `step` of http1_server.c, in this turn if there is time. It sends and parses
 * bytes, and ends the connection if that is due. No effect on a connection that has ended. */
static inline void http1_kick(struct http1 *http)
{
    if (!http1_is_dead(http)) {
        hps_run_add(&http->item, HTTP1_KICK);
    }
}

/* Marks the stream as ended and calls on_stream_closed. */
void http1_stream_close(struct http1 *http, uint32_t error);
/* Ends the request after its response is written. The connection then waits for the next request,
 * or closes. */
void http1_answered(struct http1 *http);
/* Bytes that wait to be written. */
size_t http1_unwritten(const struct http1 *http);

/* ---- http1_server.c -------------------------------------------------------------------------- */

/* Asserts the invariants of a connection. Debug and sanitizer builds call it each time `busy`
 * becomes 0. */
void http1_sane(const struct http1 *http);

/* ---- http1_server_receive.c ------------------------------------------------------------------ */

/* Reads until the socket is empty or the connection has used its share of this turn of the loop.
 * Fails the connection if the peer has ended it. Must run between enter() and leave(). */
void http1_read_in(struct http1 *http);
/* Parses the received bytes as the phase requires. Must run between enter() and leave(). */
void http1_take_in(struct http1 *http);

/* Received bytes that are not parsed yet. */
static inline size_t http1_waiting(const struct http1 *http)
{
    return http->in->bytes.size - http->in->at;
}

/* ---- http1_server_send.c --------------------------------------------------------------------- */

/* Writes until the socket is full (base.blocked is then set), all bytes are written, or the
 * connection has used its share of this turn of the loop. Must run between enter() and leave(). */
void http1_write_out(struct http1 *http);
/* Drops the bytes that wait to be written and subtracts them from the counts of queued bytes. */
void http1_drop_out(struct http1 *http);
/* Sends "100 Continue" to a client that waits for it. */
void http1_continue(struct http1 *http);
/* Answers a malformed request with `status` and the text `why`, then ends the connection. The
 * stream of the request, if it had one, must be closed already. */
void http1_refuse(struct http1 *http, unsigned status, const char *why);
hps_status http1_respond(struct hps_http_stream *stream, const struct hps_http_field *fields,
                         unsigned n_fields, bool end);
hps_status http1_send(struct hps_http_stream *stream, const void *prefix, size_t prefix_size,
                      const struct hps_slice *slices, unsigned n_slices);
hps_status http1_send_copy(struct hps_http_stream *stream, const void *prefix, size_t prefix_size,
                           const void *data, size_t size);

#endif
