/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of methods, and the way of a call to whoever does its work and back. Everything here
 * but run_work runs on the loop thread of the call's connection.
 */
#include "server/kserve/service.h"

#include <string.h>

#include "base/assert.h"
#include "base/container.h"
#include "base/heap.h"
#include "inference/grpc_service.pb-c.h"
#include "server/access/access.h"
#include "server/kserve/http.h"
#include "server/kserve/op.h"

enum { ARENA_BYTES = 4 * 1024, ARENA_BYTES_MAX = HPS_MESSAGE_BYTES_MAX };
enum { LOAD_PERIOD_US = 100 * 1000 };

#define SERVICE "inference.GRPCInferenceService"

/* Where the work is done. */
enum place {
    LOOP,
    WORKER,
    ADMIN /* the admin pool: it changes what is served, and every call is in the audit log */
};

/* Which of what a call may see it is of. */
enum scope {
    OPEN,  /* to everybody, as health checks are */
    ANY,   /* nothing in particular */
    LISTS, /* of the model that is named; if none is, what the caller may see is listed */
    MODEL  /* of the model that is named */
};

struct kserve_method {
    const char *path;
    const ProtobufCMessageDescriptor *request;
    void (*work)(struct kserve_op *op);
    enum place place;
    enum scope scope;
    uint32_t roles; /* of which any is enough; 0: any at all */
};

static const struct kserve_method methods[] = {
#define METHOD(name, request, work, place, scope, roles)                                       \
    {                                                                                          \
        "/" SERVICE "/" name, &inference__##request##_request__descriptor, work, place, scope, \
            roles                                                                              \
    }
#define NOT_BUILT(name, request) METHOD(name, request, kserve_not_built, LOOP, ANY, 0)
    METHOD("ServerLive", server_live, kserve_server_live, LOOP, OPEN, 0),
    METHOD("ServerReady", server_ready, kserve_server_ready, LOOP, OPEN, 0),
    METHOD("ServerMetadata", server_metadata, kserve_server_metadata, LOOP, ANY, 0),
    METHOD("ModelReady", model_ready, kserve_model_ready, LOOP, MODEL,
           HPS_ROLE_LOOKUP | HPS_ROLE_READ), /* whoever looks up finds out anyway */
    METHOD("ModelMetadata", model_metadata, kserve_model_metadata, WORKER, MODEL, HPS_ROLE_READ),
    METHOD("ModelConfig", model_config, kserve_model_config, WORKER, MODEL, HPS_ROLE_READ),
    METHOD("ModelStatistics", model_statistics, kserve_model_statistics, WORKER, LISTS,
           HPS_ROLE_READ),
    METHOD("RepositoryIndex", repository_index, kserve_repository_index, WORKER, LISTS,
           HPS_ROLE_READ),
    METHOD("RepositoryModelLoad", repository_model_load, kserve_repository_load, ADMIN, MODEL,
           HPS_ROLE_LOAD),
    METHOD("RepositoryModelUnload", repository_model_unload, kserve_repository_unload, ADMIN, MODEL,
           HPS_ROLE_LOAD),
    METHOD("SystemSharedMemoryStatus", system_shared_memory_status, kserve_memory_status, LOOP, ANY,
           0),
    NOT_BUILT("SystemSharedMemoryRegister", system_shared_memory_register),
    METHOD("SystemSharedMemoryUnregister", system_shared_memory_unregister,
           kserve_memory_unregister, LOOP, ANY, 0),
    METHOD("CudaSharedMemoryStatus", cuda_shared_memory_status, kserve_memory_status, LOOP, ANY, 0),
    NOT_BUILT("CudaSharedMemoryRegister", cuda_shared_memory_register),
    METHOD("CudaSharedMemoryUnregister", cuda_shared_memory_unregister, kserve_memory_unregister,
           LOOP, ANY, 0),
    NOT_BUILT("TraceSetting", trace_setting),
    NOT_BUILT("LogSettings", log_settings),
#undef NOT_BUILT
#undef METHOD
};

enum { N_METHODS = sizeof(methods) / sizeof(methods[0]) };

struct hps_kserve_service {
    struct hps_kserve_parts parts;
    struct hps_grpc_service grpc;
    struct hps_grpc_method methods[N_METHODS];
    struct hps_http_route *routes; /* [n_routes] */
    size_t n_routes;
};

static const char *name_of(const struct kserve_method *method)
{
    return strrchr(method->path, '/') + 1;
}

void kserve_not_built(struct kserve_op *op)
{
    const char *name = name_of(op->method);
    bool memory = strstr(name, "Memory") != NULL;
    hps_ignore(hps_error_set(&op->error, HPS_UNIMPLEMENTED, "%s is not built: %s", name,
                             memory ? "tensors travel in messages"
                             : strcmp(name, "TraceSetting") == 0
                                 ? "hpsctl slowlog shows where the time of requests goes"
                                 : "hpsctl log-level sets what is logged"));
}

/* ---- the end --------------------------------------------------------------------------------- */

static void op_free(struct kserve_op *op)
{
    hps_timer_stop(&op->timer);
    hps_load_unref(op->load);
    hps_grpc_call_unref(op->call);
    hps_arena_free(op->arena);
    hps_free(op);
}

/* The op is still the caller's. */
static void answer(struct kserve_op *op)
{
    HPS_ASSERT(hps_loop_is_mine(hps_grpc_call_loop(op->call)));
    if (op->error.status != HPS_OK) {
        hps_grpc_call_fail(op->call, &op->error);
        return;
    }
    if (hps_grpc_call_is_http(op->call)) {
        kserve_op_answer_http(op);
        return;
    }
    HPS_ASSERT(op->reply != NULL);
    hps_message_send(op->call, op->reply);
    hps_grpc_call_finish(op->call, 0, NULL);
}

/* The call's user from now on: it ends with the call. */
static void on_load(void *ctx)
{
    struct kserve_op *op = ctx;
    struct hps_load_state state;
    hps_load_state_get(op->load, &state);
    if (state.done) {
        op->error = state.error;
        answer(op); /* it may be gone now */
        return;
    }
    hps_timer_set_after(hps_grpc_call_loop(op->call), &op->timer, LOAD_PERIOD_US);
}

static void on_close(struct hps_grpc_call *call)
{
    struct kserve_op *op = hps_grpc_call_user(call);
    if (op != NULL) {
        hps_grpc_call_set_user(call, NULL);
        op_free(op);
    }
}

/* The work is done. */
static void run_answer(struct hps_task *task)
{
    struct kserve_op *op = HPS_CONTAINER_OF(task, struct kserve_op, task);
    if (op->load == NULL || op->error.status != HPS_OK) {
        answer(op);
        op_free(op);
    } else if (hps_grpc_call_cancelled(op->call)) { /* its load goes on */
        op_free(op);
    } else {
        hps_grpc_call_set_user(op->call, op);
        on_load(op);
    }
}

/* ---- the work -------------------------------------------------------------------------------- */

static void audit(const struct kserve_op *op)
{
    const struct hps_audit_event event = {
        .method = name_of(op->method),
        .who = hps_access_grant_who(hps_access_grant_of(op->call)),
        .peer = hps_grpc_call_peer(op->call),
        .model = op->model,
        .version = op->audit_version,
        .code = hps_status_grpc_code(op->error.status),
        .error = op->error.status != HPS_OK ? op->error.text : "",
    };
    hps_audit_write(op->parts->audit, &event);
}

/* Of the place that the method has. */
static void run_work(struct hps_task *task)
{
    struct kserve_op *op = HPS_CONTAINER_OF(task, struct kserve_op, task);
    bool is_change = op->method->place == ADMIN;
    if (!is_change && hps_grpc_call_cancelled(op->call)) {
        hps_ignore(hps_error_set(&op->error, HPS_CANCELLED, "the call ended before its turn"));
    } else {
        op->method->work(op);
    }
    if (is_change) {
        audit(op);
    }
    op->task.run = run_answer;
    hps_loop_post(hps_grpc_call_loop(op->call), &op->task);
}

/* Before there was any work; the access rules tell of refusals of their own. */
static void refuse(struct kserve_op *op)
{
    HPS_ASSERT(op->error.status != HPS_OK);
    if (op->method->place == ADMIN && op->error.status != HPS_PERMISSION) {
        const struct hps_audit_event event = {
            .method = name_of(op->method),
            .who = hps_access_grant_who(hps_access_grant_of(op->call)),
            .peer = hps_grpc_call_peer(op->call),
            .code = hps_status_grpc_code(op->error.status),
            .error = op->error.text,
            .refused = true,
        };
        hps_audit_refused(op->parts->audit, &event);
    }
    answer(op);
    op_free(op);
}

/* ---- the request ----------------------------------------------------------------------------- */

/* A text field of the request; NULL: it has no such field. */
static const char *text_of(const ProtobufCMessage *request, const char *name)
{
    const ProtobufCFieldDescriptor *field =
        protobuf_c_message_descriptor_get_field_by_name(request->descriptor, name);
    if (field == NULL) {
        return NULL;
    }
    HPS_ASSERT(field->type == PROTOBUF_C_TYPE_STRING);
    return *(char *const *)(const void *)((const char *)request + field->offset);
}

/* Which model and version the request is of.
 *
 * error   INVALID, EXHAUSTED
 */
static hps_status read_names(struct kserve_op *op)
{
    const char *name = text_of(op->request, "name");
    const char *version = text_of(op->request, "version");
    name = name != NULL ? name : text_of(op->request, "model_name");
    op->name = name != NULL ? name : "";
    struct kserve_text model = {op->name, strlen(op->name)};
    /* A view is of what can be asked for, not of what is loaded. */
    op->by_table = op->method->place != ADMIN && kserve_take_tables(&model);
    op->model = hps_arena_strndup(op->arena, model.at, model.size);
    if (op->model == NULL) {
        return hps_error_set(&op->error, HPS_EXHAUSTED, "no memory for the call");
    }
    version = version != NULL ? version : "";
    const struct kserve_text text = {version, strlen(version)};
    return kserve_version_read(text, &op->version, &op->error);
}

/* Whether the caller may, for the model: asked before it is told whether there is such a one. */
static hps_status check_scope(struct kserve_op *op)
{
    const struct kserve_method *method = op->method;
    if (method->scope != MODEL && (method->scope != LISTS || op->model[0] == '\0')) {
        return HPS_OK;
    }
    if ((method->roles & HPS_ROLE_LOOKUP) != 0 &&
        hps_access_sees(op->call, HPS_ROLE_LOOKUP, op->model)) {
        return HPS_OK;
    }
    enum hps_access_role role =
        (method->roles & HPS_ROLE_LOAD) != 0 ? HPS_ROLE_LOAD : HPS_ROLE_READ;
    return hps_access_check(op->call, role, op->model, strlen(op->model), &op->error);
}

/* The request is there, or the error that it is. Gives `op` away. */
static void start(struct kserve_op *op)
{
    const struct kserve_method *method = op->method;
    if (op->error.status == HPS_OK && method->scope != OPEN) {
        op->error.status = hps_access_take_call(op->call, &op->error);
    }
    if (op->error.status == HPS_OK) {
        op->error.status = read_names(op);
    }
    if (op->error.status == HPS_OK) {
        op->error.status = check_scope(op);
    }
    if (op->error.status == HPS_OK && method->place == LOOP) {
        method->work(op);
        answer(op);
        op_free(op);
        return;
    }
    if (op->error.status == HPS_OK) {
        struct hps_pool *pool = method->place == ADMIN ? op->parts->admin_pool : op->parts->workers;
        hps_status status = hps_pool_post(pool, &op->task);
        if (status == HPS_OK) {
            return;
        }
        hps_ignore(hps_error_set(&op->error, status,
                                 "call rejected: too many others wait for a thread; retry later"));
    }
    refuse(op);
}

/* NULL: no memory, and the call has been failed. */
static struct kserve_op *op_new(const struct hps_kserve_service *service,
                                struct hps_grpc_call *call, const struct kserve_method *method)
{
    struct kserve_op *op = hps_calloc(1, sizeof(*op));
    struct hps_arena *arena = hps_arena_new(ARENA_BYTES, ARENA_BYTES_MAX);
    if (op == NULL || arena == NULL) {
        hps_free(op);
        hps_arena_free(arena);
        hps_grpc_call_finish(call, hps_status_grpc_code(HPS_NO_MEMORY), "no memory for the call");
        return NULL;
    }
    hps_grpc_call_ref(call);
    *op = (struct kserve_op){
        .call = call, .parts = &service->parts, .arena = arena, .method = method};
    op->task.run = run_work;
    hps_timer_init(&op->timer, on_load, op);
    return op;
}

/* By its path, or its last part. */
static const struct kserve_method *method_of(const char *path)
{
    size_t i = 0;
    while (strcmp(methods[i].path, path) != 0 && strcmp(name_of(&methods[i]), path) != 0) {
        i++; /* a call only gets here through one of them */
    }
    return &methods[i];
}

static void on_message(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    const struct kserve_method *method = method_of(hps_grpc_call_path(call));
    struct kserve_op *op = op_new(hps_grpc_call_ctx(call), call, method);
    if (op == NULL) {
        return;
    }
    op->request = hps_message_unpack(method->request, op->arena, data, size);
    if (op->request == NULL) {
        hps_ignore(hps_error_set(&op->error, HPS_INVALID, "request: malformed message"));
    }
    start(op);
}

static void on_http(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    const struct kserve_method *method = method_of(kserve_route_of(call)->method);
    struct kserve_op *op = op_new(hps_grpc_call_ctx(call), call, method);
    if (op != NULL) {
        op->error.status = kserve_op_read_http(op, method->request, data, size);
        start(op);
    }
}

/* ---- life ------------------------------------------------------------------------------------ */

static struct hps_grpc_method grpc_method(const struct kserve_method *method)
{
    return (struct hps_grpc_method){.path = method->path,
                                    .open = method->scope == OPEN,
                                    .roles = method->roles,
                                    .request_bytes_max = HPS_REQUEST_BYTES_MAX,
                                    .on_message = on_message,
                                    .on_close = on_close};
}

static void fill_routes(struct hps_kserve_service *service, const struct kserve_route *routes)
{
    for (size_t i = 0; i < service->n_routes; i++) {
        struct hps_http_route *route = &service->routes[i];
        route->verb = routes[i].verb;
        route->pattern = routes[i].pattern;
        route->method = grpc_method(method_of(routes[i].method));
        route->method.path = routes[i].pattern;
        route->method.on_message = on_http;
    }
}

struct hps_kserve_service *hps_kserve_service_new(const struct hps_kserve_parts *parts)
{
    HPS_ASSERT(parts->models != NULL && parts->catalog != NULL && parts->readiness != NULL);
    HPS_ASSERT(parts->audit != NULL);
    HPS_ASSERT(parts->workers != NULL && parts->admin_pool != NULL);
    size_t n_routes = 0;
    const struct kserve_route *routes = kserve_routes(&n_routes);
    struct hps_kserve_service *service = hps_calloc(1, sizeof(*service));
    struct hps_http_route *http = hps_calloc(n_routes, sizeof(*http));
    if (service == NULL || http == NULL) {
        hps_free(service);
        hps_free(http);
        return NULL;
    }
    service->parts = *parts;
    service->routes = http;
    service->n_routes = n_routes;
    fill_routes(service, routes);
    for (unsigned i = 0; i < N_METHODS; i++) {
        service->methods[i] = grpc_method(&methods[i]);
    }
    service->grpc = (struct hps_grpc_service){
        .name = SERVICE, .methods = service->methods, .n_methods = N_METHODS, .ctx = service};
    return service;
}

void hps_kserve_service_free(struct hps_kserve_service *service)
{
    if (service != NULL) {
        hps_free(service->routes);
    }
    hps_free(service);
}

const struct hps_grpc_service *hps_kserve_service_grpc(const struct hps_kserve_service *service)
{
    return &service->grpc;
}

const struct hps_http_route *hps_kserve_service_routes(const struct hps_kserve_service *service,
                                                       unsigned *out_n)
{
    *out_n = (unsigned)service->n_routes;
    return service->routes;
}
