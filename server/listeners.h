/* SPDX-License-Identifier: Apache-2.0
 *
 * The listening sockets of a daemon. They are opened from the configuration, or passed by the
 * service manager under the names "grpc", "http", "admin" and "kserve". Passed sockets replace all
 * configured ones of the same kind. Main thread.
 */
#ifndef HPS_SERVER_LISTENERS_H
#define HPS_SERVER_LISTENERS_H

#include "config/config.h"
#include "net/addr.h"

enum hps_listener_kind {
    HPS_LISTENER_GRPC,
    HPS_LISTENER_HTTP,
    HPS_LISTENER_ADMIN,
    HPS_LISTENER_KSERVE,
    HPS_LISTENER_KINDS
};
enum { HPS_LISTENERS_MAX = 34 };

struct hps_listener {
    enum hps_listener_kind kind;
    int fd; /* -1: an acceptor has taken it */
    bool tls;
    bool inherited; /* passed by the service manager; if it is a Unix socket, do not unlink it */
    bool is_unix;
    char address[HPS_ADDR_TEXT_MAX]; /* with the actual port, if the configured one is 0 */
};

struct hps_listeners {
    struct hps_listener items[HPS_LISTENERS_MAX];
    unsigned n;
};

/* Open all listeners. The caller closes them with hps_listeners_close.
 * error   BUSY: an address is in use; INVALID, PERMISSION, UNAVAILABLE: the text names the address
 */
hps_status hps_listeners_open(const struct hps_config_server *config,
                              struct hps_listeners *out_listeners, struct hps_error *err)
    HPS_MUST_CHECK;
void hps_listeners_close(struct hps_listeners *listeners);
/* The address of the n-th listener of a kind, counted from 0; "": there is no such listener. */
const char *hps_listeners_address(const struct hps_listeners *listeners,
                                  enum hps_listener_kind kind, unsigned n);

#endif
