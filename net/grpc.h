/* SPDX-License-Identifier: Apache-2.0
 *
 * gRPC over HTTP/2: the server's side of calls and a client. A server may also have HTTP/1.1
 * routes. Their requests are calls like any other, with the same limits and the same guard. All
 * functions and callbacks belong to the loop thread of the connection, unless they say "any
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

/* A piece of an outgoing message: bytes of a block, not copied in user space. A reference to the
 * block is held until the bytes are in the kernel. */
struct hps_slice {
    struct hps_block *block; /* the callee takes one reference of the caller */
    const uint8_t *data;
    size_t size;
};

/* ---- server ---------------------------------------------------------------------------------- */

struct hps_grpc_call; /* one RPC; reference-counted, because workers may outlive the client */

/* A request message as the client sent it. */
struct hps_grpc_packed {
    const uint8_t *data;
    size_t size;
    size_t size_max; /* limit of the inflated message */
    bool compressed;
    bool is_http; /* the body of an HTTP/1.1 request */
    bool is_zlib; /* of a compressed one: zlib ("deflate" in gRPC and HTTP/1.1), else gzip */
};

/* A method. Callbacks run on the loop thread of the call's connection. */
struct hps_grpc_method {
    const char *path; /* "/hps.v1.ParameterServer/Lookup" */
    bool open;        /* every client may call it: the guard is not asked */
    uint32_t roles;   /* for the guard: any one of these suffices; 0: any role does */
    /* The client sends any number of messages; else exactly one (unary, server streaming). */
    bool client_streaming;
    size_t request_bytes_max; /* per message; 0: the server's limit */
    bool no_body; /* HTTP/1.1: a request with a body is rejected before the body comes */
    /* A complete message, inflated on the loop: for methods with small messages. `data` is borrowed
     * during the callback, unless hps_grpc_call_keep_message is called. Unary: called exactly once,
     * after the half-close. */
    void (*on_message)(struct hps_grpc_call *call, const uint8_t *data, size_t size);
    /* Instead of on_message: the message as it was sent. The service inflates it with
     * hps_grpc_unpack, on a thread where that delays no other call. `packed` is borrowed
     * likewise. */
    void (*on_packed)(struct hps_grpc_call *call, const struct hps_grpc_packed *packed);
    /* client_streaming only: the client has sent its last message. */
    void (*on_half_close)(struct hps_grpc_call *call);
    /* The call has ended: finished, reset by the peer, deadline, or connection lost. Called exactly
     * once; free the service's state here. May be NULL. */
    void (*on_close)(struct hps_grpc_call *call);
    /* Instead of on_close: the call ended with this code before the service saw any of it. May be
     * NULL. */
    void (*on_undelivered)(struct hps_grpc_call *call, int grpc_code);
    /* The send queue of this call has capacity again (see hps_grpc_call_queued). May be NULL. */
    void (*on_drained)(struct hps_grpc_call *call);
    /* The charge for which hps_grpc_call_charge returned AGAIN counts now. NULL: the method charges
     * nothing. */
    void (*on_room)(struct hps_grpc_call *call);
};

struct hps_grpc_service {
    const char *name; /* "hps.v1.ParameterServer" */
    const struct hps_grpc_method *methods;
    unsigned n_methods;
    void *ctx; /* returned by hps_grpc_call_ctx */
};

/* A request that HTTP/1.1 accepts. It is a call of `method`, which is unary. Its body, which may be
 * empty, is the message. HEAD is answered like GET, without the body. */
struct hps_http_route {
    const char *verb; /* "GET", "POST" */
    /* "/v2/models/{}/infer". "{}" matches one segment, percent-decoded: not empty, not "." or "..",
     * without '/' and NUL. If several patterns match, the one with a literal at the first segment
     * in which they differ is used. */
    const char *pattern;
    struct hps_grpc_method method; /* its path: the pattern, for metrics and the audit log */
};

enum { HPS_HTTP_SEGMENTS_MAX = 8 }; /* in a pattern */

struct hps_grpc_limits {
    size_t request_bytes_max;
    size_t request_bytes_all_max; /* of incomplete requests on all connections; 0: no limit */
    size_t request_bytes_share;   /* of that, for a peer while others lack memory; 0: no limit */
    size_t connection_reply_bytes_max; /* charged or queued; then its further calls wait */
    uint32_t streams_max;
    bool compression;                 /* accept compressed messages */
    uint64_t handshake_timeout_us;    /* of TLS handshake and first request */
    uint64_t stall_timeout_us;        /* of a reply without progress */
    uint64_t reply_bytes_per_s_min;   /* at which a client must read waiting replies; 0: none */
    uint64_t request_bytes_per_s_min; /* at which it must send a begun request; 0: none */
    uint64_t idle_timeout_us;         /* 0: none */
    uint64_t age_max_us;              /* 0: none */
    double age_jitter;                /* share by which the age varies; 0.1: +- 10 % */
    uint64_t keepalive_us;            /* silence after which the server sends PING; 0: never */
    uint64_t keepalive_timeout_us;
};

/* How a connection ended before its first request: label of a metric. */
enum hps_grpc_no_start {
    HPS_GRPC_TIMEOUT,     /* no handshake or request in time */
    HPS_GRPC_CERTIFICATE, /* the client's is missing or not trusted */
    HPS_GRPC_PROTOCOL,    /* not TLS or HTTP as expected, or the client rejected our certificate */
    HPS_GRPC_LEFT,        /* the client disconnected */
    HPS_GRPC_NO_STARTS
};
const char *hps_grpc_no_start_name(enum hps_grpc_no_start how);

/* Why a client that reads or sends too slowly is cut off. */
enum hps_grpc_slow {
    HPS_GRPC_SLOW_RATE,      /* for 10 s less than reply_bytes_per_s_min */
    HPS_GRPC_SLOW_ROOM,      /* below it for a moment, while others lacked memory for replies */
    HPS_GRPC_SLOW_SEND_RATE, /* for 10 s less than request_bytes_per_s_min */
    HPS_GRPC_SLOW_SEND_ROOM, /* below it for a moment, while others lacked memory for requests */
    HPS_GRPC_SLOW_COUNT
};

/* Events for the owner of the server. Each callback may be NULL. They run on loop threads. */
struct hps_grpc_observer {
    void *ctx;
    void (*on_call_end)(void *ctx, struct hps_grpc_call *call, int grpc_code, uint64_t duration_us);
    /* +1 opened, -1 closed; is_http: the connection speaks HTTP/1.1 */
    void (*on_connection)(void *ctx, bool is_http, int delta);
    /* A connection ended without a request, and not by this server. Called before the -1. */
    void (*on_no_start)(void *ctx, const char *peer, enum hps_grpc_no_start how);
    void (*on_slow)(void *ctx, enum hps_grpc_slow why); /* a connection, or one of its calls */
};

/* The owner's authorization of calls. A *visitor* is the identity of a connection, a *grant* the
 * permissions of a call. Callbacks run on the loop thread of the connection, `release` on any
 * thread. */
struct hps_grpc_guard {
    void *ctx;
    /* Before the first call of a connection. NULL: no memory. */
    void *(*visitor_new)(void *ctx, const struct hps_conn *conn, uint32_t listener_mask);
    void (*visitor_free)(void *visitor); /* NULL has no effect */
    /* Whether this call may begin; its headers are there. OK: *out_grant is a reference; otherwise
     * the call ends with this error. */
    hps_status (*enter)(void *visitor, const struct hps_grpc_call *call, uint32_t roles,
                        const void **out_grant, struct hps_error *err);
    /* After hps_grpc_loop_recheck: whether the connection may stay. Else it is closed at once. */
    hps_status (*visitor_again)(void *visitor, const struct hps_conn *conn, struct hps_error *err);
    /* Then, for each of its calls: whether a call that began with this grant may continue. */
    hps_status (*again)(void *visitor, const struct hps_grpc_call *call, const void *grant,
                        uint32_t roles, struct hps_error *err);
    void (*release)(const void *grant); /* NULL has no effect */
};

struct hps_grpc_server; /* the methods; shared by all loops, immutable once connections exist */

/* Services are borrowed for the life of the server. Loops begin with these limits. NULL: no
 * memory. */
struct hps_grpc_server *hps_grpc_server_new(const struct hps_grpc_limits *limits,
                                            const struct hps_grpc_observer *observer);
/* Adds a service for the connections with a common bit in listener_mask. So Admin can be on its own
 * socket only. */
hps_status hps_grpc_server_add(struct hps_grpc_server *server,
                               const struct hps_grpc_service *service, uint32_t listener_mask)
    HPS_MUST_CHECK;
/* The same for HTTP/1.1 routes (borrowed; hps_grpc_call_ctx returns `ctx`). Connections that speak
 * HTTP/1.1 see only routes, and gRPC connections see none. An unknown path is answered 404, another
 * verb 405 with Allow. */
hps_status hps_grpc_server_add_http(struct hps_grpc_server *server,
                                    const struct hps_http_route *routes, unsigned n_routes,
                                    void *ctx, uint32_t listener_mask) HPS_MUST_CHECK;
/* Sets the guard (copied). Without a guard every client may call every method. Call it before the
 * first connection. */
void hps_grpc_server_guard_set(struct hps_grpc_server *server, const struct hps_grpc_guard *guard);
void hps_grpc_server_free(struct hps_grpc_server *server); /* no connection may be left */

/* The server connections of one loop. Create all loops of a server before the first of them runs,
 * and free them after all have stopped. */
struct hps_grpc_loop;
hps_status hps_grpc_loop_new(struct hps_grpc_server *server, struct hps_loop *loop,
                             struct hps_grpc_loop **out_grpc_loop) HPS_MUST_CHECK;
/* Takes `conn`, also on failure. Any thread: this posts to the loop. The slot of the connection, if
 * it has one, learns its state. A displaced connection ends at once, or within two seconds if it
 * has calls. */
void hps_grpc_loop_adopt(struct hps_grpc_loop *grpc_loop, struct hps_conn *conn,
                         uint32_t listener_mask);
/* The same for a connection that speaks HTTP/1.1. */
void hps_grpc_loop_adopt_http(struct hps_grpc_loop *grpc_loop, struct hps_conn *conn,
                              uint32_t listener_mask);
/* Changes the limits. Open connections keep their maximum age and number of streams. Loop
 * thread. */
void hps_grpc_loop_limits_set(struct hps_grpc_loop *grpc_loop,
                              const struct hps_grpc_limits *limits);
/* Call it after the rules of the guard have changed. Ends the connections and calls that are no
 * longer allowed. A connection that lost a call gets a GOAWAY. Loop thread. */
void hps_grpc_loop_recheck(struct hps_grpc_loop *grpc_loop);
/* Sends GOAWAY notices, refuses new streams after a round trip and closes each connection when its
 * calls have ended. Then calls `done(ctx)` on the loop thread. Loop thread. */
void hps_grpc_loop_drain(struct hps_grpc_loop *grpc_loop, void (*done)(void *ctx), void *ctx);
/* Closes all connections now and frees the loop. Loop thread, or any after the loop has stopped. */
void hps_grpc_loop_free(struct hps_grpc_loop *grpc_loop);
size_t hps_grpc_loop_bytes_in_flight(const struct hps_grpc_loop *grpc_loop); /* any thread */
unsigned hps_grpc_loop_connections(const struct hps_grpc_loop *grpc_loop);   /* any thread */

/* ---- a server call --------------------------------------------------------------------------- */

void *hps_grpc_call_ctx(const struct hps_grpc_call *call); /* the service's ctx */
struct hps_loop *hps_grpc_call_loop(const struct hps_grpc_call *call);
struct hps_grpc_loop *hps_grpc_call_grpc_loop(const struct hps_grpc_call *call);
const char *hps_grpc_call_path(const struct hps_grpc_call *call);
const char *hps_grpc_call_peer(const struct hps_grpc_call *call);
/* The connection. Loop thread, until the call is finished. */
const struct hps_conn *hps_grpc_call_conn(const struct hps_grpc_call *call);
uint64_t hps_grpc_call_client(const struct hps_grpc_call *call); /* hps_conn_client */
/* The permissions that the guard gave; may be NULL. Borrowed during the call's life. Any thread. */
const void *hps_grpc_call_grant(const struct hps_grpc_call *call);
uint64_t hps_grpc_call_start_us(const struct hps_grpc_call *call);
uint64_t hps_grpc_call_deadline_us(const struct hps_grpc_call *call); /* 0: none */
/* Sets a deadline that the message contains, unless the call has an earlier one. No effect after
 * the call is finished.
 *
 * unit    at_us by hps_clock_us; if it has passed, the call ends in the next turn of the loop
 */
void hps_grpc_call_deadline_limit(struct hps_grpc_call *call, uint64_t at_us);
/* Whether it came by HTTP/1.1. Its method is then a route's. Any thread. */
bool hps_grpc_call_is_http(const struct hps_grpc_call *call);
/* HTTP/1.1: the segment that matched the i-th "{}" of the pattern. Any thread.
 *
 * unit    *out_size: bytes without the NUL that follows; out_size may be NULL
 * owner   borrowed during the call's life
 */
const char *hps_grpc_call_segment(const struct hps_grpc_call *call, unsigned i, size_t *out_size);
/* The value of a request header; NULL if it is absent. `name` is in lower case. Values of -bin
 * headers are decoded. */
const char *hps_grpc_call_header(const struct hps_grpc_call *call, const char *name,
                                 size_t *out_size);
void *hps_grpc_call_user(const struct hps_grpc_call *call);
void hps_grpc_call_set_user(struct hps_grpc_call *call, void *user);
/* Keeps the bytes of the current message valid: until on_close, or for on_packed until the call is
 * freed. Call it within on_message or on_packed. */
void hps_grpc_call_keep_message(struct hps_grpc_call *call);
/* Releases a kept message of a method with on_packed; with client_streaming all of them. Until then
 * its bytes count as an incomplete request. */
void hps_grpc_call_drop_message(struct hps_grpc_call *call);
/* client_streaming: while paused, no further message is delivered, and the client can send at most
 * one window more. May be called within on_message. Loop thread. */
void hps_grpc_call_pause(struct hps_grpc_call *call, bool paused);
/* The plain bytes of a message: at their place if it is not compressed, else inflated into `plain`.
 *
 * unit    size_max: bytes; a second limit, with packed->size_max
 * thread  any
 * owner   plain: initialised here; the caller frees it, also on failure
 * error   EXHAUSTED: above a limit, or inflated beyond the ratio of net/gzip.h; INTERNAL (HTTP/1.1:
 *         INVALID): damaged, or not the declared encoding; NO_MEMORY
 */
hps_status hps_grpc_unpack(const struct hps_grpc_packed *packed, size_t size_max,
                           struct hps_buf *plain, const uint8_t **out_data, size_t *out_size,
                           struct hps_error *err) HPS_MUST_CHECK;

void hps_grpc_call_ref(struct hps_grpc_call *call);   /* any thread */
void hps_grpc_call_unref(struct hps_grpc_call *call); /* any thread */
/* Whether the client has disconnected or the deadline has passed: stop working. Any thread. */
bool hps_grpc_call_cancelled(const struct hps_grpc_call *call);

/* Counts `bytes`, the memory of the reply, against the connection until hps_grpc_call_discharge,
 * even if the connection ends before. OK: they count. AGAIN: other calls are queued, or with the
 * bytes that count already they exceed connection_reply_bytes_max. The call then waits in the
 * connection's queue, and later calls of the connection wait too. on_room follows, unless the call
 * is finished or ends before. While no bytes count, a reply may have any size.
 *
 * unit    bytes > 0, once per call, before it is finished (client_streaming: again after it is
 *         discharged); held: bytes that the call keeps while it is queued, and if it never leaves
 *         the queue until it is closed
 * error   EXHAUSTED: with `held` the queue of the connection would hold more than
 *         connection_reply_bytes_max, or, if `held` exceeds 64 KiB, all queues more than
 *         request_bytes_all_max. The bytes do not count and on_room does not follow
 */
hps_status hps_grpc_call_charge(struct hps_grpc_call *call, size_t bytes, size_t held)
    HPS_MUST_CHECK;
/* The memory is free again. A call of a client_streaming method that is still queued leaves the
 * queue. No effect on a call without a charge. The caller must have a reference. Loop thread, in
 * any state of the call. */
void hps_grpc_call_discharge(struct hps_grpc_call *call);

/* A reply must wait for memory of other replies: records how much each client has read so far, on
 * all loops. Call it when the wait begins and again while it lasts. Loop thread. */
void hps_grpc_readers_watch(struct hps_grpc_call *call);
/* A waiting reply would have to be rejected: cuts off at most one client. Candidates are
 * connections and calls that have read less than reply_bytes_per_s_min since a record that is at
 * least 80 ms old. The one that would take longest to read its replies is cut off. Its memory is
 * free soon afterwards, not on return. Loop thread. */
void hps_grpc_readers_cut(struct hps_grpc_call *call);

/* Queues one message made of slices. Takes their references, also on failure. After the call has
 * ended this only releases them. HTTP/1.1: the whole body, once; then call hps_grpc_call_finish. */
void hps_grpc_call_send(struct hps_grpc_call *call, const struct hps_slice *slices,
                        unsigned n_slices);
/* Queues one small message, copied. HTTP/1.1: the same. */
void hps_grpc_call_send_copy(struct hps_grpc_call *call, const void *data, size_t size);
/* Bytes that are queued and not yet in the kernel. For streaming services. */
size_t hps_grpc_call_queued(const struct hps_grpc_call *call);
/* Adds metadata to the trailers, before the call is finished. -bin values are encoded. HTTP/1.1 has
 * it among the headers, if it is added before the body. From grpc-retry-pushback-ms HTTP/1.1 also
 * makes Retry-After. */
hps_status hps_grpc_call_add_trailer(struct hps_grpc_call *call, const char *name,
                                     const void *value, size_t size) HPS_MUST_CHECK;
/* Adds metadata to the headers, before the first send. HTTP/1.1: "content-type" replaces
 * application/json. */
hps_status hps_grpc_call_add_header(struct hps_grpc_call *call, const char *name, const void *value,
                                    size_t size) HPS_MUST_CHECK;
/* HTTP/1.1: the reply has this status (200 to 599) instead of that of its code. Without a message
 * it then has no body. Call it before the first send. No effect on gRPC calls. */
void hps_grpc_call_answer_status(struct hps_grpc_call *call, unsigned http_status);
/* Ends the call with a gRPC code and a message (NULL: none). Must be called once; further calls
 * have no effect. HTTP/1.1 without a body sent: code 0 has an empty body, any other code has
 * {"error": message} and one of these statuses: 400 (INVALID_ARGUMENT, FAILED_PRECONDITION,
 * OUT_OF_RANGE, UNKNOWN, ALREADY_EXISTS, CANCELLED), 401, 403, 404, 409 (ABORTED), 429
 * (RESOURCE_EXHAUSTED), 500, 501, 503, 504. */
void hps_grpc_call_finish(struct hps_grpc_call *call, int grpc_code, const char *message);
/* hps_grpc_call_finish with the code and the text of an error. */
void hps_grpc_call_fail(struct hps_grpc_call *call, const struct hps_error *err);
/* The same for a message above its size limit. Adds to the text the option that sets the limit, if
 * there is one and the text has no advice yet. HTTP/1.1: status 413. 429 means that there is no
 * memory at present. */
void hps_grpc_call_fail_too_large(struct hps_grpc_call *call, const struct hps_error *err);

/* ---- client ---------------------------------------------------------------------------------- */

struct hps_grpc_channel; /* one connection to one server, on one loop */
struct hps_grpc_client_call;

struct hps_grpc_client_events {
    void (*on_message)(void *ctx, const uint8_t *data, size_t size); /* borrowed */
    /* The call has ended with a gRPC code and a message; it is freed after this. Called exactly
     * once. */
    void (*on_done)(void *ctx, int grpc_code, const char *message);
};

struct hps_grpc_channel_options {
    const char *address;      /* "host:port" or "unix:PATH" */
    struct hps_tls *tls;      /* NULL: plaintext; borrowed */
    const char *bearer_token; /* NULL: none */
    size_t reply_bytes_max;
    uint64_t connect_timeout_us;
};

/* Starts to connect. Calls wait until it is connected. If the connection is lost, its calls fail
 * with UNAVAILABLE, and the next call connects again. */
hps_status hps_grpc_channel_new(struct hps_loop *loop,
                                const struct hps_grpc_channel_options *options,
                                struct hps_grpc_channel **out_channel, struct hps_error *err)
    HPS_MUST_CHECK;
void hps_grpc_channel_free(
    struct hps_grpc_channel *channel); /* fails its calls in flight: CANCELLED */

/* Starts a call with one request message (copied) and half-closes. `out_call` may be NULL. */
hps_status hps_grpc_client_start(struct hps_grpc_channel *channel, const char *path,
                                 const void *request, size_t request_size, uint64_t deadline_us,
                                 const struct hps_grpc_client_events *events, void *ctx,
                                 struct hps_grpc_client_call **out_call) HPS_MUST_CHECK;
void hps_grpc_client_cancel(struct hps_grpc_client_call *call); /* on_done(CANCELLED) follows */

#endif
