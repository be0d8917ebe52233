/* SPDX-License-Identifier: Apache-2.0
 *
 * Clients of the C library: opened and closed, and who drives their connections. Any thread.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/container.h"
#include "base/dtype.h"
#include "base/heap.h"
#include "client/credentials.h"
#include "client/hpsd_internal.h"
#include "net/tls.h"

enum {
    TURN_US = 60 * 1000 * 1000,
    STALE_US = 1000,            /* the server may have closed a connection that was idle longer */
    IDLE_US = 10 * 1000 * 1000, /* between turns without calls; servers wait longer for a PING */
};

#define TIMEOUT_US_DEFAULT (UINT64_C(5) * 1000 * 1000)
#define REPLY_BYTES_MAX    ((size_t)1 << 30)
#define HEALTH_PATH        "/grpc.health.v1.Health/Check"

/* ---- errors and types ------------------------------------------------------------------------ */

enum hpsd_status hpsd_error_take(struct hpsd_error *error, const struct hps_error *err)
{
    enum hpsd_status code = (enum hpsd_status)hps_status_grpc_code(err->status);

    if (error != NULL) {
        error->status = code;
        (void)snprintf(error->text, sizeof(error->text), "%s", err->text);
    }
    return code;
}

const char *hpsd_status_text(enum hpsd_status status)
{
    return hps_status_text(hps_status_of_grpc((int)status));
}

size_t hpsd_row_bytes(enum hpsd_dtype dtype, uint32_t dim)
{
    return hps_dtype_is_stored((unsigned)dtype)
               ? (size_t)hps_dtype_row_bytes((enum hps_dtype)dtype, dim)
               : 0;
}

void hpsd_free(void *memory)
{
    hps_free(memory);
}

/* ---- who drives ------------------------------------------------------------------------------ */

static bool is_own_thread(const struct hpsd_client *client)
{
    return pthread_equal(client->worker.thread, pthread_self()) != 0;
}

/* Makes the driver look at the queue, or wakes the thread to drive. The lock is held. */
static void wake(struct hpsd_client *client)
{
    hps_lock_assert_held(&client->lock);
    if (client->driver == HPSD_DRIVER_NONE) {
        hps_cond_signal(&client->wake);
    } else if (!client->nudged) {
        client->nudged = true;
        hps_loop_post(client->loop, &client->nudge);
    }
}

static void on_nudge(struct hps_task *task)
{
    struct hpsd_client *client = HPS_CONTAINER_OF(task, struct hpsd_client, nudge);

    hps_lock_acquire(&client->lock);
    client->nudged = false;
    hps_lock_release(&client->lock);
}

/* The lock is held. */
static void enqueue(struct hpsd_client *client, struct hpsd_call *call)
{
    if (call->queued) {
        return;
    }
    call->queued = true;
    call->queue_next = NULL;
    *(client->queue == NULL ? &client->queue : &client->queue_end->queue_next) = call;
    client->queue_end = call;
    wake(client);
}

/* Starts or cancels the calls in the queue. The lock is held, and released during each start. */
static void run_queue(struct hpsd_client *client)
{
    struct hpsd_call *call;

    while ((call = client->queue) != NULL) {
        client->queue = call->queue_next;
        call->queued = false;
        bool cancelled = call->cancelled;
        hps_lock_release(&client->lock);
        if (cancelled) {
            hpsd_call_abort(call);
        } else {
            hpsd_call_start(call);
        }
        hps_lock_acquire(&client->lock);
    }
}

/* Before calls start on connections that were not served for some time: sees which of them the
 * server has closed, and answers its PINGs. The lock is held, and released during the turn. Driver.
 */
static void catch_up(struct hpsd_client *client)
{
    if (hps_clock_us() - client->driven_us > STALE_US) {
        hps_lock_release(&client->lock);
        hps_loop_turn(client->loop, 0);
        hps_lock_acquire(&client->lock);
    }
}

static void *run(void *arg)
{
    struct hpsd_client *client = arg;

    hps_lock_acquire(&client->lock);
    while (!client->closing || client->n_calls > 0) {
        uint64_t now_us = hps_clock_us();
        bool idle = client->n_calls == 0 && now_us - client->driven_us < IDLE_US;
        if (client->driver != HPSD_DRIVER_NONE || idle) {
            (void)hps_cond_wait_until(&client->wake, &client->lock, now_us + IDLE_US);
            continue;
        }
        client->driver = HPSD_DRIVER_THREAD;
        catch_up(client);
        while (client->n_calls > 0) {
            run_queue(client);
            uint64_t wait_us = client->n_calls > 0 ? TURN_US : 0; /* 0: only to send queued bytes */
            hps_lock_release(&client->lock);
            hps_loop_turn(client->loop, wait_us);
            hps_lock_acquire(&client->lock);
        }
        client->driver = HPSD_DRIVER_NONE;
        client->driven_us = hps_clock_us();
    }
    hps_lock_release(&client->lock);
    return NULL;
}

/* The lock is held. */
static void add_call(struct hpsd_client *client, struct hpsd_call *call)
{
    call->id = ++client->last_id;
    call->next = client->calls;
    if (call->next != NULL) {
        call->next->prev = call;
    }
    client->calls = call;
    client->n_calls++;
}

hps_status hpsd_client_submit(struct hpsd_client *client, struct hpsd_call *call, uint64_t *out_id)
{
    bool own = is_own_thread(client);

    hps_lock_acquire(&client->lock);
    if (client->closing) {
        hps_lock_release(&client->lock);
        return HPS_CLOSED;
    }
    add_call(client, call);
    if (out_id != NULL) {
        *out_id = call->id;
    }
    if (!own) {
        enqueue(client, call);
    }
    hps_lock_release(&client->lock);
    if (own) { /* within a callback: the thread drives */
        hpsd_call_start(call);
    }
    return HPS_OK;
}

/* A call that a thread waits for; the waiter is on the stack of this thread. */
static void on_waited_end(struct hpsd_call *call)
{
    struct hpsd_client *client = call->client;

    hps_lock_acquire(&client->lock);
    call->ended = true;
    if (call->waiter != NULL) {
        hps_cond_signal(call->waiter);
    }
    hps_lock_release(&client->lock);
}

/* Turns the loop until the only call has ended, or another one was submitted. The lock is held,
 * and released during each turn. */
static void drive(struct hpsd_client *client, struct hpsd_call *call)
{
    client->driver = HPSD_DRIVER_CALLER;
    catch_up(client);
    hps_lock_release(&client->lock);
    hpsd_call_start(call);
    hps_lock_acquire(&client->lock);
    while (!call->ended && client->queue == NULL) {
        hps_lock_release(&client->lock);
        hps_loop_turn(client->loop, TURN_US);
        hps_lock_acquire(&client->lock);
    }
    client->driver = HPSD_DRIVER_NONE;
    client->driven_us = hps_clock_us();
    if (client->n_calls > 0) {
        hps_cond_signal(&client->wake);
    }
}

void hpsd_client_wait(struct hpsd_client *client, struct hpsd_call *call)
{
    struct hps_cond ended;

    call->on_end = on_waited_end;
    hps_lock_acquire(&client->lock);
    bool idle = client->driver == HPSD_DRIVER_NONE && client->n_calls == 0;
    add_call(client, call);
    if (idle) {
        drive(client, call);
    } else {
        enqueue(client, call);
    }
    if (!call->ended) {
        hps_cond_init(&ended);
        call->waiter = &ended;
        while (!call->ended) {
            hps_cond_wait(&ended, &client->lock);
        }
        hps_cond_fini(&ended);
    }
    hps_lock_release(&client->lock);
}

void hpsd_cancel(struct hpsd_client *client, uint64_t id)
{
    if (client->pid != getpid()) {
        return;
    }
    hps_lock_acquire(&client->lock);
    struct hpsd_call *call = client->calls;
    while (call != NULL && call->id != id) {
        call = call->next;
    }
    if (call != NULL && !call->cancelled) {
        call->cancelled = true;
        enqueue(client, call);
    }
    hps_lock_release(&client->lock);
}

/* ---- open and close -------------------------------------------------------------------------- */

enum hpsd_status hpsd_client_check(const struct hpsd_client *client, bool waits,
                                   struct hpsd_error *error)
{
    struct hps_error err;

    if (client->pid != getpid()) {
        (void)hps_error_set(&err, HPS_PRECONDITION,
                            "the client belongs to the parent of this process; open a client after "
                            "fork");
        return hpsd_error_take(error, &err);
    }
    if (waits && is_own_thread(client)) {
        (void)hps_error_set(&err, HPS_PRECONDITION,
                            "a callback must not wait for a reply; use hpsd_lookup_start");
        return hpsd_error_take(error, &err);
    }
    return HPSD_OK;
}

static hps_status read_token(struct hpsd_client *client, const struct hpsd_options *options,
                             struct hps_error *err)
{
    char token[HPS_CLIENT_TOKEN_BYTES_MAX + 1];
    const char *text = options->token;

    if (options->token_file != NULL) {
        hps_status status = hps_client_token_read(options->token_file, token, err);
        if (status != HPS_OK) {
            return status == HPS_IO ? HPS_INVALID : status; /* the text says why */
        }
        text = token;
    }
    if (text == NULL) {
        return HPS_OK;
    }
    if (!hps_client_token_is_plain(text)) {
        return hps_error_set(err, HPS_INVALID,
                             "token: expected 1 to %d printable characters without spaces",
                             HPS_CLIENT_TOKEN_BYTES_MAX - 1);
    }
    client->token = hps_strdup(text);
    return client->token != NULL ? HPS_OK : hps_error_set(err, HPS_NO_MEMORY, "no memory");
}

static void client_free(struct hpsd_client *client)
{
    hpsd_servers_close(client);
    hps_loop_free(client->loop);
    hps_cond_fini(&client->wake);
    hps_lock_fini(&client->lock);
    hps_free(client->token);
    hps_free(client);
}

static hps_status client_open(struct hpsd_client *client, const struct hpsd_options *options,
                              struct hps_error *err)
{
    hps_status status = HPS_OK;

    client->pid = getpid();
    client->nudge.run = on_nudge;
    client->timeout_us = options->timeout_us == 0 ? TIMEOUT_US_DEFAULT : options->timeout_us;
    client->reply_bytes_max =
        options->reply_bytes_max == 0 ? REPLY_BYTES_MAX : options->reply_bytes_max;
    client->single_attempt = options->single_attempt;
    client->n_links = options->connections == 0 ? 1 : options->connections;
    client->random.state =
        hps_mix64(hps_clock_us() ^ (uint64_t)(uintptr_t)client) ^ (uint64_t)client->pid;
    client->driven_us = hps_clock_us();
    if (options->addresses == NULL) {
        return hps_error_set(err, HPS_INVALID, "addresses: got NULL");
    }
    status = read_token(client, options, err);
    if (status == HPS_OK) {
        status = hpsd_servers_open(client, options, err);
    }
    if (status == HPS_OK) {
        status = hps_loop_new(&client->loop, err);
    }
    if (status == HPS_OK) {
        status = hps_worker_start(&client->worker, "hpsd-client", 0, run, client);
        if (status != HPS_OK) {
            (void)hps_error_set(err, status, "the thread of the client cannot be started");
        }
    }
    return status;
}

enum hpsd_status hpsd_open(const struct hpsd_options *options, struct hpsd_client **out_client,
                           struct hpsd_error *error)
{
    struct hps_error err = {0};
    struct hpsd_client *client = hps_calloc(1, sizeof(*client));

    if (client == NULL) {
        (void)hps_error_set(&err, HPS_NO_MEMORY, "no memory for a client");
        return hpsd_error_take(error, &err);
    }
    hps_lock_init(&client->lock, HPS_LOCK_CLIENT);
    hps_cond_init(&client->wake);
    hps_status status = client_open(client, options, &err);
    if (status != HPS_OK) {
        err.status = status;
        client_free(client);
        return hpsd_error_take(error, &err);
    }
    *out_client = client;
    return HPSD_OK;
}

void hpsd_close(struct hpsd_client *client)
{
    if (client == NULL || client->pid != getpid()) {
        return;
    }
    HPS_ASSERT(!is_own_thread(client)); /* it would wait for itself */
    hps_lock_acquire(&client->lock);
    client->closing = true;
    for (struct hpsd_call *call = client->calls; call != NULL; call = call->next) {
        call->cancelled = true;
        enqueue(client, call);
    }
    hps_cond_signal(&client->wake);
    hps_lock_release(&client->lock);
    hps_worker_join(&client->worker);
    client_free(client);
}

/* ---- connecting ------------------------------------------------------------------------------ */

/* Health checks on all connections; on the stack of the thread that waits for them. */
struct connecting {
    struct hps_cond ended;
    size_t n_left; /* lock of the client */
    size_t n_answered;
    struct hpsd_error error; /* of the first that failed */
};

static void on_checked(struct hpsd_call *call)
{
    struct connecting *connecting = call->waiter;
    struct hpsd_client *client = call->client;
    enum hpsd_status status = call->failed ? call->error.status : HPSD_OK;

    hps_lock_acquire(&client->lock);
    if (status != HPSD_UNAVAILABLE && status != HPSD_DEADLINE_EXCEEDED &&
        status != HPSD_CANCELLED) {
        connecting->n_answered++;
    } else if (connecting->error.status == HPSD_OK) {
        connecting->error = call->error;
    }
    if (--connecting->n_left == 0) {
        hps_cond_signal(&connecting->ended);
    }
    hps_lock_release(&client->lock);
    hpsd_call_free(call);
}

static hps_status check_link(struct hpsd_client *client, struct hpsd_link *link,
                             uint64_t timeout_us, struct connecting *connecting)
{
    struct hpsd_call *call = hpsd_call_new(client, HEALTH_PATH, timeout_us, 0);

    if (call == NULL) {
        return HPS_NO_MEMORY;
    }
    call->pinned = link;
    call->waiter = connecting;
    call->on_end = on_checked;
    hps_lock_acquire(&client->lock);
    connecting->n_left++;
    hps_lock_release(&client->lock);
    hps_status status = hpsd_client_submit(client, call, NULL);
    if (status != HPS_OK) {
        hps_lock_acquire(&client->lock);
        connecting->n_left--;
        hps_lock_release(&client->lock);
        hpsd_call_free(call);
    }
    return status;
}

enum hpsd_status hpsd_connect(struct hpsd_client *client, uint64_t timeout_us,
                              struct hpsd_error *error)
{
    struct connecting connecting = {0};
    struct hps_error err;
    enum hpsd_status code = hpsd_client_check(client, true, error);
    hps_status status = HPS_OK;

    if (code != HPSD_OK) {
        return code;
    }
    hps_cond_init(&connecting.ended);
    for (uint32_t i = 0; i < client->n_servers && status == HPS_OK; i++) {
        for (uint32_t j = 0; j < client->n_links && status == HPS_OK; j++) {
            status = check_link(client, &client->servers[i].links[j], timeout_us, &connecting);
        }
    }
    hps_lock_acquire(&client->lock);
    while (connecting.n_left > 0) {
        hps_cond_wait(&connecting.ended, &client->lock);
    }
    hps_lock_release(&client->lock);
    hps_cond_fini(&connecting.ended);
    if (status != HPS_OK) {
        (void)hps_error_set(&err, status, "%s", hps_status_text(status));
        return hpsd_error_take(error, &err);
    }
    if (connecting.n_answered > 0) {
        return HPSD_OK;
    }
    (void)hps_error_set(&err, hps_status_of_grpc((int)connecting.error.status), "cannot reach %s",
                        connecting.error.text);
    return hpsd_error_take(error, &err);
}
