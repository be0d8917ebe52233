/* SPDX-License-Identifier: Apache-2.0
 *
 * An HTTP/1.1 connection of the gRPC server, as an implementation of net/http.h. Requests are
 * handled one at a time: the next one is parsed when the kernel has the whole response. A request
 * body has a Content-Length or is chunked, and is read into the buffer that on_buffer returns.
 * Response bytes are written from their blocks without a copy in user space.
 *
 * An ambiguous request is rejected, and its connection is closed. Examples are a Content-Length in
 * a chunked request, two Content-Lengths, two Authorization fields, folded lines, and line ends
 * other than CR LF. A head may have at most 16 KiB and 64 fields. If the response is sent before
 * the whole request has arrived, the connection is closed after the response. Before closing, the
 * server reads and drops the rest of the request, so that the client can read the response.
 * Everything runs on the thread of the connection's loop.
 */
#ifndef HPS_NET_HTTP1_SERVER_H
#define HPS_NET_HTTP1_SERVER_H

#include <stdatomic.h>

#include "net/http.h"
#include "net/loop.h"

/* Serves `conn`, whose handshake may be in progress. Takes ownership of `conn`, also on failure.
 * `queued` counts the body bytes that wait to be sent, over all connections that were given the
 * same counter. The counter must outlive these connections.
 *
 * error   NO_MEMORY
 */
hps_status hps_http1_serve(struct hps_loop *loop, atomic_size_t *queued, struct hps_conn *conn,
                           uint64_t handshake_timeout_us, const struct hps_http_events *events,
                           void *ctx, struct hps_http **out_http, struct hps_error *err)
    HPS_MUST_CHECK;

#endif
