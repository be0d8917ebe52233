/* SPDX-License-Identifier: Apache-2.0
 *
 * A stream of a session, of a server or a client: its begin, its header blocks and its end. Its
 * bodies are in http2_receive.c and http2_send.c. Loop thread of the connection.
 */
#include "net/http2_internal.h"

#include <string.h>

#include "base/assert.h"
#include "base/heap.h"

/* ---- life ------------------------------------------------------------------------------------ */

struct hps_http2_stream *http2_stream_new(struct hps_http2 *h2)
{
    struct hps_http2_stream *stream = hps_calloc(1, sizeof *stream);

    HPS_DEBUG_ASSERT(hps_loop_is_mine(h2->shared->loop));
    HPS_ASSERT(!http2_is_dead(h2));
    if (stream != NULL) {
        stream->base.http = &h2->base;
        stream->h2 = h2;
        stream->send = h2->options.server ? HTTP2_SEND_HEADERS : HTTP2_SEND_OPEN;
        LIST_INSERT_HEAD(&h2->streams, stream, link);
        h2->n_streams++;
    }
    return stream;
}

void http2_stream_close(struct hps_http2_stream *stream, uint32_t error)
{
    struct hps_http2 *h2 = stream->h2;

    http2_drop_messages(stream);
    if (stream->unconsumed > 0 && !http2_is_dead(h2)) {
        /* Otherwise the connection's window would shrink. Fails only without memory: the next call
         * makes up for it. */
        (void)nghttp2_session_consume_connection(h2->session, stream->unconsumed);
    }
    for (struct hps_http2_stream **at = &h2->sent; *at != NULL; at = &(*at)->sent_next) {
        if (*at == stream) {
            *at = stream->sent_next;
            break;
        }
    }
    LIST_REMOVE(stream, link);
    h2->n_streams--;
    HPS_ASSERT(stream->head == NULL && stream->base.queued == 0);
    if (h2->base.events->on_stream_closed != NULL) {
        h2->base.events->on_stream_closed(h2->base.ctx, &stream->base, error);
    }
    h2->in->last = h2->in->last != stream ? h2->in->last : NULL;
    hps_free(stream);
}

static int cb_stream_close(nghttp2_session *session, int32_t id, uint32_t error, void *ctx)
{
    struct hps_http2 *h2 = ctx;
    struct hps_http2_stream *stream = http2_stream_of(h2, id);

    (void)session;
    if (stream != NULL) {
        http2_stream_close(stream, error);
        http2_kick(h2);
    }
    return http2_is_dead(h2) ? NGHTTP2_ERR_CALLBACK_FAILURE : 0;
}

void http2_stream_callbacks_set(nghttp2_session_callbacks *callbacks)
{
    nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, cb_stream_close);
}

void http2_reset(struct hps_http_stream *base, uint32_t error)
{
    const struct hps_http2_stream *stream = http2_stream_at(base);
    struct hps_http2 *h2 = stream->h2;

    HPS_ASSERT(hps_loop_is_mine(h2->shared->loop));
    if (http2_is_dead(h2)) {
        return;
    }
    if (nghttp2_submit_rst_stream(h2->session, NGHTTP2_FLAG_NONE, stream->id, error) != 0) {
        http2_abort(&h2->base, HPS_HTTP2_INTERNAL_ERROR, "no memory");
    }
    http2_kick(h2);
}

/* ---- header blocks --------------------------------------------------------------------------- */

static void make_fields(nghttp2_nv *out, const struct hps_http_field *fields, unsigned n_fields)
{
    static const char timeout[] = "grpc-timeout";

    HPS_ASSERT(n_fields <= HPS_HTTP_FIELDS_MAX);
    for (unsigned i = 0; i < n_fields; i++) {
        /* Its value changes with each call: it would evict useful entries from the peer's table. */
        bool volatile_value = fields[i].name_size == sizeof timeout - 1 &&
                              memcmp(fields[i].name, timeout, sizeof timeout - 1) == 0;
        out[i] = (nghttp2_nv){
            .name = (uint8_t *)(uintptr_t)fields[i].name,
            .value = (uint8_t *)(uintptr_t)fields[i].value,
            .namelen = fields[i].name_size,
            .valuelen = fields[i].value_size,
            .flags = volatile_value ? NGHTTP2_NV_FLAG_NO_INDEX : NGHTTP2_NV_FLAG_NONE,
        };
    }
}

hps_status hps_http2_request(struct hps_http *http, const struct hps_http_field *fields,
                             unsigned n_fields, void *user, struct hps_http_stream **out_stream)
{
    struct hps_http2 *h2 = http2_of(http);
    nghttp2_nv nv[HPS_HTTP_FIELDS_MAX];

    HPS_ASSERT(!h2->options.server);
    HPS_DEBUG_ASSERT(hps_loop_is_mine(h2->shared->loop));
    if (!hps_http2_can_request(http)) {
        return HPS_UNAVAILABLE;
    }
    struct hps_http2_stream *stream = http2_stream_new(h2);
    if (stream == NULL) {
        return HPS_NO_MEMORY;
    }
    stream->base.user = user;
    make_fields(nv, fields, n_fields);
    nghttp2_data_provider body = http2_body(stream);
    int32_t id = nghttp2_submit_request(h2->session, NULL, nv, n_fields, &body, stream);
    if (id < 0) {
        LIST_REMOVE(stream, link);
        h2->n_streams--;
        hps_free(stream);
        return id == NGHTTP2_ERR_NOMEM ? HPS_NO_MEMORY : HPS_UNAVAILABLE;
    }
    stream->id = id;
    http2_kick(h2);
    *out_stream = &stream->base;
    return HPS_OK;
}

hps_status http2_respond(struct hps_http_stream *base, const struct hps_http_field *fields,
                         unsigned n_fields, bool end)
{
    struct hps_http2_stream *stream = http2_stream_at(base);
    struct hps_http2 *h2 = stream->h2;
    nghttp2_nv nv[HPS_HTTP_FIELDS_MAX];
    nghttp2_data_provider body = http2_body(stream);

    HPS_ASSERT(h2->options.server && stream->send == HTTP2_SEND_HEADERS);
    if (http2_is_dead(h2)) {
        return HPS_CLOSED;
    }
    make_fields(nv, fields, n_fields);
    if (nghttp2_submit_response(h2->session, stream->id, nv, n_fields, end ? NULL : &body) != 0) {
        return HPS_NO_MEMORY;
    }
    http2_stream_send_set(stream, end ? HTTP2_SEND_FINISHED : HTTP2_SEND_OPEN);
    http2_kick(h2);
    return HPS_OK;
}

hps_status http2_trailers(struct hps_http_stream *base, const struct hps_http_field *fields,
                          unsigned n_fields)
{
    const struct hps_http2_stream *stream = http2_stream_at(base);
    struct hps_http2 *h2 = stream->h2;
    nghttp2_nv nv[HPS_HTTP_FIELDS_MAX];

    HPS_ASSERT(stream->send == HTTP2_SEND_FINISHED);
    if (http2_is_dead(h2)) {
        return HPS_CLOSED;
    }
    make_fields(nv, fields, n_fields);
    return nghttp2_submit_trailer(h2->session, stream->id, nv, n_fields) == 0 ? HPS_OK
                                                                              : HPS_NO_MEMORY;
}
