/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens the sockets of a daemon. Main thread, before any other thread starts.
 */
#include "server/listeners.h"

#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "net/sock.h"

static const char *const kind_names[HPS_LISTENER_KINDS] = {"grpc", "http", "admin", "kserve"};

static hps_status add(struct hps_listeners *listeners, enum hps_listener_kind kind, int fd,
                      bool tls, bool inherited, struct hps_error *err)
{
    struct hps_addr addr;
    HPS_ASSERT(fd >= 0);
    HPS_ASSERT(kind < HPS_LISTENER_KINDS);
    if (listeners->n == HPS_LISTENERS_MAX || hps_sock_local(fd, &addr) != HPS_OK) {
        close(fd);
        return hps_error_set(err, HPS_INVALID, "listener %s: more than %d, or not a socket",
                             kind_names[kind], HPS_LISTENERS_MAX);
    }
    struct hps_listener *to = &listeners->items[listeners->n++];
    *to = (struct hps_listener){.kind = kind,
                                .fd = fd,
                                .tls = tls && !addr.is_unix,
                                .inherited = inherited,
                                .is_unix = addr.is_unix};
    HPS_ASSERT(!to->tls || !to->is_unix);
    hps_addr_print(&addr, to->address, sizeof(to->address));
    return HPS_OK;
}

static hps_status open_one(struct hps_listeners *listeners, enum hps_listener_kind kind,
                           const struct hps_config_listener *config, bool tls,
                           struct hps_error *err)
{
    struct hps_addr addr;
    int fd = -1;
    hps_status status = hps_addr_parse(config->address, &addr, err);
    if (status == HPS_OK) {
        status = hps_sock_listen(&addr, 0660, &fd, err);
    }
    if (status != HPS_OK) {
        return hps_error_prefix(err, status, "%s listener", kind_names[kind]);
    }
    return add(listeners, kind, fd, tls, false, err);
}

/* ---- inherited ------------------------------------------------------------------------------- */

static enum hps_listener_kind kind_of(const char *name)
{
    for (unsigned i = 0; i < HPS_LISTENER_KINDS; i++) {
        if (strcmp(name, kind_names[i]) == 0) {
            return (enum hps_listener_kind)i;
        }
    }
    return HPS_LISTENER_GRPC; /* the unit gives its sockets no name */
}

/* Whether the configuration says "plaintext" for this address. */
static bool is_plaintext(const struct hps_config_server *config, enum hps_listener_kind kind,
                         const char *address)
{
    if (kind == HPS_LISTENER_HTTP) {
        return config->http_listen.plaintext;
    }
    if (kind == HPS_LISTENER_ADMIN) {
        return config->admin_listen.plaintext;
    }
    const struct hps_config_listeners *listeners =
        kind == HPS_LISTENER_KSERVE ? &config->kserve_listen : &config->listen;
    for (size_t i = 0; i < listeners->n; i++) {
        if (strcmp(listeners->items[i].address, address) == 0) {
            return listeners->items[i].plaintext;
        }
    }
    return false;
}

/* Rules for configured addresses also apply to sockets of the service manager. */
static hps_status check_inherited(const struct hps_config_server *config,
                                  const struct hps_listener *listener, bool plaintext,
                                  struct hps_error *err)
{
    const char *name = kind_names[listener->kind];
    if (!listener->tls && !plaintext && !config->plaintext &&
        !hps_config_address_is_local(listener->address)) {
        return hps_error_set(err, HPS_INVALID,
                             "LISTEN_FDS: the %s socket is %s, open to the network, without TLS; "
                             "expected server.tls, or \"plaintext\": true",
                             name, listener->address);
    }
    if (listener->kind == HPS_LISTENER_ADMIN && !listener->is_unix &&
        !hps_config_has_administrators(config)) {
        return hps_error_set(
            err, HPS_INVALID,
            "LISTEN_FDS: the admin socket is %s, a TCP address without a configured administrator; "
            "expected server.access, or server.admin_token_file",
            listener->address);
    }
    return HPS_OK;
}

static hps_status adopt(const struct hps_config_server *config, struct hps_listeners *listeners,
                        const struct hps_sock_inherited *socket, bool have[HPS_LISTENER_KINDS],
                        struct hps_error *err)
{
    enum hps_listener_kind kind = kind_of(socket->name);
    bool second_http = kind == HPS_LISTENER_HTTP && have[kind];
    hps_status status = add(listeners, kind, socket->fd, false, true, err);
    if (status != HPS_OK) {
        return status;
    }
    HPS_ASSERT(listeners->n > 0);
    struct hps_listener *listener = &listeners->items[listeners->n - 1];
    have[kind] = true;
    if (second_http) {
        return hps_error_set(err, HPS_INVALID,
                             "LISTEN_FDS: %s is a second http socket, expected one",
                             listener->address);
    }
    bool plaintext = is_plaintext(config, kind, listener->address);
    bool stays_here = listener->is_unix ||
                      (kind == HPS_LISTENER_HTTP && hps_config_address_is_local(listener->address));
    listener->tls = !stays_here && !plaintext && hps_config_has_tls(config);
    return check_inherited(config, listener, plaintext, err);
}

/* Sockets of the service manager replace the configured ones of the same kind. */
static hps_status adopt_inherited(const struct hps_config_server *config,
                                  struct hps_listeners *listeners, bool have[HPS_LISTENER_KINDS],
                                  struct hps_error *err)
{
    struct hps_sock_inherited sockets[HPS_SOCK_INHERITED_MAX];
    unsigned n = 0;
    hps_status status = hps_sock_inherit(sockets, &n, err);
    for (unsigned i = 0; status == HPS_OK && i < n; i++) {
        status = adopt(config, listeners, &sockets[i], have, err);
    }
    return status;
}

/* ---- all ------------------------------------------------------------------------------------- */

static hps_status open_list(struct hps_listeners *listeners, enum hps_listener_kind kind,
                            const struct hps_config_server *config,
                            const struct hps_config_listeners *list, struct hps_error *err)
{
    hps_status status = HPS_OK;
    for (size_t i = 0; status == HPS_OK && i < list->n; i++) {
        const struct hps_config_listener *one = &list->items[i];
        status = open_one(listeners, kind, one, hps_config_listener_tls(config, one), err);
    }
    return status;
}

hps_status hps_listeners_open(const struct hps_config_server *config,
                              struct hps_listeners *out_listeners, struct hps_error *err)
{
    bool have[HPS_LISTENER_KINDS] = {false};
    out_listeners->n = 0;
    hps_status status = adopt_inherited(config, out_listeners, have, err);
    if (status == HPS_OK && !have[HPS_LISTENER_GRPC]) {
        status = open_list(out_listeners, HPS_LISTENER_GRPC, config, &config->listen, err);
    }
    if (status == HPS_OK && !have[HPS_LISTENER_KSERVE]) {
        status = open_list(out_listeners, HPS_LISTENER_KSERVE, config, &config->kserve_listen, err);
    }
    if (status == HPS_OK && !have[HPS_LISTENER_HTTP] && config->http_listen.address != NULL &&
        config->http_listen.address[0] != '\0') {
        status = open_one(out_listeners, HPS_LISTENER_HTTP, &config->http_listen,
                          hps_config_http_tls(config), err);
    }
    if (status == HPS_OK && !have[HPS_LISTENER_ADMIN]) {
        status = open_one(out_listeners, HPS_LISTENER_ADMIN, &config->admin_listen,
                          hps_config_listener_tls(config, &config->admin_listen), err);
    }
    if (status != HPS_OK) {
        hps_listeners_close(out_listeners);
    }
    return status;
}

void hps_listeners_close(struct hps_listeners *listeners)
{
    for (unsigned i = 0; i < listeners->n; i++) {
        struct hps_listener *one = &listeners->items[i];
        if (one->fd >= 0) {
            close(one->fd);
            if (one->is_unix && !one->inherited) {
                unlink(one->address + strlen("unix:"));
            }
            one->fd = -1;
        }
    }
}

const char *hps_listeners_address(const struct hps_listeners *listeners,
                                  enum hps_listener_kind kind, unsigned n)
{
    for (unsigned i = 0; i < listeners->n; i++) {
        if (listeners->items[i].kind == kind && n-- == 0) {
            return listeners->items[i].address;
        }
    }
    return "";
}
