/* SPDX-License-Identifier: Apache-2.0
 *
 * Declarations that the files of the gRPC client share:
 *
 *     grpc_channel.c       a channel and its connections; sends waiting calls
 *     grpc_client.c        calls
 *     grpc_client_phase.c  the phases of a call, and the parts of a channel that calls use
 *
 * Loop thread of the channel.
 */
#ifndef HPS_NET_GRPC_CLIENT_INTERNAL_H
#define HPS_NET_GRPC_CLIENT_INTERNAL_H

#include <stdbool.h>
#include <sys/queue.h>

#include "base/assert.h"
#include "net/grpc.h"
#include "net/grpc_frame.h"
#include "net/http2.h"

enum {
    GRPC_SPARES_MAX = 16,                     /* reply buffers that are kept for the next replies */
    GRPC_SPARE_BYTES_MAX = 128 * 1024 * 1024, /* total size of these buffers */
    GRPC_AGAIN_BYTES_MAX = 256 * 1024,        /* a larger request is not kept after it was sent */
};

struct client_conn {
    LIST_ENTRY(client_conn) link;
    struct hps_grpc_channel *channel;
    struct hps_http *http;
    struct hps_timer speak; /* fires once, after speak_timeout_us */
};

/* The phases of a call. If the call has a deadline, its timer runs until DONE. */
enum client_phase {
    CLIENT_NEW,      /* being created */
    CLIENT_WAITING,  /* waits for a connection; path and request are kept */
    CLIENT_SENT,     /* sent on its stream; no reply header was received */
    CLIENT_ANSWERED, /* reply headers were received */
    CLIENT_DONE,     /* on_done is running; then the call is freed */
    CLIENT_PHASES,
};

struct hps_grpc_client_call {
    TAILQ_ENTRY(hps_grpc_client_call) link;
    struct hps_grpc_channel *channel;
    enum client_phase phase;        /* changed only by grpc_client_phase_set */
    uint64_t number;                /* the channel's n_made when the call was created */
    struct hps_http_stream *stream; /* in the phases SENT and ANSWERED */
    const struct hps_grpc_client_events *events;
    void *ctx;
    uint64_t deadline_us;
    struct hps_timer deadline;
    struct hps_grpc_decoder decoder;
    unsigned http_status;
    int code; /* gRPC code of the reply; -1: not received */
    bool grpc_type;
    bool in_message;     /* on_begin was called for the message that is coming */
    struct hps_buf text; /* decoded grpc-message */
    char *path;          /* kept while the call waits or may have to be sent again */
    struct hps_buf request;
    bool again; /* was sent again after a refusal */
};

struct hps_grpc_channel {
    struct hps_loop *loop;
    struct hps_http2_shared *shared;
    struct client_conn *current;              /* takes new calls; NULL: no connection does */
    LIST_HEAD(, client_conn) conns;           /* all connections, including draining ones */
    TAILQ_HEAD(, hps_grpc_client_call) calls; /* oldest first */
    uint64_t n_made;                          /* calls created so far */
    struct hps_loop_later retry;              /* connects, or sends waiting calls */
    struct hps_buf spares[GRPC_SPARES_MAX];   /* [n_spares], the last one is used next */
    unsigned n_spares;
    size_t spare_bytes;
    char *address;
    char *authority;
    char *authorization;
    struct hps_tls *tls;
    size_t reply_bytes_max;
    uint64_t connect_timeout_us;
    uint64_t speak_timeout_us;
    unsigned busy; /* 1 for the owner, and 1 per grpc_channel_enter */
    bool freed;
};

/* ---- grpc_client_phase.c --------------------------------------------------------------------- */

extern const unsigned grpc_client_follows[CLIENT_PHASES]; /* bit p: phase p may follow */

/* Changes the phase of a call. grpc_client_follows must allow the transition. */
static inline void grpc_client_phase_set(struct hps_grpc_client_call *call, enum client_phase to)
{
    HPS_ASSERT(call->phase < CLIENT_PHASES && to < CLIENT_PHASES);
    HPS_ASSERT((grpc_client_follows[call->phase] & 1u << to) != 0);
    call->phase = to;
}

/* Asserts the invariants of a call. Called in debug and sanitizer builds. */
void grpc_client_sane(const struct hps_grpc_client_call *call);
/* Asserts the invariants of a channel: its buffers, its connections, and that waiting calls will be
 * sent. */
void grpc_channel_sane(const struct hps_grpc_channel *channel);

/* A channel that is freed after `enter` stays valid until the last `leave`. */
void grpc_channel_enter(struct hps_grpc_channel *channel);
void grpc_channel_leave(struct hps_grpc_channel *channel);
/* Whether the channel can send a call at once. Calls grpc_channel_leave_spent first. */
bool grpc_channel_is_ready(struct hps_grpc_channel *channel);
/* If the current connection takes no more calls, drains it. Then the channel has no current
 * connection. */
void grpc_channel_leave_spent(struct hps_grpc_channel *channel);
/* Connects, or sends waiting calls, in this iteration of the loop. */
void grpc_channel_retry(struct hps_grpc_channel *channel);
/* Keeps the buffer of a reply for the next reply, because its pages are mapped already.
 *
 * owner   keep_spare: takes `body`, which is then empty; take_spare: fills `body` if it is empty
 */
void grpc_channel_keep_spare(struct hps_grpc_channel *channel, struct hps_buf *body);
void grpc_channel_take_spare(struct hps_grpc_channel *channel, struct hps_buf *body);

/* ---- grpc_client.c --------------------------------------------------------------------------- */

/* Callbacks of a connection for its streams. */
void grpc_client_header(void *ctx, struct hps_http_stream *stream, const char *name,
                        size_t name_size, const char *value, size_t value_size);
void grpc_client_data(void *ctx, struct hps_http_stream *stream, const uint8_t *data, size_t size);
uint8_t *grpc_client_room(void *ctx, struct hps_http_stream *stream, size_t size, size_t *out_room);
void grpc_client_stream_closed(void *ctx, struct hps_http_stream *stream, uint32_t error);
/* Sends a waiting call on the channel's current connection. */
hps_status grpc_client_send_waiting(struct hps_grpc_client_call *call) HPS_MUST_CHECK;
/* Calls on_done and frees the call. Its stream, if any, continues without a call. */
void grpc_client_done(struct hps_grpc_client_call *call, int code, const char *message);

#endif
