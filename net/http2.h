/* SPDX-License-Identifier: Apache-2.0
 *
 * An HTTP/2 connection of a server or a client: the nghttp2 session, its socket and the queued
 * bytes. Bytes of blocks go to the kernel without a copy in user space. Everything runs on the
 * thread of the connection's loop.
 */
#ifndef HPS_NET_HTTP2_H
#define HPS_NET_HTTP2_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "net/conn.h"
#include "net/http.h"
#include "net/loop.h"

struct hps_http2;        /* one connection */
struct hps_http2_stream; /* freed after on_stream_closed */

/* Callbacks of a connection. All except on_closed may be NULL. A callback may call any function of
 * this header, also hps_http2_free. */
struct hps_http2_events {
    void (*on_ready)(void *ctx); /* the handshake is finished; streams may begin */
    void (*on_stream)(void *ctx, struct hps_http2_stream *stream); /* server: a request begins */
    void (*on_header)(void *ctx, struct hps_http2_stream *stream, const char *name,
                      size_t name_size, const char *value,
                      size_t value_size);                           /* both NUL-terminated */
    void (*on_headers)(void *ctx, struct hps_http2_stream *stream); /* all headers were reported */
    /* Bytes of the body. The flow-control window stays reduced by `size` until
     * hps_http2_consume. */
    void (*on_data)(void *ctx, struct hps_http2_stream *stream, const uint8_t *data, size_t size);
    /* May return a buffer for the next bytes of the body; `size` bytes of the body are expected.
     * The size of the buffer, *out_capacity, is at most `size`. If bytes arrive, they are read into
     * this buffer, and on_data reports them before the connection makes any other callback. Returns
     * NULL if there is no buffer. */
    uint8_t *(*on_buffer)(void *ctx, struct hps_http2_stream *stream, size_t size,
                          size_t *out_capacity);
    void (*on_end)(void *ctx, struct hps_http2_stream *stream); /* the peer has ended its side */
    /* Called after hps_http2_finish, when the last byte of the body is in a frame. The owner calls
     * hps_http2_trailers within this callback. If on_trailers is NULL, the stream ends without
     * trailers. */
    void (*on_trailers)(void *ctx, struct hps_http2_stream *stream);
    /* hps_http2_stream_queued has decreased. */
    void (*on_sent)(void *ctx, struct hps_http2_stream *stream);
    /* hps_http2_queued has decreased. The bytes may have belonged to streams that have closed
     * since. */
    void (*on_released)(void *ctx);
    /* The stream has ended and must not be used after this callback. error: a code of RFC 9113, or
     * HPS_HTTP2_LOST. */
    void (*on_stream_closed)(void *ctx, struct hps_http2_stream *stream, uint32_t error);
    void (*on_goaway)(void *ctx); /* the peer refuses new streams on this connection */
    /* The connection has ended; on_stream_closed was called for all its streams. It is freed after
     * this callback. Not called after hps_http2_free. why: INVALID (the peer violated the
     * protocol), CLOSED (either side closed it), NO_MEMORY, INTERNAL, or the status of
     * hps_conn_handshake. */
    void (*on_closed)(void *ctx, const struct hps_error *why);
};

struct hps_http2_options {
    bool server;                      /* this side is the server; else the client */
    uint32_t streams_max;             /* streams that the peer may have open */
    uint32_t window_bytes;            /* receive window of a stream */
    uint32_t connection_window_bytes; /* receive window of the connection */
    uint32_t frame_bytes_max;         /* largest frame that the peer may send */
    /* Limits of a received header block: the total size of the fields, and their number. The size
     * of a field is 32 plus the sizes of its name and value. A server sets too_large of the stream
     * if the header block exceeds a limit. It resets the stream if the header block exceeds 16
     * times a limit. A client resets the stream if the header block exceeds a limit. */
    size_t header_bytes_max;
    unsigned header_fields_max;
    uint64_t handshake_timeout_us; /* 0: no limit */
};

/* Data that the connections of a loop share: send buffers, and the number of body bytes that all of
 * these connections have queued. */
struct hps_http2_shared;
struct hps_http2_shared *hps_http2_shared_new(struct hps_loop *loop); /* NULL: no memory */
/* All connections must have been freed. */
void hps_http2_shared_free(struct hps_http2_shared *shared);
size_t hps_http2_shared_queued(const struct hps_http2_shared *shared); /* any thread */

/* Creates an HTTP/2 connection on `conn`, whose connect or handshake may be in progress. Takes
 * ownership of `conn`, also on failure.
 *
 * error   NO_MEMORY
 */
hps_status hps_http2_new(struct hps_http2_shared *shared, struct hps_conn *conn,
                         const struct hps_http2_options *options,
                         const struct hps_http2_events *events, void *ctx,
                         struct hps_http2 **out_h2, struct hps_error *err) HPS_MUST_CHECK;
/* Like hps_http2_new, for the gRPC server: the result is a connection of net/http.h.
 * options->server must be true. */
hps_status hps_http2_serve(struct hps_http2_shared *shared, struct hps_conn *conn,
                           const struct hps_http2_options *options,
                           const struct hps_http_events *events, void *ctx,
                           struct hps_http **out_http, struct hps_error *err) HPS_MUST_CHECK;
/* Closes the connection now. Calls on_stream_closed for every stream, but not on_closed. */
void hps_http2_free(struct hps_http2 *h2);
/* Closes the connection because of `error`; `why` is text for the log. Sends a GOAWAY with `error`
 * first if the peer still reads. on_closed follows later, not within this call. */
void hps_http2_abort(struct hps_http2 *h2, uint32_t error, const char *why);
/* Closes the connection when its last stream has ended. A server first announces the end with
 * GOAWAY and refuses new streams after a round trip. Call it only after on_ready. */
void hps_http2_drain(struct hps_http2 *h2);
/* Server: like hps_http2_drain, but refuses new streams from now on. */
void hps_http2_drain_now(struct hps_http2 *h2);
void hps_http2_ping(struct hps_http2 *h2);

const struct hps_conn *hps_http2_conn(const struct hps_http2 *h2);
bool hps_http2_is_ready(const struct hps_http2 *h2);
bool hps_http2_peer_spoke(const struct hps_http2 *h2); /* the peer's SETTINGS have arrived */
/* Whether the peer has sent at least one byte (hps_conn_received). May be called until on_closed
 * returns. */
bool hps_http2_received(const struct hps_http2 *h2);
/* Client: whether hps_http2_request may open a stream. False if the connection is ending, the peer
 * has sent GOAWAY, or no stream id is left. */
bool hps_http2_can_request(const struct hps_http2 *h2);
unsigned hps_http2_streams(const struct hps_http2 *h2); /* number of open streams */
size_t hps_http2_queued(const struct hps_http2 *h2);    /* body bytes not yet in the kernel */
uint64_t hps_http2_written(const struct hps_http2 *h2); /* bytes ever written to the socket */
/* How many bytes of hps_http2_written belong to bodies. While a batch of frames is partly written,
 * this is an estimate. Never decreases. */
uint64_t hps_http2_written_bodies(const struct hps_http2 *h2);
bool hps_http2_blocked(const struct hps_http2 *h2); /* the socket accepts no more bytes */
/* Whether the socket accepts no more bytes, or the flow-control window of the connection is closed.
 * After the window opens, this stays true until the connection next writes. */
bool hps_http2_limited(const struct hps_http2 *h2);
/* When bytes were last received, by hps_clock_us. */
uint64_t hps_http2_read_us(const struct hps_http2 *h2);

/* ---- streams --------------------------------------------------------------------------------- */

/* Client: opens a stream and sends the head of the request. Then queue the body, if there is one,
 * and call hps_http2_finish.
 *
 * error   UNAVAILABLE: hps_http2_can_request is false; NO_MEMORY
 */
hps_status hps_http2_request(struct hps_http2 *h2, const struct hps_http_field *fields,
                             unsigned n_fields, void *user, struct hps_http2_stream **out_stream)
    HPS_MUST_CHECK;
/* Server: sends the header block of the response. `end`: the response has no body.
 *
 * error   CLOSED, NO_MEMORY
 */
hps_status hps_http2_respond(struct hps_http2_stream *stream, const struct hps_http_field *fields,
                             unsigned n_fields, bool end) HPS_MUST_CHECK;
/* Queues bytes of the body: `prefix` (1 to 16 bytes, copied), then the slices. Takes over the
 * references of the slices, also on failure.
 *
 * error   CLOSED, NO_MEMORY
 */
hps_status hps_http2_send(struct hps_http2_stream *stream, const void *prefix, size_t prefix_size,
                          const struct hps_slice *slices, unsigned n_slices) HPS_MUST_CHECK;
/* Like hps_http2_send, with `data` instead of slices. Both `prefix` and `data` are copied. */
hps_status hps_http2_send_copy(struct hps_http2_stream *stream, const void *prefix,
                               size_t prefix_size, const void *data, size_t size) HPS_MUST_CHECK;
/* Declares the body complete: no more bytes will be queued. */
void hps_http2_finish(struct hps_http2_stream *stream);
/* Within on_trailers: sends the trailers, which end the stream. */
hps_status hps_http2_trailers(struct hps_http2_stream *stream, const struct hps_http_field *fields,
                              unsigned n_fields) HPS_MUST_CHECK;
/* Drops the queued bytes and ends the stream with `error`. on_stream_closed follows later, not
 * within this call. */
void hps_http2_reset(struct hps_http2_stream *stream, uint32_t error);
/* Call it when `size` bytes of on_data are processed: the peer may then send `size` bytes more. */
void hps_http2_consume(struct hps_http2_stream *stream, size_t size);

void *hps_http2_user(const struct hps_http2_stream *stream);
void hps_http2_set_user(struct hps_http2_stream *stream, void *user);
/* Body bytes of the stream that are not yet in the kernel. */
size_t hps_http2_stream_queued(const struct hps_http2_stream *stream);
/* Whether the flow-control window of this stream is closed. After it opens, this stays true until
 * the connection next writes. */
bool hps_http2_stream_limited(const struct hps_http2_stream *stream);
/* Body bytes of the stream that were ever put into frames. */
uint64_t hps_http2_stream_framed(const struct hps_http2_stream *stream);

#endif
