/* SPDX-License-Identifier: Apache-2.0
 *
 * WaitForUpdates, from the message to the answer: see server/model/wait_service.h.
 */
#include "server/model/wait_service.h"

#include <inttypes.h>
#include <string.h>

#include "base/arena.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/container.h"
#include "base/heap.h"
#include "base/rows/update_record.h"
#include "server/access/access.h"
#include "server/lookup/known.h"
#include "server/model/wait.h"
#include "server/rpc/message.h"

enum {
    ARENA_BYTES = 1024,
    ARENA_BYTES_MAX = 512 * 1024, /* held while the call waits */
    WAIT_MS_MAX = 3600 * 1000
};

struct hps_wait_service {
    struct hps_model_service_parts parts;
    struct hps_grpc_service grpc;
    struct hps_grpc_method method;
};

/* One call. It is freed by its answer, or when it closes while it waits. */
struct waiting {
    struct hps_task task; /* to a worker, and back with the answer */
    struct hps_update_waiter waiter;
    struct hps_timer timer; /* max_wait_ms */
    const struct hps_wait_service *service;
    struct hps_grpc_call *call; /* with a reference */
    struct hps_arena *arena;
    const Hps__V1__WaitForUpdatesRequest *request; /* in the arena */
    int64_t version;
    struct hps_wait wait;
    struct hps_error error; /* status OK: `wait` has the answer */
};

/* ---- the answer; the loop thread of the call ------------------------------------------------- */

static void waiting_free(struct waiting *waiting)
{
    hps_timer_stop(&waiting->timer);
    hps_grpc_call_unref(waiting->call);
    hps_arena_free(waiting->arena);
    hps_free(waiting);
}

static void answer(struct waiting *waiting)
{
    struct hps_wait *wait = &waiting->wait;
    Hps__V1__WaitForUpdatesResponse reply = HPS__V1__WAIT_FOR_UPDATES_RESPONSE__INIT;
    HPS_ASSERT(hps_loop_is_mine(hps_grpc_call_loop(waiting->call)));
    hps_grpc_call_set_user(waiting->call, NULL);
    if (waiting->error.status != HPS_OK) {
        hps_grpc_call_fail(waiting->call, &waiting->error);
    } else {
        reply.outcome = wait->outcome;
        reply.text = wait->why.text;
        reply.version = waiting->version;
        reply.topic = wait->topic;
        reply.partition = wait->partition;
        reply.offset = wait->offset;
        reply.mark = &wait->mark;
        reply.key_bytes = wait->key_bytes;
        hps_message_send(waiting->call, &reply.base);
        hps_grpc_call_finish(waiting->call, 0, NULL);
    }
    waiting_free(waiting);
}

static void on_answer(struct hps_task *task)
{
    answer(HPS_CONTAINER_OF(task, struct waiting, task));
}

static void on_time(void *ctx)
{
    struct waiting *waiting = ctx;
    if (hps_updater_wait_end(waiting->service->parts.updater, &waiting->waiter)) {
        answer(waiting);
    }
}

static void on_close(struct hps_grpc_call *call)
{
    struct waiting *waiting = hps_grpc_call_user(call);
    if (waiting == NULL) {
        return; /* answered */
    }
    hps_timer_stop(&waiting->timer);
    if (hps_updater_wait_end(waiting->service->parts.updater, &waiting->waiter)) {
        waiting_free(waiting);
    }
}

/* ---- waiting --------------------------------------------------------------------------------- */

static void post_answer(struct waiting *waiting)
{
    waiting->task.run = on_answer;
    hps_loop_post(hps_grpc_call_loop(waiting->call), &waiting->task);
}

/* Thread `update`, or a worker as it begins. */
static enum hps_update_look on_look(struct hps_update_waiter *waiter,
                                    const struct hps_stream_view *view)
{
    struct waiting *waiting = HPS_CONTAINER_OF(waiter, struct waiting, waiter);
    return hps_wait_look(&waiting->wait, view, waiter->refreshed);
}

/* The same, or who ends the wait. */
static void on_done(struct hps_update_waiter *waiter, enum hps_update_end end)
{
    struct waiting *waiting = HPS_CONTAINER_OF(waiter, struct waiting, waiter);
    if (end == HPS_UPDATE_END_STOPS) {
        hps_ignore(hps_error_set(&waiting->error, HPS_UNAVAILABLE, "the server stops"));
    } else if (end == HPS_UPDATE_END_VERSION) {
        hps_wait_end(&waiting->wait, waiting->version);
    }
    post_answer(waiting);
}

/* False: the topic is of a table that the version has not, which is the answer. */
static bool has_table(struct waiting *waiting, const struct hps_version *version, const char *topic)
{
    struct hps_update_topic of;
    if (topic[0] == '\0' || !hps_update_topic_parse(topic, &of) || of.table[0] == '\0' ||
        hps_version_table(version, of.table, strlen(of.table)) != UINT32_MAX) {
        return true;
    }
    hps_wait_no_table(&waiting->wait, version->number, topic, of.table);
    return false;
}

static hps_status begin(struct waiting *waiting)
{
    const struct hps_model_service_parts *parts = &waiting->service->parts;
    const Hps__V1__WaitForUpdatesRequest *request = waiting->request;
    struct hps_version *version;
    hps_status status = hps_models_pin(parts->models, request->model, strlen(request->model),
                                       request->version, &version, &waiting->error);
    if (status != HPS_OK) {
        if (status == HPS_NOT_FOUND && request->version == 0) {
            hps_known_models(parts->models, waiting->call, HPS_ROLE_LOOKUP, &waiting->error);
        }
        return status;
    }
    bool known = has_table(waiting, version, request->topic);
    for (size_t i = 0; i < request->n_records && known; i++) {
        known = has_table(waiting, version, request->records[i]->topic);
    }
    waiting->version = version->number;
    hps_version_unpin(version);
    if (!known) {
        post_answer(waiting);
        return HPS_OK;
    }
    status = hps_updater_wait(parts->updater, request->model, waiting->version, &waiting->waiter,
                              &waiting->error);
    if (status == HPS_CANCELLED) { /* max_wait_ms has passed, or it is closed */
        waiting->error.status = HPS_OK;
    }
    return status;
}

/* A worker. */
static void on_worker(struct hps_task *task)
{
    struct waiting *waiting = HPS_CONTAINER_OF(task, struct waiting, task);
    if (begin(waiting) != HPS_OK) {
        post_answer(waiting);
    }
}

/* What the message asks for, and whether the caller may.
 *
 * error   INVALID, PERMISSION; PRECONDITION: there is no source of updates
 */
static hps_status read_request(struct waiting *waiting, const uint8_t *data, size_t size)
{
    struct hps_error *err = &waiting->error;
    ProtobufCMessage *message = NULL;
    hps_status status = hps_message_read(&hps__v1__wait_for_updates_request__descriptor,
                                         waiting->arena, data, size, &message);
    if (status != HPS_OK) {
        return hps_error_set(err, status,
                             status == HPS_INVALID ? "request: malformed message"
                                                   : "request: too many records; ask for less at "
                                                     "a time");
    }
    waiting->request = (const Hps__V1__WaitForUpdatesRequest *)message;
    const char *model = waiting->request->model;
    if (model[0] == '\0') {
        return hps_error_set(err, HPS_INVALID, "model: empty");
    }
    status = hps_access_check(waiting->call, HPS_ROLE_LOOKUP, model, strlen(model), err);
    if (status == HPS_OK) {
        status = hps_wait_check(waiting->request, err);
    }
    if (status == HPS_OK && waiting->service->parts.updater == NULL) {
        status = hps_error_set(err, HPS_PRECONDITION,
                               "update_source.type is null: no updates are taken");
    }
    return status;
}

static hps_status start(struct waiting *waiting)
{
    const struct hps_access_grant *grant = hps_access_grant_of(waiting->call);
    uint64_t wait_ms = waiting->request->max_wait_ms;
    wait_ms = wait_ms == 0 || wait_ms > WAIT_MS_MAX ? WAIT_MS_MAX : wait_ms;
    waiting->waiter.look = on_look;
    waiting->waiter.done = on_done;
    waiting->waiter.who = grant != NULL ? hps_access_grant_account(grant) : NULL;
    hps_wait_init(&waiting->wait, waiting->request);
    hps_status status = hps_pool_post(waiting->service->parts.workers, &waiting->task);
    if (status != HPS_OK) {
        return hps_error_set(&waiting->error, status,
                             "call rejected: too many others wait for a worker; retry later");
    }
    hps_timer_set(hps_grpc_call_loop(waiting->call), &waiting->timer,
                  hps_clock_us() + wait_ms * 1000);
    return HPS_OK;
}

static void on_message(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    struct waiting *waiting = hps_calloc(1, sizeof(*waiting));
    struct hps_arena *arena = hps_arena_new(ARENA_BYTES, ARENA_BYTES_MAX);
    if (waiting == NULL || arena == NULL) {
        hps_free(waiting);
        hps_arena_free(arena);
        hps_grpc_call_finish(call, hps_status_grpc_code(HPS_NO_MEMORY), "no memory for the call");
        return;
    }
    hps_grpc_call_ref(call);
    waiting->service = hps_grpc_call_ctx(call);
    waiting->call = call;
    waiting->arena = arena;
    waiting->task.run = on_worker;
    hps_timer_init(&waiting->timer, on_time, waiting);
    hps_grpc_call_set_user(call, waiting);
    hps_status status = hps_access_take_call(call, &waiting->error);
    if (status == HPS_OK) {
        status = read_request(waiting, data, size);
    }
    if (status == HPS_OK) {
        status = start(waiting);
    }
    if (status != HPS_OK) {
        answer(waiting);
    }
}

/* ---- the service ----------------------------------------------------------------------------- */

struct hps_wait_service *hps_wait_service_new(const struct hps_model_service_parts *parts)
{
    HPS_ASSERT(parts->models != NULL && parts->workers != NULL);
    struct hps_wait_service *service = hps_calloc(1, sizeof(*service));
    if (service == NULL) {
        return NULL;
    }
    service->parts = *parts;
    service->method = (struct hps_grpc_method){.path = "/hps.v1.ParameterServer/WaitForUpdates",
                                               .request_bytes_max = HPS_REQUEST_BYTES_MAX,
                                               .roles = HPS_ROLE_LOOKUP,
                                               .on_message = on_message,
                                               .on_close = on_close};
    service->grpc = (struct hps_grpc_service){.name = "hps.v1.ParameterServer",
                                              .methods = &service->method,
                                              .n_methods = 1,
                                              .ctx = service};
    return service;
}

void hps_wait_service_free(struct hps_wait_service *service)
{
    hps_free(service);
}

const struct hps_grpc_service *hps_wait_service_grpc(const struct hps_wait_service *service)
{
    return &service->grpc;
}
