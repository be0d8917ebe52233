/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of methods, the model and version that requests name, and the replies to loads and to
 * calls over HTTP/1.1. Loop thread of the call's connection.
 */
#include "server/kserve/service.h"

#include <string.h>

#include "base/assert.h"
#include "base/heap.h"
#include "inference/grpc_service.pb-c.h"
#include "server/access/access.h"
#include "server/kserve/http.h"
#include "server/kserve/op.h"

enum { LOAD_PERIOD_US = 100 * 1000 };

#define SERVICE "inference.GRPCInferenceService"

static const struct hps_unary_method methods[] = {
#define METHOD(name, type, work_, place_, kind_, scope_, roles_)                           \
    {                                                                                      \
        .path = "/" SERVICE "/" name, .request = &inference__##type##_request__descriptor, \
        .work = work_, .place = HPS_UNARY_##place_, .kind = HPS_UNARY_##kind_,             \
        .scope = HPS_UNARY_##scope_, .roles = roles_                                       \
    }
#define NOT_BUILT(name, type) METHOD(name, type, kserve_not_built, LOOP, READS, ANY, 0)
    METHOD("ServerLive", server_live, kserve_server_live, LOOP, READS, OPEN, 0),
    METHOD("ServerReady", server_ready, kserve_server_ready, LOOP, READS, OPEN, 0),
    METHOD("ServerMetadata", server_metadata, kserve_server_metadata, LOOP, READS, ANY, 0),
    METHOD("ModelReady", model_ready, kserve_model_ready, LOOP, READS, MODEL,
           HPS_ROLE_LOOKUP | HPS_ROLE_READ), /* a lookup reveals the same */
    METHOD("ModelMetadata", model_metadata, kserve_model_metadata, WORKER, READS, MODEL,
           HPS_ROLE_READ),
    METHOD("ModelConfig", model_config, kserve_model_config, WORKER, READS, MODEL, HPS_ROLE_READ),
    METHOD("ModelStatistics", model_statistics, kserve_model_statistics, WORKER, READS, LISTS,
           HPS_ROLE_READ),
    METHOD("RepositoryIndex", repository_index, kserve_repository_index, WORKER, READS, LISTS,
           HPS_ROLE_READ),
    METHOD("RepositoryModelLoad", repository_model_load, kserve_repository_load, ADMIN, CHANGES,
           MODEL, HPS_ROLE_LOAD),
    METHOD("RepositoryModelUnload", repository_model_unload, kserve_repository_unload, ADMIN,
           CHANGES, MODEL, HPS_ROLE_LOAD),
    METHOD("SystemSharedMemoryStatus", system_shared_memory_status, kserve_memory_status, LOOP,
           READS, ANY, 0),
    NOT_BUILT("SystemSharedMemoryRegister", system_shared_memory_register),
    METHOD("SystemSharedMemoryUnregister", system_shared_memory_unregister,
           kserve_memory_unregister, LOOP, READS, ANY, 0),
    METHOD("CudaSharedMemoryStatus", cuda_shared_memory_status, kserve_memory_status, LOOP, READS,
           ANY, 0),
    NOT_BUILT("CudaSharedMemoryRegister", cuda_shared_memory_register),
    METHOD("CudaSharedMemoryUnregister", cuda_shared_memory_unregister, kserve_memory_unregister,
           LOOP, READS, ANY, 0),
    NOT_BUILT("TraceSetting", trace_setting),
    NOT_BUILT("LogSettings", log_settings),
#undef NOT_BUILT
#undef METHOD
};

void kserve_not_built(struct hps_unary *op)
{
    const char *name = strrchr(op->method->path, '/') + 1;
    bool memory = strstr(name, "Memory") != NULL;
    hps_ignore(hps_error_set(&op->error, HPS_UNIMPLEMENTED, "%s is not built: %s", name,
                             memory ? "tensors travel in messages"
                             : strcmp(name, "TraceSetting") == 0
                                 ? "use hpsctl slowlog to see where the time of requests goes"
                                 : "use hpsctl log-level"));
}

/* ---- requests -------------------------------------------------------------------------------- */

/* Sets the model and version of the request.
 *
 * error   INVALID, EXHAUSTED */
static hps_status read_names(struct hps_unary *op)
{
    struct kserve_op *own = kserve_of(op);
    const char *name = hps_unary_field(op, "name");
    const char *version = hps_unary_field(op, "version");
    name = name != NULL ? name : hps_unary_field(op, "model_name");
    own->name = name != NULL ? name : "";
    struct kserve_text model = {own->name, strlen(own->name)};
    /* Loads and unloads name a model, not a view. */
    own->by_table = op->method->place != HPS_UNARY_ADMIN && kserve_take_tables(&model);
    op->model = hps_arena_strndup(op->arena, model.at, model.size);
    if (op->model == NULL) {
        return hps_error_set(&op->error, HPS_EXHAUSTED, "no memory for the call");
    }
    version = version != NULL ? version : "";
    const struct kserve_text text = {version, strlen(version)};
    return kserve_version_read(text, &own->version, &op->error);
}

static void unpack_http(struct hps_unary *op, const uint8_t *data, size_t size)
{
    op->error.status = kserve_op_read_http(op, op->method->request, data, size);
}

static void on_http(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    struct hps_unary *op =
        hps_unary_new(hps_grpc_call_ctx(call), call, kserve_route_of(call)->method);
    if (op != NULL) {
        hps_unary_read(op, data, size, unpack_http);
    }
}

/* ---- answers --------------------------------------------------------------------------------- */

static void answer(struct hps_unary *op)
{
    if (hps_grpc_call_is_http(op->call)) {
        kserve_op_answer_http(op);
        return;
    }
    hps_message_send(op->call, op->reply);
    hps_grpc_call_finish(op->call, 0, NULL);
}

static void on_load(void *ctx)
{
    struct kserve_op *own = ctx;
    struct hps_load_state state;
    hps_load_state_get(own->load, &state);
    if (state.done) {
        own->rpc.error = state.error;
        hps_unary_answer(&own->rpc);
        return;
    }
    hps_timer_set_after(hps_grpc_call_loop(own->rpc.call), &own->timer, LOAD_PERIOD_US);
}

void kserve_follow_load(struct hps_unary *op)
{
    hps_timer_init(&kserve_of(op)->timer, on_load, op);
    on_load(op);
}

static void op_fini(struct hps_unary *op)
{
    hps_timer_stop(&kserve_of(op)->timer);
    hps_load_unref(kserve_of(op)->load);
}

/* ---- life ------------------------------------------------------------------------------------ */

struct hps_unary_service *hps_kserve_service_new(const struct hps_kserve_parts *parts)
{
    HPS_ASSERT(parts->models != NULL && parts->catalog != NULL && parts->readiness != NULL);
    const struct hps_unary_options options = {.name = SERVICE,
                                              .methods = methods,
                                              .n_methods = sizeof(methods) / sizeof(methods[0]),
                                              .parts = parts,
                                              .parts_bytes = sizeof(*parts),
                                              .workers = parts->workers,
                                              .admin_pool = parts->admin_pool,
                                              .audit = parts->audit,
                                              .op_bytes = sizeof(struct kserve_op),
                                              .arena_bytes_max = HPS_MESSAGE_BYTES_MAX,
                                              .read = read_names,
                                              .answer = answer,
                                              .fini = op_fini};
    return hps_unary_service_new(&options);
}

struct hps_http_route *hps_kserve_service_routes(const struct hps_unary_service *service,
                                                 unsigned *out_n)
{
    size_t n = 0;
    const struct kserve_route *from = kserve_routes(&n);
    struct hps_http_route *routes = hps_calloc(n, sizeof(*routes));
    for (size_t i = 0; routes != NULL && i < n; i++) {
        routes[i] = (struct hps_http_route){
            .verb = from[i].verb,
            .pattern = from[i].pattern,
            .method = hps_unary_route(service, from[i].method, from[i].pattern, on_http)};
    }
    *out_n = (unsigned)n;
    return routes;
}
