/* SPDX-License-Identifier: Apache-2.0
 *
 * One non-blocking byte stream over TCP or a Unix socket, plain or TLS, accepted or connected. It
 * may be created on one thread and attached on another. From then on it belongs to the thread of
 * its loop.
 *
 * Life: new/connect -> attach -> handshake until it is not AGAIN -> read, writev, want -> free.
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
struct hps_seat; /* net/peers.h */
struct hps_tls;  /* net/tls.h */

/* The server's end of an accepted socket. Takes `fd`, also on failure. `tls` (NULL: plain) is
 * referenced. */
hps_status hps_conn_new(int fd, struct hps_tls *tls, struct hps_conn **out_conn,
                        struct hps_error *err) HPS_MUST_CHECK;
/* Starts to connect to "host:port", "[v6]:port" or "unix:PATH". Blocks while it resolves a host
 * name. If a name has several addresses and one refuses, the next one is tried. An error here means
 * that all refused at once, mostly UNAVAILABLE; later refusals come from hps_conn_handshake.
 * INVALID: the address. */
hps_status hps_conn_connect(const char *address, struct hps_tls *tls, struct hps_conn **out_conn,
                            struct hps_error *err) HPS_MUST_CHECK;
/* Closes the socket. TLS sends close_notify if that does not block. May be called within on_ready.
 * NULL has no effect. */
void hps_conn_free(struct hps_conn *conn);

/* Attaches the connection to `loop`. on_ready(ctx, events) is then called on its thread when the
 * wanted operation may proceed; spurious calls are possible. At first the events of the handshake
 * are wanted. If it does not finish within `handshake_timeout_us` (0: no limit), on_ready is called
 * and hps_conn_handshake returns DEADLINE. */
hps_status hps_conn_attach(struct hps_conn *conn, struct hps_loop *loop,
                           uint64_t handshake_timeout_us,
                           void (*on_ready)(void *ctx, unsigned events), void *ctx) HPS_MUST_CHECK;

/* Continues the connect and the TLS handshake. OK: finished; later calls return OK too. A plain
 * accepted connection needs no handshake. AGAIN: call again from on_ready. Every other status ends
 * the connection, with the peer and the reason in `err`: UNAVAILABLE, DEADLINE, UNAUTHENTICATED
 * (certificates), CLOSED, EXHAUSTED or NO_MEMORY. */
hps_status hps_conn_handshake(struct hps_conn *conn, struct hps_error *err) HPS_MUST_CHECK;

/* Sets the events for which on_ready is called: HPS_LOOP_READ, HPS_LOOP_WRITE, both, or 0 for none.
 * Handles what TLS needs below: bytes that are already decrypted, and reads that must write. Cheap
 * if nothing changes. Only after the handshake. */
hps_status hps_conn_want(struct hps_conn *conn, unsigned events) HPS_MUST_CHECK;

/* Reads up to `capacity` > 0 bytes. OK: *out_size > 0. AGAIN: want HPS_LOOP_READ. CLOSED: the peer
 * ended its side properly. IO: broken (reset, or a truncated TLS stream). */
hps_status hps_conn_read(struct hps_conn *conn, void *data, size_t capacity, size_t *out_size)
    HPS_MUST_CHECK;
/* The same into several pieces, in order. TLS fills only the first one. */
hps_status hps_conn_readv(struct hps_conn *conn, const struct iovec *iov, int n_iov,
                          size_t *out_size) HPS_MUST_CHECK;
/* Writes from the front of `iov`, which must not be all empty. OK: *out_size > 0 bytes are in the
 * kernel, possibly fewer than given. AGAIN: none is; want HPS_LOOP_WRITE. In both cases the next
 * call must begin with the bytes that were not written. They may be at another address, and more
 * may follow. CLOSED: the peer has disconnected. IO: broken. Never raises SIGPIPE. */
hps_status hps_conn_writev(struct hps_conn *conn, const struct iovec *iov, int n_iov,
                           size_t *out_size) HPS_MUST_CHECK;
/* Half-close: the peer reads an end of stream, and reading is still possible. Best effort, never
 * blocks. */
void hps_conn_shutdown_write(struct hps_conn *conn);

bool hps_conn_is_tls(const struct hps_conn *conn);
bool hps_conn_is_unix(const struct hps_conn *conn);
/* "127.0.0.1:40112", "[::1]:40112", "unix:pid=12,uid=1000,gid=1000"; of hps_conn_connect the
 * address. */
const char *hps_conn_peer(const struct hps_conn *conn);
/* hps_tls_session_name of the peer's certificate. NULL: `i` is past the last name, or no
 * certificate. */
const char *hps_conn_certificate_name(const struct hps_conn *conn, unsigned i);
/* hps_tls_session_recheck; OK if the connection is not TLS. */
hps_status hps_conn_recheck(const struct hps_conn *conn, struct hps_error *err) HPS_MUST_CHECK;
/* The user that opened the Unix socket, from the kernel. False: not a Unix socket. */
bool hps_conn_peer_uid(const struct hps_conn *conn, uid_t *out_uid);
/* The groups of the process that opened the Unix socket, at the time it connected. *out_n is 0 if
 * it is not a Unix socket.
 *
 * owner   *out_groups: the caller, hps_free
 * error   NO_MEMORY, IO
 */
hps_status hps_conn_peer_groups(const struct hps_conn *conn, gid_t **out_groups, size_t *out_n)
    HPS_MUST_CHECK;
/* hps_sock_file_group; false also if it is not a Unix socket. */
bool hps_conn_socket_group(const struct hps_conn *conn, gid_t *out_group);
uint64_t hps_conn_client(const struct hps_conn *conn); /* hps_sock_client, if accepted */
/* Whether it is known that the peer reads no more: it has closed its socket. With TCP this is known
 * only after something was written. */
bool hps_conn_is_gone(const struct hps_conn *conn);
/* Whether any byte has come from the peer, also within a TLS handshake. */
bool hps_conn_heard(const struct hps_conn *conn);

/* Gives the connection its slot, which is freed with it unless it is taken back. */
void hps_conn_seat_give(struct hps_conn *conn, struct hps_seat *seat);
struct hps_seat *hps_conn_seat(const struct hps_conn *conn); /* NULL: none, also below */
/* The caller frees the slot when the connection has ended. */
struct hps_seat *hps_conn_seat_take(struct hps_conn *conn);

#endif
