/* SPDX-License-Identifier: Apache-2.0
 *
 * Conversion of addresses between text and the kernel's form. Any thread.
 */
#include "net/addr.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/assert.h"

static hps_status parse_unix(const char *text, const char *path, struct hps_addr *addr,
                             struct hps_error *err)
{
    size_t size = strlen(path);
    if (size == 0) {
        return hps_error_set(err, HPS_INVALID, "address '%s': no path after 'unix:'", text);
    }
    if (size >= sizeof(addr->path)) {
        return hps_error_set(err, HPS_INVALID, "address '%s': path has %zu bytes, at most %zu fit",
                             text, size, sizeof(addr->path) - 1);
    }
    addr->is_unix = true;
    memcpy(addr->path, path, size + 1);
    return HPS_OK;
}

/* 0 to 65535 in plain digits; false otherwise. */
static bool parse_port(const char *text, uint16_t *out_port)
{
    size_t size = strlen(text);
    uint32_t port = 0;
    if (size == 0 || size > 5) {
        return false;
    }
    for (size_t i = 0; i < size; i++) {
        if (text[i] < '0' || text[i] > '9') {
            return false;
        }
        port = port * 10 + (uint32_t)(text[i] - '0');
    }
    if (port > UINT16_MAX) {
        return false;
    }
    *out_port = (uint16_t)port;
    return true;
}

static bool is_host_name(const char *host, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        char c = host[i];
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (!letter && !(c >= '0' && c <= '9') && c != '.' && c != '-' && c != '_') {
            return false;
        }
    }
    return size > 0;
}

hps_status hps_addr_parse(const char *text, struct hps_addr *out_addr, struct hps_error *err)
{
    struct hps_addr addr = {0};
    if (strncmp(text, "unix:", 5) == 0) {
        hps_status status = parse_unix(text, text + 5, &addr, err);
        if (status == HPS_OK) {
            *out_addr = addr;
        }
        return status;
    }
    bool bracket = text[0] == '[';
    const char *host = bracket ? text + 1 : text;
    const char *host_end = bracket ? strchr(host, ']') : strrchr(host, ':');
    const char *colon = bracket && host_end ? host_end + 1 : host_end;
    if (!host_end || *colon != ':') {
        return hps_error_set(err, HPS_INVALID,
                             "address '%.300s': expected host:port, [v6]:port or unix:PATH", text);
    }
    size_t host_size = (size_t)(host_end - host);
    if (host_size == 0 || host_size > HPS_ADDR_HOST_MAX) {
        return hps_error_set(err, HPS_INVALID,
                             "address '%.300s': the host has %zu bytes, expected 1 to %d", text,
                             host_size, HPS_ADDR_HOST_MAX);
    }
    memcpy(addr.host, host, host_size);
    struct in6_addr v6;
    if (bracket ? inet_pton(AF_INET6, addr.host, &v6) != 1 : !is_host_name(addr.host, host_size)) {
        return hps_error_set(
            err, HPS_INVALID,
            "address '%.300s': '%s' is no %s; expected host:port, [v6]:port or unix:PATH", text,
            addr.host, bracket ? "IPv6 address" : "host (IPv6 addresses need brackets)");
    }
    if (!parse_port(colon + 1, &addr.port)) {
        return hps_error_set(err, HPS_INVALID,
                             "address '%.300s': port '%.20s': expected a number, 0 to 65535", text,
                             colon + 1);
    }
    *out_addr = addr;
    return HPS_OK;
}

hps_status hps_addr_parse_peer(const char *text, struct hps_addr *out_addr, struct hps_error *err)
{
    struct hps_addr addr;
    hps_status status = hps_addr_parse(text, &addr, err);
    if (status == HPS_OK && !addr.is_unix && addr.port == 0) {
        status =
            hps_error_set(err, HPS_INVALID, "address '%.300s': expected a port, 1 to 65535", text);
    }
    if (status == HPS_OK) {
        *out_addr = addr;
    }
    return status;
}

char *hps_addr_print(const struct hps_addr *addr, char *text, size_t capacity)
{
    HPS_ASSERT(capacity > 0);
    if (addr->is_unix) {
        snprintf(text, capacity, "unix:%s", addr->path);
    } else if (strchr(addr->host, ':')) {
        snprintf(text, capacity, "[%s]:%u", addr->host, addr->port);
    } else {
        snprintf(text, capacity, "%s:%u", addr->host, addr->port);
    }
    return text;
}

bool hps_addr_is_name(const struct hps_addr *addr)
{
    struct in_addr v4;
    struct in6_addr v6;
    return !addr->is_unix && inet_pton(AF_INET, addr->host, &v4) != 1 &&
           inet_pton(AF_INET6, addr->host, &v6) != 1;
}

bool hps_addr_is_loopback(const struct hps_addr *addr)
{
    struct in_addr v4;
    return !addr->is_unix &&
           (strcasecmp(addr->host, "localhost") == 0 || strcmp(addr->host, "::1") == 0 ||
            (inet_pton(AF_INET, addr->host, &v4) == 1 && ntohl(v4.s_addr) >> 24 == 127));
}

static void put_unix(const char *path, struct hps_sockaddr *out_sockaddr)
{
    struct sockaddr_un sun = {.sun_family = AF_UNIX};
    memcpy(sun.sun_path, path, sizeof(sun.sun_path));
    memset(out_sockaddr, 0, sizeof(*out_sockaddr));
    memcpy(&out_sockaddr->storage, &sun, sizeof(sun));
    out_sockaddr->size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path) + 1);
}

hps_status hps_addr_resolve(const struct hps_addr *addr, bool listening,
                            struct hps_places *out_places, struct hps_error *err)
{
    out_places->n = 0;
    out_places->first = 0;
    out_places->n_tried = 0;
    if (addr->is_unix) {
        put_unix(addr->path, &out_places->items[out_places->n++]);
        return HPS_OK;
    }
    struct addrinfo hints = {
        .ai_family = AF_UNSPEC,
        .ai_socktype = SOCK_STREAM,
        .ai_flags = AI_NUMERICSERV | (listening ? AI_PASSIVE : 0),
    };
    char port[8];
    snprintf(port, sizeof(port), "%u", addr->port);
    struct addrinfo *found = NULL;
    int rc = getaddrinfo(addr->host, port, &hints, &found);
    if (rc != 0) {
        return hps_error_set(err, HPS_UNAVAILABLE, "host '%s': %s", addr->host, gai_strerror(rc));
    }
    for (const struct addrinfo *at = found; at != NULL && out_places->n < HPS_PLACES_MAX;
         at = at->ai_next) {
        struct hps_sockaddr *out = &out_places->items[out_places->n++];
        memset(out, 0, sizeof(*out));
        memcpy(&out->storage, at->ai_addr, at->ai_addrlen);
        out->size = at->ai_addrlen;
    }
    freeaddrinfo(found);
    return HPS_OK;
}

static void print_v6(const struct sockaddr_in6 *sin6, char *text, size_t capacity)
{
    char host[INET6_ADDRSTRLEN] = "?";
    if (IN6_IS_ADDR_V4MAPPED(&sin6->sin6_addr)) {
        inet_ntop(AF_INET, &sin6->sin6_addr.s6_addr[12], host, sizeof(host));
        snprintf(text, capacity, "%s:%u", host, ntohs(sin6->sin6_port));
    } else {
        inet_ntop(AF_INET6, &sin6->sin6_addr, host, sizeof(host));
        snprintf(text, capacity, "[%s]:%u", host, ntohs(sin6->sin6_port));
    }
}

char *hps_addr_print_sockaddr(const struct sockaddr *sockaddr, socklen_t size, char *text,
                              size_t capacity)
{
    HPS_ASSERT(capacity > 0);
    struct sockaddr_storage copy = {0}; /* the caller's bytes may be short or unaligned */
    memcpy(&copy, sockaddr, size < sizeof(copy) ? size : sizeof(copy));
    if (copy.ss_family == AF_INET) {
        const struct sockaddr_in *sin = (const struct sockaddr_in *)&copy;
        char host[INET_ADDRSTRLEN] = "?";
        inet_ntop(AF_INET, &sin->sin_addr, host, sizeof(host));
        snprintf(text, capacity, "%s:%u", host, ntohs(sin->sin_port));
    } else if (copy.ss_family == AF_INET6) {
        print_v6((const struct sockaddr_in6 *)&copy, text, capacity);
    } else if (copy.ss_family == AF_UNIX) {
        const struct sockaddr_un *sun = (const struct sockaddr_un *)&copy;
        snprintf(text, capacity, "unix:%.*s", (int)sizeof(sun->sun_path), sun->sun_path);
    } else {
        snprintf(text, capacity, "?");
    }
    return text;
}

const char *hps_addr_host(const char *printed, char *host, size_t capacity)
{
    const char *colon = strrchr(printed, ':');
    size_t n = colon != NULL ? (size_t)(colon - printed) : strlen(printed);
    bool bracketed = n > 2 && printed[0] == '[' && printed[n - 1] == ']';

    (void)snprintf(host, capacity, "%.*s", (int)(bracketed ? n - 2 : n),
                   bracketed ? printed + 1 : printed);
    return host;
}
