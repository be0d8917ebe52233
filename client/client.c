/* SPDX-License-Identifier: Apache-2.0
 *
 * The blocking client: starts one call on the channel and turns the loop until the call has ended.
 * Runs on the calling thread.
 */
#include "client/client.h"

#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "client/credentials.h"
#include "client/wire.h"
#include "net/loop.h"
#include "net/tls.h"

enum {
    TURN_US = 100 * 1000,      /* longest time between two calls of `stop` */
    HEALTH_STATUS_SERVING = 1, /* of grpc.health.v1 */
};

#define CONNECT_TIMEOUT_US_DEFAULT (UINT64_C(10) * 1000 * 1000)
#define HEALTH_PATH                "/grpc.health.v1.Health/Check"

struct hps_client {
    struct hps_loop *loop;
    bool loop_owned;
    struct hps_tls *tls;
    struct hps_grpc_channel *channel;
};

/* One call in flight; it is on the stack of its caller. */
struct pending {
    hps_client_message_fn fn;
    void *ctx;
    struct hps_grpc_client_call *call; /* NULL once the call has ended */
    struct hps_error *err;
    hps_status refused; /* the error that fn returned */
    int grpc_code;
    bool done;
    char message[400];
};

static void pending_message(void *ctx, const uint8_t *data, size_t size)
{
    HPS_ASSERT(ctx != NULL && size <= HPS_CLIENT_REPLY_BYTES_MAX);
    struct pending *pending = ctx;

    if (pending->refused != HPS_OK) {
        return;
    }
    pending->refused = pending->fn(pending->ctx, data, size, pending->err);
    if (pending->refused != HPS_OK && pending->call != NULL) {
        hps_grpc_client_cancel(pending->call);
    }
}

static void pending_done(void *ctx, int grpc_code, const char *message)
{
    HPS_ASSERT(!((const struct pending *)ctx)->done); /* called once */
    struct pending *pending = ctx;
    const char *text = message == NULL ? "" : message;

    pending->grpc_code = grpc_code;
    pending->done = true;
    pending->call = NULL;
    memcpy(pending->message, text, strnlen(text, sizeof(pending->message) - 1));
}

static void pending_wait(struct hps_client *client, struct pending *pending, bool (*stop)(void))
{
    HPS_ASSERT(hps_loop_is_mine(client->loop));
    bool cancelled = false;

    while (!pending->done) {
        hps_loop_turn(client->loop, TURN_US);
        if (!cancelled && !pending->done && stop != NULL && stop()) {
            cancelled = true;
            hps_grpc_client_cancel(pending->call);
        }
    }
}

hps_status hps_client_stream(struct hps_client *client, const char *path, const void *request,
                             size_t request_size, uint64_t timeout_us, hps_client_message_fn fn,
                             void *ctx, bool (*stop)(void), struct hps_error *err)
{
    HPS_ASSERT(fn != NULL);
    static const struct hps_grpc_client_events events = {.on_message = pending_message,
                                                         .on_done = pending_done};
    struct pending pending = {.fn = fn, .ctx = ctx, .err = err};
    uint64_t deadline_us = timeout_us == 0 ? 0 : hps_clock_us() + timeout_us;
    hps_status status = hps_grpc_client_start(client->channel, path, request, request_size,
                                              deadline_us, &events, &pending, &pending.call);

    if (status != HPS_OK) {
        return hps_error_set(err, status, "%s: %s", path, hps_status_text(status));
    }
    pending_wait(client, &pending, stop);
    if (pending.refused != HPS_OK) {
        return pending.refused;
    }
    if (pending.grpc_code == 0) {
        return HPS_OK;
    }
    status = hps_status_of_grpc(pending.grpc_code);
    return hps_error_set(err, status, "%s",
                         pending.message[0] != '\0' ? pending.message : hps_status_text(status));
}

/* ---- unary ----------------------------------------------------------------------------------- */

struct unary {
    struct hps_buf *reply;
    size_t size_before;
    unsigned n_messages;
};

static hps_status unary_message(void *ctx, const uint8_t *data, size_t size, struct hps_error *err)
{
    struct unary *unary = ctx;

    if (unary->n_messages++ > 0) {
        return hps_error_set(err, HPS_INTERNAL, "the server sent two replies to one call");
    }
    hps_status status = hps_buf_append(unary->reply, data, size);
    if (status != HPS_OK) {
        return hps_error_set(err, status, "a reply of %zu bytes: %s", size,
                             hps_status_text(status));
    }
    return HPS_OK;
}

hps_status hps_client_call(struct hps_client *client, const char *path, const void *request,
                           size_t request_size, uint64_t timeout_us, struct hps_buf *reply,
                           struct hps_error *err)
{
    HPS_ASSERT(reply != NULL);
    struct unary unary = {reply, reply->size, 0};
    hps_status status = hps_client_stream(client, path, request, request_size, timeout_us,
                                          unary_message, &unary, NULL, err);

    if (status == HPS_OK && unary.n_messages == 0) {
        status = hps_error_set(err, HPS_INTERNAL, "%s: the server sent no reply", path);
    }
    if (status != HPS_OK) {
        reply->size = unary.size_before;
    }
    return status;
}

hps_status hps_client_health(struct hps_client *client, const char *service, uint64_t timeout_us,
                             bool *out_serving, struct hps_error *err)
{
    HPS_ASSERT(out_serving != NULL);
    struct hps_buf request, reply;
    struct hps_wire_field field;
    bool serving = false;

    hps_buf_init(&request, 4096);
    hps_buf_init(&reply, 4096);
    hps_status status = hps_wire_put_text(&request, 1, service);
    if (status != HPS_OK) {
        (void)hps_error_set(err, status, "health check: %s", hps_status_text(status));
        goto out;
    }
    status =
        hps_client_call(client, HEALTH_PATH, request.data, request.size, timeout_us, &reply, err);
    if (status != HPS_OK) {
        goto out;
    }
    struct hps_wire_reader reader = {reply.data, reply.size, 0};
    while (hps_wire_next(&reader, &field)) {
        serving = field.number == 1 && field.value == HEALTH_STATUS_SERVING;
    }
    *out_serving = serving;
out:
    hps_buf_fini(&reply);
    hps_buf_fini(&request);
    return status;
}

/* ---- open ------------------------------------------------------------------------------------ */

/* Makes "cannot reach ADDRESS: why" of `err`, which may contain the address already. */
static void say_unreachable(const struct hps_client_options *options, struct hps_error *err)
{
    char why[sizeof(err->text)];
    if (err->status == HPS_INVALID) {
        return; /* the address is malformed, and the text says so */
    }
    const char *at = strstr(err->text, options->address);
    size_t size = strlen(options->address);

    at = at != NULL && strncmp(at + size, ": ", 2) == 0 ? at + size + 2 : err->text;
    (void)snprintf(why, sizeof(why), "%s", at);
    (void)hps_error_set(err, err->status, "cannot reach %s: %s", options->address, why);
}

/* Waits for any answer: only UNAVAILABLE and DEADLINE mean that no server answered. */
static hps_status reach(struct hps_client *client, const struct hps_client_options *options,
                        uint64_t timeout_us, struct hps_error *err)
{
    struct hps_error cause = {0};
    bool serving;
    hps_status status = hps_client_health(client, "", timeout_us, &serving, &cause);

    if (status != HPS_UNAVAILABLE && status != HPS_DEADLINE) {
        return HPS_OK;
    }
    if (status == HPS_DEADLINE) {
        return hps_error_set(err, status, "no answer from %s in time", options->address);
    }
    say_unreachable(options, &cause);
    return hps_error_set(err, HPS_UNAVAILABLE, "%s", cause.text);
}

hps_status hps_client_open(const struct hps_client_options *options, struct hps_client **out_client,
                           struct hps_error *err)
{
    HPS_ASSERT(options->address != NULL);
    char token[HPS_CLIENT_TOKEN_BYTES_MAX + 1] = "";
    const struct hps_client_tls tls = {.on = options->tls,
                                       .ca = options->tls_ca,
                                       .cert = options->tls_cert,
                                       .key = options->tls_key};
    uint64_t timeout_us =
        options->connect_timeout_us == 0 ? CONNECT_TIMEOUT_US_DEFAULT : options->connect_timeout_us;
    hps_status status = HPS_OK;
    struct hps_client *client = hps_calloc(1, sizeof(*client));

    if (client == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for a client");
    }
    if (options->token_file != NULL) {
        status = hps_client_token_read(options->token_file, token, err);
    }
    if (status == HPS_OK) {
        status = hps_client_tls_open(&tls, options->address, &client->tls, err);
    }
    if (status == HPS_OK && options->token_file != NULL && !options->plaintext &&
        client->tls == NULL) {
        status = hps_client_token_check(options->address, "--plaintext", err);
    }
    if (status != HPS_OK) {
        goto fail;
    }
    client->loop = options->loop;
    if (client->loop == NULL) {
        status = hps_loop_new(&client->loop, err);
        if (status != HPS_OK) {
            goto fail;
        }
        client->loop_owned = true;
    }
    struct hps_grpc_channel_options channel = {
        .address = options->address,
        .tls = client->tls,
        .bearer_token = token[0] == '\0' ? NULL : token,
        .reply_bytes_max =
            options->reply_bytes_max == 0 ? HPS_CLIENT_REPLY_BYTES_MAX : options->reply_bytes_max,
        .connect_timeout_us = timeout_us,
    };
    status = hps_grpc_channel_new(client->loop, &channel, &client->channel, err);
    if (status != HPS_OK) {
        say_unreachable(options, err);
        goto fail;
    }
    status = reach(client, options, timeout_us, err);
    if (status != HPS_OK) {
        goto fail;
    }
    *out_client = client;
    return HPS_OK;
fail:
    hps_client_close(client);
    return status;
}

void hps_client_close(struct hps_client *client)
{
    if (client == NULL) {
        return;
    }
    if (client->channel != NULL) {
        hps_grpc_channel_free(client->channel);
    }
    if (client->loop_owned) {
        hps_loop_free(client->loop);
    }
    hps_tls_unref(client->tls);
    hps_free(client);
}

struct hps_loop *hps_client_loop(struct hps_client *client)
{
    return client->loop;
}

struct hps_grpc_channel *hps_client_channel(struct hps_client *client)
{
    return client->channel;
}
