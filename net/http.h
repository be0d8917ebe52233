/* SPDX-License-Identifier: Apache-2.0
 *
 * What the server of calls (net/grpc.h) needs of a connection that speaks HTTP, whatever version:
 * HTTP/2 (net/http2.h), with many streams at once, or HTTP/1.1 (net/http1_server.h), where a stream
 * is a request with its answer and there is at most one. What is asked often lies in the two
 * structs below, which an implementation embeds and keeps up to date; the rest goes through its
 * table. Everything runs on the thread of the connection's loop.
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

/* Why a stream or a connection is ended: error codes of RFC 9113; HPS_HTTP2_LOST: the connection
 * went. HTTP/1.1 knows no other way to say any of them than to close the connection. */
enum {
    HPS_HTTP2_NO_ERROR = 0x0,
    HPS_HTTP2_PROTOCOL_ERROR = 0x1,
    HPS_HTTP2_INTERNAL_ERROR = 0x2,
    HPS_HTTP2_REFUSED_STREAM = 0x7,
    HPS_HTTP2_CANCEL = 0x8,
    HPS_HTTP2_ENHANCE_YOUR_CALM = 0xb,
    HPS_HTTP2_LOST = 0x7fffffff,
};

enum { HPS_HTTP_FIELDS_MAX = 32 }; /* that one of our own header blocks may have */

struct hps_http_field {
    const char *name; /* lower-case */
    size_t name_size;
    const char *value;
    size_t value_size;
};

/* A field whose name is a literal; _LITERAL: its value, too. */
#define HPS_HTTP_FIELD(n, v, size)   ((struct hps_http_field){(n), sizeof(n) - 1, (v), (size)})
#define HPS_HTTP_FIELD_LITERAL(n, v) HPS_HTTP_FIELD(n, v, sizeof(v) - 1)
/* Are these `size` bytes that literal? */
#define HPS_HTTP_IS(text, size, literal) \
    ((size) == sizeof(literal) - 1 && memcmp((text), (literal), sizeof(literal) - 1) == 0)

/* What a connection tells the server of calls. A callback may call anything here, hps_http_free
 * included. */
struct hps_http_events {
    void (*on_stream)(void *ctx, struct hps_http_stream *stream); /* a request begins */
    /* Both NUL-terminated, the name in lower case; the request line as ":method" and ":path". */
    void (*on_header)(void *ctx, struct hps_http_stream *stream, const char *name, size_t name_size,
                      const char *value, size_t value_size);
    void (*on_headers)(void *ctx, struct hps_http_stream *stream); /* those were all */
    /* Window is given back only by hps_http_consume. */
    void (*on_data)(void *ctx, struct hps_http_stream *stream, const uint8_t *data, size_t size);
    /* Where up to `size` bytes of the body that come next may be put; on_data is then called with
     * them there, before anything else happens on the connection. NULL: nowhere. May be NULL. */
    uint8_t *(*on_room)(void *ctx, struct hps_http_stream *stream, size_t size, size_t *out_room);
    void (*on_end)(void *ctx, struct hps_http_stream *stream); /* the request is whole */
    /* HTTP/2, after hps_http_finish, when the last byte is framed: hps_http_trailers now. */
    void (*on_trailers)(void *ctx, struct hps_http_stream *stream);
    void (*on_sent)(void *ctx, struct hps_http_stream *stream); /* its queued bytes became fewer */
    void (*on_released)(void *ctx); /* `queued` became less; streams may be gone meanwhile */
    /* Freed right after this. error: of RFC 9113, or HPS_HTTP2_LOST */
    void (*on_stream_closed)(void *ctx, struct hps_http_stream *stream, uint32_t error);
    /* Gone, streams first; the connection is freed after this. Not called after hps_http_free.
     * why: INVALID where the peer broke the rules, NO_MEMORY, CLOSED where it, or we, ended it;
     * else what hps_conn_handshake says. */
    void (*on_closed)(void *ctx, const struct hps_error *why);
};

struct hps_http_ops {
    void (*free)(struct hps_http *http);
    void (*abort)(struct hps_http *http, uint32_t error, const char *why);
    void (*drain)(struct hps_http *http);
    void (*drain_now)(struct hps_http *http);
    void (*ping)(struct hps_http *http); /* NULL: this version has none */
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
                           unsigned n_fields); /* NULL: it has none */
    void (*reset)(struct hps_http_stream *stream, uint32_t error);
    void (*consume)(struct hps_http_stream *stream, size_t size);
    bool (*stream_is_limited)(const struct hps_http_stream *stream);
};

/* A connection, to be embedded. */
struct hps_http {
    const struct hps_http_ops *ops;
    const struct hps_http_events *events; /* of the server of calls */
    void *ctx;
    size_t queued;    /* bytes of bodies not yet in the kernel */
    uint64_t written; /* bytes ever written */
    uint64_t read_us; /* when bytes last came */
    uint64_t
        head_us;  /* HTTP/1.1: since when the head of a request is in part there; 0: it is not */
    bool blocked; /* the socket takes no more */
};

/* What HTTP/1.1 says of a body before it comes. */
#define HPS_HTTP_BODY_OF_ANY_SIZE UINT64_MAX

/* A stream, to be embedded. */
struct hps_http_stream {
    struct hps_http *http;
    void *user;
    size_t queued;       /* bytes of its body not yet in the kernel */
    uint64_t framed;     /* bytes of its body ever framed */
    uint64_t body_bytes; /* HTTP/1.1, of the request, from on_headers on */
    bool too_large;      /* HTTP/2: a header block is beyond its limits, and on_header left some of
                          * its fields out */
};

/* ---- a connection ---------------------------------------------------------------------------- */

/* Close now: on_stream_closed for every stream, but no on_closed. */
static inline void hps_http_free(struct hps_http *http)
{
    http->ops->free(http);
}

/* Tell the peer as far as it still reads, then close; on_closed follows, but not from here. */
static inline void hps_http_abort(struct hps_http *http, uint32_t error, const char *why)
{
    http->ops->abort(http, error, why);
}

/* The end is near, and the peer is told. HTTP/2: by GOAWAY at once; new streams are refused after a
 * round trip. HTTP/1.1: by "Connection: close" of the next answer, for which it waits. Closes when
 * no stream is left and the peer was told. Of a ready one. */
static inline void hps_http_drain(struct hps_http *http)
{
    http->ops->drain(http);
}

/* Do not wait: HTTP/2 refuses new streams from now on; HTTP/1.1 closes where there is no request.
 */
static inline void hps_http_drain_now(struct hps_http *http)
{
    http->ops->drain_now(http);
}

static inline const struct hps_conn *hps_http_conn(const struct hps_http *http)
{
    return http->ops->conn(http);
}

/* The handshake is over, and the connection is not. */
static inline bool hps_http_is_ready(const struct hps_http *http)
{
    return http->ops->is_ready(http);
}

/* What has come shows that the peer knows this version of HTTP. One that has said nothing does in
 * HTTP/1.1, but not in HTTP/2. */
static inline bool hps_http_peer_spoke(const struct hps_http *http)
{
    return http->ops->peer_spoke(http);
}

/* hps_conn_heard; until on_closed is over. */
static inline bool hps_http_heard(const struct hps_http *http)
{
    return http->ops->heard(http);
}

/* The socket takes no more, or the peer takes no more bodies on the whole connection; or did not
 * until it opened its window, of which no use has been made as yet. */
static inline bool hps_http_is_limited(const struct hps_http *http)
{
    return http->ops->is_limited(http);
}

/* Of the bytes that are written, those of bodies, more or less what else is in the batch that is
 * under way. Never less than before. */
static inline uint64_t hps_http_written_bodies(const struct hps_http *http)
{
    return http->ops->written_bodies(http);
}

/* ---- a stream -------------------------------------------------------------------------------- */

/* The head of the answer, ":status" first; with `end` it is all of it. HTTP/1.1: "content-length"
 * is among the fields, unless there is no body.
 *
 * error   CLOSED, NO_MEMORY
 */
static inline hps_status hps_http_respond(struct hps_http_stream *stream,
                                          const struct hps_http_field *fields, unsigned n_fields,
                                          bool end)
{
    return stream->http->ops->respond(stream, fields, n_fields, end);
}

/* Queue `prefix` (at most 16 bytes, copied) and the slices, whose references are taken in any case.
 *
 * error   CLOSED, NO_MEMORY
 */
static inline hps_status hps_http_send(struct hps_http_stream *stream, const void *prefix,
                                       size_t prefix_size, const struct hps_slice *slices,
                                       unsigned n_slices)
{
    return stream->http->ops->send(stream, prefix, prefix_size, slices, n_slices);
}

/* Queue `prefix` and `data`, both copied. */
static inline hps_status hps_http_send_copy(struct hps_http_stream *stream, const void *prefix,
                                            size_t prefix_size, const void *data, size_t size)
{
    return stream->http->ops->send_copy(stream, prefix, prefix_size, data, size);
}

/* Nothing more will be queued. */
static inline void hps_http_finish(struct hps_http_stream *stream)
{
    stream->http->ops->finish(stream);
}

static inline hps_status hps_http_trailers(struct hps_http_stream *stream,
                                           const struct hps_http_field *fields, unsigned n_fields)
{
    return stream->http->ops->trailers(stream, fields, n_fields);
}

/* What is queued goes, and the stream with it; on_stream_closed follows, but not from here. */
static inline void hps_http_reset(struct hps_http_stream *stream, uint32_t error)
{
    stream->http->ops->reset(stream, error);
}

/* So many bytes of on_data need no longer be waited for: the peer may send as many more. */
static inline void hps_http_consume(struct hps_http_stream *stream, size_t size)
{
    stream->http->ops->consume(stream, size);
}

/* The peer takes no more of this stream's body; or did not until a moment ago. */
static inline bool hps_http_stream_is_limited(const struct hps_http_stream *stream)
{
    return stream->http->ops->stream_is_limited(stream);
}

#endif
