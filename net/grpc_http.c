/* SPDX-License-Identifier: Apache-2.0
 *
 * HTTP/1.1 calls, where they differ from gRPC calls: a route instead of a path, other headers, and
 * a body that is the message. Loop thread of the connection.
 */
#include "net/grpc_internal.h"

#include <inttypes.h>
#include <string.h>
#include <strings.h>

#include "base/assert.h"
#include "net/addr.h"

enum { BODY_FIRST_BYTES = 64 * 1024 }; /* first capacity of a chunked body; then it doubles */

/* ---- headers --------------------------------------------------------------------------------- */

static bool is_word(const char *value, size_t size, const char *word)
{
    return size == strlen(word) && strncasecmp(value, word, size) == 0;
}

static void read_encoding(struct hps_grpc_call *call, const char *value, size_t size)
{
    if (call->headers->encoding != GRPC_IDENTITY) {
        call->headers->encoding = GRPC_UNKNOWN_ENCODING; /* several encodings are not supported */
    } else if (is_word(value, size, "gzip") || is_word(value, size, "x-gzip")) {
        call->headers->encoding = GRPC_GZIP;
    } else if (is_word(value, size, "deflate")) {
        call->headers->encoding = GRPC_ZLIB;
    } else if (!is_word(value, size, "identity")) {
        call->headers->encoding = GRPC_UNKNOWN_ENCODING;
    }
}

void grpc_http_header(struct hps_grpc_call *call, const char *name, size_t name_size,
                      const char *value, size_t value_size)
{
    if (HPS_HTTP_IS(name, name_size, "content-encoding")) {
        read_encoding(call, value, value_size);
    } else if (HPS_HTTP_IS(name, name_size, ":method")) {
        call->reply->head = HPS_HTTP_IS(value, value_size, "HEAD");
    }
    if ((name[0] == ':' || HPS_HTTP_IS(name, name_size, "host") ||
         grpc_server_keeps(call->grpc_loop->server, name, name_size)) &&
        grpc_fields_add(&call->headers->fields, name, name_size, value, value_size) != HPS_OK) {
        call->headers->bad_fields = true;
    }
}

static size_t size_max_of(const struct hps_grpc_call *call)
{
    size_t size_max = call->entry->method->request_bytes_max;

    return size_max != 0 ? size_max : call->grpc_loop->limits->request_bytes_max;
}

/* The route exists and the guard has accepted the call: checks the encoding and the size of the
 * body. */
static void judge_body(struct hps_grpc_call *call)
{
    size_t size_max = size_max_of(call);
    uint64_t size = call->stream->body_bytes;
    struct hps_error err;
    bool compressed = call->headers->encoding != GRPC_IDENTITY;

    if (call->headers->encoding == GRPC_UNKNOWN_ENCODING) {
        grpc_http_refuse(call, 415, HPS_INVALID,
                         "content-encoding is not known; identity, gzip and deflate are");
    } else if (compressed && !call->grpc_loop->limits->compression) {
        grpc_http_refuse(call, 415, HPS_INVALID,
                         "content-encoding: this server takes no compressed bodies");
    } else if (call->entry->method->no_body && size != 0) {
        grpc_http_refuse(call, 413, HPS_INVALID, "%.200s takes no body", hps_grpc_call_path(call));
    } else if (size != HPS_HTTP_BODY_OF_ANY_SIZE && size > size_max) {
        (void)hps_error_set(&err, HPS_EXHAUSTED,
                            "body of %" PRIu64 " bytes, the limit is %zu bytes", size, size_max);
        hps_grpc_call_fail_too_large(call, &err);
    } else {
        hps_grpc_decoder_init(&call->request->decoder, size_max, false);
        call->request->decoder.body.size_max =
            size != HPS_HTTP_BODY_OF_ANY_SIZE ? (size_t)size : size_max;
        grpc_call_request_set(call, GRPC_REQUEST_OPEN);
        grpc_call_check_bytes(call);
    }
}

/* Whether a Host field has a loopback address or "localhost", with or without a port. */
static bool names_loopback(const char *host)
{
    struct hps_addr addr = {0};
    bool bracket = host[0] == '[';
    const char *name = host + bracket;
    size_t size = strcspn(name, bracket ? "]" : ":");
    const char *rest = name + size + (name[size] == ']');

    if (size >= sizeof addr.host || (rest[0] != '\0' && rest[0] != ':')) {
        return false;
    }
    memcpy(addr.host, name, size);
    return hps_addr_is_loopback(&addr);
}

/* Whether a browser on this host may have sent the request for a page of another site. The DNS
 * server of that site then resolves its name to a loopback address (DNS rebinding), and the Host
 * field has this name. */
static bool is_rebound(const struct hps_grpc_call *call)
{
    const char *host = grpc_fields_get(&call->headers->fields, "host", NULL);

    return host != NULL && host[0] != '\0' && hps_conn_is_loopback(call->conn->http->conn) &&
           !names_loopback(host);
}

void grpc_http_headers_done(struct hps_grpc_call *call)
{
    enum grpc_route_found found = GRPC_ROUTE_NO_PATH;
    const char *why = NULL;
    struct hps_error err;
    hps_status entered;

    if (call->headers->bad_fields || grpc_route_find(call, &found, &why) != HPS_OK) {
        grpc_call_refuse(call, HPS_NO_MEMORY, "no memory for the headers of a request");
    } else if (is_rebound(call)) {
        grpc_http_refuse(call, 421, HPS_PERMISSION,
                         "Host %.200s: this listener is on loopback, and accepts only localhost "
                         "and loopback addresses",
                         grpc_fields_get(&call->headers->fields, "host", NULL));
    } else if ((entered = grpc_guard_enter(call, &err)) != HPS_OK) {
        grpc_call_refuse(call, entered, "%s", err.text);
    } else if (found == GRPC_ROUTE_BAD_PATH) {
        grpc_call_refuse(call, HPS_INVALID, "path %.200s: %s", hps_grpc_call_path(call), why);
    } else if (found == GRPC_ROUTE_NO_PATH) {
        grpc_call_refuse(call, HPS_NOT_FOUND, "unknown path %.200s", hps_grpc_call_path(call));
    } else if (found == GRPC_ROUTE_NO_VERB) {
        grpc_http_refuse(call, 405, HPS_UNIMPLEMENTED, "%.200s takes other methods, see Allow",
                         hps_grpc_call_path(call));
    } else {
        judge_body(call);
    }
}

/* ---- the body -------------------------------------------------------------------------------- */

/* Reserves capacity for `size` more bytes of the body. If the size of the body is known, reserves
 * all of it: pages that are never written take no memory. */
static hps_status reserve(struct hps_grpc_call *call, size_t size)
{
    struct hps_buf *body = &call->request->decoder.body;
    size_t left = body->size_max - body->size;
    size_t more = body->size > BODY_FIRST_BYTES ? body->size : BODY_FIRST_BYTES;

    HPS_ASSERT(size <= left);
    if (size <= body->capacity - body->size) {
        return HPS_OK;
    }
    if (call->stream->body_bytes != HPS_HTTP_BODY_OF_ANY_SIZE) {
        more = left;
    }
    more = more > size ? more : size;
    return hps_buf_reserve(body, more < left ? more : left);
}

uint8_t *grpc_http_room(struct hps_grpc_call *call, size_t size, size_t *out_room)
{
    struct hps_buf *body = &call->request->decoder.body;
    size_t left = body->size_max - body->size;

    if (grpc_call_is_finished(call) || call->request->phase != GRPC_REQUEST_OPEN || left == 0 ||
        reserve(call, 1) != HPS_OK) {
        return NULL; /* on_data reports the error */
    }
    size_t room = body->capacity - body->size;
    room = room < left ? room : left;
    *out_room = room < size ? room : size;
    return body->data + body->size;
}

void grpc_http_data(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    struct hps_buf *body = &call->request->decoder.body;

    if (grpc_call_is_finished(call) || call->request->phase != GRPC_REQUEST_OPEN) {
        return;
    }
    if (size > body->size_max - body->size) {
        struct hps_error err;
        (void)hps_error_set(&err, HPS_EXHAUSTED, "body of more than %zu bytes, which is the limit",
                            body->size_max);
        hps_grpc_call_fail_too_large(call, &err);
        return;
    }
    if (body->data != NULL && data == body->data + body->size) {
        HPS_ASSERT(size <= body->capacity - body->size); /* the buffer of grpc_http_room */
        body->size += size;
    } else if (reserve(call, size) != HPS_OK || hps_buf_append(body, data, size) != HPS_OK) {
        grpc_call_refuse(call, HPS_NO_MEMORY, "no memory for a body of %zu bytes",
                         body->size + size);
        return;
    }
    grpc_call_check_bytes(call);
    HPS_DEBUG_SANE(grpc_call_sane(call));
}

void grpc_http_end(struct hps_grpc_call *call)
{
    const struct hps_buf *body = &call->request->decoder.body;

    grpc_call_request_set(call, GRPC_REQUEST_WHOLE);
    call->request->compressed = call->headers->encoding != GRPC_IDENTITY && body->size > 0;
    call->request->message = body->data;
    call->request->message_size = body->size;
    grpc_call_dispatch_or_hold(call);
}
