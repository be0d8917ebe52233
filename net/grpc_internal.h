/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the server of calls share. A file calls only files above it:
 *
 *     grpc_fields.c        metadata
 *     grpc_route.c         methods, and the routes of HTTP/1.1
 *     grpc_conn.c          references to connections, their end, and pressure when memory is short
 *     grpc_seat.c          places of connections: which give way, which never had a request
 *     grpc_call_phase.c    the phases of a call: which may follow, what goes with each
 *     grpc_call.c          references to a call, and what a service may ask of it
 *     grpc_http_answer.c   the answer to a call that came by HTTP/1.1
 *     grpc_call_send.c     the answer
 *     grpc_call_life.c     how a call begins and ends
 *     grpc_guard.c         who may call what, as the owner decides
 *     grpc_call_receive.c  request messages
 *     grpc_http.c          calls that came by HTTP/1.1: how they are judged and received
 *     grpc_call_headers.c  request headers, by which a call is judged
 *     grpc_pace.c          how fast clients take replies
 *     grpc_intake.c        how fast clients send requests
 *     grpc_tick.c          limits of time, and what a loop does when memory is short
 *     grpc_server.c        the connections of a loop
 *
 * What they need of a connection is in http.h, of either version.
 *
 * Loop thread, but for the atomics.
 */
#ifndef HPS_NET_GRPC_INTERNAL_H
#define HPS_NET_GRPC_INTERNAL_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/assert.h"
#include "net/grpc.h"
#include "net/grpc_frame.h"
#include "net/http2.h"
#include "net/places.h"

enum {
    GRPC_METADATA_BYTES_MAX = 16 * 1024, /* of a request by HTTP/2: names + values + 32 each */
    GRPC_METADATA_FIELDS_MAX = 64,
    GRPC_FIELD_BYTES_MAX = 8 * 1024, /* of what a service adds to headers or trailers */
    GRPC_FIELDS_MAX = 16,
    GRPC_PEER_BYTES = 80,
    GRPC_DRAINED_BYTES = 1024 * 1024,
    GRPC_WINDOW_BYTES = 1024 * 1024, /* that a client may send ahead on one stream */
    GRPC_NOTES = 4,                  /* of how far readers are, that are kept */
};

/* ---- grpc_fields.c --------------------------------------------------------------------------- */

/* Metadata, packed one after another. */
struct grpc_fields {
    struct hps_buf bytes;
    unsigned n;
};

void grpc_fields_init(struct grpc_fields *fields);
void grpc_fields_fini(struct grpc_fields *fields);
hps_status grpc_fields_add(struct grpc_fields *fields, const char *name, size_t name_size,
                           const void *value, size_t value_size) HPS_MUST_CHECK;
/* The first of that name, NULL if none; NUL-terminated. */
const char *grpc_fields_get(const struct grpc_fields *fields, const char *name, size_t *out_size);
/* Fill `out` with up to n_max; returns how many. */
unsigned grpc_fields_list(const struct grpc_fields *fields, struct hps_http_field *out,
                          unsigned n_max);

/* ---- servers, connections, calls ------------------------------------------------------------- */

struct grpc_entry {
    void *ctx;
    const struct hps_grpc_method *method;
    size_t path_size;
    uint32_t listener_mask;
};

struct grpc_segment {
    const char *text; /* not NUL-terminated */
    size_t size;
};

struct grpc_route {
    struct grpc_entry entry;
    const char *verb;
    struct grpc_segment segments[HPS_HTTP_SEGMENTS_MAX]; /* [n_segments] of its pattern */
    unsigned n_segments;
    uint32_t literals; /* bit 31 - i: segment i of the pattern is no "{}" */
};

/* What loops do when memory or places are short. */
enum grpc_pressure {
    GRPC_NOTE_READERS,    /* how far they are */
    GRPC_CUT_READERS,     /* the slowest of each loop */
    GRPC_CUT_OWN_READERS, /* the same, of one client */
    GRPC_CUT_SENDERS,
    GRPC_CUT_OWN_SENDERS,
    GRPC_GIVE_WAY, /* for new connections */
    GRPC_PRESSURES,
};

struct hps_grpc_server {
    struct hps_grpc_limits limits; /* what loops begin with */
    struct hps_grpc_observer observer;
    struct hps_grpc_guard guard; /* `enter` NULL: none */
    struct hps_limits *accounts; /* NULL: memory is not limited */
    uint32_t operator_mask;
    struct grpc_entry *entries;
    unsigned n_entries;
    struct grpc_route *routes;
    unsigned n_routes;
    const char *const *kept_names; /* NULL-ended: headers that are stored; NULL: none */
    struct hps_grpc_loop *loops;   /* changed while none of them runs */
    _Atomic uint64_t pressed_us[GRPC_PRESSURES];     /* when loops were last told to do so */
    _Atomic uint64_t pressed_client[GRPC_PRESSURES]; /* only its connections; 0: any */
};

/* How fast a client takes what waits for it, on a connection or a stream; or sends a request. */
struct grpc_pace {
    uint64_t since_us;          /* it has waited for the client alone since then; 0: it does not */
    uint64_t period_us;         /* when the period began in which the minimum is looked at */
    uint64_t taken;             /* bytes, ever, when it began */
    uint64_t noted[GRPC_NOTES]; /* bytes, ever, at the loop's noted_us of the same index; of a
                                 * request at its ticked_us */
};

enum grpc_loop_phase {
    GRPC_LOOP_SERVING,
    GRPC_LOOP_DRAINING, /* connections end with their calls; new ones are closed */
    GRPC_LOOP_DRAINED,  /* none was left: the owner has been notified */
    GRPC_LOOP_FREED,    /* adoptions that are under way still refer to it */
    GRPC_LOOP_PHASES,
};

struct hps_grpc_loop {
    struct hps_grpc_loop *next; /* of the server */
    struct hps_grpc_server *server;
    struct hps_grpc_limits *limits; /* in its allocation; at first the server's */
    struct hps_loop *loop;
    struct hps_http2_shared *shared;
    atomic_size_t http_queued; /* bytes of answers, as shared has them, but of HTTP/1.1 */
    struct grpc_conn *conns;
    struct hps_timer tick;
    struct hps_loop_later drained;
    struct hps_loop_later recheck; /* connections that have not been looked at since the change */
    uint64_t changes;              /* of the guard's rules */
    void (*drain_done)(void *ctx);
    void *drain_ctx;
    struct grpc_conn *tick_next; /* the next one that the tick looks at; NULL: it is done */
    uint64_t tick_began_us;
    enum grpc_loop_phase phase; /* changed by loop_phase_set of grpc_server.c alone */
    uint64_t
        noted_us[GRPC_NOTES]; /* when it was noted how far readers are, newest first; 0: never */
    struct hps_task press;    /* posted while any bit of `pressed` is set */
    atomic_uint pressed;      /* bit p: enum grpc_pressure */
    uint64_t ticked_us[GRPC_NOTES]; /* when ticks noted how far requests are, newest first */
    atomic_uint refs;               /* itself, and adoptions and `press` while they are posted */
    atomic_uint n_conns;
};

struct grpc_conn {
    atomic_uint refs;            /* one is its own, until it is gone; one of each call */
    struct hps_account *account; /* NULL: memory is not limited */
    unsigned n_unpaid;           /* calls without a charge, which are refused */
    struct grpc_conn *next, *prev;
    struct hps_grpc_loop *grpc_loop;
    struct hps_http *http;
    struct hps_grpc_call *calls;
    struct hps_grpc_call *held_head,
        *held_tail; /* whole requests that wait for reply bytes to go, or for another slice */
    struct hps_run_item item; /* goes on with what waits: with requests and messages */
    bool stashed;             /* some call has messages that wait for a slice */
    uint32_t listener_mask;
    bool is_http;           /* it speaks HTTP/1.1 */
    void *visitor;          /* of the guard, from the first call on */
    uint64_t rechecked;     /* after which change of its rules */
    struct hps_place *seat; /* NULL: none */
    uint64_t idle_us;       /* since when there is no call */
    uint64_t age_end_us;    /* 0: none */
    uint64_t drain_us;      /* when the drain began; 0: not */
    uint64_t ping_us;       /* keepalive sent; 0: none out */
    uint64_t written;       /* as seen by the last tick */
    uint64_t written_us;
    struct grpc_pace pace;
    unsigned n_unknown; /* calls that were refused as nobody knows who made them, in a row */
    bool had_request;
    bool late;     /* it ends because its first request did not come in time */
    bool leaving;  /* it gives way, and ends soon */
    bool withheld; /* some call has window to give back */
    uint64_t client;
    char peer[GRPC_PEER_BYTES];
};

struct grpc_kept {
    struct grpc_kept *next;
    struct hps_buf body;
};

enum grpc_encoding { GRPC_IDENTITY, GRPC_GZIP, GRPC_ZLIB, GRPC_UNKNOWN_ENCODING };

/* The client's half of a call: its request. */
enum grpc_request_phase {
    GRPC_REQUEST_HEADERS,    /* the header block is being read */
    GRPC_REQUEST_OPEN,       /* messages come, or bytes of one */
    GRPC_REQUEST_WHOLE,      /* unary: the one message is whole, the half-close still to come */
    GRPC_REQUEST_STASHED,    /* streaming: half-closed, but messages wait in the stash */
    GRPC_REQUEST_HELD,       /* unary: half-closed; in its connection's queue for room and time */
    GRPC_REQUEST_DISPATCHED, /* the service has all of it */
    GRPC_REQUEST_DROPPED,    /* answered before that: what still comes is thrown away */
    GRPC_REQUEST_CLOSED,
    GRPC_REQUEST_PHASES,
};

/* Our half of a call: its reply. From FINISHED on nothing more is taken from the service. */
enum grpc_reply_phase {
    GRPC_REPLY_NONE,     /* nothing has been said */
    GRPC_REPLY_OPEN,     /* headers are submitted, messages may follow */
    GRPC_REPLY_FINISHED, /* the status is known; it follows what is queued */
    GRPC_REPLY_EXPIRED,  /* the deadline passed while messages were queued: a reset is due */
    GRPC_REPLY_STATUS,   /* the status is submitted */
    GRPC_REPLY_RESET,    /* a reset is submitted */
    GRPC_REPLY_CLOSED,
    GRPC_REPLY_PHASES,
};

enum grpc_deadline_phase {
    GRPC_DEADLINE_NONE,  /* none was asked for, or headers are still being read */
    GRPC_DEADLINE_ARMED, /* the timer stands at at_us */
    GRPC_DEADLINE_GRACE, /* it has passed; the timer stands at the reset of what is under way */
    GRPC_DEADLINE_OVER,
    GRPC_DEADLINE_PHASES,
};

/* What the headers said, by which the call is judged. */
struct grpc_headers {
    bool post;
    bool content_ok;
    bool codec_ok;
    bool bad_timeout;
    bool bad_fields; /* one cannot be decoded or kept, or there are two authorizations */
    enum grpc_encoding encoding;
    struct grpc_fields fields;
};

struct grpc_request {
    enum grpc_request_phase phase;   /* changed by grpc_call_request_set alone */
    bool compressed;                 /* the message; inflated when it is delivered */
    bool paused;                     /* streaming: by the service */
    struct hps_grpc_decoder decoder; /* HTTP/1.1: its body and size_max, nothing else */
    struct hps_buf plain;            /* an inflated message */
    struct hps_buf stash;            /* streaming: what came while its messages wait, */
    size_t stash_taken;              /* behind so many bytes that were delivered */
    const uint8_t *message;          /* unary: the one, once it is whole */
    size_t message_size;
    size_t counted;    /* charged in addition to HPS_CALL_BYTES */
    uint64_t received; /* bytes of its body, ever */
    struct grpc_pace pace;
    size_t unconsumed; /* taken in, window withheld while the connection is full */
    struct grpc_kept *kept;
    size_t kept_bytes; /* of all of them */
    struct grpc_kept *kept_spare;
};

/* When a call last made progress. */
struct grpc_progress {
    uint64_t framed; /* bytes of its reply, as seen by the last tick */
    uint64_t at_us;
};

struct grpc_reply {
    enum grpc_reply_phase phase; /* changed by grpc_call_reply_set alone */
    int code;                    /* from FINISHED on */
    size_t charged;              /* reply bytes that are charged because they are queued */
    struct hps_buf status_text;  /* percent-encoded */
    struct grpc_fields fields;
    struct grpc_fields trailers;
    unsigned http_status; /* HTTP/1.1; 0: the one that the code has */
    bool offer_encodings;
    bool bare; /* HTTP/1.1: without a body, unless one is sent */
    bool head; /* HTTP/1.1: to a HEAD */
    struct grpc_progress progress;
    struct grpc_pace pace;
};

struct grpc_deadline {
    enum grpc_deadline_phase phase; /* changed by grpc_call_deadline_set alone */
    uint64_t at_us;                 /* 0: none */
    struct hps_timer timer;
};

struct hps_grpc_call {
    atomic_uint refs; /* one is the stream's, until the call is closed */
    atomic_bool cancelled;
    struct grpc_conn *conn; /* NULL once closed */
    struct grpc_conn *home; /* referenced */
    struct hps_charge charge;
    struct hps_http_stream *stream; /* NULL once closed */
    struct hps_grpc_call *next, *prev;
    struct hps_grpc_call *held_next;
    struct hps_grpc_loop *grpc_loop;
    struct hps_loop *loop;
    const struct grpc_entry *entry; /* NULL: no such method */
    void *user;
    const void *grant; /* of the guard; NULL: none */
    void (*release_grant)(const void *grant);
    uint64_t start_us;
    bool delivered;  /* the service has the call: it is notified of the end */
    bool delivering; /* a message is with the service just now, which borrows its bytes */
    bool keep;       /* the service keeps the message that it was given last, or still has it */
    struct grpc_headers *headers; /* these four are in the allocation of the call */
    struct grpc_request *request;
    struct grpc_reply *reply;
    struct grpc_deadline *deadline;
};

/* The status is decided: nothing more is taken from the service, and of the client only bytes to be
 * thrown away. */
static inline bool grpc_call_is_finished(const struct hps_grpc_call *call)
{
    return call->reply->phase >= GRPC_REPLY_FINISHED;
}

static inline bool grpc_call_is_closed(const struct hps_grpc_call *call)
{
    return call->reply->phase == GRPC_REPLY_CLOSED;
}

/* ---- grpc_call_phase.c ----------------------------------------------------------------------- */

extern const unsigned grpc_request_follows[GRPC_REQUEST_PHASES]; /* bit p: phase p may follow */
extern const unsigned grpc_reply_follows[GRPC_REPLY_PHASES];

/* The deadline goes on to `to`, which must be able to follow its phase. The timer follows.
 *
 * unit    at_us when the timer is to fire, by hps_clock_us; ARMED and GRACE only
 */
void grpc_call_deadline_set(struct hps_grpc_call *call, enum grpc_deadline_phase to,
                            uint64_t at_us);
/* Bytes that the request of a call takes: its headers, and messages that are incomplete, wait or
 * are kept. */
static inline size_t grpc_call_held_bytes(const struct hps_grpc_call *call)
{
    return call->headers->fields.bytes.capacity + hps_grpc_decoder_held(&call->request->decoder) +
           call->request->stash.size + call->request->kept_bytes;
}

/* Of these bytes, the part that is charged in addition to HPS_CALL_BYTES. */
static inline size_t grpc_call_charged_bytes(size_t held)
{
    return held > HPS_CALL_MESSAGE_BYTES ? held : 0;
}

/* The request of a call holds fewer bytes now. */
static inline void grpc_call_count_less(struct hps_grpc_call *call, size_t held)
{
    size_t bytes = grpc_call_charged_bytes(held);

    HPS_ASSERT(bytes <= call->request->counted);
    if (bytes < call->request->counted) {
        hps_charge_shrink(&call->charge, HPS_LIMIT_REQUESTS, call->request->counted - bytes);
        call->request->counted = bytes;
    }
}

/* The bytes of a request that nobody will look at go, and count no more. */
void grpc_call_drop_request(struct hps_grpc_call *call);
/* Into the queue of held calls of its connection, and out of it. */
void grpc_call_hold(struct hps_grpc_call *call);
void grpc_call_unhold(struct hps_grpc_call *call);

/* The request goes on to `to`, which must be able to follow its phase. The queue of held calls and
 * the bytes that are counted follow: who enters HELD is queued, who leaves it is not; what is
 * DROPPED gives its bytes back, unless the service is borrowing them. Inline, as the reply's: a
 * call takes several steps, and `to` is a constant. */
static inline void grpc_call_request_set(struct hps_grpc_call *call, enum grpc_request_phase to)
{
    enum grpc_request_phase from = call->request->phase;

    HPS_ASSERT(from < GRPC_REQUEST_PHASES && to < GRPC_REQUEST_PHASES);
    HPS_ASSERT((grpc_request_follows[from] & 1u << to) != 0);
    if (from == GRPC_REQUEST_HELD) {
        grpc_call_unhold(call);
    }
    call->request->phase = to;
    switch (to) {
    case GRPC_REQUEST_HELD:
        grpc_call_hold(call);
        break;
    case GRPC_REQUEST_DISPATCHED:
        if (call->entry->method->on_packed == NULL) {
            grpc_call_count_less(call, call->headers->fields.bytes.capacity);
        } /* else when the service is done with them */
        break;
    case GRPC_REQUEST_DROPPED:
        if (!call->delivering) {
            grpc_call_drop_request(call);
        }
        break;
    default:
        break;
    }
}

/* The same for the reply. Who finishes a call whose request is not dispatched drops that. */
static inline void grpc_call_reply_set(struct hps_grpc_call *call, enum grpc_reply_phase to)
{
    HPS_ASSERT(call->reply->phase < GRPC_REPLY_PHASES && to < GRPC_REPLY_PHASES);
    HPS_ASSERT((grpc_reply_follows[call->reply->phase] & 1u << to) != 0);
    call->reply->phase = to;
    if (to == GRPC_REPLY_CLOSED) {
        grpc_call_request_set(call, GRPC_REQUEST_CLOSED);
    } else if (to >= GRPC_REPLY_FINISHED && call->request->phase < GRPC_REQUEST_DISPATCHED) {
        grpc_call_request_set(call, GRPC_REQUEST_DROPPED);
    }
    if (to >= GRPC_REPLY_RESET && call->deadline->phase != GRPC_DEADLINE_OVER) {
        grpc_call_deadline_set(call, GRPC_DEADLINE_OVER, 0);
    }
}

/* Reset the stream, once; what is queued goes with it. The call ends when the stream has closed.
 *
 * unit    error of RFC 9113
 */
void grpc_call_reset(struct hps_grpc_call *call, uint32_t error);
/* hps_http_send or a like function returned `status` for the answer. The call ends unless OK. */
void grpc_call_note_sent(struct hps_grpc_call *call, hps_status status);
/* Assert that phases, timer, queue and byte counts of a call go together: at the end of each turn
 * that touched it, in debug and sanitizer builds. Loop thread. */
void grpc_call_sane(const struct hps_grpc_call *call);
/* The same for a connection: its queue, its calls, its counts. */
void grpc_conn_sane(const struct grpc_conn *conn);

/* ---- grpc_conn.c ----------------------------------------------------------------------------- */

/* Tells a loop to do this. Any thread. */
void grpc_loop_tell(struct hps_grpc_loop *grpc_loop, enum grpc_pressure what);
/* Tells all loops of the server to cut slow readers or senders, because a call finds no memory. If
 * the memory of all clients is short, connections of all clients are candidates. If only the share
 * of the client is used up, only its connections are. `what` is GRPC_CUT_READERS or
 * GRPC_CUT_SENDERS. Not repeated within 40 ms. Thread of the call's loop.
 */
void grpc_press(struct hps_grpc_call *call, enum grpc_pressure what, enum hps_limit_scope scope);
void grpc_loop_unref(struct hps_grpc_loop *grpc_loop); /* any thread */
/* The connection is gone, or a call of it is freed: it is freed with the last. Any thread. */
void grpc_conn_unref(struct grpc_conn *conn);
/* Announce the end of a connection that is ready; new calls are refused after a round trip. */
void grpc_conn_drain(struct grpc_conn *conn, uint64_t now_us);
/* What waits goes on in another slice. Idempotent. */
static inline void grpc_conn_resume(struct grpc_conn *conn)
{
    hps_run_add(&conn->item, 1);
}
/* Its slice is spent: further calls and messages wait for another one. */
static inline bool grpc_conn_is_spent(const struct grpc_conn *conn)
{
    return hps_run_is_spent(conn->item.run);
}
/* The time, where somebody has read it anyhow. */
static inline void grpc_conn_see(struct grpc_conn *conn, uint64_t now_us)
{
    hps_run_see(conn->item.run, now_us);
}
/* Its replies take, or have queued, as much as they may: its requests wait. */
bool grpc_conn_is_full(const struct grpc_conn *conn);

/* ---- grpc_call_life.c ------------------------------------------------------------------------ */

/* The call of a stream that the client has opened.
 *
 * owner   its reference is the stream's, until grpc_call_closed
 * error   NULL: no memory, or more calls without a charge than may be answered
 */
struct hps_grpc_call *grpc_call_new(struct grpc_conn *conn, struct hps_http_stream *stream);
/* The stream is closed: service and observer are notified, and the stream's reference is dropped.
 *
 * unit    error of RFC 9113, or HPS_HTTP2_LOST
 */
void grpc_call_closed(struct hps_grpc_call *call, uint32_t error);
/* The peer of a call has stalled: cancel it and reset its stream. */
void grpc_call_stalled(struct hps_grpc_call *call);
/* Opens the charge of a call if it is not open. error: EXHAUSTED, with a text for the client. */
hps_status grpc_call_pay(struct hps_grpc_call *call, struct hps_error *err) HPS_MUST_CHECK;

/* ---- grpc_call_headers.c --------------------------------------------------------------------- */

/* One field of a header block came; both NUL-terminated. */
void grpc_call_header(struct hps_grpc_call *call, const char *name, size_t name_size,
                      const char *value, size_t value_size);
/* The block is complete: refuse the call, or let its messages come. */
void grpc_call_headers_done(struct hps_grpc_call *call);

/* ---- grpc_guard.c ---------------------------------------------------------------------------- */

/* May the call begin? Its headers are there. Else how it ends is in `err`. It is noted against the
 * connection's peer, or for it. */
hps_status grpc_guard_enter(struct hps_grpc_call *call, struct hps_error *err) HPS_MUST_CHECK;
/* After a change of the rules: end the calls of the connection that may not go on, and drain it if
 * there are any.
 *
 * error   the connection may not stay
 */
hps_status grpc_guard_again(struct grpc_conn *conn, struct hps_error *err) HPS_MUST_CHECK;

/* ---- grpc_call_receive.c --------------------------------------------------------------------- */

/* Bytes of the body came; the window for them is given back when they need no longer wait.
 *
 * owner   data borrowed
 */
void grpc_call_data(struct hps_grpc_call *call, const uint8_t *data, size_t size);
/* The client sends no more: deliver what is whole, hold it, or refuse the call. */
void grpc_call_end(struct hps_grpc_call *call);
/* Charges the bytes that the request holds now. Refuses the call if there is no memory for them. */
void grpc_call_check_bytes(struct hps_grpc_call *call);
/* A unary request is whole: now, or when there is room and time. */
void grpc_call_dispatch_or_hold(struct hps_grpc_call *call);
void grpc_call_dispatch(struct hps_grpc_call *call); /* a held one, now that there is room */
/* Fewer bytes of the answer are queued: messages that waited for that are taken in, and the service
 * may send more. */
void grpc_call_sent(struct hps_grpc_call *call);
/* Answers have gone: on with what waits for that. The call may be gone afterwards, unless the
 * caller has a reference. */
void grpc_call_resume(struct hps_grpc_call *call);

/* ---- grpc_call_send.c ------------------------------------------------------------------------ */

/* The last byte of the answer is framed: the status follows. */
void grpc_call_trailers(struct hps_grpc_call *call);
/* So many bytes of the reply are still queued. */
void grpc_call_reply_left(struct hps_grpc_call *call, size_t bytes);
/* hps_grpc_call_finish with the code of `status` and this text, of which 479 bytes are kept. */
void grpc_call_refuse(struct hps_grpc_call *call, hps_status status, const char *fmt, ...)
    HPS_PRINTF(3, 4);
/* grpc_call_refuse, but with this status of HTTP. */
void grpc_http_refuse(struct hps_grpc_call *call, unsigned http_status, hps_status status,
                      const char *fmt, ...) HPS_PRINTF(4, 5);
/* What speaks HTTP/2 but not gRPC gets a status of HTTP, which ends the call; `status` is what the
 * observer is notified. */
void grpc_call_answer_http(struct hps_grpc_call *call, const char *http_status, hps_status status);

/* ---- grpc_http_answer.c ---------------------------------------------------------------------- */

/* What the functions of the same names do (hps_grpc_call_*), for a call that came by HTTP/1.1. */
void grpc_http_send(struct hps_grpc_call *call, const struct hps_slice *slices, unsigned n_slices);
void grpc_http_send_copy(struct hps_grpc_call *call, const void *data, size_t size);
void grpc_http_finish(struct hps_grpc_call *call, int grpc_code, const char *message);

/* ---- grpc_route.c ---------------------------------------------------------------------------- */

/* The method of that path on those listeners; NULL: none. */
const struct grpc_entry *grpc_server_find(const struct hps_grpc_server *server, const char *path,
                                          size_t path_size, uint32_t listener_mask);
/* Whether services read request headers of that name. */
bool grpc_server_keeps(const struct hps_grpc_server *server, const char *name, size_t name_size);

enum grpc_route_found {
    GRPC_ROUTE_FOUND,
    GRPC_ROUTE_NO_PATH,
    GRPC_ROUTE_NO_VERB,  /* that path has others */
    GRPC_ROUTE_BAD_PATH, /* no path of any route looks like that */
};

/* The route of a call whose request line is among its fields. FOUND: its entry is set, and what
 * stands for each "{}" is among its fields, too; NO_VERB: Allow is among those of its answer.
 *
 * owner   *out_why static: what is wrong with the path
 * error   NO_MEMORY
 */
hps_status grpc_route_find(struct hps_grpc_call *call, enum grpc_route_found *out_found,
                           const char **out_why) HPS_MUST_CHECK;

/* ---- grpc_http.c ----------------------------------------------------------------------------- */

/* What the functions of the same names do (grpc_call_*), for a call that came by HTTP/1.1. */
void grpc_http_header(struct hps_grpc_call *call, const char *name, size_t name_size,
                      const char *value, size_t value_size);
void grpc_http_headers_done(struct hps_grpc_call *call);
void grpc_http_data(struct hps_grpc_call *call, const uint8_t *data, size_t size);
void grpc_http_end(struct hps_grpc_call *call);
/* Where up to `size` bytes of its body that come next may be put; NULL: nowhere. */
uint8_t *grpc_http_room(struct hps_grpc_call *call, size_t size, size_t *out_room);

/* ---- grpc_seat.c ----------------------------------------------------------------------------- */

/* The account of a connection. *out_account: NULL if memory is not limited. error: NO_MEMORY */
hps_status grpc_seat_account(const struct hps_grpc_server *server, const struct hps_conn *raw,
                             uint32_t listener_mask, struct hps_account **out_account)
    HPS_MUST_CHECK;
/* A connection that is adopted on this loop can be asked to give way from now on. */
void grpc_seat_watch(struct hps_grpc_loop *grpc_loop, struct hps_place *seat);
/* The connection was asked to give way: it does, unless it does already. */
void grpc_conn_leave(struct grpc_conn *conn, uint64_t now_us);
/* The same for all connections of a loop. */
void grpc_conns_leave(struct hps_grpc_loop *grpc_loop);
/* A connection that gives way has had time enough for its calls. */
bool grpc_conn_must_go(const struct grpc_conn *conn, uint64_t now_us);
/* The connection is over, and never had a request: tell whom it concerns, and note it against its
 * peer if that is to blame.
 *
 * owner   why borrowed
 */
void grpc_conn_no_start(struct grpc_conn *conn, const struct hps_error *why);
/* A call of the connection was let in, or refused. What nobody knows (UNAUTHENTICATED) is noted
 * against its peer, and 16 such calls in a row end the connection. */
void grpc_conn_judged(struct grpc_conn *conn, hps_status status);

/* ---- grpc_pace.c ----------------------------------------------------------------------------- */

/* At each tick: cut off a connection, or calls of it, that took less than the minimum for long
 * enough. False: the connection. */
bool grpc_paces_check(struct grpc_conn *conn, uint64_t now_us) HPS_MUST_CHECK;
/* waits: for the client alone, which has taken, or sent, so many bytes. */
void grpc_pace_see(struct grpc_pace *pace, bool waits, uint64_t taken, uint64_t now_us);
/* Whether a period is over in which less than the minimum was taken, or sent. */
bool grpc_pace_was_slow(struct grpc_pace *pace, uint64_t taken, uint64_t bytes_per_s_min,
                        uint64_t now_us);
void grpc_pace_note(struct grpc_pace *pace, uint64_t taken);
/* Of the times at which a loop noted (GRPC_NOTES, newest first, 0: never) the index of the newest
 * that is long enough ago; -1: there is none. */
int grpc_notes_usable(const uint64_t *noted_us, uint64_t now_us);
/* Notes how far the readers of a loop are. */
void grpc_paces_note(struct hps_grpc_loop *grpc_loop);
/* Of the readers of a loop that took less than the minimum since they were noted, at least 80 ms
 * ago: cuts off the one that would need longest for what is left. client: only its connections; 0:
 * any */
void grpc_paces_cut(struct hps_grpc_loop *grpc_loop, uint64_t client);
/* The observer is told. */
void grpc_slow_count(const struct grpc_conn *conn, enum hps_grpc_slow why);
/* Nothing waits for the client any more. */
static inline void grpc_pace_rest(struct grpc_pace *pace)
{
    pace->since_us = 0;
}

/* ---- grpc_intake.c --------------------------------------------------------------------------- */

/* At each tick of a loop, before those of its connections. */
void grpc_intakes_tick(struct hps_grpc_loop *grpc_loop, uint64_t now_us);
/* At each tick: refuse the requests of a connection that came at less than the minimum for long
 * enough. */
void grpc_intakes_check(struct grpc_conn *conn, uint64_t now_us);
/* Of the connections of a loop: refuses the requests that came at less than the minimum of late, of
 * the one that has most memory in such requests. client: as for grpc_paces_cut */
void grpc_intakes_cut(struct hps_grpc_loop *grpc_loop, uint64_t client);

/* ---- grpc_tick.c ----------------------------------------------------------------------------- */

/* The tick's timer has fired; ctx is the loop. */
void grpc_loop_tick(void *ctx);
/* A loop was told to do what `pressed` says: its `press` was posted. */
void grpc_loop_pressed(struct hps_task *task);
/* How often a loop ticks, by these limits. */
uint64_t grpc_tick_us(const struct hps_grpc_limits *limits);

#endif
