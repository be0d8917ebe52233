/* SPDX-License-Identifier: Apache-2.0
 *
 * Sockets: listen, connect, accept, set options, and use sockets that a service manager has opened.
 * All sockets returned here are non-blocking and close-on-exec. Any thread.
 */
#ifndef HPS_NET_SOCK_H
#define HPS_NET_SOCK_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/status.h"
#include "net/addr.h"

/* Listens on `addr`. The file of a Unix socket gets the permissions `mode`. A socket file that no
 * server listens on is replaced. "[::]" accepts IPv6 only. The text of every error contains the
 * address.
 *
 * error   BUSY: another server listens on it; PERMISSION; EXHAUSTED: no descriptor or memory;
 *         UNAVAILABLE: no such interface, or the name cannot be resolved
 */
hps_status hps_sock_listen(const struct hps_addr *addr, mode_t mode, int *out_fd,
                           struct hps_error *err) HPS_MUST_CHECK;
/* The address to which `fd` is bound, with the port that the kernel chose. */
hps_status hps_sock_local(int fd, struct hps_addr *out_addr) HPS_MUST_CHECK;

/* Starts to connect to the next untried place of `places`, or to a later one if that place refuses
 * immediately. Never blocks. OK: *out_fd becomes writable when the result is known; then call
 * hps_sock_connected.
 *
 * error   if no place is left: the error of the place that was tried last, usually UNAVAILABLE. The
 *         text of `err` contains `addr`
 */
hps_status hps_sock_connect_next(const struct hps_addr *addr, struct hps_places *places,
                                 int *out_fd, struct hps_error *err) HPS_MUST_CHECK;
/* Resolves `addr`, which may block, then calls hps_sock_connect_next. */
hps_status hps_sock_connect(const struct hps_addr *addr, int *out_fd, struct hps_error *err)
    HPS_MUST_CHECK;
/* The result of a connect. AGAIN: it is not finished. UNAVAILABLE: it failed; `err` has the
 * reason. */
hps_status hps_sock_connected(int fd, struct hps_error *err) HPS_MUST_CHECK;

/* Accepts one connection and applies hps_sock_tune. AGAIN: no connection is pending. EXHAUSTED: no
 * descriptor or memory is left. IO: this connection failed; call again for the next one. */
hps_status hps_sock_accept(int listen_fd, int *out_fd) HPS_MUST_CHECK;
/* Sets the options of a socket. TCP: TCP_NODELAY and keepalive (after 60 s idle, 3 probes 10 s
 * apart). Unix: a send buffer of 1 MB. Best effort. */
void hps_sock_tune(int fd);

struct hps_sock_cred {
    pid_t pid;
    uid_t uid;
    gid_t gid;
};
/* The credentials of the process that opened the other end of a Unix socket. False: `fd` is not a
 * Unix socket. */
bool hps_sock_peer_cred(int fd, struct hps_sock_cred *out_cred);
/* The group and the supplementary groups of the process that opened the other end of a Unix socket,
 * at the time it connected.
 *
 * owner   *out_groups: the caller, hps_free
 * error   NO_MEMORY; IO: not a Unix socket, or a kernel before 4.13
 */
hps_status hps_sock_peer_groups(int fd, gid_t **out_groups, size_t *out_n) HPS_MUST_CHECK;
/* The group that owns the socket file of an accepted Unix connection. False: not a Unix socket, the
 * socket has no file, or the file has been removed. */
bool hps_sock_file_group(int fd, gid_t *out_group);
/* The peer's address without its port, as IPv6 or IPv4 mapped to IPv6. False: `fd` is a Unix
 * socket, or the peer has disconnected. */
bool hps_sock_peer_address(int fd, uint8_t out_address[16]);
/* A number that identifies the client for limits. It is the same for all connections from one IPv4
 * address, one IPv6 /64 network (a host usually has one) or one Unix user. Different processes
 * compute different numbers for the same client. */
uint64_t hps_sock_client(int fd, bool *out_is_unix);
/* Prints the peer: "127.0.0.1:40112", "unix:pid=12,uid=1000,gid=1000", or "?" if it has
 * disconnected. Truncated to `capacity` bytes. Returns `text`. */
char *hps_sock_peer(int fd, char *text, size_t capacity);

/* A listening socket that the service manager opened (systemd's LISTEN_FDS protocol). */
struct hps_sock_inherited {
    int fd;
    char name[64]; /* from LISTEN_FDNAMES, or empty */
    bool used;     /* false at first; for use by the caller */
};
#define HPS_SOCK_INHERITED_MAX 16
/* Takes the inherited sockets over; *out_n_sockets is 0 if there are none. Call it at most once,
 * before threads start: it changes the environment and the flags of the descriptors.
 *
 * shape   out_sockets[HPS_SOCK_INHERITED_MAX]
 * error   INVALID: an inherited descriptor is not a listening stream socket, or there are more than
 *         HPS_SOCK_INHERITED_MAX; IO
 */
hps_status hps_sock_inherit(struct hps_sock_inherited *out_sockets, unsigned *out_n_sockets,
                            struct hps_error *err) HPS_MUST_CHECK;

#endif
