/* SPDX-License-Identifier: Apache-2.0
 *
 * The reply to an HTTP/1.1 request. Status and size are sent first. Loop thread of the connection.
 */
#include "net/grpc_internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/text.h"

enum {
    ERROR_BYTES_MAX = 16 * 1024,
    NUMBER_BYTES = 24,
};

/* ---- the head of the reply ------------------------------------------------------------------- */

static unsigned status_of(int grpc_code)
{
    static const uint16_t statuses[] = {200, 400, 400, 400, 504, 404, 400, 403, 429,
                                        400, 409, 400, 501, 500, 503, 500, 401};

    HPS_ASSERT(grpc_code >= 0 && (size_t)grpc_code < sizeof statuses / sizeof *statuses);
    return statuses[grpc_code];
}

/* Buffers of field values; they must stay valid until the fields are sent. */
struct texts {
    char status[NUMBER_BYTES];
    char size[NUMBER_BYTES];
    char retry[NUMBER_BYTES];
};

static struct hps_http_field number(const char *name, uint64_t value, char text[NUMBER_BYTES])
{
    size_t at = NUMBER_BYTES;

    do {
        text[--at] = (char)('0' + value % 10);
        value /= 10;
    } while (value > 0);
    return (struct hps_http_field){name, strlen(name), text + at, NUMBER_BYTES - at};
}

static unsigned list_fields(struct hps_grpc_call *call, size_t size, struct texts *texts,
                            struct hps_http_field *out)
{
    unsigned status =
        call->reply->http_status != 0 ? call->reply->http_status : status_of(call->reply->code);
    const char *pushback = grpc_fields_get(&call->reply->trailers, "grpc-retry-pushback-ms", NULL);
    unsigned n = 0;

    out[n++] = number(":status", status, texts->status);
    if (size > 0 && grpc_fields_get(&call->reply->fields, "content-type", NULL) == NULL) {
        out[n++] = HPS_HTTP_FIELD_LITERAL("content-type", "application/json");
    }
    if (status != 204 && status != 304) {
        out[n++] = number("content-length", size, texts->size);
    }
    if (status == 401) {
        out[n++] = HPS_HTTP_FIELD_LITERAL("www-authenticate", "Bearer");
    }
    if (pushback != NULL) {
        uint64_t ms = strtoull(pushback, NULL, 10);
        out[n++] = number("retry-after", ms / 1000 + (ms % 1000 != 0), texts->retry);
    }
    n += grpc_fields_list(&call->reply->fields, out + n, GRPC_FIELDS_MAX / 2);
    return n + grpc_fields_list(&call->reply->trailers, out + n, GRPC_FIELDS_MAX);
}

hps_status grpc_http_respond(struct hps_grpc_call *call, size_t size, bool end)
{
    struct hps_http_field fields[HPS_HTTP_FIELDS_MAX];
    struct texts texts;
    unsigned n = list_fields(call, size, &texts, fields);

    grpc_conn_see(call->conn, hps_clock_us());
    return hps_http_respond(call->stream, fields, n, end);
}

/* ---- a reply without a message --------------------------------------------------------------- */

/* Appends `text`, escaped for use in a JSON string. */
static hps_status append_json(struct hps_buf *out, const char *text)
{
    hps_status status = HPS_OK;

    while (*text != '\0' && status == HPS_OK) {
        size_t size = strcspn(text, "\"\\");
        if (size == 0) {
            status = hps_buf_printf(out, "\\%c", *text);
            text++;
            continue;
        }
        size_t capacity = size * HPS_TEXT_GROWTH + 1;
        status = hps_buf_reserve(out, capacity);
        if (status == HPS_OK) {
            out->size += hps_text_plain(text, size, (char *)out->data + out->size, capacity);
        }
        text += size;
    }
    return status;
}

/* Makes the body {"error": text}. It stays empty if there is no memory. */
static void make_error(struct hps_buf *out, const char *text)
{
    if (hps_buf_printf(out, "{\"error\":\"") != HPS_OK || append_json(out, text) != HPS_OK ||
        hps_buf_printf(out, "\"}") != HPS_OK) {
        hps_buf_clear(out);
    }
}

void grpc_http_answer_alone(struct hps_grpc_call *call, const char *message)
{
    struct hps_buf body;

    hps_buf_init(&body, ERROR_BYTES_MAX);
    if (call->reply->code != 0 && !call->reply->bare) {
        make_error(&body, message != NULL ? message : "");
    }
    bool with_body = body.size > 0 && !call->reply->head;
    grpc_call_reply_set(call, GRPC_REPLY_STATUS);
    call->reply->progress.at_us = hps_loop_now_us(call->loop);
    hps_status status = grpc_http_respond(call, body.size, !with_body);
    if (status == HPS_OK && with_body) {
        status = hps_http_send_copy(call->stream, NULL, 0, body.data, body.size);
    }
    if (status != HPS_OK) {
        grpc_call_reset(call, HPS_HTTP2_INTERNAL_ERROR);
    } else if (with_body) {
        hps_http_finish(call->stream);
    }
    hps_buf_fini(&body);
}
