/* SPDX-License-Identifier: Apache-2.0
 *
 * Sends on an HTTP/1.1 connection of the gRPC server: first text (heads and small bodies), then the
 * pieces of a body, which go from their blocks to the kernel. A block is released when the kernel
 * has its bytes. Loop thread of the connection.
 */
#include "base/container.h"
#include "net/http1_server_internal.h"

#include <stdio.h>
#include <string.h>

#include "base/block.h"
#include "base/clock.h"
#include "base/heap.h"
#include "net/grpc.h"
#include "net/http1_head.h"

enum {
    IOV_MAX_BATCH = 64,
    BATCH_BYTES = 1024 * 1024, /* per writev, as with HTTP/2 */
    BATCH_BYTES_BUSY = 256 * 1024,
    TURN_BYTES = 1024 * 1024, /* per connection and loop turn, so that small calls get through */
};

/* ---- the queue ------------------------------------------------------------------------------- */

static struct http1 *http1_of(struct hps_http_stream *stream)
{
    return HPS_CONTAINER_OF(stream->http, struct http1, base);
}

static bool is_empty(const struct http1 *http)
{
    return http->out->text_at == http->out->text.size && http->out->at == http->out->n_pieces;
}

static void count_queued(struct http1 *http, size_t size)
{
    http->base.queued += size;
    http->request->stream.queued += size;
    atomic_fetch_add_explicit(http->queued, size, memory_order_relaxed);
}

static void count_gone(struct http1 *http, size_t size)
{
    HPS_ASSERT(size <= http->base.queued && size <= http->request->stream.queued);
    http->base.queued -= size;
    http->request->stream.queued -= size;
    atomic_fetch_sub_explicit(http->queued, size, memory_order_relaxed);
}

static void clear(struct http1 *http)
{
    hps_buf_fini(&http->out->text); /* most connections are idle */
    hps_free(http->out->pieces);
    http->out->pieces = NULL;
    http->out->n_pieces = 0;
    http->out->at = 0;
    http->out->text_at = 0;
    http->out->heads = 0;
}

void http1_drop_out(struct http1 *http)
{
    for (unsigned i = http->out->at; i < http->out->n_pieces; i++) {
        hps_block_unref(http->out->pieces[i].block);
    }
    count_gone(http, http->base.queued);
    clear(http);
    http->base.blocked = false;
}

/* ---- writing --------------------------------------------------------------------------------- */

static int gather(const struct http1 *http, struct iovec iov[IOV_MAX_BATCH])
{
    size_t text = http->out->text.size - http->out->text_at;
    size_t most = hps_run_is_busy(http->item.run) ? BATCH_BYTES_BUSY : BATCH_BYTES;
    size_t size = text < most ? text : most;
    int n = 0;

    if (size > 0) {
        iov[n++] =
            (struct iovec){.iov_base = http->out->text.data + http->out->text_at, .iov_len = size};
    }
    for (unsigned i = http->out->at; i < http->out->n_pieces && n < IOV_MAX_BATCH; i++) {
        const struct http1_piece *piece = &http->out->pieces[i];
        size_t left = most > size ? most - size : 0;
        size_t take = piece->size < left ? piece->size : left;
        if (take == 0) {
            break;
        }
        iov[n++] = (struct iovec){.iov_base = (void *)(uintptr_t)piece->data, .iov_len = take};
        size += take;
    }
    return n;
}

/* Marks `size` more bytes as written. Returns how many of them belong to bodies. */
static size_t advance(struct http1 *http, size_t size)
{
    size_t text = http->out->text.size - http->out->text_at;
    size_t bodies = 0;

    text = text < size ? text : size;
    size_t heads =
        http->out->heads > http->out->text_at ? http->out->heads - http->out->text_at : 0;
    heads = heads < text ? heads : text;
    http->out->text_at += text;
    bodies = text - heads;
    size -= text;
    while (size > 0) {
        struct http1_piece *piece = &http->out->pieces[http->out->at];
        HPS_ASSERT(http->out->at < http->out->n_pieces);
        size_t take = piece->size < size ? piece->size : size;
        piece->data += take;
        piece->size -= take;
        size -= take;
        bodies += take;
        if (piece->size == 0) {
            hps_block_unref(piece->block);
            http->out->at++;
        }
    }
    return bodies;
}

static void wrote(struct http1 *http, size_t size)
{
    size_t bodies = advance(http, size);

    http->base.written += size;
    http->out->bodies += bodies;
    http->request->stream.framed += bodies;
    if (is_empty(http)) {
        clear(http);
    }
    if (bodies > 0) {
        count_gone(http, bodies);
        if (http->request->is_open) {
            http->base.events->on_sent(http->base.ctx, &http->request->stream);
        }
        if (!http1_is_dead(http)) {
            http->base.events->on_released(http->base.ctx);
        }
    }
}

void http1_write_out(struct http1 *http)
{
    struct iovec iov[IOV_MAX_BATCH];
    size_t share = 0;

    HPS_ASSERT(http->busy > 0 && http->phase > HTTP1_HANDSHAKE);
    http->base.blocked = false;
    while (!http1_is_dead(http) && !http->aborting && !is_empty(http)) {
        size_t size = 0;
        if (share >= TURN_BYTES || hps_run_is_spent(http->item.run)) {
            http1_kick(http);
            return;
        }
        hps_status status = hps_conn_writev(http->base.conn, iov, gather(http, iov), &size);
        if (status == HPS_AGAIN) {
            http->base.blocked = true;
            return;
        }
        if (status != HPS_OK) {
            http1_fail(http, HPS_CLOSED, "connection lost while writing");
            return;
        }
        share += size;
        wrote(http, size);
        hps_run_see(http->item.run, hps_clock_us());
    }
    bool is_last = http->phase == HTTP1_LAST && !http->request->is_open;
    if (!http1_is_dead(http) && !http->aborting && is_empty(http) &&
        (http->request->finished || is_last)) {
        http1_answered(http);
    }
}

/* ---- responses ------------------------------------------------------------------------------- */

/* A field as it is sent: "content-length" becomes "Content-Length". Control characters become
 * blanks. */
static hps_status put_field(struct hps_buf *out, const struct hps_http_field *field)
{
    bool begins = true;

    if (hps_buf_reserve(out, field->name_size + field->value_size + 4) != HPS_OK) {
        return HPS_NO_MEMORY;
    }
    uint8_t *to = out->data + out->size;
    for (size_t i = 0; i < field->name_size; i++) {
        char c = field->name[i];
        *to++ = (uint8_t)(begins && c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
        begins = c == '-';
    }
    *to++ = ':';
    *to++ = ' ';
    for (size_t i = 0; i < field->value_size; i++) {
        char c = field->value[i];
        *to++ = (uint8_t)(((unsigned char)c < ' ' && c != '\t') || c == '\x7f' ? ' ' : c);
    }
    *to++ = '\r';
    *to++ = '\n';
    out->size = (size_t)(to - out->data);
    return HPS_OK;
}

static hps_status put_text(struct hps_buf *out, const char *text)
{
    return hps_buf_append(out, text, strlen(text));
}

static hps_status put_head(struct http1 *http, const struct hps_http_field *fields,
                           unsigned n_fields)
{
    struct hps_buf *out = &http->out->text;
    unsigned status = 0;

    HPS_ASSERT(n_fields > 0 && HPS_HTTP_IS(fields->name, fields->name_size, ":status"));
    for (size_t i = 0; i < fields->value_size; i++) {
        status = status * 10 + (unsigned)(fields->value[i] - '0');
    }
    if (put_text(out, "HTTP/1.1 ") != HPS_OK ||
        hps_buf_append(out, fields->value, fields->value_size) != HPS_OK ||
        put_text(out, " ") != HPS_OK || put_text(out, hps_http1_reason(status)) != HPS_OK ||
        put_text(out, "\r\n") != HPS_OK) {
        return HPS_NO_MEMORY;
    }
    for (unsigned i = 1; i < n_fields; i++) {
        if (put_field(out, &fields[i]) != HPS_OK) {
            return HPS_NO_MEMORY;
        }
    }
    return put_text(out, http->close                 ? "Connection: close\r\n\r\n"
                         : http->request->minor == 0 ? "Connection: keep-alive\r\n\r\n"
                                                     : "\r\n");
}

hps_status http1_respond(struct hps_http_stream *stream, const struct hps_http_field *fields,
                         unsigned n_fields, bool end)
{
    struct http1 *http = http1_of(stream);
    size_t before = http->out->text.size;
    bool early = http->phase == HTTP1_BODY;

    HPS_ASSERT(http->request->is_open && !http->request->responded);
    if (http1_is_dead(http) || http->aborting) {
        return HPS_CLOSED;
    }
    http->close = early || !http->request->keep_alive || http->draining || http->in->half_closed;
    if (put_head(http, fields, n_fields) != HPS_OK) {
        http->out->text.size = before;
        return HPS_NO_MEMORY;
    }
    http->out->heads = http->out->text.size;
    http->request->responded = true;
    http->request->finished = end;
    if (early) {
        http1_phase_set(http, HTTP1_LAST);
    }
    http1_kick(http);
    return HPS_OK;
}

hps_status http1_send(struct hps_http_stream *stream, const void *prefix, size_t prefix_size,
                      const struct hps_slice *slices, unsigned n_slices)
{
    struct http1 *http = http1_of(stream);
    struct http1_piece *pieces = NULL;
    hps_status status = HPS_CLOSED;
    size_t size = 0;

    HPS_ASSERT(prefix_size == 0 && http->request->responded && !http->request->finished);
    HPS_ASSERT(http->out->pieces == NULL && n_slices > 0);
    (void)prefix;
    if (!http1_is_dead(http) && !http->aborting) {
        pieces = hps_alloc(n_slices * sizeof *pieces);
        status = pieces != NULL ? HPS_OK : HPS_NO_MEMORY;
    }
    for (unsigned i = 0; i < n_slices; i++) {
        if (pieces == NULL || slices[i].size == 0) {
            hps_block_unref(slices[i].block);
            continue;
        }
        pieces[http->out->n_pieces++] = (struct http1_piece){
            .block = slices[i].block, .data = slices[i].data, .size = slices[i].size};
        size += slices[i].size;
    }
    http->out->pieces = pieces;
    count_queued(http, size);
    http1_kick(http);
    return status;
}

hps_status http1_send_copy(struct hps_http_stream *stream, const void *prefix, size_t prefix_size,
                           const void *data, size_t size)
{
    struct http1 *http = http1_of(stream);

    HPS_ASSERT(prefix_size == 0 && http->request->responded && !http->request->finished);
    HPS_ASSERT(http->out->pieces == NULL && http->out->heads == http->out->text.size && size > 0);
    (void)prefix;
    if (http1_is_dead(http) || http->aborting) {
        return HPS_CLOSED;
    }
    if (hps_buf_append(&http->out->text, data, size) != HPS_OK) {
        return HPS_NO_MEMORY;
    }
    count_queued(http, size);
    http1_kick(http);
    return HPS_OK;
}

void http1_continue(struct http1 *http)
{
    HPS_ASSERT(http->request->is_open && !http->request->responded);
    /* Without memory it is left out: the client continues after a moment. */
    if (hps_buf_printf(&http->out->text, "HTTP/1.1 100 Continue\r\n\r\n") == HPS_OK) {
        http->out->heads = http->out->text.size;
        http1_kick(http);
    }
}

void http1_refuse(struct http1 *http, unsigned status, const char *why)
{
    struct hps_buf *out = &http->out->text;
    size_t before = out->size;
    int size = snprintf(NULL, 0, "{\"error\":\"malformed request: %s\"}", why);

    HPS_ASSERT(!http->request->is_open && http->base.queued == 0);
    if (http->why.status == HPS_OK) {
        hps_ignore(hps_error_set(&http->why, HPS_INVALID, "%s: malformed request: %s",
                                 hps_conn_peer(http->base.conn), why));
    }
    http->close = true;
    http1_phase_set(http, HTTP1_LAST);
    http1_kick(http);
    if (hps_buf_printf(out,
                       "HTTP/1.1 %u %s\r\nContent-Type: application/json\r\n"
                       "Content-Length: %d\r\nConnection: close\r\n\r\n"
                       "{\"error\":\"malformed request: %s\"}",
                       status, hps_http1_reason(status), size, why) != HPS_OK) {
        out->size = before; /* without memory the connection just closes */
    }
    http->out->heads = out->size;
}
