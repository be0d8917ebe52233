/* SPDX-License-Identifier: Apache-2.0
 *
 * gRPC over HTTP/2: what a service sees of a call, and what a client makes of one. A server may
 * have routes of HTTP/1.1, too: their requests are calls like any other, by the same limits and the
 * same guard. Everything here belongs to the loop thread of the connection, unless it says "any
 * thread".
 */
#ifndef HPS_NET_GRPC_H
#define HPS_NET_GRPC_H

#include "base/block.h"
#include "base/buf.h"
#include "base/mailbox.h"
#include "base/metric.h"
#include "net/conn.h"
#include "net/loop.h"

/* ---- messages -------------------------------------------------------------------------------- */

/* A piece of an outgoing message: bytes of a block (a reference is held until they are in the
 * kernel), never copied in user space. */
struct hps_slice {
    struct hps_block *block; /* the callee takes one reference of the caller's */
    const uint8_t *data;
    size_t size;
};

/* ---- server ---------------------------------------------------------------------------------- */

struct hps_grpc_call; /* one RPC; reference-counted, because workers may outlive the client */

/* A request message as its client sent it. */
struct hps_grpc_packed {
    const uint8_t *data;
    size_t size;
    size_t size_max; /* of the message when inflated */
    bool compressed;
    bool is_http; /* the body of an HTTP/1.1 request */
    bool is_zlib; /* compressed: as "deflate" of gRPC and HTTP/1.1 has it, else as gzip has */
};

/* A method. Callbacks run on the loop thread of the call's connection. */
struct hps_grpc_method {
    const char *path; /* "/hps.v1.ParameterServer/Lookup" */
    bool open;        /* to everybody: the guard is not asked */
    uint32_t roles;   /* for the guard: any of these is enough; 0: any at all */
    /* Client messages: exactly one (unary, server streaming), or any number. */
    bool client_streaming;
    size_t request_bytes_max; /* per message; 0 = the server's limit */
    bool no_body;             /* HTTP/1.1: a request with a body is refused before the body comes */
    /* A whole message, inflated on the loop: for methods whose messages are small. `data` is
     * borrowed for the call unless kept by hps_grpc_call_keep_message. Unary: called exactly once,
     * after the half-close. */
    void (*on_message)(struct hps_grpc_call *call, const uint8_t *data, size_t size);
    /* Instead of on_message: the message as it came, for who unpacks it (hps_grpc_unpack) where it
     * holds up nobody. Its bytes are borrowed likewise. */
    void (*on_packed)(struct hps_grpc_call *call, const struct hps_grpc_packed *packed);
    /* client_streaming only: the client sent its last message. */
    void (*on_half_close)(struct hps_grpc_call *call);
    /* The call is over (finished, reset by the peer, deadline, connection lost): called exactly
     * once; free user state here. May be NULL. */
    void (*on_close)(struct hps_grpc_call *call);
    /* Instead of on_close: the call ended with this code before the service saw anything of it. May
     * be NULL. */
    void (*on_undelivered)(struct hps_grpc_call *call, int grpc_code);
    /* The send queue of this call has room again (see hps_grpc_call_queued). May be NULL. */
    void (*on_drained)(struct hps_grpc_call *call);
    /* What hps_grpc_call_charge had no room for counts now. NULL: the method charges nothing. */
    void (*on_room)(struct hps_grpc_call *call);
};

struct hps_grpc_service {
    const char *name; /* "hps.v1.ParameterServer" */
    const struct hps_grpc_method *methods;
    unsigned n_methods;
    void *ctx; /* given by hps_grpc_call_ctx */
};

/* What HTTP/1.1 may ask for. A request is a call of its method, which is unary; its body, of any
 * size down to none, is the message. HEAD is answered as GET is, without the body. */
struct hps_http_route {
    const char *verb; /* "GET", "POST" */
    /* "/v2/models/{}/infer"; "{}" is any one segment, percent-decoded: not empty, not "." or "..",
     * and without '/' and NUL. Of several that fit, that with the longer literal beginning. */
    const char *pattern;
    struct hps_grpc_method method; /* path: the pattern, for metrics and the audit log */
};

enum { HPS_HTTP_SEGMENTS_MAX = 8 }; /* that a pattern may have */

struct hps_grpc_limits {
    size_t request_bytes_max;
    size_t request_bytes_all_max;      /* being put together, all connections; 0 = none */
    size_t request_bytes_share;        /* of that, of a peer while others lack room; 0 = none */
    size_t connection_reply_bytes_max; /* charged, or queued; further calls of it wait */
    uint32_t streams_max;
    bool compression;               /* gzip messages are taken */
    uint64_t handshake_timeout_us;  /* TLS handshake and first request */
    uint64_t stall_timeout_us;      /* reply without progress */
    uint64_t reply_bytes_per_s_min; /* that a client takes of replies that wait for it; 0 = none */
    uint64_t request_bytes_per_s_min; /* that it sends of requests that it has begun; 0 = none */
    uint64_t idle_timeout_us;         /* 0 = none */
    uint64_t age_max_us;              /* 0 = none */
    double age_jitter;                /* share by which the age varies, 0.1: +- 10 % */
    uint64_t keepalive_us;            /* server PINGs when silent; 0 = none */
    uint64_t keepalive_timeout_us;
};

/* How a connection ended before its first request: label of a metric. */
enum hps_grpc_no_start {
    HPS_GRPC_TIMEOUT,     /* no handshake or request in time */
    HPS_GRPC_CERTIFICATE, /* the client's: missing, or not to be trusted */
    HPS_GRPC_PROTOCOL,    /* neither TLS nor HTTP/2 as they should be, or the client refused ours */
    HPS_GRPC_LEFT,        /* the client went */
    HPS_GRPC_NO_STARTS
};
const char *hps_grpc_no_start_name(enum hps_grpc_no_start how);

/* Why a client is cut off that takes its replies, or sends its requests, slowly. */
enum hps_grpc_slow {
    HPS_GRPC_SLOW_RATE,      /* for 10 s less than reply_bytes_per_s_min */
    HPS_GRPC_SLOW_ROOM,      /* the same for a moment, when others had no room for theirs */
    HPS_GRPC_SLOW_SEND_RATE, /* for 10 s less than request_bytes_per_s_min */
    HPS_GRPC_SLOW_SEND_ROOM, /* the same for a moment, when others had no room for theirs */
    HPS_GRPC_SLOW_COUNT
};

/* What the owner wants to know; all callbacks may be NULL; run on loop threads. */
struct hps_grpc_observer {
    void *ctx;
    void (*on_call_end)(void *ctx, struct hps_grpc_call *call, int grpc_code, uint64_t duration_us);
    /* +1 opened, -1 closed; is_http: it speaks HTTP/1.1 */
    void (*on_connection)(void *ctx, bool is_http, int delta);
    /* A connection ended without a request, and not because we wanted it to. Before -1. */
    void (*on_no_start)(void *ctx, const char *peer, enum hps_grpc_no_start how);
    void (*on_slow)(void *ctx, enum hps_grpc_slow why); /* a connection, or one of its calls */
};

/* Who may call what: the owner's decision. A *visitor* stands for a connection, a *grant* goes with
 * a call. Callbacks run on the loop thread of the connection, `release` on any. */
struct hps_grpc_guard {
    void *ctx;
    /* A connection has its first call. NULL: no memory. */
    void *(*visitor_new)(void *ctx, const struct hps_conn *conn, uint32_t listener_mask);
    void (*visitor_free)(void *visitor); /* NULL is legal */
    /* May this call begin, whose headers are there? OK: *out_grant, a reference; else how it ends.
     */
    hps_status (*enter)(void *visitor, const struct hps_grpc_call *call, uint32_t roles,
                        const void **out_grant, struct hps_error *err);
    /* After hps_grpc_loop_recheck: may the connection stay? Else it is closed at once. */
    hps_status (*visitor_again)(void *visitor, const struct hps_conn *conn, struct hps_error *err);
    /* ... and then, for each of its calls: may it go on, that began with this grant? */
    hps_status (*again)(void *visitor, const struct hps_grpc_call *call, const void *grant,
                        uint32_t roles, struct hps_error *err);
    void (*release)(const void *grant); /* NULL is legal */
};

struct hps_grpc_server; /* method table, shared by all loops, immutable once serving */

/* Services are borrowed for the server's life; loops begin with these limits. NULL: no memory. */
struct hps_grpc_server *hps_grpc_server_new(const struct hps_grpc_limits *limits,
                                            const struct hps_grpc_observer *observer);
/* Which listener class may call it: a connection with listener_mask sees services whose mask has a
 * common bit (Admin only on its own socket). */
hps_status hps_grpc_server_add(struct hps_grpc_server *server,
                               const struct hps_grpc_service *service, uint32_t listener_mask)
    HPS_MUST_CHECK;
/* The same for HTTP/1.1 (borrowed; ctx: given by hps_grpc_call_ctx): connections that speak it see
 * routes and nothing else, and those that speak gRPC see none. A path that nobody has is answered
 * 404, another verb 405 with Allow. */
hps_status hps_grpc_server_add_http(struct hps_grpc_server *server,
                                    const struct hps_http_route *routes, unsigned n_routes,
                                    void *ctx, uint32_t listener_mask) HPS_MUST_CHECK;
/* Have `guard` (copied) decide who may call what; without one everybody may call everything. Before
 * the first connection. */
void hps_grpc_server_guard_set(struct hps_grpc_server *server, const struct hps_grpc_guard *guard);
void hps_grpc_server_free(struct hps_grpc_server *server); /* no connection may be left */

/* The server connections of one loop. All loops of a server are made before the first of them
 * runs, and freed when none does any more. */
struct hps_grpc_loop;
hps_status hps_grpc_loop_new(struct hps_grpc_server *server, struct hps_loop *loop,
                             struct hps_grpc_loop **out_grpc_loop) HPS_MUST_CHECK;
/* takes `conn` (also on failure); any thread may ask, it is posted to the loop. Its seat, if it has
 * one, is told what it does, and asks it to give way: then it ends at once, or if it has calls in
 * two seconds at most. */
void hps_grpc_loop_adopt(struct hps_grpc_loop *grpc_loop, struct hps_conn *conn,
                         uint32_t listener_mask);
/* The same for a connection that speaks HTTP/1.1. */
void hps_grpc_loop_adopt_http(struct hps_grpc_loop *grpc_loop, struct hps_conn *conn,
                              uint32_t listener_mask);
/* From now on these limits hold. Open connections keep their age and number of streams. Loop
 * thread.
 */
void hps_grpc_loop_limits_set(struct hps_grpc_loop *grpc_loop,
                              const struct hps_grpc_limits *limits);
/* The guard's rules have changed: end the connections that may not stay, and the calls that may not
 * go on; a connection that lost a call gets a GOAWAY. Loop thread. */
void hps_grpc_loop_recheck(struct hps_grpc_loop *grpc_loop);
/* Send GOAWAY notices, refuse new streams after a round trip, close connections once their calls
 * are done; calls `done(ctx)` on the loop thread when none is left. Loop thread. */
void hps_grpc_loop_drain(struct hps_grpc_loop *grpc_loop, void (*done)(void *ctx), void *ctx);
/* Close everything now and free. Loop thread (or after the loop has stopped). */
void hps_grpc_loop_free(struct hps_grpc_loop *grpc_loop);
size_t hps_grpc_loop_bytes_in_flight(const struct hps_grpc_loop *grpc_loop); /* any thread */
unsigned hps_grpc_loop_connections(const struct hps_grpc_loop *grpc_loop);   /* any thread */

/* ---- a server call --------------------------------------------------------------------------- */

void *hps_grpc_call_ctx(const struct hps_grpc_call *call); /* the service's ctx */
struct hps_loop *hps_grpc_call_loop(const struct hps_grpc_call *call);
struct hps_grpc_loop *hps_grpc_call_grpc_loop(const struct hps_grpc_call *call);
const char *hps_grpc_call_path(const struct hps_grpc_call *call);
const char *hps_grpc_call_peer(const struct hps_grpc_call *call);
/* Its connection. Loop thread, until the call is finished. */
const struct hps_conn *hps_grpc_call_conn(const struct hps_grpc_call *call);
uint64_t hps_grpc_call_client(const struct hps_grpc_call *call); /* hps_conn_client */
/* What the guard gave it; NULL: there is none. Borrowed for as long as the call. Any thread. */
const void *hps_grpc_call_grant(const struct hps_grpc_call *call);
uint64_t hps_grpc_call_start_us(const struct hps_grpc_call *call);
uint64_t hps_grpc_call_deadline_us(const struct hps_grpc_call *call); /* 0 = none */
/* What the message says of its deadline: it is no later than that. Before the call is finished;
 * afterwards nothing happens.
 *
 * unit    at_us by hps_clock_us; one that has passed ends the call in the next turn of the loop
 */
void hps_grpc_call_deadline_limit(struct hps_grpc_call *call, uint64_t at_us);
/* It came by HTTP/1.1, and its method is that of a route. Any thread. */
bool hps_grpc_call_is_http(const struct hps_grpc_call *call);
/* HTTP/1.1: what stands for the i-th "{}" of the pattern. Any thread.
 *
 * unit    *out_size bytes, beside the NUL that follows them; out_size may be NULL
 * owner   borrowed for as long as the call
 */
const char *hps_grpc_call_segment(const struct hps_grpc_call *call, unsigned i, size_t *out_size);
/* Value of a request header (lower-case name), NULL if absent; -bin values are decoded (size
 * given). */
const char *hps_grpc_call_header(const struct hps_grpc_call *call, const char *name,
                                 size_t *out_size);
void *hps_grpc_call_user(const struct hps_grpc_call *call);
void hps_grpc_call_set_user(struct hps_grpc_call *call, void *user);
/* Keep the current message's bytes valid until on_close (call it inside on_message or on_packed);
 * of a packed one until the call is freed. */
void hps_grpc_call_keep_message(struct hps_grpc_call *call);
/* A kept message of a method with on_packed is of no more use. Until then its bytes count as those
 * of requests that are being put together. With client_streaming: all that are kept. */
void hps_grpc_call_drop_message(struct hps_grpc_call *call);
/* client_streaming: while it is paused no further message of the client is delivered, and what it
 * sends waits, for no more than a window. Within on_message, or outside. Loop thread. */
void hps_grpc_call_pause(struct hps_grpc_call *call, bool paused);
/* The plain bytes of a message: where they are, or inflated in `plain`.
 *
 * unit    size_max bytes, beside packed->size_max
 * thread  any
 * owner   plain is the caller's, to be freed in any case; initialised here
 * error   EXHAUSTED: more than one of these limits, or inflated beyond reason (net/gzip.h);
 *         INTERNAL, of HTTP/1.1 INVALID: not what it says, or damaged; NO_MEMORY
 */
hps_status hps_grpc_unpack(const struct hps_grpc_packed *packed, size_t size_max,
                           struct hps_buf *plain, const uint8_t **out_data, size_t *out_size,
                           struct hps_error *err) HPS_MUST_CHECK;

void hps_grpc_call_ref(struct hps_grpc_call *call);   /* any thread */
void hps_grpc_call_unref(struct hps_grpc_call *call); /* any thread */
/* True once the client is gone or the deadline has passed: stop working. Any thread. */
bool hps_grpc_call_cancelled(const struct hps_grpc_call *call);

/* Count `bytes`, the memory that the answer takes, against the connection until
 * hps_grpc_call_discharge, even if that ends before. OK: they count. AGAIN: beside what counts
 * already they are too many. Then the call stands in the connection's line, its later calls wait,
 * too, and on_room follows, unless the call is finished or over before. A lone answer may be of any
 * size.
 *
 * unit    bytes > 0, once per call, before it is finished (client_streaming: again once it is
 *         discharged); held: bytes that the call keeps while it
 *         stands in line, and if it gets no room until it is closed
 * error   EXHAUSTED: those in line would hold more than connection_reply_bytes_max, or than
 *         request_bytes_all_max on all connections. Nothing counts, and nothing follows
 */
hps_status hps_grpc_call_charge(struct hps_grpc_call *call, size_t bytes, size_t held)
    HPS_MUST_CHECK;
/* The memory is free again. A call that has charged nothing, or waited in vain: nothing. The caller
 * has a reference. Loop thread, whatever has become of the call. */
void hps_grpc_call_discharge(struct hps_grpc_call *call);

/* An answer has to wait for memory that other answers have: note how far their readers are, on all
 * loops. When it begins to wait, and now and then while it does. Loop thread. */
void hps_grpc_readers_watch(struct hps_grpc_call *call);
/* It waits still, and would have to be refused: of all connections and calls that have taken less
 * than reply_bytes_per_s_min since that was noted 80 ms ago or more, cut off the one whose answers
 * would take the longest to be gone. A moment later their memory is free. Loop thread. */
void hps_grpc_readers_cut(struct hps_grpc_call *call);

/* Queue one message made of slices (their references are taken, in any case). After the call was
 * closed this only releases them. HTTP/1.1: the whole body, once; hps_grpc_call_finish follows. */
void hps_grpc_call_send(struct hps_grpc_call *call, const struct hps_slice *slices,
                        unsigned n_slices);
/* Queue one small message, copied. HTTP/1.1: likewise. */
void hps_grpc_call_send_copy(struct hps_grpc_call *call, const void *data, size_t size);
/* Bytes queued and not yet in the kernel, for producers that stream. */
size_t hps_grpc_call_queued(const struct hps_grpc_call *call);
/* Metadata for the trailers (before finish); -bin values are encoded. HTTP/1.1 has them among the
 * headers, if they come before the body; of grpc-retry-pushback-ms it makes Retry-After, too. */
hps_status hps_grpc_call_add_trailer(struct hps_grpc_call *call, const char *name,
                                     const void *value, size_t size) HPS_MUST_CHECK;
/* Metadata for the initial headers (before the first send). HTTP/1.1: "content-type" among them
 * takes the place of application/json. */
hps_status hps_grpc_call_add_header(struct hps_grpc_call *call, const char *name, const void *value,
                                    size_t size) HPS_MUST_CHECK;
/* HTTP/1.1: the answer has this status (200 to 599) instead of the one that its code has, and if
 * nothing is sent no body. Before the first send; nothing for other calls. */
void hps_grpc_call_answer_status(struct hps_grpc_call *call, unsigned http_status);
/* End the call with a gRPC code and a message (NULL: none). Exactly once; later ones are ignored.
 * HTTP/1.1: without a body sent, code 0 is an empty one, and any other {"error": message} with the
 * status that it has there: 400 (INVALID_ARGUMENT, FAILED_PRECONDITION, OUT_OF_RANGE, UNKNOWN,
 * ALREADY_EXISTS, CANCELLED), 401, 403, 404, 409 (ABORTED), 429 (RESOURCE_EXHAUSTED), 500, 501,
 * 503, 504. */
void hps_grpc_call_finish(struct hps_grpc_call *call, int grpc_code, const char *message);
/* hps_grpc_call_finish with the code and text of an error. */
void hps_grpc_call_fail(struct hps_grpc_call *call, const struct hps_error *err);
/* The same where its message is larger than any may be. The text names the option that sets the
 * limit of the method, if there is one and the text has no advice yet. HTTP/1.1: 413, instead of
 * the 429 of those for whom there is no room now. */
void hps_grpc_call_fail_too_large(struct hps_grpc_call *call, const struct hps_error *err);

/* ---- client ---------------------------------------------------------------------------------- */

struct hps_grpc_channel; /* one connection to one server, on one loop */
struct hps_grpc_client_call;

struct hps_grpc_client_events {
    void (*on_message)(void *ctx, const uint8_t *data, size_t size); /* borrowed */
    /* Over: gRPC code and message; the call is freed after this. Exactly once. */
    void (*on_done)(void *ctx, int grpc_code, const char *message);
};

struct hps_grpc_channel_options {
    const char *address;      /* "host:port" or "unix:PATH" */
    struct hps_tls *tls;      /* NULL: plaintext; borrowed */
    const char *bearer_token; /* NULL: none */
    size_t reply_bytes_max;
    uint64_t connect_timeout_us;
};

/* Starts to connect; calls made meanwhile wait; a lost connection fails its calls with UNAVAILABLE
 * and is made anew by the next call. */
hps_status hps_grpc_channel_new(struct hps_loop *loop,
                                const struct hps_grpc_channel_options *options,
                                struct hps_grpc_channel **out_channel, struct hps_error *err)
    HPS_MUST_CHECK;
void hps_grpc_channel_free(
    struct hps_grpc_channel *channel); /* fails what is under way, CANCELLED */

/* Start a call with its one request message (copied) and half-close. `out_call` may be NULL. */
hps_status hps_grpc_client_start(struct hps_grpc_channel *channel, const char *path,
                                 const void *request, size_t request_size, uint64_t deadline_us,
                                 const struct hps_grpc_client_events *events, void *ctx,
                                 struct hps_grpc_client_call **out_call) HPS_MUST_CHECK;
void hps_grpc_client_cancel(struct hps_grpc_client_call *call); /* on_done(CANCELLED) follows */

#endif
