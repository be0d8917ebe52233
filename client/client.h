/* SPDX-License-Identifier: Apache-2.0
 *
 * A blocking gRPC client for tools: one connection and its event loop, which the calling thread
 * turns within each call. A client belongs to one thread at a time.
 *
 * To have many calls in flight, start them on hps_client_channel and turn hps_client_loop.
 */
#ifndef HPS_CLIENT_CLIENT_H
#define HPS_CLIENT_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"
#include "net/grpc.h"

#define HPS_CLIENT_REPLY_BYTES_MAX ((size_t)1 << 30) /* unless the options say otherwise */

/* Strings are borrowed during hps_client_open only. NULL: not given. */
struct hps_client_options {
    const char *address;    /* "host:port" or "unix:PATH" */
    const char *token_file; /* first line: bearer token */
    bool tls;               /* implied by any of the next three */
    const char *tls_ca;     /* PEM; NULL: the system's roots */
    const char *tls_cert;   /* PEM, of this client */
    const char *tls_key;
    uint64_t connect_timeout_us; /* 0: 10 s */
    size_t reply_bytes_max;      /* per message; 0: 1 GiB */
    struct hps_loop *loop; /* shared with other clients of the thread, borrowed; NULL: create one */
};

struct hps_client;

/* Connects and waits until the server has answered a health check, whatever the result. So
 * UNAVAILABLE from here means "not reached", and from later calls it comes from the server.
 *
 * error   UNAVAILABLE: not reached; DEADLINE: reached, but no answer; INVALID: address, token or
 *         TLS options; NOT_FOUND, PERMISSION, IO: the token or TLS files; UNAUTHENTICATED:
 *         certificates; NO_MEMORY, EXHAUSTED
 */
hps_status hps_client_open(const struct hps_client_options *options, struct hps_client **out_client,
                           struct hps_error *err) HPS_MUST_CHECK;
void hps_client_close(struct hps_client *client); /* NULL has no effect */

/* Makes one unary call. Appends the reply to `reply`, which is unchanged on failure.
 *
 * unit    timeout_us from now; 0: none
 * error   the status of the server's gRPC code, with its text; INTERNAL: no reply, or more than
 *         one; NO_MEMORY
 */
hps_status hps_client_call(struct hps_client *client, const char *path, const void *request,
                           size_t request_size, uint64_t timeout_us, struct hps_buf *reply,
                           struct hps_error *err) HPS_MUST_CHECK;

/* Receives one message of a stream, borrowed. If it returns an error, it has set `err`; the call is
 * then cancelled and has that result. */
typedef hps_status (*hps_client_message_fn)(void *ctx, const uint8_t *data, size_t size,
                                            struct hps_error *err);

/* Server streaming. `stop` (may be NULL) is called at least every 100 ms. When it returns true, for
 * example after a signal, the call ends with CANCELLED. */
hps_status hps_client_stream(struct hps_client *client, const char *path, const void *request,
                             size_t request_size, uint64_t timeout_us, hps_client_message_fn fn,
                             void *ctx, bool (*stop)(void), struct hps_error *err) HPS_MUST_CHECK;

/* Calls grpc.health.v1.Health/Check for `service` ("": the whole server). NOT_FOUND: no such
 * service. */
hps_status hps_client_health(struct hps_client *client, const char *service, uint64_t timeout_us,
                             bool *out_serving, struct hps_error *err) HPS_MUST_CHECK;

struct hps_loop *hps_client_loop(struct hps_client *client);
struct hps_grpc_channel *hps_client_channel(struct hps_client *client);

/* The status for a gRPC code; UNKNOWN for codes that do not exist. Any thread. */
hps_status hps_client_status(int grpc_code);

#endif
