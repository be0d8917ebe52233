/* SPDX-License-Identifier: Apache-2.0
 *
 * One non-blocking byte stream over TCP or a Unix socket, plain or TLS, accepted or made. It may be
 * made on one thread and attached on another; from then on it belongs to the thread of its loop.
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

/* The server's end of an accepted socket. takes `fd` (also on failure); `tls` (NULL: plain) is
 * referenced. */
hps_status hps_conn_new(int fd, struct hps_tls *tls, struct hps_conn **out_conn,
                        struct hps_error *err) HPS_MUST_CHECK;
/* Start to connect to "host:port", "[v6]:port" or "unix:PATH". A host name is resolved at once,
 * blocking, and where one of several places refuses the next is tried ("localhost", where nobody
 * listens at ::1). UNAVAILABLE when refused at once; later refusals come from
 * hps_conn_handshake. */
hps_status hps_conn_connect(const char *address, struct hps_tls *tls, struct hps_conn **out_conn,
                            struct hps_error *err) HPS_MUST_CHECK;
/* Closes the socket; TLS says close_notify if that does not block. NULL is legal, and so is calling
 * it inside on_ready. */
void hps_conn_free(struct hps_conn *conn);

/* Belong to `loop`. on_ready(ctx, events) is called there when what was wanted may go on (spurious
 * calls are legal). Begins with what the handshake needs; if that is not over within
 * `handshake_timeout_us` (0 = none), on_ready is called and hps_conn_handshake returns DEADLINE. */
hps_status hps_conn_attach(struct hps_conn *conn, struct hps_loop *loop,
                           uint64_t handshake_timeout_us,
                           void (*on_ready)(void *ctx, unsigned events), void *ctx) HPS_MUST_CHECK;

/* Finish connect and TLS handshake. OK: done (then always OK; a plain accepted one is from the
 * beginning). AGAIN: wait for on_ready. Else over: UNAVAILABLE, DEADLINE, UNAUTHENTICATED
 * (certificates), CLOSED, IO, EXHAUSTED or NO_MEMORY, with the peer and the reason in `err`. */
hps_status hps_conn_handshake(struct hps_conn *conn, struct hps_error *err) HPS_MUST_CHECK;

/* Call on_ready when reading (HPS_LOOP_READ) or writing (HPS_LOOP_WRITE) may go on, until told
 * otherwise; 0 for neither. Takes care of what TLS needs underneath (bytes already decrypted, reads
 * that must write). Cheap when nothing changes. After the handshake. */
hps_status hps_conn_want(struct hps_conn *conn, unsigned events) HPS_MUST_CHECK;

/* Read up to `capacity` > 0 bytes. OK: *out_size > 0. AGAIN: want HPS_LOOP_READ. CLOSED: the peer
 * ended its side in good order. IO: broken (reset, or a TLS stream cut short). */
hps_status hps_conn_read(struct hps_conn *conn, void *data, size_t capacity, size_t *out_size)
    HPS_MUST_CHECK;
/* The same into several pieces, in their order; TLS fills no more than the first. */
hps_status hps_conn_readv(struct hps_conn *conn, const struct iovec *iov, int n_iov,
                          size_t *out_size) HPS_MUST_CHECK;
/* Write from the front of `iov` (not all of it empty). OK: *out_size > 0 bytes are in the kernel,
 * possibly fewer than given. AGAIN: none is; want HPS_LOOP_WRITE. Either way the next call begins
 * with the bytes that were not taken (they may have moved; more may follow). CLOSED: the peer is
 * gone. IO: broken. Never raises SIGPIPE. */
hps_status hps_conn_writev(struct hps_conn *conn, const struct iovec *iov, int n_iov,
                           size_t *out_size) HPS_MUST_CHECK;
/* Half-close: the peer reads the end; reading goes on. Best effort, never blocks. */
void hps_conn_shutdown_write(struct hps_conn *conn);

bool hps_conn_is_tls(const struct hps_conn *conn);
bool hps_conn_is_unix(const struct hps_conn *conn);
/* "127.0.0.1:40112", "[::1]:40112", "unix:pid=12,uid=1000,gid=1000"; for a connecting one its
 * address. */
const char *hps_conn_peer(const struct hps_conn *conn);
/* hps_tls_session_name of the peer's certificate; NULL behind the last, and where there is none. */
const char *hps_conn_certificate_name(const struct hps_conn *conn, unsigned i);
/* hps_tls_session_recheck; OK for what is not TLS. */
hps_status hps_conn_recheck(const struct hps_conn *conn, struct hps_error *err) HPS_MUST_CHECK;
/* Who opened the Unix socket, as the kernel says; false: not a Unix socket. */
bool hps_conn_peer_uid(const struct hps_conn *conn, uid_t *out_uid);
/* The groups of who opened the Unix socket, as they were then; n 0: not a Unix socket.
 *
 * owner   *out_groups: the caller, hps_free
 * error   NO_MEMORY, IO
 */
hps_status hps_conn_peer_groups(const struct hps_conn *conn, gid_t **out_groups, size_t *out_n)
    HPS_MUST_CHECK;
/* The group of the Unix socket's file that the connection came by; false: there is none. */
bool hps_conn_socket_group(const struct hps_conn *conn, gid_t *out_group);
uint64_t hps_conn_client(const struct hps_conn *conn); /* of an accepted one: hps_sock_client */
/* It is known that nobody takes what is written any more: the peer has closed its socket, of which
 * TCP tells when something was written. */
bool hps_conn_is_gone(const struct hps_conn *conn);
/* Anything came from the peer, be it a part of a TLS handshake. */
bool hps_conn_heard(const struct hps_conn *conn);

/* The seat of an accepted connection goes with it, and is freed with it unless it is taken. */
void hps_conn_seat_give(struct hps_conn *conn, struct hps_seat *seat);
struct hps_seat *hps_conn_seat(const struct hps_conn *conn); /* NULL: none, as in the next */
/* The caller frees it when the connection is gone. */
struct hps_seat *hps_conn_seat_take(struct hps_conn *conn);

#endif
