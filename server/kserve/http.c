/* SPDX-License-Identifier: Apache-2.0
 *
 * Routes, bodies of requests, and replies. See server/kserve/http.h.
 */
#include "server/kserve/http.h"

#include <string.h>

#include "base/assert.h"
#include "config/json.h"
#include "inference/grpc_service.pb-c.h"
#include "proto/fields.h"
#include "proto/json.h"

enum { JSON_BYTES_MAX = 4 * HPS_MESSAGE_BYTES_MAX };

static const struct kserve_route routes[] = {
#define MODEL(verb, rest, method, form)                      \
    {verb, "/v2/models/{}" rest, method, form},              \
    {                                                        \
        verb, "/v2/models/{}/versions/{}" rest, method, form \
    }
#define NOTHING(verb, pattern, method)             \
    {                                              \
        verb, pattern, method, KSERVE_FORM_NOTHING \
    }
#define MEMORY(path, kind)                                                                     \
    {"GET", "/v2/" path "/status", kind "SharedMemoryStatus", KSERVE_FORM_LIST},               \
        {"GET", "/v2/" path "/region/{}/status", kind "SharedMemoryStatus", KSERVE_FORM_LIST}, \
        NOTHING("POST", "/v2/" path "/region/{}/register", kind "SharedMemoryRegister"),       \
        NOTHING("POST", "/v2/" path "/unregister", kind "SharedMemoryUnregister"),             \
        NOTHING("POST", "/v2/" path "/region/{}/unregister", kind "SharedMemoryUnregister")
    {"GET", "/v2", "ServerMetadata", KSERVE_FORM_MESSAGE},
    {"GET", "/v2/health/live", "ServerLive", KSERVE_FORM_READY},
    {"GET", "/v2/health/ready", "ServerReady", KSERVE_FORM_READY},
    {"GET", "/v2/models/stats", "ModelStatistics", KSERVE_FORM_MESSAGE},
    MODEL("GET", "", "ModelMetadata", KSERVE_FORM_MESSAGE),
    MODEL("GET", "/ready", "ModelReady", KSERVE_FORM_READY),
    MODEL("GET", "/config", "ModelConfig", KSERVE_FORM_CONFIG),
    MODEL("GET", "/stats", "ModelStatistics", KSERVE_FORM_MESSAGE),
    {"POST", "/v2/repository/index", "RepositoryIndex", KSERVE_FORM_LIST},
    {"POST", "/v2/repository/models/{}/load", "RepositoryModelLoad", KSERVE_FORM_NOTHING},
    {"POST", "/v2/repository/models/{}/unload", "RepositoryModelUnload", KSERVE_FORM_NOTHING},
    MEMORY("systemsharedmemory", "System"),
    MEMORY("cudasharedmemory", "Cuda"),
    NOTHING("GET", "/v2/trace/setting", "TraceSetting"),
    NOTHING("POST", "/v2/trace/setting", "TraceSetting"),
    NOTHING("GET", "/v2/models/{}/trace/setting", "TraceSetting"),
    NOTHING("POST", "/v2/models/{}/trace/setting", "TraceSetting"),
    NOTHING("GET", "/v2/logging", "LogSettings"),
    NOTHING("POST", "/v2/logging", "LogSettings"),
#undef MEMORY
#undef NOTHING
#undef MODEL
};

enum { N_ROUTES = sizeof(routes) / sizeof(routes[0]) };

const struct kserve_route *kserve_routes(size_t *out_n)
{
    *out_n = N_ROUTES;
    return routes;
}

const struct kserve_route *kserve_route_of(const struct hps_grpc_call *call)
{
    const char *path = hps_grpc_call_path(call);
    size_t i = 0;
    while (strcmp(routes[i].pattern, path) != 0) {
        i++; /* each call has a route; the routes of a pattern have the same method */
    }
    return &routes[i];
}

/* ---- requests -------------------------------------------------------------------------------- */

static void *field_at(ProtobufCMessage *message, const char *name)
{
    const ProtobufCFieldDescriptor *field =
        protobuf_c_message_descriptor_get_field_by_name(message->descriptor, name);
    return field != NULL ? (char *)message + field->offset : NULL;
}

/* Sets the field from the i-th segment of the path, if both exist. False: op->error is set. */
static bool put_segment(struct hps_unary *op, ProtobufCMessage *request, unsigned i,
                        const char *name)
{
    char **to = field_at(request, name);
    const char *text = to != NULL ? hps_grpc_call_segment(op->call, i, NULL) : NULL;
    if (text != NULL) {
        *to = hps_unary_text(op, text);
    }
    return op->error.status == HPS_OK;
}

/* NULL: op->error is set. */
static Inference__ModelRepositoryParameter *parameter_of(struct hps_unary *op, const json_t *json)
{
    Inference__ModelRepositoryParameter *parameter =
        hps_unary_message(op, &inference__model_repository_parameter__descriptor);
    if (parameter == NULL) {
        return NULL;
    }
    if (json_is_boolean(json)) {
        parameter->parameter_choice_case =
            INFERENCE__MODEL_REPOSITORY_PARAMETER__PARAMETER_CHOICE_BOOL_PARAM;
        parameter->bool_param = json_is_true(json);
    } else if (json_is_integer(json)) {
        parameter->parameter_choice_case =
            INFERENCE__MODEL_REPOSITORY_PARAMETER__PARAMETER_CHOICE_INT64_PARAM;
        parameter->int64_param = json_integer_value(json);
    } else if (json_is_string(json)) {
        parameter->parameter_choice_case =
            INFERENCE__MODEL_REPOSITORY_PARAMETER__PARAMETER_CHOICE_STRING_PARAM;
        parameter->string_param = hps_unary_text(op, json_string_value(json));
    }
    return parameter;
}

/* Sets the parameters of a load or an unload. Their maps have two types that differ only in their
 * names.
 *
 * error   INVALID, EXHAUSTED */
static hps_status put_parameters(struct hps_unary *op, ProtobufCMessage *request, json_t *json)
{
    const ProtobufCFieldDescriptor *field =
        protobuf_c_message_descriptor_get_field_by_name(request->descriptor, "parameters");
    if (field == NULL || json == NULL || json_is_null(json)) {
        return HPS_OK;
    }
    if (!json_is_object(json)) {
        return hps_error_set(&op->error, HPS_INVALID, "body: 'parameters' is not an object");
    }
    ProtobufCMessage **entries = kserve_messages(op, field->descriptor, json_object_size(json));
    size_t n = 0;
    const char *key;
    json_t *value;
    json_object_foreach (json, key, value) {
        if (entries == NULL || op->error.status != HPS_OK) {
            break;
        }
        *(char **)field_at(entries[n], "key") = hps_unary_text(op, key);
        *(Inference__ModelRepositoryParameter **)field_at(entries[n], "value") =
            parameter_of(op, value);
        n++;
    }
    *(ProtobufCMessage ***)(void *)((char *)request + field->offset) = entries;
    *(size_t *)(void *)((char *)request + field->quantifier_offset) = n;
    return op->error.status;
}

static hps_status put_body(struct hps_unary *op, ProtobufCMessage *request, json_t *body)
{
    if (!json_is_object(body)) {
        return hps_error_set(&op->error, HPS_INVALID, "body: not a JSON object");
    }
    protobuf_c_boolean *ready = field_at(request, "ready");
    json_t *json = json_object_get(body, "ready");
    if (ready != NULL && json != NULL && !json_is_boolean(json) && !json_is_null(json)) {
        return hps_error_set(&op->error, HPS_INVALID, "body: 'ready' is neither true nor false");
    }
    if (ready != NULL) {
        *ready = json_is_true(json);
    }
    return put_parameters(op, request, json_object_get(body, "parameters"));
}

hps_status kserve_op_read_http(struct hps_unary *op, const ProtobufCMessageDescriptor *type,
                               const uint8_t *body, size_t size)
{
    ProtobufCMessage *request = hps_unary_message(op, type);
    if (request == NULL || !put_segment(op, request, 0, "name") ||
        !put_segment(op, request, 0, "model_name") || !put_segment(op, request, 1, "version")) {
        return op->error.status;
    }
    op->request = request;
    if (size == 0 ||
        (field_at(request, "ready") == NULL && field_at(request, "parameters") == NULL)) {
        return HPS_OK;
    }
    json_t *json = NULL;
    json_error_t why;
    hps_status status = hps_json_load((const char *)body, size, 0, &json, &why);
    if (status != HPS_OK) {
        return hps_error_set(&op->error, status, "body: not JSON: line %d, column %d: %s", why.line,
                             why.column, why.text);
    }
    status = put_body(op, request, json);
    json_decref(json);
    return status;
}

/* ---- answers --------------------------------------------------------------------------------- */

/* The field of a message with one field. */
static const ProtobufCFieldDescriptor *only_field(const ProtobufCMessage *message)
{
    HPS_ASSERT(message->descriptor->n_fields == 1);
    return &message->descriptor->fields[0];
}

static void put_list(const ProtobufCMessage *reply, struct hps_buf *buf)
{
    const ProtobufCFieldDescriptor *field = only_field(reply);
    const ProtobufCMessage *const *items =
        *(const ProtobufCMessage *const *const *)hps_field_at(reply, field->offset);
    size_t n = *(const size_t *)hps_field_at(reply, field->quantifier_offset);
    hps_buf_put(buf, "[");
    for (size_t i = 0; i < n; i++) {
        hps_buf_put(buf, i == 0 ? "" : ",");
        hps_message_json(items[i], buf);
    }
    hps_buf_put(buf, "]");
}

static void put_answer(const ProtobufCMessage *reply, enum kserve_form form, struct hps_buf *buf)
{
    if (form == KSERVE_FORM_LIST) {
        put_list(reply, buf);
        return;
    }
    if (form == KSERVE_FORM_CONFIG) {
        reply = *(ProtobufCMessage *const *)hps_field_at(reply, only_field(reply)->offset);
    }
    hps_message_json(reply, buf);
}

void kserve_op_answer_http(struct hps_unary *op)
{
    enum kserve_form form = kserve_route_of(op->call)->form;
    struct hps_buf buf;
    HPS_ASSERT(op->reply != NULL);
    if (form == KSERVE_FORM_READY) {
        static const char not_ready[] =
            "{\"error\":\"Model version not ready\"}"; /* Triton's text */
        const void *field = hps_field_at(op->reply, only_field(op->reply)->offset);
        bool ready = *(const protobuf_c_boolean *)field;
        hps_grpc_call_answer_status(op->call, ready ? 200 : 400);
        if (!ready && op->model[0] != '\0') { /* ModelReady; health routes send no body */
            hps_grpc_call_send_copy(op->call, (const uint8_t *)not_ready, strlen(not_ready));
        }
    }
    if (form == KSERVE_FORM_READY || form == KSERVE_FORM_NOTHING) {
        hps_grpc_call_finish(op->call, 0, NULL);
        return;
    }
    hps_buf_init(&buf, JSON_BYTES_MAX);
    put_answer(op->reply, form, &buf);
    if (buf.status == HPS_OK) {
        hps_grpc_call_send_copy(op->call, buf.data, buf.size);
        hps_grpc_call_finish(op->call, 0, NULL);
    } else {
        hps_grpc_call_finish(op->call, hps_status_grpc_code(buf.status),
                             "no memory for the answer");
    }
    hps_buf_fini(&buf);
}
