/* SPDX-License-Identifier: Apache-2.0
 *
 * Addresses as people write them: "host:port", "[v6]:port", "unix:PATH". Any thread.
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
#define HPS_PLACES_MAX    16                       /* of one name; others are left out */

struct hps_addr {
    bool is_unix;
    uint16_t port;                                          /* 0: any free one (listening) */
    char host[HPS_ADDR_HOST_MAX + 1];                       /* number or name, without brackets */
    char path[sizeof(((struct sockaddr_un *)0)->sun_path)]; /* Unix sockets */
};

struct hps_sockaddr {
    struct sockaddr_storage storage;
    socklen_t size;
};

/* What an address has been looked up to: one place, or of a name several, in the order in which the
 * system prefers them. */
struct hps_places {
    struct hps_sockaddr items[HPS_PLACES_MAX]; /* [n] */
    uint32_t n;
    uint32_t first; /* which of them is tried first, counted round */
    uint32_t n_tried;
};

/* Looks nothing up. INVALID names the text and what is wrong with it. */
hps_status hps_addr_parse(const char *text, struct hps_addr *out_addr, struct hps_error *err)
    HPS_MUST_CHECK;
/* The same, of what is connected to: port 0 is INVALID. */
hps_status hps_addr_parse_peer(const char *text, struct hps_addr *out_addr, struct hps_error *err)
    HPS_MUST_CHECK;
/* As hps_addr_parse reads it; cut at `capacity`, always ended. Returns `text`. */
char *hps_addr_print(const struct hps_addr *addr, char *text, size_t capacity);
/* A name, which has to be looked up: neither a number nor a Unix socket. */
bool hps_addr_is_name(const struct hps_addr *addr);
/* For the kernel. A name is looked up, which may block. At least one place, none of them tried; or
 * UNAVAILABLE if the name is not known. `listening`: for bind() rather than connect(). */
hps_status hps_addr_resolve(const struct hps_addr *addr, bool listening,
                            struct hps_places *out_places, struct hps_error *err) HPS_MUST_CHECK;
/* Text of a kernel address: "127.0.0.1:80", "[::1]:80" (v4-mapped ones as v4), "unix:PATH",
 * "unix:". */
char *hps_addr_print_sockaddr(const struct sockaddr *sockaddr, socklen_t size, char *text,
                              size_t capacity);

#endif
