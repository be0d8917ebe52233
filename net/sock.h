/* SPDX-License-Identifier: Apache-2.0
 *
 * Sockets: listening, connecting, accepting, options, and those handed over by a service manager.
 * All of them are non-blocking and close-on-exec. Any thread.
 */
#ifndef HPS_NET_SOCK_H
#define HPS_NET_SOCK_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/status.h"
#include "net/addr.h"

/* Listen on `addr`. A Unix socket gets `mode`; one left behind by a dead server is replaced, one
 * that answers is not. "[::]" is IPv6 only. BUSY: taken; PERMISSION; UNAVAILABLE: no such
 * interface; always naming the address. */
hps_status hps_sock_listen(const struct hps_addr *addr, mode_t mode, int *out_fd,
                           struct hps_error *err) HPS_MUST_CHECK;
/* Where `fd` is bound, with the port that the kernel chose. */
hps_status hps_sock_local(int fd, struct hps_addr *out_addr) HPS_MUST_CHECK;

/* Start to connect to the next of the places where `addr` was found that does not refuse at once.
 * UNAVAILABLE (or what else the last one came to, with `addr` named in `err`) when none is left;
 * else writability shows it, see hps_sock_connected. Never blocks. */
hps_status hps_sock_connect_next(const struct hps_addr *addr, struct hps_places *places,
                                 int *out_fd, struct hps_error *err) HPS_MUST_CHECK;
/* The same after looking the address up, which may block. */
hps_status hps_sock_connect(const struct hps_addr *addr, int *out_fd, struct hps_error *err)
    HPS_MUST_CHECK;
/* The result of a connect: OK, AGAIN (under way) or UNAVAILABLE with the reason in `err`. */
hps_status hps_sock_connected(int fd, struct hps_error *err) HPS_MUST_CHECK;

/* AGAIN: nobody waits. EXHAUSTED: no descriptor or memory left. Other statuses concern that peer
 * alone: try again. The accepted socket has hps_sock_tune's options. */
hps_status hps_sock_accept(int listen_fd, int *out_fd) HPS_MUST_CHECK;
/* TCP: no delay, keepalive (60 s idle, 3 probes 10 s apart). Unix: 1 MB send buffer. Best effort.
 */
void hps_sock_tune(int fd);

struct hps_sock_cred {
    pid_t pid;
    uid_t uid;
    gid_t gid;
};
/* Who opened the other end of a Unix socket; false: no Unix socket. */
bool hps_sock_peer_cred(int fd, struct hps_sock_cred *out_cred);
/* The groups of that process, its own and the supplementary ones, as they were when it connected.
 *
 * owner   *out_groups: the caller, hps_free; NULL when n is 0
 * error   NO_MEMORY; IO: not a Unix socket, or a kernel before 4.13
 */
hps_status hps_sock_peer_groups(int fd, gid_t **out_groups, size_t *out_n) HPS_MUST_CHECK;
/* The group of the file that an accepted Unix socket came by; false: it has none, or it is gone. */
bool hps_sock_file_group(int fd, gid_t *out_group);
/* Where it is, without its port: IPv6, or IPv4 mapped into it. False for a Unix socket, or if it is
 * gone. */
bool hps_sock_peer_address(int fd, uint8_t out_address[16]);
/* Whose the other end is, for limits: the same number for all from one IPv4 address, one IPv6
 * network of 64 bits (which is what one host has) or one Unix user; another one in each process. */
uint64_t hps_sock_client(int fd, bool *out_is_unix);
/* "127.0.0.1:40112", "unix:pid=12,uid=1000,gid=1000", "?" if it is gone. Returns `text`. */
char *hps_sock_peer(int fd, char *text, size_t capacity);

/* A listening socket that the service manager opened for us (systemd's LISTEN_FDS protocol). */
struct hps_sock_inherited {
    int fd;
    char name[64]; /* of LISTEN_FDNAMES, or empty */
    bool used;     /* for the caller */
};
#define HPS_SOCK_INHERITED_MAX 16
/* Take them over; at most once, before threads start (it changes the environment and the
 * descriptors' flags). 0 when there are none. INVALID: one is not a listening stream socket, or
 * there are too many. */
hps_status hps_sock_inherit(struct hps_sock_inherited *out_sockets, unsigned *out_n_sockets,
                            struct hps_error *err) HPS_MUST_CHECK;

#endif
