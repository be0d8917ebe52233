/* SPDX-License-Identifier: Apache-2.0
 *
 * The request headers of a server call. Each field is processed when it arrives. When the headers
 * are complete, the call is refused or its messages are accepted. Loop thread of the connection.
 */
#include "net/grpc_internal.h"

#include <string.h>

static void read_content_type(struct hps_grpc_call *call, const char *value, size_t size)
{
    static const char type[] = "application/grpc";
    size_t n = sizeof type - 1;

    if (size < n || memcmp(value, type, n) != 0) {
        return;
    }
    call->headers->content_ok = size == n || value[n] == '+' || value[n] == ';';
    call->headers->codec_ok = size == n || value[n] == ';' ||
                              HPS_HTTP_IS(value + n, size - n, "+proto") ||
                              (size - n > 7 && memcmp(value + n, "+proto;", 7) == 0);
}

/* Stores a header for services and the guard. A second "authorization" is an error, because a proxy
 * may have checked only the first or only the last. */
static void keep_header(struct hps_grpc_call *call, const char *name, size_t name_size,
                        const char *value, size_t value_size)
{
    bool is_second = HPS_HTTP_IS(name, name_size, "authorization") &&
                     grpc_fields_get(&call->headers->fields, "authorization", NULL) != NULL;

    if (is_second ||
        grpc_fields_add(&call->headers->fields, name, name_size, value, value_size) != HPS_OK) {
        call->headers->bad_fields = true;
        /* for the error text; no client can send this name */
        hps_ignore(grpc_fields_add(&call->headers->fields, ":bad", 4, name, name_size));
    }
}

void grpc_call_header(struct hps_grpc_call *call, const char *name, size_t name_size,
                      const char *value, size_t value_size)
{
    if (call->request->phase != GRPC_REQUEST_HEADERS) {
        return; /* request trailers have no meaning in gRPC; neither do headers of a refused call */
    }
    if (call->home->is_http) {
        grpc_http_header(call, name, name_size, value, value_size);
        return;
    }
    if (HPS_HTTP_IS(name, name_size, ":path")) {
        call->entry =
            grpc_server_find(call->grpc_loop->server, value, value_size, call->conn->listener_mask);
        if (call->entry == NULL) {
            keep_header(call, name, name_size, value, value_size);
        }
    } else if (HPS_HTTP_IS(name, name_size, ":method")) {
        call->headers->post = HPS_HTTP_IS(value, value_size, "POST");
    } else if (HPS_HTTP_IS(name, name_size, "content-type")) {
        read_content_type(call, value, value_size);
    } else if (HPS_HTTP_IS(name, name_size, "grpc-timeout")) {
        uint64_t us;
        if (hps_grpc_timeout_parse(value, value_size, &us)) {
            call->deadline->at_us = call->start_us + us;
        } else {
            call->headers->bad_timeout = true;
        }
    } else if (HPS_HTTP_IS(name, name_size, "grpc-encoding")) {
        call->headers->encoding = HPS_HTTP_IS(value, value_size, "identity") ? GRPC_IDENTITY
                                  : HPS_HTTP_IS(value, value_size, "gzip")   ? GRPC_GZIP
                                  : HPS_HTTP_IS(value, value_size, "deflate")
                                      ? GRPC_ZLIB
                                      : GRPC_UNKNOWN_ENCODING;
    }
    if (grpc_server_keeps(call->grpc_loop->server, name, name_size)) {
        keep_header(call, name, name_size, value, value_size);
    }
}

void grpc_call_headers_done(struct hps_grpc_call *call)
{
    if (call->request->phase != GRPC_REQUEST_HEADERS) {
        return;
    }
    struct hps_error err;
    hps_status entered;

    call->conn->had_request = true;
    hps_place_busy(call->conn->seat, call->start_us);
    if ((entered = grpc_call_pay(call, &err)) != HPS_OK) {
        grpc_call_refuse(call, entered, "%s", err.text);
    } else if (call->home->is_http) {
        grpc_http_headers_done(call);
    } else if (call->stream->too_large) {
        grpc_call_refuse(call, HPS_EXHAUSTED,
                         "request metadata: the limits are %d bytes, of which each field takes 32 "
                         "beside its name and value, and %d fields",
                         GRPC_METADATA_BYTES_MAX, GRPC_METADATA_FIELDS_MAX);
    } else if (!call->headers->post) {
        grpc_call_answer_http(call, "405", HPS_UNIMPLEMENTED);
    } else if (!call->headers->content_ok) {
        grpc_call_answer_http(call, "415", HPS_INVALID);
    } else if (call->headers->bad_fields) {
        const char *name = grpc_fields_get(&call->headers->fields, ":bad", NULL);
        grpc_call_refuse(call, HPS_INTERNAL,
                         "request metadata %.200s cannot be stored, or was sent twice",
                         name != NULL ? name : "");
    } else if ((entered = grpc_guard_enter(call, &err)) != HPS_OK) {
        grpc_call_refuse(call, entered, "%s", err.text);
    } else if (call->entry == NULL) {
        const char *path = hps_grpc_call_path(call);
        bool elsewhere =
            grpc_server_find(call->grpc_loop->server, path, strlen(path), UINT32_MAX) != NULL;
        grpc_call_refuse(call, HPS_UNIMPLEMENTED,
                         elsewhere
                             ? "method %.200s is not served on this listener, but on another, "
                               "such as the admin socket"
                             : "unknown method %.200s",
                         path);
    } else if (!call->headers->codec_ok) {
        grpc_call_refuse(call, HPS_UNIMPLEMENTED,
                         "content-type: only application/grpc and +proto are known");
    } else if (call->headers->bad_timeout) {
        grpc_call_refuse(call, HPS_INTERNAL,
                         "grpc-timeout: must be 1 to 8 digits and one of HMSmun");
    } else if (call->headers->encoding == GRPC_UNKNOWN_ENCODING) {
        call->reply->offer_encodings = true;
        grpc_call_refuse(call, HPS_UNIMPLEMENTED,
                         "grpc-encoding is not known; identity, gzip and deflate are");
    } else if (call->headers->encoding != GRPC_IDENTITY && !call->grpc_loop->limits->compression) {
        call->reply->offer_encodings = true;
        grpc_call_refuse(call, HPS_UNIMPLEMENTED,
                         "grpc-encoding: this server takes no compressed messages");
    } else {
        size_t limit = call->entry->method->request_bytes_max;
        if (limit == 0) {
            limit = call->grpc_loop->limits->request_bytes_max;
        }
        hps_grpc_decoder_init(&call->request->decoder, limit, false);
        grpc_call_request_set(call, GRPC_REQUEST_OPEN);
        if (call->deadline->at_us != 0) {
            grpc_call_deadline_set(call, GRPC_DEADLINE_ARMED, call->deadline->at_us);
        }
        grpc_call_check_bytes(call);
    }
}
