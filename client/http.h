/* SPDX-License-Identifier: Apache-2.0
 *
 * One connection of HTTP/1.1 that is kept, with one request at a time on it: what a load generator
 * needs of the protocol, and no more. Answers have a Content-Length, which is bounded; one in
 * chunks, or without a length, ends the connection. Belongs to the thread of its loop.
 */
#ifndef HPS_CLIENT_HTTP_H
#define HPS_CLIENT_HTTP_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "net/loop.h"

struct hps_http_client;
struct hps_tls; /* net/tls.h */

/* A whole answer, borrowed for the callback. */
struct hps_http_answer {
    unsigned status; /* 200 */
    const uint8_t *body;
    size_t size;
    size_t json_size; /* Inference-Header-Content-Length; without one: size */
};

/* How a request ended. answer is NULL, and `err` says why: UNAVAILABLE (not reached, or the
 * connection ended), DEADLINE, DATA_LOSS (no answer of HTTP/1.1, or one beyond bounds), NO_MEMORY.
 * The callee may ask the next one, but not free the client. */
typedef void (*hps_http_done_fn)(void *ctx, const struct hps_http_answer *answer,
                                 const struct hps_error *err);

/* Connects with the first request. `address` ("host:port" or "unix:PATH") is copied, `loop`
 * borrowed, `tls` (for HTTP/1.1; NULL: none) referenced. */
hps_status hps_http_client_new(const char *address, struct hps_tls *tls, struct hps_loop *loop,
                               size_t answer_bytes_max, struct hps_http_client **out_client)
    HPS_MUST_CHECK;
/* A request under way ends without a word. NULL is legal. */
void hps_http_client_free(struct hps_http_client *client);

/* Send a request, head and body, which is borrowed until `done`, called from the loop exactly once.
 * None may be under way. A connection that ended is made anew.
 *
 * unit    deadline_us of hps_clock_us(); 0: none
 * error   of hps_conn_connect; then `done` is not called
 */
hps_status hps_http_client_ask(struct hps_http_client *client, const void *request, size_t size,
                               uint64_t deadline_us, hps_http_done_fn done, void *ctx,
                               struct hps_error *err) HPS_MUST_CHECK;

#endif
