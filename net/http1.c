/* SPDX-License-Identifier: Apache-2.0
 *
 * HTTP/1.1 for scrapers and probes: read one head, answer it, close. Runs on the thread of its
 * loop. What TLS costs is bounded by the connections there may be: in one turn of the loop each of
 * them is at most one handshake.
 */
#include "net/http1.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/log.h"
#include "net/acceptor.h"
#include "net/conn.h"
#include "net/http1_head.h"
#include "net/peers.h"

#define LINGER_US 2000000u /* for the peer to take the answer in and close */

enum phase {
    PHASE_HANDSHAKE, /* TLS; over at once without */
    PHASE_HEAD,      /* the request is being read */
    PHASE_SEND,      /* the answer is being written */
    PHASE_LINGER,    /* it is with the kernel; the peer is to close first */
};

struct exchange {
    struct exchange *next, *prev;
    struct hps_http1 *http;
    struct hps_conn *conn;
    struct hps_timer timer;
    enum phase phase; /* changed by phase_set alone; the timer stands at the end of each */
    size_t head_size;
    char head[HPS_HTTP1_HEAD_BYTES_MAX + 1];
    char out_head[512];
    struct iovec out[2];
    int n_out; /* left to send, at the end of `out` */
    struct hps_http1_reply reply;
};

struct hps_http1 {
    struct hps_loop *loop;
    struct hps_http1_options options;
    struct hps_acceptor *acceptor;
    struct exchange *exchanges; /* newest first */
    unsigned n_exchanges;
};

static void exchange_sane(const struct exchange *ex)
{
    HPS_ASSERT(ex->conn != NULL);
    HPS_ASSERT(ex->prev || ex->http->exchanges == ex);
    HPS_ASSERT(hps_timer_armed(&ex->timer));
    HPS_ASSERT(ex->head_size <= HPS_HTTP1_HEAD_BYTES_MAX);
    HPS_ASSERT((ex->n_out > 0) == (ex->phase == PHASE_SEND));
}

/* On to the next phase. */
static void phase_set(struct exchange *ex, enum phase to)
{
    HPS_ASSERT(to == ex->phase + 1);
    ex->phase = to;
}

/* What is left must end within `timeout_us`. */
static void limit(struct exchange *ex, uint64_t timeout_us)
{
    hps_timer_set_after(ex->http->loop, &ex->timer, timeout_us);
}

static void exchange_free(struct exchange *ex)
{
    HPS_ASSERT(hps_loop_is_mine(ex->http->loop));
    HPS_ASSERT(ex->http->n_exchanges > 0);
    ex->http->n_exchanges--;
    if (ex->prev) {
        ex->prev->next = ex->next;
    } else {
        ex->http->exchanges = ex->next;
    }
    if (ex->next) {
        ex->next->prev = ex->prev;
    }
    hps_timer_stop(&ex->timer);
    hps_conn_free(ex->conn);
    hps_buf_fini(&ex->reply.body);
    hps_free(ex);
}

/* Who goes without a word has cost nothing; that is a probe. */
static void tell_no_start(const struct exchange *ex, const struct hps_error *why)
{
    const struct hps_http1_options *options = &ex->http->options;
    uint64_t n =
        hps_conn_heard(ex->conn) ? hps_seat_failed(hps_conn_seat(ex->conn), hps_clock_us()) : 0;
    HPS_ASSERT(ex->phase == PHASE_HANDSHAKE && why->status != HPS_OK);
    if (options->on_no_start) {
        options->on_no_start(options->ctx, why->status);
    }
    if (n > 0) {
        HPS_LOG(WARN, "http",
                "handshake failed: see error, and whether the peer is a client of http_listen at "
                "all; the connection is closed",
                HPS_STR("peer", hps_conn_peer(ex->conn)), HPS_STR("error", why->text),
                HPS_U64("failures", n));
    }
}

static void on_timeout(void *ctx)
{
    struct exchange *ex = ctx;
    if (ex->phase == PHASE_HANDSHAKE) {
        struct hps_error err = {0};
        hps_ignore(hps_error_set(&err, HPS_DEADLINE, "TLS: the handshake was not over in time"));
        tell_no_start(ex, &err);
    }
    exchange_free(ex);
}

/* ---- answering ------------------------------------------------------------------------------- */

/* May free `ex`. */
static void send_more(struct exchange *ex)
{
    while (ex->n_out > 0) {
        struct iovec *iov = &ex->out[2 - ex->n_out];
        size_t written = 0;
        hps_status status = hps_conn_writev(ex->conn, iov, ex->n_out, &written);
        if (status == HPS_AGAIN && hps_conn_want(ex->conn, HPS_LOOP_WRITE) == HPS_OK) {
            exchange_sane(ex);
            return;
        }
        if (status != HPS_OK) {
            exchange_free(ex);
            return;
        }
        while (ex->n_out > 0 && written >= iov->iov_len) {
            written -= iov->iov_len;
            iov++;
            ex->n_out--;
        }
        if (ex->n_out > 0) {
            iov->iov_base = (uint8_t *)iov->iov_base + written;
            iov->iov_len -= written;
        }
    }
    /* Closing while the peer still sends would reset the connection and lose the answer. */
    phase_set(ex, PHASE_LINGER);
    limit(ex, LINGER_US);
    exchange_sane(ex);
    hps_conn_shutdown_write(ex->conn);
    if (hps_conn_want(ex->conn, HPS_LOOP_READ) != HPS_OK) {
        exchange_free(ex);
    }
}

/* What a status has in its head beside what all have. */
static const char *header_of(int status)
{
    return status == 405   ? "Allow: GET, HEAD\r\n"
           : status == 401 ? "WWW-Authenticate: Bearer\r\n"
                           : "";
}

/* Send ex->reply. May free `ex`. */
static void answer(struct exchange *ex, bool with_body)
{
    struct hps_http1_reply *reply = &ex->reply;
    int size = snprintf(ex->out_head, sizeof(ex->out_head),
                        "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n%s"
                        "Cache-Control: no-store\r\nConnection: close\r\n\r\n",
                        reply->status, hps_http1_reason((unsigned)reply->status),
                        reply->content_type, reply->body.size, header_of(reply->status));
    HPS_ASSERT(size > 0 && (size_t)size < sizeof(ex->out_head));
    size_t body_size = with_body ? reply->body.size : 0;
    ex->out[0] = (struct iovec){.iov_base = ex->out_head, .iov_len = (size_t)size};
    ex->out[1] = (struct iovec){.iov_base = reply->body.data, .iov_len = body_size};
    ex->n_out = 2;
    phase_set(ex, PHASE_SEND);
    limit(ex, ex->http->options.send_timeout_us);
    send_more(ex);
}

static void answer_plain(struct exchange *ex, int status, bool with_body)
{
    ex->reply.status = status;
    ex->reply.content_type = "text/plain; charset=utf-8";
    hps_buf_clear(&ex->reply.body);
    /* Without memory the status line says it alone. */
    hps_ignore(hps_buf_printf(&ex->reply.body, "%s\n", hps_http1_reason((unsigned)status)));
    answer(ex, with_body);
}

/* ---- the head -------------------------------------------------------------------------------- */

/* Judges all and finds the one that counts; false: malformed, or there are two of it. */
static bool parse_headers(char *at, char *end, const char **out_authorization)
{
    char *line = NULL;
    size_t size = 0;
    struct hps_http1_field field;
    *out_authorization = NULL;
    while (hps_http1_next_line(&at, end, &line, &size)) {
        if (size > 0 && !hps_http1_field_parse(line, size, &field)) {
            return false;
        }
        if (size > 0 && strcmp(field.name, "authorization") == 0) {
            if (*out_authorization) {
                return false;
            }
            *out_authorization = field.value;
        }
    }
    return true;
}

/* May free `ex`. */
static void respond(struct exchange *ex)
{
    char *at = ex->head;
    char *end = ex->head + ex->head_size;
    char *line = NULL;
    size_t size = 0;
    struct hps_http1_line first;
    struct hps_http1_request request = {.conn = ex->conn};
    if (!hps_http1_next_line(&at, end, &line, &size) || strlen(line) != size ||
        !parse_headers(at, end, &request.authorization) || !hps_http1_line_parse(line, &first)) {
        answer_plain(ex, 400, true);
        return;
    }
    request.path = first.path;
    bool is_head = strcmp(first.verb, "HEAD") == 0;
    if (!is_head && strcmp(first.verb, "GET") != 0) {
        answer_plain(ex, 405, true);
        return;
    }
    const struct hps_http1_options *options = &ex->http->options;
    hps_status status = options->on_get(options->ctx, &request, &ex->reply);
    if (status != HPS_OK) {
        HPS_LOG(ERROR, "http",
                "HTTP request failed: the reply could not be made; the client gets status 500",
                HPS_STR("path", request.path), HPS_STR("reason", hps_status_text(status)));
        answer_plain(ex, 500, !is_head);
    } else if (ex->reply.status == 404 && ex->reply.body.size == 0) {
        answer_plain(ex, 404, !is_head);
    } else {
        answer(ex, !is_head);
    }
}

/* May free `ex`. */
static void read_head(struct exchange *ex)
{
    for (;;) {
        size_t room = HPS_HTTP1_HEAD_BYTES_MAX - ex->head_size;
        if (room == 0) {
            answer_plain(ex, 431, true);
            return;
        }
        size_t size = 0;
        hps_status status = hps_conn_read(ex->conn, ex->head + ex->head_size, room, &size);
        if (status == HPS_AGAIN) {
            return;
        }
        if (status != HPS_OK) {
            exchange_free(ex);
            return;
        }
        size_t before = ex->head_size;
        ex->head_size += size;
        size_t end = hps_http1_head_end(ex->head, ex->head_size, before);
        if (end > 0) {
            ex->head_size = end;
            ex->head[end] = '\0';
            respond(ex);
            return;
        }
    }
}

/* May free `ex`. */
static void shake_hands(struct exchange *ex)
{
    struct hps_error err = {0};
    hps_status status = hps_conn_handshake(ex->conn, &err);
    if (status == HPS_AGAIN) {
        return;
    }
    if (status == HPS_OK) {
        phase_set(ex, PHASE_HEAD);
        status = hps_conn_want(ex->conn, HPS_LOOP_READ);
    } else {
        tell_no_start(ex, &err);
    }
    if (status != HPS_OK) {
        exchange_free(ex);
        return;
    }
    exchange_sane(ex);
}

/* May free `ex`. */
static void drain(struct exchange *ex)
{
    char sink[4096];
    size_t size = 0;
    hps_status status = hps_conn_read(ex->conn, sink, sizeof(sink), &size);
    if (status != HPS_OK && status != HPS_AGAIN) {
        exchange_free(ex);
    }
}

static void on_ready(void *ctx, unsigned events)
{
    struct exchange *ex = ctx;
    (void)events;
    exchange_sane(ex);
    switch (ex->phase) {
    case PHASE_HANDSHAKE:
        shake_hands(ex);
        break;
    case PHASE_HEAD:
        read_head(ex);
        break;
    case PHASE_SEND:
        send_more(ex);
        break;
    case PHASE_LINGER:
        drain(ex);
        break;
    }
}

/* ---- life ------------------------------------------------------------------------------------ */

/* At connections_max the oldest one that has not sent its request, or has had its answer, is
 * closed: connections that send nothing must not keep probes out. */
static bool make_room(struct hps_http1 *http)
{
    struct exchange *oldest = NULL;
    if (http->n_exchanges < http->options.connections_max) {
        return true;
    }
    for (struct exchange *ex = http->exchanges; ex; ex = ex->next) {
        oldest = ex->phase == PHASE_SEND ? oldest : ex;
    }
    if (oldest) {
        exchange_free(oldest);
    }
    return oldest != NULL;
}

static void on_accept(void *ctx, struct hps_conn *conn, unsigned cookie)
{
    struct hps_http1 *http = ctx;
    (void)cookie;
    struct exchange *ex = make_room(http) ? hps_calloc(1, sizeof(*ex)) : NULL;
    if (!ex) {
        hps_conn_free(conn);
        return;
    }
    ex->http = http;
    ex->conn = conn;
    ex->reply.status = 404;
    ex->reply.content_type = "text/plain; charset=utf-8";
    hps_buf_init(&ex->reply.body, http->options.body_bytes_max);
    hps_timer_init(&ex->timer, on_timeout, ex);
    ex->next = http->exchanges;
    if (ex->next) {
        ex->next->prev = ex;
    }
    http->exchanges = ex;
    http->n_exchanges++;
    limit(ex, http->options.head_timeout_us);
    if (hps_conn_attach(conn, http->loop, 0, on_ready, ex) != HPS_OK) {
        exchange_free(ex);
        return;
    }
    shake_hands(ex);
}

hps_status hps_http1_new(struct hps_loop *loop, int listen_fd,
                         const struct hps_http1_options *options, struct hps_http1 **out_http,
                         struct hps_error *err)
{
    HPS_ASSERT(options->on_get);
    struct hps_http1 *http = hps_calloc(1, sizeof(*http));
    if (!http) {
        close(listen_fd);
        return hps_error_set(err, HPS_NO_MEMORY, "HTTP server: out of memory");
    }
    http->loop = loop;
    http->options = *options;
    struct hps_acceptor_options acceptor_options = {
        .limits = {.connections_max = options->connections_max + 1, /* make_room() judges */
                   .failures_max = options->failures_max},
        .on_accept = on_accept,
        .ctx = http,
    };
    hps_status status = hps_acceptor_new(loop, &acceptor_options, &http->acceptor, err);
    if (status != HPS_OK) {
        close(listen_fd);
        hps_free(http);
        return status;
    }
    status = hps_acceptor_add(http->acceptor, listen_fd, options->tls, 0, true, err);
    if (status != HPS_OK) {
        hps_http1_free(http);
        return status;
    }
    *out_http = http;
    return HPS_OK;
}

void hps_http1_limits_set(struct hps_http1 *http, uint64_t head_timeout_us,
                          uint64_t send_timeout_us, unsigned failures_max)
{
    const struct hps_peers_limits limits = {.connections_max = http->options.connections_max + 1,
                                            .failures_max = failures_max};
    http->options.head_timeout_us = head_timeout_us;
    http->options.send_timeout_us = send_timeout_us;
    hps_acceptor_limits_set(http->acceptor, &limits);
}

void hps_http1_free(struct hps_http1 *http)
{
    if (!http) {
        return;
    }
    while (http->exchanges) {
        exchange_free(http->exchanges);
    }
    hps_acceptor_free(http->acceptor);
    hps_free(http);
}
