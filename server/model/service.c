/* SPDX-License-Identifier: Apache-2.0
 *
 * The method, and its way to a worker and back: a model may have thousands of tables, which is more
 * than an event loop should go through. See server/model/service.h.
 */
#include "server/model/service.h"

#include <string.h>

#include "base/arena.h"
#include "base/assert.h"
#include "base/container.h"
#include "base/heap.h"
#include "server/access/access.h"
#include "server/lookup/known.h"
#include "server/model/describe.h"
#include "server/rpc/message.h"

enum { ARENA_BYTES = 4 * 1024, ARENA_BYTES_MAX = HPS_MESSAGE_BYTES_MAX };

struct hps_model_service {
    struct hps_model_service_parts parts;
    struct hps_grpc_service grpc;
    struct hps_grpc_method method;
};

/* One call, from its loop to a worker and back. */
struct asked {
    struct hps_task task;
    const struct hps_model_service *service;
    struct hps_grpc_call *call; /* with a reference */
    struct hps_arena *arena;
    const Hps__V1__GetModelRequest *request; /* in the arena, as what the reply points to */
    Hps__V1__GetModelResponse reply;
    struct hps_error error; /* status OK: there is a reply */
};

static void asked_free(struct asked *asked)
{
    hps_grpc_call_unref(asked->call);
    hps_arena_free(asked->arena);
    hps_free(asked);
}

/* The loop thread of the call. */
static void on_described(struct hps_task *task)
{
    struct asked *asked = HPS_CONTAINER_OF(task, struct asked, task);
    HPS_ASSERT(hps_loop_is_mine(hps_grpc_call_loop(asked->call)));
    if (asked->error.status != HPS_OK) {
        hps_grpc_call_fail(asked->call, &asked->error);
    } else {
        hps_message_send(asked->call, &asked->reply.base);
        hps_grpc_call_finish(asked->call, 0, NULL);
    }
    asked_free(asked);
}

/* A worker. */
static void on_worker(struct hps_task *task)
{
    struct asked *asked = HPS_CONTAINER_OF(task, struct asked, task);
    const struct hps_model_service_parts *parts = &asked->service->parts;
    if (hps_grpc_call_cancelled(asked->call)) {
        hps_ignore(hps_error_set(&asked->error, HPS_CANCELLED, "the call ended before its turn"));
    } else {
        asked->error.status = hps_model_describe(parts->models, parts->updater, asked->request,
                                                 asked->arena, &asked->reply, &asked->error);
    }
    if (asked->error.status == HPS_NOT_FOUND && asked->request->version == 0) {
        hps_known_models(parts->models, asked->call, HPS_ROLE_READ, &asked->error);
    }
    asked->task.run = on_described;
    hps_loop_post(hps_grpc_call_loop(asked->call), &asked->task);
}

/* What the message asks for, and whether the caller may.
 *
 * error   INVALID, PERMISSION
 */
static hps_status read_request(struct asked *asked, const uint8_t *data, size_t size)
{
    asked->request = (const Hps__V1__GetModelRequest *)hps_message_unpack(
        &hps__v1__get_model_request__descriptor, asked->arena, data, size);
    if (asked->request == NULL) {
        return hps_error_set(&asked->error, HPS_INVALID, "request: malformed message");
    }
    if (asked->request->model[0] == '\0') {
        return hps_error_set(&asked->error, HPS_INVALID, "model: empty");
    }
    return hps_access_check(asked->call, HPS_ROLE_READ, asked->request->model,
                            strlen(asked->request->model), &asked->error);
}

static void on_message(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    const struct hps_model_service *service = hps_grpc_call_ctx(call);
    struct asked *asked = hps_calloc(1, sizeof(*asked));
    struct hps_arena *arena = hps_arena_new(ARENA_BYTES, ARENA_BYTES_MAX);
    if (asked == NULL || arena == NULL) {
        hps_free(asked);
        hps_arena_free(arena);
        hps_grpc_call_finish(call, hps_status_grpc_code(HPS_NO_MEMORY), "no memory for the call");
        return;
    }
    hps_grpc_call_ref(call);
    *asked = (struct asked){.service = service, .call = call, .arena = arena};
    asked->task.run = on_worker;
    hps_status status = hps_access_take_call(call, &asked->error);
    if (status == HPS_OK) {
        status = read_request(asked, data, size);
    }
    if (status == HPS_OK) {
        status = hps_pool_post(service->parts.workers, &asked->task);
        if (status == HPS_OK) {
            return;
        }
        hps_ignore(hps_error_set(&asked->error, status,
                                 "call rejected: too many others wait for a worker; retry later"));
    }
    hps_grpc_call_fail(call, &asked->error);
    asked_free(asked);
}

struct hps_model_service *hps_model_service_new(const struct hps_model_service_parts *parts)
{
    HPS_ASSERT(parts->models != NULL && parts->workers != NULL);
    struct hps_model_service *service = hps_calloc(1, sizeof(*service));
    if (service == NULL) {
        return NULL;
    }
    service->parts = *parts;
    service->method = (struct hps_grpc_method){.path = "/hps.v1.ParameterServer/GetModel",
                                               .request_bytes_max = HPS_REQUEST_BYTES_MAX,
                                               .roles = HPS_ROLE_READ,
                                               .on_message = on_message};
    service->grpc = (struct hps_grpc_service){.name = "hps.v1.ParameterServer",
                                              .methods = &service->method,
                                              .n_methods = 1,
                                              .ctx = service};
    return service;
}

void hps_model_service_free(struct hps_model_service *service)
{
    hps_free(service);
}

const struct hps_grpc_service *hps_model_service_grpc(const struct hps_model_service *service)
{
    return &service->grpc;
}
