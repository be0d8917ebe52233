/* SPDX-License-Identifier: Apache-2.0
 *
 * One connection to a Redis server: TCP or Unix socket, plain or TLS, bytes in and replies out.
 * Never blocks. Used by one thread at a time.
 */
#ifndef HPS_BACKENDS_REDIS_CLIENT_CONN_H
#define HPS_BACKENDS_REDIS_CLIENT_CONN_H

#include <sys/uio.h>

#include "backends/redis/client/codec.h"
#include "net/addr.h"

struct hps_redis_conn;
struct hps_tls; /* net/tls.h */

/* Start to connect to the next of the places of `addr` (hps_sock_connect_next); `tls` (NULL: plain)
 * is referenced. UNAVAILABLE when all that are left refuse at once. */
hps_status hps_redis_conn_open(const struct hps_addr *addr, struct hps_places *places,
                               struct hps_tls *tls, size_t reply_bytes_max,
                               struct hps_redis_conn **out_conn, struct hps_error *err)
    HPS_MUST_CHECK;
void hps_redis_conn_close(struct hps_redis_conn *conn); /* NULL is legal */

/* Finish connect and TLS. OK: done; AGAIN: poll; else over, with the reason in `err`. */
hps_status hps_redis_conn_handshake(struct hps_redis_conn *conn, struct hps_error *err)
    HPS_MUST_CHECK;
/* Write from the front of `iov`. OK: *out_size bytes are gone; AGAIN: none, poll; CLOSED or IO:
 * broken. After AGAIN call again with the same bytes. */
hps_status hps_redis_conn_write(struct hps_redis_conn *conn, const struct iovec *iov, int n_iov,
                                size_t *out_size) HPS_MUST_CHECK;
/* The next reply into `reply`, as hps_redis_reader_next; reads what is there. AGAIN: poll; CLOSED:
 * the connection is gone; else what came is no good; with the reason in `err`. */
hps_status hps_redis_conn_next(struct hps_redis_conn *conn, struct hps_redis_reply *reply,
                               struct hps_error *err) HPS_MUST_CHECK;

/* The peer has taken the connection; TLS may not have been agreed on yet. */
bool hps_redis_conn_reached(const struct hps_redis_conn *conn);
int hps_redis_conn_fd(const struct hps_redis_conn *conn);
/* What to poll for: POLLIN, and POLLOUT if something is to be written and did not fit. */
short hps_redis_conn_events(const struct hps_redis_conn *conn);
/* Fit for the next commands: nothing has come that nobody asked for, and, as far as that can be
 * told without asking, the peer has not hung up. */
bool hps_redis_conn_idle_ok(struct hps_redis_conn *conn);
uint64_t hps_redis_conn_bytes_received(const struct hps_redis_conn *conn);

#endif
