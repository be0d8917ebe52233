/* SPDX-License-Identifier: Apache-2.0
 *
 * A connection: a non-blocking byte stream over TCP or a Unix socket, with or without TLS. Servers
 * create connections from accepted sockets, clients with hps_conn_connect. A connection may be
 * created on one thread and attached to a loop on another. Once it is attached, only the thread of
 * that loop may use it.
 *
 * Order of calls: new or connect; attach; handshake until it no longer returns AGAIN; read, writev
 * and want; free.
 */
#ifndef HPS_NET_CONN_H
#define HPS_NET_CONN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "base/status.h"
#include "net/loop.h"

struct hps_conn;
struct hps_place; /* net/places.h */
struct hps_tls;   /* net/tls.h */

/* Creates the server's end of an accepted socket. The connection owns `fd` from now on, also on
 * failure. It takes a reference to `tls` (NULL: no TLS). */
hps_status hps_conn_new(int fd, struct hps_tls *tls, struct hps_conn **out_conn,
                        struct hps_error *err) HPS_MUST_CHECK;
/* Starts to connect to "host:port", "[v6]:port" or "unix:PATH". Blocks while it resolves a host
 * name. If a name has several addresses and one refuses the connection, the next one is tried. If
 * all refuse it immediately, this call fails, usually with UNAVAILABLE. If they refuse it later,
 * hps_conn_handshake fails. INVALID: `address` is malformed. */
hps_status hps_conn_connect(const char *address, struct hps_tls *tls, struct hps_conn **out_conn,
                            struct hps_error *err) HPS_MUST_CHECK;
/* Closes the socket. TLS sends close_notify if that does not block. May be called within on_ready.
 * NULL has no effect. */
void hps_conn_free(struct hps_conn *conn);

/* Attaches the connection to `loop`. The loop then calls on_ready(ctx, events) on its thread when
 * the connection may be ready for a wanted event. During the handshake, the connection itself
 * selects the wanted events. After the handshake, hps_conn_want sets them. Spurious calls are
 * possible.
 * If the handshake does not finish within `handshake_timeout_us` (0: no limit), on_ready is called
 * and hps_conn_handshake returns DEADLINE. */
hps_status hps_conn_attach(struct hps_conn *conn, struct hps_loop *loop,
                           uint64_t handshake_timeout_us,
                           void (*on_ready)(void *ctx, unsigned events), void *ctx) HPS_MUST_CHECK;

/* Continues the connect and the TLS handshake. OK: both are finished; later calls return OK too.
 * For an accepted connection without TLS, the first call returns OK. AGAIN: call again from
 * on_ready. Every other status ends the connection, with the peer and the reason in `err`:
 * UNAVAILABLE, DEADLINE, UNAUTHENTICATED (a certificate is missing or rejected), CLOSED, EXHAUSTED
 * or NO_MEMORY. */
hps_status hps_conn_handshake(struct hps_conn *conn, struct hps_error *err) HPS_MUST_CHECK;

/* Sets the events for which on_ready is called: HPS_LOOP_READ, HPS_LOOP_WRITE, both, or 0 for none.
 * Call it only after the handshake. Cheap if nothing changes. With TLS, on_ready is also called
 * while decrypted bytes are buffered. If TLS must write before it can read, the connection waits
 * until the socket is writable, and vice versa. */
hps_status hps_conn_want(struct hps_conn *conn, unsigned events) HPS_MUST_CHECK;

/* Until the next hps_conn_want, on_ready is not called for `events`. For a connection that is
 * queued for them already, so that the loop need not look at it in each turn. No effect before the
 * handshake is finished. */
void hps_conn_rest(struct hps_conn *conn, unsigned events);

/* Reads up to `capacity` > 0 bytes. OK: *out_size > 0. AGAIN: no byte is available; wait for
 * HPS_LOOP_READ. CLOSED: the peer has sent all its bytes and closed the stream. IO: the connection
 * was reset, or its TLS stream was truncated. */
hps_status hps_conn_read(struct hps_conn *conn, void *data, size_t capacity, size_t *out_size)
    HPS_MUST_CHECK;
/* Like hps_conn_read, into several buffers in order. With TLS, only the first buffer is filled. */
hps_status hps_conn_readv(struct hps_conn *conn, const struct iovec *iov, int n_iov,
                          size_t *out_size) HPS_MUST_CHECK;
/* Writes bytes of `iov`, which must contain at least one byte. OK: the kernel has accepted the
 * first *out_size > 0 bytes, possibly not all. AGAIN: the kernel has accepted none; wait for
 * HPS_LOOP_WRITE. After OK and after AGAIN, the next call must begin with the bytes that the kernel
 * has not accepted. These bytes may be at another address, and further bytes may follow them.
 * CLOSED: the peer has disconnected. IO: the connection is broken. Never raises SIGPIPE. */
hps_status hps_conn_writev(struct hps_conn *conn, const struct iovec *iov, int n_iov,
                           size_t *out_size) HPS_MUST_CHECK;
/* Half-close: the peer reads an end of stream. This side can still read. Best effort, never
 * blocks. */
void hps_conn_shutdown_write(struct hps_conn *conn);

bool hps_conn_is_tls(const struct hps_conn *conn);
bool hps_conn_is_unix(const struct hps_conn *conn);
/* Whether a listener on a loopback address accepted the connection. Its acceptor sets this before
 * it passes the connection on. */
bool hps_conn_is_loopback(const struct hps_conn *conn);
void hps_conn_loopback_set(struct hps_conn *conn, bool loopback);
/* The peer of an accepted connection: "127.0.0.1:40112", "[::1]:40112" or
 * "unix:pid=12,uid=1000,gid=1000". For an outgoing connection, the `address` given to
 * hps_conn_connect. */
const char *hps_conn_peer(const struct hps_conn *conn);
/* The i-th name of the peer's certificate (hps_tls_session_name). NULL: `i` is past the last name,
 * or the peer has no certificate. */
const char *hps_conn_certificate_name(const struct hps_conn *conn, unsigned i);
/* Calls hps_tls_session_recheck. Returns OK if the connection does not use TLS. */
hps_status hps_conn_recheck(const struct hps_conn *conn, struct hps_error *err) HPS_MUST_CHECK;
/* The user whose process opened the peer's end of a Unix socket, as the kernel reports it. False:
 * not a Unix socket. */
bool hps_conn_peer_uid(const struct hps_conn *conn, uid_t *out_uid);
/* The groups of the process that opened the peer's end of a Unix socket, at the time it connected.
 * Connections over TCP have no groups: *out_n is 0.
 *
 * owner   *out_groups: the caller, hps_free
 * error   NO_MEMORY; IO: the kernel cannot report the groups (before Linux 4.13)
 */
hps_status hps_conn_peer_groups(const struct hps_conn *conn, gid_t **out_groups, size_t *out_n)
    HPS_MUST_CHECK;
/* The group that owns the socket file of an accepted Unix connection (hps_sock_file_group). False:
 * not a Unix socket, the socket has no file, or the file has been removed. */
bool hps_conn_socket_group(const struct hps_conn *conn, gid_t *out_group);
/* The client number (hps_sock_client) of an accepted connection. */
uint64_t hps_conn_client(const struct hps_conn *conn);
/* Whether the peer is known to have closed its socket, so that it reads no more. With TCP this is
 * known only after this side has written bytes. */
bool hps_conn_is_gone(const struct hps_conn *conn);
/* Whether the peer has sent at least one byte. Bytes of a TLS handshake count. */
bool hps_conn_received(const struct hps_conn *conn);

/* Sets the place of the connection (net/places.h). hps_conn_free frees the place, unless
 * hps_conn_place_take was called before. */
void hps_conn_place_give(struct hps_conn *conn, struct hps_place *place);
/* Returns the place, which the connection still owns. NULL: the connection has no place. */
struct hps_place *hps_conn_place(const struct hps_conn *conn);
/* Returns the place and makes the caller its owner. The caller frees the place when the connection
 * has ended. NULL: the connection had no place. */
struct hps_place *hps_conn_place_take(struct hps_conn *conn);

#endif
