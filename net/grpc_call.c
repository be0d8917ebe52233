/* SPDX-License-Identifier: Apache-2.0
 *
 * The life of one server call: its headers are judged, its messages put together, its answer
 * framed. Loop thread of the connection, but for references and the cancel flag.
 */
#include "net/grpc_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "net/gzip.h"
#include "net/tls.h"

enum {
    DEADLINE_GRACE_US = 50 * 1000,
    SMALL_REQUEST_BYTES = 64 * 1024,   /* goes on however much others have sent */
    STREAMED_QUEUED_BYTES = 64 * 1024, /* answers beyond which a client's messages wait */
};

#define FIELD(n, v, size)   ((struct hps_http2_field){(n), sizeof(n) - 1, (v), (size)})
#define FIELD_LITERAL(n, v) FIELD(n, v, sizeof(v) - 1)

static const char health_prefix[] = "/grpc.health.v1.Health/";

/* ---- metadata -------------------------------------------------------------------------------- */

struct field_head {
    uint32_t name_size;
    uint32_t value_size;
};

void grpc_fields_init(struct grpc_fields *fields)
{
    hps_buf_init(&fields->bytes, 2 * 16 * 1024);
    fields->n = 0;
}

void grpc_fields_fini(struct grpc_fields *fields)
{
    hps_buf_fini(&fields->bytes);
    fields->n = 0;
}

hps_status grpc_fields_add(struct grpc_fields *fields, const char *name, size_t name_size,
                           const void *value, size_t value_size)
{
    struct field_head head = {(uint32_t)name_size, (uint32_t)value_size};
    struct hps_buf *bytes = &fields->bytes;
    hps_status status = hps_buf_reserve(bytes, sizeof head + name_size + value_size + 2);

    if (status != HPS_OK) {
        return status;
    }
    uint8_t *to = bytes->data + bytes->size;
    memcpy(to, &head, sizeof head);
    memcpy(to + sizeof head, name, name_size);
    to[sizeof head + name_size] = '\0';
    if (value_size > 0) {
        memcpy(to + sizeof head + name_size + 1, value, value_size);
    }
    to[sizeof head + name_size + 1 + value_size] = '\0';
    bytes->size += sizeof head + name_size + value_size + 2;
    fields->n++;
    return HPS_OK;
}

/* The field at `at`; moves `at` behind it. False at the end. */
static bool fields_next(const struct grpc_fields *fields, size_t *at, struct hps_http2_field *out)
{
    struct field_head head;

    if (*at >= fields->bytes.size) {
        return false;
    }
    const uint8_t *from = fields->bytes.data + *at;
    memcpy(&head, from, sizeof head);
    out->name = (const char *)from + sizeof head;
    out->name_size = head.name_size;
    out->value = out->name + head.name_size + 1;
    out->value_size = head.value_size;
    *at += sizeof head + head.name_size + head.value_size + 2;
    return true;
}

const char *grpc_fields_get(const struct grpc_fields *fields, const char *name, size_t *out_size)
{
    struct hps_http2_field field;
    size_t name_size = strlen(name);
    size_t at = 0;

    while (fields_next(fields, &at, &field)) {
        if (field.name_size == name_size && memcmp(field.name, name, name_size) == 0) {
            if (out_size != NULL) {
                *out_size = field.value_size;
            }
            return field.value;
        }
    }
    return NULL;
}

unsigned grpc_fields_list(const struct grpc_fields *fields, struct hps_http2_field *out,
                          unsigned n_max)
{
    unsigned n = 0;
    size_t at = 0;

    while (n < n_max && fields_next(fields, &at, &out[n])) {
        n++;
    }
    return n;
}

/* ---- life ------------------------------------------------------------------------------------ */

/* A reply that is under way is reset a moment after its deadline, so that the client's own clock
 * speaks first: a reset before it would read as "cancelled". */
static void on_deadline(void *ctx)
{
    struct hps_grpc_call *call = ctx;
    bool under_way = call->responded && hps_http2_stream_queued(call->stream) > 0;

    if (!call->finished) {
        atomic_store_explicit(&call->cancelled, true, memory_order_relaxed);
        if (!under_way) {
            hps_grpc_call_finish(call, hps_status_grpc_code(HPS_DEADLINE), "deadline exceeded");
            return;
        }
        call->finished = true;
        call->code = hps_status_grpc_code(HPS_DEADLINE);
    }
    if (!call->deadline_passed) {
        call->deadline_passed = true;
        hps_timer_set_after(call->loop, &call->deadline, DEADLINE_GRACE_US);
    } else if (call->responded) {
        hps_http2_reset(call->stream, HPS_HTTP2_CANCEL);
    }
}

struct hps_grpc_call *grpc_call_new(struct grpc_conn *conn, struct hps_http2_stream *stream)
{
    struct hps_grpc_call *call = hps_calloc(1, sizeof *call);

    if (call == NULL) {
        return NULL;
    }
    atomic_init(&call->refs, 1);
    atomic_init(&call->cancelled, false);
    call->conn = conn;
    call->stream = stream;
    call->grpc_loop = conn->grpc_loop;
    call->loop = conn->grpc_loop->loop;
    call->start_us = hps_clock_us();
    call->progress_us = call->start_us;
    call->authorized = !conn->has_token;
    hps_timer_init(&call->deadline, on_deadline, call);
    grpc_fields_init(&call->request_fields);
    grpc_fields_init(&call->response_fields);
    grpc_fields_init(&call->trailer_fields);
    hps_grpc_decoder_init(&call->decoder, 0, false);
    hps_buf_init(&call->plain, 0);
    hps_buf_init(&call->stash, GRPC_WINDOW_BYTES);
    hps_buf_init(&call->status_text, 4096);
    call->client = conn->client;
    memcpy(call->peer, conn->peer, sizeof call->peer);
    call->next = conn->calls;
    if (conn->calls != NULL) {
        conn->calls->prev = call;
    }
    conn->calls = call;
    return call;
}

void hps_grpc_call_ref(struct hps_grpc_call *call)
{
    unsigned refs = atomic_fetch_add_explicit(&call->refs, 1, memory_order_relaxed);
    HPS_ASSERT(refs > 0);
}

void hps_grpc_call_unref(struct hps_grpc_call *call)
{
    unsigned refs = atomic_fetch_sub_explicit(&call->refs, 1, memory_order_acq_rel);

    HPS_ASSERT(refs > 0);
    if (refs > 1) {
        return;
    }
    while (call->kept != NULL) {
        struct grpc_kept *kept = call->kept;
        call->kept = kept->next;
        hps_buf_fini(&kept->body);
        hps_free(kept);
    }
    hps_free(call->kept_spare);
    grpc_fields_fini(&call->request_fields);
    grpc_fields_fini(&call->response_fields);
    grpc_fields_fini(&call->trailer_fields);
    hps_grpc_decoder_fini(&call->decoder);
    hps_buf_fini(&call->plain);
    hps_buf_fini(&call->stash);
    hps_buf_fini(&call->status_text);
    hps_free(call);
}

/* Bytes of an unfinished request count against the connection and the server. */
static void count_request_bytes(struct hps_grpc_call *call, size_t held)
{
    atomic_fetch_add_explicit(&call->grpc_loop->server->request_bytes, held - call->counted,
                              memory_order_relaxed);
    call->conn->request_bytes += held - call->counted;
    call->counted = held;
}

static void unhold(struct hps_grpc_call *call)
{
    struct grpc_conn *conn = call->conn;
    struct hps_grpc_call *last = NULL;

    if (!call->held) {
        return;
    }
    call->held = false;
    for (struct hps_grpc_call **at = &conn->held_head; *at != NULL; at = &(*at)->held_next) {
        if (*at == call) {
            *at = call->held_next;
            if (conn->held_tail == call) {
                conn->held_tail = last;
            }
            return;
        }
        last = *at;
    }
}

void grpc_call_closed(struct hps_grpc_call *call, uint32_t error)
{
    struct grpc_conn *conn = call->conn;
    const struct hps_grpc_observer *observer = &call->grpc_loop->server->observer;

    if (!call->finished || (call->code == 0 && error != HPS_HTTP2_NO_ERROR)) {
        call->code = hps_status_grpc_code(HPS_CANCELLED);
    }
    if (!call->finished || error != HPS_HTTP2_NO_ERROR) {
        atomic_store_explicit(&call->cancelled, true, memory_order_relaxed);
    }
    call->finished = true;
    hps_timer_stop(&call->deadline);
    unhold(call);
    count_request_bytes(call, 0);
    call->stream = NULL;
    call->conn = NULL;
    if (call->prev != NULL) {
        call->prev->next = call->next;
    } else {
        conn->calls = call->next;
    }
    if (call->next != NULL) {
        call->next->prev = call->prev;
    }
    if (conn->calls == NULL) {
        conn->idle_us = hps_clock_us();
    }
    if (call->delivered && call->entry->method->on_close != NULL) {
        call->entry->method->on_close(call);
    }
    if (observer->on_call_end != NULL) {
        observer->on_call_end(observer->ctx, call, call->code, hps_clock_us() - call->start_us);
    }
    hps_grpc_call_unref(call);
}

void grpc_call_stalled(struct hps_grpc_call *call)
{
    if (!call->finished) {
        call->finished = true;
        call->code = hps_status_grpc_code(HPS_CANCELLED);
    }
    atomic_store_explicit(&call->cancelled, true, memory_order_relaxed);
    hps_http2_reset(call->stream, HPS_HTTP2_CANCEL);
}

HPS_PRINTF(3, 4)
static void refuse(struct hps_grpc_call *call, hps_status status, const char *fmt, ...)
{
    char text[480];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    hps_grpc_call_finish(call, hps_status_grpc_code(status), text);
}

/* ---- request headers ------------------------------------------------------------------------- */

static bool is(const char *name, size_t name_size, const char *literal, size_t literal_size)
{
    return name_size == literal_size && memcmp(name, literal, literal_size) == 0;
}
#define IS(name, size, literal) is((name), (size), (literal), sizeof(literal) - 1)

static void read_content_type(struct hps_grpc_call *call, const char *value, size_t size)
{
    static const char type[] = "application/grpc";
    size_t n = sizeof type - 1;

    if (size < n || memcmp(value, type, n) != 0) {
        return;
    }
    call->content_ok = size == n || value[n] == '+' || value[n] == ';';
    call->codec_ok = size == n || value[n] == ';' || IS(value + n, size - n, "+proto") ||
                     (size - n > 7 && memcmp(value + n, "+proto;", 7) == 0);
}

static void read_authorization(struct hps_grpc_call *call, const char *value, size_t size)
{
    uint8_t digest[32];
    uint8_t differ = 0;

    if (!call->conn->has_token || size <= 7 || memcmp(value, "Bearer ", 7) != 0 ||
        hps_tls_sha256(value + 7, size - 7, digest) != HPS_OK) {
        return;
    }
    for (unsigned i = 0; i < sizeof digest; i++) {
        differ = (uint8_t)(differ | (digest[i] ^ call->conn->token_sha256[i]));
    }
    call->authorized = differ == 0;
}

/* Keep a header for the service; -bin values decoded, one entry for each of a joined list. */
static void keep_header(struct hps_grpc_call *call, const char *name, size_t name_size,
                        const char *value, size_t value_size)
{
    hps_status status = HPS_OK;

    if (name_size <= 4 || memcmp(name + name_size - 4, "-bin", 4) != 0) {
        status = grpc_fields_add(&call->request_fields, name, name_size, value, value_size);
    } else {
        while (status == HPS_OK) {
            const char *comma = memchr(value, ',', value_size);
            size_t size = comma != NULL ? (size_t)(comma - value) : value_size;
            struct hps_buf raw;
            hps_buf_init(&raw, 16 * 1024);
            status = hps_grpc_base64_decode(&raw, value, size);
            if (status == HPS_OK) {
                status =
                    grpc_fields_add(&call->request_fields, name, name_size, raw.data, raw.size);
            }
            hps_buf_fini(&raw);
            if (comma == NULL) {
                break;
            }
            value += size + 1;
            value_size -= size + 1;
        }
    }
    if (status != HPS_OK) {
        call->bad_fields = true;
    }
}

void grpc_call_header(struct hps_grpc_call *call, const char *name, size_t name_size,
                      const char *value, size_t value_size)
{
    if (call->headers_done) {
        return; /* request trailers say nothing in gRPC */
    }
    if (IS(name, name_size, ":path")) {
        call->entry =
            grpc_server_find(call->grpc_loop->server, value, value_size, call->conn->listener_mask);
        if (call->entry == NULL) {
            keep_header(call, name, name_size, value, value_size);
        }
        if (value_size >= sizeof health_prefix - 1 &&
            memcmp(value, health_prefix, sizeof health_prefix - 1) == 0) {
            call->authorized = true;
        }
    } else if (IS(name, name_size, ":method")) {
        call->post = IS(value, value_size, "POST");
    } else if (IS(name, name_size, "content-type")) {
        read_content_type(call, value, value_size);
    } else if (IS(name, name_size, "grpc-timeout")) {
        uint64_t us;
        if (hps_grpc_timeout_parse(value, value_size, &us)) {
            call->deadline_us = call->start_us + us;
        } else {
            call->bad_timeout = true;
        }
    } else if (IS(name, name_size, "grpc-encoding")) {
        call->encoding = IS(value, value_size, "identity") ? GRPC_IDENTITY
                         : IS(value, value_size, "gzip")   ? GRPC_GZIP
                                                           : GRPC_UNKNOWN_ENCODING;
        keep_header(call, name, name_size, value, value_size);
    } else if (IS(name, name_size, "authorization") && call->conn->has_token) {
        read_authorization(call, value, value_size);
    } else if (name[0] != ':' && !IS(name, name_size, "te") &&
               !IS(name, name_size, "grpc-accept-encoding")) {
        keep_header(call, name, name_size, value, value_size);
    }
}

static void answer_http(struct hps_grpc_call *call, const char *http_status, hps_status status)
{
    struct hps_http2_field fields[] = {FIELD(":status", http_status, strlen(http_status))};

    call->finished = true;
    call->responded = true;
    call->code = hps_status_grpc_code(status);
    if (hps_http2_respond(call->stream, fields, 1, true) != HPS_OK) {
        hps_http2_reset(call->stream, HPS_HTTP2_INTERNAL_ERROR);
    }
}

void grpc_call_headers_done(struct hps_grpc_call *call)
{
    if (call->headers_done) {
        return;
    }
    call->headers_done = true;
    call->conn->had_request = true;
    if (!call->post) {
        answer_http(call, "405", HPS_UNIMPLEMENTED);
    } else if (!call->content_ok) {
        answer_http(call, "415", HPS_INVALID);
    } else if (call->bad_fields) {
        refuse(call, HPS_INTERNAL, "request metadata cannot be decoded or is too large");
    } else if (!call->authorized) {
        refuse(call, HPS_UNAUTHENTICATED, "authorization: a valid bearer token is needed");
    } else if (call->entry == NULL) {
        refuse(call, HPS_UNIMPLEMENTED, "unknown method %.200s", hps_grpc_call_path(call));
    } else if (!call->codec_ok) {
        refuse(call, HPS_UNIMPLEMENTED, "content-type: only application/grpc and +proto are known");
    } else if (call->bad_timeout) {
        refuse(call, HPS_INTERNAL, "grpc-timeout: must be 1 to 8 digits and one of HMSmun");
    } else if (call->encoding == GRPC_UNKNOWN_ENCODING) {
        call->offer_encodings = true;
        refuse(call, HPS_UNIMPLEMENTED, "grpc-encoding %.40s is not known, identity and gzip are",
               grpc_fields_get(&call->request_fields, "grpc-encoding", NULL));
    } else {
        size_t limit = call->entry->method->request_bytes_max;
        if (limit == 0) {
            limit = call->grpc_loop->limits.request_bytes_max;
        }
        hps_grpc_decoder_init(&call->decoder, limit, false);
        if (call->deadline_us != 0) {
            hps_timer_set(call->loop, &call->deadline, call->deadline_us);
        }
    }
}

/* ---- request messages ------------------------------------------------------------------------ */

static void deliver(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    call->delivered = true;
    call->entry->method->on_message(call, data != NULL ? data : (const uint8_t *)"", size);
}

/* The plain bytes of a message that came compressed, in call->plain. False: refused. */
static bool inflate(struct hps_grpc_call *call, const uint8_t **data, size_t *size)
{
    struct hps_error err;

    hps_buf_fini(&call->plain);
    hps_buf_init(&call->plain, call->decoder.size_max);
    hps_status status = hps_gzip_inflate(*data, *size, &call->plain, &err);
    if (status == HPS_EXHAUSTED) {
        refuse(call, status, "message of more than %zu bytes when inflated, the limit",
               call->decoder.size_max);
    } else if (status != HPS_OK) {
        refuse(call, status == HPS_NO_MEMORY ? status : HPS_INTERNAL, "gzip: %s", err.text);
    }
    *data = call->plain.data;
    *size = call->plain.size;
    return status == HPS_OK;
}

/* Inflated only now: a few KB that wait may be many MB. */
void grpc_call_dispatch(struct hps_grpc_call *call)
{
    const uint8_t *data = call->message;
    size_t size = call->message_size;

    hps_grpc_call_ref(call);
    count_request_bytes(call, 0);
    if (!call->compressed || inflate(call, &data, &size)) {
        deliver(call, data, size);
    }
    if (!call->keep) {
        hps_grpc_decoder_fini(&call->decoder);
        hps_buf_fini(&call->plain);
    }
    hps_grpc_call_unref(call);
}

/* Streaming: one message now. What the service wants to keep is moved out of the decoder's way. */
static void deliver_streamed(struct hps_grpc_call *call, struct hps_buf *owner, const uint8_t *data,
                             size_t size)
{
    if (call->kept_spare == NULL) {
        call->kept_spare = hps_calloc(1, sizeof *call->kept_spare);
        if (call->kept_spare == NULL) {
            refuse(call, HPS_NO_MEMORY, "no memory for a request message");
            return;
        }
    }
    call->keep = false;
    deliver(call, data, size);
    if (call->keep) {
        struct grpc_kept *kept = call->kept_spare;
        call->kept_spare = NULL;
        kept->body = *owner;
        kept->next = call->kept;
        call->kept = kept;
        hps_buf_init(owner, 0);
    }
}

static void message_complete(struct hps_grpc_call *call, const struct hps_grpc_message *message)
{
    const uint8_t *data = message->data;
    size_t size = message->size;

    if (message->compressed && call->encoding != GRPC_GZIP) {
        refuse(call, HPS_INTERNAL, "a compressed message without grpc-encoding");
        return;
    }
    if (!call->entry->method->client_streaming) {
        call->got_message = true;
        call->compressed = message->compressed;
        call->message = data;
        call->message_size = size;
    } else if (!message->compressed) {
        deliver_streamed(call, &call->decoder.body, data, size);
    } else if (inflate(call, &data, &size)) {
        deliver_streamed(call, &call->plain, data, size);
    }
}

/* A client that asks on while it does not read the answers has to wait with its messages. */
static bool must_wait(const struct hps_grpc_call *call)
{
    return call->entry->method->client_streaming && !call->finished &&
           hps_http2_stream_queued(call->stream) > STREAMED_QUEUED_BYTES;
}

/* Returns how much was taken; the rest must wait. */
static size_t feed(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    size_t taken = 0;

    while (taken < size && !call->finished && !must_wait(call)) {
        struct hps_grpc_message message;
        struct hps_error err;
        bool complete;
        size_t used;

        if (call->got_message) {
            refuse(call, HPS_UNIMPLEMENTED, "%s takes one message, the client sent more",
                   call->entry->method->path);
            break;
        }
        hps_status status = hps_grpc_decoder_feed(&call->decoder, data + taken, size - taken, &used,
                                                  &message, &complete, &err);
        if (status != HPS_OK) {
            hps_grpc_call_fail(call, &err);
            break;
        }
        taken += used;
        if (complete) {
            message_complete(call, &message);
        }
    }
    return call->finished ? size : taken;
}

/* What it takes to put the request together, and whether that is too much. */
static void check_request_bytes(struct hps_grpc_call *call)
{
    const struct hps_grpc_limits *limits = &call->grpc_loop->limits;
    size_t all_max = limits->request_bytes_all_max;

    count_request_bytes(call, hps_grpc_decoder_held(&call->decoder) + call->stash.size);
    size_t all =
        atomic_load_explicit(&call->grpc_loop->server->request_bytes, memory_order_relaxed);
    if (call->conn->request_bytes / 8 > limits->request_bytes_max) {
        refuse(call, HPS_EXHAUSTED, "requests of %zu bytes under way on one connection",
               call->conn->request_bytes);
    } else if (all_max > 0 && all > all_max && call->counted > SMALL_REQUEST_BYTES) {
        refuse(call, HPS_EXHAUSTED, "requests of %zu bytes under way, the limit is %zu", all,
               all_max);
    }
}

/* Feed `data`, put aside what must wait, give window back for the rest. False: the call is gone. */
static bool take_in(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    hps_grpc_call_ref(call);
    size_t taken = feed(call, data, size);
    bool gone = call->conn == NULL;
    if (!gone && taken < size &&
        hps_buf_append(&call->stash, data + taken, size - taken) != HPS_OK) {
        refuse(call, HPS_NO_MEMORY, "no memory for a request message");
    }
    if (!gone && !call->finished) {
        check_request_bytes(call);
    }
    if (!gone && call->finished) {
        hps_grpc_decoder_fini(&call->decoder);
        hps_buf_fini(&call->stash);
        count_request_bytes(call, 0);
        hps_http2_consume(call->stream, size);
    } else if (!gone && grpc_conn_is_full(call->conn)) {
        call->unconsumed += taken;
        call->conn->withheld = true;
    } else if (!gone) {
        hps_http2_consume(call->stream, taken);
    }
    hps_grpc_call_unref(call);
    return !gone;
}

void grpc_call_data(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    call->progress_us = hps_loop_now_us(call->loop);
    if (call->finished) {
        hps_grpc_decoder_fini(&call->decoder);
        hps_http2_consume(call->stream, size);
    } else if (call->stash.size == 0) {
        (void)take_in(call, data, size);
    } else if (hps_buf_append(&call->stash, data, size) != HPS_OK) {
        refuse(call, HPS_NO_MEMORY, "no memory for a request message");
    } else {
        check_request_bytes(call);
    }
}

/* Answers have gone: on with what waits for that. */
static void take_in_stash(struct hps_grpc_call *call)
{
    struct hps_buf stash = call->stash;

    hps_buf_init(&call->stash, GRPC_WINDOW_BYTES);
    if (take_in(call, stash.data, stash.size) && call->ended && call->stash.size == 0) {
        grpc_call_end(call);
    }
    hps_buf_fini(&stash);
}

void grpc_call_end(struct hps_grpc_call *call)
{
    struct grpc_conn *conn = call->conn;

    call->ended = true;
    if (call->finished || call->stash.size > 0) {
        return;
    }
    if (!hps_grpc_decoder_idle(&call->decoder)) {
        refuse(call, HPS_INTERNAL, "the request ends within a message");
        return;
    }
    if (call->entry->method->client_streaming) {
        call->delivered = true;
        if (call->entry->method->on_half_close != NULL) {
            call->entry->method->on_half_close(call);
        }
        return;
    }
    if (!call->got_message) {
        refuse(call, HPS_UNIMPLEMENTED, "%s takes one message, the client sent none",
               call->entry->method->path);
        return;
    }
    if (!grpc_conn_is_full(conn) && conn->held_head == NULL) {
        grpc_call_dispatch(call);
        return;
    }
    call->held = true;
    call->held_next = NULL;
    if (conn->held_tail != NULL) {
        conn->held_tail->held_next = call;
    } else {
        conn->held_head = call;
    }
    conn->held_tail = call;
}

/* ---- the answer ------------------------------------------------------------------------------ */

/* grpc-status, grpc-message and the service's trailers. */
static unsigned list_trailers(struct hps_grpc_call *call, char code[4], struct hps_http2_field *out)
{
    unsigned n = 0;
    int code_size = snprintf(code, 4, "%d", call->code);

    out[n++] = FIELD("grpc-status", code, (size_t)code_size);
    if (call->status_text.size > 0) {
        out[n++] =
            FIELD("grpc-message", (const char *)call->status_text.data, call->status_text.size);
    }
    return n + grpc_fields_list(&call->trailer_fields, out + n, GRPC_FIELDS_MAX);
}

static unsigned list_headers(struct hps_grpc_call *call, struct hps_http2_field *out)
{
    unsigned n = 0;

    out[n++] = FIELD_LITERAL(":status", "200");
    out[n++] = FIELD_LITERAL("content-type", "application/grpc");
    if (call->offer_encodings) {
        out[n++] = FIELD_LITERAL("grpc-accept-encoding", "identity,gzip");
    }
    return n + grpc_fields_list(&call->response_fields, out + n, GRPC_FIELDS_MAX / 2);
}

void grpc_call_trailers(struct hps_grpc_call *call)
{
    struct hps_http2_field fields[HPS_HTTP2_FIELDS_MAX];
    char code[4];
    unsigned n = list_trailers(call, code, fields);

    if (hps_http2_trailers(call->stream, fields, n) != HPS_OK) {
        hps_http2_reset(call->stream, HPS_HTTP2_INTERNAL_ERROR);
    }
}

void hps_grpc_call_finish(struct hps_grpc_call *call, int grpc_code, const char *message)
{
    HPS_ASSERT(hps_loop_is_mine(call->loop));
    HPS_ASSERT(grpc_code >= 0 && grpc_code <= 16);
    if (call->finished) {
        return;
    }
    call->finished = true;
    call->code = grpc_code;
    unhold(call);
    if (message != NULL && hps_grpc_message_encode(&call->status_text, message) != HPS_OK) {
        hps_buf_clear(&call->status_text); /* the code matters more than the text */
    }
    if (call->responded) {
        hps_http2_finish(call->stream);
        return;
    }
    struct hps_http2_field fields[HPS_HTTP2_FIELDS_MAX];
    char code[4];
    unsigned n = list_headers(call, fields);
    n += list_trailers(call, code, fields + n);
    call->responded = true;
    if (hps_http2_respond(call->stream, fields, n, true) != HPS_OK) {
        hps_http2_reset(call->stream, HPS_HTTP2_INTERNAL_ERROR);
    }
}

void hps_grpc_call_fail(struct hps_grpc_call *call, const struct hps_error *err)
{
    hps_grpc_call_finish(call, hps_status_grpc_code(err->status), err->text);
}

/* Before the first message: the headers. False: the call is over. */
static bool open_answer(struct hps_grpc_call *call)
{
    struct hps_http2_field fields[HPS_HTTP2_FIELDS_MAX];

    HPS_ASSERT(hps_loop_is_mine(call->loop));
    if (call->finished) {
        return false;
    }
    if (!call->responded) {
        unsigned n = list_headers(call, fields);
        call->responded = true;
        call->progress_us = hps_clock_us();
        if (hps_http2_respond(call->stream, fields, n, false) != HPS_OK) {
            grpc_call_stalled(call);
            return false;
        }
    }
    return true;
}

static void answer_failed(struct hps_grpc_call *call)
{
    call->finished = true;
    call->code = hps_status_grpc_code(HPS_NO_MEMORY);
    hps_http2_reset(call->stream, HPS_HTTP2_INTERNAL_ERROR);
}

void hps_grpc_call_send(struct hps_grpc_call *call, const struct hps_slice *slices,
                        unsigned n_slices)
{
    uint8_t prefix[HPS_GRPC_PREFIX_BYTES];
    size_t size = 0;

    if (!open_answer(call)) {
        for (unsigned i = 0; i < n_slices; i++) {
            hps_block_unref(slices[i].block);
        }
        return;
    }
    for (unsigned i = 0; i < n_slices; i++) {
        size += slices[i].size;
    }
    hps_grpc_prefix_write(prefix, size);
    if (hps_http2_stream_queued(call->stream) == 0) {
        call->progress_us = hps_loop_now_us(call->loop);
    }
    if (hps_http2_send(call->stream, prefix, sizeof prefix, slices, n_slices) != HPS_OK) {
        answer_failed(call);
    }
}

void hps_grpc_call_send_copy(struct hps_grpc_call *call, const void *data, size_t size)
{
    uint8_t prefix[HPS_GRPC_PREFIX_BYTES];

    if (!open_answer(call)) {
        return;
    }
    hps_grpc_prefix_write(prefix, size);
    if (hps_http2_stream_queued(call->stream) == 0) {
        call->progress_us = hps_loop_now_us(call->loop);
    }
    if (hps_http2_send_copy(call->stream, prefix, sizeof prefix, data, size) != HPS_OK) {
        answer_failed(call);
    }
}

size_t hps_grpc_call_queued(const struct hps_grpc_call *call)
{
    return call->stream != NULL ? hps_http2_stream_queued(call->stream) : 0;
}

void grpc_call_sent(struct hps_grpc_call *call)
{
    hps_grpc_call_ref(call);
    if (call->stash.size > 0 && !call->finished && !must_wait(call)) {
        take_in_stash(call);
    }
    if (!call->finished && call->delivered && call->entry->method->on_drained != NULL &&
        hps_http2_stream_queued(call->stream) <= GRPC_DRAINED_BYTES) {
        call->entry->method->on_drained(call);
    }
    hps_grpc_call_unref(call);
}

static hps_status add_field(struct grpc_fields *fields, unsigned n_max, const char *name,
                            const void *value, size_t size)
{
    size_t name_size = strlen(name);

    if (fields->n >= n_max || fields->bytes.size + name_size + size > GRPC_FIELD_BYTES_MAX) {
        return HPS_EXHAUSTED;
    }
    if (name_size <= 4 || memcmp(name + name_size - 4, "-bin", 4) != 0) {
        return grpc_fields_add(fields, name, name_size, value, size);
    }
    struct hps_buf text;
    hps_buf_init(&text, 2 * GRPC_FIELD_BYTES_MAX);
    hps_status status = hps_grpc_base64_encode(&text, value, size);
    if (status == HPS_OK) {
        status = grpc_fields_add(fields, name, name_size, text.data, text.size);
    }
    hps_buf_fini(&text);
    return status;
}

hps_status hps_grpc_call_add_trailer(struct hps_grpc_call *call, const char *name,
                                     const void *value, size_t size)
{
    return call->finished ? HPS_OK
                          : add_field(&call->trailer_fields, GRPC_FIELDS_MAX, name, value, size);
}

hps_status hps_grpc_call_add_header(struct hps_grpc_call *call, const char *name, const void *value,
                                    size_t size)
{
    return call->responded
               ? HPS_OK
               : add_field(&call->response_fields, GRPC_FIELDS_MAX / 2, name, value, size);
}

/* ---- what a service asks --------------------------------------------------------------------- */

void *hps_grpc_call_ctx(const struct hps_grpc_call *call)
{
    return call->entry != NULL ? call->entry->service->ctx : NULL;
}

struct hps_loop *hps_grpc_call_loop(const struct hps_grpc_call *call)
{
    return call->loop;
}

struct hps_grpc_loop *hps_grpc_call_grpc_loop(const struct hps_grpc_call *call)
{
    return call->grpc_loop;
}

const char *hps_grpc_call_path(const struct hps_grpc_call *call)
{
    if (call->entry != NULL) {
        return call->entry->method->path;
    }
    const char *path = grpc_fields_get(&call->request_fields, ":path", NULL);
    return path != NULL ? path : "";
}

const char *hps_grpc_call_peer(const struct hps_grpc_call *call)
{
    return call->peer;
}

uint64_t hps_grpc_call_client(const struct hps_grpc_call *call)
{
    return call->client;
}

uint64_t hps_grpc_call_start_us(const struct hps_grpc_call *call)
{
    return call->start_us;
}

uint64_t hps_grpc_call_deadline_us(const struct hps_grpc_call *call)
{
    return call->deadline_us;
}

const char *hps_grpc_call_header(const struct hps_grpc_call *call, const char *name,
                                 size_t *out_size)
{
    return grpc_fields_get(&call->request_fields, name, out_size);
}

void *hps_grpc_call_user(const struct hps_grpc_call *call)
{
    return call->user;
}

void hps_grpc_call_set_user(struct hps_grpc_call *call, void *user)
{
    call->user = user;
}

void hps_grpc_call_keep_message(struct hps_grpc_call *call)
{
    call->keep = true;
}

bool hps_grpc_call_cancelled(const struct hps_grpc_call *call)
{
    return atomic_load_explicit(&call->cancelled, memory_order_relaxed);
}
