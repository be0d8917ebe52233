/* SPDX-License-Identifier: Apache-2.0
 *
 * An HTTP/1.1 connection of the gRPC server, as an implementation of net/http.h. Requests are
 * handled one at a time: the next one is parsed when the kernel has the response. A body has a
 * Content-Length or is chunked. Its bytes are read to where the call wants them (on_room). Response
 * bytes go from their blocks to the kernel.
 *
 * A request that could be read in two ways is rejected and its connection closed: both kinds of
 * length, two lengths, two Authorization fields, folded lines, line ends other than CR LF. A head
 * may have 16 KiB and 64 fields. A response before the end of its request closes the connection
 * too. The rest of the request is then dropped, so that the client can read the response.
 * Everything runs on the thread of the connection's loop.
 */
#ifndef HPS_NET_HTTP1_SERVER_H
#define HPS_NET_HTTP1_SERVER_H

#include <stdatomic.h>

#include "net/http.h"
#include "net/loop.h"

/* Takes `conn`, also on failure; its handshake may be in progress. `queued` counts the body bytes
 * that wait to be sent on all connections that share it. It must outlive them.
 *
 * error   NO_MEMORY
 */
hps_status hps_http1_serve(struct hps_loop *loop, atomic_size_t *queued, struct hps_conn *conn,
                           uint64_t handshake_timeout_us, const struct hps_http_events *events,
                           void *ctx, struct hps_http **out_http, struct hps_error *err)
    HPS_MUST_CHECK;

#endif
