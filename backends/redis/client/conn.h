/* SPDX-License-Identifier: Apache-2.0
 *
 * One connection to a Redis server: TCP or Unix socket, plain or TLS. Bytes go in, replies come
 * out. Never blocks. Not thread-safe.
 */
#ifndef HPS_BACKENDS_REDIS_CLIENT_CONN_H
#define HPS_BACKENDS_REDIS_CLIENT_CONN_H

#include <sys/uio.h>

#include "backends/redis/client/codec.h"
#include "net/addr.h"

struct hps_redis_conn;
struct hps_tls; /* net/tls.h */

/* Start to connect to the next resolved address of `addr` (hps_sock_connect_next). Takes a
 * reference to `tls`; NULL: plain. UNAVAILABLE: all remaining addresses refuse at once. */
hps_status hps_redis_conn_open(const struct hps_addr *addr, struct hps_places *places,
                               struct hps_tls *tls, size_t reply_bytes_max,
                               struct hps_redis_conn **out_conn, struct hps_error *err)
    HPS_MUST_CHECK;
void hps_redis_conn_close(struct hps_redis_conn *conn); /* NULL: no effect */

/* Finish connecting and the TLS handshake. OK: done; AGAIN: poll; any other status: failed, with
 * the reason in `err`. */
hps_status hps_redis_conn_handshake(struct hps_redis_conn *conn, struct hps_error *err)
    HPS_MUST_CHECK;
/* Write from the start of `iov`. OK: *out_size bytes were written; AGAIN: none, poll and call again
 * with the same bytes; CLOSED or IO: the connection is broken. */
hps_status hps_redis_conn_write(struct hps_redis_conn *conn, const struct iovec *iov, int n_iov,
                                size_t *out_size) HPS_MUST_CHECK;
/* Decode the next reply, as hps_redis_reader_next; reads from the socket as needed. AGAIN: poll;
 * CLOSED: the connection is closed; any other error: the data is unusable. `err` has the reason. */
hps_status hps_redis_conn_next(struct hps_redis_conn *conn, struct hps_redis_reply *reply,
                               struct hps_error *err) HPS_MUST_CHECK;

/* True once the peer has accepted the connection; the TLS handshake may still be pending. */
bool hps_redis_conn_reached(const struct hps_redis_conn *conn);
int hps_redis_conn_fd(const struct hps_redis_conn *conn);
/* Events to poll for: POLLIN, and POLLOUT if a write is pending. */
short hps_redis_conn_events(const struct hps_redis_conn *conn);
/* True if the connection can be reused: no unexpected bytes have arrived, and the peer has not hung
 * up. With TLS a hang-up is not detected here. */
bool hps_redis_conn_idle_ok(struct hps_redis_conn *conn);
uint64_t hps_redis_conn_bytes_received(const struct hps_redis_conn *conn);

#endif
