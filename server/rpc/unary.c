/* SPDX-License-Identifier: Apache-2.0
 *
 * Moves a call to the thread of its work and back, and writes its line of the audit log. See
 * server/rpc/unary.h.
 */
#include "server/rpc/unary.h"

#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/container.h"
#include "base/heap.h"
#include "server/access/access.h"
#include "server/rpc/message.h"

/* protobuf-c keeps arrays, sub-messages and values at offsets that its descriptors name. */
#define MEMBER(message, field_offset) ((const void *)((const char *)(message) + (field_offset)))

enum { ARENA_BYTES = 4 * 1024, FIELDS_MAX = 32, NAME_BYTES_MAX = 128, VALUE_BYTES_MAX = 128 };
enum { UNPACKED_HERE_BYTES_MAX = 4 * 1024 }; /* the largest request that the loop unpacks */

struct hps_unary_service {
    struct hps_unary_options options;
    struct hps_grpc_service grpc;
    struct hps_grpc_method *methods; /* [options.n_methods] */
    void *parts;
};

/* ---- functions for works --------------------------------------------------------------------- */

void *hps_unary_alloc(struct hps_unary *op, size_t count, size_t size)
{
    HPS_ASSERT(op->arena != NULL && size > 0);
    void *memory = hps_arena_calloc(op->arena, count != 0 ? count : 1, size);
    if (memory == NULL) {
        hps_ignore(hps_error_set(
            &op->error, HPS_EXHAUSTED,
            "the reply would exceed its size limit, or there is no memory for it "
            "(request_bytes_in_flight, peer_share); request one model and one version"));
    }
    return memory;
}

void *hps_unary_message(struct hps_unary *op, const ProtobufCMessageDescriptor *type)
{
    ProtobufCMessage *message = hps_unary_alloc(op, 1, type->sizeof_message);
    if (message != NULL) {
        protobuf_c_message_init(type, message);
    }
    return message;
}

void *hps_unary_add(struct hps_unary *op, const ProtobufCMessageDescriptor *type, void *items,
                    size_t *n)
{
    void **all;
    memcpy(&all, items, sizeof(all));
    if ((*n & (*n - 1)) == 0) { /* 0 or a power of two: the array is full */
        void **more = hps_unary_alloc(op, 2 * *n, sizeof(*more));
        if (more == NULL) {
            return NULL;
        }
        if (*n > 0) {
            memcpy(more, all, *n * sizeof(*more));
        }
        memcpy(items, &more, sizeof(more));
        all = more;
    }
    void *message = hps_unary_message(op, type);
    if (message != NULL) {
        all[(*n)++] = message;
    }
    return message;
}

char *hps_unary_text(struct hps_unary *op, const char *text)
{
    static char none[] = "";
    size_t size = text != NULL ? strlen(text) : 0;
    char *copy = hps_unary_alloc(op, size + 1, 1);
    if (copy == NULL) {
        return none;
    }
    memcpy(copy, text != NULL ? text : "", size);
    return copy;
}

const char *hps_unary_field(const struct hps_unary *op, const char *name)
{
    const ProtobufCFieldDescriptor *field =
        protobuf_c_message_descriptor_get_field_by_name(op->request->descriptor, name);
    if (field == NULL) {
        return NULL;
    }
    HPS_ASSERT(field->type == PROTOBUF_C_TYPE_STRING);
    return *(char *const *)MEMBER(op->request, field->offset);
}

bool hps_unary_sees(const struct hps_unary *op, const char *model)
{
    return hps_access_sees(op->call, (enum hps_access_role)op->method->roles, model);
}

/* ---- the audit log --------------------------------------------------------------------------- */

/* Fields for the log, with names in the arena of the call. */
struct listing {
    struct hps_arena *arena;
    struct hps_log_field fields[FIELDS_MAX + 1]; /* the last one is the end mark */
    size_t n;
};

static void add(struct listing *listing, const char *name, struct hps_log_field field)
{
    field.name = hps_arena_strndup(listing->arena, name, strlen(name));
    if (field.name != NULL && listing->n < FIELDS_MAX) {
        listing->fields[listing->n++] = field;
    }
}

/* A text of the request for the log. A longer text is cut and ends with "...". */
static const char *value_of(struct hps_arena *arena, const char *text)
{
    if (strlen(text) <= VALUE_BYTES_MAX) {
        return text;
    }
    char *copy = hps_arena_alloc(arena, VALUE_BYTES_MAX + 1);
    if (copy == NULL) {
        return "...";
    }
    (void)snprintf(copy, VALUE_BYTES_MAX + 1, "%.*s...", VALUE_BYTES_MAX - 3, text);
    return copy;
}

static void add_text(struct listing *listing, const char *name, const char *text)
{
    if (text != NULL && text[0] != '\0') {
        add(listing, name, HPS_STR(NULL, value_of(listing->arena, text)));
    }
}

static void add_integer(struct listing *listing, const char *name, int64_t value)
{
    if (value != 0) {
        add(listing, name, HPS_I64(NULL, value));
    }
}

static void add_enum(struct listing *listing, const char *name, const ProtobufCEnumDescriptor *type,
                     int value)
{
    const ProtobufCEnumValue *word = protobuf_c_enum_descriptor_get_value(type, value);
    if (value != 0 && word != NULL) {
        add_text(listing, name, word->name);
    } else {
        add_integer(listing, name, value);
    }
}

static void add_fields(struct listing *listing, const char *prefix,
                       const ProtobufCMessage *message);

/* Default values are left out. */
static void add_value(struct listing *listing, const char *name,
                      const ProtobufCFieldDescriptor *field, const void *value)
{
    const ProtobufCMessage *message;
    switch (field->type) {
    case PROTOBUF_C_TYPE_STRING:
        add_text(listing, name, *(char *const *)value);
        break;
    case PROTOBUF_C_TYPE_BOOL:
        add_text(listing, name, *(const protobuf_c_boolean *)value ? "true" : "");
        break;
    case PROTOBUF_C_TYPE_INT32:
        add_integer(listing, name, *(const int32_t *)value);
        break;
    case PROTOBUF_C_TYPE_INT64:
        add_integer(listing, name, *(const int64_t *)value);
        break;
    case PROTOBUF_C_TYPE_ENUM:
        add_enum(listing, name, field->descriptor, *(const int *)value);
        break;
    case PROTOBUF_C_TYPE_MESSAGE:
        message = *(ProtobufCMessage *const *)value;
        if (message != NULL) {
            add_fields(listing, name, message);
        }
        break;
    default: /* no request has such a field yet; log it as unknown */
        add_text(listing, name, "?");
        break;
    }
}

static void add_fields(struct listing *listing, const char *prefix, const ProtobufCMessage *message)
{
    const ProtobufCMessageDescriptor *type = message->descriptor;
    for (unsigned i = 0; i < type->n_fields && listing->n < FIELDS_MAX; i++) {
        const ProtobufCFieldDescriptor *field = &type->fields[i];
        const void *at = MEMBER(message, field->offset);
        char name[NAME_BYTES_MAX];
        if ((field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) != 0 &&
            *(const uint32_t *)MEMBER(message, field->quantifier_offset) != field->id) {
            continue; /* another member of the oneof is set */
        }
        if (field->label != PROTOBUF_C_LABEL_REPEATED) {
            (void)snprintf(name, sizeof(name), "%s.%s", prefix, field->name);
            add_value(listing, name, field, at);
            continue;
        }
        bool pointers =
            field->type == PROTOBUF_C_TYPE_STRING || field->type == PROTOBUF_C_TYPE_MESSAGE;
        size_t n = *(const size_t *)MEMBER(message, field->quantifier_offset);
        for (size_t k = 0; pointers && k < n && listing->n < FIELDS_MAX; k++) {
            (void)snprintf(name, sizeof(name), "%s.%s.%zu", prefix, field->name, k);
            add_value(listing, name, field, *(void *const *const *)at + k);
        }
    }
}

static const char *name_of(const struct hps_unary_method *method)
{
    return strrchr(method->path, '/') + 1;
}

/* Writes the call to the audit log, if calls of its kind are logged. */
static void audit(const struct hps_unary *op)
{
    if (op->method->kind <= HPS_UNARY_WAITS) {
        return;
    }
    struct listing listing = {.arena = op->arena};
    add_fields(&listing, "request", op->request);
    const struct hps_audit_event event = {
        .method = name_of(op->method),
        .who = hps_access_grant_who(hps_access_grant_of(op->call)),
        .peer = hps_grpc_call_peer(op->call),
        .model = value_of(op->arena, op->model),
        .version = op->version,
        .code = hps_status_grpc_code(op->error.status),
        .error = op->error.status != HPS_OK ? op->error.text : "",
        .on_loop = op->method->place == HPS_UNARY_LOOP,
        .request = listing.fields,
    };
    if (op->method->kind >= HPS_UNARY_CHANGES && event.code == 0) {
        hps_audit_write(op->service->options.audit, &event);
    } else {
        hps_audit_limited(op->service->options.audit, &event);
    }
}

/* A call that was rejected before its work. The access rules report their own rejections. */
static void audit_refused(const struct hps_unary_service *service, const struct hps_grpc_call *call,
                          const struct hps_unary_method *method, const struct hps_error *error)
{
    const struct hps_audit_event event = {
        .method = name_of(method),
        .who = hps_access_grant_who(hps_access_grant_of(call)),
        .peer = hps_grpc_call_peer(call),
        .code = hps_status_grpc_code(error->status),
        .error = error->text,
        .refused = true,
    };
    if (method->kind > HPS_UNARY_WAITS && error->status != HPS_PERMISSION) {
        hps_audit_limited(service->options.audit, &event);
    }
}

/* ---- the reply ------------------------------------------------------------------------------- */

static void op_free(struct hps_unary *op)
{
    if (op->service->options.fini != NULL) {
        op->service->options.fini(op);
    }
    hps_grpc_call_unref(op->call);
    hps_arena_free(op->arena);
    hps_free(op);
}

void hps_unary_answer(struct hps_unary *op)
{
    HPS_ASSERT(hps_loop_is_mine(hps_grpc_call_loop(op->call)));
    if (op->error.status != HPS_OK) {
        hps_grpc_call_fail(op->call, &op->error);
        return;
    }
    HPS_ASSERT(op->reply != NULL);
    if (op->service->options.answer != NULL) {
        op->service->options.answer(op);
    } else {
        hps_message_send(op->call, op->reply);
        hps_grpc_call_finish(op->call, 0, NULL);
    }
}

static void on_close(struct hps_grpc_call *call)
{
    struct hps_unary *op = hps_grpc_call_user(call);
    if (op == NULL) {
        return;
    }
    hps_grpc_call_set_user(call, NULL);
    if (op->method->kind == HPS_UNARY_WAITS) {
        op->service->options.closed(op);
    } else {
        op_free(op);
    }
}

/* The work has ended. */
static void run_answer(struct hps_task *task)
{
    struct hps_unary *op = HPS_CONTAINER_OF(task, struct hps_unary, task);
    hps_grpc_call_set_user(op->call, NULL);
    if (op->error.status == HPS_OK && op->follow != NULL && !hps_grpc_call_cancelled(op->call)) {
        hps_grpc_call_set_user(op->call, op);
        op->follow(op);
        return;
    }
    if (op->follow == NULL || op->error.status != HPS_OK) {
        hps_unary_answer(op);
    }
    op_free(op);
}

void hps_unary_finish(struct hps_unary *op)
{
    audit(op);
    op->task.run = run_answer;
    hps_loop_post_for(hps_grpc_call_loop(op->call), &op->task, hps_grpc_call_client(op->call));
}

static void run_work(struct hps_task *task)
{
    struct hps_unary *op = HPS_CONTAINER_OF(task, struct hps_unary, task);
    enum hps_unary_kind kind = op->method->kind; /* the work may free `op` */
    bool cancelled = kind < HPS_UNARY_CHANGES && hps_grpc_call_cancelled(op->call);
    if (cancelled) {
        hps_ignore(hps_error_set(&op->error, HPS_CANCELLED, "the call ended before it ran"));
    } else {
        op->method->work(op);
    }
    if (cancelled || (kind != HPS_UNARY_WAITS && kind != HPS_UNARY_CHANGES_LATER)) {
        hps_unary_finish(op);
    }
}

/* ---- the request ----------------------------------------------------------------------------- */

/* Runs before the reply could reveal whether the model exists. */
static hps_status check_scope(struct hps_unary *op)
{
    const struct hps_unary_method *method = op->method;
    bool named = op->model[0] != '\0' && method->scope != HPS_UNARY_SERVER;
    if (method->scope <= HPS_UNARY_ANY || (method->scope == HPS_UNARY_LISTS && !named)) {
        return HPS_OK;
    }
    return hps_access_check(op->call, (enum hps_access_role)method->roles, named ? op->model : NULL,
                            named ? strlen(op->model) : 0, &op->error);
}

static hps_status judge(struct hps_unary *op)
{
    const struct hps_unary_options *options = &op->service->options;
    hps_status status = HPS_OK;
    uint64_t retry_us;
    if (op->method->scope != HPS_UNARY_OPEN) { /* count malformed requests, too */
        status = hps_access_take_call(op->call, op->method->roles, &retry_us, &op->error);
    }
    if (status == HPS_OK) {
        status = op->error.status;
    }
    if (status == HPS_OK) {
        const char *model = hps_unary_field(op, "model");
        op->model = model != NULL ? model : "";
        status = options->read != NULL ? options->read(op) : HPS_OK;
    }
    return status == HPS_OK ? check_scope(op) : status;
}

hps_status hps_unary_post(struct hps_unary *op)
{
    const struct hps_unary_options *options = &op->service->options;
    bool admin = op->method->place == HPS_UNARY_ADMIN || options->workers == NULL;
    bool quick = op->method->kind <= HPS_UNARY_WAITS;
    return hps_pool_post_for(admin ? options->admin_pool : options->workers, &op->task,
                             hps_grpc_call_client(op->call), quick ? 0 : HPS_POOL_LONG, &op->error);
}

static void refuse(struct hps_unary *op)
{
    audit_refused(op->service, op->call, op->method, &op->error);
    hps_grpc_call_set_user(op->call, NULL);
    hps_unary_answer(op);
    op_free(op);
}

static void start(struct hps_unary *op)
{
    HPS_ASSERT(hps_loop_is_mine(hps_grpc_call_loop(op->call)));
    if (judge(op) == HPS_OK) {
        if (op->method->place == HPS_UNARY_LOOP) {
            op->method->work(op);
            audit(op);
            hps_unary_answer(op);
            op_free(op);
            return;
        }
        if (op->method->kind == HPS_UNARY_WAITS) {
            hps_grpc_call_set_user(op->call, op);
        }
        op->task.run = run_work;
        if (hps_unary_post(op) == HPS_OK) {
            return;
        }
    }
    refuse(op);
}

/* Find a method by its path, or the last part of it. It must exist. */
static const struct hps_unary_method *method_of(const struct hps_unary_service *service,
                                                const char *name)
{
    const struct hps_unary_method *method = service->options.methods;
    while (strcmp(method->path, name) != 0 && strcmp(name_of(method), name) != 0) {
        method++;
        HPS_ASSERT(method < service->options.methods + service->options.n_methods);
    }
    return method;
}

struct hps_unary *hps_unary_new(struct hps_unary_service *service, struct hps_grpc_call *call,
                                const char *method)
{
    struct hps_unary *op = hps_calloc(1, service->options.op_bytes);
    struct hps_arena *arena = hps_arena_new(ARENA_BYTES, service->options.arena_bytes_max);
    if (op == NULL || arena == NULL) {
        struct hps_error err;
        hps_ignore(hps_error_set(&err, HPS_NO_MEMORY, "no memory for the call"));
        audit_refused(service, call, method_of(service, method), &err);
        hps_grpc_call_fail(call, &err);
        hps_free(op);
        hps_arena_free(arena);
        return NULL;
    }
    hps_arena_on_grow(arena, hps_charge_arena, hps_grpc_call_charge(call));
    hps_grpc_call_ref(call);
    *op = (struct hps_unary){.service = service,
                             .parts = service->parts,
                             .method = method_of(service, method),
                             .call = call,
                             .arena = arena,
                             .model = ""};
    return op;
}

static void unpack(struct hps_unary *op, const uint8_t *data, size_t size)
{
    ProtobufCMessage *message = NULL;
    hps_status status = hps_message_read(op->method->request, op->arena, data, size, &message);
    op->request = message;
    if (status != HPS_OK) {
        hps_ignore(hps_error_set(&op->error, status,
                                 status == HPS_INVALID ? "request: malformed message"
                                                       : "request: too large once it is unpacked"));
    }
}

static void run_start(struct hps_task *task)
{
    start(HPS_CONTAINER_OF(task, struct hps_unary, task));
}

/* Worker or admin thread. */
static void run_unpack(struct hps_task *task)
{
    struct hps_unary *op = HPS_CONTAINER_OF(task, struct hps_unary, task);
    op->unpack(op, op->packed, op->packed_size);
    op->task.run = run_start;
    hps_loop_post(hps_grpc_call_loop(op->call), &op->task);
}

void hps_unary_read(struct hps_unary *op, const uint8_t *data, size_t size,
                    void (*unpack_fn)(struct hps_unary *op, const uint8_t *data, size_t size))
{
    if (size <= UNPACKED_HERE_BYTES_MAX) {
        unpack_fn(op, data, size);
        start(op);
        return;
    }
    uint8_t *packed = hps_unary_alloc(op, size, 1);
    if (packed != NULL) {
        memcpy(packed, data, size);
        op->packed = packed;
        op->packed_size = size;
        op->unpack = unpack_fn;
        op->task.run = run_unpack;
    }
    if (packed == NULL || hps_unary_post(op) != HPS_OK) {
        refuse(op);
    }
}

static void on_message(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    struct hps_unary *op = hps_unary_new(hps_grpc_call_ctx(call), call, hps_grpc_call_path(call));
    if (op != NULL) {
        hps_unary_read(op, data, size, unpack);
    }
}

/* ---- services -------------------------------------------------------------------------------- */

struct hps_grpc_method hps_unary_route(const struct hps_unary_service *service, const char *method,
                                       const char *pattern,
                                       void (*on_route)(struct hps_grpc_call *call,
                                                        const uint8_t *data, size_t size))
{
    const struct hps_unary_method *of = method_of(service, method);
    return (struct hps_grpc_method){.path = pattern,
                                    .open = of->scope == HPS_UNARY_OPEN,
                                    .roles = of->roles,
                                    .request_bytes_max = of->request_bytes_max != 0
                                                             ? of->request_bytes_max
                                                             : HPS_REQUEST_BYTES_MAX,
                                    .on_message = on_route,
                                    .on_close = on_close};
}

struct hps_unary_service *hps_unary_service_new(const struct hps_unary_options *options)
{
    struct hps_unary_service *service = hps_calloc(1, sizeof(*service));
    struct hps_grpc_method *methods = hps_calloc(options->n_methods, sizeof(*methods));
    void *parts = hps_alloc(options->parts_bytes);
    HPS_ASSERT(options->op_bytes >= sizeof(struct hps_unary));
    if (service == NULL || methods == NULL || parts == NULL) {
        hps_free(service);
        hps_free(methods);
        hps_free(parts);
        return NULL;
    }
    memcpy(parts, options->parts, options->parts_bytes);
    *service = (struct hps_unary_service){
        .options = *options,
        .grpc = {.name = options->name, .methods = methods, .n_methods = options->n_methods},
        .methods = methods,
        .parts = parts};
    service->grpc.ctx = service;
    for (unsigned i = 0; i < options->n_methods; i++) {
        const struct hps_unary_method *method = &options->methods[i];
        HPS_ASSERT(method->place == HPS_UNARY_LOOP ||
                   (method->place == HPS_UNARY_ADMIN ? options->admin_pool : options->workers));
        HPS_ASSERT(method->kind != HPS_UNARY_WAITS || options->closed != NULL);
        HPS_ASSERT(method->kind <= HPS_UNARY_WAITS || options->audit != NULL);
        methods[i] = hps_unary_route(service, method->path, method->path, on_message);
    }
    return service;
}

void hps_unary_service_free(struct hps_unary_service *service)
{
    if (service != NULL) {
        hps_free(service->methods);
        hps_free(service->parts);
        hps_free(service);
    }
}

const struct hps_grpc_service *hps_unary_service_grpc(const struct hps_unary_service *service)
{
    return &service->grpc;
}
