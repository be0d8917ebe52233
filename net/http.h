/* SPDX-License-Identifier: Apache-2.0
 *
 * The interface between gRPC (net/grpc.h) and its HTTP connections. Two protocols implement it.
 * HTTP/2 (net/http2.h) has many streams at once; the gRPC client uses it too. In HTTP/1.1
 * (net/http1_server.h) a stream is one request with its response, and there is at most one. Values
 * that the owner of a connection reads often are in the two structs below, which an implementation
 * embeds and updates. All other operations are in its table of functions. Everything runs on the
 * thread of the connection's loop.
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

/* Why a stream or connection ends. These are error codes of RFC 9113, and HPS_HTTP2_LOST if the
 * connection was lost. HTTP/1.1 cannot send a code: it only closes the connection. */
enum {
    HPS_HTTP2_NO_ERROR = 0x0,
    HPS_HTTP2_PROTOCOL_ERROR = 0x1,
    HPS_HTTP2_INTERNAL_ERROR = 0x2,
    HPS_HTTP2_REFUSED_STREAM = 0x7,
    HPS_HTTP2_CANCEL = 0x8,
    HPS_HTTP2_ENHANCE_YOUR_CALM = 0xb,
    HPS_HTTP2_LOST = 0x7fffffff,
};

enum { HPS_HTTP_FIELDS_MAX = 32 }; /* maximum number of fields in a sent header block */

struct hps_http_field {
    const char *name; /* in lower case */
    size_t name_size;
    const char *value;
    size_t value_size;
};

/* A field whose name is a string literal. With HPS_HTTP_FIELD_LITERAL the value is a literal
 * too. */
#define HPS_HTTP_FIELD(n, v, size)   ((struct hps_http_field){(n), sizeof(n) - 1, (v), (size)})
#define HPS_HTTP_FIELD_LITERAL(n, v) HPS_HTTP_FIELD(n, v, sizeof(v) - 1)
/* Whether the `size` bytes at `text` equal the string literal. */
#define HPS_HTTP_IS(text, size, literal) \
    ((size) == sizeof(literal) - 1 && memcmp((text), (literal), sizeof(literal) - 1) == 0)

/* Callbacks by which a connection reports events to its owner. Each may call any function of this
 * header, also hps_http_free. A server sets all but on_ready, on_buffer and on_goaway. A client
 * sets on_closed and the callbacks that it needs. */
struct hps_http_events {
    void (*on_ready)(void *ctx); /* the handshake is finished; streams may begin */
    void (*on_stream)(void *ctx, struct hps_http_stream *stream); /* a request begins */
    /* One field of the request. Name and value are NUL-terminated, the name is in lower case. The
     * request line is reported as the fields ":method" and ":path". */
    void (*on_header)(void *ctx, struct hps_http_stream *stream, const char *name, size_t name_size,
                      const char *value, size_t value_size);
    void (*on_headers)(void *ctx, struct hps_http_stream *stream); /* the fields are complete */
    /* Bytes of the body. The flow-control window stays reduced by `size` until hps_http_consume. */
    void (*on_data)(void *ctx, struct hps_http_stream *stream, const uint8_t *data, size_t size);
    /* May return a buffer for the next bytes of the body; `size` bytes of the body are expected.
     * The size of the buffer, *out_capacity, is at most `size`. If bytes arrive, they are read into
     * this buffer, and on_data reports them before the connection makes any other callback. Returns
     * NULL if there is no buffer. The callback may be NULL. */
    uint8_t *(*on_buffer)(void *ctx, struct hps_http_stream *stream, size_t size,
                          size_t *out_capacity);
    void (*on_end)(void *ctx, struct hps_http_stream *stream); /* the request is complete */
    /* HTTP/2: called after hps_http_finish, when the last byte of the body is in a frame. The
     * server calls hps_http_trailers within this callback. */
    void (*on_trailers)(void *ctx, struct hps_http_stream *stream);
    void (*on_sent)(void *ctx, struct hps_http_stream *stream); /* stream->queued decreased */
    /* hps_http.queued has decreased. The bytes may have belonged to streams that have closed
     * since. */
    void (*on_released)(void *ctx);
    /* The stream has ended and must not be used after this callback. error: a code of RFC 9113, or
     * HPS_HTTP2_LOST. */
    void (*on_stream_closed)(void *ctx, struct hps_http_stream *stream, uint32_t error);
    void (*on_goaway)(void *ctx); /* HTTP/2: the peer refuses new streams on this connection */
    /* The connection has ended; on_stream_closed was called for all its streams. It is freed after
     * this callback. Not called after hps_http_free. why: INVALID (the peer violated the protocol),
     * CLOSED (either side closed it), NO_MEMORY, INTERNAL, or the status of hps_conn_handshake. */
    void (*on_closed)(void *ctx, const struct hps_error *why);
};

/* The functions of a protocol. Each is described at the function hps_http_* below that calls it. */
struct hps_http_ops {
    void (*free)(struct hps_http *http);
    void (*abort)(struct hps_http *http, uint32_t error, const char *why);
    void (*drain)(struct hps_http *http);
    void (*drain_now)(struct hps_http *http);
    void (*ping)(struct hps_http *http); /* NULL: the protocol has no PING */
    bool (*peer_spoke)(const struct hps_http *http);
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
                           unsigned n_fields); /* NULL: no trailers */
    void (*reset)(struct hps_http_stream *stream, uint32_t error);
    void (*consume)(struct hps_http_stream *stream, size_t size);
    bool (*stream_is_limited)(const struct hps_http_stream *stream);
};

/* A connection; embedded by its implementation. */
struct hps_http {
    const struct hps_http_ops *ops;
    const struct hps_http_events *events; /* callbacks of the owner */
    void *ctx;                            /* their first argument */
    struct hps_conn *conn;                /* NULL: closed, and on_closed follows */
    size_t queued;                        /* bytes of bodies not yet in the kernel */
    uint64_t written;                     /* bytes ever written to the socket */
    uint64_t read_us;                     /* when bytes were last received, by hps_clock_us */
    uint64_t head_us; /* HTTP/1.1: arrival of the first byte of an incomplete head; else 0 */
    bool blocked;     /* the socket does not accept more bytes */
    bool ready;       /* the handshake is finished, and the connection has not ended */
    bool received;    /* the result of hps_conn_received, once `conn` is NULL */
};

/* The value of body_bytes for a chunked request. */
#define HPS_HTTP_BODY_OF_ANY_SIZE UINT64_MAX

/* A stream; embedded by its implementation. */
struct hps_http_stream {
    struct hps_http *http;
    void *user;
    size_t queued;       /* bytes of its body not yet in the kernel */
    uint64_t framed;     /* bytes of its body put into frames (HTTP/1.1: written) so far */
    uint64_t body_bytes; /* HTTP/1.1: size of the request's body, set before on_headers */
    bool too_large;      /* HTTP/2: the header block of the request exceeds the limits, and
                          * on_header was not called for all of its fields */
};

/* ---- a connection ---------------------------------------------------------------------------- */

/* Closes the connection now. Calls on_stream_closed for every stream, but not on_closed. */
static inline void hps_http_free(struct hps_http *http)
{
    http->ops->free(http);
}

/* Closes the connection because of `error`; `why` is text for the log. HTTP/2 sends a GOAWAY first
 * if the peer still reads. on_closed follows later, not within this call. */
static inline void hps_http_abort(struct hps_http *http, uint32_t error, const char *why)
{
    http->ops->abort(http, error, why);
}

/* Announces the end of a connection; its handshake must be finished. HTTP/2 sends GOAWAY at once
 * and refuses new streams after a round trip. HTTP/1.1 waits for the next response, which then has
 * "Connection: close". After the announcement, the connection closes when no stream is left. */
static inline void hps_http_drain(struct hps_http *http)
{
    http->ops->drain(http);
}

/* Like hps_http_drain, without waiting for the peer. HTTP/2 refuses new streams from now on.
 * HTTP/1.1 closes the connection at once if no request has arrived. */
static inline void hps_http_drain_now(struct hps_http *http)
{
    http->ops->drain_now(http);
}

/* Whether the peer has shown that it speaks this version of HTTP. HTTP/2: its SETTINGS frame has
 * arrived. HTTP/1.1: true unless only a part of a head has arrived. So it is true before the
 * first byte arrives. */
static inline bool hps_http_peer_spoke(const struct hps_http *http)
{
    return http->ops->peer_spoke(http);
}

/* Whether the peer has sent at least one byte (hps_conn_received). May be called until on_closed
 * returns. */
static inline bool hps_http_received(const struct hps_http *http)
{
    return http->conn != NULL ? hps_conn_received(http->conn) : http->received;
}

/* Whether the peer keeps this side from sending: the socket accepts no more bytes, or the HTTP/2
 * window of the connection is closed. After the window opens, this stays true until the connection
 * next writes. */
static inline bool hps_http_is_limited(const struct hps_http *http)
{
    return http->ops->is_limited(http);
}

/* How many of the bytes in http->written belong to bodies. While a batch of frames is partly
 * written, this is an estimate. Never decreases. */
static inline uint64_t hps_http_written_bodies(const struct hps_http *http)
{
    return http->ops->written_bodies(http);
}

/* ---- a stream -------------------------------------------------------------------------------- */

/* Sends the head of the response; the first field is ":status". `end`: the response has no body.
 * Otherwise HTTP/1.1 needs "content-length" among the fields.
 *
 * error   CLOSED, NO_MEMORY
 */
static inline hps_status hps_http_respond(struct hps_http_stream *stream,
                                          const struct hps_http_field *fields, unsigned n_fields,
                                          bool end)
{
    return stream->http->ops->respond(stream, fields, n_fields, end);
}

/* Queues bytes of the body: `prefix` (at most 16 bytes, copied; empty in HTTP/1.1), then the
 * slices. Takes over the references of the slices, also on failure.
 *
 * error   CLOSED, NO_MEMORY
 */
static inline hps_status hps_http_send(struct hps_http_stream *stream, const void *prefix,
                                       size_t prefix_size, const struct hps_slice *slices,
                                       unsigned n_slices)
{
    return stream->http->ops->send(stream, prefix, prefix_size, slices, n_slices);
}

/* Like hps_http_send, with `data` instead of slices. Both `prefix` and `data` are copied. */
static inline hps_status hps_http_send_copy(struct hps_http_stream *stream, const void *prefix,
                                            size_t prefix_size, const void *data, size_t size)
{
    return stream->http->ops->send_copy(stream, prefix, prefix_size, data, size);
}

/* Declares the body complete: no more bytes will be queued. */
static inline void hps_http_finish(struct hps_http_stream *stream)
{
    stream->http->ops->finish(stream);
}

/* HTTP/2 only, within on_trailers: sends the trailers, which end the stream. */
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

/* Call it when `size` bytes of on_data are processed: the peer may then send `size` bytes more. No
 * effect in HTTP/1.1. */
static inline void hps_http_consume(struct hps_http_stream *stream, size_t size)
{
    stream->http->ops->consume(stream, size);
}

/* HTTP/2: whether the flow-control window of this stream is closed. After it opens, this stays true
 * until the connection next writes. HTTP/1.1: false. */
static inline bool hps_http_stream_is_limited(const struct hps_http_stream *stream)
{
    return stream->http->ops->stream_is_limited(stream);
}

#endif
