/* SPDX-License-Identifier: Apache-2.0
 *
 * Receives on an HTTP/1.1 connection of the gRPC server. Heads are collected in a small buffer.
 * Bodies are read to where their call wants them. All bytes are untrusted: a request is rejected
 * unless its length can be read in one way only. Loop thread of the connection.
 */
#include "net/http1_server_internal.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/clock.h"
#include "net/http1_head.h"

/* Limit of the bytes read in a turn. Each read counts as at least READ_WORK_MIN bytes. */
enum { READ_TURN_WORK = 1024 * 1024, READ_WORK_MIN = 4 * 1024 };

enum {
    READ_BYTES_MIN = 4 * 1024, /* space for a read into the buffer, unless that is full */
    CHUNK_LINE_BYTES_MAX = 256,
    CHUNK_DIGITS_MAX = 8,
    TRAILER_BYTES_MAX = 4 * 1024,
    SINK_BYTES = 16 * 1024,
    DROPPED_BYTES_MAX = 16 * 1024 * 1024, /* from a peer that does not read the last response */
    LENGTH_DIGITS_MAX = 18,
};

/* ---- the head -------------------------------------------------------------------------------- */

struct head {
    struct hps_http1_line line;
    struct hps_http1_field fields[HTTP1_HEAD_FIELDS_MAX];
    unsigned n_fields;
    unsigned n_hosts;
    unsigned n_authorizations;
    bool has_length;
    bool has_coding;
    bool chunked;
    bool expects;
    bool closes;
    bool keeps_alive;
    uint64_t length;
    unsigned status; /* of the response to a rejected request */
};

static bool is_word(const struct hps_http1_field *field, const char *word)
{
    return field->value_size == strlen(word) && strcasecmp(field->value, word) == 0;
}

/* Whether the list has the word. */
static bool lists(const struct hps_http1_field *field, const char *word)
{
    const char *at = field->value;
    size_t size = strlen(word);

    while (*at != '\0') {
        at += strspn(at, ", \t");
        size_t n = strcspn(at, ", \t");
        if (n == size && strncasecmp(at, word, size) == 0) {
            return true;
        }
        at += n;
    }
    return false;
}

static const char *read_length(struct head *head, const struct hps_http1_field *field)
{
    if (head->has_length) {
        return "got Content-Length twice";
    }
    if (field->value_size == 0 || field->value_size > LENGTH_DIGITS_MAX ||
        strspn(field->value, "0123456789") != field->value_size) {
        return "Content-Length is not a number";
    }
    head->has_length = true;
    for (const char *c = field->value; *c != '\0'; c++) {
        head->length = head->length * 10 + (uint64_t)(*c - '0');
    }
    return NULL;
}

static const char *read_coding(struct head *head, const struct hps_http1_field *field)
{
    if (head->has_coding) {
        return "got Transfer-Encoding twice";
    }
    head->has_coding = true;
    head->chunked = is_word(field, "chunked");
    head->status = head->chunked ? head->status : 501;
    return head->chunked ? NULL : "Transfer-Encoding: only chunked is supported";
}

/* A field that concerns framing or the connection. NULL: valid, or another field. */
static const char *read_field(struct head *head, const struct hps_http1_field *field)
{
    if (strcmp(field->name, "content-length") == 0) {
        return read_length(head, field);
    }
    if (strcmp(field->name, "transfer-encoding") == 0) {
        return read_coding(head, field);
    }
    if (strcmp(field->name, "host") == 0) {
        head->n_hosts++;
    } else if (strcmp(field->name, "authorization") == 0) { /* a proxy may have checked either */
        return ++head->n_authorizations > 1 ? "got Authorization twice" : NULL;
    } else if (strcmp(field->name, "connection") == 0) {
        head->closes = head->closes || lists(field, "close");
        head->keeps_alive = head->keeps_alive || lists(field, "keep-alive");
    } else if (strcmp(field->name, "expect") == 0) {
        head->expects = is_word(field, "100-continue");
        head->status = head->expects ? head->status : 417;
        return head->expects ? NULL : "Expect: only 100-continue is supported";
    }
    return NULL;
}

static const char *check_framing(const struct head *head)
{
    if (head->has_length && head->has_coding) {
        return "Content-Length and Transfer-Encoding exclude each other";
    }
    if (head->line.minor == 0 && head->has_coding) {
        return "HTTP/1.0 has no Transfer-Encoding";
    }
    if (head->n_hosts > 1 || (head->line.minor == 1 && head->n_hosts == 0)) {
        return "expected one Host field";
    }
    return NULL;
}

/* NULL: valid. Else the reason, with head->status set. */
static const char *parse(struct head *head, char *text, size_t size)
{
    char *at = text;
    char *end = text + size;
    char *line;
    char *first;
    size_t line_size;

    head->status = 400;
    if (!hps_http1_head_is_strict(text, size)) {
        return "a line does not end with CR LF";
    }
    if (!hps_http1_next_line(&at, end, &first, &line_size) || strlen(first) != line_size ||
        !hps_http1_line_parse(first, &head->line)) {
        return "the request line is not METHOD /path HTTP/1.1";
    }
    while (hps_http1_next_line(&at, end, &line, &line_size) && line_size > 0) {
        if (head->n_fields == HTTP1_HEAD_FIELDS_MAX) {
            head->status = 431;
            return "there are more than 64 fields";
        }
        struct hps_http1_field *field = &head->fields[head->n_fields++];
        if (!hps_http1_field_parse(line, line_size, field)) {
            return "a field is malformed";
        }
        const char *why = read_field(head, field);
        if (why != NULL) {
            return why;
        }
    }
    return check_framing(head);
}

static void tell_head(struct http1 *http, const struct head *head)
{
    const struct hps_http_events *events = http->base.events;
    struct hps_http_stream *stream = &http->request->stream;
    void *ctx = http->base.ctx;

    events->on_stream(ctx, stream);
    events->on_header(ctx, stream, ":method", 7, head->line.verb, strlen(head->line.verb));
    events->on_header(ctx, stream, ":path", 5, head->line.path, strlen(head->line.path));
    for (unsigned i = 0; i < head->n_fields; i++) {
        const struct hps_http1_field *field = &head->fields[i];
        events->on_header(ctx, stream, field->name, field->name_size, field->value,
                          field->value_size);
    }
    events->on_headers(ctx, stream);
}

/* Reports the end of the request, unless the call has been ended before. */
static void end_request(struct http1 *http)
{
    if (http->phase == HTTP1_BODY) {
        http1_phase_set(http, HTTP1_CALL);
    }
    if (http->phase == HTTP1_CALL && !http->aborting) {
        http->base.events->on_end(http->base.ctx, &http->request->stream);
    }
}

static void begin_request(struct http1 *http, const struct head *head)
{
    bool has_body = head->chunked || head->length > 0;

    http->request->is_open = true;
    http->request->stream = (struct hps_http_stream){
        .http = &http->base,
        .body_bytes = head->chunked ? HPS_HTTP_BODY_OF_ANY_SIZE : head->length};
    http->request->minor = head->line.minor;
    http->request->keep_alive = !head->closes && (head->line.minor == 1 || head->keeps_alive);
    http->in->chunk = head->chunked ? HTTP1_CHUNK_SIZE : HTTP1_CHUNK_NONE;
    http->in->body_left = head->length;
    http->in->trailer_bytes = 0;
    http1_phase_set(http, has_body ? HTTP1_BODY : HTTP1_CALL);
    tell_head(http, head);
    if (has_body && head->expects && http->request->minor == 1 && http->phase == HTTP1_BODY &&
        !http->aborting && http1_waiting(http) == 0) {
        http1_continue(http);
    }
    if (!has_body) {
        end_request(http);
    }
}

/* False: there is nothing more to parse. */
static bool take_head(struct http1 *http)
{
    struct head head = {0};
    char *text;

    while (http1_waiting(http) >= 2 &&
           memcmp(http->in->bytes.data + http->in->at, "\r\n", 2) == 0) {
        http->in->at += 2; /* some old clients send CR LF after a body */
        http->in->scanned = 0;
    }
    size_t waiting = http1_waiting(http);
    if (waiting == 0) {
        http->base.head_us = 0;
        http->in->at = 0;
        hps_buf_fini(&http->in->bytes); /* an idle connection needs no buffer */
        return false;
    }
    if (http->base.head_us == 0) {
        http->base.head_us = hps_loop_now_us(http->loop);
    }
    text = (char *)http->in->bytes.data + http->in->at;
    size_t size = hps_http1_head_end(text, waiting, http->in->scanned);
    http->in->scanned = waiting;
    if (size > HTTP1_HEAD_BYTES_MAX || (size == 0 && waiting >= HTTP1_HEAD_BYTES_MAX)) {
        http1_refuse(http, 431, "the head of a request has more than 16 KiB");
        return false;
    }
    if (size == 0) {
        if (http->in->half_closed) {
            http1_fail(http, HPS_CLOSED, "peer closed the connection within the head of a request");
        }
        return false;
    }
    http->in->scanned = 0;
    http->in->at += size;
    http->base.head_us = 0;
    const char *why = parse(&head, text, size);
    if (why != NULL) {
        http1_refuse(http, head.status, why);
        return false;
    }
    begin_request(http, &head);
    return true;
}

/* ---- the body -------------------------------------------------------------------------------- */

/* The rest of the request is not parsed. */
static void refuse_body(struct http1 *http, const char *why)
{
    http1_stream_close(http, HPS_HTTP2_PROTOCOL_ERROR);
    if (!http1_is_dead(http)) {
        http1_refuse(http, 400, why);
    }
}

/* Bytes of the body; at most body_left. */
static void take_data(struct http1 *http, const uint8_t *data, size_t size)
{
    HPS_ASSERT(size > 0 && size <= http->in->body_left);
    http->in->body_left -= size;
    http->base.events->on_data(http->base.ctx, &http->request->stream, data, size);
    if (http->in->body_left > 0 || http->phase != HTTP1_BODY) {
        return;
    }
    if (http->in->chunk == HTTP1_CHUNK_DATA) {
        http->in->chunk = HTTP1_CHUNK_END;
    } else {
        end_request(http);
    }
}

/* Takes one complete line of a chunked body, without its end. It has at most `bytes_max` bytes.
 * False: it is not complete, or the body was rejected. */
static bool take_line(struct http1 *http, size_t bytes_max, char **out_line, size_t *out_size)
{
    char *line = (char *)http->in->bytes.data + http->in->at;
    size_t waiting = http1_waiting(http);
    char *eol = waiting > 0 ? memchr(line, '\n', waiting) : NULL;

    if (eol == NULL) {
        if (waiting >= bytes_max) {
            refuse_body(http, "a line of a chunked body is too long");
        }
        return false;
    }
    size_t size = (size_t)(eol - line);
    if (size >= bytes_max || size == 0 || eol[-1] != '\r' || memchr(line, '\r', size - 1) != NULL) {
        refuse_body(http, "a line of a chunked body is malformed");
        return false;
    }
    http->in->at += size + 1;
    line[size - 1] = '\0';
    *out_line = line;
    *out_size = size - 1;
    return true;
}

static bool take_chunk_size(struct http1 *http)
{
    char *line;
    size_t line_size;
    uint64_t size = 0;

    if (!take_line(http, CHUNK_LINE_BYTES_MAX, &line, &line_size)) {
        return false;
    }
    size_t n = strspn(line, "0123456789abcdefABCDEF");
    if (n == 0 || n > CHUNK_DIGITS_MAX || (line[n] != '\0' && line[n] != ';') ||
        strlen(line) != line_size) {
        refuse_body(http, "the size of a chunk is not a hexadecimal number");
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        char c = line[i];
        size = size << 4 | (uint64_t)(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    http->in->body_left = size;
    http->in->chunk = size > 0 ? HTTP1_CHUNK_DATA : HTTP1_CHUNK_TRAILER;
    return true;
}

static bool take_chunk_end(struct http1 *http)
{
    const uint8_t *at = http->in->bytes.data + http->in->at;

    if (http1_waiting(http) < 2) {
        return false;
    }
    if (memcmp(at, "\r\n", 2) != 0) {
        refuse_body(http, "a chunk is longer than its size");
        return false;
    }
    http->in->at += 2;
    http->in->chunk = HTTP1_CHUNK_SIZE;
    return true;
}

static bool take_trailer(struct http1 *http)
{
    struct hps_http1_field field;
    char *line;
    size_t size;

    if (!take_line(http, TRAILER_BYTES_MAX - http->in->trailer_bytes, &line, &size)) {
        return false;
    }
    if (size == 0) {
        end_request(http);
        return true;
    }
    http->in->trailer_bytes += size + 2;
    if (http->in->trailer_bytes >= TRAILER_BYTES_MAX ||
        !hps_http1_field_parse(line, size, &field)) {
        refuse_body(http, "a trailer field is malformed, or the trailer is too long");
        return false;
    }
    return true;
}

/* False: there is nothing more to parse. */
static bool take_body(struct http1 *http)
{
    size_t waiting = http1_waiting(http);

    switch (http->in->chunk) {
    case HTTP1_CHUNK_SIZE:
        return take_chunk_size(http);
    case HTTP1_CHUNK_END:
        return take_chunk_end(http);
    case HTTP1_CHUNK_TRAILER:
        return take_trailer(http);
    case HTTP1_CHUNK_NONE:
    case HTTP1_CHUNK_DATA:
        break;
    }
    if (waiting == 0) {
        return false;
    }
    size_t size = waiting < http->in->body_left ? waiting : (size_t)http->in->body_left;
    const uint8_t *data = http->in->bytes.data + http->in->at;
    http->in->at += size;
    take_data(http, data, size);
    return true;
}

void http1_take_in(struct http1 *http)
{
    bool more = true;

    while (more && http1_takes_in(http)) {
        more = http->phase == HTTP1_HEAD ? take_head(http) : take_body(http);
    }
}

/* ---- reading --------------------------------------------------------------------------------- */

/* A buffer of the call for the next bytes of the body, if no bytes are buffered. */
static uint8_t *direct_buffer(struct http1 *http, size_t *out_capacity)
{
    bool in_data = http->phase == HTTP1_BODY &&
                   (http->in->chunk == HTTP1_CHUNK_NONE || http->in->chunk == HTTP1_CHUNK_DATA);

    if (!in_data || http1_waiting(http) > 0 || http->base.events->on_buffer == NULL) {
        return NULL;
    }
    size_t size = http->in->body_left < SIZE_MAX ? (size_t)http->in->body_left : SIZE_MAX;
    return http->base.events->on_buffer(http->base.ctx, &http->request->stream, size, out_capacity);
}

/* One read. *out_more: the socket may have more. */
static hps_status read_to(struct http1 *http, uint8_t *to, size_t size_max, size_t *out_size,
                          bool *out_more)
{
    hps_status status = hps_conn_read(http->base.conn, to, size_max, out_size);

    if (status == HPS_OK) {
        http->in->work += *out_size > READ_WORK_MIN ? *out_size : READ_WORK_MIN;
        *out_more = *out_size == size_max || hps_conn_is_tls(http->base.conn);
    }
    return status;
}

static hps_status read_direct(struct http1 *http, uint8_t *to, size_t size_max, bool *out_more)
{
    size_t size = 0;
    hps_status status = read_to(http, to, size_max, &size, out_more);

    if (status == HPS_OK) {
        take_data(http, to, size);
    }
    return status;
}

static hps_status read_buffered(struct http1 *http, bool *out_more)
{
    struct hps_buf *in = &http->in->bytes;
    size_t size = 0;

    hps_buf_consume(in, http->in->at);
    http->in->at = 0;
    size_t size_max = HTTP1_IN_BYTES_MAX - in->size;
    HPS_ASSERT(size_max >= READ_BYTES_MIN); /* else reading is not wanted */
    if (in->capacity - in->size < READ_BYTES_MIN && hps_buf_reserve(in, READ_BYTES_MIN) != HPS_OK) {
        return HPS_NO_MEMORY;
    }
    size_max = in->capacity - in->size < size_max ? in->capacity - in->size : size_max;
    hps_status status = read_to(http, in->data + in->size, size_max, &size, out_more);
    if (status == HPS_OK) {
        in->size += size;
        http1_take_in(http);
    }
    return status;
}

static hps_status read_away(struct http1 *http, bool *out_more)
{
    uint8_t sink[SINK_BYTES];
    size_t size = 0;
    hps_status status = read_to(http, sink, sizeof sink, &size, out_more);

    http->in->dropped += size;
    return http->in->dropped > DROPPED_BYTES_MAX ? HPS_CLOSED : status;
}

static hps_status read_once(struct http1 *http, bool *out_more)
{
    size_t size_max = 0;
    uint8_t *direct = direct_buffer(http, &size_max);

    if (http->phase == HTTP1_LINGER) {
        return read_away(http, out_more);
    }
    return direct != NULL ? read_direct(http, direct, size_max, out_more)
                          : read_buffered(http, out_more);
}

/* The peer has ended its side. If its request is complete it may still wait for the response. */
static void peer_ended(struct http1 *http)
{
    if (http->phase != HTTP1_CALL) {
        http1_fail(http, HPS_CLOSED, "peer closed the connection");
        return;
    }
    http->in->half_closed = true;
    hps_timer_set_after(http->loop, &http->timer, 0);
    if (!http->request->responded && http->request->minor == 1 &&
        !hps_conn_is_unix(http->base.conn)) {
        http1_continue(http); /* if the peer has closed, TCP reports that after a write */
    }
}

/* Whether reading is wanted in this phase and there is space. */
static bool reads(const struct http1 *http)
{
    if (http1_is_dead(http) || http->aborting || http->in->half_closed) {
        return false;
    }
    return http->phase == HTTP1_HEAD || http->phase == HTTP1_BODY || http->phase == HTTP1_LINGER ||
           (http->phase == HTTP1_CALL && http1_waiting(http) < HTTP1_HEAD_BYTES_MAX);
}

void http1_read_in(struct http1 *http)
{
    bool more = true;

    HPS_ASSERT(http->busy > 0 && http->phase > HTTP1_HANDSHAKE);
    http->base.read_us = hps_loop_now_us(http->loop);
    http->in->work = 0;
    while (more && reads(http) && http->in->work < READ_TURN_WORK &&
           !hps_run_is_spent(http->item.run)) {
        hps_status status = read_once(http, &more);
        if (status == HPS_AGAIN) {
            return;
        }
        if (status == HPS_CLOSED) {
            peer_ended(http);
            return;
        }
        if (status != HPS_OK) {
            http1_fail(http, status == HPS_NO_MEMORY ? HPS_NO_MEMORY : HPS_CLOSED, "%s",
                       status == HPS_NO_MEMORY ? "no memory to read" : "connection lost");
            return;
        }
        hps_run_see(http->item.run, hps_clock_us());
    }
    if (more && reads(http) && hps_run_is_spent(http->item.run)) {
        hps_run_add(&http->item, HPS_LOOP_READ);
    }
}
