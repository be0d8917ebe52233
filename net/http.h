/* SPDX-License-Identifier: Apache-2.0
 *
 * The interface between the gRPC server (net/grpc.h) and its HTTP connections. Two protocols
 * implement it. HTTP/2 (net/http2.h) has many streams at once. In HTTP/1.1 (net/http1_server.h) a
 * stream is one request with its response, and there is at most one. Values that the server reads
 * often are in the two structs below, which an implementation embeds and updates. All else goes
 * through its table of functions. Everything runs on the thread of the connection's loop.
 */
#ifndef HPS_NET_HTTP_H
#define HPS_NET_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/status.h"
#include "net/conn.h"

struct hps_slice; /* net/grpc.h */
struct hps_http;
struct hps_http_stream;

/* Why a stream or connection ends: error codes of RFC 9113, and HPS_HTTP2_LOST: the connection was
 * lost. HTTP/1.1 can only close the connection. */
enum {
    HPS_HTTP2_NO_ERROR = 0x0,
    HPS_HTTP2_PROTOCOL_ERROR = 0x1,
    HPS_HTTP2_INTERNAL_ERROR = 0x2,
    HPS_HTTP2_REFUSED_STREAM = 0x7,
    HPS_HTTP2_CANCEL = 0x8,
    HPS_HTTP2_ENHANCE_YOUR_CALM = 0xb,
    HPS_HTTP2_LOST = 0x7fffffff,
};

enum { HPS_HTTP_FIELDS_MAX = 32 }; /* in a header block that we send */

struct hps_http_field {
    const char *name; /* lower-case */
    size_t name_size;
    const char *value;
    size_t value_size;
};

/* A field with a literal name; _LITERAL: with a literal value too. */
#define HPS_HTTP_FIELD(n, v, size)   ((struct hps_http_field){(n), sizeof(n) - 1, (v), (size)})
#define HPS_HTTP_FIELD_LITERAL(n, v) HPS_HTTP_FIELD(n, v, sizeof(v) - 1)
/* Whether these `size` bytes are that literal. */
#define HPS_HTTP_IS(text, size, literal) \
    ((size) == sizeof(literal) - 1 && memcmp((text), (literal), sizeof(literal) - 1) == 0)

/* Reports of a connection to the server. A callback may call any function here, also
 * hps_http_free. */
struct hps_http_events {
    void (*on_stream)(void *ctx, struct hps_http_stream *stream); /* a request begins */
    /* Both are NUL-terminated; the name is in lower case. The request line comes as ":method" and
     * ":path". */
    void (*on_header)(void *ctx, struct hps_http_stream *stream, const char *name, size_t name_size,
                      const char *value, size_t value_size);
    void (*on_headers)(void *ctx, struct hps_http_stream *stream); /* the fields are complete */
    /* Only hps_http_consume reopens the flow-control window. */
    void (*on_data)(void *ctx, struct hps_http_stream *stream, const uint8_t *data, size_t size);
    /* A buffer for up to `size` bytes of the body that come next. If bytes come, on_data is called
     * with them in that buffer before anything else happens on the connection. NULL result: no
     * buffer. The callback may be NULL. */
    uint8_t *(*on_room)(void *ctx, struct hps_http_stream *stream, size_t size, size_t *out_room);
    void (*on_end)(void *ctx, struct hps_http_stream *stream); /* the request is complete */
    /* HTTP/2: after hps_http_finish, when the last byte is framed. Call hps_http_trailers now. */
    void (*on_trailers)(void *ctx, struct hps_http_stream *stream);
    void (*on_sent)(void *ctx, struct hps_http_stream *stream); /* its `queued` has decreased */
    void (*on_released)(void *ctx); /* `queued` has decreased; streams may have closed */
    /* Do not use the stream afterwards. error: of RFC 9113, or HPS_HTTP2_LOST */
    void (*on_stream_closed)(void *ctx, struct hps_http_stream *stream, uint32_t error);
    /* The connection has ended, its streams before it; it is freed after this. Not called after
     * hps_http_free. why: INVALID: the peer violated the protocol; NO_MEMORY; CLOSED: either side
     * closed it; INTERNAL; else the status of hps_conn_handshake. */
    void (*on_closed)(void *ctx, const struct hps_error *why);
};

struct hps_http_ops {
    void (*free)(struct hps_http *http);
    void (*abort)(struct hps_http *http, uint32_t error, const char *why);
    void (*drain)(struct hps_http *http);
    void (*drain_now)(struct hps_http *http);
    void (*ping)(struct hps_http *http); /* NULL: not supported */
    const struct hps_conn *(*conn)(const struct hps_http *http);
    bool (*is_ready)(const struct hps_http *http);
    bool (*peer_spoke)(const struct hps_http *http);
    bool (*heard)(const struct hps_http *http);
    bool (*is_limited)(const struct hps_http *http);
    uint64_t (*written_bodies)(const struct hps_http *http);
    hps_status (*respond)(struct hps_http_stream *stream, const struct hps_http_field *fields,
                          unsigned n_fields, bool end);
    hps_status (*send)(struct hps_http_stream *stream, const void *prefix, size_t prefix_size,
                       const struct hps_slice *slices, unsigned n_slices);
    hps_status (*send_copy)(struct hps_http_stream *stream, const void *prefix, size_t prefix_size,
                            const void *data, size_t size);
    void (*finish)(struct hps_http_stream *stream);
    hps_status (*trailers)(struct hps_http_stream *stream, const struct hps_http_field *fields,
                           unsigned n_fields); /* NULL: not supported */
    void (*reset)(struct hps_http_stream *stream, uint32_t error);
    void (*consume)(struct hps_http_stream *stream, size_t size);
    bool (*stream_is_limited)(const struct hps_http_stream *stream);
};

/* A connection; embedded by its implementation. */
struct hps_http {
    const struct hps_http_ops *ops;
    const struct hps_http_events *events; /* of the server */
    void *ctx;
    size_t queued;    /* bytes of bodies not yet in the kernel */
    uint64_t written; /* bytes ever written */
    uint64_t read_us; /* when bytes last came, by hps_clock_us */
    uint64_t
        head_us;  /* HTTP/1.1: since when a part of the head of a request is here; 0: it is not */
    bool blocked; /* the socket does not accept more bytes */
};

/* body_bytes of a chunked request. */
#define HPS_HTTP_BODY_OF_ANY_SIZE UINT64_MAX

/* A stream; embedded by its implementation. */
struct hps_http_stream {
    struct hps_http *http;
    void *user;
    size_t queued;       /* bytes of its body not yet in the kernel */
    uint64_t framed;     /* bytes of its body framed so far */
    uint64_t body_bytes; /* HTTP/1.1: size of the request's body, from on_headers on */
    bool too_large;      /* HTTP/2: its header block exceeds the limits; on_header was not called
                          * for all fields */
};

/* ---- a connection ---------------------------------------------------------------------------- */

/* Closes now: calls on_stream_closed for every stream, but not on_closed. */
static inline void hps_http_free(struct hps_http *http)
{
    http->ops->free(http);
}

/* Tells the peer if it still reads, then closes. on_closed follows later, not within this call. */
static inline void hps_http_abort(struct hps_http *http, uint32_t error, const char *why)
{
    http->ops->abort(http, error, why);
}

/* Announces the end of a ready connection. HTTP/2 sends GOAWAY at once and refuses new streams
 * after a round trip. HTTP/1.1 waits for the next response, which then has "Connection: close". The
 * connection closes when the peer knows and no stream is left. */
static inline void hps_http_drain(struct hps_http *http)
{
    http->ops->drain(http);
}

/* Ends the connection without that wait. HTTP/2 refuses new streams from now on. HTTP/1.1 closes if
 * no request is there. */
static inline void hps_http_drain_now(struct hps_http *http)
{
    http->ops->drain_now(http);
}

static inline const struct hps_conn *hps_http_conn(const struct hps_http *http)
{
    return http->ops->conn(http);
}

/* Whether the handshake is finished and the connection has not ended. */
static inline bool hps_http_is_ready(const struct hps_http *http)
{
    return http->ops->is_ready(http);
}

/* Whether the peer has shown that it knows this version of HTTP. HTTP/2: its SETTINGS came.
 * HTTP/1.1: no incomplete head is buffered, also if the peer sent nothing yet. */
static inline bool hps_http_peer_spoke(const struct hps_http *http)
{
    return http->ops->peer_spoke(http);
}

/* hps_conn_heard; may be called until on_closed returns. */
static inline bool hps_http_heard(const struct hps_http *http)
{
    return http->ops->heard(http);
}

/* Whether the peer limits what may be sent: its socket accepts no more, or the window of the
 * connection is closed. Stays true after the window opens until the next turn of writing. */
static inline bool hps_http_is_limited(const struct hps_http *http)
{
    return http->ops->is_limited(http);
}

/* The part of `written` that belongs to bodies. An estimate within the batch that is being written.
 * Never decreases. */
static inline uint64_t hps_http_written_bodies(const struct hps_http *http)
{
    return http->ops->written_bodies(http);
}

/* ---- a stream -------------------------------------------------------------------------------- */

/* The head of the response, ":status" first. `end`: there is no body. HTTP/1.1 needs
 * "content-length" among the fields unless there is no body.
 *
 * error   CLOSED, NO_MEMORY
 */
static inline hps_status hps_http_respond(struct hps_http_stream *stream,
                                          const struct hps_http_field *fields, unsigned n_fields,
                                          bool end)
{
    return stream->http->ops->respond(stream, fields, n_fields, end);
}

/* Queues `prefix` (at most 16 bytes, copied; empty in HTTP/1.1) and the slices. Takes the
 * references of the slices, also on failure.
 *
 * error   CLOSED, NO_MEMORY
 */
static inline hps_status hps_http_send(struct hps_http_stream *stream, const void *prefix,
                                       size_t prefix_size, const struct hps_slice *slices,
                                       unsigned n_slices)
{
    return stream->http->ops->send(stream, prefix, prefix_size, slices, n_slices);
}

/* Queues `prefix` and `data`, both copied. The same errors. */
static inline hps_status hps_http_send_copy(struct hps_http_stream *stream, const void *prefix,
                                            size_t prefix_size, const void *data, size_t size)
{
    return stream->http->ops->send_copy(stream, prefix, prefix_size, data, size);
}

/* The body is complete. */
static inline void hps_http_finish(struct hps_http_stream *stream)
{
    stream->http->ops->finish(stream);
}

static inline hps_status hps_http_trailers(struct hps_http_stream *stream,
                                           const struct hps_http_field *fields, unsigned n_fields)
{
    return stream->http->ops->trailers(stream, fields, n_fields);
}

/* Drops the queued bytes and ends the stream. on_stream_closed follows later, not within this call.
 * HTTP/1.1 closes the connection. */
static inline void hps_http_reset(struct hps_http_stream *stream, uint32_t error)
{
    stream->http->ops->reset(stream, error);
}

/* The receiver has finished with `size` bytes of on_data: the peer may send as many more. */
static inline void hps_http_consume(struct hps_http_stream *stream, size_t size)
{
    stream->http->ops->consume(stream, size);
}

/* HTTP/2: whether the window of this stream is closed. Stays true after it opens until the next
 * turn of writing. HTTP/1.1: false. */
static inline bool hps_http_stream_is_limited(const struct hps_http_stream *stream)
{
    return stream->http->ops->stream_is_limited(stream);
}

#endif
