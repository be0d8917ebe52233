/* SPDX-License-Identifier: Apache-2.0
 *
 * Sockets: listen, connect, accept, set options, and take over sockets of a service manager. Every
 * socket is non-blocking and close-on-exec. Any thread.
 */
#ifndef HPS_NET_SOCK_H
#define HPS_NET_SOCK_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/status.h"
#include "net/addr.h"

/* Listens on `addr`. The file of a Unix socket gets `mode`. A socket file that a dead server left
 * is replaced; if a server answers on it, the result is BUSY. "[::]" accepts IPv6 only. Every error
 * names the address.
 *
 * error   BUSY: in use; PERMISSION; EXHAUSTED: no descriptor or memory; UNAVAILABLE: no such
 *         interface, name not known
 */
hps_status hps_sock_listen(const struct hps_addr *addr, mode_t mode, int *out_fd,
                           struct hps_error *err) HPS_MUST_CHECK;
/* The address to which `fd` is bound, with the port that the kernel chose. */
hps_status hps_sock_local(int fd, struct hps_addr *out_addr) HPS_MUST_CHECK;

/* Starts to connect to the next of `places` that does not refuse at once. OK: the socket becomes
 * writable when the result is known; then call hps_sock_connected. Never blocks.
 *
 * error   none is left: the error of the last one, mostly UNAVAILABLE; `err` names `addr`
 */
hps_status hps_sock_connect_next(const struct hps_addr *addr, struct hps_places *places,
                                 int *out_fd, struct hps_error *err) HPS_MUST_CHECK;
/* Resolves `addr`, which may block, then does the same. */
hps_status hps_sock_connect(const struct hps_addr *addr, int *out_fd, struct hps_error *err)
    HPS_MUST_CHECK;
/* The result of a connect: OK, AGAIN (not finished) or UNAVAILABLE with the reason in `err`. */
hps_status hps_sock_connected(int fd, struct hps_error *err) HPS_MUST_CHECK;

/* Accepts one connection and applies hps_sock_tune. AGAIN: no connection is pending. EXHAUSTED: no
 * descriptor or memory left. Other errors concern that peer alone: call again. */
hps_status hps_sock_accept(int listen_fd, int *out_fd) HPS_MUST_CHECK;
/* TCP: no delay, keepalive (60 s idle, 3 probes 10 s apart). Unix: 1 MB send buffer. Best effort.
 */
void hps_sock_tune(int fd);

struct hps_sock_cred {
    pid_t pid;
    uid_t uid;
    gid_t gid;
};
/* Credentials of the process that opened the other end of a Unix socket; false: another socket. */
bool hps_sock_peer_cred(int fd, struct hps_sock_cred *out_cred);
/* The group and the supplementary groups of that process at the time it connected.
 *
 * owner   *out_groups: the caller, hps_free
 * error   NO_MEMORY; IO: not a Unix socket, or a kernel before 4.13
 */
hps_status hps_sock_peer_groups(int fd, gid_t **out_groups, size_t *out_n) HPS_MUST_CHECK;
/* The group of the socket file through which an accepted Unix connection came. False: the socket
 * has no file, or the file has been removed. */
bool hps_sock_file_group(int fd, gid_t *out_group);
/* The peer's address without its port: IPv6, or IPv4 mapped to IPv6. False: a Unix socket, or the
 * peer has disconnected. */
bool hps_sock_peer_address(int fd, uint8_t out_address[16]);
/* A number that identifies the client for limits. It is the same for all connections from one IPv4
 * address, one IPv6 /64 network (a host usually has one) or one Unix user. It differs between
 * processes. */
uint64_t hps_sock_client(int fd, bool *out_is_unix);
/* "127.0.0.1:40112", "unix:pid=12,uid=1000,gid=1000", or "?" if it has disconnected. Returns
 * `text`. */
char *hps_sock_peer(int fd, char *text, size_t capacity);

/* A listening socket that the service manager opened (systemd's LISTEN_FDS protocol). */
struct hps_sock_inherited {
    int fd;
    char name[64]; /* from LISTEN_FDNAMES, or empty */
    bool used;     /* for the caller */
};
#define HPS_SOCK_INHERITED_MAX 16
/* Takes the inherited sockets over; *out_n_sockets is 0 if there are none. Call it at most once,
 * before threads start: it changes the environment and the flags of the descriptors.
 *
 * shape   out_sockets[HPS_SOCK_INHERITED_MAX]
 * error   INVALID: one is not a listening stream socket, or there are too many; IO
 */
hps_status hps_sock_inherit(struct hps_sock_inherited *out_sockets, unsigned *out_n_sockets,
                            struct hps_error *err) HPS_MUST_CHECK;

#endif
