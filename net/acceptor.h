/* SPDX-License-Identifier: Apache-2.0
 *
 * Accepts connections on any number of listening sockets, within the limits of net/peers.h. Belongs
 * to the thread of its loop; the counters may be read on any thread.
 */
#ifndef HPS_NET_ACCEPTOR_H
#define HPS_NET_ACCEPTOR_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "net/conn.h"
#include "net/loop.h"
#include "net/peers.h"

struct hps_acceptor;

struct hps_acceptor_options {
    struct hps_peers_limits limits;          /* over all listeners */
    const struct hps_peers_metrics *metrics; /* copied; NULL: none */
    /* A new connection with its slot. The callee owns it and may hand it to another thread (it is
     * not attached). The callee may stop the acceptor, but not free it. */
    void (*on_accept)(void *ctx, struct hps_conn *conn, unsigned cookie);
    void *ctx;
};

hps_status hps_acceptor_new(struct hps_loop *loop, const struct hps_acceptor_options *options,
                            struct hps_acceptor **out_acceptor, struct hps_error *err)
    HPS_MUST_CHECK;
/* Accepts from `listen_fd`, which is taken, also on failure. Its connections get `tls` (NULL:
 * plain; referenced), and on_accept gets `cookie` with each. `unlink_file`: stopping removes the
 * file of a Unix socket. Do not set it for inherited sockets. */
hps_status hps_acceptor_add(struct hps_acceptor *acceptor, int listen_fd, struct hps_tls *tls,
                            unsigned cookie, bool unlink_file, struct hps_error *err)
    HPS_MUST_CHECK;
/* For connections that are accepted from now on. */
void hps_acceptor_limits_set(struct hps_acceptor *acceptor, const struct hps_peers_limits *limits);
/* Closes the listening sockets; connections stay open. Idempotent. */
void hps_acceptor_stop(struct hps_acceptor *acceptor);
/* Stops first if needed. Connections stay valid. NULL has no effect. */
void hps_acceptor_free(struct hps_acceptor *acceptor);

unsigned hps_acceptor_connections(struct hps_acceptor *acceptor); /* open now; any thread */
uint64_t hps_acceptor_refused(struct hps_acceptor *acceptor);     /* so far; any thread */

#endif
