/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks of the listeners of a configuration: addresses and TLS. Main thread.
 */
#include "config/config.h"

#include <stdio.h>
#include <string.h>
#include <sys/un.h>

#include "base/assert.h"
#include "config/options.h"

static const char *unix_path(const char *address)
{
    return strncmp(address, "unix:", 5) == 0 ? address + 5 : NULL;
}

/* The host of "host:port" or "[v6]:port"; false: neither form. */
static bool split_address(const char *address, char *out_host, size_t size)
{
    const char *colon = strrchr(address, ':');
    if (colon == NULL || colon == address) {
        return false;
    }
    size_t digits = strspn(colon + 1, "0123456789");
    unsigned long port = 0;
    for (size_t i = 0; i < digits && i < 6; i++) {
        port = port * 10 + (unsigned long)(colon[1 + i] - '0');
    }
    if (digits == 0 || digits > 5 || colon[1 + digits] != '\0' || port > 65535) {
        return false;
    }
    const char *host = address;
    size_t n = (size_t)(colon - address);
    bool bracketed = host[0] == '[' && n > 2 && host[n - 1] == ']';
    if (bracketed) {
        host++;
        n -= 2;
    }
    if (n >= size || strcspn(host, " /[]") < n || (!bracketed && memchr(host, ':', n) != NULL)) {
        return false;
    }
    memcpy(out_host, host, n);
    out_host[n] = '\0';
    return true;
}

bool hps_config_address_is_local(const char *address)
{
    char host[256];
    if (unix_path(address) != NULL) {
        return true;
    }
    if (!split_address(address, host, sizeof(host))) {
        return false;
    }
    unsigned octets[4];
    int end = 0;
    bool loopback_v4 = sscanf(host, "%3u.%3u.%3u.%3u%n", &octets[0], &octets[1], &octets[2],
                              &octets[3], &end) == 4 &&
                       host[end] == '\0' && octets[0] == 127;
    return loopback_v4 || strcmp(host, "::1") == 0 || strcmp(host, "localhost") == 0;
}

bool hps_config_has_tls(const struct hps_config_server *server)
{
    return server->tls.certificate[0] != '\0';
}

bool hps_config_listener_tls(const struct hps_config_server *server,
                             const struct hps_config_listener *listener)
{
    return hps_config_has_tls(server) && !listener->plaintext &&
           unix_path(listener->address) == NULL;
}

bool hps_config_http_tls(const struct hps_config_server *server)
{
    return hps_config_listener_tls(server, &server->http_listen) &&
           !hps_config_address_is_local(server->http_listen.address);
}

bool hps_config_has_administrators(const struct hps_config_server *server)
{
    return server->access[0] != '\0' || server->admin_token_file[0] != '\0';
}

static hps_status check_listener(const struct hps_config *config, const char *name,
                                 const struct hps_config_listener *listener, bool tls,
                                 struct hps_error *err)
{
    HPS_ASSERT(listener->address != NULL);
    const char *address = listener->address;
    const char *path = unix_path(address);
    char host[256];
    size_t path_max = sizeof(((struct sockaddr_un *)NULL)->sun_path) - 1;
    if (path != NULL && (path[0] == '\0' || strlen(path) > path_max)) {
        return hps_error_set(err, HPS_INVALID,
                             "%s: server.%s: got \"%.200s\", expected unix:PATH of 1 to %zu "
                             "bytes",
                             config->file, name, address, path_max);
    }
    if (path == NULL && !split_address(address, host, sizeof(host))) {
        return hps_error_set(
            err, HPS_INVALID,
            "%s: server.%s: got \"%.200s\", expected host:port (0 to 65535), [v6]:port or "
            "unix:PATH",
            config->file, name, address);
    }
    if (!hps_config_address_is_local(address) && !tls && !listener->plaintext &&
        !config->server.plaintext) {
        return hps_error_set(
            err, HPS_INVALID,
            "%s: server.%s: got \"%.200s\", which is open to the network, without TLS; "
            "expected server.tls, or \"plaintext\": true",
            config->file, name, address);
    }
    return HPS_OK;
}

static bool asks_for_any_port(const char *address)
{
    size_t n = strlen(address);
    return unix_path(address) == NULL && n >= 2 && strcmp(address + n - 2, ":0") == 0;
}

/* Address i of all listeners. */
static const char *address_of(const struct hps_config_server *server, size_t i)
{
    if (i < server->listen.n) {
        return server->listen.items[i].address;
    }
    i -= server->listen.n;
    if (i < server->kserve_listen.n) {
        return server->kserve_listen.items[i].address;
    }
    return i == server->kserve_listen.n ? server->http_listen.address
                                        : server->admin_listen.address;
}

static hps_status check_repeats(const struct hps_config *config, struct hps_error *err)
{
    const struct hps_config_server *server = &config->server;
    size_t n = server->listen.n + server->kserve_listen.n + 2;
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < i; j++) {
            const char *address = address_of(server, i);
            if (strcmp(address, address_of(server, j)) == 0 && !asks_for_any_port(address)) {
                return hps_error_set(
                    err, HPS_INVALID,
                    "%s: server: got the address \"%.200s\" for two listeners, expected "
                    "different ones",
                    config->file, address);
            }
        }
    }
    return HPS_OK;
}

static hps_status check_tls(const struct hps_config *config, struct hps_error *err)
{
    const struct hps_config_tls *tls = &config->server.tls;
    if ((tls->certificate[0] == '\0') != (tls->key[0] == '\0')) {
        return hps_error_set(
            err, HPS_INVALID,
            "%s: server.tls: got only \"%s\", expected \"certificate\" and \"key\"", config->file,
            tls->key[0] == '\0' ? "certificate" : "key");
    }
    if (tls->certificate[0] == '\0' &&
        (tls->client_ca[0] != '\0' || tls->require_client_certificate)) {
        return hps_error_set(
            err, HPS_INVALID,
            "%s: server.tls: got no \"certificate\" and \"key\", which the other options "
            "of tls need",
            config->file);
    }
    if (tls->client_crl[0] != '\0' && tls->client_ca[0] == '\0') {
        return hps_error_set(err, HPS_INVALID,
                             "%s: server.tls.client_ca: got none, expected the file of the "
                             "authorities that issued the lists in client_crl",
                             config->file);
    }
    if (tls->require_client_certificate && tls->client_ca[0] == '\0') {
        return hps_error_set(err, HPS_INVALID,
                             "%s: server.tls.client_ca: got none, expected a file, since "
                             "require_client_certificate is true",
                             config->file);
    }
    return HPS_OK;
}

static hps_status check_listen_list(const struct hps_config *config, const char *name,
                                    const struct hps_config_listeners *listeners,
                                    struct hps_error *err)
{
    hps_status status = HPS_OK;
    for (size_t i = 0; i < listeners->n && status == HPS_OK; i++) {
        const struct hps_config_listener *listener = &listeners->items[i];
        status = check_listener(config, name, listener,
                                hps_config_listener_tls(&config->server, listener), err);
    }
    return status;
}

hps_status hps_config_check_listeners(const struct hps_config *config, struct hps_error *err)
{
    const struct hps_config_server *server = &config->server;
    const struct hps_config_listener *admin = &server->admin_listen;
    hps_status status = check_tls(config, err);
    if (status == HPS_OK) {
        status = check_listen_list(config, "listen", &server->listen, err);
    }
    if (status == HPS_OK) {
        status = check_listen_list(config, "kserve_listen", &server->kserve_listen, err);
    }
    if (status == HPS_OK && server->http_listen.address[0] != '\0') {
        status = check_listener(config, "http_listen", &server->http_listen,
                                hps_config_http_tls(server), err);
    }
    if (status == HPS_OK && admin->address[0] == '\0') {
        return HPS_OK; /* its default needs server.state_dir, which is not set */
    }
    if (status == HPS_OK) {
        status = check_listener(config, "admin_listen", admin,
                                hps_config_listener_tls(server, admin), err);
    }
    if (status == HPS_OK && unix_path(admin->address) == NULL &&
        !hps_config_has_administrators(server)) {
        return hps_error_set(err, HPS_INVALID,
                             "%s: server.admin_listen: got \"%.200s\", a TCP address without a "
                             "configured administrator; expected server.access with a rule for "
                             "certificates or tokens, or server.admin_token_file",
                             config->file, admin->address);
    }
    return status == HPS_OK ? check_repeats(config, err) : status;
}
