/* SPDX-License-Identifier: Apache-2.0
 *
 * The life of a session (see http2.h): creation, events of its socket, and the end, when none of
 * its callbacks is running. http2_receive.c receives, http2_send.c sends, http2_stream.c has the
 * streams. Loop thread of the connection.
 */
#include "net/http2_internal.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"

/* ---- shared ---------------------------------------------------------------------------------- */

struct hps_http2_shared *hps_http2_shared_new(struct hps_loop *loop)
{
    struct hps_http2_shared *shared = hps_calloc(1, sizeof *shared);

    if (shared != NULL) {
        shared->loop = loop;
        shared->n_users = 1;
        atomic_init(&shared->queued, 0);
    }
    return shared;
}

void hps_http2_shared_free(struct hps_http2_shared *shared)
{
    HPS_ASSERT(shared == NULL || shared->n_users > 0);
    if (shared == NULL || --shared->n_users > 0) {
        return; /* a connection freed within its callback frees it after that */
    }
    HPS_ASSERT(hps_http2_shared_queued(shared) == 0);
    http2_batches_free(shared);
    hps_free(shared);
}

size_t hps_http2_shared_queued(const struct hps_http2_shared *shared)
{
    return atomic_load_explicit(&shared->queued, memory_order_relaxed);
}

/* ---- invariants ------------------------------------------------------------------------------ */

/* Walks the lists, which may be long. */
static bool counts_add_up(const struct hps_http2 *h2)
{
    const struct hps_http2_stream *at;
    unsigned n_streams = 0;
    unsigned n_sent = 0;
    unsigned n_in_sent = 0;
    size_t queued = 0;

    LIST_FOREACH (at, &h2->streams, link) {
        HPS_DEBUG_SANE(http2_stream_sane(at));
        n_streams++;
        n_in_sent += at->in_sent;
        queued += at->base.queued;
    }
    for (at = h2->sent; at != NULL; at = at->sent_next) {
        n_sent++;
    }
    /* Bytes of closed streams in a batch count too. */
    return n_streams == h2->n_streams && n_sent == n_in_sent && queued <= h2->base.queued;
}

void http2_sane(const struct hps_http2 *h2)
{
    bool shaking = h2->phase == HTTP2_HANDSHAKE || h2->phase == HTTP2_ABANDONED;

    HPS_DEBUG_ASSERT(hps_loop_is_mine(h2->shared->loop));
    HPS_ASSERT(h2->base.conn != NULL && h2->session != NULL);
    HPS_ASSERT(!http2_is_dead(h2));
    /* Only the next turn ends an abort, so that must be scheduled. */
    HPS_ASSERT(!http2_is_aborting(h2) || hps_run_is_added(&h2->item));
    HPS_ASSERT(h2->options.server || h2->phase != HTTP2_GOAWAY);

    if (shaking) {
        HPS_ASSERT(h2->out->position == 0 && h2->out->batch == NULL);
        HPS_ASSERT(!h2->in->peer_spoke && !h2->in->peer_goaway);
        HPS_ASSERT(!h2->options.server || h2->n_streams == 0);
    }

    /* Every framed byte is in the batch or in the kernel. Blocks in the kernel are released. */
    HPS_ASSERT(h2->out->position - h2->base.written == http2_batch_left(h2));
    HPS_ASSERT(!h2->base.blocked || http2_batch_left(h2) > 0);
    HPS_ASSERT(http2_unreleased_from(h2) > h2->base.written);

    HPS_ASSERT((h2->n_streams == 0) == LIST_EMPTY(&h2->streams));
    HPS_ASSERT(h2->base.queued <= hps_http2_shared_queued(h2->shared));
    HPS_ASSERT(h2->base.queued == 0 || h2->n_streams > 0 || !STAILQ_EMPTY(&h2->out->unreleased));
    HPS_ASSERT(h2->sent == NULL && !h2->released); /* http2_tell_sent has run */
    HPS_DEBUG_ASSERT(counts_add_up(h2));
}

/* ---- life ------------------------------------------------------------------------------------ */

static void destroy(struct hps_http2 *h2)
{
    h2->busy++; /* callbacks from now on must not destroy it again */
    hps_run_remove(&h2->item);
    h2->base.received = hps_conn_received(h2->base.conn);
    hps_conn_free(h2->base.conn);
    h2->base.conn = NULL;
    if (h2->out->batch != NULL) {
        http2_batch_give(h2->shared, h2->out->batch);
        h2->out->batch = NULL;
    }
    http2_release_written(h2, UINT64_MAX);
    h2->base.written = h2->out->position;
    while (!LIST_EMPTY(&h2->streams)) {
        http2_stream_close(LIST_FIRST(&h2->streams), HPS_HTTP2_LOST);
    }
    http2_release_written(h2, UINT64_MAX);
    HPS_ASSERT(h2->base.queued == 0 && h2->n_streams == 0);
    nghttp2_session_del(h2->session);
    if (h2->phase == HTTP2_FAILED) {
        h2->base.events->on_closed(h2->base.ctx, &h2->why);
    }
    hps_http2_shared_free(h2->shared);
    hps_free(h2);
}

static void enter(struct hps_http2 *h2)
{
    h2->busy++;
}

static void leave(struct hps_http2 *h2)
{
    HPS_ASSERT(h2->busy > 0);
    if (--h2->busy > 0) {
        return;
    }
    if (http2_is_dead(h2)) {
        destroy(h2);
    } else {
        HPS_DEBUG_SANE(http2_sane(h2));
    }
}

/* Ends the connection if there is no more to send or receive; else sets the wanted events. */
static void check_end(struct hps_http2 *h2)
{
    bool pending = http2_batch_left(h2) > 0;
    struct hps_error why;

    if (http2_is_dead(h2)) {
        return;
    }
    if (h2->phase == HTTP2_DRAINING && !h2->options.server && h2->n_streams == 0) {
        http2_abort(&h2->base, HPS_HTTP2_NO_ERROR, "no longer needed");
        return;
    }
    if (h2->phase == HTTP2_ABORTING && (h2->base.blocked || !pending)) {
        http2_fail(h2, &h2->why);
    } else if (!pending && nghttp2_session_want_read(h2->session) == 0 &&
               nghttp2_session_want_write(h2->session) == 0) {
        hps_error_set(&why, HPS_CLOSED, "%s: connection ended", hps_conn_peer(h2->base.conn));
        http2_fail(h2, &why);
    } else {
        unsigned events = HPS_LOOP_READ | (h2->base.blocked ? HPS_LOOP_WRITE : 0u);
        if (hps_conn_want(h2->base.conn, events) != HPS_OK) {
            hps_error_set(&why, HPS_NO_MEMORY, "%s: cannot watch the socket",
                          hps_conn_peer(h2->base.conn));
            http2_fail(h2, &why);
        }
    }
}

/* ---- the socket ------------------------------------------------------------------------------ */

static void shake_hands(struct hps_http2 *h2)
{
    struct hps_error why;
    hps_status status = hps_conn_handshake(h2->base.conn, &why);

    if (status == HPS_AGAIN) {
        return;
    }
    if (status != HPS_OK) {
        http2_fail(h2, &why);
        return;
    }
    http2_phase_set(h2, HTTP2_OPEN);
    h2->base.read_us = hps_loop_now_us(h2->shared->loop);
    if (h2->base.events->on_ready != NULL) {
        h2->base.events->on_ready(h2->base.ctx);
    }
    http2_kick(h2);
}

static void settle(struct hps_http2 *h2)
{
    if (h2->phase == HTTP2_ABANDONED) {
        http2_fail(h2, &h2->why);
    } else if (h2->phase == HTTP2_HANDSHAKE) {
        shake_hands(h2);
    } else {
        if (!h2->base.blocked) {
            http2_write_out(h2);
        }
        check_end(h2);
    }
}

/* The socket is ready. */
static void serve(struct hps_http2 *h2, unsigned events)
{
    if (h2->phase == HTTP2_HANDSHAKE) {
        shake_hands(h2);
    } else if (h2->phase != HTTP2_ABANDONED) {
        if ((events & HPS_LOOP_WRITE) != 0 && !http2_is_dead(h2)) {
            http2_write_out(h2);
            check_end(h2);
        }
        if ((events & HPS_LOOP_READ) != 0 && !http2_is_dead(h2)) {
            http2_read_in(h2);
        }
    }
}

/* What was read is answered in the same slice. */
static void work(struct hps_run_item *item, unsigned events)
{
    struct hps_http2 *h2 = HPS_CONTAINER_OF(item, struct hps_http2, item);

    enter(h2);
    if ((events & ~(unsigned)HTTP2_KICK) != 0) {
        serve(h2, events);
    }
    if (((events | hps_run_take(item, HTTP2_KICK)) & HTTP2_KICK) != 0 && !http2_is_dead(h2)) {
        settle(h2);
    }
    leave(h2);
}

static void on_ready(void *ctx, unsigned events)
{
    struct hps_http2 *h2 = ctx;

    if (!http2_is_dead(h2)) {
        if ((h2->item.events & events) != 0) {
            hps_conn_rest(h2->base.conn, events); /* it has been queued for a whole turn */
        }
        hps_run_add(&h2->item, events);
    }
}

/* ---- the table of functions ------------------------------------------------------------------ */

static void op_free(struct hps_http *http)
{
    struct hps_http2 *h2 = http2_of(http);

    if (h2->phase != HTTP2_FREED) {
        http2_phase_set(h2, HTTP2_FREED);
        if (h2->busy == 0) {
            destroy(h2);
        }
    }
}

static void op_drain(struct hps_http *http)
{
    struct hps_http2 *h2 = http2_of(http);

    HPS_ASSERT(h2->phase != HTTP2_HANDSHAKE);
    if (h2->phase != HTTP2_OPEN) {
        return; /* it is ending already */
    }
    http2_phase_set(h2, HTTP2_DRAINING);
    if (h2->options.server) {
        /* If this fails for lack of memory, http2_drain_now still sends the final GOAWAY. */
        (void)nghttp2_submit_shutdown_notice(h2->session);
        (void)nghttp2_submit_ping(h2->session, NGHTTP2_FLAG_NONE, NULL);
    }
    http2_kick(h2);
}

static void op_ping(struct hps_http *http)
{
    struct hps_http2 *h2 = http2_of(http);

    if (!http2_is_dead(h2)) {
        (void)nghttp2_submit_ping(h2->session, NGHTTP2_FLAG_NONE, NULL); /* the next one will do */
        http2_kick(h2);
    }
}

static bool op_peer_spoke(const struct hps_http *http)
{
    return http2_of(http)->in->peer_spoke;
}

static bool op_is_limited(const struct hps_http *http)
{
    const struct hps_http2 *h2 = http2_of(http);

    return http->blocked || h2->in->opened > h2->out->n_turns ||
           nghttp2_session_get_remote_window_size(h2->session) <= 0;
}

static uint64_t op_written_bodies(const struct hps_http *http)
{
    const struct http2_out *out = http2_of(http)->out;

    HPS_ASSERT(http->written >= out->heads);
    uint64_t bytes = http->written - out->heads;
    return bytes < out->bodies ? bytes : out->bodies;
}

static bool op_stream_is_limited(const struct hps_http_stream *base)
{
    const struct hps_http2_stream *stream = http2_stream_at(base);
    const struct hps_http2 *h2 = stream->h2;
    uint64_t n_turns = h2->out->n_turns;

    return stream->opened > n_turns || h2->in->opened_streams > n_turns ||
           nghttp2_session_get_stream_remote_window_size(h2->session, stream->id) <= 0;
}

static const struct hps_http_ops ops = {
    .free = op_free,
    .abort = http2_abort,
    .drain = op_drain,
    .drain_now = http2_drain_now,
    .ping = op_ping,
    .peer_spoke = op_peer_spoke,
    .is_limited = op_is_limited,
    .written_bodies = op_written_bodies,
    .respond = http2_respond,
    .send = http2_send,
    .send_copy = http2_send_copy,
    .finish = http2_finish,
    .trailers = http2_trailers,
    .reset = http2_reset,
    .consume = http2_consume,
    .stream_is_limited = op_stream_is_limited,
};

/* ---- creation -------------------------------------------------------------------------------- */

static void *mem_alloc(size_t size, void *ctx)
{
    (void)ctx;
    return hps_alloc(size);
}

static void mem_free(void *ptr, void *ctx)
{
    (void)ctx;
    hps_free(ptr);
}

static void *mem_calloc(size_t count, size_t size, void *ctx)
{
    (void)ctx;
    return hps_calloc(count, size);
}

static void *mem_realloc(void *ptr, size_t size, void *ctx)
{
    (void)ctx;
    return hps_realloc(ptr, size);
}

static nghttp2_session_callbacks *make_callbacks(void)
{
    nghttp2_session_callbacks *callbacks;

    if (nghttp2_session_callbacks_new(&callbacks) != 0) {
        return NULL;
    }
    http2_receive_callbacks_set(callbacks);
    http2_send_callbacks_set(callbacks);
    http2_stream_callbacks_set(callbacks);
    return callbacks;
}

static hps_status make_session(struct hps_http2 *h2)
{
    nghttp2_mem mem = {NULL, mem_alloc, mem_free, mem_calloc, mem_realloc};
    nghttp2_session_callbacks *callbacks = make_callbacks();
    nghttp2_option *option = NULL;
    int rc = NGHTTP2_ERR_NOMEM;

    if (callbacks == NULL || nghttp2_option_new(&option) != 0) {
        goto out;
    }
    nghttp2_option_set_no_auto_window_update(option, 1);
    nghttp2_option_set_no_closed_streams(option, 1);
    nghttp2_option_set_max_settings(option, 32);
    nghttp2_option_set_max_outbound_ack(option, 1000);
    nghttp2_option_set_max_continuations(option, 8);
    nghttp2_option_set_no_http_messaging(option, h2->checks_requests);
    /* nghttp2's default, 1,000 and 33 per second, cuts off honest clients that cancel a batch. */
    nghttp2_option_set_stream_reset_rate_limit(option, 10000, 1000);
    rc = h2->options.server
             ? nghttp2_session_server_new3(&h2->session, callbacks, h2, option, &mem)
             : nghttp2_session_client_new3(&h2->session, callbacks, h2, option, &mem);
out:
    nghttp2_option_del(option);
    nghttp2_session_callbacks_del(callbacks);
    return rc == 0 ? HPS_OK : HPS_NO_MEMORY;
}

static hps_status submit_settings(struct hps_http2 *h2)
{
    const struct hps_http2_options *o = &h2->options;
    nghttp2_settings_entry server[] = {
        {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, o->streams_max},
        {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, o->window_bytes},
        {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, (uint32_t)o->header_bytes_max},
        {NGHTTP2_SETTINGS_MAX_FRAME_SIZE, o->frame_bytes_max},
    };
    nghttp2_settings_entry client[] = {
        {NGHTTP2_SETTINGS_ENABLE_PUSH, 0},
        {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, o->window_bytes},
        {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, (uint32_t)o->header_bytes_max},
        {NGHTTP2_SETTINGS_MAX_FRAME_SIZE, o->frame_bytes_max},
    };

    if (nghttp2_submit_settings(h2->session, NGHTTP2_FLAG_NONE, o->server ? server : client, 4) !=
            0 ||
        nghttp2_session_set_local_window_size(h2->session, NGHTTP2_FLAG_NONE, 0,
                                              (int32_t)o->connection_window_bytes) != 0) {
        return HPS_NO_MEMORY;
    }
    return HPS_OK;
}

hps_status hps_http2_new(struct hps_http2_shared *shared, struct hps_conn *conn,
                         const struct hps_http2_options *options,
                         const struct hps_http_events *events, void *ctx,
                         struct hps_http **out_http, struct hps_error *err)
{
    struct hps_http2 *h2 = hps_calloc(1, sizeof *h2 + sizeof *h2->out + sizeof *h2->in);

    HPS_ASSERT(hps_loop_is_mine(shared->loop) && events->on_closed != NULL);
    HPS_ASSERT(options->window_bytes <= INT32_MAX && options->connection_window_bytes <= INT32_MAX);
    if (h2 == NULL) {
        goto fail_conn;
    }
    h2->out = (struct http2_out *)(h2 + 1);
    h2->in = (struct http2_in *)(h2->out + 1);
    STAILQ_INIT(&h2->out->unreleased);
    h2->shared = shared;
    h2->options = *options;
    h2->checks_requests = options->server && hps_conn_is_unix(conn);
    hps_http2_filter_init(&h2->in->filter);
    h2->base = (struct hps_http){
        .ops = &ops, .events = events, .ctx = ctx, .conn = conn, .read_us = hps_clock_us()};
    hps_run_item_init(&h2->item, hps_loop_work(shared->loop), hps_conn_client(conn), work);
    if (make_session(h2) != HPS_OK) {
        goto fail_h2;
    }
    if (submit_settings(h2) != HPS_OK ||
        hps_conn_attach(conn, shared->loop, options->handshake_timeout_us, on_ready, h2) !=
            HPS_OK) {
        goto fail_session;
    }
    shared->n_users++;
    http2_kick(h2);
    *out_http = &h2->base;
    return HPS_OK;

fail_session:
    nghttp2_session_del(h2->session);
fail_h2:
    hps_free(h2);
fail_conn:
    hps_error_set(err, HPS_NO_MEMORY, "%s: no memory for a connection", hps_conn_peer(conn));
    hps_conn_free(conn);
    return HPS_NO_MEMORY;
}
