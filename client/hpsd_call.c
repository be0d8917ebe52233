/* SPDX-License-Identifier: Apache-2.0
 *
 * A call: attempts at servers until one has answered, the failure allows no further attempt, or the
 * deadline has passed. All calls only read, so they can be repeated. Driver.
 */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "client/hpsd_internal.h"

enum {
    PAUSE_US_MIN = 20 * 1000, /* between two rounds without a reply */
    PAUSE_US_MAX = 500 * 1000,
    LEFT_US_MIN = 10 * 1000, /* for a pause and an attempt */
    DOUBLINGS_MAX = 10,
    MESSAGE_BYTES_MAX = 64 << 20, /* of a reply that is no lookup */
};

static void attempt(struct hpsd_call *call);

static void end(struct hpsd_call *call)
{
    struct hpsd_client *client = call->client;

    HPS_ASSERT(call->grpc == NULL);
    hps_timer_stop(&call->timer);
    hps_lock_acquire(&client->lock);
    if (call->prev != NULL) {
        call->prev->next = call->next;
    } else {
        client->calls = call->next;
    }
    if (call->next != NULL) {
        call->next->prev = call->prev;
    }
    client->n_calls--;
    if (call->queued) {
        struct hpsd_call *before = NULL;
        for (struct hpsd_call *at = client->queue; at != call; at = at->queue_next) {
            before = at;
        }
        *(before == NULL ? &client->queue : &before->queue_next) = call->queue_next;
        client->queue_end = client->queue_end == call ? before : client->queue_end;
    }
    hps_lock_release(&client->lock);
    call->on_end(call);
}

static void on_timer(void *ctx)
{
    struct hpsd_call *call = ctx;

    if (call->failed) {
        end(call);
    } else {
        attempt(call);
    }
}

/* The call has failed. Its end comes later in this turn, so that it is never within a function that
 * starts calls. */
static void fail(struct hpsd_call *call, const struct hps_error *err)
{
    (void)hpsd_error_take(&call->error, err);
    call->failed = true;
    hps_timer_set(call->client->loop, &call->timer, hps_clock_us());
}

/* ---- failures -------------------------------------------------------------------------------- */

static uint64_t left_us(const struct hpsd_call *call)
{
    uint64_t now_us = hps_clock_us();

    return now_us < call->deadline_us ? call->deadline_us - now_us : 0;
}

/* "ADDRESS: why"; texts of the network may contain the address already. */
static void say(const struct hpsd_server *server, const char *message, char *out, size_t size)
{
    const char *at = strstr(message, server->address);
    size_t n = strlen(server->address);
    const char *why = at != NULL && strncmp(at + n, ": ", 2) == 0 ? at + n + 2 : message;

    (void)snprintf(out, size, "%.108s: %.120s", server->address, why);
}

static bool round_is_over(const struct hpsd_call *call)
{
    uint64_t all = UINT64_MAX >> (64 - call->client->n_servers);

    return (call->tried & all) == all;
}

/* Counts a failed attempt. True: another one may follow. */
static bool may_retry(struct hpsd_call *call, struct hpsd_server *server, int code,
                      const char *message)
{
    struct hpsd_client *client = call->client;

    if (code == HPSD_UNAVAILABLE || code == HPSD_ABORTED) {
        say(server, message, call->refusal, sizeof(call->refusal));
        call->refusal_code = code;
    } else if (code != HPSD_DEADLINE_EXCEEDED) {
        return false;
    }
    if (code != HPSD_ABORTED) { /* after ABORTED the server is healthy */
        hpsd_server_failed(server);
    }
    call->tried |= UINT64_C(1) << (server - client->servers);
    return call->pinned == NULL && !client->single_attempt &&
           left_us(call) > (round_is_over(call) ? LEFT_US_MIN : 0);
}

/* 0 while some servers were not tried. At most half of the time left, so that there is time for the
 * attempt. */
static uint64_t pause_us(struct hpsd_call *call)
{
    struct hpsd_client *client = call->client;
    unsigned n = call->n_rounds < DOUBLINGS_MAX ? call->n_rounds : DOUBLINGS_MAX;
    uint64_t pause = (uint64_t)PAUSE_US_MIN << n;
    uint64_t left = left_us(call);

    if (!round_is_over(call)) {
        return 0;
    }
    call->tried = 0;
    call->n_rounds++;
    pause = hpsd_client_jitter(client, pause < PAUSE_US_MAX ? pause : PAUSE_US_MAX);
    return pause < left / 2 ? pause : left / 2;
}

/* The error of the call. If the deadline passed at a server that may be unreachable (not `proven`),
 * the reason of the failure before it says more. So does ABORTED: the last attempt may have had
 * little time. */
static void set_verdict(struct hpsd_call *call, const struct hpsd_server *server, bool proven,
                        int code, const char *message, struct hps_error *err)
{
    double timeout_s = (double)call->timeout_us / 1e6;
    bool late = code == HPSD_DEADLINE_EXCEEDED;
    bool before =
        late && call->refusal[0] != '\0' && (!proven || call->refusal_code == HPSD_ABORTED);

    if (code == HPSD_UNAVAILABLE || code == HPSD_ABORTED || before) {
        hps_status status = hps_status_of_grpc(call->refusal_code);
        (void)hps_error_set(err, status, "%s", call->refusal);
        if (call->n_attempts > 1) {
            (void)hps_error_set(err, status, "%s (the last of %u attempts within %g s)",
                                call->refusal, call->n_attempts, timeout_s);
        }
    } else if (late) {
        (void)hps_error_set(err, HPS_DEADLINE, "%s: no reply within %g s", server->address,
                            timeout_s);
    } else {
        hps_status status = hps_status_of_grpc(code);
        (void)hps_error_set(err, status, "%s",
                            message[0] != '\0' ? message : hps_status_text(status));
    }
}

static void attempt_failed(struct hpsd_call *call, struct hpsd_server *server, int code,
                           const char *message)
{
    bool proven = server->proven; /* before this failure */
    struct hps_error err;

    if (may_retry(call, server, code, message)) {
        hps_timer_set(call->client->loop, &call->timer, hps_clock_us() + pause_us(call));
        return;
    }
    set_verdict(call, server, proven, code, message, &err);
    fail(call, &err);
}

/* ---- replies --------------------------------------------------------------------------------- */

/* The reply cannot be used. Ends the call. */
static void refuse(struct hpsd_call *call)
{
    hps_grpc_client_cancel(call->grpc);
}

static void on_begin(void *ctx, size_t size)
{
    struct hpsd_call *call = ctx;

    if (hps_intake_begin(&call->intake, size, &call->refused) != HPS_OK) {
        refuse(call);
    }
}

static void on_piece(void *ctx, const uint8_t *data, size_t size)
{
    struct hpsd_call *call = ctx;

    if (hps_intake_feed(&call->intake, data, size, &call->refused) != HPS_OK) {
        refuse(call);
    }
}

static uint8_t *on_room(void *ctx, size_t size, size_t *out_room)
{
    const struct hpsd_call *call = ctx;

    return hps_intake_room(&call->intake, size, out_room);
}

static void on_message(void *ctx, const uint8_t *data, size_t size)
{
    struct hpsd_call *call = ctx;

    hps_status status =
        call->n_messages++ > 0 ? HPS_DATA_LOSS : hps_buf_append(&call->message, data, size);
    if (status != HPS_OK) {
        (void)hps_error_set(&call->refused, status, "a reply of %zu bytes: %s", size,
                            hps_status_text(status));
        refuse(call);
    }
}

static hps_status complete(struct hpsd_call *call, struct hps_error *err)
{
    if (call->intake.results != NULL) {
        return hps_intake_end(&call->intake, &call->reply, err);
    }
    return call->n_messages == 1
               ? HPS_OK
               : hps_error_set(err, HPS_INTERNAL, "%s: the server sent no reply", call->path);
}

static void on_done(void *ctx, int grpc_code, const char *message)
{
    struct hpsd_call *call = ctx;
    struct hpsd_server *server = call->link->server;
    struct hps_error err = {0};

    server->n_attempts--;
    call->grpc = NULL;
    if (call->refused.status != HPS_OK) {
        fail(call, &call->refused);
        return;
    }
    if (call->failed) { /* by hpsd_call_abort */
        return;
    }
    if (grpc_code == HPSD_OK) {
        hpsd_server_worked(server);
        if (complete(call, &err) != HPS_OK) {
            fail(call, &err);
        } else {
            end(call);
        }
        return;
    }
    call->link->suspect = call->link->suspect || grpc_code == HPSD_DEADLINE_EXCEEDED;
    if (grpc_code == HPSD_CANCELLED && call->link->channel == NULL) {
        grpc_code = HPSD_UNAVAILABLE; /* the connection was given up */
        message = "the connection does not answer";
    }
    attempt_failed(call, server, grpc_code, message == NULL ? "" : message);
}

/* ---- attempts -------------------------------------------------------------------------------- */

static const struct hps_grpc_client_events lookup_events = {
    .on_begin = on_begin,
    .on_piece = on_piece,
    .on_room = on_room,
    .on_done = on_done,
};
static const struct hps_grpc_client_events unary_events = {
    .on_message = on_message,
    .on_done = on_done,
};

static void attempt(struct hpsd_call *call)
{
    struct hpsd_client *client = call->client;
    struct hpsd_server *server =
        call->pinned != NULL ? call->pinned->server : hpsd_servers_pick(client, call->tried);
    bool is_lookup = call->intake.results != NULL;
    struct hps_error err;

    call->link = call->pinned != NULL ? call->pinned : hpsd_server_link(server);
    call->n_attempts++;
    if (call->n_attempts > 1 && is_lookup) {
        hps_intake_reset(&call->intake);
    }
    call->n_messages = 0;
    hps_buf_clear(&call->message);
    uint64_t left = left_us(call);
    uint64_t limit_us =
        call->pinned != NULL ? left : hpsd_server_limit(server, left, call->n_rounds);
    uint64_t deadline_us = limit_us < left ? hps_clock_us() + limit_us : call->deadline_us;
    hps_status status = hpsd_link_open(call->link, &err);
    if (status == HPS_OK) {
        status = hps_grpc_client_start(
            call->link->channel, call->path, call->request.data, call->request.size, deadline_us,
            is_lookup ? &lookup_events : &unary_events, call, &call->grpc);
        if (status != HPS_OK) {
            (void)hps_error_set(&err, status, "%s", hps_status_text(status));
        }
    }
    if (status == HPS_OK) {
        server->n_attempts++;
    } else {
        attempt_failed(call, server, hps_status_grpc_code(status), err.text);
    }
}

void hpsd_call_start(struct hpsd_call *call)
{
    HPS_ASSERT(!call->started);
    call->started = true;
    attempt(call);
}

void hpsd_call_abort(struct hpsd_call *call)
{
    struct hps_error err;

    if (call->failed) {
        return; /* its end follows */
    }
    (void)hps_error_set(&err, HPS_CANCELLED, "cancelled by the caller");
    (void)hpsd_error_take(&call->error, &err);
    call->failed = true;
    if (call->grpc != NULL) {
        hps_grpc_client_cancel(call->grpc);
    }
    end(call);
}

/* ---- life ------------------------------------------------------------------------------------ */

struct hpsd_call *hpsd_call_new(struct hpsd_client *client, const char *path, uint64_t timeout_us,
                                size_t n_extra)
{
    struct hpsd_call *call = hps_alloc(sizeof(*call) + n_extra);

    if (call == NULL) {
        return NULL;
    }
    *call = (struct hpsd_call){
        .client = client,
        .path = path,
        .timeout_us = timeout_us == 0 ? client->timeout_us : timeout_us,
    };
    uint64_t now_us = hps_clock_us();
    call->deadline_us =
        call->timeout_us < UINT64_MAX - now_us ? now_us + call->timeout_us : UINT64_MAX;
    hps_timer_init(&call->timer, on_timer, call);
    hps_buf_init(&call->request, UINT32_MAX);
    hps_buf_init(&call->message, MESSAGE_BYTES_MAX);
    return call;
}

void hpsd_call_free(struct hpsd_call *call)
{
    hps_intake_fini(&call->intake);
    hps_buf_fini(&call->request);
    hps_buf_fini(&call->message);
    hps_free(call);
}
