/* SPDX-License-Identifier: Apache-2.0
 *
 * An HTTP/2 connection, of a server or a client: the session, its socket and the queued bytes.
 * Bytes of blocks go to the kernel without a copy in user space. Everything runs on the thread of
 * the connection's loop.
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

/* All but on_closed may be NULL. A callback may call any function here, also hps_http2_free. */
struct hps_http2_events {
    void (*on_ready)(void *ctx); /* the handshake is finished; requests are possible */
    void (*on_stream)(void *ctx, struct hps_http2_stream *stream); /* server: the peer opened one */
    void (*on_header)(void *ctx, struct hps_http2_stream *stream, const char *name,
                      size_t name_size, const char *value,
                      size_t value_size);                           /* both NUL-terminated */
    void (*on_headers)(void *ctx, struct hps_http2_stream *stream); /* the block is complete */
    /* Only hps_http2_consume reopens the flow-control window. */
    void (*on_data)(void *ctx, struct hps_http2_stream *stream, const uint8_t *data, size_t size);
    /* A buffer for up to `size` bytes that come next. If bytes come, on_data is called with them in
     * that buffer before anything else happens on the connection. NULL result: no buffer. */
    uint8_t *(*on_room)(void *ctx, struct hps_http2_stream *stream, size_t size, size_t *out_room);
    void (*on_end)(void *ctx, struct hps_http2_stream *stream); /* the peer has ended its side */
    /* After hps_http2_finish, when the last byte is framed: call hps_http2_trailers now. If this is
     * NULL, the stream ends without trailers. */
    void (*on_trailers)(void *ctx, struct hps_http2_stream *stream);
    void (*on_sent)(void *ctx, struct hps_http2_stream *stream); /* its queued bytes became fewer */
    void (*on_released)(
        void *ctx); /* hps_http2_queued has decreased; streams may have been closed */
    void (*on_stream_closed)(void *ctx, struct hps_http2_stream *stream, uint32_t error);
    void (*on_goaway)(void *ctx); /* the peer refuses new streams on this connection */
    /* The connection has ended, its streams before it; it is freed after this. Not called after
     * hps_http2_free. why: INVALID: the peer violated the protocol; NO_MEMORY; CLOSED: either side
     * closed it; INTERNAL; else the status of hps_conn_handshake. */
    void (*on_closed)(void *ctx, const struct hps_error *why);
};

struct hps_http2_options {
    bool server;
    uint32_t streams_max; /* that the peer may open */
    uint32_t window_bytes;
    uint32_t connection_window_bytes;
    uint32_t frame_bytes_max; /* that the peer may send */
    /* Per header block: the sum of name + value + 32 of all fields, and the number of fields. A
     * request with more gets too_large on a server, which resets one with more than 16 times as
     * much. A client resets the stream. */
    size_t header_bytes_max;
    unsigned header_fields_max;
    uint64_t handshake_timeout_us;
};

/* Send buffers that the connections of a loop share, and the sum of their queued bytes. */
struct hps_http2_shared;
struct hps_http2_shared *hps_http2_shared_new(struct hps_loop *loop); /* NULL: no memory */
void hps_http2_shared_free(struct hps_http2_shared *shared); /* no connection may be left */
size_t hps_http2_shared_queued(const struct hps_http2_shared *shared); /* any thread */

/* Takes `conn`, also on failure; its connect or handshake may be in progress. NO_MEMORY. */
hps_status hps_http2_new(struct hps_http2_shared *shared, struct hps_conn *conn,
                         const struct hps_http2_options *options,
                         const struct hps_http2_events *events, void *ctx,
                         struct hps_http2 **out_h2, struct hps_error *err) HPS_MUST_CHECK;
/* The same for the gRPC server, as a connection of net/http.h. options->server must be set. */
hps_status hps_http2_serve(struct hps_http2_shared *shared, struct hps_conn *conn,
                           const struct hps_http2_options *options,
                           const struct hps_http_events *events, void *ctx,
                           struct hps_http **out_http, struct hps_error *err) HPS_MUST_CHECK;
/* Closes now: calls on_stream_closed for every stream, but not on_closed. */
void hps_http2_free(struct hps_http2 *h2);
/* Sends `error` (GOAWAY) if the peer still reads, then closes. on_closed follows later. */
void hps_http2_abort(struct hps_http2 *h2, uint32_t error, const char *why);
/* After on_ready. A server announces the end and refuses new streams after a round trip, or from
 * hps_http2_drain_now on. Server and client close the connection when the last stream has ended. */
void hps_http2_drain(struct hps_http2 *h2);
void hps_http2_drain_now(struct hps_http2 *h2);
void hps_http2_ping(struct hps_http2 *h2);

const struct hps_conn *hps_http2_conn(const struct hps_http2 *h2);
bool hps_http2_is_ready(const struct hps_http2 *h2);
bool hps_http2_peer_spoke(const struct hps_http2 *h2); /* its SETTINGS came */
bool hps_http2_heard(const struct hps_http2 *h2);      /* hps_conn_heard; until on_closed returns */
bool hps_http2_can_request(const struct hps_http2 *h2); /* client: no GOAWAY came, ids are left */
unsigned hps_http2_streams(const struct hps_http2 *h2);
size_t hps_http2_queued(const struct hps_http2 *h2);    /* message bytes not yet in the kernel */
uint64_t hps_http2_written(const struct hps_http2 *h2); /* bytes ever written */
/* The part of hps_http2_written that belongs to bodies. An estimate within the batch that is being
 * written. Never decreases. */
uint64_t hps_http2_written_bodies(const struct hps_http2 *h2);
bool hps_http2_blocked(const struct hps_http2 *h2); /* the socket accepts no more bytes */
/* Whether the socket accepts no more bytes or the window of the connection is closed. Stays true
 * after the window opens until the next turn of writing. */
bool hps_http2_limited(const struct hps_http2 *h2);
uint64_t hps_http2_read_us(const struct hps_http2 *h2); /* when bytes last came */

/* ---- streams --------------------------------------------------------------------------------- */

/* Client: opens a stream. If the request has a body, send it next; then call hps_http2_finish.
 *
 * error   UNAVAILABLE: no stream may be opened (hps_http2_can_request); NO_MEMORY
 */
hps_status hps_http2_request(struct hps_http2 *h2, const struct hps_http_field *fields,
                             unsigned n_fields, void *user, struct hps_http2_stream **out_stream)
    HPS_MUST_CHECK;
/* Server: sends the header block of the response. `end`: there is no body. CLOSED, NO_MEMORY. */
hps_status hps_http2_respond(struct hps_http2_stream *stream, const struct hps_http_field *fields,
                             unsigned n_fields, bool end) HPS_MUST_CHECK;
/* Queues `prefix` (1 to 16 bytes, copied) and the slices. Takes the references of the slices, also
 * on failure. CLOSED, NO_MEMORY. */
hps_status hps_http2_send(struct hps_http2_stream *stream, const void *prefix, size_t prefix_size,
                          const struct hps_slice *slices, unsigned n_slices) HPS_MUST_CHECK;
/* Queues `prefix` and `data`, both copied. CLOSED, NO_MEMORY. */
hps_status hps_http2_send_copy(struct hps_http2_stream *stream, const void *prefix,
                               size_t prefix_size, const void *data, size_t size) HPS_MUST_CHECK;
void hps_http2_finish(struct hps_http2_stream *stream); /* the body is complete */
hps_status hps_http2_trailers(struct hps_http2_stream *stream, const struct hps_http_field *fields,
                              unsigned n_fields) HPS_MUST_CHECK;
void hps_http2_reset(struct hps_http2_stream *stream, uint32_t error);
void hps_http2_consume(struct hps_http2_stream *stream, size_t size);

void *hps_http2_user(const struct hps_http2_stream *stream);
void hps_http2_set_user(struct hps_http2_stream *stream, void *user);
size_t hps_http2_stream_queued(const struct hps_http2_stream *stream);
/* Whether the window of this stream is closed. Stays true after it opens until the next turn of
 * writing. */
bool hps_http2_stream_limited(const struct hps_http2_stream *stream);
uint64_t hps_http2_stream_framed(
    const struct hps_http2_stream *stream); /* body bytes ever framed */

#endif
