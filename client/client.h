/* SPDX-License-Identifier: Apache-2.0
 *
 * A blocking gRPC client for tools. A client has one connection and an event loop. The calling
 * thread runs the loop within each call. A client belongs to one thread at a time.
 *
 * hps_client_call, hps_client_stream and hps_client_health return when their call has ended, so one
 * call is in flight at a time. For several calls in flight, start each with hps_grpc_client_start
 * on the channel of hps_client_channel, and run the loop of hps_client_loop with hps_loop_turn.
 */
#ifndef HPS_CLIENT_CLIENT_H
#define HPS_CLIENT_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"
#include "net/grpc.h"

#define HPS_CLIENT_REPLY_BYTES_MAX ((size_t)1 << 30) /* default of reply_bytes_max */

/* Strings are borrowed during hps_client_open only. All except `address` may be NULL. */
struct hps_client_options {
    const char *address;         /* "host:port", or "unix:PATH" (TLS options are ignored) */
    const char *token_file;      /* file with the bearer token in its first line; NULL: no token */
    bool plaintext;              /* send the token to other hosts also without TLS */
    bool tls;                    /* use TLS; implied by tls_ca, tls_cert and tls_key */
    const char *tls_ca;          /* PEM file; NULL: the system's CAs */
    const char *tls_cert;        /* PEM file: this client's certificate; NULL: no certificate */
    const char *tls_key;         /* PEM file; NULL: the key is in tls_cert */
    uint64_t connect_timeout_us; /* 0: 10 s */
    size_t reply_bytes_max;      /* per message; 0: HPS_CLIENT_REPLY_BYTES_MAX */
    /* The event loop of the client: borrowed, and possibly shared with other clients of the thread.
     * NULL: the client creates a loop. */
    struct hps_loop *loop;
};

struct hps_client;

/* Connects and waits until the server has answered a health check with any status.
 *
 * error   UNAVAILABLE: no server was reached; DEADLINE: no answer in time; INVALID: a malformed
 *         address, token or TLS option, or a token that would go to another host in clear text;
 *         NOT_FOUND, PERMISSION, IO: the token or TLS files cannot be read; UNAUTHENTICATED: a
 *         certificate is missing or rejected; NO_MEMORY, EXHAUSTED
 */
hps_status hps_client_open(const struct hps_client_options *options, struct hps_client **out_client,
                           struct hps_error *err) HPS_MUST_CHECK;
void hps_client_close(struct hps_client *client); /* NULL has no effect */

/* Makes one unary call. Appends the reply to `reply`, which is unchanged on failure.
 *
 * unit    timeout_us: from now; 0: no limit
 * error   the status for the gRPC code that the server returned, with its text; DEADLINE: no reply
 *         within timeout_us; UNAVAILABLE: the connection was lost; INTERNAL: the server sent no
 *         reply, or more than one; EXHAUSTED: the reply exceeds reply_bytes_max or size_max of
 *         `reply`; NO_MEMORY
 */
hps_status hps_client_call(struct hps_client *client, const char *path, const void *request,
                           size_t request_size, uint64_t timeout_us, struct hps_buf *reply,
                           struct hps_error *err) HPS_MUST_CHECK;

/* Receives one message of a stream; `data` is valid during the call only. To end the stream, the
 * function sets `err` and returns its status. The stream is then cancelled, and hps_client_stream
 * returns this status. */
typedef hps_status (*hps_client_message_fn)(void *ctx, const uint8_t *data, size_t size,
                                            struct hps_error *err);

/* Makes one server-streaming call and passes each message to `fn`. Returns when the stream has
 * ended. OK: the server ended the stream without an error, possibly without a message. `stop` (may
 * be NULL) is called at least every 100 ms. When it returns true, for example after a signal, the
 * call is cancelled.
 *
 * unit    timeout_us: for the whole stream, from now; 0: no limit
 * error   the status for the gRPC code that the server returned, with its text; the status of `fn`;
 *         CANCELLED: `stop` returned true; DEADLINE: the stream did not end within timeout_us;
 *         UNAVAILABLE: the connection was lost; EXHAUSTED: a message exceeds reply_bytes_max;
 *         NO_MEMORY
 */
hps_status hps_client_stream(struct hps_client *client, const char *path, const void *request,
                             size_t request_size, uint64_t timeout_us, hps_client_message_fn fn,
                             void *ctx, bool (*stop)(void), struct hps_error *err) HPS_MUST_CHECK;

/* Calls grpc.health.v1.Health/Check for `service` ("": the whole server). Returns the statuses of
 * hps_client_call; NOT_FOUND: the server does not know the service. */
hps_status hps_client_health(struct hps_client *client, const char *service, uint64_t timeout_us,
                             bool *out_serving, struct hps_error *err) HPS_MUST_CHECK;

/* The loop and the channel of the client, valid until hps_client_close. */
struct hps_loop *hps_client_loop(struct hps_client *client);
struct hps_grpc_channel *hps_client_channel(struct hps_client *client);

#endif
