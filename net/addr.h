/* SPDX-License-Identifier: Apache-2.0
 *
 * Conversion of addresses between text ("host:port", "[v6]:port", "unix:PATH") and the structs of
 * the kernel. Any thread.
 */
#ifndef HPS_NET_ADDR_H
#define HPS_NET_ADDR_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/status.h"

#define HPS_ADDR_HOST_MAX 255
#define HPS_ADDR_TEXT_MAX (HPS_ADDR_HOST_MAX + 16) /* with brackets, port and NUL */
#define HPS_PLACES_MAX    16                       /* per host name; further places are ignored */

struct hps_addr {
    bool is_unix;
    uint16_t port;                    /* 0: any free port; only for bind() */
    char host[HPS_ADDR_HOST_MAX + 1]; /* IP address or name, without brackets */
    char path[sizeof(((struct sockaddr_un *)0)->sun_path)]; /* of a Unix socket */
};

struct hps_sockaddr {
    struct sockaddr_storage storage;
    socklen_t size;
};

/* The socket addresses ("places") that an address resolves to. A host name may have several; they
 * are in the order that the system's resolver prefers. */
struct hps_places {
    struct hps_sockaddr items[HPS_PLACES_MAX]; /* [n] */
    uint32_t n;
    uint32_t first;   /* index of the item to connect to first; the rest follow cyclically */
    uint32_t n_tried; /* items that hps_sock_connect_next has tried */
};

/* Parses `text` without resolving a name. INVALID: `err` has the text and the reason. */
hps_status hps_addr_parse(const char *text, struct hps_addr *out_addr, struct hps_error *err)
    HPS_MUST_CHECK;
/* Like hps_addr_parse, for an address to connect to: port 0 is INVALID. */
hps_status hps_addr_parse_peer(const char *text, struct hps_addr *out_addr, struct hps_error *err)
    HPS_MUST_CHECK;
/* Prints the address in the form that hps_addr_parse reads. The text is truncated to `capacity`
 * bytes and always NUL-terminated. Returns `text`. */
char *hps_addr_print(const struct hps_addr *addr, char *text, size_t capacity);
/* Whether the host is a name that must be resolved: neither a numeric address nor a Unix socket. */
bool hps_addr_is_name(const struct hps_addr *addr);
/* Whether the host is "localhost", ::1 or an IPv4 address that begins with 127. False for a Unix
 * socket. */
bool hps_addr_is_loopback(const struct hps_addr *addr);
/* Resolves the address. This may block if the host is a name. `listening`: the places are for
 * bind() instead of connect(). OK: *out_places has at least one place, and n_tried is 0.
 * UNAVAILABLE: the name cannot be resolved. */
hps_status hps_addr_resolve(const struct hps_addr *addr, bool listening,
                            struct hps_places *out_places, struct hps_error *err) HPS_MUST_CHECK;
/* Prints a socket address: "127.0.0.1:80", "[::1]:80", "unix:PATH", or "unix:" for a Unix socket
 * without a path. IPv4 mapped to IPv6 is printed as IPv4. Like hps_addr_print, it truncates the
 * text to `capacity` bytes and returns `text`. */
char *hps_addr_print_sockaddr(const struct sockaddr *sockaddr, socklen_t size, char *text,
                              size_t capacity);

/* Copies the host of an address that hps_sock_peer printed: "10.0.0.7", "::1". Returns `host`. */
const char *hps_addr_host(const char *printed, char *host, size_t capacity);

#endif
