/* SPDX-License-Identifier: Apache-2.0
 *
 * One HTTP/2 connection, either role: the session, its socket and what waits to be sent. Bytes of
 * blocks go from where they are to the kernel, never through a copy in user space.
 * Everything runs on the thread of the connection's loop.
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
struct hps_http2_stream; /* freed right after on_stream_closed */

/* All but on_closed may be NULL. A callback may call anything here, hps_http2_free included. */
struct hps_http2_events {
    void (*on_ready)(void *ctx); /* the handshake is over; requests may be made */
    void (*on_stream)(void *ctx, struct hps_http2_stream *stream); /* server: the peer opened one */
    void (*on_header)(void *ctx, struct hps_http2_stream *stream, const char *name,
                      size_t name_size, const char *value,
                      size_t value_size);                           /* both NUL-terminated */
    void (*on_headers)(void *ctx, struct hps_http2_stream *stream); /* the block is complete */
    /* Window is given back only by hps_http2_consume. */
    void (*on_data)(void *ctx, struct hps_http2_stream *stream, const uint8_t *data, size_t size);
    /* Where up to `size` bytes that come next may be put; on_data is then called with them there,
     * before anything else happens on the connection. NULL: nowhere. */
    uint8_t *(*on_room)(void *ctx, struct hps_http2_stream *stream, size_t size, size_t *out_room);
    void (*on_end)(void *ctx, struct hps_http2_stream *stream); /* the peer sends no more */
    /* After hps_http2_finish, when the last byte is framed: answer with hps_http2_trailers now.
     * Where this is NULL the stream just ends. */
    void (*on_trailers)(void *ctx, struct hps_http2_stream *stream);
    void (*on_sent)(void *ctx, struct hps_http2_stream *stream); /* its queued bytes became fewer */
    void (*on_released)(
        void *ctx); /* hps_http2_queued became less; streams may be gone meanwhile */
    void (*on_stream_closed)(void *ctx, struct hps_http2_stream *stream, uint32_t error);
    void (*on_goaway)(void *ctx); /* no new streams on this connection */
    /* Gone, streams first; the connection is freed after this. Not called after hps_http2_free.
     * why: INVALID where the peer broke the rules, NO_MEMORY, CLOSED where it, or we, ended it;
     * else what hps_conn_handshake says. */
    void (*on_closed)(void *ctx, const struct hps_error *why);
};

struct hps_http2_options {
    bool server;
    uint32_t streams_max; /* that the peer may open */
    uint32_t window_bytes;
    uint32_t connection_window_bytes;
    uint32_t frame_bytes_max; /* that the peer may send */
    /* Names + values + 32 each, per block, and fields. A server says too_large of a request with
     * more, and resets one with 16 times as much; a client resets the stream. */
    size_t header_bytes_max;
    unsigned header_fields_max;
    uint64_t handshake_timeout_us;
};

/* Send buffers that the connections of one loop share, and what all of them hold. */
struct hps_http2_shared;
struct hps_http2_shared *hps_http2_shared_new(struct hps_loop *loop); /* NULL: no memory */
void hps_http2_shared_free(struct hps_http2_shared *shared); /* no connection may be left */
size_t hps_http2_shared_queued(const struct hps_http2_shared *shared); /* any thread */

/* takes `conn` (also on failure), which may still be connecting or shaking hands. */
hps_status hps_http2_new(struct hps_http2_shared *shared, struct hps_conn *conn,
                         const struct hps_http2_options *options,
                         const struct hps_http2_events *events, void *ctx,
                         struct hps_http2 **out_h2, struct hps_error *err) HPS_MUST_CHECK;
/* The server's side, for the server of calls: a connection as net/http.h has it.
 *
 * owner   as above; options->server is set
 */
hps_status hps_http2_serve(struct hps_http2_shared *shared, struct hps_conn *conn,
                           const struct hps_http2_options *options,
                           const struct hps_http_events *events, void *ctx,
                           struct hps_http **out_http, struct hps_error *err) HPS_MUST_CHECK;
/* Close now: on_stream_closed for every stream, but no on_closed. */
void hps_http2_free(struct hps_http2 *h2);
/* Tell the peer `error` (GOAWAY) as far as it still reads, then close; on_closed follows. */
void hps_http2_abort(struct hps_http2 *h2, uint32_t error, const char *why);
/* After on_ready. Server: announce the end, refuse streams after a round trip (or
 * hps_http2_drain_now), close when the last stream is done. Client: close when the last stream is
 * done. */
void hps_http2_drain(struct hps_http2 *h2);
void hps_http2_drain_now(struct hps_http2 *h2);
void hps_http2_ping(struct hps_http2 *h2);

const struct hps_conn *hps_http2_conn(const struct hps_http2 *h2);
bool hps_http2_is_ready(const struct hps_http2 *h2);
bool hps_http2_peer_spoke(const struct hps_http2 *h2); /* its SETTINGS came: it knows HTTP/2 */
bool hps_http2_heard(const struct hps_http2 *h2);      /* hps_conn_heard; until on_closed is over */
bool hps_http2_can_request(const struct hps_http2 *h2); /* client: no GOAWAY yet, ids left */
unsigned hps_http2_streams(const struct hps_http2 *h2);
size_t hps_http2_queued(const struct hps_http2 *h2); /* bytes of messages not yet in the kernel */
uint64_t hps_http2_written(const struct hps_http2 *h2); /* bytes ever written */
/* Of them, bytes of bodies, more or less what else is in the batch that is under way. Never less
 * than before. */
uint64_t hps_http2_written_bodies(const struct hps_http2 *h2);
bool hps_http2_blocked(const struct hps_http2 *h2); /* the socket takes no more */
/* It does not, or the peer takes no more bodies on the whole connection; or did not until it opened
 * its window, of which no use has been made as yet. */
bool hps_http2_limited(const struct hps_http2 *h2);
uint64_t hps_http2_read_us(const struct hps_http2 *h2); /* when bytes last came */

/* ---- streams --------------------------------------------------------------------------------- */

/* Client: open a stream. Send its body, if any, next, then hps_http2_finish. */
hps_status hps_http2_request(struct hps_http2 *h2, const struct hps_http_field *fields,
                             unsigned n_fields, void *user, struct hps_http2_stream **out_stream)
    HPS_MUST_CHECK;
/* Server: the header block of the answer; with `end` it is all of it. */
hps_status hps_http2_respond(struct hps_http2_stream *stream, const struct hps_http_field *fields,
                             unsigned n_fields, bool end) HPS_MUST_CHECK;
/* Queue `prefix` (at most 16 bytes, copied) and the slices, whose references are taken in any case.
 */
hps_status hps_http2_send(struct hps_http2_stream *stream, const void *prefix, size_t prefix_size,
                          const struct hps_slice *slices, unsigned n_slices) HPS_MUST_CHECK;
/* Queue `prefix` and `data`, both copied. */
hps_status hps_http2_send_copy(struct hps_http2_stream *stream, const void *prefix,
                               size_t prefix_size, const void *data, size_t size) HPS_MUST_CHECK;
void hps_http2_finish(struct hps_http2_stream *stream); /* nothing more will be queued */
hps_status hps_http2_trailers(struct hps_http2_stream *stream, const struct hps_http_field *fields,
                              unsigned n_fields) HPS_MUST_CHECK;
void hps_http2_reset(struct hps_http2_stream *stream, uint32_t error);
void hps_http2_consume(struct hps_http2_stream *stream, size_t size);

void *hps_http2_user(const struct hps_http2_stream *stream);
void hps_http2_set_user(struct hps_http2_stream *stream, void *user);
size_t hps_http2_stream_queued(const struct hps_http2_stream *stream);
/* The peer takes no more of this stream's body; or did not until a moment ago, as above. */
bool hps_http2_stream_limited(const struct hps_http2_stream *stream);
uint64_t hps_http2_stream_framed(
    const struct hps_http2_stream *stream); /* body bytes ever framed */

#endif
