/* SPDX-License-Identifier: Apache-2.0
 *
 * The phases of a client call and their transitions, the invariants of calls and channels, and the
 * parts of a channel that calls use. Loop thread of the channel.
 */
#include "base/assert.h"
#include "base/heap.h"
#include "net/grpc_client_internal.h"

const unsigned grpc_client_follows[CLIENT_PHASES] = {
    [CLIENT_NEW] = 1u << CLIENT_WAITING | 1u << CLIENT_SENT,
    [CLIENT_WAITING] = 1u << CLIENT_SENT | 1u << CLIENT_DONE,
    [CLIENT_SENT] = 1u << CLIENT_WAITING | 1u << CLIENT_ANSWERED | 1u << CLIENT_DONE,
    [CLIENT_ANSWERED] = 1u << CLIENT_DONE,
};

void grpc_client_sane(const struct hps_grpc_client_call *call)
{
    bool on_stream = call->phase == CLIENT_SENT || call->phase == CLIENT_ANSWERED;

    HPS_ASSERT(call->phase == CLIENT_WAITING || on_stream);
    HPS_ASSERT((call->stream != NULL) == on_stream);
    HPS_ASSERT(!on_stream || call->stream->user == call);
    HPS_ASSERT(call->phase != CLIENT_WAITING || call->path != NULL);
    HPS_ASSERT(call->phase == CLIENT_ANSWERED || (call->http_status == 0 && call->code < 0));
    HPS_ASSERT(hps_timer_armed(&call->deadline) == (call->deadline_us != 0));
    HPS_ASSERT(*call->link.tqe_prev == call);
    HPS_ASSERT(call->number < call->channel->n_made);
}

/* Whether waiting calls will be sent, when the connection is ready or by a retry. */
static bool waiting_will_start(const struct hps_grpc_channel *channel)
{
    bool connecting = channel->current != NULL && !channel->current->http->ready;
    const struct hps_grpc_client_call *call;
    bool any = false;

    TAILQ_FOREACH (call, &channel->calls, link) {
        HPS_DEBUG_SANE(grpc_client_sane(call));
        any = any || call->phase == CLIENT_WAITING;
    }
    return !any || connecting || hps_loop_later_is_set(&channel->retry);
}

static bool is_ours(const struct hps_grpc_channel *channel, const struct client_conn *conn)
{
    const struct client_conn *at;

    LIST_FOREACH (at, &channel->conns, link) {
        if (at == conn) {
            break;
        }
    }
    return at != NULL;
}

void grpc_channel_sane(const struct hps_grpc_channel *channel)
{
    HPS_DEBUG_ASSERT(hps_loop_is_mine(channel->loop));
    HPS_ASSERT(channel->busy > 0 && channel->n_spares <= GRPC_SPARES_MAX);
    HPS_ASSERT((channel->n_spares == 0) == (channel->spare_bytes == 0));
    HPS_ASSERT(channel->spare_bytes <= GRPC_SPARE_BYTES_MAX);
    if (channel->freed) {
        HPS_ASSERT(TAILQ_EMPTY(&channel->calls) && !hps_loop_later_is_set(&channel->retry));
        return;
    }
    HPS_DEBUG_ASSERT(channel->current == NULL || is_ours(channel, channel->current));
    HPS_DEBUG_ASSERT(waiting_will_start(channel));
}

/* ---- parts of a channel that calls use ------------------------------------------------------- */

void grpc_channel_enter(struct hps_grpc_channel *channel)
{
    channel->busy++;
}

void grpc_channel_leave(struct hps_grpc_channel *channel)
{
    if (--channel->busy > 0 || !channel->freed) {
        return;
    }
    while (channel->n_spares > 0) {
        hps_buf_fini(&channel->spares[--channel->n_spares]);
    }
    hps_http2_shared_free(channel->shared);
    hps_free(channel->address);
    hps_free(channel->authority);
    hps_free(channel->authorization);
    hps_free(channel);
}

void grpc_channel_keep_spare(struct hps_grpc_channel *channel, struct hps_buf *body)
{
    if (body->data == NULL || channel->n_spares == GRPC_SPARES_MAX ||
        body->capacity > GRPC_SPARE_BYTES_MAX - channel->spare_bytes) {
        hps_buf_fini(body);
        return;
    }
    channel->spares[channel->n_spares++] = *body;
    channel->spare_bytes += body->capacity;
    hps_buf_init(body, 0);
}

void grpc_channel_take_spare(struct hps_grpc_channel *channel, struct hps_buf *body)
{
    if (body->data == NULL && channel->n_spares > 0) {
        size_t size_max = body->size_max;
        *body = channel->spares[--channel->n_spares];
        body->size_max = size_max;
        hps_buf_clear(body);
        channel->spare_bytes -= body->capacity;
    }
}

void grpc_channel_leave_spent(struct hps_grpc_channel *channel)
{
    struct client_conn *conn = channel->current;

    if (conn != NULL && conn->http->ready && !hps_http2_can_request(conn->http)) {
        channel->current = NULL;
        hps_http_drain(conn->http);
    }
}

bool grpc_channel_is_ready(struct hps_grpc_channel *channel)
{
    grpc_channel_leave_spent(channel);
    return channel->current != NULL && channel->current->http->ready;
}

void grpc_channel_retry(struct hps_grpc_channel *channel)
{
    hps_loop_later_set(channel->loop, &channel->retry);
}
