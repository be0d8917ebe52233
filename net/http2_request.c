/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks the fields of a request on a Unix socket. nghttp2 rejects a request if its authority is
 * missing or not a host. But gRPC clients send the percent-encoded path of a Unix socket there, and
 * the authority means nothing on such a socket. So nghttp2's check of messages is off there, and
 * its other rules (RFC 9113 §8) are here. Loop thread of the connection.
 */
#include "net/http2_internal.h"

#include <string.h>
#include <strings.h>

/* Fields that a request may have only once. */
enum {
    SEEN_METHOD = 1,
    SEEN_PATH = 2,
    SEEN_SCHEME = 4,
    SEEN_NEEDED = SEEN_METHOD | SEEN_PATH | SEEN_SCHEME,
    SEEN_AUTHORITY = 8,
    SEEN_LENGTH = 16,
    SEEN_REGULAR = 32, /* no pseudo-header field may follow */
    SEEN_HEAD = 64,    /* the head is complete: later fields are trailers */
    SEEN_HOST = 128,
};

enum { LENGTH_DIGITS_MAX = 18 };

static bool take_once(struct http2_request *request, uint8_t which)
{
    bool first = (request->seen & which) == 0;

    request->seen |= which;
    return first;
}

static bool take_pseudo(struct http2_request *request, const char *name, size_t name_size,
                        const uint8_t *value, size_t value_size)
{
    if ((request->seen & SEEN_REGULAR) != 0) {
        return false;
    }
    if (HPS_HTTP_IS(name, name_size, ":authority")) {
        return take_once(request, SEEN_AUTHORITY) &&
               nghttp2_check_header_value(value, value_size) != 0;
    }
    if (HPS_HTTP_IS(name, name_size, ":method")) {
        return take_once(request, SEEN_METHOD) && nghttp2_check_method(value, value_size) != 0;
    }
    if (HPS_HTTP_IS(name, name_size, ":path")) {
        return take_once(request, SEEN_PATH) && value_size > 0 &&
               nghttp2_check_path(value, value_size) != 0;
    }
    return HPS_HTTP_IS(name, name_size, ":scheme") && take_once(request, SEEN_SCHEME) &&
           value_size > 0 && nghttp2_check_header_value(value, value_size) != 0;
}

static bool take_length(struct http2_request *request, const char *value, size_t size)
{
    if (!take_once(request, SEEN_LENGTH) || size == 0 || size > LENGTH_DIGITS_MAX ||
        strspn(value, "0123456789") != size) {
        return false;
    }
    for (size_t i = 0; i < size; i++) {
        request->body_left = request->body_left * 10 + (uint64_t)(value[i] - '0');
    }
    return true;
}

bool http2_request_field(struct http2_request *request, const uint8_t *name_bytes, size_t name_size,
                         const uint8_t *value, size_t value_size)
{
    static const char *const hop[] = {"connection", "keep-alive", "proxy-connection",
                                      "transfer-encoding", "upgrade"};
    const char *name = (const char *)name_bytes;

    if (name_size > 0 && name[0] == ':') {
        return take_pseudo(request, name, name_size, value, value_size);
    }
    request->seen |= SEEN_REGULAR;
    for (size_t i = 0; i < sizeof hop / sizeof *hop; i++) {
        if (strcmp(name, hop[i]) == 0) {
            return false;
        }
    }
    if (HPS_HTTP_IS(name, name_size, "te")) {
        return value_size == 8 && strncasecmp((const char *)value, "trailers", 8) == 0;
    }
    if (HPS_HTTP_IS(name, name_size, "content-length")) {
        return (request->seen & SEEN_HEAD) == 0 &&
               take_length(request, (const char *)value, value_size);
    }
    if (HPS_HTTP_IS(name, name_size, "host") && !take_once(request, SEEN_HOST)) {
        return false;
    }
    return nghttp2_check_header_name(name_bytes, name_size) != 0 &&
           nghttp2_check_header_value_rfc9113(value, value_size) != 0;
}

bool http2_request_head(struct http2_request *request, bool end)
{
    bool trailers = (request->seen & SEEN_HEAD) != 0;

    request->seen |= SEEN_HEAD | SEEN_REGULAR;
    return trailers ? end : (request->seen & SEEN_NEEDED) == SEEN_NEEDED;
}

bool http2_request_data(struct http2_request *request, size_t size)
{
    if ((request->seen & SEEN_LENGTH) == 0) {
        return true;
    }
    bool fits = size <= request->body_left;
    request->body_left -= fits ? size : request->body_left;
    return fits;
}

bool http2_request_end(const struct http2_request *request)
{
    return request->body_left == 0;
}
