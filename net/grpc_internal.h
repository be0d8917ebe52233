/* SPDX-License-Identifier: Apache-2.0
 *
 * Declarations that the files of the gRPC server share. A file calls only functions of the files
 * above it:
 *
 *     grpc_fields.c        metadata of a call
 *     grpc_route.c         finds the method or the HTTP/1.1 route of a request
 *     grpc_conn.c          references to connections, draining, and pressure when memory is short
 *     grpc_seat.c          accounts and places of connections, and connections that fail
 *     grpc_call_phase.c    the phases of a call and their transitions
 *     grpc_call.c          references to a call, and the functions that services call
 *     grpc_http_answer.c   heads of HTTP/1.1 replies, and replies without a message
 *     grpc_call_send.c     replies
 *     grpc_call_life.c     how a call begins and ends
 *     grpc_guard.c         authorization of calls
 *     grpc_call_receive.c  request messages
 *     grpc_http.c          headers and bodies of HTTP/1.1 requests
 *     grpc_call_headers.c  request headers
 *     grpc_pace.c          ends connections and calls that read replies too slowly
 *     grpc_intake.c        refuses requests that are sent too slowly
 *     grpc_tick.c          time limits, and actions of a loop when memory is short
 *     grpc_server.c        the connections of a loop
 *
 * Terms:
 *
 * - A call has a request and a reply, each with its own phase. It is *finished* when its status is
 *   decided, and *closed* when its stream has ended.
 * - A connection is *full* when its replies hold the maximum memory. Then its complete unary
 *   requests are *held*. Messages of client-streaming calls that must wait are *stashed*.
 * - A loop works in *slices*, which it divides among clients (net/run.h).
 * - The memory of a call is *charged* to accounts (net/limits.h).
 * - A connection has a *place* (net/places.h). It is *displaced* when a new connection needs the
 *   place.
 *
 * net/http.h is the interface to connections, for HTTP/2 and HTTP/1.1. Everything runs on the loop
 * thread, unless a comment says "any thread". Any thread may access atomic fields.
 */
#ifndef HPS_NET_GRPC_INTERNAL_H
#define HPS_NET_GRPC_INTERNAL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <sys/queue.h>

#include "base/assert.h"
#include "net/grpc.h"
#include "net/grpc_frame.h"
#include "net/http2.h"
#include "net/places.h"

enum {
    GRPC_METADATA_BYTES_MAX = 16 * 1024, /* names + values + 32 per field, of an HTTP/2 request */
    GRPC_METADATA_FIELDS_MAX = 64,
    GRPC_FIELD_BYTES_MAX = 8 * 1024, /* of metadata that a service adds to headers or trailers */
    GRPC_FIELDS_MAX = 16,            /* that a service adds to trailers; half as many to headers */
    GRPC_PEER_BYTES = 80,
    GRPC_DRAINED_BYTES = 1024 * 1024, /* on_drained is called when at most this much is queued */
    GRPC_WINDOW_BYTES = 1024 * 1024,  /* flow-control window of a stream */
    GRPC_NOTES = 4,                   /* samples of the progress of clients that a loop keeps */
};

/* ---- grpc_fields.c --------------------------------------------------------------------------- */

/* Metadata: names and values, packed one after another. */
struct grpc_fields {
    struct hps_buf bytes;
    unsigned n;
};

void grpc_fields_init(struct grpc_fields *fields);
void grpc_fields_fini(struct grpc_fields *fields);
hps_status grpc_fields_add(struct grpc_fields *fields, const char *name, size_t name_size,
                           const void *value, size_t value_size) HPS_MUST_CHECK;
/* Returns the value of the first field with this name, NUL-terminated; NULL: no such field. */
const char *grpc_fields_get(const struct grpc_fields *fields, const char *name, size_t *out_size);
/* Fills `out` with at most n_max fields, and returns their number. */
unsigned grpc_fields_list(const struct grpc_fields *fields, struct hps_http_field *out,
                          unsigned n_max);

/* ---- servers, connections, calls ------------------------------------------------------------- */

struct grpc_entry {
    void *ctx; /* of the service */
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
    struct grpc_segment segments[HPS_HTTP_SEGMENTS_MAX]; /* [n_segments] of the pattern */
    unsigned n_segments;
    uint32_t literals; /* bit 31 - i: segment i of the pattern is a literal, not "{}" */
};

/* Actions of a loop when memory or places are short. */
enum grpc_pressure {
    GRPC_NOTE_CLIENTS,    /* sample the progress of each client */
    GRPC_CUT_READERS,     /* end the slowest reader of replies: see grpc_paces_cut */
    GRPC_CUT_OWN_READERS, /* the same, among the connections of one client */
    GRPC_CUT_SENDERS,     /* refuse slow requests */
    GRPC_CUT_OWN_SENDERS, /* the same, among the connections of one client */
    GRPC_GIVE_WAY,        /* close connections that were displaced */
    GRPC_PRESSURES,
};

struct hps_grpc_server {
    struct hps_grpc_limits limits; /* initial limits of its loops */
    struct hps_grpc_observer observer;
    struct hps_grpc_guard guard; /* `enter` is NULL: no guard */
    struct hps_limits *accounts; /* NULL: memory is not limited */
    uint32_t operator_mask;      /* listeners of operators */
    struct grpc_entry *entries;
    unsigned n_entries;
    struct grpc_route *routes;
    unsigned n_routes;
    const char *const *kept_names; /* request headers that are stored, ended by NULL */
    struct hps_grpc_loop *loops;   /* changed only while no loop runs */
    _Atomic uint64_t pressed_us[GRPC_PRESSURES];     /* when all loops were last told to do this */
    _Atomic uint64_t pressed_client[GRPC_PRESSURES]; /* concerns only its connections; 0: all */
};

/* The progress of a client that reads the replies of a connection or call, or sends a request. */
struct grpc_pace {
    uint64_t since_us;  /* since then the server waits only for the client; 0: it does not wait */
    uint64_t period_us; /* begin of the period that is compared with the minimum rate */
    uint64_t taken;     /* total bytes when the period began */
    uint64_t noted[GRPC_NOTES]; /* total bytes at the loop's noted_us with the same index */
};

enum grpc_loop_phase {
    GRPC_LOOP_SERVING,
    GRPC_LOOP_DRAINING, /* connections close when their calls have ended; new ones are closed */
    GRPC_LOOP_DRAINED,  /* all connections have closed, and the owner was notified */
    GRPC_LOOP_FREED,    /* connections that are being adopted still refer to it */
    GRPC_LOOP_PHASES,
};

struct hps_grpc_loop {
    struct hps_grpc_loop *next; /* of the server */
    struct hps_grpc_server *server;
    struct hps_grpc_limits *limits; /* in the loop's allocation; first the server's */
    struct hps_loop *loop;
    struct hps_http2_shared *shared;
    atomic_size_t http_queued; /* reply bytes of HTTP/1.1; `shared` counts HTTP/2 */
    struct grpc_conn *conns;
    struct hps_timer tick;
    struct hps_loop_later drained; /* calls drain_done */
    struct hps_loop_later recheck; /* checks connections by the changed rules */
    uint64_t changes;              /* of the guard's rules so far */
    void (*drain_done)(void *ctx);
    void *drain_ctx;
    struct grpc_conn *tick_next;   /* the next that the tick checks; NULL: it is complete */
    enum grpc_loop_phase phase;    /* changed only by loop_phase_set of grpc_server.c */
    uint64_t noted_us[GRPC_NOTES]; /* when ticks completed samples, newest first; 0: no sample, or
                                      for the newest: the tick takes it now */
    struct grpc_conn *cut_next[GRPC_PRESSURES]; /* see grpc_search_goes_on */
    struct hps_task press;                      /* posted while any bit of `pressed` is set */
    atomic_uint pressed;                        /* bit p: must do enum grpc_pressure p */
    atomic_uint refs; /* one for itself, and one for each posted adoption and `press` */
    atomic_uint n_conns;
};

struct grpc_conn {
    atomic_uint refs;            /* one until the connection has ended, and one per call */
    struct hps_account *account; /* NULL: memory is not limited */
    unsigned n_unpaid; /* calls without a charge: they are refused, unless it can be opened later */
    struct grpc_conn *next, *prev;
    struct hps_grpc_loop *grpc_loop;
    struct hps_http *http;
    struct hps_grpc_call *calls;
    TAILQ_HEAD(, hps_grpc_call) held; /* HELD calls: they wait for memory or a slice */
    struct hps_run_item item; /* a slice of the loop, which continues held and stashed requests */
    bool stashed;             /* a call has stashed messages that wait for a slice */
    uint32_t listener_mask;
    bool is_http;           /* it speaks HTTP/1.1 */
    void *visitor;          /* the guard's identity of the client; created when it is needed */
    uint64_t rechecked;     /* the loop's `changes` when the guard last checked it */
    struct hps_place *seat; /* its place; NULL: none */
    uint64_t idle_us;       /* when it was opened or its last call ended */
    uint64_t age_end_us;    /* when it is drained because of its age; 0: never */
    uint64_t drain_us;      /* when its drain began; 0: not draining */
    uint64_t ping_us;       /* when the keepalive PING was sent; 0: no PING is unanswered */
    uint64_t written;       /* http->written at the last tick */
    uint64_t written_us;    /* the last tick with progress, or with a socket that was not blocked */
    struct grpc_pace pace;
    unsigned n_unknown; /* consecutive calls that were refused as UNAUTHENTICATED */
    bool had_request;
    bool late;       /* closed because its first request was too late */
    bool leaving;    /* displaced: it closes soon */
    bool withheld;   /* a call may have `unconsumed` bytes */
    uint64_t client; /* hps_conn_client */
    char peer[GRPC_PEER_BYTES];
};

struct grpc_kept {
    struct grpc_kept *next;
    struct hps_buf body;
};

enum grpc_encoding { GRPC_IDENTITY, GRPC_GZIP, GRPC_ZLIB, GRPC_UNKNOWN_ENCODING };

/* The phases of a request. */
enum grpc_request_phase {
    GRPC_REQUEST_HEADERS,    /* the headers are being received */
    GRPC_REQUEST_OPEN,       /* messages are being received */
    GRPC_REQUEST_WHOLE,      /* unary: the message is complete, the half-close is missing */
    GRPC_REQUEST_STASHED,    /* streaming: half-closed, but messages are stashed */
    GRPC_REQUEST_HELD,       /* unary: half-closed; queued until there is memory and a slice */
    GRPC_REQUEST_DISPATCHED, /* the service has received it completely */
    GRPC_REQUEST_DROPPED,    /* the reply was finished before; further bytes are discarded */
    GRPC_REQUEST_CLOSED,
    GRPC_REQUEST_PHASES,
};

/* The phases of a reply. The service can send nothing more from FINISHED on. */
enum grpc_reply_phase {
    GRPC_REPLY_NONE,     /* nothing was sent */
    GRPC_REPLY_OPEN,     /* the headers are queued, messages may follow */
    GRPC_REPLY_FINISHED, /* the status is decided, and follows the queued messages */
    GRPC_REPLY_EXPIRED,  /* the deadline passed while messages were queued; a reset follows */
    GRPC_REPLY_STATUS,   /* the status is queued */
    GRPC_REPLY_RESET,    /* the stream was reset */
    GRPC_REPLY_CLOSED,
    GRPC_REPLY_PHASES,
};

enum grpc_deadline_phase {
    GRPC_DEADLINE_NONE,  /* no deadline, or the headers are still being received */
    GRPC_DEADLINE_ARMED, /* the timer fires at at_us */
    GRPC_DEADLINE_GRACE, /* the deadline has passed; the timer fires at the time of the reset */
    GRPC_DEADLINE_OVER,  /* the timer is stopped */
    GRPC_DEADLINE_PHASES,
};

/* What the request headers say about whether the call can be accepted. */
struct grpc_headers {
    bool post;
    bool content_ok;
    bool codec_ok;
    bool bad_timeout;
    bool bad_fields; /* one cannot be stored, or "authorization" came twice */
    enum grpc_encoding encoding;
    struct grpc_fields fields;
};

struct grpc_request {
    enum grpc_request_phase phase; /* changed only by grpc_call_request_set */
    bool compressed; /* unary: the message is compressed, and is inflated when it is delivered */
    bool paused;     /* streaming: the service has paused it */
    struct hps_grpc_decoder decoder; /* HTTP/1.1 uses only its `body` and `size_max` */
    struct hps_buf plain;            /* an inflated message */
    struct hps_buf stash;            /* streaming: bytes of messages that wait */
    size_t stash_taken;              /* bytes at its start that were delivered */
    const uint8_t *message;          /* unary: the complete message */
    size_t message_size;
    size_t counted;    /* bytes charged in addition to HPS_CALL_BYTES */
    uint64_t received; /* total bytes of the body */
    struct grpc_pace pace;
    size_t unconsumed; /* processed, but not yet returned to the window: the connection is full */
    struct grpc_kept *kept;       /* streaming: messages that the service keeps */
    size_t kept_bytes;            /* total size of `kept` */
    struct grpc_kept *kept_spare; /* allocated in advance for the next message */
};

/* The last progress of a call. */
struct grpc_progress {
    uint64_t framed; /* bytes of the reply in frames at the last tick */
    uint64_t at_us;
};

struct grpc_reply {
    enum grpc_reply_phase phase; /* changed only by grpc_call_reply_set */
    int code;                    /* the gRPC code, from FINISHED on */
    size_t charged; /* queued reply bytes that the server (not the service) has charged */
    struct hps_buf status_text; /* grpc-message, percent-encoded */
    struct grpc_fields fields;
    struct grpc_fields trailers;
    unsigned http_status; /* HTTP/1.1: set by the service; 0: follows from `code` */
    bool offer_encodings; /* the headers list the encodings that the server supports */
    bool bare;            /* HTTP/1.1: without a message the reply has no body */
    bool head;            /* HTTP/1.1: the request is a HEAD */
    struct grpc_progress progress;
    struct grpc_pace pace;
};

struct grpc_deadline {
    enum grpc_deadline_phase phase; /* changed only by grpc_call_deadline_set */
    uint64_t at_us;                 /* 0: no deadline */
    struct hps_timer timer;
};

struct hps_grpc_call {
    atomic_uint refs; /* one belongs to the stream, until the call is closed */
    atomic_bool cancelled;
    struct grpc_conn *conn; /* NULL once closed */
    struct grpc_conn *home; /* the connection, referenced until the call is freed */
    struct hps_charge charge;
    struct hps_http_stream *stream; /* NULL once closed */
    struct hps_grpc_call *next, *prev;
    TAILQ_ENTRY(hps_grpc_call) held; /* link of the connection's HELD calls */
    struct hps_grpc_loop *grpc_loop;
    struct hps_loop *loop;
    const struct grpc_entry *entry; /* NULL: no such method */
    void *user;
    const void *grant; /* permissions from the guard; NULL: none */
    void (*release_grant)(const void *grant);
    uint64_t start_us;
    bool delivered;  /* the service has received the call, so on_close will be called */
    bool delivering; /* a callback of the service is running, and borrows the message */
    bool keep;       /* the service has kept the last message, and has not dropped it */
    struct grpc_headers *headers; /* these four are in the allocation of the call */
    struct grpc_request *request;
    struct grpc_reply *reply;
    struct grpc_deadline *deadline;
};

/* Whether the status is decided. The service can then send nothing more, and bytes from the client
 * are discarded. */
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

/* Changes the phase of the deadline, and sets or stops its timer. deadline_follows must allow the
 * transition.
 *
 * unit    at_us: when the timer fires, by hps_clock_us; used only for ARMED and GRACE
 */
void grpc_call_deadline_set(struct hps_grpc_call *call, enum grpc_deadline_phase to,
                            uint64_t at_us);
/* Bytes that the request holds: its headers, and messages that are incomplete, stashed or kept. */
static inline size_t grpc_call_held_bytes(const struct hps_grpc_call *call)
{
    return call->headers->fields.bytes.capacity + hps_grpc_decoder_held(&call->request->decoder) +
           call->request->stash.size + call->request->kept_bytes;
}

/* The bytes to charge in addition to HPS_CALL_BYTES for a request that holds `held` bytes. */
static inline size_t grpc_call_charged_bytes(size_t held)
{
    return held > HPS_CALL_MESSAGE_BYTES ? held : 0;
}

/* Reduces the charge of a request that now holds only `held` bytes. */
static inline void grpc_call_count_less(struct hps_grpc_call *call, size_t held)
{
    size_t bytes = grpc_call_charged_bytes(held);

    HPS_ASSERT(bytes <= call->request->counted);
    if (bytes < call->request->counted) {
        hps_charge_shrink(&call->charge, HPS_LIMIT_REQUESTS, call->request->counted - bytes);
        call->request->counted = bytes;
    }
}

/* Frees the bytes of a DROPPED request, and their charge. */
void grpc_call_drop_request(struct hps_grpc_call *call);

/* Changes the phase of the request. grpc_request_follows must allow the transition. A HELD call is
 * queued, others are not. A DROPPED request frees its bytes now, or after the callback that borrows
 * them. Inline, because a call changes phase several times and `to` is a constant. */
static inline void grpc_call_request_set(struct hps_grpc_call *call, enum grpc_request_phase to)
{
    enum grpc_request_phase from = call->request->phase;

    HPS_ASSERT(from < GRPC_REQUEST_PHASES && to < GRPC_REQUEST_PHASES);
    HPS_ASSERT((grpc_request_follows[from] & 1u << to) != 0);
    if (from == GRPC_REQUEST_HELD) {
        TAILQ_REMOVE(&call->conn->held, call, held);
    }
    call->request->phase = to;
    switch (to) {
    case GRPC_REQUEST_HELD:
        TAILQ_INSERT_TAIL(&call->conn->held, call, held);
        break;
    case GRPC_REQUEST_DISPATCHED:
        if (call->entry->method->on_packed == NULL) {
            grpc_call_count_less(call, call->headers->fields.bytes.capacity);
        } /* else when the service drops the message */
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

/* Changes the phase of the reply, as grpc_call_request_set does. A finished reply drops a request
 * that was not dispatched. A reset or closed reply stops the timer of the deadline. */
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

/* Resets the stream unless it was reset, and drops its queued bytes. The call is closed when the
 * stream has ended.
 *
 * unit    error: a code of RFC 9113
 */
void grpc_call_reset(struct hps_grpc_call *call, uint32_t error);
/* Resets the call unless `status`, the result of a send function of net/http.h, is OK. */
void grpc_call_note_sent(struct hps_grpc_call *call, hps_status status);
/* Asserts the invariants of a call. Debug and sanitizer builds call it after each event of the
 * call. */
void grpc_call_sane(const struct hps_grpc_call *call);
/* Asserts the invariants of a connection, and in debug builds also of its calls. */
void grpc_conn_sane(const struct grpc_conn *conn);

/* ---- grpc_conn.c ----------------------------------------------------------------------------- */

/* Makes one loop do `what`. Any thread. */
void grpc_loop_tell(struct hps_grpc_loop *grpc_loop, enum grpc_pressure what);
/* Makes all loops of the server end slow readers or refuse slow requests, because a call finds no
 * memory. `what` is GRPC_CUT_READERS or GRPC_CUT_SENDERS. If the memory of all clients is short,
 * connections of all clients are candidates. If only the quota of the client is used up, only its
 * connections are. With any other scope it has no effect. Calls within 40 ms count as one, also for
 * different clients. */
void grpc_press(struct hps_grpc_call *call, enum grpc_pressure what, enum hps_limit_scope scope);
void grpc_loop_unref(struct hps_grpc_loop *grpc_loop); /* any thread */
/* Drops a reference. The last one frees the connection. Any thread. */
void grpc_conn_unref(struct grpc_conn *conn);
/* Announces the end of a connection, which must be ready. See hps_http_drain. */
void grpc_conn_drain(struct grpc_conn *conn, uint64_t now_us);
/* Continues held and stashed requests in another slice. Idempotent. */
static inline void grpc_conn_resume(struct grpc_conn *conn)
{
    hps_run_add(&conn->item, 1);
}
/* Whether the slice of the connection is spent. Further calls and messages then wait for another
 * slice. */
static inline bool grpc_conn_is_spent(const struct grpc_conn *conn)
{
    return hps_run_is_spent(conn->item.run);
}
/* Reports a time that was read for another reason, so that grpc_conn_is_spent is up to date. */
static inline void grpc_conn_see(struct grpc_conn *conn, uint64_t now_us)
{
    hps_run_see(conn->item.run, now_us);
}
/* Whether the replies of the connection hold, or have queued, the maximum. Its requests then wait.
 */
bool grpc_conn_is_full(const struct grpc_conn *conn);

/* ---- grpc_call_life.c ------------------------------------------------------------------------ */

/* Creates the call of a stream that the client has opened.
 *
 * owner   the reference belongs to the stream, until grpc_call_closed
 * error   NULL: no memory, or too many calls of the connection have no charge
 */
struct hps_grpc_call *grpc_call_new(struct grpc_conn *conn, struct hps_http_stream *stream);
/* The stream has ended: notifies the service and the observer, and drops the stream's reference.
 *
 * unit    error: a code of RFC 9113, or HPS_HTTP2_LOST
 */
void grpc_call_closed(struct hps_grpc_call *call, uint32_t error);
/* Ends a call if its client makes no progress. Resets the stream, or replies with 408 to an
 * HTTP/1.1 request if nothing was sent. */
void grpc_call_stalled(struct hps_grpc_call *call);
/* Opens the charge of a call unless it is open. error: EXHAUSTED, with a text for the client */
hps_status grpc_call_pay(struct hps_grpc_call *call, struct hps_error *err) HPS_MUST_CHECK;

/* ---- grpc_call_headers.c --------------------------------------------------------------------- */

/* Processes one field of the request headers. Both strings are NUL-terminated. */
void grpc_call_header(struct hps_grpc_call *call, const char *name, size_t name_size,
                      const char *value, size_t value_size);
/* The headers are complete: refuses the call, or accepts its messages. */
void grpc_call_headers_done(struct hps_grpc_call *call);

/* ---- grpc_guard.c ---------------------------------------------------------------------------- */

/* Asks the guard whether the call may begin. Any status but OK: the caller must refuse the call
 * with `err`. Reports the result to grpc_conn_judged. */
hps_status grpc_guard_enter(struct hps_grpc_call *call, struct hps_error *err) HPS_MUST_CHECK;
/* After a change of the guard's rules: ends the calls of the connection that are no longer allowed,
 * and drains the connection if it ended any.
 *
 * error   the caller must close the connection
 */
hps_status grpc_guard_again(struct grpc_conn *conn, struct hps_error *err) HPS_MUST_CHECK;

/* ---- grpc_call_receive.c --------------------------------------------------------------------- */

/* Processes bytes of the request body. Returns them to the flow-control window, unless they wait or
 * the connection is full.
 *
 * owner   data: borrowed
 */
void grpc_call_data(struct hps_grpc_call *call, const uint8_t *data, size_t size);
/* The client has half-closed: dispatches or holds a complete request, waits for stashed messages,
 * or refuses the call. */
void grpc_call_end(struct hps_grpc_call *call);
/* Charges the bytes that the request holds now. Refuses the call if there is no memory for them. */
void grpc_call_check_bytes(struct hps_grpc_call *call);
/* Delivers a complete unary request to the service, or holds it until there is memory and a slice.
 */
void grpc_call_dispatch_or_hold(struct hps_grpc_call *call);
void grpc_call_dispatch(struct hps_grpc_call *call); /* delivers a complete request */
/* Fewer bytes of the reply are queued: continues stashed messages, and lets the service send more.
 */
void grpc_call_sent(struct hps_grpc_call *call);
/* Processes stashed messages, unless they must still wait. May free the call, unless the caller has
 * a reference. */
void grpc_call_resume(struct hps_grpc_call *call);

/* ---- grpc_call_send.c ------------------------------------------------------------------------ */

/* The last byte of the reply is in a frame: sends the status with the trailers. */
void grpc_call_trailers(struct hps_grpc_call *call);
/* Reduces the charge of the reply to `bytes`, which are still queued. */
void grpc_call_reply_left(struct hps_grpc_call *call, size_t bytes);
/* Finishes the call with the gRPC code of `status` and a text, which is cut after 479 bytes. */
void grpc_call_refuse(struct hps_grpc_call *call, hps_status status, const char *fmt, ...)
    HPS_PRINTF(3, 4);
/* Like grpc_call_refuse, with a given HTTP status. */
void grpc_http_refuse(struct hps_grpc_call *call, unsigned http_status, hps_status status,
                      const char *fmt, ...) HPS_PRINTF(4, 5);
/* Ends an HTTP/2 request that is not gRPC with an HTTP status. The observer gets the gRPC code of
 * `status`. */
void grpc_call_answer_http(struct hps_grpc_call *call, const char *http_status, hps_status status);

/* ---- grpc_http_answer.c ---------------------------------------------------------------------- */

/* Sends the head of a reply with a body of `size` bytes. `end`: the body is not sent. */
hps_status grpc_http_respond(struct hps_grpc_call *call, size_t size, bool end);
/* Sends a complete reply to a call for which the service has sent no body. */
void grpc_http_answer_alone(struct hps_grpc_call *call, const char *message);

/* ---- grpc_route.c ---------------------------------------------------------------------------- */

/* Returns the method with this path on these listeners; NULL: no such method. */
const struct grpc_entry *grpc_server_find(const struct hps_grpc_server *server, const char *path,
                                          size_t path_size, uint32_t listener_mask);
/* Whether request headers of this name are stored. */
bool grpc_server_keeps(const struct hps_grpc_server *server, const char *name, size_t name_size);

enum grpc_route_found {
    GRPC_ROUTE_FOUND,
    GRPC_ROUTE_NO_PATH,
    GRPC_ROUTE_NO_VERB,  /* the path has routes, but only for other verbs */
    GRPC_ROUTE_BAD_PATH, /* the path is malformed */
};

/* Finds the route of a call whose request headers are stored. FOUND: sets call->entry, and stores
 * the segments that match "{}" as request headers ":0", ":1" and so on. NO_VERB: adds "allow" to
 * the headers of the reply.
 *
 * owner   *out_why: static text about the error in a BAD_PATH, else NULL
 * error   NO_MEMORY
 */
hps_status grpc_route_find(struct hps_grpc_call *call, enum grpc_route_found *out_found,
                           const char **out_why) HPS_MUST_CHECK;

/* ---- grpc_http.c ----------------------------------------------------------------------------- */

/* The parts of grpc_call_header, _headers_done, _data and _end for HTTP/1.1. */
void grpc_http_header(struct hps_grpc_call *call, const char *name, size_t name_size,
                      const char *value, size_t value_size);
void grpc_http_headers_done(struct hps_grpc_call *call);
void grpc_http_data(struct hps_grpc_call *call, const uint8_t *data, size_t size);
void grpc_http_end(struct hps_grpc_call *call);
/* Returns a buffer for the next bytes of the body; *out_room is its size, at most `size`. NULL: no
 * buffer. */
uint8_t *grpc_http_room(struct hps_grpc_call *call, size_t size, size_t *out_room);

/* ---- grpc_seat.c ----------------------------------------------------------------------------- */

/* Creates the account of a connection. *out_account: NULL if memory is not limited. error:
 * NO_MEMORY */
hps_status grpc_seat_account(const struct hps_grpc_server *server, const struct hps_conn *raw,
                             uint32_t listener_mask, struct hps_account **out_account)
    HPS_MUST_CHECK;
/* Lets a connection be displaced from now on. It is, or will be, a connection of this loop. */
void grpc_seat_watch(struct hps_grpc_loop *grpc_loop, struct hps_place *seat);
/* Closes the connection if it was displaced. If it has calls, it is drained instead, unless they
 * may be aborted. Idempotent. */
void grpc_conn_leave(struct grpc_conn *conn, uint64_t now_us);
/* Calls grpc_conn_leave for all connections of a loop. */
void grpc_conns_leave(struct hps_grpc_loop *grpc_loop);
/* Whether a displaced connection, which must be draining, has had its calls for 2 s more. */
bool grpc_conn_must_go(const struct grpc_conn *conn, uint64_t now_us);
/* The connection has ended without a request. Notifies the observer, and records a failure of the
 * client if the client caused the end.
 *
 * owner   why: borrowed
 */
void grpc_conn_no_start(struct grpc_conn *conn, const struct hps_error *why);
/* The guard has accepted or refused a call with this status. UNAUTHENTICATED is recorded as a
 * failure of the client, and the 16th such call in a row makes the connection close. */
void grpc_conn_judged(struct grpc_conn *conn, hps_status status);

/* ---- grpc_pace.c ----------------------------------------------------------------------------- */

/* For each tick: ends the connection, or single calls, if the client read less than the minimum for
 * 10 s. Returns false if it ended the connection. */
bool grpc_paces_check(struct grpc_conn *conn, uint64_t now_us) HPS_MUST_CHECK;
/* Begins or ends the time in which the server waits only for the client. taken: total bytes that
 * the client has read or sent. */
void grpc_pace_see(struct grpc_pace *pace, bool waits, uint64_t taken, uint64_t now_us);
/* Whether a period of 10 s is complete in which the client read or sent less than the minimum.
 * Begins the next period. */
bool grpc_pace_was_slow(struct grpc_pace *pace, uint64_t taken, uint64_t bytes_per_s_min,
                        uint64_t now_us);
/* Records a sample. */
void grpc_pace_note(struct grpc_pace *pace, uint64_t taken);
/* Returns the index of the newest sample that is at least 80 ms old; -1: no such sample. noted_us:
 * GRPC_NOTES times, newest first; 0: no sample. */
int grpc_notes_usable(const uint64_t *noted_us, uint64_t now_us);
/* A tick begins: it samples the progress of all clients, unless the last sample is younger than
 * 40 ms. A sample counts from the time when it is complete, in favour of the clients. */
void grpc_notes_begin(struct hps_grpc_loop *grpc_loop, uint64_t now_us);
void grpc_notes_complete(struct hps_grpc_loop *grpc_loop);
static inline bool grpc_is_noting(const struct hps_grpc_loop *grpc_loop)
{
    return grpc_loop->noted_us[0] == 0;
}
/* Returns the connection at which a search for slow clients begins. NULL: no connections. */
static inline struct grpc_conn *grpc_search_begin(const struct hps_grpc_loop *grpc_loop,
                                                  enum grpc_pressure what)
{
    return grpc_loop->cut_next[what] != NULL ? grpc_loop->cut_next[what] : grpc_loop->conns;
}
/* Whether a search that began at from_us should look at `conn` (may be NULL). It ends after 1 ms,
 * and the next search for the same continues with `conn`. */
bool grpc_search_goes_on(struct hps_grpc_loop *grpc_loop, enum grpc_pressure what,
                         struct grpc_conn *conn, uint64_t from_us);
/* Ends the slowest reader of the loop, or of the connections that it looked at within 1 ms.
 * Candidates are connections and calls whose client has read less than the minimum since a sample
 * at least 80 ms ago. The one that would take longest to read its replies is ended. client: only
 * its connections; 0: all connections */
void grpc_paces_cut(struct hps_grpc_loop *grpc_loop, enum grpc_pressure what, uint64_t client);
/* Notifies the observer. */
void grpc_slow_count(const struct grpc_conn *conn, enum hps_grpc_slow why);
/* The server does not wait for the client. */
static inline void grpc_pace_rest(struct grpc_pace *pace)
{
    pace->since_us = 0;
}

/* ---- grpc_intake.c --------------------------------------------------------------------------- */

/* For each tick: samples the requests of the connection, and refuses requests that were sent at
 * less than the minimum for 10 s. */
void grpc_intakes_check(struct grpc_conn *conn, uint64_t now_us);
/* Refuses slow requests of one connection of the loop: that with most memory in such requests,
 * among those that it looked at within 1 ms. A request is slow if it was sent at less than the
 * minimum since a sample at least 80 ms ago. client: as for grpc_paces_cut */
void grpc_intakes_cut(struct hps_grpc_loop *grpc_loop, enum grpc_pressure what, uint64_t client);

/* ---- grpc_tick.c ----------------------------------------------------------------------------- */

/* Callback of the loop's tick; ctx: the loop. */
void grpc_loop_tick(void *ctx);
/* Task `press` of a loop: does what `pressed` says. */
void grpc_loop_pressed(struct hps_task *task);
/* The time between two ticks with these limits. */
uint64_t grpc_tick_us(const struct hps_grpc_limits *limits);

#endif
