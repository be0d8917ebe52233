/* SPDX-License-Identifier: Apache-2.0
 *
 * gRPC over HTTP/2: a server and a client. A server may also have HTTP/1.1 routes. A request on
 * such a route is a call like any other, with the same limits and the same authorization (struct
 * hps_grpc_guard). Functions must be called, and callbacks run, on the loop thread of the
 * connection, unless the comment says "any thread".
 */
#ifndef HPS_NET_GRPC_H
#define HPS_NET_GRPC_H

#include "base/block.h"
#include "base/buf.h"
#include "base/mailbox.h"
#include "base/metric.h"
#include "net/conn.h"
#include "net/limits.h"
#include "net/loop.h"

/* ---- messages -------------------------------------------------------------------------------- */

/* A part of an outgoing message: bytes of a block, which are not copied in user space. The
 * connection keeps a reference to the block until the bytes are in the kernel. */
struct hps_slice {
    struct hps_block *block; /* functions that take slices take over one reference of the caller */
    const uint8_t *data;
    size_t size;
};

/* ---- server ---------------------------------------------------------------------------------- */

struct hps_grpc_call; /* one RPC; reference-counted, because workers may outlive the client */

/* A request message as the client sent it. */
struct hps_grpc_packed {
    const uint8_t *data;
    size_t size;
    size_t size_max; /* maximum size of the inflated message */
    bool compressed;
    bool is_http; /* the message is the body of an HTTP/1.1 request */
    bool is_zlib; /* compressed with zlib ("deflate" in gRPC and HTTP/1.1), not gzip */
};

/* A method. Callbacks run on the loop thread of the call's connection. */
struct hps_grpc_method {
    const char *path; /* "/hps.v1.ParameterServer/Lookup" */
    bool open;        /* every client may call the method; the guard is not called */
    uint32_t roles; /* bits, defined by the guard: roles that may call the method; 0: every role */
    /* True: the client sends any number of messages. False: exactly one, as in unary and
     * server-streaming calls. */
    bool client_streaming;
    size_t request_bytes_max; /* per message; 0: request_bytes_max of the server's limits */
    bool no_body; /* HTTP/1.1: a request with a body is rejected; the body is not read */
    /* Receives one complete message, which the loop thread has inflated. Methods with small
     * messages use it. `data` is valid during the callback only. Without client_streaming, it
     * runs at most once, after the half-close. */
    void (*on_message)(struct hps_grpc_call *call, const uint8_t *data, size_t size);
    /* If set, the server calls it instead of on_message. The message may still be compressed.
     * The service inflates the message with hps_grpc_unpack on another thread, so that the loop is
     * not delayed. `packed` is valid during the callback only. So is packed->data, unless
     * hps_grpc_call_keep_message is called. */
    void (*on_packed)(struct hps_grpc_call *call, const struct hps_grpc_packed *packed);
    /* client_streaming only: the client has sent its last message. */
    void (*on_half_close)(struct hps_grpc_call *call);
    /* The call has ended: the service finished it, the peer reset it, its deadline passed, or the
     * connection was lost. Called once for each call for which a callback above was called. The
     * service frees its state of the call here. May be NULL. */
    void (*on_close)(struct hps_grpc_call *call);
    /* The call has ended before any callback above was called. on_close is not called for it.
     * grpc_code: the code with which the call ended. May be NULL. */
    void (*on_undelivered)(struct hps_grpc_call *call, int grpc_code);
    /* Bytes of the call were sent, and at most 1 MiB is still queued (hps_grpc_call_queued). The
     * service may queue more messages. May be NULL. */
    void (*on_drained)(struct hps_grpc_call *call);
};

struct hps_grpc_service {
    const char *name; /* "hps.v1.ParameterServer" */
    const struct hps_grpc_method *methods;
    unsigned n_methods;
    void *ctx; /* hps_grpc_call_ctx returns it */
};

/* A kind of HTTP/1.1 request that the server accepts. Such a request is a call of `method`, which
 * must be unary. Its body, possibly empty, is the message. HEAD is answered like GET, without the
 * body. */
struct hps_http_route {
    const char *verb; /* "GET", "POST" */
    /* "/v2/models/{}/infer". "{}" matches one segment of the path. The segment is percent-decoded
     * first. It must not be empty, "." or "..", and must not contain '/' or NUL. If several
     * patterns match, a literal segment is preferred to "{}", at the first segment in which the
     * patterns differ. */
    const char *pattern;
    struct hps_grpc_method method; /* method.path: the pattern, for metrics and the audit log */
};

enum { HPS_HTTP_SEGMENTS_MAX = 8 }; /* segments of a pattern */

struct hps_grpc_limits {
    size_t request_bytes_max; /* maximum size of one message after inflation */
    /* Maximum bytes, per connection, of replies that are charged or queued. At this limit further
     * calls of the connection wait. */
    size_t connection_reply_bytes_max;
    uint32_t streams_max; /* open streams per HTTP/2 connection */
    bool compression;     /* accept compressed messages */
    /* Time limit of the TLS handshake, of the first request, and of each HTTP/1.1 head. 0: no
     * limit. */
    uint64_t handshake_timeout_us;
    /* Maximum time in which a client reads no byte of a queued reply, or sends no byte of an
     * incomplete request. Requests of client_streaming calls are exempt. 0: no limit. */
    uint64_t stall_timeout_us;
    uint64_t reply_bytes_per_s_min;   /* minimum rate at which a client reads replies; 0: none */
    uint64_t request_bytes_per_s_min; /* minimum rate at which a client sends requests; 0: none */
    uint64_t idle_timeout_us;         /* time limit of a connection without calls; 0: no limit */
    uint64_t age_max_us;              /* age at which a connection is drained; 0: no limit */
    double age_jitter;                /* random change of age_max_us; 0.1: by up to +- 10 % */
    uint64_t keepalive_us;            /* silence after which the server sends PING; 0: never */
    uint64_t keepalive_timeout_us;    /* time limit of the reply to the PING; 0: no limit */
};

/* Why a connection ended before its first request. The name is a metric label. */
enum hps_grpc_no_start {
    HPS_GRPC_TIMEOUT,     /* no handshake or no request in time */
    HPS_GRPC_CERTIFICATE, /* the client's certificate is missing or not trusted */
    HPS_GRPC_PROTOCOL, /* the client violated TLS or HTTP, or rejected the server's certificate */
    HPS_GRPC_LEFT,     /* the client disconnected */
    HPS_GRPC_NO_STARTS
};
const char *hps_grpc_no_start_name(enum hps_grpc_no_start how);

/* Why a slow client was disconnected, or why one of its calls was ended. */
enum hps_grpc_slow {
    /* The client read less than reply_bytes_per_s_min for 10 s. */
    HPS_GRPC_SLOW_RATE,
    /* The client read less than reply_bytes_per_s_min while other replies waited for memory. */
    HPS_GRPC_SLOW_ROOM,
    /* The client sent less than request_bytes_per_s_min for 10 s. */
    HPS_GRPC_SLOW_SEND_RATE,
    /* The client sent less than request_bytes_per_s_min while other requests lacked memory. */
    HPS_GRPC_SLOW_SEND_ROOM,
    HPS_GRPC_SLOW_COUNT
};

/* Events for the owner of the server. Each callback may be NULL. They run on loop threads. */
struct hps_grpc_observer {
    void *ctx;
    void (*on_call_end)(void *ctx, struct hps_grpc_call *call, int grpc_code, uint64_t duration_us);
    /* A connection was opened (delta 1) or closed (delta -1). is_http: the connection speaks
     * HTTP/1.1. */
    void (*on_connection)(void *ctx, bool is_http, int delta);
    /* A connection ended before its first request. Not called if the server drained or displaced
     * the connection, or lacked memory for it. Called before on_connection with delta -1. */
    void (*on_no_start)(void *ctx, const char *peer, enum hps_grpc_no_start how);
    /* A connection or one of its calls was ended because the client was too slow. */
    void (*on_slow)(void *ctx, enum hps_grpc_slow why);
};

/* Callbacks by which the owner of the server authorizes calls. A *visitor* is the identity of a
 * connection, a *grant* the permissions of a call. The callbacks run on the loop thread of the
 * connection. `release` may run on any thread. */
struct hps_grpc_guard {
    void *ctx;
    /* Creates the identity of a connection, before its first call. listener_mask: as given to
     * hps_grpc_loop_adopt. NULL: no memory. */
    void *(*visitor_new)(void *ctx, const struct hps_conn *conn, uint32_t listener_mask);
    void (*visitor_free)(void *visitor); /* NULL has no effect */
    /* Decides whether a call may begin, when its headers have arrived. roles: those of the method.
     * OK: *out_grant is a reference, which the server drops with `release`. Any other status ends
     * the call with `err`. */
    hps_status (*enter)(void *visitor, struct hps_grpc_call *call, uint32_t roles,
                        const void **out_grant, struct hps_error *err);
    /* After hps_grpc_loop_recheck: decides whether the connection may stay open. Any status but OK
     * closes the connection at once. */
    hps_status (*visitor_again)(void *visitor, const struct hps_conn *conn, struct hps_error *err);
    /* After visitor_again returned OK, for each call of the connection that has a grant: decides
     * whether the call may continue. Any status but OK ends the call. */
    hps_status (*again)(void *visitor, struct hps_grpc_call *call, const void *grant,
                        uint32_t roles, struct hps_error *err);
    void (*release)(const void *grant); /* drops a reference; NULL has no effect */
};

/* A server: its services and routes, its observer and its guard. All loops of the server share it.
 * It must not change once a connection exists. */
struct hps_grpc_server;

/* Creates a server. Each loop of the server begins with `limits`. `observer` is copied. Returns
 * NULL if there is no memory. */
struct hps_grpc_server *hps_grpc_server_new(const struct hps_grpc_limits *limits,
                                            const struct hps_grpc_observer *observer);
/* Adds a service, which is borrowed for the life of the server. A connection can use the service if
 * the listener_mask of the connection has a bit in common with the listener_mask of the service. So
 * the Admin service, for example, can be limited to one socket. */
hps_status hps_grpc_server_add(struct hps_grpc_server *server,
                               const struct hps_grpc_service *service, uint32_t listener_mask)
    HPS_MUST_CHECK;
/* Like hps_grpc_server_add, for HTTP/1.1 routes. hps_grpc_call_ctx returns `ctx` for their calls.
 * HTTP/1.1 connections can use only routes, and gRPC connections only services. The answer to an
 * unknown path is 404. If only the verb does not match, it is 405 with an Allow header. */
hps_status hps_grpc_server_add_http(struct hps_grpc_server *server,
                                    const struct hps_http_route *routes, unsigned n_routes,
                                    void *ctx, uint32_t listener_mask) HPS_MUST_CHECK;
/* Sets the guard (copied). Without a guard every client may call every method. Call it before the
 * first connection. */
void hps_grpc_server_guard_set(struct hps_grpc_server *server, const struct hps_grpc_guard *guard);
/* Sets the request headers that services and the guard read: names in lower case, ended by NULL.
 * The array is borrowed for the life of the server. The server does not store other headers. Call
 * it before the first connection. */
void hps_grpc_server_keep(struct hps_grpc_server *server, const char *const *names);
/* Counts the memory of calls in `limits`, which is borrowed. operator_mask: the listeners of
 * operators. Without it the memory is not limited. Call it before the first connection. */
void hps_grpc_server_limits_use(struct hps_grpc_server *server, struct hps_limits *limits,
                                uint32_t operator_mask);
void hps_grpc_server_free(struct hps_grpc_server *server); /* all connections must have ended */

/* The server connections of one event loop. Create all loops of a server before the first of them
 * runs. */
struct hps_grpc_loop;
hps_status hps_grpc_loop_new(struct hps_grpc_server *server, struct hps_loop *loop,
                             struct hps_grpc_loop **out_grpc_loop) HPS_MUST_CHECK;
/* Serves `conn` on the loop. The loop owns `conn` from now on, also on failure. Any thread: this
 * posts to the loop. listener_mask: selects the services of the connection (see
 * hps_grpc_server_add). If the connection has a place (net/places.h), the server keeps the state
 * of the place up to date. A displaced connection ends at once, or within about two seconds if it
 * has calls. is_http: it speaks HTTP/1.1. */
void hps_grpc_loop_adopt(struct hps_grpc_loop *grpc_loop, struct hps_conn *conn,
                         uint32_t listener_mask, bool is_http);
/* Changes the limits. Connections that are open already keep their age limit and streams_max. Loop
 * thread. */
void hps_grpc_loop_limits_set(struct hps_grpc_loop *grpc_loop,
                              const struct hps_grpc_limits *limits);
/* Call it after the rules of the guard have changed. Ends the connections and calls that are no
 * longer allowed. If a call is ended but its connection is still allowed, the connection is
 * drained. Loop thread. */
void hps_grpc_loop_recheck(struct hps_grpc_loop *grpc_loop);
/* Drains all connections: sends GOAWAY, refuses new streams after a round trip, and closes each
 * connection when its calls have ended. An HTTP/2 connection that still has calls after 5 minutes
 * is closed with them. Calls `done(ctx)` on the loop thread when all connections are closed. Loop
 * thread. */
void hps_grpc_loop_drain(struct hps_grpc_loop *grpc_loop, void (*done)(void *ctx), void *ctx);
/* Closes all connections now and frees the loop. All other loops of the server must have stopped.
 * Call it on the loop thread, or on any thread if this loop has stopped too. */
void hps_grpc_loop_free(struct hps_grpc_loop *grpc_loop);
/* Reply bytes of all connections that are queued and not yet in the kernel. */
size_t hps_grpc_loop_bytes_in_flight(const struct hps_grpc_loop *grpc_loop); /* any thread */
unsigned hps_grpc_loop_connections(const struct hps_grpc_loop *grpc_loop);   /* any thread */

/* ---- a server call --------------------------------------------------------------------------- */

void *hps_grpc_call_ctx(const struct hps_grpc_call *call); /* the service's ctx */
struct hps_loop *hps_grpc_call_loop(const struct hps_grpc_call *call);
const char *hps_grpc_call_path(const struct hps_grpc_call *call);
const char *hps_grpc_call_peer(const struct hps_grpc_call *call);
/* The connection. Loop thread, until the call is finished. */
const struct hps_conn *hps_grpc_call_conn(const struct hps_grpc_call *call);
uint64_t hps_grpc_call_client(const struct hps_grpc_call *call); /* the result of hps_conn_client */
/* The permissions of the call: the *out_grant of the guard's `enter`, borrowed during the life of
 * the call. NULL: the guard was not called, or has rejected the call. Any thread. */
const void *hps_grpc_call_grant(const struct hps_grpc_call *call);
uint64_t hps_grpc_call_start_us(const struct hps_grpc_call *call);
uint64_t hps_grpc_call_deadline_us(const struct hps_grpc_call *call); /* 0: no deadline */
/* Sets the deadline of the call, unless the call has an earlier one. Used if a request message
 * contains a time limit. No effect after the call is finished.
 *
 * unit    at_us: by hps_clock_us. A time in the past ends the call in the next turn of the loop
 */
void hps_grpc_call_deadline_limit(struct hps_grpc_call *call, uint64_t at_us);
/* Whether the call came by HTTP/1.1. Its method then belongs to a route. Any thread. */
bool hps_grpc_call_is_http(const struct hps_grpc_call *call);
/* HTTP/1.1: the path segment that matched the i-th "{}" of the pattern. Any thread.
 *
 * unit    *out_size: bytes, without the NUL at the end; out_size may be NULL
 * owner   borrowed during the call's life
 */
const char *hps_grpc_call_segment(const struct hps_grpc_call *call, unsigned i, size_t *out_size);
/* The value of a request header, as it was sent: names that end in -bin have values in base64. NULL
 * if the request lacks the header. hps_grpc_server_keep must have set `name`. */
const char *hps_grpc_call_header(const struct hps_grpc_call *call, const char *name,
                                 size_t *out_size);
void *hps_grpc_call_user(const struct hps_grpc_call *call);
void hps_grpc_call_set_user(struct hps_grpc_call *call, void *user);
/* Keeps the bytes of the current message valid and charged, until hps_grpc_call_drop_message or
 * until the call is freed. Call it within on_packed. */
void hps_grpc_call_keep_message(struct hps_grpc_call *call);
/* Releases the messages of the call that were kept. Call it after hps_grpc_call_keep_message. */
void hps_grpc_call_drop_message(struct hps_grpc_call *call);
/* client_streaming: while a call is paused, no further message is delivered, and the client can
 * send at most one flow-control window more. May be called within on_message. Loop thread. */
void hps_grpc_call_pause(struct hps_grpc_call *call, bool paused);
/* Returns the bytes of a message. A compressed message is inflated into `plain`. Otherwise
 * *out_data is packed->data.
 *
 * unit    size_max: bytes; the smaller of size_max and packed->size_max is the limit
 * thread  any
 * owner   plain: initialised here; the caller frees it, also on failure
 * error   EXHAUSTED: the message exceeds the limit, or the ratio of net/gzip.h; INTERNAL (HTTP/1.1:
 *         INVALID): the message is damaged, or not in the declared encoding; NO_MEMORY
 */
hps_status hps_grpc_unpack(const struct hps_grpc_packed *packed, size_t size_max,
                           struct hps_buf *plain, const uint8_t **out_data, size_t *out_size,
                           struct hps_error *err) HPS_MUST_CHECK;

void hps_grpc_call_ref(struct hps_grpc_call *call);   /* any thread */
void hps_grpc_call_unref(struct hps_grpc_call *call); /* any thread */
/* Whether the call needs no reply any more: the client has disconnected, or the deadline has
 * passed. The service should stop working on the call. Any thread. */
bool hps_grpc_call_cancelled(const struct hps_grpc_call *call);

/* The charge of the call (net/limits.h), for memory that the service uses for the call. It is
 * closed when the call is freed. Further calls of a connection wait while its replies hold
 * connection_reply_bytes_max, or while one of them waits (hps_charge_wait). */
struct hps_charge *hps_grpc_call_charge(struct hps_grpc_call *call);
/* Gives back `bytes` of reply memory, and lets waiting calls of the connection go on. The caller
 * must have a reference to the call, which may have ended. Call it with 0 after a wait in vain
 * (hps_charge_cancel): while the reply waited, other calls of the connection waited too. Loop
 * thread. */
void hps_grpc_call_discharge(struct hps_grpc_call *call, uint64_t bytes);

/* Makes all loops record how much each client has read so far, for hps_grpc_readers_cut. Call it
 * when the reply of `call` begins to wait for memory that other replies use, and repeatedly while
 * the reply waits. Calls within 40 ms count as one. Loop thread. */
void hps_grpc_readers_watch(struct hps_grpc_call *call);
/* Makes each loop disconnect a slow reader, or end one of its calls, to free memory for the waiting
 * reply of `call`. Call it when that reply would otherwise be rejected. Candidates are connections
 * and calls whose client has read less than reply_bytes_per_s_min since hps_grpc_readers_watch
 * recorded it, at least 80 ms ago. A loop looks at candidates for 1 ms, and the next time at
 * further ones. It ends the one that would take longest to read its replies. scope: whose memory is
 * short (hps_charge_short_of). If it is that of one client, only its own connections are
 * candidates; if it is that of one connection, there are none. The memory becomes free soon after
 * this function returns. Calls within 40 ms count as one. Loop thread. */
void hps_grpc_readers_cut(struct hps_grpc_call *call, enum hps_limit_scope scope);

/* Queues one message made of slices, and takes their references. If the call has ended, only
 * releases the references. HTTP/1.1: the message is the whole body; call this once, then
 * hps_grpc_call_finish. */
void hps_grpc_call_send(struct hps_grpc_call *call, const struct hps_slice *slices,
                        unsigned n_slices);
/* Like hps_grpc_call_send, for a small message, which is copied. */
void hps_grpc_call_send_copy(struct hps_grpc_call *call, const void *data, size_t size);
/* Bytes of the call that are queued and not yet in the kernel. Streaming services use it. */
size_t hps_grpc_call_queued(const struct hps_grpc_call *call);
/* Adds metadata to the trailers. Call it before the call is finished. The value is sent as it is:
 * for names that end in -bin the caller encodes it in base64. HTTP/1.1: the metadata is sent with
 * the headers. Metadata that is added after the body was sent is dropped. A reply with
 * grpc-retry-pushback-ms also has Retry-After, in seconds. */
hps_status hps_grpc_call_add_trailer(struct hps_grpc_call *call, const char *name,
                                     const void *value, size_t size) HPS_MUST_CHECK;
/* Adds metadata to the headers. No effect after the first send. HTTP/1.1: "content-type" replaces
 * the default application/json. */
hps_status hps_grpc_call_add_header(struct hps_grpc_call *call, const char *name, const void *value,
                                    size_t size) HPS_MUST_CHECK;
/* HTTP/1.1: sets the HTTP status of the reply (200 to 599). Without this call, the gRPC code
 * selects the status (see hps_grpc_call_finish). After this call, a reply without a message has no
 * body. Call it before the first send. No effect on gRPC calls. */
void hps_grpc_call_answer_status(struct hps_grpc_call *call, unsigned http_status);
/* Ends the call with a gRPC code and a message (NULL: no message). Each call must be ended once. No
 * effect on a call that has ended.
 *
 * The response to an HTTP/1.1 request then is:
 *
 *   - if a body was sent: that body, unchanged
 *   - else, after hps_grpc_call_answer_status: the status that was set, without a body
 *   - else, with code 0: status 200 without a body
 *   - else: the body {"error": message} and the status of the code: 400 (INVALID_ARGUMENT,
 *     FAILED_PRECONDITION, OUT_OF_RANGE, UNKNOWN, ALREADY_EXISTS, CANCELLED), 401
 *     (UNAUTHENTICATED), 403 (PERMISSION_DENIED), 404 (NOT_FOUND), 409 (ABORTED), 429
 *     (RESOURCE_EXHAUSTED), 500 (INTERNAL, DATA_LOSS), 501 (UNIMPLEMENTED), 503 (UNAVAILABLE) or
 *     504 (DEADLINE_EXCEEDED) */
void hps_grpc_call_finish(struct hps_grpc_call *call, int grpc_code, const char *message);
/* Calls hps_grpc_call_finish with the gRPC code and the text of `err`. */
void hps_grpc_call_fail(struct hps_grpc_call *call, const struct hps_error *err);
/* Like hps_grpc_call_fail, for a message above its size limit. If an option sets the limit, the
 * name of the option is added to the text, unless the text contains advice already. HTTP/1.1: the
 * status is 413, not 429, because a retry cannot succeed. */
void hps_grpc_call_fail_too_large(struct hps_grpc_call *call, const struct hps_error *err);

/* Ends a call at once, also one that is finished, and drops the queued part of its reply. HTTP/1.1:
 * closes the connection. on_close follows later, not within this call. No effect on a call that has
 * ended. Loop thread. */
void hps_grpc_call_abort(struct hps_grpc_call *call);

/* ---- client ---------------------------------------------------------------------------------- */

struct hps_grpc_channel; /* one connection to one server, on one loop */
struct hps_grpc_client_call;

struct hps_grpc_client_events {
    /* The server has sent a message. `data` is valid during the callback only. */
    void (*on_message)(void *ctx, const uint8_t *data, size_t size);
    /* Instead of on_message, for an owner that stores the bytes of messages itself: a message of
     * `size` bytes begins; then its bytes, in pieces. Both may cancel the call. */
    void (*on_begin)(void *ctx, size_t size);
    void (*on_piece)(void *ctx, const uint8_t *data, size_t size);
    /* With on_piece: where to put up to `size` of the next bytes. If they come, on_piece follows
     * with this address. NULL: nowhere; they come at another address. */
    uint8_t *(*on_room)(void *ctx, size_t size, size_t *out_room);
    /* The call has ended with a gRPC code and a message. Called exactly once; the call is freed
     * after this callback returns. */
    void (*on_done)(void *ctx, int grpc_code, const char *message);
};

struct hps_grpc_channel_options {
    const char *address;         /* "host:port" or "unix:PATH" */
    struct hps_tls *tls;         /* borrowed; NULL: no TLS */
    const char *bearer_token;    /* sent with each call; NULL: no token */
    size_t reply_bytes_max;      /* per message */
    uint64_t connect_timeout_us; /* 0: no limit */
    /* From the start until the server speaks HTTP/2; 0: no limit. The kernel completes a connection
     * to a socket that is open but not served, for example while systemd restarts the server. */
    uint64_t speak_timeout_us;
};

/* Creates a channel and starts to connect it. Calls wait until the connection is established. If
 * the connection is lost, its calls fail with UNAVAILABLE, and the next call connects again. */
hps_status hps_grpc_channel_new(struct hps_loop *loop,
                                const struct hps_grpc_channel_options *options,
                                struct hps_grpc_channel **out_channel, struct hps_error *err)
    HPS_MUST_CHECK;
void hps_grpc_channel_free(
    struct hps_grpc_channel *channel); /* calls in flight end with CANCELLED */

/* Starts a call with one request message, which is copied, and half-closes it. `events` must stay
 * valid until on_done. `out_call` may be NULL.
 *
 * unit    deadline_us: by hps_clock_us; 0: no deadline
 */
hps_status hps_grpc_client_start(struct hps_grpc_channel *channel, const char *path,
                                 const void *request, size_t request_size, uint64_t deadline_us,
                                 const struct hps_grpc_client_events *events, void *ctx,
                                 struct hps_grpc_client_call **out_call) HPS_MUST_CHECK;
void hps_grpc_client_cancel(struct hps_grpc_client_call *call); /* on_done(CANCELLED) follows */

#endif
