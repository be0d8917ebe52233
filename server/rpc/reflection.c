/* SPDX-License-Identifier: Apache-2.0
 *
 * The build embeds the serialised FileDescriptorSet of all .proto files. At the start it is split
 * into files. A small reader parses only the descriptor fields that it needs. Immutable afterwards;
 * calls run on any loop.
 */
#include "server/rpc/reflection.h"

#include <string.h>

#include "base/assert.h"
#include "base/heap.h"
#include "grpc/reflection/v1/reflection.pb-c.h"
#include "proto/descriptors.h"
#include "server/access/access.h"
#include "server/rpc/message.h"

enum { FILES_MAX = 32, NEST_MAX = 8 };

struct bytes {
    const uint8_t *data;
    size_t size;
};

struct hps_reflection_service {
    struct hps_grpc_service grpc[2];
    struct hps_grpc_method methods[2];
    const char *const *names;
    unsigned n_names;
    struct bytes files[FILES_MAX]; /* serialised FileDescriptorProto */
    unsigned n_files;
};

/* ---- reading descriptors --------------------------------------------------------------------- */

static bool read_varint(struct bytes *in, uint64_t *out)
{
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64 && in->size > 0; shift += 7) {
        uint8_t byte = *in->data++;
        in->size--;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if ((byte & 0x80) == 0) {
            *out = value;
            return true;
        }
    }
    return false;
}

/* Read the next length-delimited field; other fields are skipped. False at the end. */
static bool next_field(struct bytes *in, uint32_t *out_number, struct bytes *out)
{
    uint64_t tag, value;
    while (in->size > 0 && read_varint(in, &tag)) {
        unsigned wire = tag & 7;
        if (wire == 0) {
            if (!read_varint(in, &value)) {
                return false;
            }
        } else if (wire == 1 || wire == 5) {
            size_t skip = wire == 1 ? 8 : 4;
            if (in->size < skip) {
                return false;
            }
            in->data += skip;
            in->size -= skip;
        } else {
            if (wire != 2 || !read_varint(in, &value) || value > in->size) {
                return false;
            }
            *out_number = (uint32_t)(tag >> 3);
            *out = (struct bytes){in->data, (size_t)value};
            in->data += value;
            in->size -= (size_t)value;
            return true;
        }
    }
    return false;
}

/* The n-th field `number` of a message. */
static bool get_field(struct bytes in, uint32_t number, unsigned n, struct bytes *out)
{
    uint32_t found;
    struct bytes value;
    while (next_field(&in, &found, &value)) {
        if (found == number && n-- == 0) {
            *out = value;
            return true;
        }
    }
    return false;
}

/* Remove "name" or "name." from the front of `symbol`. */
static bool symbol_skip(struct bytes *symbol, struct bytes name, bool *out_end)
{
    if (symbol->size < name.size || memcmp(symbol->data, name.data, name.size) != 0) {
        return false;
    }
    if (symbol->size == name.size) {
        *out_end = true;
        return true;
    }
    if (symbol->data[name.size] != '.') {
        return false;
    }
    symbol->data += name.size + 1;
    symbol->size -= name.size + 1;
    *out_end = false;
    return true;
}

/* Whether `symbol` is defined in this DescriptorProto, service or enum; field 1 is its name. The
 * rest of the symbol may name a nested type (3), an enum (4) or a field (2; of a service: a method;
 * of an enum: a value). */
static bool defines_in(struct bytes message, struct bytes symbol, unsigned depth)
{
    struct bytes name;
    bool end;
    if (depth > NEST_MAX || !get_field(message, 1, 0, &name) || !symbol_skip(&symbol, name, &end)) {
        return false;
    }
    if (end) {
        return true;
    }
    uint32_t number;
    struct bytes inner;
    while (next_field(&message, &number, &inner)) {
        if ((number == 2 || number == 3 || number == 4) && defines_in(inner, symbol, depth + 1)) {
            return true;
        }
    }
    return false;
}

/* FileDescriptorProto: package = 2, message_type = 4, enum_type = 5, service = 6. */
static bool file_defines(struct bytes file, struct bytes symbol)
{
    struct bytes package;
    bool end = false;
    if (get_field(file, 2, 0, &package) && (!symbol_skip(&symbol, package, &end) || end)) {
        return false;
    }
    uint32_t number;
    struct bytes inner;
    while (next_field(&file, &number, &inner)) {
        if (number >= 4 && number <= 6 && defines_in(inner, symbol, 0)) {
            return true;
        }
    }
    return false;
}

static unsigned file_by_name(const struct hps_reflection_service *service, struct bytes wanted)
{
    for (unsigned i = 0; i < service->n_files; i++) {
        struct bytes name;
        if (get_field(service->files[i], 1, 0, &name) && name.size == wanted.size &&
            memcmp(name.data, wanted.data, name.size) == 0) {
            return i;
        }
    }
    return FILES_MAX;
}

static unsigned file_by_symbol(const struct hps_reflection_service *service, const char *symbol)
{
    struct bytes wanted = {(const uint8_t *)symbol, strlen(symbol)};
    for (unsigned i = 0; i < service->n_files; i++) {
        if (file_defines(service->files[i], wanted)) {
            return i;
        }
    }
    return FILES_MAX;
}

/* ---- replies --------------------------------------------------------------------------------- */

typedef Grpc__Reflection__V1__ServerReflectionRequest request_message;
typedef Grpc__Reflection__V1__ServerReflectionResponse response_message;
#define REQUEST(name)  GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_##name
#define RESPONSE(name) GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_##name

static void answer_error(struct hps_grpc_call *call, response_message *reply, hps_status status,
                         const char *text)
{
    Grpc__Reflection__V1__ErrorResponse error = GRPC__REFLECTION__V1__ERROR_RESPONSE__INIT;
    error.error_code = hps_status_grpc_code(status);
    error.error_message = (char *)text;
    reply->message_response_case = RESPONSE(ERROR_RESPONSE);
    reply->error_response = &error;
    hps_message_send(call, &reply->base);
}

/* A file, followed by all files that it imports (dependency = 3). */
static void answer_file(struct hps_grpc_call *call, response_message *reply, unsigned first)
{
    const struct hps_reflection_service *service = hps_grpc_call_ctx(call);
    if (first == FILES_MAX) {
        answer_error(call, reply, HPS_NOT_FOUND, "no such file or symbol");
        return;
    }
    unsigned order[FILES_MAX] = {first};
    unsigned n = 1;
    for (unsigned i = 0; i < n; i++) {
        struct bytes dependency;
        for (unsigned k = 0; get_field(service->files[order[i]], 3, k, &dependency); k++) {
            unsigned at = file_by_name(service, dependency);
            bool there = at == FILES_MAX;
            for (unsigned j = 0; j < n; j++) {
                there = there || order[j] == at;
            }
            if (!there) {
                HPS_ASSERT(n < FILES_MAX);
                order[n++] = at;
            }
        }
    }
    ProtobufCBinaryData data[FILES_MAX];
    for (unsigned i = 0; i < n; i++) {
        data[i].data = (uint8_t *)service->files[order[i]].data;
        data[i].len = service->files[order[i]].size;
    }
    Grpc__Reflection__V1__FileDescriptorResponse files =
        GRPC__REFLECTION__V1__FILE_DESCRIPTOR_RESPONSE__INIT;
    files.n_file_descriptor_proto = n;
    files.file_descriptor_proto = data;
    reply->message_response_case = RESPONSE(FILE_DESCRIPTOR_RESPONSE);
    reply->file_descriptor_response = &files;
    hps_message_send(call, &reply->base);
}

static void answer_list(struct hps_grpc_call *call, response_message *reply)
{
    const struct hps_reflection_service *service = hps_grpc_call_ctx(call);
    Grpc__Reflection__V1__ServiceResponse services[FILES_MAX];
    Grpc__Reflection__V1__ServiceResponse *pointers[FILES_MAX];
    Grpc__Reflection__V1__ListServiceResponse list =
        GRPC__REFLECTION__V1__LIST_SERVICE_RESPONSE__INIT;
    for (unsigned i = 0; i < service->n_names && i < FILES_MAX; i++) {
        grpc__reflection__v1__service_response__init(&services[i]);
        services[i].name = (char *)service->names[i];
        pointers[list.n_service++] = &services[i];
    }
    list.service = pointers;
    reply->message_response_case = RESPONSE(LIST_SERVICES_RESPONSE);
    reply->list_services_response = &list;
    hps_message_send(call, &reply->base);
}

static void answer(struct hps_grpc_call *call, request_message *request)
{
    const struct hps_reflection_service *service = hps_grpc_call_ctx(call);
    response_message reply = GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__INIT;
    reply.valid_host = request->host;
    reply.original_request = request;
    switch (request->message_request_case) {
    case REQUEST(FILE_BY_FILENAME): {
        struct bytes name = {(const uint8_t *)request->file_by_filename,
                             strlen(request->file_by_filename)};
        answer_file(call, &reply, file_by_name(service, name));
        break;
    }
    case REQUEST(FILE_CONTAINING_SYMBOL):
        answer_file(call, &reply, file_by_symbol(service, request->file_containing_symbol));
        break;
    case REQUEST(LIST_SERVICES):
        answer_list(call, &reply);
        break;
    case REQUEST(FILE_CONTAINING_EXTENSION):
    case REQUEST(ALL_EXTENSION_NUMBERS_OF_TYPE):
        answer_error(call, &reply, HPS_NOT_FOUND, "these protos have no extensions");
        break;
    default:
        answer_error(call, &reply, HPS_INVALID, "message_request: not set");
        break;
    }
}

static void on_message(struct hps_grpc_call *call, const uint8_t *data, size_t size)
{
    uint64_t retry_us;
    struct hps_error err;
    if (hps_access_take_call(call, 0, &retry_us, &err) != HPS_OK) {
        hps_grpc_call_fail(call, &err);
        return;
    }
    struct hps_arena *arena = hps_arena_new(4096, HPS_MESSAGE_BYTES_MAX);
    ProtobufCMessage *message =
        arena == NULL
            ? NULL
            : hps_message_unpack(&grpc__reflection__v1__server_reflection_request__descriptor,
                                 arena, data, size);
    if (message == NULL) {
        hps_grpc_call_finish(call, hps_status_grpc_code(HPS_INVALID),
                             "request: not a ServerReflectionRequest");
    } else {
        answer(call, (request_message *)message);
    }
    hps_arena_free(arena);
}

static void on_half_close(struct hps_grpc_call *call)
{
    hps_grpc_call_finish(call, 0, NULL);
}

struct hps_reflection_service *hps_reflection_service_new(const char *const *names,
                                                          unsigned n_names)
{
    static const char *const paths[2] = {
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"};
    static const char *const services[2] = {"grpc.reflection.v1.ServerReflection",
                                            "grpc.reflection.v1alpha.ServerReflection"};
    struct hps_reflection_service *service = hps_calloc(1, sizeof(*service));
    if (service == NULL) {
        return NULL;
    }
    struct bytes set = {hps_descriptors, hps_descriptors_size};
    uint32_t number;
    struct bytes file;
    while (service->n_files < FILES_MAX && next_field(&set, &number, &file)) {
        service->files[service->n_files++] = file;
    }
    service->names = names;
    service->n_names = n_names;
    for (unsigned i = 0; i < 2; i++) {
        service->methods[i] = (struct hps_grpc_method){.path = paths[i],
                                                       .client_streaming = true,
                                                       .request_bytes_max = HPS_REQUEST_BYTES_MAX,
                                                       .on_message = on_message,
                                                       .on_half_close = on_half_close};
        service->grpc[i] = (struct hps_grpc_service){
            .name = services[i], .methods = &service->methods[i], .n_methods = 1, .ctx = service};
    }
    return service;
}

void hps_reflection_service_free(struct hps_reflection_service *service)
{
    hps_free(service);
}

const struct hps_grpc_service *hps_reflection_service_grpc(
    const struct hps_reflection_service *service, unsigned alpha)
{
    HPS_ASSERT(alpha < 2);
    return &service->grpc[alpha];
}
