/* SPDX-License-Identifier: Apache-2.0
 *
 * The HTTP/1.1 that scrapers and probes speak: GET and HEAD, one request per connection, plain
 * text, over TLS or without. Own code, because evhttp has neither a time limit on the whole head
 * nor one on connections. Belongs to the thread of its loop.
 */
#ifndef HPS_NET_HTTP1_H
#define HPS_NET_HTTP1_H

#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"
#include "net/conn.h"
#include "net/loop.h"

#define HPS_HTTP1_HEAD_BYTES_MAX 8192

struct hps_http1;
struct hps_tls; /* net/tls.h */

struct hps_http1_request {     /* borrowed for the call */
    const char *path;          /* "/metrics", as sent, without the query */
    const char *authorization; /* value of that header; NULL: none */
    const struct hps_conn *conn;
};

struct hps_http1_reply {
    int status;               /* 200, 401, 403, 404 or 503; 404 unless set */
    const char *content_type; /* static; "text/plain; charset=utf-8" unless set */
    struct hps_buf body;      /* initialised with body_bytes_max */
};

struct hps_http1_options {
    unsigned connections_max; /* then the oldest that has not asked makes room */
    uint64_t head_timeout_us; /* from the accept to the end of the head, with the TLS handshake */
    uint64_t send_timeout_us; /* for the whole answer */
    size_t body_bytes_max;
    unsigned
        failures_max;    /* of one address in a minute, then it is slowed (net/peers.h); 0: never */
    struct hps_tls *tls; /* made with `http1`; NULL: plain; referenced */
    /* A TLS handshake failed, or was not over in time. May be NULL. */
    void (*on_no_start)(void *ctx, hps_status status);
    /* Answer a GET. A failure becomes a 500. */
    hps_status (*on_get)(void *ctx, const struct hps_http1_request *request,
                         struct hps_http1_reply *reply);
    void *ctx;
};

/* takes `listen_fd` (also on failure). */
hps_status hps_http1_new(struct hps_loop *loop, int listen_fd,
                         const struct hps_http1_options *options, struct hps_http1 **out_http,
                         struct hps_error *err) HPS_MUST_CHECK;
/* For exchanges that begin, or come to their answer, from now on. */
void hps_http1_limits_set(struct hps_http1 *http, uint64_t head_timeout_us,
                          uint64_t send_timeout_us, unsigned failures_max);
/* Closes everything at once. NULL is legal. Not within on_get. */
void hps_http1_free(struct hps_http1 *http);

#endif
