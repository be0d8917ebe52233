/* SPDX-License-Identifier: Apache-2.0
 *
 * Accepts connections on any number of listening sockets, within the limits of net/places.h. Only
 * the thread of an acceptor's loop may use the acceptor. The counters at the end of this header may
 * be read on any thread.
 */
#ifndef HPS_NET_ACCEPTOR_H
#define HPS_NET_ACCEPTOR_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "net/conn.h"
#include "net/loop.h"
#include "net/places.h"

struct hps_acceptor;

struct hps_acceptor_options {
    struct hps_place_limits limits; /* for all listeners together */
    /* Counters of refused and displaced connections. Each may be NULL. */
    struct hps_metric *refused[HPS_PLACES_REFUSALS];
    struct hps_metric *displaced[HPS_PLACES_LOSSES];
    /* Called for each accepted connection, which already has its place (net/places.h). The callee
     * owns `conn`. It is not attached to a loop, so the callee may pass it to another thread. The
     * callee may stop the acceptor, but must not free it. `cookie`: see hps_acceptor_add. */
    void (*on_accept)(void *ctx, struct hps_conn *conn, unsigned cookie);
    void *ctx;
};

hps_status hps_acceptor_new(struct hps_loop *loop, const struct hps_acceptor_options *options,
                            struct hps_acceptor **out_acceptor, struct hps_error *err)
    HPS_MUST_CHECK;
/* Starts to accept connections on `listen_fd`. The acceptor owns `listen_fd` from now on, also on
 * failure. The accepted connections use TLS with `tls`, or no TLS if `tls` is NULL. The acceptor
 * takes a reference to `tls`. on_accept gets `cookie` for each connection of this socket.
 * If `unlink_file` is true, hps_acceptor_stop removes the file of this Unix socket. It must be
 * false for sockets that a service manager has opened. */
hps_status hps_acceptor_add(struct hps_acceptor *acceptor, int listen_fd, struct hps_tls *tls,
                            unsigned cookie, bool unlink_file, struct hps_error *err)
    HPS_MUST_CHECK;
/* Sets the limits for connections that are accepted from now on. */
void hps_acceptor_limits_set(struct hps_acceptor *acceptor, const struct hps_place_limits *limits);
/* Closes the listening sockets. Accepted connections stay open. Idempotent. */
void hps_acceptor_stop(struct hps_acceptor *acceptor);
/* Stops the acceptor if it still runs, then frees it. Connections and their places stay valid. NULL
 * has no effect. */
void hps_acceptor_free(struct hps_acceptor *acceptor);

unsigned hps_acceptor_connections(struct hps_acceptor *acceptor); /* open connections; any thread */

#endif
