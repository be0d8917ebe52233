/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the gRPC client share:
 *
 *     grpc_channel.c       a channel and its connections: made, lost, drained; which calls wait
 *     grpc_client.c        a call: started, answered, ended
 *     grpc_client_phase.c  its phases, and what it uses of its channel
 *
 * Loop thread of the channel.
 */
#ifndef HPS_NET_GRPC_CLIENT_INTERNAL_H
#define HPS_NET_GRPC_CLIENT_INTERNAL_H

#include <stdbool.h>

#include "base/assert.h"
#include "net/grpc.h"
#include "net/grpc_frame.h"
#include "net/http2.h"

enum {
    GRPC_SPARES_MAX = 16,                     /* reply buffers kept for the next replies, */
    GRPC_SPARE_BYTES_MAX = 128 * 1024 * 1024, /* of this size together */
    GRPC_AGAIN_BYTES_MAX = 256 * 1024,        /* of requests kept for a server that refuses them */
};

struct client_conn {
    struct client_conn *next, *prev;
    struct hps_grpc_channel *channel;
    struct hps_http2 *h2;
};

/* The life of a call. Its deadline's timer is armed, if it has one, until DONE. */
enum client_phase {
    CLIENT_NEW,      /* being made */
    CLIENT_WAITING,  /* for a connection; path and request are kept */
    CLIENT_SENT,     /* on its stream; no header of the answer has come */
    CLIENT_ANSWERED, /* the answer's headers have begun to come */
    CLIENT_DONE,     /* the caller's callback runs; freed then */
    CLIENT_PHASES,
};

struct hps_grpc_client_call {
    struct hps_grpc_client_call *next, *prev;
    struct hps_grpc_channel *channel;
    enum client_phase phase;         /* changed by grpc_client_phase_set alone */
    uint64_t number;                 /* in the order in which the channel's calls were made */
    struct hps_http2_stream *stream; /* SENT and ANSWERED */
    const struct hps_grpc_client_events *events;
    void *ctx;
    uint64_t deadline_us;
    struct hps_timer deadline;
    struct hps_grpc_decoder decoder;
    unsigned http_status;
    int code; /* -1: none came */
    bool grpc_type;
    struct hps_buf text; /* decoded grpc-message */
    char *path;          /* while it waits, and while it may have to be sent again */
    struct hps_buf request;
    bool again; /* was refused once */
};

struct hps_grpc_channel {
    struct hps_loop *loop;
    struct hps_http2_shared *shared;
    struct client_conn *current;            /* takes new calls */
    struct client_conn *conns;              /* all, those being drained too */
    struct hps_grpc_client_call *calls;     /* newest first */
    uint64_t n_made;                        /* calls, ever */
    struct hps_loop_later retry;            /* waiting calls want a connection */
    struct hps_buf spares[GRPC_SPARES_MAX]; /* [n_spares], the last one given back on top */
    unsigned n_spares;
    size_t spare_bytes;
    char *address;
    char *authority;
    char *authorization;
    struct hps_tls *tls;
    size_t reply_bytes_max;
    uint64_t connect_timeout_us;
    unsigned busy;
    bool freed;
};

/* ---- grpc_client_phase.c --------------------------------------------------------------------- */

extern const unsigned grpc_client_follows[CLIENT_PHASES]; /* bit p: phase p may follow */

/* The call goes on to `to`, which must be able to follow its phase. */
static inline void grpc_client_phase_set(struct hps_grpc_client_call *call, enum client_phase to)
{
    HPS_ASSERT(call->phase < CLIENT_PHASES && to < CLIENT_PHASES);
    HPS_ASSERT((grpc_client_follows[call->phase] & 1u << to) != 0);
    call->phase = to;
}

/* Assert that phase, stream, timer and what is kept of a call go together: in debug and sanitizer
 * builds. */
void grpc_client_sane(const struct hps_grpc_client_call *call);
/* The same for a channel: its spares, its connections; and that who waits will be started. */
void grpc_channel_sane(const struct hps_grpc_channel *channel);

/* Between these a channel that is freed stays there; it goes with the last leave. */
void grpc_channel_enter(struct hps_grpc_channel *channel);
void grpc_channel_leave(struct hps_grpc_channel *channel);
/* True: the channel's current connection takes calls at once. One that takes no more is drained and
 * is current no longer. */
bool grpc_channel_is_ready(struct hps_grpc_channel *channel);
/* A connection that takes no more calls is drained, and is current no longer. */
void grpc_channel_leave_spent(struct hps_grpc_channel *channel);
/* Calls wait, and no connection is under way: one is made in this turn of the loop. */
void grpc_channel_retry(struct hps_grpc_channel *channel);
/* The buffer of a reply serves the next one, whose pages are there already.
 *
 * owner   keep takes body, which is empty then; take fills one that is empty
 */
void grpc_channel_keep_spare(struct hps_grpc_channel *channel, struct hps_buf *body);
void grpc_channel_take_spare(struct hps_grpc_channel *channel, struct hps_buf *body);

/* ---- grpc_client.c --------------------------------------------------------------------------- */

/* What a connection reports of its streams. */
void grpc_client_header(void *ctx, struct hps_http2_stream *stream, const char *name,
                        size_t name_size, const char *value, size_t value_size);
void grpc_client_data(void *ctx, struct hps_http2_stream *stream, const uint8_t *data, size_t size);
uint8_t *grpc_client_room(void *ctx, struct hps_http2_stream *stream, size_t size,
                          size_t *out_room);
void grpc_client_stream_closed(void *ctx, struct hps_http2_stream *stream, uint32_t error);
/* Send a call that has waited, by the channel's current connection. */
hps_status grpc_client_send_waiting(struct hps_grpc_client_call *call) HPS_MUST_CHECK;
/* Tell the caller, once, and free the call. Its stream, if any, goes on without it. */
void grpc_client_done(struct hps_grpc_client_call *call, int code, const char *message);

#endif
