/* SPDX-License-Identifier: Apache-2.0
 *
 * An HTTP/2 connection of a server or a client, as an implementation of net/http.h: the nghttp2
 * session, its socket and the queued bytes. Bytes of blocks go to the kernel without a copy in user
 * space. Everything runs on the thread of the connection's loop.
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
                         const struct hps_http_events *events, void *ctx,
                         struct hps_http **out_http, struct hps_error *err) HPS_MUST_CHECK;
/* Client: whether hps_http2_request may open a stream. False if the connection is ending, the peer
 * has sent GOAWAY, or no stream id is left. */
bool hps_http2_can_request(const struct hps_http *http);
/* Client: opens a stream and sends the head of the request. Then queue the body, if there is one,
 * and call hps_http_finish.
 *
 * error   UNAVAILABLE: hps_http2_can_request is false; NO_MEMORY
 */
hps_status hps_http2_request(struct hps_http *http, const struct hps_http_field *fields,
                             unsigned n_fields, void *user, struct hps_http_stream **out_stream)
    HPS_MUST_CHECK;

#endif
