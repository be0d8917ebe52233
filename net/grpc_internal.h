/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the gRPC server share:
 *
 *     grpc_server.c        methods, and the connections of a loop
 *     grpc_call.c          the life of a call, and what a service may ask of it
 *     grpc_call_headers.c  its request headers, by which it is judged
 *     grpc_call_receive.c  its request messages
 *     grpc_call_send.c     its answer
 *     grpc_fields.c        metadata
 *
 * Loop thread, but for the atomics.
 */
#ifndef HPS_NET_GRPC_INTERNAL_H
#define HPS_NET_GRPC_INTERNAL_H

#include <stdatomic.h>
#include <stdbool.h>

#include "net/grpc.h"
#include "net/grpc_frame.h"
#include "net/http2.h"

enum {
    GRPC_FIELD_BYTES_MAX = 8 * 1024, /* of what a service adds to headers or trailers */
    GRPC_FIELDS_MAX = 16,
    GRPC_PEER_BYTES = 80,
    GRPC_DRAINED_BYTES = 1024 * 1024,
    GRPC_WINDOW_BYTES = 1024 * 1024, /* that a client may send ahead on one stream */
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
unsigned grpc_fields_list(const struct grpc_fields *fields, struct hps_http2_field *out,
                          unsigned n_max);

/* ---- servers, connections, calls ------------------------------------------------------------- */

struct grpc_entry {
    const struct hps_grpc_service *service;
    const struct hps_grpc_method *method;
    size_t path_size;
    uint32_t listener_mask;
};

struct hps_grpc_server {
    struct hps_grpc_limits limits; /* what loops begin with */
    struct hps_grpc_observer observer;
    struct grpc_entry *entries;
    unsigned n_entries;
    atomic_size_t request_bytes; /* of requests that are being put together, all connections */
};

struct hps_grpc_loop {
    struct hps_grpc_server *server;
    struct hps_grpc_limits limits; /* the server's until set anew */
    struct hps_loop *loop;
    struct hps_http2_shared *shared;
    struct grpc_conn *conns;
    struct hps_timer tick;
    struct hps_loop_later drained;
    void (*drain_done)(void *ctx);
    void *drain_ctx;
    uint64_t tick_us;
    uint64_t jitter; /* state of a small generator */
    bool draining;
    bool freed;
    atomic_uint refs; /* itself and adoptions under way */
    atomic_uint n_conns;
};

struct grpc_conn {
    struct grpc_conn *next, *prev;
    struct hps_grpc_loop *grpc_loop;
    struct hps_http2 *h2;
    struct hps_grpc_call *calls;
    struct hps_grpc_call *held_head,
        *held_tail; /* whole requests that wait for reply bytes to go */
    uint32_t listener_mask;
    bool has_token;
    uint8_t token_sha256[32];
    void (*on_gone)(void *ctx);
    void *on_gone_ctx;
    size_t request_bytes; /* of requests that are being put together */
    uint64_t idle_us;     /* since when there is no call */
    uint64_t age_end_us;  /* 0: none */
    uint64_t drain_us;    /* when the drain began; 0: not */
    uint64_t ping_us;     /* keepalive sent; 0: none out */
    uint64_t written;     /* as seen by the last tick */
    uint64_t written_us;
    bool had_request;
    bool withheld; /* some call has window to give back */
    uint64_t client;
    char peer[GRPC_PEER_BYTES];
};

struct grpc_kept {
    struct grpc_kept *next;
    struct hps_buf body;
};

enum grpc_encoding { GRPC_IDENTITY, GRPC_GZIP, GRPC_UNKNOWN_ENCODING };

struct hps_grpc_call {
    atomic_uint refs;
    atomic_bool cancelled;
    struct grpc_conn *conn;          /* NULL once closed */
    struct hps_http2_stream *stream; /* NULL once closed */
    struct hps_grpc_call *next, *prev;
    struct hps_grpc_call *held_next;
    struct hps_grpc_loop *grpc_loop;
    struct hps_loop *loop;
    const struct grpc_entry *entry; /* NULL: no such method */
    void *user;
    uint64_t start_us;
    uint64_t deadline_us;
    struct hps_timer deadline;
    bool deadline_passed; /* the reset that ends a reply under way is due */
    struct grpc_fields request_fields;
    struct grpc_fields response_fields;
    struct grpc_fields trailer_fields;
    struct hps_grpc_decoder decoder;
    struct hps_buf plain; /* an inflated message */
    struct grpc_kept *kept;
    struct grpc_kept *kept_spare;
    const uint8_t *message; /* unary: the one, once it is whole */
    size_t message_size;
    struct hps_buf stash; /* streaming: what came while its answers wait to be read */
    size_t counted;       /* in conn->request_bytes */
    size_t unconsumed;
    uint64_t framed; /* as seen by the last tick */
    uint64_t progress_us;
    struct hps_buf status_text; /* percent-encoded */
    int code;
    enum grpc_encoding encoding;
    bool post;
    bool content_ok;
    bool codec_ok;
    bool bad_timeout;
    bool bad_fields;
    bool authorized;
    bool headers_done;
    bool ended;
    bool got_message;
    bool compressed; /* the message; inflated when it is delivered */
    bool held;
    bool keep;
    bool delivered;
    bool responded;
    bool finished;
    bool offer_encodings;
    uint64_t client;
    char peer[GRPC_PEER_BYTES];
};

/* ---- grpc_call.c ----------------------------------------------------------------------------- */

/* The call of a stream that the client has opened.
 *
 * owner   its reference is the stream's, until grpc_call_closed
 * error   NULL: no memory
 */
struct hps_grpc_call *grpc_call_new(struct grpc_conn *conn, struct hps_http2_stream *stream);
/* Its stream is closed: service and observer are told, and the reference is dropped.
 *
 * unit    error of RFC 9113, or HPS_HTTP2_LOST
 */
void grpc_call_closed(struct hps_grpc_call *call, uint32_t error);
/* Give up a call whose peer stands still. */
void grpc_call_stalled(struct hps_grpc_call *call);

/* ---- grpc_call_headers.c --------------------------------------------------------------------- */

/* One field of a header block came; both NUL-terminated. */
void grpc_call_header(struct hps_grpc_call *call, const char *name, size_t name_size,
                      const char *value, size_t value_size);
/* The block is complete: refuse the call, or let its messages come. */
void grpc_call_headers_done(struct hps_grpc_call *call);

/* ---- grpc_call_receive.c --------------------------------------------------------------------- */

/* Bytes of the body came; the window for them is given back when they need no longer wait.
 *
 * owner   data borrowed
 */
void grpc_call_data(struct hps_grpc_call *call, const uint8_t *data, size_t size);
/* The client sends no more: deliver what is whole, hold it, or refuse the call. */
void grpc_call_end(struct hps_grpc_call *call);
void grpc_call_dispatch(struct hps_grpc_call *call); /* a held one, now that there is room */
/* Answers have gone: on with what waits for that. The call may be gone afterwards, unless the
 * caller has a reference. */
void grpc_call_resume(struct hps_grpc_call *call);
/* It is no longer among the held ones of its connection, if it was. */
void grpc_call_unhold(struct hps_grpc_call *call);
/* Bytes of an unfinished request count against the connection and the server.
 *
 * unit    held bytes that it takes now, instead of those that were counted last
 */
void grpc_call_count_bytes(struct hps_grpc_call *call, size_t held);

/* ---- grpc_call_send.c ------------------------------------------------------------------------ */

/* The last byte of the answer is framed: the status follows. */
void grpc_call_trailers(struct hps_grpc_call *call);
/* Fewer bytes of the answer are queued: messages that waited for that are taken in, and the service
 * may send more. */
void grpc_call_sent(struct hps_grpc_call *call);
/* hps_grpc_call_finish with the code of `status` and this text, of which 479 bytes are kept. */
void grpc_call_refuse(struct hps_grpc_call *call, hps_status status, const char *fmt, ...)
    HPS_PRINTF(3, 4);
/* What speaks HTTP/2 but not gRPC gets a status of HTTP, which ends the call; `status` is what the
 * observer is told. */
void grpc_call_answer_http(struct hps_grpc_call *call, const char *http_status, hps_status status);

/* ---- grpc_server.c --------------------------------------------------------------------------- */

/* The method of that path on those listeners; NULL: none. */
const struct grpc_entry *grpc_server_find(const struct hps_grpc_server *server, const char *path,
                                          size_t path_size, uint32_t listener_mask);
/* More bytes of replies are queued than may be: its requests wait. */
bool grpc_conn_is_full(const struct grpc_conn *conn);

#endif
