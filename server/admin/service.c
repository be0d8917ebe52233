/* SPDX-License-Identifier: Apache-2.0
 *
 * Method table, hand-over to the admin pool and back, and the progress stream of a load.
 */
#include "server/admin/service.h"

#include <string.h>

#include "base/assert.h"
#include "base/heap.h"
#include "hps/v1/admin.pb-c.h"
#include "server/access/access.h"
#include "server/admin/op.h"

enum { ADMIN_ARENA_BYTES = 16 * 1024, ADMIN_ARENA_BYTES_MAX = 64 << 20 };
enum { PROGRESS_PERIOD_US = 200 * 1000 };

/* Of what a call is, which may be of what the caller has its role for. */
enum method_scope {
    ANYTHING, /* nothing in particular */
    LISTS,    /* of the model that is named; if none is, what the caller may see is listed */
    MODEL,    /* of the model that is named; if none is, of all */
    SERVER,   /* of the server as a whole, so of all models */
};

enum method_kind {
    READS,
    TELLS,        /* what not everybody should know: every call is written to the audit log */
    CHANGES,      /* state: so is every such call */
    CHANGES_LATER /* also answers itself, because it may wait for longer than a thread should */
};

static const struct admin_method {
    const char *path;
    const ProtobufCMessageDescriptor *request;
    void (*work)(struct admin_op *op);
    enum method_kind kind;
    uint32_t role; /* Ping: any */
    enum method_scope scope;
} admin_methods[] = {
#define METHOD(name, request, work, kind, role, scope)                                            \
    {                                                                                             \
        "/hps.v1.Admin/" name, &hps__v1__##request##_request__descriptor, work, kind, role, scope \
    }
    METHOD("Ping", ping, admin_ping, READS, HPS_ROLES_ALL, ANYTHING),
    METHOD("GetStatus", get_status, admin_get_status, READS, HPS_ROLE_READ, SERVER),
    METHOD("ListModels", list_models, admin_list_models, READS, HPS_ROLE_READ, LISTS),
    METHOD("ListTables", list_tables, admin_list_tables, READS, HPS_ROLE_READ, LISTS),
    METHOD("LoadModel", load_model, admin_load_model, CHANGES, HPS_ROLE_LOAD, MODEL),
    METHOD("ActivateVersion", activate_version, admin_activate, CHANGES_LATER, HPS_ROLE_LOAD,
           MODEL),
    METHOD("RollbackModel", rollback_model, admin_rollback, CHANGES, HPS_ROLE_LOAD, MODEL),
    METHOD("UnloadVersion", unload_version, admin_unload, CHANGES_LATER, HPS_ROLE_LOAD, MODEL),
    METHOD("GetStats", get_stats, admin_get_stats, READS, HPS_ROLE_READ, LISTS),
    METHOD("ExplainKey", explain_key, admin_explain_key, TELLS, HPS_ROLE_READ, MODEL),
    METHOD("GetSlowLog", get_slow_log, admin_get_slow_log, TELLS, HPS_ROLE_READ, LISTS),
    METHOD("ResetSlowLog", reset_slow_log, admin_reset_slow_log, CHANGES, HPS_ROLE_ADMIN, SERVER),
    METHOD("GetUpdates", get_updates, admin_get_updates, READS, HPS_ROLE_READ, LISTS),
    METHOD("ControlUpdates", control_updates, admin_control_updates, CHANGES, HPS_ROLE_ADMIN,
           MODEL),
    METHOD("CreateSnapshot", create_snapshot, admin_create_snapshot, CHANGES, HPS_ROLE_ADMIN,
           SERVER),
    METHOD("GetConfig", get_config, admin_get_config, TELLS, HPS_ROLE_ADMIN, SERVER),
    METHOD("SetLogLevel", set_log_level, admin_set_log_level, CHANGES, HPS_ROLE_ADMIN, SERVER),
    METHOD("Drain", drain, admin_drain, CHANGES, HPS_ROLE_ADMIN, SERVER),
#undef METHOD
};

enum { N_METHODS = sizeof(admin_methods) / sizeof(admin_methods[0]) };

struct hps_admin_service {
    struct hps_admin_parts parts;
    struct hps_grpc_service grpc;
    struct hps_grpc_method methods[N_METHODS];
};

/* The progress stream of one load, on its call's loop. */
struct progress_stream {
    struct hps_grpc_call *call;
    struct hps_load *load;
    struct hps_timer timer;
    char *model;
    bool no_wait;
    bool told; /* what is sent but once */
};

void *admin_alloc(struct admin_op *op, size_t count, size_t size)
{
    HPS_ASSERT(op->arena != NULL && size > 0);
    void *memory = hps_arena_calloc(op->arena, count != 0 ? count : 1, size);
    if (memory == NULL) {
        hps_ignore(hps_error_set(&op->error, HPS_NO_MEMORY, "no memory for the answer"));
    }
    return memory;
}

char *admin_text(struct admin_op *op, const char *text)
{
    static char none[] = "";
    char *copy = text != NULL ? hps_arena_strndup(op->arena, text, strlen(text)) : NULL;
    return copy != NULL ? copy : none;
}

bool admin_sees(const struct admin_op *op, const char *model)
{
    return hps_access_sees(op->call, (enum hps_access_role)op->method->role, model);
}

static void op_free(struct admin_op *op)
{
    HPS_ASSERT(op->call != NULL);
    hps_load_unref(op->load);
    hps_grpc_call_unref(op->call);
    hps_arena_free(op->arena);
    hps_free(op);
}

/* ---- progress -------------------------------------------------------------------------------- */

static void stream_free(struct progress_stream *stream)
{
    HPS_ASSERT(stream->load != NULL);
    hps_timer_stop(&stream->timer);
    hps_load_unref(stream->load);
    hps_free(stream->model);
    hps_free(stream);
}

/* Of the tables that were converted. */
static void put_conversions(struct hps_arena *arena, const struct hps_load *load,
                            Hps__V1__LoadProgress *progress)
{
    uint32_t n = 0;
    const struct hps_load_conversion *all = hps_load_conversions(load, &n);
    Hps__V1__TableConversion *messages = hps_arena_calloc(arena, n + 1, sizeof(*messages));
    Hps__V1__TableConversion **pointers =
        hps_arena_calloc(arena, n + 1, sizeof(Hps__V1__TableConversion *));
    if (messages == NULL || pointers == NULL) {
        return;
    }
    progress->conversions = pointers;
    for (uint32_t i = 0; i < n; i++) {
        if (all[i].from == all[i].to) {
            continue;
        }
        Hps__V1__TableConversion *message = &messages[progress->n_conversions];
        hps__v1__table_conversion__init(message);
        message->table = (char *)(uintptr_t)hps_load_table_name(load, i);
        message->data_type_from = admin_dtype_text(all[i].from);
        message->data_type_to = admin_dtype_text(all[i].to);
        message->error_max = all[i].loss.max;
        message->error_mean = all[i].loss.n > 0 ? all[i].loss.sum / (double)all[i].loss.n : 0;
        pointers[progress->n_conversions++] = message;
    }
}

static void send_progress(struct progress_stream *stream, struct hps_load_state *state)
{
    HPS_ASSERT(hps_loop_is_mine(hps_grpc_call_loop(stream->call)));
    struct hps_arena *arena = NULL;
    Hps__V1__LoadProgress progress = HPS__V1__LOAD_PROGRESS__INIT;
    progress.model = stream->model;
    progress.version = state->version;
    progress.stage = (char *)state->stage;
    progress.rows_done = state->rows_done;
    progress.rows_total = state->rows_total;
    progress.bytes_done = state->bytes_done;
    progress.bytes_total = state->bytes_total;
    progress.remaining_ms = state->remaining_ms;
    progress.table = (char *)state->table;
    progress.done = state->done;
    progress.activated = state->activated;
    progress.duplicate_key_count = state->duplicate_keys;
    progress.unload_versions = state->going.numbers;
    progress.n_unload_versions = state->going.n;
    if (state->done || !stream->told) {
        const struct hps_strings *notes = hps_load_notes(stream->load);
        progress.notes = notes->items;
        progress.n_notes = notes->n;
        stream->told = true;
    }
    if (state->done) {
        const struct hps_switched *outcome = hps_load_outcome(stream->load);
        const struct hps_version_diff *diff = &outcome->diff;
        progress.active_version = outcome->previous;
        progress.row_count = state->n_rows;
        progress.dropped_row_count = state->n_rows_dropped;
        arena = hps_arena_new(ADMIN_ARENA_BYTES, ADMIN_ARENA_BYTES_MAX);
        progress.diffs = arena != NULL ? admin_table_diffs(arena, diff) : NULL;
        progress.n_diffs = progress.diffs != NULL ? diff->n_tables : 0;
        if (arena != NULL) {
            put_conversions(arena, stream->load, &progress);
        }
    }
    hps_message_send(stream->call, &progress.base);
    hps_arena_free(arena);
}

static void on_progress(void *ctx)
{
    struct progress_stream *stream = ctx;
    struct hps_load_state state;
    hps_load_state_get(stream->load, &state);
    if (state.done && state.error.status != HPS_OK) {
        hps_grpc_call_fail(stream->call, &state.error);
        return;
    }
    /* A watcher that does not read gets fewer messages, not more memory. */
    if (state.done || hps_grpc_call_queued(stream->call) == 0) {
        send_progress(stream, &state);
    }
    if (state.done || stream->no_wait) {
        hps_grpc_call_finish(stream->call, 0, NULL);
        return;
    }
    hps_timer_set_after(hps_grpc_call_loop(stream->call), &stream->timer, PROGRESS_PERIOD_US);
}

static void start_stream(struct admin_op *op)
{
    HPS_ASSERT(op->load != NULL && hps_loop_is_mine(hps_grpc_call_loop(op->call)));
    const Hps__V1__LoadModelRequest *request = (const Hps__V1__LoadModelRequest *)op->request;
    struct progress_stream *stream = hps_calloc(1, sizeof(*stream));
    char *model = hps_strdup(request->model);
    if (stream == NULL || model == NULL) {
        hps_free(stream);
        hps_free(model);
        hps_grpc_call_finish(op->call, hps_status_grpc_code(HPS_NO_MEMORY),
                             "the load goes on, but no memory to report on it");
        return;
    }
    stream->call = op->call;
    stream->load = op->load;
    op->load = NULL;
    stream->model = model;
    stream->no_wait = request->no_wait;
    hps_timer_init(&stream->timer, on_progress, stream);
    hps_grpc_call_set_user(op->call, stream);
    on_progress(stream);
}

/* ---- to the pool and back -------------------------------------------------------------------- */

static void run_reply(struct hps_task *task)
{
    struct admin_op *op = (struct admin_op *)task;
    if (hps_grpc_call_cancelled(op->call)) {
        op_free(op);
        return;
    }
    if (op->error.status != HPS_OK) {
        hps_grpc_call_fail(op->call, &op->error);
    } else if (op->load != NULL) {
        start_stream(op);
    } else {
        hps_message_send(op->call, op->reply);
        hps_grpc_call_finish(op->call, 0, NULL);
    }
    op_free(op);
}

static const char *name_of(const struct admin_method *method)
{
    return strrchr(method->path, '/') + 1;
}

void admin_finish(struct admin_op *op)
{
    if (op->method->kind != READS) {
        admin_audit(op, name_of(op->method));
    }
    op->task.run = run_reply;
    hps_loop_post(hps_grpc_call_loop(op->call), &op->task);
}

static void run_work(struct hps_task *task)
{
    struct admin_op *op = (struct admin_op *)task;
    bool answers_itself = op->method->kind == CHANGES_LATER;
    op->method->work(op);
    if (!answers_itself) {
        admin_finish(op);
    }
}

static const struct admin_method *method_of(const struct hps_grpc_call *call)
{
    const char *path = hps_grpc_call_path(call);
    size_t i = 0;
    while (strcmp(admin_methods[i].path, path) != 0) {
        i++; /* a call only gets here through one of these paths */
    }
    return &admin_methods[i];
}

/* The field "model" of a request; "" if it has none. */
static const char *model_of(const ProtobufCMessage *request)
{
    const ProtobufCFieldDescriptor *field =
        protobuf_c_message_descriptor_get_field_by_name(request->descriptor, "model");
    if (field == NULL) {
        return "";
    }
    HPS_ASSERT(field->type == PROTOBUF_C_TYPE_STRING);
    return *(char *const *)(const void *)((const char *)request + field->offset);
}

/* The caller has the method's role, for whatever; has it the role for what the call is of? */
static hps_status check_scope(const struct admin_op *op, struct hps_error *err)
{
    const struct admin_method *method = op->method;
    const char *model = model_of(op->request);
    if (method->scope == ANYTHING || (method->scope == LISTS && model[0] == '\0')) {
        return HPS_OK;
    }
    bool all = method->scope == SERVER || model[0] == '\0';
    return hps_access_check(op->call, (enum hps_access_role)method->role, all ? NULL : model,
                            all ? 0 : strlen(model), err);
}

/* Before there was any work. */
static void refuse(struct hps_admin_service *service, struct hps_grpc_call *call,
                   const struct admin_method *method, hps_status status, const char *why)
{
    HPS_ASSERT(status != HPS_OK);
    if (method->kind != READS) {
        admin_audit_refused(&service->parts, call, name_of(method), status, why);
    }
    hps_grpc_call_finish(call, hps_status_grpc_code(status), why);
}

static void on_message(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    HPS_ASSERT(hps_loop_is_mine(hps_grpc_call_loop(call)));
    struct hps_admin_service *service = hps_grpc_call_ctx(call);
    const struct admin_method *method = method_of(call);
    struct admin_op *op = hps_calloc(1, sizeof(*op));
    struct hps_arena *arena = hps_arena_new(ADMIN_ARENA_BYTES, ADMIN_ARENA_BYTES_MAX);
    if (op == NULL || arena == NULL) {
        hps_free(op);
        hps_arena_free(arena);
        refuse(service, call, method, HPS_NO_MEMORY, "no memory for the call");
        return;
    }
    op->arena = arena;
    op->call = call;
    hps_grpc_call_ref(call);
    op->parts = &service->parts;
    op->method = method;
    op->task.run = run_work;
    op->request = hps_message_unpack(method->request, arena, data, size);
    if (op->request == NULL) {
        refuse(service, call, method, HPS_INVALID, "request: malformed message");
        op_free(op);
    } else if (check_scope(op, &op->error) != HPS_OK) {
        hps_grpc_call_fail(call, &op->error);
        op_free(op);
    } else if (hps_pool_post(service->parts.pool, &op->task) != HPS_OK) {
        refuse(service, call, method, HPS_EXHAUSTED, "too many admin calls are waiting");
        op_free(op);
    }
}

static void on_close(struct hps_grpc_call *call)
{
    struct progress_stream *stream = hps_grpc_call_user(call);
    if (stream != NULL) {
        hps_grpc_call_set_user(call, NULL);
        stream_free(stream);
    }
}

struct hps_admin_service *hps_admin_service_new(const struct hps_admin_parts *parts)
{
    HPS_ASSERT(parts->pool != NULL && parts->catalog != NULL && parts->models != NULL);
    HPS_ASSERT(parts->audit != NULL);
    HPS_ASSERT(parts->status != NULL && parts->drain != NULL && parts->print_config != NULL);
    struct hps_admin_service *service = hps_calloc(1, sizeof(*service));
    if (service == NULL) {
        return NULL;
    }
    service->parts = *parts;
    for (unsigned i = 0; i < N_METHODS; i++) {
        bool loads = admin_methods[i].work == admin_load_model; /* it may bring an entry */
        service->methods[i] = (struct hps_grpc_method){
            .path = admin_methods[i].path,
            .request_bytes_max = HPS_REQUEST_BYTES_MAX + (loads ? HPS_ENTRY_BYTES_MAX : 0),
            .roles = admin_methods[i].role,
            .on_message = on_message,
            .on_close = on_close};
    }
    service->grpc = (struct hps_grpc_service){.name = "hps.v1.Admin",
                                              .methods = service->methods,
                                              .n_methods = N_METHODS,
                                              .ctx = service};
    return service;
}

void hps_admin_service_free(struct hps_admin_service *service)
{
    hps_free(service);
}

const struct hps_grpc_service *hps_admin_service_grpc(const struct hps_admin_service *service)
{
    return &service->grpc;
}
