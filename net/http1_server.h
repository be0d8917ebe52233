/* SPDX-License-Identifier: Apache-2.0
 *
 * One HTTP/1.1 connection of the server of calls, as net/http.h has it. Requests come one after the
 * other, and the next one is looked at when the answer is with the kernel; bodies come with a
 * Content-Length or in chunks, and go from the socket to where their call wants them. Bytes of an
 * answer go from their blocks to the kernel.
 *
 * What could be read in two ways is refused, and the connection closed: both lengths, one of them
 * or Authorization twice, folded lines, line ends that are no CR LF. A head has 16 KiB and 64
 * fields at most. An answer that comes before the request is whole ends the connection, too: the
 * rest is not read, but for what it takes that the client gets the answer. Everything runs on the
 * thread of the connection's loop.
 */
#ifndef HPS_NET_HTTP1_SERVER_H
#define HPS_NET_HTTP1_SERVER_H

#include <stdatomic.h>

#include "net/http.h"
#include "net/loop.h"

/* takes `conn` (also on failure), which may still be shaking hands. `queued` counts the bytes of
 * bodies that wait to be sent, of all connections that have it; it must stay as long as they.
 *
 * error   NO_MEMORY
 */
hps_status hps_http1_serve(struct hps_loop *loop, atomic_size_t *queued, struct hps_conn *conn,
                           uint64_t handshake_timeout_us, const struct hps_http_events *events,
                           void *ctx, struct hps_http **out_http, struct hps_error *err)
    HPS_MUST_CHECK;

#endif
