/* SPDX-License-Identifier: Apache-2.0
 *
 * A session as a connection of net/http.h, for the gRPC server. Loop thread of the connection.
 */
#include "net/http2_internal.h"

#include "base/container.h"

static struct hps_http2 *h2_of(struct hps_http *http)
{
    return HPS_CONTAINER_OF(http, struct hps_http2, base);
}

static const struct hps_http2 *h2_of_const(const struct hps_http *http)
{
    return HPS_CONTAINER_OF(http, struct hps_http2, base);
}

static struct hps_http2_stream *stream_of(struct hps_http_stream *stream)
{
    return HPS_CONTAINER_OF(stream, struct hps_http2_stream, base);
}

/* ---- the table of functions
 * ------------------------------------------------------------------- */

static void op_free(struct hps_http *http)
{
    hps_http2_free(h2_of(http));
}

static void op_abort(struct hps_http *http, uint32_t error, const char *why)
{
    hps_http2_abort(h2_of(http), error, why);
}

static void op_drain(struct hps_http *http)
{
    hps_http2_drain(h2_of(http));
}

static void op_drain_now(struct hps_http *http)
{
    hps_http2_drain_now(h2_of(http));
}

static void op_ping(struct hps_http *http)
{
    hps_http2_ping(h2_of(http));
}

static const struct hps_conn *op_conn(const struct hps_http *http)
{
    return hps_http2_conn(h2_of_const(http));
}

static bool op_is_ready(const struct hps_http *http)
{
    return hps_http2_is_ready(h2_of_const(http));
}

static bool op_peer_spoke(const struct hps_http *http)
{
    return hps_http2_peer_spoke(h2_of_const(http));
}

static bool op_received(const struct hps_http *http)
{
    return hps_http2_received(h2_of_const(http));
}

static bool op_is_limited(const struct hps_http *http)
{
    return hps_http2_limited(h2_of_const(http));
}

static uint64_t op_written_bodies(const struct hps_http *http)
{
    return hps_http2_written_bodies(h2_of_const(http));
}

static hps_status op_respond(struct hps_http_stream *stream, const struct hps_http_field *fields,
                             unsigned n_fields, bool end)
{
    return hps_http2_respond(stream_of(stream), fields, n_fields, end);
}

static hps_status op_send(struct hps_http_stream *stream, const void *prefix, size_t prefix_size,
                          const struct hps_slice *slices, unsigned n_slices)
{
    return hps_http2_send(stream_of(stream), prefix, prefix_size, slices, n_slices);
}

static hps_status op_send_copy(struct hps_http_stream *stream, const void *prefix,
                               size_t prefix_size, const void *data, size_t size)
{
    return hps_http2_send_copy(stream_of(stream), prefix, prefix_size, data, size);
}

static void op_finish(struct hps_http_stream *stream)
{
    hps_http2_finish(stream_of(stream));
}

static hps_status op_trailers(struct hps_http_stream *stream, const struct hps_http_field *fields,
                              unsigned n_fields)
{
    return hps_http2_trailers(stream_of(stream), fields, n_fields);
}

static void op_reset(struct hps_http_stream *stream, uint32_t error)
{
    hps_http2_reset(stream_of(stream), error);
}

static void op_consume(struct hps_http_stream *stream, size_t size)
{
    hps_http2_consume(stream_of(stream), size);
}

static bool op_stream_is_limited(const struct hps_http_stream *stream)
{
    return hps_http2_stream_limited(HPS_CONTAINER_OF(stream, struct hps_http2_stream, base));
}

static const struct hps_http_ops ops = {
    .free = op_free,
    .abort = op_abort,
    .drain = op_drain,
    .drain_now = op_drain_now,
    .ping = op_ping,
    .conn = op_conn,
    .is_ready = op_is_ready,
    .peer_spoke = op_peer_spoke,
    .received = op_received,
    .is_limited = op_is_limited,
    .written_bodies = op_written_bodies,
    .respond = op_respond,
    .send = op_send,
    .send_copy = op_send_copy,
    .finish = op_finish,
    .trailers = op_trailers,
    .reset = op_reset,
    .consume = op_consume,
    .stream_is_limited = op_stream_is_limited,
};

/* ---- events ---------------------------------------------------------------------------------- */

static void on_stream(void *ctx, struct hps_http2_stream *stream)
{
    struct hps_http *http = ctx;

    http->events->on_stream(http->ctx, &stream->base);
}

static void on_header(void *ctx, struct hps_http2_stream *stream, const char *name,
                      size_t name_size, const char *value, size_t value_size)
{
    struct hps_http *http = ctx;

    http->events->on_header(http->ctx, &stream->base, name, name_size, value, value_size);
}

static void on_headers(void *ctx, struct hps_http2_stream *stream)
{
    struct hps_http *http = ctx;

    http->events->on_headers(http->ctx, &stream->base);
}

static void on_data(void *ctx, struct hps_http2_stream *stream, const uint8_t *data, size_t size)
{
    struct hps_http *http = ctx;

    http->events->on_data(http->ctx, &stream->base, data, size);
}

static void on_end(void *ctx, struct hps_http2_stream *stream)
{
    struct hps_http *http = ctx;

    http->events->on_end(http->ctx, &stream->base);
}

static void on_trailers(void *ctx, struct hps_http2_stream *stream)
{
    struct hps_http *http = ctx;

    http->events->on_trailers(http->ctx, &stream->base);
}

static void on_sent(void *ctx, struct hps_http2_stream *stream)
{
    struct hps_http *http = ctx;

    http->events->on_sent(http->ctx, &stream->base);
}

static void on_released(void *ctx)
{
    struct hps_http *http = ctx;

    http->events->on_released(http->ctx);
}

static void on_stream_closed(void *ctx, struct hps_http2_stream *stream, uint32_t error)
{
    struct hps_http *http = ctx;

    http->events->on_stream_closed(http->ctx, &stream->base, error);
}

static void on_closed(void *ctx, const struct hps_error *why)
{
    struct hps_http *http = ctx;

    http->events->on_closed(http->ctx, why);
}

static const struct hps_http2_events callbacks = {
    .on_stream = on_stream,
    .on_header = on_header,
    .on_headers = on_headers,
    .on_data = on_data,
    .on_end = on_end,
    .on_trailers = on_trailers,
    .on_sent = on_sent,
    .on_released = on_released,
    .on_stream_closed = on_stream_closed,
    .on_closed = on_closed,
};

hps_status hps_http2_serve(struct hps_http2_shared *shared, struct hps_conn *conn,
                           const struct hps_http2_options *options,
                           const struct hps_http_events *events, void *ctx,
                           struct hps_http **out_http, struct hps_error *err)
{
    struct hps_http2 *h2;
    hps_status status;

    HPS_ASSERT(options->server);
    status = hps_http2_new(shared, conn, options, &callbacks, NULL, &h2, err);
    if (status == HPS_OK) { /* no callback runs before the loop's next turn */
        h2->ctx = &h2->base;
        h2->base.ops = &ops;
        h2->base.events = events;
        h2->base.ctx = ctx;
        *out_http = &h2->base;
    }
    return status;
}
