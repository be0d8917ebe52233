/* SPDX-License-Identifier: Apache-2.0
 *
 * One connection to a Redis server: TCP or Unix socket, plain or TLS. The caller writes encoded
 * commands and reads decoded replies. Never blocks. Not thread-safe.
 */
#ifndef HPS_BACKENDS_REDIS_CLIENT_CONN_H
#define HPS_BACKENDS_REDIS_CLIENT_CONN_H

#include <sys/uio.h>

#include "backends/redis/client/codec.h"
#include "net/addr.h"

struct hps_redis_conn;
struct hps_tls; /* net/tls.h */

/* Start to connect to the next resolved address of `addr` (hps_sock_connect_next; `places` keeps
 * the progress). Takes a reference to `tls`; NULL: no TLS. reply_bytes_max: limit of undecoded
 * bytes. UNAVAILABLE: all remaining addresses refuse the connection immediately. */
hps_status hps_redis_conn_open(const struct hps_addr *addr, struct hps_places *places,
                               struct hps_tls *tls, size_t reply_bytes_max,
                               struct hps_redis_conn **out_conn, struct hps_error *err)
    HPS_MUST_CHECK;
void hps_redis_conn_close(struct hps_redis_conn *conn); /* NULL: no effect */

/* Continue to connect, then do the TLS handshake. OK: both are complete. AGAIN: poll for
 * hps_redis_conn_events, then call again. Any other status: failed; `err` has the reason. */
hps_status hps_redis_conn_handshake(struct hps_redis_conn *conn, struct hps_error *err)
    HPS_MUST_CHECK;
/* Write as many bytes of `iov` as the socket accepts. OK: *out_size bytes were written. AGAIN: none
 * were written; poll, then call again with the same bytes. CLOSED, IO: the connection is broken. */
hps_status hps_redis_conn_write(struct hps_redis_conn *conn, const struct iovec *iov, int n_iov,
                                size_t *out_size) HPS_MUST_CHECK;
/* Decode the next reply like hps_redis_reader_next; reads from the socket as needed. AGAIN: poll,
 * then call again. CLOSED: the connection is closed. Any other error: the received data is
 * unusable. `err` has the reason. */
hps_status hps_redis_conn_next(struct hps_redis_conn *conn, struct hps_redis_reply *reply,
                               struct hps_error *err) HPS_MUST_CHECK;

/* Whether the peer has accepted the connection. The TLS handshake may still be pending. */
bool hps_redis_conn_reached(const struct hps_redis_conn *conn);
int hps_redis_conn_fd(const struct hps_redis_conn *conn);
/* Events to poll for: POLLIN, and POLLOUT if a write is pending. */
short hps_redis_conn_events(const struct hps_redis_conn *conn);
/* Whether the idle connection can be reused: no unexpected bytes have arrived, and the peer has not
 * closed it. With TLS this call does not detect that the peer has closed it. */
bool hps_redis_conn_idle_ok(struct hps_redis_conn *conn);
uint64_t hps_redis_conn_bytes_received(const struct hps_redis_conn *conn);

#endif
