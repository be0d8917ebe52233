/* SPDX-License-Identifier: Apache-2.0
 *
 * A blocking gRPC client for tools: one connection on an event loop of its own, turned by the
 * calling thread inside each call. A client belongs to one thread at a time.
 *
 * Whoever wants many calls under way at once starts them on hps_client_channel and turns
 * hps_client_loop.
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

/* Strings are borrowed for hps_client_open only. NULL: not given. */
struct hps_client_options {
    const char *address;    /* "host:port" or "unix:PATH" */
    const char *token_file; /* first line: bearer token */
    bool tls;               /* implied by any of the next three */
    const char *tls_ca;     /* PEM; without it the system's roots */
    const char *tls_cert;   /* PEM, of this client */
    const char *tls_key;
    uint64_t connect_timeout_us; /* 0: 10 s */
    size_t reply_bytes_max;      /* per message; 0: 1 GiB */
    struct hps_loop *loop; /* shared with other clients of the thread, borrowed; NULL: its own */
};

struct hps_client;

/* Connect, and wait until the server has answered a health check (with whatever result), so that
 * UNAVAILABLE from here means "not reached" and later means what the server says.
 *
 * error   UNAVAILABLE: not reached; DEADLINE: reached, but no answer; INVALID: address; NOT_FOUND,
 *         PERMISSION, IO: the token or TLS files; UNAUTHENTICATED: certificates
 */
hps_status hps_client_open(const struct hps_client_options *options, struct hps_client **out_client,
                           struct hps_error *err) HPS_MUST_CHECK;
void hps_client_close(struct hps_client *client); /* NULL is legal */

/* One unary call. The reply is appended to `reply`, which is not touched on failure.
 *
 * unit    timeout_us from now, 0 = none
 * error   the status of the server's gRPC code, with its text; INTERNAL: no reply message came
 */
hps_status hps_client_call(struct hps_client *client, const char *path, const void *request,
                           size_t request_size, uint64_t timeout_us, struct hps_buf *reply,
                           struct hps_error *err) HPS_MUST_CHECK;

/* One message of a stream, borrowed. A status other than OK cancels the call and is its result; the
 * callee then sets `err`. */
typedef hps_status (*hps_client_message_fn)(void *ctx, const uint8_t *data, size_t size,
                                            struct hps_error *err);

/* Server streaming. `stop` (may be NULL) is asked after every turn: once it says true, of a signal
 * that was noted say, the call ends with CANCELLED. */
hps_status hps_client_stream(struct hps_client *client, const char *path, const void *request,
                             size_t request_size, uint64_t timeout_us, hps_client_message_fn fn,
                             void *ctx, bool (*stop)(void), struct hps_error *err) HPS_MUST_CHECK;

/* grpc.health.v1.Health/Check of `service` ("" is the server as a whole). NOT_FOUND: no such
 * service. */
hps_status hps_client_health(struct hps_client *client, const char *service, uint64_t timeout_us,
                             bool *out_serving, struct hps_error *err) HPS_MUST_CHECK;

struct hps_loop *hps_client_loop(struct hps_client *client);
struct hps_grpc_channel *hps_client_channel(struct hps_client *client);

/* Nearest status of a gRPC code; UNKNOWN for codes that do not exist. Any thread. */
hps_status hps_client_status(int grpc_code);

#endif
